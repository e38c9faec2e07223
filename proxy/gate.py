"""Holds tool calls back in a chat stream: a pure state machine over the primary's bytes, one per answer.

Text goes on as it comes. From its call's first event on, everything of a choice is held, and with it what ends the
stream (usage, `[DONE]`); `decide` lets it out as it was, or puts something else in its place. What cannot be read, or
holds a call where no reader looks for one, is held with all that follows it, as the choice `REST`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from proxy.cut import Nulls, set_choices
from proxy.inject import Removal
from proxy.plain import dumps
from shadow.exchange import Answer, Choice, Dialect
from shadow.wire import answers, sse
from shadow.wire.answers import AnswerReader

REST = -1
"""Stands for all that follows what could not be read."""

MAX_HELD = 64 * 1024 * 1024
"""More than this is not held for one answer."""

_CALL_KEYS = frozenset({"tool_calls", "function_call"})
# No JSON text without one of these has such a key: only a \u escape can spell one in another way.
_MARKS_OF_CALLS = (b"tool_calls", b"function_call", b"\\u")
_NOTHING: tuple[Any, ...] = (None, "", [], {})
_NOTHING_PUT_IN = Nulls(frozenset(), frozenset())


def _may_hold_call(text: bytes) -> bool:
    return any(mark in text for mark in _MARKS_OF_CALLS)


class HeldTooMuchError(Exception):
    """A call that is held outgrew what may be held."""


class Signal(StrEnum):
    """What became of a choice.

    `begun`: its first event came; `silent`: tokens arrive that its reader is told nothing of, as inside a call's
    opening; `resumed`: it was text after all; `held`: a call has begun; `closed`: nothing more is to come of it, and it
    can be judged.
    """

    BEGUN = "begun"
    SILENT = "silent"
    RESUMED = "resumed"
    HELD = "held"
    CLOSED = "closed"


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


@dataclass(frozen=True, slots=True)
class _Passed:
    """An event that went on before it was read; `emptied` says that nothing of it was left for the client."""

    payload: bytes
    emptied: bool


@dataclass(slots=True)
class Frame:
    """What the chunks of one stream have in common, for chunks of our own: `id`, `created`, `model`."""

    id: str = "chatcmpl-counterproof"
    created: int = 0
    model: str = ""

    def see(self, value: Mapping[str, Any]) -> None:
        """Takes what a chunk tells."""
        for name, kind in (("id", str), ("created", int), ("model", str)):
            if isinstance(told := value.get(name), kind):
                setattr(self, name, told)


class StreamGate:
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
        return self._states[index].said

    def unsaid(self, index: int) -> str:
        """What a choice has said in text that is held."""
        content = self.choice(index).content
        return content[self._states[index].told :]

    def begun(self, index: int) -> bool:
        """Whether the client knows of a choice."""
        self._catch_up()
        return index in self._states and self._states[index].begun

    def undecided(self) -> list[int]:
        """The choices that are held."""
        return [index for index, state in self._states.items() if state.held and state.fate is None]

    def unfinished(self) -> list[int]:
        """The choices that are not held and have not ended."""
        self._catch_up()
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
            self._reader.value(self._passed(event) if isinstance(event, _Passed) else event)

    def _passed(self, event: _Passed) -> dict[str, Any] | None:
        """An event of text that has gone on, and what it says of its choice."""
        value = answers.read_object(event.payload)
        choices = value.get("choices") if value else None
        choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        if value is None or not isinstance(choice, dict):  # the two JSON libraries read it in two ways
            self._hold_rest()
            return None
        index = choice.get("index") or 0
        state = self._state(index)
        self.frame.see(value)
        self._follow(index, state, choice, emptied=event.emptied)
        state.begun = state.begun or not event.emptied
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
        if self._all_passes and not self._splitter.rest and not _may_hold_call(chunk):
            client = self._passing.event(chunk)
            if client is not None:
                self._to_read.append(_Passed(chunk[6:-2], not client))
                return client
        self._catch_up()
        return b"".join([self._block(block) for block in self._splitter.feed(chunk)])

    def end(self) -> bytes:
        """The primary has said all; a choice that is held and did not finish is closed as it stands."""
        self._catch_up()
        out = b""
        if rest := self._splitter.rest:
            out = self._rest(rest)
        for index, state in self._states.items():
            if state.held and not state.closed:
                state.closed = True
                self._signals.append((Signal.CLOSED, index))
        return out

    def _rest(self, rest: bytes) -> bytes:
        """What no blank line ended: no event, but some readers take it for one. Half of one is good for nobody."""
        payload = sse.data_of(rest)
        if payload is None and not _may_hold_call(rest):
            return self._beside(rest)
        if payload is not None and (payload.strip() == sse.DONE or answers.read_object(payload) is not None):
            self._removal = None  # observe mode leaves it as it came, too
            return self._block(rest)
        return self._keep_unread(rest) if self.waiting or _may_hold_call(rest) else b""

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

    # --- one event --------------------------------------------------------------------------------------------

    def _block(self, block: bytes) -> bytes:
        client = self._removal.edit(block) if self._removal else block
        payload = sse.data_of(block)
        suspect = _may_hold_call(block)
        if payload is None:  # a comment, or a lone field
            return self._keep_unread(client) if suspect else self._beside(client)
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
        places = _calls(payload, block) if suspect else ()
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
            return self._tail(client)
        owners = [0 if choice.get("index") is None else choice["index"] for choice in choices]
        if raw != choices or not all(type(owner) is int and owner >= 0 for owner in owners):
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
        if choice.get("finish_reason") is not None and not state.closed and (state.held or REST not in self._states):
            state.closed = True
            if state.held:
                self._signals.append((Signal.CLOSED, index))

    def _pass_or_keep(self, entry: _Entry) -> bytes:
        states = [self._states[owner] for owner in entry.owners]
        if REST in self._states or any(state.held and state.fate is None for state in states):
            return self._keep(entry)
        for state in states:
            state.begun = state.begun or bool(entry.data)
        return self._released(entry) if any(state.fate is False for state in states) else entry.data

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


# --- where calls stand in an event ------------------------------------------------------------------------------------


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its members, repeated keys too."""


def _calls(payload: bytes, block: bytes) -> list[int] | None:
    """The positions in `choices` whose delta holds a call; None where one stands elsewhere, or may.

    Repeated keys are read by some as the first and by others as the last; one event in several lines, or in lines
    that only some take for lines, is read in several ways, too.
    """
    return _calls_at(payload, "delta") if _plainly_framed(block) else None


def _calls_at(payload: bytes, holder: str) -> list[int] | None:
    try:
        value = json.loads(payload, object_pairs_hook=_Pairs)
        places = [_place(path, holder) for path in _call_paths(value, ())]
        unsure = -1 in places or _repeats_keys(value, places, holder)
    except (ValueError, RecursionError):
        return None
    return None if unsure else sorted(set(places))


def _place(path: tuple[str | int, ...], holder: str) -> int:
    """The position in `choices` that a path leads to the calls of; -1 for every other path."""
    match path:
        case ("choices", int(place), str(held_by), _) if held_by == holder:
            return place
    return -1


def _plainly_framed(block: bytes) -> bool:
    """Whether a block is one data line, in lines that everybody ends alike."""
    lines = block.replace(b"\r\n", b"\n")
    return b"\r" not in lines and sum(line.startswith(b"data") for line in lines.split(b"\n")) == 1


def _call_paths(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Where a key that holds calls stands with something in it; not looked for within one."""
    if isinstance(value, _Pairs):
        for key, child in value:
            if key in _CALL_KEYS and child not in _NOTHING:
                yield (*path, key)
            elif isinstance(child, list):
                yield from _call_paths(child, (*path, key))
    elif isinstance(value, list):
        for i, child in enumerate(value):
            if isinstance(child, list):
                yield from _call_paths(child, (*path, i))


def _repeats_keys(value: _Pairs, places: Sequence[int], holder: str) -> bool:
    """Whether an object on the way to a call repeats a key."""
    ways = [value]
    if len(dict(value)) < len(value):
        return True
    for place in places:
        choice = dict(value)["choices"][place]
        ways += [choice, dict(choice)[holder]]
    return any(len(dict(way)) < len(way) for way in ways)


def _without(block: bytes, refused: set[int]) -> bytes:
    """An event without some of its choices: another reader's share of an event that several choices have."""
    payload = sse.data_of(block)
    value = orjson.loads(payload or b"{}")
    value["choices"] = [c for c in value["choices"] if c.get("index", 0) not in refused]
    return sse.with_data(block, orjson.dumps(value))


# --- an answer that does not stream -----------------------------------------------------------------------------------


def calls_of_whole(body: bytes) -> list[int] | None:
    """The positions in `choices` whose message holds a call; None where one stands elsewhere or nothing is readable."""
    if answers.read_object(body) is None:
        return None
    return _calls_at(body, "message") if _may_hold_call(body) else []


def with_messages(body: bytes, messages: Mapping[int, tuple[str, list[dict[str, Any]]]]) -> bytes:
    """A whole answer with other messages at some positions in `choices`: a text, and calls in the API's shape.

    Everything else stays byte for byte.
    """
    choices = answers.read_object(body) or {}
    new: dict[int, bytes] = {}
    for place, (text, calls) in messages.items():
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = calls
        new[place] = dumps(
            {
                "index": choices["choices"][place].get("index", place),
                "message": message,
                "logprobs": None,
                "finish_reason": "tool_calls" if calls else "stop",
                "stop_reason": None,
            }
        )
    return set_choices(body, new)
