"""Two answers -> findings. Pure: what the calls of a choice are worth, given what the reference said.

Words say "differs from the reference", never "wrong": a reference is a fidelity reference, not an oracle.
"""

import json
from collections.abc import Callable, Sequence

from shadow.divergence import NEAR_TIE_NATS, Margin, Outcome, Position
from shadow.exchange import Region
from validators import ComparePolicy, Finding, ToolCall, Word, match_calls

PolicyOf = Callable[[str], ComparePolicy]

_MAX_LEAK_STARTS = 256  # places in a text where a JSON object is tried; a text of braces must not cost quadratic time


def exact(_tool: str) -> ComparePolicy:
    """The policy that lets every difference count."""
    return ComparePolicy()


def leaked_calls(content: str, names: frozenset[str]) -> list[str]:
    """The names of tools whose calls stand in plain text: a JSON object whose `name` is one of the request's tools."""
    if not names or "{" not in content:
        return []
    decoder, found, position, tries = json.JSONDecoder(), [], 0, 0
    while (position := content.find("{", position)) >= 0 and tries < _MAX_LEAK_STARTS:
        tries += 1
        try:
            value, position = decoder.raw_decode(content, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        name = value.get("name") if isinstance(value, dict) else None
        if isinstance(name, str) and name in names:
            found.append(name)
    return found


def explain(positions: Sequence[Position], *, parted_closely: bool = False, threshold: float = NEAR_TIE_NATS) -> Word:
    """Why calls differ that were made on the same history, from the positions of the call's region.

    A confident flip, or anything that could not be determined: `mismatch`. Only near ties: `near_tie`. No flip at all
    and the primary emitted something else than its own winner: `sampled_choice`. No flip, every token its winner, and
    the reference left that path at a place where it had both tokens within the threshold (`parted_closely`; an exact
    tie is no flip): `near_tie` as well.
    """
    region = [p for p in positions if p.region is Region.TOOL_CALL]
    if not region or any(p.outcome in {Outcome.UNDETERMINED, Outcome.EXCLUDED} for p in region):
        return Word.MISMATCH
    clarities = {p.clarity(threshold) for p in region} - {None}
    if Margin.CONFIDENT in clarities:
        return Word.MISMATCH
    if Margin.NEAR_TIE in clarities:
        return Word.NEAR_TIE
    if any(p.emitted != p.primary_winner for p in region):
        return Word.SAMPLED_CHOICE
    return Word.NEAR_TIE if parted_closely else Word.MISMATCH


def judge_calls(
    primary: Sequence[ToolCall],
    reference: Sequence[ToolCall],
    *,
    differing: Word,
    reason: str = "",
    policy: PolicyOf = exact,
) -> list[Finding]:
    """One finding per call of either side.

    `differing` is the word for calls that are not the same (see `explain`; `unverified` where the two were not made on
    one history), with `reason` in place of the kind of difference where it is given.
    """
    findings = []
    for match in match_calls(primary, reference, policy):
        call = primary[match.primary] if match.primary is not None else reference[match.reference or 0]
        if match.kind in {"match", "equivalent"}:
            findings.append(Finding(Word(match.kind), call.name, match.primary, reference=match.reference))
        else:
            kind = "no_call" if match.kind == "extra" and not reference else match.kind
            why = reason or kind
            findings.append(Finding(differing, call.name, match.primary, why, match.differences, match.reference))
    return findings


def unverified(calls: Sequence[ToolCall], reason: str) -> list[Finding]:
    """Every call without a second opinion, and why."""
    return [Finding(Word.UNVERIFIED, call.name, i, reason) for i, call in enumerate(calls)]
