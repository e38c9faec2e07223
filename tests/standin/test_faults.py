import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shadow.engine import Endpoint, Engine
from shadow.errors import Failed, Garbage, Refused, TimedOut, Unreachable
from shadow.exchange import Dialect, Request
from shadow.wire import answers
from tests.standin import GARBAGE, WRONG_SHAPE, Faults, Script, StandIn
from tests.standin.asking_it import TOLD, answer_of, chat, client, post

pytestmark = pytest.mark.slow

SCORE = ((1, 5), (11, 12))


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        (Faults(close_before_byte=True), Unreachable),
        (Faults(hang_before_headers=True), TimedOut),
        (Faults(status=500), Failed),
        (Faults(status=503), Failed),
        (Faults(status=400), Refused),
        (Faults(body=GARBAGE), Garbage),
        (Faults(body=WRONG_SHAPE), Garbage),
        (Faults(logprobs="nan"), Garbage),
        (Faults(logprobs="nan_400"), Refused),
        (Faults(logprobs="null"), Garbage),
        (Faults(logprobs="zero"), Garbage),
        (Faults(refuse_logprobs=True), Refused),
        (Faults(abort_after_bytes=30), Unreachable),
        (Faults(short_after_bytes=30), Garbage),
        (Faults(delay_s=2), TimedOut),
        (Faults(cuts=20, drip_s=0.1), TimedOut),
    ],
)
def test_each_fault_is_what_the_client_calls_it(faults: Faults, error: type[Exception]) -> None:
    async def main() -> None:
        async with StandIn(faults=faults) as engine, client(engine, timeout=0.4) as asking:
            with pytest.raises(error):
                await asking.score(*SCORE)
            engine.faults = Faults()
            assert len(await asking.score(*SCORE)) == 2

    asyncio.run(main())


def test_refused_connections_come_back_on_the_same_port() -> None:
    async def main() -> None:
        async with StandIn() as engine, client(engine) as asking:
            await asking.score(*SCORE)
            await engine.refuse_connections()
            with pytest.raises(Unreachable):
                await asking.score(*SCORE)
            await engine.accept_connections()
            await asking.score(*SCORE)

    asyncio.run(main())


def test_faults_are_counted_and_picked() -> None:
    async def main() -> None:
        def injected(_path: str, body: dict[str, Any]) -> bool:
            return "return_token_ids" in body

        async with StandIn(faults=Faults(status=500, skip=1, times=2, only=injected)) as engine:
            bodies = [await post(engine, chat(max_tokens=1, **extra)) for extra in ({}, {}, TOLD, TOLD)]
            assert [b"error" in body for body in bodies] == [False, False, True, False]
            assert engine.generated == 4

    asyncio.run(main())


def test_an_answer_cut_short_is_whole_as_http() -> None:
    async def main() -> None:
        async with StandIn(faults=Faults(short_after_bytes=30)) as engine:
            assert len(await post(engine, chat(max_tokens=1))) == 30

    asyncio.run(main())


async def events(engine: StandIn, **fields: Any) -> bytes:
    return await post(engine, chat(stream=True, max_tokens=6, **fields))


def streamed(faults: Faults, check: Callable[[StandIn], Awaitable[None]]) -> None:
    async def main() -> None:
        async with StandIn([Script(text="Zażółć gęślą 👩 jaźń and so on")], faults=faults) as engine:
            await check(engine)

    asyncio.run(main())


def test_a_truncated_stream_has_neither_finish_nor_done() -> None:
    async def check(engine: StandIn) -> None:
        raw = await events(engine)
        assert raw.count(b"data: ") == 3
        assert answers.read(Dialect.CHAT, raw, stream=True).problem == "truncated"

    streamed(Faults(truncate_after=3), check)


def test_an_error_inside_a_stream_is_followed_by_done() -> None:
    async def check(engine: StandIn) -> None:
        raw = await events(engine)
        assert raw.endswith(b'"code":500}}\n\ndata: [DONE]\n\n')
        assert answers.read(Dialect.CHAT, raw, stream=True).problem == "error"

    streamed(Faults(error_after=2), check)


@pytest.mark.parametrize("cuts", [1, 7, [1, 2, 300, 301]])
def test_cuts_and_framing_change_no_payload(cuts: Any) -> None:
    async def check(engine: StandIn) -> None:
        odd = await answer_of(engine, chat(stream=True, max_tokens=6))
        engine.faults = Faults()
        assert odd == await answer_of(engine, chat(stream=True, max_tokens=6))

    streamed(Faults(cuts=cuts, crlf=True, comment=b": ping"), check)


def test_bytes_are_written_in_the_pieces_asked_for() -> None:
    async def check(engine: StandIn) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{engine.base_url}/chat/completions", json=chat(stream=True, max_tokens=2)) as response,
        ):
            pieces = [piece async for piece, _end in response.content.iter_chunks() if piece]
        assert set(map(len, pieces[:-1])) <= {1, 2, 3, 4, 5}  # the end of an event is the end of a piece
        assert any(len(piece) == 5 for piece in pieces)

    streamed(Faults(cuts=5), check)


def test_the_connection_breaks_inside_a_character() -> None:
    async def check(engine: StandIn) -> None:
        got: list[bytes] = []

        async def read() -> None:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{engine.base_url}/chat/completions", json=chat(stream=True)) as response,
            ):
                async for piece in response.content.iter_any():
                    got.append(piece)  # noqa: PERF401  (what came before the break is kept)

        with pytest.raises(aiohttp.ClientPayloadError):
            await read()
        with pytest.raises(UnicodeDecodeError, match="unexpected end of data"):
            b"".join(got).decode()

    streamed(Faults(cut_utf8=True), check)


def test_streamed_nan_logprobs_are_raw_nan_or_null() -> None:
    async def check(engine: StandIn) -> None:
        assert b'"logprob":NaN' in await events(engine, logprobs=True)
        engine.faults = Faults(logprobs="nan_400")
        assert b'"logprob":null' in await events(engine, logprobs=True)
        assert b'"code":400' in await post(engine, chat(logprobs=True))

    streamed(Faults(logprobs="nan"), check)


@pytest.mark.parametrize(
    ("faults", "stream"),
    [
        (Faults(hang_after=2), True),
        (Faults(hang_before_headers=True), True),
        (Faults(hang_before_headers=True), False),
        (Faults(endless=True), True),
        (Faults(endless=True), False),
    ],
)
def test_a_client_that_leaves_is_noticed(faults: Faults, *, stream: bool) -> None:
    async def main() -> None:
        async with StandIn(faults=faults) as engine:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(post(engine, chat(stream=stream)), 0.2)
            async with asyncio.timeout(5):
                while engine.running:
                    await asyncio.sleep(0.01)
            assert engine.disconnects == 1

    asyncio.run(main())


def test_stopping_ends_what_hangs_and_leaves_no_task() -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        async with (
            StandIn(faults=Faults(hang_after=1)) as engine,
            aiohttp.ClientSession() as session,
            session.post(f"{engine.base_url}/chat/completions", json=chat(stream=True)) as response,
        ):
            await response.content.readany()
            assert engine.running == 1
            await asyncio.wait_for(engine.stop(), 5)
            assert (engine.running, engine.disconnects) == (0, 0)
        assert asyncio.all_tasks() == before

    asyncio.run(main())


# --- what it saw, and its time ----------------------------------------------------------------------------------------


def test_it_keeps_what_it_received() -> None:
    async def main() -> None:
        async with StandIn(keep=2) as engine, aiohttp.ClientSession() as session:
            for number in range(3):
                url = f"{engine.base_url}/models?n={number}"
                await (await session.get(url, headers={"X-One": "1"})).read()
            assert [request.path for request in engine.received] == ["/v1/models?n=1", "/v1/models?n=2"]
            assert engine.received[0].header("x-one") == "1"
            assert (engine.received[0].method, engine.received[0].body) == ("GET", b"")

    asyncio.run(main())


def test_it_takes_a_gpus_time() -> None:
    async def main() -> None:
        async with StandIn(prefill_s=0.1, per_token_s=0.02, ends=False) as engine:
            loop = asyncio.get_running_loop()
            for stream in (False, True):
                began = loop.time()
                await post(engine, chat(max_tokens=5, stream=stream))
                assert 0.2 <= loop.time() - began < 2

    asyncio.run(main())


def test_a_slow_answer_is_a_whole_one() -> None:
    async def main() -> None:
        async with StandIn() as engine:
            loop = asyncio.get_running_loop()
            for faults in (Faults(delay_s=0.3), Faults(cuts=100, drip_s=0.05)):
                engine.faults = Faults()
                well = json.loads(await post(engine, chat(max_tokens=3)))
                engine.faults = faults
                began = loop.time()
                slow = json.loads(await post(engine, chat(max_tokens=3)))
                assert loop.time() - began >= 0.3
                assert slow["choices"] == well["choices"]

    asyncio.run(main())


def test_it_runs_as_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "scripts.json").write_text(json.dumps([{"text": "I do.", "calls": []}]), encoding="utf-8")

    async def main() -> None:
        faults = '{"comment": null, "body": "no JSON", "skip": 1}'
        options = ("--scripts", str(tmp_path / "scripts.json"), "--faults", faults, "--gap", "3=0.5")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.standin", *options, stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert process.stdout is not None
        base_url = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        async with Engine(Endpoint("s", base_url, "smollm2")) as engine:
            choice = await engine.replay(Request(Dialect.CHAT, chat()), expected=64)
            assert choice.content == "I do."
            assert await engine.post("/v1/chat/completions", chat()) == b"no JSON"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 10) == 0

    asyncio.run(main())


def test_as_a_process_it_ends_with_whoever_holds_its_standard_input() -> None:
    async def main() -> None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.standin", "--until-eof", stdin=pipe, stdout=pipe, cwd=Path(__file__).parents[2]
        )
        assert process.stdout is not None
        assert process.stdin is not None
        await asyncio.wait_for(process.stdout.readline(), 30)
        assert process.returncode is None
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 10) == 0

    asyncio.run(main())
