import asyncio
import time
from collections.abc import MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest

from proxy import guard as room
from proxy.guard import Guard, Guards
from proxy.upload import Upload
from shadow.tasks import Tasks


class Client:
    """One that has sent its body, and leaves when it is told to."""

    def __init__(self, *, sent: bool = True) -> None:
        self.leaves = asyncio.Event()
        self._sent = sent

    async def receive(self) -> MutableMapping[str, Any]:
        if self._sent:
            self._sent = False
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}


class Sending:
    """One that sends these parts of a body, and no more, or its end."""

    def __init__(self, parts: list[bytes], *, ends: bool = False) -> None:
        self._parts, self._ends = list(parts), ends

    async def receive(self) -> MutableMapping[str, Any]:
        if not self._parts:
            await asyncio.Event().wait()
        part = self._parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(self._parts) or not self._ends}

    def upload(self) -> Upload:
        return Upload(self.receive, most=100, silence=1000)


async def guarded(upload: Upload, silence: float, since: float | None = None) -> str:
    """How serving an upload ends, a primary being waited for all the time."""
    tasks = Tasks("door")
    guard = Guard(SimpleNamespace(waiting_since=since or time.monotonic()), upload)
    Guards(tasks).begin(guard, silence)
    try:
        await asyncio.sleep(0.5)
    except asyncio.CancelledError:
        assert guard.late
        return "late"
    else:
        return "served"
    finally:
        guard.end()
        await tasks.close()


async def served(
    client: Client, seconds: float, *, silence: float = 10.0, waiting: bool = True, read: bool = True
) -> tuple[str, int]:
    """How serving for so many seconds ends, and how many tasks were made."""
    upload = Upload(client.receive, most=10, silence=10)
    if read:
        await upload.read(10)
    tasks, about = Tasks("door"), SimpleNamespace(waiting_since=time.monotonic() if waiting else None)
    guards, guard, made = Guards(tasks), Guard(about, upload), 0
    guards.begin(guard, silence)
    try:
        await asyncio.sleep(seconds)
        return "served", len(tasks)
    except asyncio.CancelledError:
        return ("late" if guard.late else "left" if guard.left else "cancelled"), made
    finally:
        guard.end()
        await tasks.close()


def test_a_quick_answer_needs_no_task() -> None:
    assert asyncio.run(served(Client(), 0.0)) == ("served", 0)


def test_a_slow_one_is_watched_by_one_task() -> None:
    assert asyncio.run(served(Client(), 0.2)) == ("served", 1)


def test_a_client_that_leaves_ends_it_whether_early_or_late() -> None:
    async def main() -> None:
        for delay in (0.0, 0.1):
            client = Client()
            asyncio.get_running_loop().call_later(delay, client.leaves.set)
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(served(client, 30), name="served")
            assert serving.result()[0] == "left"

    asyncio.run(main())


def test_a_primary_that_says_nothing_is_late() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(served(Client(), 30, silence=0.05), name="served")
        assert serving.result()[0] == "late"

    asyncio.run(main())


@pytest.mark.parametrize("why", ["the client does not read", "the client still sends"])
def test_it_is_not_late_while_somebody_else_is_waited_for(why: str) -> None:
    sends = why == "the client still sends"

    async def main() -> tuple[str, int]:
        return await served(Client(sent=not sends), 0.3, silence=0.05, waiting=sends, read=not sends)

    assert asyncio.run(main()) == ("served", 1)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_primary_that_asks_for_no_more_of_an_upload_is_late(parts: int) -> None:
    async def main() -> str:
        upload = Sending([b"a"] * 10).upload()
        stream = upload.stream()
        for _ in range(parts):
            await anext(stream)
        return await guarded(upload, 0.05)

    assert asyncio.run(main()) == "late"


def test_it_is_not_late_while_it_asks_for_more_than_the_client_sends() -> None:
    async def main() -> str:
        upload = Sending([b"a"]).upload()
        stream, tasks = upload.stream(), Tasks("primary")
        await anext(stream)

        async def ask() -> None:
            await anext(stream)

        tasks.start("asks", ask())
        ended = await guarded(upload, 0.05)
        await tasks.close()
        return ended

    assert asyncio.run(main()) == "served"


@pytest.mark.parametrize("ends", [True, False], ids=["to its end", "and given up"])
def test_a_client_that_took_its_time_to_send_leaves_the_primary_all_of_its_own(ends: bool) -> None:  # noqa: FBT001
    async def main() -> str:
        sending = Sending([b"a", b"b"], ends=ends)
        upload = sending.upload()
        stream = upload.stream()
        assert [await anext(stream) for _ in range(2)] == [b"a", b"b"]
        if ends:
            assert [part async for part in stream] == []
        else:
            await stream.aclose()  # type: ignore[attr-defined]
        return await guarded(upload, 30, since=time.monotonic() - 1000)  # all of which went by in the upload

    assert asyncio.run(main()) == "served"


def test_of_many_only_those_that_take_their_time_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_MOMENT_S", 0.05)

    async def main() -> None:
        tasks = Tasks("door")
        guards, client = Guards(tasks), Client()
        upload = Upload(client.receive, most=10, silence=10)
        await upload.read(10)
        made = [Guard(SimpleNamespace(waiting_since=None), upload) for _ in range(100)]
        for guard in made:
            guards.begin(guard, 10)
        for guard in made[::2]:
            guard.end()
        await asyncio.sleep(0.3)  # several moments: all that were begun have been looked at
        assert len(tasks) == 50
        assert not guards._young
        assert not guards._sweeping, "no timer is left where there is nothing to look after"
        for guard in made:
            guard.end()
        await tasks.close()

    asyncio.run(main())
