"""A reference that has said its own call, and then fails to tell why it is another one: what it said counts."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from shadow.capabilities import discover
from shadow.choice import ChoiceReport
from shadow.errors import EngineError
from shadow.examine import Examination, countersign, examine
from shadow.exchange import Dialect, Exchange, Request, Timings
from shadow.wire import answers
from tests.standin import Call, Faults, Script, StandIn
from tests.standin.asking_it import LEAD, PARIS, TOLD, TOOLS, chat, client, post
from validators import ToolCall

pytestmark = pytest.mark.slow

OSLO = Script(text=LEAD, calls=(Call("send", '{"city": "Oslo", "n": 1}'),))
NEARLY = Script(text=LEAD, calls=(Call("send", '{"city": "Rome", "n": 1}'),), margin=0.04)
BROKEN = {
    "server_error": Faults(status=503),
    "refused": Faults(status=400),
    "garbage": Faults(body=b"<html>"),
    "unreachable": Faults(close_before_byte=True),
}


def of_tokens(path: str, _body: Any) -> bool:
    return path.endswith("/v1/completions")


async def exchange_with(engine: StandIn, **fields: Any) -> Exchange:
    """A whole exchange with a primary, with ids and logprobs told."""
    body = chat(tools=TOOLS) | fields
    answer = answers.read(Dialect.CHAT, await post(engine, TOLD | body), stream=False)
    return Exchange("cp-1", Request(Dialect.CHAT, body), answer, 200, 0.0, Timings(0, 0, 0), "c")


def countersigned(
    theirs: list[Script], faults: Faults, can: dict[str, Any] | None = None, patience: float = 20.0
) -> ChoiceReport:
    """What a waiting client is told by a reference that has these faults once it was asked what it can do."""

    async def main() -> ChoiceReport:
        async with StandIn([PARIS]) as primary, StandIn(theirs) as reference, client(reference, patience) as engine:
            abilities = replace(await discover(engine), **(can or {}))
            exchange = await exchange_with(primary)
            reference.faults = replace(faults, skip=faults.skip and faults.skip + reference.generated)
            return await countersign(exchange.request, exchange.answer.choices[0], engine, abilities, None)

    return asyncio.run(main())


def examined(theirs: list[Script], faults: Faults) -> Examination:
    """Likewise, of a whole exchange that nobody waits for."""

    async def main() -> Examination:
        async with StandIn([PARIS]) as primary, StandIn(theirs) as reference, client(reference) as engine:
            abilities = await discover(engine)
            exchange = await exchange_with(primary)
            reference.faults = faults
            return await examine(exchange, engine, abilities, None)

    return asyncio.run(main())


def words(report: ChoiceReport) -> list[tuple[str, str]]:
    return [(finding.word.value, finding.reason) for finding in report.findings]


@pytest.mark.parametrize("reason", BROKEN)
@pytest.mark.parametrize("can", [{}, {"prefix_cache": False}], ids=["probed", "scored"])
def test_another_call_is_a_mismatch_though_nobody_tells_why(reason: str, can: dict[str, Any]) -> None:
    with capture_logs() as logs:
        report = countersigned([OSLO], replace(BROKEN[reason], only=of_tokens), can)
    assert words(report) == [("mismatch", "arguments")]
    assert report.reference_calls == (ToolCall("send", '{"city": "Oslo", "n": 1}', report.reference_calls[0].id),)
    assert report.ways == ["continue"]  # what failed told nothing
    assert report.own is not None
    assert isinstance(report.failed, EngineError)
    assert report.failed.reason == reason
    assert [(entry["event"], entry["shadow"], entry["reason"]) for entry in logs] == [
        ("nobody tells why a call differs", "s", reason)
    ]


def test_nor_in_time() -> None:
    report = countersigned([OSLO], Faults(hang_before_headers=True, only=of_tokens), patience=3.0)
    assert words(report) == [("mismatch", "arguments")]
    assert report.failed is not None
    assert report.failed.reason == "timeout"


def test_one_probe_that_fails_is_enough() -> None:
    report = countersigned([NEARLY, PARIS], Faults(status=500, skip=3, times=1))  # its call, and two probes, were told
    assert words(report) == [("mismatch", "arguments")]
    assert words(countersigned([NEARLY, PARIS], Faults())) == [("near_tie", "arguments")]


def test_the_same_call_needs_no_tokens() -> None:
    report = countersigned([PARIS], Faults(status=500, only=of_tokens))
    assert words(report) == [("match", "")]
    assert report.failed is None


def test_who_stops_waiting_is_obeyed() -> None:
    """Only what the engine does is caught: a cancelled countersignature ends."""

    async def main() -> None:
        async with StandIn([PARIS]) as primary, StandIn([OSLO]) as reference, client(reference) as engine:
            abilities = await discover(engine)
            exchange = await exchange_with(primary)
            reference.received.clear()
            reference.faults = Faults(hang_before_headers=True, only=of_tokens)
            asking = asyncio.get_running_loop().create_task(
                countersign(exchange.request, exchange.answer.choices[0], engine, abilities, None), name="asking"
            )
            async with asyncio.timeout(10):
                while not any(of_tokens(received.path, None) for received in reference.received):
                    await asyncio.sleep(0.005)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(main())


@pytest.mark.parametrize(
    ("reason", "outcome"), [("server_error", "failed"), ("unreachable", "failed"), ("refused", "not_comparable")]
)
@pytest.mark.parametrize(("theirs", "word"), [([OSLO], ("mismatch", "arguments")), ([PARIS], ("match", ""))])
def test_afterwards_its_call_is_heard_too_and_the_failure_is_told(
    reason: str, outcome: str, theirs: list[Script], word: tuple[str, str]
) -> None:
    result = examined(theirs, replace(BROKEN[reason], only=of_tokens))
    assert (result.outcome, result.reason) == (outcome, reason)
    (report,) = result.choices
    assert words(report) == [word]
    assert (report.ways, report.positions) == (["continue"], [])


def test_who_tells_nonsense_of_tokens_is_not_believed_afterwards() -> None:
    result = examined([OSLO], replace(BROKEN["garbage"], only=of_tokens))
    assert (result.outcome, result.reason) == ("failed", "garbage")
    assert words(result.choices[0]) == [("unverified", "garbage")]
