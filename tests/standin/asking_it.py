"""What the stand-in's tests share: how they ask it."""

from typing import Any

import aiohttp

from shadow.engine import Endpoint, Engine
from shadow.exchange import Choice, Dialect
from shadow.wire import answers
from tests.standin import Call, Script, StandIn

HELLO = [{"role": "user", "content": "Hello, host!"}]
TOOLS = [{"type": "function", "function": {"name": "send", "parameters": {"type": "object"}}}]
TOLD = {"logprobs": True, "top_logprobs": 5, "return_token_ids": True, "return_tokens_as_token_ids": True}
LEAD = "I look it up.\n"
PARIS = Script(text=LEAD, calls=(Call("send", '{"city": "Paris", "n": 1}'),))
ROME = Script(text=LEAD, calls=(Call("send", '{"city": "Rome", "n": 1}'),), margin=0.04)


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "smollm2", "messages": HELLO, "temperature": 0, "max_tokens": 200} | fields


def client(engine: StandIn, timeout: float = 20.0) -> Engine:
    return Engine(Endpoint("s", engine.base_url, "smollm2", timeout=timeout))


async def post(engine: StandIn, body: dict[str, Any]) -> bytes:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{engine.base_url}/chat/completions", json=body) as response,
    ):
        return await response.read()


async def answer_of(engine: StandIn, body: dict[str, Any]) -> Choice:
    answer = answers.read(Dialect.CHAT, await post(engine, body), stream=bool(body.get("stream")))
    assert answer.problem is None
    return answer.choices[0]


def known(choice: Choice) -> tuple[tuple[int, ...], tuple[int, ...]]:
    assert choice.prompt_ids is not None
    assert choice.token_ids is not None
    return choice.prompt_ids, choice.token_ids
