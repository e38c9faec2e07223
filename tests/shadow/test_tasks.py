import asyncio
import inspect
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from shadow.tasks import Tasks


async def done(value: int = 7) -> int:
    return value


async def fail(text: str) -> NoReturn:
    raise ValueError(text)


async def forever() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_task_is_named_kept_and_forgotten_when_it_ends() -> None:
    async def scenario() -> None:
        tasks = Tasks("mirror")
        task = tasks.start("ask", done())
        assert task.get_name() == "mirror:ask"
        assert len(tasks) == 1
        assert await task == 7
        await asyncio.sleep(0)  # the turn of what is called at its end
        assert len(tasks) == 0

    asyncio.run(scenario())


def test_a_failure_is_logged_by_its_type_only() -> None:
    async def scenario() -> None:
        tasks = Tasks("mirror")
        tasks.start("ask", fail("the prompt was: SECRET"))
        await asyncio.sleep(0)  # its turn
        await asyncio.sleep(0)  # the turn of what is called at its end
        assert len(tasks) == 0

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert logs == [{"event": "task failed", "task": "mirror:ask", "error": "ValueError", "log_level": "error"}]
    assert "SECRET" not in repr(logs)


def test_a_cancelled_task_is_no_failure() -> None:
    async def scenario() -> None:
        tasks = Tasks("mirror")
        task = tasks.start("ask", forever())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert len(tasks) == 0

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert logs == []


def test_close_cancels_and_waits_until_everything_has_ended() -> None:
    ended = []

    async def slow_to_end(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(name)

    async def scenario() -> None:
        tasks = Tasks("mirror")
        for name in ("a", "b"):
            tasks.start(name, slow_to_end(name))
        finished = tasks.start("c", done())
        await asyncio.sleep(0)
        await tasks.close()
        assert sorted(ended) == ["a", "b"]
        assert finished.result() == 7
        assert len(tasks) == 0

    asyncio.run(scenario())


def test_a_failure_while_closing_is_logged_and_stops_nothing() -> None:
    async def breaks_on_the_way_out() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("SECRET")

    async def scenario() -> None:
        tasks = Tasks("mirror")
        tasks.start("bad", breaks_on_the_way_out())
        good = tasks.start("good", forever())
        await asyncio.sleep(0)
        await tasks.close()
        assert good.cancelled()

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert [(entry["task"], entry["error"]) for entry in logs] == [("mirror:bad", "RuntimeError")]


def test_after_close_nothing_starts() -> None:
    async def scenario() -> None:
        tasks = Tasks("mirror")
        await tasks.close()
        await tasks.close()
        work = done()
        with pytest.raises(RuntimeError, match="mirror is closed"):
            tasks.start("late", work)
        assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED  # no warning that nobody awaited it
        assert len(tasks) == 0

    asyncio.run(scenario())


def test_a_task_that_starts_another_while_closing_is_refused() -> None:
    refused = []

    async def scenario() -> None:
        tasks = Tasks("mirror")

        async def spawns() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                try:
                    tasks.start("late", done())
                except RuntimeError as error:
                    refused.append(str(error))

        tasks.start("spawner", spawns())
        await asyncio.sleep(0)
        await tasks.close()

    asyncio.run(scenario())
    assert refused == ["mirror is closed"]
