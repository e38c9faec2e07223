"""The canonical form: its short way says what its long way says. What it makes equal is in test_calls.py."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validators import ComparePolicy, canonical, parse_arguments
from validators.calls import HugeNumber
from validators.canonical import EXACT, Paths, _form, form_of

LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
NUMBERS = st.floats(allow_nan=False) | st.decimals(allow_nan=False)
KEYS = st.sampled_from(["a", "b", "*", "é"])
VALUES = st.recursive(
    LEAVES | NUMBERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
POINTERS = st.lists(st.sampled_from(["/a", "/b", "/*", "/a/b", "/*/a", "/a/*", "/0", "/*/*/a"]), max_size=3).map(tuple)


@given(VALUES)
def test_where_everything_counts_both_ways_give_the_same_form(value: Any) -> None:
    nothing = Paths()
    assert form_of(value, nothing, Decimal(0)) == _form(value, nothing, Decimal(0)) == canonical(value)


@pytest.mark.parametrize("value", [True, None, 1, 1.5, HugeNumber("1e9"), "1e9", (1, "a"), [HugeNumber("1e9")], {}])
def test_kinds_that_no_parser_gives_have_a_form_too(value: Any) -> None:
    assert canonical(value) == _form(value, Paths(), Decimal(0))


def test_what_is_no_json_has_no_form() -> None:
    with pytest.raises(TypeError, match="not a JSON value: bytes"):
        canonical({"a": [b"x"]})


@given(VALUES, VALUES, POINTERS, POINTERS, POINTERS)
def test_what_was_compared_before_changes_no_form(
    value: Any, other: Any, ignore: tuple[str, ...], unordered: tuple[str, ...], casefold: tuple[str, ...]
) -> None:
    policy = ComparePolicy(ignore, unordered, casefold)
    fresh = Paths.make(
        *(tuple(tuple(p.split("/")[1:]) for p in group) for group in (ignore, unordered, casefold)), folding=False
    )
    canonical(other, policy)
    assert canonical(value, policy) == form_of(value, fresh, Decimal(0))


def test_paths_that_are_named_and_a_star_hold_together() -> None:
    paths = Paths.of(ComparePolicy(ignore=("/a/x", "/*/y"), casefold=("/*",)))
    for key, ignored in (("a", {"x", "y"}), ("b", {"y"}), ("*", {"y"})):
        below = paths.below(key)
        assert {name for name in ("x", "y", "z") if below.below(name).ignored} == ignored
        assert below.folding
        assert below.below("z").folding
    assert not paths.below("a").nothing
    assert Paths.of(EXACT).below("a").nothing


def test_a_repeated_key_is_read_as_its_last_value_and_said() -> None:
    read = parse_arguments('{"a": {"b": 1, "b": 2}, "c": [{"d": 1}, {"d": 2, "d": 2}]}')
    assert read.duplicate_keys
    assert json.dumps(read.value, default=float) == '{"a": {"b": 2.0}, "c": [{"d": 1.0}, {"d": 2.0}]}'
    assert not parse_arguments('{"a": {"b": 1}, "c": {"b": 1}}').duplicate_keys
    assert parse_arguments('{"a": 1, "a": ').problem == "unclosed"
    assert parse_arguments('{"a": {"b": 1, "b": 2}, "c": NaN}').problem == "not_json"
    assert parse_arguments('{"b": 1, "b": ' + "[" * 500 + "]" * 500 + "}").problem == "too_deep"
