"""Holds tool calls back in the Messages API: a pure state machine over the primary's bytes, one per answer.

There is one choice, index 0. Text and reasoning go on as they come, byte for byte; from the first event of a call on
everything is held, for a text or other calls that stand in its place end the answer. What cannot be read, holds a call
where no client looks for one, or one that clients put together in several ways, is held with all that follows as REST.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec

from proxy import gate, refusal
from proxy.gate import REST, HeldTooMuchError, Signal
from proxy.plain import dumps
from shadow.exchange import Answer, Choice
from shadow.wire import sse
from shadow.wire.messages import Event, Kind, Reader
from shadow.wire.messages_look import framing, may_hold_call
from validators import ToolCall

_ONLY = 0  # the index of the one choice
_TAIL = 64  # characters of what was said that are kept

_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class _Entry:
    """One held event: its bytes, what it is, and what must be decided before it goes out (0, REST)."""

    data: bytes
    event: Event
    owners: frozenset[int]


@dataclass(slots=True)
class _Told:
    """What the client knows: `open` blocks, the `following` block's index, the end of the text it was told."""

    begun: bool = False
    open: list[int] = field(default_factory=list)
    following: int = 0
    said: str = ""
    finished: bool = False

    def see(self, event: Event) -> None:
        """Takes an event that goes out."""
        self.said = (self.said + event.text)[-_TAIL:]
        match event.type:
            case "message_start":
                self.begun = True
            case "content_block_start":
                self.open.append(event.index)
                self.following = max(self.following, event.index + 1)
            case "content_block_stop" if event.index in self.open:
                self.open.remove(event.index)
            case "message_delta":
                self.finished = self.finished or event.kind is Kind.END


class MessagesGate:
    """One stream on its way to the client. `over` says that the client was told of the stream's end."""

    behind = False  # everything is read before it goes on

    def __init__(self) -> None:
        self.over = False
        self._splitter = sse.Splitter()
        self._reader = Reader.of_stream()
        self._told = _Told()
        self._fates: dict[int, bool | None] = {}  # of what is held: None while undecided, then whether it goes out
        self._entries: list[_Entry] = []
        self._held_bytes = 0
        self._signals: list[tuple[Signal, int]] = []
        self._begun = self._closed = self._judged = False
        self._silent = False  # something stands in place of what was held: nothing more goes out

    # --- what a driver asks -----------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether something is held and not decided."""
        return None in self._fates.values()

    @property
    def spoke(self) -> bool:
        """Whether any text was told: from then on a refusal is no answer of its own."""
        return bool(self._told.said)

    def undecided(self) -> list[int]:
        """What is held: the choice, REST."""
        return [index for index, fate in self._fates.items() if fate is None]

    def unfinished(self) -> list[int]:
        """The choice, where it is not held and has not ended."""
        return [] if self._closed or _ONLY in self._fates else [_ONLY]

    def signals(self) -> list[tuple[Signal, int]]:
        """What has happened since the last look. A call that clients may read in several ways closes at the end."""
        signals, self._signals = self._signals, []
        return signals

    def choice(self, index: int) -> Choice:
        """The choice as far as it has come; an empty one for any other index."""
        return self._reader.choice() if index == _ONLY else Choice(index)

    def answer(self) -> Answer:
        """The answer as far as it has come."""
        return self._reader.result()

    # --- what comes from the primary --------------------------------------------------------------------------

    def feed(self, chunk: bytes) -> bytes:
        """Takes the primary's next bytes; what may go to the client now.

        Raises:
            HeldTooMuchError: more would have to be held than is held.
        """
        out = b"".join([self._block(block) for block in self._splitter.feed(chunk)])
        if self._held_bytes + self._splitter.waiting > gate.MAX_HELD:
            raise HeldTooMuchError
        return out

    def end(self) -> bytes:
        """The primary has said all; a call that is held and did not finish is closed as it stands."""
        out = self._rest(rest) if (rest := self._splitter.rest) else b""
        if _ONLY in self._fates:
            self._closed = True
            self._signal_closed()
        return out

    def _rest(self, rest: bytes) -> bytes:
        """What no blank line ended: no event, but some readers take it for one. Half of one is good for nobody."""
        payload, names = framing(rest)
        if payload is None:
            return self._block(rest)
        if _is_whole(payload):
            event = self._reader.payload(payload, names)
            # Who goes by the format has another call than who reads line by line.
            return self._event(Event(Kind.UNREAD) if event.kind is Kind.CALL else event, rest)
        return self._event(Event(Kind.UNREAD), rest) if self.waiting or may_hold_call(rest) else b""

    def drop(self) -> None:
        """The primary failed: nothing that is held goes out any more, nor what follows."""
        for index in self.undecided():
            self._fates[index] = False
            self._silent = True
        self._entries.clear()

    def flush(self) -> bytes:
        """What ends the stream and was held for a call, after `drop`: nothing, an error is the end."""
        return b""

    def _block(self, block: bytes) -> bytes:
        payload, names = framing(block)
        if payload is None:  # a comment, or a lone field
            event = Event(Kind.UNREAD if may_hold_call(block) or not sse.is_text(block) else Kind.TEXT)
        else:
            event = self._reader.payload(payload, names)
        return self._event(event, block)

    def _event(self, event: Event, block: bytes) -> bytes:
        if event.type and not self._begun:
            self._begun = True
            self._signals.append((Signal.BEGUN, _ONLY))
        if event.kind is Kind.ERROR:
            return self._failed(block)
        called = event.kind is Kind.CALL
        if called and not self._closed:
            self._hold(_ONLY)
        in_doubt = self._reader.conflict and (called or _ONLY in self._fates)
        if event.kind is Kind.UNREAD or (called and self._closed) or in_doubt:
            self._hold(REST)
        out = self._pass_or_keep(event, block)
        if event.kind in {Kind.END, Kind.STOP} and (_ONLY in self._fates or REST not in self._fates):
            self._closed = True
            if REST not in self._fates:  # else it is in doubt, and judged only if all that is let out
                self._signal_closed()
        return out

    def _failed(self, block: bytes) -> bytes:
        silent = self._silent
        self.drop()
        self._closed = True
        self.over = self.over or not silent
        return b"" if silent else block

    def _hold(self, index: int) -> None:
        if index not in self._fates and not self._silent:
            self._fates[index] = None
            self._signals.append((Signal.HELD, index))

    def _signal_closed(self) -> None:
        if _ONLY in self._fates and not self._judged:
            self._judged = True
            self._signals.append((Signal.CLOSED, _ONLY))

    def _pass_or_keep(self, event: Event, block: bytes) -> bytes:
        if self._silent:
            return b""
        if not self.waiting:
            return self._out(event, block)
        self._held_bytes += len(block)
        if self._held_bytes > gate.MAX_HELD:
            raise HeldTooMuchError
        self._entries.append(_Entry(block, event, frozenset(self._fates)))
        return b""

    def _out(self, event: Event, data: bytes) -> bytes:
        self._told.see(event)
        self.over = self.over or event.kind is Kind.STOP
        return data

    # --- what was decided -------------------------------------------------------------------------------------

    def decide(self, index: int, instead: bytes | None) -> bytes:
        """What is held goes out as it was (None), or something else does in its place; what may go out now.

        What stands in the choice's place (see `refused`, `substituted`) ends the answer: nothing goes out after it.
        """
        self._fates[index] = instead is None
        if instead is None:
            return self._let_go()
        self._silent = True
        self._entries = [entry for entry in self._entries if index == REST and REST not in entry.owners]
        self._held_bytes = sum(len(entry.data) for entry in self._entries)
        self.over = self.over or (index != REST and bool(instead))
        return instead + self._let_go()

    def _let_go(self) -> bytes:
        """The events of which all is decided, in their order: nothing overtakes what came before it."""
        bound = [any(self._fates[owner] is None for owner in entry.owners) for entry in self._entries]
        count = bound.index(True) if True in bound else len(bound)
        free, self._entries = self._entries[:count], self._entries[count:]
        self._held_bytes -= sum(len(entry.data) for entry in free)
        out = [self._out(entry.event, entry.data) for entry in free]
        if self._silent and self._told.finished and not self.over and not self._entries:
            self.over = True  # its own end was behind what is held back
            out.append(_event("message_stop"))
        return b"".join(out)

    def refused(self, index: int, text: str) -> bytes:  # noqa: ARG002  (there is one choice)
        """The events that stand in place of the calls and all that follows them: a text, `refusal`, the end."""
        told = self._told
        content = refusal.after(told.said, text)[len(told.said) :]
        return self._instead([({"type": "text", "text": ""}, {"type": "text_delta", "text": content})], "refusal")

    def substituted(self, index: int, calls: Sequence[ToolCall]) -> bytes:  # noqa: ARG002  (there is one choice)
        """Other calls in place of the held ones and of all that follows them, and the end."""
        blocks = [
            (_tool_use(call), {"type": "input_json_delta", "partial_json": call.arguments or "{}"}) for call in calls
        ]
        return self._instead(blocks, "tool_use")

    def _instead(self, blocks: Sequence[tuple[dict[str, Any], dict[str, Any]]], reason: str) -> bytes:
        """Content blocks, each with one delta, and the end: a whole answer with what the client was told before."""
        told, answer = self._told, self.answer()
        out = [] if told.begun else [self._message_start(answer)]
        out += [_event("content_block_stop", index=index) for index in told.open]
        for index, (block, delta) in enumerate(blocks, told.following):
            out.append(_event("content_block_start", index=index, content_block=block))
            out.append(_event("content_block_delta", index=index, delta=delta))
            out.append(_event("content_block_stop", index=index))
        usage = {"output_tokens": 0} | (self._reader.usage or answer.usage or {})
        out.append(_event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage))
        return b"".join([*out, _event("message_stop")])

    def _message_start(self, answer: Answer) -> bytes:
        message: dict[str, Any] = {
            "id": self._reader.id or "msg_counterproof",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": answer.model or "",
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0} | (answer.usage or {}),
        }
        return _event("message_start", message=message)

    def keepalive(self) -> bytes:
        """An event that says nothing."""
        return _event("ping")

    def error(self, text: str) -> bytes:
        """An error inside the stream, which ends it."""
        return _event("error", error={"type": "api_error", "message": text})


def _event(kind: str, **members: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + dumps({"type": kind} | members) + b"\n\n"


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": _id(call), "name": call.name, "input": {}}


def _id(call: ToolCall) -> str:
    return call.id or f"toolu_{uuid4().hex}"


def _is_whole(payload: bytes) -> bool:
    return payload.strip() == sse.DONE or Reader.of_stream().payload(payload).kind is not Kind.UNREAD


# --- an answer that does not stream -----------------------------------------------------------------------------------


class MessagesWhole:
    """An answer that does not stream: as the primary sent it (`raw`), and as the client would get it (`body`)."""

    def __init__(self, raw: bytes, body: bytes) -> None:
        self._body = body
        choice = choice_of_whole(raw)
        self.held = None if choice is None else {_ONLY: choice} if choice.calls else {}

    def replaced(self, instead: Mapping[int, str | Sequence[ToolCall]]) -> bytes:
        """The client's bytes with a refusal, or other calls, in the place of its calls."""
        other = instead[_ONLY]
        return refused_whole(self._body, other) if isinstance(other, str) else substituted_whole(self._body, other)


def choice_of_whole(raw: bytes) -> Choice | None:
    """The choice of a whole answer; None where it is unreadable, or holds a call where no client looks for one.

    So is one with a block of a kind that is unknown here, or that the server acts on: nobody can tell what it does.
    """
    reader = Reader.whole(raw)
    return None if reader.conflict else reader.choice()


def refused_whole(body: bytes, text: str) -> bytes:
    """A whole answer with a text in place of its calls and of what follows them; other values stay byte for byte."""
    said = Reader.whole(body).choice().lead
    content = refusal.after(said, text)[len(said) :]
    return _with_content(body, [dumps({"type": "text", "text": content})], b'"refusal"')


def substituted_whole(body: bytes, calls: Sequence[ToolCall]) -> bytes:
    """A whole answer with other calls in place of its own and of what follows them; other values stay byte for byte."""
    blocks = [
        dumps({"type": "tool_use", "id": _id(call), "name": call.name})[:-1] + b',"input":%b}' % _input(call)
        for call in calls
    ]
    return _with_content(body, blocks, b'"tool_use"')


def _input(call: ToolCall) -> bytes:
    """A call's arguments as they were written; what is no JSON stands as a text."""
    try:
        msgspec.json.decode(call.arguments or "{}", type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return dumps(call.arguments)
    return (call.arguments or "{}").encode()


def _with_content(body: bytes, blocks: list[bytes], reason: bytes) -> bytes:
    """The answer's blocks before its first call, and these.

    Put together anew from its members, not cut: a key may be spelled with escapes.
    """
    members = _read_members(body)
    kept: list[bytes] = []
    for raw in _read_list(members["content"]):
        if Reader.whole(b'{"content":[%b]}' % bytes(raw)).choice().calls:
            break
        kept.append(bytes(raw))
    new = {"content": b"[%b]" % b",".join(kept + blocks), "stop_reason": reason, "stop_sequence": b"null"}
    values = {name: bytes(value) for name, value in members.items()} | new
    return b"{%b}" % b",".join([dumps(name) + b":" + value for name, value in values.items()])
