"""A shadow for the bench: the stand-in as a process of its own, which hangs from SIGUSR1 on.

    python -m bench.shadow PORT MODEL MAX_MODEL_LEN

A shadow that hangs in production was found fit first: until the signal this one answers everything. Afterwards it
says nothing at all to what generates, and still answers whoever asks for its models.
"""

import asyncio
import signal
import sys

import uvloop

from tests.standin import Faults, StandIn


async def _serve(port: int, model: str, max_model_len: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    async with StandIn(model=model, max_model_len=max_model_len, port=port, keep=0, ends=False) as engine:

        def hang() -> None:
            engine.faults = Faults(hang_before_headers=True)

        loop.add_signal_handler(signal.SIGUSR1, hang)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        await ended.wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
