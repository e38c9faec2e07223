"""What the demo's agent does: two edge routers, and questions of the Berkeley function-calling data.

Everything goes through the official OpenAI client, streamed every other time. Greedy, so that what differs is the
configuration and not chance.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from proxy.demo.building import DATA
from proxy.demo.rig import MODEL_NAME

STRICT_QUESTIONS = 12
PLAIN_QUESTIONS = 3

# The Berkeley data has type names of its own.
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


@dataclass(frozen=True, slots=True)
class Task:
    """One request of the agent: a `label` for the table, the request's fields, and whether it is streamed."""

    label: str
    fields: dict[str, Any]
    stream: bool


@dataclass(frozen=True, slots=True)
class Done:
    """A task's answer: the exchange's id from the response header, the calls' names, the text."""

    task: Task
    exchange: str
    calls: tuple[str, ...]
    text: str


def router() -> dict[str, Any]:
    """The router scenario: messages, tools plain and strict, sampling fields."""
    return dict(json.loads((DATA / "router.json").read_text(encoding="utf-8")))


def tasks(questions: Path) -> list[Task]:
    """The whole workload; `questions` is the folder with the Berkeley data."""
    scenario = router()
    common = {key: scenario[key] for key in ("tool_choice", "temperature", "max_tokens")}
    found = [
        Task("router, plain tools", common | _conversation(scenario, "tools"), stream=False),
        Task("router, strict tools", common | _conversation(scenario, "tools_strict"), stream=True),
        Task("router, text", common | _conversation(scenario, "tools") | {"tool_choice": "auto"}, stream=True),
    ]
    data = _berkeley(questions)
    for i in range(STRICT_QUESTIONS + PLAIN_QUESTIONS):
        strict = i < STRICT_QUESTIONS
        identity, fields = next(data)
        fields |= {"tools": [_tool(f, strict=strict) for f in fields.pop("functions")]}
        fields |= {"tool_choice": "required", "temperature": 0, "max_tokens": 96}
        found.append(Task(f"{identity}, {'strict' if strict else 'plain'}", fields, stream=bool(i % 2)))
    return found


def _conversation(scenario: dict[str, Any], tools: str) -> dict[str, Any]:
    return {"messages": scenario["messages"], "tools": scenario[tools]}


def _berkeley(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with (folder / "BFCL_v4_live_simple.json").open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            yield record["id"], {"messages": record["question"][0], "functions": record["function"]}


def _tool(function: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    """A Berkeley function as an OpenAI tool; names lose their dots, which some parsers do not take."""
    schema = _schema(function["parameters"], closed=strict)
    described = {"name": function["name"].replace(".", "_"), "description": function["description"]}
    return {"type": "function", "function": described | {"parameters": schema} | ({"strict": True} if strict else {})}


def _schema(schema: dict[str, Any], *, closed: bool) -> dict[str, Any]:
    mapped = dict(schema)
    kind = _TYPES.get(str(schema.get("type")), schema.get("type"))
    mapped.pop("type", None)
    if kind is not None:
        mapped["type"] = kind
    if isinstance(schema.get("properties"), dict):
        mapped["properties"] = {name: _schema(value, closed=closed) for name, value in schema["properties"].items()}
        if closed:
            mapped["additionalProperties"] = False
    if isinstance(schema.get("items"), dict):
        mapped["items"] = _schema(schema["items"], closed=closed)
    return mapped


def run(base_url: str, work: Sequence[Task], done: Callable[[Done], None]) -> list[Done]:
    """Runs the tasks one after the other through the proxy at `base_url`; `done` is told of each."""
    results = []
    with openai.OpenAI(base_url=base_url, api_key="not-needed", timeout=300, max_retries=0) as client:
        for task in work:
            result = _streamed(client, task) if task.stream else _whole(client, task)
            results.append(result)
            done(result)
    return results


def _whole(client: openai.OpenAI, task: Task) -> Done:
    raw = client.chat.completions.with_raw_response.create(model=MODEL_NAME, **task.fields)
    message = raw.parse().choices[0].message
    calls = tuple(call.function.name for call in message.tool_calls or () if call.type == "function")
    return Done(task, raw.headers["x-counterproof-id"], calls, message.content or "")


def _streamed(client: openai.OpenAI, task: Task) -> Done:
    names, text = [], []
    with client.chat.completions.with_streaming_response.create(
        model=MODEL_NAME, stream=True, **task.fields
    ) as response:
        for chunk in response.parse():
            for choice in chunk.choices:
                text.append(choice.delta.content or "")
                names += [
                    call.function.name for call in choice.delta.tool_calls or () if call.function and call.function.name
                ]
        return Done(task, response.headers["x-counterproof-id"], tuple(names), "".join(text))
