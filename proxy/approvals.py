"""Calls that wait for people: kept while their client waits, answered by whoever may, or by the clock.

A client does not wait forever, and the refusal that it gets then says that the same call may be made again once it is
approved. So what nobody waits for any more can still be decided for a while, and the answer is given, once, to the
same calls of the same conversation when they come again for the same reason. The audit has each step before it counts.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from secrets import token_hex
from typing import Any

from proxy.audit import SELF, Audit, Kind, NoAudit
from proxy.audit.receipts import described
from shadow.errors import CounterproofError
from shadow.judge import Case
from validators import ToolCall, Word
from validators.decision import Verdict
from validators.repeats import whole_mark

MAX_PENDING = 1000
"""So many calls wait at once; one more is not asked about."""

_MOST_LATE = 1000
_MOST_LATE_CHARACTERS = 64 * 1024 * 1024
_LATE_S = 3600.0  # from the end of waiting, and again from a decision on
_MOST_ENDED = 1000


class Answer(StrEnum):
    """What came of a pending approval."""

    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"


class State(StrEnum):
    """Where an approval stands.

    `waiting`: its client waits; `late`: nobody waits any more, and it can still be answered; `approved`: the same calls
    go out when they come again; `denied`; `released`: the calls have gone out; `lapsed`: nobody answered in time, or
    the approved calls did not come again.
    """

    WAITING = "waiting"
    LATE = "late"
    APPROVED = "approved"
    DENIED = "denied"
    RELEASED = "released"
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


_Calls = tuple[str, tuple[bytes, ...]]
"""Whose calls, and their marks in any order."""

_Same = tuple[Word, _Calls]
"""Calls and why they are held: what makes them the same again."""


@dataclass(slots=True)
class _Late:
    approval: Approval
    same: _Same
    until: float
    decided: Answer | None = None


class Approvals:
    """The approvals that are pending in this process. `clock` gives monotonic seconds, `wall` epoch seconds."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        wall: Callable[[], float] = time.time,
        audit: Audit | None = None,
    ) -> None:
        self._clock, self._wall, self._audit = clock, wall, audit or NoAudit()
        self._pending: dict[str, Approval] = {}
        self._late: OrderedDict[str, _Late] = OrderedDict()
        self._ended: OrderedDict[str, Approval] = OrderedDict()  # without content
        self._approved: frozenset[_Calls] = frozenset()  # of those that are late: looked at from other threads
        self._turn = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._pending)

    def pending(self) -> list[Approval]:
        """Those that a client waits for and nobody has answered, oldest first."""
        return list(self._pending.values())

    def late(self) -> list[Approval]:
        """Those that nobody has answered and no client waits for any more; they can still be answered. Oldest first."""
        self._forget()
        return [late.approval for late in self._late.values() if late.decided is None]

    def decided(self) -> list[Approval]:
        """Those that are decided and wait for the same calls to come again. Oldest first."""
        self._forget()
        return [late.approval for late in self._late.values() if late.decided is not None]

    def find(self, identity: str) -> Approval | None:
        """An approval by its id; one that is over has no calls any more, and is forgotten in the end."""
        self._forget()
        if (pending := self._pending.get(identity)) is not None:
            return pending
        late = self._late.get(identity)
        return late.approval if late else self._ended.get(identity)

    def approved(self, scope: str, calls: Sequence[ToolCall]) -> bool:
        """Whether exactly these calls are approved and have not gone out yet. From any thread."""
        return bool(self._approved) and _calls(scope, calls) in self._approved

    # --- who waits --------------------------------------------------------------------------------------------

    async def ask(
        self, case: Case, calls: Sequence[ToolCall], verdict: Verdict, seconds: float, exchange: str = ""
    ) -> tuple[str, Answer]:
        """Waits for people's answer, at most so long; its id, and what came of it. Who answered, `find` tells.

        Where too many wait already nobody is asked: the id is empty then.

        Raises:
            AuditError: it could not be recorded that somebody is asked, or that the calls go out: they must not.
        """
        self._forget()
        same = (verdict.word, _calls(case.scope, calls))
        again = sorted((late for late in self._late.values() if late.same == same), key=lambda late: not late.decided)
        if again and again[0].decided:
            return again[0].approval.id, await self._give(again[0], again[0].decided, exchange)
        if len(self._pending) >= MAX_PENDING:
            return "", Answer.EXPIRED
        now = self._wall()
        approval = Approval(
            f"ap-{token_hex(8)}",
            case.scope,
            tuple(calls),
            verdict,
            asyncio.get_running_loop().create_future(),
            exchange,
            case.request.model,
            max((case.policy.of(call.name).approvers for call in calls), default=1),
            now,
            now + seconds,
        )
        if again:
            before = self._drop(again[0].approval.id).approval
            approval.id, approval.votes = before.id, before.votes
        return approval.id, await self._wait(approval, same, seconds, self._asked(approval, case))

    async def _give(self, late: _Late, answer: Answer, exchange: str) -> Answer:
        """Gives a late answer to the calls that came again."""
        approval = self._drop(late.approval.id).approval
        try:
            if answer is Answer.APPROVED:
                await self._audit.write(Kind.APPROVAL, SELF, _told(approval, "released", exchange=exchange))
        except BaseException:  # not recorded, or its client has left: it is still to be given
            self._put(late)
            raise
        self._end(approval, State.RELEASED if answer is Answer.APPROVED else State.DENIED)
        return answer

    async def _wait(self, approval: Approval, same: _Same, seconds: float, asked: dict[str, Any]) -> Answer:
        self._pending[approval.id] = approval
        answer, recorded = Answer.EXPIRED, False
        try:
            await self._audit.write(Kind.APPROVAL, SELF, asked)
            recorded = True
            given = await _within(approval, seconds)
            if given is Answer.APPROVED:
                await self._audit.write(Kind.APPROVAL, SELF, _told(approval, "released", exchange=approval.exchange))
            answer = given
        finally:
            del self._pending[approval.id]
            if answer is not Answer.EXPIRED:
                self._end(approval, State.RELEASED if answer is Answer.APPROVED else State.DENIED)
            elif recorded:  # out of time, its client has left, or its release could not be recorded
                self._put(_Late(approval, same, self._clock() + _LATE_S, approval.outcome))
                if approval.outcome is None:
                    self._audit.note(Kind.APPROVAL, SELF, _told(approval, "expired"))
                self._forget()
        return answer

    def _asked(self, approval: Approval, case: Case) -> dict[str, Any]:
        """What the audit has of an approval that begins: everything but what the calls say."""
        verdict = approval.verdict
        calls = described(approval.calls, case.request.tool_names, case.policy, self._audit.mark)
        return _told(approval, "asked", exchange=approval.exchange, conversation=approval.conversation) | calls | {
            "needed": approval.needed,
            "word": verdict.word.value,
            "why": verdict.why,
            "policy": case.rulebook.version,
        }  # fmt: skip

    # --- who answers ------------------------------------------------------------------------------------------

    async def decide(self, identity: str, who: str, *, approved: bool, reason: str = "") -> Approval:
        """Records a person's answer and counts it; the approval as it is then. One denial denies.

        Raises:
            UnknownError: there is none of that id.
            DecidedError: it is decided, or over, or that person has approved it already; that is noted, and no more.
            AuditError: it cannot be recorded, and does not count.
        """
        event = "approved" if approved else "denied"
        async with self._turn:  # one after the other: what is recorded is what counts
            try:
                approval = self._to_answer(identity, who, approved=approved)
            except DecidedError as error:
                told = _told(error.approval, "not_counted", answer=event, state=error.approval.state.value)
                self._audit.note(Kind.APPROVAL, who, told)
                raise
            needed = {"needed": approval.needed, "so_far": len(approval.approvers) + approved}
            await self._audit.write(Kind.APPROVAL, who, _told(approval, event, reason=reason) | needed)
            self._count(identity, Vote(who, approved, reason, self._wall()))
            return approval

    def answer(self, identity: str, *, approved: bool, who: str = "") -> bool:
        """Counts an answer that is not recorded; False where there is nothing to be answered like this."""
        try:
            self._to_answer(identity, who, approved=approved)
        except (UnknownError, DecidedError):
            return False
        self._count(identity, Vote(who, approved, "", self._wall()))
        return True

    def _to_answer(self, identity: str, who: str, *, approved: bool) -> Approval:
        approval = self.find(identity)
        if approval is None:
            raise UnknownError(f"there is no approval {identity}, or it was long ago")
        if approval.state is State.LAPSED:
            raise DecidedError("it has expired, and cannot be answered any more", approval)
        if approval.state not in OPEN:
            raise DecidedError(f"it is {approval.state} already", approval)
        if approved and who in approval.approvers:
            raise DecidedError(f"{who} has approved it already, and another person must", approval)
        return approval

    def _count(self, identity: str, vote: Vote) -> None:
        """Counts an answer where it is still to be answered: a moment may have passed."""
        approval = self.find(identity)
        if approval is None or approval.state not in OPEN:
            return
        approval.votes.append(vote)
        if (answer := approval.outcome) is None:
            return
        approval.state = State.APPROVED if answer is Answer.APPROVED else State.DENIED
        if (late := self._late.get(identity)) is not None:
            late.decided, late.until = answer, self._clock() + _LATE_S
            self._index()
        elif not approval.answer.done():  # else its client is leaving in this moment
            approval.answer.set_result(answer)

    # --- what is kept -----------------------------------------------------------------------------------------

    def _put(self, late: _Late) -> None:
        approval = late.approval
        states = {None: State.LATE, Answer.APPROVED: State.APPROVED, Answer.DENIED: State.DENIED}
        approval.state = states[late.decided]
        self._late[approval.id] = late
        self._index()

    def _drop(self, identity: str) -> _Late:
        late = self._late.pop(identity)
        self._index()
        return late

    def _index(self) -> None:
        self._approved = frozenset(late.same[1] for late in self._late.values() if late.decided is Answer.APPROVED)

    def _end(self, approval: Approval, state: State) -> None:
        approval.state = state
        verdict = replace(approval.verdict, findings=(), substitute=None)
        self._ended[approval.id] = replace(approval, calls=(), verdict=verdict)
        while len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)

    def _forget(self) -> None:
        """What is over, and the oldest of what is too much."""
        now = self._clock()
        for identity in [identity for identity, late in self._late.items() if late.until < now]:
            self._lapse(identity)
        size = sum(late.approval.size for late in self._late.values())
        while len(self._late) > _MOST_LATE or size > _MOST_LATE_CHARACTERS:
            size -= self._lapse(next(iter(self._late))).size

    def _lapse(self, identity: str) -> Approval:
        late = self._drop(identity)
        if late.decided is Answer.DENIED:
            self._end(late.approval, State.DENIED)
        else:
            self._end(late.approval, State.LAPSED)
            self._audit.note(Kind.APPROVAL, SELF, _told(late.approval, "lapsed"))
        return late.approval


def _calls(scope: str, calls: Sequence[ToolCall]) -> _Calls:
    return scope, tuple(sorted(whole_mark(call) for call in calls))


def _told(approval: Approval, event: str, **more: Any) -> dict[str, Any]:
    """What the audit has of a step."""
    return {"event": event, "id": approval.id, **more}


async def _within(approval: Approval, seconds: float) -> Answer:
    try:
        async with asyncio.timeout(seconds):
            return await approval.answer
    except TimeoutError:
        return approval.outcome or Answer.EXPIRED  # at the very last moment
