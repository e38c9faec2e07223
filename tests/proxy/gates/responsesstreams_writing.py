"""How Responses streams are written: each method is one event, or one item with all of its events."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from validators import ToolCall

LONG = 8 * 1024
"""A longer body is not cut at every byte."""

_LETTERS = "QXZKJVWG"  # no text has four of these in a row


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream, and what is known of it.

    `secrets` occur in calls only; `clear` is how many bytes come before the first event that may be held; `text` what
    was said in those. `calls` is what every reader puts together; None where readers differ, or none can tell.
    `error`: the primary says that it failed. `complete`: the stream tells its own end. `modelled`: what comes before
    the calls is as the API's own models have it.
    """

    name: str
    kind: str
    body: bytes
    secrets: tuple[bytes, ...]
    clear: int
    text: str
    calls: tuple[ToolCall, ...] | None
    error: bool
    complete: bool
    modelled: bool

    @property
    def long(self) -> bool:
        """Whether the body is too long to be cut at every byte."""
        return len(self.body) > LONG


@dataclass
class Writer:
    """Writes one stream; `held` marks where it may be held from on."""

    name: str
    line_end: bytes = b"\n"
    named: bool = True  # each event has its `event:` line
    out: list[bytes] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    calls: list[ToolCall] | None = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    error: bool = False
    complete: bool = False
    modelled: bool = True
    number: int = 0
    clear: int | None = None

    def __post_init__(self) -> None:
        self._chance = random.Random(self.name)

    # -- secrets

    def marker(self) -> str:
        """A new secret of eight letters."""
        self.secrets.append("".join(self._chance.choices(_LETTERS, k=8)))
        return self.secrets[-1]

    def new_call(self, pieces: int = 2, kind: str = "function_call") -> dict[str, Any]:
        """A call's item; its arguments are told in so many pieces."""
        texts = [f'{{"{self.marker()}": "{self.marker()}', *(f" {self.marker()}" for _ in range(pieces - 1))]
        texts[-1] += '"}'
        key = "input" if kind == "custom_tool_call" else "arguments"
        item = {"type": kind, "id": f"fc_{self.marker()}", "call_id": f"call_{self.marker()}", "name": self.marker()}
        item |= {key: "".join(texts), "status": "completed"}
        self._pieces = texts
        return item

    def tool_call(self, item: dict[str, Any]) -> ToolCall:
        """What a reader makes of an item."""
        if item["type"] == "custom_tool_call":
            return ToolCall(item["name"], json.dumps({"input": item["input"]}, ensure_ascii=False), item["call_id"])
        return ToolCall(item["name"], item["arguments"], item["call_id"])

    # -- bytes

    def raw(self, block: bytes) -> None:
        """Bytes as they are."""
        self.out.append(block)

    def payload(self, payload: bytes, kind: str = "") -> None:
        """An event of any payload."""
        head = b"event: " + kind.encode() + self.line_end if kind and self.named else b""
        self.raw(head + b"data: " + payload + 2 * self.line_end)

    def event(self, kind: str, **members: Any) -> None:
        """One event, numbered."""
        self.payload(dumps(members | {"sequence_number": self.number, "type": kind}), kind)
        self.number += 1

    def held(self) -> None:
        """From here on anything may be held."""
        if self.clear is None:
            self.clear = len(b"".join(self.out))

    def spoil(self) -> None:
        """What comes now cannot be judged."""
        self.held()
        self.calls = None

    # -- usual events

    def response(self, status: str = "in_progress", **more: Any) -> dict[str, Any]:
        """The response as it stands."""
        return {"id": "resp_1", "created_at": 1, "model": "m", "object": "response", "output": [], "tools": []} | {
            "parallel_tool_calls": True, "tool_choice": "auto", "status": status, "usage": None} | more  # fmt: skip

    def open(self) -> None:
        """The response's first event."""
        self.event("response.created", response=self.response())

    def begin(self, item: dict[str, Any]) -> int:
        """An item is added; its place."""
        self.items.append(item)
        empty: dict[str, Any] = {key: "" for key in ("arguments", "input") if key in item} | (
            {"content": []} if "content" in item else {}
        )
        self.event(
            "response.output_item.added",
            output_index=len(self.items) - 1,
            item=item | empty | {"status": "in_progress"},
        )
        return len(self.items) - 1

    def finish(self, place: int) -> None:
        """An item is done."""
        self.event("response.output_item.done", output_index=place, item=self.items[place])

    def say(self, *texts: str, close: bool = True) -> int:
        """A message; `close` ends it."""
        part = {"type": "output_text", "text": "".join(texts), "annotations": []}
        item = {
            "id": f"msg_{len(self.items)}",
            "type": "message",
            "role": "assistant",
            "content": [part],
            "status": "completed",
        }
        place = self.begin(item)
        at = {"item_id": item["id"], "output_index": place, "content_index": 0}
        self.event("response.content_part.added", **at, part=part | {"text": ""})
        for text in texts:
            self.event("response.output_text.delta", **at, delta=text, logprobs=[])
        if self.clear is None:
            self.text += "".join(texts)
        if close:
            self.event("response.output_text.done", **at, text=part["text"], logprobs=[])
            self.event("response.content_part.done", **at, part=part)
            self.finish(place)
        return place

    def think(self, *texts: str) -> None:
        """Reasoning, as vLLM tells it."""
        part = {"type": "reasoning_text", "text": "".join(texts)}
        item = {
            "id": f"rs_{len(self.items)}",
            "type": "reasoning",
            "summary": [],
            "content": [part],
            "status": "completed",
        }
        place = self.begin(item)
        at = {"item_id": item["id"], "output_index": place, "content_index": 0}
        for text in texts:
            self.event("response.reasoning_text.delta", **at, delta=text)
        self.event("response.reasoning_text.done", **at, text=part["text"])
        self.finish(place)

    def call(self, pieces: int = 2, *, added: bool = True, deltas: bool = True, done: bool = True, ended: bool = True,
             **more: Any) -> dict[str, Any]:  # fmt: skip
        """A call, in the engine's order."""
        self.held()
        item = self.new_call(pieces, more.pop("kind", "function_call")) | more
        texts = list(self._pieces)
        if self.calls is not None:
            self.calls.append(self.tool_call(item))
        place = self.begin(item) if added else len(self.items)
        if not added:
            self.items.append(item)
        for text in texts if deltas else ():
            self.piece(item, text, place)
        if done:
            self.whole(item, place)
        if ended:
            self.finish(place)
        return item

    def piece(self, item: dict[str, Any], text: str, place: int) -> None:
        """A delta of a call."""
        self.event(f"{_family(item)}.delta", item_id=item["id"], output_index=place, delta=text)

    def whole(self, item: dict[str, Any], place: int) -> None:
        """A call's arguments are done."""
        key = "input" if "input" in item else "arguments"
        self.event(f"{_family(item)}.done", **{"item_id": item["id"], "output_index": place, key: item[key]})

    def close(self, status: str = "completed", **more: Any) -> None:
        """The response's end."""
        usage = {
            "input_tokens": 3,
            "output_tokens": 4,
            "total_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        usage["input_tokens_details"] = {"cached_tokens": 0, "cache_write_tokens": 0}
        self.complete = True
        self.event(
            "response.completed", response=self.response(status, **({"output": self.items, "usage": usage} | more))
        )

    def build(self, kind: str) -> Stream:
        """What was written."""
        body = b"".join(self.out)
        return Stream(
            name=self.name,
            kind=kind,
            body=body,
            secrets=tuple(secret.encode() for secret in self.secrets),
            clear=len(body) if self.clear is None else self.clear,
            text=self.text,
            calls=None if self.calls is None else tuple(self.calls),
            error=self.error,
            complete=self.complete,
            modelled=self.modelled,
        )


def dumps(value: Any) -> bytes:
    """JSON as the engine writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _family(item: dict[str, Any]) -> str:
    return (
        "response.custom_tool_call_input" if item["type"] == "custom_tool_call" else "response.function_call_arguments"
    )


class Shelf:
    """The streams of one module, in order. `add` makes one of a function that writes it, and names it after that."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []

    def __iter__(self) -> Iterator[Stream]:
        return iter(self.streams)

    def add(self, kind: str, **options: Any) -> Callable[[Callable[[Writer], None]], None]:
        """Decorates a writing function; `options` are the writer's."""

        def write(function: Callable[[Writer], None]) -> None:
            self.build(function.__name__.strip("_").replace("_", " "), kind, function, **options)

        return write

    def build(self, name: str, kind: str, write: Callable[[Writer], None], **options: Any) -> None:
        """One stream by a name of its own."""
        w = Writer(name, **options)
        write(w)
        self.streams.append(w.build(kind))
