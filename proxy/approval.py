"""An approval as a value: whose calls wait for whom, where it stands, and what people have said."""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from shadow.errors import CounterproofError
from validators import ToolCall
from validators.decision import Verdict


class Answer(StrEnum):
    """What came of a pending approval."""

    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"


class State(StrEnum):
    """Where an approval stands.

    `waiting`: its client waits; `late`: nobody waits any more, and it can still be answered; `approved`: the same calls
    go out when they come again; `denied`; `released`: the calls have gone out by it; `overtaken`: they have gone out
    without it; `lapsed`: nobody answered in time, the approved calls did not come again, or what they say was erased.
    """

    WAITING = "waiting"
    LATE = "late"
    APPROVED = "approved"
    DENIED = "denied"
    RELEASED = "released"
    OVERTAKEN = "overtaken"
    LAPSED = "lapsed"


OPEN = frozenset({State.WAITING, State.LATE})
"""The states in which an approval can be answered."""


class UnknownError(CounterproofError):
    """There is no approval of that id, or it was long ago."""


class DecidedError(CounterproofError):
    """An approval cannot be answered like this any more; `approval` is what it is now."""

    def __init__(self, message: str, approval: "Approval") -> None:
        super().__init__(message)
        self.approval = approval


@dataclass(frozen=True, slots=True)
class Vote:
    """One person's answer; `at` in epoch seconds."""

    who: str
    approved: bool
    reason: str
    at: float


@dataclass(slots=True)
class Approval:
    """One approval: whose calls they are and what they are (content), why they are held, and who said what so far.

    `asked_at` and `expires_at` are epoch seconds, for people: what expires, does so on a clock that cannot be set back.
    `overtaken` is the exchange by which one of the calls has gone out meanwhile ("" where that is not known), None
    where none has.
    """

    id: str
    scope: str
    calls: tuple[ToolCall, ...]
    verdict: Verdict
    answer: asyncio.Future[Answer]
    exchange: str = ""
    model: str = ""
    needed: int = 1
    asked_at: float = 0.0
    expires_at: float = 0.0
    state: State = State.WAITING
    votes: list[Vote] = field(default_factory=list)
    overtaken: str | None = None

    @property
    def size(self) -> int:
        """Characters that it keeps, about."""
        return sum(len(call.name) + len(call.arguments) for call in self.calls)

    @property
    def conversation(self) -> str:
        """The conversation's key, without whose it is."""
        return self.scope.rpartition(":")[2]

    @property
    def approvers(self) -> list[str]:
        """Who has approved it so far."""
        return [vote.who for vote in self.votes if vote.approved]

    @property
    def outcome(self) -> Answer | None:
        """What the answers so far come to, None while more are needed."""
        if any(not vote.approved for vote in self.votes):
            return Answer.DENIED
        return Answer.APPROVED if len(self.approvers) >= self.needed else None

    def receipt(self) -> dict[str, Any]:
        """What a receipt says of it."""
        return {"id": self.id, "approvers": self.approvers, "needed": self.needed}
