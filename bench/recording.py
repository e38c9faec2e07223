"""The requests that the bench sends, and a recording of what the stand-in answers to them, for `upstream.c`.

The stand-in has vLLM's shapes (a contract test holds it against the real engine) but is too slow to be an upstream;
replayed from C, its answers cost the measured systems what an engine's would.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from proxy.inject import Level, plan
from shadow.capabilities import discover
from shadow.conversation import conversation_key, in_sample
from shadow.engine import Endpoint, Engine
from shadow.exchange import Dialect, Request
from shadow.wire import sse
from tests.standin import StandIn

MODEL = "smollm2"
MAX_MODEL_LEN = 262_144  # tokens: the long prompt must fit
OTHER_RATE = 0.05  # mirror.other as it is by default: the bench's conversation is outside of this sample
SMALL_TOKENS = 24
LARGE_BYTES = 400_000
CHAT = "/v1/chat/completions"

_K = 20  # candidates per position that the stand-in gives at most
# As many bytes of token ids per byte of text as a tokenizer of 150,000 tokens makes of English, about 1.5.
_SENTENCE = "The device on the second floor lost its link again, and the router said that one port was down. "


def _body(content: str, **more: Any) -> bytes:
    body = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "You are a network assistant. Answer in one sentence."},
            {"role": "user", "content": content},
        ],
        "temperature": 0,
        "ignore_eos": True,
    }
    return orjson.dumps(body | more)


def _outside() -> str:
    """How a conversation begins that the default sample leaves out."""
    for number in range(1000):
        content = f"Question {number}: which interface of edge-1 is down?"
        request = Request(Dialect.CHAT, orjson.loads(_body(content)))
        if not in_sample(conversation_key(request, None), OTHER_RATE):
            return content
    raise AssertionError("every conversation is in the sample")


def small() -> bytes:
    """A request whose answer is not streamed, as an agent's shortest turn."""
    return _body(_outside(), max_tokens=SMALL_TOKENS)


def large() -> bytes:
    """The same with a prompt of 400 KB; it begins like the small one, so it is the same conversation as a new turn."""
    return _longer(small(), "Which time?", _SENTENCE * (LARGE_BYTES // len(_SENTENCE)))


def stream(tokens: int, pace_ms: float | None = None) -> bytes:
    """A request for a stream of so many tokens: as many events, one more that opens it, and `[DONE]`.

    The upstream reads its pace from the last message: every proxy sends that on.
    """
    body = _body(_outside(), max_tokens=tokens, stream=True)
    return body if pace_ms is None else _longer(body, "How fast?", f"pace={pace_ms:g}")


def _longer(body: bytes, *turns: str) -> bytes:
    """The same conversation with an assistant's turn and a user's after it."""
    value = orjson.loads(body)
    more = [{"role": role, "content": turn} for role, turn in zip(("assistant", "user"), turns, strict=True)]
    return orjson.dumps(value | {"messages": value["messages"] + more})


def injected(body: bytes) -> bytes:
    """The request as this proxy sends it on where the exchange is to be compared."""
    found = plan(Request(Dialect.CHAT, orjson.loads(body)), body, Level.FULL, _K)
    assert found is not None, "the bench's requests can be injected"
    return found.body


def write(path: Path, tokens: int) -> None:
    """Records everything; streams have `tokens` tokens (the upstream begins anew where a longer one is asked for)."""
    path.write_bytes(asyncio.run(_record(tokens)))


async def _record(tokens: int) -> bytes:
    # Without end tokens every token has a text: an injected stream has no event more than a plain one.
    async with (
        StandIn(model=MODEL, max_model_len=MAX_MODEL_LEN, ends=False) as engine,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session,
    ):
        root = engine.base_url.removesuffix("/v1")

        async def answer(method: str, target: str, body: bytes) -> tuple[int, bytes]:
            headers = {"content-type": "application/json"} if body else {}
            async with session.request(method, root + target, data=body or None, headers=headers) as response:
                return response.status, await response.read()

        async def ask(body: bytes) -> bytes:
            status, text = await answer("POST", CHAT, body)
            assert status == 200, text
            return text

        async with Engine(Endpoint("primary", engine.base_url)) as asked:
            await discover(asked, reference=False)
        parts = []
        for received in list(engine.received):
            method, target, body = received.method, received.path, received.body
            status, text = await answer(method, target, body)
            if status == 200:  # else the upstream lacks it as well
                parts.append(_part("exact", method, target, body, text))
        for kind, change in (("plain", bytes), ("injected", injected)):
            for name, body in (("whole", small()), ("large", large())):
                parts.append(_part(f"{name}.{kind}", "POST", CHAT, b"", await ask(change(body))))
            parts += _events(kind, await ask(change(stream(tokens))), tokens)
        return b"".join(parts)


def _events(kind: str, answer: bytes, tokens: int) -> Iterator[bytes]:
    payloads = [data for block in sse.Splitter().feed(answer) if (data := sse.data_of(block)) and data != sse.DONE]
    assert len(payloads) == tokens + 1, "an event for each token, and one that opens the stream"
    names = ["open", *["token"] * (tokens - 1), "finish"]
    for name, payload in zip(names, payloads, strict=True):
        yield _part(f"{name}.{kind}", "POST", CHAT, b"", payload)


def _part(kind: str, method: str, path: str, takes: bytes, gives: bytes) -> bytes:
    return f"{kind} {method} {path} {len(takes)} {len(gives)}\n".encode() + takes + gives
