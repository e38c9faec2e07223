"""What a server keeps of a response whose calls are held, or were refused: neither handed out nor built on."""

import asyncio
import contextlib
import gzip
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from proxy.audit.reading import records
from proxy.switch import Mode
from tests.proxy.primary import Server
from tests.proxy.serving import Proxy, proxy
from tests.secrets import secret

REFUSING = {"agree": 0, "tools": [{"match": "*", "rules": [{"id": "none", "cel": "1 == 2"}]}]}
ASKING = {"agree": 0, "tools": [{"match": "*", "approve": "true", "approval_timeout": "1m"}]}

CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "wipe", "arguments": "{}"}
RESPONSE = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [CALL]}
TOOL = {"type": "function", "name": "wipe", "parameters": {"type": "object"}}
BODY = {"model": "m", "input": "Go.", "tools": [TOOL]}
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n".encode()


STREAM = (
    _event("response.created", sequence_number=0, response=RESPONSE | {"status": "in_progress", "output": []})
    + _event("response.output_item.added", sequence_number=1, output_index=0, item=CALL | {"status": "in_progress"})
    + _event("response.output_item.done", sequence_number=2, output_index=0, item=CALL | {"status": "completed"})
    + _event("response.completed", sequence_number=3, response=RESPONSE)
)


class Storing(Server):
    """A server that keeps responses: it answers each request with the same call, and hands it out again."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.built_on: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        sent = json.loads(await request.read() or b"{}")
        self.built_on += [sent["previous_response_id"]] if "previous_response_id" in sent else []
        if sent.get("stream"):
            return web.Response(body=STREAM, content_type="text/event-stream")
        return web.json_response(RESPONSE)


async def told(door: Proxy, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = io.BytesIO(json.dumps(body).encode()) if body is not None else None
    url, headers = URL(f"{door.root}{path}", encoded=True), {"content-type": "application/json"}
    async with door.session.request(method, url, data=data, headers=headers) as response:
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


WITHHELD = (422, "response_withheld")
AFTERWARDS: dict[str, tuple[str, str, Any]] = {
    "fetched": ("GET", "/v1/responses/resp_1", None),
    "its input": ("GET", "/v1/responses/resp_1/input_items", None),
    "by a path that climbs": ("GET", "/v1/x/../responses/resp_1", None),
    "by a path with dots": ("GET", "/v1/./responses/./resp_1", None),
    "by an encoded path": ("GET", "/v1/responses/%72esp_1", None),
    "by a path with parameters": ("GET", "/v1/responses;a/resp_1;b", None),
    "in another case": ("GET", "/v1/Responses/RESP_1", None),
    "built on": ("POST", "/v1/responses", BODY | {"previous_response_id": "resp_1"}),
    "built on, streamed": ("POST", "/v1/responses", BODY | {"previous_response_id": "resp_1", "stream": True}),
    "built on for another model": ("POST", "/v1/responses", {"model": "n", "previous_response_id": "resp_1"}),
    "built on by a long request": (
        "POST", "/v1/responses", BODY | {"previous_response_id": "resp_1", "input": "A" * (9 << 20)},
    ),
    "built on by another path": ("POST", "/v1//responses/", BODY | {"previous_response_id": "resp_1"}),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["observe", "off", "off for its model"])
def test_a_refused_response_is_gone_whatever_the_mode_is_later(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        server = Storing()
        async with server as url, proxy(tmp_path, url, fit=False, policy=REFUSING, mode="block") as door:
            await told(door, "POST", "/v1/responses", BODY)
            for model in {None, "m", "n"} if mode == "off for its model" else {None}:
                door.service.regime.switch.set("off" if "off" in mode else "observe", who="me", model=model)
            before = len(server.asked)
            for name, (method, path, body) in AFTERWARDS.items():
                status, answer = await told(door, method, path, body)
                assert (status, answer["error"]["code"]) == WITHHELD, name
            assert len(server.asked) == before
            for method, path, body in (
                ("GET", "/v1/responses/resp_2", None),
                ("POST", "/v1/responses", BODY | {"previous_response_id": "resp_2"}),
                ("POST", "/v1/responses", BODY),
            ):
                assert (await told(door, method, path, body))[0] == 200
            async with door.session.post(f"{door.root}/v1/responses", data=b"no JSON") as response:
                assert response.status != 422, "broken JSON is the primary's business"

    asyncio.run(main())


@dataclass
class Held:
    door: Proxy
    asked: asyncio.Task[str]

    async def decide(self, *, approved: bool) -> str:
        """A person's word; what the client gets."""
        for approval in self.door.service.approvals.pending():
            await self.door.service.approvals.decide(approval.id, "me", approved=approved)
        return await self.asked


@contextlib.asynccontextmanager
async def held(folder: Path, server: Storing, *, stream: bool, **policy: Any) -> AsyncIterator[Held]:
    """A client that waits for a person's word about a call."""
    async with server as url, proxy(folder, url, fit=False, policy=ASKING | policy, mode="block") as door:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(text(door, "POST", "/v1/responses", BODY | {"stream": stream}), name="asked")
            async with asyncio.timeout(10):
                while not door.service.approvals.pending():  # the answer is on its way to its gate
                    await asyncio.sleep(0.01)
            yield Held(door, asked)


async def text(door: Proxy, method: str, path: str, body: Any) -> str:
    async with door.session.request(method, f"{door.root}{path}", json=body) as response:
        return await response.text()


@BOTH
@pytest.mark.parametrize("policy", [{}, {"unverifiable_paths": "release"}], ids=["", "paths released"])
@pytest.mark.parametrize("mode", ["block", "observe", "off"])
def test_what_is_held_is_not_fetched_meanwhile(
    tmp_path: Path, stream: bool, policy: dict[str, Any], mode: Mode  # noqa: FBT001
) -> None:  # fmt: skip
    async def main() -> None:
        server = Storing()
        async with held(tmp_path, server, stream=stream, **policy) as one:
            one.door.service.regime.switch.set(mode, who="me")
            for method, path, body in (
                ("GET", "/v1/responses/resp_1", None),
                ("POST", "/v1/responses", {"model": "m", "input": "Go on.", "previous_response_id": "resp_1"}),
            ):
                status, _ = await told(one.door, method, path, body)
                assert status == 422
            assert "wipe" in await one.decide(approved=True)
            one.door.service.regime.switch.set("off", who="me")
            assert (await told(one.door, "GET", "/v1/responses/resp_1"))[0] == 200
            assert server.built_on == []

    asyncio.run(main())


@BOTH
def test_a_client_may_build_on_what_it_was_just_given(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    """As soon as its last byte is there: the id is let go before the call is."""

    async def main() -> None:
        server, goes_on = Storing(), BODY | {"previous_response_id": "resp_1"}
        policy = {"agree": 0, "built_in": ["previous_response_id"]}
        async with server as url, proxy(tmp_path, url, fit=False, policy=policy, mode="block") as door:
            for _ in range(20):
                async with door.session.post(f"{door.root}/v1/responses", json=BODY | {"stream": stream}) as response:
                    async for piece in response.content.iter_any():
                        if b'"output": [{"type"' not in piece:
                            continue
                        status, answer = await told(door, "POST", "/v1/responses", goes_on)
                        assert status == 200, answer
            assert len(server.built_on) == 20

    asyncio.run(main())


@BOTH
@pytest.mark.parametrize("mode", ["observe", "off"])
def test_what_a_person_denied_stays_away(tmp_path: Path, stream: bool, mode: Mode) -> None:  # noqa: FBT001
    async def main() -> None:
        async with held(tmp_path, Storing(), stream=stream) as one:
            assert '"wipe"' not in await one.decide(approved=False)
            one.door.service.regime.switch.set(mode, who="me")
            status, answer = await told(one.door, "GET", "/v1/responses/resp_1")
            assert (status, answer["error"]["code"]) == WITHHELD

    asyncio.run(main())


def test_an_encoded_request_may_go_on_from_anything(tmp_path: Path) -> None:
    async def main() -> None:
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        packed = gzip.compress(json.dumps(BODY | {"previous_response_id": "resp_1"}).encode())
        async with Storing() as url, proxy(tmp_path, url, fit=False, policy=REFUSING, mode="block") as door:
            await told(door, "POST", "/v1/responses", BODY)
            door.service.regime.switch.set("observe", who="me")
            async with door.session.post(f"{door.root}/v1/responses", data=packed, headers=headers) as response:
                assert response.status == 422

    asyncio.run(main())


def test_the_audit_says_what_was_turned_away_and_why(tmp_path: Path) -> None:
    async def main() -> None:
        key = secret("team")
        keys = [{"name": "team-a", "key": key}]
        async with (
            Storing() as url,
            proxy(tmp_path, url, fit=False, policy=REFUSING, mode="block", client_keys=keys) as door,
        ):
            headers = {"authorization": f"Bearer {key}"}
            for method, path, body in (
                ("POST", "/v1/responses", BODY),
                ("GET", "/v1/responses/resp_1", None),
                ("POST", "/v1/responses", BODY | {"background": True}),
                ("POST", "/v1/batches", {"model": "m"}),
                ("POST", "/v1/chat/completions", ["no request"]),
            ):
                async with door.session.request(method, door.root + path, json=body, headers=headers) as response:
                    assert response.status == (200 if body == BODY else 422)
            assert await door.metric("counterproof_gate_total", action="refused", tool="other") == 4

    asyncio.run(main())
    refused = [record.data for record in records(tmp_path / "audit.jsonl") if record.kind == "refused"]
    told = [tuple(one.get(name, "") for name in ("why", "model", "dialect", "client")) for one in refused[1:]]
    assert told == [
        ("withheld", "", "", "team-a"),
        ("built_in", "m", "responses", "team-a"),
        ("unverifiable_path", "", "", "team-a"),
        ("unread", "", "chat", "team-a"),
    ]
