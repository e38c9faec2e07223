"""A stand-in that keeps a GPU's pace, as a process of its own.

    python -m bench.paced PORT SCRIPTS [--token-ms 20] [--cached-ms 30] [--cold-ms 250]

Its tokens come on time, and a whole answer with its last token, however long it works on them (the tests' stand-in
waits between its work, which comes on top then). And it knows what it has read: of a prompt of which more than 256
tokens are new, the first token comes so much later.
"""

import argparse
import asyncio
import contextvars
import dataclasses
import json
import signal
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from tests.standin import Call, Faults, Script, StandIn
from tests.standin.asking import Asking, Pace
from tests.standin.chat import prompt_ids
from tests.standin.checks import RefusedError, read_body

_BLOCK = 32
_NEW = 256

_due: contextvars.ContextVar[float] = contextvars.ContextVar("due")
_streams: contextvars.ContextVar[bool] = contextvars.ContextVar("streams")


async def _until_due() -> None:
    await asyncio.sleep(max(0.0, _due.get() - time.monotonic()))


@dataclasses.dataclass(frozen=True)
class OnTime(Pace):
    """Says when what was asked for is due, counted from the request's arrival; what streams waits for it."""

    async def prefill(self) -> None:
        """The prefill takes its time."""
        await self._take(self.prefill_s)

    async def tokens(self, count: int = 1) -> None:
        """So many tokens take theirs."""
        await self._take(self.per_token_s * count)

    @staticmethod
    async def _take(seconds: float) -> None:
        _due.set(_due.get() + seconds)
        if _streams.get():
            await _until_due()


class Paced(StandIn):
    """The stand-in, on time, with a prefix cache of its own: blocks of 32 tokens, never evicted."""

    def __init__(self, scripts: list[Script], *, port: int, token_s: float, cached_s: float, cold_s: float) -> None:
        super().__init__(scripts, port=port, keep=0)
        self._served = dataclasses.replace(self._served, pace=OnTime(cached_s, token_s))
        self._cold_s = cold_s
        self._cached: set[int] = set()

    async def _answered(self, request: web.BaseRequest, path: str, raw: bytes, number: int) -> web.StreamResponse:
        body = _body(raw)
        _due.set(time.monotonic())
        _streams.set(body.get("stream") is True)
        blocks, length = self._blocks(body)
        known = next((i for i, block in enumerate(blocks) if block not in self._cached), len(blocks))
        if length - known * _BLOCK > _NEW:
            _due.set(_due.get() + self._cold_s)
            await asyncio.sleep(self._cold_s)
        self._cached.update(blocks)
        return await super()._answered(request, path, raw, number)

    async def _whole(self, request: web.BaseRequest, faults: Faults, asking: Asking, body: bytes) -> web.StreamResponse:
        await _until_due()
        return await super()._whole(request, faults, asking, body)

    def _blocks(self, body: dict[str, Any]) -> tuple[list[int], int]:
        """A hash for each whole block of a chat request's prompt and all before it; the prompt's length."""
        try:
            ids = prompt_ids(self._served, body)
        except (RefusedError, LookupError):
            return [], 0
        whole = [tuple(ids[at : at + _BLOCK]) for at in range(0, len(ids) - _BLOCK + 1, _BLOCK)]
        return list(accumulate((hash(block) for block in whole), lambda a, b: hash((a, b)))), len(ids)


def _body(raw: bytes) -> dict[str, Any]:
    try:
        return read_body(raw, "application/json")
    except RefusedError:
        return {}


def scripts_of(path: Path) -> list[Script]:
    """The scripts of a JSON file: a list of objects with the fields of `Script`, calls as objects."""
    listed = json.loads(path.read_text(encoding="utf-8"))
    return [Script(**fields | {"calls": tuple(Call(**call) for call in fields.get("calls", ()))}) for fields in listed]


async def _serve(asked: argparse.Namespace) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    token_s, cached_s, cold_s = (value / 1000 for value in (asked.token_ms, asked.cached_ms, asked.cold_ms))
    scripts = scripts_of(asked.scripts)
    async with Paced(scripts, port=asked.port, token_s=token_s, cached_s=cached_s, cold_s=cold_s):
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        await ended.wait()


def main() -> None:
    """Serves until it is told to end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("scripts", type=Path)
    parser.add_argument("--token-ms", type=float, default=20.0)
    parser.add_argument("--cached-ms", type=float, default=30.0)
    parser.add_argument("--cold-ms", type=float, default=250.0)
    uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
