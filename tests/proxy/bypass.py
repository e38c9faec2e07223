"""What the bypass suite is made of: a call that must not get out, an attempt to get it, and what a client could read.

An attempt is what a client writes on one connection, and what the model server answers to whatever reaches it. The
client reads until the proxy closes; `leaked` looks at all of that as any reader might.
"""

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from proxy.switch import Mode
from tests.proxy.rawhttp import Message, fed
from tests.proxy.rawstage import Answer

TOOL = "QXZK_JVWG"
ARGUMENTS = '{"ZKJV": "WQGX ZZQV"}'
ID = "GVJX-KQZW"
PATHS = {"chat": b"/v1/chat/completions", "messages": b"/v1/messages", "responses": b"/v1/responses"}

_SECRET = re.compile(b"[QXZKJVWG]{4}")  # no other text of the suite has four of these in a row
_NAMED = re.compile(rb"The call of QXZK_JVWG (?=was refused|needs a person)")  # a refusal says what it refuses
_ESCAPE = re.compile(rb"\\+u00([0-9a-fA-F]{2})")


@dataclass(frozen=True)
class Attempt:
    """One way around. `reaches`: how many of its requests the model server sees; `statuses`: what the client gets.

    `says` stands in what the client gets, `modes` are settings of the switch (mode, model) that hold for it.
    """

    kind: str
    name: str
    pieces: tuple[bytes, ...]
    answer: Answer
    statuses: tuple[int, ...]
    says: bytes
    reaches: int = 1
    modes: tuple[tuple[Mode, str | None], ...] = ()


# --- what the model server calls --------------------------------------------------------------------------------------


def dumps(value: Any) -> bytes:
    """JSON as the server writes it."""
    return json.dumps(value, separators=(",", ":")).encode()


def chat_call(**others: Any) -> dict[str, Any]:
    """A call as chat has it."""
    return {"index": 0, "id": ID, "type": "function", "function": {"name": TOOL, "arguments": ARGUMENTS}} | others


def chat_message(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    """A whole chat answer with one choice."""
    only = {"index": 0, "message": {"role": "assistant", "content": None} | message, "finish_reason": "tool_calls"}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [only | choice]}


def chat_chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **choice: Any) -> dict[str, Any]:
    """A chunk of a chat stream with one choice."""
    only = {"index": 0, "delta": delta or {}, "finish_reason": finish} | choice
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [only]}


def messages_answer(*blocks: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A whole answer of the Messages API."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    told = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use"}
    return told | {"content": list(blocks), "stop_sequence": None, "usage": usage} | others


def responses_answer(*items: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A whole answer of the Responses API."""
    told = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "tools": []}
    return told | {"output": list(items), "parallel_tool_calls": True, "tool_choice": "auto"} | others


TOOL_USE = {"type": "tool_use", "id": ID, "name": TOOL, "input": json.loads(ARGUMENTS)}
FUNCTION_CALL = {
    "type": "function_call", "id": "fc_1", "call_id": ID, "name": TOOL, "arguments": ARGUMENTS, "status": "completed",
}  # fmt: skip
WHOLE = {
    "chat": dumps(chat_message({"tool_calls": [chat_call()]})),
    "messages": dumps(messages_answer(TOOL_USE)),
    "responses": dumps(responses_answer(FUNCTION_CALL)),
}


def event(value: Any, end: bytes = b"\n") -> bytes:
    """One event of a stream, with its name where it tells its type."""
    name = b"event: %b" % value["type"].encode() + end if isinstance(value, dict) and "type" in value else b""
    return name + b"data: " + (value if isinstance(value, bytes) else dumps(value)) + 2 * end


def events(*values: Any, end: bytes = b"\n") -> bytes:
    """A stream's events."""
    return b"".join(event(value, end) for value in values)


DONE = b"[DONE]"
ROLE = chat_chunk({"role": "assistant", "content": ""})
CALL = chat_chunk({"tool_calls": [chat_call()]})
FINISH = chat_chunk(finish="tool_calls")
_BLOCK = TOOL_USE | {"input": {}}
_ADDED = FUNCTION_CALL | {"arguments": "", "status": "in_progress"}
STREAM = {
    "chat": events(ROLE, CALL, FINISH, DONE),
    "messages": events(
        {"type": "message_start", "message": messages_answer(stop_reason=None)},
        {"type": "content_block_start", "index": 0, "content_block": _BLOCK},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": ARGUMENTS}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {}},
        {"type": "message_stop"},
    ),
    "responses": events(
        {"type": "response.created", "sequence_number": 0, "response": responses_answer(status="in_progress")},
        {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": _ADDED},
        {"type": "response.function_call_arguments.delta", "sequence_number": 2, "output_index": 0,
         "item_id": "fc_1", "delta": ARGUMENTS},
        {"type": "response.function_call_arguments.done", "sequence_number": 3, "output_index": 0,
         "item_id": "fc_1", "name": TOOL, "arguments": ARGUMENTS},
        {"type": "response.output_item.done", "sequence_number": 4, "output_index": 0, "item": FUNCTION_CALL},
        {"type": "response.completed", "sequence_number": 5, "response": responses_answer(FUNCTION_CALL)},
    ),
}  # fmt: skip


# --- on the wire ------------------------------------------------------------------------------------------------------


def answered(
    body: bytes, kind: bytes | None = b"application/json", *lines: bytes, start: bytes = b"HTTP/1.1 200 OK"
) -> Answer:
    """An answer with a length; `kind` is its content type, None for none."""
    head = [start, b"Content-Length: %d" % len(body), *lines]
    if kind is not None:
        head.append(b"Content-Type: " + kind)
    return Answer((b"\r\n".join([*head, b"", b""]) + body,))


def streamed(body: bytes, *lines: bytes, kind: bytes = b"text/event-stream; charset=utf-8") -> Answer:
    """A stream."""
    return answered(body, kind, *lines)


def head(start: bytes, *lines: bytes, last: bool = True) -> bytes:
    """A request's head; after the `last` one the proxy closes."""
    close = [b"Connection: close"] if last else []
    return b"\r\n".join([start + b" HTTP/1.1", b"Host: a", *lines, *close, b"", b""])


def get(target: bytes, *lines: bytes, method: bytes = b"GET") -> bytes:
    """A request without a body."""
    return head(method + b" " + target, *lines)


def post(
    target: bytes,
    body: bytes | None = None,
    *lines: bytes,
    method: bytes = b"POST",
    kind: bytes | None = b"application/json",
    last: bool = True,
) -> bytes:
    """A request with a body, a chat request unless another is given."""
    body = asked("chat") if body is None else body
    typed = [b"Content-Type: " + kind] if kind is not None else []
    return head(method + b" " + target, b"Content-Length: %d" % len(body), *typed, *lines, last=last) + body


def asked(dialect: str, **others: Any) -> bytes:
    """A request's body that offers the tool."""
    schema = {"type": "object"}
    turn = [{"role": "user", "content": "hello"}]
    body: dict[str, Any] = {"model": "m", "messages": turn}
    match dialect:
        case "chat":
            body["tools"] = [{"type": "function", "function": {"name": TOOL, "parameters": schema}}]
        case "messages":
            body |= {"max_tokens": 9, "tools": [{"name": TOOL, "input_schema": schema}]}
        case "responses":
            body = {"model": "m", "input": turn, "tools": [{"type": "function", "name": TOOL, "parameters": schema}]}
    return dumps(body | others)


# --- what a client could read -----------------------------------------------------------------------------------------


def leaked(wire: bytes) -> bytes | None:
    """What of the call stands in some bytes, however they are read; None for nothing. Refusals may name the tool."""
    for view in _views(wire):
        if found := _SECRET.search(_NAMED.sub(b"", view)):
            return found.group()
    return None


def _views(wire: bytes) -> Iterator[bytes]:
    """The bytes as they are, and as they are in other characters, without JSON's escapes, and unpacked."""
    yield wire
    yield wire.replace(b"\0", b"")
    yield _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), wire)
    for found in re.finditer(rb"\x1f\x8b\x08", wire):
        yield zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(wire[found.start() :])


async def answers_in(wire: bytes, method: bytes) -> list[Message]:
    """The answers that a client makes of some bytes.

    Raises:
        BrokenError: they are not whole answers and nothing more.
    """
    source, found = fed(wire), list[Message]()
    await source.more()
    while source.buffer:
        found.append(await source.response(method))
    return found
