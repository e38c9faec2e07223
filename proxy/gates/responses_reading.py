"""What one event of a Responses stream may do: say something, call, end the stream, or something that is unread. Pure.

Clients act on what they know: items of an output, and the events that tell of one. So items are let through by kind,
and everywhere else nothing may look like a call, however it is spelled. What repeats the request (its tools, say) is
not looked through: no client takes a call from there.
"""

import json
import re
from enum import StrEnum
from typing import Any

from shadow.wire.responses_answer import CALLS, ENDS, LIFECYCLE
from shadow.wire.spelling import Vocabulary, folded, repeated

BUILT_IN = frozenset(
    {
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "web_search_call",
    }
)
"""The kinds of items that tell of a tool which the server ran itself. They are history when they are told."""

_SAID = frozenset({"message", "reasoning"})
_ITEMS = frozenset({"response.output_item.added", "response.output_item.done"})
_ARGUMENTS = frozenset(
    {
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
    }
)
_TEXTS = frozenset(
    {
        f"response.{name}.{what}"
        for name in ("content_part", "reasoning_part", "reasoning_summary_part")
        for what in ("added", "done")
    }
    | {
        f"response.{name}.{what}"
        for name in ("output_text", "refusal", "reasoning_text", "reasoning_summary_text")
        for what in ("delta", "done")
    }
    | {"response.output_text.annotation.added"}
)

# No JSON text without one of these says anything of a call: only a \u escape can spell one in another way.
_MARKS = (b"call", b"tool", b"function", b"argument", b"\\u")
_CALL_KEYS = frozenset(
    folded(key)
    for key in (
        "tool_calls", "function_call", "function", "tool_use", "call_id", "tool_call_id", "name", "namespace",
        "arguments", "input",
    )
)  # fmt: skip
_CALL_MEMBERS = frozenset(
    {"type", "id", "item_id", "call_id", "name", "namespace", "arguments", "input", "delta", "status"}
)
_KNOWN = Vocabulary(*_CALL_MEMBERS, "type", "item", "item_id", "output_index", "response", "output", "sequence_number")
_REPEATED = frozenset(
    {
        "conversation",
        "input_messages",
        "instructions",
        "metadata",
        "output_messages",
        "prompt",
        "reasoning",
        "text",
        "tool_choice",
        "tools",
    }
)
"""What a response repeats of its request, or tells as raw text."""

_NAMING = frozenset({"type", "item_id"})
_NOTHING: tuple[Any, ...] = (None, "", [], {})
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class Kind(StrEnum):
    """What an event is. `call_end`: an end that tells of calls; `unread`: readers differ, or a call may be in it."""

    SAID = "said"
    CALL = "call"
    END = "end"
    CALL_END = "call_end"
    ERROR = "error"
    UNREAD = "unread"


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its members, repeated keys too."""

    def names(self) -> list[str]:
        return [key for key, _ in self]

    def of(self, name: str) -> Any:
        return dict(self).get(name)


def may_hold_call(text: bytes) -> bool:
    """Whether some reader may find a call in a text."""
    text = text.lower()
    for mark in _MARKS:  # noqa: SIM110  (done for every event, and a generator costs as much as the search)
        if mark in text:
            return True
    return False


def kind_of(block: bytes, payload: bytes, value: dict[str, Any], passing: frozenset[str]) -> Kind:
    """What an event is, from its block, the payload of it and the object in that.

    `passing` are the kinds of items, beside text, that go through: of `BUILT_IN`, where they are allowed.
    """
    kind = value.get("type")
    usual = b"event: %b\ndata: %b\n\n" % (kind.encode("utf-8", "replace") if isinstance(kind, str) else b"", payload)
    if (block != usual or b"\n" in payload) and not _plainly_framed(block, kind):
        return Kind.UNREAD
    # One type, whatever case a reader takes it in, and no word of a call: nothing else is told here.
    if isinstance(kind, str) and kind in _TEXTS and block.lower().count(b'"type"') == 1 and not may_hold_call(block):
        return Kind.SAID
    try:
        return _kind(json.loads(payload.decode(), object_pairs_hook=_Pairs), passing)
    except (ValueError, RecursionError):
        return Kind.UNREAD


def kind_of_whole(payload: bytes, passing: frozenset[str]) -> Kind:
    """`said`, `call` or `unread`: what a response that was not streamed is."""
    try:
        response = json.loads(payload.decode(), object_pairs_hook=_Pairs)
        return _of_response(response, passing) if isinstance(response, _Pairs) else Kind.UNREAD
    except (ValueError, RecursionError):
        return Kind.UNREAD


def _plainly_framed(block: bytes, kind: Any) -> bool:
    """Whether a block is one data line, and nothing beside it says anything else."""
    data = events = 0
    for raw in _LINE_END.split(block):
        line = raw.removeprefix(_BOM)
        if line.startswith(b"data"):
            data += 1
        elif line.startswith(b"event"):
            events += 1
            if not isinstance(kind, str) or line[5:].lstrip(b":").strip() != kind.encode("utf-8", "replace"):
                return False
        elif may_hold_call(line):
            return False
    return data == 1 and events <= 1


def _is_error(value: dict[str, Any]) -> bool:
    return value.get("type") == "error" or ("type" not in value and value.get("error") is not None)


def _kind(event: Any, passing: frozenset[str]) -> Kind:
    if not isinstance(event, _Pairs) or _odd(event):
        return Kind.UNREAD
    kind = event.of("type")
    kind = kind if isinstance(kind, str) else ""
    if kind in LIFECYCLE | ENDS:
        return _of_whole_event(event, kind, passing)
    if kind in _ITEMS:
        return _of_item(event.of("item"), passing) if _clean_beside(event, "item") else Kind.UNREAD
    if kind in _ARGUMENTS:
        return Kind.CALL if all(_of_call(key, child) for key, child in event) else Kind.UNREAD
    if _is_error(dict(event)):
        return Kind.ERROR if _clean(event, types=False) else Kind.UNREAD
    return Kind.SAID if _only_says(event, kind, passing) else Kind.UNREAD


def _only_says(event: _Pairs, kind: str, passing: frozenset[str]) -> bool:
    """Whether an event is about text, or about what a server's own tool does where that is allowed."""
    if kind in _TEXTS:
        return _clean(event)
    return any(kind.startswith(f"response.{name}") for name in passing) or _says_nothing(event)


def _says_nothing(event: _Pairs) -> bool:
    """Whether an event of an unknown type holds no text and no object, by which it could tell of a call."""

    def says_nothing(key: str, child: Any) -> bool:
        return child in _NOTHING or isinstance(child, int | float) or (key in _NAMING and isinstance(child, str))

    return all(_clean_member(key, child) and says_nothing(key, child) for key, child in event)


def _of_whole_event(event: _Pairs, kind: str, passing: frozenset[str]) -> Kind:
    found = _of_response(event.of("response"), passing) if _clean_beside(event, "response") else Kind.UNREAD
    if kind in ENDS:
        return {Kind.SAID: Kind.END, Kind.CALL: Kind.CALL_END}.get(found, Kind.UNREAD)
    return Kind.UNREAD if found is Kind.CALL else found  # no engine tells of a call before it tells the call


def _clean_beside(event: _Pairs, holder: str) -> bool:
    return all(_clean_member(key, child) for key, child in event if key != holder)


def _of_response(response: Any, passing: frozenset[str]) -> Kind:
    if not isinstance(response, _Pairs):
        return Kind.SAID if response is None else Kind.UNREAD
    if _odd(response):
        return Kind.UNREAD
    output = response.of("output")
    beside = all(_clean_member(key, child) for key, child in response if key not in _REPEATED | {"output"})
    if not beside or not (isinstance(output, list) or output is None) or isinstance(output, _Pairs):
        return Kind.UNREAD
    kinds = {_of_item(item, passing) for item in output or ()}
    return Kind.UNREAD if Kind.UNREAD in kinds else Kind.CALL if Kind.CALL in kinds else Kind.SAID


def _of_item(item: Any, passing: frozenset[str]) -> Kind:
    if not isinstance(item, _Pairs):
        return Kind.SAID if item is None else Kind.UNREAD
    kind = item.of("type")
    if _odd(item) or not isinstance(kind, str):
        return Kind.UNREAD
    if kind in CALLS:
        return Kind.CALL if all(_of_call(key, child) for key, child in item) else Kind.UNREAD
    said = kind in passing or (kind in _SAID and all(_clean_member(key, child) for key, child in item))
    return Kind.SAID if said else Kind.UNREAD


def _of_call(key: str, child: Any) -> bool:
    """Whether a member of a call, or of an event about one, is what every reader takes it for."""
    if key in _CALL_MEMBERS:
        return child is None or isinstance(child, str)
    return _clean_member(key, child)


def _clean_member(key: str, child: Any, *, types: bool = True) -> bool:
    """Whether a member, and all that it holds, looks like nothing of a call."""
    key = folded(key)
    if key in _CALL_KEYS and child not in _NOTHING:
        return False
    if types and key == "type" and isinstance(child, str) and may_hold_call(child.encode("utf-8", "replace")):
        return False
    return _clean(child, types=types)


def _clean(value: Any, *, types: bool = True) -> bool:
    if isinstance(value, _Pairs):
        return not _repeats(value) and all(_clean_member(key, child, types=types) for key, child in value)
    return all(_clean(child, types=types) for child in value) if isinstance(value, list) else True


def _repeats(value: _Pairs) -> bool:
    return repeated(value.names())


def _odd(value: _Pairs) -> bool:
    """Whether an object repeats a key, or has one that matters in another spelling."""
    return _repeats(value) or _KNOWN.respelled(value.names())
