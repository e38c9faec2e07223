"""Where tool calls stand in the JSON of a chat answer, and whether every reader finds them there. Pure."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from shadow.wire import answers

_CALL_KEYS = frozenset({"tool_calls", "function_call"})
_FOREIGN = frozenset({"tool_use", "server_tool_use", "mcp_tool_use", "function_call", "custom_tool_call", "mcp_call"})
"""The types of what is a call in another dialect: no chat answer has one, and some reader may know it."""
_NOTHING: tuple[Any, ...] = (None, "", [], {})


def may_hold_call(text: bytes) -> bool:
    r"""Whether some reader may find a call in a JSON text: only a \u escape can spell such a key in another way."""
    return b"tool_" in text or b"function_call" in text or b"mcp_call" in text or b"\\u" in text


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its members, repeated keys too."""


def calls_in(payload: bytes, block: bytes) -> list[int] | None:
    """The positions in `choices` whose delta holds a call; None where one stands elsewhere, or may.

    Repeated keys are read by some as the first and by others as the last; one event in several lines, or in lines
    that only some take for lines, is read in several ways, too.
    """
    return _calls_at(payload, "delta") if _plainly_framed(block) else None


def _calls_at(payload: bytes, holder: str) -> list[int] | None:
    try:
        value = json.loads(payload, object_pairs_hook=_Pairs)
        places = [_place(path, holder) for path in _call_paths(value, ())]
        unsure = -1 in places or _repeats_keys(value, places, holder)
    except (ValueError, RecursionError):
        return None
    return None if unsure else sorted(set(places))


def _place(path: tuple[str | int, ...], holder: str) -> int:
    """The position in `choices` that a path leads to the calls of; -1 for every other path."""
    match path:
        case ("choices", int(place), str(held_by), _) if held_by == holder:
            return place
    return -1


def _plainly_framed(block: bytes) -> bool:
    """Whether a block is one data line, in lines that everybody ends alike."""
    lines = block.replace(b"\r\n", b"\n")
    return b"\r" not in lines and sum(line.startswith(b"data") for line in lines.split(b"\n")) == 1


def _call_paths(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Where a key that holds calls stands with something in it; not looked for within one."""
    if isinstance(value, _Pairs):
        for key, child in value:
            if key in _CALL_KEYS and child not in _NOTHING:
                yield (*path, key)
            elif key == "type" and isinstance(child, str) and child in _FOREIGN:
                yield (*path, key, key)  # nowhere in its own place
            elif isinstance(child, list):
                yield from _call_paths(child, (*path, key))
    elif isinstance(value, list):
        for i, child in enumerate(value):
            if isinstance(child, list):
                yield from _call_paths(child, (*path, i))


def _repeats_keys(value: _Pairs, places: Sequence[int], holder: str) -> bool:
    """Whether an object on the way to a call repeats a key."""
    ways = [value]
    if len(dict(value)) < len(value):
        return True
    for place in places:
        choice = dict(value)["choices"][place]
        ways += [choice, dict(choice)[holder]]
    return any(len(dict(way)) < len(way) for way in ways)


def calls_of_whole(body: bytes) -> list[int] | None:
    """The positions in `choices` whose message holds a call; None where one stands elsewhere or nothing is readable."""
    if answers.read_object(body) is None:
        return None
    return _calls_at(body, "message") if may_hold_call(body) else []
