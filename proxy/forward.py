"""Bytes to the primary and back: a raw ASGI route, no parse where nothing was injected, no task or log per chunk.

A client that leaves ends the primary's request. A copy of an answer that may be compared is handed to the mirror after
the last byte has gone to the client.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
import structlog
from yarl import URL

from proxy import http
from proxy.http import Receive, Scope, Send
from proxy.inject import Injection, Level, Removal, plan
from proxy.metrics import Metrics
from proxy.settings import Settings
from shadow.conversation import conversation_key
from shadow.exchange import Dialect, Request, Timings
from shadow.mirror import Capture, Mirror
from shadow.tasks import Tasks
from shadow.wire import sse

log = structlog.get_logger("counterproof.door")

DIALECTS = {"/v1/chat/completions": Dialect.CHAT, "/v1/completions": Dialect.COMPLETIONS}
"""The (decoded) paths whose exchanges may be compared."""

_MAX_BUFFERED = 256 * 1024 * 1024  # an answer that must be edited whole is not held beyond this
_KEEP_ALIVE_S = 3.0  # below vLLM's own 5 s: a connection is not used when its other end is just closing it
_EDIT_ASIDE = 1024 * 1024  # a body larger than this is edited in a thread
# Answers that say "not now", and nothing of what was injected.
_NOT_NOW = frozenset({408, 425, 429, 502, 503, 504})
_PLAIN_FOR_S = 600.0  # how long a model is left plain after an injected request failed where a plain one did not


class ClientLeftError(Exception):
    """The client closed its connection before the answer was complete."""


@dataclass(slots=True)
class _Passage:
    """One request on its way: what was read of it, and the clocks."""

    id: str
    scope: Scope
    began: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.time)
    upstream: float = 0.0
    first_byte: float | None = None
    ended: float = 0.0
    dialect: Dialect | None = None
    body: bytes = b""
    request: Request | None = None
    injection: Injection | None = None
    conversation: str = ""
    status: int = 0
    sse: bool = False
    copy: list[bytes] | None = None
    copied: int = 0
    last: bytes = b""
    problem: str | None = None
    finished: bool = False

    @property
    def complete(self) -> bool:
        """Whether a stream's last event has gone to the client."""
        return self.sse and self.last.rstrip().endswith(sse.DONE)

    @property
    def path(self) -> bytes:
        raw: bytes = self.scope.get("raw_path") or self.scope["path"].encode()
        return raw


class Forwarder:
    """The data route. `open` before the first request, `close` after the last."""

    def __init__(self, settings: Settings, mirror: Mirror, metrics: Metrics) -> None:
        self._settings = settings
        self._mirror = mirror
        self._metrics = metrics
        self._root = settings.primary.base_url.removesuffix("/v1").encode()
        key = settings.primary.api_key
        self._authorization = b"Bearer " + key.get_secret_value().encode() if key else None
        self._plain_until: dict[str, float] = {}
        self._tasks = Tasks("door")
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Makes the connection pool to the primary; needs a running loop."""
        primary = self._settings.primary
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=primary.connect_timeout, sock_read=primary.read_timeout
        )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=timeout,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=256 * 1024,
            trust_env=False,
        )

    async def close(self) -> None:
        """Ends what is under way and the connection pool."""
        await self._tasks.close()
        if self._session:
            await self._session.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if (http.header(scope["headers"], b"upgrade") or b"").lower() == b"websocket":
            await http.refuse_websocket(send)
            return
        passage = _Passage(f"cp-{uuid.uuid4().hex}", scope)
        try:
            await self._serve(passage, receive, send)
        except ClientLeftError:
            if not passage.complete:  # many clients close as soon as they have read `[DONE]`
                passage.problem = "client_left"
        finally:
            self._record(passage)

    async def _serve(self, passage: _Passage, receive: Receive, send: Send) -> None:
        body: bytes | AsyncIterator[bytes] | None = None
        uploaded = asyncio.Event()
        dialect = DIALECTS.get(passage.scope["path"]) if passage.scope["method"] == "POST" else None
        if dialect is not None:
            passage.body = body = b"".join([part async for part in _stream(passage, receive, uploaded)])
            self._understand(passage, dialect)
        elif http.has_body(passage.scope["headers"]):
            body = _stream(passage, receive, uploaded)
        else:
            uploaded.set()
        answering = self._tasks.start("answer", self._forward(passage, body, send))
        try:
            await _until_answered_or_left(passage, answering, _left(receive, uploaded), self._tasks)
        except asyncio.CancelledError:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            raise

    def _understand(self, passage: _Passage, dialect: Dialect) -> None:
        """Reads the request and decides what is put in. Broken JSON is the primary's business, and no shadow's."""
        if http.header(passage.scope["headers"], b"content-encoding"):
            return
        if len(passage.body) > int(self._settings.mirror.max_body_bytes):
            self._mirror.skip("too_large")
            return
        try:
            value = orjson.loads(passage.body)
        except orjson.JSONDecodeError:
            return
        if not isinstance(value, dict):
            return
        try:
            self._plan(passage, Request(dialect, value))
        except Exception as error:  # noqa: BLE001  (whatever a client wrote, it still gets the primary's answer)
            passage.request = passage.injection = passage.copy = None
            log.error("a request was not understood", exchange=passage.id, error=type(error).__name__)

    def _plan(self, passage: _Passage, request: Request) -> None:
        """Whether this exchange is in the sample, and what is put into it."""
        header = self._settings.conversation.header
        named = http.header(passage.scope["headers"], header.lower().encode()) if header else None
        passage.dialect, passage.request = request.dialect, request
        passage.conversation = conversation_key(request, named.decode("latin-1") if named else None)
        if self._mirror.wants(request, passage.conversation):
            passage.copy = []
        if passage.copy is not None and self._mirror.ready:
            can = self._mirror.primary.can
            level, k = self._level(request.model), can.max_logprobs if can else 0
            longest = can.max_model_len if can else None
            passage.injection = plan(request, passage.body, level, k, room=_MAX_BUFFERED, longest=longest)

    def _level(self, model: str) -> Level:
        plain = time.monotonic() < self._plain_until.get(model, 0.0)
        return Level.OFF if plain else self._settings.primary.level

    async def _forward(self, passage: _Passage, body: bytes | AsyncIterator[bytes] | None, send: Send) -> None:
        try:
            async with await self._ask(passage, body) as response:
                await self._relay(passage, response, send)
        except Exception as error:  # noqa: BLE001  (the client gets an answer, or a connection that breaks)
            if passage.problem == "client_left":  # in the middle of its upload, whatever the HTTP client made of that
                raise ClientLeftError from None
            if passage.status:  # headers are out: only a broken connection says that the answer is not whole
                # (an ASGI server closes the connection of an answer that is not completed)
                passage.problem = "upstream_broke"
                log.warning("the primary broke off", exchange=passage.id, error=type(error).__name__)
                return
            await self._fail(passage, error, send)

    async def _ask(self, passage: _Passage, body: bytes | AsyncIterator[bytes] | None) -> aiohttp.ClientResponse:
        """The primary's response; an error to an injected request is asked again as the client sent it."""
        if passage.injection is not None:
            response = await self._send(passage, passage.injection.body)
            if response.status < 400:
                return response
            response.release()
            passage.injection = None
            plain = await self._send(passage, body)
            if plain.status < 400 and response.status not in _NOT_NOW and passage.request is not None:
                self._switch_off(passage.request.model, response.status)
            return plain
        return await self._send(passage, body)

    def _switch_off(self, model: str, status: int) -> None:
        self._plain_until[model] = time.monotonic() + _PLAIN_FOR_S
        self._metrics.injection_refused(model)
        log.warning(
            "the primary refused an injected request: sent plain for a while",
            model=model[:100],
            status=status,
            seconds=_PLAIN_FOR_S,
        )

    async def _send(self, passage: _Passage, body: bytes | AsyncIterator[bytes] | None) -> aiohttp.ClientResponse:
        assert self._session is not None
        query = passage.scope["query_string"]
        url = URL((self._root + passage.path + (b"?" + query if query else b"")).decode("latin-1"), encoded=True)
        headers = http.to_primary(
            passage.scope["headers"],
            buffered=isinstance(body, bytes),
            injected=passage.injection is not None,
            authorization=self._authorization,
        )
        began = time.monotonic()
        try:
            return await self._session.request(
                passage.scope["method"], url, headers=headers, data=body, allow_redirects=False
            )
        finally:
            passage.upstream += time.monotonic() - began

    async def _relay(self, passage: _Passage, response: aiohttp.ClientResponse, send: Send) -> None:
        injection = passage.injection
        passage.sse = response.headers.get("content-type", "").startswith("text/event-stream")
        if response.headers.get("content-encoding", "identity") != "identity":
            injection, passage.copy = None, None  # not to be read, so neither edited nor compared
            passage.problem = "encoded"
        whole = None
        if injection is not None and not passage.sse:
            whole = await self._edited_body(passage, response, injection)
        passage.status = response.status
        edited = injection is not None
        headers = http.to_client(response.raw_headers, edited=edited, length=None if whole is None else len(whole))
        headers += http.own(passage.id)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        if whole is not None:
            passage.first_byte = time.monotonic()
            await send({"type": "http.response.body", "body": whole, "more_body": True})
        elif injection is not None:
            await self._relay_events(passage, response, injection, send)
        else:
            async for chunk in self._chunks(passage, response):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        passage.ended = time.monotonic()
        passage.finished = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _edited_body(self, passage: _Passage, response: aiohttp.ClientResponse, injection: Injection) -> bytes:
        parts, size = [], 0
        async for chunk in self._chunks(passage, response):
            parts.append(chunk)
            size += len(chunk)
            if size > _MAX_BUFFERED:
                raise aiohttp.ClientPayloadError("an answer too large to be edited")
        body = b"".join(parts)
        if len(body) > _EDIT_ASIDE:
            edited = await asyncio.to_thread(injection.nulls.apply, body)
        else:
            edited = injection.nulls.apply(body)
        return body if edited is None else edited

    async def _relay_events(
        self, passage: _Passage, response: aiohttp.ClientResponse, injection: Injection, send: Send
    ) -> None:
        removal = Removal(injection.nulls)
        async for chunk in self._chunks(passage, response):
            if out := removal.feed(chunk):
                await send({"type": "http.response.body", "body": out, "more_body": True})
        if rest := removal.rest:
            await send({"type": "http.response.body", "body": rest, "more_body": True})

    async def _chunks(self, passage: _Passage, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The primary's chunks as they come, copied while the copy is within its bound, the waiting time counted."""
        limit = int(self._settings.mirror.max_body_bytes)
        stream = response.content
        while True:
            began = time.monotonic()
            chunk = await stream.readany()
            now = time.monotonic()
            passage.upstream += now - began
            if not chunk:
                return
            if passage.first_byte is None:
                passage.first_byte = now
            passage.last = chunk
            if passage.copy is not None:
                passage.copied += len(chunk)
                passage.copy.append(chunk)
                if passage.copied > limit:
                    passage.copy, passage.problem = None, "too_large"
            yield chunk

    async def _fail(self, passage: _Passage, error: Exception, send: Send) -> None:
        """502 or 504 in OpenAI's error shape; what exactly failed is in the log, without addresses in the answer."""
        late = isinstance(error, TimeoutError)
        passage.status, passage.ended, passage.finished = (504 if late else 502), time.monotonic(), True
        passage.problem = "unreachable"
        message = "the model server did not answer in time" if late else "the model server cannot be reached"
        log.warning("the primary failed", exchange=passage.id, error=type(error).__name__)
        body = http.openai_error(message, "upstream_error", passage.status)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *http.own(passage.id),
        ]
        await send({"type": "http.response.start", "status": passage.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _record(self, passage: _Passage) -> None:
        """Counts the request and hands it to the mirror; whatever fails there, the answer has been given."""
        try:
            self._count(passage)
            self._offer(passage)
        except Exception as error:  # noqa: BLE001  (nothing of the record may break the primary path)
            log.error("an exchange was not recorded", exchange=passage.id, error=type(error).__name__)

    def _count(self, passage: _Passage) -> None:
        now = time.monotonic()
        self._metrics.request(
            dialect=passage.dialect.value if passage.dialect else "other",
            model=passage.request.model if passage.request else "",
            code=passage.status if passage.problem != "client_left" else 499,
            stream=passage.sse,
            upstream=passage.upstream,
            total=now - passage.began,
            first_byte=passage.first_byte - passage.began if passage.first_byte else None,
        )

    def _offer(self, passage: _Passage) -> None:
        """Hands an answered exchange over; what had no injection and no copy is out of the sample, and counted so."""
        if passage.request is None or passage.dialect is None or not passage.status or passage.problem == "unreachable":
            return
        now = time.monotonic()
        body = b"".join(passage.copy or ())
        timings = Timings(passage.began, passage.first_byte or now, passage.ended or now)
        self._mirror.offer(
            Capture(
                id=passage.id,
                request=passage.request,
                body=body,
                stream=passage.sse,
                status=passage.status,
                conversation=passage.conversation,
                began_at=passage.began_at,
                timings=timings,
                size=len(passage.body) + len(body),
                problem=passage.problem or (None if passage.copy is not None else "sampled_out"),
            )
        )


async def _until_answered_or_left(
    passage: _Passage, answering: asyncio.Task[None], left: Coroutine[Any, Any, None], tasks: Tasks
) -> None:
    """Waits for the answer; a client that leaves first ends it.

    Raises:
        ClientLeftError: it left.
    """
    leaving = tasks.start("watch", left)
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done() and not passage.finished:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            raise ClientLeftError
        await answering
    finally:
        leaving.cancel()


async def _left(receive: Receive, uploaded: asyncio.Event) -> None:
    """Returns when the client has gone; while it still sends its body, `_stream` is the one that listens."""
    await uploaded.wait()
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stream(passage: _Passage, receive: Receive, uploaded: asyncio.Event) -> AsyncIterator[bytes]:
    """The request's body as it comes; `uploaded` is set at its end.

    Raises:
        ClientLeftError: the client left before its end.
    """
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            passage.problem = "client_left"
            raise ClientLeftError
        if body := message.get("body", b""):
            yield body
        if not message.get("more_body", False):
            uploaded.set()
            return
