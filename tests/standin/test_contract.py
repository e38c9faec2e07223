"""The stand-in against the real engine: the same requests, the same shapes.

A shape keeps keys and their order, JSON types, nulls, empty strings and what is an enumeration on the wire; texts,
ids, numbers and lengths are each engine's own. Streams are compared by choice, runs of one chunk shape as one.
"""

import asyncio
import itertools
import json
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from shadow.capabilities import cache_info
from tests.engine.fixtures import Engines
from tests.standin import Call, Script, StandIn

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER, "strict": True},
    }
]
SCRIPTS = (
    Script(when="Weather in Paris", calls=(Call("get_weather", '{"city": "Paris"}'),)),
    Script(text="The answer is four, and it is so in every house of this city, by day, by night and in between."),
)
INJECTED: dict[str, Any] = {"return_token_ids": True, "return_tokens_as_token_ids": True}
EOS_AT_ONCE: dict[str, Any] = {"logit_bias": {"2": 100}}  # <|im_end|> in both vocabularies


@dataclass(frozen=True)
class Case:
    """One request. `kinds`: compare which chunk shapes occur, not their order (it depends on the model's own text)."""

    name: str
    path: str
    body: Any = None
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    exact: bool = False
    kinds: bool = False

    @property
    def raw(self) -> bytes | None:
        if isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body).encode() if self.method == "POST" else None


def chat(text: str = "What is 2+2?", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 3} | fields


def text(prompt: Any = "The capital of France is", **fields: Any) -> dict[str, Any]:
    return {"model": "smollm2", "prompt": prompt, "temperature": 0, "max_tokens": 3} | fields


def weather(**fields: Any) -> dict[str, Any]:
    return chat("Weather in Paris?", max_tokens=60, tools=TOOLS, tool_choice="required") | fields


NAMED = {"type": "function", "function": {"name": "get_weather"}}
USAGE = {"include_usage": True}
BOTH_WAYS: list[tuple[str, str, dict[str, Any]]] = [
    ("chat", CHAT, chat()),
    ("chat-ids", CHAT, chat(return_token_ids=True)),
    ("chat-logprobs", CHAT, chat(logprobs=True, top_logprobs=2)),
    ("chat-logprobs-without-top", CHAT, chat(logprobs=True)),
    ("chat-injected", CHAT, chat(logprobs=True, top_logprobs=5, **INJECTED)),
    ("chat-n2", CHAT, chat(n=2, temperature=1, seed=1, return_token_ids=True)),
    ("chat-n2-greedy", CHAT, chat(n=2)),
    ("chat-eos-at-once", CHAT, chat(return_token_ids=True, **EOS_AT_ONCE)),
    ("chat-stop", CHAT, chat(max_tokens=30, stop=[" ", "a", "e", "2"])),
    ("chat-prompt-text", CHAT, chat(return_prompt_text=True)),
    ("chat-without-reasoning", CHAT, chat(include_reasoning=False, logprobs=True, return_token_ids=True)),
    ("tools-none", CHAT, chat(tools=TOOLS, tool_choice="none", return_token_ids=True)),
    ("tools-auto", CHAT, chat(tools=TOOLS)),
    ("tools-auto-injected", CHAT, chat(tools=TOOLS, logprobs=True, top_logprobs=2, return_token_ids=True)),
    ("tools-auto-eos-at-once", CHAT, chat(tools=TOOLS, **EOS_AT_ONCE)),
    ("tools-required", CHAT, weather()),
    ("tools-required-ids", CHAT, weather(return_token_ids=True)),
    ("tools-required-injected", CHAT, weather(logprobs=True, top_logprobs=5, **INJECTED)),
    ("tools-required-one-at-a-time", CHAT, weather(parallel_tool_calls=False)),
    ("tools-required-too-long", CHAT, weather(max_tokens=22)),
    ("tools-named", CHAT, weather(tool_choice=NAMED)),
    ("text", TEXT, text()),
    ("text-ids", TEXT, text(return_token_ids=True)),
    ("text-logprobs", TEXT, text(logprobs=2)),
    ("text-logprobs-0", TEXT, text(logprobs=0)),
    ("text-injected", TEXT, text(logprobs=5, **INJECTED)),
    ("text-n2", TEXT, text(n=2, temperature=1, seed=1, return_token_ids=True)),
    ("text-two-prompts", TEXT, text(["One two", "Red blue"], return_token_ids=True)),
    ("text-ids-in", TEXT, text([11, 12, 13], return_token_ids=True)),
    ("text-two-prompts-of-ids", TEXT, text([[11, 12, 13], [14, 15]])),
    ("text-eos-at-once", TEXT, text(return_token_ids=True, logprobs=1, **EOS_AT_ONCE)),
    ("text-echo", TEXT, text(echo=True)),
    ("text-echo-logprobs", TEXT, text(echo=True, logprobs=1, return_token_ids=True)),
]
STREAMED = [
    Case("chat-usage", CHAT, chat(stream=True, stream_options=USAGE)),
    Case("chat-usage-always", CHAT, chat(stream=True, stream_options=USAGE | {"continuous_usage_stats": True})),
    Case("tools-required-usage", CHAT, weather(stream=True, stream_options=USAGE)),
    Case("text-usage", TEXT, text(stream=True, stream_options=USAGE)),
    Case("text-usage-always", TEXT, text(stream=True, stream_options=USAGE | {"continuous_usage_stats": True})),
]
WHOLE = [
    Case("chat-ids-in", CHAT, chat(return_token_ids=True, kv_transfer_params={"prompt_token_ids": [11, 12, 13]})),
    Case("chat-prompt-logprobs", CHAT, chat("a", prompt_logprobs=1)),
    Case("max-tokens-as-many-as-all", TEXT, text([100] * 4095, max_tokens=4096)),
    Case("text-prompt-logprobs", TEXT, text([11, 12, 13, 14], max_tokens=1, prompt_logprobs=2)),
    Case("text-bias", TEXT, text(max_tokens=1, logprobs=3, logit_bias={"100": 100}, return_tokens_as_token_ids=True)),
    Case("chat-stop-id", CHAT, chat(stop_token_ids=[100], logit_bias={"100": 100}, return_token_ids=True)),
]
ERRORS = [
    Case("unknown-model", CHAT, chat() | {"model": "nope"}),
    Case("unknown-model-text", TEXT, text() | {"model": "nope"}),
    Case("bad-json", CHAT, b'{"model": "smollm2", '),
    Case("bad-json-text", TEXT, b"nope"),
    Case("bad-utf-8", CHAT, b'{"model":"\xff"}'),
    Case("an-array", CHAT, b"[1]"),
    Case("no-body", CHAT, b""),
    Case("no-messages", CHAT, {"model": "smollm2"}),
    Case("messages-a-string", CHAT, chat(messages="hi")),
    Case("messages-empty", CHAT, chat(messages=[])),
    Case("no-prompt", TEXT, {"model": "smollm2"}),
    Case("empty-prompt", TEXT, text("")),
    Case("empty-ids", TEXT, text([])),
    Case("id-out-of-vocabulary", TEXT, text([999999])),
    Case("tools-empty", CHAT, chat(tools=[])),
    Case("required-without-tools", CHAT, chat(tool_choice="required")),
    Case("tool-choice-unknown", CHAT, chat(tools=TOOLS, tool_choice="sometimes")),
    Case("named-tool-unknown", CHAT, chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "z"}})),
    Case("max-tokens-0", CHAT, chat(max_tokens=0)),
    Case("max-tokens-negative-text", TEXT, text(max_tokens=-1)),
    Case("max-tokens-more-than-all", CHAT, chat(max_tokens=4097)),
    Case("max-tokens-more-than-all-newer", CHAT, chat(max_completion_tokens=4097)),
    Case("max-tokens-more-than-all-text", TEXT, text(max_tokens=4097)),
    Case("max-tokens-word", CHAT, chat(max_tokens="many")),
    Case("max-tokens-fraction", CHAT, chat(max_tokens=1.5)),
    Case("logprobs-21", CHAT, chat(logprobs=True, top_logprobs=21)),
    Case("logprobs-21-text", TEXT, text(logprobs=21)),
    Case("logprobs-negative-text", TEXT, text(logprobs=-2)),
    Case("prompt-logprobs-21", TEXT, text(prompt_logprobs=21)),
    Case("prompt-logprobs-streamed", TEXT, text(prompt_logprobs=1, stream=True)),
    Case("top-logprobs-alone", CHAT, chat(top_logprobs=2)),
    Case("stream-options-alone", CHAT, chat(stream_options=USAGE)),
    Case("stream-word", CHAT, chat(stream="maybe")),
    Case("temperature-negative", CHAT, chat(temperature=-1)),
    Case("n-0", CHAT, chat(n=0)),
    Case("bias-no-id", TEXT, text(logit_bias={"x": 100})),
    Case("too-long", TEXT, text([100] * 4097)),
    Case("as-long-as-the-context", TEXT, text([100] * 4096)),
    Case("too-long-ids-on-chat", CHAT, chat(kv_transfer_params={"prompt_token_ids": [5] * 4100})),
    Case("no-ids-on-chat", CHAT, chat(kv_transfer_params={"prompt_token_ids": []})),
    Case("stops-too-many", CHAT, chat(stop=["a", "b", "c", "d", "e"])),
    Case("two-mistakes", CHAT, chat(max_tokens=0, n=0, top_logprobs=2) | {"model": "nope"}),
    Case("two-mistakes-in-sampling", CHAT, chat(n=2, logprobs=True, top_logprobs=50, temperature=-1)),
    Case("content-type", CHAT, json.dumps(chat()).encode(), headers=(("content-type", "text/plain"),)),
    Case("no-such-path", "/v1/nothing", {}),
    Case("no-such-method", CHAT, None, method="GET"),
    Case("tokenize-unknown-model", "/tokenize", {"model": "nope", "prompt": "a"}),
    Case("tokenize-nothing", "/tokenize", {"model": "smollm2"}),
    Case("detokenize-nothing", "/detokenize", {"model": "smollm2"}),
    Case("detokenize-a-word", "/detokenize", {"model": "smollm2", "tokens": "x"}),
]
MESSAGES = [{"role": "user", "content": "Hi"}]
GENERATED = {"request_id": "counterproof", "choices": [{"index": 0, "token_ids": [11, 12, 2], "finish_reason": "stop"}]}
OTHERS = [
    Case("tokenize", "/tokenize", {"model": "smollm2", "prompt": "Hello world", "add_special_tokens": False}),
    Case("tokenize-strings", "/tokenize", {"model": "smollm2", "prompt": "Hello", "return_token_strs": True}),
    Case("tokenize-messages", "/tokenize", {"model": "smollm2", "messages": MESSAGES, "tools": TOOLS}),
    Case("detokenize", "/detokenize", {"model": "smollm2", "tokens": [11, 12, 2]}),
    Case("render", f"{CHAT}/render", {"model": "smollm2", "messages": MESSAGES}),
    Case("render-greedy", f"{CHAT}/render", chat()),
    Case("derender", f"{CHAT}/derender",
         {"model": "smollm2", "generate_response": GENERATED, "prompt_tokens": 1,
          "chat_request": {"model": "smollm2", "messages": MESSAGES}}),
    Case("models", "/v1/models", method="GET"),
    Case("version", "/version", method="GET"),
    Case("health", "/health", method="GET"),
]  # fmt: skip
CASES = [
    *(Case(name, path, body) for name, path, body in BOTH_WAYS),
    *(Case(f"{name}-streamed", path, body | {"stream": True}, kinds=name.startswith("tools-required"))
      for name, path, body in BOTH_WAYS),
    *STREAMED, *WHOLE, *OTHERS,
    *(Case(**(vars(case) | {"exact": True})) for case in ERRORS),
]  # fmt: skip


# --- asking both ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str | None
    body: bytes


async def ask(session: aiohttp.ClientSession, root: str, case: Case) -> Answer:
    url, headers = root + case.path, dict(case.headers)
    async with session.request(case.method, url, data=case.raw, headers=headers) as response:
        return Answer(response.status, response.headers.get("content-type"), await response.read())


async def ask_both(real: str, case: Case, *, scale_out: bool = True) -> tuple[Answer, Answer]:
    async with (
        aiohttp.ClientSession() as session,
        StandIn(SCRIPTS, ends=False, scale_out=scale_out) as engine,
    ):
        return await ask(session, real, case), await ask(session, engine.base_url.removesuffix("/v1"), case)


# --- shapes -----------------------------------------------------------------------------------------------------------

WORDS = {"object", "finish_reason", "role", "type", "param", "code", "owned_by", "output_mode", "version"}
"""Keys whose values are part of the contract."""
COUNTED = {"choices", "tool_calls", "data"}
"""Lists whose length is."""


def shape(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        if key in {"prompt_logprobs", "top_logprobs"} and "token" not in value:  # keyed by tokens
            return ("by token", *sorted({str(shape(entry)) for entry in value.values()}))
        return {name: shape(entry, name) for name, entry in value.items()}
    if isinstance(value, list):
        shapes = [shape(entry, key) for entry in value]
        return shapes if key in COUNTED else collapsed(shapes)
    if key in WORDS or value is None:
        return value
    return "empty string" if value == "" else type(value).__name__


def collapsed(shapes: list[Any]) -> list[Any]:
    return [written for written, _run in itertools.groupby(shapes, key=json.dumps)]


def events(body: bytes) -> list[Any]:
    blocks = body.split(b"\n\n")
    assert blocks.pop() == b""
    assert all(block.startswith(b"data: ") and b"\n" not in block for block in blocks)
    return ["[DONE]" if block == b"data: [DONE]" else json.loads(block[6:]) for block in blocks]


def stream_shape(body: bytes, *, kinds: bool) -> dict[str, Any]:
    """The chunk shapes of each choice in their order; of the first ones and the last, where `kinds`, as a set."""
    by_choice: dict[str, list[str]] = {}
    for event in events(body):
        choices = event["choices"] if isinstance(event, dict) else ()
        key = str(choices[0]["index"]) if choices else "end"
        by_choice.setdefault(key, []).append(json.dumps(shape(event)))
    found: dict[str, Any] = {}
    for key, shapes in by_choice.items():
        runs = [one for one, _run in itertools.groupby(shapes)]
        found[key] = [runs[0], sorted(set(runs)), runs[-1]] if kinds else runs
    return found


def shape_of(answer: Answer, case: Case) -> Any:
    if answer.content_type and answer.content_type.startswith("text/event-stream"):
        return stream_shape(answer.body, kinds=case.kinds)
    if not answer.body:
        return "no body"
    return json.loads(answer.body) if case.exact else json.dumps(shape(json.loads(answer.body)), indent=1)


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_stand_in_answers_as_the_real_engine_does(engines: Engines, case: Case) -> None:
    real, played = asyncio.run(ask_both(engines.reference.root_url, case))
    assert (played.status, played.content_type) == (real.status, real.content_type)
    assert shape_of(played, case) == shape_of(real, case)
    if case.exact:
        assert real.status >= 400


@pytest.mark.engine
@pytest.mark.parametrize("route", ["render", "derender"])
def test_without_scale_out_both_refuse_to_render(engines: Engines, route: str) -> None:
    case = Case(route, f"{CHAT}/{route}", chat(), exact=True)
    real, played = asyncio.run(ask_both(engines.primary.root_url, case, scale_out=False))
    assert (played.status, played.content_type) == (real.status, real.content_type) == (403, "application/json")
    assert shape_of(played, case) == shape_of(real, case)


@pytest.mark.engine
def test_the_metrics_that_are_read_are_written_alike(engines: Engines) -> None:
    real, played = asyncio.run(ask_both(engines.reference.root_url, Case("metrics", "/metrics", method="GET")))
    assert (played.status, played.content_type) == (real.status, real.content_type)
    infos = [cache_info(answer.body.decode()) for answer in (real, played)]
    assert infos[1].keys() <= infos[0].keys()
    assert {key: infos[0][key] for key in infos[1]} == infos[1]
    lines = real.body.decode().splitlines()
    assert all(line in lines for line in played.body.decode().splitlines() if "cache_config_info{" not in line)
