"""One exchange -> what a reference says of it: the one path that mirror, gate and offline acceptance take."""

import asyncio
from dataclasses import dataclass, field

import numpy as np

from shadow import compare
from shadow.capabilities import Capabilities, LogprobsMode
from shadow.divergence import NEAR_TIE_NATS, Basis, Position, PrimaryView, compare_positions, flips, primary_view
from shadow.engine import Engine
from shadow.errors import EngineError, Refused
from shadow.exchange import Choice, Continuation, Dialect, Exchange, Region, Request, TopK
from shadow.regions import CallStart, call_start, regions
from validators import Finding, ToolCall, Word

MAX_PROBES = 512
"""At most so many positions of a choice are probed: each costs the engine up to one block of tokens."""


@dataclass(slots=True)
class ChoiceReport:
    """What was found about one choice.

    `positions` are those that were compared; `ways` says how (`score`, `probe`, `continue`, `replay`); `findings` has
    one entry per call of either side; `texts` are the reference's texts of flipped ids (content);
    `reference_calls` are the reference's own calls from `start` (content), `own` the continuation that holds them.
    `not_comparable` is the reason why nothing could be compared.
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


@dataclass(slots=True)
class Examination:
    """What one shadow says of one exchange: `outcome` is `compared`, `failed` or `not_comparable`, with its reason.

    `prompt_differs`: the shadow's own template makes other prompt ids of the same messages (None: not asked).
    """

    shadow: str
    outcome: str = "compared"
    reason: str = ""
    choices: list[ChoiceReport] = field(default_factory=list)
    prompt_differs: bool | None = None
    detail: str = ""

    @classmethod
    def without(cls, shadow: str, exchange: Exchange, outcome: str, reason: str) -> "Examination":
        """One without a second opinion: every call of the exchange is unverified, for `reason`."""
        result = cls(shadow, outcome, reason)
        result.add_unverified(exchange)
        return result

    def add_unverified(self, exchange: Exchange) -> None:
        """Adds what was not reached: calls of choices without a report are unverified for the outcome's reason."""
        reported = {report.index for report in self.choices}
        for index, choice in exchange.answer.choices.items():
            if choice.calls and index not in reported:
                findings = compare.unverified(choice.calls, self.reason)
                self.choices.append(ChoiceReport(index, findings=findings, calls=choice.calls))


def not_comparable(exchange: Exchange) -> str | None:
    """Why an exchange has nothing to compare on tokens, as a stable word, or None."""
    request, answer = exchange.request, exchange.answer
    if exchange.status >= 400 or answer.problem == "error":
        return "primary_error"
    if answer.problem is not None:
        return answer.problem
    if request.multimodal:
        return "multimodal"
    if request.body.get("use_beam_search") or request.body.get("logprob_token_ids") or request.body.get("echo"):
        return "not_injectable"
    return None


_REPLAYED = frozenset({"multimodal", "not_injectable", "no_token_ids", "no_prompt_ids", "hidden_reasoning"})
"""What cannot be compared on tokens, but by the calls of the reference's own answer to the same request."""
_UNTOLD_TOKENS = 512  # how long an answer is thought to be whose length was not told


def _by_replay(request: Request, reason: str | None) -> bool:
    return reason in _REPLAYED and request.dialect is not Dialect.COMPLETIONS and request.tool_choice != "none"


def _choice_reason(request: Request, choice: Choice) -> str | None:
    if choice.token_ids is None:
        return "hidden_reasoning" if request.hides_reasoning else "no_token_ids"
    if choice.prompt_ids is None:
        return "no_prompt_ids"
    return None if choice.token_ids else "empty"


async def examine(
    exchange: Exchange,
    engine: Engine,
    can: Capabilities,
    primary: Capabilities | None,
    policy: compare.PolicyOf = compare.exact,
) -> Examination:
    """Asks one reference about one exchange. Never raises `EngineError`: what failed is the outcome and its reason."""
    reason = not_comparable(exchange)
    if reason and not _by_replay(exchange.request, reason):
        return Examination.without(engine.name, exchange, "not_comparable", reason)
    result = Examination(engine.name)
    try:
        await _examine(exchange, engine, can, primary, result, reason, policy)
    except EngineError as error:
        result.outcome = "not_comparable" if isinstance(error, Refused) else "failed"
        result.reason, result.detail = error.reason, str(error)
        result.add_unverified(exchange)
    return result


async def _examine(
    exchange: Exchange,
    engine: Engine,
    can: Capabilities,
    primary: Capabilities | None,
    result: Examination,
    reason: str | None,
    policy: compare.PolicyOf,
) -> None:
    request = exchange.request
    own: Choice | None = None
    for choice in exchange.answer.choices.values():
        report = ChoiceReport(choice.index, calls=choice.calls)
        report.not_comparable = reason or _choice_reason(request, choice)
        ready = exchange.continued.get((engine.name, choice.index))
        if _by_replay(request, report.not_comparable):
            own = own or _repeated(ready) or await engine.replay(request, expected=_told_tokens(exchange))
            _compare_calls(report, request, choice, own, policy)
        elif report.not_comparable is None:
            await _Examiner(request, choice, engine, can, report, _raw(primary), policy, ready).run()
        elif choice.calls:
            report.findings = compare.unverified(choice.calls, report.not_comparable)
        result.choices.append(report)
    reasons = [report.not_comparable for report in result.choices]
    if all(reasons):
        result.outcome, result.reason = "not_comparable", reasons[0] or "empty"
        return
    result.prompt_differs = await _prompt_differs(exchange, engine, can)


async def countersign(
    request: Request,
    choice: Choice,
    engine: Engine,
    can: Capabilities,
    primary: Capabilities | None,
    policy: compare.PolicyOf = compare.exact,
    ready: Continuation | None = None,
) -> ChoiceReport:
    """What one reference says of the calls of a choice, for somebody who waits for it.

    Its own call comes first; the call's region is forced only where the two differ, to tell why. `ready` is a
    continuation that was begun while the call was still being written, or an answer of its own: that countersigns the
    same calls, and says no more where tokens are known to go on from.

    Raises:
        EngineError: the engine could not be asked.
    """
    report = ChoiceReport(choice.index, calls=choice.calls)
    report.not_comparable = "multimodal" if request.multimodal else _choice_reason(request, choice)
    own = _repeated(ready)
    if _by_replay(request, report.not_comparable):
        own = own or await engine.replay(request, expected=len(choice.token_ids or ()) or _UNTOLD_TOKENS)
        _compare_calls(report, request, choice, own, policy)
        report.own = Continuation(None, own)
    elif report.not_comparable is None and own is not None and _same_calls(choice, own, policy):
        _compare_calls(report, request, choice, own, policy)
    elif report.not_comparable is None:
        await _Examiner(request, choice, engine, can, report, _raw(primary), policy, ready).run_calls()
    else:
        report.findings = compare.unverified(choice.calls, report.not_comparable)
    return report


def _repeated(ready: Continuation | None) -> Choice | None:
    """An answer to the whole request, if that is what was got ready."""
    return ready.own if ready is not None and ready.start is None else None


def _same_calls(choice: Choice, own: Choice, policy: compare.PolicyOf) -> bool:
    findings = compare.judge_calls(choice.calls, own.calls, differing=Word.MISMATCH, policy=policy)
    return all(finding.word in {Word.MATCH, Word.EQUIVALENT} for finding in findings)


def _raw(primary: Capabilities | None) -> bool:
    return primary is None or primary.logprobs_mode is LogprobsMode.RAW


def _told_tokens(exchange: Exchange) -> int:
    told = (exchange.answer.usage or {}).get("completion_tokens")
    return told if type(told) is int and told >= 0 else _UNTOLD_TOKENS


def _compare_calls(
    report: ChoiceReport, request: Request, choice: Choice, own: Choice, policy: compare.PolicyOf
) -> None:
    """On histories of their own: the same calls countersign each other, other ones say nothing, and why is kept.

    Where a dialect tells no tokens, but nothing was said before the calls, the history is the prompt on both sides; and
    where the client asked for the first choice of everything, a call that differs is none that was sampled.
    """
    report.ways.append("replay")
    report.reference_calls = own.calls
    why, report.not_comparable = report.not_comparable or "", None
    word, why = (Word.MISMATCH, "") if _on_the_prompt_alone(request, choice, own) else (Word.UNVERIFIED, why)
    report.findings = compare.judge_calls(report.calls, own.calls, differing=word, reason=why, policy=policy)


def _on_the_prompt_alone(request: Request, choice: Choice, own: Choice) -> bool:
    """Whether two free answers to a request have one history up to their calls, and neither of them was sampled."""
    silent = not any((choice.content.strip(), choice.reasoning, own.content.strip(), own.reasoning))
    return silent and request.asks_greedy and not request.tells_tokens


async def _prompt_differs(exchange: Exchange, engine: Engine, can: Capabilities) -> bool | None:
    """Whether the reference's own template gives other ids: a drift of templates, never one of the model."""
    request = exchange.request
    prompt = next((c.prompt_ids for c in exchange.answer.choices.values() if c.prompt_ids is not None), None)
    if request.dialect is not Dialect.CHAT or prompt is None:
        return None
    try:
        theirs = await engine.prompt_ids(request, render=can.render)
    except EngineError:
        return None
    return None if theirs is None else theirs != prompt


class _Examiner:
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
        """Asks, and compares off the event loop: long answers and large calls take their time."""
        report, choice = self.report, self.choice
        report.prompt_tokens = len(self.prompt)
        if choice.calls:
            report.start = await asyncio.to_thread(call_start, choice) or await self._start_by_detokenizing()
        view = await asyncio.to_thread(self._view)
        if (scored := await self._force()) is not None:
            await asyncio.to_thread(self._compare, view, *scored)
        own = await self._own_answer()
        if own is not None:
            await asyncio.to_thread(self._conclude, view, own)
        elif choice.calls and not report.findings:
            report.findings = compare.unverified(choice.calls, "no_way_to_ask")

    async def run_calls(self) -> None:
        """Asks for the reference's own call, and compares tokens only where it is another one."""
        report, choice = self.report, self.choice
        report.prompt_tokens = len(self.prompt)
        report.start = call_start(choice) or await self._start_by_detokenizing()
        own = await self._own_answer()
        if own is None:
            report.findings = report.findings or compare.unverified(choice.calls, "no_way_to_ask")
            return
        report.findings = compare.judge_calls(choice.calls, own.calls, differing=Word.MISMATCH, policy=self.policy)
        if all(finding.word in {Word.MATCH, Word.EQUIVALENT} for finding in report.findings):
            return
        view = await asyncio.to_thread(self._view)
        if (forced := await self._force_call()) is not None:
            await asyncio.to_thread(self._compare, view, *forced)
        await asyncio.to_thread(self._conclude, view, own)

    async def _force_call(self) -> tuple[int, TopK] | None:
        """Teacher forcing of the call's region, at the least cost: probes, else a score of everything."""
        start = self._anchor()
        if "continue" not in self.report.ways:  # on another history there is nothing to explain
            return None
        if "probe" in self.can.ways and len(self.output) - start <= MAX_PROBES:
            self.report.ways.append("probe")
            return start, await self.engine.probe(self.prompt, self.output, start)
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
        if not self.choice.calls and not own.calls:
            return
        if shared and not self.request.tells_tokens and not self.request.asks_greedy:
            # The dialect tells no logprobs: whether another call was sampled or chosen, nobody knows.
            word, reason = Word.UNVERIFIED, "no_logprobs"
        elif shared and self._nearly(own):
            word, reason = Word.NEAR_TIE, ""
        elif shared:
            word, reason = compare.explain(self.report.positions, parted_closely=self._parted_closely(own)), ""
        elif _on_the_prompt_alone(self.request, self.choice, own):
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
        self.report.ways.append("probe")
        return start, await self.engine.probe(self.prompt, self.output, start)

    async def _score(self) -> tuple[int, TopK]:
        """Scoring needs room for one token more: the last position of a full context is probed, or left out."""
        self.report.ways.append("score")
        limit = self.can.max_model_len
        if limit is None or len(self.prompt) + len(self.output) < limit:
            return 0, await self.engine.score(self.prompt, self.output)
        top = await self.engine.score(self.prompt, self.output[:-1])
        if "probe" in self.can.ways:
            self.report.ways.append("probe")
            top = top.then(await self.engine.probe(self.prompt, self.output, len(self.output) - 1))
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
