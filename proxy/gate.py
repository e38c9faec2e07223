"""What all gates have in common: the pure state machines that hold tool calls back, one for each dialect.

A gate takes the primary's bytes and gives what may go to the client now. Text goes on as it comes; from its call's
first event on, everything of a choice is held until it is decided about. What cannot be read, or holds a call where no
reader looks for one, is held with all that follows it, as the choice `REST`.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from shadow.exchange import Choice
from validators import ToolCall

REST = -1
"""Stands for all that follows what could not be read."""

MAX_HELD = 64 * 1024 * 1024
"""More than this is not held for one answer."""


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


class Gate(Protocol):
    """One stream on its way to its client."""

    @property
    def waiting(self) -> bool:
        """Whether some choice is held and not decided."""

    @property
    def spoke(self) -> bool:
        """Whether anything was told that a client shows: from then on a refusal is no answer of its own."""

    @property
    def over(self) -> bool:
        """Whether the client was told of the stream's end."""

    @property
    def behind(self) -> bool:
        """Whether something went on that is yet to be read: the next question about the stream reads it."""

    def feed(self, chunk: bytes) -> bytes:
        """Takes the primary's next bytes; what may go to the client now.

        Raises:
            HeldTooMuchError: more would have to be held than is held.
        """

    def end(self) -> bytes:
        """The primary has said all; a choice that is held and did not finish is closed as it stands."""

    def signals(self) -> list[tuple[Signal, int]]:
        """What has happened since the last look; ask once the bytes that `feed` gave are on their way."""

    def choice(self, index: int) -> Choice:
        """A choice as far as it has come."""

    def undecided(self) -> list[int]:
        """The choices that are held."""

    def unfinished(self) -> list[int]:
        """The choices that are not held and have not ended."""

    def decide(self, index: int, instead: bytes | None) -> bytes:
        """A held choice goes out as it was (None), or something else does in its place; what may go out now."""

    def drop(self) -> None:
        """The primary failed: nothing that is held goes out any more."""

    def flush(self) -> bytes:
        """What ends the stream and was held for a call, after `drop`."""

    def refused(self, index: int, text: str) -> bytes:
        """What stands in the place of a choice's calls: what it has said so far, then a refusal, and its end."""

    def substituted(self, index: int, calls: Sequence[ToolCall]) -> bytes:
        """Other calls in the place of a choice's own, and its end."""

    def keepalive(self) -> bytes:
        """What tells a client that waits that its answer is still alive, and changes nothing of it."""

    def error(self, text: str) -> bytes:
        """A refusal as an error inside the stream."""


class Whole(Protocol):
    """One answer that does not stream."""

    @property
    def held(self) -> Mapping[int, Choice] | None:
        """Its choices with calls, by their place; None where it cannot be read, or holds a call where nobody looks."""

    def replaced(self, instead: Mapping[int, str | Sequence[ToolCall]]) -> bytes:
        """The client's bytes with a refusal, or other calls, in the place of the calls of some choices."""
