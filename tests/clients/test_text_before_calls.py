"""A text, then a call that is refused, as recorded of engines: what clients of responses and messages make of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.clients.agents import Agent
from tests.proxy.serving import proxy

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "proxy" / "gates" / "data"
RECORDED = {"/v1/responses": "responses/text-call.sse", "/v1/messages": "messages/made_text_call_text.sse"}
LEAD, REFUSED = "Let me see.\n", "[counterproof] The call of "
# The recorded calls are of a tool that nobody offers: no rule is needed to refuse them.
REASON = "was refused: this request offers no such tool."
RAISED = {
    "openai-responses": "APIError",
    "openai-agents-responses": "APIError",
    "ai-openai": "AI_StreamProviderError",
    "anthropic": "APIStatusError",
    "anthropic-tool-runner": "APIStatusError",
    "ai-anthropic": "AI_StreamProviderError",
}
"""What each raises for an error inside a stream."""


@contextlib.asynccontextmanager
async def replaying(folder: Path, **policy: Any) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A proxy in block mode in front of what was recorded: its base URL, and the requests that went through."""
    asked: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.Response(body=(DATA / RECORDED[request.path]).read_bytes(), content_type="text/event-stream")

    app = web.Application()
    app.add_routes([web.post(path, answer) for path in RECORDED])
    async with TestServer(app) as engine:
        async with proxy(folder, str(engine.make_url("/v1")), mode="block", policy={"agree": 0} | policy) as door:
            yield f"{door.root}/v1", asked


def test_what_was_told_stays_and_the_refusal_follows(tmp_path: Path, dialect_agent: Agent) -> None:
    async def main() -> None:
        async with replaying(tmp_path) as (base_url, asked):
            told = await asyncio.to_thread(dialect_agent.run, base_url, "Do it.", stream=True)
        assert len(asked) == 1
        assert (told.ran, told.raised) == ((), None), told
        assert told.text is not None
        before, prefix, said = told.text.partition(REFUSED)
        # This one takes the last of several messages for the answer.
        assert before == ("" if dialect_agent.name == "openai-agents-responses" else LEAD)
        assert prefix
        assert REASON in said
        assert REFUSED not in said, "the refusal came twice"

    asyncio.run(main())


def test_a_refusal_that_is_an_error_ends_the_stream_in_an_exception(tmp_path: Path, dialect_agent: Agent) -> None:
    """The text is out, and with it the status: an error inside the stream is all that is left."""

    async def main() -> None:
        async with replaying(tmp_path, refusal="error") as (base_url, asked):
            told = await asyncio.to_thread(dialect_agent.run, base_url, "Do it.", stream=True)
        assert len(asked) == 1
        assert (told.ran, told.text, told.raised) == ((), None, RAISED[dialect_agent.name]), told
        assert told.message is not None
        assert REFUSED in told.message
        assert REASON in told.message

    asyncio.run(main())
