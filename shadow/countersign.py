"""One exchange's references while its client waits: warmed, asked before the call is whole, listened to when it is."""

import functools
from collections.abc import Sequence

import structlog

from shadow import compare
from shadow.choice import ChoiceReport
from shadow.compare import PolicyOf
from shadow.engine import Engine
from shadow.errors import EngineError
from shadow.exchange import Choice, Continuation, Request
from shadow.reference import Peer, Reference
from shadow.regions import call_start
from shadow.tasks import Tasks, Wait

log = structlog.get_logger("counterproof.countersign")

_EXPECTED = 512  # tokens of a call that is still being written


class Countersigning:
    """Asks the references of one exchange. `close` when the exchange is over: what is still asked ends then.

    `references` are those that may vote, `continued` what they said from the call on, once they were asked.
    """

    def __init__(self, request: Request, references: Sequence[Reference], primary: Peer) -> None:
        self.references = [r for r in references if r.role != "twin"]
        self.continued: dict[tuple[str, int], Continuation] = {}
        self._request, self.primary = request, primary
        self._tasks = Tasks("countersign")
        self._begun: dict[tuple[str, int], tuple[int | None, Wait[Choice | None]]] = {}
        self._reports: dict[tuple[str, int], ChoiceReport] = {}

    def warm(self) -> None:
        """The request has arrived: its prompt is read by every reference while the primary answers."""
        for reference in self._fit():
            self._tasks.start(f"warm:{reference.name}", _quietly(reference.peer.urgent, self._request))

    def begin(self, choice: Choice) -> None:
        """Some of a choice's tokens are no text: the references go on from there, before anybody knows of a call.

        Does nothing where the place cannot be told yet, or where it was begun already; what was begun at another place
        ends. Where a dialect tells no tokens as they come, they answer the whole request by themselves meanwhile.
        """
        if not self._request.tells_tokens:
            self._begin_replay(choice.index)
            return
        start = self._start(choice)
        if start is None or choice.prompt_ids is None or len(choice.token_ids or ()) < start:
            return
        history = [*choice.prompt_ids, *(choice.token_ids or ())[:start]]
        for reference in self._fit():
            key = (reference.name, choice.index)
            can, begun = reference.peer.can, self._begun.get(key)
            if can is None or not can.chat_prompt_ids or (begun is not None and begun[0] == start):
                continue
            if begun is not None:
                begun[1].cancel()
            work = _continue(reference.peer.urgent, self._request, history, start)
            self._begun[key] = (start, self._tasks.start(f"continue:{reference.name}", work))

    def _begin_replay(self, index: int) -> None:
        for reference in self._fit():
            if (reference.name, index) not in self._begun:
                work = _replay(reference.peer.urgent, self._request)
                task = self._tasks.start(f"replay:{reference.name}", work)
                self._begun[reference.name, index] = (None, task)

    def _fit(self) -> list[Reference]:
        """Who can be asked now: what is begun early is not worth waiting for anybody."""
        return [reference for reference in self.references if reference.asked(self.primary)]

    def _start(self, choice: Choice) -> int | None:
        """The call's first token; a call that was asked for by name or demanded has no text before it."""
        if not choice.token_ids and self._request.tool_choice in {"required", "named"} and not choice.reasoning:
            return 0
        found = call_start(choice)
        return found.index if found else None

    def forget(self, index: int) -> None:
        """It was text after all."""
        for key in [key for key in self._begun if key[1] == index]:
            self._begun.pop(key)[1].cancel()

    def ask(self, reference: Reference, choice: Choice, policy: PolicyOf) -> Wait[ChoiceReport]:
        """What a reference says of a choice that is whole; whoever waits no longer cancels it with `TOO_LATE`."""
        report = self._reports[reference.name, choice.index] = ChoiceReport(choice.index, calls=choice.calls)
        return self._tasks.start(f"ask:{reference.name}", self._ask(reference, choice, policy, report))

    def so_far(self, reference: Reference, choice: Choice) -> ChoiceReport | None:
        """What a reference that is still asked has said of a choice: that its calls are others, and not why."""
        report = self._reports.get((reference.name, choice.index))
        return report if report is not None and report.findings else None

    async def _ask(self, reference: Reference, choice: Choice, policy: PolicyOf, report: ChoiceReport) -> ChoiceReport:
        try:
            ready = functools.partial(self._ready, reference.name, choice)
            report = await reference.countersign(self._request, choice, self.primary, policy, ready, report)
        except Exception as error:  # noqa: BLE001  (what an engine answers must not keep the others from being heard)
            log.error("a reference could not be heard", shadow=reference.name, error=type(error).__name__)
            findings = compare.unverified(choice.calls, "internal_error")
            return ChoiceReport(choice.index, findings=findings, calls=choice.calls)
        if report.own is not None:
            self.continued[reference.name, choice.index] = report.own
        return report

    async def _ready(self, name: str, choice: Choice) -> Continuation | None:
        """What was begun early, if the call began there, and nothing cut it short."""
        if (begun := self._begun.pop((name, choice.index), None)) is None:
            return None
        (at, work), start = begun, call_start(choice)
        if at is None:
            own = await work
            return None if own is None or own.finish_reason == "length" else Continuation(None, own)
        if start is None or at != start.index:
            work.cancel()
            return None
        own = await work
        if own is None or _cut_short(own, choice, at):
            return None
        return Continuation(at, own)

    async def close(self) -> None:
        """Ends what is still asked."""
        await self._tasks.close()


async def _quietly(engine: Engine, request: Request) -> None:
    """Warms; an engine that cannot be warmed says so when it is asked."""
    try:
        await engine.warm(request)
    except EngineError:
        return


async def _continue(engine: Engine, request: Request, history: Sequence[int], start: int) -> Choice | None:
    """The engine's own answer, None where it has none: then it is asked again, and says why."""
    try:
        return await engine.go_on(request, history, used=start, expected=_EXPECTED)
    except EngineError:
        return None


async def _replay(engine: Engine, request: Request) -> Choice | None:
    """Likewise, of an answer to the whole request."""
    try:
        return await engine.replay(request, expected=_EXPECTED)
    except EngineError:
        return None


def _cut_short(own: Choice, choice: Choice, start: int) -> bool:
    """Whether an answer met the limit that was set before anybody knew how long the call would be."""
    return own.finish_reason == "length" and len(own.token_ids or ()) < len(choice.token_ids or ()) - start
