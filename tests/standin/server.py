"""The stand-in's HTTP server: routes, what it received, its faults, its start and end."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from tests.standin import chat, checks, completions, wire
from tests.standin.asking import Asking, Ids, Pace, Served
from tests.standin.faults import ClosedError, EndedError, Faults, Writer, hang
from tests.standin.model import Model, Script
from tests.standin.routes import GET, POST, Plain
from tests.standin.tokens import Tokenizer

_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_MAX_BODY = 256 * 1024 * 1024


@dataclass(frozen=True)
class Received:
    """One request as it arrived; `path` is the raw target with its query, `headers` are raw pairs in their order."""

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The first header of that name."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)


class StandIn:
    """An engine in this process. Use as an async context manager.

    `scripts`, `gaps`, `flips`, `seed` and `ends` make its model (see `tests.standin.model`); `tokenizer_shift` other
    than 0 is another tokenizer. `faults` may be replaced while it runs. `received` holds the last requests, `running`
    and `disconnects` count generating requests under way and those whose client left before the end.
    """

    def __init__(
        self,
        scripts: Sequence[Script] = (),
        *,
        model: str = "smollm2",
        faults: Faults | None = None,
        gaps: Mapping[int, float] | None = None,
        flips: Collection[int] = (),
        seed: bytes = b"",
        ends: bool = True,
        tokenizer_shift: int = 0,
        max_model_len: int = 4096,
        prefill_s: float = 0.0,
        per_token_s: float = 0.0,
        scale_out: bool = True,
        prefix_cache: bool = True,
        processed: bool = False,
        port: int = 0,
        keep: int = 1000,
    ) -> None:
        self.name = model
        self.faults = faults or Faults()
        self.tokenizer = Tokenizer(tokenizer_shift)
        self.model = Model(self.tokenizer, tuple(scripts), gaps or {}, flips, seed, ends)
        self.port = port
        self.received: deque[Received] = deque(maxlen=keep)
        self.running = 0
        self.disconnects = 0
        self.generated = 0
        self._served = Served(
            model=self.model,
            name=model,
            max_model_len=max_model_len,
            ids=Ids(seed),
            pace=Pace(prefill_s, per_token_s),
            processed=processed,
            thinks=any(script.reasoning for script in scripts),
        )
        self._plain = Plain(self._served, scale_out=scale_out, prefix_cache=prefix_cache)
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        """Where OpenAI clients find it."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens on loopback, on a free port unless one was given."""
        self._server = web.Server(
            self._handle,
            request_factory=_request,
            handler_cancellation=True,  # a client that leaves ends its request, as in vLLM
            access_log=None,
            auto_decompress=False,
        )
        await self.accept_connections()

    async def stop(self) -> None:
        """Ends what is under way, then the server."""
        await self.refuse_connections()
        if self._server is not None:
            await self._server.shutdown(0.1)
            self._server = None

    async def refuse_connections(self) -> None:
        """Stops listening and breaks every connection: whoever connects is refused until `accept_connections`."""
        if self._listener is None or self._server is None:
            return
        self._listener.close()
        self._listener = None
        for connection in self._server.connections:
            if connection.transport is not None:
                connection.transport.close()
        await asyncio.sleep(0)  # the transports close in their next turn

    async def accept_connections(self) -> None:
        """Listens again, on the same port."""
        assert self._server is not None, "start first"
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._server, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        self.received.append(Received(request.method, request.raw_path, tuple(request.raw_headers), body))
        path = request.raw_path.partition("?")[0]
        if path not in GET and path not in POST:
            return _json({"detail": "Not Found"}, 404)
        allowed = "GET" if path in GET else "POST"
        if request.method != allowed:
            return _json({"detail": "Method Not Allowed"}, 405, {"allow": allowed})
        try:
            if path in {_CHAT, _COMPLETIONS}:
                return await self._generate(request, path, body)
            return await self._plainly(request, path, body)
        except checks.RefusedError as refused:
            return _json(refused.body(), refused.status)

    async def _plainly(self, request: web.BaseRequest, path: str, body: bytes) -> web.StreamResponse:
        if path == "/health":
            return _answer(web.Response(status=200))
        if path == "/metrics":
            text = self._plain.metrics(self.running).encode()
            return _answer(
                web.Response(body=text, headers={"content-type": "text/plain; version=1.0.0; charset=utf-8"})
            )
        if path in GET:
            return _json(self._plain.get(path))
        return _json(self._plain.post(path, body, request.headers.get("content-type", "")))

    # --- generating requests ----------------------------------------------------------------------------------

    async def _generate(self, request: web.BaseRequest, path: str, raw: bytes) -> web.StreamResponse:
        number, self.generated = self.generated, self.generated + 1
        self.running += 1
        try:
            return await self._answered(request, path, raw, number)
        except (asyncio.CancelledError, ConnectionResetError):
            if self._listener is not None:  # else it is this engine that left
                self.disconnects += 1
            raise
        finally:
            self.running -= 1

    async def _answered(self, request: web.BaseRequest, path: str, raw: bytes, number: int) -> web.StreamResponse:
        faults = self._faults(path, raw, number)
        if faults.close_before_byte:
            return _closed(request)
        if faults.hang_before_headers:
            await hang()
        if faults.body is not None or faults.status is not None:
            return _scripted(faults)
        body = checks.read_body(raw, request.headers.get("content-type", ""))
        if faults.refuse_logprobs and (body.get("logprobs") or body.get("prompt_logprobs")):
            raise checks.bad("This engine gives no logprobs.", "logprobs")
        route = chat if path == _CHAT else completions
        asking = route.ask(self._served, body, faults)
        await self._served.pace.prefill()
        if body.get("stream") in {True, "true", "1"}:
            return await self._stream(request, faults, route.events(asking))
        return await self._whole(request, faults, asking, wire.dumps(await route.whole(asking)))

    def _faults(self, path: str, raw: bytes, number: int) -> Faults:
        faults = self.faults
        if not faults.hold(number):
            return Faults()
        if faults.only is not None:
            try:
                body = checks.read_body(raw, "application/json")
            except checks.RefusedError:
                body = {}
            if not faults.only(path, body):
                return Faults()
        return faults

    async def _stream(
        self, request: web.BaseRequest, faults: Faults, payloads: AsyncGenerator[bytes]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        _answer(response).enable_chunked_encoding()
        await response.prepare(request)
        try:
            async with contextlib.aclosing(payloads):
                await Writer(response, faults).stream(payloads)
        except EndedError:
            pass
        except ClosedError:
            return _closed(request, response)
        await response.write_eof()
        return response

    async def _whole(self, request: web.BaseRequest, faults: Faults, asking: Asking, body: bytes) -> web.StreamResponse:
        if faults.logprobs == "nan_400" and (asking.asked.k is not None or asking.body.get("prompt_logprobs")):
            raise checks.bad("Out of range float values are not JSON compliant")
        body = body[: faults.short_after_bytes]
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        response = _answer(web.StreamResponse(headers=headers))
        await response.prepare(request)
        try:
            await Writer(response, faults).whole(body)
        except ClosedError:
            return _closed(request, response)
        await response.write_eof()
        return response


def _request(
    message: RawRequestMessage, payload: Any, protocol: RequestHandler, writer: Any, task: asyncio.Task[None]
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_MAX_BODY)


def _answer(response: web.StreamResponse) -> web.StreamResponse:
    response.headers["server"] = "uvicorn"
    response.headers["vary"] = "Origin"
    return response


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.StreamResponse:
    all_headers = {"content-type": "application/json"} | (headers or {})
    return _answer(web.Response(status=status, body=wire.dumps(value), headers=all_headers))


def _scripted(faults: Faults) -> web.StreamResponse:
    status = faults.status or 200
    if faults.body is not None:
        return _answer(web.Response(status=status, body=faults.body, headers={"content-type": "application/json"}))
    kind = "InternalServerError" if status >= 500 else "BadRequestError"
    return _json(checks.RefusedError(status, "scripted by the stand-in", kind).body(), status)


def _closed(request: web.BaseRequest, response: web.StreamResponse | None = None) -> web.StreamResponse:
    """Closes the connection after what was written; the framework's own last bytes find no one."""
    if request.transport is not None:
        request.transport.close()
    return response or web.StreamResponse()


__all__ = ["Received", "StandIn"]
