"""Bytes to the primary and back: a raw ASGI app, no parse where nothing was injected, no task or log per chunk.

A client that leaves ends the primary's request. A copy of an answer that may be compared is handed to the mirror after
the last byte has gone to the client.
"""

import asyncio
import functools
import time
from dataclasses import replace
from typing import cast

import aiohttp
import structlog

from proxy import http
from proxy.aside import Aside
from proxy.block import Holding
from proxy.blocking import Answering, Blocking
from proxy.dialects import HELD
from proxy.gate import Gate
from proxy.gates.stored import WITHHELD, Watched
from proxy.guard import Guard, Guards
from proxy.http import Receive, Refusal, Scope, Send
from proxy.inject import Injection, Removal
from proxy.keys import ClientKeys
from proxy.metrics import Metrics
from proxy.passage import Passage
from proxy.paths import Denied
from proxy.pool import Body, Pool
from proxy.reading import MAX_EDITED, Reading, is_large
from proxy.recording import Recording
from proxy.regime import Regime
from proxy.routes import Routes
from proxy.settings import Settings
from proxy.upload import LEAVING, ClientLeftError, TooLargeError, TooSlowError, Upload, UploadError
from shadow.exchange import Dialect
from shadow.tasks import Tasks
from shadow.wire import dialects

log = structlog.get_logger("counterproof.door")

_EDIT_ASIDE = 2 * 1024 * 1024  # a body larger than this is edited in a thread; that much takes about 2 ms
# Answers that say "not now", and nothing of what was injected.
_NOT_NOW = frozenset({408, 425, 429, 502, 503, 504})
_READ_IN_VAIN = 64 * 1024  # a longer body of a request that is refused by its head is not waited for
_SEEN_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1"})  # in which calls are written alike


class _OutgrownError(Exception):
    """An answer is too large to be edited as a whole."""


class Forwarder:
    """The data port's app. `open` before the first request, `close` after the last."""

    def __init__(
        self, settings: Settings, routes: Routes, metrics: Metrics, regime: Regime, blocking: Blocking, aside: Aside
    ) -> None:
        self._listen = settings.listen
        self._most = int(settings.listen.max_body_bytes)
        self._copy_limit = int(settings.mirror.max_body_bytes)
        self._denied = Denied(settings.paths.deny, settings.paths.allow)
        self._keys = ClientKeys([(key.name, key.digest) for key in settings.client_keys])
        self._routes = routes
        self._metrics, self._regime = metrics, regime
        self._aside = aside
        self._reading = Reading(settings, routes, metrics, regime, blocking, self._aside)
        self._recording = Recording(self._reading, metrics)
        self._pool = Pool()
        self._tasks = Tasks("door")
        self._guards = Guards(self._tasks)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.in_flight = 0

    async def open(self) -> None:
        """Makes the connection pool; needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._aside.open()
        await self._pool.open()

    async def close(self) -> None:
        """Ends what is under way and all connections."""
        await self._tasks.close()
        await self._pool.close()
        self._aside.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        passage = Passage(scope, dict(scope["headers"]), self._routes.default, self._regime.switch.now)
        self.in_flight += 1
        try:
            if refusal := self._refusal(scope, passage.heads):
                if refusal is WITHHELD:
                    self._turn_away(passage, refusal)
                long = b"transfer-encoding" in passage.heads or http.length(passage.heads) > _READ_IN_VAIN
                await self._refuse(passage, replace(refusal, close=True) if long else refusal, send)
            else:
                await self._serve(passage, receive, send)
        finally:
            self.in_flight -= 1
            if passage.later is not None and is_large(passage):
                await self._recording.read_and_record(passage, passage.later)
            else:
                self._recording.record(passage, time.monotonic())

    def _refusal(self, scope: Scope, heads: dict[bytes, bytes]) -> Refusal | None:
        """Why a request is not served, by its head alone."""
        if refusal := http.not_passed_on(scope, heads):
            return refusal
        if self._keys and self._keys.name(scope["headers"]) is None:
            return http.NO_KEY
        if self._denied(scope["raw_path"]):
            return http.PATH_DENIED
        if self._reading.withheld and self._reading.withheld.refers(scope["raw_path"]):
            return WITHHELD
        if http.length(heads) > self._most:
            return http.TOO_LARGE
        return http.BUSY if self.in_flight > self._listen.max_in_flight else None

    def _turn_away(self, passage: Passage, refusal: Refusal) -> None:
        """Has it recorded that a request is not passed on, for what its answer may do."""
        client = self._keys.name(passage.scope["headers"]) if self._keys else None
        self._reading.turned_away(passage, refusal, client or "")

    async def _serve(self, passage: Passage, receive: Receive, send: Send) -> None:
        silence, leaving = self._listen.read_timeout, passage.scope.get(LEAVING)
        upload = Upload(receive, most=self._most, silence=silence, leaving=leaving)
        guard = Guard(passage, upload, self._loop)
        try:
            await self._reading.read(passage, upload)
            if refusal := self._reading.unserved(passage):
                self._turn_away(passage, refusal)
                await self._refuse(passage, refusal, send)
                return
            self._guards.begin(guard, passage.to.read_timeout)
            await self._answer(passage, send)
        except UploadError as error:
            await self._not_uploaded(passage, error, send)
        except asyncio.CancelledError:
            if guard.late:
                await self._fail(passage, TimeoutError(), send)
            elif not guard.left:
                await self._cut_off(passage, send)
            elif not passage.complete:  # many clients close as soon as they have read `[DONE]`
                passage.problem = "client_left"
        except Exception as error:  # noqa: BLE001  (the client gets an answer, or a connection that breaks)
            if upload.problem is not None:  # in the middle of its upload, whatever the HTTP client made of that
                await self._not_uploaded(passage, upload.problem, send)
            else:
                await self._fail(passage, error, send)
        finally:
            guard.end()
            if passage.holding is not None:
                await passage.holding.close()

    # --- the answer -------------------------------------------------------------------------------------------

    async def _answer(self, passage: Passage, send: Send) -> None:
        response = await self._ask(passage)
        try:
            if passage.holding is not None:
                try:
                    await self._relay_held(passage, response, passage.holding, send)
                finally:  # a client that left before the verdict must not fetch the call afterwards
                    if passage.keeping is not None and (passage.holding.acted or not passage.ended):
                        passage.keeping.refused()
                return
            whole = None
            if passage.injection is not None and not passage.sse:
                try:
                    _, whole = await self._whole_body(passage, response, passage.injection)
                except _OutgrownError:
                    response.close()
                    response = await self._ask_plainly(passage, "too_large")
            await self._relay(passage, response, whole, send)
        finally:
            if not response.closed:
                response.close()

    async def _ask(self, passage: Passage) -> aiohttp.ClientResponse:
        """The primary's response; what comes of an injection that was not taken is asked again as the client sent it.

        That is an error, and an answer whose content is encoded, though the opposite was asked for: what was put in
        could not be cut out of it.
        """
        injection = passage.injection
        response = await self._send(passage, injection.body if injection else passage.body)
        if injection is None:
            return response
        if response.status < 400 and not _encoded(response):
            return response
        response.close()
        plain = await self._ask_plainly(passage, None)
        if plain.status < 400 and response.status not in _NOT_NOW and passage.request is not None:
            model = passage.request.model
            seconds = passage.to.leave_plain(passage.request.dialect, model)
            self._metrics.injection_refused(model)
            log.warning(
                "the primary refused an injected request: its model is sent plain for a while",
                model=model[:100],
                dialect=passage.request.dialect.value,
                status=response.status,
                seconds=seconds,
            )
        return plain

    async def _ask_plainly(self, passage: Passage, problem: str | None) -> aiohttp.ClientResponse:
        passage.injection, passage.copied = None, 0
        passage.copy, passage.problem = [] if passage.sampled and not problem else None, problem
        return await self._send(passage, passage.body)

    async def _send(self, passage: Passage, body: Body) -> aiohttp.ClientResponse:
        to, scope = passage.to, passage.scope
        headers = http.to_primary(
            scope["headers"],
            buffered=isinstance(body, bytes),
            readable=passage.injection is not None or passage.holding is not None,
            drop=to.drop,
            authorization=to.authorization,
        )
        url = to.url(scope["raw_path"], scope["query_string"])
        began = passage.waiting_since = time.monotonic()
        try:
            response = await self._pool.request(scope["method"], url, headers, body, to.timeout)
        finally:
            passage.waiting_since = None
            passage.waited += time.monotonic() - began
        if not 200 <= response.status < 600:  # no status of an answer (101: nobody asked for another protocol)
            response.close()
            raise aiohttp.ClientPayloadError("an answer of no known kind")
        passage.sse = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        return response

    async def _relay(self, passage: Passage, response: aiohttp.ClientResponse, whole: bytes | None, send: Send) -> None:
        injection = passage.injection
        if injection is None and passage.copy is not None and _encoded(response):
            passage.leave_uncompared("encoded")
        headers = http.to_client(
            response.raw_headers,
            status=response.status,
            edited=injection is not None,
            length=None if whole is None else len(whole),
        )
        passage.status, passage.answered = response.status, True
        await send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": headers + http.own(passage.id, passage.mode.encode()),
            }
        )
        if whole is not None:
            passage.first_byte = time.monotonic()
            passage.ended = passage.first_byte
            await send({"type": "http.response.body", "body": whole, "more_body": False})
            return
        removal = Removal(injection.nulls) if injection is not None else None
        more = True
        while more:
            chunk = await self._next(passage, response)
            more = not response.content.at_eof()
            out = removal.feed(chunk) if removal else chunk
            if not more:
                passage.ended = time.monotonic()
                out += removal.rest if removal else b""
            if out or not more:
                await send({"type": "http.response.body", "body": out, "more_body": more})

    async def _relay_held(
        self, passage: Passage, response: aiohttp.ClientResponse, holding: Holding, send: Send
    ) -> None:
        """An answer in block mode: through its gate, or as a whole once it is judged."""
        injection, held = passage.injection, HELD[holding.case.request.dialect]
        built_in, failed = bool(passage.built_in), response.status >= 300
        unread = _encoded(response) or _is_other_text(response)
        passage.answered_by = response.status

        async def start(length: int | None) -> None:
            passage.status, passage.answered = response.status, True
            headers = http.to_client(response.raw_headers, status=response.status, edited=True, length=length)
            headers += http.own(passage.id, b"block", holding.acted)
            await send({"type": "http.response.start", "status": response.status, "headers": headers})

        async def refuse(refused: Refusal) -> None:
            passage.status, passage.answered = refused.status, True
            await _in_dialect(passage, refused).answer(send, passage.id, b"block", holding.acted)

        out = Answering(send, start, refuse)
        if passage.sse and not unread and not failed:
            gate = held.gate(Removal(injection.nulls) if injection else None, built_in)
            if passage.keeping is not None:
                gate = cast("Gate", Watched(gate, passage.keeping, lambda: holding.acted))
            await holding.stream(functools.partial(self._next, passage, response), gate, out)
        else:
            result: bytes | Refusal
            try:
                raw, body = await self._whole_body(passage, response, injection)
                if failed and not (raw and unread) and not held.finds_call(raw, allowed=built_in):
                    result = body
                else:
                    whole = None if failed or unread else held.whole(raw, body, built_in)
                    if passage.keeping is not None:
                        passage.keeping.hold()
                    result = await holding.whole(whole, body)
                    if passage.keeping is not None and not holding.acted:
                        passage.keeping.go()
            except _OutgrownError:
                result = holding.refuse_size()
            if isinstance(result, Refusal):
                await out.refuse(result)
            else:
                await out.write(result, length=len(result))
        passage.ended = time.monotonic()
        await out.end()

    async def _next(self, passage: Passage, response: aiohttp.ClientResponse) -> bytes:
        """The primary's next bytes as they come, copied while the copy is within its bound; b"" at the end."""
        began = passage.waiting_since = time.monotonic()
        chunk = await response.content.readany()
        now = time.monotonic()
        passage.waiting_since = None
        passage.waited += now - began
        if chunk:
            if passage.first_byte is None:
                passage.first_byte = now
            passage.last = chunk
            if passage.keeping is not None:
                passage.keeping.see(chunk, stream=passage.sse)
            if passage.copy is not None:
                passage.copied += len(chunk)
                passage.copy.append(chunk)
                if passage.copied > self._copy_limit:
                    passage.leave_uncompared("too_large")
        return chunk

    async def _whole_body(
        self, passage: Passage, response: aiohttp.ClientResponse, injection: Injection | None
    ) -> tuple[bytes, bytes]:
        """A whole answer as it came, and without what was injected."""
        parts, size = [], 0
        while chunk := await self._next(passage, response):
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_EDITED:
                raise _OutgrownError
            if response.content.at_eof():
                break
        body = b"".join(parts)
        if injection is None:
            return body, body
        if len(body) > _EDIT_ASIDE:
            edited = await self._aside.run(injection.nulls.apply, body)
        else:
            edited = injection.nulls.apply(body)
        return body, body if edited is None else edited

    # --- where there is no answer -----------------------------------------------------------------------------

    async def _not_uploaded(self, passage: Passage, error: UploadError, send: Send) -> None:
        if isinstance(error, ClientLeftError):
            passage.problem = "client_left"
        elif isinstance(error, TooLargeError | TooSlowError):
            await self._refuse(passage, http.TOO_LARGE if isinstance(error, TooLargeError) else http.TOO_SLOW, send)

    async def _fail(self, passage: Passage, error: Exception, send: Send) -> None:
        """502 or 504; what exactly failed is in the log, and no address is in the answer."""
        if passage.answered:
            # Headers are out: only a broken connection says that the answer is not whole (an ASGI server closes the
            # connection of an answer that is not completed).
            passage.problem = "upstream_broke"
        log.warning("the primary failed", exchange=passage.id, error=type(error).__name__, answered=passage.answered)
        await self._refuse(passage, http.LATE if isinstance(error, TimeoutError) else http.UNREACHABLE, send)

    async def _cut_off(self, passage: Passage, send: Send) -> None:
        """The server ends, and does not wait for this answer any longer."""
        passage.problem = "shutting_down"
        await self._refuse(passage, http.SHUTTING_DOWN, send)

    async def _refuse(self, passage: Passage, refusal: Refusal, send: Send) -> None:
        """An answer of our own, if none has begun."""
        if not passage.answered:
            passage.status, passage.request, passage.later = refusal.status, None, None
            await _in_dialect(passage, refusal).answer(send, passage.id, passage.mode.encode())


def _in_dialect(passage: Passage, refusal: Refusal) -> Refusal:
    anthropic = passage.scope["path"].startswith(dialects.PATHS[Dialect.MESSAGES])
    return replace(refusal, typed=True) if anthropic else refusal


def _encoded(response: aiohttp.ClientResponse) -> bool:
    return response.headers.get("content-encoding", "identity") != "identity"


def _is_other_text(response: aiohttp.ClientResponse) -> bool:
    """Whether a reader that believes the answer's own word about its characters sees others than are seen here."""
    return (response.charset or "utf-8").lower() not in _SEEN_CHARSETS
