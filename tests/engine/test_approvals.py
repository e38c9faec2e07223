"""A call of a real engine's waits for a person, who answers by command line while the agent waits, or afterwards."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from proxy.audit.reading import records, verify
from proxy.demo.rig import free_port
from proxy.demo.served import ProxyProcess
from shadow.exchange import Dialect
from shadow.wire import answers
from tests.engine.fixtures import Engines
from tests.watching import WATCH

RELOAD = {
    "type": "function",
    "function": {
        "name": "reload_device",
        "description": "Reloads a network device.",
        "parameters": {
            "type": "object",
            "properties": {"device": {"enum": ["edge-1"]}},
            "required": ["device"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
"""A tool that leaves the model no choice, so that its call comes again unchanged."""


class Door:
    """A proxy in block mode, whose calls a person must approve within so many seconds."""

    def __init__(self, process: ProxyProcess, folder: Path, token: str) -> None:
        self._process, self.audit, self._token = process, folder / "audit.jsonl", token

    def ask(self, conversation: str, seed: int) -> httpx2.Response:
        """An agent's request, whose answer must be a call."""
        body = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": "Reload edge-1, please."}],
            "tools": [RELOAD],
            "tool_choice": "required",
            "temperature": 0,
            "max_tokens": 60,
            "seed": seed,
            "stream": bool(seed % 2),
        }
        headers = {"x-session-id": conversation}
        url = f"{self._process.base_url}/chat/completions"
        return httpx2.post(url, json=body, headers=headers, timeout=300, trust_env=False)

    def typed(self, *args: str) -> Any:
        """What `counterproof approvals ARGS --json` prints."""
        command = [sys.executable, "-c", "from proxy.cli import main; main()", "approvals", *args, "--json"]
        at = ["--control", self._process.control_url, "--token", self._token]
        ended = subprocess.run([*command, *at], capture_output=True, text=True, check=False)
        WATCH.see("error", ended.stdout + ended.stderr)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def waiting(self, agent: Future[httpx2.Response]) -> dict[str, Any]:
        """The call that waits for a person."""
        while not agent.done():
            found = self.typed()["approvals"]
            if found and found[-1]["state"] == "waiting":
                return dict(found[-1])
        raise AssertionError(agent.result().text)


@contextmanager
def door(engines: Engines, folder: Path, timeout: str) -> Iterator[Door]:
    settings = {
        "primary": {"base_url": engines.primary.base_url},
        "ledger": {"path": str(folder / "ledger.db"), "content": "full"},
        "listen": {"port": free_port()},
        "control": {"port": free_port(), "token_file": str(folder / "token")},
        "log": {"format": "json"},
        "conversation": {"header": "x-session-id"},
        "mode": "block",
        "policy": {
            "tools": [{"match": "reload*", "approve": True, "approval_timeout": timeout}],
            "status_wait": "250s",
        },
    }
    with ProxyProcess(settings, folder) as process:
        one = Door(process, folder, (folder / "token").read_text().strip())
        yield one
    assert verify(one.audit).fault is None


def calls(response: httpx2.Response) -> list[tuple[str, Any]]:
    stream = response.headers["content-type"].startswith("text/event-stream")
    choice = answers.read(Dialect.CHAT, response.content, stream=stream).choices[0]
    return [(call.name, json.loads(call.arguments)) for call in choice.calls]


def events(path: Path) -> list[tuple[str, str]]:
    return [(record.who, record.data["event"]) for record in records(path) if record.kind == "approval"]


@pytest.mark.parametrize(("answer", "said"), [("approve", "approved"), ("deny", "denied")])
def test_a_person_answers_while_the_agent_waits(engines: Engines, tmp_path: Path, answer: str, said: str) -> None:
    with door(engines, tmp_path, "250s") as one, ThreadPoolExecutor(1) as pool:
        agent = pool.submit(one.ask, str(uuid4()), 1)
        waits = one.waiting(agent)
        assert [json.loads(call["arguments"]) for call in waits["calls"]] == [{"device": "edge-1"}]
        one.typed(answer, waits["id"], "--reason", "as agreed")
        response = agent.result()
    if answer == "approve":
        assert calls(response) == [("reload_device", {"device": "edge-1"})]
    else:
        assert response.status_code == 422
        assert "A person has denied the call of reload_device." in response.json()["error"]["message"]
    assert events(one.audit)[:2] == [("(proxy)", "asked"), ("local", said)]


def test_a_call_that_is_approved_after_its_time_passes_once_when_it_comes_again(
    engines: Engines, tmp_path: Path
) -> None:
    with door(engines, tmp_path, "1s") as one:
        conversation = str(uuid4())
        response = one.ask(conversation, 1)
        assert response.status_code == 422
        assert "and nobody has decided yet." in response.json()["error"]["message"]
        (late,) = one.typed()["approvals"]
        assert late["state"] == "late"
        one.typed("approve", late["id"])
        assert calls(one.ask(conversation, 2)) == [("reload_device", {"device": "edge-1"})]
        assert one.ask(conversation, 3).status_code == 422  # not twice
    told = [("(proxy)", "asked"), ("(proxy)", "expired")]
    assert events(one.audit) == [*told, ("local", "approved"), ("(proxy)", "released"), *told]
