"""The mirror: finished exchanges wait here, bounded in count and bytes, until each shadow has been asked.

The door hands over bytes and goes on; nothing here can slow or fail the primary path. Every answered exchange ends in
exactly one outcome per shadow: `compared`, `sampled_out`, `dropped`, `failed` or `not_comparable`, with a named reason.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from shadow.compare import PolicyOf, exact
from shadow.conversation import in_sample
from shadow.examine import Examination, finished
from shadow.exchange import Answer, Continuation, Exchange, Request, Timings
from shadow.judge import Case, Judged
from shadow.reference import CIRCUIT_OPEN, Peer, Reference, State
from shadow.tasks import Tasks
from shadow.wire import dialects
from validators import Finding
from validators.decision import Opinion, outcome

log = structlog.get_logger("counterproof.mirror")

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is mirrored and how much may wait: rates from 0 to 1, a count, and bytes."""

    tool_calls: float = 1.0
    other: float = 0.05
    max_queue: int = 1000
    max_queue_bytes: int = 256 * MIB
    max_body_bytes: int = 8 * MIB


@dataclass(slots=True)
class Capture:
    """What the door saw of one exchange: the parsed request, the answer's raw bytes as the primary sent them.

    `problem` says why the copy is not whole (`too_large`, `client_left`, `truncated`, `encoded`), None where it is.
    `case` is the request under its rulebook, `to_judge` the choices about whose calls no verdict fell while the client
    waited (None: all of them), `continued` what references said then.
    """

    id: str
    request: Request
    body: bytes
    stream: bool
    status: int
    conversation: str
    began_at: float
    timings: Timings
    problem: str | None = None
    case: Case | None = None
    to_judge: frozenset[int] | None = None
    continued: Mapping[tuple[str, int], Continuation] = field(default_factory=dict)

    def exchange(self) -> Exchange:
        """Understands the bytes."""
        if self.problem is None:
            answer = dialects.read(self.request.dialect, self.body, stream=self.stream)
        else:
            answer = Answer(problem=self.problem)
        return Exchange(
            self.id,
            self.request,
            answer,
            self.status,
            self.began_at,
            self.timings,
            self.conversation,
            self.continued,
        )


class Sink(Protocol):
    """Who is told what the mirror did.

    `outcome` and `waiting` are called on the event loop and return at once; `exchange` and `examined` are called from
    worker threads, since records of long answers take their time. What they raise is logged and costs one record.
    """

    def outcome(self, shadow: str, outcome: str, reason: str) -> None:
        """One exchange has ended for one shadow."""

    def exchange(self, exchange: Exchange, findings: Sequence[tuple[int, Finding]]) -> None:
        """An exchange was understood; its (choice, finding) pairs that need no reference."""

    def examined(self, exchange: Exchange, examination: Examination, lag: float) -> None:
        """A shadow has been asked; `lag` in seconds since the answer's last byte."""

    def judged(self, exchange: str, request: Request, judged: Judged, done: str, waited: float | None) -> None:
        """A choice's calls were decided about: `done` is what was (or would be) done, `waited` for how many seconds."""

    def waiting(self, shadow: str, count: int, size: int) -> None:
        """How many exchanges and bytes wait for a shadow now."""


class _Trial:
    """One exchange on its way past the shadows: what needs no reference was found, and who spoke since."""

    def __init__(
        self, exchange: Exchange, case: Case | None, own: Mapping[int, list[Finding]], twins: set[str]
    ) -> None:
        self.exchange, self._case, self._own, self._twins = exchange, case, own, twins
        self.left = 0
        self._heard: list[Examination] = []

    @property
    def policy(self) -> PolicyOf:
        """What of arguments counts."""
        return exact if self._case is None else self._case.rulebook.compare

    def hear(self, examination: Examination) -> bool:
        """Takes a shadow's view; True where it was the last."""
        self._heard.append(examination)
        self.left -= 1
        return not self.left

    def judged(self) -> list[Judged]:
        """What is decided about each choice with calls, now that everybody has spoken."""
        case = self._case
        if case is None:
            return []
        found = []
        for index, own in self._own.items():
            calls = self.exchange.answer.choices[index].calls
            opinions = [self._opinion(examination, index) for examination in self._heard]
            verdict = case.decide(calls, own, opinions, expired=True)
            if verdict is not None:
                case.settle(calls, verdict, released=True)  # the client has them
                found.append(Judged(index, calls, verdict))
        return found

    def _opinion(self, examination: Examination, index: int) -> Opinion:
        report = next((report for report in examination.choices if report.index == index), None)
        return Opinion(
            examination.shadow,
            twin=examination.shadow in self._twins,
            findings=tuple(report.findings) if report else (),
            calls=report.reference_calls if report else (),
            way=report.ways[-1] if report and report.ways else "",
        )


class _Line:
    """What waits for one shadow: bounded by itself, so that a hung shadow costs the others nothing."""

    def __init__(self, reference: Reference, limits: Limits, sink: Sink, idle: Callable[[], None]) -> None:
        self.reference = reference
        self.name = reference.name
        self.queue: asyncio.Queue[_Trial] = asyncio.Queue()
        self.count = 0
        self._size = 0
        self._sizes: dict[str, int] = {}
        self._limits, self._sink, self._idle = limits, sink, idle

    def open(self, primary: Peer) -> bool:
        """Whether an exchange that begins now is likely to be asked about."""
        return self.count < self._limits.max_queue and self.reference.asked(primary)

    def admit(self, identity: str, size: int, primary: Peer) -> str | None:
        """Takes an exchange of `size` bytes in, or says why not."""
        if self.count >= self._limits.max_queue:
            return "queue_full"
        if self._size + size > self._limits.max_queue_bytes:
            return "queue_bytes"
        if not self.reference.asked(primary) and self.reference.standing(primary)[0] is State.READY:
            return CIRCUIT_OPEN
        self._sizes[identity] = size
        self._change(1, size)
        return None

    def end(self, exchange: str, outcome: str, reason: str = "") -> None:
        """Says what became of an admitted exchange, once; later words about it are not heard."""
        size = self._sizes.pop(exchange, None)
        if size is not None:
            self._sink.outcome(self.name, outcome, reason)
            self._change(-1, -size)

    def abandon(self) -> None:
        """Ends whatever still waits or is being asked."""
        for exchange in list(self._sizes):
            self.end(exchange, "dropped", "shutting_down")

    def _change(self, count: int, size: int) -> None:
        self.count += count
        self._size += size
        self._sink.waiting(self.name, self.count, self._size)
        self._idle()


class Mirror:
    """The lines of all shadows and their workers, in this process."""

    def __init__(
        self,
        primary: Peer,
        references: Sequence[Reference],
        limits: Limits,
        sink: Sink,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.primary = primary
        self.references = list(references)
        self._limits = limits
        self._sink = sink
        self._clock = clock
        self._tasks = Tasks("mirror")
        self._intake: asyncio.Queue[tuple[Capture, int, list[_Line]]] = asyncio.Queue()
        self._lines = [_Line(reference, limits, sink, self._note_idle) for reference in references]
        self._alone = self._alone_size = 0  # exchanges and bytes that wait for no shadow, only to be judged
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False

    def start(self) -> None:
        """Starts looking after the engines and working on the lines; needs a running loop."""
        self._tasks.start("understand", self._understand())
        if not self._lines:
            return
        self._tasks.start(f"engine:{self.primary.name}", self.primary.keep())
        for line in self._lines:
            self._tasks.start(f"engine:{line.name}", line.reference.peer.keep())
            for i in range(line.reference.peer.engine.endpoint.max_concurrency):
                self._tasks.start(f"ask:{line.name}:{i}", self._work(line))

    def wants(self, request: Request, conversation: str) -> bool:
        """At request time: may this exchange be compared, so that token ids are worth asking for?"""
        if not self._lines:  # calls are judged without a second opinion, too
            return request.tool_choice != "none" and in_sample(conversation, self._limits.tool_calls)
        return in_sample(conversation, self._may_hold_calls(request))

    @property
    def ready(self) -> bool:
        """Whether any shadow can be asked now: without one, token ids are not worth asking the primary for."""
        for line in self._lines:  # noqa: SIM110  (asked for every request: a generator costs as much as the question)
            if line.open(self.primary):
                return True
        return False

    def offer(self, identity: str, size: int, capture: Callable[[], Capture]) -> None:
        """Takes an exchange of `size` bytes, or drops it under a named reason. Returns at once.

        `capture` is called only if some shadow takes it.
        """
        admitted: list[_Line] = []
        for line in self._lines:
            dropped = "shutting_down" if self._closing else line.admit(identity, size, self.primary)
            if dropped:
                self._sink.outcome(line.name, "dropped", dropped)
            else:
                admitted.append(line)
        alone = not self._lines and not self._closing and self._takes_alone(size)
        if alone:
            self._count_alone(1, size)
        if admitted or alone:
            self._intake.put_nowait((capture(), size, admitted))

    def _takes_alone(self, size: int) -> bool:
        room = self._alone_size + size <= self._limits.max_queue_bytes
        return room and self._alone < self._limits.max_queue

    def _count_alone(self, count: int, size: int) -> None:
        self._alone += count
        self._alone_size += size
        self._note_idle()

    def leave_out(self) -> None:
        """An exchange that is not in the sample."""
        self._all("sampled_out", "")

    def skip(self, reason: str) -> None:
        """An exchange that cannot be offered at all, under its reason."""
        self._all("dropped", reason)

    def _all(self, outcome: str, reason: str) -> None:
        for line in self._lines:
            self._sink.outcome(line.name, outcome, reason)

    async def _understand(self) -> None:
        """Turns captures into exchanges, one after the other and off the loop, and hands them to the shadows."""
        while True:
            capture, size, lines = await self._intake.get()
            try:
                await self._take(capture, lines)
            finally:
                if not lines:
                    self._count_alone(-1, -size)

    async def _take(self, capture: Capture, lines: list[_Line]) -> None:
        try:
            exchange, findings, own = await asyncio.to_thread(_read, capture)
        except Exception as error:  # noqa: BLE001  (bytes from outside: one unreadable answer must not end the mirror)
            log.error("an exchange was not understood", exchange=capture.id, error=type(error).__name__)
            for line in lines:
                line.end(capture.id, "failed", "not_understood")
            return
        if not in_sample(exchange.conversation, self._rate(exchange)):
            for line in lines:
                line.end(exchange.id, "sampled_out")
            return
        await self._tell(self._sink.exchange, exchange, findings)
        twins = {line.name for line in self._lines if line.reference.role == "twin"}
        trial = _Trial(exchange, capture.case, own, twins)
        trial.left = len(lines)
        for line in lines:
            line.queue.put_nowait(trial)
        if not lines:
            await self._conclude(trial)

    def _rate(self, exchange: Exchange) -> float:
        """The share that an exchange belongs to: by what it holds, or by what it asked for where it is not whole."""
        choices = exchange.answer.choices.values()
        whole = exchange.status < 400 and bool(choices) and all(finished(exchange.answer, c) for c in choices)
        if whole and not any(choice.calls for choice in choices):
            return self._limits.other
        return self._may_hold_calls(exchange.request) if not whole else self._limits.tool_calls

    def _may_hold_calls(self, request: Request) -> float:
        if request.tool_choice == "none":
            return self._limits.other
        return max(self._limits.tool_calls, self._limits.other)

    async def _tell(self, sink: Callable[..., None], exchange: Exchange, *what: Any) -> None:
        try:
            await asyncio.to_thread(sink, exchange, *what)
        except Exception as error:  # noqa: BLE001  (a record that cannot be written must not end the mirror)
            log.error("an exchange was not recorded", exchange=exchange.id, error=type(error).__name__)

    async def _work(self, line: _Line) -> None:
        while True:
            trial = await line.queue.get()
            exchange = trial.exchange
            try:
                result = await line.reference.examine(exchange, self.primary, trial.policy)
            except Exception as error:  # noqa: BLE001  (what an engine answers must not end its worker)
                log.error("an examination failed", shadow=line.name, exchange=exchange.id, error=type(error).__name__)
                result = Examination.without(line.name, exchange, "failed", "internal_error")
            await self._tell(self._sink.examined, exchange, result, self._clock() - exchange.timings.ended)
            if trial.hear(result):
                await self._conclude(trial)
            line.end(exchange.id, result.outcome, result.reason)

    async def _conclude(self, trial: _Trial) -> None:
        """Everybody has spoken: what would have been done about the calls, had anybody waited for it."""
        try:
            judged = await asyncio.to_thread(trial.judged)
        except Exception as error:  # noqa: BLE001  (what a model wrote must not end a worker)
            log.error("an exchange was not judged", exchange=trial.exchange.id, error=type(error).__name__)
            return
        for one in judged:
            done = outcome(one.verdict.action, block=False)
            try:
                await asyncio.to_thread(self._sink.judged, trial.exchange.id, trial.exchange.request, one, done, None)
            except Exception as error:  # noqa: BLE001  (a record that cannot be written must not end the mirror)
                log.error("a verdict was not recorded", exchange=trial.exchange.id, error=type(error).__name__)

    def _note_idle(self) -> None:
        if self._alone or any(line.count for line in self._lines):
            self._idle.clear()
        else:
            self._idle.set()

    async def drain(self, seconds: float) -> bool:
        """Waits until nothing is left to ask, at most so long; True if nothing is left."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Ends workers and connections; what still waits is dropped under `shutting_down`."""
        self._closing = True
        await self._tasks.close()
        for line in self._lines:
            line.abandon()
        for peer in [self.primary, *(reference.peer for reference in self.references)]:
            await peer.close()


def _read(capture: Capture) -> tuple[Exchange, list[tuple[int, Finding]], dict[int, list[Finding]]]:
    """The exchange, everything that is found without a reference, and what of it is about each choice's calls."""
    exchange, case = capture.exchange(), capture.case
    answer = exchange.answer
    if case is None or answer.problem not in {None, "truncated"} or exchange.status >= 400:
        return exchange, [], {}
    own: dict[int, list[Finding]] = {}
    findings: list[tuple[int, Finding]] = []
    for index, choice in answer.choices.items():
        unjudged = capture.to_judge is None or index in capture.to_judge
        if choice.calls and unjudged and finished(answer, choice):
            own[index] = case.own(choice.calls)
            findings += [(index, finding) for finding in own[index]]
        findings += [(index, finding) for finding in case.leaks(choice)]
    return exchange, findings, own
