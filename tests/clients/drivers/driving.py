"""What the drivers share: a question as a JSON line in, what the client gave as a JSON line out, until the input ends.

Tools are strict in every driver: without the grammar the small model's arguments do not end.

Run by the clients' own Python (see tests/clients/building.py), which has none of the project's packages.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Device = Literal["r1", "r2"]

STATUS = {"r1": "r1 is up for 4 days", "r2": "r2 is down"}
TURNS = 4  # a client that loops ends here
MAX_TOKENS = 64
DESCRIPTIONS = {"read_status": "Reads a device's status.", "delete_device": "Deletes a device."}
PARAMETERS = {
    "type": "object",
    "properties": {"device": {"type": "string", "enum": ["r1", "r2"]}},
    "required": ["device"],
    "additionalProperties": False,
}
"""Of both tools, for the clients that take a schema."""


@dataclass
class Asked:
    """One agent run.

    Attributes:
        base_url: as an OpenAI client takes it: the only thing that a proxy changes.
        api_key: what the client sends as its key.
        model: the model's name.
        prompt: what the user says.
        stream: whether the client streams.
        tool_choice: for the first request only: "required", or a tool's name; None leaves it out.
        ran: the names of the tools that were run, in their order.
    """

    base_url: str
    api_key: str
    model: str
    prompt: str
    stream: bool
    tool_choice: str | None = None
    ran: list[str] = field(default_factory=list)

    def read_status(self, device: str) -> str:
        """The first tool."""
        self.ran.append("read_status")
        return STATUS[device]

    def delete_device(self, device: str) -> str:
        """The second tool."""
        self.ran.append("delete_device")
        return f"{device} is deleted"

    def run(self, tool: str, arguments: dict[str, str]) -> str:
        """Runs a tool by its name, for the clients that leave that to their user."""
        return {"read_status": self.read_status, "delete_device": self.delete_device}[tool](**arguments)


def answer(play: Callable[[Asked], Awaitable[str]]) -> None:
    """Plays each question on standard input; `play` runs the agent to its end and returns its text."""
    # What a library prints goes to standard error, so that the answers stay alone.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    async def main() -> None:
        # One loop for all: LangChain keeps its connections from one model to the next.
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await _told(play, Asked(**json.loads(line)))), file=answers, flush=True)

    asyncio.run(main())


async def _told(play: Callable[[Asked], Awaitable[str]], asked: Asked) -> dict[str, Any]:
    text, raised = None, None
    try:
        text = await play(asked)
    except Exception as error:  # noqa: BLE001 - whatever a client raises is the answer
        raised = {"type": type(error).__name__, "text": str(error)}
    return {"text": text, "ran": asked.ran, "raised": raised}
