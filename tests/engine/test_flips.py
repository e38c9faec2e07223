"""Flips recomputed straight from the two engines, with none of the project's comparison code."""

import asyncio
import json
import math
from typing import Any

import httpx2
import pytest

from proxy.demo.workload import router
from shadow.engine import Endpoint, Engine
from tests.engine.fixtures import Engines, ObservingProxy

QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Name three primary colours.",
    "Explain gravity to a child in one sentence.",
    "What does DNS stand for?",
    "Give me a short recipe for tea.",
    "Why is the sky blue?",
    "What is 12 times 12?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Hamlet?",
    "What is an IP address?",
    "List two programming languages.",
    "What is the boiling point of water?",
    "Say something about owls.",
    "How many days has a leap year?",
    "What is a router?",
    "Describe winter in five words.",
    "What is the plural of mouse?",
)
TOKENS = 16


def _requests() -> list[dict[str, Any]]:
    scenario = router()
    chats = [{"messages": [{"role": "user", "content": question}]} for question in QUESTIONS]
    agent = {"messages": scenario["messages"], "tools": scenario["tools"]}
    sampled = {"messages": chats[0]["messages"], "temperature": 1.0, "seed": 3}
    common = {"model": "smollm2", "max_tokens": TOKENS, "temperature": 0}
    return [common | fields for fields in (*chats, agent, sampled)]


@pytest.fixture(scope="module")
def judged(proxy: ObservingProxy, engines: Engines) -> list[dict[str, Any]]:
    """20 free exchanges through the proxy, streamed every other time, with what the ledger says of each.

    Each is asked directly first: a cached prefix is computed in other shapes than a cold one, and bf16 shows it.
    """
    with httpx2.Client(timeout=300, trust_env=False) as client:
        ids = []
        for i, body in enumerate(_requests()):
            client.post(f"{engines.primary.base_url}/chat/completions", json=body | {"max_tokens": 1})
            answer = client.post(f"{proxy.process.base_url}/chat/completions", json=body | {"stream": bool(i % 2)})
            assert answer.status_code == 200
            ids.append(answer.headers["x-counterproof-id"])
    return [proxy.judged(exchange) for exchange in ids]


def test_the_same_flips_are_found_without_the_projects_code(judged: list[dict[str, Any]], engines: Engines) -> None:
    assert len(judged) == 20
    found = 0
    for record in judged:
        choice = record["choices"][0]
        prompt, output = choice["prompt_ids"], choice["token_ids"]
        assert len(output) > 1
        primary = winners_by_replay(engines.primary.base_url, record["request"], prompt, output)
        reference = winners_by_prompt_logprobs(engines.reference.base_url, prompt, output)
        expected = [i for i in range(len(output)) if not primary[i] & reference[i]]
        positions = record["examinations"][0]["choices"][0]["positions"]
        assert [p["index"] for p in positions] == list(range(len(output)))
        assert [p["index"] for p in positions if p["outcome"] == "flip"] == expected
        assert {p["outcome"] for p in positions} <= {"same", "flip"}
        found += len(expected)
    assert found > 0, "two precisions agreed on every token of twenty answers: something compares nothing"


def test_margins_are_the_references_own(judged: list[dict[str, Any]], engines: Engines) -> None:
    seen = 0
    for record in judged:
        choice = record["choices"][0]
        rows = prompt_logprobs(engines.reference.base_url, choice["prompt_ids"], choice["token_ids"])
        for position in record["examinations"][0]["choices"][0]["positions"]:
            if position["outcome"] != "flip" or position["margin_is_bound"]:
                continue
            row = rows[position["index"]]
            best = max(entry["logprob"] for entry in row.values())
            margin = best - row[str(position["primary_winner"])]["logprob"]
            assert math.isclose(position["margin"], margin, abs_tol=1e-6)
            assert position["clarity"] == ("near_tie" if margin < 0.1 else "confident")
            seen += 1
    assert seen > 0


def winners_by_replay(base_url: str, request: dict[str, Any], prompt: list[int], output: list[int]) -> list[set[int]]:
    """The primary's winners, read off the same request asked again directly, with its logprobs told."""
    asked = {"logprobs": True, "top_logprobs": 5, "return_tokens_as_token_ids": True, "return_token_ids": True}
    body = request | asked | {"stream": False}
    answer = httpx2.post(f"{base_url}/chat/completions", json=body, timeout=300, trust_env=False).json()
    choice = answer["choices"][0]
    assert answer["prompt_token_ids"] == prompt
    assert choice["token_ids"] == output
    result = []
    for entry in choice["logprobs"]["content"]:
        listed = [(int(top["token"].removeprefix("token_id:")), top["logprob"]) for top in entry["top_logprobs"]]
        best = max(logprob for _token, logprob in listed)
        result.append({token for token, logprob in listed if logprob == best})
    return result


def prompt_logprobs(base_url: str, prompt: list[int], output: list[int]) -> list[dict[str, Any]]:
    body = {"model": "smollm2", "prompt": prompt + output, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 5}
    answer = httpx2.post(f"{base_url}/completions", json=body, timeout=300, trust_env=False)
    rows = json.loads(answer.content)["choices"][0]["prompt_logprobs"]
    return list(rows[len(prompt) :])


def winners_by_prompt_logprobs(base_url: str, prompt: list[int], output: list[int]) -> list[set[int]]:
    result = []
    for row in prompt_logprobs(base_url, prompt, output):
        best = max(entry["logprob"] for entry in row.values())
        result.append({int(token) for token, entry in row.items() if entry["logprob"] == best})
    return result


def test_probe_and_score_agree(judged: list[dict[str, Any]], engines: Engines) -> None:
    """One claim per engine and way of asking; on the CPU both have the same numbers."""

    async def both() -> None:
        async with Engine(Endpoint("reference", engines.reference.base_url, "smollm2", timeout=300)) as engine:
            for record in judged:
                choice = record["choices"][0]
                prompt, output = choice["prompt_ids"], choice["token_ids"]
                scored = await engine.score(prompt, output)
                probed = await engine.probe(prompt, output)
                assert len(scored) == len(probed) == len(output)
                for row in range(len(output)):
                    left = dict(zip(scored.ids[row].tolist(), scored.logprobs[row].tolist(), strict=True))
                    right = dict(zip(probed.ids[row].tolist(), probed.logprobs[row].tolist(), strict=True))
                    left_best, right_best = max(left.values()), max(right.values())
                    assert math.isclose(left_best, right_best, abs_tol=1e-3)
                    winners = {token for token, logprob in left.items() if logprob == left_best}
                    assert winners & {token for token, logprob in right.items() if logprob == right_best}

    asyncio.run(both())
