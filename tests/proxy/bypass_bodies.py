"""Where a call could stand in an answer, so that one reader finds it and another does not: bodies of every dialect.

Each is told with what the client gets in its place.
"""

import json
from collections.abc import Iterator
from typing import Any

from tests.proxy.bypass import (
    ARGUMENTS,
    CALL,
    DONE,
    FINISH,
    FUNCTION_CALL,
    ID,
    ROLE,
    STREAM,
    TOOL,
    TOOL_USE,
    WHOLE,
    chat_call,
    chat_chunk,
    chat_message,
    dumps,
    event,
    events,
    messages_answer,
    responses_answer,
)

LARGE = json.dumps({"ZKJV": "QXZKJVWG" * 40_000})
TEXT = chat_chunk({"content": "hello"})

_PREFIX = b"[counterproof]"
_SAID = b"[counterproof] The "
_REFUSED = b"[counterproof] The call of QXZK_JVWG "
_UNREAD = b"could not be checked for tool calls"
OURS = b'"code":"tool_call_refused"'
"""An error in the answer's place."""


def _escaped(text: bytes, key: bytes) -> bytes:
    """The key with its first letter as an escape."""
    return text.replace(b'"%b"' % key, b'"\\u%04x%b"' % (key[0], key[1:]))


def _chat_places() -> Iterator[tuple[str, bytes, bytes]]:
    """A stream's call in other places than its own, each with what the client is told."""
    calls = {"tool_calls": [chat_call()]}
    other, ended = chat_chunk(calls, index=1), chat_chunk(finish="stop")
    legacy = chat_chunk({"function_call": chat_call()["function"]})
    yield "another choice", events(ROLE, TEXT, other, FINISH, DONE), _REFUSED
    both = ROLE | {"choices": [*TEXT["choices"], *other["choices"]]}
    yield "another choice of one event", events(ROLE, both, FINISH, DONE), _REFUSED
    yield "beside text", events(ROLE, chat_chunk({"content": "hello"} | calls), FINISH, DONE), _REFUSED
    yield "with the end", events(ROLE, chat_chunk(calls, "tool_calls"), DONE), _REFUSED
    yield "after the end", events(ROLE, TEXT, ended, CALL, DONE), b"hello"
    yield "after [DONE]", events(ROLE, TEXT, ended, DONE, CALL), b"[DONE]"
    yield "the end is not told", events(ROLE, CALL), _REFUSED
    yield "as a whole message", events(ROLE, chat_chunk(message=calls), FINISH, DONE), _UNREAD
    yield "as function_call", events(ROLE, legacy, FINISH, DONE), _REFUSED
    yield "in an unknown member", events(ROLE, TEXT | {"x": CALL["choices"]}, FINISH, DONE), _UNREAD
    yield "in usage", events(ROLE, TEXT, FINISH, {"choices": [], "usage": calls}, DONE), b"[DONE]"
    yield "in an error", events(ROLE, TEXT, {"error": {"message": "x"} | calls}, DONE), _UNREAD
    yield "in a list of lists", events(ROLE, ROLE | {"choices": [CALL["choices"]]}, DONE), _UNREAD
    for index in ("0", -1, 0.0, None, True):
        yield f"the choice {index!r}", events(ROLE, chat_chunk(calls, index=index), FINISH, DONE), _SAID
    second = chat_chunk({"tool_calls": [chat_call(index=1)]})
    yield "two calls", events(ROLE, CALL, second, FINISH, DONE), _REFUSED
    pieces = [chat_call(function={"name": TOOL, "arguments": ""}), {"index": 0, "function": {"arguments": LARGE}}]
    chunks = [chat_chunk({"tool_calls": [piece]}) for piece in pieces]
    yield "in a huge piece", events(ROLE, *chunks, FINISH, DONE), _REFUSED
    for name, function in {
        "arguments as an object": {"name": TOOL, "arguments": {"ZKJV": ID}},
        "no name": {"arguments": ARGUMENTS},
        "no arguments": {"name": TOOL},
    }.items():
        odd = chat_chunk({"tool_calls": [chat_call(function=function)]})
        yield name, events(ROLE, odd, FINISH, DONE), _SAID


def _chat_lines() -> Iterator[tuple[str, bytes, bytes]]:
    """A stream's call in lines that some readers take otherwise."""
    first, call, after = event(ROLE), dumps(CALL), events(FINISH, DONE)
    yield "in an unknown event", first + b"event: odd\n" + event(CALL) + after, _REFUSED
    yield "under an id", first + b"id: 1\n" + event(CALL) + after, _REFUSED
    yield "in a comment", first + b": data: " + call + b"\n\n" + event(TEXT) + after, _UNREAD
    yield "in another field", first + b"id: " + call + b"\n\n" + event(TEXT) + after, _UNREAD
    yield "a second data line", first + event(TEXT)[:-1] + event(CALL) + after, _UNREAD
    half = call.index(b",") + 1
    yield "over two data lines", first + b"data: " + call[:half] + b"\ndata: " + call[half:] + b"\n\n", _UNREAD
    yield "behind a CR", first + event(TEXT)[:-2] + b"\r" + event(CALL) + after, _UNREAD
    for name, end in {"CR": b"\r", "CRLF": b"\r\n"}.items():
        yield f"lines end in {name}", events(ROLE, CALL, FINISH, DONE, end=end), _SAID
    yield "a byte order mark", b"\xef\xbb\xbf" + events(CALL, FINISH, DONE), _SAID
    yield "no space", STREAM["chat"].replace(b"data: ", b"data:"), _REFUSED
    yield "two spaces", STREAM["chat"].replace(b"data: ", b"data:  "), _REFUSED
    yield "data in capitals", STREAM["chat"].replace(b"data: ", b"DATA: "), _UNREAD
    before = events(ROLE, TEXT)
    yield "the last line does not end", before + event(CALL)[:-1], _REFUSED
    yield "the last line does not end at all", before + event(CALL)[:-2], _REFUSED
    yield "the last line breaks off", before + event(CALL)[:-6], _PREFIX


def _chat_keys() -> Iterator[tuple[str, bytes, bytes]]:
    """A stream's call behind keys that are spelled otherwise, or stand twice."""
    first, call, after = event(ROLE), dumps(CALL), events(FINISH, DONE)
    for key in (b"tool_calls", b"choices", b"delta", b"function", b"arguments"):
        yield f"{key.decode()} with an escape", first + event(_escaped(call, key)) + after, _SAID
    calls = dumps([chat_call()])
    delta = b'{"tool_calls":%b}' % calls
    choices = b'[{"index":0,"delta":%b}]' % delta
    for name, spelled in {
        "choices twice, the first": b'{"choices":%b,"choices":[]}' % choices,
        "choices twice, the last": b'{"choices":[],"choices":%b}' % choices,
        "delta twice, the first": b'{"choices":[{"index":0,"delta":%b,"delta":{}}]}' % delta,
        "delta twice, the last": b'{"choices":[{"index":0,"delta":{},"delta":%b}]}' % delta,
        "tool_calls twice, the first": b'{"choices":[{"index":0,"delta":{"tool_calls":%b,"tool_calls":[]}}]}' % calls,
        "tool_calls twice, the last": b'{"choices":[{"index":0,"delta":{"tool_calls":[],"tool_calls":%b}}]}' % calls,
    }.items():
        yield name, first + event(spelled) + after, _UNREAD


def chat_streams() -> Iterator[tuple[str, bytes, bytes]]:
    """Streams of chat: name, body, and what is said."""
    yield from _chat_places()
    yield from _chat_lines()
    yield from _chat_keys()


def chat_wholes() -> Iterator[tuple[str, bytes, bytes]]:
    """Chat answers that do not stream: name, body, and what is said."""
    call = {"tool_calls": [chat_call()]}
    whole, text = chat_message(call), chat_message({"content": "hello"}, finish_reason="stop")
    second = {"index": 1, "message": {"role": "assistant", "content": None} | call, "finish_reason": "stop"}
    yield "another choice", dumps(text | {"choices": [*text["choices"], second]}), _REFUSED
    yield (
        "two choices of one index",
        dumps(text | {"choices": [*text["choices"], second | {"index": 0}]}),
        OURS,
    )
    yield "beside text", dumps(chat_message(call | {"content": "hello"})), _REFUSED
    yield "a stop", dumps(chat_message(call, finish_reason="stop")), _REFUSED
    yield "as function_call", dumps(chat_message({"function_call": chat_call()["function"]})), _REFUSED
    yield "in an unknown member", dumps(text | {"x": [chat_message(call)]}), OURS
    yield "in usage", dumps(text | {"usage": call}), OURS
    yield "in an error", dumps({"error": call}), OURS
    yield "as a delta", dumps(text | {"choices": [{"index": 0, "delta": call}]}), OURS
    yield "beside choices", dumps(text | call), OURS
    raw = dumps(whole)
    for key in (b"tool_calls", b"message", b"choices", b"function"):
        yield f"{key.decode()} with an escape", _escaped(raw, key), _PREFIX
    yield "message twice, the last", raw.replace(b'"message":', b'"message":{},"message":', 1), OURS
    yield (
        "message twice, the first",
        raw.replace(b',"finish_reason"', b',"message":{"content":"x"},"finish_reason"', 1),
        OURS,
    )
    yield "tool_calls twice", raw.replace(b'"tool_calls":', b'"tool_calls":[],"tool_calls":', 1), OURS
    yield "choices twice", raw[:-1] + b',"choices":[]}', OURS
    yield "two answers", dumps(text) + raw, OURS
    yield "behind white space", b" \n\t" * 1000 + raw, _REFUSED
    yield "before NUL", raw + b"\0", OURS
    yield "in a list", b"[" + raw + b"]", OURS
    yield (
        "huge",
        dumps(chat_message({"tool_calls": [chat_call(function={"name": TOOL, "arguments": LARGE})]})),
        _REFUSED,
    )


# --- keys in another case ---------------------------------------------------------------------------------------------

LONG_S, NO_DOT = "\u017f", "\u0131"  # folded, these are an s and an i
_RESPELLED = {
    "chat": {
        "tool_calls": ("Tool_calls", "TOOL_CALLS", "toolCalls", f"tool_call{LONG_S}"),
        "function": ("Function", f"funct{NO_DOT}on"),
        "arguments": ("Arguments",),
        "name": ("Name",),
        "choices": ("Choices",),
        "delta": ("Delta",),
        "message": ("Message",),
    },
    "messages": {
        "type": ("Type",),
        "name": ("Name",),
        "input": ("Input", f"{NO_DOT}nput"),
        "content": ("Content",),
        "content_block": ("Content_Block", "contentBlock"),
        "delta": ("Delta",),
        "partial_json": ("Partial_Json", f"part{NO_DOT}al_json"),
    },
    "responses": {
        "type": ("Type",),
        "name": ("NAME",),
        "call_id": ("Call_Id", "callId"),
        "arguments": ("Arguments", f"argument{LONG_S}"),
        "delta": ("Delta",),
        "item": ("Item",),
        "output": ("Output",),
        "response": ("Response",),
    },
}


def in_another_case(bodies: dict[str, bytes]) -> Iterator[tuple[str, str, bytes]]:
    """Answers with a key that only some readers take: dialect, name, body. Nothing of them is a text."""
    for dialect, keys in _RESPELLED.items():
        for key, spellings in keys.items():
            for spelled in spellings:
                body = bodies[dialect].replace(b'"%b":' % key.encode(), b'"%b":' % spelled.encode())
                if body != bodies[dialect]:
                    yield dialect, f"{spelled} for {key}", body
    older = dumps({"Function_Call": chat_call()["function"]})
    yield "chat", "Function_Call", bodies["chat"].replace(b'"tool_calls":%b' % dumps([chat_call()]), older[1:-1])
    text = b'{"type":"text","text":"hello","Type":"tool_use","Name":"%b","Input":{}}' % TOOL.encode()
    for block in (TOOL_USE, TOOL_USE | {"input": {}}):
        if dumps(block) in bodies["messages"]:
            yield "messages", "a text whose Type is another", bodies["messages"].replace(dumps(block), text)
    beside = b'"arguments":%b,"Arguments":' % dumps(ARGUMENTS)
    for dialect in ("chat", "responses"):
        yield dialect, "arguments and Arguments", bodies[dialect].replace(b'"arguments":', beside)
    other = b'"name":"look","Name":'
    for dialect, body in bodies.items():
        yield dialect, "name and Name", body.replace(b'"name":', other)


# --- in the other dialects --------------------------------------------------------------------------------------------


def other_streams() -> Iterator[tuple[str, str, bytes, bytes]]:
    """Streams of messages and responses: dialect, name, body, and what is said."""
    for dialect in ("messages", "responses"):
        for name, body, says in (*_other_lines(STREAM[dialect]), *_other_places(STREAM[dialect])):
            yield dialect, name, body, says
    yield "responses", "only at the end", events(_completed(FUNCTION_CALL)), _PREFIX
    odd: dict[str, dict[str, Any]] = {
        "custom": {"type": "custom_tool_call", "id": "c", "call_id": ID, "name": TOOL, "input": ARGUMENTS},
        "mcp": FUNCTION_CALL | {"type": "mcp_call"},
        "shell": {"type": "shell_call", "action": {"commands": [ID]}},
    }
    for name, item in odd.items():
        added = {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": item}
        yield "responses", f"a {name} call", events(added, _completed(item)), _PREFIX
    for kind in (b"server_tool_use", b"mcp_tool_use"):
        body = STREAM["messages"].replace(b'"tool_use","id"', b'"%b","id"' % kind)
        yield "messages", kind.decode(), body, _PREFIX


def _completed(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.completed", "sequence_number": 2, "response": responses_answer(item)}


def _other_lines(stream: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """A stream in lines, and with keys, that some readers take otherwise."""
    yield "other event names", stream.replace(b"event: ", b"event: x"), _PREFIX
    yield "lines end in CR", stream.replace(b"\n", b"\r"), _SAID
    yield "lines end in CRLF", stream.replace(b"\n", b"\r\n"), _REFUSED
    yield "no space", stream.replace(b"data: ", b"data:"), _REFUSED
    yield "a byte order mark", b"\xef\xbb\xbf" + stream, _SAID
    yield "in a comment", stream.replace(b"data: ", b": "), _PREFIX
    yield "a second data line", stream.replace(b"\ndata: ", b'\ndata: {"type":"ping"}\ndata: '), _PREFIX
    yield "type with an escape", _escaped(stream, b"type"), _PREFIX
    yield "type twice", stream.replace(b'"type":', b'"type":"ping","type":'), _PREFIX
    escaped = stream.replace(b"tool_use", b"tool\\u005fuse").replace(b"function_call", b"function\\u005fcall")
    yield "kinds with an escape", escaped, _PREFIX


def _other_places(stream: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """A call in another place of a stream than its own, or with some of its events missing."""
    blocks = [block + b"\n\n" for block in stream.split(b"\n\n")[:-1]]
    begun = b"".join(blocks[:3])
    ended = blocks[-1].replace(dumps(FUNCTION_CALL), b"")
    call: dict[str, Any] = {"error": TOOL_USE, "block": TOOL_USE, "item": FUNCTION_CALL}
    yield "no event names", b"".join(block.partition(b"\n")[2] for block in blocks), _REFUSED
    yield "the call's beginning is missing", blocks[0] + b"".join(blocks[2:]), _PREFIX
    yield "the answer's beginning is missing", b"".join(blocks[1:]), _PREFIX
    yield "it breaks off in the call", begun, _SAID
    yield "the last line does not end", begun[:-2], _SAID
    yield "twice over", stream + stream, _PREFIX
    yield "after its end", blocks[0] + ended + b"".join(blocks[1:]), ended.strip()
    yield "in an error", blocks[0] + event({"type": "error"} | call), _PREFIX
    yield "in an unknown event", blocks[0] + event({"type": "odd"} | call), _PREFIX
    yield "as chat has it", blocks[0] + events(CALL, FINISH, DONE), _PREFIX


def other_wholes() -> Iterator[tuple[str, str, bytes, bytes]]:
    """Answers of messages and responses that do not stream: dialect, name, body, and what is said."""
    said = {"type": "text", "text": "hello"}
    yield "messages", "beside text", dumps(messages_answer(said, TOOL_USE)), _REFUSED
    yield "messages", "its end is told otherwise", dumps(messages_answer(TOOL_USE, stop_reason="end_turn")), _REFUSED
    yield "messages", "in an unknown block", dumps(messages_answer({"type": "odd", "x": [TOOL_USE]})), OURS
    yield "messages", "in a text block", dumps(messages_answer(said | {"x": TOOL_USE})), OURS
    yield "messages", "beside content", dumps(messages_answer(said, x=[TOOL_USE])), OURS
    yield "messages", "a server's tool", dumps(messages_answer(TOOL_USE | {"type": "server_tool_use"})), OURS
    yield "messages", "as chat has it", WHOLE["chat"], OURS
    message = {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "hello", "annotations": []}],
    }
    yield "responses", "beside text", dumps(responses_answer(message, FUNCTION_CALL)), _REFUSED
    yield "responses", "incomplete", dumps(responses_answer(FUNCTION_CALL, status="incomplete")), _REFUSED
    yield "responses", "in a message", dumps(responses_answer(message | {"content": [FUNCTION_CALL]})), OURS
    yield "responses", "beside output", dumps(responses_answer(message, x=[FUNCTION_CALL])), OURS
    yield "responses", "an mcp call", dumps(responses_answer(FUNCTION_CALL | {"type": "mcp_call"})), OURS
    yield "responses", "as chat has it", WHOLE["chat"], OURS
    for dialect, member in {"messages": b"content", "responses": b"output"}.items():
        raw = WHOLE[dialect]
        yield (
            dialect,
            "its list twice, the last",
            raw.replace(b'"%b":' % member, b'"%b":[],"%b":' % (member, member), 1),
            OURS,
        )
        yield dialect, "its list twice, the first", raw[:-1] + b',"%b":[]}' % member, OURS
        yield dialect, "with an escape", _escaped(raw, member), _PREFIX
        yield dialect, "type with an escape", _escaped(raw, b"type"), _PREFIX
        yield dialect, "in a list", b"[" + raw + b"]", OURS
