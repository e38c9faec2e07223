"""HTTP/1.1 by hand: a client and an upstream that see every byte, and a strict reader that takes messages apart.

No HTTP library has a part in it: a test compares what one side wrote with what arrived at the other. The reader takes
what RFC 9112 allows and nothing more; what could be read in two ways is a `BrokenError`.
"""

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

Headers = list[tuple[bytes, bytes]]

PAUSE_S = 0.001  # between two pieces, so that each is a segment of its own
PATIENCE_S = 20.0
READ = 256 * 1024
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST_LINE = re.compile(_TOKEN.pattern + rb" [!-~]+ HTTP/1\.[01]")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(;.*)?", re.DOTALL)


class BrokenError(Exception):
    """These bytes are no HTTP/1.1 message, or one that can be read in two ways."""


class EndedError(Exception):
    """The other side has closed or reset the connection."""


@dataclass
class Message:
    """A message as it arrived; values without the white space around them. `chunks` are sizes, None if not chunked."""

    head: bytes
    start: bytes
    headers: Headers
    received: bytearray = field(default_factory=bytearray)
    chunks: list[int] | None = None
    trailers: Headers = field(default_factory=list)
    interim: list[bytes] = field(default_factory=list)
    whole: bool = False

    @property
    def body(self) -> bytes:
        """What came of the body."""
        return bytes(self.received)

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a header, its name in any case."""
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def method(self) -> bytes:
        return self.start.split(b" ")[0]

    @property
    def target(self) -> bytes:
        return self.start.split(b" ")[1]

    @property
    def version(self) -> bytes:
        return self.start.split(b" ")[-1 if not self.start.startswith(b"HTTP/") else 0]

    @property
    def status(self) -> int:
        return int(self.start.split(b" ")[1])

    def lists(self, name: bytes) -> set[bytes]:
        """The members of a header that is a list, in lower case."""
        return {token.strip().lower() for value in self.all(name) for token in value.split(b",")}


class Source:
    """Bytes as they come in; `read` gives b"" at the end."""

    def __init__(self, read: Callable[[], Awaitable[bytes]]) -> None:
        self._read = read
        self.buffer = bytearray()

    async def more(self) -> None:
        data = await self._read()
        if not data:
            raise EndedError
        self.buffer += data

    async def _line(self) -> bytes:
        start = 0
        while (end := self.buffer.find(b"\n", start)) < 0:
            start = len(self.buffer)
            await self.more()
        line = bytes(self.buffer[: end + 1])
        del self.buffer[: end + 1]
        if not line.endswith(b"\r\n") or re.search(rb"[\x00\r]", line[:-2]):
            raise BrokenError(f"a line with a bare CR, a bare LF or NUL: {line[:80]!r}")
        return line[:-2]

    async def _fields(self) -> tuple[Headers, bytes]:
        found, raw = [], bytearray()
        while line := await self._line():
            raw += line + b"\r\n"
            name, colon, value = line.partition(b":")
            if not colon or not _TOKEN.fullmatch(name):
                raise BrokenError(f"no header: {line[:80]!r}")
            found.append((name, value.strip(b" \t")))
        return found, bytes(raw) + b"\r\n"

    async def head(self) -> Message:
        """A start line and headers."""
        start = await self._line()
        headers, raw = await self._fields()
        return Message(start + b"\r\n" + raw, start, headers)

    async def fixed(self, size: int, body: bytearray) -> None:
        """Exactly so many bytes."""
        while size:
            if not self.buffer:
                await self.more()
            part = self.buffer[:size]
            del self.buffer[: len(part)]
            body += part
            size -= len(part)

    async def chunked(self, message: Message) -> None:
        """Chunks up to the last one, and trailers."""
        message.chunks = []
        while True:
            line = await self._line()
            matched = _SIZE.fullmatch(line)
            if not matched:
                raise BrokenError(f"no chunk size: {line[:80]!r}")
            if not (size := int(matched[1], 16)):
                break
            await self.fixed(size, message.received)
            end = bytearray()
            await self.fixed(2, end)
            if end != b"\r\n":
                raise BrokenError(f"no line end after a chunk: {bytes(end)!r}")
            message.chunks.append(size)
        message.trailers, _ = await self._fields()

    async def to_end(self, body: bytearray) -> None:
        """Everything until the other side closes."""
        with contextlib.suppress(EndedError):
            while True:
                body += self.buffer
                self.buffer.clear()
                await self.more()

    async def request_body(self, request: Message) -> None:
        """The rest of a request whose head is there; refuses framings that two readers could take differently."""
        if request.whole:
            return
        lengths, codings = request.all(b"content-length"), request.all(b"transfer-encoding")
        if len(lengths) + len(codings) > 1 or (codings and codings[0].lower() != b"chunked"):
            raise BrokenError(f"ambiguous framing: {request.head!r}")
        if codings:
            await self.chunked(request)
        elif lengths:
            if not lengths[0].isdigit():
                raise BrokenError(f"no length: {lengths[0]!r}")
            await self.fixed(int(lengths[0]), request.received)
        request.whole = True

    async def request_head(self) -> Message:
        """A request's line and headers."""
        request = await self.head()
        if not _REQUEST_LINE.fullmatch(request.start):
            raise BrokenError(f"no request line: {request.start[:80]!r}")
        return request

    async def request(self) -> Message:
        """A whole request."""
        request = await self.request_head()
        await self.request_body(request)
        return request

    async def response(self, method: bytes = b"GET") -> Message:
        """A response to a method; not `whole` if the connection ended within its body."""
        interim = []
        while True:
            response = await self.head()
            if not re.fullmatch(rb"HTTP/1\.[01] \d{3} .*", response.start):
                raise BrokenError(f"no status line: {response.start[:80]!r}")
            if response.status >= 200 or response.status == 101:
                break
            interim.append(response.start)
        response.interim = interim
        with contextlib.suppress(EndedError):
            await self._response_body(response, method)
            response.whole = True
        return response

    async def _response_body(self, response: Message, method: bytes) -> None:
        lengths, codings = set(response.all(b"content-length")), response.all(b"transfer-encoding")
        if len(lengths) > 1 or (lengths and codings):
            raise BrokenError(f"ambiguous framing: {response.head!r}")
        if method == b"HEAD" or response.status in {101, 204, 304}:
            return
        if codings:
            await self.chunked(response)
        elif lengths:
            await self.fixed(int(lengths.pop()), response.received)
        else:
            await self.to_end(response.received)


def fed(data: bytes) -> Source:
    """A source of these bytes and no more."""
    left = [data]

    async def read() -> bytes:
        return left.pop() if left else b""

    return Source(read)


class Client:
    """One connection to a proxy. Use as an async context manager."""

    def __init__(self, address: tuple[str, int], *, receive_buffer: int | None = None) -> None:
        self._address, self._receive_buffer = address, receive_buffer
        self.socket = socket.socket()
        self.source = Source(self._read)
        self.was_reset = False

    async def __aenter__(self) -> Self:
        self.socket.setblocking(False)  # noqa: FBT003
        if self._receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(self.socket, self._address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.socket.close()

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.get_running_loop().sock_recv(self.socket, READ)
        except (ConnectionResetError, BrokenPipeError):
            self.was_reset = True
            return b""

    async def send(self, *pieces: bytes) -> bool:
        """Sends pieces, each on its own; False as soon as the other side takes no more."""
        for i, piece in enumerate(pieces):
            if i:
                await asyncio.sleep(PAUSE_S)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.get_running_loop().sock_sendall(self.socket, piece)
            except (ConnectionResetError, BrokenPipeError):
                return False
        return True

    async def response(self, method: bytes = b"GET") -> Message:
        """The next response."""
        return await self.source.response(method)

    async def ask(self, *pieces: bytes, method: bytes | None = None) -> Message:
        """Sends a request and reads its response."""
        await self.send(*pieces)
        return await self.response(method or pieces[0].split(b" ")[0])

    async def rest(self) -> bytes:
        """What still comes until the other side closes."""
        body = bytearray()
        await self.source.to_end(body)
        return bytes(body)

    def reset(self) -> None:
        """Ends the connection without ceremony."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    """One chunk on the wire."""
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


def chunked(*parts: bytes) -> bytes:
    """A whole chunked body on the wire."""
    return b"".join(chunk(part) for part in parts) + b"0\r\n\r\n"


def cut(data: bytes, size: int) -> tuple[bytes, ...]:
    """In pieces of this size."""
    return tuple(data[i : i + size] for i in range(0, len(data), size))
