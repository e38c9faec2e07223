"""What of an exchange and of a shadow's view goes into the ledger, as privacy allows. Pure.

Token ids, text and argument values are content. `none` keeps counts and verdicts, `redacted` adds structure and names
(tools, JSON pointers, positions and margins of flips), `full` keeps content as well.
"""

import math
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Any

from shadow.choice import ChoiceReport
from shadow.divergence import Outcome, Position
from shadow.examine import Examination
from shadow.exchange import Choice, Exchange, Request
from shadow.judge import Judged
from validators import Difference, Finding, ToolCall, worst


class Content(StrEnum):
    """How much content is kept."""

    NONE = "none"
    REDACTED = "redacted"
    FULL = "full"


METHOD = "teacher forcing on the primary's token history; top-1 by token id; margin in nats of the reference's logprobs"
"""What every figure of a record rests on; the way of asking and k stand beside it."""


def exchange_record(exchange: Exchange, findings: Sequence[tuple[int, Finding]], content: Content) -> dict[str, Any]:
    """An exchange as JSON-ready values."""
    choices, offered = exchange.answer.choices, exchange.request.tool_names
    record: dict[str, Any] = {
        "id": exchange.id,
        "began_at": exchange.began_at,
        "dialect": exchange.request.dialect.value,
        "model": exchange.request.model,
        "conversation": exchange.conversation,
        "stream": exchange.request.stream,
        "status": exchange.status,
        "seconds": round(exchange.timings.ended - exchange.timings.began, 6),
        "problem": exchange.answer.problem,
        "choices": [_choice(choice, content, offered) for choice in choices.values()],
        "findings": [{"choice": index} | _finding(finding, content, offered) for index, finding in findings],
    }
    if content is Content.FULL:
        record["request"] = exchange.request.body
    return record


def _choice(choice: Choice, content: Content, offered: frozenset[str]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "index": choice.index,
        "prompt_tokens": len(choice.prompt_ids) if choice.prompt_ids is not None else None,
        "completion_tokens": len(choice.token_ids) if choice.token_ids is not None else None,
        "finish_reason": choice.finish_reason,
        "calls": [_call(call, content, offered) for call in choice.calls],
    }
    if content is Content.FULL:
        record |= {
            "content": choice.content,
            "reasoning": choice.reasoning,
            "prompt_ids": choice.prompt_ids,
            "token_ids": choice.token_ids,
            "tokens": [None if text is None else text.decode("utf-8", "replace") for text in choice.token_bytes or ()],
        }
    return record


NOT_OFFERED = "(not offered)"
"""Stands for the name of a tool that the request did not offer: a model can make a name of anything."""


def _call(call: ToolCall, content: Content, offered: frozenset[str]) -> dict[str, Any]:
    if content is Content.NONE:
        return {}
    return {"name": _tool(call.name, content, offered)} | (
        {"arguments": call.arguments} if content is Content.FULL else {}
    )


def examination_record(
    examination: Examination, content: Content, offered: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """A shadow's view as JSON-ready values; `offered` are the request's tools, whose names are no content."""
    findings = [finding for report in examination.choices for finding in report.findings]
    positions = [position for report in examination.choices for position in report.positions]
    return {
        "shadow": examination.shadow,
        "outcome": examination.outcome,
        "reason": examination.reason,
        "prompt_differs": examination.prompt_differs,
        "verdict": worst([finding.word for finding in findings]).value if findings else None,
        "method": METHOD,
        "counts": counts(positions),
        "choices": [_report(report, content, offered) for report in examination.choices],
    }


def verdict_record(
    request: Request, judged: Judged, done: str, waited: float | None, content: Content
) -> dict[str, Any]:
    """What was decided about a choice's calls as JSON-ready values; `waited` in seconds."""
    verdict, offered = judged.verdict, request.tool_names
    record: dict[str, Any] = {
        "choice": judged.choice,
        "word": verdict.word.value,
        "action": verdict.action.value,
        "done": done,
        "shadow": verdict.shadow,
        "why": verdict.why,
        "agreed": list(verdict.agreed),
        "waited": None if waited is None else round(waited, 6),
        "calls": [_call(call, content, offered) for call in judged.calls],
        "findings": [{"shadow": shadow} | _finding(finding, content, offered) for shadow, finding in verdict.findings],
    }
    if verdict.substitute is not None:
        record["substitute"] = [_call(call, content, offered) for call in verdict.substitute]
    return record


def counts(positions: Sequence[Position]) -> dict[str, int]:
    """Positions by outcome, and flips by how clear they are."""
    outcomes = Counter(position.outcome.value for position in positions)
    clear = Counter(clarity.value for position in positions if (clarity := position.clarity()) is not None)
    return {outcome.value: outcomes[outcome.value] for outcome in Outcome} | {
        "near_tie": clear["near_tie"],
        "confident": clear["confident"],
    }


def _report(report: ChoiceReport, content: Content, offered: frozenset[str]) -> dict[str, Any]:
    kept = report.positions if content is Content.FULL else [p for p in report.positions if p.outcome is Outcome.FLIP]
    texts = {"texts": report.texts} if content is Content.FULL else {}
    return texts | {
        "index": report.index,
        "not_comparable": report.not_comparable,
        "ways": report.ways,
        "call_start": report.start.index if report.start else None,
        "call_start_exact": report.start.exact if report.start else None,
        "findings": [_finding(finding, content, offered) for finding in report.findings],
        "reference_calls": [_call(call, content, offered) for call in report.reference_calls],
        "positions": [] if content is Content.NONE else [_position(position, content) for position in kept],
    }


def _tool(name: str, content: Content, offered: frozenset[str]) -> str:
    return name if content is Content.FULL or name in offered else NOT_OFFERED


def _position(position: Position, content: Content) -> dict[str, Any]:
    clarity = position.clarity()
    record: dict[str, Any] = {
        "index": position.index,
        "region": position.region.value,
        "basis": position.basis.value,
        "outcome": position.outcome.value,
        "margin": _finite(position.margin),
        "margin_is_bound": position.margin_is_bound,
        "clarity": clarity.value if clarity else None,
    }
    if content is Content.FULL:
        record |= {
            "emitted": position.emitted,
            "primary_winner": position.primary_winner,
            "reference_winner": position.reference_winner,
            "reference_logprob": _finite(position.reference_logprob),
            "primary_logprobs": _finite_pair(position.primary_pair),
            "reference_logprobs": _finite_pair(position.reference_pair),
        }
    return record


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _finite_pair(pair: Sequence[float | None] | None) -> tuple[float | None, ...] | None:
    return None if pair is None else tuple(_finite(value) for value in pair)


def _finding(finding: Finding, content: Content, offered: frozenset[str]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "word": finding.word.value,
        "call": finding.call,
        "reference": finding.reference,
        "reason": finding.reason,
    }
    if content is not Content.NONE:
        record["tool"] = _tool(finding.tool, content, offered)
        record |= {name: told for name, told in (("where", finding.where), ("rule", finding.rule)) if told}
        record |= _detail(finding, content)
        record["differences"] = [_difference(difference, content) for difference in finding.differences]
    return record


def _detail(finding: Finding, content: Content) -> dict[str, Any]:
    return {"detail": finding.detail} if content is Content.FULL and finding.detail else {}


def _difference(difference: Difference, content: Content) -> dict[str, Any]:
    record: dict[str, Any] = {"pointer": difference.pointer, "side": difference.side.value}
    if content is Content.FULL:
        record |= {"primary": plain(difference.primary), "reference": plain(difference.reference)}
    return record


def plain(value: Any) -> Any:
    """Decimals as JSON numbers where a float holds them exactly, else as text."""
    if isinstance(value, Decimal):
        if value == value.to_integral_value() and value.copy_abs() < 2**53:
            return int(value)
        return float(value) if Decimal(repr(float(value))) == value else str(value)
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    return [plain(child) for child in value] if isinstance(value, list) else value
