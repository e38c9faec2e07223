"""Calls where no client should look for one, or spelled so that some do not see them."""

from collections.abc import Callable
from typing import Any

from tests.proxy.gates.messagesstreams_writing import Shelf, Writer, dumps

SHELF = Shelf()
leak = SHELF.add


# --- hidden -----------------------------------------------------------------------------------------------------------


def _hidden(kind: str, **members: Any) -> Callable[[Writer], None]:
    """An event with a call in it, after a text. `call` in it stands for the call's block."""

    def write(w: Writer) -> None:
        w.open()
        w.say("See: ")
        w.spoil()
        block = w.spoken([]).block | {"input": {w.marker(): w.marker()}}
        text = dumps({"type": kind} | members).replace(b'"CALL"', dumps(block))
        w.payload(text, kind)
        w.close()

    return write


for _name, _kind, _members in (
    ("an unknown event", "content_block_whole", {"content_block": "CALL", "index": 1}),
    ("an unknown event, deep down", "odd", {"a": [{"b": {"c": ["CALL"]}}]}),
    ("a ping", "ping", {"also": "CALL"}),
    ("the stop reason", "message_delta", {"delta": {"stop_reason": "end_turn", "content": ["CALL"]}}),
    ("the usage", "message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1, "x": "CALL"}}),
    ("the first usage", "message_start", {"message": {"id": "a", "content": [], "usage": {"x": "CALL"}}}),
    ("the end of a text's block", "content_block_stop", {"index": 0, "content_block": "CALL"}),
    ("a text's delta", "content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "", "and": "CALL"}}),
    (
        "beside a text's delta",
        "content_block_delta",
        {"index": 0, "delta": {"type": "text_delta", "text": ""}, "x": "CALL"},
    ),
    (
        "a text's block",
        "content_block_start",
        {"index": 1, "content_block": {"type": "text", "text": "", "more": ["CALL"]}},
    ),
    ("an error", "error", {"error": {"type": "api_error", "message": "m"}, "content": ["CALL"]}),
    ("the last event", "message_stop", {"message": {"content": ["CALL"]}}),
):
    SHELF.build(f"a call in {_name}", "hidden", "Some client may look there.", _hidden(_kind, **_members))


def _other(block: dict[str, Any]) -> Callable[[Writer], None]:
    """A content block of another kind."""

    def write(w: Writer) -> None:
        w.open()
        w.say("See: ")
        w.spoil()
        told = {"id": w.marker(), "name": w.marker(), "input": {w.marker(): 1}}
        w.event("content_block_start", content_block=told | block, index=w.index)
        w.end()
        w.close()

    return write


for _kind in (
    "server_tool_use",
    "mcp_tool_use",
    "TOOL_USE",
    "web_search_tool_result",
    "container_upload",
    "function_call",
):
    SHELF.build(f"a block of {_kind}", "other blocks", "Nothing that can be judged.", _other({"type": _kind}))


@leak("other blocks")
def a_text_with_a_call_in_its_other_fields(w: Writer) -> None:
    """By its type a text, by its members a call."""
    _other({"type": "text", "text": "x"})(w)


@leak("other blocks")
def a_delta_of_text_with_a_piece_in_it(w: Writer) -> None:
    """By its type a text, by its members a piece of a call."""
    one = w.spoken(1)
    w.open()
    w.begin(one)
    w.spoil()
    w.delta({"type": "text_delta", "text": "x", "partial_json": one.pieces[0]})
    w.close()


@leak("other blocks")
def chat_chunks_with_a_call(w: Writer) -> None:
    """Another dialect's event in the stream."""
    w.open()
    w.spoil()
    call = {"index": 0, "id": w.marker(), "function": {"name": w.marker(), "arguments": w.marker()}}
    w.payload(dumps({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}))
    w.close()


# --- spelling ---------------------------------------------------------------------------------------------------------


@leak("escapes")
def type_and_keys_written_with_escapes(w: Writer) -> None:
    r"""`tool\u005fuse` is the same to every JSON reader, and so are keys."""
    one = w.spoken(1)
    w.open()
    w.hold()
    block = dumps(one.block).replace(b"tool_use", rb"tool\u005fuse").replace(b'"name"', rb'"n\u0061me"')
    w.payload(b'{"type":"content\\u005fblock_start","cont\\u0065nt_block":%b,"index":0}' % block, "content_block_start")
    piece = dumps({"type": "input_json_delta", "partial_json": one.pieces[0]})
    w.payload(
        b'{"type":"content_block_delta","index":0,"delta":%b}' % piece.replace(b"json", rb"\u006a\u0073\u006F\u006e"),
        "content_block_delta",
    )
    w.end()
    w.calls.append(one.tool_call)
    w.close()


def _repeated(form: bytes) -> Callable[[Writer], None]:
    """An event that names a member twice; `CALL` in it stands for the call's block."""

    def write(w: Writer) -> None:
        w.open()
        w.spoil()
        one = w.spoken(1)
        w.payload(form.replace(b"CALL", dumps(one.block)), "content_block_start")
        w.piece(one.pieces[0])
        w.close()

    return write


_TEXT = b'{"type":"text","text":""}'
for _name, _form in {
    "the call last": b'{"type":"content_block_start","content_block":%b,"content_block":CALL,"index":0}' % _TEXT,
    "the call first": b'{"type":"content_block_start","content_block":CALL,"content_block":%b,"index":0}' % _TEXT,
    "the index": b'{"type":"content_block_start","index":1,"content_block":CALL,"index":0}',
    "the type": b'{"type":"ping","content_block":CALL,"index":0,"type":"content_block_start"}',
    "no object first": b'{"type":"content_block_start","content_block":7,"content_block":CALL,"index":0}',
}.items():
    SHELF.build(f"twice: {_name}", "repeated keys", "Some read the first, some the last.", _repeated(_form))


@leak("repeated keys")
def an_argument_twice(w: Writer) -> None:
    """The call's own matter: judged as it stands."""
    one = w.spoken([f'{{"{w.marker()}": 1, "a": 1, "a": 2}}'])
    w.open()
    w.hold()
    block = dumps(one.block).replace(b'"input":{}', b'"input":' + one.pieces[0].encode())
    w.payload(b'{"type":"content_block_start","content_block":%b,"index":0}' % block, "content_block_start")
    w.end()
    w.calls.append(one.tool_call)
    w.close()


# --- keys in another case: Go's and .NET's readers take them, protobuf's takes those without an underscore -----------


def _respelled(key: str, spelled: str) -> Callable[[Writer], None]:
    """A call with a key that is spelled otherwise in each of its events."""

    def write(w: Writer) -> None:
        w.open()
        w.say("See: ")
        w.spoil()
        one = w.spoken(1)
        delta = {"type": "input_json_delta", "partial_json": one.pieces[0]}
        for kind, members in (
            ("content_block_start", {"content_block": one.block, "index": w.index}),
            ("content_block_delta", {"index": w.index, "delta": delta}),
        ):
            payload = dumps({"type": kind} | members)
            w.payload(payload.replace(f'"{key}":'.encode(), f'"{spelled}":'.encode()), kind)
        w.end()
        w.close()

    return write


for _key, _spelled in (
    ("type", "Type"),
    ("content_block", "Content_Block"),
    ("content_block", "contentBlock"),
    ("delta", "DELTA"),
    ("index", "Index"),
    ("name", "Name"),
    ("input", "Input"),
    ("input", "\u0131nput"),
    ("partial_json", "Partial_Json"),
    ("partial_json", "partialJson"),
    ("partial_json", "part\u0131al_json"),
):
    _note = "Some readers take it for the same key."
    SHELF.build(f"{_spelled} for {_key}", "keys in another case", _note, _respelled(_key, _spelled))


def _in_a_text(event: str, member: str, **members: Any) -> Callable[[Writer], None]:
    """By the key as it should be a text, by another spelling of it a call."""

    def write(w: Writer) -> None:
        w.open()
        w.say("See: ")
        w.spoil()
        told = {name: {w.marker(): 1} if value is None else value for name, value in members.items()}
        w.event(event, index=w.index, **{member: {"type": "text", "text": ""} | told | {"Name": w.marker()}})
        w.close()

    return write


SHELF.build("another Type beside it", "keys in another case", "The last one counts to some.",
            _in_a_text("content_block_start", "content_block", Type="tool_use", Input=None))  # fmt: skip
SHELF.build("by its Name and Input", "keys in another case", "A call by its members.",
            _in_a_text("content_block_start", "content_block", Input=None))  # fmt: skip


@leak("keys in another case")
def another_piece_beside_it(w: Writer) -> None:
    """The last one counts to some."""
    one, other = w.spoken(1), w.spoken(1)
    w.open()
    w.begin(one)
    w.spoil()
    w.delta({"type": "input_json_delta", "partial_json": one.pieces[0], "Partial_Json": other.pieces[0]})
    w.close()


@leak("keys in another case")
def a_piece_in_a_text(w: Writer) -> None:
    """By its type a text, by another spelling of its members a piece of a call."""
    w.open()
    w.say("See: ")
    w.spoil()
    w.event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a", "Partial_Json": w.marker()})
    w.close()


def _unreadable(form: bytes) -> Callable[[Writer], None]:
    def write(w: Writer) -> None:
        w.open()
        w.say("See: ")
        w.spoil()
        w.payload(form.replace(b"CALL", dumps(w.spoken([]).block)), "content_block_start")
        w.close()

    return write


for _name, _form in {
    "html": b"<html>CALL</html>",
    "json that is cut": b'{"type":"content_block_start","index":1,"content_block":CALL',
    "two objects": b'{}{"type":"content_block_start","index":1,"content_block":CALL}',
    "a list": b"[CALL]",
    "NaN": b'{"type":"content_block_start","index":1,"content_block":CALL,"x":NaN}',
    "no utf-8": b'{"type":"content_block_start","index":1,"content_block":CALL,"x":"\xff"}',
    "half a pair": b'{"type":"content_block_start","index":1,"content_block":CALL,"x":"\\ud83d"}',
    "too deep": b'{"type":"content_block_start","index":1,"content_block":CALL,"x":%b%b}' % (b"[" * 900, b"]" * 900),
}.items():
    SHELF.build(f"no json object: {_name}", "unreadable", "Strict readers refuse it.", _unreadable(_form))
