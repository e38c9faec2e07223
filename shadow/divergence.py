"""Do two engines have the same winner on the same token history, position by position. Pure, over numpy arrays.

Method: teacher forcing; top-1 disagreement = changed winners / evaluated positions, compared by token id. The margin
of a flip is the reference's highest logprob minus its logprob of the primary's winner, in nats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from shadow.exchange import NO_ID, Choice, Ids, Region, Request, TopK

NEAR_TIE_NATS = 0.1
"""A flip with a smaller margin is a near tie."""

WINDOWS: tuple[tuple[int, str], ...] = (
    (2_048, "2k"),
    (8_192, "8k"),
    (32_768, "32k"),
    (65_536, "64k"),
    (131_072, "128k"),
)
"""Upper bounds (exclusive, in context tokens) of the position windows, as metric labels; beyond them: `beyond`."""


class Basis(StrEnum):
    """What the primary's winner is taken from."""

    WINNER = "winner"  # its own raw logprobs
    EMITTED = "emitted"  # the emitted token: a greedy request that nothing bends
    CONSTRAINED = "constrained"  # its own logprobs under a grammar: finite entries are legal
    SAMPLED = "sampled"  # unknown: the reference's view of the emitted token is all there is
    PROCESSED = "processed"  # logprobs after temperature and penalties: not compared


class Outcome(StrEnum):
    """What came of one position."""

    SAME = "same"
    FLIP = "flip"
    UNDETERMINED = "undetermined"  # a grammar hides which legal token the reference prefers
    EXCLUDED = "excluded"  # no winner on one side


class Margin(StrEnum):
    """How clear a flip is to the reference."""

    NEAR_TIE = "near_tie"
    CONFIDENT = "confident"


@dataclass(frozen=True, slots=True)
class Position:
    """One compared position. Ids are NO_ID and numbers None where unknown; logprobs and margin in nats.

    `margin_is_bound`: the true margin is at least `margin` (the reference did not list the primary's winner).
    `primary_pair` and `reference_pair`, of flips only: what that engine gives the primary's winner and the reference's
    winner, None where it is not listed.
    """

    index: int
    region: Region
    basis: Basis
    outcome: Outcome
    emitted: int
    primary_winner: int = NO_ID
    reference_winner: int = NO_ID
    margin: float | None = None
    margin_is_bound: bool = False
    reference_logprob: float | None = None
    primary_pair: tuple[float | None, float | None] | None = None
    reference_pair: tuple[float | None, float | None] | None = None

    def clarity(self, threshold: float = NEAR_TIE_NATS) -> Margin | None:
        """Near tie or confident, None where this is no flip."""
        if self.outcome is not Outcome.FLIP or self.margin is None:
            return None
        return Margin.NEAR_TIE if self.margin < threshold and not self.margin_is_bound else Margin.CONFIDENT


def window(context_position: int) -> str:
    """The label of a position in the context (prompt included), counted from 0."""
    return next((label for bound, label in WINDOWS if context_position < bound), "beyond")


@dataclass(frozen=True, slots=True)
class PrimaryView:
    """The primary's side of a choice: bases (n), winners (n ids, NO_ID unknown), its candidates where told by id."""

    regions: Sequence[Region]
    bases: Sequence[Basis]
    emitted: Ids
    winners: Ids
    top: TopK | None


# What a model's generation_config may set unasked: only the request itself can say that nothing is bent.
_UNASKED: Mapping[str, float] = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
# What bends a greedy choice when the request says so: name -> the value that changes nothing.
_BENDS: Mapping[str, Any] = {
    "min_tokens": 0,
    "logit_bias": None,
    "bad_words": None,
    "allowed_token_ids": None,
    "thinking_token_budget": None,
}


def emitted_is_winner(request: Request) -> bool:
    """Whether an emitted token is certainly the raw winner.

    The request must be greedy, and nothing may bend the choice. A model's generation_config can add penalties (and a
    temperature) unasked, so their neutral values must stand in the request itself; null leaves them to the server.
    """
    if not request.asks_greedy or request.grammar != "no":
        return False
    if any(not _is_number(request.body.get(key), neutral) for key, neutral in _UNASKED.items()):
        return False
    return all(not request.body.get(key) or request.body[key] == neutral for key, neutral in _BENDS.items())


def _is_number(value: Any, wanted: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == wanted


def primary_view(request: Request, choice: Choice, regions: Sequence[Region], *, raw_logprobs: bool) -> PrimaryView:
    """Reads the primary's winner of every position off its wire, with the basis that each rests on.

    `raw_logprobs` is False for an engine whose logprobs are taken after temperature and penalties.
    """
    emitted = np.array(choice.token_ids or (), dtype=np.int64)
    count = len(emitted)
    top = choice.top
    winners = top.winners(emitted) if top is not None else np.full(count, NO_ID, dtype=np.int64)
    wins = choice.emitted_wins or (None,) * count
    winners = np.where((winners == NO_ID) & np.array([w is True for w in wins], dtype=np.bool_), emitted, winners)
    stands_in = choice.emitted_wins is None and emitted_is_winner(request)
    bases = [
        _basis(int(winners[i]), regions[i], request.grammar, raw=raw_logprobs, stands_in=stands_in)
        for i in range(count)
    ]
    if stands_in:
        winners = emitted
    return PrimaryView(regions, bases, emitted, winners, top)


def _basis(winner: int, region: Region, grammar: str, *, raw: bool, stands_in: bool) -> Basis:
    if not raw:
        return Basis.PROCESSED
    if stands_in:
        return Basis.EMITTED
    if winner == NO_ID:
        return Basis.SAMPLED
    # A grammar begins after the reasoning; one that belongs to tool calls leaves the text before them free.
    bent = (grammar == "all" and region is not Region.REASONING) or (grammar == "calls" and region is Region.TOOL_CALL)
    return Basis.CONSTRAINED if bent else Basis.WINNER


def compare_positions(view: PrimaryView, reference: TopK, *, start: int = 0, masked: bool = False) -> list[Position]:
    """Compares the primary's winners with the reference's candidates, position by position.

    Args:
        view: the primary's side, n positions.
        reference: the reference's candidates of positions `start` to `start + len(reference)`, on the same history.
        start: the index in `O` of the reference's first row.
        masked: the reference's logprobs are under the same grammar, so that constrained positions compare like any
            other.
    """
    emitted = view.emitted[start : start + len(reference)]
    winners = view.winners[start : start + len(reference)]
    reference_winners = reference.winners(winners)
    seen = reference.logprob_of(emitted)
    agree = reference.ties(winners)
    result = []
    for row in range(len(emitted)):
        i = start + row
        basis = view.bases[i]
        outcome, margin, bound = Outcome.EXCLUDED, None, False
        if reference_winners[row] != NO_ID and basis not in {Basis.SAMPLED, Basis.PROCESSED}:
            # A tie on either side leaves the winner open: any of the tied is it.
            ours = _tied(view.top, i) or {int(winners[row])}
            if agree[row] or ours & _tied(reference, row):
                outcome = Outcome.SAME
            elif basis is Basis.CONSTRAINED and not masked:
                outcome, margin, bound = _constrained(view.top, i, reference, row, ours)
            else:
                outcome = Outcome.FLIP
                margin, bound = _margin(reference, row, ours)
        result.append(
            Position(
                index=i,
                region=view.regions[i],
                basis=basis,
                outcome=outcome,
                emitted=int(emitted[row]),
                primary_winner=int(winners[row]),
                reference_winner=int(reference_winners[row]),
                margin=margin,
                margin_is_bound=bound,
                reference_logprob=None if np.isnan(seen[row]) else float(seen[row]),
                **_pairs(view.top, i, reference, row, winners, reference_winners) if outcome is Outcome.FLIP else {},
            )
        )
    return result


def _pairs(
    top: TopK | None, i: int, reference: TopK, row: int, winners: Ids, reference_winners: Ids
) -> dict[str, tuple[float | None, float | None]]:
    """Both engines' logprobs of the two winners of one position."""
    pair = int(winners[row]), int(reference_winners[row])
    ours = _listed(top, i) if top is not None else {}
    theirs = _listed(reference, row)
    return {
        "primary_pair": (ours.get(pair[0]), ours.get(pair[1])),
        "reference_pair": (theirs.get(pair[0]), theirs.get(pair[1])),
    }


def _tied(top: TopK | None, row: int) -> set[int]:
    """The ids that hold the highest finite logprob of a row; empty where nothing is known by id."""
    listed = {token: lp for token, lp in _listed(top, row).items() if lp > -np.inf} if top is not None else {}
    best = max(listed.values(), default=None)
    return {token for token, lp in listed.items() if lp == best}


def _margin(reference: TopK, row: int, winners: set[int]) -> tuple[float, bool]:
    """Highest logprob minus the best of `winners`, in nats; a lower bound where the reference lists none of them."""
    listed = _listed(reference, row)
    best = max(listed.values())
    known = [listed[token] for token in winners if token in listed]
    if not known:
        return best - min(lp for lp in listed.values() if lp > -np.inf), True
    return best - max(known), False


def _constrained(
    top: TopK | None, i: int, reference: TopK, row: int, ours: set[int]
) -> tuple[Outcome, float | None, bool]:
    """A constrained position seen by an unmasked reference; `ours` are the primary's tied winners.

    The primary's finite entries are legal by its mask. If the reference ranks another of them above the primary's
    winner, it would have chosen otherwise, by at least that much; if only tokens of unknown legality stand above,
    nothing can be said.
    """
    legal = _legal(top, i)
    listed = _listed(reference, row)
    known = [listed[token] for token in ours if token in listed]
    floor = max(known, default=min(listed.values()))
    better = [lp for token, lp in listed.items() if token in legal and token not in ours and lp > floor]
    if not better:
        return Outcome.UNDETERMINED, None, False
    return Outcome.FLIP, max(better) - floor, not (known and max(better) == max(listed.values()))


def _legal(top: TopK | None, i: int) -> set[int]:
    if top is None:
        return set()
    return {token for token, logprob in _listed(top, i).items() if logprob > -np.inf}


def _listed(top: TopK, row: int) -> dict[int, float]:
    return {int(t): float(lp) for t, lp in zip(top.ids[row], top.logprobs[row], strict=True) if t != NO_ID}


def flips(positions: Sequence[Position]) -> list[Position]:
    """The positions whose winner changed."""
    return [position for position in positions if position.outcome is Outcome.FLIP]
