"""Connections: kept, shared, pipelined, closed on either side at any moment; what is asked a second time."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.proxy.rawhttp import Message, Source, chunk, chunked, cut, fed
from tests.proxy.rawstage import Answer, Play, Stage, ok

pytestmark = pytest.mark.slow

GET = b"GET /v1/%s HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST /v1/%s HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s"
STREAMED = b"POST /v1/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LARGE = b"abcdefghijklmnop" * (8 * 65536)
CLOSED = Answer((), end="close")
RESET = Answer((), end="reset")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage")).up() as up:
        yield up


def post(name: bytes, body: bytes) -> bytes:
    return POST % (name, len(body), body)


def targets(stage: Stage) -> list[bytes]:
    return [request.target.removeprefix(b"/v1/") for request in stage.upstream.requests]


def after(seconds: float, answer: Answer) -> Play:
    """An answer that takes its time."""

    async def play(request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(seconds)
        return await answer(request, source, writer)

    return play


def assert_is_502(response: Message) -> None:
    assert (response.status, response.whole) == (502, True)
    error = json.loads(response.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("upstream_error", 502)


# --- kept and pipelined --------------------------------------------------------------------------------------------


def test_a_connection_serves_one_request_after_another(stage: Stage) -> None:
    async def scene() -> None:
        async with stage.client() as client:
            for i in range(5):
                stage.upstream.plays.append(ok(b"answer %d" % i))
                got = await client.ask(post(b"%d" % i, b"x" * i))
                assert (got.status, got.body) == (200, b"answer %d" % i)
                assert not got.all(b"connection")
        assert [request.body for request in stage.upstream.requests] == [b"x" * i for i in range(5)]

    stage.play(scene())


def test_clients_that_close_do_not_cost_the_upstream_a_connection_each(stage: Stage) -> None:
    async def scene() -> None:
        before = stage.upstream.connections
        for i in range(5):
            async with stage.client() as client:
                got = await client.ask(b"GET /v1/%d HTTP/1.1\r\nhost: a\r\nConnection: close\r\n\r\n" % i)
                assert (got.status, got.body) == (200, b"ok")
                assert got.lists(b"connection") == {b"close"}
                assert await client.rest() == b""
        assert stage.upstream.connections <= before + 1
        assert not any(b"close" in request.lists(b"connection") for request in stage.upstream.requests)

    stage.play(scene())


def test_an_upstream_that_closes_after_its_answer_does_not_cost_the_client_its_connection(stage: Stage) -> None:
    async def scene() -> None:
        before = stage.upstream.connections
        closing = Answer((b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",), end="close")
        stage.upstream.plays.extend([closing] * 3)
        async with stage.client() as client:
            for i in range(3):
                got = await client.ask(GET % b"%d" % i)
                assert (got.body, got.all(b"connection")) == (b"ok", [])
        assert targets(stage) == [b"0", b"1", b"2"]
        assert stage.upstream.connections >= before + 2

    stage.play(scene())


@pytest.mark.parametrize("size", [1 << 20, 7], ids=["in one segment", "cut anywhere"])
def test_pipelined_requests_are_answered_in_order(stage: Stage, size: int) -> None:
    sent = [
        GET % b"slow",
        GET % b"quick",
        post(b"sized", b"GET /v1/hidden HTTP/1.1\r\n\r\n"),
        b"POST /v1/chunked HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(b"one", b"two"),
        post(b"empty", b""),
        b"DELETE /v1/gone HTTP/1.1\r\nhost: a\r\n\r\n",
        b"HEAD /v1/head HTTP/1.1\r\nhost: a\r\n\r\n",
        GET % b"last",
    ]

    async def scene() -> None:
        stage.upstream.plays.extend([
            after(0.1, ok(b"0")), ok(b"1"), after(0.02, Answer((CHUNKED + chunked(b"2"),))), ok(b"3"), ok(b"4"),
            Answer((b"HTTP/1.1 204 No Content\r\n\r\n",)),
            Answer((b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n",)), ok(b"7"),
        ])  # fmt: skip
        async with stage.client() as client:
            await client.send(*cut(b"".join(sent), size))
            got = [await client.response(request.split(b" ")[0]) for request in sent]
            assert [one.body for one in got] == [b"0", b"1", b"2", b"3", b"4", b"", b"", b"7"]
            assert len({one.all(b"x-counterproof-id")[0] for one in got}) == len(sent)
        assert targets(stage) == [request.split(b" ")[1].removeprefix(b"/v1/") for request in sent]
        bodies = [request.body for request in stage.upstream.requests]
        assert bodies == [b"", b"", b"GET /v1/hidden HTTP/1.1\r\n\r\n", b"onetwo", b"", b"", b"", b""]

    stage.play(scene())


def test_a_large_pipelined_body_waits_for_its_turn_and_arrives_whole(stage: Stage) -> None:
    async def scene() -> None:
        stage.upstream.plays.append(after(0.2, ok(b"first")))
        async with stage.client() as client, asyncio.TaskGroup() as group:
            group.create_task(client.send(GET % b"slow" + post(b"large", LARGE)), name="sends")
            assert (await client.response()).body == b"first"
            assert (await client.response()).body == b"ok"
        assert targets(stage) == [b"slow", b"large"]
        assert stage.upstream.requests[1].body == LARGE

    stage.play(scene())


@pytest.mark.parametrize("last", [b"GET /v1/x HTTP/1.1\r\nconnection: close\r\n\r\n", b"GET /v1/x HTTP/1.0\r\n\r\n"])
@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_nothing_is_served_behind_the_last_request_of_a_connection(stage: Stage, last: bytes, seconds: float) -> None:
    async def scene() -> None:
        stage.upstream.plays.append(after(seconds, ok(b"last")))
        async with stage.client() as client:
            await client.send(last + GET % b"hidden", GET % b"hidden")
            raw = await client.rest()
        assert (await fed(raw).response()).body == b"last"
        assert raw.endswith(b"last")
        await stage.idle()
        assert targets(stage) == [b"x"]

    stage.play(scene())


def test_many_clients_at_once_get_their_own_answers(stage: Stage) -> None:
    async def echo(request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
        await source.request_body(request)
        await asyncio.sleep(0.001 * (len(request.body) % 7))
        return await ok(request.target + b" " + request.body)(request, source, writer)

    async def one(name: int) -> None:
        async with stage.client() as client:
            for i in range(5):
                body = b"%d-%d" % (name, i) * (i + 1)
                got = await client.ask(post(b"%d" % name, body))
                assert got.body == b"/v1/%d " % name + body

    async def scene() -> None:
        stage.upstream.plays.extend([echo] * 200)
        async with asyncio.TaskGroup() as group:
            for name in range(40):
                group.create_task(one(name), name=f"client {name}")
        assert len(stage.upstream.requests) == 200

    stage.play(scene())


# --- HTTP/1.0 and Upgrade ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [b"", b"Connection: keep-alive\r\n"], ids=["plain", "keep-alive"])
@pytest.mark.parametrize("sized", [True, False], ids=["a length", "chunked"])
def test_an_http_1_0_client_gets_a_body_that_ends_with_the_connection(
    stage: Stage,
    sized: bool,  # noqa: FBT001
    kept: bytes,
) -> None:
    """Chunked where the answer has no length: the ASGI server's way, and so vLLM's own."""

    async def scene() -> None:
        stage.upstream.plays.append(
            ok(b"hello") if sized else Answer((CHUNKED, chunk(b"hel"), chunk(b"lo"), b"0\r\n\r\n"))
        )
        async with stage.client() as client:
            await client.send(b"GET /v1/x HTTP/1.0\r\n" + kept + b"\r\n")
            raw = await client.rest()
        got = await fed(raw).response()
        assert got.all(b"transfer-encoding") == ([] if sized else [b"chunked"])
        assert (got.status, got.body, got.whole) == (200, b"hello", True)
        assert stage.upstream.requests[0].version == b"HTTP/1.1"

    stage.play(scene())


@pytest.mark.parametrize("head", [b"GET /v1/0 HTTP/1.1\r\nhost: a\r\n", b"DELETE /v1/0 HTTP/1.1\r\nhost: a\r\n"])
def test_what_follows_a_request_for_an_upgrade_is_answered_or_the_connection_ends(stage: Stage, head: bytes) -> None:
    """No upgrade takes place here, so that what follows is a request like any other: it must not get lost in part."""

    async def scene() -> None:
        body = b"{}" if head.startswith(b"POST") else b""
        async with stage.client() as client:
            hidden = GET % b"hidden"
            await client.send(
                head + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + body + post(b"1", hidden)[: -len(hidden)],
                hidden + b"GET /v1/last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
            )
            raw = await client.rest()
        assert raw.startswith(b"HTTP/1.1 200 OK\r\n")
        assert targets(stage) in ([b"0"], [b"0", b"1", b"last"])
        assert stage.upstream.requests[0].body == body

    stage.play(scene())


# --- bodies on their way -------------------------------------------------------------------------------------------


def test_every_event_arrives_before_the_next_is_written(stage: Stage) -> None:
    async def scene() -> None:
        events, arrived = [b"data: %d\n\n" % i for i in range(20)], asyncio.Semaphore(0)

        async def play(request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
            await source.request_body(request)
            writer.write(CHUNKED)
            for event in events:
                await arrived.acquire()
                writer.write(chunk(event))
            writer.write(b"0\r\n\r\n")
            return True

        stage.upstream.plays.append(play)
        async with stage.client() as client:
            await client.send(GET % b"x")
            await client.source.head()
            for event in events:
                arrived.release()
                while chunk(event) not in client.source.buffer:
                    await client.source.more()
            while not client.source.buffer.endswith(b"0\r\n\r\n"):
                await client.source.more()

    stage.play(scene())


def test_every_part_of_a_body_reaches_the_upstream_before_the_next_is_sent(stage: Stage) -> None:
    async def scene() -> None:
        arrived = asyncio.Semaphore(0)

        async def play(request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
            for _ in range(20):
                await source.fixed(4, request.received)
                arrived.release()
            request.whole = True
            return await ok(request.body)(request, source, writer)

        stage.upstream.plays.append(play)
        async with stage.client() as client:
            await client.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 80\r\n\r\n0000")
            for i in range(1, 20):
                await arrived.acquire()
                await client.send(b"%04d" % i)
            assert (await client.response()).body == b"".join(b"%04d" % i for i in range(20))

    stage.play(scene())


@pytest.mark.parametrize("waits", [True, False], ids=["waits for 100", "does not wait"])
@pytest.mark.parametrize("path", [b"x", b"chat/completions"])
@pytest.mark.parametrize("framing", [b"content-length: 12", b"transfer-encoding: chunked"])
def test_expect_is_answered_here_and_goes_no_further(
    stage: Stage,
    framing: bytes,
    path: bytes,
    waits: bool,  # noqa: FBT001
) -> None:
    async def scene() -> None:
        body = b'{"model": 1}'
        wire = body if b"length" in framing else chunked(body)
        async with stage.client() as client:
            await client.send(
                b"POST /v1/%s HTTP/1.1\r\nhost: a\r\nExpect: 100-continue\r\n%s\r\n\r\n" % (path, framing)
            )
            if waits:
                while not client.source.buffer.endswith(b"\r\n\r\n"):
                    await client.source.more()
                assert client.source.buffer == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(wire)
            got = await client.response(b"POST")
            assert (got.status, got.body) == (200, b"ok")
            assert got.interim == [b"HTTP/1.1 100 Continue"]
        (seen,) = stage.upstream.requests
        assert not seen.all(b"expect")
        assert seen.body == body

    stage.play(scene())


@pytest.mark.parametrize("end", ["", "close"], ids=["and reads on", "and closes"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_an_answer_before_the_body_was_read_arrives(stage: Stage, framing: str, end: str) -> None:
    """As servers do that refuse a body by its head; the client is in the middle of sending."""

    async def scene() -> None:
        refused = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 9\r\n\r\ntoo large"
        stage.upstream.plays.append(Answer((refused,), end, early=True))
        async with stage.client() as client:
            if framing == "length":
                await client.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 1000)
            else:
                await client.send(STREAMED, chunk(b"x" * 1000))
            got = await client.response(b"POST")
            assert (got.status, got.body, got.whole) == (413, b"too large", True)
        async with stage.client() as client:
            assert (await client.ask(GET % b"after")).body == b"ok"
        assert targets(stage) == [b"x", b"after"]
        assert not stage.upstream.faults

    stage.play(scene())


# --- who is asked a second time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [CLOSED, RESET, Answer((), end="close", early=True)], ids=["closed", "reset", "early"])
@pytest.mark.parametrize(
    "sent", [GET % b"x", post(b"x", b"{}"), STREAMED + chunked(b"{}")], ids=["GET", "POST", "chunked"]
)
def test_a_kept_connection_that_ends_without_a_byte_is_no_answer(stage: Stage, sent: bytes, ends: Answer) -> None:
    async def scene() -> None:
        await stage.fresh()
        stage.upstream.plays.extend([ok(), ends, ok(b"second")])
        async with stage.client() as client:
            await client.ask(GET % b"keeps")
            before = stage.upstream.connections
            got = await client.ask(sent)
            assert (got.status, got.body) == (200, b"second")
        assert targets(stage) == [b"keeps", b"x", b"x"]
        assert stage.upstream.connections == before + 1
        first, second = stage.upstream.requests[1:]
        assert (first.start, second.body) == (second.start, (await fed(sent).request()).body)

    stage.play(scene())


@pytest.mark.parametrize("sent", [GET % b"x", post(b"x", b"{}")], ids=["GET", "POST"])
def test_it_is_tried_a_second_time_and_not_a_third(stage: Stage, sent: bytes) -> None:
    """Several connections are kept, and all of them end: the second try is over a fresh one, and the last."""

    async def scene() -> None:
        await stage.fresh()
        stage.upstream.plays.extend([after(0.02, ok())] * 3)
        async with stage.client() as client, stage.client() as second, stage.client() as third:
            for one in (client, second, third):
                await one.send(GET % b"keeps")
            for one in (client, second, third):
                await one.response()
            stage.upstream.plays.extend([CLOSED] * 4)
            assert_is_502(await client.ask(sent))
        stage.upstream.plays.clear()
        assert targets(stage) == [b"keeps"] * 3 + [b"x", b"x"]

    stage.play(scene())


def test_a_body_that_went_by_cannot_be_sent_again(stage: Stage) -> None:
    async def scene() -> None:
        stage.upstream.plays.extend([ok(), Answer((), end="close", early=True), ok()])
        async with stage.client() as client:
            await client.ask(GET % b"keeps")
            await client.send(STREAMED, chunk(b"one"))
            while len(stage.upstream.requests) < 2:
                await asyncio.sleep(0.001)
            await client.send(chunk(b"two"), b"0\r\n\r\n")
            assert_is_502(await client.response(b"POST"))
        assert targets(stage) == [b"keeps", b"x"]

    stage.play(scene())


BREAKS = {
    "closed": CLOSED,
    "reset": RESET,
    "one byte": Answer((b"H",), end="close"),
    "half a head": Answer((b"HTTP/1.1 200 OK\r\ncontent-le",), end="close"),
    "nearly a head, reset": Answer((b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n",), end="reset"),
    "100 and no more": Answer((b"HTTP/1.1 100 Continue\r\n\r\n",), end="close"),
}
BROKEN = [(kept, name) for kept in (False, True) for name, ends in BREAKS.items() if ends.pieces or not kept]


@pytest.mark.parametrize(
    ("kept", "name"), BROKEN, ids=[f"{'kept' if kept else 'fresh'}: {name}" for kept, name in BROKEN]
)
def test_an_answer_that_breaks_in_its_head_is_502_and_not_asked_for_again(
    stage: Stage,
    kept: bool,  # noqa: FBT001
    name: str,
) -> None:
    ends = BREAKS[name]

    async def scene() -> None:
        await stage.fresh()
        asked = [b"keeps", b"x"] if kept else [b"x"]
        stage.upstream.plays.extend([ok(), ends] if kept else [ends])
        async with stage.client() as client:
            for before in asked[:-1]:
                await client.ask(GET % before)
            assert_is_502(await client.ask(post(b"x", b"{}")))
            assert (await client.ask(GET % b"after")).body == b"ok"
        assert targets(stage) == [*asked, b"after"]

    stage.play(scene())
