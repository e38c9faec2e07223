"""The data port's HTTP/1.1 server protocol: uvicorn's, with bounds on a request's head and errors in one shape.

What one connection says must mean the same to whoever stands before this proxy and behind it: a connection on which
something was not HTTP, or asked for another protocol, carries no further request.
"""

import asyncio
import select
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from proxy.http import Refusal
from proxy.joined import HeadKept
from proxy.upload import LEAVING, Leaving

log = structlog.get_logger("counterproof.server")

_NOT_HTTP = Refusal(400, "invalid_request_error", "this is not a valid HTTP request", close=True)
_HEAD_TOO_LARGE = Refusal(
    431, "invalid_request_error", "the request's line and headers are larger than is taken here", close=True
)
_FRAMES_TOO_LARGE = Refusal(
    413, "invalid_request_error", "what frames the request's body is larger than is taken here", close=True
)
_TOO_SLOW = Refusal(408, "invalid_request_error", "the request did not arrive in time", close=True)

_FRAME_PER_BYTE = 8  # a chunk of one byte has five that frame it
_HANGS_UP = getattr(select, "POLLRDHUP", 0)  # what is no error or whole end is told by Linux only


class BoundedProtocol(HttpToolsProtocol):
    """Takes heads of at most `max_head_bytes` (plus what one read brings), and as much around a body's chunks.

    A head, and the first part of a body after it, arrive within `head_timeout` seconds each. The parser itself keeps a
    header of any length, and waits for its end forever.

    A transport that is paused does not tell that its client has gone: its socket is asked every `look_every` seconds. A
    client that will send no more counts as gone then, as it does where it is read.
    """

    max_head_bytes = 64 * 1024
    head_timeout = 60.0
    look_every = 1.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_bytes = 0
        self._framed: RequestResponseCycle | None = None  # whose body is counted
        self._frame_bytes = self._body_bytes = 0
        self._deaf = False
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None  # set whenever reading is paused
        self._running: RequestResponseCycle | None = None  # an earlier one than `cycle` where requests are pipelined
        self._leaving = Leaving()

    def connection_made(self, transport: Any) -> None:
        """A client has connected; it owes a request's head."""
        kept: Any = HeadKept(transport, self.loop)  # as much of a transport as uvicorn uses
        super().connection_made(kept)
        self._abort = transport.abort
        self._timer = self.loop.call_later(self.head_timeout, self._is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended: so has the request that is being served, though others may wait behind it."""
        self._end_timer()
        if self._looking is not None:
            self._looking.cancel()
        super().connection_lost(exc)
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        self._leaving.tell()

    def data_received(self, data: bytes) -> None:
        """Bytes of a head or a body; the parser's callbacks have run when uvicorn's own method returns."""
        if self._deaf:
            return
        before: RequestResponseCycle | None = self.cycle
        had = len(before.body) if before is not None else 0
        super().data_received(data)
        if self.flow.read_paused and self._looking is None:
            self._looking = self.loop.call_later(self.look_every, self._look)
        cycle: Any = self.cycle
        if cycle is not None and cycle.scope is self.scope and not cycle.more_body:  # a whole request, as most are
            self._head_bytes = 0
            if self._timer is not None:
                self._end_timer()
        elif not self.transport.is_closing():
            self._part_received(cycle, len(data), had if cycle is before else 0)

    def on_headers_complete(self) -> None:
        """A head is whole. What the parser still calls headers are a body's trailers: they are nobody's headers."""
        super().on_headers_complete()
        self.headers = []
        scope: Any = self.scope
        scope[LEAVING] = self._leaving

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _look(self) -> None:
        """Ends a connection that its client has ended, behind whatever it sent that is not read yet."""
        self._looking = None
        if not self.flow.read_paused or self.transport.is_closing():
            return
        if _hung_up(self.transport.get_extra_info("socket").fileno()):
            self._abort()
        else:
            self._looking = self.loop.call_later(self.look_every, self._look)

    def on_response_complete(self) -> None:
        """A request is answered; the next one that waits is begun, unless this was the last that was heard."""
        if self._deaf and not self.pipeline:
            self.transport.close()
        super().on_response_complete()

    def _part_received(self, cycle: RequestResponseCycle | None, size: int, had: int) -> None:
        """What was received ends within a head, or within a body that had so many bytes before."""
        if cycle is None or cycle.scope is not self.scope:  # a head has begun, its cycle has not
            self._head_bytes += size
            if self._head_bytes > self.max_head_bytes:
                self._refuse(_HEAD_TOO_LARGE)
                return
            owed = True
        else:
            self._head_bytes = 0
            if self._framed is not cycle:
                self._framed, self._frame_bytes, self._body_bytes = cycle, -size, 0  # the head came with it
            came = len(cycle.body) - had
            self._body_bytes += came
            self._frame_bytes += size - came
            too_much = self.max_head_bytes + _FRAME_PER_BYTE * self._body_bytes
            if self._frame_bytes > too_much and not cycle.response_complete:
                self._refuse(_FRAMES_TOO_LARGE)
                return
            owed = not self._body_bytes  # once a part is here, whoever reads it bounds the silence
        if not owed:
            self._end_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_timeout, self._is_late)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn's text)
        """What is no HTTP is refused; behind a whole request it is not heard, and that one is the connection's last."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._hear_no_more(cycle)
        else:
            self._refuse(_NOT_HTTP)

    def _unsupported_upgrade_warning(self) -> None:
        """A request for another protocol is answered in this one; the parser knows no more what follows it."""
        self._hear_no_more(self.cycle)

    def _hear_no_more(self, last: RequestResponseCycle) -> None:
        self._deaf = True
        self._end_timer()
        last.keep_alive = False
        if last.response_complete:
            self.transport.close()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_late(self) -> None:
        self._timer = None
        cycle: RequestResponseCycle | None = self.cycle
        in_head = cycle is None or cycle.scope is not self.scope or not cycle.more_body
        if self.pipeline or (in_head and cycle is not None and not cycle.response_complete):
            # An earlier request is not answered yet: until then it is this side that does not read.
            self._timer = self.loop.call_later(self.head_timeout, self._is_late)
        elif self._head_bytes or not in_head:
            self._refuse(_TOO_SLOW)
        elif not self.transport.is_closing():  # a connection kept ready, and never used
            self.transport.close()

    def _refuse(self, refusal: Refusal) -> None:
        """Answers below ASGI and closes; where earlier requests still wait for theirs, those are the last answers."""
        if self.transport.is_closing():
            return
        self._deaf = True
        self._end_timer()
        log.info("a request was refused before it was whole", status=refusal.status)
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.scope is not self.scope or not cycle.more_body:  # what is refused is a head behind this one
                self._hear_no_more(cycle)
                return
            if self.pipeline:  # it waits behind another, and is the newest: it is never begun
                self.pipeline.popleft()
                return
        if cycle is None or not cycle.response_started or cycle.response_complete:
            body = refusal.body
            self.transport.write(
                STATUS_LINE[refusal.status]
                + b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
                + body
            )
        self.transport.close()


def _hung_up(descriptor: int) -> bool:
    """Whether the other end of a socket has closed it; nothing is read."""
    poll = select.poll()
    poll.register(descriptor, _HANGS_UP)  # an error and a whole end are always told
    return bool(poll.poll(0))
