"""Calls where not every reader looks for them, and events that not every reader can read."""

from collections.abc import Callable
from typing import Any

from tests.proxy.gates.responsesstreams_writing import Shelf, Writer, dumps

SHELF = Shelf()
leak = SHELF.add


# --- where no reader looks --------------------------------------------------------------------------------------------


def _spoiled(*events: Callable[[Writer], None]) -> Callable[[Writer], None]:
    """Text, then events that cannot be judged, then the rest of a quite usual answer."""

    def write(w: Writer) -> None:
        w.open()
        w.say("Let me see.")
        w.spoil()
        for event in events:
            event(w)
        w.say("And then.")
        w.close()

    return write


def _delta(**more: Any) -> Callable[[Writer], None]:
    return lambda w: w.event(
        "response.output_text.delta", item_id="msg_0", output_index=0, content_index=0, delta="x", logprobs=[],
        **{name: value(w) for name, value in more.items()},
    )  # fmt: skip


def _item(w: Writer) -> dict[str, Any]:
    return w.new_call()


def _function(w: Writer) -> list[dict[str, Any]]:
    return [{"id": w.marker(), "function": {"name": w.marker(), "arguments": f'{{"{w.marker()}":1}}'}}]


_MESSAGE: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
ELSEWHERE: dict[str, Callable[[Writer], None]] = {
    "in a text's delta": _delta(item=_item),
    "in a text's delta, as chat has it": _delta(tool_calls=_function),
    "in a chat chunk": lambda w: w.payload(dumps({"choices": [{"index": 0, "delta": {"tool_calls": _function(w)}}]})),
    "in an event of another API": lambda w: w.event(
        "content_block_start", index=0, content_block={"type": "tool_use", "name": w.marker(), "input": {w.marker(): 1}}
    ),
    "in pieces of another API": lambda w: w.event(
        "content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": w.marker()}
    ),
    "in an unknown event": lambda w: w.event("response.something.new", item=_item(w)),
    "as text in an unknown event": lambda w: w.event("response.something.delta", delta=w.marker()),
    "in an event without a type": lambda w: w.payload(dumps({"output_index": 0, "item": _item(w)})),
    "in a message": lambda w: w.event(
        "response.output_item.done", output_index=1, item=_MESSAGE | {"content": [], "tool_calls": _function(w)}
    ),
    "in a message's content": lambda w: w.event(
        "response.output_item.done", output_index=1, item=_MESSAGE | {"content": [_item(w)]}
    ),
    "in a content part": lambda w: w.event(
        "response.content_part.added", item_id="msg_0", output_index=0, content_index=1, part=_item(w)
    ),
    "in an annotation": lambda w: w.event(
        "response.output_text.annotation.added", item_id="msg_0", output_index=0, content_index=0, annotation_index=0,
        annotation=_item(w),
    ),
    "in a response that goes on": lambda w: w.event("response.in_progress", response=w.response(output=[_item(w)])),
    "in an error": lambda w: w.event("error", code="x", message="no", param=None, item=_item(w)),
    "in a call's own object": lambda w: w.event(
        "response.output_item.done", output_index=1, item=_item(w) | {"function": {"name": w.marker()}}
    ),
    "with arguments within": lambda w: w.event(
        "response.output_item.done", output_index=1, item=_item(w) | {"more": {"arguments": {w.marker(): 1}}}
    ),
    "in an item that is a list": lambda w: w.event("response.output_item.done", output_index=1, item=[_item(w)]),
}  # fmt: skip
for _name, _write in ELSEWHERE.items():
    SHELF.build(f"a call {_name}", "other places", _spoiled(_write))


def _item_of(kind: str, **members: Any) -> Callable[[Writer], None]:
    def write(w: Writer) -> None:
        item = {"id": w.marker(), "type": kind} | {k: v(w) for k, v in members.items()}
        w.begin(item)
        w.finish(len(w.items) - 1)

    return write


OTHER_KINDS = {
    "a web search": _item_of("web_search_call", action=lambda w: {"type": "search", "query": w.marker()}),
    "a call of an mcp server": _item_of(
        "mcp_call", name=Writer.marker, arguments=Writer.marker, server_label=Writer.marker
    ),
    "a question for approval": _item_of("mcp_approval_request", name=Writer.marker, arguments=Writer.marker),
    "code for an interpreter": _item_of("code_interpreter_call", code=Writer.marker, container_id=lambda _: "auto"),
    "a command for a shell": _item_of("local_shell_call", action=lambda w: {"type": "exec", "command": [w.marker()]}),
    "a kind that is unknown": _item_of("deed", what=Writer.marker),
}
for _name, _write in OTHER_KINDS.items():
    SHELF.build(_name, "other kinds", _spoiled(_write))


@leak("other kinds")
def pieces_of_an_mcp_call(w: Writer) -> None:
    w.open()
    w.spoil()
    w.event("response.mcp_call.in_progress", item_id=w.marker(), output_index=0)
    w.event("response.mcp_call_arguments.delta", item_id="x", output_index=0, delta=w.marker())
    w.close()


# --- spelling ---------------------------------------------------------------------------------------------------------


def _raw_item(form: bytes) -> Callable[[Writer], None]:
    """An event whose payload is written by hand: one call item in it."""
    return lambda w: w.payload(form % dumps(_item(w)))


@leak("escapes")
def every_word_with_escapes(w: Writer) -> None:
    w.open()
    w.held()
    item = w.new_call()
    w.calls = [w.tool_call(item)]
    text = dumps(item).replace(b"function_call", rb"function\u005fcall").replace(b'"arguments"', rb'"\u0061rguments"')
    w.payload(rb'{"\u0074ype":"response.output\u005fitem.done","output_index":0,"\u0069tem":%b}' % text)
    w.items.append(item)
    w.close()


@leak("escapes")
def a_call_in_text_with_escapes(w: Writer) -> None:
    w.open()
    w.say("See.")
    w.spoil()
    kind = rb"\u0066unction\u005fcall"
    text = dumps(_item(w)).replace(b"function_call", kind)
    w.payload(
        rb'{"type":"response.output_text.delta","item_id":"msg_0","output_index":0,"delta":"x","it\u0065m":%b}' % text
    )
    w.close()


SPELLED = {
    "type, the call last": b'{"type":"response.output_text.delta","type":"response.output_item.done","item":%b}',
    "type, the call first": b'{"type":"response.output_item.done","item":%b,"type":"response.output_text.delta"}',
    "item": b'{"type":"response.output_item.done","item":%b,"item":{"type":"message","content":[]}}',
    "type in other letters": b'{"type":"response.output_text.delta","Type":"response.output_item.done","Item":%b}',
    "call's type": b'{"type":"response.output_item.done","item":{"type":"message","was":%b,"type":"message"}}',
    "response": b'{"type":"response.completed","response":{"output":[%b]},"response":{"output":[]}}',
    "output": b'{"type":"response.completed","response":{"output":[%b],"output":[]}}',
}
for _name, _form in SPELLED.items():
    SHELF.build(f"twice {_name}", "repeated keys", _spoiled(_raw_item(_form)))


def _approval_by_its_first_type(w: Writer) -> None:
    form = b'{"type":"response.output_item.done","item":{"type":"mcp_approval_request","id":"%b"},%b}'
    w.payload(form % (w.marker().encode(), b'"type":"response.output_text.delta","delta":"x"'))


SHELF.build("twice type, without a word of calls", "repeated keys", _spoiled(_approval_by_its_first_type))


# --- keys in another case: Go's and .NET's readers take them, protobuf's takes those without an underscore -----------


def _respelled(key: str, spelled: str) -> Callable[[Writer], None]:
    """A call with a key that is spelled otherwise in each of its events."""

    def write(w: Writer) -> None:
        w.open()
        w.say("Let me see.")
        w.spoil()
        before = len(w.out)
        w.call()
        w.out[before:] = [event.replace(f'"{key}":'.encode(), f'"{spelled}":'.encode()) for event in w.out[before:]]
        w.say("And then.")
        w.close()

    return write


for _key, _spelled in (
    ("type", "Type"),
    ("item", "Item"),
    ("item_id", "Item_Id"),
    ("item_id", "itemId"),
    ("output_index", "Output_Index"),
    ("name", "Name"),
    ("call_id", "Call_ID"),
    ("call_id", "callId"),
    ("arguments", "Arguments"),
    ("arguments", "argument\u017f"),
    ("delta", "Delta"),
):
    SHELF.build(f"{_spelled} for {_key}", "keys in another case", _respelled(_key, _spelled))

BESIDE = {
    "another Item": b'{"type":"response.output_item.done","output_index":1,"item":%b,"Item":{"type":"message"}}',
    "another Type": b'{"type":"response.output_item.done","Type":"response.output_text.delta","item":%b}',
}
for _name, _form in BESIDE.items():
    SHELF.build(f"{_name} beside it", "keys in another case", _spoiled(_raw_item(_form)))


UNREADABLE: dict[str, Callable[[Writer], None]] = {
    "html": lambda w: w.raw(b"data: <html>%b</html>\n\n" % w.marker().encode()),
    "a list": lambda w: w.payload(b"[%b]" % dumps(_item(w))),
    "json that is cut": lambda w: w.payload(dumps({"type": "response.output_item.done", "item": _item(w)})[:-1]),
    "two objects": lambda w: w.payload(b"{}%b" % dumps({"type": "response.output_item.done", "item": _item(w)})),
    "NaN": _raw_item(b'{"type":"response.output_item.done","output_index":NaN,"item":%b}'),
    "no utf-8": _raw_item(b'{"type":"response.output_item.done","x":"\xff","item":%b}'),
}
for _name, _write in UNREADABLE.items():
    SHELF.build(f"no json object: {_name}", "unreadable", _spoiled(_write))


# --- smuggled lines --------------------------------------------------------------------------------------------------

FRAMED: dict[str, bytes] = {
    "in a second data line": b'data: {"type":"keepalive"}\ndata: %b\n\n',
    "in two data lines": b"event: response.output_item.done\ndata: %b\ndata:\n\n",
    "under another event's name": b"event: response.output_text.delta\ndata: %b\n\n",
    "in a comment": b": %b\n\n",
    "in a line of its own": b"%b\n\n",
    "in an indented data line": b" data: %b\n\n",
    "in an id": b'id: %b\ndata: {"type":"keepalive"}\n\n',
    "after a lone cr": b'data: {"type":"keepalive"}\rdata: %b\n\n',
}
for _name, _form in FRAMED.items():

    def _framed(w: Writer, form: bytes = _form) -> None:
        w.raw(form % dumps({"type": "response.output_item.done", "output_index": 1, "item": _item(w)}))

    SHELF.build(f"a call {_name}", "smuggled lines", _spoiled(_framed))


@leak("smuggled lines")
def a_text_under_a_call_s_name(w: Writer) -> None:
    w.open()
    w.spoil()
    w.raw(b'event: response.function_call_arguments.delta\ndata: {"type":"response.output_text.delta","delta":"%b"}\n\n'
          % w.marker().encode())  # fmt: skip
    w.close()
