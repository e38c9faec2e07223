from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validators import parse_arguments
from validators.rulecost import MAX_NODES
from validators.rulevalues import NUMBER, TEXT, TOO_LARGE, part_of, text_size


def test_a_value_is_measured() -> None:
    part = part_of({"a": [Decimal(1), "é", None], "bc": {"d": True}})
    assert (part.value, part.problem) == ({"a": [1, "é", None], "bc": {"d": True}}, None)
    assert (part.nodes, part.width, part.element, part.text) == (7, 3, 4, 2 + 1 + 1 + 2)
    assert part_of(["a", "b"]).element == part_of("a").element == 1


def test_a_value_beyond_measure_is_given_up_soon() -> None:
    assert part_of([None] * (MAX_NODES - 1)).problem is None
    for value in ([None] * MAX_NODES, [[None] * 100] * 100, {str(i): i for i in range(MAX_NODES)}):
        part = part_of(value)
        assert part.problem is TOO_LARGE
        assert part.nodes <= MAX_NODES


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", {"\ud800": 1}, [{"a": ["\ud800"]}]])
def test_text_that_is_not_unicode_is_a_problem(text: object) -> None:
    assert part_of(text).problem is TEXT


def test_text_is_measured_in_bytes() -> None:
    assert [text_size(text) for text in ("", "abc", "é", "漢", "😀")] == [0, 3, 2, 3, 4]


@given(st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers_within_64_bits_stay_exact(number: int) -> None:
    value = part_of(Decimal(number)).value
    assert value == number
    assert isinstance(value, int)


@given(st.integers(2**63, 2**80) | st.integers(-(2**80), -(2**63) - 1))
def test_whole_numbers_beyond_64_bits_are_a_problem(number: int) -> None:
    assert part_of(Decimal(number)).problem is NUMBER
    assert part_of(number).problem is NUMBER


@given(st.floats(-(2.0**53), 2.0**53, allow_subnormal=False))
def test_fractions_become_the_nearest_double(number: float) -> None:
    assert part_of(parse_arguments(f'{{"n": {number!r}}}').value["n"]).value == number
    assert part_of(number).value == number


@pytest.mark.parametrize("text", ["1e999999999999999999999", "1e400", "1e-400", "-1e-5000", "1e19", "9" * 40])
def test_numbers_without_a_double_or_an_int_are_a_problem(text: str) -> None:
    assert part_of(parse_arguments(f'{{"n": {text}}}').value["n"]).problem is NUMBER


def test_what_is_no_json_value_is_a_problem_and_no_crash() -> None:
    assert part_of(object()).problem is NUMBER
    assert part_of(float("inf")).problem is NUMBER
