"""One exchange -> what a reference says of it: the one path that mirror, gate and offline acceptance take."""

from dataclasses import dataclass, field

from shadow import compare
from shadow.capabilities import Capabilities, LogprobsMode
from shadow.choice import ChoiceExaminer, ChoiceReport, on_the_prompt_alone
from shadow.engine import Engine
from shadow.errors import EngineError, Refused
from shadow.exchange import Answer, Choice, Continuation, Dialect, Exchange, Request
from validators import Word


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
    if answer.problem is not None and not any(finished(answer, choice) for choice in answer.choices.values()):
        return answer.problem
    if request.multimodal:
        return "multimodal"
    if request.body.get("use_beam_search") or request.body.get("logprob_token_ids") or request.body.get("echo"):
        return "not_injectable"
    return None


def finished(answer: Answer, choice: Choice) -> bool:
    """Whether a choice came to its end, even if its answer did not: a stream may break off behind one that is whole."""
    return answer.problem is None or (answer.problem == "truncated" and choice.finish_reason is not None)


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
        unfinished = None if finished(exchange.answer, choice) else exchange.answer.problem
        report.not_comparable = unfinished or reason or _choice_reason(request, choice)
        ready = exchange.continued.get((engine.name, choice.index))
        if _by_replay(request, report.not_comparable):
            own = own or _repeated(ready) or await engine.replay(request, expected=_told_tokens(exchange))
            _compare_calls(report, request, choice, own, policy)
        elif report.not_comparable is None:
            await ChoiceExaminer(request, choice, engine, can, report, _raw(primary), policy, ready).run()
        elif choice.calls:
            report.findings = compare.unverified(choice.calls, report.not_comparable)
        result.choices.append(report)
        if report.failed is not None:
            raise report.failed
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
    report: ChoiceReport | None = None,
) -> ChoiceReport:
    """What one reference says of the calls of a choice, for somebody who waits for it.

    Its own call comes first; the call's region is forced only where the two differ, to tell why. `ready` is a
    continuation that was begun while the call was still being written, or an answer of its own: that countersigns the
    same calls, and says no more where tokens are known to go on from. `report` is filled as things become known.

    Raises:
        EngineError: the engine could not be asked.
    """
    report = report or ChoiceReport(choice.index, calls=choice.calls)
    report.not_comparable = "multimodal" if request.multimodal else _choice_reason(request, choice)
    own = _repeated(ready)
    if _by_replay(request, report.not_comparable):
        own = own or await engine.replay(request, expected=len(choice.token_ids or ()) or _UNTOLD_TOKENS)
        _compare_calls(report, request, choice, own, policy)
        report.own = Continuation(None, own)
    elif report.not_comparable is None and own is not None and _same_calls(choice, own, policy):
        _compare_calls(report, request, choice, own, policy)
    elif report.not_comparable is None:
        await ChoiceExaminer(request, choice, engine, can, report, _raw(primary), policy, ready).run_calls()
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
    word, why = (Word.MISMATCH, "") if on_the_prompt_alone(request, choice, own) else (Word.UNVERIFIED, why)
    report.findings = compare.judge_calls(report.calls, own.calls, differing=word, reason=why, policy=policy)


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
