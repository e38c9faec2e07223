"""Where tool calls stand in the JSON of a chat answer, and whether every reader finds them there. Pure."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from shadow.wire import answers
from shadow.wire.spelling import Vocabulary, folded, repeated

_CALL_KEYS = frozenset({"tool_calls", "function_call"})
_CALL_KEYS_FOLDED = frozenset(map(folded, _CALL_KEYS))
_KNOWN = Vocabulary(
    "choices", "index", "delta", "message", "tool_calls", "function_call", "id", "type", "function", "name",
    "arguments", "custom", "input",
)  # fmt: skip
_CLIENTS = frozenset({"arguments", "input"})  # what is in there has keys of the client's own
_OF_TOKENS = frozenset({"token", "logprob", "bytes", "top_logprobs"})  # there are thousands of these
_FOREIGN = frozenset({"tool_use", "server_tool_use", "mcp_tool_use", "function_call", "custom_tool_call", "mcp_call"})
"""The types of what is a call in another dialect: no chat answer has one, and some reader may know it."""
_NOTHING: tuple[Any, ...] = (None, "", [], {})


def may_hold_call(text: bytes) -> bool:
    r"""Whether some reader may find a call in a JSON text, in whatever case its keys are.

    Only a \u escape can spell such a key in another way.
    """
    text = text.lower()
    return (
        b"tool_" in text
        or b"_call" in text
        or b"toolcall" in text
        or b"functioncall" in text
        or (b"\\" in text and b"\\u" in text)  # one byte is found sooner
    )


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its members, repeated keys too."""

    def names(self) -> list[str]:
        return [key for key, _ in self]


def calls_in(payload: bytes, block: bytes) -> list[int] | None:
    """The positions in `choices` whose delta holds a call; None where one stands elsewhere, or may.

    Repeated keys are read by some as the first and by others as the last, and keys in another case by some only; one
    event in several lines, or in lines that only some take for lines, is read in several ways, too.
    """
    return _calls_at(payload, "delta") if _plainly_framed(block) else None


def _calls_at(payload: bytes, holder: str) -> list[int] | None:
    try:
        value = json.loads(payload, object_pairs_hook=_Pairs)
        places = [_place(path, holder) for path in _call_paths(value, ())]
        unsure = -1 in places or _in_doubt(value, places, holder)
    except (ValueError, RecursionError):
        return None
    return None if unsure else sorted(set(places))


def _place(path: tuple[str | int, ...], holder: str) -> int:
    """The position in `choices` that a path leads to the calls of; -1 for every other path."""
    match path:
        case ("choices", int(place), str(held_by), str(key)) if held_by == holder and key in _CALL_KEYS:
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
            told = "" if key in _OF_TOKENS else folded(key)
            if told in _CALL_KEYS_FOLDED and child not in _NOTHING:
                yield (*path, key)
            elif told == "type" and isinstance(child, str) and child.lower() in _FOREIGN:
                yield (*path, key, key)  # nowhere in its own place
            elif isinstance(child, list):
                yield from _call_paths(child, (*path, key))
    elif isinstance(value, list):
        for i, child in enumerate(value):
            if isinstance(child, list):
                yield from _call_paths(child, (*path, i))


def _in_doubt(value: _Pairs, places: Sequence[int], holder: str) -> bool:
    """Whether an object on the way to a call, or of one, has keys that not every reader reads alike."""
    if _odd(value):
        return True
    for place in places:
        choice = dict(value)["choices"][place]
        if _odd(choice) or _odd(held := dict(choice)[holder]):
            return True
        if not all(_is_calls(key, child) and _reads_alike(child) for key, child in held if key in _CALL_KEYS):
            return True
    return False


def _is_calls(key: str, value: Any) -> bool:
    """Whether a key that holds calls holds what all readers take for calls: a list of objects, or an object."""
    if value in _NOTHING:
        return True
    if key == "function_call":
        return _is_function(value)
    entries = value if isinstance(value, list) and not isinstance(value, _Pairs) else [None]
    return all(isinstance(entry, _Pairs) and _is_function(dict(entry).get("function")) for entry in entries)


def _is_function(value: Any) -> bool:
    """An object with a name that is a text and arguments that are one, or an object or list as some send them."""
    if value is None:
        return True
    if not isinstance(value, _Pairs):
        return False
    function = dict(value)
    return isinstance(function.get("name"), str | None) and isinstance(function.get("arguments"), str | list | None)


def _odd(value: _Pairs) -> bool:
    return repeated(value.names()) or _KNOWN.respelled(value.names())


def _reads_alike(value: Any, *, clients: bool = False) -> bool:
    """Whether a call, or a part of one, is the same to every reader; case matters in what is the client's own."""
    if isinstance(value, _Pairs):
        odd = len(dict(value)) < len(value) if clients else _odd(value)
        return not odd and all(_reads_alike(child, clients=clients or key in _CLIENTS) for key, child in value)
    return all(_reads_alike(child, clients=clients) for child in value) if isinstance(value, list) else True


def calls_of_whole(body: bytes) -> list[int] | None:
    """The positions in `choices` whose message holds a call; None where one stands elsewhere or nothing is readable."""
    if answers.read_object(body) is None:
        return None
    return _calls_at(body, "message") if may_hold_call(body) else []
