"""The corpus of leakstreams says of its streams what is true; the gate is tested with it elsewhere."""

import json
import random
from collections import Counter

import pytest

from proxy.cut import Nulls
from proxy.inject import Level, Removal, plan
from shadow.exchange import Answer, Choice, Dialect, Request
from shadow.wire import answers, sse
from tests.proxy.leakstreams import BY_NAME, CORPUS, WINDOW, LeakStream, leaked
from tests.proxy.leakstreams_shapes import LONG, MARKER_LETTERS

LETTERS = MARKER_LETTERS.encode()
KINDS = Counter(stream.kind for stream in CORPUS)
each_kind = pytest.mark.parametrize("streams", [[s for s in CORPUS if s.kind == kind] for kind in KINDS], ids=KINDS)


def answer_of(stream: LeakStream) -> Answer:
    return answers.read(Dialect.CHAT, stream.body, stream=True)


def outside_of_calls(stream: LeakStream) -> bytes:
    """The body with a space in place of each call field."""
    parts, at = [], 0
    for start, end in stream.spans:
        parts.append(stream.body[at:start])
        at = end
    return b" ".join([*parts, stream.body[at:]])


def nulls_of(stream: LeakStream) -> Nulls:
    body = stream.options.body()
    injection = plan(Request(Dialect.CHAT, body), json.dumps(body).encode(), Level.FULL, 5)
    assert injection is not None
    return injection.nulls


def removed(stream: LeakStream, pieces: list[bytes]) -> bytes:
    removal = Removal(nulls_of(stream))
    return b"".join(removal.feed(piece) for piece in pieces) + removal.rest


def told(answer: Answer) -> dict[int, tuple[object, ...]]:
    def of(choice: Choice) -> tuple[object, ...]:
        return choice.calls, choice.content, choice.reasoning, choice.finish_reason

    return {index: of(choice) for index, choice in answer.choices.items()}


def test_there_are_many_streams_of_every_kind() -> None:
    assert len(CORPUS) == len(BY_NAME) >= 150
    assert min(KINDS.values()) >= 2, KINDS
    assert sum(stream.injected is not None for stream in CORPUS) >= 100
    assert sum(bool(stream.secrets) for stream in CORPUS) >= 130
    assert sum(stream.verdictable for stream in CORPUS) >= 80
    assert sum(not stream.verdictable for stream in CORPUS) >= 40
    assert {stream.options.n for stream in CORPUS} == {1, 2, 3}
    assert all(stream.note for stream in CORPUS)


def test_what_is_to_be_cut_at_every_byte_is_short() -> None:
    assert all(stream.long == (len(stream.body) > LONG) for stream in CORPUS)
    assert {stream.kind for stream in CORPUS if stream.long} == {"long", "parallel calls"}
    assert sum(len(stream.body) for stream in CORPUS if not stream.long) < 400_000


def test_no_two_streams_share_a_secret() -> None:
    secrets = [secret for stream in CORPUS for secret in stream.secrets]
    assert len(set(secrets)) == len(secrets) >= 1000


@each_kind
def test_secrets_stand_in_call_fields_and_nowhere_else(streams: list[LeakStream]) -> None:
    for stream in streams:
        fields = b"\n".join(stream.body[start:end] for start, end in stream.spans)
        assert all(secret in fields for secret in stream.secrets), stream.name
        assert leaked(outside_of_calls(stream), stream) is None, stream.name
        assert bool(stream.spans) == bool(stream.secrets), stream.name


@each_kind
def test_every_call_field_holds_a_secret(streams: list[LeakStream]) -> None:
    for stream in streams:
        at = 0
        for start, end in stream.spans:
            assert at <= start < end, stream.name
            assert leaked(stream.body[start:end], stream), stream.name
            at = end


@each_kind
def test_the_injected_answer_without_what_was_injected_is_the_body(streams: list[LeakStream]) -> None:
    for stream in streams:
        if (injected := stream.injected) is None:
            continue
        assert injected != stream.body
        assert removed(stream, [injected]) == stream.body, stream.name
        chance, pieces, at = random.Random(stream.name), list[bytes](), 0
        while at < len(injected):
            pieces.append(injected[at : at + chance.randint(1, 2 ** chance.randint(0, 11))])
            at += len(pieces[-1])
        assert removed(stream, pieces) == stream.body, stream.name


@each_kind
def test_right_readers_put_the_same_calls_together(streams: list[LeakStream]) -> None:
    for stream in streams:
        if not stream.verdictable:
            continue
        answer = answer_of(stream)
        assert {i: choice.calls for i, choice in answer.choices.items() if choice.calls} == stream.calls, stream.name
        assert (answer.problem is None) == stream.complete, stream.name
        assert answer.problem in ({None, "truncated"} if stream.error is None else {"error"}), stream.name
        for index, choice in answer.choices.items():
            text, beside = stream.text.get(index, ""), stream.beside.get(index, "")
            assert choice.lead.startswith(text), stream.name
            assert choice.lead == text + beside or not choice.calls, stream.name


@each_kind
def test_an_injected_answer_says_the_same_and_its_tokens(streams: list[LeakStream]) -> None:
    for stream in streams:
        if stream.injected is None or not stream.verdictable:
            continue
        injected = answers.read(Dialect.CHAT, stream.injected, stream=True)
        assert told(answer_of(stream)) == told(injected), stream.name
        for choice in injected.choices.values():
            assert choice.token_ids is None or len(choice.top or ()) == len(choice.token_ids), stream.name


def test_a_hermes_stream_tells_the_tokens_of_its_call() -> None:
    injected = BY_NAME["text then call"].injected
    assert injected is not None
    choice = answers.read(Dialect.CHAT, injected, stream=True).choices[0]
    spoken = b"".join(text for text in choice.token_bytes or () if text).decode()
    (call,) = choice.calls
    written = f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call><|im_end|>'
    assert spoken == choice.lead + written
    assert choice.prompt_ids is not None


@each_kind
def test_everything_before_the_first_call_is_whole_events_without_a_call(streams: list[LeakStream]) -> None:
    for stream in streams:
        clear = stream.body[: stream.clear]
        splitter = sse.Splitter()
        list(splitter.feed(clear))
        assert splitter.rest.strip(b"\xef\xbb\xbf\n") == b"", stream.name
        assert all(start >= stream.clear for start, _ in stream.spans), stream.name
        before = answers.read(Dialect.CHAT, clear, stream=True)
        assert not any(choice.calls for choice in before.choices.values()), stream.name
        assert before.problem in {None, "truncated", "error"}, stream.name
        if stream.options.n == 1:
            assert {i: c.content for i, c in before.choices.items() if c.content} == stream.text, stream.name
        assert stream.secrets or not stream.verdictable or stream.clear == len(stream.body), stream.name


@each_kind
def test_usage_errors_and_done_are_events_of_the_body(streams: list[LeakStream]) -> None:
    for stream in streams:
        payloads = payloads_of(stream.body)
        assert (sse.DONE in [payload.strip() for payload in payloads]) == stream.done, stream.name
        assert stream.usage is None or stream.options.include_usage
        for event, key in ((stream.usage, "usage"), (stream.error, "error")):
            if event is None:
                continue
            blocks = [block.strip(b"\r\n") for block in sse.Splitter().feed(stream.body)]
            assert event in stream.body, stream.name
            assert event.strip(b"\r\n") in blocks, stream.name
            assert leaked(event, stream) is None, stream.name
            (payload,) = payloads_of(event)
            assert json.loads(payload)[key], stream.name
            assert not json.loads(payload).get("choices"), stream.name


def payloads_of(body: bytes) -> list[bytes]:
    return [data for block in sse.Splitter().feed(body) if (data := sse.data_of(block)) is not None]


@each_kind
def test_calls_are_of_offered_tools_where_they_can_be_judged(streams: list[LeakStream]) -> None:
    for stream in streams:
        request = Request(Dialect.CHAT, stream.options.body())
        assert request.stream
        names = {call.name for calls in stream.calls.values() for call in calls}
        known = names <= request.tool_names
        assert known or not stream.verdictable or stream.name == "a tool that nobody offered", stream.name


@each_kind
def test_any_fragment_of_a_secret_is_found(streams: list[LeakStream]) -> None:
    for stream in streams:
        assert leaked(b"[counterproof] this call differs from the reference", stream) is None
        for secret in stream.secrets[:20]:
            for start in range(len(secret) - WINDOW + 1):
                assert leaked(b"text " + secret[start : start + WINDOW] + b" text", stream), stream.name
                assert not leaked(b"text " + secret[start : start + WINDOW - 1] + b" text", stream), stream.name


def test_a_secret_that_was_escaped_is_found_in_clear() -> None:
    stream = BY_NAME["every letter escaped"]
    (name,) = {call.name for call in stream.calls[0]}
    assert leaked(name.encode(), stream)
    assert all(not leaked(bytes([letter]) * 3, stream) for letter in LETTERS)


def test_a_call_of_100_kb_carries_a_secret_in_every_piece() -> None:
    stream = BY_NAME["a call of 100 kb in pieces"]
    assert len(stream.spans) > 200
    assert len(stream.calls[0][0].arguments) > 100_000
