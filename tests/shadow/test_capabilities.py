"""What is found out of an engine by asking it, where the stand-in has nothing to say."""

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from shadow.capabilities import discover
from shadow.engine import Endpoint, Engine
from shadow.errors import EngineError
from tests.proxy.primary import Server
from tests.standin import StandIn

pytestmark = pytest.mark.slow

JSON = {"content-type": "application/json"}
ANSWER = {"id": "resp_1", "status": "completed", "output": []}


class InFront(Server):
    """A server that answers `/v1/responses` by itself and has a stand-in say everything else.

    `posted` and `fetched` are the status and body of what it answers there.
    """

    def __init__(self, posted: tuple[int, Any], fetched: tuple[int, Any]) -> None:
        self._posted, self._fetched = posted, fetched
        self._behind = ""
        self.fetches: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        if not request.path.startswith("/v1/responses"):
            return await self._passed_on(request)
        if request.method == "GET":
            self.fetches.append(request.path)
        status, body = self._posted if request.method == "POST" else self._fetched
        if isinstance(body, str):
            return web.Response(status=status, text=body)
        return web.json_response(body, status=status)

    async def _passed_on(self, request: web.Request) -> web.Response:
        url, body = self._behind + request.path_qs, await request.read()
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, url, data=body, headers=JSON) as answer,
        ):
            return web.Response(status=answer.status, body=await answer.read())

    async def keeps(self, *, reference: bool = False) -> bool | None:
        """Whether the server is found to keep responses."""
        async with StandIn() as engine, self as url, Engine(Endpoint("p", url, "smollm2")) as asked:
            self._behind = engine.base_url.removesuffix("/v1")
            return (await discover(asked, reference=reference)).keeps_responses


@pytest.mark.parametrize(
    ("posted", "fetched", "keeps"),
    [
        ((200, ANSWER), (200, ANSWER), True),
        ((200, ANSWER), (404, {"error": {}}), False),
        ((404, {"detail": "Not Found"}), (200, ANSWER), False),
        ((405, {}), (200, ANSWER), False),
        # nothing is known of what it keeps
        ((200, ANSWER), (403, {"error": {}}), True),
        ((200, ANSWER), (500, {"error": {}}), True),
        ((400, {"error": {}}), (404, {}), True),
        ((401, {"error": {}}), (404, {}), True),
        ((500, {"error": {}}), (404, {}), True),
        ((200, {"object": "response"}), (404, {}), True),
        ((200, {"id": "../../admin"}), (404, {}), True),
        ((200, "<html>"), (404, {}), True),
    ],
)
def test_whether_responses_are_kept(posted: tuple[int, Any], fetched: tuple[int, Any], keeps: bool) -> None:  # noqa: FBT001
    server = InFront(posted, fetched)
    assert asyncio.run(server.keeps()) is keeps
    assert set(server.fetches) <= {"/v1/responses/resp_1"}


def test_a_reference_is_not_asked() -> None:
    assert asyncio.run(InFront((200, ANSWER), (200, ANSWER)).keeps(reference=True)) is None


@pytest.mark.parametrize("status", [429, 503])
def test_an_engine_that_says_not_now_is_asked_again_later(status: int) -> None:
    with pytest.raises(EngineError):
        asyncio.run(InFront((status, {}), (404, {})).keeps())
