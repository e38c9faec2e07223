import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import pytest

from proxy.upload import ClientLeftError, Leaving, TooLargeError, TooSlowError, Upload, UploadError

GONE = {"type": "http.disconnect"}


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def receiving(messages: Iterable[dict[str, Any]]) -> Callable[[], Awaitable[MutableMapping[str, Any]]]:
    """A client that sends these messages, then nothing."""
    left = iter(messages)

    async def receive() -> MutableMapping[str, Any]:
        for message in left:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    return receive


def upload(*messages: dict[str, Any], most: int = 100, silence: float = 5.0) -> Upload:
    return Upload(receiving(messages), most=most, silence=silence)


async def joined(one: Upload) -> bytes:
    return b"".join([chunk async for chunk in one.stream()])


@pytest.mark.parametrize(
    "messages",
    [
        [part(b"abcdef", more=False)],
        [part(b"abc"), part(b"def", more=False)],
        [part(b"abc"), part(b"def"), part(b"", more=False)],
        [part(b""), part(b"abcdef"), part(b""), part(b"", more=False)],
    ],
)
def test_a_body_is_read_whole_or_streamed_whole(messages: list[dict[str, Any]]) -> None:
    async def main() -> None:
        assert await upload(*messages).read(6) == b"abcdef"
        assert await joined(upload(*messages)) == b"abcdef"
        read = upload(*messages)
        assert await read.read(6) == await read.read(6)
        assert await joined(read) == b"abcdef"

    asyncio.run(main())


def test_what_was_read_before_the_bound_was_passed_is_streamed_first() -> None:
    async def main() -> None:
        one = upload(part(b"abc"), part(b"def"), part(b"ghi", more=False))
        assert await one.read(5) is None
        assert [chunk async for chunk in one.stream()] == [b"abc", b"def", b"ghi"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([part(b"abc"), GONE], ClientLeftError),
        ([GONE], ClientLeftError),
        ([part(b"a" * 60), part(b"b" * 60)], TooLargeError),
        ([part(b"abc")], TooSlowError),
    ],
)
def test_a_body_that_does_not_come_in_says_why_to_whoever_reads_it(
    messages: list[dict[str, Any]], error: type[UploadError]
) -> None:
    async def main() -> None:
        for read in (lambda one: one.read(1000), joined):
            one = upload(*messages, silence=0.05)
            with pytest.raises(error):
                await read(one)
            assert isinstance(one.problem, error)

    asyncio.run(main())


def test_a_client_that_leaves_is_noticed_after_its_body_only() -> None:
    async def main() -> None:
        whole = upload(part(b"abc", more=False), GONE)
        await whole.read(10)
        async with asyncio.timeout(5):
            await whole.left()
        streamed = upload(part(b"abc"), part(b"def", more=False), GONE)
        async with asyncio.TaskGroup() as group:
            chunks = streamed.stream()
            left = group.create_task(streamed.left(), name="left")
            await asyncio.sleep(0)
            assert not left.done()
            assert [chunk async for chunk in chunks] == [b"abc", b"def"], "the watch must not take the body's messages"
            async with asyncio.timeout(5):
                await left

    asyncio.run(main())


def test_after_a_body_that_nobody_reads_to_its_end_a_client_that_leaves_is_noticed_too() -> None:
    async def main() -> None:
        one = upload(part(b"abc"), part(b"def"), part(b"ghi"), GONE)
        chunks = one.stream()
        assert await anext(chunks) == b"abc"
        await chunks.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(5):
            await one.left()

    asyncio.run(main())


@pytest.mark.parametrize("early", [True, False], ids=["before it is streamed", "meanwhile"])
def test_a_client_that_leaves_an_upload_that_nobody_goes_on_with_is_noticed(early: bool) -> None:  # noqa: FBT001
    gone = False

    async def receive() -> MutableMapping[str, Any]:
        return GONE if gone else part(b"abc")

    async def main() -> None:
        nonlocal gone
        leaving = Leaving()
        one = Upload(receive, most=100, silence=5.0, leaving=leaving)
        assert await one.read(0) is None
        if early:
            gone = True
            leaving.tell()
        chunks = one.stream()
        async with asyncio.TaskGroup() as group:
            left = group.create_task(one.left(), name="left")
            assert await anext(chunks) == b"abc"
            await asyncio.sleep(0)
            assert left.done() is early
            gone = True
            leaving.tell()
            async with asyncio.timeout(5):
                await left

    asyncio.run(main())
