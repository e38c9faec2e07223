"""The Messages API (Anthropic's, as vLLM 0.32 serves it): its answers read, streamed or not. Never raises on them.

Neither token ids nor logprobs exist here: an answer is one choice, of text, reasoning and calls. Its events are read
leniently, and `conflict` says where clients may read others than these: official clients append a block for each
`content_block_start` and then take `index` for its place, others key blocks by `index`; some go by an event's name,
others by `type`; some skip events without a name.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import msgspec

from shadow.exchange import Answer, Choice
from shadow.wire import sse
from shadow.wire.assembly import ChoiceAssembler
from shadow.wire.messages_look import NOTHING, Look, framing, look

TEXT_BLOCKS = ("text", "thinking", "redacted_thinking")
"""The kinds of content blocks that make nobody do anything."""

_CALL = "tool_use"
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class Kind(StrEnum):
    """What an event is.

    `text`: nothing that anybody executes; `call`: of a tool call; `end`: it tells the stop reason; `stop`: the last;
    `error`: the server failed; `unread`: no JSON object, or what may hold a call where none belongs.
    """

    TEXT = "text"
    CALL = "call"
    END = "end"
    STOP = "stop"
    ERROR = "error"
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its `type` and, where it belongs to a content block, that block's index and the text it adds."""

    kind: Kind
    type: str = ""
    index: int = 0
    text: str = ""


# --- inputs as they stand on the wire ---------------------------------------------------------------------------------


class _Block(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw()


class _Started(msgspec.Struct):
    content_block: _Block


class _Whole(msgspec.Struct):
    content: list[msgspec.Raw]


_read_block = msgspec.json.Decoder(_Block).decode
_read_started = msgspec.json.Decoder(_Started).decode
_read_whole = msgspec.json.Decoder(_Whole).decode


# --- a reader ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _State:
    """A content block that has begun: whether it is a call, whether its input came with it, whether it has ended."""

    call: bool
    given: bool = False
    stopped: bool = False


class Reader:
    """Takes an answer's events one by one and puts its one choice together.

    `conflict`: clients may put together other calls than these (there may be none at all). `usage` is what the answer's
    end tells of it, None where that has not come; `id` is the answer's own.
    """

    def __init__(self) -> None:
        self.conflict = False
        self.id = ""
        self.usage: dict[str, Any] | None = None
        self._answer = Answer()
        self._choice = ChoiceAssembler(0)
        self._blocks: dict[int, _State] = {}
        self._last = 0
        self._named: bool | None = None  # whether events come by name
        self._indexed: bool | None = None  # and whether they tell their block's index
        self._begun = self._stopped = False

    @classmethod
    def of_stream(cls) -> "Reader":
        """A reader for the events of a stream."""
        return cls()

    @classmethod
    def whole(cls, body: bytes) -> "Reader":
        """The reader of an answer that was not streamed, which it has read."""
        reader = cls()
        reader._body(body)
        return reader

    def choice(self) -> Choice:
        """The choice as it stands."""
        return self._choice.result()

    def result(self) -> Answer:
        """The answer as it stands; `truncated` where no `message_stop` came, or no stop reason."""
        whole = self._stopped and self._choice.finished
        problem = self._answer.problem or (None if whole else "truncated")
        return replace(self._answer, problem=problem, choices={0: self.choice()} if self._begun else {})

    # --- a stream ---------------------------------------------------------------------------------------------

    def payload(self, payload: bytes, names: frozenset[bytes] | None = frozenset()) -> Event:
        """Takes the payload of one event, and the names that its block gives it (see `messages_look.framing`)."""
        if payload.strip() in {b"", sse.DONE}:
            return Event(Kind.TEXT)
        seen = look(payload)
        if seen is None:
            self._answer.problem = self._answer.problem or "garbage"
            self.conflict = True
            return Event(Kind.UNREAD)
        kind = _type_of(seen.value, names or frozenset())
        self._compare_names(kind, names)
        self.conflict |= seen.odd
        event = self._event(kind, seen, payload)
        if seen.calls and event.kind is not Kind.CALL:  # where none belongs
            self.conflict = True
            return Event(Kind.UNREAD, event.type, event.index)
        return event

    def _compare_names(self, kind: str, names: frozenset[bytes] | None) -> None:
        """Whether those that go by names, and those that skip what has none, read the same."""
        if names is None or (names and names != {kind.encode()}):
            self.conflict = True
        if kind != "ping":
            named = bool(names)
            self.conflict |= self._named not in {None, named}
            self._named = named

    def _event(self, kind: str, seen: Look, payload: bytes) -> Event:
        match kind:
            case "message_start":
                return self._start_message(seen)
            case "content_block_start":
                return self._start_block(seen, payload)
            case "content_block_delta":
                return self._delta(seen)
            case "content_block_stop":
                return self._stop_block(seen)
            case "message_delta":
                return self._end(seen)
        return self._plain(kind)

    def _plain(self, kind: str) -> Event:
        if kind == "message_stop":
            self._stopped = True
            return Event(Kind.STOP, kind)
        if kind == "error":
            self._answer.problem = kind
            return Event(Kind.ERROR, kind)
        return Event(Kind.TEXT, kind)

    def _start_message(self, seen: Look) -> Event:
        message = _member(seen.value, "message")
        self.conflict |= self._begun or bool(message.get("content"))  # some take what it holds, some do not
        self._begun = True
        if not seen.calls:  # a refusal repeats it
            self._head(message)
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict):
                self._whole_block(block, "")
        return Event(Kind.TEXT, "message_start")

    def _start_block(self, seen: Look, payload: bytes) -> Event:
        index, block = self._place(seen.value, len(self._blocks)), _member(seen.value, "content_block")
        self.conflict |= index != len(self._blocks)
        kind = block.get("type")
        state = self._blocks.setdefault(index, _State(kind == _CALL))
        state.call = kind == _CALL
        self._last, self._begun = index, True
        if state.call:
            given = self._given(payload, block)
            state.given = bool(given)
            self._call(block, given, index)
            self.conflict |= seen.calls != [("content_block",)]
            return Event(Kind.CALL, "content_block_start", index)
        text = self._say(block)
        if kind not in TEXT_BLOCKS:
            self.conflict = True
            return Event(Kind.UNREAD, "content_block_start", index)
        return Event(Kind.TEXT, "content_block_start", index, text)

    def _given(self, payload: bytes, block: dict[str, Any]) -> str:
        """The input that a call begins with, as it stands on the wire; "" for the empty one that engines send."""
        if block.get("input") in NOTHING:
            return ""
        try:
            return bytes(_read_started(payload).content_block.input).decode()
        except msgspec.MsgspecError:  # of a member that stands twice, both are looked at: that is a conflict anyway
            return ""

    def _delta(self, seen: Look) -> Event:
        index, delta = self._place(seen.value, self._last), _member(seen.value, "delta")
        known = index in self._blocks
        piece = delta.get("partial_json")
        state = self._blocks.setdefault(index, _State(isinstance(piece, str)))
        self.conflict |= not known
        self._begun = True
        regular = seen.calls == [("delta",)] and delta.get("type") == "input_json_delta"
        if isinstance(piece, str):
            self._choice.calls([{"index": index, "function": {"arguments": piece}}])
            self.conflict |= not (regular and state.call) or state.stopped or (state.given and bool(piece))
            return Event(Kind.CALL, "content_block_delta", index)
        text = self._say(delta)
        self.conflict |= state.call
        return Event(Kind.CALL if state.call else Kind.TEXT, "content_block_delta", index, text)

    def _stop_block(self, seen: Look) -> Event:
        index = self._place(seen.value, self._last)
        state = self._blocks.get(index)
        self.conflict |= bool(seen.calls)
        if state is None:
            return Event(Kind.TEXT, "content_block_stop", index)
        state.stopped = True
        return Event(Kind.CALL if state.call else Kind.TEXT, "content_block_stop", index)

    def _end(self, seen: Look) -> Event:
        delta = _member(seen.value, "delta")
        if isinstance(usage := seen.value.get("usage"), dict) and not seen.calls:  # a refusal repeats it
            self.usage = usage
            self._answer.usage = (self._answer.usage or {}) | usage
        self._finish(delta)
        return Event(Kind.END if isinstance(delta.get("stop_reason"), str) else Kind.TEXT, "message_delta")

    def _place(self, value: dict[str, Any], otherwise: int) -> int:
        """The index of an event's block; where none is told, the block that began last (or begins now)."""
        index = value.get("index")
        told = index is not None
        self.conflict |= self._indexed not in {None, told}  # to some, what tells no index is another block's
        self._indexed = told
        if type(index) is int:
            return index
        open_blocks = sum(not state.stopped for state in self._blocks.values())
        self.conflict |= told or open_blocks > 1
        return otherwise

    # --- a whole answer ---------------------------------------------------------------------------------------

    def _body(self, body: bytes) -> None:
        seen = look(body)
        if seen is None:
            self._answer.problem = "garbage"
            self.conflict = True
            return
        if seen.value.get("error") is not None:
            self._answer.problem = "error"
        content = seen.value.get("content")
        blocks = content if isinstance(content, list) else []
        self._begun, self._stopped = isinstance(content, list), True
        self._head(seen.value)
        self.usage = self._answer.usage
        for block, given in zip(blocks, self._inputs(body, seen, blocks), strict=True):
            self._whole_block(block, given)
        self._finish(seen.value)
        calls = [("content", place) for place, block in enumerate(blocks) if _is_call(block)]
        self.conflict |= bool(seen.calls) and (seen.odd or seen.calls != calls)

    def _inputs(self, body: bytes, seen: Look, blocks: list[Any]) -> list[str]:
        """Each block's input as it stands on the wire, "" where there is none."""
        if not seen.calls:
            return [""] * len(blocks)
        try:
            raws = _read_whole(body).content
            return [
                bytes(_read_block(raw).input).decode() if _is_call(block) else ""
                for block, raw in zip(blocks, raws, strict=True)
            ]
        except (msgspec.MsgspecError, ValueError):  # as above
            return [""] * len(blocks)

    def _whole_block(self, block: Any, given: str) -> None:
        index = len(self._blocks)
        self._blocks[index] = _State(_is_call(block), bool(given), stopped=True)
        if _is_call(block):
            self._call(block, given, index)
        elif isinstance(block, dict) and block.get("type") in TEXT_BLOCKS:
            self._say(block)
        else:
            self.conflict = True

    # --- what both have ---------------------------------------------------------------------------------------

    def _head(self, message: dict[str, Any]) -> None:
        answer = self._answer
        if isinstance(message.get("id"), str):
            self.id = message["id"]
        if isinstance(message.get("model"), str):
            answer.model = message["model"]
        if isinstance(message.get("usage"), dict):
            answer.usage = message["usage"]

    def _call(self, block: dict[str, Any], given: str, index: int) -> None:
        function = {"name": block.get("name"), "arguments": given}
        self._choice.calls([{"index": index, "id": block.get("id"), "function": function}])

    def _say(self, part: dict[str, Any]) -> str:
        """Takes the text or reasoning of a block or a delta; the text."""
        text = part.get("text")
        self._choice.text(text, part.get("thinking"))
        return text if isinstance(text, str) else ""

    def _finish(self, told: dict[str, Any]) -> None:
        reason = told.get("stop_reason")
        self._choice.finish(_FINISH.get(reason, reason) if isinstance(reason, str) else None, told.get("stop_sequence"))


def _type_of(value: dict[str, Any], names: frozenset[bytes]) -> str:
    """An event's type; where it tells none, its name, or that it is an error."""
    if isinstance(kind := value.get("type"), str):
        return kind
    if names:
        return min(names).decode("utf-8", "replace")
    return "error" if value.get("error") is not None else ""


def _member(value: dict[str, Any], name: str) -> dict[str, Any]:
    member = value.get(name)
    return member if isinstance(member, dict) else {}


def _is_call(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == _CALL


def read(body: bytes, *, stream: bool) -> Answer:
    """An answer's complete bytes: server-sent events where `stream`, else one JSON object."""
    if not stream:
        return Reader.whole(body).result()
    reader = Reader.of_stream()
    for block in sse.Splitter().feed(body):
        payload, names = framing(block)
        if payload is not None:
            reader.payload(payload, names)
    return reader.result()
