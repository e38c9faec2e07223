from decimal import Decimal
from typing import Any

import pytest

from shadow.compare import explain, judge_calls, leaked_calls, unverified
from shadow.divergence import Basis, Outcome, Position
from shadow.exchange import Region
from validators import ComparePolicy, Difference, Finding, ToolCall, Word
from validators.calls import Side

NAMES = frozenset({"ping", "run_command"})


def at(
    outcome: Outcome,
    margin: float | None = None,
    *,
    emitted: int = 5,
    winner: int = 5,
    region: Region = Region.TOOL_CALL,
    bound: bool = False,
) -> Position:
    return Position(
        0, region, Basis.WINNER, outcome, emitted, primary_winner=winner, margin=margin, margin_is_bound=bound
    )  # fmt: skip


SAME = at(Outcome.SAME)
SAMPLED = at(Outcome.SAME, emitted=6)
NEAR = at(Outcome.FLIP, 0.05)
CONFIDENT = at(Outcome.FLIP, 0.5)
BOUND = at(Outcome.FLIP, 0.05, bound=True)
UNDETERMINED = at(Outcome.UNDETERMINED)
EXCLUDED = at(Outcome.EXCLUDED)
OUTSIDE = at(Outcome.FLIP, 0.5, region=Region.TEXT)


@pytest.mark.parametrize(
    ("positions", "word"),
    [
        ([], "mismatch"),
        ([OUTSIDE], "mismatch"),
        ([SAME, SAME], "mismatch"),
        ([SAME, SAMPLED], "sampled_choice"),
        ([SAMPLED], "sampled_choice"),
        ([NEAR], "near_tie"),
        ([NEAR, SAME, NEAR], "near_tie"),
        ([NEAR, SAMPLED], "near_tie"),
        ([CONFIDENT], "mismatch"),
        ([CONFIDENT, NEAR], "mismatch"),
        ([CONFIDENT, SAMPLED], "mismatch"),
        ([BOUND], "mismatch"),
        ([UNDETERMINED], "mismatch"),
        ([UNDETERMINED, NEAR], "mismatch"),
        ([UNDETERMINED, SAMPLED], "mismatch"),
        ([EXCLUDED], "mismatch"),
        ([EXCLUDED, NEAR], "mismatch"),
        ([EXCLUDED, SAMPLED], "mismatch"),
        # what lies outside the call does not matter
        ([OUTSIDE, NEAR], "near_tie"),
        ([at(Outcome.EXCLUDED, region=Region.REASONING), SAMPLED], "sampled_choice"),
        ([at(Outcome.SAME, emitted=6, region=Region.TEXT), SAME], "mismatch"),
    ],
)
def test_why_calls_differ(positions: list[Position], word: str) -> None:
    assert explain(positions) is Word(word)
    assert explain(positions[::-1]) is Word(word)


def test_parting_at_a_tie_is_a_near_tie_where_nothing_else_explains_it() -> None:
    """The reference had both tokens alike and took the other one: no winner flipped, and nothing was sampled."""
    same = at(Outcome.SAME)
    assert explain([same]) is Word.MISMATCH
    assert explain([same], parted_closely=True) is Word.NEAR_TIE
    assert explain([same, CONFIDENT], parted_closely=True) is Word.MISMATCH


def test_the_threshold_is_the_caller_s() -> None:
    assert explain([CONFIDENT], threshold=0.6) is Word.NEAR_TIE
    assert explain([NEAR], threshold=0.01) is Word.MISMATCH


def call(name: str = "ping", arguments: str = "{}") -> ToolCall:
    return ToolCall(name, arguments)


def judged(
    primary: list[ToolCall], reference: list[ToolCall], differing: Word = Word.MISMATCH, **more: Any
) -> list[tuple[str, str, int | None, str]]:
    findings = judge_calls(primary, reference, differing=differing, **more)
    return [(finding.word.value, finding.tool, finding.call, finding.reason) for finding in findings]


def test_the_same_call_countersigns_whatever_explains_the_rest() -> None:
    for word in (Word.MISMATCH, Word.NEAR_TIE, Word.UNVERIFIED):
        assert judged([call(arguments='{"a": 1}')], [call(arguments='{"a":1.0}')], word) == [("match", "ping", 0, "")]


def test_each_call_is_judged_by_itself() -> None:
    primary = [call(arguments='{"a": 1}'), call("run_command"), call("pong"), call("extra")]
    reference = [call("run_command", "null"), call(arguments='{"a": 2}'), call("pung")]
    assert judged(primary, reference) == [
        ("mismatch", "ping", 0, "arguments"),
        ("match", "run_command", 1, ""),
        ("mismatch", "pong", 2, "name"),
        ("mismatch", "extra", 3, "extra"),
    ]


def test_a_call_that_only_the_reference_made_names_its_tool() -> None:
    assert judged([], [call("run_command")]) == [("mismatch", "run_command", None, "missing")]
    assert judged([call()], [call(), call("run_command"), call("ping", '{"x":1}')], Word.NEAR_TIE) == [
        ("match", "ping", 0, ""),
        ("near_tie", "run_command", None, "missing"),
        ("near_tie", "ping", None, "missing"),
    ]


def test_a_reference_without_any_call_says_no_call() -> None:
    assert judged([call(), call("run_command")], []) == [
        ("mismatch", "ping", 0, "no_call"),
        ("mismatch", "run_command", 1, "no_call"),
    ]
    assert judged([], []) == []


def test_a_given_reason_stands_in_place_of_the_kind() -> None:
    found = judged([call(arguments='{"a": 1}'), call("x")], [call()], Word.UNVERIFIED, reason="no_shared_history")
    assert found == [("unverified", "ping", 0, "no_shared_history"), ("unverified", "x", 1, "no_shared_history")]


def test_differences_are_kept_with_the_finding() -> None:
    (finding,) = judge_calls([call(arguments='{"a": 1}')], [call(arguments='{"a": 2}')], differing=Word.SAMPLED_CHOICE)
    assert finding.word is Word.SAMPLED_CHOICE
    assert finding.differences == (Difference("/a", Side.BOTH, Decimal(1), Decimal(2)),)


def test_the_tool_s_policy_makes_calls_equivalent() -> None:
    def policy(tool: str) -> ComparePolicy:
        return ComparePolicy(ignore=("/why",)) if tool == "ping" else ComparePolicy()

    primary = [call(arguments='{"why": 1}'), call("run_command", '{"why": 1}')]
    reference = [call(arguments='{"why": 2}'), call("run_command", '{"why": 2}')]
    assert judged(primary, reference, policy=policy) == [
        ("equivalent", "ping", 0, ""),
        ("mismatch", "run_command", 1, "arguments"),
    ]


def test_every_call_can_be_unverified_for_one_reason() -> None:
    assert unverified([call(), call("x")], "timeout") == [
        Finding(Word.UNVERIFIED, "ping", 0, "timeout"),
        Finding(Word.UNVERIFIED, "x", 1, "timeout"),
    ]
    assert unverified([], "timeout") == []


# -- calls in plain text


@pytest.mark.parametrize(
    ("content", "leaked"),
    [
        ("", []),
        ("Ping it with ping.", []),
        ('{"name": "ping"}', ["ping"]),
        ('{"arguments": {"name": "x"}, "name": "ping"}', ["ping"]),
        ('{"name": "ping"} {"name":"run_command"}', ["ping", "run_command"]),
        ('{"name": "ping"}{"name": "ping"}', ["ping", "ping"]),
        ('{"name": "other"}', []),
        ('{"name": ["ping"]}', []),
        ('{"name": null}', []),
        ('{"Name": "ping"}', []),
        ('{broken {"name": "ping"}', ["ping"]),
        ('{"name": "ping"', []),
        ('```json\n{\n  "name": "run_command",\n  "parameters": {}\n}\n```', ["run_command"]),
        ('[{"name": "ping"}]', ["ping"]),
        ("{}{}{}", []),
    ],
)
def test_calls_that_stand_in_plain_text(content: str, leaked: list[str]) -> None:
    assert leaked_calls(content, NAMES) == leaked


def test_without_tools_nothing_can_leak() -> None:
    assert leaked_calls('{"name": "ping"}', frozenset()) == []


@pytest.mark.parametrize(
    "bomb",
    ["{", '{"a":', "[{", '{"', '{"name": "ping", "x": ', '{"a": "', "{}", '{"a": [', '{ "' + "x" * 50],
)
@pytest.mark.timeout(60)
def test_a_text_of_braces_costs_no_more_than_its_length(bomb: str) -> None:
    assert leaked_calls(bomb * 100_000, NAMES) in ([], ["ping"])
