"""Proxies that are measured from outside: each a process of its own, with taps before its primary and its reference."""

import asyncio
import contextlib
import functools
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import orjson

from bench.procs import Unavailable, cores, pinned, process, until
from bench.tap import Client, Passed, Tap, request_bytes
from proxy.demo.building import RigError
from proxy.demo.rig import free_port
from proxy.demo.served import ProxyProcess

CACHED_MS, COLD_MS = 30.0, 250.0
"""A prefill of what the stand-in engine has read, and what comes on top for what it has not."""
_FIT_S = 120.0  # a loaded engine takes its time


class Taps(NamedTuple):
    """What stands before the engines."""

    primary: Tap
    reference: Tap


@dataclass(frozen=True, slots=True)
class Door:
    """A proxy that runs, and a connection to it."""

    process: ProxyProcess
    client: Client
    port: int

    async def ask(self, body: Mapping[str, Any]) -> Passed:
        """A streamed request; what came, and when: a stream, or the refusal of a demanded call.

        Raises:
            Unavailable: it was not answered as it should be.
        """
        request = request_bytes(self.port, orjson.dumps({**body, "stream": True}).decode())
        reply = await self.client.ask(request)
        if not reply.complete and (reply.status, reply.problem) != (422, ""):
            raise Unavailable(f"an answer was not whole: {reply.status} {reply.problem}")
        return self.client.got

    async def done(self) -> dict[str, int]:
        """What was done with calls: "released match" and the like, by count."""
        metrics = await asyncio.to_thread(self.process.metrics)
        found: dict[str, int] = {}
        for line in metrics.splitlines():
            if line.startswith("counterproof_gate_total{"):
                labels = dict(part.split("=", 1) for part in line[line.index("{") + 1 : line.index("}")].split(","))
                what = " ".join(labels[name].strip('"') for name in ("action", "verdict"))
                found[what] = found.get(what, 0) + round(float(line.rpartition(" ")[2]))
        return found

    async def settled(self, exchanges: float) -> None:
        """Returns when so many exchanges have been compared."""
        await asyncio.to_thread(self.process.wait_outcomes, int(exchanges), _FIT_S)


@contextlib.asynccontextmanager
async def taps(primary: str, reference: str) -> AsyncIterator[Taps]:
    """A tap before each engine, by its base URL."""
    async with Tap.open(primary) as first, Tap.open(reference) as second:
        yield Taps(first, second)


@contextlib.asynccontextmanager
async def engines(folder: Path, scripts: Sequence[Mapping[str, Any]], token_ms: float) -> AsyncIterator[Taps]:
    """Two stand-ins that keep a GPU's pace, each a process of its own on the other core, and taps before them.

    `scripts` are what they answer: the fields of `tests.standin.Script`, calls as objects.
    """
    listed, urls = _written(scripts, folder), []
    with contextlib.ExitStack() as stack:
        for name in ("primary", "reference"):
            port, log = free_port(), folder / f"{name}.log"
            command: list[str | Path] = [sys.executable, "-m", "bench.paced", str(port), listed]
            command += ["--token-ms", str(token_ms), "--cached-ms", str(CACHED_MS), "--cold-ms", str(COLD_MS)]
            one = stack.enter_context(process(command, core=cores()[1], log=log))
            url = f"http://127.0.0.1:{port}"
            until(functools.partial(_answers, f"{url}/health"), one, log, _FIT_S)
            urls.append(url)
        async with taps(*urls) as both:
            yield both


def _written(scripts: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "scripts.json"
    file.write_text(json.dumps(scripts), encoding="utf-8")
    return file


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, trust_env=False, timeout=5).is_success
    except httpx2.HTTPError:
        return False


def _made(settings: Mapping[str, Any], folder: Path) -> ProxyProcess:
    folder.mkdir(parents=True)
    return ProxyProcess(settings, folder)


@contextlib.asynccontextmanager
async def door(folder: Path, both: Taps, mode: str, **settings: Any) -> AsyncIterator[Door]:
    """A proxy on the first core, once its reference is fit.

    Raises:
        Unavailable: it does not start, or the reference is not found fit.
    """
    port = free_port()
    policy = {"default": {"verify_timeout": "120s"}} if mode == "block" else {}
    told = {
        "primary": {"base_url": both.primary.base_url},
        "shadows": [{"name": "reference", "base_url": both.reference.base_url}],
        "mirror": {"tool_calls": 0, "other": 0},
        "mode": mode,
        "policy": policy,
        "ledger": {"path": str(folder / "ledger.db")},
        "listen": {"port": port},
        "control": {"port": free_port()},
        "log": {"format": "json"},
    } | settings
    one = await asyncio.to_thread(_made, told, folder)

    def start() -> None:
        with pinned(cores()[0]):
            one.__enter__()
        one.wait_fit("reference", _FIT_S)

    try:  # in a thread: the proxy asks its engines through the taps here
        await asyncio.to_thread(start)
        client = await Client.connect(port)
        yield Door(one, client, port)
        client.close()
    except RigError as error:
        raise Unavailable(str(error).partition("; log:")[0]) from error
    finally:
        await asyncio.to_thread(one.__exit__)
