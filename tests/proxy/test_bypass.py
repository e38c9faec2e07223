"""No way around block mode: everything that a client or an answer could try, and no byte of a call gets out."""

import asyncio
import gzip
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.proxy import bypass_answers, bypass_requests
from tests.proxy.bypass import (
    PATHS,
    STREAM,
    TOOL,
    WHOLE,
    Attempt,
    answered,
    answers_in,
    asked,
    chat_message,
    dumps,
    leaked,
    post,
    streamed,
)
from tests.proxy.rawhttp import Client, Message
from tests.proxy.rawstage import Stage

pytestmark = pytest.mark.slow

ATTEMPTS = (*bypass_requests.ATTEMPTS, *bypass_answers.ATTEMPTS)
POLICIES = {
    "a rule": {"tools": [{"match": "*", "rules": [{"id": "none", "cel": "false", "message": "no tool is allowed"}]}]},
    "nobody approves": {"default": {"approve": "true", "approval_timeout": "10ms"}},
}


@pytest.fixture(scope="module", params=POLICIES)
def stage(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stage]:
    settings = {"mirror": {"max_body_bytes": bypass_requests.MOST}, "listen": {"port": 0, "read_timeout": "300ms"}}
    policy = POLICIES[request.param]
    with Stage(tmp_path_factory.mktemp("stage"), mode="block", policy=policy, **settings).up() as up:
        yield up


def test_there_are_many_attempts_of_every_kind() -> None:
    kinds = Counter(attempt.kind for attempt in ATTEMPTS)
    names = {(attempt.kind, attempt.name) for attempt in ATTEMPTS}
    assert len(ATTEMPTS) == len(names) >= 150
    assert len(kinds) >= 12
    assert min(kinds.values()) >= 3, kinds


@pytest.mark.parametrize("body", [*WHOLE.values(), *STREAM.values()])
def test_a_call_is_found_however_it_is_written(body: bytes) -> None:
    text = body.decode()
    escaped = text.replace("Q", "\\u0051").replace("Z", "\\u005A").replace("J", "\\u004a").encode()
    for wire in (body, text.encode("utf-16"), text.encode("utf-32"), b"head" + gzip.compress(body), escaped):
        assert leaked(wire)
    assert not leaked(b"[counterproof] The call of QXZK_JVWG was refused")
    assert leaked(b"[counterproof] The call of QXZK_JVWG went out")


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=[f"{attempt.kind}-{attempt.name}" for attempt in ATTEMPTS])
def test_no_call_gets_out(stage: Stage, attempt: Attempt) -> None:
    async def scene() -> None:
        await stage.fresh()
        stage.upstream.plays.extend([attempt.answer] * 3)
        switch = stage.door.service.regime.switch
        for mode, model in attempt.modes:
            switch.set(mode, who="test", model=model)
        try:
            async with stage.client() as client:
                await client.send(*attempt.pieces)
                wire = await client.rest()
        finally:
            for _mode, model in attempt.modes:
                switch.clear(who="test", model=model)
        assert leaked(wire) is None, wire
        assert len(stage.upstream.requests) == attempt.reaches
        answers = await answers_in(wire, attempt.pieces[0].split(b" ")[0])
        assert tuple(answer.status for answer in answers) == attempt.statuses, wire
        assert attempt.says in wire, wire

    stage.play(scene())


@pytest.mark.parametrize("attempt", bypass_answers.FOREIGN, ids=[attempt.name for attempt in bypass_answers.FOREIGN])
def test_what_no_reader_of_the_dialect_takes_for_a_call(stage: Stage, attempt: Attempt) -> None:
    async def scene() -> None:
        stage.upstream.plays.append(attempt.answer)
        async with stage.client() as client:
            await client.send(*attempt.pieces)
            assert leaked(await client.rest()) is None

    stage.play(scene())


def test_a_client_that_leaves_and_comes_back_gets_no_call(stage: Stage) -> None:
    async def scene() -> None:
        request, answer = post(PATHS["chat"]), streamed(STREAM["chat"])
        for bytes_sent in (len(request) // 2, len(request) - 1):
            async with stage.client() as client:
                await client.send(request[:bytes_sent])
        await stage.idle()
        assert stage.upstream.requests == []
        for _ in range(3):  # without waiting for what is answered, and then to the end
            stage.upstream.plays.append(answer)
            async with stage.client() as client:
                await client.send(request)
                while not stage.upstream.requests:
                    await asyncio.sleep(0.002)
            await stage.idle()
            stage.upstream.requests.clear()
        stage.upstream.plays.extend([answer] * 3)
        for _ in range(3):
            async with stage.client() as client:
                await client.send(request)
                wire = await client.rest()
            assert leaked(wire) is None, wire
            assert b"[counterproof] The call of QXZK_JVWG " in wire

    stage.play(scene())


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": TOOL}}], ids=["required", "named"]
)
@pytest.mark.parametrize("shape", ["whole", "streamed"])
def test_a_call_that_was_demanded_is_no_exception(stage: Stage, choice: Any, shape: str) -> None:
    async def scene() -> None:
        stage.upstream.plays.append(answered(WHOLE["chat"]) if shape == "whole" else streamed(STREAM["chat"]))
        async with stage.client() as client:
            await client.send(post(PATHS["chat"], asked("chat", tool_choice=choice)))
            wire = await client.rest()
        assert leaked(wire) is None, wire
        assert [answer.status for answer in await answers_in(wire, b"POST")] == [422]
        assert b'"code":"tool_call_refused"' in wire

    stage.play(scene())


MARKUP = b'<tool_call>\\n{\\"name\\": \\"QXZK_JVWG\\"}\\n</tool_call>'
CONTENT = {
    "the text of /v1/completions": (b"/v1/completions", b'{"choices":[{"index":0,"text":"%b"}]}' % MARKUP),
    "a chat's text": (PATHS["chat"], b'{"choices":[{"index":0,"message":{"content":"%b"}}]}' % MARKUP),
}


@pytest.mark.parametrize("name", CONTENT)
def test_text_is_content_whatever_it_looks_like(stage: Stage, name: str) -> None:
    """Whoever runs what a text says has no tool calls that a proxy could hold: text goes out as it is."""
    path, body = CONTENT[name]

    async def scene() -> None:
        stage.upstream.plays.append(answered(body))
        async with stage.client() as client:
            (answer,) = await _asked(client, post(path))
        assert (answer.status, answer.body) == (200, body)

    stage.play(scene())


def test_json_that_is_told_to_be_a_stream_goes_out_where_it_has_no_call(stage: Stage) -> None:
    body = dumps(chat_message({"content": "hello"}, finish_reason="stop"))

    async def scene() -> None:
        stage.upstream.plays.append(streamed(body))
        async with stage.client() as client:
            (answer,) = await _asked(client, post(PATHS["chat"], asked("chat", stream=True)))
        assert (answer.status, answer.body) == (200, body)

    stage.play(scene())


ERRORS = {
    "vLLM's": (400, b"application/json", b'{"error":{"message":"x","type":"BadRequestError","param":null,"code":400}}'),
    "one that is a text": (401, b"application/json", b'{"error":"Unauthorized"}'),
    "FastAPI's": (404, b"application/json", b'{"detail":"Not Found"}'),
    "a server's": (500, b"text/plain; charset=utf-8", b"Internal Server Error"),
    "a load balancer's": (503, b"text/html; charset=iso-8859-1", b"<html>\n\n<p>tr\xe8s occup\xe9</p>\n</html>"),
    "an empty one": (502, None, b""),
    "one that is streamed": (500, b"text/event-stream", b'data: {"error":{"message":"x"}}\n\ndata: [DONE]\n\n'),
    "one that speaks of calls": (400, b"application/json", b'{"error":{"message":"tool_calls: \\"auto\\" tool_use"}}'),
}


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_that_holds_no_call_goes_out_as_it_came(stage: Stage, name: str, dialect: str) -> None:
    status, kind, body = ERRORS[name]

    async def scene() -> None:
        odd = answered(body, kind, b"Retry-After: 7", start=b"HTTP/1.1 %d Odd" % status)
        stage.upstream.plays.append(odd)
        async with stage.client() as client:
            (answer,) = await _asked(client, post(PATHS[dialect], asked(dialect)))
        assert (answer.status, answer.body) == (status, body)
        assert answer.all(b"retry-after") == [b"7"]
        assert answer.all(b"content-type") == ([kind] if kind else [])

    stage.play(scene())


async def _asked(client: Client, request: bytes) -> list[Message]:
    await client.send(request)
    return await answers_in(await client.rest(), b"POST")
