"""Clients of responses and messages on a real engine, with nothing changed but their base URL.

Each finishes a tool loop, observed and in block mode, and each takes a refusal without asking again.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.rig import free_port
from proxy.demo.served import ProxyProcess
from proxy.ledger import LedgerReader
from tests.clients import enginedoor
from tests.clients.agents import MESSAGES, Agent
from tests.clients.enginedoor import EngineDoor
from tests.engine.fixtures import READY_S, Engines, ObservingProxy

pytestmark = pytest.mark.slow

REASON = "nothing is deleted here"
# No reference has to agree: what is refused here is refused by its rule.
POLICY = {
    "agree": 0,
    "status_wait": "250s",  # these machines are slow
    "tools": [{"match": "delete_*", "rules": [{"id": "never", "cel": "false", "message": REASON}]}],
}
STATUS, REMOVAL = "Show me the status of r1.", "Remove r1."
RAISED = {"ai-openai": "AI_APICallError", "ai-anthropic": "AI_APICallError"}  # the other clients' is the SDKs' own
# What clients send as tool_choice; None is left out.
FREE = (None, "auto", {"type": "auto"})
REQUIRED = ("required", {"type": "any"})


@pytest.fixture(scope="module")
def door(engines: Engines) -> Iterator[EngineDoor]:
    with enginedoor.opened(engines.primary.root_url, {REMOVAL: "delete_device"}) as one:
        yield one


@pytest.fixture(scope="module")
def observing(engines: Engines, door: EngineDoor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservingProxy]:
    folder, mirror = tmp_path_factory.mktemp("observing"), {"tool_calls": 1, "other": 0}
    with enginedoor.opened(engines.reference.root_url, {}) as reference:
        shadow = {"name": "reference", "base_url": reference.base_url, "timeout": "300s"}
        with serving(door, folder, shadows=[shadow], mirror=mirror) as one:
            one.process.wait_fit("reference", READY_S)
            yield one


@pytest.fixture(scope="module")
def blocking(door: EngineDoor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservingProxy]:
    with serving(door, tmp_path_factory.mktemp("blocking"), mode="block", policy=POLICY) as one:
        yield one


@contextlib.contextmanager
def serving(door: EngineDoor, folder: Path, **settings: Any) -> Iterator[ObservingProxy]:
    common = {
        "primary": {"base_url": door.base_url},
        "ledger": {"path": str(folder / "ledger.db"), "content": "full"},
        "listen": {"port": free_port()},
        "control": {"port": free_port(), "token_file": str(folder / "token")},
        "log": {"format": "json"},
    }
    with ProxyProcess(common | settings, folder) as process:
        yield ObservingProxy(process, folder / "ledger.db")


def dialect_of(agent: Agent) -> str:
    return "messages" if agent.name in MESSAGES else "responses"


def asked(door: EngineDoor, agent: Agent, prompt: str, *, stream: bool) -> list[dict[str, Any]]:
    """The requests that the engine got of one agent's run, each in the agent's dialect and form."""
    requests = door.about(prompt)
    assert {path for path, _ in requests} == {f"/v1/{dialect_of(agent)}"}
    assert {bool(body.get("stream")) for _, body in requests} == {stream}
    return [body for _, body in requests]


def test_a_loop_whose_first_step_is_forced_ends_and_is_compared(
    observing: ObservingProxy, door: EngineDoor, dialect_agent: Agent, *, stream: bool
) -> None:
    prompt = f"{STATUS} ({dialect_agent.name}{', streamed' if stream else ''})"
    told = dialect_agent.run(observing.process.base_url, prompt, stream=stream, tool_choice="read_status")
    assert (told.ran, told.raised) == (("read_status",), None), told
    assert told.text  # whatever the small model makes of the tool's result
    first, second = asked(door, dialect_agent, prompt, stream=stream)
    assert first["tool_choice"]["name"] == "read_status"
    assert second.get("tool_choice") in FREE
    assert "r1 is up for 4 days" in json.dumps(second)
    record = judged(observing, prompt)
    assert (record["dialect"], record["stream"]) == (dialect_of(dialect_agent), stream)
    assert [call["name"] for call in record["choices"][0]["calls"]] == ["read_status"]
    assert record["examinations"][0]["outcome"] == "compared"


def test_a_call_that_is_let_through_is_run_and_its_loop_ends(
    blocking: ObservingProxy, door: EngineDoor, dialect_agent: Agent, *, stream: bool
) -> None:
    prompt = f"{STATUS} (held, {dialect_agent.name}{', streamed' if stream else ''})"
    told = dialect_agent.run(blocking.process.base_url, prompt, stream=stream, tool_choice="required")
    assert (told.ran, told.raised) == (("read_status",), None), told
    assert told.text
    first, second = asked(door, dialect_agent, prompt, stream=stream)
    assert first["tool_choice"] in REQUIRED
    assert second.get("tool_choice") in FREE
    assert "r1 is up for 4 days" in json.dumps(second)


def test_a_refusal_is_the_agents_last_word_after_one_request(
    blocking: ObservingProxy, door: EngineDoor, dialect_agent: Agent, *, stream: bool
) -> None:
    prompt = f"{REMOVAL} ({dialect_agent.name}{', streamed' if stream else ''})"
    told = dialect_agent.run(blocking.process.base_url, prompt, stream=stream)
    (request,) = asked(door, dialect_agent, prompt, stream=stream)
    assert request.get("tool_choice") in FREE
    assert (told.ran, told.raised) == ((), None), told
    assert told.text is not None
    assert told.text.startswith(f"[counterproof] The call of delete_device was refused: {REASON}.")
    assert told.text.count("[counterproof]") == 1, "the refusal came twice"


def test_where_a_call_was_demanded_the_refusal_is_an_exception_after_one_request(
    blocking: ObservingProxy, door: EngineDoor, dialect_agent: Agent, *, stream: bool
) -> None:
    tool_choice = "delete_device" if stream else "required"
    prompt = f"{REMOVAL} ({tool_choice}, {dialect_agent.name}{', streamed' if stream else ''})"
    told = dialect_agent.run(blocking.process.base_url, prompt, stream=stream, tool_choice=tool_choice)
    assert len(asked(door, dialect_agent, prompt, stream=stream)) == 1
    assert told.raised == RAISED.get(dialect_agent.name, "UnprocessableEntityError"), told
    assert (told.ran, told.text) == ((), None)
    assert told.message is not None
    assert f"[counterproof] The call of delete_device was refused: {REASON}." in told.message


def judged(observing: ObservingProxy, prompt: str) -> dict[str, Any]:
    """The ledger's record of the call in the conversation with this prompt, once a reference has judged it."""
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        with LedgerReader(observing.ledger) as reader:
            newest = list(reader.exchanges(limit=20))
        for record in newest:
            if record["examinations"] and record["request"]["messages"][0]["content"] == prompt:
                return record
        time.sleep(0.1)
    raise AssertionError("not judged in time")
