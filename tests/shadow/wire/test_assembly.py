import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow.exchange import NO_ID
from shadow.wire import chat, completions
from shadow.wire.assembly import CallAssembler, ChoiceAssembler, Token, align, ids_of, number_of, place_of, token_id
from validators import ToolCall


def calls_of(*deltas: Any) -> tuple[ToolCall, ...]:
    assembler = CallAssembler()
    for delta in deltas:
        assembler.add(delta)
    return assembler.result()


def delta(
    index: int | None = None, call: str | None = None, name: str | None = None, text: Any = None
) -> dict[str, Any]:
    """One entry of `delta.tool_calls`, with the members that are given."""
    function = {key: value for key, value in (("name", name), ("arguments", text)) if value is not None}
    members = (("index", index), ("id", call), ("function", function))
    return {key: value for key, value in members if value is not None}


def test_a_call_is_put_together_from_its_deltas() -> None:
    assert calls_of(
        delta(0, "c1", "ping"), delta(0, text='{"ho'), delta(0, text='st": '), delta(0, text='"a"}')
    ) == (ToolCall("ping", '{"host": "a"}', "c1"),)  # fmt: skip


def test_several_calls_may_come_interleaved() -> None:
    assert calls_of(
        delta(0, "a", "f", "{"), delta(1, "b", "g", "["), delta(0, text="}"), delta(2, "c", "h"), delta(1, text="]")
    ) == (ToolCall("f", "{}", "a"), ToolCall("g", "[]", "b"), ToolCall("h", "", "c"))


def test_a_whole_call_in_one_delta() -> None:
    assert calls_of(delta(0, "a", "f", '{"x": 1}')) == (ToolCall("f", '{"x": 1}', "a"),)
    assert calls_of(delta(0, "a", "f", "1"), delta(1, "b", "f", "2")) == (
        ToolCall("f", "1", "a"),
        ToolCall("f", "2", "b"),
    )


def test_without_an_index_a_new_id_is_a_new_call() -> None:
    first = delta(call="a", name="f"), delta(text="1")
    second = delta(call="b", name="f"), delta(text="2")
    assert calls_of(*first, *second, delta(call="a", text="3")) == (ToolCall("f", "13", "a"), ToolCall("f", "2", "b"))


def test_without_index_and_id_a_second_name_is_a_new_call_once_arguments_have_begun() -> None:
    assert calls_of(delta(name="run_"), delta(name="command"), delta(text="1"), delta(name="g"), delta(text="2")) == (
        ToolCall("run_command", "1"),
        ToolCall("g", "2"),
    )
    assert calls_of(delta(text="1"), delta(text="2")) == (ToolCall("", "12"),)


def test_the_same_index_with_another_id_is_another_call() -> None:
    assert calls_of(delta(0, "a", "f", "1"), delta(0, "b", "g", "2"), delta(0, text="3"), delta(0, "b", text="4")) == (
        ToolCall("f", "1", "a"),
        ToolCall("g", "234", "b"),
    )


def test_a_known_id_under_a_shared_index_goes_on_with_its_call() -> None:
    assert calls_of(delta(0, "a", "f", "1"), delta(0, "b", "g", "2"), delta(0, "a", text="3")) == (
        ToolCall("f", "13", "a"),
        ToolCall("g", "2", "b"),
    )


def test_a_repeated_name_is_said_once_and_a_name_in_pieces_is_joined() -> None:
    assert calls_of(delta(0, "a", "ping", ""), delta(0, "a", "ping", "{"), delta(0, "a", "ping", "}")) == (
        ToolCall("ping", "{}", "a"),
    )
    assert calls_of(delta(0, "a", "pi"), delta(0, None, "ng")) == (ToolCall("ping", "", "a"),)


@pytest.mark.parametrize(
    ("value", "text"),
    [({"x": [1, None]}, '{"x": [1, null]}'), ({}, "{}"), ([1], "[1]"), (None, ""), (7, ""), (True, "")],
)
def test_arguments_as_a_value(value: Any, text: str) -> None:
    assert calls_of({"index": 0, "function": {"name": "f", "arguments": value}}) == (ToolCall("f", text),)


def test_an_id_may_come_late_and_an_empty_one_is_none() -> None:
    assert calls_of(delta(0, "", "f", "{"), delta(0, "a", text="}"), delta(0, "", text=" ")) == (
        ToolCall("f", "{} ", "a"),
    )


@pytest.mark.parametrize("junk", [None, 1, "x", [], [{"index": 0}]])
def test_what_is_no_delta_is_ignored(junk: Any) -> None:
    assert calls_of(junk, delta(0, "a", "f"), junk) == (ToolCall("f", "", "a"),)


@pytest.mark.parametrize(
    "odd",
    [
        {"index": 0, "function": None},
        {"index": 0, "function": "f"},
        {"index": 0},
        {"index": 0, "id": 7, "function": {"name": 7, "arguments": 7}},
        {"index": 0, "id": None, "type": "function", "function": {"name": None, "arguments": None}},
    ],
)
def test_odd_members_change_nothing(odd: dict[str, Any]) -> None:
    assert calls_of(delta(0, "a", "f", "1"), odd, delta(0, text="2")) == (ToolCall("f", "12", "a"),)


def test_an_index_that_is_no_number_is_as_if_missing() -> None:
    first = {"index": "0", "id": "a", "function": {"name": "f"}}
    assert calls_of(first, {"index": True, "function": {"arguments": "1"}}) == (ToolCall("f", "1", "a"),)


# -- where clients that go by index and clients that go by id differ


def in_conflict(*deltas: Any) -> bool:
    assembler = CallAssembler()
    for one in deltas:
        assembler.add(one)
    return assembler.conflict


ALIKE: dict[str, list[dict[str, Any]]] = {
    "one call": [delta(0, "a", "f"), delta(0, text="{}")],
    "its id in each delta": [delta(0, "a", "f"), delta(0, "a", text="{}")],
    "an empty id later": [delta(0, "a", "f"), delta(0, "", text="{}")],
    "no index": [delta(None, "a", "f", '{"x": 1}'), delta(None, "b", "g", "{}")],
    "no index, pieces by id": [
        delta(None, "a", "f"), delta(None, "b", "g"), delta(None, "a", text='{"x": '), delta(None, "b", text="{}"),
        delta(None, "a", text="1}"),
    ],
    "neither index nor id": [delta(None, None, "f", "{}"), delta(None, None, "g"), delta(None, text="{}")],
    "the first index in the first delta only": [delta(0, "a", "f"), delta(None, text="{}")],
    "a server that never counts": [delta(0, "a", "f", '{"x": 1}'), delta(0, "b", "g", "{}")],
    "one id for all calls": [delta(0, "0", "f", '{"a": 1}'), delta(1, "0", "f"), delta(1, text='{"a": 2}')],
    "calls without arguments": [delta(0, "a", "f", ""), delta(1, "b", "g", "")],
}  # fmt: skip
DIFFERING: dict[str, list[dict[str, Any]]] = {
    "an id under two indices": [delta(0, "0", "wipe", ""), delta(1, "0", "wipe", '{"disk": "b"}')],
    "the first has arguments alone": [delta(0, "0", "read", '{"p": "/"}'), delta(1, "0", "wipe", "")],
    "an index under two ids": [delta(0, "a", "delete", ""), delta(0, "b", "read", '{"p": "/"}')],
    "an index under two ids, the second bare": [delta(0, "a", "read", '{"p": "/"}'), delta(0, "b", "delete", "")],
    "a call in two calls": [delta(0, "a", "f", '{"x":'), delta(0, "b", "g", "1}")],
    "one inside the other": [
        delta(0, "a", "f", '{"x": ['), delta(0, "b", "g", '{"y": 2}'), delta(0, "a", text="]}"),
    ],
    "one inside the other, and one more": [
        delta(0, "a", "f", '{"x": ['), delta(0, "b", "g", "{}"), delta(0, "a", text="]}"), delta(0, "c", "h", "{}"),
    ],
    "no index under two ids": [delta(None, "a", "delete", ""), delta(None, "b", "read", '{"p": "/"}')],
    "an index for some": [delta(0, "a", "f"), delta(1, "b", "g"), delta(None, text="{}")],
    "another index for some": [delta(7, "a", "f"), delta(None, text="{}")],
    "an index as a text": [delta(0, "a", "f"), {"index": "0", "function": {"arguments": "{}"}}],
    "an index that is true": [delta(1, "a", "f"), {"index": True, "function": {"arguments": "{}"}}],
    "an index that is 0.0": [delta(0, "a", "f"), {"index": 0.0, "function": {"arguments": "{}"}}],
    "an index below zero": [delta(-1, "a", "f", "{}")],
    "an index beyond all": [delta(2**53, "a", "f", "{}")],
    "an id that is a number": [{"index": 0, "id": 7, "function": {"name": "f"}}],
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_deltas_that_every_client_puts_together_alike(name: str) -> None:
    assert not in_conflict(*ALIKE[name])


@pytest.mark.parametrize("name", DIFFERING)
def test_deltas_that_clients_put_together_in_two_ways(name: str) -> None:
    assert in_conflict(*DIFFERING[name])


def test_the_same_id_under_another_index_is_another_call() -> None:
    assert calls_of(delta(0, "0", "f", '{"a": 1}'), delta(1, "0", "f"), delta(1, "0", text='{"a": 2}')) == (
        ToolCall("f", '{"a": 1}', "0"),
        ToolCall("f", '{"a": 2}', "0"),
    )


def test_what_is_joined_is_looked_at_up_to_a_length() -> None:
    long = '{"x": "' + "y" * 2**20 + '"}'
    assert in_conflict(delta(0, "a", "f", long), delta(0, "b", "g", "{}"))
    assert not in_conflict(delta(0, "a", "f", long), delta(1, "b", "g", "{}"))


@pytest.mark.parametrize(
    ("index", "place"),
    [(None, 0), (0, 0), (5, 5), (2**31 - 1, 2**31 - 1), (2**31, None), (-1, None), ("0", None), (True, None),
     (False, None), (0.0, None), ([], None)],
)  # fmt: skip
def test_a_place_is_what_every_reader_takes_it_for(index: Any, place: int | None) -> None:
    assert place_of(index) == place


PIECES = st.lists(st.text('ab{}"', max_size=3), max_size=4)


@settings(max_examples=50, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_calls_come_together_however_their_deltas_are_interleaved(calls: list[list[str]], order: Any) -> None:
    queues = [
        [delta(i, f"id{i}", f"f{i}"), *(delta(i, text=piece) for piece in pieces)] for i, pieces in enumerate(calls)
    ]
    deltas = [queue.pop(0) for queue in queues]
    while any(queues):
        deltas.append(order.choice([queue for queue in queues if queue]).pop(0))
    assert calls_of(*deltas) == tuple(ToolCall(f"f{i}", "".join(pieces), f"id{i}") for i, pieces in enumerate(calls))


# -- ids and numbers


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("token_id:0", 0),
        ("token_id:42", 42),
        ("token_id:", NO_ID),
        ("token_id:-3", NO_ID),
        ("token_id:4x", NO_ID),
        ("token_id: 4", NO_ID),
        (" token_id:4", NO_ID),
        ("token_id:4.0", NO_ID),
        ("42", NO_ID),
        ("", NO_ID),
        (None, NO_ID),
        (42, NO_ID),
    ],
)
def test_a_token_is_known_by_id_only_where_the_wire_says_so(token: Any, expected: int) -> None:
    assert token_id(token) == expected


@pytest.mark.parametrize("digits", ["9223372036854775808", "9" * 5000], ids=["2**63", "5000 digits"])
def test_an_id_beyond_64_bits_is_no_id(digits: str) -> None:
    assert token_id(f"token_id:{digits}") == NO_ID


def test_ids_are_an_array_of_integers_or_nothing() -> None:
    assert ids_of([1, 2]) == (1, 2)
    assert ids_of([]) == ()
    others: list[Any] = [None, "12", {"0": 1}, [1, "2"], [1, None], [True], [1.0], [[1]]]
    assert [ids_of(other) for other in others] == [None] * 8


def test_a_logprob_is_a_number_or_unknown() -> None:
    assert number_of(-1) == -1.0
    assert number_of(-9999.0) == -9999.0
    others: list[Any] = [None, "1", True, [], {}, math.nan]
    assert all(math.isnan(number_of(other)) for other in others)


# -- one token's entry


@pytest.mark.parametrize(
    ("logprob", "candidates", "wins"),
    [
        (-0.1, [(1, -0.1), (2, -2.0)], True),
        (-2.0, [(1, -0.1), (2, -2.0)], False),
        (-0.1, [(1, -0.1), (2, -0.1)], True),
        (-0.1, [(NO_ID, -0.1), (NO_ID, -2.0)], True),
        (-5.0, [(NO_ID, -0.1), (NO_ID, -2.0)], False),
        (-0.1, [(1, -0.1)], None),
        (-0.1, [], None),
        (math.nan, [(1, -0.1), (2, -2.0)], None),
        (-0.1, [(1, -0.1), (2, math.nan)], None),
        (-0.1, [(1, -0.1), (2, math.nan), (3, -0.05)], False),
    ],
)
def test_whether_the_emitted_token_wins_takes_two_numbers(
    logprob: float,
    candidates: list[tuple[int, float]],
    wins: bool | None,  # noqa: FBT001
) -> None:
    assert Token(1, logprob, b"x", candidates).wins() is wins


def test_a_row_holds_what_is_known_by_id_the_emitted_token_included() -> None:
    assert Token(7, -3.0, None, [(1, -0.1), (2, -1.0)]).row() == [(1, -0.1), (2, -1.0), (7, -3.0)]
    assert Token(1, -0.1, None, [(1, -0.1), (2, -1.0)]).row() == [(1, -0.1), (2, -1.0)]
    assert Token(NO_ID, -0.1, b"a", [(NO_ID, -0.1), (NO_ID, -1.0)]).row() == []
    assert Token(NO_ID, -0.1, b"a", [(1, -0.1), (2, -1.0)]).row() == [(1, -0.1), (2, -1.0)]
    assert Token(1, -0.1, b"a", [(1, -0.1)]).row() == []
    assert Token(1, -0.1, b"a", []).row() == []


# -- alignment of logprobs with ids


def entry(token: int, logprob: float = -0.5, text: bytes | None = b"x") -> Token:
    return Token(token, logprob, text, [(token, logprob), (token + 1000, logprob - 1)])


def test_entries_lie_beside_their_ids() -> None:
    five, six, seven = entry(5), entry(6), entry(7)
    assert align([5, 6, 7], [five, six, seven]) == [five, six, seven]
    assert align([5, 6, 7], [five, seven]) == [five, None, seven]
    assert align([5, 6, 7], [seven]) == [None, None, seven]
    assert align([5, 6], []) == [None, None]
    assert align([], []) == []


def test_entries_of_other_tokens_belong_nowhere() -> None:
    assert align([5, 6, 7], [entry(7), entry(5)]) is None
    assert align([5, 6], [entry(8)]) is None
    assert align([5], [entry(5), entry(5)]) is None
    assert align([5, 6], [entry(5), entry(8)]) is None


def test_text_entries_belong_by_position_only_where_each_token_has_one() -> None:
    unknown, six = entry(NO_ID), entry(6)
    assert align([5, 6], [unknown, six]) == [unknown, six]
    assert align([5, 6], [unknown]) is None
    assert align([5, 6, 7], [unknown, six]) is None


def test_an_entry_that_fits_two_places_is_not_guessed() -> None:
    five, six = entry(5), entry(6)
    assert align([5, 5, 6], [five, six]) == [None, None, six]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), unique=True, max_size=10), st.data())
def test_any_gaps_among_different_ids_are_found(ids: list[int], data: st.DataObject) -> None:
    kept = [data.draw(st.booleans()) for _ in ids]
    entries = [entry(token) for token in ids]
    expected = [one if keep else None for one, keep in zip(entries, kept, strict=True)]
    assert align(ids, [one for one in expected if one is not None]) == expected


# -- a choice


def test_a_choice_with_gaps_in_its_logprobs() -> None:
    choice = ChoiceAssembler(0)
    choice.prompt([1, 2])
    choice.tokens([5, 6], [entry(5, -0.1, b"a")])
    choice.tokens([7], [entry(7, -9999.0, None)])
    result = choice.result()
    assert (result.prompt_ids, result.token_ids) == ((1, 2), (5, 6, 7))
    assert result.token_bytes == (b"a", None, None)
    assert result.emitted_wins == (True, None, True)
    assert result.top is not None
    assert result.top.ids.tolist() == [[5, 1005], [NO_ID, NO_ID], [7, 1007]]
    assert result.top.logprobs.tolist() == [[-0.1, -1.1], [-np.inf, -np.inf], [-np.inf, -np.inf]]


def test_without_ids_nothing_is_known_of_tokens() -> None:
    choice = ChoiceAssembler(0)
    choice.tokens(None, [entry(5)])
    choice.tokens("junk", [])
    result = choice.result()
    assert (result.token_ids, result.token_bytes, result.top, result.emitted_wins) == (None, None, None, None)


def test_without_logprobs_only_ids_are_known() -> None:
    choice = ChoiceAssembler(0)
    choice.tokens([5], [])
    choice.tokens(None, [])
    choice.tokens([6], [])
    result = choice.result()
    assert (result.token_ids, result.token_bytes, result.top, result.emitted_wins) == ((5, 6), None, None, None)


def test_logprobs_of_other_tokens_leave_the_ids_alone() -> None:
    choice = ChoiceAssembler(0)
    choice.tokens([5, 6], [entry(9)])
    result = choice.result()
    assert (result.token_ids, result.token_bytes, result.top) == ((5, 6), None, None)


def test_the_lead_is_the_content_up_to_and_with_the_first_call_delta() -> None:
    choice = ChoiceAssembler(0)
    choice.text("Let ")
    choice.text("me.", "hm")
    choice.calls([delta(0, "a", "f")])
    choice.text(" After.")
    choice.calls([delta(1, "b", "g")])
    result = choice.result()
    assert (result.lead, result.content, result.reasoning) == ("Let me.", "Let me. After.", "hm")
    assert [call.name for call in result.calls] == ["f", "g"]


@pytest.mark.parametrize("nothing", [None, [], "x", {}])
def test_no_calls_leave_the_lead_open(nothing: Any) -> None:
    choice = ChoiceAssembler(0)
    choice.text("a")
    choice.calls(nothing)
    choice.text("b")
    assert choice.result().lead == "ab"


def test_finish_and_stop_reasons() -> None:
    choice = ChoiceAssembler(0)
    choice.finish(None)
    before = choice.finished
    choice.finish("stop", 128009)
    choice.finish(None, None)
    assert (before, choice.finished) == (False, True)
    assert (choice.result().finish_reason, choice.result().stop_reason) == ("stop", 128009)


# -- how the dialects write logprobs


def test_chat_logprobs_keep_two_tokens_with_one_text_apart() -> None:
    top = [{"token": "a", "logprob": -0.1, "bytes": [97]}, {"token": "a", "logprob": -0.7, "bytes": [97]}]
    (token,) = chat.logprob_entries({"content": [{"token": "a", "logprob": -0.7, "bytes": [97], "top_logprobs": top}]})
    assert token.candidates == [(NO_ID, -0.1), (NO_ID, -0.7)]
    assert token.wins() is False
    assert token.text == b"a"


@pytest.mark.parametrize("bytes_", [None, "x", [256], [-1], ["a"], {}])
def test_chat_logprobs_without_bytes(bytes_: Any) -> None:
    (token,) = chat.logprob_entries({"content": [{"token": "token_id:5", "logprob": None, "bytes": bytes_}]})
    assert (token.id, token.text, token.candidates) == (5, None, [])
    assert math.isnan(token.logprob)


@pytest.mark.parametrize("junk", [None, [], "x", {}, {"content": None}, {"content": {}}, {"content": [None, 1, "x"]}])
def test_chat_logprobs_that_are_none(junk: Any) -> None:
    assert chat.logprob_entries(junk) == []


def test_completions_logprobs_are_parallel_lists() -> None:
    tokens = completions.logprob_entries(
        {
            "tokens": ["token_id:5", "token_id:6", "b"],
            "token_logprobs": [-0.1, None, -2],
            "top_logprobs": [{"token_id:5": -0.1, "token_id:9": -3.0}, None, {"a": -0.2, "b": -2}],
            "text_offset": [0, 1, 2],
        }
    )
    assert [(token.id, token.text, token.candidates) for token in tokens] == [
        (5, None, [(5, -0.1), (9, -3.0)]),
        (6, None, []),
        (NO_ID, None, []),
    ]
    assert [token.wins() for token in tokens] == [True, None, None]


@pytest.mark.parametrize(
    "junk",
    [None, [], {}, {"tokens": ["a"], "token_logprobs": []}, {"tokens": "a", "token_logprobs": [1]}, {"tokens": ["a"]}],
)
def test_completions_logprobs_that_do_not_run_parallel_are_none(junk: Any) -> None:
    assert completions.logprob_entries(junk) == []


def test_completions_tops_of_another_length_are_left_out() -> None:
    (token,) = completions.logprob_entries({"tokens": ["token_id:5"], "token_logprobs": [-0.1], "top_logprobs": []})
    assert (token.id, token.candidates) == (5, [])
