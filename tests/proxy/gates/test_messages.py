"""The gate of the Messages API on its leak corpus: refused, nothing of a call goes out; released, all is as it came."""

import json
import os
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import gate as gates
from proxy.gate import REST, Gate, HeldTooMuchError, Signal, Whole
from proxy.gates.messages import MessagesGate, MessagesWhole, choice_of_whole, refused_whole, substituted_whole
from shadow.wire import messages, sse
from tests.proxy.gates.messagesstreams import BY_NAME, CORPUS, WINDOW, MessagesStream, dumps, leaked
from validators import ToolCall

REFUSED = "[counterproof] no"
SHORT = [stream for stream in CORPUS if not stream.long]
# From vLLM 0.32 and a small model; `made_…`: what its own converter makes of chat chunks that were written by hand.
RECORDED = Path(__file__).parent / "data" / "messages"
STREAMS = sorted(RECORDED.glob("*.sse"))
OTHER = (ToolCall("f", '{"a": 1}', "toolu_1"), ToolCall("g", ""))

each_stream = pytest.mark.parametrize("stream", CORPUS, ids=[stream.name for stream in CORPUS])


def two_of_each_kind() -> list[MessagesStream]:
    kinds: dict[str, list[MessagesStream]] = {}
    for stream in SHORT:
        kinds.setdefault(stream.kind, []).append(stream)
    return [stream for streams in kinds.values() for stream in sorted(streams, key=lambda s: len(s.body))[:2]]


# All of them take minutes: two of every kind here, all where somebody asks for it.
CUT = SHORT if os.environ.get("COUNTERPROOF_EVERY_STREAM") else two_of_each_kind()
each_cut_stream = pytest.mark.parametrize("stream", CUT, ids=[stream.name for stream in CUT])
each_short_stream = pytest.mark.parametrize("stream", SHORT, ids=[stream.name for stream in SHORT])
each_recording = pytest.mark.parametrize("path", STREAMS, ids=[path.stem for path in STREAMS])


def driven(pieces: Sequence[bytes], *, release: bool) -> tuple[bytes, MessagesGate]:
    """What a client gets where the calls are decided as soon as they are whole, as block mode does it."""
    gate = MessagesGate()
    out = []

    def follow() -> None:
        for signal, index in gate.signals():
            if signal is Signal.CLOSED and index in gate.undecided() and REST not in gate.undecided():
                out.append(gate.decide(index, None if release else gate.refused(index, REFUSED)))

    for piece in pieces:
        out.append(gate.feed(piece))
        follow()
    out.append(gate.end())
    follow()
    if REST in gate.undecided() and release:
        out += [gate.decide(REST, None), *(gate.decide(index, None) for index in gate.undecided())]
    elif REST in gate.undecided():
        out += [gate.refused(index, REFUSED) for index in ([] if gate.over else gate.unfinished())]
        for index in sorted(gate.undecided(), reverse=True):
            said = b"" if index == REST or gate.over else gate.refused(index, REFUSED)
            out.append(gate.decide(index, said))
    assert not gate.waiting
    return b"".join(out), gate


def through(pieces: Sequence[bytes], *, release: bool) -> bytes:
    return driven(pieces, release=release)[0]


def events_of(sent: bytes) -> list[dict[str, Any]]:
    splitter = sse.Splitter()
    payloads = [sse.data_of(block) for block in splitter.feed(sent)]
    assert not splitter.rest
    return [json.loads(payload) for payload in payloads if payload and payload != sse.DONE]


def last_block(body: bytes) -> bytes:
    return list(sse.Splitter().feed(body))[-1]


def message_of(sent: bytes) -> dict[str, Any]:
    """The message that the official client puts together, where the events come as the API has them."""
    events = [event for event in events_of(sent) if event.get("type") != "ping"]
    assert [event["type"] for event in (events[0], *events[-2:])] == ["message_start", "message_delta", "message_stop"]
    message: dict[str, Any] = events[0]["message"]
    open_blocks = set[int]()
    for event in events[1:-1]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                open_blocks.add(event["index"])
            case "content_block_delta":
                assert event["index"] in open_blocks
                block, delta = message["content"][event["index"]], event["delta"]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "input_json_delta":
                        block["json"] = block.get("json", "") + delta["partial_json"]
            case "content_block_stop":
                open_blocks.remove(event["index"])
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    assert not open_blocks
    return message


def check_refused(stream: MessagesStream, sent: bytes) -> None:
    assert leaked(sent, stream) is None
    assert sent.startswith(stream.body[: stream.clear].removesuffix(b"\n"))  # half of a CRLF comes with what follows
    if not stream.held:
        assert sent == stream.body
        return
    rest = sent[stream.clear :]
    if stream.failed or stream.over:
        assert rest in ({last_block(stream.body)} if stream.failed else {b"", b"\n"})
        return
    assert sent.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert sum(event.get("type") == "message_stop" for event in events_of(sent)) == 1
    if stream.verdictable and b"\r" not in stream.body:
        assert message_of(sent)["content"][-1]["text"].endswith(REFUSED)
    reader = messages.Reader.of_stream()
    for event in events_of(sent):
        reader.payload(dumps(event))
    choice = reader.choice()
    assert not choice.calls
    if b'"stop_reason":"end_turn"' not in stream.body[: stream.clear]:
        said = stream.text
        assert choice.content == said + ("\n\n" if said and not said.endswith("\n") else "") + REFUSED
        assert choice.finish_reason == "content_filter"


# --- the corpus -------------------------------------------------------------------------------------------------------


def test_the_corpus_is_what_it_says() -> None:
    kinds = Counter(stream.kind for stream in CORPUS)
    assert len(CORPUS) == len(BY_NAME) >= 100
    assert len(kinds) >= 20
    assert sum(stream.verdictable and stream.held for stream in CORPUS) >= 30
    assert sum(not stream.verdictable for stream in CORPUS) >= 50
    secrets = [secret for stream in CORPUS for secret in stream.secrets]
    assert len(set(secrets)) == len(secrets) >= 200
    assert all(leaked(stream.body[: stream.clear], stream) is None for stream in CORPUS)
    assert all(leaked(stream.body, stream) for stream in CORPUS if stream.held)
    assert sum(stream.long for stream in CORPUS) == 2


@each_stream
def test_a_refused_stream_keeps_its_calls(stream: MessagesStream) -> None:
    check_refused(stream, through([stream.body], release=False))


@each_stream
def test_a_released_stream_is_what_came(stream: MessagesStream) -> None:
    sent = through([stream.body], release=True)
    if stream.failed and stream.held:  # what is held when the server fails stays held
        assert sent == stream.body[: stream.clear] + last_block(stream.body)
    else:
        assert sent == stream.body


@each_stream
def test_what_can_be_judged_and_what_cannot(stream: MessagesStream) -> None:
    gate = MessagesGate()
    gate.feed(stream.body)
    gate.end()
    unread = (Signal.HELD, REST) in gate.signals()
    assert unread is not stream.verdictable
    if stream.verdictable and not stream.failed:
        assert gate.choice(0).calls == stream.calls
        assert gate.choice(1).calls == ()


@each_short_stream
def test_a_stream_that_comes_byte_by_byte(stream: MessagesStream) -> None:
    pieces = [stream.body[at : at + 1] for at in range(len(stream.body))]
    check_refused(stream, through(pieces, release=False))
    if not stream.failed:
        assert through(pieces, release=True) == stream.body


@pytest.mark.slow
@each_cut_stream
def test_a_stream_cut_at_every_byte(stream: MessagesStream) -> None:
    body = stream.body
    refused = {through([body[:at], body[at:]], release=False) for at in range(1, len(body))}
    for sent in refused:
        check_refused(stream, sent)
    if b"\r" not in body:
        assert refused == {through([body], release=False)}


@pytest.mark.slow
@each_cut_stream
def test_a_stream_that_ends_at_every_byte(stream: MessagesStream) -> None:
    body = stream.body
    for at in range(1, len(body)):
        begun = body[:at]
        sent, gate = driven([begun], release=False)
        assert leaked(sent, stream) is None
        assert begun.startswith(sent) or gate.over or sent.endswith(b'data: {"type":"message_stop"}\n\n')
        if not stream.failed:
            half = len(begun) - len(sse_rest(begun))
            assert through([begun], release=True) in {begun, begun[:half]}


def sse_rest(body: bytes) -> bytes:
    splitter = sse.Splitter()
    list(splitter.feed(body))
    return splitter.rest


# --- what a real engine sent ------------------------------------------------------------------------------------------


@each_recording
def test_a_recorded_stream_is_held_from_its_call_on(path: Path) -> None:
    body = path.read_bytes()
    assert through([body], release=True) == body or "error" in path.stem
    at = body.find(
        b'event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"tool_use"'
    )
    first = MessagesGate().feed(body)
    if at < 0:
        assert first == body
        return
    sent = through([body], release=False)
    assert first.startswith(body[:at])
    assert b"tool_use" not in sent
    assert b"input_json" not in sent
    if "error" in path.stem:
        assert sent == body[:at] + body[body.index(b"event: error") :]
        return
    assert first == body[:at]
    message, original = message_of(sent), message_of(body)
    assert message["stop_reason"] == "refusal"
    assert message["usage"] == original["usage"]
    assert message["content"][-1]["text"].endswith(REFUSED)
    assert len(message["content"]) == 1 + body[:at].count(b"event: content_block_start")


@each_recording
def test_a_recorded_stream_gets_other_calls(path: Path) -> None:
    body = path.read_bytes()
    gate = MessagesGate()
    sent = gate.feed(body)
    if not gate.waiting:
        return
    message = message_of(sent + gate.decide(0, gate.substituted(0, OTHER)))
    first, second = message["content"][-2:]
    assert first == {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}, "json": '{"a": 1}'}
    assert second["name"] == "g"
    assert second["json"] == "{}"
    assert re.fullmatch("toolu_[0-9a-f]{32}", second["id"])
    assert message["stop_reason"] == "tool_use"
    assert gate.over


@pytest.mark.parametrize("name", ["any", "named", "no_arguments", "several_any", "cut", "text"])
def test_a_recorded_whole_answer(name: str) -> None:
    body = (RECORDED / f"{name}.json").read_bytes()
    choice = choice_of_whole(body)
    assert choice is not None
    whole: Whole = MessagesWhole(body, body)
    if b"tool_use" not in body:
        assert not choice.calls
        assert whole.held == {}
        return
    assert whole.held == {0: choice}
    refused = json.loads(whole.replaced({0: REFUSED}))
    assert refused["content"] == [{"type": "text", "text": REFUSED}]
    assert refused["stop_reason"] == "refusal"
    original = json.loads(body)
    assert {name: refused[name] for name in ("id", "type", "role", "model", "usage")}.items() <= original.items()
    other = choice_of_whole(whole.replaced({0: OTHER}))
    assert other is not None
    assert [(call.name, call.arguments) for call in other.calls] == [("f", '{"a": 1}'), ("g", "{}")]
    assert other.finish_reason == "tool_calls"


# --- what else a driver asks ------------------------------------------------------------------------------------------


def test_signals_and_states_of_a_call() -> None:
    stream = BY_NAME["text and a call"]
    gate = MessagesGate()
    as_protocol: Gate = gate
    assert not as_protocol.behind
    gate.feed(stream.body[: stream.clear])
    assert gate.signals() == [(Signal.BEGUN, 0)]
    assert gate.unfinished() == [0]
    assert gate.spoke
    assert not gate.waiting
    end = stream.body.index(b"event: message_delta")
    assert gate.feed(stream.body[stream.clear : end]) == b""
    assert gate.signals() == [(Signal.HELD, 0)]
    assert gate.unfinished() == []
    assert gate.feed(stream.body[end:]) == b""
    assert gate.signals() == [(Signal.CLOSED, 0)]
    assert gate.undecided() == [0]
    assert gate.answer().problem is None
    assert gate.decide(0, None) == stream.body[stream.clear :]
    assert gate.over
    assert gate.end() == b""
    assert gate.signals() == []


def test_reasoning_is_not_said() -> None:
    gate = MessagesGate()
    assert gate.feed(BY_NAME["reasoning text and a call"].body.partition(b'"text_delta"')[0])
    assert not gate.spoke


def test_a_call_that_is_judged_goes_out_before_what_cannot_be_read_behind_it() -> None:
    stream = BY_NAME["a second answer after a call"]
    gate = MessagesGate()
    first = gate.feed(stream.body)
    assert (Signal.CLOSED, 0) in gate.signals()
    assert gate.undecided() == [0, REST]
    first += gate.decide(0, None)
    assert gate.over
    assert message_of(first)["content"][0]["type"] == "tool_use"
    assert gate.decide(REST, b"") == b""
    assert stream.body.startswith(first)


def test_a_call_in_doubt_closes_at_the_end_only() -> None:
    stream = BY_NAME["a piece without a name"]
    gate = MessagesGate()
    gate.feed(stream.body)
    assert (Signal.CLOSED, 0) not in gate.signals()
    gate.end()
    assert gate.signals() == [(Signal.CLOSED, 0)]
    assert gate.decide(REST, None) == b""  # nothing overtakes the call
    assert gate.decide(0, None) == stream.body[stream.clear :]


def test_after_a_drop_nothing_goes_out() -> None:
    stream = BY_NAME["text and a call"]
    gate = MessagesGate()
    half = len(stream.body) - 300
    gate.feed(stream.body[:half])
    gate.drop()
    assert gate.flush() == b""
    assert gate.undecided() == []
    assert gate.feed(stream.body[half:]) + gate.end() == b""
    assert gate.answer().choices[0].calls == stream.calls


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "MAX_HELD", 300)
    stream = BY_NAME["text and a call"]
    gate = MessagesGate()
    with pytest.raises(HeldTooMuchError):
        gate.feed(stream.body)
    assert leaked(gate.refused(0, REFUSED), stream) is None
    gate = MessagesGate()
    assert gate.feed(b"data: " + b"x" * 290) == b""
    with pytest.raises(HeldTooMuchError):
        gate.feed(b"x" * 10)


def test_the_end_that_stood_behind_what_is_held_back_is_told() -> None:
    gate = MessagesGate()
    body = BY_NAME["text only"].body
    at = body.index(b"event: message_stop")
    sent = gate.feed(body[:at] + b"data: what\n\n" + body[at:]) + gate.end()
    assert gate.unfinished() == []
    assert sent + gate.decide(REST, b"") == body
    assert gate.over


def test_a_client_that_waits_is_told_by_a_ping() -> None:
    assert MessagesGate().keepalive() == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_an_error_inside_the_stream() -> None:
    sent = MessagesGate().error("é\ud83d")
    assert sent.startswith(b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"')
    assert events_of(sent)[0]["error"]["message"] == "é\ud83d"


def test_a_refusal_where_nothing_was_read_is_a_message_of_its_own() -> None:
    gate = MessagesGate()
    assert gate.feed(b"data: what\n\n") == b""
    assert gate.unfinished() == [0]
    message = message_of(gate.refused(0, REFUSED))
    assert message["content"] == [{"type": "text", "text": REFUSED}]
    assert message["usage"] == {"input_tokens": 0, "output_tokens": 0}


@pytest.mark.parametrize("form", ["message_start", "message_delta"])
def test_a_refusal_repeats_no_usage_that_hides_a_call(form: str) -> None:
    hidden = {"output_tokens": 1, "x": {"type": "tool_use", "name": "secret", "input": {}}}
    message = {"id": "a", "content": [], "usage": hidden}
    value = {"type": form, "message": message, "delta": {"stop_reason": "end_turn"}, "usage": hidden}
    gate = MessagesGate()
    assert gate.feed(b"event: %b\ndata: %b\n\n" % (form.encode(), dumps(value))) == b""
    assert gate.undecided() == [REST]
    sent = gate.refused(0, REFUSED)
    assert b"secret" not in sent
    assert message_of(sent)["usage"]["output_tokens"] == 0


# --- whole answers ----------------------------------------------------------------------------------------------------

CALL = b'{"type":"tool_use","id":"a","name":"f","input":{"n": 123456789012345678901234567890}}'
TEXT = b'{"type":"text","text":"Well."}'
UNREAD = {
    "not JSON": b"<html>",
    "a list": b"[%b]" % CALL,
    "elsewhere": b'{"content":[],"more":%b}' % CALL,
    "beside": b'{"content":[%b],"more":%b}' % (CALL, CALL),
    "the server's": b'{"content":[{"type":"server_tool_use","id":"a","name":"web_search","input":{}}]}',
    "another kind": b'{"content":[{"type":"container_upload","file_id":"a"}]}',
    "no object": b'{"content":[7,%b]}' % CALL,
    "a call in a text": b'{"content":[{"type":"text","text":"","name":"f","input":{}}]}',
    "content twice": b'{"content":[%b],"content":[]}' % CALL,
    "type twice": b'{"content":[%b]}' % CALL.replace(b'"id"', b'"type":"text","id"'),
    "type in another case": b'{"content":[%b]}' % CALL.replace(b'"type"', b'"Type"'),
    "another type": b'{"content":[{"type":"text","text":"","Type":"tool_use","Name":"f","Input":{}}]}',
    "another input": b'{"content":[%b]}' % CALL.replace(b'"id"', b'"Input":{"n":1},"id"'),
    "an input without a dot": '{"content":[{"type":"text","text":"","name":"f","\u0131nput":{}}]}'.encode(),
    "other content": b'{"content":[],"Content":[%b]}' % CALL,
    "other content beside it": b'{"content":[%b],"Content":[]}' % CALL,
    "content that is no list": b'{"content":%b}' % CALL,
    "half of a pair": b'{"content":[%b],"x":"\\ud83d"}' % CALL,
}
READ = {
    "text": (b'{"content":[%b]}' % TEXT, ()),
    "a call": (b'{"content":[%b,%b]}' % (TEXT, CALL), ('{"n": 123456789012345678901234567890}',)),
    "escapes": (
        b'{"c\\u006fntent":[%b]}' % CALL.replace(b"tool", b"\\u0074ool").replace(b"inp", b"\\u0069np"),
        ('{"n": 123456789012345678901234567890}',),
    ),
    "an argument twice": (
        b'{"content":[%b]}' % CALL.replace(b'{"n"', b'{"n":1,"n"'),
        ('{"n":1,"n": 123456789012345678901234567890}',),
    ),
    "an argument in two cases": (
        b'{"content":[%b]}' % CALL.replace(b'{"n"', b'{"Type":1,"type":2,"n"'),
        ('{"Type":1,"type":2,"n": 123456789012345678901234567890}',),
    ),
    "no arguments": (b'{"content":[{"type":"tool_use","id":"a","name":"f"}]}', ("",)),
    "a text that quotes one": (b'{"content":[{"type":"text","text":"tool_use \\u0041"}]}', ()),
    "an error": (b'{"type":"error","error":{"type":"api_error","message":"m"}}', ()),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_whole_answer_that_is_not_read(name: str) -> None:
    assert choice_of_whole(UNREAD[name]) is None
    assert MessagesWhole(UNREAD[name], UNREAD[name]).held is None


@pytest.mark.parametrize("name", READ)
def test_the_calls_of_a_whole_answer(name: str) -> None:
    body, arguments = READ[name]
    choice = choice_of_whole(body)
    assert choice is not None
    assert tuple(call.arguments for call in choice.calls) == arguments


def test_a_whole_answer_gets_another_content() -> None:
    body = b'{ "id":"c", "n": 123456789012345678901234567890 ,"c\\u006fntent":[%b , %b,%b],"stop_reason":"tool_use"}'
    body %= (TEXT, CALL, TEXT)
    sent = refused_whole(body, REFUSED)
    assert b'"n":123456789012345678901234567890,' in sent
    assert json.loads(sent) == {
        "id": "c",
        "n": 123456789012345678901234567890,
        "content": [json.loads(TEXT), {"type": "text", "text": f"\n\n{REFUSED}"}],
        "stop_reason": "refusal",
        "stop_sequence": None,
    }
    other = json.loads(substituted_whole(body, [ToolCall("f", "not \ud83d json"), ToolCall("g", '{"a":1.0}')]))
    assert [block["type"] for block in other["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["input"] for block in other["content"][1:]] == ["not \ud83d json", {"a": 1.0}]


# --- anything at all --------------------------------------------------------------------------------------------------

PIECES = [stream.body for stream in SHORT]


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), cuts=st.integers(1, 12))
def test_whatever_comes_is_released_as_it_came_and_refused_without_a_call(seed: int, cuts: int) -> None:
    chance = random.Random(seed)
    body = b"".join(_some(chance) for _ in range(chance.randrange(1, 5)))
    places = sorted(chance.randrange(len(body) + 1) for _ in range(cuts))
    pieces = [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]
    gate = MessagesGate()
    out = b"".join(gate.feed(piece) for piece in pieces) + gate.end()
    failed = any(fate is False for fate in gate._fates.values())
    while gate.undecided():
        out += gate.decide(gate.undecided()[-1], None)
    gate.answer()
    if not failed:
        assert out in {body, body[: len(body) - len(sse_rest(body))]}
    refused = through(pieces, release=False)
    for stream in SHORT:
        held = stream.body[stream.clear :]
        if stream.secrets and held in body and body.startswith(stream.body):
            assert leaked(refused, stream) is None


def _some(chance: random.Random) -> bytes:
    """A stream, or a piece of one, with some bytes that are others."""
    body = bytearray(chance.choice(PIECES))
    if chance.random() < 0.5:
        start = chance.randrange(len(body))
        body = body[start : start + chance.randrange(400)]
    for _ in range(chance.choice((0, 0, 1, 3))):
        if body:
            body[chance.randrange(len(body))] = chance.choice(b'{}[]":,\\\r\n\0x\xff')
    return bytes(body)


def test_a_leak_is_found() -> None:
    stream = BY_NAME["one call"]
    assert leaked(b".." + stream.secrets[0][:WINDOW] + b"..", stream)
    assert leaked(b'"tool_use"', stream)
    assert leaked(b".." + stream.secrets[0][: WINDOW - 1] + b"..", stream) is None
