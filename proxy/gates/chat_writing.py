"""Chunks and messages of our own in a chat answer. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from proxy.cut import set_choices
from proxy.plain import dumps
from proxy.refusal import KIND, after
from shadow.wire import answers
from shadow.wire.assembly import place_of
from validators import ToolCall


@dataclass(slots=True)
class Frame:
    """What the chunks of one stream have in common, for chunks of our own: `id`, `created`, `model`."""

    id: str = "chatcmpl-counterproof"
    created: int = 0
    model: str = ""

    def see(self, value: Mapping[str, Any]) -> None:
        """Takes what a chunk tells."""
        for name, kind in (("id", str), ("created", int), ("model", str)):
            if isinstance(told := value.get(name), kind):
                setattr(self, name, told)


def error_event(message: str) -> bytes:
    """The refusal as an error inside a stream."""
    error = {"message": message, "type": KIND, "param": None, "code": KIND}
    return b"data: " + dumps({"error": error}) + b"\n\n"


def message_events(frame: Frame, index: int, message: str, *, begun: bool, said: str, unsaid: str = "") -> bytes:
    """The refusal as a choice's text and its end.

    What was `said` before stays, what is still `unsaid` is said now; `begun`: the client knows of the choice.
    """
    role = {} if begun else {"role": "assistant"}
    content = unsaid + after(said + unsaid, message)[len(said) + len(unsaid) :]
    return chunk(frame, index, role | {"content": content}, None) + chunk(frame, index, {}, "stop")


def call_events(frame: Frame, index: int, calls: Sequence[ToolCall], *, begun: bool, unsaid: str = "") -> bytes:
    """Other calls as a choice's own, and its end."""
    first: dict[str, Any] = {} if begun else {"role": "assistant"}
    if unsaid:
        first["content"] = unsaid
    deltas = [{"index": i} | call for i, call in enumerate(as_calls(calls))]
    return chunk(frame, index, first | {"tool_calls": deltas}, None) + chunk(frame, index, {}, "tool_calls")


def as_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Calls as a message holds them."""
    return [
        {
            "id": call.id or f"chatcmpl-tool-{uuid4().hex}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments or "{}"},
        }
        for call in calls
    ]


def chunk(frame: Frame, index: int, delta: dict[str, Any], finish: str | None) -> bytes:
    """One chunk of a chat stream."""
    value = {
        "id": frame.id,
        "object": "chat.completion.chunk",
        "created": frame.created,
        "model": frame.model,
        "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
    return b"data: " + dumps(value) + b"\n\n"


def with_messages(body: bytes, messages: Mapping[int, tuple[str, list[dict[str, Any]]]]) -> bytes:
    """A whole answer with other messages at some positions in `choices`: a text, and calls in the API's shape.

    Everything else stays byte for byte.
    """
    choices = answers.read_object(body) or {}
    new: dict[int, bytes] = {}
    for place, (text, calls) in messages.items():
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = calls
        new[place] = dumps(
            {
                "index": place_of(choices["choices"][place].get("index")),
                "message": message,
                "logprobs": None,
                "finish_reason": "tool_calls" if calls else "stop",
                "stop_reason": None,
            }
        )
    return set_choices(body, new)
