"""Draws streams for fuzzing: those of the leak corpus and made-up ones, changed at every level of their structure.

All chance comes from the `random.Random` that is handed in. Streams are bounded: `MOST` bytes.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from shadow.wire import sse
from tests.proxy.leakstreams import CORPUS

MOST = 64 * 1024

_PLAIN = [stream.body for stream in CORPUS if not stream.long]
_INJECTED = [stream.injected for stream in CORPUS if stream.injected is not None]
_ENDS = (b"\n", b"\r\n", b"\r")
_SOUP = (
    *_ENDS, b"\n\n", b"\r\r", b"\r\n\r\n", b"data: x", b"data:y", b"data", b"data:", b": c", b":", b"event: z", b" ",
    b"data: [DONE]", b"data: {}", b"\xef\xbb\xbf", b"\xc3", b"\xa9", b"\0", b"DATA: 1", b"data: {", b"data: }",
)  # fmt: skip
_TOKENS = (
    *_SOUP, b'"tool_calls":[', b'"function":{', b'"arguments":"', b'"arguments":{', b'"index":0', b'"index":-1', b"\\",
    b"\\ud83d", b"\\u0000", b'\\"', b'"', b"{", b"}", b"[", b"]", b"null", b"NaN", b"1e999", b"9" * 40, b"[" * 300,
    b'"choices":[{', b'"delta":{', b'"error":{}', b"token_id:7",
)  # fmt: skip
_KEYS = (
    "index", "delta", "message", "content", "reasoning", "tool_calls", "function_call", "function", "name", "arguments",
    "id", "token_ids", "logprobs", "token", "logprob", "bytes", "top_logprobs", "finish_reason", "stop_reason",
    "choices", "usage", "error", "model", "prompt_token_ids", "type",
)  # fmt: skip
_LEAVES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**64, 10**40, 0.5, -9999.0, float("nan"), "", "x", "0", "stop", "[DONE]",
    "token_id:5", "token_id:x", "token_id:" + "9" * 5000, "a\u2028b", "\ud83d", "{", '{"a": 1}', [], {}, [[]], "é👩",
)  # fmt: skip


def stream(chance: random.Random) -> bytes:
    """A stream: of the corpus or made up, with up to six changes."""
    draw = chance.choices((_of_corpus, _made_up, _soup), weights=(6, 3, 1))[0]
    body = draw(chance)
    for _ in range(chance.randint(0, 6)):
        body = changed(body, chance)
    return body


def changed(body: bytes, chance: random.Random) -> bytes:
    """A stream with one change, at some level of its structure."""
    return chance.choice(_CHANGES)(body, chance)[:MOST]


def pieces_of(body: bytes, chance: random.Random) -> list[bytes]:
    """The same bytes in pieces: single bytes, small or large pieces, empty ones among them; some hundreds at most."""
    most, pieces, at = max(2 ** chance.randint(0, 12), len(body) // 200), list[bytes](), 0
    while at < len(body):
        size = int(chance.random() * (most + 1))
        pieces.append(body[at : at + size])
        at += size
    return pieces


# -- where streams come from


def _of_corpus(chance: random.Random) -> bytes:
    return chance.choice(_PLAIN if chance.random() < 0.8 else _INJECTED)


def _soup(chance: random.Random) -> bytes:
    return b"".join(chance.choices(_SOUP, k=chance.randint(0, 40)))


def _made_up(chance: random.Random) -> bytes:
    """Chunks whose members have the API's names, and often its shapes."""
    payloads = [_dumps(_chunk(chance), chance) for _ in range(chance.randint(1, 8))]
    return b"".join(_framed(payload, chance) for payload in [*payloads, b"[DONE]"][: chance.randint(1, 9)])


def _chunk(chance: random.Random) -> Any:
    choices = [_choice(chance) for _ in range(chance.choice((0, 1, 1, 1, 2)))]
    chunk: dict[str, Any] = {"id": "x", "model": "m", "choices": choices}
    if chance.random() < 0.2:
        chunk[chance.choice(_KEYS)] = junk(chance, 3)
    return chunk if chance.random() < 0.95 else junk(chance, 3)


def _choice(chance: random.Random) -> Any:
    delta: dict[str, Any] = {}
    if chance.random() < 0.4:
        delta["content"] = chance.choice(("", "Hi ", "é", None))
    if chance.random() < 0.6:
        delta["tool_calls"] = [_call(chance) for _ in range(chance.randint(0, 3))]
    if chance.random() < 0.15:
        delta[chance.choice(_KEYS)] = junk(chance, 3)
    finish = chance.choice((None, None, None, "stop", "tool_calls"))
    return {"index": chance.choice((0, 0, 0, 1, None)), "delta": delta, "finish_reason": finish}


def _call(chance: random.Random) -> Any:
    function: dict[str, Any] = {}
    if chance.random() < 0.6:
        function["name"] = chance.choice(("f", "g", "f", "", None))
    if chance.random() < 0.8:
        function["arguments"] = chance.choice(("", "{", '"a"', ": 1", "}", '{"é": "\\ud83d"}', None, {"a": 1}))
    call: dict[str, Any] = {"function": function}
    if chance.random() < 0.7:
        call["index"] = chance.choice((0, 0, 1, 2, None, "0"))
    if chance.random() < 0.6:
        call["id"] = chance.choice(("a", "b", "c", "", None))
    return call


def junk(chance: random.Random, depth: int) -> Any:
    """Any JSON value (NaN and lone surrogates are among them), nested at most so deep."""
    kind = chance.random()
    if depth == 0 or kind < 0.4:
        return chance.choice(_LEAVES)
    if kind < 0.6:
        return [junk(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    return {chance.choice(_KEYS): junk(chance, depth - 1) for _ in range(chance.randint(0, 4))}


def _dumps(value: Any, chance: random.Random) -> bytes:
    separators = chance.choice(((",", ":"), (", ", ": ")))
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5, separators=separators)
    return text.encode("utf-8", "surrogatepass")


def _framed(payload: bytes, chance: random.Random) -> bytes:
    end = chance.choice(_ENDS) if chance.random() < 0.3 else b"\n"
    space = b"" if chance.random() < 0.2 else b" "
    before = b": c" + end + end if chance.random() < 0.1 else b""
    return before + b"".join(b"data:" + space + line + end for line in payload.split(b"\n")) + end


# -- what is done to them


def _blocks(body: bytes) -> list[bytes]:
    splitter = sse.Splitter()
    return [*splitter.feed(body), splitter.rest]


def _move_blocks(body: bytes, chance: random.Random) -> bytes:
    """Drops, repeats, swaps, cuts off, or takes events from another stream."""
    blocks = _blocks(body)
    at, other = chance.randrange(len(blocks)), chance.randrange(len(blocks))
    match chance.randrange(5):
        case 0:
            del blocks[at]
        case 1:
            blocks.insert(other, blocks[at])
        case 2:
            blocks[at], blocks[other] = blocks[other], blocks[at]
        case 3:
            del blocks[at + 1 :]
        case _:
            blocks[at:at] = chance.sample(foreign := _blocks(chance.choice(_PLAIN)), min(3, len(foreign)))
    return b"".join(blocks)


def _change_lines(body: bytes, chance: random.Random) -> bytes:
    """Other line ends, lines more or fewer, a data line in two."""
    old = chance.choice(_ENDS)
    match chance.randrange(4):
        case 0:
            return body.replace(old, chance.choice(_ENDS), chance.choice((-1, 1, 3)))
        case 1:
            return body.replace(b"data: ", chance.choice((b"data:", b"data:  ", b": c\ndata: ", b"id: 1\r\ndata: ")))
        case 2:
            return _insert(body, b"\ndata: ", chance)
        case _:
            return body.replace(b"\n\n", b"\n", 1)


def _change_json(body: bytes, chance: random.Random) -> bytes:
    """One value of one event's JSON becomes another, goes, moves or gets a new key."""
    blocks = _blocks(body)
    at = chance.randrange(len(blocks))
    try:
        value = json.loads(sse.data_of(blocks[at]) or b"")
        _change_value(value, chance)
        blocks[at] = _framed(_dumps(value, chance), chance)
    except (ValueError, RecursionError):
        return body
    return b"".join(blocks)


def _change_value(value: Any, chance: random.Random) -> None:
    """Walks down some way and changes what it finds there, in place."""
    while isinstance(value, dict | list) and value:
        key: Any = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.75:
            value = value[key]
            continue
        match chance.randrange(4):
            case 0:
                value[key] = junk(chance, 2)
            case 1:
                del value[key]
            case 2 if isinstance(value, dict):
                value[chance.choice(_KEYS)] = value.pop(key)
            case _:
                value[key] = [value[key]]
        return


def _change_bytes(body: bytes, chance: random.Random) -> bytes:
    """A byte flipped, a slice gone or repeated, a token put in."""
    at = chance.randint(0, len(body))
    until = min(len(body), at + chance.choice((1, 1, 2, 8, 64)))
    match chance.randrange(4):
        case 0:
            return body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
        case 1:
            return body[:at] + body[until:]
        case 2:
            return body[:until] + body[at:]
        case _:
            return _insert(body, chance.choice(_TOKENS), chance)


def _insert(body: bytes, token: bytes, chance: random.Random) -> bytes:
    at = chance.randint(0, len(body))
    return body[:at] + token + body[at:]


_CHANGES: Sequence[Callable[[bytes, random.Random], bytes]] = (_move_blocks, _change_lines, _change_json, _change_bytes)
