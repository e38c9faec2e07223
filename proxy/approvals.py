"""Calls that wait for people: kept while their client waits, answered by whoever may, or by the clock.

A client does not wait forever, and the refusal that it gets then says that the same call may be made again once it is
approved. So what nobody waits for any more can still be decided for a while, and the answer is given, once, to the
same calls of the same conversation when they come again for the same reason. Where one of them goes out another way
meanwhile, nothing is left to be given. The audit has each step before it counts.
"""

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from threading import Lock
from typing import Any

from proxy.approval import OPEN, Answer, Approval, DecidedError, State, UnknownError, Vote
from proxy.audit import SELF, Audit, Kind, NoAudit
from proxy.audit.canonical import canonical_call
from proxy.audit.receipts import described
from shadow.judge import Case
from validators import ToolCall, Word
from validators.decision import Verdict

__all__ = ["MAX_PENDING", "OPEN", "Answer", "Approval", "Approvals", "DecidedError", "Leaving", "State", "UnknownError"]

MAX_PENDING = 1000
"""So many calls wait at once; one more is not asked about."""

_MOST_LATE = 1000
_MOST_LATE_CHARACTERS = 64 * 1024 * 1024
_LATE_S = 3600.0  # from the end of waiting, and again from a decision on
_MOST_ENDED = 1000


Leaving = Callable[[Approval, Callable[[], Awaitable[None]]], Awaitable[bool]]
"""Takes approved calls out: awaits what must be so first, then the record that is handed to it; whether they go out."""

_Calls = tuple[str, tuple[bytes, ...]]
"""Whose calls, and their marks in any order: as exact as receipts, for a person saw these calls and no others."""

_Same = tuple[Word, _Calls]
"""Calls and why they are held: what makes them the same again."""


@dataclass(slots=True)
class _Kept:
    """An approval that is not over, and what it was `decided` to be; `until` counts once nobody waits."""

    approval: Approval
    same: _Same
    until: float = 0.0
    decided: Answer | None = None
    erased: bool = False


async def _at_once(_approval: Approval, record: Callable[[], Awaitable[None]]) -> bool:
    await record()
    return True


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
        self._pending: dict[str, _Kept] = {}
        self._leaving: dict[str, _Kept] = {}  # approved, and on their way out
        self._late: OrderedDict[str, _Kept] = OrderedDict()
        self._ended: OrderedDict[str, Approval] = OrderedDict()  # without content
        self._approved: frozenset[_Calls] = frozenset()  # of those that are late: looked at from other threads
        self._gone: deque[tuple[_Calls, str]] = deque()  # what went out, told by any thread, to be seen to in the loop
        self._shared = Lock()  # over these two
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._pending)

    def pending(self) -> list[Approval]:
        """Those that a client waits for and nobody has answered, oldest first."""
        return [kept.approval for kept in self._pending.values()]

    def late(self) -> list[Approval]:
        """Those that nobody has answered and no client waits for any more; they can still be answered. Oldest first."""
        self._forget()
        return [late.approval for late in self._late.values() if late.decided is None]

    def decided(self) -> list[Approval]:
        """Those that are decided and wait for the same calls to come again, or go out just now. Oldest first."""
        self._forget()
        waiting = [late.approval for late in self._late.values() if late.decided is not None]
        return waiting + [kept.approval for kept in self._leaving.values()]

    def find(self, identity: str) -> Approval | None:
        """An approval by its id; one that is over has no calls any more, and is forgotten in the end."""
        self._forget()
        for kept in (self._pending, self._leaving, self._late):
            if identity in kept:
                return kept[identity].approval
        return self._ended.get(identity)

    def approved(self, scope: str, calls: Sequence[ToolCall]) -> bool:
        """Whether exactly these calls are approved and have not gone out yet. From any thread."""
        if not self._approved:
            return False
        same = _calls(scope, calls)
        with self._shared:
            return same in self._approved and not any(_share(same, gone) for gone, _exchange in self._gone)

    def went_out(self, scope: str, calls: Sequence[ToolCall], exchange: str = "") -> None:
        """These calls have gone out, whoever let them: what was asked about any of them passes nothing later.

        Who waits for it still gets the answer. From any thread.
        """
        if not calls or self._loop is None or not (self._pending or self._leaving or self._late):
            return
        with self._shared:
            self._gone.append((_calls(scope, calls), exchange))
        with contextlib.suppress(RuntimeError):  # the loop has ended, and all approvals with it
            self._loop.call_soon_threadsafe(self._forget)

    def erase(self, conversation: str, who: str) -> int:
        """Ends what was asked about a conversation's calls, so that nothing they say is kept; how many there were.

        What was decided stays known without them, and passes nothing later. Who waits gets no answer any more.
        """
        self._forget()
        of = [late.approval for late in self._late.values() if late.approval.conversation == conversation]
        for approval in of:
            self._audit.note(Kind.APPROVAL, who, _told(approval, "erased"))
            self._lapse(approval.id)
        waiting = [
            kept
            for kept in (*self._pending.values(), *self._leaving.values())
            if kept.approval.conversation == conversation and not kept.erased
        ]
        for kept in waiting:
            self._audit.note(Kind.APPROVAL, who, _told(kept.approval, "erased"))
            kept.erased = True
            kept.approval.calls = ()
            if not kept.approval.answer.done():
                kept.approval.answer.set_result(Answer.EXPIRED)
        return len(of) + len(waiting)

    # --- who waits --------------------------------------------------------------------------------------------

    async def ask(
        self,
        case: Case,
        calls: Sequence[ToolCall],
        verdict: Verdict,
        seconds: float,
        exchange: str = "",
        leaving: Leaving = _at_once,
    ) -> tuple[str, Answer]:
        """Waits for people's answer, at most so long; its id, and what came of it. Who answered, `find` tells.

        Approved calls go out by `leaving`, and only then is the approval used up: where they do not, it stays as one
        whose calls can come again. Where too many wait already nobody is asked: the id is empty then.

        Raises:
            AuditError: it could not be recorded that somebody is asked, or that the calls go out: they must not.
        """
        self._loop = asyncio.get_running_loop()
        self._forget()
        same = (verdict.word, _calls(case.scope, calls))
        again = sorted((late for late in self._late.values() if late.same == same), key=lambda late: not late.decided)
        if again and again[0].decided:
            kept = self._drop(again[0].approval.id)
            return kept.approval.id, await self._give(kept, exchange, leaving)
        if len(self._pending) >= MAX_PENDING:
            return "", Answer.EXPIRED
        now = self._wall()
        approval = Approval(
            f"ap-{token_hex(8)}",
            case.scope,
            tuple(calls),
            verdict,
            self._loop.create_future(),
            exchange,
            case.request.model,
            max((case.policy.of(call.name).approvers for call in calls), default=1),
            now,
            now + seconds,
        )
        if again:
            before = self._drop(again[0].approval.id).approval
            approval.id, approval.votes = before.id, before.votes
        return approval.id, await self._wait(_Kept(approval, same), seconds, self._asked(approval, case), leaving)

    async def _give(self, kept: _Kept, exchange: str, leaving: Leaving) -> Answer:
        """Gives an answer to calls that are there to have it; approved ones leave."""
        approval, answer = kept.approval, kept.decided or Answer.EXPIRED
        if answer is Answer.DENIED:
            self._end(approval, State.DENIED)
            return answer
        recorded = gone = False

        async def record() -> None:
            nonlocal recorded
            await self._audit.write(Kind.APPROVAL, SELF, _told(approval, "released", exchange=exchange))
            recorded = True

        self._leaving[approval.id] = kept
        try:
            gone = await leaving(approval, record)
        finally:  # where it was not recorded, or its client has left: it is still to be given
            del self._leaving[approval.id]
            if gone:
                self._end(approval, State.RELEASED)
                self._overtake(kept.same[1], exchange)
            else:
                if recorded:
                    self._audit.note(Kind.APPROVAL, SELF, _told(approval, "kept", exchange=exchange))
                self._put(kept)
        return answer

    async def _wait(self, kept: _Kept, seconds: float, asked: dict[str, Any], leaving: Leaving) -> Answer:
        approval = kept.approval
        self._pending[approval.id] = kept
        recorded, answer = False, Answer.EXPIRED
        try:
            await self._audit.write(Kind.APPROVAL, SELF, asked)
            recorded = True
            answer = await _within(approval, seconds)
        finally:
            del self._pending[approval.id]
            if recorded:
                kept.decided = approval.outcome
                if answer is Answer.EXPIRED:  # out of time, or its client has left
                    self._put(kept)
        return answer if answer is Answer.EXPIRED else await self._give(kept, approval.exchange, leaving)

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

    def _to_answer(self, identity: str, who: str, *, approved: bool) -> Approval:
        approval = self.find(identity)
        if approval is None:
            raise UnknownError(f"there is no approval {identity}, or it was long ago")
        if approval.state is State.LAPSED:
            raise DecidedError("it has expired, and cannot be answered any more", approval)
        if approval.state is State.OVERTAKEN:
            raise DecidedError("the same call has gone out without it, and it passes nothing any more", approval)
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

    def _put(self, kept: _Kept) -> None:
        """Keeps what nobody waits for any more, where it can still be of use."""
        approval, kept.until = kept.approval, self._clock() + _LATE_S
        if kept.decided is None:
            self._audit.note(Kind.APPROVAL, SELF, _told(approval, "expired"))
        if kept.erased:
            self._end(approval, State.DENIED if kept.decided is Answer.DENIED else State.LAPSED)
            return
        if approval.overtaken is not None:
            self._overtaken(kept, approval.overtaken)
            return
        states = {None: State.LATE, Answer.APPROVED: State.APPROVED, Answer.DENIED: State.DENIED}
        approval.state = states[kept.decided]
        self._late[approval.id] = kept
        self._index()
        self._forget()

    def _drop(self, identity: str) -> _Kept:
        late = self._late.pop(identity)
        self._index()
        return late

    def _index(self) -> None:
        with self._shared:
            late = self._late.values()
            self._approved = frozenset(kept.same[1] for kept in late if kept.decided is Answer.APPROVED)

    def _end(self, approval: Approval, state: State) -> None:
        approval.state = state
        verdict = replace(approval.verdict, findings=(), substitute=None)
        self._ended[approval.id] = replace(approval, calls=(), verdict=verdict)
        while len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)

    def _forget(self) -> None:
        """What has gone out, what is over, and the oldest of what is too much."""
        while self._gone:
            self._overtake(*self._gone[0])
            with self._shared:
                self._gone.popleft()  # only now: `approved` looks at one or the other
        now = self._clock()
        for identity in [identity for identity, late in self._late.items() if late.until < now]:
            self._lapse(identity)
        size = sum(late.approval.size for late in self._late.values())
        while len(self._late) > _MOST_LATE or size > _MOST_LATE_CHARACTERS:
            size -= self._lapse(next(iter(self._late))).size

    def _overtake(self, gone: _Calls, exchange: str) -> None:
        """Nothing that was asked about any of these calls passes later."""
        for identity in [identity for identity, late in self._late.items() if _share(late.same[1], gone)]:
            self._overtaken(self._drop(identity), exchange)
        for kept in (*self._pending.values(), *self._leaving.values()):
            if _share(kept.same[1], gone) and kept.approval.overtaken is None:
                kept.approval.overtaken = exchange

    def _overtaken(self, kept: _Kept, exchange: str) -> None:
        if kept.decided is Answer.DENIED:
            self._end(kept.approval, State.DENIED)
        else:
            self._end(kept.approval, State.OVERTAKEN)
            by = {"exchange": exchange} if exchange else {}
            self._audit.note(Kind.APPROVAL, SELF, _told(kept.approval, "overtaken", **by))

    def _lapse(self, identity: str) -> Approval:
        late = self._drop(identity)
        if late.decided is Answer.DENIED:
            self._end(late.approval, State.DENIED)
        else:
            self._end(late.approval, State.LAPSED)
            self._audit.note(Kind.APPROVAL, SELF, _told(late.approval, "lapsed"))
        return late.approval


def _calls(scope: str, calls: Sequence[ToolCall]) -> _Calls:
    return scope, tuple(sorted(hashlib.sha256(canonical_call(call)).digest() for call in calls))


def _share(some: _Calls, others: _Calls) -> bool:
    """Whether any call is among both."""
    return some[0] == others[0] and not set(some[1]).isdisjoint(others[1])


def _told(approval: Approval, event: str, **more: Any) -> dict[str, Any]:
    """What the audit has of a step."""
    return {"event": event, "id": approval.id, **more}


async def _within(approval: Approval, seconds: float) -> Answer:
    try:
        async with asyncio.timeout(seconds):
            return await approval.answer
    except TimeoutError:
        return approval.outcome or Answer.EXPIRED  # at the very last moment
