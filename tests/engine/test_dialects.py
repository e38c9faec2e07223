"""Block mode in the other dialects, on real engines: the router's conversation as messages and as a response's input.

Which conversations differ depends on the processor: they are found by asking both engines directly, with none of the
project's comparison code.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from shadow.exchange import Choice, Dialect
from shadow.wire import dialects
from tests.engine.counters import total
from tests.engine.fixtures import Engines
from tests.engine.test_block import INTERFACES, PATIENT, Blocking, asking, blocking
from tests.watching import WATCH

HIGH_RISK = {"tools": [{"match": "run_command", "risk": "high"}]}


def as_messages(chat: dict[str, Any]) -> dict[str, Any]:
    """A chat request in Anthropic's words."""
    said: list[dict[str, Any]] = []
    for message in chat["messages"]:
        if message["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            said.append({"role": "user", "content": [result]})
        elif message.get("tool_calls"):
            said.append({"role": "assistant", "content": [_tool_use(call) for call in message["tool_calls"]]})
        elif message["role"] != "system":
            said.append({"role": message["role"], "content": message["content"]})
    tools = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"], "strict": True}
        for tool in (tool["function"] for tool in chat["tools"])
    ]
    body = {"model": chat["model"], "system": chat["messages"][0]["content"], "messages": said, "tools": tools}
    return body | {"tool_choice": {"type": "any"}, "temperature": 0, "max_tokens": 90}


def _tool_use(call: dict[str, Any]) -> dict[str, Any]:
    told = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": told["name"], "input": json.loads(told["arguments"])}


def as_response(chat: dict[str, Any]) -> dict[str, Any]:
    """A chat request as the input of a response."""
    items: list[dict[str, Any]] = []
    for message in chat["messages"]:
        if message["role"] == "tool":
            output = {"call_id": message["tool_call_id"], "output": message["content"]}
            items.append({"type": "function_call_output"} | output)
        elif message.get("tool_calls"):
            items += [
                {"type": "function_call", "call_id": call["id"]} | call["function"] for call in message["tool_calls"]
            ]
        else:
            items.append({"role": message["role"], "content": message["content"]})
    tools = [{"type": "function"} | tool["function"] for tool in chat["tools"]]
    body = {"model": chat["model"], "input": items, "tools": tools, "tool_choice": "required"}
    return body | {"temperature": 0, "max_output_tokens": 90}


WRITTEN: dict[Dialect, Callable[[dict[str, Any]], dict[str, Any]]] = {
    Dialect.MESSAGES: as_messages,
    Dialect.RESPONSES: as_response,
}


def post(base_url: str, dialect: Dialect, interface: str, *, stream: bool) -> httpx2.Response:
    body = WRITTEN[dialect](asking(interface)) | {"stream": stream}
    url, headers = base_url.removesuffix("/v1") + dialects.PATHS[dialect], {"x-session-id": str(uuid4())}
    return httpx2.post(url, json=body, headers=headers, timeout=300, trust_env=False)


def read(response: httpx2.Response, dialect: Dialect, *, stream: bool) -> Choice:
    answer = dialects.read(dialect, response.content, stream=stream)
    assert answer.problem is None, response.text
    return answer.choices[0]


def replays(engines: Engines, dialect: Dialect) -> float:
    """How often the reference was asked in a dialect."""
    return total(engines.reference.root_url, "http_requests_total", handler=dialects.PATHS[dialect], method="POST")


@dataclass(frozen=True)
class Asked:
    """One conversation, and what each engine calls in it by itself."""

    interface: str
    primary: dict[str, Any]
    reference: dict[str, Any]


@pytest.fixture(scope="module", params=WRITTEN)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return Dialect(request.param)


@pytest.fixture(scope="module")
def asked(engines: Engines, dialect: Dialect) -> tuple[Asked, Asked]:
    """A conversation on which the engines agree, and one on which they differ."""

    def call(base_url: str, interface: str) -> dict[str, Any]:
        calls = read(post(base_url, dialect, interface, stream=False), dialect, stream=False).calls
        return dict(json.loads(calls[0].arguments)) if calls else {}

    found: dict[bool, Asked] = {}
    with ThreadPoolExecutor(2) as pool:
        for interface in INTERFACES:
            both = [pool.submit(call, e.base_url, interface) for e in (engines.primary, engines.reference)]
            one = Asked(interface, both[0].result(), both[1].result())
            if one.primary and one.reference:
                found.setdefault(one.primary == one.reference, one)
            if len(found) == 2:
                return found[True], found[False]
    raise AssertionError("two precisions of one model agree on all, or on none, of eight conversations")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dialects")


@pytest.fixture(scope="module")
def block(engines: Engines, folder: Path) -> Iterator[Blocking]:
    policy = PATIENT | HIGH_RISK
    with blocking(folder / "proxy", engines.primary.base_url, engines.reference.base_url, policy) as one:
        yield one


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_call_that_the_reference_makes_too_is_released_with_a_receipt(
    asked: tuple[Asked, Asked], dialect: Dialect, block: Blocking, folder: Path, engines: Engines, *, stream: bool
) -> None:
    before = replays(engines, dialect)
    response = post(block.base_url, dialect, asked[0].interface, stream=stream)
    assert (response.status_code, response.headers["x-counterproof-mode"]) == (200, "block")
    (call,) = read(response, dialect, stream=stream).calls
    assert json.loads(call.arguments) == asked[0].primary
    verdict = block.verdict(response)
    assert (verdict["done"], verdict["word"], verdict["agreed"]) == ("released", "match", ["reference"])
    assert replays(engines, dialect) == before + 1, "once, for the client and for the mirror"
    command = [sys.executable, "-c", "from proxy.cli import main; main()", "audit", "receipt"]
    at = ["--file", str(folder / "proxy" / "audit.jsonl"), "--ledger", str(folder / "proxy" / "ledger.db")]
    command += [response.headers["x-counterproof-id"], *at]
    wide = os.environ | {"COLUMNS": "240"}
    told = subprocess.run(command, capture_output=True, text=True, check=False, env=wide)
    WATCH.see("error", told.stdout + told.stderr)
    assert told.returncode == 0, told.stderr
    for said in ("released", "reference", "replay", "run_command", asked[0].primary["command"]):
        assert said in told.stdout


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_call_that_only_the_reference_tells_apart_is_refused_and_named(
    asked: tuple[Asked, Asked], dialect: Dialect, block: Blocking, *, stream: bool
) -> None:
    """On one history: the primary's own tokens where they are told, else the prompt alone (nothing was said before)."""
    differing = asked[1]
    response = post(block.base_url, dialect, differing.interface, stream=stream)
    assert response.status_code == 422
    verdict = block.verdict(response)
    assert (verdict["done"], verdict["word"]) == ("refused", "mismatch")
    body = response.json()
    assert body["error"]["code"] == "tool_call_refused"
    assert (body.get("type") == "error") is (dialect is Dialect.MESSAGES)
    for name, value in differing.primary.items():
        if differing.reference.get(name) != value:
            assert value in body["error"]["message"]
            assert str(differing.reference.get(name)) in body["error"]["message"]
