"""How streams of the Messages API are written, event by event; see messagesstreams."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from validators import ToolCall

LONG = 6 * 1024
"""A longer body is too much to be cut at every byte."""

_LETTERS = "QXZKJVWG"  # no visible text has four of these in a row


@dataclass(frozen=True, slots=True)
class MessagesStream:
    """One stream, and what is known of it.

    `secrets` occur in calls only. `clear`: how many bytes come before the first event that a gate may hold; `text`:
    what those say. `calls`: what is put together; `verdictable`: every client puts together these, so that they can be
    judged, else all is held as unread. `failed`: the server says so itself, after which what is held stays held.
    `over`: the stream's own end stands before what is held.
    """

    name: str
    kind: str
    note: str
    body: bytes
    secrets: tuple[bytes, ...]
    clear: int
    text: str
    calls: tuple[ToolCall, ...]
    verdictable: bool
    failed: bool
    over: bool

    @property
    def held(self) -> bool:
        """Whether a gate holds anything of it."""
        return self.clear < len(self.body)

    @property
    def long(self) -> bool:
        """Whether it is too long to be cut at every byte."""
        return len(self.body) > LONG


def dumps(value: Any) -> bytes:
    """JSON as the server writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Spoken:
    """A call as it is to be written: its arguments in pieces."""

    id: str
    name: str
    pieces: tuple[str, ...]

    @property
    def tool_call(self) -> ToolCall:
        """What a reader puts together."""
        return ToolCall(self.name, "".join(self.pieces), self.id)

    @property
    def block(self) -> dict[str, Any]:
        """The content block that it begins with."""
        return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}


@dataclass
class Writer:
    """Writes one stream. `line_end`, `space` and `named` are the framing of the events to come."""

    name: str
    line_end: bytes = b"\n"
    space: bytes = b" "
    named: bool = True
    verdictable: bool = True
    failed: bool = False
    over: bool = False
    secrets: list[bytes] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    index: int = 0
    text: str = ""
    clear: int | None = None
    body: bytes = b""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.name)

    def marker(self) -> str:
        """A new secret of eight letters."""
        self.secrets.append("".join(self._chance.choices(_LETTERS, k=8)).encode())
        return self.secrets[-1].decode()

    def spoken(self, pieces: int | Sequence[str] = 2) -> Spoken:
        """A new call with arguments in so many pieces, each with a marker of its own (or in these)."""
        if isinstance(pieces, int):
            pieces = [f'{{"{self.marker()}": "{self.marker()}', *(self.marker() for _ in range(pieces - 1))]
            pieces[-1] += '"}'
        return Spoken(self.marker(), self.marker(), tuple(pieces))

    # -- events

    def block(self, data: bytes) -> None:
        """Bytes as they are."""
        self.body += data

    def payload(self, payload: bytes, name: str | None = None) -> None:
        """An event of these bytes, by this name."""
        lines = [b"event:" + self.space + name.encode()] if name is not None else []
        lines += [b"data:" + self.space + line for line in payload.split(b"\n")]
        self.block(self.line_end.join([*lines, b"", b""]))

    def event(self, kind: str, **members: Any) -> None:
        """An event as the server writes it."""
        self.payload(dumps({"type": kind} | members), kind if self.named else None)

    def open(self, **members: Any) -> None:
        """The message's beginning."""
        message: dict[str, Any] = {
            "id": "chatcmpl-5f0e",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "smollm2",
        }
        message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 0}}
        self.event("message_start", message=message | members)

    def say(self, *texts: str) -> None:
        """A block of text."""
        self.event("content_block_start", content_block={"type": "text", "text": ""}, index=self.index)
        for text in texts:
            self.delta({"type": "text_delta", "text": text})
            self.text += "" if self.clear is not None else text
        self.end()

    def think(self, *texts: str) -> None:
        """A block of reasoning."""
        self.event("content_block_start", content_block={"type": "thinking", "thinking": ""}, index=self.index)
        for text in texts:
            self.delta({"type": "thinking_delta", "thinking": text})
        self.delta({"type": "signature_delta", "signature": "f1a6b563"})
        self.end()

    def begin(self, one: Spoken) -> None:
        """A call's first event."""
        self.hold()
        self.event("content_block_start", content_block=one.block, index=self.index)

    def delta(self, delta: dict[str, Any], index: int | None = None) -> None:
        """A delta of the block that is open, or of another one."""
        self.event("content_block_delta", delta=delta, index=self.index if index is None else index)

    def piece(self, text: str, index: int | None = None) -> None:
        """A piece of a call's arguments."""
        self.delta({"type": "input_json_delta", "partial_json": text}, index)

    def end(self) -> None:
        """The end of the block that is open."""
        self.event("content_block_stop", index=self.index)
        self.index += 1

    def call(self, *calls: Spoken) -> None:
        """Whole calls."""
        for one in calls:
            self.begin(one)
            for text in one.pieces:
                self.piece(text)
            self.end()
            self.calls.append(one.tool_call)

    def finish(self, reason: str | None = "tool_use") -> None:
        """The stop reason."""
        usage = {"input_tokens": 9, "output_tokens": 7}
        self.event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)

    def close(self, reason: str | None = "tool_use") -> None:
        """The end."""
        self.finish(reason)
        self.event("message_stop")

    def error(self) -> None:
        """The server fails."""
        self.event("error", error={"type": "internal_error", "message": "boom"})
        self.failed = True

    def hold(self) -> None:
        """From the next event on, a gate may hold."""
        self.clear = len(self.body) if self.clear is None else self.clear

    def spoil(self) -> None:
        """From the next event on, nothing can be judged."""
        self.hold()
        self.verdictable = False


class Shelf:
    """The streams of one module, in order. `add` makes one of a function that writes it; its docstring is the note."""

    def __init__(self) -> None:
        self.streams: list[MessagesStream] = []

    def __iter__(self) -> Iterator[MessagesStream]:
        return iter(self.streams)

    def add(self, kind: str, **options: Any) -> Callable[[Callable[[Writer], None]], None]:
        """Decorates a writing function; the stream is named after it. `options` are the writer's."""

        def write(function: Callable[[Writer], None]) -> None:
            self.build(function.__name__.replace("_", " "), kind, function.__doc__ or "", function, **options)

        return write

    def build(self, name: str, kind: str, note: str, function: Callable[[Writer], None], **options: Any) -> None:
        """One stream by a name of its own."""
        w = Writer(name, **options)
        function(w)
        stream = MessagesStream(
            name=name,
            kind=kind,
            note=note,
            body=w.body,
            secrets=tuple(w.secrets),
            clear=len(w.body) if w.clear is None else w.clear,
            text=w.text,
            calls=tuple(w.calls),
            verdictable=w.verdictable,
            failed=w.failed,
            over=w.over,
        )
        self.streams.append(stream)
