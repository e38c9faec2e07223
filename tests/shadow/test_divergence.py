import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shadow.divergence import (
    Basis,
    Margin,
    Outcome,
    Position,
    PrimaryView,
    compare_positions,
    emitted_is_winner,
    flips,
    primary_view,
    window,
)
from shadow.exchange import NO_ID, Choice, Dialect, Region, Request, TopK

INF = math.inf
Row = list[tuple[int, float]]


def chat(**body: Any) -> Request:
    return Request(Dialect.CHAT, body)


GREEDY = {"temperature": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
STRICT = {"tools": [{"function": {"name": "f", "strict": True}}]}
REQUIRED = {"tools": [{"function": {"name": "f"}}], "tool_choice": "required"}


def view(emitted: int, row: Row | None, basis: Basis = Basis.WINNER, *, winner: int | None = None) -> PrimaryView:
    top = TopK.of([row]) if row is not None else None
    ids = np.array([emitted], dtype=np.int64)
    winners = np.array([winner], dtype=np.int64) if winner is not None else top.winners(ids) if top else ids
    return PrimaryView([Region.TEXT], [basis], ids, winners, top)


def compared(
    emitted: int, row: Row | None, reference: Row, basis: Basis = Basis.WINNER, *, masked: bool = False
) -> Position:
    (position,) = compare_positions(view(emitted, row, basis), TopK.of([reference]), masked=masked)
    return position


def said(position: Position) -> tuple[str, float | None, bool]:
    margin = None if position.margin is None else round(position.margin, 9)
    return position.outcome.value, margin, position.margin_is_bound


# -- what the primary's winner is taken from


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (GREEDY, True),
        (GREEDY | {"repetition_penalty": 1.0, "temperature": 0.0}, True),
        (
            {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0},
            False,
        ),  # the model's generation_config may add a penalty unasked
        ({"repetition_penalty": 1}, False),
        (GREEDY | {"temperature": 0.7}, False),
        (GREEDY | {"repetition_penalty": 1.1}, False),
        (GREEDY | {"presence_penalty": 0.5}, False),
        (GREEDY | {"frequency_penalty": -0.5}, False),
        (GREEDY | {"presence_penalty": 0, "frequency_penalty": 0.0}, True),
        (GREEDY | {"min_tokens": 3}, False),
        (GREEDY | {"min_tokens": 0}, True),
        (GREEDY | {"logit_bias": {"5": 10}}, False),
        (GREEDY | {"logit_bias": {}}, True),
        (GREEDY | {"logit_bias": None}, True),
        (GREEDY | {"bad_words": ["x"]}, False),
        (GREEDY | {"allowed_token_ids": [1]}, False),
        (GREEDY | {"thinking_token_budget": 100}, False),
        (GREEDY | STRICT, False),
        (GREEDY | REQUIRED, False),
        (GREEDY | {"response_format": {"type": "json_object"}}, False),
        (GREEDY | {"top_p": 0.1, "top_k": 5, "seed": 1, "stop": ["x"]}, True),
    ],
)
def test_an_emitted_token_is_the_winner_only_where_nothing_bends(body: dict[str, Any], expected: bool) -> None:  # noqa: FBT001
    assert emitted_is_winner(chat(**body)) is expected


PENALTIES = ["repetition_penalty", "presence_penalty", "frequency_penalty"]


@pytest.mark.parametrize("name", PENALTIES)
def test_each_penalty_must_stand_in_the_request(name: str) -> None:
    """vLLM 0.32 takes all three from the model's generation_config where a request leaves them out."""
    assert not emitted_is_winner(chat(**{key: value for key, value in GREEDY.items() if key != name}))


@pytest.mark.parametrize("name", PENALTIES)
def test_a_penalty_of_null_does_not_stand_in_the_request(name: str) -> None:
    assert not emitted_is_winner(chat(**GREEDY | {name: None}))


def bases(request: Request, choice: Choice, region: Region, *, raw: bool = True) -> tuple[list[str], list[int]]:
    count = len(choice.token_ids or ())
    seen = primary_view(request, choice, [region] * count, raw_logprobs=raw)
    return [basis.value for basis in seen.bases], seen.winners.tolist()


TOP = TopK.of([[(5, -0.1), (6, -2.0)]])
LOSER = TopK.of([[(5, -3.0), (6, -0.1)]])


@pytest.mark.parametrize(
    ("body", "choice", "region", "raw", "basis", "winner"),
    [
        # its own raw logprobs: the highest, whatever was emitted
        ({}, Choice(0, token_ids=(5,), top=TOP, emitted_wins=(True,)), Region.TEXT, True, "winner", 5),
        ({}, Choice(0, token_ids=(5,), top=LOSER, emitted_wins=(False,)), Region.TEXT, True, "winner", 6),
        (GREEDY, Choice(0, token_ids=(5,), top=LOSER, emitted_wins=(False,)), Region.TEXT, True, "winner", 6),
        # text lists: the emitted one where it holds the highest, else unknown
        ({}, Choice(0, token_ids=(5,), emitted_wins=(True,)), Region.TEXT, True, "winner", 5),
        ({}, Choice(0, token_ids=(5,), emitted_wins=(False,)), Region.TEXT, True, "sampled", NO_ID),
        ({}, Choice(0, token_ids=(5,), emitted_wins=(None,)), Region.TEXT, True, "sampled", NO_ID),
        (GREEDY, Choice(0, token_ids=(5,), emitted_wins=(None,)), Region.TEXT, True, "sampled", NO_ID),
        # no logprobs
        ({}, Choice(0, token_ids=(5,)), Region.TEXT, True, "sampled", NO_ID),
        (GREEDY, Choice(0, token_ids=(5,)), Region.TEXT, True, "emitted", 5),
        (GREEDY | {"repetition_penalty": 1.2}, Choice(0, token_ids=(5,)), Region.TEXT, True, "sampled", NO_ID),
        # processed logprobs are not compared
        ({}, Choice(0, token_ids=(5,), top=TOP, emitted_wins=(True,)), Region.TEXT, False, "processed", 5),
        (GREEDY, Choice(0, token_ids=(5,)), Region.TEXT, False, "processed", 5),
        # grammars
        (REQUIRED, Choice(0, token_ids=(5,), top=TOP, emitted_wins=(True,)), Region.TEXT, True, "constrained", 5),
        (REQUIRED, Choice(0, token_ids=(5,), top=TOP, emitted_wins=(True,)), Region.TOOL_CALL, True, "constrained", 5),
        (REQUIRED, Choice(0, token_ids=(5,), top=TOP, emitted_wins=(True,)), Region.REASONING, True, "winner", 5),
        (STRICT, Choice(0, token_ids=(5,), top=TOP, emitted_wins=(True,)), Region.TEXT, True, "winner", 5),
        (STRICT, Choice(0, token_ids=(5,), top=TOP, emitted_wins=(True,)), Region.TOOL_CALL, True, "constrained", 5),
        (REQUIRED, Choice(0, token_ids=(5,)), Region.TEXT, True, "sampled", NO_ID),
        (GREEDY | REQUIRED, Choice(0, token_ids=(5,)), Region.TEXT, True, "sampled", NO_ID),
    ],
)
def test_the_basis_of_a_position(
    body: dict[str, Any],
    choice: Choice,
    region: Region,
    raw: bool,  # noqa: FBT001
    basis: str,
    winner: int,
) -> None:
    assert bases(chat(**body), choice, region, raw=raw) == ([basis], [winner])


def test_all_bases_are_covered_above_and_nothing_is_known_of_no_tokens() -> None:
    assert {basis.value for basis in Basis} == {"winner", "emitted", "constrained", "sampled", "processed"}
    assert bases(chat(**GREEDY), Choice(0), Region.TEXT) == ([], [])


def test_a_greedy_request_with_a_penalty_invents_no_flip() -> None:
    """It emitted 6 because 5 was penalised; both engines would have 5 first."""
    reference = TopK.of([[(5, -0.1), (6, -2.0)]])
    told = Choice(0, token_ids=(6,), top=TopK.of([[(5, -0.1), (6, -2.1)]]), emitted_wins=(False,))
    silent = Choice(0, token_ids=(6,))
    for penalty in ({"repetition_penalty": 1.3}, {"frequency_penalty": 0.5}, {}):
        request = chat(temperature=0, **penalty)
        for choice, outcome in ((told, Outcome.SAME), (silent, Outcome.EXCLUDED)):
            seen = primary_view(request, choice, [Region.TEXT], raw_logprobs=True)
            (position,) = compare_positions(seen, reference)
            assert position.outcome is outcome


def test_a_winner_is_never_taken_from_text() -> None:
    """Two tokens share a text: only ids tell that the reference agrees, and a text list names no loser's rival."""
    seen = primary_view(chat(), Choice(0, token_ids=(5,), emitted_wins=(False,)), [Region.TEXT], raw_logprobs=True)
    (position,) = compare_positions(seen, TopK.of([[(9, -0.1), (5, -0.5)]]))
    assert position.outcome is Outcome.EXCLUDED
    assert position.primary_winner == NO_ID
    assert position.reference_logprob == -0.5


# -- same, flip, margin


def test_the_same_winner_is_no_flip() -> None:
    assert said(compared(5, [(5, -0.1), (6, -2.0)], [(5, -0.4), (6, -0.5)])) == ("same", None, False)
    assert said(compared(6, [(5, -0.1), (6, -2.0)], [(5, -0.4), (7, -0.5)])) == ("same", None, False)


def test_another_winner_is_a_flip_with_its_margin() -> None:
    position = compared(5, [(5, -0.1), (6, -2.0)], [(6, -0.25), (5, -0.75)])
    assert said(position) == ("flip", 0.5, False)
    assert (position.primary_winner, position.reference_winner, position.emitted) == (5, 6, 5)
    assert position.primary_pair == (-0.1, -2.0)
    assert position.reference_pair == (-0.75, -0.25)
    assert position.reference_logprob == -0.75


def test_a_winner_that_the_reference_did_not_list_gives_a_bound() -> None:
    position = compared(5, [(5, -0.1), (6, -2.0)], [(6, -0.25), (7, -1.25), (8, -9999.0)])
    assert said(position) == ("flip", 1.0, True)
    assert position.primary_pair == (-0.1, -2.0)
    assert position.reference_pair == (None, -0.25)
    assert position.reference_logprob is None


def test_a_winner_that_the_reference_rules_out_is_infinitely_far() -> None:
    position = compared(5, [(5, -0.1), (6, -2.0)], [(6, -0.25), (5, -9999.0)])
    assert said(position) == ("flip", INF, False)
    assert position.clarity() is Margin.CONFIDENT
    assert position.reference_logprob == -INF


@pytest.mark.parametrize("basis", [Basis.SAMPLED, Basis.PROCESSED])
def test_without_a_comparable_winner_only_the_reference_s_view_is_left(basis: Basis) -> None:
    position = compared(5, [(5, -0.1), (6, -2.0)], [(6, -0.25), (5, -0.75)], basis)
    assert said(position) == ("excluded", None, False)
    assert position.reference_logprob == -0.75
    assert position.clarity() is None


def test_a_reference_that_knows_nothing_of_a_position_excludes_it() -> None:
    top = TopK.of([[], [(6, -0.1)]])
    seen = PrimaryView(
        [Region.TEXT] * 2, [Basis.WINNER] * 2, np.array([5, 6]), np.array([5, 6]), TopK.of([[(5, -0.1)], [(6, -0.1)]])
    )
    assert [p.outcome.value for p in compare_positions(seen, top)] == ["excluded", "same"]


def test_a_reference_without_a_winner_excludes_a_position() -> None:
    assert said(compared(5, [(5, -0.1), (6, -2.0)], [(5, -9999.0), (6, -9999.0)])) == ("excluded", None, False)


def test_positions_are_numbered_from_where_the_reference_begins() -> None:
    seen = PrimaryView(
        [Region.REASONING, Region.TEXT, Region.TOOL_CALL],
        [Basis.WINNER] * 3,
        np.array([5, 6, 7]),
        np.array([5, 6, 7]),
        TopK.of([[(5, -0.1)], [(6, -0.1)], [(7, -0.1)]]),
    )
    found = compare_positions(seen, TopK.of([[(6, -0.1)], [(9, -0.1), (7, -1.1)]]), start=1)
    assert [(p.index, p.region.value, p.outcome.value) for p in found] == [
        (1, "text", "same"),
        (2, "tool_call", "flip"),
    ]
    assert [p.index for p in flips(found)] == [2]
    assert compare_positions(seen, TopK.of([]), start=3) == []


@pytest.mark.parametrize(
    ("margin", "bound", "threshold", "expected"),
    [
        (0.05, False, 0.1, Margin.NEAR_TIE),
        (0.0999, False, 0.1, Margin.NEAR_TIE),
        (0.1, False, 0.1, Margin.CONFIDENT),
        (2.0, False, 0.1, Margin.CONFIDENT),
        (0.05, True, 0.1, Margin.CONFIDENT),  # the true margin is unknown: never explained away
        (0.05, False, 0.01, Margin.CONFIDENT),
        (INF, False, 0.1, Margin.CONFIDENT),
        (None, False, 0.1, None),
    ],
)
def test_how_clear_a_flip_is(margin: float | None, bound: bool, threshold: float, expected: Margin | None) -> None:  # noqa: FBT001
    flip = Position(0, Region.TEXT, Basis.WINNER, Outcome.FLIP, 5, margin=margin, margin_is_bound=bound)
    assert flip.clarity(threshold) is expected
    same = Position(0, Region.TEXT, Basis.WINNER, Outcome.SAME, 5, margin=margin)
    assert same.clarity(threshold) is None


def test_the_near_tie_threshold_is_a_tenth_of_a_nat() -> None:
    assert compared(5, [(5, -0.1), (6, -2.0)], [(6, -0.5), (5, -0.59)]).clarity() is Margin.NEAR_TIE
    assert compared(5, [(5, -0.1), (6, -2.0)], [(6, -0.5), (5, -0.61)]).clarity() is Margin.CONFIDENT


# -- ties


@pytest.mark.parametrize(
    ("emitted", "primary", "reference"),
    [
        (5, [(5, -0.5), (6, -0.5)], [(6, -0.1), (5, -0.9)]),  # the primary ties its own winner and the reference's
        (6, [(5, -0.5), (6, -0.5)], [(5, -0.1), (6, -0.9)]),
        (7, [(5, -0.5), (6, -0.5), (7, -3.0)], [(6, -0.1), (5, -0.9)]),
        (5, [(5, -0.1), (6, -0.9)], [(6, -0.5), (5, -0.5)]),  # the reference ties both
        (5, [(5, -0.5), (6, -0.5)], [(6, -0.5), (5, -0.5)]),
    ],
)
def test_ties_are_no_flips_on_either_side(emitted: int, primary: Row, reference: Row) -> None:
    assert compared(emitted, primary, reference).outcome is Outcome.SAME


def test_ties_on_both_sides_that_share_one_token_are_no_flip() -> None:
    primary = [(12, -0.5), (11, -0.5)]
    assert compared(12, primary, [(11, -0.3), (10, -0.3)]).outcome is Outcome.SAME
    assert compared(12, primary, [(10, -0.3), (11, -0.3)]).outcome is Outcome.SAME


ROWS = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([-0.1, -0.5, -0.55, -2.0, -9999.0])),
    min_size=2,
    max_size=5,
    unique_by=lambda pair: pair[0],
).filter(lambda row: any(logprob > -9999.0 for _, logprob in row))
CASES = st.tuples(st.integers(1, 6), ROWS, ROWS, st.sampled_from([Basis.WINNER, Basis.CONSTRAINED]))


@settings(max_examples=100, deadline=None)
@given(CASES, st.randoms(use_true_random=False))
@example((3, [(1, -0.5), (2, -0.5)], [(4, -0.1), (1, -0.15), (2, -3.0)], Basis.WINNER), None)
def test_the_order_of_candidates_changes_nothing(case: tuple[int, Row, Row, Basis], order: Any) -> None:
    emitted, primary, reference, basis = case
    left = primary[::-1] if order is None else order.sample(primary, len(primary))
    right = reference[::-1] if order is None else order.sample(reference, len(reference))
    before, after = compared(emitted, primary, reference, basis), compared(emitted, left, right, basis)
    assert said(before) == said(after)
    assert before.clarity() is after.clarity()


@settings(max_examples=100, deadline=None)
@given(CASES, st.randoms(use_true_random=False))
def test_without_ties_the_order_of_candidates_changes_nothing(case: tuple[int, Row, Row, Basis], order: Any) -> None:
    emitted, primary, reference, basis = case
    primary = [(token, logprob - token / 1000) for token, logprob in primary]
    reference = [(token, logprob - token / 1000) for token, logprob in reference]
    left, right = order.sample(primary, len(primary)), order.sample(reference, len(reference))
    assert compared(emitted, primary, reference, basis) == compared(emitted, left, right, basis)


def with_tie(row: Row, *, front: bool) -> Row:
    tied = [(7, max(logprob for _, logprob in row))]
    return tied + row if front else row + tied


@pytest.mark.parametrize("front", [False, True])
@pytest.mark.parametrize("side", ["primary", "reference"])
def test_adding_a_tied_candidate_never_makes_a_flip(side: str, front: bool) -> None:  # noqa: FBT001
    @settings(max_examples=60, deadline=None)
    @given(CASES)
    @example((5, [(5, -0.5), (6, -0.5)], [(6, -0.1), (5, -0.9)], Basis.WINNER))
    @example((3, [(1, -0.5), (3, -2.0)], [(2, -0.1), (1, -0.1)], Basis.WINNER))
    def check(case: tuple[int, Row, Row, Basis]) -> None:
        emitted, primary, reference, _ = case
        before = compared(emitted, primary, reference)
        if side == "primary":
            after = compared(emitted, with_tie(primary, front=front), reference)
        else:
            after = compared(emitted, primary, with_tie(reference, front=front))
        assert before.outcome is not Outcome.SAME or after.outcome is Outcome.SAME

    check()


def test_a_tie_of_minus_infinities_is_no_tie() -> None:
    position = compared(5, [(5, -0.1), (6, -9999.0)], [(6, -0.1), (5, -9999.0)])
    assert said(position) == ("flip", INF, False)
    nobody = compared(5, [(5, -9999.0), (6, -9999.0)], [(6, -0.1), (5, -0.5)], Basis.SAMPLED)
    assert nobody.outcome is Outcome.EXCLUDED
    assert nobody.primary_winner == NO_ID


# -- under a grammar


@pytest.mark.parametrize(
    ("primary", "reference", "expected"),
    [
        # the same winner
        ([(5, -0.1), (6, -2.0)], [(5, -0.4), (6, -0.5)], ("same", None, False)),
        # a legal, listed one is preferred outright
        ([(5, -0.1), (6, -2.0)], [(6, -0.25), (5, -0.75)], ("flip", 0.5, False)),
        # it is preferred, but below one of unknown legality: at least by that much
        ([(5, -0.1), (6, -2.0)], [(9, -0.1), (6, -0.25), (5, -0.75)], ("flip", 0.5, True)),
        # the primary's winner is not listed: at least by the distance to the lowest
        ([(5, -0.1), (6, -2.0)], [(6, -0.25), (9, -1.25)], ("flip", 1.0, True)),
        # only tokens of unknown legality stand above
        ([(5, -0.1), (6, -2.0)], [(9, -0.1), (5, -0.75), (6, -1.0)], ("undetermined", None, False)),
        ([(5, -0.1), (6, -2.0)], [(9, -0.1), (8, -0.75)], ("undetermined", None, False)),
        # what the mask forbids is listed as minus infinity, and is no alternative
        ([(5, -0.1), (6, -9999.0)], [(6, -0.25), (5, -0.75)], ("undetermined", None, False)),
        # the only legal one is the lowest that is listed: nothing is known
        ([(5, -0.1), (6, -2.0)], [(9, -0.1), (6, -0.75)], ("undetermined", None, False)),
        # the reference rules the winner out
        ([(5, -0.1), (6, -2.0)], [(6, -0.25), (5, -9999.0)], ("flip", INF, False)),
    ],
)
def test_constrained_positions(primary: Row, reference: Row, expected: tuple[str, float | None, bool]) -> None:
    assert said(compared(5, primary, reference, Basis.CONSTRAINED)) == expected


def test_a_masked_reference_compares_like_any_other() -> None:
    primary, reference = [(5, -0.1), (6, -9999.0)], [(6, -0.25), (5, -0.75)]
    assert said(compared(5, primary, reference, Basis.CONSTRAINED, masked=True)) == ("flip", 0.5, False)
    assert said(compared(5, primary, reference, Basis.CONSTRAINED)) == ("undetermined", None, False)
    assert said(compared(5, primary, [(5, -0.1), (9, -9999.0)], Basis.CONSTRAINED, masked=True)) == (
        "same",
        None,
        False,
    )


def test_a_token_that_only_the_mask_chose_is_never_a_flip() -> None:
    only = [(5, 0.0), (1, -9999.0), (2, -9999.0)]
    assert compared(5, only, [(1, -0.1), (2, -0.2), (5, -9.0)], Basis.CONSTRAINED).outcome is Outcome.UNDETERMINED
    assert compared(5, None, [(1, -0.1), (2, -0.2)], Basis.CONSTRAINED).outcome is Outcome.UNDETERMINED


@settings(max_examples=100, deadline=None)
@given(CASES)
def test_a_constrained_flip_is_one_for_an_unconstrained_reader_too(
    case: tuple[int, Row, Row, Basis],
) -> None:
    emitted, primary, reference, _ = case
    bent = compared(emitted, primary, reference, Basis.CONSTRAINED)
    free = compared(emitted, primary, reference)
    if bent.outcome is Outcome.FLIP:
        assert free.outcome is Outcome.FLIP
        assert bent.margin is not None
        assert bent.margin > 0
    if bent.outcome is Outcome.SAME:
        assert free.outcome is Outcome.SAME


# -- windows


@pytest.mark.parametrize(
    ("position", "label"),
    [
        (0, "2k"),
        (2_047, "2k"),
        (2_048, "8k"),
        (8_191, "8k"),
        (8_192, "32k"),
        (32_767, "32k"),
        (32_768, "64k"),
        (65_535, "64k"),
        (65_536, "128k"),
        (131_071, "128k"),
        (131_072, "beyond"),
        (10_000_000, "beyond"),
    ],
)
def test_the_windows_of_context(position: int, label: str) -> None:
    assert window(position) == label
