"""Agent clients through a proxy that blocks: each shows a refusal after one request, and none asks again."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.agents import Agent
from tests.proxy.serving import Proxy, proxy
from tests.standin import Call, Script, StandIn

pytestmark = pytest.mark.slow

REASON = "nothing is deleted here"
# No reference has to agree: what is refused here is refused by its rule.
POLICY = {
    "agree": 0,
    "tools": [{"match": "delete_*", "rules": [{"id": "never", "cel": "false", "message": REASON}]}],
}
PROMPT = "Remove r1."
DELETION = Call("delete_device", '{"device": "r1"}')
LEAD = "I remove it.\n"
SCRIPTS = {"a call": Script(calls=(DELETION,)), "text and a call": Script(text=LEAD, calls=(DELETION,))}
# What each client raises for a status that it does not try again.
RAISED = {
    "openai": "UnprocessableEntityError",
    "langgraph": "UnprocessableEntityError",
    "openai-agents": "UnprocessableEntityError",
    "pydantic-ai": "ModelRequestRejectedError",
    "ai": "AI_APICallError",
}

BlockProxy = Callable[[StandIn], contextlib.AbstractAsyncContextManager[Proxy]]


@pytest.fixture
def block_proxy(tmp_path: Path) -> BlockProxy:
    """A proxy in block mode in front of an engine, by POLICY."""

    def serve(engine: StandIn, **settings: Any) -> contextlib.AbstractAsyncContextManager[Proxy]:
        return proxy(tmp_path, engine, mode="block", policy=POLICY, **settings)

    return serve


def requests(engine: StandIn) -> int:
    return sum(received.path == "/v1/chat/completions" for received in engine.received)


@pytest.mark.parametrize("answer", SCRIPTS)
def test_a_refusal_is_the_agents_last_word_after_one_request(
    block_proxy: BlockProxy, agent: Agent, *, stream: bool, answer: str
) -> None:
    async def main() -> None:
        async with StandIn([SCRIPTS[answer]]) as engine, block_proxy(engine) as door:
            told = await asyncio.to_thread(agent.run, f"{door.root}/v1", PROMPT, stream=stream)
            assert requests(engine) == 1
        assert told.raised is None
        assert told.ran == ()
        assert told.text is not None
        before, prefix, said = told.text.partition("[counterproof] ")
        assert prefix
        # What was sent before the call was held stays; a whole answer may leave it out.
        assert before.strip() in {"", SCRIPTS[answer].text.strip()}
        assert not stream or before.strip() == SCRIPTS[answer].text.strip()
        assert "delete_device" in said
        assert REASON in said
        assert "[counterproof]" not in said, "the refusal came twice"

    asyncio.run(main())


@pytest.mark.parametrize("tool_choice", ["required", "delete_device"], ids=["required", "named"])
def test_where_a_call_was_required_the_refusal_is_an_exception_after_one_request(
    block_proxy: BlockProxy, agent: Agent, *, stream: bool, tool_choice: str
) -> None:
    async def main() -> None:
        async with StandIn([SCRIPTS["a call"]]) as engine, block_proxy(engine) as door:
            told = await asyncio.to_thread(agent.run, f"{door.root}/v1", PROMPT, stream=stream, tool_choice=tool_choice)
            assert requests(engine) == 1
        assert told.raised == RAISED[agent.name]
        assert told.ran == ()
        assert told.text is None
        assert told.message is not None
        assert "[counterproof] " in told.message
        assert "delete_device" in told.message
        assert REASON in told.message

    asyncio.run(main())


def test_other_tools_of_the_same_agent_run_as_before(block_proxy: BlockProxy, agent: Agent, *, stream: bool) -> None:
    scripts = [
        Script(text="r1 is well.", when="r1 is up for 4 days"),
        Script(calls=(Call("read_status", '{"device": "r1"}'),)),
    ]

    async def main() -> None:
        async with StandIn(scripts) as engine, block_proxy(engine) as door:
            told = await asyncio.to_thread(agent.run, f"{door.root}/v1", "Show me r1.", stream=stream)
            assert requests(engine) == 2
        assert (told.text, told.ran, told.raised) == ("r1 is well.", ("read_status",), None)

    asyncio.run(main())
