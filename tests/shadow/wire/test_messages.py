import contextlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow.exchange import Answer
from shadow.wire import messages, sse
from shadow.wire.messages import Kind, Reader
from shadow.wire.messages_look import framing, may_hold_call
from validators import ToolCall

RECORDED = Path(__file__).parents[2] / "proxy" / "gates" / "data" / "messages"
START = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [],
    "model": "m",
    "usage": {"input_tokens": 9},
}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}


def event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | members)}\n\n".encode()


def began(block: dict[str, Any], **index: Any) -> bytes:
    return event("content_block_start", content_block=block, **index)


def delta(kind: str, key: str, text: str, **index: Any) -> bytes:
    return event("content_block_delta", delta={"type": kind, key: text}, **index)


def piece(text: str, **index: Any) -> bytes:
    return delta("input_json_delta", "partial_json", text, **index)


def stop(**index: Any) -> bytes:
    return event("content_block_stop", **index)


def end(reason: str | None = "tool_use") -> bytes:
    told = {"stop_reason": reason, "stop_sequence": None}
    return event("message_delta", delta=told, usage={"output_tokens": 7}) + event("message_stop")


BEGIN = event("message_start", message=START)


def reader_of(body: bytes) -> Reader:
    reader = Reader.of_stream()
    for block in sse.Splitter().feed(body):
        payload, names = framing(block)
        if payload is not None:
            reader.payload(payload, names)
    return reader


def recorded(name: str) -> Answer:
    return messages.read((RECORDED / name).read_bytes(), stream=name.endswith(".sse"))


# --- what a real engine sent ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["any", "named", "several_any", "text", "text_length", "stop", "after_result"])
def test_a_recorded_answer_says_the_same_streamed_or_not(name: str) -> None:
    streamed, whole = recorded(f"{name}.sse"), recorded(f"{name}.json")
    assert streamed.problem is None
    assert whole.problem is None
    assert streamed.model == whole.model == "smollm2"
    assert streamed.usage == whole.usage
    one, other = streamed.choices[0], whole.choices[0]
    assert one.content == other.content
    assert one.finish_reason == other.finish_reason
    assert one.stop_reason == other.stop_reason
    assert [call.name for call in one.calls] == [call.name for call in other.calls]
    assert [call.read.value for call in one.calls] == [call.read.value for call in other.calls]


def test_a_recorded_call() -> None:
    answer = recorded("any.sse")
    (call,) = answer.choices[0].calls
    assert call == ToolCall("look_up", '{\n    "key": "celsius"\n}', "chatcmpl-tool-a0f420ae5c38dd74")
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage == {"input_tokens": 283, "output_tokens": 38}


def test_several_recorded_calls() -> None:
    assert [call.read.value for call in recorded("several_any.sse").choices[0].calls] == [{"key": "ij"}, {"key": "kl"}]


def test_a_recorded_stop_string() -> None:
    choice = recorded("stop.sse").choices[0]
    assert choice.finish_reason == "stop"
    assert choice.stop_reason == "e"


def test_a_recorded_limit() -> None:
    assert recorded("text.sse").choices[0].finish_reason == "length"


def test_text_before_and_after_a_call() -> None:
    choice = recorded("made_text_call_text.sse").choices[0]
    assert choice.lead == "Let me see.\n"
    assert choice.content == "Let me see.\n and done"
    assert choice.calls == (ToolCall("look_up", '{"key": "v"}', "chatcmpl-tool-a1"),)


def test_reasoning_text_and_three_calls() -> None:
    choice = recorded("made_thinking_text_calls.sse").choices[0]
    assert choice.reasoning == "The user wants"
    assert choice.content == choice.lead == "So: "
    assert [call.arguments for call in choice.calls] == ['{"key": "é"}', "", '{"key": "\\u0041"}']


def test_an_error_inside_a_stream() -> None:
    answer = recorded("made_error_in_mid_call.sse")
    assert answer.problem == "error"
    assert answer.choices[0].calls == (ToolCall("look_up", '{"key": ', "chatcmpl-tool-a1"),)


@pytest.mark.parametrize("name", ["error_model.json", "error_empty_tools.json", "error_no_max.json"])
def test_an_error_of_the_server(name: str) -> None:
    answer = recorded(name)
    assert answer.problem == "error"
    assert answer.choices == {}


def test_an_aborted_answer_is_not_whole() -> None:
    assert recorded("made_aborted.sse").problem == "truncated"


# --- order and indices ------------------------------------------------------------------------------------------------

IN_DOUBT = {
    "a piece before its block": BEGIN + piece('{"a": ', index=0) + began(CALL, index=0) + piece("1}", index=0) + end(),
    "a piece after its block": BEGIN + began(CALL, index=0) + stop(index=0) + piece('{"a": 1}', index=0) + end(),
    "a piece of no block": BEGIN + piece('{"a": 1}', index=0) + end(),
    "another first index": BEGIN + began(CALL, index=1) + piece('{"a": 1}', index=1) + end(),
    "an index that is no number": BEGIN + began(CALL, index="0") + piece('{"a": 1}', index="0") + end(),
    "an index twice": BEGIN + began(CALL, index=0) + piece('{"a": 1}', index=0) + stop(index=0) + began(CALL, index=0),
    "input twice": BEGIN + began(CALL | {"input": {"a": 1}}, index=0) + piece('{"a": 1}', index=0) + end(),
    "two beginnings": BEGIN + BEGIN + began(CALL, index=0) + piece('{"a": 1}', index=0) + end(),
    "a message that begins with content": event("message_start", message=START | {"content": [CALL]}) + end(),
    "a text for a call": BEGIN + began(CALL, index=0) + delta("text_delta", "text", "x", index=0) + end(),
    "a block at its end": BEGIN + began(CALL, index=0) + stop(index=0, content_block=CALL | {"input": {"a": 1}}),
    "a name of its own": BEGIN + began(CALL, index=0).replace(b"event: content_block_start", b"event: ping"),
    "an index left out": BEGIN + began(CALL, index=0) + piece("{}") + stop(index=0),
    "a name left out": BEGIN + began(CALL, index=0) + piece("{}", index=0).partition(b"\n")[2],
    "two open blocks and no index": BEGIN + began(CALL, index=0) + began(CALL, index=1) + piece("{}"),
    "a call beside a call": BEGIN + began(CALL, index=0, also=CALL | {"name": "g"}) + piece("{}", index=0) + end(),
    "a key twice": BEGIN + began(CALL, index=0).replace(b'"index"', b'"index": 1, "index"'),
    "another kind of block": BEGIN + began({"type": "server_tool_use", "name": "f"}, index=0),
    "what is no JSON": BEGIN + b"event: content_block_start\ndata: {\n\n",
    "a line that some do not see": BEGIN + began(CALL, index=0).replace(b"\n", b"\r"),
}
CLEAR = {
    "as it should be": BEGIN
    + began(CALL, index=0)
    + piece('{"a"', index=0)
    + piece(": 1}", index=0)
    + stop(index=0)
    + end(),
    "no index": BEGIN + began(CALL) + piece('{"a"') + piece(": 1}") + stop() + end(),
    "no end of the block": BEGIN + began(CALL, index=0) + piece('{"a": 1}', index=0) + end(),
    "input at the start": BEGIN
    + began(CALL | {"input": {"a": 1}}, index=0)
    + piece("", index=0)
    + stop(index=0)
    + end(),
    "no beginning": began(CALL, index=0) + piece('{"a": 1}', index=0) + end(),
    "pings and comments": BEGIN
    + b": x\n\n"
    + began(CALL, index=0)
    + event("ping")
    + piece('{"a": 1}', index=0)
    + end(),
    "no names": (BEGIN + began(CALL, index=0) + piece('{"a": 1}', index=0) + end()).replace(b"event: ", b"id: "),
    "crlf": (BEGIN + began(CALL, index=0) + piece('{"a": 1}', index=0) + end()).replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("name", IN_DOUBT)
def test_what_clients_read_in_several_ways_is_told(name: str) -> None:
    assert reader_of(IN_DOUBT[name]).conflict


@pytest.mark.parametrize("name", CLEAR)
def test_what_clients_read_alike_is_no_conflict(name: str) -> None:
    reader = reader_of(CLEAR[name])
    assert not reader.conflict
    (call,) = reader.choice().calls
    assert (call.name, call.id) == ("f", "toolu_1")
    assert call.read.value == {"a": 1}
    assert reader.result().problem is None


def test_a_piece_before_its_block_is_read_all_the_same() -> None:
    reader = reader_of(IN_DOUBT["a piece before its block"])
    assert reader.choice().calls == (ToolCall("f", '{"a": 1}', "toolu_1"),)


def test_pieces_of_two_calls_that_alternate() -> None:
    other = CALL | {"id": "toolu_2", "name": "g"}
    body = began(CALL, index=0) + began(other, index=1)
    body += piece('{"a"', index=0) + piece('{"b"', index=1) + piece(":1}", index=0) + piece(":2}", index=1)
    reader = reader_of(BEGIN + body + end())
    assert not reader.conflict
    assert reader.choice().calls == (ToolCall("f", '{"a":1}', "toolu_1"), ToolCall("g", '{"b":2}', "toolu_2"))


def test_input_at_the_start_is_kept_as_it_was_written() -> None:
    written = b'{"n": 123456789012345678901234567890, "n": 1.0}'
    block = json.dumps(CALL).encode().replace(b"{}", written)
    body = b'data: {"type":"content_block_start","index":0,"content_block":%b}\n\n' % block
    reader = reader_of(body)
    assert reader.choice().calls[0].arguments.encode() == written
    assert reader.choice().calls[0].read.duplicate_keys


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause_turn"),
        (None, None),
    ],
)
def test_stop_reasons_in_the_words_of_chat(reason: str | None, finish: str | None) -> None:
    assert reader_of(BEGIN + end(reason)).choice().finish_reason == finish


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "truncated"),
        (BEGIN, "truncated"),
        (BEGIN + end(None), "truncated"),
        (BEGIN + end("end_turn").partition(b"event: message_stop")[0], "truncated"),
        (BEGIN + b"data: {\n\n" + end("end_turn"), "garbage"),
        (BEGIN + event("error", error={"message": "m"}), "error"),
        (BEGIN + b'data: {"error": {"message": "m"}}\n\n', "error"),
        (BEGIN + end("end_turn") + b"data: [DONE]\n\n", None),
    ],
)
def test_why_an_answer_is_not_whole(body: bytes, problem: str | None) -> None:
    reader = reader_of(body)
    assert reader.result().problem == problem
    assert reader.result().problem == problem  # asked twice, it says the same


def test_what_each_event_is() -> None:
    stream = BEGIN + began({"type": "text", "text": "a"}, index=0) + delta("text_delta", "text", "b", index=0)
    stream += stop(index=0) + began(CALL, index=1) + piece("{}", index=1) + stop(index=1) + end()
    stream += event("ping") + event("odd", x=1) + event("odd", x=CALL) + event("error", error={})
    reader, found = Reader.of_stream(), []
    for block in sse.Splitter().feed(stream):
        payload, names = framing(block)
        found.append(reader.payload(payload or b"", names))
    told = [Kind.TEXT] * 4 + [Kind.CALL] * 3 + [Kind.END, Kind.STOP, Kind.TEXT, Kind.TEXT, Kind.UNREAD, Kind.ERROR]
    assert [event.kind for event in found] == told
    assert [(event.index, event.text) for event in found[1:5]] == [(0, "a"), (0, "b"), (0, ""), (1, "")]


# --- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "payload", "names"),
    [
        (b"event: ping\ndata: {}\n\n", b"{}", {b"ping"}),
        (b"data:{}\n\n", b"{}", set()),
        (b"event:ping\r\ndata:{}\r\n\r\n", b"{}", {b"ping"}),
        (b"\nevent: ping\r\ndata: {}\r\n\r", b"{}", {b"ping"}),
        (b": c\nid: 1\nevent: a\nevent: b\ndata: {}\n\n", b"{}", {b"a", b"b"}),
        (b"event\ndata: {}\n\n", b"{}", {b""}),
        (b"data: \xef\xbb\xbf{}\n\n", b"\xef\xbb\xbf{}", set()),
        (b": comment\n\n", None, None),
        (b"data: {\ndata: }\n\n", b"{\n}", None),
        (b"event: ping\rdata: {}\r\r", b"{}", None),
        (b": x\rdata: {}\n\n", b"{}", None),
        (b"data: {}\rdata: []\n\n", b"{}\n[]", None),
        (b"\xef\xbb\xbfdata: {}\n\n", b"{}", None),
        (b"\xef\xbb\xbfevent: ping\ndata: {}\n\n", b"{}", None),
        (b"data: {}\ndatax: {}\n\n", b"{}", None),
    ],
)
def test_the_framing_of_an_event(block: bytes, payload: bytes | None, names: set[bytes] | None) -> None:
    assert framing(block) == (payload, names)


@pytest.mark.parametrize(
    ("text", "may"),
    [(b"TOOL_use", True), (b"\\u0074", True), (b'{"partial_json"', True), (b"a text", False), (b"", False)],
)
def test_what_may_be_of_a_call(text: bytes, may: bool) -> None:  # noqa: FBT001
    assert may_hold_call(text) is may


# --- whole answers ----------------------------------------------------------------------------------------------------


def test_a_whole_answer_with_text_reasoning_and_calls() -> None:
    content = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "So: "}, CALL | {"input": {"a": 1}}]
    body = {
        "id": "msg_1",
        "content": [*content, {"type": "text", "text": "ok"}],
        "stop_reason": "tool_use",
        "model": "m",
    }
    reader = Reader.whole(json.dumps(body).encode())
    choice = reader.result().choices[0]
    assert reader.id == "msg_1"
    assert not reader.conflict
    assert (choice.reasoning, choice.lead, choice.content) == ("Hm.", "So: ", "So: ok")
    assert choice.calls == (ToolCall("f", '{"a": 1}', "toolu_1"),)
    assert reader.result().problem is None


def test_a_whole_answer_without_a_stop_reason_is_truncated() -> None:
    assert messages.read(b'{"content": []}', stream=False).problem == "truncated"


def test_garbage_is_no_answer() -> None:
    reader = Reader.whole(b"[]")
    assert reader.conflict
    assert reader.result() == Answer(problem="garbage")


# --- anything at all --------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KINDS = (
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "error",
    "x",
)
MEMBERS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "index": st.integers(-1, 2) | JSON,
        "message": JSON | st.fixed_dictionaries({"content": st.lists(JSON, max_size=2)}),
        "content_block": JSON | st.fixed_dictionaries({"type": st.just("tool_use") | JSON, "input": JSON}),
        "delta": JSON | st.fixed_dictionaries({"type": st.just("input_json_delta"), "partial_json": JSON}),
        "content": st.lists(JSON, max_size=2),
        "usage": JSON,
    },
)


@settings(deadline=None)
@given(events=st.lists(MEMBERS, max_size=6))
def test_whatever_json_comes_is_read(events: list[dict[str, Any]]) -> None:
    reader = Reader.of_stream()
    payloads = [json.dumps(value).encode() for value in events]
    kinds = {reader.payload(payload).kind for payload in payloads}
    assert reader.result().problem is not None  # there is no last event
    assert reader.choice().calls == () or Kind.CALL in kinds or reader.conflict
    assert Kind.UNREAD not in kinds or reader.conflict
    for payload in payloads:
        whole = Reader.whole(payload)
        assert whole.result().problem == ("error" if json.loads(payload).get("error") else "truncated")


# --- what clients make of it ------------------------------------------------------------------------------------------

Told = tuple[str | None, dict[str, Any]]  # an event's name and its JSON


def official(events: list[Told]) -> list[tuple[str, str]]:
    """The calls of the official client: it appends blocks, takes `index` for a place and skips what has no name.

    Raises:
        LookupError, TypeError: it does, too.
    """
    blocks: list[dict[str, Any]] | None = None
    for name, value in events:
        if name in {None, "ping"}:
            continue
        if blocks is None:
            assert value["type"] == "message_start"
            blocks = []
        elif value["type"] == "content_block_start":
            blocks.append({"json": "", **value["content_block"]})
        elif value["type"] == "content_block_delta":
            block = blocks[value["index"]]
            if "partial_json" in value["delta"] and block["type"] == "tool_use":
                block["json"] += value["delta"]["partial_json"]
    return [(block["id"], block["json"] or inputs(block)) for block in blocks or () if block["type"] == "tool_use"]


def by_index(events: list[Told]) -> list[tuple[str, str]]:
    """The calls of a client that goes by `type` and `index`, and makes a call when its block has ended."""
    blocks: dict[Any, dict[str, Any]] = {}
    made = []
    for _, value in events:
        index = value.get("index")
        if value["type"] == "content_block_start":
            blocks[index] = {"json": inputs(value["content_block"]), **value["content_block"]}
        elif value["type"] == "content_block_delta" and index in blocks:
            blocks[index]["json"] += value["delta"].get("partial_json", "")
        elif value["type"] == "content_block_stop" and index in blocks:
            block = blocks.pop(index)
            made += [(block["id"], block["json"])] if block["type"] == "tool_use" else []
    return made


def inputs(block: dict[str, Any]) -> str:
    return json.dumps(block["input"]) if block.get("input") else ""


EVENTS = ["tool_use", "text", "piece", "say", "stop", "ping"]
PIECES = ["piece", "piece", "ping", "stop"]
FOLLOWING = {"": ["tool_use", "text"], "stop": ["tool_use", "text"], "tool_use": PIECES, "piece": PIECES}


@st.composite
def told_events(draw: st.DrawFn) -> list[Told]:
    """Events in nearly the order that they should have, with odd names or indices in some streams."""
    found: list[Told] = [("message_start", {"type": "message_start", "message": START})]
    odd = draw(st.sampled_from(("", "", "order", "index", "name")))
    count, kind = 0, ""
    for _ in range(draw(st.integers(1, 12))):
        usual = FOLLOWING.get(kind, ["stop"])
        kind = draw(st.sampled_from(usual + EVENTS if odd == "order" else usual))
        last = {"index": max(0, count - 1)}
        index = draw(st.sampled_from((last, last, {"index": 0}, {"index": 1}, {}))) if odd == "index" else last
        value: dict[str, Any]
        match kind:
            case "tool_use" | "text":
                given_input = draw(st.sampled_from(({}, {}, {"a": 1})))
                call = CALL | {"id": f"t{count}", "input": given_input}
                place = draw(st.sampled_from(({"index": count}, index))) if odd == "index" else {"index": count}
                block = call if kind == "tool_use" else {"type": "text"}
                value = {"type": "content_block_start", "content_block": block, **place}
                count += 1
            case "piece":
                inner = {"type": "input_json_delta", "partial_json": draw(st.sampled_from("abc"))}
                value = {"type": "content_block_delta", "delta": inner, **index}
            case "say":
                value = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}, **index}
            case "stop":
                value = {"type": "content_block_stop", **index}
            case _:
                value = {"type": "ping"}
        name = draw(st.sampled_from((value["type"], value["type"], None, "ping"))) if odd == "name" else value["type"]
        found.append((name, value))
    return found


@settings(max_examples=400, deadline=None)
@given(events=told_events())
def test_where_there_is_no_conflict_all_clients_have_these_calls_or_none(events: list[Told]) -> None:
    body = b"".join(
        (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"
        for name, value in events
    )
    reader = reader_of(body)
    if reader.conflict:
        return
    calls = [(call.id, call.arguments) for call in reader.choice().calls]
    with contextlib.suppress(LookupError, TypeError):
        assert official(events) == calls
    assert Counter(by_index(events)) <= Counter(calls)  # in the order in which they end


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whatever_bytes_come_are_read(seed: int) -> None:
    chance = random.Random(seed)
    body = bytearray(b"".join(CLEAR.values()))
    for _ in range(chance.randrange(1, 8)):
        body[chance.randrange(len(body))] = chance.randrange(256)
    messages.read(bytes(body), stream=True)
    messages.read(bytes(body), stream=False)
