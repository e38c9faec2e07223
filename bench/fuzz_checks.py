"""What must hold of any bytes that a primary may send; each check raises where it does not."""

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from bench.fuzz_streams import pieces_of
from shadow.exchange import Answer, Dialect
from shadow.wire import answers, dialects, sse
from shadow.wire.answers import AnswerReader
from validators import ToolCall

_BOM = b"\xef\xbb\xbf"
_GROWTH = 16  # "1e15" becomes "1000000000000000.0": no argument text grows more than this


def _must(holds: object, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def splitting(body: bytes) -> None:
    """A stream in any pieces is the same stream: its bytes come out again, its payloads are those of the whole.

    And those are what a plain reader reads, line by line.
    """
    whole = sse.Splitter()
    blocks = list(whole.feed(body))
    _must(b"".join(blocks) + whole.rest == body, "bytes are lost")
    payloads = _payloads(blocks)
    _must(sum(map(len, payloads)) <= len(body), "payloads are longer than the stream")
    # A mark within a stream is skipped as the first one is; to a plain reader it is a part of its line.
    if _BOM not in body.removeprefix(_BOM):
        _must(payloads == _read_plainly(body), "a plain reader reads something else")
    for block in blocks:
        if sse.data_of(block) is not None:
            _must(sse.data_of(sse.with_data(block, b"{}")) == b"{}", "a new payload is not read again")
    splitter, found, fed, out = sse.Splitter(), list[bytes](), 0, 0
    for piece in pieces_of(body, random.Random(body)):
        new = list(splitter.feed(piece))
        fed, out = fed + len(piece), out + sum(map(len, new))
        found += new
        _must(all(new), "an empty block")
        _must(out + len(splitter.rest) == fed, "bytes are kept twice or lost on the way")
    _must(b"".join(found) + splitter.rest == body, "bytes are lost between pieces")
    _must(_payloads(found) == payloads, "a cut changes what is read")


def _payloads(blocks: Iterable[bytes]) -> list[bytes]:
    return [payload for block in blocks if (payload := sse.data_of(block)) is not None]


def _read_plainly(body: bytes) -> list[bytes]:
    """The payloads of a stream as the format's own text has them: one line after the other."""
    lines = body.removeprefix(_BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    payloads, data = list[bytes](), list[bytes]()
    for line in lines[:-1]:
        name, _, value = line.partition(b":")
        if not line:
            payloads += [b"\n".join(data)] if data else []
            data = []
        elif name == b"data":
            data.append(value.removeprefix(b" "))
    return payloads


def assembling(body: bytes) -> None:
    """Any stream is read without raising, and to the same calls however it is cut, framed or told in smaller deltas."""
    chance = random.Random(body)
    for dialect, stream in itertools.product(Dialect, (True, False)):
        dialects.read(dialect, body, stream=stream)
    answer = told(answers.read(Dialect.CHAT, body, stream=True))
    _must(_size(answer) <= _GROWTH * len(body), "more is told than was sent")
    splitter = sse.Splitter()
    blocks = [block for piece in pieces_of(body, chance) for block in splitter.feed(piece)]
    payloads = _payloads(blocks)
    _must(_told_of(payloads) == answer, "a cut changes the answer")
    framed = b"".join(_framed_anew(payload, chance) for payload in payloads)
    _must(told(answers.read(Dialect.CHAT, framed, stream=True)) == answer, "framing changes the answer")
    smaller = [part for payload in payloads for part in _in_smaller_deltas(payload, chance)]
    _must(_told_of(smaller) == answer, "smaller deltas change the answer")
    known_calls(chance)


def told(answer: Answer) -> tuple[Any, ...]:
    """What an answer says, as values that can be compared."""
    choices = [(c.index, c.calls, c.content, c.lead, c.reasoning, c.finish_reason) for c in answer.choices.values()]
    return tuple(choices), answer.problem


def _told_of(payloads: Iterable[bytes]) -> tuple[Any, ...]:
    reader = AnswerReader.of_stream(Dialect.CHAT)
    for payload in payloads:
        reader.payload(payload)
    return told(reader.result())


def _size(answer: tuple[Any, ...]) -> int:
    choices: tuple[Any, ...] = answer[0]
    calls = (call for choice in choices for call in choice[1])
    return sum(len(choice[2]) + len(choice[4]) for choice in choices) + sum(len(c.name + c.arguments) for c in calls)


def _framed_anew(payload: bytes, chance: random.Random) -> bytes:
    end = chance.choice((b"\n", b"\r\n", b"\r"))
    around = chance.choice((b"", b": ping" + end + end, b"event: x" + end, b":" + end))
    return around + b"".join(b"data: " + line + end for line in payload.split(b"\n")) + end + chance.choice((b"", end))


def _in_smaller_deltas(payload: bytes, chance: random.Random) -> list[bytes]:
    """The same chunk as two, the first call's argument text cut in two; as it is where there is no such text."""
    try:
        chunk = orjson.loads(payload)
        (choice,) = chunk["choices"]
        (call,) = choice["delta"]["tool_calls"]
        text = call["function"]["arguments"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return [payload]
    if not isinstance(text, str) or not isinstance(choice, dict) or "function_call" in choice["delta"]:
        return [payload]
    at = chance.randint(0, len(text))
    more = {"function": {"arguments": text[at:]}} | {key: call[key] for key in ("index", "id") if key in call}
    call["function"]["arguments"] = text[:at]
    ended = {key: choice.pop(key) for key in ("finish_reason", "stop_reason", "token_ids", "logprobs") if key in choice}
    second = {"choices": [{"index": choice.get("index"), "delta": {"tool_calls": [more]}} | ended]}
    return [orjson.dumps(chunk), orjson.dumps(second)]


def known_calls(chance: random.Random) -> None:
    """Calls that are told in deltas of any size and order are put together again, by index or by id alone."""
    calls = [
        ToolCall(chance.choice(("f", "get_weather", "é")), _argument_text(chance), f"id{i}")
        for i in range(chance.randint(1, 4))
    ]
    by_index = chance.random() < 0.7
    queues = [_deltas(call, i if by_index else None, chance) for i, call in enumerate(calls)]
    told_first = [queue.pop(0) for queue in queues]
    rest = _merged(queues, chance) if chance.random() < 0.7 else [delta for queue in queues for delta in queue]
    reader = AnswerReader.of_stream(Dialect.CHAT)
    for delta in [*told_first, *rest]:
        reader.payload(json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [delta]}}]}).encode())
    _must(reader.result().choices[0].calls == tuple(calls), "known calls are put together in another way")


def _argument_text(chance: random.Random) -> str:
    return "".join(chance.choices('{}"\\:é👩 a\u2028\n', k=chance.randint(0, 20)))


def _deltas(call: ToolCall, index: int | None, chance: random.Random) -> list[dict[str, Any]]:
    """A call's deltas: id and name first, then its arguments in pieces; without an index, the id in each of them."""
    whose = {"id": call.id} if index is None else {"index": index}
    cuts = sorted(chance.randint(0, len(call.arguments)) for _ in range(chance.randint(0, 4)))
    pieces = [call.arguments[a:b] for a, b in itertools.pairwise([0, *cuts, len(call.arguments)])]
    first: dict[str, Any] = whose | {"id": call.id, "function": {"name": call.name}}
    return [first, *(whose | {"function": {"arguments": piece}} for piece in pieces)]


def _merged(queues: Sequence[list[dict[str, Any]]], chance: random.Random) -> list[dict[str, Any]]:
    """All deltas, each queue's in their order."""
    merged, left = list[dict[str, Any]](), [list(queue) for queue in queues]
    while left := [queue for queue in left if queue]:
        merged.append(chance.choice(left).pop(0))
    return merged
