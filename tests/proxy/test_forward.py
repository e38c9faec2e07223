"""The byte path in front of a stand-in: what goes in, what comes back, who is told when somebody leaves."""

import asyncio
import gzip
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.proxy.answers import same
from tests.proxy.serving import proxy
from tests.secrets import secret
from tests.standin import Faults, Script, StandIn
from tests.standin.asking_it import PARIS, TOOLS, chat, post

pytestmark = pytest.mark.slow

CLIENT, OWN = secret("client"), secret("primary")
TEXT = Script(text="Plain words, zażółć 👩‍💻 and more of them.")
KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "text, streamed": {"stream": True},
    "calls": {"tools": TOOLS},
    "calls, streamed": {"tools": TOOLS, "stream": True},
    "usage": {"tools": TOOLS, "stream": True, "stream_options": {"include_usage": True}},
    "two choices": {"n": 2, "stream": True, "temperature": 1},
    "client's logprobs": {"logprobs": True, "top_logprobs": 2, "stream": True},
    "client's ids": {"return_token_ids": True, "stream": True, "tools": TOOLS},
}


def without_time(body: bytes) -> bytes:
    return re.sub(rb'"created":\d+|modelperm-\w+', b"", body)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cuts", "crlf"), [(None, False), (61, False), (61, True)], ids=["whole", "cut", "CRLF, cut"])
def test_what_was_put_in_is_cut_out_however_the_bytes_are_cut(
    tmp_path: Path,
    kind: str,
    cuts: int | None,
    crlf: bool,  # noqa: FBT001
) -> None:
    async def main() -> None:
        faults = Faults(cuts=cuts, crlf=crlf, comment=b": still here" if crlf else None)
        body = chat(**KINDS[kind], max_tokens=60)
        async with StandIn([PARIS if "tools" in KINDS[kind] else TEXT]) as engine, StandIn() as reference:
            direct = await post(engine, body)
            async with proxy(tmp_path, engine, reference) as door:
                engine.faults = faults
                engine.received.clear()
                status, through, response = await door.chat(body)
                sent = json.loads(engine.received[-1].body)
                await door.settled()
                assert (await door.outcomes()) == {("s0", "compared", ""): 1}
        assert status == 200
        assert same(through.replace(b": still here\n\n", b"").replace(b": still here\r\n\r\n", b"")) == same(direct)
        assert sent["return_token_ids"] is True
        assert response.headers["x-counterproof-mode"] == "observe"

    asyncio.run(main())


def test_an_error_to_an_injected_request_is_asked_again_plainly_and_remembered(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn() as reference, proxy(tmp_path, engine, reference) as door:
            engine.faults = Faults(refuse_logprobs=True)
            for i in range(2):
                engine.received.clear()
                status, body, _ = await door.chat(chat())
                assert status == 200
                assert json.loads(body)["choices"][0]["message"]["content"] == TEXT.text
                assert len(engine.received) == 2 - i, "the second request must be plain at once"
                assert "logprobs" not in json.loads(engine.received[-1].body)
            await door.settled()
            assert await door.metric("counterproof_injection_refused_total", model="smollm2") == 1
            assert (await door.outcomes())["s0", "not_comparable", "no_token_ids"] == 2
            engine.faults = Faults()
            async with door.session.post(f"{door.root}/v1/completions", json={"model": "smollm2", "prompt": "a"}):
                assert "logprobs" in json.loads(engine.received[-1].body), "another dialect has something else put in"

    asyncio.run(main())


def test_a_clients_own_error_comes_back_and_switches_nothing_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn() as reference, proxy(tmp_path, engine, reference) as door:
            status, body, _ = await door.chat(chat(max_tokens="many"))
            assert status == 400
            assert body == await post(engine, chat(max_tokens="many"))
            assert await door.metric("counterproof_injection_refused_total") == 0
            await door.settled()
            assert (await door.outcomes()) == {("s0", "not_comparable", "primary_error"): 1}

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_primarys_request(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    async def main() -> None:
        async with StandIn([TEXT], per_token_s=0.05) as engine, StandIn() as reference:
            async with proxy(tmp_path, engine, reference) as door:
                url = f"{door.root}/v1/chat/completions"
                async with door.session.post(url, json=chat(stream=stream)) if stream else _left(door, url) as response:
                    if response is not None:
                        await response.content.readany()
                        assert engine.running == 1
                        response.close()
                async with asyncio.timeout(5):
                    while engine.running:
                        await asyncio.sleep(0.01)
                await door.settled()
                assert engine.disconnects == 1
                assert (await door.outcomes()) == ({("s0", "not_comparable", "client_left"): 1} if stream else {})

    asyncio.run(main())


class _left:  # noqa: N801
    """A client that gives up before the answer's first byte."""

    def __init__(self, door: Any, url: str) -> None:
        self.door, self.url = door, url

    async def __aenter__(self) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await self.door.session.post(self.url, json=chat())

    async def __aexit__(self, *_exc: object) -> None:
        pass


def test_a_client_that_closes_right_after_done_is_compared(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn() as reference, proxy(tmp_path, engine, reference) as door:
            body = json.dumps(chat(stream=True)).encode()
            host, port = door.root.removeprefix("http://").split(":")
            for _ in range(20):
                reader, writer = await asyncio.open_connection(host, int(port))
                head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
                writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
                await reader.readuntil(b"[DONE]")
                writer.transport.abort()
            async with asyncio.timeout(10):
                while sum((await door.outcomes()).values()) < 20:
                    await asyncio.sleep(0.02)
            assert (await door.outcomes()) == {("s0", "compared", ""): 20}

    asyncio.run(main())


def test_an_unreachable_primary_is_502_in_openais_shape(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn() as engine:
            await engine.stop()
            async with proxy(tmp_path, engine) as door:
                status, body, response = await door.chat(chat())
        assert status == 502
        assert response.headers["content-type"] == "application/json"
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"] == "[counterproof] the model server cannot be reached"
        assert "127.0.0.1" not in body.decode()

    asyncio.run(main())


def test_a_primary_that_says_nothing_is_504(tmp_path: Path) -> None:
    async def main() -> None:
        faults = Faults(hang_before_headers=True)
        async with StandIn() as engine, proxy(tmp_path, engine, primary={"read_timeout": "300ms"}) as door:
            engine.faults = faults
            status, body, _ = await door.chat(chat())
        assert status == 504
        assert json.loads(body)["error"]["code"] == 504

    asyncio.run(main())


def test_a_primary_that_breaks_off_breaks_the_clients_stream(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn() as reference, proxy(tmp_path, engine, reference) as door:
            engine.faults = Faults(abort_after_bytes=900)
            with pytest.raises(aiohttp.ClientPayloadError):
                await door.chat(chat(stream=True))
            await door.settled()
            assert (await door.outcomes()) == {("s0", "not_comparable", "upstream_broke"): 1}

    asyncio.run(main())


def test_an_error_inside_a_200_passes_and_is_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn() as reference, proxy(tmp_path, engine, reference) as door:
            engine.faults = Faults(error_after=3)
            status, body, _ = await door.chat(chat(stream=True))
            assert status == 200
            assert b'"error"' in body
            assert body.endswith(b"data: [DONE]\n\n")
            await door.settled()
            assert (await door.outcomes()) == {("s0", "not_comparable", "primary_error"): 1}

    asyncio.run(main())


def test_headers_go_to_the_primary_but_for_those_of_the_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, proxy(tmp_path, engine) as door:
            headers = {
                "X-Own": "1", "authorization": f"Bearer {CLIENT}", "te": "trailers", "keep-alive": "5",
                "connection": "keep-alive, x-hop", "x-hop": "gone", "user-agent": "agent/1",
                "accept-encoding": "gzip, br",
            }  # fmt: skip
            status, _, _ = await door.chat(chat(), headers=headers)
            assert status == 200
            seen = engine.received[-1]
            assert seen.header("x-own") == "1"
            assert seen.header("authorization") == f"Bearer {CLIENT}"
            assert seen.header("user-agent") == "agent/1"
            assert seen.header("accept-encoding") == "gzip, br"  # nothing was injected
            assert [seen.header(name) for name in ("te", "keep-alive", "x-hop")] == [None, None, None]
            assert seen.header("host") == f"127.0.0.1:{engine.port}"

    asyncio.run(main())


def test_the_proxys_own_key_replaces_the_clients_and_goes_nowhere_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn() as reference:
            async with proxy(tmp_path, engine, reference, primary={"api_key": OWN}) as door:
                await door.chat(chat(), headers={"authorization": f"Bearer {CLIENT}"})
                await door.settled()
            assert [r.header("authorization") for r in engine.received if r.method == "POST"][-1] == f"Bearer {OWN}"
            everything = b"".join(r.body + repr(r.headers).encode() for r in reference.received)
            assert not [key for key in (OWN, CLIENT) if key.encode() in everything]

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/nothing/%2e%2e/here?a=%20b&c", "/v1/chat/completions"])
def test_other_paths_and_methods_pass_as_they_are(tmp_path: Path, path: str) -> None:
    async def main() -> None:
        async with StandIn() as engine, proxy(tmp_path, engine) as door:
            async with aiohttp.ClientSession() as session:
                direct = await session.get(URL(f"http://127.0.0.1:{engine.port}{path}", encoded=True))
                through = await session.get(URL(f"{door.root}{path}", encoded=True))
                assert through.status == direct.status
                assert without_time(await through.read()) == without_time(await direct.read())
            assert engine.received[-1].path == path

    asyncio.run(main())


def test_a_large_answer_is_not_copied_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn() as reference:
            async with proxy(tmp_path, engine, reference, mirror={"max_body_bytes": 500}) as door:
                status, _, _ = await door.chat(chat(stream=True))
                assert status == 200
                await door.settled()
                assert (await door.outcomes()) == {("s0", "not_comparable", "too_large"): 1}

    asyncio.run(main())


def test_nothing_is_injected_while_no_shadow_can_be_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn() as reference:
            reference.faults = Faults(hang_before_headers=True)
            async with proxy(tmp_path, engine, reference, fit=False) as door:
                status, _, _ = await door.chat(chat())
                assert status == 200
                sent = [r.body for r in engine.received if r.path == "/v1/chat/completions"]
                assert json.loads(sent[-1]) == chat()
                await door.settled()
                assert (await door.outcomes()) == {("s0", "not_comparable", "cold"): 1}

    asyncio.run(main())


def test_web_sockets_are_501(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn() as engine, proxy(tmp_path, engine) as door:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await door.session.ws_connect(f"{door.root}/v1/realtime")
            assert refused.value.status == 501
            assert not engine.received

    asyncio.run(main())


def test_an_encoded_path_is_the_same_path(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as reference, proxy(tmp_path, engine, reference) as door:
            url = URL(f"{door.root}/v1/chat/%63ompletions", encoded=True)
            async with door.session.post(url, json=chat()) as response:
                await response.read()
            assert engine.received[-1].path == "/v1/chat/%63ompletions"
            await door.settled()
            assert sum((await door.outcomes()).values()) == 1

    asyncio.run(main())


def test_a_client_that_leaves_a_streamed_pass_through_ends_it(tmp_path: Path) -> None:
    """`/v1/other` is no dialect: its body streams through, and its client may leave all the same."""

    async def main() -> None:
        left = asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n")
            try:
                while True:
                    writer.write(b"4\r\nmore\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.01)
            except ConnectionError:
                left.set()
            finally:
                writer.close()

        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with proxy(tmp_path, f"http://127.0.0.1:{port}/v1") as door:
                async with door.session.post(f"{door.root}/v1/other", data=b"x" * 100) as response:
                    await response.content.readany()
                    response.close()
                async with asyncio.timeout(5):
                    await left.wait()
                assert await door.metric("counterproof_requests_total", code="499") == 1

    asyncio.run(main())


def test_a_client_that_leaves_its_upload_is_499(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn() as engine, proxy(tmp_path, engine) as door:
            host, port = door.root.removeprefix("http://").split(":")
            head = b"host: x\r\ncontent-length: 1000\r\n"
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nexpect: 100-continue\r\n" + head + b"\r\n")
            await reader.readuntil(b"\r\n\r\n")  # the door reads the body now
            writer.transport.abort()
            _reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/other HTTP/1.1\r\n" + head + b"\r\nhalf")
            async with asyncio.timeout(5):
                while not (engine._server and engine._server.connections):  # the door is passing it on
                    await asyncio.sleep(0.01)
            writer.transport.abort()
            async with asyncio.timeout(5):
                while await door.metric("counterproof_requests_total", code="499") < 2:
                    await asyncio.sleep(0.02)

    asyncio.run(main())


@pytest.mark.parametrize(("status", "again"), [(429, True), (503, True), (400, False)])
def test_not_now_is_no_reason_to_leave_a_model_plain(tmp_path: Path, status: int, again: bool) -> None:  # noqa: FBT001
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn() as reference, proxy(tmp_path, engine, reference) as door:
            start = engine.generated
            engine.faults = Faults(status=status, skip=start, times=1)
            for _ in range(2):
                code, _, _ = await door.chat(chat())
                assert code == 200
            asked = json.loads(engine.received[-1].body)
            assert ("logprobs" in asked) is again
            assert await door.metric("counterproof_injection_refused_total") == (0 if again else 1)

    asyncio.run(main())


def test_a_request_over_the_mirrors_bound_passes_and_is_dropped_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn() as reference:
            async with proxy(tmp_path, engine, reference, mirror={"max_body_bytes": 5000}) as door:
                long = [{"role": "user", "content": "word " * 2000}]
                status, _, _ = await door.chat(chat(messages=long, max_tokens=2))
                assert status in {200, 400}
                assert await door.outcomes() == {("s0", "dropped", "too_large"): 1}

    asyncio.run(main())


def test_an_encoded_answer_to_an_injected_request_is_asked_again_plainly(tmp_path: Path) -> None:
    """What stands before an engine may compress whatever was asked: what was put in could not be cut out of that."""
    answers: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head.lower())[1])  # type: ignore[index]
        answers.append(await reader.readexactly(length))
        body = gzip.compress(b'{"choices":[]}')
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as reference, proxy(tmp_path, engine, reference) as door:
            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            async with server:
                port = server.sockets[0].getsockname()[1]
                upstream = door.service.data._routes.default
                upstream._root = b"http://127.0.0.1:%d" % port
                status, body, response = await door.chat(chat(), headers={"accept-encoding": "gzip"})
                assert (status, body) == (200, b'{"choices":[]}')  # the test's client decodes it
                assert response.headers["content-encoding"] == "gzip"
            assert len(answers) == 2
            assert json.loads(answers[0])["return_token_ids"] is True
            assert json.loads(answers[1]) == chat()
            assert await door.metric("counterproof_injection_refused_total") == 1
            await door.settled()
            assert (await door.outcomes()) == {("s0", "not_comparable", "encoded"): 1}

    asyncio.run(main())


def test_an_answer_that_outgrows_what_is_edited_is_asked_again_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("proxy.forward", "proxy.reading"):
        monkeypatch.setattr(f"{module}.MAX_EDITED", 1_000)

    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn() as reference, proxy(tmp_path, engine, reference) as door:
            direct = await post(engine, chat(max_tokens=1))
            status, through, _ = await door.chat(chat(max_tokens=1))
            assert (status, same(through)) == (200, same(direct))
            sent = [json.loads(r.body).get("return_token_ids") for r in engine.received if b"Hello" in r.body]
            assert sent == [None, True, None]
            await door.settled()
            assert (await door.outcomes()) == {("s0", "not_comparable", "too_large"): 1}

    asyncio.run(main())
