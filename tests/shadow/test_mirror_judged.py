"""What the mirror judges afterwards, and what it leaves: what would have been refused, and calls that leak as text."""

import asyncio
import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shadow.engine import Endpoint
from shadow.examine import Examination
from shadow.exchange import Dialect, Exchange, Request, Timings
from shadow.judge import Case, Judged, Rulebook
from shadow.mirror import Capture, Limits, Mirror
from shadow.reference import Peer
from validators import Finding
from validators.policy import Policy, ToolPolicy

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "send", "parameters": CITY}}]
REQUEST = Request(Dialect.CHAT, {"model": "m", "messages": [], "tools": TOOLS})
LEAK = '<tool_call>{"name": "send", "arguments": {}}</tool_call>'
BAD = {"index": 0, "id": "c0", "type": "function", "function": {"name": "send", "arguments": '{"city": 7}'}}
DONE = b"data: [DONE]\n\n"


class Heard:
    """A sink that keeps what it is told of one exchange; `over` once the one behind it was judged."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self.done: list[tuple[int, str, str]] = []
        self.over = False

    def outcome(self, shadow: str, outcome: str, reason: str) -> None:
        raise AssertionError((shadow, outcome, reason))

    def exchange(self, exchange: Exchange, findings: Sequence[tuple[int, Finding]]) -> None:
        if exchange.id == "it":
            self.found += [(choice, finding.reason) for choice, finding in findings]

    def examined(self, exchange: Exchange, examination: Examination, lag: float) -> None:
        raise AssertionError((exchange, examination, lag))

    def judged(self, exchange: str, _request: Request, judged: Judged, done: str, _waited: float | None) -> None:
        if exchange == "it":
            self.done.append((judged.choice, done, judged.verdict.word.value))
        else:
            self.over = True

    def waiting(self, shadow: str, count: int, size: int) -> None:
        raise AssertionError((shadow, count, size))


def event(delta: dict[str, Any], finish: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def whole(**message: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}).encode()


def heard(body: bytes, *, stream: bool = True, judged: frozenset[int] | None = None, status: int = 200) -> Heard:
    """What a mirror without shadows tells of an answer; `judged`: block mode left these choices, None: observe mode."""

    async def main() -> Heard:
        sink, primary = Heard(), Peer(Endpoint("primary", "http://127.0.0.1:1/v1"), reference=False)
        mirror = Mirror(primary, [], Limits(other=1), sink)
        case = Case(Rulebook(Policy(0, ToolPolicy("*"))), REQUEST, b"{}", "me:1")
        it = Capture(
            "it", REQUEST, body, stream=stream, status=status, conversation="c", began_at=0,
            timings=Timings(0, 0, 0), case=case, to_judge=judged,
        )  # fmt: skip
        behind = replace(it, id="behind", body=whole(tool_calls=[BAD]), stream=False, status=200, to_judge=None)
        mirror.start()
        for capture in (it, behind):
            mirror.offer(capture.id, len(body), functools.partial(replace, capture))
        async with asyncio.timeout(10):
            while not sink.over:
                await asyncio.sleep(0.005)
        await mirror.close()
        return sink

    return asyncio.run(main())


# -- calls that leak as text


@pytest.mark.parametrize("judged", [None, frozenset[int]()], ids=["observe", "block"])
def test_a_call_in_plain_text_is_told_once_whatever_the_mode(judged: frozenset[int] | None) -> None:
    told = heard(event({"content": LEAK}, "stop") + DONE, judged=judged)
    assert told.found == [(0, "leaked_markup")]
    assert told.done == []


@pytest.mark.parametrize(
    ("judged", "found", "done"),
    [
        (None, [(0, "schema"), (0, "leaked_markup")], [(0, "would_refuse", "invalid")]),
        (frozenset({0}), [(0, "schema"), (0, "leaked_markup")], [(0, "would_refuse", "invalid")]),
        (frozenset[int](), [(0, "leaked_markup")], []),
    ],
    ids=["observe", "left by block", "judged by block"],
)
def test_beside_a_call_that_was_judged_only_the_leak_is_told(
    judged: frozenset[int] | None, found: list[tuple[int, str]], done: list[tuple[int, str, str]]
) -> None:
    told = heard(whole(content=LEAK, tool_calls=[BAD]), stream=False, judged=judged)
    assert told.found == found
    assert told.done == done


# -- a stream without its end


def test_a_whole_call_is_judged_though_the_end_of_its_stream_is_missing() -> None:
    told = heard(event({"tool_calls": [BAD]}) + event({}, "tool_calls"))
    assert told.found == [(0, "schema")]
    assert told.done == [(0, "would_refuse", "invalid")]


def test_of_several_choices_those_are_judged_that_had_finished() -> None:
    calls = {"tool_calls": [BAD]}
    told = heard(event(calls) + event(calls, index=1) + event({}, "tool_calls", index=1))
    assert told.found == [(1, "schema")]
    assert told.done == [(1, "would_refuse", "invalid")]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (event({"tool_calls": [BAD]}), 200),
        (event({"tool_calls": [BAD]}) + DONE, 200),
        (event({"tool_calls": [BAD]}, "tool_calls") + b'data: {"error": {"message": "died"}}\n\n', 200),
        (event({"tool_calls": [BAD]}, "tool_calls") + DONE, 500),
    ],
    ids=["cut off", "not finished", "an error", "an error's status"],
)
def test_what_did_not_come_whole_is_not_judged_afterwards(body: bytes, status: int) -> None:
    told = heard(body, status=status)
    assert told.found == []
    assert told.done == []


# -- without a reference


class Counted(Heard):
    exchanges = 0

    def exchange(self, _exchange: Exchange, _findings: Sequence[tuple[int, Finding]]) -> None:
        self.exchanges += 1


def offered(count: int, size: int = 10, limits: Limits | None = None) -> int:
    """How many of so many exchanges, offered at once, were understood when the mirror said that nothing is left."""
    body = event({"tool_calls": [BAD]}, "tool_calls") + DONE

    async def main() -> int:
        sink = Counted()
        mirror = Mirror(
            Peer(Endpoint("primary", "http://127.0.0.1:9/v1"), reference=False), [], limits or Limits(), sink
        )
        mirror.start()
        for number in range(count):
            one = Capture(
                f"x{number}",
                REQUEST,
                body,
                stream=True,
                status=200,
                conversation="0" * 32,
                began_at=0.0,
                timings=Timings(0, 0, 0),
            )
            mirror.offer(one.id, size, functools.partial(replace, one))
        assert await mirror.drain(60)
        seen = sink.exchanges
        await mirror.close()
        return seen

    return asyncio.run(main())


def test_what_waits_for_no_shadow_is_waited_for_as_well() -> None:
    assert offered(100) == 100


def test_what_waits_for_no_shadow_is_bounded_by_number_and_size() -> None:
    assert offered(100, limits=Limits(max_queue=7)) == 7
    assert offered(100, size=1000, limits=Limits(max_queue_bytes=9999)) == 9
