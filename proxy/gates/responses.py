"""Holds tool calls back in a Responses stream: a pure state machine over the primary's bytes, one per answer.

Text and reasoning go on as they come. From the first event of a call on, everything is held: there is one answer, and
what follows a call is said on the strength of it. `decide` lets it out as it was, or puts something else in its place
that ends the response. What cannot be read, or may hold a call where no reader looks for one, is held with all that
follows it, as the choice `REST`.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from proxy.cut import set_members
from proxy.gate import MAX_HELD, REST, HeldTooMuchError, Signal
from proxy.gates.responses_reading import Kind, kind_of, kind_of_whole, may_hold_call
from proxy.gates.responses_writing import (
    Ending,
    Told,
    call_item,
    event,
    failed_event,
    framed,
    message,
    response_event,
    response_of,
    stem_of,
)  # fmt: skip
from proxy.inject import Removal
from proxy.plain import dumps
from shadow.exchange import Answer, Choice
from shadow.wire import answers, sse
from shadow.wire.responses_answer import CALLS, ENDS, ResponseReader
from validators import ToolCall

_KEEPALIVE = b": keep-alive\n\n"  # where nothing was told yet that an event could repeat
_REFUSED = "tool_call_refused"
_TERMINAL = ENDS | {"error"}
_NO_KINDS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One held block, and whose it is: 0 or REST. `value` is its event; `tail` says that it ends the transport only."""

    block: bytes
    owner: int
    value: dict[str, Any] | None = None
    tail: bool = False


class ResponsesGate:
    """One Responses stream on its way to the client. `over` says that the client was told of the stream's end.

    `removal` cuts out of it what was injected. `passing` are the kinds of items that go through beside text: those of
    tools that the server runs itself, where they are allowed (of `proxy.gates.responses_reading.BUILT_IN`).
    """

    def __init__(self, passing: frozenset[str] = _NO_KINDS, removal: Removal | None = None) -> None:
        self.over = False
        self.behind = False  # everything is read before it goes on
        self._passing, self._removal = passing, removal
        self._splitter = sse.Splitter()
        self._reader = ResponseReader.of_stream()
        self._shown: ResponseReader | None = None  # as far as the client knows, once something is held
        self._fates: dict[int, bool | None] = {}  # of what is held: None until it is decided, then whether it goes out
        self._entries: list[_Entry] = []
        self._held_bytes = 0
        self._signals: list[tuple[Signal, int]] = []
        self._response = b""  # as the client was first told of it
        self._number = 0  # of the next event
        self._usage: Any = None
        self._begun = self._ended = self._closed = self._ours = False

    # --- what a driver asks -----------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether something is held and not decided."""
        return bool(self.undecided())

    @property
    def spoke(self) -> bool:
        """Whether anything was told that a client shows: from then on a refusal is no answer of its own."""
        return (self._shown or self._reader).spoke

    def undecided(self) -> list[int]:
        """What is held: 0, REST, or both."""
        return [index for index, fate in self._fates.items() if fate is None]

    def unfinished(self) -> list[int]:
        """The choice 0, where it is not held and its client knows of no end."""
        return [] if 0 in self._fates or self.over else [0]

    def signals(self) -> list[tuple[Signal, int]]:
        """What has happened since the last look."""
        signals, self._signals = self._signals, []
        return signals

    def choice(self, index: int) -> Choice:  # noqa: ARG002  (one answer has one choice)
        """The choice as far as it has come."""
        return self._reader.choice()

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
        if self._held_bytes + self._splitter.waiting > MAX_HELD:
            raise HeldTooMuchError
        return out

    def end(self) -> bytes:
        """The primary has said all; what is held and did not finish is closed as it stands."""
        rest = self._splitter.rest
        out = self._rest(rest) if rest else b""
        if self._fates.get(0, True) is None and not self._closed:
            self._close()
        return out

    def _rest(self, rest: bytes) -> bytes:
        """What no blank line ended: no event, but some readers take it for one. Half of one is good for nobody."""
        payload = sse.data_of(rest)
        suspect = may_hold_call(rest) or not sse.is_text(rest)
        whole = payload is not None and (payload.strip() == sse.DONE or answers.read_object(payload) is not None)
        if whole or (payload is None and not suspect):
            return self._block(rest)
        return self._keep_unread(rest) if self.waiting or suspect else b""

    def drop(self) -> None:
        """The primary failed: nothing that is held goes out any more."""
        for index in self.undecided():
            self._fates[index] = False
        self._ours = True
        self._entries = [entry for entry in self._entries if entry.tail]

    def flush(self) -> bytes:
        """What ends the stream and was held for a call, after `drop`."""
        entries, self._entries = self._entries, []
        return b"".join([entry.block for entry in entries])

    # --- what was decided -------------------------------------------------------------------------------------

    def decide(self, index: int, instead: bytes | None) -> bytes:
        """What is held goes out as it was (None), or something else does in its place; what may go out now."""
        self._fates[index] = instead is None
        self._ours = self._ours or (index == 0 and instead is not None)
        out, gone = [instead or b""], 0
        for entry in self._entries:  # nothing overtakes what came before it
            fate = False if self._ours else self._fates[entry.owner]
            if fate is None:
                break
            gone, self._held_bytes = gone + 1, self._held_bytes - len(entry.block)
            if fate or entry.tail:
                out.append(self._go_out(entry.block, entry.value))
        del self._entries[:gone]
        return b"".join(out)

    def refused(self, index: int, text: str) -> bytes:  # noqa: ARG002
        """What stands in place of the calls and of all that was held: the text as a message, and the response's end."""
        ending = self._ending()
        ending.say(text)
        return ending.end(self._usage)

    def substituted(self, index: int, calls: Sequence[ToolCall]) -> bytes:  # noqa: ARG002
        """Likewise with other calls in their place."""
        ending = self._ending()
        for call in calls:
            ending.call(call)
        return ending.end(self._usage)

    def keepalive(self) -> bytes:
        """An event that says that the response goes on. It takes no number of its own: held events keep theirs."""
        if not self._response:
            return _KEEPALIVE
        return response_event("response.in_progress", max(0, self._number - 1), self._response)

    def error(self, text: str) -> bytes:
        """The stream's end as an error, in the fields of both forms that clients look for."""
        self._ours = self.over = True
        flat = {"code": _REFUSED, "message": text, "param": None}
        nested = {"message": text, "type": _REFUSED, "param": None, "code": _REFUSED}
        return event("error", self._number, flat | {"error": nested})

    def _ending(self) -> Ending:
        self._ours = self.over = True
        items = (self._shown or self._reader).items
        return Ending(Told(self._response, self._number, items))

    # --- one event --------------------------------------------------------------------------------------------

    def _block(self, block: bytes) -> bytes:
        if self._removal is not None and (edited := self._removal.edit(block)) is not block:
            # Read before it goes; the client is told nothing of it, not even where its response is told anew.
            self._reader.take_ids(answers.read_object(sse.data_of(block) or b""))
            block = edited
        payload = sse.data_of(block)
        if payload is None:  # a comment, or a lone field
            return self._keep_unread(block) if may_hold_call(block) or not sse.is_text(block) else self._beside(block)
        if payload.strip() == sse.DONE:
            return self._pass_or_keep(block, tail=True)
        value = answers.read_object(payload)
        if value is None:
            return self._keep_unread(block)
        if not self._begun:
            self._begun = True
            self._signals.append((Signal.BEGUN, 0))
        kind = Kind.UNREAD if self._ended else kind_of(block, payload, value, self._passing)
        if kind is Kind.ERROR or (kind in {Kind.END, Kind.CALL_END} and value["type"] == "response.failed"):
            return self._failed(block, payload, value, tells_calls=kind is Kind.CALL_END)
        return self._event(kind, block, value)

    def _event(self, kind: Kind, block: bytes, value: dict[str, Any]) -> bytes:
        if kind not in {Kind.SAID, Kind.END} and self._shown is None:
            self._shown = copy.deepcopy(self._reader)
        if not self._ended:
            self._reader.value(value)
        if kind in {Kind.END, Kind.CALL_END}:
            self._ended = True
            response = value.get("response")
            self._usage = response.get("usage") if isinstance(response, dict) else None
        if kind is Kind.UNREAD or self._reader.conflict:
            return self._keep_unread(block, value)
        if kind in {Kind.CALL, Kind.CALL_END} and 0 not in self._fates:
            self._fates[0] = None
            self._signals.append((Signal.HELD, 0))
        if self._ended and self._fates.get(0, True) is None and REST not in self._fates:
            self._close()
        return self._pass_or_keep(block, value)

    def _failed(self, block: bytes, payload: bytes, value: dict[str, Any], *, tells_calls: bool) -> bytes:
        """The primary's error goes on at once, without what is held, and without what it tells of that."""
        if self._ours:
            return b""
        self._ended = self._ended or value.get("type") == "response.failed"
        if not (self.waiting or tells_calls):
            self._reader.value(value)
            return self._go_out(block, value)
        if self._shown is None:
            self._shown = copy.deepcopy(self._reader)
        self.drop()
        self.over = True
        if value.get("type") == "response.failed":
            told = Told(self._response, self._number, self._shown.items)
            return self.flush() + failed_event(told, value.get("response"))
        if "sequence_number" in value:
            payload = set_members(payload, {b"sequence_number": b"%d" % self._number})
        return self.flush() + framed(value.get("type"), payload)

    def _close(self) -> None:
        self._closed = True
        self._signals.append((Signal.CLOSED, 0))

    def _keep_unread(self, block: bytes, value: dict[str, Any] | None = None) -> bytes:
        if self._ours:
            return b""
        if self._shown is None:
            self._shown = copy.deepcopy(self._reader)
        if REST not in self._fates:
            self._fates[REST] = None
            self._signals.append((Signal.HELD, REST))
        return self._pass_or_keep(block, value)

    def _pass_or_keep(self, block: bytes, value: dict[str, Any] | None = None, *, tail: bool = False) -> bytes:
        owner = REST if REST in self._fates else 0
        if self._entries or self.waiting:
            self._entries.append(_Entry(block, owner, value, tail))
            self._held_bytes += len(block)
            return b""
        dropped = self._ours or self._fates.get(owner) is False
        return b"" if dropped and not tail else self._go_out(block, value)

    def _beside(self, block: bytes) -> bytes:
        """A comment, or a line end: nobody's, and in its own place."""
        return self._pass_or_keep(block) if self._entries or self.waiting else block

    def _go_out(self, block: bytes, value: dict[str, Any] | None) -> bytes:
        if value is not None:
            number = value.get("sequence_number")
            self._number = max(self._number, number if type(number) is int else 0) + 1
            if not self._response:
                self._response = response_of(sse.data_of(block) or b"")
            kind = value.get("type")
            self.over = self.over or (isinstance(kind, str) and kind in _TERMINAL)
        return block


# --- an answer that does not stream -----------------------------------------------------------------------------------


class _Whole(msgspec.Struct):
    output: list[msgspec.Raw] = []


_read_whole = msgspec.json.Decoder(_Whole).decode


class ResponsesWhole:
    """A response that does not stream: as the primary sent it (`raw`), and as the client would get it (`body`)."""

    def __init__(self, raw: bytes, body: bytes, passing: frozenset[str] = _NO_KINDS) -> None:
        self._body = body
        choice = choice_of_whole(raw, passing)
        self.held = None if choice is None else {0: choice} if choice.calls else {}

    def replaced(self, instead: Mapping[int, str | Sequence[ToolCall]]) -> bytes:
        """The client's bytes with a refusal, or other calls, in the place of its calls."""
        for other in instead.values():
            return refused_whole(self._body, other) if isinstance(other, str) else substituted_whole(self._body, other)
        return self._body


def choice_of_whole(raw: bytes, passing: frozenset[str] = _NO_KINDS) -> Choice | None:
    """The choice of a response that was not streamed; None where it cannot be read, or holds a call elsewhere."""
    value = answers.read_object(raw)
    if value is None or kind_of_whole(raw, passing) is Kind.UNREAD:
        return None
    reader = ResponseReader()
    reader.take_whole(value)
    return None if reader.conflict else reader.choice()


def refused_whole(body: bytes, text: str) -> bytes:
    """A whole response with a text in place of its calls, and of what follows them; the rest stays byte for byte."""
    response, said = _before_calls(body)
    return _with_output(body, response, [*said, dumps(message(f"msg_{stem_of(response, len(said))}", text))])


def substituted_whole(body: bytes, calls: Sequence[ToolCall]) -> bytes:
    """Likewise with other calls in their place."""
    response, said = _before_calls(body)
    items = [
        dumps(call_item(call, response.get("tools"), stem_of(response, place)))
        for place, call in enumerate(calls, len(said))
    ]
    return _with_output(body, response, [*said, *items])


def _before_calls(body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """A response, and the bytes of its items up to the first call."""
    said: list[bytes] = []
    for raw in _read_whole(body).output:
        item = orjson.loads(memoryview(raw))
        if isinstance(item, dict) and item.get("type") in CALLS:
            break
        said.append(bytes(raw))
    return answers.read_object(body) or {}, said


def _with_output(body: bytes, response: dict[str, Any], items: list[bytes]) -> bytes:
    new = {"output": b"[%b]" % b",".join(items), "status": b'"completed"'}
    for name in ("error", "incomplete_details", "output_messages"):  # the last tells of the calls as raw text
        if response.get(name) is not None:
            new[name] = b"null"
    sent = set_members(body, {name.encode(): value for name, value in new.items()})
    if len(orjson.loads(sent)) == _members(sent):
        return sent
    # A key was written with escapes: what it holds would still be there.
    return dumps(response | {name: orjson.loads(value) for name, value in new.items()})


def _members(text: bytes) -> int:
    """How many members an object has, repeated keys too."""
    return len(json.loads(text, object_pairs_hook=list))
