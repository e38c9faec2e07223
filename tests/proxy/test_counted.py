"""What a whole proxy counts of each dialect: who looks at its calls, and what its server does by itself."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shadow.exchange import Dialect
from shadow.wire.dialects import PATHS
from tests.proxy.bypass import WHOLE, asked
from tests.proxy.primary import Primary
from tests.proxy.serving import Proxy, proxy
from tests.secrets import secret

HELD = (Dialect.CHAT, Dialect.MESSAGES, Dialect.RESPONSES)
SAID = {dialect: WHOLE[dialect.value] for dialect in HELD}
OFFERED = {dialect: asked(dialect.value) for dialect in HELD}
NONE_OF_IT = {"tool_calls": 0, "other": 0}
COVERED: dict[str, dict[str, Any]] = {
    "held": {"mode": "block"},
    "mirrored": {"mode": "observe"},
    "sampled_out": {"mode": "observe", "mirror": NONE_OF_IT},
    "off": {"mode": "off"},
    "unread": {"mode": "observe"},
}


async def counted(door: Proxy, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """A counter's values by their labels; those at 0 are left out."""
    async with door.session.get(f"{door.control}/metrics") as response:
        text = await response.text()
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.value
    }


async def post(door: Proxy, dialect: Dialect, body: bytes) -> int:
    headers = {"content-type": "application/json"}
    async with door.session.post(f"{door.root}{PATHS[dialect]}", data=body, headers=headers) as response:
        await response.read()
        return response.status


@pytest.mark.parametrize("dialect", HELD)
@pytest.mark.parametrize("coverage", COVERED)
def test_who_looks_at_a_dialects_calls(tmp_path: Path, coverage: str, dialect: Dialect) -> None:
    async def main() -> None:
        settings = {"policy": {"agree": 0}} | COVERED[coverage]
        async with Primary(SAID) as url, proxy(tmp_path, url, fit=False, **settings) as door:
            assert await counted(door, "counterproof_coverage_total") == {}
            assert await post(door, dialect, b"[]" if coverage == "unread" else OFFERED[dialect]) == 200
            async with asyncio.timeout(10):  # it is counted once its client has it all
                while not (found := await counted(door, "counterproof_coverage_total")):
                    await asyncio.sleep(0.02)
        assert found == {(("coverage", coverage), ("dialect", dialect.value)): 1}

    asyncio.run(main())


SECRET = secret("kind").replace("-", "_")
BY_THE_SERVER: dict[str, tuple[Dialect, Mapping[str, Any], set[str]]] = {
    "messages, its tools": (
        Dialect.MESSAGES,
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}, {"type": SECRET, "name": "x"}]},
        {"web_search", "unknown"},
    ),
    "messages, its state": (
        Dialect.MESSAGES,
        {"mcp_servers": [{"url": "http://a"}], "container": SECRET, "thread": {"type": "continue"}},
        {"mcp_servers", "container", "thread"},
    ),
    "responses, its tools": (
        Dialect.RESPONSES,
        {"tools": [{"type": "mcp"}, {"type": "web_search_preview"}], "tool_choice": {"type": "image_generation"}},
        {"mcp", "web_search_preview", "image_generation"},
    ),
    "responses, its state": (
        Dialect.RESPONSES,
        {"background": True, "store": True, "previous_response_id": "resp_1"},
        {"background", "store", "previous_response_id"},
    ),
    "responses, a client's own word": (Dialect.RESPONSES, {"tools": [{"type": SECRET}]}, {"unknown_tool"}),
    "responses, in a tool choice": (Dialect.RESPONSES, {"tool_choice": {"type": SECRET}}, {"unknown_tool"}),
    "chat has none": (Dialect.CHAT, {"tools": [{"type": "web_search"}, {"type": SECRET}]}, set()),
}


@pytest.mark.parametrize("mode", ["observe", "block"])
@pytest.mark.parametrize("name", BY_THE_SERVER)
def test_what_the_server_does_by_itself_is_counted_in_words_of_our_own(tmp_path: Path, name: str, mode: str) -> None:
    dialect, fields, kinds = BY_THE_SERVER[name]

    async def main() -> str:
        async with Primary(SAID) as url, proxy(tmp_path, url, fit=False, mode=mode, policy={"agree": 0}) as door:
            await post(door, dialect, asked(dialect.value, **fields))
            async with asyncio.timeout(10):
                while not await door.metric("counterproof_coverage_total"):
                    await asyncio.sleep(0.02)
            found = await counted(door, "counterproof_built_in_total")
            assert found == {(("dialect", dialect.value), ("kind", kind)): 1 for kind in kinds}
            return await metrics(door.session, door.control)

    assert SECRET not in asyncio.run(main())


async def metrics(session: aiohttp.ClientSession, control: str) -> str:
    async with session.get(f"{control}/metrics") as response:
        return await response.text()


def test_a_kind_that_is_unknown_here_is_allowed_by_its_own_name(tmp_path: Path) -> None:
    async def main() -> None:
        policy = {"agree": 0, "built_in": ["acme_search"]}
        async with Primary(SAID) as url, proxy(tmp_path, url, fit=False, mode="block", policy=policy) as door:
            for kind, status in (("acme_search", 200), ("acme_search_2", 422), ("unknown_tool", 422)):
                body = asked("responses", tools=[{"type": kind}, {"type": "function", "name": "QXZK_JVWG"}])
                assert await post(door, Dialect.RESPONSES, body) == status
            assert await counted(door, "counterproof_built_in_total") == {
                (("dialect", "responses"), ("kind", "unknown_tool")): 3
            }

    asyncio.run(main())
