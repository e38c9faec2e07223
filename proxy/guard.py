"""What ends an answer before its end: a client that leaves, a primary that says nothing for too long.

One task and one timer per slow answer look after both; the timer is set anew when it rings, and not per chunk.
"""

import asyncio
import itertools
import time
from typing import Protocol

from proxy.upload import Upload
from shadow.tasks import Tasks

_MOMENT_S = 0.02


class Waiting(Protocol):
    """What tells since when the primary is waited for (monotonic seconds), None while it is not."""

    waiting_since: float | None


class Guard:
    """Cancels the task that made it when its client has `left`, or when the primary is `late`.

    Whoever knows the running loop gives it: asking for it costs a system call, for each request.
    """

    def __init__(self, waiting: Waiting, upload: Upload, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.left = self.late = False
        self.begun = self.silence = 0.0
        self._waiting, self._upload = waiting, upload
        self._serving = asyncio.current_task(loop)
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._among: dict[Guard, None] | None = None

    def wait(self, among: "dict[Guard, None]", silence: float) -> None:
        """Waits among those whose answers may yet be there within a moment."""
        self.begun, self.silence, self._among = time.monotonic(), silence, among
        among[self] = None

    def start(self, tasks: Tasks) -> None:
        """Looks after an answer that takes its time."""
        self._watching = tasks.start("watch", self._watch())
        self._ring()

    def end(self) -> None:
        """The answer has ended. It is let go of at once: a garbage collection looks through whatever is kept."""
        if self._among is not None:
            self._among.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def _ring(self) -> None:
        silent = self._silent_for()
        if silent >= self.silence:
            self.late = True
            self._cancel()
            return
        self._timer = asyncio.get_running_loop().call_later(self.silence - silent, self._ring)

    def _silent_for(self) -> float:
        """How long the primary has been the one that is waited for: to answer, or to take more of what it is sent."""
        since, unasked = self._waiting.waiting_since, self._upload.unasked_since
        if since is None or (unasked is None and self._upload.under_way):  # the client reads, or sends
            return 0.0
        return time.monotonic() - max(since, unasked or 0.0)

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
        self._young: dict[Guard, None] = {}  # in the order in which they began
        self._sweeping = False

    def begin(self, guard: Guard, silence: float) -> None:
        """Looks after an answer from now on; `silence` is how long the primary may say nothing, in seconds."""
        guard.wait(self._young, silence)
        if not self._sweeping:
            self._sweep_later()

    def _sweep_later(self) -> None:
        self._sweeping = True
        asyncio.get_running_loop().call_later(_MOMENT_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        before = time.monotonic() - _MOMENT_S
        for guard in list(itertools.takewhile(lambda guard: guard.begun <= before, self._young)):
            del self._young[guard]
            if not self._tasks.closed:
                guard.start(self._tasks)
        if self._young:
            self._sweep_later()
