"""Background tasks that are named, kept and ended: a lost task is a lost mirror."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

T = TypeVar("T")

Wait = asyncio.Task
"""A task that was started here, for who awaits what it gives."""

log = structlog.get_logger("counterproof.tasks")


class Tasks:
    """A set of running tasks that one owner started and ends.

    asyncio itself holds only weak references to tasks, and the exception of one that nobody awaits is reported when it
    is collected, if ever. Here every task has a name, a failure is logged when it happens (its type only: messages can
    hold content), and `close` cancels and awaits what is still running.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    @property
    def closed(self) -> bool:
        """Whether nothing can be started any more."""
        return self._closed

    def start(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts `work` as the task `owner:name`; after `close` it is refused with RuntimeError."""
        if self._closed:
            work.close()
            raise RuntimeError(f"{self._owner} is closed")
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}:{name}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed", task=task.get_name(), error=type(error).__name__)

    async def close(self) -> None:
        """Cancels what is still running and waits until it has ended."""
        self._closed = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
