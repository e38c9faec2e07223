"""A reference engine and the state it is in: cold until it was asked and warmed, refused where the pair cannot be."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

import structlog
import tenacity

from shadow import compare
from shadow.breaker import Breaker
from shadow.capabilities import Capabilities, LogprobsMode, discover, refusal_as_pair, served_model
from shadow.choice import ChoiceReport
from shadow.compare import PolicyOf
from shadow.engine import Endpoint, Engine
from shadow.errors import EngineError, Refused, TimedOut, Unreachable
from shadow.examine import Examination, countersign, examine
from shadow.exchange import Choice, Continuation, Exchange, Request

log = structlog.get_logger("counterproof.reference")

CIRCUIT_OPEN = "circuit_open"
"""Why an exchange was dropped whose shadow failed several times in a row."""
TOO_LATE = "too late"
"""What a countersignature is cancelled with where its time has run out: that says something of its engine."""

_SILENT_S = 30.0  # an engine that answered anybody within that is busy where it is late, and does not hang
_CHECK_EVERY = 15.0  # seconds between looks at an engine that is ready
_RETRY_AT_MOST = 30.0  # seconds between looks at one that is not
_ASK_AGAIN_S = 300.0  # between two questions to an engine that lacks what nearly every engine can do


def _word(state: "State", why: str) -> str:
    """Why an engine that is not ready is not asked, as a stable word."""
    return {State.COLD: "cold", State.DOWN: "unreachable"}.get(state) or why.partition(":")[0]


class State(StrEnum):
    """What a reference is good for right now."""

    COLD = "cold"
    READY = "ready"
    REFUSED = "refused"
    DOWN = "down"


class Peer:
    """An engine that is looked after: found, asked what it can do, looked at again, found anew when it was away."""

    def __init__(self, endpoint: Endpoint, *, reference: bool) -> None:
        self.engine = Engine(endpoint)
        self._urgent = asyncio.Semaphore(endpoint.max_concurrency)
        self.state = State.COLD
        self.can: Capabilities | None = None
        self.why = "not asked yet"
        self._reference = reference
        self._asked_at = 0.0
        self._look = asyncio.Event()

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.name

    @property
    def urgent(self) -> Engine:
        """The engine for what a client waits for: as many slots again, so that no mirror's work stands before it."""
        return self.engine.with_slots(self._urgent)

    def suspect(self) -> None:
        """Says that a request just failed to reach the engine: look at it now."""
        if self.state is State.READY:
            self.state, self.why = State.DOWN, "unreachable"
        self._look.set()

    async def keep(self) -> None:
        """Looks after the engine until cancelled."""
        while True:
            await self._find()
            while self.state is not State.DOWN:
                await self._pause(_CHECK_EVERY)
                await self._look_again()
                if self._lacks and time.monotonic() - self._asked_at > _ASK_AGAIN_S:
                    await self._ask_again()
            log.warning("engine is away or another", engine=self.name, reason=self.why)

    @property
    def _lacks(self) -> bool:
        """Whether the engine could not do what nearly every engine can: it may have been asked in a bad moment."""
        can = self.can
        if can is None:
            return False
        return not can.token_ids_in or not can.tokenizer or can.logprobs_mode is LogprobsMode.NONE

    async def _ask_again(self) -> None:
        self._asked_at = time.monotonic()
        try:
            can = await discover(self.engine, reference=self._reference)
        except EngineError:
            return
        if can != self.can:
            self.can = can
            log.info("engine can do something else now", engine=self.name, ways=list(can.ways))

    async def _look_again(self) -> None:
        try:
            served = await served_model(self.engine)
        except EngineError as error:
            self.state, self.why = State.DOWN, error.reason
            return
        if self.can is not None and served != (self.can.model, self.can.max_model_len):
            self.state, self.why = State.DOWN, "serves another model now"

    async def _find(self) -> None:
        """Asks until the engine has answered; the waits between tries grow."""
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Exception),
            wait=tenacity.wait_exponential_jitter(multiplier=0.5, max=_RETRY_AT_MOST),
            before_sleep=self._missed,
        )
        can: Capabilities = await attempts(discover, self.engine, reference=self._reference)
        self.can, self.state, self.why = can, State.READY, ""
        self._asked_at = time.monotonic()
        log.info("engine found", engine=self.name, model=can.model, ways=list(can.ways))

    def _missed(self, retry: tenacity.RetryCallState) -> None:
        error = retry.outcome.exception() if retry.outcome else None
        self.why = (
            str(error) if isinstance(error, EngineError) else f"it answered something odd ({type(error).__name__})"
        )
        if retry.attempt_number == 1:
            log.warning("engine not found yet", engine=self.name, reason=self.why)

    async def _pause(self, seconds: float) -> None:
        self._look.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._look.wait()
        except TimeoutError:
            pass

    async def close(self) -> None:
        """Ends the connections."""
        await self.engine.close()


class Reference:
    """One shadow: an engine, and whether it may speak about this primary."""

    def __init__(
        self, endpoint: Endpoint, role: str = "reference", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.peer = Peer(endpoint, reference=True)
        self.role = role
        self.breaker = Breaker()
        self._clock = clock
        self._spoke_at = -math.inf
        self._pair: tuple[Capabilities, Capabilities] | None = None
        self._refusal: str | None = None

    @property
    def name(self) -> str:
        """The shadow's name."""
        return self.peer.name

    def asked(self, primary: Peer) -> bool:
        """Whether an exchange that is offered now would be asked about."""
        return self.standing(primary)[0] is State.READY and self.breaker.allows(self._clock())

    def standing(self, primary: Peer) -> tuple[State, str]:
        """The state of the pair and why. It is cold until both engines were asked."""
        if self.peer.state is not State.READY or self.peer.can is None:
            return self.peer.state, self.peer.why
        if primary.can is None:
            return State.COLD, "the primary was not asked yet"
        if self._pair is None or self._pair[0] is not primary.can or self._pair[1] is not self.peer.can:
            self._pair = (primary.can, self.peer.can)
            self._refusal = refusal_as_pair(*self._pair)
        return (State.REFUSED, self._refusal) if self._refusal else (State.READY, "")

    async def examine(self, exchange: Exchange, primary: Peer, policy: PolicyOf = compare.exact) -> Examination:
        """Asks this shadow about an exchange, if it may speak; within its own time-out as a whole."""
        state, why = self.standing(primary)
        if state is not State.READY or self.peer.can is None:
            outcome = "failed" if state is State.DOWN else "not_comparable"
            return Examination.without(self.name, exchange, outcome, _word(state, why))
        leave = self.breaker.begin(self._clock())
        if leave is None:
            return Examination.without(self.name, exchange, "dropped", CIRCUIT_OPEN)
        try:
            async with asyncio.timeout(self.peer.engine.endpoint.timeout):
                result = await examine(exchange, self.peer.engine, self.peer.can, primary.can, policy)
        except TimeoutError:
            result = Examination.without(self.name, exchange, "failed", TimedOut.reason)
        except BaseException:
            self.breaker.abandoned(leave)
            raise
        spoke = result.outcome in {"compared", "failed"} or result.reason == Refused.reason
        self._learn(leave, spoke=spoke, failed=result.reason if result.outcome == "failed" else None)
        return result

    async def countersign(
        self,
        request: Request,
        choice: Choice,
        primary: Peer,
        policy: PolicyOf,
        ready: Callable[[], Awaitable[Continuation | None]] | None = None,
        report: ChoiceReport | None = None,
    ) -> ChoiceReport:
        """Asks this shadow about the calls of a choice that somebody waits for; unverified where it cannot be asked.

        `ready` waits for what was begun early, `report` is filled as things become known. Whoever cancels it with
        `TOO_LATE` says that the engine did not answer in time: it has failed, unless it answers others.
        """
        report = report or ChoiceReport(choice.index, calls=choice.calls)
        state, why = self.standing(primary)
        leave = self.breaker.begin(self._clock()) if state is State.READY and self.peer.can is not None else None
        if leave is None or self.peer.can is None:
            word = CIRCUIT_OPEN if state is State.READY else _word(state, why)
            report.findings = compare.unverified(choice.calls, word)
            return report
        try:
            begun = await ready() if ready else None
            can = self.peer.can, primary.can
            report = await countersign(request, choice, self.peer.urgent, *can, policy, begun, report)
        except EngineError as error:
            report.findings = compare.unverified(choice.calls, error.reason)
            report.failed = error
        except asyncio.CancelledError as ended:
            hangs = TOO_LATE in ended.args and self._clock() - self._spoke_at > _SILENT_S
            self._learn(leave, spoke=False, failed=TimedOut.reason if hangs else None)
            raise
        except BaseException:
            self.breaker.abandoned(leave)
            raise
        # What the engine refuses is the request's fault: no client may close it to all others.
        failed = None if isinstance(report.failed, Refused) else report.failed
        self._learn(leave, spoke=True, failed=failed.reason if failed else None)
        return report

    def _learn(self, leave: int, *, spoke: bool, failed: str | None = None) -> None:
        """What an exchange says about the engine itself: nothing, that it can be asked, or why it could not."""
        before = self.breaker.state
        if failed is not None:
            self.breaker.failed(leave, self._clock())
            if failed == Unreachable.reason:
                self.peer.suspect()
        elif spoke:
            self._spoke_at = self._clock()
            self.breaker.succeeded(leave)
        else:
            self.breaker.abandoned(leave)
        if (now := self.breaker.state) is not before:
            log.warning("shadow circuit", shadow=self.name, state=now.value, reason=failed or "")
