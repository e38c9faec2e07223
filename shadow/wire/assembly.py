"""From deltas to a choice: tool calls from their pieces, tokens with their ids, bytes and candidates."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shadow.exchange import NO_ID, Choice, TopK
from validators import ToolCall

MAX_ID = 2**31 - 1
"""Token ids are 32-bit; a larger one is no id."""

MAX_PLACE = 2**31 - 1
"""No choice or call has a larger index; of numbers far beyond, clients make one."""

_MOST_JOINED = 1024 * 1024  # characters; longer calls that share an index or an id are not compared
_read_first = json.JSONDecoder().raw_decode

_TOKEN_ID = "token_id:"  # noqa: S105  (what vLLM writes in place of a token's text)


def token_id(token: Any) -> int:
    """The id in `token_id:N`, NO_ID where the token is given as text (or not at all)."""
    if not isinstance(token, str) or not token.startswith(_TOKEN_ID):
        return NO_ID
    digits = token[len(_TOKEN_ID) :]
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > len(str(MAX_ID)):
        return NO_ID
    return int(digits) if int(digits) <= MAX_ID else NO_ID


def ids_of(value: Any) -> tuple[int, ...] | None:
    """A wire array of token ids, or None where it is absent, null or no such array."""
    if isinstance(value, list) and all(type(item) is int and 0 <= item <= MAX_ID for item in value):
        return tuple(value)
    return None


def number_of(value: Any) -> float:
    """A wire logprob as float; NaN for null and for whatever is no number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


@dataclass(slots=True)
class Token:
    """One entry of a logprobs list: the emitted token and the candidates it was listed with (text ones have NO_ID)."""

    id: int
    logprob: float
    text: bytes | None
    candidates: list[tuple[int, float]]

    def wins(self) -> bool | None:
        """Whether the emitted token holds the highest of at least two listed logprobs; None where that is not told."""
        listed = [lp for _id, lp in self.candidates if not math.isnan(lp)]
        if len(listed) < 2 or math.isnan(self.logprob):
            return None
        return self.logprob >= max(listed)

    def row(self) -> list[tuple[int, float]]:
        """The (id, logprob) pairs that are known by id, the emitted token included."""
        known = [(t, lp) for t, lp in self.candidates if t != NO_ID]
        if self.id != NO_ID and all(t != self.id for t, _ in known):
            known.append((self.id, self.logprob))
        # Alone it would win by default: a list of one says nothing of winners.
        return known if len(known) > 1 else []


def place_of(index: Any) -> int | None:
    """The place that a wire `index` tells: 0 where there is none (absent, null), None where readers differ.

    Some take `"1"`, `true` or `1.0` for 1, others for something else or for nothing. None, too, below zero.
    """
    if index is None:
        return 0
    return index if type(index) is int and 0 <= index <= MAX_PLACE else None


@dataclass(slots=True)
class _Call:
    """A call from its deltas: `indices` are those under which it was told, none where it came whole."""

    name: str = ""
    pieces: list[tuple[int, str]] = field(default_factory=list)  # of arguments, each with its number in the answer
    id: str | None = None
    indices: set[int | None] = field(default_factory=set)

    @property
    def arguments(self) -> str:
        return "".join([text for _, text in self.pieces])

    def add(self, function: dict[str, Any], number: int) -> None:
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(name, str) and name != self.name:
            self.name += name
        if isinstance(arguments, str):
            self.pieces.append((number, arguments))
        elif isinstance(arguments, dict | list):  # some servers send the value itself
            self.pieces.append((number, json.dumps(arguments, ensure_ascii=False)))


class CallAssembler:
    """Puts tool calls together from a stream's deltas, or from a whole message (one delta that holds everything).

    `index` is the key where it is given; without it a new id is a new call, and so is a second name once arguments
    have begun. The same index with another id is another call, too: some servers never count. So is the same id under
    another index.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[tuple[str, int | None], _Call] = {}  # None: the first with this id
        self._count = 0
        self._odd = False  # an index or an id was told that readers differ about

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def conflict(self) -> bool:
        """Whether clients that go by index alone, or by id alone, may put together other calls than these."""
        told = [call for call in self._calls if call.indices]
        groups: dict[int | str | None, list[_Call]] = {}
        for call in told:
            for key in (*call.indices, *([call.id] if call.id else [])):
                groups.setdefault(key, []).append(call)
        indices = {key for key in groups if not isinstance(key, str)}
        if None in indices and len(indices) > 1 and (len(told) > 1 or indices != {None, 0}):
            return True  # to some, what tells no index is another call's
        return self._odd or any(len(group) > 1 and _may_be_another(group) for group in groups.values())

    def add(self, delta: Any, *, whole: bool = False, index: int | None = None) -> None:
        """Adds one entry of `delta.tool_calls`, or a `whole` call of a message; what is no object is ignored.

        `index` stands for what the entry tells of that, where it tells nothing.
        """
        if not isinstance(delta, dict):
            return
        function, call_id = delta.get("function"), delta.get("id")
        function = function if isinstance(function, dict) else {}
        told, index = delta.get("index"), index if delta.get("index") is None else place_of(delta["index"])
        if not whole:
            self._odd = self._odd or (told is not None and index is None) or not isinstance(call_id, str | None)
        call_id = call_id if isinstance(call_id, str) and call_id else None
        call = (None if whole else self._find(index, call_id, function)) or self._new()
        call.id = call.id or call_id
        if not whole:
            self._bind(call, index)
        self._count += 1
        call.add(function, self._count)

    def _bind(self, call: _Call, index: int | None) -> None:
        call.indices.add(index)
        if index is not None:
            self._by_index[index] = call
        if call.id:
            for at in (index, None):
                self._by_id.setdefault((call.id, at), call)

    def _new(self) -> _Call:
        self._calls.append(call := _Call())
        return call

    def _find(self, index: int | None, call_id: str | None, function: dict[str, Any]) -> _Call | None:
        """The call that a delta goes on with, None where it begins one."""
        if index is not None:
            known = self._by_index.get(index)
            if call_id is None:
                return known
            by_id = self._by_id.get((call_id, index)) or self._by_id.get((call_id, None))
            if by_id is not None and by_id.indices <= {index, None}:
                return by_id
            return None if known and known.id else known
        if call_id is not None or not self._calls:
            return self._by_id.get((call_id, None)) if call_id else None
        last = self._calls[-1]
        return None if function.get("name") and last.pieces else last

    def result(self) -> tuple[ToolCall, ...]:
        """The calls, in order of their first delta."""
        return tuple(ToolCall(c.name, c.arguments, c.id) for c in self._calls)


def _may_be_another(group: list[_Call]) -> bool:
    """Whether calls that share an index or an id can be one call to somebody, and another than the first of them.

    Not where each has an object of arguments, and what they are together begins with the first's: servers that never
    count send such calls, and whoever takes them for one has that one, or none.
    """
    joined = "".join([text for _, text in sorted(piece for call in group for piece in call.pieces)]).lstrip()
    if len(joined) > _MOST_JOINED:
        return True
    try:
        if not all(isinstance(json.loads(call.arguments), dict) for call in group):
            return True
    except (ValueError, RecursionError):
        return True
    try:
        _, end = _read_first(joined)
    except ValueError:
        return False
    return joined[:end] != group[0].arguments.strip()


class ChoiceAssembler:
    """Puts one choice together; dialects feed it, `result` reads it."""

    def __init__(self, index: int) -> None:
        self._choice = Choice(index)
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._lead: str | None = None
        self._calls = CallAssembler()
        self._ids: list[int] | None = None
        self._tokens: list[Token] = []

    @property
    def finished(self) -> bool:
        """True once a finish reason was seen."""
        return self._choice.finish_reason is not None

    def text(self, content: Any, reasoning: Any = None) -> None:
        """Adds what a delta says; anything but a string is nothing."""
        if isinstance(content, str):
            self._content.append(content)
        if isinstance(reasoning, str):
            self._reasoning.append(reasoning)

    @property
    def conflict(self) -> bool:
        """Whether clients may put together other calls than these, for not all go by the same of index and id."""
        return self._calls.conflict

    def calls(self, deltas: Any, *, whole: bool = False, index: int | None = None) -> None:
        """Adds `tool_calls` of a delta, after that delta's own text, or of a `whole` message.

        `index` stands for what they tell of that, where they tell nothing.
        """
        if isinstance(deltas, list) and deltas:
            if self._lead is None:
                self._lead = "".join(self._content)
            for delta in deltas:
                self._calls.add(delta, whole=whole, index=index)

    def prompt(self, ids: Any) -> None:
        """Takes the prompt's ids where they are told."""
        if (found := ids_of(ids)) is not None:
            self._choice.prompt_ids = found

    def tokens(self, ids: Any, entries: Sequence[Token]) -> None:
        """Adds a chunk's output ids and its logprobs entries."""
        if (found := ids_of(ids)) is not None:
            if self._ids is None:
                self._ids = []
            self._ids.extend(found)
        self._tokens.extend(entries)

    def finish(self, reason: Any, stop_reason: Any = None) -> None:
        """Takes the finish reason where one is told."""
        if isinstance(reason, str):
            self._choice.finish_reason = reason
        if isinstance(stop_reason, str | int):
            self._choice.stop_reason = stop_reason

    def result(self) -> Choice:
        """The choice as it stands."""
        choice = self._choice
        choice.content, choice.reasoning = "".join(self._content), "".join(self._reasoning)
        choice.lead = choice.content if self._lead is None else self._lead
        choice.calls = self._calls.result()
        choice.token_ids = None if self._ids is None else tuple(self._ids)
        aligned = align(self._ids, self._tokens) if self._ids is not None else None
        if aligned is not None and self._tokens:
            choice.token_bytes = tuple(None if t is None else t.text for t in aligned)
            choice.emitted_wins = tuple(None if t is None else t.wins() for t in aligned)
            choice.top = TopK.of([[] if t is None else t.row() for t in aligned])
        return choice


def align(ids: Sequence[int], tokens: Sequence[Token]) -> list[Token | None] | None:
    """One entry per output id, None where the wire told none; by id, never by text or by position alone.

    Engines leave out entries (of tool tokens, of what a parser held back). What is there must be a subsequence of
    `ids`; where it is not, nothing can be said which entry belongs where: None. An entry that could stand in more than
    one place stands in none.
    """
    if len(ids) == len(tokens) and all(t.id in {i, NO_ID} for i, t in zip(ids, tokens, strict=True)):
        return list(tokens)
    wanted = [token.id for token in tokens]
    if NO_ID in wanted:
        return None
    first, last = _leftmost(ids, wanted), _leftmost(ids[::-1], wanted[::-1])
    if first is None or last is None:
        return None
    result: list[Token | None] = [None] * len(ids)
    for token, left, right in zip(tokens, first, reversed(last), strict=True):
        if left == len(ids) - 1 - right:
            result[left] = token
    return result


def _leftmost(ids: Sequence[int], wanted: Sequence[int]) -> list[int] | None:
    """The places of `wanted` as a subsequence of `ids`, each as early as can be; None if it is none."""
    places, position = [], 0
    for token in wanted:
        while position < len(ids) and ids[position] != token:
            position += 1
        if position == len(ids):
            return None
        places.append(position)
        position += 1
    return places
