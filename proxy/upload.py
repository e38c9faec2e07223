"""A client's request body on its way in: read whole up to a bound, or passed on as it comes; and whether it left."""

import asyncio
import time
from collections.abc import AsyncIterator

from proxy.http import Receive

LEAVING = "counterproof.leaving"  # where a scope holds its connection's


class UploadError(Exception):
    """The body did not come in whole."""


class ClientLeftError(UploadError):
    """The client closed its connection."""


class TooLargeError(UploadError):
    """The body is larger than is taken."""


class TooSlowError(UploadError):
    """The client was silent for too long in the middle of its body."""


class Leaving:
    """What one connection's server protocol says of its client: it knows first, and nobody may be receiving."""

    def __init__(self) -> None:
        self._told: asyncio.Event | None = None
        self._gone = False

    def tell(self) -> None:
        """The client has gone; whoever receives from now on hears it."""
        self._gone = True
        if self._told is not None:
            self._told.set()

    def wake(self, event: asyncio.Event) -> None:
        """Has this event set once the client has gone; the last one that was given counts."""
        self._told = event
        if self._gone:
            event.set()


class Upload:
    """One body. `most` in bytes, `silence` in seconds; `problem` is what ended it early, whoever was reading.

    The silence before its first part is the server protocol's to bound. `unasked_since` tells since when whoever
    streams it asks for no more (monotonic seconds): None while that waits for the client, or nobody streams it.
    """

    def __init__(self, receive: Receive, *, most: int, silence: float, leaving: Leaving | None = None) -> None:
        self._receive, self._most, self._silence, self._leaving = receive, most, silence, leaving
        self._parts: list[bytes] = []
        self._size = 0
        self._more = True
        self._begun = False
        self._ended: asyncio.Event | None = None
        self.problem: UploadError | None = None
        self.unasked_since: float | None = None

    @property
    def under_way(self) -> bool:
        """Whether the client still owes a part of it."""
        return self._more

    async def read(self, bound: int) -> bytes | None:
        """The whole body; None as soon as it is larger than `bound`: `stream` then gives all of it.

        Raises:
            UploadError: it did not come in whole.
        """
        while self._more:
            self._parts.append(await self._next())
            if self._size > bound:
                return None
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0] if self._parts else b""

    async def read_first(self) -> bytes | None:
        """The whole body if it comes in one part, else None: `stream` then gives all of it.

        Raises:
            UploadError: nothing came.
        """
        self._parts.append(await self._next())
        return None if self._more else self._parts[0]

    def stream(self) -> AsyncIterator[bytes]:
        """The body from its beginning, in the parts that the client sends. May be asked for once.

        Raises:
            UploadError: it did not come in whole.
        """
        if self._more:
            self._ended = asyncio.Event()
            if self._leaving is not None:
                self._leaving.wake(self._ended)
            self.unasked_since = time.monotonic()
        return self._stream()

    async def _stream(self) -> AsyncIterator[bytes]:
        parts, self._parts = self._parts, []
        try:
            for part in parts:
                yield part
            while self._more:
                self.unasked_since = None
                part = await self._next()
                self.unasked_since = time.monotonic()
                if part:
                    yield part
        finally:  # an answer that came before the body's end leaves the rest unread
            self.unasked_since = time.monotonic()
            if self._ended:
                self._ended.set()

    async def _next(self) -> bytes:
        if self._begun:
            try:
                async with asyncio.timeout(self._silence):
                    message = await self._receive()
            except TimeoutError:
                raise self._fail(TooSlowError()) from None
        else:
            self._begun = True
            message = await self._receive()
        if message["type"] == "http.disconnect":
            raise self._fail(ClientLeftError())
        part: bytes = message.get("body", b"")
        self._more = message.get("more_body", False)
        self._size += len(part)
        if self._size > self._most:
            raise self._fail(TooLargeError())
        return part

    def _fail(self, problem: UploadError) -> UploadError:
        self.problem = problem
        return problem

    async def left(self) -> None:
        """Returns when the client has gone.

        While its body is streamed, only whoever reads that receives; where the reader is stuck, the connection tells.
        What is left of a body that nobody reads any more is thrown away.
        """
        if self._ended:
            await self._ended.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
