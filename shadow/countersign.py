"""One exchange's references while its client waits: warmed, asked before the call is whole, listened to when it is."""

from collections.abc import Sequence

from shadow.compare import PolicyOf
from shadow.engine import Engine
from shadow.errors import EngineError
from shadow.examine import ChoiceReport
from shadow.exchange import Choice, Continuation, Request
from shadow.reference import Peer, Reference
from shadow.regions import call_start
from shadow.tasks import Tasks, Wait

_EXPECTED = 512  # tokens of a call that is still being written


class Countersigning:
    """Asks the references of one exchange. `close` when the exchange is over: what is still asked ends then.

    `references` are those that may vote, `continued` what they said from the call on, once they were asked.
    """

    def __init__(self, request: Request, references: Sequence[Reference], primary: Peer) -> None:
        self.references = [r for r in references if r.role != "twin"]
        self.continued: dict[tuple[str, int], Continuation] = {}
        self._request, self._primary = request, primary
        self._tasks = Tasks("countersign")
        self._begun: dict[tuple[str, int], tuple[int, Wait[Choice | None]]] = {}

    def warm(self) -> None:
        """The request has arrived: its prompt is read by every reference while the primary answers."""
        for reference in self._fit():
            self._tasks.start(f"warm:{reference.name}", _quietly(reference.peer.engine, self._request))

    def begin(self, choice: Choice) -> None:
        """Some of a choice's tokens are no text: the references go on from there, before anybody knows of a call.

        Does nothing where the place cannot be told yet, or where it was begun already.
        """
        start = self._start(choice)
        if start is None or choice.prompt_ids is None or choice.token_ids is None:
            return
        history = [*choice.prompt_ids, *choice.token_ids[:start]]
        for reference in self._fit():
            key = (reference.name, choice.index)
            can = reference.peer.can
            if key in self._begun or can is None or not can.chat_prompt_ids:
                continue
            work = _continue(reference.peer.engine, self._request, history, start)
            self._begun[key] = (start, self._tasks.start(f"continue:{reference.name}", work))

    def _fit(self) -> list[Reference]:
        """Who can be asked now: what is begun early is not worth waiting for anybody."""
        return [reference for reference in self.references if reference.asked(self._primary)]

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
        """What a reference says of a choice that is whole."""
        return self._tasks.start(f"ask:{reference.name}", self._ask(reference, choice, policy))

    async def _ask(self, reference: Reference, choice: Choice, policy: PolicyOf) -> ChoiceReport:
        key = (reference.name, choice.index)
        start = call_start(choice)
        ready: Continuation | None = None
        if (begun := self._begun.pop(key, None)) is not None:
            if start is not None and begun[0] == start.index:
                own = await begun[1]
                ready = None if own is None else Continuation(begun[0], own)
            else:
                begun[1].cancel()
        report = await reference.countersign(self._request, choice, self._primary, policy, ready)
        if report.own is not None:
            self.continued[key] = report.own
        return report

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
