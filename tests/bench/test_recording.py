import orjson

from bench import recording
from shadow.conversation import conversation_key, in_sample
from shadow.exchange import Dialect, Request


def test_every_request_of_the_bench_is_one_conversation_outside_of_the_default_sample() -> None:
    bodies = [recording.small(), recording.large(), recording.stream(5), recording.stream(5, 250.0)]
    requests = [Request(Dialect.CHAT, orjson.loads(body)) for body in bodies]
    keys = {conversation_key(request, None) for request in requests}
    assert len(keys) == 1
    assert not in_sample(keys.pop(), recording.OTHER_RATE)
    assert {request.tool_choice for request in requests} == {"none"}


def test_the_long_prompt_is_as_long_as_it_says() -> None:
    assert abs(len(recording.large()) - recording.LARGE_BYTES) < 1000


def test_the_upstream_finds_what_it_looks_for_in_a_request() -> None:
    assert b'"stream":true' in recording.stream(5)
    assert b'"max_tokens":5' in recording.stream(5)
    assert b"pace=250" in recording.stream(5, 250.0)
    assert b"return_token_ids" not in recording.stream(5)
    assert b'"return_token_ids":true' in recording.injected(recording.stream(5))
