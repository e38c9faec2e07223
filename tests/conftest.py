"""The real engines and a real proxy in front of them, for whichever test asks for them."""

from collections.abc import Iterator

import hypothesis
import pytest

# How long an example takes is a matter of the machine.
hypothesis.settings.register_profile("counterproof", deadline=None)
hypothesis.settings.load_profile("counterproof")

pytest_plugins = ["tests.engine.fixtures", "tests.leftovers", "tests.searching"]


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What proxies keep beside their configuration stays out of the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
