"""The door's own threads: what it works out of large bodies waits for none of the mirror's work, nor for the audit's.

`asyncio.to_thread` has one queue for everybody, with a handful of threads where cores are few.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_THREADS = 4  # they share one interpreter: more of them would only take turns


class Aside:
    """A few threads. `open` before the first use, `close` after the last."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """Makes the pool; its threads start as they are needed."""
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="door")

    def close(self) -> None:
        """Ends the threads: what waits is cancelled, what runs ends by itself and is not waited for."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """What `work` gives, from one of the threads. Whoever is cancelled meanwhile gets nothing of it.

        Raises:
            RuntimeError: the pool is not open.
        """
        if self._executor is None:
            raise RuntimeError("the door is not open")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)
