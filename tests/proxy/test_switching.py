"""The switch through a whole proxy: for a model, for a tool; and what a stored response tells later."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.gates.stored import response_id, stored_id
from tests.proxy.serving import Proxy, proxy
from tests.proxy.test_block import asked, read
from tests.standin import StandIn
from tests.standin.asking_it import PARIS

REFUSING = {"agree": 0, "tools": [{"match": "*", "rules": [{"id": "none", "cel": "1 == 2"}]}]}


def test_block_mode_for_one_model_holds_its_calls_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, policy=REFUSING) as door:
            switch = door.service.regime.switch
            _, body, _ = await door.chat(asked(stream=True))
            assert read(body, stream=True).calls
            switch.set("block", who="me", model=asked(stream=True)["model"])
            _, body, response = await door.chat(asked(stream=True))
            assert not read(body, stream=True).calls
            assert response.headers["x-counterproof-mode"] == "block"
            switch.set("block", who="me", model="another")
            switch.clear(who="me", model=asked(stream=True)["model"])
            _, body, response = await door.chat(asked(stream=True))
            assert read(body, stream=True).calls
            assert response.headers["x-counterproof-mode"] == "observe"

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_s_own_mode_counts_call_by_call(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, policy=REFUSING, mode="block") as door:
            switch = door.service.regime.switch
            (call,) = PARIS.calls
            switch.set("observe", who="me", tool=call.name.upper())
            _, body, response = await door.chat(asked(stream=stream))
            assert read(body, stream=stream).calls  # released, and judged by the mirror afterwards
            assert response.headers["x-counterproof-mode"] == "block"
            async with asyncio.timeout(10):
                while not await door.metric("counterproof_gate_total", action="would_refuse", verdict="violation"):
                    await asyncio.sleep(0.02)
            switch.set("block", who="me", tool=call.name)
            _, body, _ = await door.chat(asked(stream=stream, seed=7))
            assert not read(body, stream=stream).calls
            assert await door.metric("counterproof_gate_total", action="refused", verdict="violation") == 1
            assert await door.metric("counterproof_coverage_total", dialect="chat", coverage="held") == 2

    asyncio.run(main())


CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "wipe", "arguments": "{}"}
RESPONSE = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [CALL]}
TOOL = {"type": "function", "name": "wipe", "parameters": {"type": "object"}}
BODY = {"model": "m", "input": "Go.", "tools": [TOOL]}


class Storing:
    """A server that keeps responses: it answers each request with the same call, and hands it out again."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/v1"

    async def __aexit__(self, *_exc: object) -> None:
        assert self._runner
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        return web.json_response(RESPONSE)


async def told(door: Proxy, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with door.session.request(method, f"{door.root}{path}", json=body) as response:
        return response.status, json.loads(await response.read())


def test_a_refused_response_is_neither_handed_out_nor_built_on_whatever_the_mode_is_later(tmp_path: Path) -> None:
    async def main() -> None:
        server = Storing()
        async with server as url, proxy(tmp_path, url, fit=False, policy=REFUSING, mode="block") as door:
            status, answer = await told(door, "POST", "/v1/responses", BODY)
            assert status == 200
            assert "[counterproof]" in json.dumps(answer)
            assert "wipe" not in json.dumps(answer["output"]).replace("call of wipe", "")
            door.service.regime.switch.set("observe", who="me")
            before = len(server.asked)
            for method, path, body in (
                ("GET", "/v1/responses/resp_1", None),
                ("GET", "/v1/responses/resp_1/input_items", None),
                ("POST", "/v1/responses", BODY | {"previous_response_id": "resp_1"}),
            ):
                status, answer = await told(door, method, path, body)
                assert (status, answer["error"]["code"]) == (422, "response_withheld")
            assert len(server.asked) == before
            status, _ = await told(door, "GET", "/v1/responses/resp_2")
            assert status == 200
            status, _ = await told(door, "POST", "/v1/responses", BODY | {"previous_response_id": "resp_2"})
            assert status == 200

    asyncio.run(main())


def test_who_leaves_before_the_verdict_does_not_fetch_the_response_afterwards(tmp_path: Path) -> None:
    async def main() -> None:
        policy = {"agree": 0, "tools": [{"match": "*", "approve": "true", "approval_timeout": "1m"}]}
        async with Storing() as url, proxy(tmp_path, url, fit=False, policy=policy, mode="block") as door:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await told(door, "POST", "/v1/responses", BODY)
            door.service.regime.switch.set("observe", who="me")
            async with asyncio.timeout(10):
                while (answer := await told(door, "GET", "/v1/responses/resp_1"))[0] != 422:
                    await asyncio.sleep(0.02)  # the door has yet to notice that its client left
            assert answer[1]["error"]["code"] == "response_withheld"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("head", "stream", "expected"),
    [
        (b'{"id": "resp_1", "output": []}', False, "resp_1"),
        (b'{"object": "response", "id":"resp_1", "output": [{"cut', False, "resp_1"),
        (b'event: response.created\ndata: {"type":"x","response":{"id":"resp_2"}}\n\n', True, "resp_2"),
        (b": a comment\n\ndata: []\n\n", True, ""),
        (b"", False, ""),
        (b"[1]", False, ""),
    ],
)
def test_what_a_response_is_called(head: bytes, stream: bool, expected: str) -> None:  # noqa: FBT001
    assert response_id(head, stream=stream) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/responses/resp_1", "resp_1"),
        ("/v1//responses/resp_1/cancel", "resp_1"),
        ("/v1/responses", ""),
        ("/v1/responses/", ""),
        ("/v1/chat/completions", ""),
    ],
)
def test_which_stored_response_a_path_names(path: str, expected: str) -> None:
    assert stored_id(path) == expected


def test_what_is_read_after_its_answer_keeps_the_mode_it_began_with(tmp_path: Path) -> None:
    """No shadow can be asked, so nothing is put in, and the request is read once it is answered."""

    async def main() -> None:
        async with StandIn([PARIS], prefill_s=0.3) as engine:
            async with proxy(tmp_path, engine, policy=REFUSING) as door:
                async with asyncio.TaskGroup() as group:
                    asking = group.create_task(door.chat(asked(stream=True)), name="ask")
                    await asyncio.sleep(0.1)
                    door.service.regime.switch.set("block", who="me")
                _, body, response = asking.result()
                assert read(body, stream=True).calls
                assert response.headers["x-counterproof-mode"] == "observe"
                async with asyncio.timeout(10):
                    while not await door.metric("counterproof_gate_total", action="would_refuse"):
                        await asyncio.sleep(0.02)
                assert await door.metric("counterproof_coverage_total", coverage="mirrored") == 1

    asyncio.run(main())
