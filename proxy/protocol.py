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
        self._head_bytes = 0
        self._body_of: RequestResponseCycle | None = None
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
        """Bytes of a head or a body; the parser's callbacks have run when uvicorn's own method returns."""
        super().data_received(data)
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.scope is self.scope and not cycle.more_body:  # a whole request, as most are
            self._head_bytes = 0
            if self._timer is not None:
                self._end_timer()
        elif not self.transport.is_closing():
            self._part_received(cycle, len(data))

    def _part_received(self, cycle: RequestResponseCycle | None, size: int) -> None:
        """What was received ends within a head, or within a body."""
        if cycle is None or cycle.scope is not self.scope:  # a head has begun, its cycle has not
            self._head_bytes += size
            if self._head_bytes > self.max_head_bytes:
                self._refuse(_HEAD_TOO_LARGE)
                return
            owed = True
        else:
            self._head_bytes = 0
            # Once a part of the body is here, whoever reads it bounds the silence.
            owed, self._body_of = self._body_of is not cycle and not cycle.body, cycle
        if not owed:
            self._end_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_timeout, self._is_late)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn's text)
        """What is no HTTP gets an answer in the shape of all others."""
        self._refuse(_NOT_HTTP)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_late(self) -> None:
        self._timer = None
        if self._head_bytes or self._body_of is not None:
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
