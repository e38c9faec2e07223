"""How leakstreams are written: each event in its plain form and, at once, as it comes with token ids and logprobs.

A `Writer` writes one stream. Call fields stand between marks until it is built, so that their places in the body are
known, whatever else the body holds; markers are handed out by the writer and are the stream's secrets.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.proxy.leakstreams_shapes import (
    BEGIN,
    EOS,
    FINGERPRINT,
    HEAD,
    LONG,
    MARKER_LETTERS,
    MARKS,
    PROMPT,
    TOKEN_BYTES,
    USAGE,
    Block,
    LeakStream,
    Options,
    Part,
    Spoken,
    dumps,
    entry,
    logprob,
    mark,
    unmarked,
)  # fmt: skip
from validators import ToolCall


@dataclass
class Writer:
    """Writes one stream. The methods that write events keep `text`, `calls` and the like up; the rest is for odd ones.

    `line_end` and `space` are the framing (of the events to come), `counting` adds usage to each chunk. `spoil` says
    that the next event cannot be judged, nor what follows; `hold` that a gate may hold from the next event on.
    """

    name: str
    n: int = 1
    include_usage: bool = True
    tool_choice: Any = None
    line_end: bytes = b"\n"
    space: bytes = b" "
    counting: bool = False
    verdictable: bool = True
    with_injection: bool = True
    secrets: list[bytes] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    calls: dict[int, list[ToolCall]] = field(default_factory=dict)
    _blocks: list[Block] = field(default_factory=list)
    _text: dict[int, str] = field(default_factory=dict)
    _beside: dict[int, str] = field(default_factory=dict)
    _called: set[int] = field(default_factory=set)
    _open: dict[int, bool] = field(default_factory=dict)
    _ids: dict[bytes, int] = field(default_factory=dict)
    _clear_until: int | None = None
    _failed: bool = False

    def __post_init__(self) -> None:
        self._chance = random.Random(self.name)

    # -- secrets

    def marker(self) -> str:
        """A new secret of eight letters."""
        self.secrets.append(self._letters().encode())
        return self.secrets[-1].decode()

    def escaped(self) -> tuple[str, str]:
        """A new secret, and how it is to be written in a raw payload, as JSON escapes of its letters."""
        letters = self._letters()
        written = "".join(f"\\u{ord(letter):04x}" for letter in letters)
        self.secrets.append(written.encode())
        return letters, written

    def unsaid(self, marker: str) -> None:
        """A secret that is not written after all."""
        self.secrets.remove(marker.encode())

    def _letters(self) -> str:
        return "".join(self._chance.choices(MARKER_LETTERS, k=8))

    def call(self, pieces: int | Sequence[str] = 2, name: str | None = None) -> Spoken:
        """A new call with arguments in so many pieces, each with a marker of its own (or in these)."""
        if isinstance(pieces, int):
            middle = [f" {self.marker()}" for _ in range(pieces - 1)]
            pieces = [f'{{"{self.marker()}": "{self.marker()}', *middle]
            pieces[-1] += '"}'
        name = name or self.marker()
        self.tools += [] if name in self.tools else [name]
        return Spoken(self.marker(), name, tuple(pieces))

    # -- entries of `choices`

    def part(self, delta: bytes, choice: int = 0, *, spelled: str | None = None, text: str = "", finish: str | None = None) -> Part:  # noqa: E501  # fmt: skip
        """Any delta. `spelled` is what the model wrote for it (token ids and logprobs of it are injected)."""
        tokens = [] if spelled is None else self._tokens(spelled)
        if finish is not None:
            tokens.append(EOS)
            self._open[choice] = False
        self._open.setdefault(choice, True)
        ended = b'"%s","stop_reason":null' % finish.encode() if finish is not None else b"null"
        form = b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b,"token_ids":%b}'
        plain = form % (choice, delta, b"null", ended, b"null")
        ids = dumps([token for token, _ in tokens])
        logprobs = b'{"content":[%b]}' % b",".join(logprob(*token) for token in tokens)
        return Part(plain, form % (choice, delta, logprobs, ended, ids) if tokens else plain, choice, text)

    def text_part(self, text: str, choice: int = 0) -> Part:
        """A delta of content."""
        return self.part(dumps({"content": text}), choice, spelled=text, text=text)

    def calls_part(self, entries: Sequence[Any], choice: int = 0, *, content: Any = None, spelled: str = "", finish: str | None = None) -> Part:  # noqa: E501  # fmt: skip
        """A delta of calls, beside content (null, unless given)."""
        text = content if isinstance(content, str) else ""
        delta = b'{"content":%b,"tool_calls":%b}' % (dumps(content), mark(list(entries)))
        return self.part(delta, choice, spelled=text + spelled, text=text, finish=finish)

    def finish_part(self, reason: str = "tool_calls", choice: int = 0) -> Part:
        """The end of a choice."""
        return self.part(b"{}", choice, spelled="", finish=reason)

    # -- events

    def open(self, *choices: int) -> None:
        """Each choice's first chunk (of all choices, if none are named)."""
        for choice in choices or range(self.n):
            self._open[choice] = True
            first = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
            body = HEAD + first % choice + b"]" + self._counted() + b',"prompt_token_ids":%b,"prompt_text":null}'
            self._add(body % b"null", body % dumps(PROMPT))

    def send(self, *parts: Part, more: bytes = b"") -> None:
        """A chunk of these choices; `more` are further members, each after a comma."""
        called = any(BEGIN in part.plain for part in parts)
        for part in parts:
            if called:
                if part.text and part.choice not in self._called:
                    self._beside[part.choice] = self._beside.get(part.choice, "") + part.text
            elif part.choice not in self._called and self.verdictable and part.text:
                self._text[part.choice] = self._text.get(part.choice, "") + part.text
        self._called |= {part.choice for part in parts if BEGIN in part.plain}
        ended = b"" if self.include_usage or not any(b'"stop_reason"' in part.plain for part in parts) else FINGERPRINT
        plain, injected = (
            self.chunk(b",".join(form), self._counted() + ended + more)
            for form in ([part.plain for part in parts], [part.injected for part in parts])
        )
        self._add(plain, injected)

    def say(self, *texts: str, choice: int = 0) -> None:
        """Content, a chunk each."""
        for text in texts:
            self.send(self.text_part(text, choice))

    def think(self, *texts: str, choice: int = 0, key: str = "reasoning") -> None:
        """Reasoning, a chunk each."""
        for text in texts:
            self.send(self.part(dumps({key: text}), choice, spelled=text))

    def entries(self, *entries: Any, choice: int = 0, spelled: str = "", **more: Any) -> None:
        """A chunk of call entries."""
        self.send(self.calls_part(entries, choice, spelled=spelled, **more))

    def begin(self, spoken: Spoken, index: Any = 0, choice: int = 0) -> None:
        """Id and name of a call, as Hermes' parser sends them."""
        self.expect(spoken.tool_call, choice=choice)
        self._silent('<tool_call>\n{"name": ', choice)
        self.entries(entry(index, spoken.id, spoken.name), choice=choice, spelled=f'"{spoken.name}"')
        self._silent(', "arguments": ', choice)

    def piece(self, text: str, index: Any = 0, choice: int = 0) -> None:
        """A piece of a call's arguments."""
        self.entries(entry(index, arguments=text), choice=choice, spelled=text)

    def hermes(self, *spoken: Spoken, choice: int = 0, first: int = 0) -> None:
        """Whole calls, one after the other."""
        for index, one in enumerate(spoken, first):
            self.begin(one, index, choice)
            for text in one.pieces:
                self.piece(text, index, choice)
            self._silent("}\n</tool_call>", choice)

    def whole(self, *spoken: Spoken, choice: int = 0, content: Any = None, finish: str | None = None) -> None:
        """Whole calls in one delta."""
        self.expect(*(one.tool_call for one in spoken), choice=choice)
        written = [entry(i, one.id, one.name, one.arguments) for i, one in enumerate(spoken)]
        text = "".join(f'<tool_call>\n{{"name": "{s.name}", "arguments": {s.arguments}}}\n</tool_call>' for s in spoken)
        self.send(self.calls_part(written, choice, content=content, spelled=text, finish=finish))

    def finish(self, reason: str = "tool_calls", *choices: int) -> None:
        """The end of these choices (of all)."""
        for choice in choices or range(self.n):
            self.send(self.finish_part(reason, choice))

    def usage(self) -> None:
        """The usage chunk."""
        self._add(self.chunk(b"", USAGE + FINGERPRINT), role="usage")

    def error(self, message: str = "the engine died", event: bytes = b"") -> None:
        """An error event; `event` are lines before it."""
        self._failed = True
        payload = dumps({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}})
        self._blocks.append(Block(event + self.framed(payload), event + self.framed(payload), "error"))

    def done(self) -> None:
        """`[DONE]`."""
        self._add(b"[DONE]", role="done")

    def close(self, reason: str = "tool_calls", *choices: int) -> None:
        """The end of the choices, usage where it was asked for, `[DONE]`."""
        self.finish(reason, *choices)
        self.end()

    def end(self) -> None:
        """Usage where it was asked for, `[DONE]`."""
        if self.include_usage:
            self.usage()
        self.done()

    # -- what is odd

    def chunk(self, choices: bytes, more: bytes = b"") -> bytes:
        """A payload around the entries of `choices`."""
        return HEAD + choices + b"]" + more + b"}"

    def raw(self, payload: bytes, role: str = "") -> None:
        """An event with this payload."""
        self._add(payload, role=role)

    def delta(self, delta: bytes, choice: int = 0, **more: Any) -> None:
        """A chunk with any delta, whose tokens are not told."""
        self.send(self.part(delta, choice), **more)

    def block(self, data: bytes) -> None:
        """Bytes as they are."""
        self._blocks.append(Block(data, data))

    def framed(self, payload: bytes) -> bytes:
        """A payload as an event: a data line for each of its lines."""
        lines = [b"data:" + self.space + line + self.line_end for line in payload.split(b"\n")]
        return b"".join(lines) + self.line_end

    def hold(self) -> None:
        """From the next event on, a gate may hold."""
        self._clear_until = len(self._blocks) if self._clear_until is None else self._clear_until

    def spoil(self) -> None:
        """The next event cannot be judged, nor what comes after it."""
        self.hold()
        self.verdictable = False

    def expect(self, *calls: ToolCall, choice: int = 0) -> None:
        """A reader puts these together, too."""
        self.calls.setdefault(choice, []).extend(calls)

    # -- inside

    def _add(self, payload: bytes, injected: bytes | None = None, role: str = "") -> None:
        plain = self.framed(payload)
        self._blocks.append(Block(plain, plain if injected is None else self.framed(injected), role))

    def _silent(self, text: str, choice: int) -> None:
        """A chunk for tokens that the parser holds back: there is none in the plain stream."""
        if self.with_injection and not self.counting:
            part = self.part(b"{}", choice, spelled=text)
            self._blocks.append(Block(None, self.framed(self.chunk(part.injected))))

    def _counted(self) -> bytes:
        return b',"usage":{"prompt_tokens":4,"total_tokens":5,"completion_tokens":1}' if self.counting else b""

    def _tokens(self, text: str) -> list[tuple[int, bytes]]:
        raw = text.encode("utf-8", "surrogatepass") if self.with_injection else b""
        pieces = [raw[i : i + TOKEN_BYTES] for i in range(0, len(raw), TOKEN_BYTES)]
        return [(self._ids.setdefault(piece, 100 + len(self._ids)), piece) for piece in pieces]

    # -- the stream

    def build(self, kind: str, note: str) -> LeakStream:
        """The stream as it was written."""
        body, spans, clear, exact = b"", list[tuple[int, int]](), None, dict[str, bytes]()
        for number, block in enumerate(self._blocks):
            if block.plain is None:
                continue
            plain, found = unmarked(block.plain, len(body))
            spans += found
            held = self._clear_until is not None and number >= self._clear_until
            if clear is None and (found or held):
                clear = len(body)
            exact.setdefault(block.role, plain)
            body += plain
        injected = b"".join(MARKS.sub(b"", block.injected) for block in self._blocks)
        tools = tuple(
            {"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in self.tools
        )
        return LeakStream(
            name=self.name,
            kind=kind,
            note=note,
            body=body,
            injected=injected if self.with_injection and injected != body else None,
            secrets=tuple(self.secrets),
            spans=tuple(spans),
            clear=len(body) if clear is None else clear,
            text=self._text,
            beside=self._beside,
            usage=exact.get("usage"),
            error=exact.get("error"),
            done="done" in exact,
            calls={choice: tuple(calls) for choice, calls in self.calls.items() if calls},
            complete="done" in exact and not self._failed and bool(self._open) and not any(self._open.values()),
            verdictable=self.verdictable,
            long=len(body) > LONG,
            options=Options(tools, self.n, self.include_usage, self.tool_choice),
        )


class Shelf:
    """The streams of one module, in order. `add` makes one of a function that writes it; its docstring is the note."""

    def __init__(self) -> None:
        self.streams: list[LeakStream] = []

    def __iter__(self) -> Iterator[LeakStream]:
        return iter(self.streams)

    def add(self, kind: str, **options: Any) -> Callable[[Callable[[Writer], None]], None]:
        """Decorates a writing function; the stream is named after it. `options` are the writer's."""

        def write(function: Callable[[Writer], None]) -> None:
            note = " ".join((function.__doc__ or "").split())
            self.build(function.__name__.replace("_", " ").strip(), kind, note, function, **options)

        return write

    def build(self, name: str, kind: str, note: str, function: Callable[[Writer], None], **options: Any) -> None:
        """One stream by a name of its own."""
        writer = Writer(name, **options)
        function(writer)
        self.streams.append(writer.build(kind, note))
