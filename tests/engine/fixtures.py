"""Real engines for tests: built once per machine, started once per run. A pytest plugin (see tests/conftest.py).

`COUNTERPROOF_TEST_PRIMARY` and `COUNTERPROOF_TEST_REFERENCE` (base URLs, with or without `/v1`) let a developer's own
running engines stand in for either; they are neither started nor ended here.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from proxy.demo.rig import PRIMARY_ARGS, REFERENCE_ARGS, Engine, Rig, free_port, prepare
from proxy.demo.served import ProxyProcess
from proxy.ledger import LedgerReader
from tests.watching import WATCH

# Two engines that load at once on two cores take 40 to 60 s; a loaded machine takes its time.
READY_S = 300.0
# The first run of all builds the rig inside a test's set-up.
BUILD_AND_START_S = 1800

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Served:
    """An engine that answers. `engine` is None where a developer's own stands in."""

    base_url: str
    engine: Engine | None = None

    @property
    def root_url(self) -> str:
        """Where /health, /version and /metrics are: `base_url` without /v1."""
        return self.base_url.removesuffix("/v1")


class Engines(NamedTuple):
    primary: Served
    reference: Served


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies in this folder, and gives whoever needs the engines the time that a first build takes."""
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        if HERE in item.path.parents or "engines" in fixtures:
            item.add_marker(pytest.mark.engine)
        if {"rig", "engines"} & set(fixtures) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILD_AND_START_S))


@pytest.fixture(scope="session")
def rig(pytestconfig: pytest.Config) -> Rig:
    """The engines' environment and model; the first build of all takes about four minutes."""
    terminal = pytestconfig.pluginmanager.get_plugin("terminalreporter")

    def report(line: str) -> None:
        if terminal is not None:
            terminal.write_line(line)

    return prepare(report)


@pytest.fixture(scope="session")
def engines(request: pytest.FixtureRequest) -> Iterator[Engines]:
    """The primary (bf16, FP8 KV cache where the CPU can) and the float32 reference, on a core each."""
    cores: list[int | None] = [*sorted(os.sched_getaffinity(0))]
    # With one core there is nothing to divide: vLLM binds both as it likes.
    first, second = cores[:2] if len(cores) > 1 else (None, None)
    with contextlib.ExitStack() as stack:
        served = [
            _serve(stack, request, "primary", first, PRIMARY_ARGS),
            _serve(stack, request, "reference", second, REFERENCE_ARGS),
        ]
        asyncio.run(_all_ready([one.engine for one in served if one.engine]))
        yield Engines(*served)


@dataclass(frozen=True)
class ObservingProxy:
    """A running proxy and its ledger."""

    process: ProxyProcess
    ledger: Path

    def judged(self, exchange: str, seconds: float = 120.0) -> dict[str, Any]:
        """The ledger's record of an exchange, once its shadow has been asked."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.ledger.exists():
                with LedgerReader(self.ledger) as reader:
                    record = reader.exchange(exchange)
                if record and record["examinations"]:
                    return record
            time.sleep(0.1)
        raise AssertionError(f"{exchange} was not judged in {seconds:.0f} s")


@pytest.fixture(scope="session")
def proxy(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservingProxy]:
    """`counterproof serve` between the two engines: everything mirrored, content kept, the reference warm."""
    folder = tmp_path_factory.mktemp("proxy")
    ledger = folder / "counterproof.db"
    settings = {
        "primary": {"base_url": engines.primary.base_url},
        "shadows": [{"name": "reference", "base_url": engines.reference.base_url, "timeout": "300s"}],
        "mirror": {"tool_calls": 1, "other": 1},
        "ledger": {"path": str(ledger), "content": "full"},
        "listen": {"port": free_port()},
        "control": {"port": free_port()},
        "log": {"format": "json"},
    }
    with ProxyProcess(settings, folder) as process:
        process.wait_fit("reference", READY_S)
        yield ObservingProxy(process, ledger)


def _serve(
    stack: contextlib.ExitStack, request: pytest.FixtureRequest, name: str, core: int | None, args: tuple[str, ...]
) -> Served:
    if running := os.environ.get(f"COUNTERPROOF_TEST_{name.upper()}"):
        return Served(base_url=running.rstrip("/").removesuffix("/v1") + "/v1")
    rig: Rig = request.getfixturevalue("rig")  # only now: a developer's own engines need none
    engine = Engine.start(rig, name=f"test-{name}", port=free_port(), core=core, args=args)
    stack.callback(engine.stop)
    WATCH.see("file", str(engine.log))  # it lies beside the rig, not in the run's folder
    return Served(engine.base_url, engine)


async def _all_ready(engines: list[Engine]) -> None:
    await asyncio.gather(*(engine.wait_ready(READY_S) for engine in engines))
