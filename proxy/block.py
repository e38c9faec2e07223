"""Block mode: drives one exchange's gate, so that no tool call goes out before its verdict.

`Holding` is made when the request arrives (it keeps the mode and the rulebook it began with), has the references
warmed, and takes the answer's bytes to the client through the gate. Reading from the primary goes on while a verdict
is worked out; what the primary says is never waited for longer than it takes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from proxy import refusal
from proxy.approvals import Approvals
from proxy.audit import Witness
from proxy.gate import REST, Gate, HeldTooMuchError, Signal, Whole
from proxy.http import Refusal
from proxy.judging import Aside, Fate, Judging, Record
from proxy.switch import Mode
from proxy.together import Together
from shadow.countersign import Countersigning
from shadow.exchange import Choice
from shadow.judge import Case
from shadow.tasks import Tasks, Wait
from validators import ToolCall

__all__ = ["Holding", "Next", "Out", "Record", "Terms"]

_DEMANDING = frozenset({"required", "named"})  # tool choices with which a call must come
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


@dataclass(frozen=True, slots=True)
class Terms:
    """How refusals are made: `form` message or error, times in seconds (`keepalive` None adds nothing)."""

    form: str = "message"
    keepalive: float | None = None
    status_wait: float = 20.0
    unread_passes: bool = False


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
        aside: Aside = asyncio.to_thread,
    ) -> None:
        self.exchange, self.case, self.signing, self.terms = exchange, case, signing, terms
        self.acted = ""
        self._witness = witness
        self._judge = Judging(exchange, case, signing, approvals, record, witness, modes, clock, aside)
        self._tasks = Tasks("gate")
        self._choices: dict[int, Choice] = {}  # all that are or were judged, by their place
        self._judging: dict[int, Wait[Fate]] = {}
        self._as_error = refusal.needs_status(case.request, terms.form)
        self._pending = _Pending(open=not self._as_error)
        self._turn: asyncio.Lock | None = None  # only where two may write: no lock on the way of plain text
        self._rest_held = self._over = self._refused = False

    @property
    def left(self) -> set[int]:
        """The choices that went out unjudged, for the mirror to judge."""
        return self._judge.left

    def warm(self) -> None:
        """The request is on its way: the references read its prompt, if it may bring calls.

        Where it must bring some, and its dialect tells no tokens to go on from, they begin to answer it.
        """
        request = self.case.request
        if request.tool_choice in _DEMANDING and not request.tells_tokens:
            self.signing.begin(Choice(0))
        elif request.tool_choice != "none":
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
        if not self._pending.open:
            self._judge.together = Together(all_or_none=True)
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
            await self._refuse_all(gate, out, "too_large", refusal.too_large(self.exchange))
            return
        await self._send(gate.end(), gate, out)
        self._follow(gate)
        await self._finish(gate, out)

    async def _finish(self, gate: Gate, out: Out) -> None:
        """The primary has said all: waits for what is still judged."""
        if self._rest_held and not self.terms.unread_passes:
            await self._refuse_all(gate, out, "unread", refusal.unread(self.exchange))
        elif self._rest_held:
            await self._send(gate.decide(REST, None), gate, out)
        self._judge.together.expect(len(self._choices))
        while self._judging:
            await asyncio.wait(self._judging.values(), return_when=asyncio.FIRST_COMPLETED)
            await self._deliver(gate, out)
        await self._send(b"", gate, out, at_once=True)

    def _follow(self, gate: Gate) -> None:
        """Does what the gate's signals ask for."""
        request = self.case.request
        demanded = request.tool_choice in _DEMANDING
        stops = bool(request.body.get("stop"))
        for signal, index in gate.signals():
            if index == REST:
                self._rest_held = True
            elif signal is Signal.CLOSED:
                self._begin(index, gate.choice(index))
            elif signal is Signal.RESUMED:
                self.signing.forget(index)
            elif signal is Signal.HELD or (demanded if signal is Signal.BEGUN else not stops):
                self.signing.begin(gate.choice(index))

    def _begin(self, place: int, choice: Choice) -> None:
        """Has a choice judged; one that ends after its answer was refused falls with that."""
        self._choices[place] = choice
        fate = self._judge.fell(place, choice) if self._refused else self._judge.judge(place, choice)
        self._judging[place] = self._tasks.start(f"judge:{place}", fate)

    async def _deliver(self, gate: Gate, out: Out) -> None:
        """Sends what has been decided."""
        fates = {index: self._judging.pop(index).result() for index, task in list(self._judging.items()) if task.done()}
        await self._send_fates(fates, gate, out)
        refused = [fate for fate in fates.values() if fate.message is not None]
        if refused and self._as_error:
            await self._refuse_as_error(gate, out, self._judge.together.message or refused[0].message or "")

    async def _send_fates(self, fates: dict[int, Fate], gate: Gate, out: Out) -> None:
        """What goes out of choices, and what is said in the place of others, unless that is an error of its own."""
        for index, fate in fates.items():
            self._acted(fate)
            said_elsewhere = fate.message is not None and self._as_error
            if index in gate.undecided() and not said_elsewhere:
                await self._send(gate.decide(index, self._instead(gate, index, fate)), gate, out)

    def _acted(self, fate: Fate) -> None:
        if fate.done != "released":
            self.acted = fate.done

    def _instead(self, gate: Gate, index: int, fate: Fate) -> bytes | None:
        """What stands in the place of a choice's calls, None where they go out."""
        if fate.message is None and not fate.calls:
            return None  # at once: what was said is put together anew for each question about it
        if fate.message is not None:
            return gate.refused(index, fate.message)
        return gate.substituted(index, fate.calls)

    async def _refuse_all(self, gate: Gate, out: Out, why: str, message: str) -> None:
        """Nothing that is held goes out: what cannot be read, or not be held, spoils the calls beside it."""
        if not self._refused:
            self._turn_away(why)
        if self._as_error:
            await self._refuse_as_error(gate, out, message)
            return
        await self._send_fates(await self._stop_judging(message), gate, out)
        self.acted, held = "refused", gate.undecided()
        for index in [] if gate.over else gate.unfinished():
            await self._send(gate.refused(index, message), gate, out)
        for index in sorted(held, reverse=True):  # REST last
            said = b"" if index == REST or gate.over else gate.refused(index, message)
            await self._send(gate.decide(index, said), gate, out)

    async def _refuse_as_error(self, gate: Gate, out: Out, message: str) -> None:
        """An answer of its own while none has begun; then the stream is read on, for the record only."""
        acted = self.acted or "refused"
        await self._send_fates(await self._stop_judging(message), gate, out)
        self.acted, again, self._refused = acted, self._refused, True
        gate.drop()
        if again:  # said already
            await self._send(gate.flush(), gate, out)
        elif out.begun:
            await self._send(gate.error(message) + gate.flush(), gate, out, at_once=True)
        else:
            self._judge.left.clear()
            self._pending.data.clear()
            self._over = True
            await out.refuse(refusal.as_status(message))

    async def _stop_judging(self, message: str) -> dict[int, Fate]:
        """Breaks off what is not decided; what became of the choices that were, recorded as they are."""
        self._judge.together.refuse(message)
        stopped, self._judging = self._judging, {}
        for place, task in stopped.items():
            if place not in self._judge.leaving:  # else its record says already that it goes out
                task.cancel()
        await asyncio.gather(*stopped.values(), return_exceptions=True)
        for place, task in stopped.items():
            if task.cancelled():
                await self._judge.fell(place, self._choices[place])
        return {place: task.result() for place, task in stopped.items() if not task.cancelled()}

    def _turn_away(self, why: str) -> None:
        """Records that an answer is refused whose calls are not known."""
        self.acted = "refused"
        request = self.case.request
        self._witness.turned_away(self.exchange, why, model=request.model, dialect=request.dialect.value)

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
                self._judge.together.free()
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
            self._turn_away("unread")
            return refusal.as_status(refusal.unread(self.exchange))
        self._judge.together = Together(all_or_none=self._as_error, expected=len(held or {}))
        for place, choice in (held or {}).items():
            self._begin(place, choice)
        instead: dict[int, str | tuple[ToolCall, ...]] = {}
        while self._judging:
            await asyncio.wait(self._judging.values(), return_when=asyncio.FIRST_COMPLETED)
            for place, task in [(place, task) for place, task in self._judging.items() if task.done()]:
                del self._judging[place]
                fate = task.result()
                self._acted(fate)
                if fate.message is not None and self._as_error:
                    message = self._judge.together.message or fate.message
                    await self._stop_judging(message)
                    self._judge.left.clear()
                    return refusal.as_status(message)
                if fate.message is not None or fate.calls:
                    instead[place] = fate.calls if fate.message is None else fate.message
        return answer.replaced(instead) if answer and instead else body

    def refuse_size(self) -> Refusal:
        """A whole answer is larger than what may be held."""
        self._turn_away("too_large")
        return refusal.as_status(refusal.too_large(self.exchange))
