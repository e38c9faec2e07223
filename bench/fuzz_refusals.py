"""What a client sees of refused calls, for fuzzing: texts of any verdict, and any stream through the gate.

Refused, nothing goes out that any reader takes for a call; released, the client gets what observe mode sends.
"""

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from bench import fuzz_streams
from bench.fuzz_streams import junk, pieces_of
from proxy import refusal
from proxy.cut import Nulls
from proxy.gate import REST, Signal
from proxy.gates import chat_writing as writing
from proxy.gates.chat import ChatGate
from proxy.gates.chat_writing import Frame
from proxy.inject import Removal
from shadow.wire import answers, sse
from tests.proxy.leakstreams import CORPUS
from validators import Difference, Finding, ToolCall, Word
from validators.calls import HugeNumber, Side
from validators.decision import Verdict
from validators.policy import Action

MOST_TEXT = 4_000
"""Characters of a refusal, whatever a model wrote."""

_INSTEAD = "[counterproof] no"
_NULLS = Nulls(frozenset({b"prompt_token_ids"}), frozenset({b"token_ids", b"logprobs"}), drop_empty=True)
_CALL_KEYS = frozenset({"tool_calls", "function_call"})
_EMPTY = re.compile(
    rb'"(?:tool_calls|function_call)"\s*:\s*(?:null|\[\]|""|\{\})|"finish_reason"\s*:\s*"(?:tool_calls|function_call)"'
)
_NAMED = re.compile(rb"tool_calls|function_call")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"(\s*:)?', re.DOTALL)
_LINE_END = re.compile(rb"\r\n|\r|\n")
_NOTHING: tuple[Any, ...] = (None, "", [], {})
_BODIES = [body for stream in CORPUS if not stream.long for body in (stream.body, stream.injected) if body is not None]
_TEXTS = (
    "", "send", "a" * 5000, "\ud800", "x\ud83dy", "\0\x1b[2J\x7f", "a\u2028b\r\nc", "\u202egnp", "[counterproof] ",
    "é👩\u200d", "data: [DONE]\n\n", '"}]}', " \t\n", "\ufeff", "/a~1b/*", "👩" * 300,
)  # fmt: skip
_REASONS = (
    "name", "arguments", "missing", "extra", "no_call", "not_json", "unclosed", "unknown_tool", "not_an_object",
    "too_deep", "schema", "schema_unusable", "rule", "rule_error", "repeated", "refused_before", "timeout", "cold",
    "no_quorum", "",
)  # fmt: skip


def _must(holds: object, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def stream(chance: random.Random) -> bytes:
    """A stream of the leak corpus, plain or injected, with up to four changes."""
    body = chance.choice(_BODIES)
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        body = fuzz_streams.changed(body, chance)
    return body


def refusing(body: bytes) -> None:
    """Verdicts drawn for these bytes can be told, and the bytes as a stream are held back or let through whole."""
    chance = random.Random(body)
    telling(chance)
    holding(body, chance)


# --- texts and chunks -------------------------------------------------------------------------------------------------


def telling(chance: random.Random) -> None:
    """A refusal of any verdict, in each of its forms: a short text with its prefix, in valid JSON."""
    exchange, tools = "cp-0123", [_text(chance) for _ in range(chance.randint(0, 8))]
    texts = [refusal.text(_verdict(chance), exchange), refusal.denied(tools, exchange)]
    texts += [refusal.pending(tools, chance.choice(("", "ap-1")), exchange)]
    frame = Frame()
    frame.see({"id": chance.choice((_text(chance), 7)), "created": chance.choice((1, 10**30)), "model": _text(chance)})
    for text in texts:
        _must(text.startswith(refusal.PREFIX) and text.removeprefix(refusal.PREFIX).strip(), "a text that says nothing")
        _must(len(text) <= MOST_TEXT, "a text without end")
        _must(not re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", text), "a text that steers a terminal, or no text")
        _must(_told(writing.error_event(text))["error"]["message"] == text, "an error that says something else")
        _must(json.loads(refusal.as_status(text).body)["error"]["message"] == text, "a status that says something else")
        _in_a_stream(frame, text, chance)
    _instead_of_a_call(frame, chance)


def _in_a_stream(frame: Frame, text: str, chance: random.Random) -> None:
    said, unsaid = chance.choice(("", "Hi.", "x\n")), chance.choice(("", _text(chance)))
    sent = writing.message_events(frame, 3, text, begun=chance.random() < 0.5, said=said, unsaid=unsaid)
    choices = [_told(block + b"\n\n")["choices"][0] for block in sent.split(b"\n\n")[:-1]]
    content = "".join(choice["delta"].get("content", "") for choice in choices)
    _must(content.startswith(unsaid) and content.endswith(text), "a message that says something else")
    _must([choice["finish_reason"] for choice in choices] == [None, "stop"], "a message that does not stop")
    _must(len(sent) <= 12 * (MOST_TEXT + len(unsaid) + len(frame.id) + len(frame.model)) + 2000, "events without end")


def _instead_of_a_call(frame: Frame, chance: random.Random) -> None:
    calls = tuple(
        ToolCall(_text(chance), chance.choice((_text(chance), '{"a": 1}')), chance.choice((None, f"id{i}")))
        for i in range(chance.randint(1, 3))
    )
    sent = writing.call_events(frame, 0, calls, begun=False, unsaid=chance.choice(("", _text(chance))))
    first, last = (_told(block + b"\n\n")["choices"][0] for block in sent.split(b"\n\n")[:-1])
    told = [call["function"] for call in first["delta"]["tool_calls"]]
    meant = [{"name": call.name, "arguments": call.arguments or "{}"} for call in calls]
    _must(told == meant, "other calls than those that were meant")
    _must(last["finish_reason"] == "tool_calls", "calls without their finish")


def _told(event: bytes) -> Any:
    _must(event.startswith(b"data: ") and event.endswith(b"\n\n") and b"\n" not in event[:-2], "no single event")
    return json.loads(event[6:])


def _verdict(chance: random.Random) -> Verdict:
    findings = tuple((chance.choice(("none", "s0")), _finding(chance)) for _ in range(chance.choice((0, 1, 1, 2, 9))))
    word = chance.choice((*(finding.word for _, finding in findings), *Word))
    why = chance.choice((*(finding.reason for _, finding in findings), word.value, "substitute_refused", "not_asked"))
    return Verdict(word, Action.REFUSE, findings, why=why)


def _finding(chance: random.Random) -> Finding:
    return Finding(
        chance.choice(list(Word)),
        _text(chance),
        chance.choice((None, 0, 1)),
        chance.choice((*_REASONS, _text(chance))),
        tuple(_difference(chance) for _ in range(chance.choice((0, 0, 1, 7)))),
        where=chance.choice(("", "/a", _text(chance))),
        detail=chance.choice(("", "", _text(chance))),
    )


def _difference(chance: random.Random) -> Difference:
    return Difference(
        chance.choice(("", "/a", _text(chance))), chance.choice(list(Side)), _value(chance), _value(chance)
    )


def _value(chance: random.Random) -> Any:
    draw: tuple[Callable[[], Any], ...] = (
        lambda: chance.choice((Decimal("1e999999"), Decimal(10) ** 50, HugeNumber("1e9999999999999999999"), 10**5000)),
        lambda: _deep(chance),
        lambda: _text(chance),
        lambda: junk(chance, 3),
        lambda: list(range(chance.choice((0, 5, 5000)))),
    )
    return chance.choice(draw)()


def _deep(chance: random.Random) -> Any:
    deep: Any = 1
    for _ in range(chance.choice((3, 127))):
        deep = [deep] if chance.random() < 0.5 else {_text(chance): deep}
    return deep


def _text(chance: random.Random) -> str:
    return "".join(chance.choices(_TEXTS, k=chance.choice((1, 1, 2))))


# --- streams ----------------------------------------------------------------------------------------------------------


def holding(body: bytes, chance: random.Random) -> None:
    """A stream through the gate, in any pieces."""
    removes = chance.random() < 0.5
    pieces = pieces_of(body, chance)
    refused, _ = through(pieces, removes=removes, release=False)
    _must(_calls_in(refused) is None, "a refused call is there for some reader")
    released, unread = through(pieces, removes=removes, release=True)
    if _fails(body):  # what is held when the primary fails stays held
        return
    plain, half = _observed(pieces, removes=removes)
    plain = plain if released.endswith(half) else plain.removesuffix(half)
    if len(_indices(body)) <= 1 and not unread:
        _must(released == plain, "released, it is not what observe mode sends")
    else:  # choices are held by themselves, and so is what cannot be read
        _must(_parts(released) == _parts(plain), "released, something is lost")


def through(pieces: Iterable[bytes], *, removes: bool, release: bool) -> tuple[bytes, bool]:
    """What a client gets where every call is decided as soon as it is whole, and whether some could not be read."""
    gate, out = ChatGate(Removal(_NULLS) if removes else None), list[bytes]()

    def instead(index: int) -> bytes:
        return gate.refused(index, _INSTEAD)

    def follow() -> None:
        for signal, index in gate.signals():
            if signal is Signal.CLOSED and index != REST and index in gate.undecided():
                out.append(gate.decide(index, None if release else instead(index)))

    for piece in pieces:
        out.append(gate.feed(piece))
        follow()
    out.append(gate.end())
    if release:
        follow()
    unread = REST in gate.undecided()
    if unread:
        _decide_rest(gate, out, instead, release=release)
    follow()
    _must(not gate.waiting, "something is held for ever")
    return b"".join(out), unread


def _decide_rest(gate: ChatGate, out: list[bytes], instead: Callable[[int], bytes], *, release: bool) -> None:
    if release:
        out.append(gate.decide(REST, None))
        return
    out += [instead(index) for index in ([] if gate.over else gate.unfinished())]
    for index in sorted(gate.undecided(), reverse=True):
        out.append(gate.decide(index, b"" if index == REST or gate.over else instead(index)))


def _observed(pieces: Iterable[bytes], *, removes: bool) -> tuple[bytes, bytes]:
    """What observe mode sends, and the end of it that no blank line ended: half an event is good for nobody."""
    splitter, removal = sse.Splitter(), Removal(_NULLS)
    blocks = [block for piece in pieces for block in splitter.feed(piece)]
    whole = b"".join([removal.edit(block) for block in blocks] if removes else blocks)
    return whole + splitter.rest, splitter.rest


def _parts(sent: bytes) -> list[bytes]:
    splitter = sse.Splitter()
    return sorted([*splitter.feed(sent), splitter.rest])


class _Members(list[tuple[str, Any]]):
    """A JSON object with all its members, repeated keys too."""


def _calls_in(sent: bytes) -> bytes | None:
    """A payload that some reader takes for one with a call; None where there is none.

    Readers of whole events, of single lines, of lines ended by any character that ends one, of a last line that nothing
    ends; those that take the first of repeated keys, and those that look for a call anywhere. What cannot be read and
    names one of the keys may be read by somebody who is less strict.
    """
    for payload in _payloads(sent):
        try:
            value = json.loads(payload, object_pairs_hook=_Members)
        except (ValueError, RecursionError):
            if _names_a_call(payload):
                return payload
            continue
        if _has_call(value):
            return payload
    return None


def _names_a_call(payload: bytes) -> bool:
    """Whether a key of a call stands in what is no JSON, as a key or bare: a text may speak of one."""
    bare = _STRING.sub(lambda found: found.group() if found.group(1) else b'""', _EMPTY.sub(b"", payload))
    return _NAMED.search(bare) is not None


def _payloads(sent: bytes) -> Iterator[bytes]:
    splitter = sse.Splitter()
    for block in [*splitter.feed(sent), splitter.rest]:
        if (payload := sse.data_of(block)) is not None:
            yield payload
    for lines in (sent.split(b"\n"), _LINE_END.split(sent)):
        for line in lines:
            if line.startswith(b"data"):
                yield line[4:].removeprefix(b":").strip()


def _has_call(value: Any) -> bool:
    if isinstance(value, _Members):
        return any((key in _CALL_KEYS and child not in _NOTHING) or _has_call(child) for key, child in value)
    return isinstance(value, list) and any(map(_has_call, value))


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    for block in sse.Splitter().feed(body):
        if (payload := sse.data_of(block)) is not None and (value := answers.read_object(payload)) is not None:
            yield value


def _fails(body: bytes) -> bool:
    return any(value.get("error") is not None for value in _events(body))


def _indices(body: bytes) -> set[Any]:
    listed: list[Any] = [value.get("choices") for value in _events(body)]
    choices: Sequence[Any] = [choice for one in listed if isinstance(one, list) for choice in one]
    return {str(choice.get("index") or 0) for choice in choices if isinstance(choice, dict)}
