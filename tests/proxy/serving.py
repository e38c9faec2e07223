"""A whole proxy in the test's own event loop, in front of stand-ins."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from proxy.app import Service
from proxy.configfile import load
from proxy.ledger import LedgerReader
from proxy.server import listen, serve
from shadow.reference import State
from tests.standin import StandIn


@dataclass
class Proxy:
    """A proxy that serves: its address, what stands behind it, and a client session."""

    root: str
    control: str
    service: Service
    session: aiohttp.ClientSession
    ledger: Path

    async def chat(self, body: dict[str, Any], **options: Any) -> tuple[int, bytes, aiohttp.ClientResponse]:
        """Posts a chat request and reads the whole answer."""
        async with self.session.post(f"{self.root}/v1/chat/completions", json=body, **options) as response:
            return response.status, await response.read(), response

    async def settled(self) -> None:
        """Returns when the mirror has nothing left to do."""
        for mirror in self.service.mirrors:
            assert await mirror.drain(30)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry the labels."""
        async with self.session.get(f"{self.control}/metrics") as response:
            text = await response.text()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def outcomes(self) -> dict[tuple[str, str, str], int]:
        """The mirror's counts by (shadow, outcome, reason)."""
        async with self.session.get(f"{self.control}/metrics") as response:
            text = await response.text()
        return {
            (s.labels["shadow"], s.labels["outcome"], s.labels["reason"]): int(s.value)
            for family in text_string_to_metric_families(text)
            for s in family.samples
            if s.name == "counterproof_mirror_total"
        }

    async def records(self) -> list[dict[str, Any]]:
        """The ledger's exchanges, oldest first, once the mirror has settled."""
        await self.settled()
        async with asyncio.timeout(10):  # the ledger writes behind: poll for what the mirror has handed it
            while not (found := self._stored()) or not all(record["examinations"] for record in found):
                await asyncio.sleep(0.02)
        return found

    def _stored(self) -> list[dict[str, Any]]:
        with LedgerReader(self.ledger) as reader:
            return list(reader.exchanges(limit=10_000))[::-1]


@contextlib.asynccontextmanager
async def proxy(
    folder: Path, engine: StandIn | str, *shadows: StandIn, fit: bool = True, file: Path | None = None, **settings: Any
) -> AsyncIterator[Proxy]:
    """Serves a proxy; shadows are named s0, s1, …; with `fit`, once every one of them can be asked.

    `settings` are sections of the configuration; those of `shadow` go to every shadow; `file` holds others, and is
    followed.
    """
    shadow = {"timeout": 20} | settings.pop("shadow", {})
    base_url = engine if isinstance(engine, str) else engine.base_url
    overrides = {
        "primary": {"base_url": base_url} | settings.pop("primary", {}),
        "shadows": [{"name": f"s{i}", "base_url": s.base_url} | shadow for i, s in enumerate(shadows)],
        "mirror": {"tool_calls": 1, "other": 1} | settings.pop("mirror", {}),
        "ledger": {"path": str(folder / "ledger.db"), "content": "full"} | settings.pop("ledger", {}),
        "listen": {"port": 0},
        "control": {"port": 0, "token_file": str(folder / "control" / "token")} | settings.pop("control", {}),
    } | settings
    service = Service(load(file, overrides, {}), path=file, load=lambda: load(file, overrides, {}))
    with listen("127.0.0.1", 0, "listen.port") as data, listen("127.0.0.1", 0, "control.port") as control:
        stop, up = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def until() -> None:
            await stop.wait()

        async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as session:
            group.create_task(serve(service, data, control, lambda *at: up.set_result(at), until), name="proxy")
            at, control_at = await up
            one = Proxy(f"http://{at}", f"http://{control_at}", service, session, folder / "ledger.db")
            try:
                if fit:
                    await _fit(service)
                yield one
            finally:
                stop.set()


async def _fit(service: Service) -> None:
    async with asyncio.timeout(20):
        for mirror in service.mirrors:
            for reference in mirror.references:
                while reference.standing(mirror.primary)[0] is not State.READY:
                    await asyncio.sleep(0.01)
