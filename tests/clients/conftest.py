"""Today's agent clients, each a process of its own that a test has run against a base URL."""

import shutil
from collections.abc import Iterator

import pytest

from tests.clients.agents import Agent
from tests.clients.building import HERE, Environment, prepare

DRIVERS = {
    "openai": "openai_sdk.py",
    "langgraph": "langgraph_agent.py",
    "openai-agents": "openai_agents.py",
    "pydantic-ai": "pydantic_ai_agent.py",
    "ai": "ai_sdk.mjs",
}
# The first run of all builds the environment inside a test's set-up.
BUILD_S = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "agent" in getattr(item, "fixturenames", []) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILD_S))


@pytest.fixture(scope="session")
def environment(pytestconfig: pytest.Config) -> Environment:
    terminal = pytestconfig.pluginmanager.get_plugin("terminalreporter")

    def report(line: str) -> None:
        if terminal is not None:
            terminal.write_line(line)

    return prepare(report)


@pytest.fixture(scope="session", params=DRIVERS)
def agent(
    request: pytest.FixtureRequest, environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Agent]:
    """Each client in turn; one start serves every test of it."""
    folder = tmp_path_factory.mktemp("agent")
    driver = HERE / "drivers" / DRIVERS[request.param]
    if driver.suffix == ".mjs":
        # Node looks for packages beside the file that imports them.
        (folder / "node_modules").symlink_to(environment.node_modules)
        command = [environment.node, shutil.copy(driver, folder)]
    else:
        command = [environment.python, driver]
    with Agent(request.param, command, folder) as process:
        yield process


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)
