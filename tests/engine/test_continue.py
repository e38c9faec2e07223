"""`continue` from a call's first token, on a built history with text before the call, parsed by the engine itself."""

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from proxy.demo.workload import router
from shadow.capabilities import discover
from shadow.engine import Endpoint, Engine
from shadow.examine import examine
from shadow.exchange import Answer, Choice, Dialect, Exchange, Request, Timings
from shadow.regions import CallStart, call_start
from shadow.wire import answers
from tests.engine.counters import total
from tests.engine.fixtures import Engines
from validators import parse_arguments

LEAD = "I will look it up.\n"


@dataclass(frozen=True)
class Built:
    """A history as if the primary had written a sentence before its call."""

    request: Request
    choice: Choice
    lead_ids: tuple[int, ...]

    @property
    def prompt(self) -> tuple[int, ...]:
        assert self.choice.prompt_ids is not None
        return self.choice.prompt_ids

    @property
    def output(self) -> tuple[int, ...]:
        assert self.choice.token_ids is not None
        return self.choice.token_ids


@pytest.fixture(scope="module", params=["tools", "tools_strict"])
def built(request: pytest.FixtureRequest, engines: Engines) -> Built:
    scenario = router()
    body: dict[str, Any] = {
        "model": "smollm2",
        "messages": scenario["messages"],
        "tools": scenario[request.param],
        "tool_choice": "required",
        "temperature": 0,
        "max_tokens": 90,
    }
    told = {"return_token_ids": True, "logprobs": True, "top_logprobs": 5, "return_tokens_as_token_ids": True}
    with httpx2.Client(timeout=300, trust_env=False) as client:
        raw = client.post(f"{engines.primary.base_url}/chat/completions", json=body | told).content
        tokenized = client.post(
            f"{engines.primary.root_url}/tokenize",
            json={"model": "smollm2", "prompt": LEAD, "add_special_tokens": False},
        ).json()["tokens"]
        texts = [
            client.post(f"{engines.primary.root_url}/detokenize", json={"model": "smollm2", "tokens": [token]})
            .json()["prompt"]
            .encode()
            for token in tokenized
        ]
    choice = answers.read(Dialect.CHAT, raw, stream=False).choices[0]
    assert choice.calls
    assert choice.token_ids is not None
    assert choice.token_bytes is not None
    assert b"".join(texts) == LEAD.encode()
    choice.token_ids = (*tokenized, *choice.token_ids)
    choice.token_bytes = (*texts, *choice.token_bytes)
    choice.top = choice.emitted_wins = None  # the primary did not write the sentence itself
    choice.content = choice.lead = LEAD
    return Built(Request(Dialect.CHAT, body), choice, tuple(tokenized))


def hits(root_url: str) -> float:
    return total(root_url, "vllm:prefix_cache_hits_total")


def test_the_call_starts_after_the_sentence(built: Built) -> None:
    assert call_start(built.choice) == CallStart(len(built.lead_ids), exact=True)


def test_the_engine_answers_with_its_own_call_streamed_and_not(built: Built, engines: Engines) -> None:
    start = len(built.lead_ids)
    history = (*built.prompt, *built.output[:start])

    async def ask() -> list[Choice]:
        async with Engine(Endpoint("reference", engines.reference.base_url, "smollm2", timeout=300)) as engine:
            return [
                await engine.go_on(
                    built.request, history, used=start, expected=len(built.output) - start, stream=stream
                )
                for stream in (False, True, False)
            ]

    before = hits(engines.reference.root_url)
    whole, streamed, again = asyncio.run(ask())
    for choice in (whole, streamed, again):
        assert choice.prompt_ids == history
        assert [call.name for call in choice.calls] == ["run_command"]
        assert parse_arguments(choice.calls[0].arguments).problem is None
        assert not choice.content.strip(), "the marker was not parsed: the history ended inside it, or before it"
    assert whole.token_ids == streamed.token_ids == again.token_ids
    assert whole.calls[0].arguments == streamed.calls[0].arguments
    # The second and third read the history from the prefix cache, but for its last blocks.
    assert hits(engines.reference.root_url) - before >= 2 * (len(history) - 2 * 32)


def test_examined_as_a_whole_it_is_judged_on_that_history(built: Built, engines: Engines) -> None:
    exchange = Exchange(
        "cp-built", built.request, Answer({0: built.choice}), 200, 0.0, Timings(0.0, 0.0, 0.0), "conversation"
    )

    async def look() -> Any:
        async with (
            Engine(Endpoint("primary", engines.primary.base_url, timeout=300)) as primary,
            Engine(Endpoint("reference", engines.reference.base_url, timeout=300)) as reference,
        ):
            ours, theirs = await discover(primary, reference=False), await discover(reference)
            return await examine(exchange, reference, theirs, ours)

    result = asyncio.run(look())
    report = result.choices[0]
    assert result.outcome == "compared"
    assert report.start == CallStart(len(built.lead_ids), exact=True)
    assert report.ways == ["score", "continue"]
    assert [call.name for call in report.reference_calls] == ["run_command"]
    assert len(report.findings) == 1
    assert report.findings[0].word in {"match", "mismatch"}
    assert {p.region.value for p in report.positions[: len(built.lead_ids)]} == {"text"}
    assert {p.region.value for p in report.positions[len(built.lead_ids) :]} == {"tool_call"}
