"""Kept connections: what is tried a second time, and what is not."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from yarl import URL

from proxy.pool import Body, Pool
from shadow.tasks import Tasks

pytestmark = pytest.mark.slow

LIMITS = aiohttp.ClientTimeout(total=10)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Upstream:
    """Answers by script: one entry per request, None closes the connection without a byte; keeps what it received."""

    def __init__(self, script: list[bytes | None]) -> None:
        self.script, self.bodies, self.connections = script, list[bytes](), 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.script:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) if b"content-length" in head else 0
                self.bodies.append(await reader.readexactly(length))
                answer = self.script.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                if not answer.endswith(b"ok"):
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()


async def asked(
    script: list[bytes | None],
    body: Callable[[], Body],
    method: str = "POST",
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Upstream, Any]:
    """One request that makes a kept connection, then another on it: what came of that."""
    upstream, pool = Upstream([OK, *script]), Pool(clock)
    server = await asyncio.start_server(upstream.handle, "127.0.0.1", 0)
    await pool.open()
    url = URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    try:
        first = await pool.request("GET", url, [], None, LIMITS)
        assert await first.read() == b"ok"
        headers = [("content-length", "4")] if not isinstance(body(), bytes) and body() is not None else []
        try:
            response = await pool.request(method, url, headers, body(), LIMITS)
            found: Any = (response.status, await response.read())
        except aiohttp.ClientError as error:
            found = error
        return upstream, found
    finally:
        await pool.close()
        server.close()


async def _streamed() -> AsyncIterator[bytes]:
    yield b"bo"
    yield b"dy"


@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
@pytest.mark.parametrize("body", [b"body", b"b" * 3_000_000, None], ids=["small", "large", "none"])
def test_a_kept_connection_that_ends_without_a_byte_is_tried_again_with_the_whole_body(
    method: str, body: bytes | None
) -> None:
    upstream, found = asyncio.run(asked([None, OK], lambda: body, method))
    assert found == (200, b"ok")
    assert upstream.bodies == [b"", body or b"", body or b""]
    assert upstream.connections == 2


@pytest.mark.parametrize("seconds", [0.9, 1.5])
@pytest.mark.parametrize("body", [b"body", None])
@pytest.mark.parametrize("method", ["POST", "PATCH", "GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_what_a_primary_may_have_been_at_work_on_is_not_done_twice(
    method: str, body: bytes | None, seconds: float
) -> None:
    looks = itertools.count(step=seconds)  # so long the primary had it, as the pool sees it
    answer = OK.removesuffix(b"ok") if method == "HEAD" else OK
    upstream, found = asyncio.run(asked([None, answer], lambda: body, method, lambda: next(looks)))
    if seconds > 1 and method in {"POST", "PATCH"}:
        assert isinstance(found, aiohttp.ServerDisconnectedError)
        assert upstream.bodies == [b"", body or b""]
    else:
        assert found == (200, b"" if method == "HEAD" else b"ok")
        assert upstream.bodies == [b"", body or b"", body or b""]


def test_a_body_that_was_streamed_is_not_sent_twice() -> None:
    upstream, found = asyncio.run(asked([None, OK], _streamed))
    assert isinstance(found, aiohttp.ClientError)
    assert upstream.bodies == [b"", b"body"]


def test_a_second_end_without_a_byte_is_an_error() -> None:
    upstream, found = asyncio.run(asked([None, None, OK], lambda: b"body"))
    assert isinstance(found, aiohttp.ServerDisconnectedError)
    assert len(upstream.bodies) == 3


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\n", b"H", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_an_answer_that_has_begun_is_not_asked_for_again(begun: bytes) -> None:
    upstream, found = asyncio.run(asked([begun, OK], lambda: b"body"))
    assert isinstance(found, aiohttp.ClientError)
    assert len(upstream.bodies) == 2


def test_a_fresh_connection_that_ends_is_an_answer_of_its_kind() -> None:
    async def main() -> None:
        upstream, pool = Upstream([None, OK]), Pool()
        server = await asyncio.start_server(upstream.handle, "127.0.0.1", 0)
        await pool.open()
        url = URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await pool.request("POST", url, [], b"body", LIMITS)
        assert upstream.bodies == [b"body"]
        await pool.close()
        server.close()

    asyncio.run(main())


def test_an_address_that_refuses_is_not_tried_twice() -> None:
    async def main() -> None:
        pool = Pool()
        await pool.open()
        with pytest.raises(aiohttp.ClientConnectorError):
            await pool.request("POST", URL("http://127.0.0.1:9/"), [], b"body", LIMITS)
        await pool.close()

    asyncio.run(main())


def test_a_connection_whose_other_end_does_not_read_is_ended_at_once() -> None:
    """With an end that waits for what is not written yet, it would stay for as long as the primary likes."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    async def main() -> None:
        leaves = asyncio.Event()

        async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await leaves.wait()
            writer.transport.abort()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        pool, url = Pool(), URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        await pool.open()
        headers = [("content-length", str(1 << 40))]
        tasks = Tasks("asks")

        async def ask() -> None:
            await pool.request("POST", url, headers, endless(), LIMITS)

        tasks.start("asks", ask())
        assert pool._kept is not None
        async with asyncio.timeout(10):
            sizes = [0]
            while not sizes[-1] or len(set(sizes[-10:])) > 1:  # until nothing moves any more
                await asyncio.sleep(0.01)
                sizes += [one.transport.get_write_buffer_size() for one in pool._kept._acquired if one.transport]
            (one,) = pool._kept._acquired
            closed = one.closed
            assert closed is not None
            await tasks.close()
            await closed
        leaves.set()
        await pool.close()
        server.close()

    asyncio.run(main())
