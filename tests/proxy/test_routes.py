"""Several primaries behind one door, by the request's model."""

import asyncio
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from proxy.routes import model_of
from tests.proxy.serving import Proxy, proxy
from tests.secrets import secret
from tests.standin import Script, StandIn
from tests.standin.asking_it import TOOLS, chat

pytestmark = pytest.mark.slow

LARGE, SMALL = Script(text="I am the large one."), Script(text="I am the small one.")


def route(model: str, engine: StandIn, *shadows: StandIn, **primary: Any) -> dict[str, Any]:
    listed = [{"name": f"{model.strip('*')}-ref{i}", "base_url": s.base_url} for i, s in enumerate(shadows)]
    return {"model": model, "primary": {"base_url": engine.base_url} | primary, "shadows": listed}


async def said(door: Proxy, model: str, **fields: Any) -> str:
    status, body, _ = await door.chat(chat(model=model) | fields)
    assert status == 200, body
    text: str = json.loads(body)["choices"][0]["message"]["content"]
    return text


def test_requests_go_to_the_primary_of_their_model_with_its_key_and_its_shadows(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([LARGE]) as large, StandIn([SMALL], model="small-1") as small:
            async with StandIn([LARGE]) as large_ref, StandIn([SMALL], model="small-1") as small_ref:
                routes = [route("small*", small, small_ref, api_key=secret("small")), route("sm*", large)]
                async with proxy(tmp_path, large, large_ref, routes=routes) as door:
                    assert await said(door, "smollm2", tools=TOOLS) == LARGE.text
                    assert await said(door, "small-1", tools=TOOLS) == SMALL.text
                    assert small.received[-1].header("authorization") == f"Bearer {secret('small')}"
                    assert large.received[-1].header("authorization") is None
                    await door.settled()
                    # The second rule takes smollm2, and has no shadow: only the first one's is asked.
                    assert await door.outcomes() == {("small-ref0", "compared", ""): 1}
                    assert not [r for r in large_ref.received if b"Hello" in r.body]

    asyncio.run(main())


def test_other_paths_go_by_the_model_too_where_they_name_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([LARGE]) as large, StandIn([SMALL], model="small-1") as small:
            async with proxy(tmp_path, large, routes=[route("small*", small)]) as door:
                asked = {"model": "small-1", "prompt": "Hello"}
                async with door.session.post(f"{door.root}/tokenize", json=asked) as response:
                    assert response.status == 200
                assert small.received[-1].path == "/tokenize"
                async with door.session.get(f"{door.root}/v1/models/small-1"):
                    assert small.received[-1].path == "/v1/models/small-1"
                async with door.session.get(f"{door.root}/v1/models") as response:
                    assert (await response.json())["data"][0]["id"] == "smollm2"
                async with door.session.post(f"{door.root}/v1/chat/completions", data=b"not json") as response:
                    assert response.status == 400
                assert large.received[-1].body == b"not json"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model": "a"}', "a"),
        (b'{"model": 1}', ""),
        (b'["model"]', ""),
        (b"", ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
        (b'{"other": ' + b"[" * 100_000, ""),
        (b'{"messages": [{"model": "no"}], "model": "a", "n": {}}', "a"),
        (b'{"model": "a", "model": "b"}', "b"),
        (b'{"model": "\\u0061\\n"}', "a\n"),
        (b'{"model": ["a"]}', ""),
        (b'{"model": null}', ""),
        (b'{"model": "a"', ""),
        (b'{"model": "\xff"}', ""),
        (b"{}", ""),
    ],
)
def test_the_model_that_a_body_names(body: bytes, model: str) -> None:
    assert model_of(body) == model


def test_to_know_a_model_nothing_else_is_made_of_a_body() -> None:
    body = b'{"messages": [' + b",".join([b'{"a": []}'] * 10_000) + b'], "model": "a"}'
    tracemalloc.start()
    try:
        assert model_of(body) == "a"
        assert tracemalloc.get_traced_memory()[1] < 100_000, "ten thousand objects take a megabyte"
    finally:
        tracemalloc.stop()
