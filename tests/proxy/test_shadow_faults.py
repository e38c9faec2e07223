"""Whatever is the matter with a shadow, clients get the primary's answers, and every exchange is counted under a name.

A healthy shadow stands beside each faulty one, so that token ids are asked for (and cut out again) all the while.
"""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from shadow import reference
from shadow.reference import State
from tests.proxy.answers import same
from tests.proxy.serving import Proxy, proxy
from tests.standin import GARBAGE, WRONG_SHAPE, Call, Faults, Script, StandIn

pytestmark = pytest.mark.slow

REQUESTS = 320  # to the proxy, per case
CLIENTS = 16
NOT_OURS = {"x-counterproof-id", "x-counterproof-mode", "content-length", "transfer-encoding", "date", "connection"}
TOOLS = [{"type": "function", "function": {"name": "send"}}]
SCRIPTS: list[dict[str, Any]] = [
    {"text": "Words, żółć 👩.", "when": "Say"},
    {"calls": [{"name": "send", "arguments": '{"n": 1}'}], "when": "Do"},
]
SAY, DO = ([{"role": "user", "content": word}] for word in ("Say it.", "Do it."))

Outcome = tuple[str, str]
COMPARED: Outcome = ("compared", "")
OPEN: Outcome = ("dropped", "circuit_open")
UNREACHABLE: Outcome = ("failed", "unreachable")
TIMEOUT: Outcome = ("failed", "timeout")
GARBLED: Outcome = ("failed", "garbage")
BROKEN: Outcome = ("failed", "server_error")
ANSWERED_BY_AN_ERROR: Outcome = ("not_comparable", "primary_error")
REFUSED: Outcome = ("not_comparable", "refused")


NO_FAULT = Faults()
SHORT = "1s"  # a shadow's time-out: long for one without a fault, short beside the faults that are to outlast it
PATIENCE_S = 200.0  # for a machine that has much else to do


@dataclass(frozen=True)
class Case:
    """What is wrong with the shadow, and the one outcome that names it; `refuses` is a port where nobody listens."""

    named: Outcome
    faults: Faults = NO_FAULT
    refuses: bool = False
    shift: int = 0
    timeout: str = "20s"


CASES = {
    "healthy": Case(COMPARED),
    "dead: refuses connections": Case(UNREACHABLE, refuses=True),
    "dead: closes before a byte": Case(UNREACHABLE, Faults(close_before_byte=True)),
    "hung": Case(TIMEOUT, Faults(hang_before_headers=True), timeout=SHORT),
    "hung in mid-answer": Case(TIMEOUT, Faults(cuts=100, drip_s=3600), timeout=SHORT),
    "slow to begin": Case(TIMEOUT, Faults(delay_s=3), timeout=SHORT),
    "slow all along": Case(TIMEOUT, Faults(cuts=2, drip_s=0.1), timeout=SHORT),
    "garbage: no JSON": Case(GARBLED, Faults(body=GARBAGE)),
    "garbage: another shape": Case(GARBLED, Faults(body=WRONG_SHAPE)),
    "garbage: cut short": Case(GARBLED, Faults(short_after_bytes=200)),
    "cut off by its connection": Case(UNREACHABLE, Faults(abort_after_bytes=200)),
    "500": Case(BROKEN, Faults(status=500)),
    "400": Case(REFUSED, Faults(status=400)),
    "logprobs: NaN": Case(GARBLED, Faults(logprobs="nan")),
    "logprobs: NaN, refused as vLLM does": Case(REFUSED, Faults(logprobs="nan_400")),
    "logprobs: null": Case(GARBLED, Faults(logprobs="null")),
    "logprobs: all zero": Case(GARBLED, Faults(logprobs="zero")),
    "another tokenizer": Case(("not_comparable", "tokenizer_differs"), shift=1),
}


class Asked(NamedTuple):
    """One request; `path` below the base URL."""

    path: str
    body: dict[str, Any]


class Answered(NamedTuple):
    """What a client sees of an answer, without what is random."""

    status: int
    headers: dict[str, str]
    body: bytes


def requests() -> list[Asked]:
    """Every kind of request, whole and streamed."""
    kinds: dict[str, dict[str, Any]] = {
        "text": {"messages": SAY},
        "calls": {"messages": DO, "tools": TOOLS},
        "calls, with usage": {"messages": DO, "tools": TOOLS, "stream_options": {"include_usage": True}},
        "client's logprobs": {"messages": SAY, "logprobs": True, "top_logprobs": 2},
        "client's ids": {"messages": DO, "tools": TOOLS, "return_token_ids": True},
        "two choices": {"messages": SAY, "n": 2, "temperature": 1, "max_tokens": 6},
        "no such limit": {"messages": SAY, "max_tokens": -1},
    }
    asked = []
    for body, stream in itertools.product(kinds.values(), (False, True)):
        options = {} if stream else {"stream_options": None}
        asked.append(
            Asked("/chat/completions", {"model": "smollm2", "temperature": 0} | body | {"stream": stream} | options)
        )
    text = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 6, "temperature": 0}
    return asked + [Asked("/completions", text | {"stream": stream}) for stream in (False, True)]


def script(fields: dict[str, Any]) -> Script:
    return Script(**fields | {"calls": tuple(Call(**call) for call in fields.get("calls", ()))})


async def ask(session: aiohttp.ClientSession, base_url: str, asked: Asked) -> Answered:
    async with session.post(base_url + asked.path, json=asked.body) as response:
        headers = {name.lower(): value for name, value in response.headers.items() if name.lower() not in NOT_OURS}
        return Answered(response.status, headers, same(await response.read()))


async def differences(door: Proxy, primary: str, count: int) -> tuple[int, list[tuple[Asked, Answered, Answered]]]:
    """Asks `count` times through the proxy, some at once: how many were 200, and what was not the primary's own."""
    asked = requests()
    direct = [await ask(door.session, primary, one) for one in asked]
    assert {answer.status for answer in direct} == {200, 400}
    found: list[tuple[Asked, Answered, Answered]] = []
    well = 0

    async def client(turns: Iterator[int]) -> None:
        nonlocal well
        for turn in turns:
            which = turn % len(asked)
            through = await ask(door.session, f"{door.root}/v1", asked[which])
            well += through.status == 200
            if through != direct[which]:
                found.append((asked[which], direct[which], through))

    turns = iter(range(count))  # shared: who is free takes the next
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(client(turns), name=f"client:{number}")
    assert direct == [await ask(door.session, primary, one) for one in asked], "the primary does not repeat itself"
    return well, found


class Engines(NamedTuple):
    """Base URLs of engines that serve well, each a process of its own."""

    primary: str
    healthy: str


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    scripts = tmp_path_factory.mktemp("engines") / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS), encoding="utf-8")
    command = [sys.executable, "-m", "tests.standin", "--until-eof", "--scripts", str(scripts)]
    root, pipe = Path(__file__).parents[2], subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=root) for _ in Engines._fields]
    try:
        lines = [process.stdout.readline() for process in processes if process.stdout]
        yield Engines(*(line.decode().strip() for line in lines))
    finally:
        for process in processes:
            process.communicate(timeout=10)  # closes its standard input


@asynccontextmanager
async def served(folder: Path, case: Case, engines: Engines) -> AsyncIterator[Proxy]:
    """A proxy before a primary, a healthy shadow and one of the case, both looked at before its fault begins."""
    async with StandIn([script(fields) for fields in SCRIPTS], tokenizer_shift=case.shift) as faulty:
        shadows = [
            {"name": "healthy", "base_url": engines.healthy, "timeout": "60s", "max_concurrency": 16},
            {"name": "faulty", "base_url": faulty.base_url, "timeout": case.timeout, "max_concurrency": 16},
        ]
        async with proxy(folder, engines.primary, fit=False, shadows=shadows) as door:
            mirror = door.service.mirrors[0]
            wanted = [State.READY, State.REFUSED if case.shift else State.READY]
            async with asyncio.timeout(PATIENCE_S):
                while [shadow.standing(mirror.primary)[0] for shadow in mirror.references] != wanted:
                    await asyncio.sleep(0.01)
            faulty.faults = case.faults
            if case.refuses:
                await faulty.refuse_connections()
            yield door


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at an engine falls into a case, so that every outcome names an exchange's own fault.

    They come every 15 s: on a loaded machine a case lasts longer, and a look that took too long then named the shadow
    unreachable.
    """
    monkeypatch.setattr(reference, "_CHECK_EVERY", 3600.0)


def test_there_are_enough_requests() -> None:
    assert REQUESTS * len(CASES) >= 5000


@pytest.mark.usefixtures("no_looks")
@pytest.mark.parametrize("name", CASES)
def test_clients_see_nothing_of_a_shadows_fault_and_it_is_counted_by_its_name(
    tmp_path: Path, name: str, engines: Engines
) -> None:
    case = CASES[name]

    async def main() -> None:
        async with served(tmp_path, case, engines) as door:
            well, found = await differences(door, engines.primary, REQUESTS)
            assert found == []
            assert await door.service.mirrors[0].drain(PATIENCE_S)
            assert await door.metric("counterproof_requests_total") == REQUESTS
            outcomes: dict[str, dict[Outcome, int]] = {"healthy": {}, "faulty": {}}
            for (shadow, *outcome), count in (await door.outcomes()).items():
                outcomes[shadow][outcome[0], outcome[1]] = count
        assert outcomes["healthy"] == {COMPARED: well, ANSWERED_BY_AN_ERROR: REQUESTS - well}
        assert sum(outcomes["faulty"].values()) == REQUESTS
        assert outcomes["faulty"][case.named] > 0
        also = {OPEN, ANSWERED_BY_AN_ERROR} if case.named[0] == "failed" else {ANSWERED_BY_AN_ERROR}
        assert outcomes["faulty"].keys() <= {case.named} | also

    asyncio.run(main())
