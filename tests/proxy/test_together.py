"""The choices of one answer on their way out: each waits for what it depends on, and for nothing else."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from proxy.together import Together
from shadow.tasks import Tasks, Wait

Start = Callable[[Awaitable[bool]], Wait[bool]]


def play(scene: Callable[[Start], Awaitable[None]]) -> None:
    async def main() -> None:
        tasks = Tasks("test")

        async def wait(work: Awaitable[bool]) -> bool:
            return await work

        try:
            await scene(lambda work: tasks.start("choice", wait(work)))
        finally:
            await tasks.close()

    asyncio.run(main())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("all_or_none", [True, False])
def test_none_goes_before_all_are_decided_and_then_recorded(all_or_none: bool) -> None:  # noqa: FBT001
    async def scene(start: Start) -> None:
        together = Together(all_or_none=all_or_none, expected=3)
        together.passed(2)
        first = start(together.decided(0))
        await turns()
        assert not first.done()
        assert await together.decided(1)
        assert await first
        second = start(together.recorded(1))
        await turns()
        assert not second.done()
        assert await together.recorded(0)
        assert await second

    play(scene)


def test_one_refusal_is_the_refusal_of_all_where_an_answer_goes_out_as_one() -> None:
    async def scene(start: Start) -> None:
        together = Together(all_or_none=True, expected=2)
        first = start(together.decided(0))
        await turns()
        together.refused(1, "No.")
        together.refused(0, "Nor this.")
        assert not await first
        assert not await together.recorded(0)
        assert together.message == "No."

    play(scene)


def test_one_that_is_recorded_does_not_go_where_another_could_not_be() -> None:
    async def scene(start: Start) -> None:
        together = Together(all_or_none=True, expected=2)
        first = start(together.decided(0))
        assert await together.decided(1)
        assert await first
        first = start(together.recorded(0))
        await turns()
        together.refused(1, "No.")
        assert not await first

    play(scene)


def test_where_each_has_an_answer_of_its_own_a_refusal_is_waited_for_and_keeps_nothing_back() -> None:
    async def scene(start: Start) -> None:
        together = Together(expected=2)
        first = start(together.decided(0))
        await turns()
        assert not first.done()
        together.refused(1, "No.")
        assert await first
        assert await together.recorded(0)

    play(scene)


def test_how_many_there_are_may_be_known_last() -> None:
    async def scene(start: Start) -> None:
        together = Together(all_or_none=True)
        first = start(together.decided(0))
        await turns()
        assert not first.done()
        together.expect(1)
        assert await first
        assert await together.recorded(0)

    play(scene)


def test_once_the_client_has_the_beginning_each_stands_by_itself() -> None:
    async def scene(start: Start) -> None:
        together = Together(all_or_none=True)
        first = start(together.decided(0))
        await turns()
        assert together.free() is together
        together.refused(1, "No.")
        assert await first
        assert await together.recorded(0)
        assert await together.decided(2)

    play(scene)
