"""One choice whose token ids are known -> what a reference says of it: on the primary's own tokens, in the best way."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import structlog

from shadow import compare
from shadow.capabilities import Capabilities
from shadow.divergence import NEAR_TIE_NATS, Basis, Position, PrimaryView, compare_positions, flips, primary_view
from shadow.engine import Engine
from shadow.errors import EngineError, Garbage
from shadow.exchange import Choice, Continuation, Dialect, Region, Request, TopK
from shadow.regions import CallStart, call_start, regions
from validators import Finding, ToolCall, Word

log = structlog.get_logger("counterproof.choice")

MAX_PROBES = 512
"""At most so many positions of a choice are probed: each costs the engine up to one block of tokens."""


@dataclass(slots=True)
class ChoiceReport:
    """What was found about one choice.

    `positions` are those that were compared; `ways` says how (`score`, `probe`, `continue`, `replay`); `findings` has
    one entry per call of either side; `texts` are the reference's texts of flipped ids (content);
    `reference_calls` are the reference's own calls from `start` (content), `own` the continuation that holds them.
    `not_comparable` is the reason why nothing could be compared. `failed` is what the engine failed with before it told
    why its calls are others: what it said counts all the same.
    """

    index: int
    positions: list[Position] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)
    start: CallStart | None = None
    prompt_tokens: int = 0
    calls: tuple[ToolCall, ...] = ()
    texts: dict[int, str] = field(default_factory=dict)
    reference_calls: tuple[ToolCall, ...] = ()
    own: Continuation | None = None
    not_comparable: str | None = None
    failed: EngineError | None = None


def on_the_prompt_alone(request: Request, choice: Choice, own: Choice) -> bool:
    """Whether two free answers to a request have one history up to their calls, and neither of them was sampled."""
    silent = not any((choice.content.strip(), choice.reasoning, own.content.strip(), own.reasoning))
    return silent and request.asks_greedy and not request.tells_tokens


class ChoiceExaminer:
    """Works on one choice whose ids are known; fills its report."""

    def __init__(
        self,
        request: Request,
        choice: Choice,
        engine: Engine,
        can: Capabilities,
        report: ChoiceReport,
        raw_logprobs: bool,  # noqa: FBT001  (one of two modes of an engine)
        policy: compare.PolicyOf,
        ready: Continuation | None,
    ) -> None:
        self.request, self.choice, self.engine, self.can, self.report = request, choice, engine, can, report
        self.policy, self.ready = policy, ready
        self.prompt, self.output = choice.prompt_ids or (), choice.token_ids or ()
        self.raw_logprobs = raw_logprobs
        self.forced: tuple[int, TopK] | None = None

    async def run(self) -> None:
        """Asks, and compares off the event loop: long answers and large calls take their time.

        An engine that could not force the tokens may still say its own call, as it would where a client waits for it.
        """
        report, choice = self.report, self.choice
        report.prompt_tokens = len(self.prompt)
        if choice.calls:
            report.start = await asyncio.to_thread(call_start, choice) or await self._start_by_detokenizing()
        view = await asyncio.to_thread(self._view)
        try:
            scored = await self._force()
        except EngineError as error:
            if not choice.calls or isinstance(error, Garbage):  # who tells nonsense of tokens is not believed in calls
                raise
            scored, report.failed = None, error
        if scored is not None:
            await asyncio.to_thread(self._compare, view, *scored)
        own = await self._own_answer()
        if own is not None:
            await asyncio.to_thread(self._conclude, view, own)
        elif choice.calls and not report.findings:
            reason = "no_way_to_ask" if report.failed is None else report.failed.reason
            report.findings = compare.unverified(choice.calls, reason)

    async def run_calls(self) -> None:
        """Asks for the reference's own call, and compares tokens only where it is another one.

        That it is another one is known, and said, before tokens tell why: what fails then takes nothing of it back.
        """
        report, choice = self.report, self.choice
        report.prompt_tokens = len(self.prompt)
        report.start = call_start(choice) or await self._start_by_detokenizing()
        own = await self._own_answer()
        if own is None:
            report.findings = report.findings or compare.unverified(choice.calls, "no_way_to_ask")
            return
        self._judge(own)
        if all(finding.word in {Word.MATCH, Word.EQUIVALENT} for finding in report.findings):
            return
        view = await asyncio.to_thread(self._view)
        try:
            forced = await self._force_call()
        except EngineError as error:
            report.failed = error
            log.warning("nobody tells why a call differs", shadow=self.engine.name, reason=error.reason)
            return
        if forced is not None:
            await asyncio.to_thread(self._compare, view, *forced)
        await asyncio.to_thread(self._conclude, view, own)

    async def _force_call(self) -> tuple[int, TopK] | None:
        """Teacher forcing of the call's region, at the least cost: probes, else a score of everything."""
        start = self._anchor()
        if "continue" not in self.report.ways:  # on another history there is nothing to explain
            return None
        if "probe" in self.can.ways and len(self.output) - start <= MAX_PROBES:
            return start, await self._probe(start)
        return await self._score() if "score" in self.can.ways else None

    def _view(self) -> PrimaryView:
        kinds = regions(self.choice, self.report.start)
        return primary_view(self.request, self.choice, kinds, raw_logprobs=self.raw_logprobs)

    def _compare(self, view: PrimaryView, start: int, top: TopK) -> None:
        self.forced = (start, top)
        self.report.positions = compare_positions(view, top, start=start)
        shown = {i for p in flips(self.report.positions) for i in (p.primary_winner, p.reference_winner, p.emitted)}
        self.report.texts = {i: top.texts[i] for i in shown if i in top.texts}

    def _conclude(self, view: PrimaryView, own: Choice) -> None:
        """What the reference's own answer says: exact positions under a grammar, and the calls."""
        shared = "continue" in self.report.ways
        if shared and self.report.positions and own.top is not None:
            exact = compare_positions(view, self._until_divergence(own.top, own), start=self._anchor(), masked=True)
            better = {p.index: p for p in exact if p.basis is Basis.CONSTRAINED}
            self.report.positions = [better.get(p.index, p) for p in self.report.positions]
        if self.choice.calls or own.calls:
            self._judge(own)

    def _judge(self, own: Choice) -> None:
        """The calls, and the word for other ones by what is known of the tokens: `mismatch` where that is nothing."""
        shared = "continue" in self.report.ways
        if shared and not self.request.tells_tokens and not self.request.asks_greedy:
            # The dialect tells no logprobs: whether another call was sampled or chosen, nobody knows.
            word, reason = Word.UNVERIFIED, "no_logprobs"
        elif shared and self._nearly(own):
            word, reason = Word.NEAR_TIE, ""
        elif shared:
            word, reason = compare.explain(self.report.positions, parted_closely=self._parted_closely(own)), ""
        elif on_the_prompt_alone(self.request, self.choice, own):
            word, reason = Word.MISMATCH, ""
        else:  # other histories from the start: the same call countersigns, another one says nothing
            word = Word.UNVERIFIED
            reason = "no_call_start" if self.report.start is None else "no_shared_history"
        self.report.findings = compare.judge_calls(
            self.choice.calls, own.calls, differing=word, reason=reason, policy=self.policy
        )

    async def _force(self) -> tuple[int, TopK] | None:
        """Teacher forcing: the whole answer by `score`, else what may be probed, the call's region first."""
        if "score" in self.can.ways:
            return await self._score()
        if "probe" not in self.can.ways:
            return None
        start = 0 if len(self.output) <= MAX_PROBES else (self.report.start.index if self.report.start else None)
        if start is None or len(self.output) - start > MAX_PROBES:
            return None
        return start, await self._probe(start)

    async def _probe(self, start: int) -> TopK:
        top = await self.engine.probe(self.prompt, self.output, start)
        self.report.ways.append("probe")
        return top

    async def _score(self) -> tuple[int, TopK]:
        """Scoring needs room for one token more: the last position of a full context is probed, or left out."""
        limit = self.can.max_model_len
        full = limit is not None and len(self.prompt) + len(self.output) >= limit
        top = await self.engine.score(self.prompt, self.output[:-1] if full else self.output)
        self.report.ways.append("score")
        if full and "probe" in self.can.ways:
            top = top.then(await self._probe(len(self.output) - 1))
        return 0, top

    def _anchor(self) -> int:
        """Where the reference's own answer begins in `O`: at the call; under a grammar for all, after the reasoning."""
        if self.choice.calls:
            return self.report.start.index if self.report.start else 0
        kinds = regions(self.choice, None)
        return next((i for i, kind in enumerate(kinds) if kind is not Region.REASONING), len(kinds))

    async def _own_answer(self) -> Choice | None:
        """The reference's own call (or constrained answer) on the primary's history, None where there is none."""
        wanted = bool(self.choice.calls) or self.request.grammar == "all"
        if not wanted or self.request.dialect is Dialect.COMPLETIONS:
            return None
        shared = self.can.chat_prompt_ids and (self.report.start is not None or not self.choice.calls)
        if not shared and not self.choice.calls:  # on another history it would tell nothing of the primary's
            return None
        way = "continue" if shared else "replay"
        try:
            if shared:
                start = self._anchor()
                ready = self.ready if self.ready is not None and self.ready.start == start else None
                own = (
                    ready.own
                    if ready
                    else await self.engine.go_on(
                        self.request,
                        [*self.prompt, *self.output[:start]],
                        used=start,
                        expected=len(self.output) - start,
                    )
                )
            else:
                own = await self.engine.replay(
                    self.request,
                    self.prompt if self.can.chat_prompt_ids else None,
                    expected=len(self.output),
                )
        except EngineError as error:
            if not self.report.positions:
                raise
            self.report.findings = compare.unverified(self.choice.calls, error.reason)
            return None
        self.report.ways.append(way)
        self.report.reference_calls = own.calls
        if shared:
            self.report.own = Continuation(self._anchor(), own)
        return own

    def _divergence(self, own: Choice) -> int:
        """How many tokens of the reference's own answer are the primary's, from the anchor on."""
        theirs, ours = own.token_ids or (), self.output[self._anchor() :]
        common = min(len(theirs), len(ours))
        return next((i for i in range(common) if theirs[i] != ours[i]), common)

    def _until_divergence(self, top: TopK, own: Choice) -> TopK:
        """The reference's candidates up to and including its first divergence: as long as histories are the same."""
        return top[: min(self._divergence(own) + 1, len(self.output) - self._anchor())]

    def _parted_closely(self, own: Choice) -> bool:
        """Whether the reference had the primary's token within the threshold where it left its path."""
        at = self._divergence(own)
        if own.top is None or at >= min(len(own.top), len(self.output) - self._anchor()):
            return False
        row = own.top[at : at + 1]
        token = np.array([self.output[self._anchor() + at]], dtype=np.int64)
        return bool(row.best()[0] - row.logprob_of(token)[0] < NEAR_TIE_NATS)

    def _nearly(self, own: Choice) -> bool:
        """Whether a greedy call whose winners were not told differs by near ties alone.

        What was emitted stands for the winner here: the reference has every token of it within the threshold of its own
        best. Under a grammar that could not be told from what only the mask chose.
        """
        if self.request.tells_tokens or self.request.grammar != "no" or self.forced is None:
            return False
        start, top = self.forced
        rows = slice(max(0, self._anchor() - start), len(top))
        emitted = np.array(self.output[start : start + len(top)], dtype=np.int64)[rows]
        near = top[rows].best() - top[rows].logprob_of(emitted) < NEAR_TIE_NATS
        return self._parted_closely(own) and bool(near.all())

    async def _start_by_detokenizing(self) -> CallStart | None:
        """Where texts were not told: the longest prefix of `O` that spells nothing beyond the text before the call."""
        if self.choice.reasoning:  # its markup is not in the visible text
            return None
        lead, low, high = self.choice.lead, 0, len(self.output)
        try:
            while low < high:  # the first `low` tokens spell a prefix of the lead
                middle = (low + high + 1) // 2
                inside = lead.startswith(await self.engine.detokenize(self.output[:middle]))
                low, high = (middle, high) if inside else (low, middle - 1)
        except EngineError:
            return None
        return CallStart(low, exact=False) if low < len(self.output) else None
