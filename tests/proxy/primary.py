"""Model servers of few words, for what the stand-in engine does not speak."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from aiohttp import web

from shadow.exchange import Dialect
from shadow.wire.dialects import PATHS


class Server(ABC):
    """Serves on the loopback while it is entered, which gives its base URL."""

    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/v1"

    async def __aexit__(self, *_exc: object) -> None:
        assert self._runner
        await self._runner.cleanup()

    @abstractmethod
    async def answer(self, request: web.Request) -> web.Response:
        """Its answer to any request."""


class Primary(Server):
    """Each dialect's path is answered with the same bytes, whatever is asked; all else is 404.

    Whole answers are JSON, others event streams.
    """

    def __init__(self, said: Mapping[Dialect, bytes]) -> None:
        self._said = {PATHS[dialect]: body for dialect, body in said.items()}

    async def answer(self, request: web.Request) -> web.Response:
        body = self._said.get(request.path)
        if body is None:
            raise web.HTTPNotFound
        kind = "application/json" if body.startswith(b"{") else "text/event-stream"
        return web.Response(body=body, content_type=kind)
