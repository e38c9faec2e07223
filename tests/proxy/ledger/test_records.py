import json
import math
from decimal import Decimal
from typing import Any

import orjson
import pytest

from proxy.ledger import Content, examination_record, exchange_record
from proxy.ledger.records import counts, plain
from shadow.choice import ChoiceReport
from shadow.divergence import Basis, Outcome, Position
from shadow.examine import Examination
from shadow.exchange import Answer, Choice, Dialect, Exchange, Region, Request, Timings
from shadow.regions import CallStart
from validators import Difference, Finding, ToolCall, Word
from validators.calls import Side

# What is content: none of these may be found where content is not kept.
TEXTS = ["SECRET-PROMPT", "SECRET-ANSWER", "SECRET-THOUGHT", "SECRET-ARGUMENT", "SECRET-OTHER", "SECRET-TOKEN"]
IDS = [7654321, 7654322, 7654323, 7654324, 7654325]
# What is structure: kept unless nothing is.
NAMES = ["wire_money", "/account"]
MARGIN = 0.12345


TOOLS = [{"type": "function", "function": {"name": "wire_money"}}]
OFFERED = frozenset({"wire_money", "ping"})


def exchange() -> Exchange:
    choice = Choice(
        0,
        prompt_ids=(IDS[0],),
        token_ids=(IDS[1], IDS[2]),
        token_bytes=(b"SECRET-TOKEN", None),
        content="SECRET-ANSWER",
        reasoning="SECRET-THOUGHT",
        calls=(ToolCall("wire_money", '{"account": "SECRET-ARGUMENT"}', "call-1"),),
        finish_reason="tool_calls",
    )
    messages = [{"role": "user", "content": "SECRET-PROMPT"}]
    return Exchange(
        id="x-1",
        request=Request(Dialect.CHAT, {"model": "m", "stream": True, "messages": messages, "tools": TOOLS}),
        answer=Answer({0: choice}, model="m"),
        status=200,
        began_at=1000.5,
        timings=Timings(10.0, 10.25, 11.5),
        conversation="c" * 32,
    )


DIFFERENCES = (Difference("/account", Side.BOTH, "SECRET-ARGUMENT", "SECRET-OTHER"),)
OWN = [(0, Finding(Word.INVALID, "wire_money", 0, "unknown_tool"))]


def examination() -> Examination:
    flip = Position(
        1,
        Region.TOOL_CALL,
        Basis.WINNER,
        Outcome.FLIP,
        emitted=IDS[2],
        primary_winner=IDS[2],
        reference_winner=IDS[3],
        margin=MARGIN,
        reference_logprob=-1.5,
        primary_pair=(-0.5, None),
        reference_pair=(-1.5, -0.25),
    )
    same = Position(
        0, Region.TEXT, Basis.WINNER, Outcome.SAME, emitted=IDS[1], primary_winner=IDS[1], reference_winner=IDS[1]
    )
    report = ChoiceReport(
        0,
        positions=[same, flip],
        findings=[Finding(Word.MISMATCH, "wire_money", 0, "arguments", DIFFERENCES)],
        ways=["score", "continue"],
        start=CallStart(1, exact=True),
        prompt_tokens=1,
        reference_calls=(ToolCall("wire_money", '{"account": "SECRET-OTHER"}'),),
        texts={IDS[4]: "SECRET-TOKEN"},
    )
    return Examination("ref", choices=[report], prompt_differs=False)


def test_no_content_is_kept_unless_it_is_asked_for() -> None:
    for content in (Content.NONE, Content.REDACTED):
        kept = json.dumps(
            [exchange_record(exchange(), OWN, content), examination_record(examination(), content, OFFERED)]
        )
        assert [text for text in [*TEXTS, *map(str, IDS)] if text in kept] == []
        assert [name in kept for name in [*NAMES, str(MARGIN)]] == [content is Content.REDACTED] * 3
    full = orjson.dumps(
        [exchange_record(exchange(), OWN, Content.FULL), examination_record(examination(), Content.FULL, OFFERED)],
        option=orjson.OPT_NON_STR_KEYS,
    ).decode()
    assert [text for text in [*TEXTS, *map(str, IDS), *NAMES, str(MARGIN)] if text not in full] == []


EXCHANGE: dict[str, Any] = {
    "id": "x-1",
    "began_at": 1000.5,
    "dialect": "chat",
    "model": "m",
    "conversation": "c" * 32,
    "stream": True,
    "status": 200,
    "seconds": 1.5,
    "problem": None,
}
CHOICE: dict[str, Any] = {"index": 0, "prompt_tokens": 1, "completion_tokens": 2, "finish_reason": "tool_calls"}


def test_an_exchange_of_which_nothing_is_kept() -> None:
    assert exchange_record(exchange(), OWN, Content.NONE) == EXCHANGE | {
        "choices": [CHOICE | {"calls": [{}]}],
        "findings": [{"choice": 0, "word": "invalid", "call": 0, "reference": None, "reason": "unknown_tool"}],
    }


def test_an_exchange_redacted() -> None:
    finding = {"choice": 0, "word": "invalid", "call": 0, "reference": None, "reason": "unknown_tool"}
    assert exchange_record(exchange(), OWN, Content.REDACTED) == EXCHANGE | {
        "choices": [CHOICE | {"calls": [{"name": "wire_money"}]}],
        "findings": [finding | {"tool": "wire_money", "differences": []}],
    }


def test_a_whole_exchange() -> None:
    record = exchange_record(exchange(), [], Content.FULL)
    assert record["request"]["messages"] == [{"role": "user", "content": "SECRET-PROMPT"}]
    (choice,) = record["choices"]
    assert choice == CHOICE | {
        "calls": [{"name": "wire_money", "arguments": '{"account": "SECRET-ARGUMENT"}'}],
        "content": "SECRET-ANSWER",
        "reasoning": "SECRET-THOUGHT",
        "prompt_ids": (7654321,),
        "token_ids": (7654322, 7654323),
        "tokens": ["SECRET-TOKEN", None],
    }


def test_half_a_character_does_not_stop_a_record() -> None:
    one = exchange()
    one.answer.choices[0].token_bytes = (b"\xf0\x9f", b"ok")
    assert exchange_record(one, [], Content.FULL)["choices"][0]["tokens"] == ["\ufffd", "ok"]


def test_an_exchange_of_which_nothing_is_known() -> None:
    one = exchange()
    one.answer = Answer({0: Choice(0)}, problem="truncated")
    record = exchange_record(one, [], Content.REDACTED)
    assert record["problem"] == "truncated"
    assert record["choices"] == [
        {"index": 0, "prompt_tokens": None, "completion_tokens": None, "finish_reason": None, "calls": []}
    ]


COUNTS = {"same": 1, "flip": 1, "undetermined": 0, "excluded": 0, "near_tie": 0, "confident": 1}


def test_an_examination_without_content() -> None:
    record = examination_record(examination(), Content.NONE, OFFERED)
    assert (record["shadow"], record["outcome"], record["reason"], record["verdict"]) == (
        "ref",
        "compared",
        "",
        "mismatch",
    )
    assert record["counts"] == COUNTS
    assert record["prompt_differs"] is False
    assert record["choices"] == [
        {
            "index": 0,
            "not_comparable": None,
            "ways": ["score", "continue"],
            "call_start": 1,
            "call_start_exact": True,
            "findings": [{"word": "mismatch", "call": 0, "reference": None, "reason": "arguments"}],
            "reference_calls": [{}],
            "positions": [],
        }
    ]


def test_an_examination_redacted_names_places_and_margins_of_flips() -> None:
    (choice,) = examination_record(examination(), Content.REDACTED, OFFERED)["choices"]
    assert choice["findings"] == [
        {
            "word": "mismatch",
            "call": 0,
            "reference": None,
            "reason": "arguments",
            "tool": "wire_money",
            "differences": [{"pointer": "/account", "side": "changed"}],
        }
    ]
    assert choice["reference_calls"] == [{"name": "wire_money"}]
    assert choice["positions"] == [
        {
            "index": 1,
            "region": "tool_call",
            "basis": "winner",
            "outcome": "flip",
            "margin": 0.12345,
            "margin_is_bound": False,
            "clarity": "confident",
        }
    ]
    assert "texts" not in choice


def test_a_whole_examination_has_every_position_and_both_engines_numbers() -> None:
    (choice,) = examination_record(examination(), Content.FULL, OFFERED)["choices"]
    first, second = choice["positions"]
    assert (first["outcome"], first["clarity"], first["margin"], first["primary_logprobs"]) == (
        "same",
        None,
        None,
        None,
    )
    assert second["emitted"] == second["primary_winner"] == 7654323
    assert second["reference_winner"] == 7654324
    assert second["reference_logprob"] == -1.5
    assert second["primary_logprobs"] == (-0.5, None)
    assert second["reference_logprobs"] == (-1.5, -0.25)
    assert choice["findings"][0]["differences"] == [
        {"pointer": "/account", "side": "changed", "primary": "SECRET-ARGUMENT", "reference": "SECRET-OTHER"}
    ]
    assert choice["reference_calls"] == [{"name": "wire_money", "arguments": '{"account": "SECRET-OTHER"}'}]
    assert choice["texts"] == {7654325: "SECRET-TOKEN"}


def test_infinite_margins_are_not_numbers_of_json() -> None:
    position = Position(0, Region.TEXT, Basis.WINNER, Outcome.FLIP, 5, margin=math.inf, reference_logprob=-math.inf)
    record = examination_record(Examination("ref", choices=[ChoiceReport(0, positions=[position])]), Content.FULL)
    kept = record["choices"][0]["positions"][0]
    assert (kept["margin"], kept["reference_logprob"], kept["clarity"]) == (None, None, "confident")


def test_the_worst_word_of_all_choices_is_the_verdict() -> None:
    def report(*words: Word) -> ChoiceReport:
        return ChoiceReport(0, findings=[Finding(word, "f", 0) for word in words])

    def verdict(*reports: ChoiceReport) -> Any:
        return examination_record(Examination("ref", choices=list(reports)), Content.NONE)["verdict"]

    assert verdict(report(Word.MATCH), report(Word.NEAR_TIE, Word.MISMATCH)) == "mismatch"
    assert verdict(report(Word.MATCH)) == "match"
    assert verdict(report()) is None
    assert verdict() is None


def test_an_examination_that_failed() -> None:
    record = examination_record(Examination("ref", "failed", "timeout"), Content.FULL)
    assert (record["outcome"], record["reason"], record["choices"], record["verdict"]) == (
        "failed",
        "timeout",
        [],
        None,
    )
    assert set(record["counts"].values()) == {0}


def test_positions_are_counted_by_outcome_and_flips_by_clarity() -> None:
    def at(outcome: Outcome, margin: float | None = None) -> Position:
        return Position(0, Region.TEXT, Basis.WINNER, outcome, 5, margin=margin)

    flips = [at(Outcome.FLIP, 0.05), at(Outcome.FLIP, 0.5), at(Outcome.FLIP, 0.01)]
    others = [at(Outcome.SAME), at(Outcome.SAME), at(Outcome.EXCLUDED), at(Outcome.UNDETERMINED)]
    assert counts([*flips, *others]) == {
        "same": 2,
        "flip": 3,
        "undetermined": 1,
        "excluded": 1,
        "near_tie": 2,
        "confident": 1,
    }
    assert counts([]) == dict.fromkeys(counts([]), 0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal(1), 1),
        (Decimal("1.50"), 1.5),
        (Decimal("0.1"), 0.1),
        (Decimal("-0"), 0),
        (Decimal("1e3"), 1000),
        (Decimal(9007199254740991), 9007199254740991),
        (Decimal(9007199254740993), "9007199254740993"),
        (Decimal(123456789012345678901234567890), "123456789012345678901234567890"),
        (Decimal("0.1000000000000000055511151231257827"), "0.1000000000000000055511151231257827"),
        (Decimal("1e400"), "1E+400"),
        ({"a": [Decimal(1), None, True, "x"]}, {"a": [1, None, True, "x"]}),
        ("x", "x"),
        (None, None),
    ],
)
def test_numbers_are_kept_exactly(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    assert type(plain(value)) is type(expected)
