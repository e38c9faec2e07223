"""What the door does not take: too much at once, too large, to the wrong path, without a key; and how it closes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.proxy.serving import proxy
from tests.secrets import secret
from tests.standin import Faults, Script, StandIn
from tests.standin.asking_it import chat

pytestmark = pytest.mark.slow

TEXT = Script(text="One two three four five six seven eight.")
KEY, OWN, OTHER = secret("client"), secret("primary"), secret("other")


async def error_of(response: aiohttp.ClientResponse) -> tuple[int, str]:
    """The status and message of an error, which is in OpenAI's shape."""
    body = json.loads(await response.read())
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == response.status
    assert body["error"]["message"].startswith("[counterproof] ")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-counterproof-id"].startswith("cp-")
    return response.status, body["error"]["message"]


@pytest.mark.parametrize("chunked", [False, True], ids=["by its length", "while it comes"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/other"])
def test_a_body_over_the_limit_is_413_and_reaches_nobody_whole(
    tmp_path: Path,
    chunked: bool,  # noqa: FBT001
    path: str,
) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow:
            async with proxy(tmp_path, engine, shadow, listen={"port": 0, "max_body_bytes": "64KiB"}) as door:

                async def pieces() -> Any:
                    for _ in range(100):
                        yield b"x" * 1024

                data = pieces() if chunked else b"x" * (64 * 1024 + 1)
                async with door.session.post(door.root + path, data=data) as response:
                    assert (await error_of(response))[0] == 413
                    assert response.headers["connection"] == "close"
                assert not [r for r in engine.received if r.path == path]
                async with door.session.post(door.root + path, data=b"x" * 64 * 1024) as response:
                    assert response.status in {400, 404}, "exactly the limit passes"
                assert await door.metric("counterproof_requests_total", code="413") == 1

    asyncio.run(main())


def test_too_many_open_requests_are_503_and_told_when_to_come_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, proxy(tmp_path, engine, listen={"port": 0, "max_in_flight": 3}) as door:
            engine.faults = Faults(hang_before_headers=True, times=3)
            async with asyncio.TaskGroup() as group:
                waiting = [group.create_task(door.chat(chat()), name=f"waits {i}") for i in range(3)]
                while engine.running < 3:
                    await asyncio.sleep(0.01)
                assert await door.metric("counterproof_open_requests") == 3
                async with door.session.post(f"{door.root}/v1/chat/completions", json=chat()) as response:
                    assert await error_of(response) == (503, "[counterproof] too many requests are open")
                    assert response.headers["retry-after"] == "1"
                for one in waiting:
                    one.cancel()
            async with asyncio.timeout(5):
                while await door.metric("counterproof_open_requests"):
                    await asyncio.sleep(0.01)
            assert (await door.chat(chat()))[0] == 200

    asyncio.run(main())


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["/sleep", "/v1//load_lora_adapter/", "/v1/%2e%2e/Collective_RPC", "/x/..%2fpause"])
def test_paths_that_administer_the_engine_are_403(tmp_path: Path, method: str, path: str) -> None:
    async def main() -> None:
        async with StandIn() as engine, proxy(tmp_path, engine) as door:
            url = URL(door.root + path, encoded=True)
            async with door.session.request(method, url) as response:
                status, message = await error_of(response)
            assert status == 403
            assert "paths.allow" in message
            assert path.encode() not in b"".join(r.path.encode() for r in engine.received)

    asyncio.run(main())


def test_a_denied_path_can_be_allowed(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn() as engine, proxy(tmp_path, engine, paths={"allow": ["/sleep"]}) as door:
            async with door.session.post(f"{door.root}/sleep") as response:
                assert response.status == 404, "the engine's own answer"
            assert engine.received[-1].path == "/sleep"

    asyncio.run(main())


@pytest.mark.parametrize("own", [False, True], ids=["no key of the proxy's own", "the proxy's own key"])
def test_clients_need_a_key_of_the_proxy_and_it_goes_no_further(tmp_path: Path, own: bool) -> None:  # noqa: FBT001
    async def main() -> None:
        primary = {"api_key": OWN} if own else {}
        keys = [{"name": "agents", "key": KEY}]
        async with StandIn([TEXT]) as engine, proxy(tmp_path, engine, primary=primary, client_keys=keys) as door:
            url = f"{door.root}/v1/chat/completions"
            for headers in ({}, {"authorization": f"Bearer {OTHER}"}, {"x-api-key": KEY[:-1]}):
                async with door.session.post(url, json=chat(), headers=headers) as response:
                    assert (await error_of(response))[0] == 401
                    assert response.headers["www-authenticate"] == "Bearer"
            assert not [r for r in engine.received if r.method == "POST" and r.path.startswith("/v1/chat")]
            for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
                async with door.session.post(url, json=chat(), headers=headers) as response:
                    assert response.status == 200
                assert engine.received[-1].header("authorization") == (f"Bearer {OWN}" if own else None)
                assert KEY not in repr(engine.received[-1])

    asyncio.run(main())


class _Ending:
    """A proxy whose end the test decides, with an engine whose answers take their time."""

    def __init__(self, folder: Path, timeout: str, per_token_s: float) -> None:
        self.folder, self.timeout, self.per_token_s = folder, timeout, per_token_s

    async def stream_and_end(self) -> tuple[bytes, aiohttp.ClientError | None]:
        """What a client got of a stream that was open when the proxy was told to end, and how that broke, if it did."""
        broke: list[aiohttp.ClientError] = []

        async def read(response: aiohttp.ClientResponse) -> bytes:
            try:
                return await response.content.read()
            except aiohttp.ClientError as error:
                broke.append(error)
                response.close()  # aiohttp leaves that to its user where a body ends with an error
                return b""

        listen = {"port": 0, "shutdown_timeout": self.timeout}
        async with StandIn([TEXT], per_token_s=self.per_token_s) as engine, aiohttp.ClientSession() as session:
            async with asyncio.TaskGroup() as group:
                async with proxy(self.folder, engine, listen=listen) as door:
                    response = await session.post(f"{door.root}/v1/chat/completions", json=chat(stream=True))
                    first = await response.content.readany()
                    rest = group.create_task(read(response), name="rest")
            assert engine.running == 0
            return first + await rest, broke[0] if broke else None


def test_open_streams_may_finish_at_shutdown(tmp_path: Path) -> None:
    text, broke = asyncio.run(_Ending(tmp_path, "20s", 0.02).stream_and_end())
    assert broke is None
    assert text.endswith(b"data: [DONE]\n\n")


def test_a_stream_that_does_not_finish_in_time_is_broken_off(tmp_path: Path) -> None:
    _text, broke = asyncio.run(_Ending(tmp_path, "300ms", 0.5).stream_and_end())
    assert isinstance(broke, aiohttp.ClientPayloadError)


def test_a_request_without_an_answer_yet_is_told_that_the_proxy_ends(tmp_path: Path) -> None:
    async def main() -> None:
        listen = {"port": 0, "shutdown_timeout": "300ms"}
        async with StandIn([TEXT]) as engine, aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            engine.faults = Faults(hang_before_headers=True)
            async with proxy(tmp_path, engine, listen=listen) as door:
                url = f"{door.root}/v1/chat/completions"
                asked = group.create_task(session.post(url, json=chat()), name="asked")
                while not engine.running:
                    await asyncio.sleep(0.01)
            response = await asked
            assert await error_of(response) == (503, "[counterproof] the proxy is shutting down")

    asyncio.run(main())


@pytest.mark.parametrize(("size", "closes"), [(100, False), (65_537, True)])
def test_a_long_body_of_a_refused_request_is_not_read(tmp_path: Path, size: int, closes: bool) -> None:  # noqa: FBT001
    async def main() -> None:
        async with StandIn() as engine, proxy(tmp_path, engine) as door:
            async with door.session.post(f"{door.root}/sleep", data=b"x" * size) as response:
                assert response.status == 403
                assert (response.headers.get("connection") == "close") is closes

    asyncio.run(main())
