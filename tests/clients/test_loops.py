"""Agent clients through a proxy that observes: each finishes a tool loop with nothing changed but its base URL."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from proxy.ledger import LedgerReader
from tests.clients.agents import Agent, Told
from tests.engine.fixtures import ObservingProxy
from tests.proxy.serving import proxy
from tests.standin import Call, Script, StandIn

pytestmark = pytest.mark.slow

PROMPT = "Show me the status of r1."
STATUS = "r1 is up for 4 days"
# The later script is for whom the earlier one does not fit: a conversation that holds the tool's result.
SCRIPTS = [
    Script(text="All is well with r1.", when=STATUS),
    Script(text="I look.\n", calls=(Call("read_status", '{"device": "r1"}'),)),
]


# What the clients send as tool_choice. Pydantic AI names a tool by offering no other, and requires a call.
FORMS = {
    None: (None, "auto"),
    "required": ("required",),
    "read_status": ({"type": "function", "function": {"name": "read_status"}}, "required"),
}


@pytest.mark.parametrize("tool_choice", [None, "required", "read_status"], ids=["played", "required", "named"])
def test_a_two_step_loop_is_the_same_through_the_proxy(
    tmp_path: Path, agent: Agent, *, stream: bool, tool_choice: str | None
) -> None:
    """Played: the stand-in's script has the first step call; else the client forces it by tool_choice."""

    async def main() -> None:
        async with StandIn(SCRIPTS) as engine, StandIn() as reference:
            told = []
            async with proxy(tmp_path, engine, reference) as door:
                for root in (engine.base_url, f"{door.root}/v1"):
                    engine.received.clear()
                    told.append(
                        await asyncio.to_thread(agent.run, root, PROMPT, stream=stream, tool_choice=tool_choice)
                    )
                    asked = [json.loads(r.body) for r in engine.received if r.path == "/v1/chat/completions"]
                    assert [bool(body.get("stream")) for body in asked] == [stream, stream]
                    assert asked[0].get("tool_choice") in FORMS[tool_choice]
                    assert asked[1].get("tool_choice") in FORMS[None]
                    assert asked[1]["messages"][-1]["role"] == "tool"
                records = await door.records()
        assert told == [Told("All is well with r1.", ("read_status",))] * 2
        assert len(records) == 2

    asyncio.run(main())


def test_a_loop_whose_first_step_is_forced_ends_on_real_engines(
    proxy: ObservingProxy, agent: Agent, *, stream: bool
) -> None:
    prompt = f"{PROMPT} ({agent.name}{', streamed' if stream else ''})"
    told = agent.run(proxy.process.base_url, prompt, stream=stream, tool_choice="read_status")
    assert (told.ran, told.raised) == (("read_status",), None)
    assert told.text  # whatever the small model makes of the tool's result
    first, second = judged(proxy, prompt)
    assert (first["stream"], second["stream"]) == (stream, stream)
    assert [call["name"] for call in first["choices"][0]["calls"]] == ["read_status"]
    assert second["request"]["messages"][-1]["role"] == "tool"
    assert second["choices"][0]["content"] == told.text
    assert [record["examinations"][0]["outcome"] for record in (first, second)] == ["compared", "compared"]


def judged(proxy: ObservingProxy, prompt: str) -> list[dict[str, Any]]:
    """The ledger's records of the requests with this prompt, oldest first, once both steps have been judged."""
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        with LedgerReader(proxy.ledger) as reader:
            newest = list(reader.exchanges(limit=20))
        found = [record for record in newest[::-1] if record["request"]["messages"][0]["content"] == prompt]
        if len(found) > 1 and all(record["examinations"] for record in found):
            return found
        time.sleep(0.1)
    raise AssertionError("not judged in time")
