"""The data port's HTTP/1.1 server protocol: uvicorn's, with bounds on a request's head and errors in one shape."""

import asyncio
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from proxy.http import Refusal

log = structlog.get_logger("counterproof.server")

_NOT_HTTP = Refusal(400, "invalid_request_error", "this is not a valid HTTP request", close=True)
_HEAD_TOO_LARGE = Refusal(
    431, "invalid_request_error", "the request's line and headers are larger than is taken here", close=True
)
_TOO_SLOW = Refusal(408, "invalid_request_error", "the request did not arrive in time", close=True)


class BoundedProtocol(HttpToolsProtocol):
    """Takes heads of at most `max_head_bytes` (plus what one read brings).

    A head, and the first part of a body after it, arrive within `head_timeout` seconds each. The parser itself keeps a
    header of any length, and waits for its end forever.
    """

    max_head_bytes = 64 * 1024
    head_timeout = 60.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = self._owes = True
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client has connected; it owes a request's head."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_timeout, self._is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._end_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a head or a body."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.max_head_bytes:
            self._refuse(_HEAD_TOO_LARGE)
        elif self._owes and self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self.head_timeout, self._is_late)

    def on_headers_complete(self) -> None:
        """A head is whole; a body's first part, or the message's end, is owed."""
        self._in_head, self._head_bytes, self._owes = False, 0, True
        self._end_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body: from here on, whoever reads it bounds the silence."""
        if self._owes:
            self._owes = False
            self._end_timer()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole; what follows is the next one's head."""
        self._in_head, self._owes = True, False
        self._end_timer()
        super().on_message_complete()

    def on_message_begin(self) -> None:
        """The first bytes of a request."""
        self._owes = True
        super().on_message_begin()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn's text)
        """What is no HTTP gets an answer in the shape of all others."""
        self._refuse(_NOT_HTTP)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_late(self) -> None:
        self._timer = None
        if self._head_bytes or not self._in_head:
            self._refuse(_TOO_SLOW)
        elif not self.transport.is_closing():  # a connection kept ready, and never used
            self.transport.close()

    def _refuse(self, refusal: Refusal) -> None:
        """Answers below ASGI, unless another answer is on its way, and closes."""
        if self.transport.is_closing():
            return
        self._end_timer()
        log.info("a request was refused before it was whole", status=refusal.status)
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete or not (cycle.response_started or self.pipeline):
            body = refusal.body
            self.transport.write(
                STATUS_LINE[refusal.status]
                + b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
                + body
            )
        self.transport.close()
