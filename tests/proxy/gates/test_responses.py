"""The Responses gate on its corpus: refused, nothing of a call goes out; released, all goes out as it came."""

import json
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from proxy.cut import Nulls
from proxy.gate import REST, HeldTooMuchError, Signal
from proxy.gates import responses
from proxy.gates.responses import ResponsesGate, ResponsesWhole, choice_of_whole, refused_whole, substituted_whole
from proxy.gates.responses_reading import BUILT_IN
from proxy.inject import Removal
from shadow.wire import answers, responses_answer, sse
from tests.proxy.gates.responsesstreams import BY_NAME, CORPUS, SHORT, Stream, dumps, leaked
from validators import ToolCall

DATA = Path(__file__).parent / "data" / "responses"
RECORDED = sorted(path.stem for path in DATA.glob("*.sse"))
REFUSED = "[counterproof] no"
OTHER = ToolCall("look", '{"where":"here"}', "call_other")
NULLS = Nulls(frozenset({b"input_messages", b"output_messages"}), frozenset(), within=b"response")  # as `plan` has it
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
every = pytest.mark.parametrize("stream", CORPUS, ids=[stream.name for stream in CORPUS])


class Driver:
    """Does with a gate what block mode does: a call is decided as soon as it is whole, what is unread at the end."""

    def __init__(self, verdict: str, gate: ResponsesGate | None = None) -> None:
        self.gate, self.verdict = gate or ResponsesGate(), verdict
        self.out: list[bytes] = []
        self.signals: list[tuple[Signal, int]] = []

    def run(self, pieces: Iterable[bytes]) -> bytes:
        for piece in pieces:
            self.out.append(self.gate.feed(piece))
            self.follow()
        self.out.append(self.gate.end())
        if self.verdict != "release" and REST in self.gate.undecided():
            self.refuse_all()
        elif REST in self.gate.undecided():
            self.out.append(self.gate.decide(REST, None))
        self.follow()
        assert not self.gate.waiting
        return b"".join(self.out)

    def follow(self) -> None:
        for signal, index in self.gate.signals():
            self.signals.append((signal, index))
            if signal is Signal.CLOSED and index in self.gate.undecided():
                self.out.append(self.gate.decide(index, self.instead()))

    def instead(self) -> bytes | None:
        if self.verdict == "substitute":
            return self.gate.substituted(0, [OTHER])
        return None if self.verdict == "release" else self.gate.refused(0, REFUSED)

    def refuse_all(self) -> None:
        gate = self.gate
        held = gate.undecided()
        for index in [] if gate.over else gate.unfinished():
            self.out.append(gate.refused(index, REFUSED))
        for index in sorted(held, reverse=True):
            said = b"" if index == REST or gate.over else gate.refused(index, REFUSED)
            self.out.append(gate.decide(index, said))


def through(pieces: Iterable[bytes], verdict: str = "refuse") -> bytes:
    return Driver(verdict).run(pieces)


def events(sent: bytes) -> list[dict[str, Any]]:
    payloads = [sse.data_of(block) for block in sse.Splitter().feed(sent)]
    return [json.loads(payload) for payload in payloads if payload is not None and payload.strip() != sse.DONE]


def as_the_client_reads(sent: bytes) -> Response:
    """By the official client's models and its own helper, which asserts what it relies on."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=[], text_format=omit)
    told = None
    for value in events(sent):
        event = EVENT.validate_python(value)
        state.handle_event(event)
        told = getattr(event, "response", told)
    assert isinstance(told, Response)
    return told


def check_refused(stream: Stream, sent: bytes) -> None:
    assert leaked(sent, stream) is None
    assert sent.startswith(stream.body[: stream.clear].removesuffix(b"\n"))  # half of a CRLF comes with what follows
    if not stream.secrets:
        return
    told = events(sent)
    if stream.error:
        assert "error" in json.dumps(told[-1])
        return
    final = next(value["response"] for value in reversed(told) if value["type"] == "response.completed")
    texts = [part["text"] for item in final["output"] if item["type"] == "message" for part in item["content"]]
    assert final["status"] == "completed"
    if stream.calls is not None or not stream.complete:
        assert texts[-1] == REFUSED
    assert "".join(texts).startswith(stream.text)
    numbers = [value["sequence_number"] for value in told if "sequence_number" in value]
    assert numbers == sorted(numbers)
    if stream.modelled:
        assert as_the_client_reads(sent).output_text.startswith(stream.text)


def test_there_are_streams_of_many_kinds() -> None:
    assert len(CORPUS) == len(BY_NAME) >= 100
    assert len({stream.kind for stream in CORPUS}) >= 12
    assert sum(stream.calls is None for stream in CORPUS) >= 50
    assert all(secret in stream.body for stream in CORPUS for secret in stream.secrets)
    assert all(leaked(stream.body[: stream.clear], stream) is None for stream in CORPUS)
    assert all(leaked(stream.body, stream) for stream in CORPUS if stream.secrets)


@every
def test_a_refused_stream_keeps_its_calls(stream: Stream) -> None:
    check_refused(stream, through([stream.body]))
    check_refused(stream, through(stream.body[i : i + 999] for i in range(0, len(stream.body), 999)))


@every
def test_a_released_stream_is_as_it_came(stream: Stream) -> None:
    driver = Driver("release")
    sent = driver.run([stream.body])
    if stream.error and stream.secrets:
        assert leaked(sent, stream) is None  # held when the primary failed
    else:
        assert sent == stream.body


@every
def test_what_is_held_is_judged_or_unread(stream: Stream) -> None:
    driver = Driver("release")
    driver.run([stream.body])
    held = {index for signal, index in driver.signals if signal is Signal.HELD}
    assert (REST in held) == (stream.calls is None)
    assert held or not stream.secrets or stream.error
    if stream.calls is not None and not stream.error:
        choice = driver.gate.choice(0)
        assert choice.calls == stream.calls
        assert choice.content.startswith(stream.text)
        assert ((Signal.CLOSED, 0) in driver.signals) == bool(stream.calls)


@pytest.mark.parametrize("stream", SHORT, ids=[stream.name for stream in SHORT])
def test_a_stream_that_comes_byte_by_byte(stream: Stream) -> None:
    pieces = [stream.body[i : i + 1] for i in range(len(stream.body))]
    check_refused(stream, through(pieces))
    if not (stream.error and stream.secrets):
        assert through(pieces, "release") == stream.body


def two_of_each_kind() -> list[Stream]:
    kinds: dict[str, list[Stream]] = {}
    for stream in SHORT:
        kinds.setdefault(stream.kind, []).append(stream)
    return [stream for streams in kinds.values() for stream in sorted(streams, key=lambda s: len(s.body))[:2]]


# Each costs some seconds: two of every kind here, all of them where somebody asks for it.
CUT = SHORT if os.environ.get("COUNTERPROOF_EVERY_STREAM") else two_of_each_kind()


def one_of_each_kind() -> list[Stream]:
    found = {stream.kind: stream for stream in reversed(two_of_each_kind()) if not stream.error}
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("stream", one_of_each_kind(), ids=[stream.name for stream in one_of_each_kind()])
def test_a_released_stream_cut_at_every_byte_is_as_it_came(stream: Stream) -> None:
    body = stream.body
    for at in range(1, len(body)):
        assert through([body[:at], body[at:]], "release") == body


@pytest.mark.slow
@pytest.mark.parametrize("stream", CUT, ids=[stream.name for stream in CUT])
def test_a_stream_cut_at_every_byte(stream: Stream) -> None:
    body, seen = stream.body, set()
    for at in range(1, len(body)):
        seen.add(through([body[:at], body[at:]]))
        assert leaked(through([body[:at]]), stream) is None  # and one that ends there
    for sent in seen:
        check_refused(stream, sent)
    assert b"\r" in body or seen == {through([body])}  # else half of a line end may come sooner


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_streams(name: str) -> None:
    body = (DATA / f"{name}.sse").read_bytes()
    calls = responses_answer.read(body, stream=True).choices[0].calls
    assert through([body], "release") == body
    sent = through([body])
    refused = as_the_client_reads(sent)
    assert [value["sequence_number"] for value in events(sent)] == list(range(len(events(sent))))
    assert all(item.type == "message" for item in refused.output)
    assert refused.output_text.endswith(REFUSED) == bool(calls)
    assert refused.usage is not None
    if calls:
        assert refused.status == "completed"
        assert b"raw_message_tokens" not in sent
        assert calls[0].arguments.encode() not in sent


def of_the_clients_own(body: bytes) -> bytes:
    """A recorded stream as its client gets it that asked for no raw messages."""
    removal = Removal(NULLS)
    return removal.feed(body) + removal.rest


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("verdict", ["release", "refuse", "substitute"])
def test_what_was_injected_is_cut_out_whatever_becomes_of_the_calls(name: str, verdict: str) -> None:
    body = (DATA / f"{name}.sse").read_bytes()
    plain = of_the_clients_own(body)
    assert b"raw_message_tokens" not in plain
    for size in (1, 999, len(body)):
        driver = Driver(verdict, ResponsesGate(removal=Removal(NULLS)))
        sent = driver.run(body[i : i + size] for i in range(0, len(body), size))
        assert sent == through([plain], verdict)
        choice, told = driver.gate.choice(0), responses_answer.read(body, stream=True).choices[0]
        assert (choice.prompt_ids, choice.token_ids) == (told.prompt_ids, told.token_ids)
        assert (choice.token_ids is not None) == (plain != body)


def with_raw_messages(stream: Stream) -> tuple[bytes, bytes]:
    """A stream of the corpus as a primary sends it that was asked for them, and as its client is to be told of it."""
    text = b" ".join(secret.replace(b"\\", b"").replace(b'"', b"") for secret in stream.secrets).decode(errors="ignore")
    raw = dumps([{"message": f"<tool_call>{text}", "tokens": [1, 2, 3], "type": "raw_message_tokens"}])
    asked = b'"response":{"input_messages":%b,"output_messages":%b,"'
    told, plain = (stream.body.replace(b'"response":{"', asked % (value, value)) for value in (raw, b"null"))
    return told, plain


@every
def test_raw_messages_change_nothing_of_what_becomes_of_a_stream(stream: Stream) -> None:
    told, plain = with_raw_messages(stream)
    removal = Removal(NULLS)
    cut_out = removal.feed(told) + removal.rest == plain  # where the JSON is broken, nothing can be cut out of it
    for size in (len(told), 999):
        pieces = [told[i : i + size] for i in range(0, len(told), size)]
        sent = Driver("refuse", ResponsesGate(removal=Removal(NULLS))).run(pieces)
        assert leaked(sent, stream) is None
        if cut_out:
            assert b"raw_message_tokens" not in sent
            assert sent == through([plain])
            released = Driver("release", ResponsesGate(removal=Removal(NULLS))).run(pieces)
            assert released == through([plain], "release")


def test_raw_messages_are_cut_out_of_nearly_all_streams() -> None:
    def cut_out(stream: Stream) -> bool:
        told, plain = with_raw_messages(stream)
        removal = Removal(NULLS)
        return told != plain and removal.feed(told) + removal.rest == plain

    assert sum(map(cut_out, CORPUS)) >= 0.8 * len(CORPUS)


@pytest.mark.slow
def test_raw_messages_in_a_stream_cut_at_every_byte() -> None:
    told, plain = with_raw_messages(BY_NAME["text then a call"])
    refused, released = through([plain]), through([plain], "release")
    for at in range(1, len(told)):
        pieces = [told[:at], told[at:]]
        assert Driver("refuse", ResponsesGate(removal=Removal(NULLS))).run(pieces) == refused
        assert Driver("release", ResponsesGate(removal=Removal(NULLS))).run(pieces) == released


@pytest.mark.parametrize("name", RECORDED)
def test_a_whole_answer_is_judged_by_its_ids_and_refused_without_them(name: str) -> None:
    raw = (DATA / f"{name}.json").read_bytes()
    body = NULLS.apply(raw)
    assert body is not None
    whole, told = ResponsesWhole(raw, body), responses_answer.read(raw, stream=False).choices[0]
    for choice in (whole.held or {}).values():
        assert (choice.prompt_ids, choice.token_ids) == (told.prompt_ids, told.token_ids)
        for instead in (REFUSED, [OTHER]):
            sent = whole.replaced({0: instead})
            assert b"raw_message_tokens" not in sent
            Response.model_validate_json(sent)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_whole_answers(name: str) -> None:
    body = (DATA / f"{name}.json").read_bytes()
    choice = choice_of_whole(body)
    assert choice is not None
    if not choice.calls:
        return
    refused = refused_whole(body, REFUSED)
    response = Response.model_validate_json(refused)
    assert response.status == "completed"
    assert response.output_text.endswith(REFUSED)
    assert {item.type for item in response.output} == {"message"}
    assert b'raw_message_tokens"}]}' not in refused
    before, after = body.split(b'"output":[')[0], body.split(b'"parallel_tool_calls"')[1].split(b'"input_messages"')[0]
    assert refused.startswith(before)
    assert after.replace(b'"status":"incomplete"', b'"status":"completed"') in refused
    other = Response.model_validate_json(substituted_whole(body, [OTHER]))
    assert [item.type for item in other.output[-1:]] == ["function_call"]
    assert responses_answer.read(substituted_whole(body, [OTHER]), stream=False).choices[0].calls == (OTHER,)


@pytest.mark.parametrize("name", ["required", "text-call", "two-calls", "non-ascii"])
def test_a_substituted_stream_has_the_other_calls_alone(name: str) -> None:
    sent = through([(DATA / f"{name}.sse").read_bytes()], "substitute")
    final = as_the_client_reads(sent)
    assert [item.type for item in final.output if item.type != "message"] == ["function_call"]
    answer = responses_answer.read(sent, stream=True)
    assert answer.problem is None
    assert answer.choices[0].calls == (OTHER,)
    assert answer.choices[0].finish_reason == "tool_calls"
    kinds = [value["type"] for value in events(sent)][-5:]
    begun, done = "response.output_item.added", "response.output_item.done"
    arguments = "response.function_call_arguments"
    assert kinds == [begun, f"{arguments}.delta", f"{arguments}.done", done, "response.completed"]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("namespace", ToolCall("net__run_command", '{"device":"edge-2"}', "call_x")),
        ("custom", ToolCall("note", '{"input": "hello"}', "call_x")),
    ],
)
def test_substituted_calls_are_of_the_requests_own_kinds(name: str, call: ToolCall) -> None:
    driver = Driver("hold")
    gate = driver.gate
    gate.feed((DATA / f"{name}.sse").read_bytes())
    sent = gate.decide(0, gate.substituted(0, [call]))
    assert responses_answer.read(sent, stream=True).choices[0].calls == (call,)
    item = events(sent)[-1]["response"]["output"][0]
    assert (item.get("namespace"), item.get("input")) == (("net", None) if name == "namespace" else (None, "hello"))


def test_keepalives_take_no_number() -> None:
    gate, body = ResponsesGate(), BY_NAME["text then a call"].body
    assert gate.keepalive().startswith(b":")
    sent = gate.feed(body)
    kept = gate.keepalive()
    (value,) = events(kept)
    assert value["type"] == "response.in_progress"
    assert value["sequence_number"] == events(sent)[-1]["sequence_number"]
    as_the_client_reads(sent + kept + gate.decide(0, None))


def test_an_error_in_the_stream_says_it_in_both_forms() -> None:
    gate = ResponsesGate()
    sent = gate.feed(BY_NAME["text then a call"].body)
    gate.drop()
    ended = gate.error("no") + gate.flush()
    (value,) = events(ended)
    assert value["type"] == "error"
    assert value["message"] == value["error"]["message"] == "no"
    assert value["code"] == value["error"]["code"] == value["error"]["type"] == "tool_call_refused"
    assert value["sequence_number"] == events(sent)[-1]["sequence_number"] + 1
    EVENT.validate_python(value)
    assert gate.over
    assert not gate.waiting
    assert gate.feed(b'data: {"type":"response.completed","response":{}}\n\n') == b""


def test_a_response_of_which_nothing_went_out_is_whole_all_the_same() -> None:
    sent = through([b'data: {"type":"response.created","item":{"type":"function_call","name":"x"}}\n\n'])
    assert as_the_client_reads(sent).output_text == REFUSED


def test_what_a_client_was_shown() -> None:
    gate = ResponsesGate()
    stream = BY_NAME["reasoning text and a call"]
    for block in sse.Splitter().feed(stream.body):
        told = b"".join(gate.feed(bytes([byte])) for byte in block)
        if b"output_text.delta" in told:
            break
        assert not gate.spoke
    assert gate.spoke
    assert gate.unfinished() == [0]
    gate.feed(stream.body[stream.clear :])
    assert gate.undecided() == [0]
    assert gate.unfinished() == []


def test_tools_that_the_server_ran_go_through_where_they_are_allowed() -> None:
    for name in ("a web search", "a call of an mcp server", "code for an interpreter", "pieces of an mcp call"):
        body = BY_NAME[name].body
        gate = ResponsesGate(BUILT_IN)
        assert gate.feed(body) == body
        assert not gate.waiting
        assert gate.over
    for name in ("a question for approval", "a command for a shell", "a kind that is unknown"):
        gate = ResponsesGate(BUILT_IN)
        gate.feed(BY_NAME[name].body)
        assert gate.undecided() == [REST]


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_HELD", 2000)
    stream = BY_NAME["arguments of 100 kb"]
    driver = Driver("refuse")
    driver.out.append(driver.gate.feed(stream.body[: stream.clear]))
    with pytest.raises(HeldTooMuchError):
        driver.gate.feed(stream.body[stream.clear :])
    driver.refuse_all()
    sent = b"".join(driver.out)
    assert leaked(sent, stream) is None
    assert as_the_client_reads(sent).output_text == f"{stream.text}{REFUSED}"
    with pytest.raises(HeldTooMuchError):
        ResponsesGate().feed(b"x" * 3000)


WHOLE: dict[str, tuple[bytes, int | None]] = {
    "none": (b'{"output":[{"type":"message","content":[{"type":"output_text","text":"tool_calls"}]}]}', 0),
    "one": (b'{"output":[{"type":"function_call","name":"f","arguments":"{}"}]}', 1),
    "in tools": (b'{"output":[],"tools":[{"type":"function","name":"function_call","parameters":{"name":{}}}]}', 0),
    "escaped": (b'{"output":[{"type":"function\\u005fcall","name":"f","arguments":"{}"}]}', 1),
    "twice": (b'{"output":[{"type":"function_call","name":"f"}],"output":[]}', None),
    "type in another case": (b'{"output":[{"Type":"function_call","name":"f","arguments":"{}"}]}', None),
    "other arguments": (b'{"output":[{"type":"function_call","name":"f","Arguments":"{}"}]}', None),
    "an id in another case": (b'{"output":[{"type":"function_call","name":"f","arguments":"{}","ID":"x"}]}', None),
    "arguments with a long s": (
        '{"output":[{"type":"function_call","name":"f","arguments":"{}","argument\u017f":"x"}]}'.encode(),
        None,
    ),
    "another output": (b'{"output":[{"type":"function_call","name":"f","arguments":"{}"}],"Output":[]}', None),
    "at the top level": (b'{"output":[],"tool_calls":[{"id":"a"}]}', None),
    "in a message": (b'{"output":[{"type":"message","content":[],"tool_calls":[{"id":"a"}]}]}', None),
    "in chat's place": (b'{"output":[],"choices":[{"message":{"tool_calls":[{"id":"a"}]}}]}', None),
    "of the server": (b'{"output":[{"type":"mcp_call","name":"f","arguments":"{}"}]}', None),
    "output is no list": (b'{"output":{"type":"function_call","name":"f"}}', None),
    "not JSON": (b"<html>", None),
    "a list": (b'[{"type":"function_call"}]', None),
}


@pytest.mark.parametrize("name", WHOLE)
def test_where_a_whole_answer_holds_calls(name: str) -> None:
    body, count = WHOLE[name]
    choice = choice_of_whole(body)
    assert (None if choice is None else len(choice.calls)) == count


def test_a_whole_answer_keeps_what_was_said_before_its_call() -> None:
    body = (
        b'{"id":"resp_1","n":123456789012345678901234567890, "output": [ {"type":"message","id":"m"} ,'
        b'{"type":"function_call","name":"f","arguments":"{}"},{"type":"message","id":"after"}],"status":"incomplete",'
        b'"incomplete_details":{"reason":"max_output_tokens"},"output_messages":[{"message":"f"}],"usage":{"a":1}}'
    )
    sent = refused_whole(body, REFUSED)
    assert sent.startswith(
        b'{"id":"resp_1","n":123456789012345678901234567890, "output": [{"type":"message","id":"m"},{'
    )
    assert sent.endswith(b'"status":"completed","incomplete_details":null,"output_messages":null,"usage":{"a":1}}')
    assert [item["type"] for item in json.loads(sent)["output"]] == ["message", "message"]


def test_a_whole_answer_with_a_key_in_escapes_keeps_no_call() -> None:
    call = b'[{"type":"function_call","name":"QXZKJVWG","arguments":"{}"}]'
    for body in (
        b'{"id":"r","outp\\u0075t":%b}' % call,
        b'{"output":%b,"output\\u005fmessages":[{"message":"QXZKJVWG"}]}' % call,
    ):
        whole = ResponsesWhole(body, body)
        assert whole.held
        sent = whole.replaced({0: REFUSED})
        assert b"QXZK" not in sent
        assert json.loads(sent)["output"][0]["content"][0]["text"] == REFUSED


def test_a_whole_answer_is_as_the_driver_asks_for_it() -> None:
    plain = b'{"output":[]}'
    assert ResponsesWhole(plain, plain).held == {}
    assert ResponsesWhole(plain, plain).replaced({}) == plain
    assert ResponsesWhole(b"<html>", b"").held is None
    body = (DATA / "two-calls.json").read_bytes()
    whole = ResponsesWhole(body, body)
    assert [call.name for call in (whole.held or {})[0].calls] == ["run_command", "reboot"]
    assert whole.replaced({0: REFUSED}) == refused_whole(body, REFUSED)
    assert whole.replaced({0: [OTHER]}) == substituted_whole(body, [OTHER])
    searched = b'{"output":[{"type":"web_search_call"}]}'
    assert ResponsesWhole(searched, searched).held is None
    assert ResponsesWhole(searched, searched, BUILT_IN).held == {}


# --- at random --------------------------------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    ["type", "item", "delta", "id", "name", "arguments", "output", "response", "call_id", "x", "part"]
)
_KINDS = st.sampled_from(
    [
        "function_call",
        "message",
        "reasoning",
        "output_text",
        "tool_use",
        "error",
        "response.completed",
        "response.output_item.added",
        "response.output_item.done",
        "response.function_call_arguments.delta",
        "response.output_text.delta",
    ]
)
_LEAVES = st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=5) | _KINDS
_JSON = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4), max_leaves=12
)
_EVENTS = st.dictionaries(_WORDS, _JSON, max_size=5).flatmap(
    lambda told: (_KINDS | _JSON).map(lambda kind: told | {"type": kind})
)
_BLOCKS = _EVENTS.map(lambda e: b"data: " + dumps(e) + b"\n\n") | st.binary(max_size=20)


@settings(max_examples=150, deadline=None)
@given(st.lists(_BLOCKS, max_size=6), st.randoms(use_true_random=False))
def test_anything_at_all(blocks: list[bytes], chance: random.Random) -> None:
    """Never raises; released, all goes out; refused, no event of a call does."""
    body = b"".join(blocks)
    cuts = sorted(chance.randrange(len(body) + 1) for _ in range(3))
    pieces = [body[i:j] for i, j in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    splitter = sse.Splitter()
    list(splitter.feed(body))
    driver = Driver("release")
    sent = driver.run(pieces)
    failed = "error" in [value.get("type") for value in map(answers.read_object, _payloads(body)) if value]
    if not failed and b"response.failed" not in body and not splitter.rest:
        assert sent == body
    for payload in _payloads(through(pieces)):
        value = answers.read_object(payload)
        item = (value or {}).get("item")
        assert not (isinstance(item, dict) and item.get("type") == "function_call")
        assert (value or {}).get("type") != "response.function_call_arguments.delta"


def _payloads(body: bytes) -> list[bytes]:
    return [payload for block in sse.Splitter().feed(body) if (payload := sse.data_of(block)) is not None]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SHORT), st.randoms(use_true_random=False))
def test_events_in_any_order(stream: Stream, chance: random.Random) -> None:
    """Whatever order they come in, and however often: no piece of a call goes out."""
    splitter = sse.Splitter()
    blocks = [*splitter.feed(stream.body), splitter.rest]
    mixed = chance.choices(blocks, k=len(blocks))
    assert leaked(through(mixed), stream) is None
    if not stream.error:
        assert through(mixed, "release") == b"".join(mixed)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SHORT), st.data())
def test_streams_with_bytes_changed(stream: Stream, data: st.DataObject) -> None:
    """Never raises, and whatever it was is released as it came, or failed."""
    body = bytearray(stream.body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"\n", b"\r", b'"', b"{", b"\\u0041"])
        )
    splitter = sse.Splitter()
    list(splitter.feed(bytes(body)))
    sent = through([bytes(body)], "release")
    through([bytes(body)])
    if not splitter.rest and not stream.error:
        assert sent == bytes(body)
