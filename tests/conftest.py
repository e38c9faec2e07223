"""The real engines and a real proxy in front of them, for whichever test asks for them."""

pytest_plugins = ["tests.engine.fixtures"]
