"""What takes its time is done in the door's own threads: others' streams go on, and no other work is waited for."""

import asyncio
import contextlib
import io
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy import forward, reading
from proxy.aside import Aside
from proxy.passage import Passage
from proxy.recording import Recording
from shadow.wire import dialects
from tests.proxy.primary import Server
from tests.proxy.serving import Proxy, proxy
from tests.standin import Faults, Script, StandIn
from tests.standin.asking_it import PARIS, TOOLS, chat

TEXT = Script(text="Plain words.")
LARGE = "word " * 60_000
READERS = ["conversation_key", "plan", "model_of"]


class Threads:
    """Where functions were called: by name, whether on the loop's own thread."""

    def __init__(self) -> None:
        self.loop = threading.get_ident()
        self.on_loop: dict[str, set[bool]] = {}

    def noting(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.on_loop.setdefault(name, set()).add(threading.get_ident() == self.loop)
            return work(*args, **kwargs)

        return noted


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """Notes who reads requests, and who writes down what was read."""
    found = Threads()
    for name in READERS:
        monkeypatch.setattr(reading, name, found.noting(name, getattr(reading, name)))
    monkeypatch.setattr(dialects, "request_of", found.noting("request_of", dialects.request_of))
    monkeypatch.setattr(Passage, "__setattr__", found.noting("set", Passage.__setattr__))
    return found


@pytest.fixture
def passages(monkeypatch: pytest.MonkeyPatch) -> list[Passage]:
    """All that were recorded."""
    found: list[Passage] = []
    record = Recording.record

    def noted(recording: Recording, passage: Passage, now: float) -> None:
        found.append(passage)
        record(recording, passage, now)

    monkeypatch.setattr(Recording, "record", noted)
    return found


async def recorded(passages: list[Passage]) -> Passage:
    """The first passage; it is recorded once its client has the answer."""
    async with asyncio.timeout(10):
        while not passages:
            await asyncio.sleep(0.01)
    return passages[0]


@contextlib.asynccontextmanager
async def every_thread_taken() -> AsyncIterator[None]:
    """The loop's own threads all wait, with more work behind them."""
    free = threading.Event()
    async with asyncio.TaskGroup() as group:
        for i in range(64):
            group.create_task(asyncio.to_thread(free.wait), name=f"wait {i}")
        await asyncio.sleep(0)
        try:
            yield
        finally:
            free.set()


# -- the threads


def test_a_thread_s_name_says_whose_it_is() -> None:
    async def main() -> None:
        aside = Aside()
        with pytest.raises(RuntimeError, match="not open"):
            await aside.run(threading.get_ident)
        aside.open()
        assert (await aside.run(threading.current_thread)).name.startswith("door")
        assert await aside.run(divmod, 7, 2) == (3, 1)
        aside.close()
        with pytest.raises(RuntimeError):
            await aside.run(threading.get_ident)
        Aside().close()

    asyncio.run(main())


def test_closing_waits_for_nothing() -> None:
    async def main() -> None:
        aside, free, runs = Aside(), threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        aside.open()

        def work() -> bool:
            loop.call_soon_threadsafe(runs.set)
            return free.wait(20)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(aside.run(work), name=f"work {i}") for i in range(10)]
            await runs.wait()
            aside.close()
            await asyncio.wait(tasks[-1:])
            assert tasks[-1].cancelled(), "what had not begun never begins"
            assert not tasks[0].done()
            free.set()
        assert tasks[0].result()

    asyncio.run(main())


# -- an answer that is edited whole


@pytest.mark.slow
def test_neither_a_request_nor_its_answer_waits_for_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_EDIT_ASIDE", 0)
    monkeypatch.setattr(reading, "_ASIDE", 0)

    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow, proxy(tmp_path, engine, shadow) as door:
            async with every_thread_taken(), asyncio.timeout(10):
                status, body, _ = await door.chat(chat())
            assert status == 200
            assert "return_token_ids" in json.loads(engine.received[-1].body)
            assert json.loads(body)["choices"][0]["token_ids"] is None
            await door.settled()

    asyncio.run(main())


# -- a request


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["before it is passed on", "once it is answered"])
@pytest.mark.parametrize("large", [False, True])
def test_a_large_request_is_read_aside_and_a_small_one_at_once(
    tmp_path: Path,
    threads: Threads,
    passages: list[Passage],
    late: bool,  # noqa: FBT001
    large: bool,  # noqa: FBT001
) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow:
            async with proxy(tmp_path, engine, shadow, fit=not late) as door:
                if late:  # it is never looked at, and stays cold
                    door.service.mirrors[0].references[0].peer.can = None
                passages.clear()
                body = chat() | {"metadata": {"note": LARGE if large else ""}}
                status, _, _ = await door.chat(body)
                assert status == 200
                passage = await recorded(passages)
                assert passage.request is not None
                assert passage.request.body == body
                assert passage.conversation
                assert (passage.injection is None) is late
                await door.settled()

    asyncio.run(main())
    expected = {"request_of": {not large}, "conversation_key": {not large}, "set": {True}}
    assert threads.on_loop == (expected if late else expected | {"plan": {not large}})


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
def test_the_model_of_a_large_request_to_any_path_is_looked_for_aside(
    tmp_path: Path,
    threads: Threads,
    large: bool,  # noqa: FBT001
) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT], model="other") as other:
            routes = [{"model": "other", "primary": {"base_url": other.base_url}, "shadows": []}]
            async with proxy(tmp_path, engine, routes=routes) as door:
                body = {"prompt": LARGE if large else "", "model": "other"}
                async with door.session.post(f"{door.root}/tokenize", json=body):
                    pass
                assert json.loads(other.received[-1].body) == body

    asyncio.run(main())
    assert threads.on_loop == {"model_of": {not large}, "set": {True}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "wide",
    [
        {"messages": [{}] * 260_000},
        {"messages": [[]] * 260_000},
        {"metadata": {f"{i:x}": 0 for i in range(260_000)}},
        {"tools": [{"type": "function", "function": {"name": "f"}}] * 10_001},
    ],
    ids=["objects", "arrays", "members", "tools"],
)
def test_a_request_of_too_many_values_is_passed_on_unread(
    tmp_path: Path, threads: Threads, passages: list[Passage], wide: dict[str, Any]
) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow, proxy(tmp_path, engine, shadow) as door:
            sent = json.dumps(chat() | wide, separators=(",", ":")).encode()
            async with door.session.post(f"{door.root}/v1/chat/completions", data=io.BytesIO(sent)) as response:
                await response.read()
            assert engine.received[-1].body == sent
            assert (await recorded(passages)).unread
            await door.settled()
            assert await door.outcomes() == {("s0", "dropped", "too_large"): 1}

    asyncio.run(main())
    assert threads.on_loop == {"set": {True}}, "nothing was made of it, and that was not said from another thread"


@pytest.mark.slow
def test_a_client_may_leave_while_its_request_is_read(
    tmp_path: Path, passages: list[Passage], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    reads = threading.Event()
    request_of = dialects.request_of

    def slow(*args: Any) -> Any:
        reads.set()
        assert free.wait(20)
        return request_of(*args)

    async def leave(door: Proxy) -> None:
        async with asyncio.TaskGroup() as group:
            ask = door.chat(chat(messages=[{"role": "user", "content": LARGE}]))
            task = group.create_task(ask, name="ask")
            async with asyncio.timeout(10):
                while not reads.is_set():
                    await asyncio.sleep(0.01)
            assert door.service.data.in_flight == 1
            task.cancel()

    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow, proxy(tmp_path, engine, shadow) as door:
            monkeypatch.setattr(dialects, "request_of", slow)
            await leave(door)
            free.set()
            await recorded(passages)
            assert door.service.data.in_flight == 0
            async with asyncio.timeout(10):
                while engine.running:
                    await asyncio.sleep(0.01)
            assert (await door.chat(chat()))[0] == 200, "a small one is read at once"
            await door.settled()

    asyncio.run(main())


# -- what else is kept and told of an answer


@pytest.mark.slow
def test_an_answer_that_is_asked_for_again_is_copied_only_for_the_sample(
    tmp_path: Path, passages: list[Passage]
) -> None:
    async def main() -> None:
        for share in (0, 1):
            passages.clear()
            rates = {"tool_calls": share, "other": share}
            async with StandIn([PARIS]) as engine, StandIn([PARIS]) as shadow:
                async with proxy(tmp_path, engine, shadow, mode="block", mirror=rates) as door:
                    engine.faults = Faults(refuse_logprobs=True)
                    engine.received.clear()
                    assert (await door.chat(chat(tools=TOOLS, stream=True)))[0] == 200
                    assert len(engine.received) == 2
                    assert (await recorded(passages)).holding
                    assert bool(passages[0].copy) is bool(share)
                    await door.settled()

    asyncio.run(main())


class Shouting(Server):
    """Names its media type in a case of its own."""

    async def answer(self, request: web.Request) -> web.Response:
        return web.Response(
            body=b"data: [DONE]\n\n", headers={"content-type": f"Text/Event-Stream{request.query_string}"}
        )


@pytest.mark.parametrize("more", ["", ";charset=utf-8"])
def test_a_media_type_is_the_same_in_any_case(tmp_path: Path, passages: list[Passage], more: str) -> None:
    async def main() -> None:
        async with Shouting() as base_url, proxy(tmp_path, base_url, fit=False) as door:
            async with door.session.post(f"{door.root}/v1/chat/completions?{more}", json=chat()) as response:
                assert response.headers["content-type"] == f"Text/Event-Stream{more}"
                await response.read()
            assert (await recorded(passages)).sse

    asyncio.run(main())
