"""Holds tool calls back in a chat stream: a pure state machine over the primary's bytes, one per answer.

Text goes on as it comes. From its call's first event on, everything of a choice is held, and with it what ends the
stream (usage, `[DONE]`); `decide` lets it out as it was, or puts something else in its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from proxy.cut import Nulls
from proxy.gate import MAX_HELD, REST, HeldTooMuchError, Signal
from proxy.gates import chat_writing as writing
from proxy.gates.chat_calls import calls_in, calls_of_whole, may_hold_call
from proxy.gates.chat_writing import Frame, as_calls, with_messages
from proxy.inject import Removal
from proxy.refusal import after
from shadow.exchange import Answer, Choice, Dialect
from shadow.wire import answers, sse
from shadow.wire.answers import AnswerReader
from shadow.wire.assembly import place_of
from validators import ToolCall

_NOTHING_PUT_IN = Nulls(frozenset(), frozenset())
_NO_EVENT = (b":", b"event:", b"id:", b"retry:")  # how lines begin that every reader of a stream leaves alone


class _Kind(StrEnum):
    CHOICES = "choices"
    TAIL = "tail"
    BESIDE = "beside"
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One held event: its bytes as the client would have them, and whose it is (choice indices, or REST)."""

    kind: _Kind
    data: bytes
    owners: frozenset[int]


@dataclass(slots=True)
class _State:
    """One choice. `said` is the end of its text that went out and `told` how much that was, in characters.

    `fate` is None until it is decided, then whether its bytes go out.
    """

    said: str = ""
    told: int = 0
    begun: bool = False
    silent: bool = False
    held: bool = False
    closed: bool = False
    fate: bool | None = None


_Passed = tuple[bytes, bool]
"""The payload of an event that went on before it was read, and whether nothing of it was left for the client."""


class ChatGate:
    """One chat stream on its way to the client. `removal` takes out what was injected, None where nothing was.

    `over` says that the client was told of the stream's end.
    """

    def __init__(self, removal: Removal | None) -> None:
        self.frame = Frame()
        self._removal = removal
        self._splitter = sse.Splitter()
        self._reader = AnswerReader.of_stream(Dialect.CHAT)
        self._passing = removal or Removal(_NOTHING_PUT_IN)
        self._to_read: list[dict[str, Any] | _Passed | None] = []  # once their bytes are on their way
        self._all_passes = True  # nothing is held, was decided about, or could not be read
        self._states: dict[int, _State] = {}
        self._entries: list[_Entry] = []
        self._signals: list[tuple[Signal, int]] = []
        self._held_bytes = 0
        self._done = False  # the stream said that it ends
        self.over = False  # and so the client was told

    # --- what a driver asks -----------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether some choice is held and not decided."""
        return any(state.held and state.fate is None for state in self._states.values())

    @property
    def spoke(self) -> bool:
        """Whether anything was told that a client shows: from then on a refusal is no answer of its own."""
        self._catch_up()
        return any(state.told for state in self._states.values())

    def said(self, index: int) -> str:
        """The end of what a choice has said in text that went to the client."""
        self._catch_up()
        return self._states[index].said if index in self._states else ""

    def unsaid(self, index: int) -> str:
        """What a choice has said in text that is held."""
        content = self.choice(index).content
        return content[self._states[index].told :] if index in self._states else content

    def begun(self, index: int) -> bool:
        """Whether the client knows of a choice."""
        self._catch_up()
        return index in self._states and self._states[index].begun

    def undecided(self) -> list[int]:
        """The choices that are held."""
        return [index for index, state in self._states.items() if state.held and state.fate is None]

    def unfinished(self) -> list[int]:
        """The choices that are not held and have not ended; the first where none is known, for a refusal needs one."""
        self._catch_up()
        if not self._states.keys() - {REST}:
            return [0]
        return [index for index, state in self._states.items() if not state.held and not state.closed]

    def signals(self) -> list[tuple[Signal, int]]:
        """What has happened since the last look; ask once the bytes that `feed` gave are on their way."""
        self._catch_up()
        signals, self._signals = self._signals, []
        return signals

    def choice(self, index: int) -> Choice:
        """A choice as far as it has come."""
        self._catch_up()
        return self._reader.choice(index)

    def answer(self) -> Answer:
        """The answer as far as it has come."""
        self._catch_up()
        return self._reader.result()

    @property
    def behind(self) -> bool:
        """Whether something went on that is yet to be read: the next question about the stream reads it."""
        return bool(self._to_read)

    def _catch_up(self) -> None:
        """Reads tokens and calls of what has come: a chunk of text is not to wait for that."""
        events, self._to_read = self._to_read, []
        for event in events:
            self._reader.value(self._passed(event) if isinstance(event, tuple) else event)

    def _passed(self, event: _Passed) -> dict[str, Any] | None:
        """An event of text that has gone on, and what it says of its choice."""
        payload, emptied = event
        value = answers.read_object(payload)
        choices = value.get("choices") if value else None
        choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        if value is None or not isinstance(choice, dict):  # the two JSON libraries read it in two ways
            self._hold_rest()
            return None
        index = place_of(choice.get("index"))
        if index is None:
            self._hold_rest()
            return value
        state = self._state(index)
        self.frame.see(value)
        self._follow(index, state, choice, emptied=emptied)
        state.begun = state.begun or not emptied
        return value

    def _state(self, index: int) -> _State:
        if index not in self._states:
            self._states[index] = _State()
            self._signals.append((Signal.BEGUN, index))
        return self._states[index]

    # --- what comes from the primary --------------------------------------------------------------------------

    def feed(self, chunk: bytes) -> bytes:
        """Takes the primary's next bytes; what may go to the client now.

        Raises:
            HeldTooMuchError: more would have to be held than is held.
        """
        if self._all_passes and not self._splitter.waiting and not may_hold_call(chunk):
            client = self._passing.event(chunk)
            if client is not None:
                self._to_read.append((chunk[6:-2], not client))
                return client
        self._catch_up()
        out = b"".join([self._block(block) for block in self._splitter.feed(chunk)])
        if self._held_bytes + self._splitter.waiting > MAX_HELD:
            raise HeldTooMuchError
        return out

    def end(self) -> bytes:
        """The primary has said all; a choice that is held and did not finish is closed as it stands."""
        self._catch_up()
        out = b""
        if rest := self._splitter.rest:
            out = self._rest(rest)
        for index, state in list(self._states.items()):
            if state.held and not state.closed:
                if state.fate is None and self._reader.conflict(index):
                    self._hold_rest()
                state.closed = True
                self._signals.append((Signal.CLOSED, index))
        return out

    def _rest(self, rest: bytes) -> bytes:
        """What no blank line ended: no event, but some readers take it for one. Half of one is good for nobody."""
        payload = sse.data_of(rest)
        suspect = may_hold_call(rest) or not sse.is_text(rest) or self._may_go_on(rest)
        if payload is None and not suspect:
            return self._beside(rest)
        if payload is not None and (payload.strip() == sse.DONE or answers.read_object(payload) is not None):
            self._removal = None  # observe mode leaves it as it came, too
            return self._block(rest)
        return self._keep_unread(rest) if self.waiting or suspect else b""

    def drop(self) -> None:
        """The primary failed: nothing that is held goes out any more."""
        for index in self.undecided():
            self._states[index].fate = False
        self._entries = [entry for entry in self._entries if entry.kind is _Kind.TAIL]

    def flush(self) -> bytes:
        """What ends the stream and was held for a call, after `drop`."""
        entries, self._entries = self._entries, []
        return b"".join([self._released(entry) for entry in entries])

    # --- what was decided -------------------------------------------------------------------------------------

    def decide(self, index: int, instead: bytes | None) -> bytes:
        """A held choice goes out as it was (None), or something else does in its place; what may go out now."""
        state = self._states[index]
        state.fate = instead is None
        out = [] if instead is None else [instead]
        kept: list[_Entry] = []
        for entry in self._entries:
            bound = any(self._states[owner].held and self._states[owner].fate is None for owner in entry.owners)
            behind = bool(kept) and entry.kind is not _Kind.CHOICES  # nothing overtakes what came before it
            if bound or behind or (entry.kind is _Kind.TAIL and self.waiting):
                kept.append(entry)
                continue
            self._held_bytes -= len(entry.data)
            out.append(self._released(entry))
        self._entries = kept
        return b"".join(out)

    def _released(self, entry: _Entry) -> bytes:
        """What of an entry goes out, none of whose owners is held and undecided."""
        refused = {owner for owner in entry.owners if self._states[owner].fate is False}
        if not refused or entry.kind is _Kind.BESIDE:
            self.over = self.over or (entry.kind is _Kind.TAIL and sse.DONE in entry.data)
            return entry.data
        return b"" if not entry.data or REST in refused or refused == entry.owners else _without(entry.data, refused)

    def refused(self, index: int, text: str) -> bytes:
        """What stands in the place of a choice's calls: what it has said so far, then a refusal, and its end."""
        begun, said, unsaid = self.begun(index), self.said(index), self.unsaid(index)
        return writing.message_events(self.frame, index, text, begun=begun, said=said, unsaid=unsaid)

    def substituted(self, index: int, calls: Sequence[ToolCall]) -> bytes:
        """Other calls in the place of a choice's own, and its end."""
        begun, unsaid = self.begun(index), self.unsaid(index)
        return writing.call_events(self.frame, index, calls, begun=begun, unsaid=unsaid)

    def keepalive(self) -> bytes:
        """An empty delta of a choice that is held."""
        return writing.chunk(self.frame, max([0, *self.undecided()]), {}, None)

    def error(self, text: str) -> bytes:
        """A refusal as an error inside the stream."""
        return writing.error_event(text)

    # --- one event --------------------------------------------------------------------------------------------

    def _block(self, block: bytes) -> bytes:
        client = self._removal.edit(block) if self._removal else block
        payload = sse.data_of(block)
        suspect = may_hold_call(block)
        if payload is None:  # a comment, or a lone field
            unread = suspect or not sse.is_text(block) or self._may_go_on(block)
            return self._keep_unread(client) if unread else self._beside(client)
        if payload.strip() == sse.DONE:
            self._catch_up()
            self._reader.done()
            self._done, self._all_passes = True, False
            return self._tail(client)
        value = answers.read_object(payload)
        self._to_read.append(value)
        if value is None:
            return self._keep_unread(client)
        self.frame.see(value)
        places = calls_in(payload, block) if suspect else ()
        if places is None:
            return self._keep_unread(client)
        return self._event(value, client, frozenset(places), emptied=not client)

    def _event(self, value: dict[str, Any], client: bytes, places: frozenset[int], *, emptied: bool) -> bytes:
        raw = value.get("choices")
        choices = [c for c in raw if isinstance(c, dict)] if isinstance(raw, list) else []
        if value.get("error") is not None and not choices:
            self.drop()
            return self.flush() + client
        if not choices:
            usual = raw == [] or isinstance(value.get("usage"), dict)
            # Behind what could not be read, no event of an unknown kind is taken for the stream's end.
            return self._tail(client) if usual or REST not in self._states else self._keep_unread(client)
        found = [place_of(choice.get("index")) for choice in choices]
        owners = [index for index in found if index is not None]
        if raw != choices or len(owners) < len(found):
            return self._keep_unread(client)
        for place, (index, choice) in enumerate(zip(owners, choices, strict=True)):
            state = self._state(index)
            if place in places:
                if self._done or state.closed or state.fate is not None:
                    return self._keep_unread(client)  # after its end
                if not state.held:
                    state.held, self._all_passes = True, False
                    self._signals.append((Signal.HELD, index))
            self._follow(index, state, choice, emptied=emptied)
        return self._pass_or_keep(_Entry(_Kind.CHOICES, client, frozenset(owners)))

    def _follow(self, index: int, state: _State, choice: dict[str, Any], *, emptied: bool) -> None:
        """Keeps a choice's state up with its event."""
        if not state.held:
            delta = choice.get("delta")
            text = delta.get("content") if isinstance(delta, dict) else None
            if isinstance(text, str) and text and REST not in self._states:
                state.said, state.told = (state.said + text)[-64:], state.told + len(text)
            if emptied != state.silent:
                state.silent = emptied
                self._signals.append((Signal.SILENT if emptied else Signal.RESUMED, index))
        if choice.get("finish_reason") is None or state.closed:
            return
        if not state.held:
            state.closed = REST not in self._states
        elif state.fate is None and self._in_doubt(index):
            self._hold_rest()  # and nobody judges it before the end
        else:
            state.closed = True
            self._signals.append((Signal.CLOSED, index))

    def _in_doubt(self, index: int) -> bool:
        """Whether clients may put together other calls of a choice that is held than are judged here."""
        self._catch_up()
        return self._reader.conflict(index)

    def _pass_or_keep(self, entry: _Entry) -> bytes:
        states = [self._states[owner] for owner in entry.owners]
        if REST in self._states or any(state.held and state.fate is None for state in states):
            return self._keep(entry)
        for state in states:
            state.begun = state.begun or bool(entry.data)
        return self._released(entry) if any(state.fate is False for state in states) else entry.data

    def _may_go_on(self, block: bytes) -> bool:
        """Whether what is held may go on in a block without data: JSON with empty lines in it is many such blocks."""
        return self.waiting and any(line and not line.startswith(_NO_EVENT) for line in block.splitlines())

    def _beside(self, client: bytes) -> bytes:
        """A comment, or a line end: nobody's, and in its own place."""
        if not self.waiting:
            return client
        return self._keep(_Entry(_Kind.BESIDE, client, frozenset(self.undecided())))

    def _tail(self, client: bytes) -> bytes:
        entry = _Entry(_Kind.TAIL, client, frozenset())
        return self._keep(entry) if self.waiting else self._released(entry)

    def _hold_rest(self) -> None:
        if REST not in self._states:
            self._states[REST], self._all_passes = _State(held=True), False
            self._signals.append((Signal.HELD, REST))

    def _keep_unread(self, client: bytes) -> bytes:
        self._hold_rest()
        if self._states[REST].fate is not None:
            return client if self._states[REST].fate else b""
        return self._keep(_Entry(_Kind.UNREAD, client, frozenset({REST})))

    def _keep(self, entry: _Entry) -> bytes:
        self._held_bytes += len(entry.data)
        if self._held_bytes > MAX_HELD:
            raise HeldTooMuchError
        if REST in self._states and entry.kind is _Kind.CHOICES:
            entry = _Entry(entry.kind, entry.data, entry.owners | {REST})
        self._entries.append(entry)
        return b""


def _without(block: bytes, refused: set[int]) -> bytes:
    """An event without some of its choices: another reader's share of an event that several choices have."""
    payload = sse.data_of(block)
    value = orjson.loads(payload or b"{}")
    value["choices"] = [c for c in value["choices"] if place_of(c.get("index")) not in refused]
    return sse.with_data(block, orjson.dumps(value))


class ChatWhole:
    """A chat answer that does not stream: as the primary sent it (`raw`), and as the client would get it (`body`)."""

    def __init__(self, raw: bytes, body: bytes) -> None:
        self._body = body
        places = calls_of_whole(raw)
        choices = answers.read(Dialect.CHAT, raw, stream=False).choices if places else {}
        indices = answers.indices(raw) if places else []
        alike = places is not None and None not in indices and len(set(indices)) == len(indices)
        self.held = {place: choices[indices[place] or 0] for place in places or ()} if alike else None

    def replaced(self, instead: Mapping[int, str | Sequence[ToolCall]]) -> bytes:
        """The client's bytes with a refusal, or other calls, in the place of the calls of some choices."""
        messages: dict[int, tuple[str, list[dict[str, Any]]]] = {}
        for place, other in instead.items():
            said = self.held[place].content if self.held else ""
            messages[place] = (after(said, other), []) if isinstance(other, str) else (said, as_calls(other))
        return with_messages(self._body, messages)
