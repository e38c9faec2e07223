"""Today's agent clients, each a process of its own that a test has run against a base URL."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.agents import CHAT, MESSAGES, RESPONSES, Agent
from tests.clients.building import HERE, Environment, prepare

DRIVERS = CHAT | RESPONSES | MESSAGES
# The first run of all builds the environment inside a test's set-up.
BUILD_S = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", [])
        if {"agent", "dialect_agent"} & set(fixtures) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILD_S))


@pytest.fixture(scope="session")
def environment(pytestconfig: pytest.Config) -> Environment:
    terminal = pytestconfig.pluginmanager.get_plugin("terminalreporter")

    def report(line: str) -> None:
        if terminal is not None:
            terminal.write_line(line)

    return prepare(report)


@pytest.fixture(scope="session", params=CHAT)
def agent(
    request: pytest.FixtureRequest, environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Agent]:
    """Each client of chat completions in turn; one start serves every test of it."""
    with started(request.param, environment, tmp_path_factory.mktemp("agent")) as process:
        yield process


@pytest.fixture(scope="session", params=RESPONSES | MESSAGES)
def dialect_agent(
    request: pytest.FixtureRequest, environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Agent]:
    """Likewise each client of the other two dialects."""
    with started(request.param, environment, tmp_path_factory.mktemp("agent")) as process:
        yield process


@contextlib.contextmanager
def started(name: str, environment: Environment, folder: Path) -> Iterator[Agent]:
    file, *told = DRIVERS[name]
    driver = HERE / "drivers" / file
    if driver.suffix == ".mjs":
        # Node looks for packages beside the file that imports them.
        (folder / "node_modules").symlink_to(environment.node_modules)
        command = [environment.node, shutil.copy(driver, folder)]
    else:
        command = [environment.python, driver]
    with Agent(name, [*command, *told], folder) as process:
        yield process


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)
