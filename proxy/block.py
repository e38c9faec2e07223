"""Block mode: drives one exchange's gate, so that no tool call goes out before its verdict.

`Holding` is made when the request arrives (it keeps the mode and the rulebook it began with), has the references
warmed, and takes the answer's bytes to the client through the gate. Reading from the primary goes on while a verdict
is worked out; what the primary says is never waited for longer than it takes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from proxy import refusal
from proxy.approvals import Answer as Approval
from proxy.approvals import Approvals
from proxy.audit import AuditError, Witness, engine
from proxy.gate import REST, Gate, HeldTooMuchError, Signal, Whole
from proxy.http import Refusal
from proxy.switch import Mode
from shadow.countersign import Countersigning
from shadow.exchange import Choice, Request
from shadow.judge import Case, Judged
from shadow.tasks import Tasks, Wait
from validators import ToolCall, Word
from validators.decision import Opinion, Verdict
from validators.policy import Action

log = structlog.get_logger("counterproof.block")

_ASIDE = 16_384  # characters of arguments; more of them are checked in a thread: it may take 0.1 s for each call
Next = Callable[[], Awaitable[bytes]]


class Out(Protocol):
    """The client's side of an answer."""

    @property
    def begun(self) -> bool:
        """Whether the answer's status is out."""

    async def write(self, data: bytes) -> None:
        """Sends some of the answer, its head first."""

    async def refuse(self, refused: Refusal) -> None:
        """Answers with an error instead; only while nothing has begun."""


class Record(Protocol):
    """Who is told what was done with held calls."""

    def judged(
        self, exchange: str, request: Request, judged: Judged, done: str, waited: float | None, conversation: str = ""
    ) -> None:
        """A choice's calls were decided about; `done` is the action in the contract's words, `waited` in seconds."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How refusals are made: `form` message or error, times in seconds (`keepalive` None adds nothing)."""

    form: str = "message"
    keepalive: float | None = None
    status_wait: float = 20.0
    unread_passes: bool = False


@dataclass(slots=True)
class _Fate:
    """What becomes of one choice: `verdict` None where nothing could be judged; `message` is what is said instead."""

    verdict: Verdict | None
    done: str
    message: str | None = None
    calls: tuple[ToolCall, ...] = ()
    approval: str = ""


@dataclass(slots=True)
class _Pending:
    """What waits to be sent while a refusal may still be an answer of its own."""

    data: list[bytes] = field(default_factory=list)
    open: bool = False


class Holding:
    """One exchange in block mode. `close` it when the exchange is over.

    `modes` says which mode each tool's calls are in; those of a choice are judged together if any of them is in block.
    """

    def __init__(
        self,
        exchange: str,
        case: Case,
        signing: Countersigning,
        terms: Terms,
        approvals: Approvals,
        record: Record,
        witness: Witness,
        modes: Callable[[str], Mode] = lambda _tool: "block",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.exchange, self.case, self.signing, self.terms = exchange, case, signing, terms
        self.acted = ""
        self._approvals, self._record, self._witness = approvals, record, witness
        self._modes, self._clock = modes, clock
        self._ways: dict[str, str] = {}  # how each reference was asked
        self.left: set[int] = set()  # the choices that are left to the mirror
        self._tasks = Tasks("gate")
        self._judging: dict[int, Wait[_Fate]] = {}
        self._pending = _Pending(open=not refusal.needs_status(case.request, terms.form))
        self._turn: asyncio.Lock | None = None  # only where two may write: no lock on the way of plain text
        self._rest_held = self._over = False

    def warm(self) -> None:
        """The request is on its way: the references read its prompt, if it may bring calls."""
        if self.case.request.tool_choice != "none":
            self.signing.warm()

    async def close(self) -> None:
        """Ends what is still asked and waited for."""
        await self._tasks.close()
        await self.signing.close()

    # --- an answer that streams -------------------------------------------------------------------------------

    async def stream(self, following: Next, gate: Gate, out: Out) -> None:
        """Takes a whole stream through its gate to the client; `following` gives the primary's bytes, b"" at their end.

        What `following` raises is raised here: what was held then is gone, and nothing of it went out.
        """
        if not self._pending.open or self.terms.keepalive:
            self._turn = asyncio.Lock()
            self._tasks.start("minder", self._mind(gate, out))
        try:
            while data := await following():
                ready = gate.feed(data)
                if self._turn is None and out.begun:  # on the way of plain text
                    if ready and not self._over:
                        await out.write(ready)
                else:
                    await self._send(ready, gate, out)
                if gate.behind:
                    await asyncio.sleep(0)  # the loop writes at the end of its turn: only then is there time to read
                self._follow(gate)
                await self._deliver(gate, out)
        except HeldTooMuchError:
            await self._refuse_all(gate, out, refusal.too_large(self.exchange))
            return
        await self._send(gate.end(), gate, out)
        self._follow(gate)
        if self._rest_held and not self.terms.unread_passes:
            await self._refuse_all(gate, out, refusal.unread(self.exchange))
        elif self._rest_held:
            await self._send(gate.decide(REST, None), gate, out)
        while self._judging:
            await asyncio.wait(self._judging.values(), return_when=asyncio.FIRST_COMPLETED)
            await self._deliver(gate, out)
        await self._send(b"", gate, out, at_once=True)

    def _follow(self, gate: Gate) -> None:
        """Does what the gate's signals ask for."""
        request = self.case.request
        demanded = request.tool_choice in {"required", "named"}
        stops = bool(request.body.get("stop"))
        for signal, index in gate.signals():
            if index == REST:
                self._rest_held = True
            elif signal is Signal.CLOSED:
                self._judging[index] = self._tasks.start(f"judge:{index}", self._judge(gate.choice(index)))
            elif signal is Signal.RESUMED:
                self.signing.forget(index)
            elif signal is Signal.HELD or (demanded if signal is Signal.BEGUN else not stops):
                self.signing.begin(gate.choice(index))

    async def _deliver(self, gate: Gate, out: Out) -> None:
        """Sends what has been decided."""
        for index in [index for index, task in self._judging.items() if task.done()]:
            fate = self._judging.pop(index).result()
            self._acted(fate)
            if fate.message is not None and refusal.needs_status(self.case.request, self.terms.form):
                await self._refuse_as_error(gate, out, fate.message)
                return
            if index in gate.undecided():
                await self._send(gate.decide(index, self._instead(gate, index, fate)), gate, out)

    def _acted(self, fate: _Fate) -> None:
        if fate.done != "released":
            self.acted = fate.done

    def _instead(self, gate: Gate, index: int, fate: _Fate) -> bytes | None:
        """What stands in the place of a choice's calls, None where they go out."""
        if fate.message is None and not fate.calls:
            return None  # at once: what was said is put together anew for each question about it
        if fate.message is not None:
            return gate.refused(index, fate.message)
        return gate.substituted(index, fate.calls)

    async def _refuse_all(self, gate: Gate, out: Out, message: str) -> None:
        """Nothing that is held goes out: what cannot be read, or not be held, spoils the calls beside it."""
        self.acted = "refused"
        self._stop_judging()
        if refusal.needs_status(self.case.request, self.terms.form):
            await self._refuse_as_error(gate, out, message)
            return
        fate, held = _Fate(None, "refused", message), gate.undecided()
        for index in [] if gate.over else gate.unfinished():
            await self._send(self._instead(gate, index, fate) or b"", gate, out)
        for index in sorted(held, reverse=True):  # REST last
            said = b"" if index == REST or gate.over else self._instead(gate, index, fate)
            await self._send(gate.decide(index, said), gate, out)

    async def _refuse_as_error(self, gate: Gate, out: Out, message: str) -> None:
        """An answer of its own while none has begun; then the stream is read on, for the record only."""
        self._stop_judging()
        gate.drop()
        if out.begun:
            await self._send(gate.error(message) + gate.flush(), gate, out, at_once=True)
        else:
            self._pending.data.clear()
            self._over = True
            await out.refuse(refusal.as_status(message))

    def _stop_judging(self) -> None:
        for task in self._judging.values():
            task.cancel()
        self._judging.clear()

    async def _send(self, data: bytes, gate: Gate, out: Out, *, at_once: bool = False) -> None:
        """To the client, or to what waits while a refusal may still be an answer of its own."""
        if self._over or not (data or at_once):
            return
        if self._turn is None:
            await out.write(data)
            return
        async with self._turn:
            pending = self._pending
            pending.data.append(data)
            pending.open = pending.open or at_once or (self.terms.form == "error" and gate.spoke)
            if pending.open:
                ready, pending.data = b"".join(pending.data), []
                await out.write(ready)

    async def _mind(self, gate: Gate, out: Out) -> None:
        """Opens an answer whose verdict takes long, and lets its client know that it is alive, where that is wanted."""
        if not self._pending.open:
            await asyncio.sleep(self.terms.status_wait)
            await self._send(b"", gate, out, at_once=True)
        while self.terms.keepalive:
            await asyncio.sleep(self.terms.keepalive)
            if gate.waiting:
                await self._send(gate.keepalive(), gate, out)

    # --- an answer that does not stream -----------------------------------------------------------------------

    async def whole(self, answer: Whole | None, body: bytes) -> bytes | Refusal:
        """A whole answer (None: it cannot be read), judged; `body` is what the client gets where nothing is refused."""
        held = answer.held if answer else None
        if (answer is None or held is None) and not self.terms.unread_passes:
            self.acted = "refused"
            return refusal.as_status(refusal.unread(self.exchange))
        judging = {i: self._tasks.start(f"judge:{i}", self._judge(choice)) for i, choice in (held or {}).items()}
        instead: dict[int, str | tuple[ToolCall, ...]] = {}
        for place, task in judging.items():
            fate = await task
            self._acted(fate)
            if fate.message is not None and refusal.needs_status(self.case.request, self.terms.form):
                return refusal.as_status(fate.message)
            if fate.message is not None or fate.calls:
                instead[place] = fate.calls if fate.message is None else fate.message
        return answer.replaced(instead) if answer and instead else body

    def refuse_size(self) -> Refusal:
        """A whole answer is larger than what may be held."""
        self.acted = "refused"
        return refusal.as_status(refusal.too_large(self.exchange))

    # --- the verdict ------------------------------------------------------------------------------------------

    async def _judge(self, choice: Choice) -> _Fate:
        """From a whole choice to what becomes of it. Never raises: what cannot be judged does not go out."""
        if choice.calls and all(self._modes(call.name) != "block" for call in choice.calls):
            self.left.add(choice.index)
            return _Fate(None, "released")
        began = self._clock()
        try:
            verdict = await self._verdict(choice)
            fate = await self._recorded(choice, verdict, await self._fate(choice, verdict))
        except Exception as error:  # noqa: BLE001  (a fault of ours must not let a call out, nor leave it held)
            log.error("a call was not judged", exchange=self.exchange, error=type(error).__name__)
            verdict = Verdict(Word.UNVERIFIED, Action.REFUSE, why="internal_error")
            fate = _Fate(None, "refused", refusal.unread(self.exchange))
        try:
            self._note(choice, verdict, fate.done, self._clock() - began)
        except Exception as error:  # noqa: BLE001  (a record that cannot be made must not keep an answer back)
            log.error("a verdict was not recorded", exchange=self.exchange, error=type(error).__name__)
        return fate

    async def _recorded(self, choice: Choice, verdict: Verdict, fate: _Fate) -> _Fate:
        """What becomes of a choice, once the audit has it: what must not go out unrecorded does not."""
        approval = self._approvals.find(fate.approval)
        try:
            await self._witness.see(
                self.exchange,
                self.case,
                Judged(choice.index, choice.calls, verdict),
                fate.done,
                ways=self._ways,
                engines=self._engines(),
                approval=approval.receipt() if approval else None,
            )
        except AuditError:
            return self._unrecorded(choice, verdict)
        return fate

    def _engines(self) -> list[dict[str, Any]]:
        """Who answered and who was asked, as far as they told of themselves."""
        asked = [engine(reference.name, reference.role, reference.peer.can) for reference in self.signing.references]
        return [engine("primary", "primary", self.signing.primary.can), *asked]

    def _unrecorded(self, choice: Choice, verdict: Verdict) -> _Fate:
        return _Fate(verdict, "held", refusal.unrecorded([call.name for call in choice.calls], self.exchange))

    def _note(self, choice: Choice, verdict: Verdict, done: str, waited: float) -> None:
        denied = verdict.action is Action.HOLD and done == "refused"
        self.case.settle(choice.calls, verdict, released=done == "released", denied=denied)
        judged = Judged(choice.index, choice.calls, verdict)
        self._record.judged(self.exchange, self.case.request, judged, done, waited, self.case.conversation)

    async def _verdict(self, choice: Choice) -> Verdict:
        calls = choice.calls
        large = sum(len(call.arguments) for call in calls) > _ASIDE
        own = await asyncio.to_thread(self.case.own, calls) if large else self.case.own(calls)
        asked = self.signing.references if self.case.policy.agree else []
        opinions = {r.name: Opinion(r.name, twin=False, findings=None) for r in asked}

        def decide(*, expired: bool = False) -> Verdict | None:
            return self.case.decide(calls, own, list(opinions.values()), expired=expired)

        if (verdict := decide()) is not None:
            return verdict
        waits = {self.signing.ask(reference, choice, self.case.rulebook.compare): reference for reference in asked}
        deadline = self._clock() + self.case.verify_timeout(calls)
        try:
            while verdict is None and waits and (left := deadline - self._clock()) > 0:
                done, _ = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    name, report = waits.pop(task).name, task.result()
                    self._ways[name] = way = report.ways[0] if report.ways else ""
                    opinions[name] = Opinion(
                        name, twin=False, findings=tuple(report.findings), calls=report.reference_calls, way=way
                    )
                verdict = decide()
        finally:
            for task in waits:
                task.cancel()
        verdict = verdict or decide(expired=True)
        assert verdict is not None  # who has not answered will not
        return verdict

    async def _fate(self, choice: Choice, verdict: Verdict) -> _Fate:
        match verdict.action:
            case Action.RELEASE:
                return _Fate(verdict, "released")
            case Action.SUBSTITUTE if verdict.substitute:
                return _Fate(verdict, "substituted", calls=verdict.substitute)
            case Action.HOLD:
                return await self._asked(choice, verdict)
        return _Fate(verdict, "refused", refusal.text(verdict, self.exchange))

    async def _asked(self, choice: Choice, verdict: Verdict) -> _Fate:
        """What people say, or what is said where nobody does in time."""
        tools = [call.name for call in choice.calls]
        seconds = min((self.case.policy.of(name).approval_timeout for name in tools), default=0.0)
        try:
            identity, answer = await self._approvals.ask(self.case, choice.calls, verdict, seconds, self.exchange)
        except AuditError:
            return self._unrecorded(choice, verdict)
        if answer is Approval.APPROVED:
            return _Fate(verdict, "released", approval=identity)
        if answer is Approval.DENIED:
            return _Fate(verdict, "refused", refusal.denied(tools, self.exchange))
        return _Fate(verdict, "held", refusal.pending(tools, identity, self.exchange))
