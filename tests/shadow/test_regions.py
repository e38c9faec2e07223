import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shadow.exchange import Choice, Dialect, Region
from shadow.regions import CallStart, call_start, regions
from shadow.wire import answers
from validators import ToolCall

HERMES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "engine" / "hermes_cases.jsonl").read_text(encoding="utf-8").splitlines()
]
CALLED = [case for case in HERMES if case["marker_token"] is not None]
MARKER = "<tool_call>"
CALL = ("{", '"name"', "}", "</tool_call>")


def entries(ids: list[int], texts: list[str]) -> dict[str, Any]:
    return {
        "content": [
            {"token": f"token_id:{token}", "logprob": -0.5, "bytes": list(bytes.fromhex(text)), "top_logprobs": []}
            for token, text in zip(ids, texts, strict=True)
        ]
    }


def streamed(case: dict[str, Any]) -> Choice:
    """The case as the wire would have told it."""
    at, body = 0, b""
    for chunk in case["chunks"]:
        ids = chunk.get("token_ids", [])
        logprobs = entries(ids, case["token_bytes_hex"][at : at + len(ids)]) if ids else None
        at += len(ids)
        body += b"data: " + json.dumps({"choices": [{"index": 0, "logprobs": logprobs} | chunk]}).encode() + b"\n\n"
    answer = answers.read(Dialect.CHAT, body + b"data: [DONE]\n\n", stream=True)
    assert answer.problem is None
    return answer.choices[0]


def at_once(case: dict[str, Any]) -> Choice:
    choice = {
        "index": 0,
        "message": case["nonstream"],
        "finish_reason": "tool_calls",
        "token_ids": case["token_ids"],
        "logprobs": entries(case["token_ids"], case["token_bytes_hex"]),
    }
    return answers.read(Dialect.CHAT, json.dumps({"choices": [choice]}).encode(), stream=False).choices[0]


def choice(*tokens: str | bytes | None, lead: str = "", reasoning: str = "", called: bool = True) -> Choice:
    texts = tuple(token.encode() if isinstance(token, str) else token for token in tokens)
    calls = (ToolCall("f"),) if called else ()
    return Choice(
        0,
        token_ids=tuple(range(len(texts))),
        token_bytes=texts,
        content=lead,
        lead=lead,
        reasoning=reasoning,
        calls=calls,
    )


# -- the real parser


def test_the_corpus_has_many_calls() -> None:
    assert len(CALLED) >= 120


@pytest.mark.parametrize("case", CALLED, ids=[case["name"] for case in CALLED])
def test_a_streamed_call_begins_at_its_marker(case: dict[str, Any]) -> None:
    start = call_start(streamed(case))
    assert start is not None
    assert start.index == case["marker_token"]


def test_an_answer_at_once_never_begins_later_than_its_marker() -> None:
    seen, earlier = 0, set()
    for case in CALLED:
        if not case["nonstream"]["tool_calls"]:
            continue
        seen += 1
        start = call_start(at_once(case))
        assert start is not None
        if start.index != case["marker_token"]:
            earlier.add(case["name"].partition(" [")[0])
            assert start.index < case["marker_token"]
            assert not start.exact
    assert seen >= 110
    assert earlier == {"line breaks only", "blanks only"}  # the parser takes white space away


def test_exact_means_that_the_token_begins_with_the_marker() -> None:
    exact = 0
    for case in CALLED:
        start = call_start(streamed(case))
        assert start is not None
        if start.exact:
            exact += 1
            text = b"".join(bytes.fromhex(text) for text in case["token_bytes_hex"][start.index :])
            assert text.startswith(MARKER.encode()), case["name"]
    assert exact >= 80


# -- by hand


@pytest.mark.parametrize(
    ("tokens", "lead", "index", "exact"),
    [
        ((MARKER, *CALL), "", 0, True),
        (("Sure", ".", MARKER, *CALL), "Sure.", 2, True),
        (("Sure", ".", "<", "tool", "_call", ">", *CALL), "Sure.", 2, True),
        (("Sure", ".<", "tool_call>", *CALL), "Sure.", 1, False),
        (("Sure", ". ", MARKER, *CALL), "Sure. ", 2, True),
        (("Sure", ". ", MARKER, *CALL), "Sure.", 1, False),
        (("Sure.", "\n", "\n", MARKER, *CALL), "Sure.", 1, False),
        (("", "Sure", "", MARKER, *CALL), "Sure", 3, True),
        (("Sure", "", "", MARKER, *CALL), "Sure", 3, True),
        (("a", " <", "b", " <", "tool_call>", *CALL), "a <b ", 3, False),
        (("caf", b"\xc3", b"\xa9", MARKER, *CALL), "café", 3, True),
        (("Other", MARKER, *CALL), "Sure", 0, False),
        (("Su", "rf", MARKER, *CALL), "Sure", 1, False),
        ((b"\xf0", b"\x9f", "x", MARKER, *CALL), "\ufffdx", 0, False),
        ((b"", "x", MARKER, *CALL), "\ufffdx", 2, True),
    ],
)
def test_where_a_call_begins(tokens: tuple[str | bytes, ...], lead: str, index: int, exact: bool) -> None:  # noqa: FBT001
    assert call_start(choice(*tokens, lead=lead)) == CallStart(index, exact)


def test_unknown_bytes_say_nothing() -> None:
    assert call_start(choice("Sure", None, MARKER, *CALL, lead="Sure")) is None
    nothing = Choice(0, token_ids=(1, 2), lead="x")
    assert call_start(nothing) is None


def test_a_call_that_no_token_spells_has_no_start() -> None:
    assert call_start(choice("Sure", ".", lead="Sure.")) is None
    assert call_start(choice(lead="")) is None
    assert call_start(choice("", "", lead="")) is None


@pytest.mark.parametrize(
    ("tokens", "reasoning", "lead", "index", "exact"),
    [
        # opening markup, reasoning, closing markup, content, call
        (("<think>", "Hm", ".", "</think>", "\n\n", "Sure", ".", MARKER, *CALL), "Hm.", "Sure.", 7, True),
        # the content's white space kept, or taken away
        (("<think>", "Hm", "</think>", "\n\n", "Sure", MARKER, *CALL), "Hm", "\n\nSure", 5, True),
        (("<think>", "Hm", "</think>", "Sure", " ", MARKER, *CALL), "Hm", "Sure", 4, False),
        # no opening markup: the template wrote it
        (("Hm", ".", "</think>", "Sure", MARKER, *CALL), "Hm.", "Sure", 4, True),
        # reasoning stripped by the parser
        (("<think>", "\n", "Hm", "\n", "</think>", "Sure", MARKER, *CALL), "Hm", "Sure", 6, True),
        # no content: right after the reasoning, its closing markup included
        (("<think>", "Hm", "</think>", MARKER, *CALL), "Hm", "", 2, False),
        (("<think>", "Hm", "</think>", "\n", MARKER, *CALL), "Hm", "", 2, False),
        # tokens that straddle
        (("<think>", "Hm.</", "think>", "Sure", MARKER, *CALL), "Hm.", "", 1, False),
        (("<think>", "Hm", "</think>", "Sure.<", "tool_call>", *CALL), "Hm", "Sure.", 3, False),
        # the content is not to be found: as early as can be
        (("<think>", "Hm", "</think>", b"\xf0\x9f", MARKER, *CALL), "Hm", "\ufffd", 2, False),
        # words of the reasoning that come again
        (("<think>", "Sure", "</think>", "Sure", MARKER, *CALL), "Sure", "Sure", 4, True),
    ],
)
def test_where_a_call_begins_after_reasoning(
    tokens: tuple[str, ...],
    reasoning: str,
    lead: str,
    index: int,
    exact: bool,  # noqa: FBT001
) -> None:
    assert call_start(choice(*tokens, lead=lead, reasoning=reasoning)) == CallStart(index, exact)


def test_reasoning_that_no_token_spells_says_nothing() -> None:
    assert call_start(choice("<think>", "Hm", "</think>", MARKER, reasoning="Other")) is None
    assert call_start(choice("<think>", b"\xf0\x9f", "</think>", MARKER, reasoning="\ufffd")) is None


def test_content_that_the_closing_markup_spells_is_not_exact() -> None:
    start = call_start(choice("Hm", "</", "think", ">", "think", MARKER, *CALL, reasoning="Hm", lead="think"))
    assert start is not None
    assert start.index <= 5
    assert start.exact == (start.index == 5)


PIECES = st.text("aé<t /\n>", max_size=6)


def cut(text: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({min(c, len(text)) for c in cuts}), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@settings(max_examples=150, deadline=None)
@given(PIECES, st.lists(st.integers(0, 60), max_size=12))
def test_a_call_after_text_begins_exactly_at_the_token_of_its_first_byte(lead: str, cuts: list[int]) -> None:
    tokens = cut((lead + MARKER + "{}").encode(), cuts)
    first = len(lead.encode())
    ends = [sum(map(len, tokens[: i + 1])) for i in range(len(tokens))]
    truth = next(i for i, end in enumerate(ends) if end > first)
    start = call_start(choice(*tokens, lead=lead))
    assert start is not None
    assert start.index == truth
    assert start.exact == (ends[truth] - len(tokens[truth]) == first)


@settings(max_examples=150, deadline=None)
@given(PIECES.filter(bool), PIECES, st.booleans(), st.lists(st.integers(0, 80), max_size=12))
def test_a_call_after_reasoning_never_begins_later_than_its_first_byte(
    reasoning: str,
    content: str,
    strip: bool,  # noqa: FBT001
    cuts: list[int],
) -> None:
    before = f"<think>{reasoning}</think>{content}"
    tokens = cut((before + MARKER + "{}").encode(), cuts)
    first = len(before.encode())
    ends = [sum(map(len, tokens[: i + 1])) for i in range(len(tokens))]
    truth = next(i for i, end in enumerate(ends) if end > first)
    lead = content.strip() if strip else content
    shown = reasoning.strip() if strip else reasoning
    assume(shown)
    start = call_start(choice(*tokens, lead=lead, reasoning=shown))
    assert start is not None
    assert start.index <= truth


# -- regions

R, T, C = Region.REASONING, Region.TEXT, Region.TOOL_CALL


def test_the_call_s_region_runs_to_the_end() -> None:
    told = choice("Sure", ".", MARKER, *CALL, "\n", MARKER, *CALL, lead="Sure.")
    assert regions(told, call_start(told)) == [T, T] + [C] * 11


def test_reasoning_text_and_call() -> None:
    told = choice("<think>", "Hm", "</think>", "Sure", MARKER, *CALL, lead="Sure", reasoning="Hm")
    assert regions(told, call_start(told)) == [R, R, T, T] + [C] * 5
    straddling = choice("<think>", "Hm</", "think>", "Sure", MARKER, lead="Sure", reasoning="Hm")
    assert regions(straddling, call_start(straddling)) == [R, R, T, T, C]


def test_without_a_call_everything_is_text_or_reasoning() -> None:
    assert regions(choice("Sure", ".", lead="Sure.", called=False), None) == [T, T]
    assert regions(choice("Hm", "</think>", "Yes", lead="Yes", reasoning="Hm", called=False), None) == [R, T, T]


def test_without_texts_everything_before_the_call_is_text() -> None:
    unknown = Choice(0, token_ids=(1, 2, 3), reasoning="Hm")
    assert regions(unknown, None) == [T, T, T]
    assert regions(unknown, CallStart(1, exact=False)) == [T, C, C]
    assert regions(Choice(0), None) == []


def test_reasoning_that_is_not_found_is_text() -> None:
    assert regions(choice("a", "b", reasoning="other", called=False), None) == [T, T]
