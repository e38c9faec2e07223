"""What ends an answer before its end: a client that leaves, a primary that says nothing for too long.

One task and one timer per slow answer look after both; the timer is set anew when it rings, and not per chunk.
"""

import asyncio
import time
from collections import deque
from typing import Protocol

from proxy.upload import Upload
from shadow.tasks import Tasks

_MOMENT_S = 0.02


class Waiting(Protocol):
    """What tells since when the primary is waited for (monotonic seconds), None while it is not."""

    waiting_since: float | None


class Guard:
    """Cancels the task that made it when its client has `left`, or when the primary is `late`."""

    def __init__(self, waiting: Waiting, upload: Upload) -> None:
        self.left = self.late = self.ended = False
        self.begun = self.silence = 0.0
        self._waiting, self._upload = waiting, upload
        self._serving = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self, tasks: Tasks) -> None:
        """Looks after an answer that takes its time."""
        self._watching = tasks.start("watch", self._watch())
        self._ring()

    def end(self) -> None:
        """The answer has ended."""
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def _ring(self) -> None:
        since, silent = self._waiting.waiting_since, 0.0
        if since is not None and not self._upload.under_way:  # while a client still sends, the primary has to wait
            silent = time.monotonic() - since
        if silent >= self.silence:
            self.late = True
            self._cancel()
            return
        self._timer = asyncio.get_running_loop().call_later(self.silence - silent, self._ring)

    async def _watch(self) -> None:
        await self._upload.left()
        self.left = True
        self._cancel()

    def _cancel(self) -> None:
        if self._serving is not None:
            self._serving.cancel()


class Guards:
    """Starts the guards of those answers that are not there within a moment: most need neither task nor timer."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._young: deque[Guard] = deque()
        self._sweeping = False

    def begin(self, guard: Guard, silence: float) -> None:
        """Looks after an answer from now on; `silence` is how long the primary may say nothing, in seconds."""
        guard.begun, guard.silence = time.monotonic(), silence
        self._young.append(guard)
        if not self._sweeping:
            self._sweep_later()

    def _sweep_later(self) -> None:
        self._sweeping = True
        asyncio.get_running_loop().call_later(_MOMENT_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        before = time.monotonic() - _MOMENT_S
        while self._young and self._young[0].begun <= before:
            guard = self._young.popleft()
            if not guard.ended and not self._tasks.closed:
                guard.start(self._tasks)
        if self._young:
            self._sweep_later()
