"""Through the proxy and directly: the same tokens, equal JSON, all that events say. Ids and timestamps aside.

Direct is compared with direct first: what an engine itself does not repeat cannot be asked of a proxy. Each request
is warmed once, since a cached prefix is computed in other shapes than a cold one.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from proxy.demo.workload import router
from tests.engine.fixtures import Engines, ObservingProxy

_RANDOM = re.compile(rb'"(?:chatcmpl|cmpl|modelperm)-[^"]*"')
_CREATED = re.compile(rb'"created":\d+')

Body = dict[str, Any]


@dataclass(frozen=True)
class Case:
    name: str
    path: str
    body: Body


def _cases() -> list[Case]:
    scenario = router()
    messages, tools, strict = scenario["messages"], scenario["tools"], scenario["tools_strict"]
    short = [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "Name three colours, please."},
    ]
    emoji = [{"role": "user", "content": "Repeat this: 数据 👩‍💻 café"}]
    greedy, sampled = {"temperature": 0}, {"temperature": 0.9, "seed": 11}
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    as_json = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": schema, "strict": True}}
    }
    chat: dict[str, Body] = {
        "greedy": {"messages": short, **greedy},
        "sampled": {"messages": short, **sampled},
        "unset sampling fields": {"messages": short, "seed": 5},
        "other scripts": {"messages": emoji, **greedy},
        "two choices": {"messages": short, **sampled, "n": 2},
        "a stop string": {"messages": short, **greedy, "stop": ["\n", ","]},
        "penalty": {"messages": short, **greedy, "repetition_penalty": 1.3},
        "client's logprobs": {"messages": short, **greedy, "logprobs": True, "top_logprobs": 3},
        "client's logprobs, none listed": {"messages": short, **sampled, "logprobs": True},
        "client's ids": {"messages": short, **greedy, "return_token_ids": True},
        "client's ids and logprobs": {
            "messages": short, **sampled, "return_token_ids": True, "logprobs": True, "top_logprobs": 2,
            "return_tokens_as_token_ids": True,
        },
        "json schema": {"messages": short, **greedy, **as_json, "max_tokens": 20},
        "tools, auto": {"messages": messages, "tools": tools, **greedy, "max_tokens": 20},
        "tools, none": {"messages": messages, "tools": tools, "tool_choice": "none", **greedy},
        "tools, required": {
            "messages": messages, "tools": tools, "tool_choice": "required", **greedy, "max_tokens": 90,
        },
        "tools, strict, sampled": {
            "messages": messages, "tools": strict, "tool_choice": "required", **sampled, "max_tokens": 90,
        },
        "tools, required, client's ids": {
            "messages": messages, "tools": strict, "tool_choice": "required", **greedy, "max_tokens": 90,
            "return_token_ids": True,
        },
        "tools, cut off": {"messages": messages, "tools": tools, "tool_choice": "required", **greedy, "max_tokens": 25},
        "no parallel calls": {
            "messages": messages, "tools": strict, "parallel_tool_calls": False, **greedy, "max_tokens": 20,
        },
    }  # fmt: skip
    text: dict[str, Body] = {
        "greedy": {"prompt": "The capital of France is", **greedy},
        "sampled, two choices": {"prompt": "Once upon a time", **sampled, "n": 2},
        "two prompts": {"prompt": ["One two three", "A B C"], **greedy},
        "ids as prompt": {"prompt": [504, 3575, 282, 4649, 314], **greedy},
        "client's logprobs": {"prompt": "The capital of France is", **greedy, "logprobs": 2},
        "echo": {"prompt": "The capital of France is", **greedy, "echo": True},
        "echo with logprobs": {"prompt": "The capital of France is", **greedy, "echo": True, "logprobs": 1},
    }
    cases = [
        Case(f"{dialect}: {name}{', streamed' if stream else ''}", path, _complete(body, stream=stream))
        for dialect, path, bodies in (("chat", "/chat/completions", chat), ("text", "/completions", text))
        for name, body in bodies.items()
        for stream in (False, True)
    ]
    # vLLM cannot stream an echo of logprobs for every prompt shape; the plain 400s must come back as well.
    broken = [
        Case("chat: top_logprobs without logprobs", "/chat/completions", {"messages": short, "top_logprobs": 2}),
        Case("chat: empty tools", "/chat/completions", {"messages": short, "tools": []}),
    ]
    return cases + broken


def _complete(body: Body, *, stream: bool) -> Body:
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    return {"model": "smollm2", "max_tokens": 12} | body | {"stream": stream} | usage


CASES = _cases()


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 50
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_answer_is_the_engines_own(case: Case, engines: Engines, proxy: ObservingProxy) -> None:
    with httpx2.Client(timeout=300, trust_env=False) as client:

        def ask(base_url: str) -> httpx2.Response:
            return client.post(base_url + case.path, json=case.body)

        ask(engines.primary.base_url)  # warms
        direct: list[httpx2.Response] = []
        answers: list[tuple[int, Any]] = []
        while len(direct) < (8 if several_sequences(case.body) else 2) or (len(direct) < 8 and not repeated(answers)):
            direct.append(ask(engines.primary.base_url))
            answers.append(comparable(direct[-1]))
        assert repeated(answers), "the engine does not repeat itself"
        through = ask(proxy.process.base_url)
        for _ in range(5 if several_sequences(case.body) else 0):
            if comparable(through) in answers:
                break
            through = ask(proxy.process.base_url)
    assert comparable(through) in answers
    second = direct[-1]
    ours = {"x-counterproof-id", "x-counterproof-mode", "date", "content-length"}
    assert {k: v for k, v in through.headers.items() if k not in ours} == {
        k: v for k, v in second.headers.items() if k not in ours
    }
    assert through.headers["x-counterproof-id"].startswith("cp-")


BROKEN = {
    "not JSON": b'{"model": "smollm2", "messages": [',
    "not an object": b'["smollm2"]',
    "not UTF-8": b'{"model": "smollm2", "messages": "\xff"}',
    "nothing": b"",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_json_is_the_primarys_business_and_no_shadows(
    name: str, engines: Engines, proxy: ObservingProxy
) -> None:
    before = proxy.process.metric("counterproof_mirror_total")
    answers = [
        httpx2.post(
            f"{base_url}/chat/completions",
            content=BROKEN[name],
            headers={"content-type": "application/json"},
            timeout=60,
            trust_env=False,
        )
        for base_url in (engines.primary.base_url, proxy.process.base_url)
    ]
    direct, through = answers
    assert 400 <= direct.status_code < 500
    assert (through.status_code, through.content) == (direct.status_code, direct.content)
    assert proxy.process.metric("counterproof_mirror_total") == before


def steady(body: bytes) -> bytes:
    """An answer without its random ids and its time."""
    return _CREATED.sub(b'"created":0', _RANDOM.sub(b'"id"', body))


def test_every_other_path_passes_through(engines: Engines, proxy: ObservingProxy) -> None:
    root = proxy.process.base_url.removesuffix("/v1")
    for path in ("/v1/models", "/version", "/health", "/v1/nothing-here"):
        direct, through = (
            httpx2.get(base + path, timeout=60, trust_env=False) for base in (engines.primary.root_url, root)
        )
        assert (through.status_code, steady(through.content)) == (direct.status_code, steady(direct.content))
    asked = {"model": "smollm2", "prompt": "Hello there"}
    direct, through = (
        httpx2.post(f"{base}/tokenize", json=asked, timeout=60, trust_env=False)
        for base in (engines.primary.root_url, root)
    )
    assert through.content == direct.content


def several_sequences(body: Body) -> bool:
    """Several sequences of one request meet in one batch or in two, as the engine's scheduler happens to take them.

    That changes the shapes it computes in, and with bf16 now and then a token: such a request has a few answers
    directly, and the proxy's must be one of them.
    """
    return body.get("n", 1) > 1 or (isinstance(body.get("prompt"), list) and isinstance(body["prompt"][0], str))


def repeated(answers: list[tuple[int, Any]]) -> bool:
    return any(answers.count(answer) > 1 for answer in answers)


def comparable(response: httpx2.Response) -> tuple[int, Any]:
    body = steady(response.content)
    if not response.headers["content-type"].startswith("text/event-stream"):
        return response.status_code, body  # byte for byte
    payloads = [block.removeprefix(b"data: ") for block in body.split(b"\n\n") if block]
    assert payloads[-1] == b"[DONE]"
    return response.status_code, folded([json.loads(payload) for payload in payloads[:-1]])


def folded(events: list[Body]) -> dict[str, Any]:
    """All that a stream says, in each choice's own order, but not how it was cut into events.

    An engine puts into one event what its consumer was too slow to be told one by one; how the events of several
    choices interleave is its scheduling.
    """
    said: dict[str, Any] = {"events": [], "choices": {}}
    for event in events:
        rest = {key: value for key, value in event.items() if key != "choices"}
        if rest not in said["events"]:
            said["events"].append(rest)
        for choice in event["choices"]:
            parts, tokens = said["choices"].setdefault(choice["index"], ([], {}))
            for name, value in choice.items():
                if name in {"token_ids", "logprobs"}:
                    _extend(tokens, name, value)
                elif name == "delta":
                    for part in _parts(value):
                        _add(parts, *part)
                elif name != "index" and value is not None:
                    _add(parts, name, value)
    return said


def _parts(delta: Body) -> list[tuple[Any, Any]]:
    """A delta, field by field, those of a call under the call's number."""
    calls = delta.get("tool_calls") or []
    ours: list[tuple[Any, Any]] = [
        (name, value) for name, value in delta.items() if name != "tool_calls" and value is not None
    ]
    ours += [
        ((call["index"], name), value)
        for call in calls
        for name, value in ({k: v for k, v in call.items() if k != "function"} | call["function"]).items()
        if name != "index" and value is not None
    ]
    return ours


def _add(parts: list[tuple[Any, Any]], name: Any, value: Any) -> None:
    if value == "" and parts:
        return
    if parts and parts[-1][0] == name and isinstance(value, str):
        parts[-1] = (name, parts[-1][1] + value)
    else:
        parts.append((name, value))


def _extend(tokens: dict[Any, Any], name: str, value: Any) -> None:
    """What there is one of for each token; `null` is what an event without tokens has."""
    lists = value if isinstance(value, dict) else {"": value}
    for key, values in lists.items():
        tokens.setdefault((name, key), []).extend(values or [])
