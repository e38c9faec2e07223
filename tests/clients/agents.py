"""A driver (tests/clients/drivers) as a process that stays: one agent run per question, each answered in one line."""

import json
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from proxy.demo.building import clean_environment
from tests.secrets import secret

CHAT = {
    "openai": ("openai_sdk.py",),
    "langgraph": ("langgraph_agent.py",),
    "openai-agents": ("openai_agents.py", "chat"),
    "pydantic-ai": ("pydantic_ai_agent.py",),
    "ai": ("ai_sdk.mjs", "openai-compatible"),
}
RESPONSES = {
    "openai-responses": ("openai_responses.py",),
    "openai-agents-responses": ("openai_agents.py", "responses"),
    "ai-openai": ("ai_sdk.mjs", "openai"),
}
MESSAGES = {
    "anthropic": ("anthropic_sdk.py",),
    "anthropic-tool-runner": ("anthropic_tool_runner.py",),
    "ai-anthropic": ("ai_sdk.mjs", "anthropic"),
}
"""The clients of each dialect by their names here: a driver, and what it is told on its command line."""

# A client that hangs is ended and the test told; the slowest run, on real engines, takes a few seconds.
_ANSWER_S = 300.0


@dataclass(frozen=True, slots=True)
class Told:
    """What a client gave back: its final text or what it raised, and the tools that it ran before."""

    text: str | None
    ran: tuple[str, ...]
    raised: str | None = None
    message: str | None = None


class Agent:
    """A client's driver; a context manager. `name` is the client's, `log` takes its standard error."""

    def __init__(self, name: str, command: Sequence[str | Path], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._folder = folder
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        # A proxy of the machine's own would count requests that never arrive.
        environment = clean_environment() | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                cwd=self._folder,
                env=environment,
            )
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._process is not None:
            self._process.kill()  # it keeps nothing
            self._process.communicate()

    def run(
        self, base_url: str, prompt: str, *, stream: bool, tool_choice: str | None = None, model: str = "smollm2"
    ) -> Told:
        """Runs the agent to its end; blocks.

        Args:
            base_url: as an OpenAI client takes it.
            prompt: what the user says.
            stream: whether the client streams.
            tool_choice: for the first request only: "required", a tool's name, or None to leave it out.
            model: the model's name.
        """
        asked = {"base_url": base_url, "api_key": secret("agent"), "model": model, "prompt": prompt, "stream": stream}
        assert self._process is not None, "enter first"
        watch = threading.Timer(_ANSWER_S, self._process.kill)
        watch.start()
        try:
            line = self._exchange(json.dumps(asked | {"tool_choice": tool_choice}))
        finally:
            watch.cancel()
        assert line, f"{self.name} gave no answer; it said: {self.log.read_text(encoding='utf-8')[-2000:]}"
        told: dict[str, Any] = json.loads(line)
        raised = told["raised"] or {"type": None, "text": None}
        return Told(told["text"], tuple(told["ran"]), raised["type"], raised["text"])

    def _exchange(self, line: str) -> str:
        assert self._process is not None
        pipes: tuple[IO[str] | None, IO[str] | None] = (self._process.stdin, self._process.stdout)
        assert pipes[0] is not None
        assert pipes[1] is not None
        try:
            pipes[0].write(line + "\n")
            pipes[0].flush()
        except BrokenPipeError:
            return ""
        return pipes[1].readline()
