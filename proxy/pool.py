"""Connections to the primaries: kept ones, and a second try where a kept one had just been closed by its other end."""

import asyncio
import functools
import io
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from multidict import CIMultiDict
from yarl import URL

from proxy.joined import joined

Body = bytes | AsyncIterator[bytes] | None

_KEEP_ALIVE_S = 3.0  # below vLLM's own 5 s: a connection is rarely used when its other end is just closing it
_READ_BUFFER = 256 * 1024
_HEAD_BYTES = 256 * 1024  # of an answer's single header; the primary's headers are its own business
_HEADERS = 10_000
_LARGE_BODY = 1024 * 1024  # aiohttp writes larger ones in pieces where it gets a file
_NOT_ADDED = CIMultiDict[None](dict.fromkeys((hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE)))


class _Connection(ResponseHandler):
    """One that knows whether it served a request before, and whether it heard anything since this one began."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.requests = 0
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
        """Whether its end says only that it had been kept for too long: nothing was answered, perhaps nothing read."""
        return self.requests > 1 and not self.heard


_CURRENT: ContextVar[_Connection | None] = ContextVar("connection", default=None)


class _Connector(aiohttp.TCPConnector):
    """Tells the task that asks which connection it got."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = functools.partial(_Connection, loop=self._loop)  # type: ignore[assignment]

    async def connect(self, req: ClientRequest, traces: Any, timeout: aiohttp.ClientTimeout) -> Any:  # noqa: ASYNC109  (aiohttp's signature)
        got = await super().connect(req, traces, timeout)
        if isinstance(got.protocol, _Connection):
            got.protocol.requests += 1
            got.protocol.heard = got.protocol.idle = False
            _CURRENT.set(got.protocol)
        return got

    def _release(self, key: Any, protocol: ResponseHandler, **options: Any) -> None:
        if isinstance(protocol, _Connection):
            protocol.idle = True
        super()._release(key, protocol, **options)


class _BodyBehind:
    """Stands in for a transport while a head is written: the body goes with it, in one write where that is cheaper."""

    def __init__(self, transport: asyncio.Transport, body: bytes) -> None:
        self._transport, self._body = transport, body
        self.is_closing = transport.is_closing

    def write(self, head: bytes) -> None:
        joined(self._transport, head, self._body)


class _Request(ClientRequest):
    """A request with the headers that it is given and no others, and a small body right behind its head.

    aiohttp looks for headers to add one by one, and has a small body written by a task (which begins at once from
    Python 3.12).
    """

    _small: bytes | None = None

    def update_headers(self, headers: Any) -> None:
        self.headers = CIMultiDict(((hdrs.HOST, self.url.host_port_subcomponent or ""),))
        self.headers.extend(headers)

    def update_auto_headers(self, skip_auto_headers: Any) -> None:  # noqa: ARG002  (aiohttp's signature)
        self._skip_auto_headers = _NOT_ADDED

    def update_body_from_data(self, body: Any, _stacklevel: int = 3) -> None:
        if type(body) is not bytes:
            super().update_body_from_data(body, _stacklevel)
            return
        self._small = body
        self.headers.setdefault(hdrs.CONTENT_LENGTH, str(len(body)))

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        body, protocol = self._small, conn.protocol
        transport = protocol.transport
        if body is None or transport is None:
            return await super().send(conn)
        if protocol.writing_paused or self._continue is not None:
            super().update_body_from_data(body)
            return await super().send(conn)
        protocol.transport = _BodyBehind(transport, body)
        try:
            return await super().send(conn)  # which waits for nothing where it knows of no body
        finally:
            protocol.transport = transport


class Pool:
    """HTTP/1.1 connections to all primaries. `open` in a running loop, `close` at the end."""

    def __init__(self) -> None:
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Makes the pool."""
        self._kept = _session(_Connector(limit=0, keepalive_timeout=_KEEP_ALIVE_S))
        self._fresh = _session(_Connector(limit=0, force_close=True))

    async def close(self) -> None:
        """Ends all connections."""
        for session in (self._kept, self._fresh):
            if session:
                await session.close()

    async def request(
        self, method: str, url: URL, headers: list[tuple[str, str]], body: Body, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Sends a request and returns once its answer's head is there; the caller closes the response.

        A kept connection that ends before any answer byte is no answer: a body that is at hand is sent once more, over
        a fresh connection.

        Raises:
            aiohttp.ClientError, TimeoutError: no answer.
        """
        assert self._kept is not None
        assert self._fresh is not None
        _CURRENT.set(None)
        try:
            return await self._send(self._kept, method, url, headers, body, limits)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError):
            used = _CURRENT.get()
            if used is None or not used.was_stale or not (body is None or isinstance(body, bytes)):
                raise
        return await self._send(self._fresh, method, url, headers, body, limits)

    async def _send(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: URL,
        headers: list[tuple[str, str]],
        body: Body,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        data = io.BytesIO(body) if isinstance(body, bytes) and len(body) > _LARGE_BODY else body
        return await session.request(method, url, headers=headers, data=data, allow_redirects=False, timeout=limits)


def _session(connector: _Connector) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(
        connector=connector,
        request_class=_Request,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=_READ_BUFFER,
        max_line_size=_HEAD_BYTES,
        max_field_size=_HEAD_BYTES,
        max_headers=_HEADERS,
        trust_env=False,
    )
    session._retry_connection = False  # noqa: SLF001  (`Pool.request` has one rule for all methods)
    session._prepare_headers = CIMultiDict  # type: ignore[assignment]  # noqa: SLF001  (it has none to add)
    return session
