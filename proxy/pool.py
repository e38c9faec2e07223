"""Connections to the primaries: kept ones, and a second try where a kept one had just been closed by its other end."""

import asyncio
import functools
import io
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.helpers import TimerNoop
from aiohttp.http import HttpVersion11
from aiohttp.http_writer import _serialize_headers
from multidict import CIMultiDict
from yarl import URL

from proxy.joined import joined

Body = bytes | AsyncIterator[bytes] | None

_KEEP_ALIVE_S = 3.0  # below vLLM's own 5 s: a connection is rarely used when its other end is just closing it
_READ_BUFFER = 256 * 1024
_HEAD_BYTES = 256 * 1024  # of an answer's single header; the primary's headers are its own business
_HEADERS = 10_000
_JUST_NOW_S = 1.0  # after this long a primary may have read the request, and be at work on it
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})  # what these do is done once, however often sent
_LARGE_BODY = 1024 * 1024  # aiohttp writes larger ones in pieces where it gets a file
_NOT_ADDED = CIMultiDict[None](dict.fromkeys((hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE)))


class _Connection(ResponseHandler):
    """One that knows whether it served a request before, and whether it heard anything since this one began."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.requests = 0
        self.heard = self.idle = False

    def begin(self) -> None:
        """The next request."""
        self.requests += 1
        self.heard = self.idle = False

    def data_received(self, data: bytes) -> None:
        if data:  # aiohttp calls this itself, without any, to go on with what it had
            self.heard = True
            if self.idle:  # nobody asked: it must not become the answer to the next request
                self.close()
                return
        super().data_received(data)
        if self._exception is not None and self._payload is not None and not self._payload.is_eof():
            # aiohttp tells the connection that this was no HTTP, and not whoever waits for the rest of the body.
            self._payload.set_exception(aiohttp.ClientPayloadError("the body is no HTTP"))

    @property
    def was_stale(self) -> bool:
        """Whether its end may say only that it had been kept for too long: nothing was answered."""
        return self.requests > 1 and not self.heard

    def close(self) -> None:
        """Ends it at once, with whatever a primary that does not read has left unsent."""
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.transport.abort()
        super().close()


class _Sent:
    """Stands in for the writer of a request that has been written."""

    def __init__(self, output_size: int) -> None:
        self.output_size = output_size


class _Request(ClientRequest):
    """A request with the headers that it is given and no others, and a small body right behind its head.

    aiohttp looks for headers to add one by one, and has a small body written by a task. What it makes of a small body's
    request is set here at once, in the order of its own `__init__`.
    """

    chunked = compress = length = server_hostname = proxy = proxy_auth = proxy_headers = None
    version = HttpVersion11
    response_class = aiohttp.ClientResponse
    _session: Any = None
    _ssl = True
    _timer = TimerNoop()

    def __init__(
        self, method: str, url: URL, headers: list[tuple[str, str]], body: Body, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._small = body if type(body) is bytes and len(body) <= _LARGE_BODY else None
        if self._small is None:
            data = io.BytesIO(body) if type(body) is bytes else body
            super().__init__(method, url, headers=headers, data=data, loop=loop)
            return
        self.method, self.original_url, self.url, self.loop = method, url, url, loop
        self._traces = []
        self.update_headers(headers)
        self.headers.setdefault(hdrs.CONTENT_LENGTH, str(len(self._small)))

    def update_headers(self, headers: Any) -> None:
        self.headers = CIMultiDict(((hdrs.HOST, self.url.host_port_subcomponent or ""),))
        self.headers.extend(headers)

    def update_auto_headers(self, skip_auto_headers: Any) -> None:  # noqa: ARG002  (aiohttp's signature)
        self._skip_auto_headers = _NOT_ADDED

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        body, protocol = self._small, conn.protocol
        if body is None or protocol.transport is None or protocol.writing_paused:
            if body is not None:
                self.update_body_from_data(body)
            return await super().send(conn)
        if conn._connector.force_close:  # noqa: SLF001  (as aiohttp's own `send` does)
            self.headers[hdrs.CONNECTION] = "close"
        head = _serialize_headers(f"{self.method} {self.url.raw_path_qs} HTTP/1.1", self.headers)
        joined(protocol.transport, head, body)
        protocol.start_timeout()
        written: Any = _Sent(len(head) + len(body))
        self.response = self.response_class(
            self.method,
            self.original_url,
            writer=None,
            continue100=None,
            timer=self._timer,
            request_info=self.request_info,
            traces=self._traces,
            loop=self.loop,
            session=self._session,
            stream_writer=written,
        )
        return self.response


class _Connector(aiohttp.TCPConnector):
    """Connections of this kind, and requests begun on them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = functools.partial(_Connection, loop=self._loop)  # type: ignore[assignment]

    async def begin(
        self, method: str, url: URL, headers: list[tuple[str, str]], body: Body, limits: aiohttp.ClientTimeout
    ) -> tuple[Connection, _Request]:
        """A request and the connection that it is to be sent over, kept or new."""
        request = _Request(method, url, headers, body, self._loop)
        connection = await self.connect(request, [], limits)
        if isinstance(connection.protocol, _Connection):
            connection.protocol.begin()
        return connection, request

    def _release(self, key: Any, protocol: ResponseHandler, **options: Any) -> None:
        if isinstance(protocol, _Connection):
            protocol.idle = True
        super()._release(key, protocol, **options)


class Pool:
    """HTTP/1.1 connections to all primaries. `open` in a running loop, `close` at the end.

    It stands on aiohttp's connector, request and response. The session that usually stands above them looks anew into
    redirects, cookies, proxies, traces and a total time for each request: a tenth of a small one's CPU, and nothing of
    it is wanted here. `clock` gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: _Connector | None = None
        self._fresh: _Connector | None = None

    async def open(self) -> None:
        """Makes the pool."""
        self._kept = _Connector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
        self._fresh = _Connector(limit=0, force_close=True)

    async def close(self) -> None:
        """Ends all connections."""
        for connector in (self._kept, self._fresh):
            if connector:
                await connector.close()

    async def request(
        self, method: str, url: URL, headers: list[tuple[str, str]], body: Body, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Sends a request and returns once its answer's head is there; the caller closes the response.

        A kept connection that ends before any answer byte is no answer: a body that is at hand is sent once more, over
        a fresh connection; what may not be done twice only where the end came within a second of sending it. Of the
        `limits`, those of connecting count.

        Raises:
            aiohttp.ClientError, TimeoutError: no answer.
        """
        assert self._kept is not None
        assert self._fresh is not None
        connection, request = await self._kept.begin(method, url, headers, body, limits)
        used, sent = connection.protocol, self._clock()
        try:
            return await _answer(connection, request)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError):
            stale = isinstance(used, _Connection) and used.was_stale
            stale = stale and (method in _REPEATABLE or self._clock() - sent < _JUST_NOW_S)
            if not stale or not (body is None or isinstance(body, bytes)):
                raise
        return await _answer(*await self._fresh.begin(method, url, headers, body, limits))


async def _answer(connection: Connection, request: _Request) -> aiohttp.ClientResponse:
    """Sends a request over its connection; returns with the head of the answer."""
    try:
        protocol = connection.protocol
        assert protocol is not None
        protocol.set_response_params(
            skip_payload=request.method == hdrs.METH_HEAD,
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=_READ_BUFFER,
            max_line_size=_HEAD_BYTES,
            max_field_size=_HEAD_BYTES,
            max_headers=_HEADERS,
        )
        response = await request.send(connection)
        try:
            return await response.start(connection)
        except BaseException:
            response.close()
            raise
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError) and not isinstance(error, aiohttp.ClientError | TimeoutError):
            raise aiohttp.ClientOSError(*error.args) from error
        raise
