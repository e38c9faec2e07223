"""Clients that leave where nobody is receiving: behind an upload that is stuck, and with a request that waits."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator

import pytest
from structlog.testing import capture_logs

from proxy.protocol import BoundedProtocol
from shadow.tasks import Tasks
from tests.proxy.rawhttp import PATIENCE_S, Client, Message, Source, chunk
from tests.proxy.rawstage import Stage, in_the_kernel

pytestmark = pytest.mark.slow

GET = b"GET /v1/%s HTTP/1.1\r\nhost: a\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
UPLOAD = b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
MANY = 64 * 1024 * 1024  # bytes; more than both connections' buffers take


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundedProtocol, "look_every", 0.02)
        with Stage(tmp_path_factory.mktemp("stage"), primary={"read_timeout": 1000.0}).up() as up:
            yield up


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("hasty"), primary={"read_timeout": 0.3}).up() as up:
        yield up


class Stuck:
    """A primary that reads a request's head and no more, until it is let go; `answer` is what it says by then."""

    def __init__(self, answer: bytes = b"") -> None:
        self._answer = answer
        self.begun, self.let_go = asyncio.Event(), asyncio.Event()

    async def __call__(self, _request: Message, _source: Source, writer: asyncio.StreamWriter) -> bool:
        writer.write(self._answer)
        self.begun.set()
        await self.let_go.wait()
        return False


@contextlib.asynccontextmanager
async def sending(client: Client, body: bytes) -> AsyncIterator[None]:
    """Sends an upload for as long as the context lasts."""
    tasks = Tasks("client")

    async def send() -> None:
        await client.send(UPLOAD % len(body), body)

    tasks.start("sends", send())
    try:
        yield
    finally:
        await tasks.close()


async def stuck(stage: Stage) -> None:
    """Returns once nothing moves any more."""
    looks: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(looks) < 10 or len(set(looks[-10:])) > 1 or looks[-1] < 1024 * 1024:
            await asyncio.sleep(0.02)
            looks.append(in_the_kernel(stage.upstream.port, stage.address[1]))


def test_a_primary_that_reads_no_more_of_an_upload_is_late(hasty: Stage) -> None:
    async def scene() -> None:
        primary = Stuck()
        hasty.upstream.plays.append(primary)
        async with hasty.client() as client, sending(client, b"x" * MANY):
            got = await client.response(b"POST")
            assert (got.status, json.loads(got.body)["error"]["code"]) == (504, 504)
            await hasty.idle()
        primary.let_go.set()
        await hasty.upstream.closed()

    hasty.play(scene())


def test_a_client_that_leaves_an_upload_that_is_stuck_is_noticed(stage: Stage) -> None:
    async def scene() -> None:
        primary = Stuck()
        stage.upstream.plays.append(primary)
        async with stage.client() as client:
            async with sending(client, b"x" * MANY):
                await stuck(stage)
            assert stage.door.service.data.in_flight == 1
            client.reset()
            await stage.idle()
        primary.let_go.set()
        await stage.upstream.closed()

    stage.play(scene())


@pytest.mark.parametrize("answer", [b"", CHUNKED + chunk(b"data: 1\n\n")], ids=["before its answer", "in its answer"])
@pytest.mark.parametrize("at_once", [True, False], ids=["both at once", "one after the other"])
def test_a_client_that_leaves_with_a_request_that_waits_ends_the_one_that_is_served(
    stage: Stage,
    at_once: bool,  # noqa: FBT001
    answer: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        await stage.fresh()
        primary = Stuck(answer)
        stage.upstream.plays.append(primary)
        async with stage.client() as client:
            await client.send(GET % b"first" + (GET % b"second" if at_once else b""))
            await primary.begun.wait()
            if answer:
                await client.source.head()
            if not at_once:
                await asyncio.sleep(0.05)  # by now somebody waits for the client to leave
                await client.send(GET % b"second")
        await stage.idle()
        primary.let_go.set()
        await stage.upstream.closed()
        assert [request.target for request in stage.upstream.requests] == [b"/v1/first"], "the other is never begun"

    with capture_logs() as logs:
        stage.play(scene())
    assert [line for line in logs if line["log_level"] != "info"] == []
    assert caplog.records == []
