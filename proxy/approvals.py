"""Calls that wait for a person: kept while their client waits, answered by whoever may, or by the clock."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from secrets import token_hex

from shadow.judge import Case
from validators import ToolCall
from validators.decision import Verdict

MAX_PENDING = 1000
"""So many calls wait at once; one more is not asked about."""


class Answer(StrEnum):
    """What came of a pending approval."""

    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Approval:
    """One that is pending: whose calls they are and what they are (content)."""

    id: str
    scope: str
    calls: tuple[ToolCall, ...]
    verdict: Verdict
    answer: asyncio.Future[Answer]


class Approvals:
    """The approvals that are pending in this process."""

    def __init__(self) -> None:
        self._pending: dict[str, Approval] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def pending(self) -> list[Approval]:
        """Those that nobody has answered, oldest first."""
        return list(self._pending.values())

    async def ask(self, case: Case, calls: Sequence[ToolCall], verdict: Verdict, seconds: float) -> tuple[str, Answer]:
        """Waits for a person's answer, at most so long; its id, and what came of it."""
        identity = f"ap-{token_hex(8)}"
        if len(self._pending) >= MAX_PENDING:
            return identity, Answer.EXPIRED
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[identity] = Approval(identity, case.scope, tuple(calls), verdict, future)
        try:
            async with asyncio.timeout(seconds):
                return identity, await future
        except TimeoutError:
            return identity, Answer.EXPIRED
        finally:
            del self._pending[identity]

    def answer(self, identity: str, *, approved: bool) -> bool:
        """Answers one; False where it is not pending (answered already, expired, never there)."""
        approval = self._pending.get(identity)
        if approval is None or approval.answer.done():
            return False
        approval.answer.set_result(Answer.APPROVED if approved else Answer.DENIED)
        return True
