"""What in an event of the Messages API somebody may take for a call: in its bytes, and in its JSON with all members."""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from shadow.wire import sse
from shadow.wire.spelling import Vocabulary, folded, repeated

NOTHING: tuple[Any, ...] = (None, "", [], {})
"""What says nothing, wherever it stands."""

_CALL_KEYS = frozenset(map(folded, ("partial_json", "tool_use", "tool_call", "tool_calls", "function_call")))
_KNOWN = Vocabulary(
    "type", "index", "message", "content", "content_block", "delta", "id", "name", "input", "partial_json",
    "text", "thinking", "stop_reason", "error",
)  # fmt: skip
_CALL_TYPES = ("tool", "function", "input_json")
# No JSON text without one of these has a call in it: only a \u escape can spell one in another way.
_MARKS_OF_CALLS = (b"tool", b"function", b"partial_json", b"input", b"arguments", b"\\u")
_USUAL = re.compile(rb"event: ([a-z_]+)\ndata: ([^\r\n]*)\n\n")
_BOM = b"\xef\xbb\xbf"


def may_hold_call(text: bytes) -> bool:
    """Whether bytes may be of a call, or of a piece of one."""
    text = text.lower()
    return any(mark in text for mark in _MARKS_OF_CALLS)


def framing(block: bytes) -> tuple[bytes | None, frozenset[bytes] | None]:
    """An event's payload (None: it has none), and the names that its block gives it.

    No set of names at all where the lines are read in several ways: more or less than one data line, line ends that
    some do not take for such, a byte order mark.
    """
    if usual := _USUAL.fullmatch(block):
        return usual[2], frozenset((usual[1],))
    # Half a CRLF at the end: its other half opens the next block.
    text = block.removesuffix(b"\r" if block.endswith(b"\r\n\r") else b"").replace(b"\r\n", b"\n")
    lines = text.split(b"\n")
    plain = b"\r" not in text and sum(line.startswith(b"data") for line in lines) == 1
    if not plain or any(line.startswith(_BOM) for line in lines):
        return sse.data_of(block), None
    names = [line[6:].removeprefix(b" ") for line in lines if line.startswith(b"event:") or line == b"event"]
    return sse.data_of(block), frozenset(names)


# --- JSON with all its members ----------------------------------------------------------------------------------------


class _Object(dict[str, Any]):
    """A JSON object, and all its members in order, repeated ones too."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


class _OddError(ValueError):
    pass


def _not_odd(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs) or _KNOWN.respelled(value):
        raise _OddError
    return value


_read_plain = json.JSONDecoder(object_pairs_hook=_not_odd).decode
_read_with_repeats = json.JSONDecoder(object_pairs_hook=_Object).decode


@dataclass(frozen=True, slots=True)
class Look:
    """A JSON object, where in it something stands that may be a call, and whether not all readers read it alike.

    `odd`: an object repeats a member, or has a known one in another spelling.
    """

    value: dict[str, Any]
    calls: list[tuple[str | int, ...]]
    odd: bool


def look(payload: bytes) -> Look | None:
    """None where the payload is no JSON object, or nests too deep to be gone over."""
    try:
        orjson.loads(payload)  # the stricter one: no NaN, no half of a surrogate pair
        text = payload.decode()
        if not may_hold_call(payload):  # nearly every event
            with contextlib.suppress(_OddError):
                return Look(value, [], odd=False) if isinstance(value := _read_plain(text), dict) else None
        value = _read_with_repeats(text)
        return Look(value, list(_calls(value, ())), _is_odd(value)) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _calls(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """The paths of objects that somebody may take for a call or a piece of one; not looked for within one."""
    if isinstance(value, _Object):
        if _looks_like_call(value):
            yield path
            return
        for key, child in value.pairs:
            yield from _calls(child, (*path, key))
    elif isinstance(value, list):
        for place, child in enumerate(value):
            yield from _calls(child, (*path, place))


def _looks_like_call(value: _Object) -> bool:
    told = {folded(key) for key in value}
    if "name" in told and ("input" in told or "arguments" in told):
        return True
    for key, child in value.pairs:
        if folded(key) in _CALL_KEYS and child not in NOTHING:
            return True
        if folded(key) == "type" and isinstance(child, str) and any(kind in child.lower() for kind in _CALL_TYPES):
            return True
    return False


def _is_odd(value: Any) -> bool:
    """Whether an object names a member twice, or oddly; a call's input is its own matter, and kept as text."""
    if isinstance(value, _Object):
        if repeated([key for key, _ in value.pairs]) or _KNOWN.respelled(value):
            return True
        return any(_is_odd(child) for key, child in value.items() if key != "input")
    return isinstance(value, list) and any(_is_odd(child) for child in value)
