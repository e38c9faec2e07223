"""One choice token by token: what is emitted, what text it makes due, and when and why it ends."""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.standin.model import Cursor, Row
from tests.standin.tokens import EOS, SPECIALS


@dataclass(frozen=True)
class Limits:
    """How a choice may go on and end. `forced` is what a grammar leaves legal: those tokens, then the end."""

    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    keep_stop: bool = False
    ignore_eos: bool = False
    endless: bool = False
    specials: bool = False
    bias: Mapping[int, float] = field(default_factory=dict)
    forced: Sequence[int] | None = None
    rows: bool = False
    processed: bool = False


@dataclass(slots=True)
class Step:
    """One emitted token: its distribution (where asked for), its bytes, the text that is due, how it ended."""

    token: int
    row: Row | None
    spelled: bytes
    text: str
    finish: str | None = None
    stop_reason: str | int | None = None


class _Text:
    """Detokenizes as it goes: half characters wait, and so does what might become a stop string."""

    def __init__(self, limits: Limits) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = () if limits.keep_stop else limits.stop
        self._all_stops, self._keep = limits.stop, limits.keep_stop
        self._held = max((len(s) for s in self._stop), default=1) - 1
        self._text, self._sent = "", 0

    def spell(self, piece: bytes) -> str:
        """The characters that a token's bytes complete."""
        return self._decoder.decode(piece)

    def add(self, new: str) -> str | None:
        """Takes a token's characters; the stop string that they complete, if any (the text is cut there)."""
        begin = len(self._text)
        self._text += new
        for stop in self._all_stops:
            at = self._text.find(stop, max(0, begin - len(stop) + 1)) if new else -1
            if at >= 0:
                self._text = self._text[: at + len(stop) if self._keep else at]
                return stop
        return None

    def due(self, *, finished: bool) -> str:
        """The text that may go out now; everything once the choice has finished."""
        until = len(self._text) - (0 if finished else self._held)
        if until <= self._sent:
            return ""
        text, self._sent = self._text[self._sent : until], until
        return text


def generate(cursor: Cursor, limits: Limits, choice: int) -> Iterator[Step]:
    """The steps of one choice, from a cursor of its own."""
    model, text, number = cursor.model, _Text(limits), 0
    while True:
        token, row = _emit(cursor, limits, choice, number)
        number += 1
        # Half a character has no text of its own on the wire; its last token has all of it.
        spelled = text.spell(model.tokenizer.piece(token))
        cursor.advance(token)
        ends = token in limits.stop_ids or (token == EOS and not limits.ignore_eos)
        silent = ends or (token < len(SPECIALS) and not limits.specials)
        stop = text.add("" if silent else spelled)
        finish, reason = _end(cursor, limits, choice, number, stop)
        yield Step(token, row, spelled.encode(), text.due(finished=finish is not None), finish, reason)
        if finish is not None:
            return


def _end(cursor: Cursor, limits: Limits, choice: int, number: int, stop: str | None) -> tuple[str | None, Any]:
    """Why the choice ends after its last token, if it does: finish reason and stop reason."""
    token = cursor.ids[-1]
    if limits.endless:
        return None, None
    if token in limits.stop_ids:
        return "stop", token
    if token == EOS and not limits.ignore_eos:
        return "stop", None
    if stop is not None:
        return "stop", stop
    if number >= limits.max_tokens:
        return "length", None
    return (cursor.ended(choice) if limits.forced is None else None), None


def _emit(cursor: Cursor, limits: Limits, choice: int, number: int) -> tuple[int, Row | None]:
    """The token of the next position, and its distribution as the logprobs mode shows it."""
    vocabulary = len(cursor.model.tokenizer)
    if limits.forced is not None:
        token = limits.forced[number] if number < len(limits.forced) else EOS
        return token, Row.only(token, vocabulary) if limits.rows else None
    row = cursor.row() if limits.rows or limits.bias or choice else None
    decides = row.biased(limits.bias) if row is not None and limits.bias else row
    token = decides.ids[0] if decides is not None else cursor.winner()
    # Other choices of a free answer part at a position of their own: there the second best was sampled.
    if row is not None and choice and number == choice - 1 and cursor.script(choice) is None and not limits.bias:
        token = row.ids[1]
    sampled = cursor.sampled(choice)
    token = token if sampled is None else sampled
    shown = decides if limits.processed else row
    return token, shown if limits.rows else None
