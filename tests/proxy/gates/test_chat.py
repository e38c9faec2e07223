"""The gate on the leak corpus: refused, nothing of a call goes out; released, all is as observe mode sends it."""

import json
import os
from collections.abc import Iterator

import pytest

from proxy.cut import Nulls
from proxy.gate import REST, HeldTooMuchError, Signal
from proxy.gates.chat import ChatGate, ChatWhole
from proxy.gates.chat_calls import calls_of_whole
from proxy.gates.chat_writing import with_messages
from proxy.inject import Removal
from shadow.exchange import Dialect
from shadow.wire import answers, sse
from tests.proxy.leakstreams import CORPUS, LeakStream, leaked

SHORT = [stream for stream in CORPUS if not stream.long]
REFUSED = "[counterproof] no"
_NULLS = Nulls(frozenset({b"prompt_token_ids"}), frozenset({b"token_ids", b"logprobs"}), drop_empty=True)


def two_of_each_kind() -> list[LeakStream]:
    kinds: dict[str, list[LeakStream]] = {}
    for stream in SHORT:
        kinds.setdefault(stream.kind, []).append(stream)
    return [stream for streams in kinds.values() for stream in sorted(streams, key=lambda s: len(s.body))[:2]]


def removal() -> Removal:
    return Removal(_NULLS)


def refused(gate: ChatGate, index: int) -> bytes:
    return gate.refused(index, REFUSED)


def through(pieces: Iterator[bytes] | list[bytes], *, release: bool, removing: Removal | None = None) -> bytes:
    """What a client gets where every call is decided as soon as it is whole."""
    gate, out = ChatGate(removing), []

    def follow() -> None:
        for signal, index in gate.signals():
            if signal is Signal.CLOSED and index in gate.undecided():
                out.append(gate.decide(index, None if release else refused(gate, index)))

    for piece in pieces:
        out.append(gate.feed(piece))
        follow()
    out.append(gate.end())
    rest = REST in gate.undecided()
    if rest and not release:
        out += [refused(gate, index) for index in ([] if gate.over else gate.unfinished())]
        held = [index for index in gate.undecided() if index != REST]
        out += [gate.decide(index, b"" if gate.over else refused(gate, index)) for index in held]
        out.append(gate.decide(REST, b""))
    follow()
    if rest and release:
        out.append(gate.decide(REST, None))
    assert not gate.waiting
    return b"".join(out)


def contents(sent: bytes) -> dict[int, str]:
    """All text by choice, as a reader that takes what it can reads it."""
    found: dict[int, str] = {}
    for block in [*sse.Splitter().feed(sent)]:
        value = answers.read_object(sse.data_of(block) or b"")
        for choice in (value or {}).get("choices") or []:
            if isinstance(choice, dict) and isinstance(choice.get("delta"), dict):
                index = choice.get("index", 0)
                found[index] = found.get(index, "") + (choice["delta"].get("content") or "")
    return found


def check_refused(stream: LeakStream, sent: bytes) -> None:
    assert leaked(sent, stream) is None
    assert sent.startswith(stream.body[: stream.clear].removesuffix(b"\n"))  # half of a CRLF comes with what follows
    texts = contents(sent)
    for index, text in stream.text.items():
        assert texts.get(index, "").startswith(text)
    if stream.usage and stream.verdictable:
        assert stream.usage in sent
    if stream.error:
        assert stream.error in sent
    if stream.done:
        assert b"[DONE]" in sent


@pytest.mark.parametrize("stream", CORPUS, ids=[stream.name for stream in CORPUS])
def test_a_refused_stream_keeps_its_calls(stream: LeakStream) -> None:
    sent = through([stream.body], release=False)
    check_refused(stream, sent)
    if stream.injected:
        check_refused(stream, through([stream.injected], release=False, removing=removal()))


@pytest.mark.parametrize("stream", CORPUS, ids=[stream.name for stream in CORPUS])
def test_a_released_stream_is_what_observe_mode_sends(stream: LeakStream) -> None:
    sent = through([stream.body], release=True)
    if stream.error and stream.calls:
        return  # held when the primary failed: see below
    if stream.options.n == 1:
        assert sent == stream.body
    else:  # choices are held by themselves
        assert sorted(sse.Splitter().feed(sent)) == sorted(sse.Splitter().feed(stream.body))
    if stream.injected:
        assert sorted(through([stream.injected], release=True, removing=removal())) == sorted(sent)


@pytest.mark.parametrize("stream", SHORT, ids=[stream.name for stream in SHORT])
def test_a_stream_that_comes_byte_by_byte(stream: LeakStream) -> None:
    pieces = [stream.body[i : i + 1] for i in range(len(stream.body))]
    check_refused(stream, through(pieces, release=False))


# Each costs some seconds: two of every kind here, all of them where somebody asks for it.
CUT = SHORT if os.environ.get("COUNTERPROOF_EVERY_STREAM") else two_of_each_kind()


@pytest.mark.slow
@pytest.mark.parametrize("stream", CUT, ids=[stream.name for stream in CUT])
def test_a_stream_cut_at_every_byte(stream: LeakStream) -> None:
    body, seen, ended = stream.body, set(), set()
    for at in range(1, len(body)):
        seen.add(through([body[:at], body[at:]], release=False))
        ended.add(through([body[:at]], release=False))  # and one that ends there
    for sent in seen:
        check_refused(stream, sent)
    for sent in ended:
        assert leaked(sent, stream) is None
    if b"\r" not in body and stream.options.n == 1 and not stream.error:  # else what is decided when makes a difference
        assert seen == {through([body], release=False)}


def test_held_bytes_go_out_in_their_own_order() -> None:
    stream = next(stream for stream in CORPUS if stream.name == "hermes")
    gate = ChatGate(None)
    first = gate.feed(stream.body)
    assert first == stream.body[: stream.clear]
    assert gate.undecided() == [0]
    assert gate.decide(0, None) == stream.body[stream.clear :]


def test_what_is_in_no_key_is_text() -> None:
    text = b'data: {"choices":[{"index":0,"delta":{"content":"the \\"tool_calls\\" key, \\u0041"}}]}\n\n'
    gate = ChatGate(None)
    assert gate.feed(text) == text
    assert not gate.waiting


RESPELLED = [stream for stream in CORPUS if stream.kind == "keys in another case"]


@pytest.mark.parametrize("stream", RESPELLED, ids=[stream.name for stream in RESPELLED])
def test_a_call_whose_keys_only_some_readers_take_is_not_judged(stream: LeakStream) -> None:
    gate = ChatGate(None)
    assert gate.feed(stream.body) == stream.body[: stream.clear]
    assert REST in gate.undecided()


WHOLE = {
    "none": (b'{"choices":[{"index":0,"message":{"content":"x","tool_calls":[]}}]}', []),
    "one": (b'{"choices":[{"index":0,"message":{"tool_calls":[{"function":{"name":"f"}}]}}]}', [0]),
    "second": (b'{"choices":[{"message":{}},{"message":{"tool_calls":[{"function":{"name":"f"}}]}}]}', [1]),
    "older": (b'{"choices":[{"index":0,"message":{"function_call":{"name":"f"}}}]}', [0]),
    "escaped": (b'{"choices":[{"index":0,"message":{"tool\\u005fcalls":[{"id":"a"}]}}]}', [0]),
    "in text": (b'{"choices":[{"index":0,"message":{"content":"tool_calls"}}]}', []),
    "elsewhere": (b'{"choices":[{"index":0,"message":{}}],"tool_calls":[{"id":"a"}]}', None),
    "in a delta": (b'{"choices":[{"index":0,"message":{},"delta":{"tool_calls":[{"id":"a"}]}}]}', None),
    "twice": (b'{"choices":[{"message":{"tool_calls":[{"id":"a"}]},"message":{}}]}', None),
    "in another case": (b'{"choices":[{"message":{"Tool_Calls":[{"id":"a"}]}}]}', None),
    "in camels": (b'{"choices":[{"message":{"toolCalls":[{"id":"a"}]}}]}', None),
    "with a long s": ('{"choices":[{"message":{"tool_call\u017f":[{"id":"a"}]}}]}'.encode(), None),
    "older in another case": (b'{"choices":[{"message":{"FUNCTION_CALL":{"name":"f"}}}]}', None),
    "in another message": (b'{"choices":[{"message":{"tool_calls":[{"id":"a"}]},"Message":{}}]}', None),
    "with another name": (b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","Name":"g"}}]}}]}', None),
    "with its name twice": (b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","name":"g"}}]}}]}', None),
    "with an argument in two cases": (
        b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"Name":1,"name":2}}}]}}]}',
        [0],
    ),
    "with an argument twice": (
        b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"a":1,"a":2}}}]}}]}',
        None,
    ),
    "an empty one in another case": (b'{"choices":[{"message":{"content":"x","Tool_Calls":[]}}]}', []),
    "of another dialect, in capitals": (b'{"choices":[{"message":{"content":[{"type":"TOOL_USE"}]}}]}', None),
    "an object for a list": (b'{"choices":[{"message":{"tool_calls":{"function":{"name":"f"}}}}]}', None),
    "in a list of lists": (b'{"choices":[{"message":{"tool_calls":[[{"function":{"name":"f"}}]]}}]}', None),
    "as a text": (b'{"choices":[{"message":{"tool_calls":"f()"}}]}', None),
    "true": (b'{"choices":[{"message":{"tool_calls":true}}]}', None),
    "with a function that is a text": (b'{"choices":[{"message":{"tool_calls":[{"function":"f()"}]}}]}', None),
    "with a name that is a number": (b'{"choices":[{"message":{"tool_calls":[{"function":{"name":1}}]}}]}', None),
    "with arguments that are a number": (
        b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":7}}]}}]}',
        None,
    ),
    "with arguments that are an object": (
        b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"a":7}}}]}}]}',
        [0],
    ),
    "older in a list": (b'{"choices":[{"message":{"function_call":[{"name":"f"}]}}]}', None),
    "older as a text": (b'{"choices":[{"message":{"function_call":"f()"}}]}', None),
    "not JSON": (b"<html>", None),
    "a list": (b'[{"tool_calls":[1]}]', None),
}


@pytest.mark.parametrize("name", WHOLE)
def test_where_a_whole_answer_holds_calls(name: str) -> None:
    body, places = WHOLE[name]
    assert calls_of_whole(body) == places


CALL = b'{"tool_calls":[{"id":"a","function":{"name":"wipe","arguments":"{}"}}]}'


@pytest.mark.parametrize(
    ("first", "second"), [(b"0", b"null"), (b"0", b"0"), (b"null", b"null"), (b"0", b'"1"'), (b"0", b"1.0")]
)
def test_a_whole_answer_whose_choices_are_told_apart_in_two_ways_is_not_read(first: bytes, second: bytes) -> None:
    form = b'{"choices":[{"index":%b,"message":{"content":"x"}},{"index":%b,"message":%b}]}'
    body = form % (first, second, CALL)
    assert ChatWhole(body, body).held is None
    text = form % (first, second, b'{"content":"y"}')
    assert ChatWhole(text, text).held == {}


def test_the_only_choice_of_a_whole_answer_needs_no_index() -> None:
    for index in (b'"index":null,', b""):
        body = b'{"choices":[{%b"message":%b}]}' % (index, CALL)
        whole = ChatWhole(body, body)
        assert whole.held is not None
        assert [call.name for call in whole.held[0].calls] == ["wipe"]
        assert json.loads(whole.replaced({0: "no"}))["choices"][0]["index"] == 0


TWO_READINGS = [stream for stream in CORPUS if stream.kind in {"two readings", "no list of calls"}]


@pytest.mark.parametrize("stream", TWO_READINGS, ids=[stream.name for stream in TWO_READINGS])
def test_a_call_that_has_two_readings_is_not_judged_before_the_end(stream: LeakStream) -> None:
    gate = ChatGate(None)
    held = gate.feed(stream.body)
    assert leaked(held, stream) is None
    assert (Signal.CLOSED, 0) not in gate.signals()
    gate.end()
    assert REST in gate.undecided()


def test_a_whole_answer_gets_another_message() -> None:
    body = (
        b'{"id":"c","n":123456789012345678901234567890, "choices": [ {"index":0,"message":{"content":"hi"}} ,'
        b'{"index":1,"message":{"tool_calls":[{"function":{"name":"f"}}]},"finish_reason":"tool_calls"}],"usage":{"a":1}}'
    )
    sent = with_messages(body, {1: ("no", [])})
    assert sent.startswith(b'{"id":"c","n":123456789012345678901234567890, "choices": [ {"index":0')
    assert sent.endswith(b'],"usage":{"a":1}}')
    choice = json.loads(sent)["choices"][1]
    assert choice["message"] == {"role": "assistant", "content": "no"}
    assert choice["finish_reason"] == "stop"
    assert not answers.read(Dialect.CHAT, sent, stream=False).choices[1].calls


TWICE = b'{"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"name":"f"}}]}}],"choices":%b}'


@pytest.mark.parametrize("last", [b'[{"index":0}]', b"[]", b"[1]", b"{}", b'"x"', b"null", b'[{"delta":[]}]'])
def test_choices_that_stand_twice_are_held_whatever_the_last_of_them_holds(last: bytes) -> None:
    payload = TWICE % last
    gate = ChatGate(None)
    assert gate.feed(b"data: " + payload + b"\n\n") == b""
    assert gate.undecided() == [REST]
    assert calls_of_whole(payload) is None


def test_what_the_removal_takes_away_as_a_whole_needs_no_share() -> None:
    """Fuzzing found it: a choice's calls were dropped with the primary's error, and its empty event came later."""
    gate = ChatGate(removal())
    call = b'{"choices":[{"index":0,"delta":{"tool_calls":[{"id":"a"}]},"finish_reason":null}]}'
    empty = (
        b'{"choices":[{"index":0,"delta":{},"finish_reason":null,"token_ids":[1]},{"index":1,"delta":{"content":"x"}}]}'
    )
    gate.feed(b"data: " + call + b'\n\ndata: {"error":{"message":"m"}}\n\n')
    assert b"tool_calls" not in gate.feed(b"data: " + empty + b"\n\n")
    silent = b'{"choices":[{"index":0,"delta":{},"finish_reason":null,"token_ids":[1]}]}'
    assert gate.feed(b"data: " + silent + b"\n\n") == b""


def test_the_last_line_of_a_stream_is_left_as_it_came() -> None:
    line = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}],"prompt_token_ids":[1]}\n'
    gate = ChatGate(removal())
    assert gate.feed(line) + gate.end() == line


@pytest.mark.parametrize("key", ["choices", "\\u0063hoices", "cho\\u0069ces"])
def test_a_whole_answer_is_refused_however_its_keys_are_spelled(key: str) -> None:
    body = f'{{"{key}":[{{"index":0,"message":{{"tool_calls":[{{"function":{{"name":"wipe"}}}}]}}}}]}}'.encode()
    whole = ChatWhole(body, body)
    assert whole.held
    sent = whole.replaced({0: "no"})
    assert b"wipe" not in sent
    assert json.loads(sent)["choices"][0]["message"] == {"role": "assistant", "content": "no"}


def test_an_event_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.gates.chat.MAX_HELD", 300)
    gate = ChatGate(None)
    assert gate.feed(b"data: " + b"x" * 290) == b""
    with pytest.raises(HeldTooMuchError):
        gate.feed(b"x" * 10)
