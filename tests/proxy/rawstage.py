"""A raw upstream that plays scripted bytes, and a proxy in front of it in a thread of its own."""

import asyncio
import concurrent.futures
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import uvloop

from tests.proxy.rawhttp import PATIENCE_S, PAUSE_S, READ, BrokenError, Client, EndedError, Message, Source
from tests.proxy.serving import Proxy, proxy

Play = Callable[[Message, Source, asyncio.StreamWriter], Awaitable[bool]]
"""What an upstream does once a request's head is there; whether the connection is used again."""


@dataclass(frozen=True)
class Answer:
    """Scripted bytes. `end` is "" (the connection is kept), "close" or "reset"; `early`: before the body is read."""

    pieces: tuple[bytes, ...]
    end: str = ""
    early: bool = False

    @property
    def raw(self) -> bytes:
        return b"".join(self.pieces)

    async def __call__(self, request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
        if not self.early:
            await source.request_body(request)
        for i, piece in enumerate(self.pieces):
            if i:
                await asyncio.sleep(PAUSE_S)
            writer.write(piece)
            await writer.drain()
        if self.early and not self.end:
            await source.request_body(request)
        if self.end == "reset":
            raw = writer.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return not self.end


def ok(body: bytes = b"ok") -> Answer:
    """A plain answer."""
    return Answer((b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body,))


class Upstream:
    """A raw server. It plays `plays` in turn, one for each request, then plain answers.

    `requests` holds every request it saw, `faults` what it could not read in one way only.
    """

    def __init__(self) -> None:
        self.plays: deque[Play] = deque()
        self.requests: list[Message] = []
        self.faults: list[str] = []
        self.connections = 0
        self.open = 0
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[Self]:
        """Listens until the end of the context."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=READ)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            try:
                yield self
            finally:
                self.hang_up()
                async with asyncio.timeout(PATIENCE_S):
                    while self.open:
                        await asyncio.sleep(0.005)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def hang_up(self) -> None:
        """Ends every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self._writers.add(writer)
        source = Source(lambda: reader.read(READ))
        try:
            while await self._exchange(source, writer):
                pass
        except BrokenError as error:
            self.faults.append(str(error))
        except (EndedError, ConnectionError):
            pass
        finally:
            self.open -= 1
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, source: Source, writer: asyncio.StreamWriter) -> bool:
        if not source.buffer:
            await source.more()
        request = await source.request_head()
        self.requests.append(request)
        play = self.plays.popleft() if self.plays else ok(b"" if request.method == b"HEAD" else b"ok")
        return await play(request, source, writer)

    async def closed(self) -> None:
        """Returns once no connection is open any more."""
        async with asyncio.timeout(PATIENCE_S):
            while self.open:
                await asyncio.sleep(0.005)


class Stage:
    """A proxy in front of a raw upstream, both in one loop in a thread of their own: one for a whole table of cases."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._folder, self._settings = folder, settings
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.upstream = Upstream()
        self.door: Proxy

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as in production
            try:
                runner.run(self._serve())
            except BaseException as error:
                if self._ready.done():
                    raise
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self.upstream.serve():
            async with proxy(self._folder, self.upstream.base_url, fit=False, **self._settings) as self.door:
                self._ready.set_result(None)
                await self._stop.wait()

    @contextlib.contextmanager
    def up(self) -> Iterator[Self]:
        """Serves until the end of the context."""
        thread = threading.Thread(target=self._run, name="stage")
        thread.start()
        try:
            self._ready.result(PATIENCE_S)
            yield self
        finally:
            if self._ready.exception() is None:
                self._loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    def play(self, scene: Coroutine[Any, Any, None]) -> None:
        """Runs one scene to its end; what is left of the last one's script is forgotten first."""

        async def act() -> None:
            self.upstream.plays.clear()
            self.upstream.requests.clear()
            self.upstream.faults.clear()
            async with asyncio.timeout(2 * PATIENCE_S):
                await scene

        asyncio.run_coroutine_threadsafe(act(), self._loop).result()

    @property
    def address(self) -> tuple[str, int]:
        """Where the proxy's data port is."""
        return address_of(self.door)

    def client(self, **options: Any) -> Client:
        """A new connection to the proxy."""
        return Client(self.address, **options)

    async def fresh(self) -> None:
        """Ends what the proxy keeps of connections to the upstream: its next one is new."""
        self.upstream.hang_up()
        await self.upstream.closed()
        await asyncio.sleep(0.01)  # both sides live in this loop: the proxy has seen it by now

    async def idle(self) -> None:
        """Returns once the proxy has no request open."""
        async with asyncio.timeout(PATIENCE_S):
            while self.door.service.data.in_flight:
                await asyncio.sleep(0.002)


def in_the_kernel(*ports: int) -> int:
    """Bytes that are on their way on connections of these ports: as many as the system takes, and nobody's fault."""
    total = 0
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if any(int(end.split(":")[1], 16) in ports for end in fields[1:3]):
            total += sum(int(queue, 16) for queue in fields[4].split(":"))
    return total


def address_of(door: Proxy) -> tuple[str, int]:
    """Host and port of a proxy's data port."""
    host, port = door.root.removeprefix("http://").split(":")
    return host, int(port)
