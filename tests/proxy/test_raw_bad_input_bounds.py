"""Too much, too slow, without an end: what a client can send of it is bounded, and so is what is held of an answer."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proxy.rawhttp import Client, EndedError, Message, Source, chunk
from tests.proxy.rawstage import Play, Stage, Upstream, address_of, in_the_kernel, ok
from tests.proxy.serving import proxy
from tests.standin import StandIn

pytestmark = pytest.mark.slow

LIMIT = 64 * 1024
TAKEN = 2 * 1024 * 1024  # more than both kernels' small buffers and some reads
LISTEN = {"port": 0, "read_timeout": "300ms", "max_body_bytes": LIMIT, "max_head_bytes": LIMIT}
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PATHS = [b"/v1/x", b"/v1/chat/completions"]
GET = b"GET /v1/x HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage"), listen=LISTEN).up() as up:
        yield up


def post(path: bytes, *lines: bytes) -> bytes:
    return b"\r\n".join([b"POST %s HTTP/1.1" % path, b"host: a", *lines, b"", b""])


def assert_refused(response: Message, status: int) -> None:
    """In OpenAI's error shape, and the last on its connection."""
    assert (response.status, response.whole) == (status, True)
    assert response.all(b"connection") == [b"close"]
    error = json.loads(response.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status


async def push(client: Client, piece: bytes, most: int) -> int:
    """Sends a piece again and again; how many bytes the other side's machine took before it took no more."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LIMIT)
    sent = 0
    while sent < most and await client.send(piece):
        sent += len(piece)
        await asyncio.sleep(0)
    return sent


async def assert_untouched(stage: Stage) -> None:
    """No request has reached the upstream whole, and the proxy serves on."""
    await stage.idle()
    assert not any(request.whole for request in stage.upstream.requests)
    async with stage.client() as client:
        assert (await client.ask(GET)).body == b"ok"


# --- heads ---------------------------------------------------------------------------------------------------------

BOMBS = {
    "a header without end": (GET[:-2] + b"x-a: ", b"a" * 16384),
    "a name without end": (GET[:-2], b"a" * 16384),
    "a target without end": (b"GET /", b"a" * 16384),
    "a query without end": (b"GET /v1/x?", b"a=b&" * 4096),
    "a method without end": (b"", b"A" * 16384),
    "a hundred thousand headers": (GET[:-2], b"a: b\r\n" * 2500),
    "headers of nothing": (GET[:-2], b"a:\r\n" * 4096),
    "empty lines": (b"", b"\r\n" * 8192),
    "a value of white space": (GET[:-2] + b"x-a:", b" " * 16384),
    "a chunk extension without end": (post(b"/v1/x", b"transfer-encoding: chunked") + b"5;", b"a" * 16384),
    "a trailer without end": (post(b"/v1/x", b"transfer-encoding: chunked") + b"0\r\nx-a: ", b"a" * 16384),
    "trailers without end": (post(b"/v1/x", b"transfer-encoding: chunked") + b"0\r\n", b"x-a: b\r\n" * 2048),
    "zeros of a chunk size without end": (post(b"/v1/x", b"transfer-encoding: chunked"), b"0" * 16384),
    "bytes of a chunk, each with an extension": (
        post(b"/v1/x", b"transfer-encoding: chunked"),
        chunk(b"x", b";" + b"a" * 4000) * 4,
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_head_without_end_is_refused_after_a_bounded_number_of_bytes(stage: Stage, name: str) -> None:
    async def scene() -> None:
        begin, piece = BOMBS[name]
        async with stage.client() as client:
            await client.send(begin)
            assert await push(client, piece, 10 * 1024 * 1024) < TAKEN
            try:
                response = await client.response()
            except EndedError:
                assert client.was_reset, "an answer that the client's own bytes overtook"
            else:
                assert_refused(response, response.status)
                assert response.status in {400, 408, 413, 431}
        await assert_untouched(stage)

    stage.play(scene())


def test_a_head_within_the_bound_may_have_very_many_headers(stage: Stage) -> None:
    async def scene() -> None:
        names = [b"x%x" % i for i in range(6000)]
        async with stage.client() as client:
            response = await client.ask(GET[:-2] + b"".join(name + b":1\r\n" for name in names) + b"\r\n")
        assert response.status == 200
        assert [name for name, _ in stage.upstream.requests[0].headers][-6000:] == names

    stage.play(scene())


@pytest.mark.parametrize("size", [LIMIT - 100, LIMIT], ids=["within", "beyond"])
def test_a_head_is_431_from_its_bound_on(stage: Stage, size: int) -> None:
    async def scene() -> None:
        async with stage.client() as client:
            await client.send(GET[:-2] + b"x-a: " + b"a" * (size - len(GET) - 5))
            await asyncio.sleep(0.02)  # the two pieces are not to come as one
            await client.send(b"a" * 50, b"\r\n\r\n")
            response = await client.response()
            if size < LIMIT:
                assert response.status == 200
            else:
                assert_refused(response, 431)
                assert await client.rest() == b""

    stage.play(scene())


SLOW = {
    "no head": (b"", b""),
    "half a head": (GET[:20], b""),
    "a head, letter by letter": (GET[:-2] + b"x-a: ", b"a"),
    "a body that does not begin": (post(b"/v1/x", b"content-length: 10"), b""),
    "a body that does not begin, chunked": (post(b"/v1/x", b"transfer-encoding: chunked"), b""),
    "half a body": (post(b"/v1/x", b"content-length: 10") + b"12345", b""),
    "half a body, for the mirror's path": (post(b"/v1/chat/completions", b"content-length: 10") + b"12345", b""),
    "half a chunked body": (post(b"/v1/x", b"transfer-encoding: chunked") + chunk(b"12345"), b""),
    "half a chunk": (post(b"/v1/x", b"transfer-encoding: chunked") + b"5\r\n123", b""),
    "half a trailer": (post(b"/v1/x", b"transfer-encoding: chunked") + chunk(b"12345") + b"0\r\nx-a: ", b""),
    "a chunk head, letter by letter": (post(b"/v1/x", b"transfer-encoding: chunked") + b"5;", b"a"),
    "100, and then nothing": (post(b"/v1/x", b"content-length: 10", b"expect: 100-continue"), b""),
}


STALLS = [(name, again) for name in SLOW for again in (False, True)]
STALLS.remove(("no head", True))  # a connection that waits for its next request is kept for longer


@pytest.mark.parametrize(("name", "again"), STALLS, ids=[f"{name}{', again' * again}" for name, again in STALLS])
def test_a_request_that_stalls_is_ended(stage: Stage, name: str, again: bool) -> None:  # noqa: FBT001
    """With 408 where something had come, in silence where nothing had."""

    async def trickle(client: Client, letter: bytes) -> None:
        while await client.send(letter):
            await asyncio.sleep(0.05)

    async def scene() -> None:
        begin, letter = SLOW[name]
        async with stage.client() as client, asyncio.TaskGroup() as group:
            if again:
                assert (await client.ask(GET)).status == 200
                stage.upstream.requests.clear()
            await client.send(begin)
            if letter:
                group.create_task(trickle(client, letter), name="trickle")
            if begin:
                assert_refused(await client.response(b"POST"), 408)
            assert await client.rest() == b""
        await assert_untouched(stage)

    stage.play(scene())


# --- bodies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [b"%d" % (LIMIT + 1), b"1000000000000", b"9223372036854775807"])
@pytest.mark.parametrize("expect", [[], [b"Expect: 100-continue"]], ids=["at once", "waits for 100"])
def test_a_length_over_the_limit_is_413_before_any_of_the_body(
    stage: Stage, path: bytes, size: bytes, expect: list[bytes]
) -> None:
    async def scene() -> None:
        async with stage.client() as client:
            response = await client.ask(post(path, b"content-length: " + size, *expect))
            assert_refused(response, 413)
            assert not response.interim
            assert await client.rest() == b""
        assert not stage.upstream.requests

    stage.play(scene())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("piece", [chunk(b"x" * 4096), chunk(b"x")], ids=["4 KB each", "a byte each"])
def test_a_chunked_body_without_end_is_413_once_over_the_limit(stage: Stage, path: bytes, piece: bytes) -> None:
    async def scene() -> None:
        async with stage.client() as client:
            await client.send(post(path, b"transfer-encoding: chunked"))
            many = piece * (8192 // len(piece))
            assert await push(client, many, 10 * 1024 * 1024) < TAKEN
            assert_refused(await client.response(), 413)
        await assert_untouched(stage)

    stage.play(scene())


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_goes_on_sending_a_body_that_is_too_large_still_reads_its_413(stage: Stage, path: bytes) -> None:
    """A connection closed with bytes unread is reset, and takes the answer with it: it has to be read for a moment."""

    async def scene() -> None:
        async with stage.client() as client, asyncio.TaskGroup() as group:
            size = 4 * 1024 * 1024
            head = post(path, b"content-length: %d" % size)
            group.create_task(client.send(head, b"x" * size), name="sends")
            assert_refused(await client.response(), 413)

    stage.play(scene())


DEEP = b'{"model": "m", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
DEEP_OBJECTS = b'{"a": ' * 100_000 + b"1" + b"}" * 100_000


@pytest.mark.parametrize("body", [DEEP, DEEP_OBJECTS, DEEP[:100_000]], ids=["lists", "objects", "unclosed"])
@pytest.mark.parametrize("mirrored", [False, True], ids=["alone", "with a shadow"])
def test_json_of_any_depth_reaches_the_upstream_byte_for_byte(tmp_path: Path, mirrored: bool, body: bytes) -> None:  # noqa: FBT001
    async def main() -> None:
        async with Upstream().serve() as upstream, StandIn() as shadow:
            async with proxy(tmp_path, upstream.base_url, *([shadow] if mirrored else []), fit=False) as door:
                upstream.requests.clear()
                async with Client(address_of(door)) as client:
                    head = post(b"/v1/chat/completions", b"content-length: %d" % len(body))
                    response = await client.ask(head + body)
                assert (response.status, response.body) == (200, b"ok")
                seen = [request for request in upstream.requests if request.method == b"POST"]
                assert [request.body for request in seen] == [body]

    asyncio.run(main())


# --- what is pipelined behind a slow answer ------------------------------------------------------------------------


def slow(seconds: float) -> Play:
    async def play(request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(seconds)
        return await ok(b"slow")(request, source, writer)

    return play


@pytest.mark.parametrize(
    "behind",
    [
        (GET,),
        (GET[:10],),
        (b"\r\n",),
        (post(b"/v1/x", b"content-length: 2"), b"{}"),
        (post(b"/v1/x", b"content-length: 2"),),
    ],
    ids=["a request", "half a head", "an empty line", "a body in its own segment", "a body that does not come"],
)
def test_what_is_sent_behind_a_slow_request_does_not_cost_its_answer(stage: Stage, behind: tuple[bytes, ...]) -> None:
    """The proxy itself stops reading there: what does not arrive meanwhile is not the client's silence."""

    async def scene() -> None:
        stage.upstream.plays.append(slow(0.5))  # longer than a client may be silent
        async with stage.client() as client:
            await client.send(GET)
            for piece in behind:
                await asyncio.sleep(0.05)
                await client.send(piece)
            response = await client.response()
            assert (response.status, response.body) == (200, b"slow")
            if len(behind) == 2 or behind == (GET,):
                assert (await client.response()).body == b"ok"

    stage.play(scene())


REFUSED = {
    "a head without end": [GET[:-2] + b"x-a: ", *[b"a" * 16384] * 8],
    "a broken chunk": [post(b"/v1/x", b"transfer-encoding: chunked"), b"xyz\r\n"],
    "a broken chunk, at once": [post(b"/v1/x", b"transfer-encoding: chunked") + b"xyz\r\n"],
    "a length over the limit": [post(b"/v1/x", b"content-length: 100000000"), b"x" * 16384],
    "a chunk extension without end": [post(b"/v1/x", b"transfer-encoding: chunked") + b"5;", *[b"a" * 16384] * 8],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_behind_a_slow_request_does_not_take_its_answer(stage: Stage, name: str) -> None:
    async def scene() -> None:
        stage.upstream.plays.append(slow(0.1))
        async with stage.client() as client:
            await client.send(GET)
            while not stage.upstream.requests:
                await asyncio.sleep(0.001)
            await client.send(*REFUSED[name])
            response = await client.response()
            assert (response.status, response.body) == (200, b"slow")
        await stage.idle()
        assert sum(request.whole for request in stage.upstream.requests) == 1

    stage.play(scene())


# --- answers without end -------------------------------------------------------------------------------------------


class _Endless:
    """An answer that goes on until nobody takes it; how much was written of it."""

    def __init__(self) -> None:
        self.written = 0
        self.ended = asyncio.Event()

    async def __call__(self, request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
        await source.request_body(request)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LIMIT)
        writer.write(CHUNKED)
        piece = chunk(b"x" * 16384)
        try:
            while True:
                writer.write(piece)
                await writer.drain()
                self.written += len(piece)
        finally:
            self.ended.set()


def test_a_client_that_leaves_an_answer_without_end_ends_it(stage: Stage) -> None:
    async def scene() -> None:
        endless = _Endless()
        stage.upstream.plays.append(endless)
        async with stage.client() as client:
            await client.send(GET)
            taken = 0
            while taken < 50 * 1024 * 1024:
                await client.source.more()
                taken += len(client.source.buffer)
                client.source.buffer.clear()
        await endless.ended.wait()
        await stage.idle()

    stage.play(scene())


def test_an_answer_that_nobody_reads_holds_the_upstream_back(stage: Stage) -> None:
    async def scene() -> None:
        endless = _Endless()
        stage.upstream.plays.append(endless)
        async with stage.client(receive_buffer=LIMIT) as client:
            await client.send(GET)
            written = -1
            while endless.written != written:  # until it is held back
                written = endless.written
                await asyncio.sleep(0.1)
            assert written > 0
            assert written - in_the_kernel(stage.upstream.port, stage.address[1]) < 8 * 1024 * 1024
            assert not endless.ended.is_set()
            for _ in range(200):
                await client.source.more()
            assert endless.written > written, "and goes on once somebody reads"
        await endless.ended.wait()
        await stage.idle()

    stage.play(scene())


@pytest.mark.parametrize("path", PATHS)
def test_an_upstream_that_does_not_read_holds_the_client_back(tmp_path: Path, path: bytes) -> None:
    async def main() -> None:
        reads = asyncio.Event()

        async def play(request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
            await reads.wait()
            return await ok()(request, source, writer)

        async with Upstream().serve() as upstream, proxy(tmp_path, upstream.base_url, fit=False) as door:
            upstream.plays.append(play)
            size = 40 * 1024 * 1024
            async with Client(address_of(door)) as client, asyncio.TaskGroup() as group:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LIMIT)
                await client.send(post(path, b"content-length: %d" % size))
                sent = [0]

                async def sends() -> None:
                    for _ in range(size // 65536):
                        assert await client.send(b"x" * 65536)
                        sent[0] += 65536

                group.create_task(sends(), name="sends")
                before = -1
                while sent[0] != before:
                    before = sent[0]
                    await asyncio.sleep(0.1)
                assert 0 < before < size
                assert before - in_the_kernel(upstream.port, address_of(door)[1]) < 16 * 1024 * 1024
                reads.set()
                assert (await client.response()).body == b"ok"
            assert len(upstream.requests[0].body) == size

    asyncio.run(main())
