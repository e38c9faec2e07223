"""Writes the rest of a Responses stream: what stands in place of calls, up to a well-formed end. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson

from proxy.cut import set_members
from proxy.plain import dumps
from shadow.wire.answers import read_object
from shadow.wire.responses import CUSTOM_INPUT, own_name
from shadow.wire.responses_answer import CALLS, Item, Part
from validators import ToolCall

_ID = "resp_counterproof"
_BLANK = {
    "id": _ID,
    "object": "response",
    "created_at": 0,
    "status": "in_progress",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "model": "",
    "output": [],
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "usage": None,
}
"""A response of which the primary told nothing that could go out."""

_DONE = {
    "output_text": ("response.output_text.done", "text"),
    "refusal": ("response.refusal.done", "refusal"),
    "reasoning_text": ("response.reasoning_text.done", "text"),
    "summary_text": ("response.reasoning_summary_text.done", "text"),
}


class _Event(msgspec.Struct):
    response: msgspec.Raw = msgspec.Raw()


_read_event = msgspec.json.Decoder(_Event).decode


def response_of(payload: bytes) -> bytes:
    """The bytes of an event's `response`, b"" where there is no such object."""
    try:
        raw = bytes(_read_event(payload).response)
    except (msgspec.MsgspecError, RecursionError):
        return b""
    return raw if raw.startswith(b"{") else b""


@dataclass(slots=True)
class Told:
    """What the client was told: the response as it was first told, its items, and the next event's number."""

    response: bytes = b""
    number: int = 0
    items: Sequence[Item] = field(default_factory=list)


def framed(kind: Any, payload: bytes) -> bytes:
    """A payload as the engine frames it: under its event's name, if it has one."""
    name = b"event: %b\n" % kind.encode() if isinstance(kind, str) else b""
    return name + b"data: " + payload + b"\n\n"


def event(kind: str, number: int, members: dict[str, Any]) -> bytes:
    """One event, numbered."""
    return framed(kind, dumps({"type": kind, "sequence_number": number} | members))


def response_event(kind: str, number: int, response: bytes) -> bytes:
    """One event that tells of the response as a whole, whose bytes are given."""
    return framed(kind, b'{"type":"%b","sequence_number":%d,"response":%b}' % (kind.encode(), number, response))


def failed_event(told: Told, failed: Any) -> bytes:
    """The primary's failure: its error, and of its response what the client was told before."""
    error = failed.get("error") if isinstance(failed, dict) else None
    items = [item.value for item in told.items if item.closed and item.kind not in CALLS]
    new = {b"output": dumps(items), b"status": b'"failed"', b"error": dumps(error)}
    return response_event("response.failed", told.number, set_members(told.response or dumps(_BLANK), new))


def message(own: str, text: str, status: str = "completed") -> dict[str, Any]:
    """A message of one text, as an output holds it."""
    return {"id": own, "type": "message", "role": "assistant", "content": [_text_part(text)], "status": status}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def call_item(call: ToolCall, tools: Any, stem: str, status: str = "completed") -> dict[str, Any]:
    """A call as an output holds it; `tools` are those of the request, `stem` makes ids that are the response's own."""
    name, namespace, custom = own_name(call.name, tools)
    told = {"call_id": call.id or f"call_{stem}", "name": name}
    if custom:
        return {"type": "custom_tool_call", "id": f"ctc_{stem}", **told, "input": _payload(call)}
    within = {"namespace": namespace} if namespace else {}
    return {
        "type": "function_call",
        "id": f"fc_{stem}",
        **told,
        **within,
        "arguments": call.arguments or "{}",
        "status": status,
    }


def _payload(call: ToolCall) -> str:
    """The free text of a custom tool's call."""
    given = read_object(call.arguments.encode("utf-8", "surrogatepass")) or {}
    payload = given.get(CUSTOM_INPUT)
    return payload if isinstance(payload, str) else call.arguments


def stem_of(response: dict[str, Any], place: int) -> str:
    """What the id of an item of ours ends with: unlike the model server's own, and the same whenever it is asked."""
    own = response.get("id")
    return f"{own.removeprefix('resp_') if isinstance(own, str) else _ID}_{place}"


def counts(usage: Any) -> Any:
    """A usage, or what of it are numbers: nothing else of a held event goes out."""
    if isinstance(usage, dict):
        return {key: kept for key, value in usage.items() if (kept := counts(value)) is not None}
    if isinstance(usage, list):
        return [value for value in usage if isinstance(value, int | float)]
    return usage if isinstance(usage, int | float) else None


class Ending:
    """Writes events one after the other, from what was told on. `end` closes the response and gives all of them."""

    def __init__(self, told: Told) -> None:
        self._raw = told.response or dumps(_BLANK)
        self._response: dict[str, Any] = orjson.loads(self._raw)
        self._number = told.number
        self._out: list[bytes] = []
        self._output: list[dict[str, Any]] = []
        if not told.response:
            self._whole("response.created", self._raw)
            self._whole("response.in_progress", self._raw)
        items = sorted(enumerate(told.items), key=lambda at: at[0] if at[1].index is None else at[1].index)
        self._place = max([item.index for _, item in items if item.index is not None] + [len(items) - 1], default=-1)
        for place, item in items:
            self._close(item, place if item.index is None else item.index)
        self._place += 1

    def say(self, text: str) -> None:
        """A message of its own."""
        own = f"msg_{stem_of(self._response, self._place)}"
        at = {"output_index": self._place, "item_id": own, "content_index": 0}
        begun = message(own, "", "in_progress") | {"content": []}
        self._event("response.output_item.added", {"output_index": self._place, "item": begun})
        self._event("response.content_part.added", at | {"part": _text_part("")})
        self._event("response.output_text.delta", at | {"delta": text, "logprobs": []})
        self._event("response.output_text.done", at | {"text": text, "logprobs": []})
        self._event("response.content_part.done", at | {"part": _text_part(text)})
        self._done(self._place, message(own, text))
        self._place += 1

    def call(self, call: ToolCall) -> None:
        """A call, in the engine's order."""
        item = call_item(call, self._response.get("tools"), stem_of(self._response, self._place))
        key = "input" if item["type"] == "custom_tool_call" else "arguments"
        name = "response.custom_tool_call_input" if key == "input" else "response.function_call_arguments"
        at = {"output_index": self._place, "item_id": item["id"]}
        begun = item | {key: ""} | ({"status": "in_progress"} if "status" in item else {})
        self._event("response.output_item.added", {"output_index": self._place, "item": begun})
        self._event(f"{name}.delta", at | {"delta": item[key]})
        self._event(f"{name}.done", at | {key: item[key]} | ({"name": item["name"]} if key == "arguments" else {}))
        self._done(self._place, item)
        self._place += 1

    def end(self, usage: Any) -> bytes:
        """The response is complete; all events."""
        new = {b"output": dumps(self._output), b"status": b'"completed"', b"usage": dumps(counts(usage))}
        self._whole("response.completed", set_members(self._raw, new))
        return b"".join(self._out)

    def _event(self, kind: str, members: dict[str, Any]) -> None:
        self._out.append(event(kind, self._number, members))
        self._number += 1

    def _whole(self, kind: str, response: bytes) -> None:
        self._out.append(response_event(kind, self._number, response))
        self._number += 1

    def _done(self, place: int, item: dict[str, Any]) -> None:
        self._event("response.output_item.done", {"output_index": place, "item": item})
        self._output.append(item)

    # --- what was begun and not ended ---------------------------------------------------------------------------

    def _close(self, item: Item, place: int) -> None:
        if item.closed or item.kind not in {"message", "reasoning"}:
            if item.value and item.kind not in CALLS:
                self._output.append(item.value)
            return
        own = item.id or f"msg_{stem_of(self._response, place)}"
        parts: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for (summary, at), part in sorted(item.parts.items()):
            where = {"output_index": place, "item_id": own, "summary_index" if summary else "content_index": at}
            parts[summary].append(self._close_part(part, where))
        value: dict[str, Any] = {"id": own, "type": item.kind, "status": "completed", "content": parts[False]}
        value |= {"role": "assistant"} if item.kind == "message" else {"summary": parts[True]}
        self._done(place, value)

    def _close_part(self, part: Part, where: dict[str, Any]) -> dict[str, Any]:
        kind, key = _DONE.get(part.kind, _DONE["output_text"])
        value = _text_part(part.text) if kind == _DONE["output_text"][0] else {"type": part.kind, key: part.text}
        if not part.done:
            self._event(kind, where | {key: part.text} | ({"logprobs": []} if part.kind == "output_text" else {}))
        if not part.closed:
            name = "reasoning_summary_part" if "summary_index" in where else "content_part"
            self._event(f"response.{name}.done", where | {"part": value})
        return value
