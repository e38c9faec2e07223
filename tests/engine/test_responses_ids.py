"""Responses on a real engine: the ids that they tell when asked, what is compared on them, and what clients see."""

import asyncio
import json
import re
from typing import Any

import httpx2
import pytest

from proxy.demo.workload import router
from shadow.capabilities import Capabilities, discover
from shadow.engine import Endpoint, Engine
from shadow.exchange import Dialect
from shadow.wire import answers, responses_answer, sse
from tests.engine.fixtures import Engines, ObservingProxy
from tests.engine.test_dialects import as_response

SHORT = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "Name three colours, please."},
]
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
GREEDY = {"temperature": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
_RANDOM = re.compile(rb'"(?:chatcmpl|resp|msg|fc|rs|call)[-_][^"]*"')
_CREATED = re.compile(rb'"(created_at|completed_at)":[\d.]+')
_CACHED = re.compile(rb'"cached_tokens":\d+')


def post(base_url: str, body: dict[str, Any], path: str = "/responses") -> httpx2.Response:
    return httpx2.post(base_url + path, json={"model": "smollm2"} | body, timeout=300, trust_env=False)


@pytest.mark.parametrize("strict", [False, True], ids=["plain", "strict"])
@pytest.mark.parametrize("choice", ["auto", "required", "named"])
def test_a_chat_request_in_its_place_has_the_same_prompt_grammar_and_tokens(
    engines: Engines, choice: str, *, strict: bool
) -> None:
    """What `continue` rests on: a reference goes on with a response by its chat route."""
    function = WEATHER | {"strict": strict}
    named = {"type": "function", "name": WEATHER["name"]}
    asked = {"role": "user", "content": "What is the weather in Paris? Use the tool."}
    sent: dict[str, Any] = {"input": [SHORT[0], asked]}
    sent |= {"tools": [{"type": "function"} | function], "tool_choice": named if choice == "named" else choice}
    sent |= {"temperature": 0, "max_output_tokens": 50}
    chat = {"messages": sent["input"], "tools": [{"type": "function", "function": function}], "tool_choice": choice}
    if choice == "named":
        chat["tool_choice"] = {"type": "function", "function": {"name": WEATHER["name"]}}
    told = {"return_token_ids": True, "temperature": 0, "max_tokens": 50}
    for engine in engines:
        ours = post(engine.base_url, sent | {"enable_response_messages": True})
        theirs = post(engine.base_url, chat | told, "/chat/completions")
        ours_choice = responses_answer.read(ours.content, stream=False).choices[0]
        theirs_choice = answers.read(Dialect.CHAT, theirs.content, stream=False).choices[0]
        assert ours_choice.prompt_ids == theirs_choice.prompt_ids != ()
        assert ours_choice.token_ids == theirs_choice.token_ids != ()
        assert [call.arguments for call in ours_choice.calls] == [call.arguments for call in theirs_choice.calls]


def test_an_engine_as_it_is_started_keeps_no_responses(engines: Engines) -> None:
    async def main() -> Capabilities:
        async with Engine(Endpoint("primary", engines.primary.base_url)) as engine:
            return await discover(engine, reference=False)

    assert asyncio.run(main()).keeps_responses is False


def test_a_text_is_scored_on_the_primarys_own_tokens(engines: Engines, proxy: ObservingProxy) -> None:
    body = {"input": SHORT, "max_output_tokens": 20, **GREEDY}
    through = post(proxy.process.base_url, body)
    record = proxy.judged(through.headers["x-counterproof-id"])
    direct = post(engines.primary.base_url, body | {"enable_response_messages": True}).json()
    choice = record["choices"][0]
    assert choice["prompt_ids"] == direct["input_messages"][0]["tokens"]
    assert choice["token_ids"] == direct["output_messages"][0]["tokens"]
    (examination,) = record["examinations"]
    assert (examination["outcome"], examination["choices"][0]["ways"]) == ("compared", ["score"])
    positions = examination["choices"][0]["positions"]
    assert len(positions) == len(choice["token_ids"])
    # No logprobs are told: with everything named that could bend it, a greedy choice is the winner.
    assert {position["basis"] for position in positions} == {"emitted"}
    assert "same" in {position["outcome"] for position in positions}


def test_without_its_penalties_named_nothing_is_taken_for_a_winner(proxy: ObservingProxy) -> None:
    through = post(proxy.process.base_url, {"input": SHORT, "max_output_tokens": 8, "temperature": 0})
    (examination,) = proxy.judged(through.headers["x-counterproof-id"])["examinations"]
    positions = examination["choices"][0]["positions"]
    assert {(position["basis"], position["outcome"]) for position in positions} == {("sampled", "excluded")}
    assert all(position["reference_logprob"] is not None for position in positions)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_call_is_gone_on_with_from_the_primarys_history(proxy: ObservingProxy, *, stream: bool) -> None:
    scenario = router()
    body = as_response({"model": "smollm2", "messages": scenario["messages"], "tools": scenario["tools_strict"]})
    through = post(proxy.process.base_url, body | {"stream": stream})
    assert responses_answer.read(through.content, stream=stream).choices[0].calls
    (examination,) = proxy.judged(through.headers["x-counterproof-id"])["examinations"]
    (report,) = examination["choices"]
    assert (examination["outcome"], report["ways"]) == ("compared", ["score", "continue"])
    assert {finding["word"] for finding in report["findings"]} <= {"match", "mismatch"}


CASES: dict[str, dict[str, Any]] = {
    "a text": {"input": SHORT},
    "a text for its own sake": {"input": "Name three colours.", "store": False, "metadata": {"a": "b"}},
    "a required call": {
        "input": "What is the weather in Paris?",
        "tools": [{"type": "function", "strict": True} | WEATHER],
        "tool_choice": "required",
        "max_output_tokens": 50,
    },
    "raw messages that the client asked for": {"input": SHORT, "enable_response_messages": True},
    "raw messages that the client wants none of": {"input": SHORT, "enable_response_messages": False},
    "logprobs": {"input": SHORT, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "a stop": {"input": SHORT, "stop": [","]},
    "an unknown model": {"input": SHORT, "model": "nobody"},
    "no input": {"temperature": 0},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", CASES)
def test_a_client_sees_nothing_of_it(name: str, engines: Engines, proxy: ObservingProxy, *, stream: bool) -> None:
    body = {"temperature": 0, "max_output_tokens": 12} | CASES[name] | {"stream": stream}
    post(engines.primary.base_url, body)  # warms
    direct, again = (post(engines.primary.base_url, body) for _ in range(2))
    assert comparable(direct) == comparable(again), "the engine does not repeat itself"
    through = post(proxy.process.base_url, body)
    assert comparable(through) == comparable(direct)
    ours = {"x-counterproof-id", "x-counterproof-mode", "date", "content-length"}
    assert through.headers.keys() - ours == direct.headers.keys() - ours
    assert through.headers["content-type"] == direct.headers["content-type"]


def comparable(response: httpx2.Response) -> tuple[int, Any]:
    """An answer without its random ids and times; of a stream all that it says, but not how it was cut into deltas."""
    body = _CACHED.sub(b'"cached_tokens":0', _CREATED.sub(rb'"\1":0', _RANDOM.sub(b'"id"', response.content)))
    if not response.headers["content-type"].startswith("text/event-stream"):
        return response.status_code, body  # byte for byte
    told: list[Any] = []
    for block in sse.Splitter().feed(body):
        payload = sse.data_of(block)
        event = payload if payload is None or payload.strip() == sse.DONE else json.loads(payload)
        if not isinstance(event, dict):
            told.append(block)
            continue
        del event["sequence_number"]
        if told and isinstance(told[-1], dict) and "delta" in event and _about(told[-1]) == _about(event):
            told[-1]["delta"] += event["delta"]
            told[-1].setdefault("logprobs", []).extend(event.get("logprobs") or [])
        else:
            told.append(event)
    return response.status_code, told


def _about(event: dict[str, Any]) -> Any:
    return {key: value for key, value in event.items() if key not in {"delta", "logprobs"}}
