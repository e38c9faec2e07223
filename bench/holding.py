"""Block mode as its client sees it: how long an agreed call is held, and whether text comes later than in observe mode.

Proxy and engines are processes of their own; client and taps are this one.
"""

import asyncio
import contextlib
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.doors import door, engines, taps
from bench.procs import Unavailable
from bench.stats import differences
from bench.tap import Passed, Tap, Way
from proxy.demo.rig import MODEL_NAME
from proxy.demo.workload import router

TOKEN_MS, TEXT_TOKEN_MS = 20.0, 10.0
LEAD = "I look up the address of this host on the router for you. "
CALL_WORDS = (4, 30, 100)
"""Words in the arguments of the calls: the calls have some 15 tokens more."""
TEXT_TOKENS = 60

_NS = 1_000_000  # nanoseconds in a millisecond
_CALL = b'"tool_calls":['
_HISTORY = b'"prompt_token_ids":['  # of a request that goes on from a call's beginning
_WORDS = (
    "address",
    "table",
    "interface",
    "router",
    "device",
    "edge",
    "link",
    "name",
    "text",
    "value",
    "count",
    "command",
)
_SYSTEM = "You are an assistant for network engineers. " + " ".join(_WORDS * 25)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "send",
            "description": "Sends a command",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]


# --- what is asked ----------------------------------------------------------------------------------------------------


def scripts() -> list[dict[str, Any]]:
    """What the stand-ins answer: a call for each length, text to everything else."""
    listed: list[dict[str, Any]] = []
    for count in CALL_WORDS:
        words = " ".join(_WORDS[i % len(_WORDS)] for i in range(count))
        call = {"name": "send", "arguments": json.dumps({"command": words})}
        listed.append({"when": f"exactly {count} words", "text": LEAD, "calls": [call]})
    text = " ".join(_WORDS[i % len(_WORDS)] for i in range(TEXT_TOKENS))
    return [*listed, {"when": "in text", "text": text}]


def asked(what: str, number: int) -> dict[str, Any]:
    """A request for one of the scripts, with a prompt that no other number has."""
    messages = [
        {"role": "system", "content": f"Session {number}. {_SYSTEM}"},
        {"role": "user", "content": f"Answer {what}."},
    ]
    return {"model": "smollm2", "messages": messages, "tools": TOOLS, "tool_choice": "auto", "temperature": 0}


# --- what was seen ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hold:
    """One call, in milliseconds.

    `held`: from its finish event's last byte at the proxy to its first byte at the client; `written`: from its first
    token to its finish, `tokens` of them; `begun`: how long after its first token the reference was asked to go on from
    there (None: only after the finish); `waited`: from the finish to the reference's last byte; `answered`: how long
    the reference took.
    """

    held: float
    written: float
    tokens: int
    begun: float | None
    waited: float
    answered: float

    @property
    def own(self) -> float:
        """What of it is the proxy's: from the reference's answer (or the finish, if that came later) to the client."""
        return self.held - max(0.0, self.waited)


def hold_of(primary: Passed, reference: Sequence[Way], got: Passed) -> Hold:
    """One released call.

    Raises:
        Unavailable: there was none, or the reference was not asked to go on from its beginning.
    """
    events = [(at, choice) for at, value in primary.events() for choice in value.get("choices") or ()]
    finish = next((at for at, choice in events if choice.get("finish_reason")), None)
    first = got.first(_CALL)
    if finish is None or first is None:
        raise Unavailable("no call came through")
    silent = _after_text(events)
    continued = [way for way in reference if way.asked.first(_HISTORY) is not None]
    if not silent or not continued:
        raise Unavailable("the reference was not asked to go on from the call")
    asked_at, way = min(((_asked_at(way), way) for way in continued), key=lambda one: one[0])
    return Hold(
        held=(first - finish) / _NS,
        written=(finish - silent[0]) / _NS,
        tokens=_tokens(events, silent[0]),
        begun=(asked_at - silent[0]) / _NS if asked_at < finish else None,
        waited=(way.answered.last - finish) / _NS,
        answered=(way.answered.last - asked_at) / _NS,
    )


def _asked_at(way: Way) -> int:
    at = way.asked.first(_HISTORY)
    assert at is not None
    return at


def _after_text(events: Sequence[tuple[int, dict[str, Any]]]) -> list[int]:
    """When each event of tokens came that followed the last text: those of the call."""
    last = max((i for i, (_, choice) in enumerate(events) if choice["delta"].get("content")), default=0)
    return [at for at, choice in events[last + 1 :] if choice.get("token_ids") or choice["delta"]]


def _tokens(events: Sequence[tuple[int, dict[str, Any]]], since: int) -> int:
    return sum(len(choice.get("token_ids") or ()) for at, choice in events if at >= since)


def delays(sent: Passed, got: Passed) -> list[float]:
    """How long each text event took from the primary to the client, in milliseconds.

    Raises:
        Unavailable: the client did not get the same texts, one by one.
    """
    ours, theirs = list(_spoken(sent)), list(_spoken(got))
    if [text for _, text in ours] != [text for _, text in theirs] or not ours:
        raise Unavailable("the client did not get the primary's texts one by one")
    return [(at - begun) / _NS for (begun, _), (at, _) in zip(ours, theirs, strict=True)]


def _spoken(passed: Passed) -> Iterator[tuple[int, str]]:
    for at, value in passed.events():
        for choice in value.get("choices") or ():
            if text := choice["delta"].get("content"):
                yield at, text


# --- what is measured -------------------------------------------------------------------------------------------------


async def holds(folder: Path, count: int) -> tuple[dict[int, list[Hold]], dict[str, int]]:
    """`count` calls of each length, the lengths taking turns, each with a prompt that no engine has read.

    Also what block mode did with them, by count.
    """
    found: dict[int, list[Hold]] = {length: [] for length in CALL_WORDS}
    async with engines(folder, scripts(), TOKEN_MS) as both, door(folder / "block", both, "block") as one:
        for number in range(count + 1):
            for length in CALL_WORDS:
                both.primary.take(), both.reference.take()
                got = await one.ask(asked(f"exactly {length} words", number))
                if number:  # the first of all warms up the processes
                    found[length].append(hold_of(_stream(both.primary), both.reference.take(), got))
            print(f"calls: {number} of {count}", flush=True)
        return found, await one.done()


def _stream(tap: Tap) -> Passed:
    """The stream that passed."""
    found = [way.answered for way in tap.take() if way.answered.first(b"data: ") is not None]
    if len(found) != 1:
        raise Unavailable(f"{len(found)} streams came from the primary, not one")
    return found[0]


OBSERVED, OUTSIDE, BLOCKED = "observe mode, compared", "observe mode, outside of the sample", "block mode"


async def texts(folder: Path, count: int) -> dict[str, list[list[float]]]:
    """The delay of each text chunk of `count` streams of each mode, in milliseconds; modes take turns."""
    modes: dict[str, dict[str, Any]] = {
        BLOCKED: {"mode": "block"},
        OBSERVED: {"mode": "observe", "mirror": {"other": 1}},
        OUTSIDE: {"mode": "observe"},
    }
    found: dict[str, list[list[float]]] = {name: [] for name in modes}
    async with engines(folder, scripts(), TEXT_TOKEN_MS) as both, contextlib.AsyncExitStack() as stack:
        doors = {
            name: await stack.enter_async_context(door(folder / f"door{i}", both, **options))
            for i, (name, options) in enumerate(modes.items())
        }
        order = list(modes)
        for number in range(count + 1):
            for name in order:
                both.primary.take(), both.reference.take()
                got = await doors[name].ask(asked("in text", len(modes) * number + order.index(name)))
                if number:
                    found[name].append(delays(_stream(both.primary), got))
                if name == OBSERVED:
                    await doors[name].settled(number + 1)
                await asyncio.sleep(0.2)  # what the last one left to do is not the next one's delay
            order = order[1:] + order[:1]
            print(f"texts: {number} of {count}", flush=True)
    return found


def added(ours: Sequence[Sequence[float]], to: Sequence[Sequence[float]]) -> list[float]:
    """What one mode adds to the other's delays: of each pair of streams, the median over their chunks."""
    return [statistics.median(differences(one, other)) for one, other in zip(ours, to, strict=True)]


# --- real engines -----------------------------------------------------------------------------------------------------

AFTER_TEXT, DEMANDED = "text, then a call", "a demanded call"


def lookups(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests to which a small real model answers with a call: after text, as its history has it, and demanded."""
    scenario = router()
    common = {"model": MODEL_NAME, "tools": scenario["tools"], "temperature": 0, "max_tokens": 90}
    history = [scenario["messages"][0]]
    for i, port in enumerate(("0/0/0.200", "0/1/1.201", "0/1/0.30")):
        history += _looked_up(f"edge-{i}", f"GigabitEthernet{port}", f"c{i}")
    for number in range(count):
        question = f"On core-1 check what host is behind GigabitEthernet0/1/{number % 10}.{70 + number}."
        last = {"role": "user", "content": question}
        yield AFTER_TEXT, common | {"messages": [*history, last], "tool_choice": "auto"}
        yield DEMANDED, common | {"messages": [*scenario["messages"][:-1], last], "tool_choice": "required"}


def _looked_up(device: str, port: str, identity: str) -> list[dict[str, Any]]:
    arguments = json.dumps({"device": device, "command": "show arp", "interface": port})
    call = {"id": identity, "type": "function", "function": {"name": "run_command", "arguments": arguments}}
    said = {"role": "assistant", "content": "I look it up.", "tool_calls": [call]}
    return [{"role": "user", "content": f"On {device} check what host is behind {port}."}, said]


async def real(folder: Path, primary: str, reference: str, count: int) -> tuple[dict[str, list[Hold]], dict[str, int]]:
    """Calls on two real engines, by their base URLs; the released ones, and what block mode did with all of them."""
    found: dict[str, list[Hold]] = {AFTER_TEXT: [], DEMANDED: []}
    async with taps(primary, reference) as both, door(folder / "real", both, "block") as one:
        for number, (kind, body) in enumerate(lookups(count)):
            both.primary.take(), both.reference.take()
            got = await one.ask(body)
            with contextlib.suppress(Unavailable):  # the model made no call, or it was refused: counted below
                found[kind].append(hold_of(_stream(both.primary), both.reference.take(), got))
            print(f"real engines: {number + 1} of {2 * count}", flush=True)
        return found, await one.done()
