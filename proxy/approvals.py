"""Calls that wait for a person: kept while their client waits, answered by whoever may, or by the clock.

A client does not wait forever, and the refusal that it gets then says that the same call may be made again once it is
approved. So what nobody waits for any more can still be decided for a while, and the answer is given, once, to the
same calls of the same conversation when they come again for the same reason.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from secrets import token_hex

from shadow.judge import Case
from validators import ToolCall, Word
from validators.decision import Verdict
from validators.repeats import whole_mark

MAX_PENDING = 1000
"""So many calls wait at once; one more is not asked about."""

_MOST_LATE = 1000
_MOST_LATE_CHARACTERS = 64 * 1024 * 1024
_LATE_S = 3600.0  # from the end of waiting, and again from a decision on


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

    @property
    def size(self) -> int:
        """Characters that it keeps, about."""
        return sum(len(call.name) + len(call.arguments) for call in self.calls)


_Same = tuple[str, Word, tuple[bytes, ...]]
"""Whose calls, why they are held, and their marks in any order: what makes them the same again."""


@dataclass(slots=True)
class _Late:
    approval: Approval
    same: _Same
    until: float
    decided: Answer | None = None


class Approvals:
    """The approvals that are pending in this process. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pending: dict[str, Approval] = {}
        self._late: OrderedDict[str, _Late] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pending)

    def pending(self) -> list[Approval]:
        """Those that a client waits for and nobody has answered, oldest first."""
        return list(self._pending.values())

    def late(self) -> list[Approval]:
        """Those that nobody has answered and no client waits for any more; they can still be answered. Oldest first."""
        self._forget()
        return [late.approval for late in self._late.values() if late.decided is None]

    async def ask(self, case: Case, calls: Sequence[ToolCall], verdict: Verdict, seconds: float) -> tuple[str, Answer]:
        """Waits for a person's answer, at most so long; its id, and what came of it.

        Where too many wait already nobody is asked: the id is empty then.
        """
        self._forget()
        same = (case.scope, verdict.word, tuple(sorted(whole_mark(call) for call in calls)))
        again = sorted((late for late in self._late.values() if late.same == same), key=lambda late: not late.decided)
        if again and again[0].decided:
            del self._late[again[0].approval.id]
            return again[0].approval.id, again[0].decided
        if len(self._pending) >= MAX_PENDING:
            return "", Answer.EXPIRED
        identity = self._late.pop(again[0].approval.id).approval.id if again else f"ap-{token_hex(8)}"
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        approval = Approval(identity, case.scope, tuple(calls), verdict, future)
        return identity, await self._wait(approval, same, seconds)

    async def _wait(self, approval: Approval, same: _Same, seconds: float) -> Answer:
        self._pending[approval.id] = approval
        future, answer = approval.answer, Answer.EXPIRED
        try:
            async with asyncio.timeout(seconds):
                answer = await future
        except TimeoutError:
            answer = _given(future) or answer  # at the very last moment
        finally:
            del self._pending[approval.id]
            if answer is Answer.EXPIRED:  # out of time, or its client has left
                self._late[approval.id] = _Late(approval, same, self._clock() + _LATE_S, _given(future))
                self._forget()
        return answer

    def answer(self, identity: str, *, approved: bool) -> bool:
        """Answers one; False where there is none to be answered (answered already, forgotten, never there)."""
        answer = Answer.APPROVED if approved else Answer.DENIED
        if (approval := self._pending.get(identity)) is not None:
            if approval.answer.done():
                return False
            approval.answer.set_result(answer)
            return True
        self._forget()
        late = self._late.get(identity)
        if late is None or late.decided is not None:
            return False
        late.decided, late.until = answer, self._clock() + _LATE_S
        return True

    def _forget(self) -> None:
        """What is over, and the oldest of what is too much."""
        now = self._clock()
        for identity in [identity for identity, late in self._late.items() if late.until < now]:
            del self._late[identity]
        size = sum(late.approval.size for late in self._late.values())
        while len(self._late) > _MOST_LATE or size > _MOST_LATE_CHARACTERS:
            size -= self._late.popitem(last=False)[1].approval.size


def _given(future: asyncio.Future[Answer]) -> Answer | None:
    return future.result() if future.done() and not future.cancelled() else None
