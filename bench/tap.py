"""Looks at a proxy from outside: what passed between it and its engines, and when, beside what its client got.

Everything runs in one process, so that one clock tells all times (`time.perf_counter_ns`).
"""

import asyncio
import re
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import orjson

from bench.load import Connection, Reply, request_bytes

_EVENT = re.compile(rb"data: (\{[^\n]*\})\r?\n\r?\n")
_PIECE = 256 * 1024


class Passed:
    """Bytes that passed a place one way, and when each of them did, in nanoseconds."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._ends: list[int] = []
        self._times: list[int] = []

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def add(self, data: bytes, at: int | None = None) -> None:
        """More of them, now or at that time."""
        self._times.append(time.perf_counter_ns() if at is None else at)
        self._ends.append(len(self) + len(data))
        self._parts.append(data)

    @property
    def raw(self) -> bytes:
        """All of them."""
        return b"".join(self._parts)

    def when(self, offset: int) -> int:
        """When the byte at an offset passed; IndexError beyond the end."""
        return self._times[bisect_right(self._ends, offset)]

    def first(self, what: bytes) -> int | None:
        """When the first byte of the first such text passed; None where there is none."""
        at = self.raw.find(what)
        return None if at < 0 else self.when(at)

    @property
    def last(self) -> int:
        """When the last byte passed."""
        return self._times[-1]

    def events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every event that is a JSON object, and when its last byte passed."""
        for found in _EVENT.finditer(self.raw):
            yield self.when(found.end() - 1), orjson.loads(found.group(1))


@dataclass(slots=True)
class Way:
    """One connection: what was asked on it, and what was answered."""

    asked: Passed = field(default_factory=Passed)
    answered: Passed = field(default_factory=Passed)


class Tap:
    """Stands before a server and passes everything on, both ways; see `open`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._to = (parts.hostname, parts.port or 80)
        self._ways: list[Way] = []
        self._port = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["Tap"]:
        """A tap before the server of a URL, on a loopback port of its own."""
        tap = cls(url)
        async with await asyncio.start_server(tap._serve, "127.0.0.1", 0) as server:
            tap._port = server.sockets[0].getsockname()[1]
            yield tap

    @property
    def base_url(self) -> str:
        """As OpenAI clients write it."""
        return f"http://127.0.0.1:{self._port}/v1"

    def take(self) -> list[Way]:
        """What has passed since the last time, connection by connection; those on which nothing did are left out."""
        taken = [Way(way.asked, way.answered) for way in self._ways if len(way.asked) or len(way.answered)]
        for way in self._ways:
            way.asked, way.answered = Passed(), Passed()
        return taken

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way = Way()
        self._ways.append(way)
        try:
            from_server, to_server = await asyncio.open_connection(*self._to)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, to_server, way, "asked"), name="tap:asked")
                group.create_task(self._pump(from_server, writer, way, "answered"), name="tap:answered")
        except* OSError:
            pass
        finally:
            self._ways.remove(way)
            writer.close()

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way, side: str) -> None:
        try:
            while data := await reader.read(_PIECE):
                passed: Passed = getattr(way, side)
                passed.add(data)
                writer.write(data)
        finally:
            writer.close()


class Client(Connection):
    """A kept connection that keeps when everything of the last answer arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.got = Passed()

    @classmethod
    async def connect(cls, port: int) -> Self:
        """A connection to a loopback port."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    def ask(self, request: bytes) -> asyncio.Future[Reply]:
        """Sends a request; the answer, or as much of it as came before the connection ended."""
        self.got = Passed()
        return super().ask(request)

    def data_received(self, data: bytes) -> None:
        """Takes what came."""
        self.got.add(data)
        super().data_received(data)


__all__ = ["Client", "Passed", "Tap", "Way", "request_bytes"]
