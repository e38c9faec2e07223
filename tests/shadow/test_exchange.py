from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow.exchange import NO_ID, Dialect, Request, TopK

INF = float("inf")
NAN = float("nan")


def ids(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def chat(**body: Any) -> Request:
    return Request(Dialect.CHAT, body)


def tool(name: Any = "ping", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name} | more}


# -- candidates


def test_rows_of_different_length_are_filled_up() -> None:
    top = TopK.of([[(5, -0.1), (6, -2.0)], [], [(7, -0.3)]])
    assert len(top) == 3
    assert top.ids.tolist() == [[5, 6], [NO_ID, NO_ID], [7, NO_ID]]
    assert top.logprobs.tolist() == [[-0.1, -2.0], [-INF, -INF], [-0.3, -INF]]
    assert top.known().tolist() == [True, False, True]
    assert top.best().tolist() == [-0.1, -INF, -0.3]


def test_nothing_at_all_is_known_of_no_rows_and_of_empty_ones() -> None:
    none, empty = TopK.of([]), TopK.of([[], []])
    assert (len(none), len(empty)) == (0, 2)
    assert none.winners(ids()).tolist() == []
    assert empty.winners(ids(5, 6)).tolist() == [NO_ID, NO_ID]
    assert empty.ties(ids(5, 6)).tolist() == [False, False]
    assert np.isnan(empty.logprob_of(ids(5, NO_ID))).all()
    assert empty.best().tolist() == [-INF, -INF]


def test_the_floor_is_minus_infinity_and_nan_is_left_out() -> None:
    top = TopK.of([[(5, -9999.0), (6, -0.5)], [(5, NAN), (6, -0.5)], [(5, -9998.9), (6, -10_000.0)], [(5, NAN)]])
    assert top.ids.tolist() == [[5, 6], [NO_ID, 6], [5, 6], [NO_ID, NO_ID]]
    assert top.logprobs.tolist() == [[-INF, -0.5], [-INF, -0.5], [-9998.9, -INF], [-INF, -INF]]


def test_the_winner_is_the_highest_and_the_emitted_one_where_it_ties() -> None:
    top = TopK.of([[(5, -0.5), (6, -0.5), (7, -2.0)]] * 3)
    assert top.winners(ids(6, 5, 7)).tolist() == [6, 5, 5]
    assert top.ties(ids(5, 6, 7)).tolist() == [True, True, False]


def test_a_row_of_minus_infinities_has_no_winner() -> None:
    top = TopK.of([[(5, -9999.0), (6, -9999.0)]])
    assert top.known().tolist() == [True]
    assert top.winners(ids(5)).tolist() == [NO_ID]
    assert top.ties(ids(5)).tolist() == [False]


def test_a_filled_place_is_never_a_candidate() -> None:
    top = TopK.of([[(5, -0.5)], [(5, -0.5), (6, -1.0)]])
    assert np.isnan(top.logprob_of(ids(NO_ID, NO_ID))).all()
    assert top.ties(ids(NO_ID, NO_ID)).tolist() == [False, False]
    assert top.winners(ids(NO_ID, NO_ID)).tolist() == [5, 5]


def test_the_logprob_of_a_token_is_nan_where_it_is_not_listed() -> None:
    values = TopK.of([[(5, -0.5), (6, -9999.0)]] * 3).logprob_of(ids(5, 6, 7))
    assert values[0] == -0.5
    assert values[1] == -INF
    assert np.isnan(values[2])


def test_a_slice_is_the_same_rows() -> None:
    top = TopK.of([[(5, -0.1)], [(6, -0.2)], [(7, -0.3)]])
    assert top[1:].ids.tolist() == [[6], [7]]
    assert len(top[:0]) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([-0.1, -0.5, -0.5, -2.0, -9999.0])),
        min_size=1,
        max_size=5,
        unique_by=lambda pair: pair[0],
    ),
    st.integers(0, 9),
    st.randoms(use_true_random=False),
)
def test_the_order_of_candidates_decides_nothing_but_among_ties(
    row: list[tuple[int, float]], emitted: int, order: Any
) -> None:
    highest = max(logprob for _, logprob in row)
    best = {token for token, logprob in row if logprob == highest and logprob > -9999.0}
    for shuffled in (row, order.sample(row, len(row))):
        top = TopK.of([shuffled])
        (winner,) = top.winners(ids(emitted)).tolist()
        assert winner in (best or {NO_ID})
        assert winner == emitted or emitted not in best
        assert top.ties(ids(emitted)).tolist() == [emitted in best]


# -- requests


def test_the_api_s_defaults() -> None:
    request = chat()
    assert (request.model, request.stream, request.tools, request.tool_names) == ("", False, [], frozenset())
    assert (request.tool_choice, request.grammar, request.multimodal, request.asks_greedy) == (
        "none",
        "no",
        False,
        False,
    )
    assert (request.client_logprobs, request.client_token_ids) == (False, False)


def test_odd_values_are_as_if_absent() -> None:
    request = chat(model=7, stream="perhaps", tools=[None, {}, {"function": None}, tool(7), "x", tool("ok")])
    assert (request.model, request.stream, request.tool_names) == ("", False, frozenset({"ok"}))
    assert chat(tools={"a": 1}).tools == []
    assert chat(messages="x").multimodal is False


@pytest.mark.parametrize(
    ("choice", "tools", "expected"),
    [
        (None, [], "none"),
        (None, [tool()], "auto"),
        ("auto", [tool()], "auto"),
        ("none", [tool()], "none"),
        ("required", [tool()], "required"),
        ("required", [], "none"),
        ("sometimes", [tool()], "auto"),
        (tool(), [tool()], "named"),
    ],
)
def test_the_tool_choice_as_the_server_reads_it(choice: Any, tools: list[Any], expected: str) -> None:
    assert chat(tools=tools, **({} if choice is None else {"tool_choice": choice})).tool_choice == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "no"),
        ({"tools": [tool()]}, "no"),
        ({"tools": [tool()], "tool_choice": "auto"}, "no"),
        ({"tools": [tool()], "tool_choice": "none"}, "no"),
        ({"tools": [tool()], "tool_choice": "required"}, "all"),
        ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "ping"}}}, "all"),
        ({"tools": [tool(strict=True)]}, "calls"),
        ({"tools": [tool(), tool("b", strict=True)]}, "calls"),
        ({"tools": [tool(strict=False)]}, "no"),
        ({"tools": [tool(strict=True)], "tool_choice": "none"}, "no"),
        ({"tools": [tool()], "parallel_tool_calls": False}, "calls"),
        ({"tools": [tool()], "parallel_tool_calls": True}, "no"),
        ({"parallel_tool_calls": False}, "no"),
        ({"response_format": {"type": "text"}}, "no"),
        ({"response_format": None}, "no"),
        ({"response_format": {"type": "json_object"}}, "all"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "all"),
        ({"structured_outputs": {"regex": "a"}}, "all"),
        ({"structured_outputs": None}, "no"),
        ({"guided_json": {}}, "all"),
        ({"guided_regex": "a", "tools": [tool(strict=True)]}, "all"),
    ],
)
def test_where_a_grammar_bends_the_choice(body: dict[str, Any], expected: str) -> None:
    assert chat(**body).grammar == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("text", False),
        (None, False),
        ([{"type": "text", "text": "x"}], False),
        ([{"text": "x"}, {"type": "refusal"}, {"type": "thinking"}], False),
        ([{"type": "text"}, {"type": "image_url", "image_url": {"url": "x"}}], True),
        ([{"type": "input_audio"}], True),
        ([{"type": "something_new"}], True),
        (["text", 1], False),
    ],
)
def test_anything_but_text_is_multimodal(content: Any, expected: bool) -> None:  # noqa: FBT001
    messages = [{"role": "system", "content": "x"}, "odd", {"role": "user", "content": content}]
    assert chat(messages=messages).multimodal is expected


class Counted(dict[str, Any]):
    """A part that counts how often any of them was looked at."""

    looks = 0

    def get(self, *args: Any) -> Any:
        Counted.looks += 1
        return super().get(*args)


@pytest.mark.parametrize(
    ("messages", "parts", "expected"),
    [(1, 9_999, False), (1, 10_000, True), (10_000, 0, False), (10_001, 0, True), (5, 1_999, False), (5, 2_000, True)],
)
def test_of_more_messages_and_parts_than_are_looked_at_nobody_knows(
    messages: int,
    parts: int,
    expected: bool,  # noqa: FBT001
) -> None:
    message = {"role": "user", "content": [Counted(type="text", text="x")] * parts}
    Counted.looks = 0
    assert chat(messages=[message] * messages).multimodal is expected
    assert Counted.looks <= 10_000


@pytest.mark.parametrize(
    ("dialect", "asked", "expected"),
    [
        (Dialect.CHAT, True, True),
        (Dialect.CHAT, False, False),
        (Dialect.CHAT, None, False),
        (Dialect.COMPLETIONS, 0, True),
        (Dialect.COMPLETIONS, 5, True),
        (Dialect.COMPLETIONS, None, False),
    ],
)
def test_whether_the_client_asked_for_logprobs(dialect: Dialect, asked: Any, expected: bool) -> None:  # noqa: FBT001
    assert Request(dialect, {"logprobs": asked}).client_logprobs is expected


@pytest.mark.parametrize(
    ("temperature", "expected"), [(0, True), (0.0, True), (0.1, False), (None, False), (False, False), ("0", False)]
)
def test_only_temperature_zero_asks_for_greedy(temperature: Any, expected: bool) -> None:  # noqa: FBT001
    assert chat(temperature=temperature).asks_greedy is expected


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"tool_choice": []}, "tool_choice"),
        ({"tool_choice": ["auto"], "tools": [tool()]}, "grammar"),
        ({"response_format": {"type": []}}, "grammar"),
        ({"messages": [{"role": "user", "content": [{"type": {}}]}]}, "multimodal"),
    ],
)
def test_a_client_s_odd_shapes_do_not_raise(body: dict[str, Any], name: str) -> None:
    getattr(chat(**body), name)
