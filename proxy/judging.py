"""From a whole choice to what becomes of it: its verdict, people's answer, and what is recorded before it goes out."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson
import structlog

from proxy import refusal
from proxy.approvals import Answer, Approval, Approvals
from proxy.audit import AuditError, Witness, engine
from proxy.switch import Mode
from proxy.together import Together
from shadow.choice import ChoiceReport
from shadow.countersign import Countersigning
from shadow.exchange import Choice, Request
from shadow.judge import Case, Judged
from shadow.reference import TOO_LATE
from validators import Finding, ToolCall, Word
from validators.decision import Opinion, Verdict
from validators.policy import Action

log = structlog.get_logger("counterproof.block")

# More of these are checked in a thread: any call may take 0.1 s, by its arguments, its tool's schema or the rules.
_ASIDE = 16_384  # characters of arguments, and four times those of the schemas
_ASIDE_CALLS = 8


Aside = Callable[[Callable[[Sequence[ToolCall]], list[Finding]], Sequence[ToolCall]], Awaitable[list[Finding]]]
"""Has calls checked in a thread."""


def takes_long(request: Request, calls: Sequence[ToolCall]) -> bool:
    """Whether checking calls may take longer than an event loop is to wait, by what is told without checking them."""
    if len(calls) > _ASIDE_CALLS:
        return True
    schemas = {tool["name"]: tool.get("parameters") for tool in request.tools}
    work = sum(len(call.arguments) for call in calls)
    for call in calls:
        if work <= _ASIDE and schemas.get(call.name):
            work += 4 * _size(schemas[call.name])
    return work > _ASIDE


def _size(schema: Any) -> int:
    """Bytes of a schema's JSON; of one that cannot be written at once, more than are checked at once."""
    try:
        return len(orjson.dumps(schema))
    except TypeError:
        return _ASIDE


class Record(Protocol):
    """Who is told what was done with held calls."""

    def judged(
        self, exchange: str, request: Request, judged: Judged, done: str, waited: float | None, conversation: str = ""
    ) -> None:
        """A choice's calls were decided about; `done` is the action in the contract's words, `waited` in seconds."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one choice: `message` is what is said instead, None where calls go out.

    Those are `calls`, or the choice's own where there are none.
    """

    verdict: Verdict
    done: str
    message: str | None = None
    calls: tuple[ToolCall, ...] = ()


_LEFT = Fate(Verdict(Word.UNVERIFIED, Action.RELEASE, why="left"), "released")  # to the mirror, which judges it


class Judging:
    """The choices of one exchange, each judged and recorded once. What goes out waits for `together`.

    `modes` says which mode each tool's calls are in; those of a choice are judged together if any of them is in block.
    """

    def __init__(
        self,
        exchange: str,
        case: Case,
        signing: Countersigning,
        approvals: Approvals,
        record: Record,
        witness: Witness,
        modes: Callable[[str], Mode] = lambda _tool: "block",
        clock: Callable[[], float] = time.monotonic,
        aside: Aside = asyncio.to_thread,
    ) -> None:
        self.exchange, self.case, self.signing = exchange, case, signing
        self.together = Together().free()
        self.left: set[int] = set()  # the choices that are left to the mirror
        self.leaving: set[int] = set()  # the places whose calls are being recorded as going out
        self._told: set[int] = set()  # the places that are recorded
        self._approvals, self._record, self._witness = approvals, record, witness
        self._modes, self._clock, self._aside = modes, clock, aside
        self._ways: dict[str, str] = {}  # how each reference was asked

    async def judge(self, place: int, choice: Choice) -> Fate:
        """What becomes of a choice; `place` tells it apart. Never raises: what cannot be judged does not go out."""
        if choice.calls and all(self._modes(call.name) != "block" for call in choice.calls):
            self.left.add(choice.index)
            self.together.passed(place)
            return _LEFT
        began = self._clock()
        try:
            fate = await self._fate(place, choice, await self._verdict(choice))
        except Exception as error:  # noqa: BLE001  (a fault of ours must not let a call out, nor leave it held)
            log.error("a call was not judged", exchange=self.exchange, error=type(error).__name__)
            verdict = Verdict(Word.UNVERIFIED, Action.REFUSE, why="internal_error")
            fate = Fate(verdict, "refused", refusal.unread(self.exchange))
        if fate.message is not None:
            self.together.refused(place, fate.message)
        await self._tell(place, choice, fate, self._clock() - began)
        return fate

    async def fell(self, place: int, choice: Choice) -> Fate:
        """A choice that is not judged, or not to the end, since nothing of its answer goes out any more."""
        verdict = Verdict(Word.UNVERIFIED, Action.REFUSE, why="beside_refused")
        fate = Fate(verdict, "refused", self.together.message)
        if place not in self._told and choice.calls:
            await self._tell(place, choice, fate, 0.0)
        return fate

    # --- the verdict ------------------------------------------------------------------------------------------

    async def _verdict(self, choice: Choice) -> Verdict:
        calls = choice.calls
        long = takes_long(self.case.request, calls)
        own = await self._aside(self.case.own, calls) if long else self.case.own(calls)
        asked = self.signing.references if self.case.policy.agree else []
        opinions = {r.name: Opinion(r.name, twin=False, findings=None) for r in asked}

        def decide(*, expired: bool = False) -> Verdict | None:
            return self.case.decide(calls, own, list(opinions.values()), expired=expired)

        if (verdict := decide()) is not None:
            return verdict
        waits = {self.signing.ask(reference, choice, self.case.rulebook.compare): reference for reference in asked}
        deadline = self._clock() + self.case.verify_timeout(calls)
        unexplained = False
        try:
            while verdict is None and waits and (left := deadline - self._clock()) > 0:
                done, _ = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    name, report = waits.pop(task).name, task.result()
                    opinions[name] = self._opinion(name, report)
                    unexplained = unexplained or (report.failed is not None and report.own is not None)
                verdict = decide()
            if verdict is None:  # that its calls are others counts, though there was no time to tell why
                for reference in waits.values():
                    if (said := self.signing.so_far(reference, choice)) is not None:
                        opinions[reference.name] = self._opinion(reference.name, said)
                        unexplained = True
        finally:
            why = TOO_LATE if self._clock() >= deadline else None
            for task in waits:
                task.cancel(why)
        verdict = verdict or decide(expired=True)
        assert verdict is not None  # who has not answered will not
        # Why they differ may be harmless, and is not known for want of an answer: the same call may come again.
        return replace(verdict, remember=()) if unexplained else verdict

    def _opinion(self, name: str, report: ChoiceReport) -> Opinion:
        self._ways[name] = way = report.ways[0] if report.ways else ""
        return Opinion(name, twin=False, findings=tuple(report.findings), calls=report.reference_calls, way=way)

    # --- what becomes of it -----------------------------------------------------------------------------------

    async def _fate(self, place: int, choice: Choice, verdict: Verdict) -> Fate:
        match verdict.action:
            case Action.RELEASE:
                return await self._leave(place, choice, Fate(verdict, "released"))
            case Action.SUBSTITUTE if verdict.substitute:
                return await self._leave(place, choice, Fate(verdict, "substituted", calls=verdict.substitute))
            case Action.HOLD:
                return await self._asked(place, choice, verdict)
        return Fate(verdict, "refused", refusal.text(verdict, self.exchange))

    async def _asked(self, place: int, choice: Choice, verdict: Verdict) -> Fate:
        """What people say, or what is said where nobody does in time."""
        tools = [call.name for call in choice.calls]
        seconds = min((self.case.policy.of(name).approval_timeout for name in tools), default=0.0)
        fate = Fate(verdict, "released")

        async def leaving(approval: Approval, record: Callable[[], Awaitable[None]]) -> bool:
            nonlocal fate
            fate = await self._leave(place, choice, fate, approval, record)
            return fate.message is None

        try:
            identity, answer = await self._approvals.ask(
                self.case, choice.calls, verdict, seconds, self.exchange, leaving
            )
        except AuditError:
            return self._unrecorded(choice, verdict)
        if answer is Answer.APPROVED:
            return fate
        if answer is Answer.DENIED:
            return Fate(verdict, "refused", refusal.denied(tools, self.exchange))
        return Fate(verdict, "held", refusal.pending(tools, identity, self.exchange))

    async def _leave(
        self,
        place: int,
        choice: Choice,
        fate: Fate,
        approval: Approval | None = None,
        record: Callable[[], Awaitable[None]] | None = None,
    ) -> Fate:
        """What becomes of calls that may go out: they do once the audit has it, with all that they depend on.

        What must not go out unrecorded does not. What is recorded and does not go out after all is recorded once more.
        """
        if not await self.together.decided(place):
            return self._beside(fate.verdict)
        self.leaving.add(place)
        try:
            await self._see(choice, fate, approval)
            if record is not None:
                await record()
        except AuditError:
            return self._unrecorded(choice, fate.verdict)
        return fate if await self.together.recorded(place) else self._beside(fate.verdict)

    def _beside(self, verdict: Verdict) -> Fate:
        """A choice of an answer that is refused for another of its choices."""
        fallen = replace(verdict, action=Action.REFUSE, why="beside_refused", substitute=None, remember=())
        return Fate(fallen, "refused", self.together.message)

    def _unrecorded(self, choice: Choice, verdict: Verdict) -> Fate:
        message = refusal.unrecorded([call.name for call in choice.calls], self.exchange)
        return Fate(replace(verdict, why="unrecorded", substitute=None), "held", message)

    # --- the record -------------------------------------------------------------------------------------------

    async def _tell(self, place: int, choice: Choice, fate: Fate, waited: float) -> None:
        """What was done, for everybody who keeps it; that something goes out, the audit has already."""
        self._told.add(place)
        verdict, done = fate.verdict, fate.done
        try:
            if fate.message is not None:
                await self._see(choice, fate)
            denied = verdict.action is Action.HOLD and done == "refused"
            self.case.settle(choice.calls, verdict, released=done == "released", denied=denied)
            judged = Judged(choice.index, choice.calls, verdict)
            self._record.judged(self.exchange, self.case.request, judged, done, waited, self.case.conversation)
        except Exception as error:  # noqa: BLE001  (a record that cannot be made must not keep an answer back)
            log.error("a verdict was not recorded", exchange=self.exchange, error=type(error).__name__)

    async def _see(self, choice: Choice, fate: Fate, approval: Approval | None = None) -> None:
        await self._witness.see(
            self.exchange,
            self.case,
            Judged(choice.index, choice.calls, fate.verdict),
            fate.done,
            ways=self._ways,
            engines=self._engines(),
            approval=approval.receipt() if approval else None,
        )

    def _engines(self) -> list[dict[str, Any]]:
        """Who answered and who was asked, as far as they told of themselves."""
        asked = [engine(reference.name, reference.role, reference.peer.can) for reference in self.signing.references]
        return [engine("primary", "primary", self.signing.primary.can), *asked]
