import copy
import itertools
import json
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from validators import ComparePolicy, Difference, ToolCall, canonical, diff, match_calls, parse_arguments
from validators.calls import MAX_DEPTH, Side

# Few keys, few letters and few numbers, so that drawn values meet: equality is the interesting case.
KEYS = st.sampled_from(["a", "b", "a/b", "~", "*", "0"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(["", "a", "A", "1", "ß", "SS", "true", "null"]),
    st.sampled_from([0, 1, 1.0, Decimal("1.00"), Decimal("1.4"), Decimal("1.5"), -1, 2, 10**30, 10**30 + 1]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
SMALL = st.recursive(
    st.sampled_from([1, True, "a", "A", Decimal("1.2")]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=3,
)
POINTERS = st.lists(st.sampled_from(["a", "b", "0", "1", "*", "a~1b", "~0"]), min_size=1, max_size=3).map(
    lambda parts: "".join("/" + part for part in parts)
)
GROUPS = st.lists(POINTERS, max_size=2).map(tuple)
POLICIES = st.builds(
    ComparePolicy,
    ignore=GROUPS,
    unordered=st.lists(POINTERS | st.just(""), max_size=2).map(tuple),
    casefold=st.lists(POINTERS | st.just(""), max_size=2).map(tuple),
    tolerance=st.sampled_from([Decimal(0), Decimal("0.5"), Decimal(1)]),
)
# JSON of which the standard library can say whether two are equal: no numbers but integers.
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "1", "true", "null", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)


def shuffled(value: Any, order: random.Random) -> Any:
    """The same value, with the keys of every object in another order."""
    if isinstance(value, dict):
        items = list(value.items())
        order.shuffle(items)
        return {key: shuffled(child, order) for key, child in items}
    return [shuffled(child, order) for child in value] if isinstance(value, list) else value


def same(a: Any, b: Any, policy: ComparePolicy) -> bool:
    return diff(a, b, policy) == ()


@settings(max_examples=50, deadline=None)
@given(VALUES, POLICIES)
def test_a_value_equals_its_copy(value: Any, policy: ComparePolicy) -> None:
    twin = copy.deepcopy(value)
    assert canonical(value, policy) == canonical(twin, policy)
    assert hash(canonical(value, policy)) == hash(canonical(twin, policy))
    assert same(value, twin, policy)


@settings(max_examples=60, deadline=None)
@given(st.lists(SMALL, min_size=3, max_size=5), POLICIES)
def test_equality_is_symmetric_and_transitive(values: list[Any], policy: ComparePolicy) -> None:
    equal = {(i, j): same(values[i], values[j], policy) for i in range(len(values)) for j in range(len(values))}
    for i, j, k in itertools.product(range(len(values)), repeat=3):
        assert equal[i, j] == equal[j, i]
        assert not (equal[i, j] and equal[j, k]) or equal[i, k]


@settings(max_examples=80, deadline=None)
@given(VALUES, VALUES, POLICIES)
def test_there_is_no_difference_exactly_where_the_canonical_forms_are_equal(
    a: Any, b: Any, policy: ComparePolicy
) -> None:
    assert (diff(a, b, policy) == ()) == (canonical(a, policy) == canonical(b, policy))


@settings(max_examples=80, deadline=None)
@given(PLAIN, PLAIN)
def test_exact_equality_is_equality_of_sorted_json_text(a: Any, b: Any) -> None:
    assert (canonical(a) == canonical(b)) == (json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True))


@settings(max_examples=40, deadline=None)
@given(VALUES, POLICIES, st.randoms(use_true_random=False))
def test_key_order_never_matters(value: Any, policy: ComparePolicy, order: random.Random) -> None:
    other = shuffled(value, order)
    assert canonical(value, policy) == canonical(other, policy)
    assert same(value, other, policy)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(KEYS, PLAIN, max_size=4), st.randoms(use_true_random=False), st.sampled_from([None, 0, 3, "\t"]))
def test_white_space_and_key_order_of_the_text_never_matter(
    value: dict[str, Any], order: random.Random, indent: int | str | None
) -> None:
    first = parse_arguments(json.dumps(value, separators=(",", ":")))
    second = parse_arguments(" \r\n" + json.dumps(shuffled(value, order), indent=indent, ensure_ascii=False) + "\t\n ")
    assert first.problem is None
    assert second.problem is None
    assert canonical(first.value) == canonical(second.value) == canonical(value)


def test_numbers_are_equal_by_value_and_types_are_apart() -> None:
    ones = [1, 1.0, Decimal(1), Decimal("1.000"), parse_arguments('{"n": 1}').value["n"]]
    assert {canonical(one) for one in ones} == {canonical(1)}
    assert canonical(parse_arguments('{"n": 10e-1}').value) == canonical({"n": 1})
    others: list[Any] = [True, "1", [1], {"1": 1}, None, 2, 1.0000000000000002]
    assert len({canonical(other) for other in [1, *others]}) == 8
    false: Any = False
    assert canonical(false) != canonical(0)
    assert canonical(None) != canonical("null") != canonical({})
    assert canonical(0) == canonical(-0.0)


def test_long_numbers_that_share_a_float_stay_two() -> None:
    a, b = '{"account": 12345678901234567890123}', '{"account": 12345678901234567890124}'
    assert float("12345678901234567890123") == float("12345678901234567890124")
    assert canonical(parse_arguments(a).value) != canonical(parse_arguments(b).value)
    assert [d.pointer for d in diff(parse_arguments(a).value, parse_arguments(b).value)] == ["/account"]
    assert canonical(parse_arguments('{"n": 0.1}').value) != canonical(
        parse_arguments('{"n": 0.1000000000000000055511151231257827}').value
    )


def test_what_is_no_json_value_is_refused() -> None:
    with pytest.raises(TypeError, match="not a JSON value: set"):
        canonical({1, 2})


@pytest.mark.parametrize("text", ["", "  \n", "null", " null ", "{}", " { } "])
def test_a_call_without_arguments_is_one_call_however_it_is_written(text: str) -> None:
    arguments = parse_arguments(text)
    assert (arguments.value, arguments.problem, arguments.duplicate_keys) == ({}, None, False)
    (match,) = match_calls([ToolCall("reboot", text)], [ToolCall("reboot", "{}")])
    assert match.kind == "match"


NOT_JSON = [
    '{"a": 1} x',
    '{"a": 1}</tool_call>',
    '{"a": "b"<|im_end|>}',
    '<tool_call>{"a": 1}',
    '{"a": NaN}',
    '{"a": Infinity}',
    '{"a": -Infinity}',
    "NaN",
    '{"a": 1,}',
    "{'a': 1}",
    '{"a": 01}',
    '{"a": .5}',
    '{"a": "line\nbreak"}',
    '{"a" 1}',
    "{a: 1}",
    '{"a": True}',
    "run_command(device='edge-1')",
    '{"city": ""{"city": "Paris"}',
    '{"a": 1}{"a": 1}',
    "\ufeff{}",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_JSON)
def test_what_is_not_json_says_so_and_is_never_repaired(text: str) -> None:
    arguments = parse_arguments(text)
    assert arguments.problem == "not_json"
    assert arguments.value is None


@pytest.mark.parametrize(
    "text",
    [
        "{", '{"', '{"a', '{"a"', '{"a":', '{"a": 1', '{"a": 1,', '{"a": "x', '{"a": "x\\', '{"a": [1, {"b": 2}',
        '{"a": [  ', '"x', "[",
    ],
)  # fmt: skip
def test_text_that_ends_before_its_value_does_is_unclosed(text: str) -> None:
    assert parse_arguments(text).problem == "unclosed"


@pytest.mark.parametrize(
    "text",
    ['{"a": tru', '{"a": n', '{"a": -', '{"a": 1.', '{"a": 1e', '{"a": 1e+', '{"a": "\\u12', '{"a": "\\ud83d\\u'],
)  # fmt: skip
def test_text_that_ends_inside_a_literal_number_or_escape_is_unclosed(text: str) -> None:
    assert parse_arguments(text).problem == "unclosed"


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.text('ab "{}[],:é', max_size=4),
        st.recursive(
            st.integers(0, 99) | st.text('x"{}[],:\\ü', max_size=4),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("k", max_size=2), inner, max_size=2),
            max_leaves=4,
        ),
        min_size=1,
        max_size=2,
    )
)  # fmt: skip
def test_every_beginning_of_an_object_is_unclosed(value: dict[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    for end in range(1, len(text)):
        assert parse_arguments(text[:end]).problem == "unclosed", text[:end]
    assert parse_arguments(text).problem is None


@pytest.mark.parametrize(
    ("text", "value"), [("[1]", [1]), ("1", 1), ('"x"', "x"), ("true", True), ("[]", []), ('"{}"', "{}")]
)
def test_a_value_that_is_no_object_is_kept_and_named(text: str, value: Any) -> None:
    arguments = parse_arguments(text)
    assert arguments.problem == "not_an_object"
    assert arguments.value == value


def test_depth_is_bounded() -> None:
    assert MAX_DEPTH == 128
    assert parse_arguments('{"a":' * 128 + "1" + "}" * 128).problem is None
    assert parse_arguments('{"a":' * 129 + "1" + "}" * 129).problem == "too_deep"
    assert parse_arguments('{"a":' + "[" * 127 + "]" * 127 + "}").problem is None
    assert parse_arguments('{"a":' + "[" * 128 + "]" * 128 + "}").problem == "too_deep"
    for bomb in (
        "[" * 100_000,
        '{"a":' * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 50_000 + "1" + "}" * 50_000,
    ):
        assert parse_arguments(bomb).problem == "too_deep"


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"b": [{"a": 2, "a": 2}], "a": 2}'])
def test_duplicate_keys_are_told_and_the_last_one_counts(text: str) -> None:
    arguments = parse_arguments(text)
    assert arguments.problem is None
    assert arguments.duplicate_keys
    assert arguments.value["a"] == 2


def test_keys_that_are_written_differently_are_one_key() -> None:
    arguments = parse_arguments('{"a": 1, "\\u0061": 2}')
    assert (arguments.value, arguments.duplicate_keys) == ({"a": 2}, True)
    assert not parse_arguments('{"a": {"a": 1}, "b": {"a": 1}}').duplicate_keys


def test_a_number_with_a_monstrous_exponent_is_json() -> None:
    assert parse_arguments('{"a": 1e99999999999999999999}').problem is None


@settings(max_examples=50, deadline=None)
@given(st.text('{}[]",:\\u0019.eE-+ntf x\x00\ud83d', max_size=12))
def test_reading_never_raises(text: str) -> None:
    assert parse_arguments(text).problem in {None, "not_json", "unclosed", "not_an_object", "too_deep"}


def test_ignored_paths_do_not_count() -> None:
    policy = ComparePolicy(ignore=("/reason", "/steps/*/note", "/list/1"))
    a = {"reason": "x", "steps": [{"note": 1, "do": 1}, {"do": 2}], "list": [1, 2]}
    b = {"steps": [{"do": 1}, {"note": [], "do": 2}], "list": [1, "other"]}
    assert canonical(a, policy) == canonical(b, policy)
    assert same(a, b, policy)
    changed = b | {"steps": [{"do": 1}, {"do": 3}]}
    assert diff(a, changed, policy) == (Difference("/steps/1/do", Side.BOTH, 2, 3),)
    assert not same({"reason": 1, "deeper": {"reason": 1}}, {"reason": 2, "deeper": {"reason": 2}}, policy)


def test_unordered_arrays_are_multisets() -> None:
    policy = ComparePolicy(unordered=("/ids", "/rows/*"))
    assert same({"ids": [3, 1, 2, 1]}, {"ids": [1, 1, 2, 3]}, policy)
    assert not same({"ids": [1, 2, 2]}, {"ids": [1, 1, 2]}, policy)
    assert not same({"ids": [1, 2]}, {"ids": [1, 2, 2]}, policy)
    assert same({"rows": [[1, 2], ["a", "b"]]}, {"rows": [[2, 1], ["b", "a"]]}, policy)
    assert not same({"rows": [[1, 2], [3]]}, {"rows": [[3], [1, 2]]}, policy)
    assert not same({"other": [1, 2]}, {"other": [2, 1]}, policy)
    assert diff({"ids": [1, 2]}, {"ids": [1, 3]}, policy) == (Difference("/ids", Side.BOTH, [1, 2], [1, 3]),)


def test_case_is_folded_at_and_below_a_path_only() -> None:
    policy = ComparePolicy(casefold=("/command",))
    assert same({"command": "Show ARP"}, {"command": "show arp"}, policy)
    assert same({"command": [{"x": "STRASSE"}]}, {"command": [{"x": "straße"}]}, policy)
    assert not same({"command": {"X": 1}}, {"command": {"x": 1}}, policy)
    assert not same({"device": "A"}, {"device": "a"}, policy)
    assert same({"device": "A"}, {"device": "a"}, ComparePolicy(casefold=("",)))


def test_tolerance_is_a_grid() -> None:
    policy = ComparePolicy(tolerance=Decimal("0.5"))
    assert same({"t": 1}, {"t": Decimal("1.2")}, policy)
    assert same({"t": Decimal("0.8")}, {"t": Decimal("1.2")}, policy)
    assert not same({"t": Decimal("1.2")}, {"t": Decimal("1.3")}, policy)
    assert not same({"t": 1}, {"t": "1"}, policy)
    assert not same({"t": 1}, {"t": True}, policy)
    assert not same({"t": Decimal("1.2")}, {"t": Decimal("1.3")}, ComparePolicy())


def test_tolerance_does_not_merge_long_numbers() -> None:
    policy = ComparePolicy(tolerance=Decimal("0.01"))
    assert not same({"account": Decimal(10**31 + 2)}, {"account": Decimal(10**31 + 3)}, policy)


def test_tolerance_bears_numbers_near_the_end_of_what_decimals_hold() -> None:
    policy = ComparePolicy(tolerance=Decimal("1e-10"))
    value = parse_arguments('{"a": 1e999999}').value
    assert same(value, copy.deepcopy(value), policy)


@pytest.mark.parametrize(
    "policy",
    [
        {"ignore": ("",)},
        {"ignore": ("reason",)},
        {"casefold": ("a/b",)},
        {"unordered": ("x",)},
        {"tolerance": Decimal(-1)},
    ],
)
def test_a_policy_that_would_compare_nothing_or_nonsense_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"JSON pointer|root|tolerance"):
        ComparePolicy(**policy)


def test_a_path_without_a_slash_does_not_ignore_everything() -> None:
    try:
        found = diff({"device": "a"}, {"device": "b"}, ComparePolicy(ignore=("reason",)))
    except ValueError:
        return  # refusing it is as good
    assert [d.pointer for d in found] == ["/device"]


def test_differences_are_json_pointers_in_order_of_appearance() -> None:
    a = {"z": 1, "a/b": {"~": "x"}, "list": [1, 2, 3], "only": None, "": 1}
    b = {"": 2, "list": [1, 5], "a/b": {"~": "y"}, "z": 1, "new": [0]}
    assert diff(a, b) == (
        Difference("/a~1b/~0", Side.BOTH, "x", "y"),
        Difference("/list/1", Side.BOTH, 2, 5),
        Difference("/list/2", Side.PRIMARY, 3, None),
        Difference("/only", Side.PRIMARY, None, None),
        Difference("/", Side.BOTH, 1, 2),
        Difference("/new", Side.REFERENCE, None, [0]),
    )


def test_pointers_escape_in_one_pass() -> None:
    assert [d.pointer for d in diff({"~1": 1}, {"~1": 2})] == ["/~01"]
    assert [d.pointer for d in diff({"a": 1}, "a")] == [""]
    assert [d.pointer for d in diff({"~1": 1, "/": 1}, {"~1": 2, "/": 2}, ComparePolicy(ignore=("/~01",)))] == ["/~1"]


def test_null_and_absent_differ_in_an_argument() -> None:
    assert diff({"a": None}, {}) == (Difference("/a", Side.PRIMARY),)
    assert diff({}, {"a": None}) == (Difference("/a", Side.REFERENCE),)


def test_deep_arguments_are_compared() -> None:
    def deep(leaf: int) -> Any:
        value: Any = leaf
        for _ in range(MAX_DEPTH - 1):
            value = {"a": value, "b": [1]}
        return value

    assert [d.pointer for d in diff(deep(1), deep(2))] == ["/a" * 127]
    assert canonical(deep(1)) == canonical(deep(1))


# -- lists of calls


def kinds(
    primary: list[ToolCall], reference: list[ToolCall], policy: ComparePolicy | None = None
) -> list[tuple[str, int | None, int | None]]:
    found = match_calls(primary, reference, lambda _name: policy or ComparePolicy())
    return [(match.kind, match.primary, match.reference) for match in found]


def test_calls_are_matched_as_a_multiset() -> None:
    a, b = ToolCall("f", '{"x": 1}', "id-1"), ToolCall("f", '{ "x":1.0 }', "id-2")
    c, d = ToolCall("g", "{}"), ToolCall("f", '{"x": 2}')
    assert kinds([a, c], [c, b]) == [("match", 0, 1), ("match", 1, 0)]
    assert kinds([a, b, d], [d, a, b]) == [("match", 0, 1), ("match", 1, 2), ("match", 2, 0)]
    assert kinds([a, a], [b]) == [("match", 0, 0), ("extra", 1, None)]
    assert kinds([a], [b, b]) == [("match", 0, 0), ("missing", None, 1)]
    assert kinds([d], [c, a]) == [("arguments", 0, 1), ("missing", None, 0)]
    assert kinds([a], [c]) == [("name", 0, 0)]
    assert kinds([], []) == []
    assert kinds([a], []) == [("extra", 0, None)]
    assert kinds([], [a]) == [("missing", None, 0)]


def test_equal_calls_pair_before_those_that_only_share_a_name() -> None:
    primary = [ToolCall("f", '{"x": 1}'), ToolCall("f", '{"x": 2}')]
    reference = [ToolCall("f", '{"x": 2}'), ToolCall("f", '{"x": 3}')]
    assert kinds(primary, reference) == [("arguments", 0, 1), ("match", 1, 0)]
    (first, _) = match_calls(primary, reference)
    assert first.differences == (Difference("/x", Side.BOTH, Decimal(1), Decimal(3)),)


def test_exact_pairs_come_before_equivalent_ones() -> None:
    policy = ComparePolicy(casefold=("/x",))
    upper, lower = ToolCall("f", '{"x": "A"}'), ToolCall("f", '{"x": "a"}')
    assert kinds([upper, lower], [lower, upper], policy) == [("match", 0, 1), ("match", 1, 0)]
    assert kinds([upper], [lower], policy) == [("equivalent", 0, 0)]
    assert kinds([upper], [lower]) == [("arguments", 0, 0)]


def test_each_tool_has_its_own_policy() -> None:
    def policy(name: str) -> ComparePolicy:
        return ComparePolicy(ignore=("/reason",)) if name == "loose" else ComparePolicy()

    a, b = '{"x": 1, "reason": "p"}', '{"x": 1, "reason": "q"}'
    found = match_calls(
        [ToolCall("loose", a), ToolCall("tight", a)], [ToolCall("tight", b), ToolCall("loose", b)], policy
    )
    assert [(m.kind, m.primary, m.reference) for m in found] == [("equivalent", 0, 1), ("arguments", 1, 0)]
    assert [d.pointer for d in found[1].differences] == ["/reason"]


def test_what_cannot_be_read_is_equal_only_letter_by_letter() -> None:
    assert kinds([ToolCall("f", '{"a":')], [ToolCall("f", '{"a":')]) == [("match", 0, 0)]
    (match,) = match_calls([ToolCall("f", '{"a":')], [ToolCall("f", '{"a": ')])
    assert match.kind == "arguments"
    assert match.differences == (Difference("", Side.BOTH, '{"a":', '{"a": '),)
    assert kinds([ToolCall("f", "")], [ToolCall("f", "[]")]) == [("arguments", 0, 0)]


CALLS = st.lists(
    st.builds(
        ToolCall,
        st.sampled_from(["f", "g"]),
        st.sampled_from(["", "null", '{"x": 1}', '{"x":1.0}', '{"x": "A"}', '{"x": "a"}', '{"x"', "{}"]),
        st.sampled_from([None, "1", "2"]),
    ),
    max_size=4,
)


@settings(max_examples=50, deadline=None)
@given(CALLS, CALLS, st.randoms(use_true_random=False), st.sampled_from([(), ("/x",)]))
def test_order_changes_no_kind_and_every_call_is_matched_once(
    primary: list[ToolCall], reference: list[ToolCall], order: random.Random, folded: tuple[str, ...]
) -> None:
    policy = ComparePolicy(casefold=folded)
    found = kinds(primary, reference, policy)
    assert sorted(i for _, i, _ in found if i is not None) == list(range(len(primary)))
    assert sorted(j for _, _, j in found if j is not None) == list(range(len(reference)))
    assert [i for _, i, _ in found if i is not None] == list(range(len(primary)))
    left, right = order.sample(primary, len(primary)), order.sample(reference, len(reference))
    assert Counter(kind for kind, *_ in kinds(left, right, policy)) == Counter(kind for kind, *_ in found)
    swapped = Counter(
        {"extra": "missing", "missing": "extra"}.get(kind, kind) for kind, *_ in kinds(reference, primary, policy)
    )
    assert swapped == Counter(kind for kind, *_ in found)


@settings(max_examples=60, deadline=None)
@example([ToolCall("f", "")], random.Random(0))
@given(CALLS, st.randoms(use_true_random=False))
def test_a_permutation_of_the_same_calls_matches_entirely(calls: list[ToolCall], order: random.Random) -> None:
    other = [ToolCall(call.name, call.arguments, "other") for call in order.sample(calls, len(calls))]
    assert [kind for kind, *_ in kinds(calls, other)] == ["match"] * len(calls)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_many_parallel_calls_are_matched_without_comparing_each_with_each() -> None:
    calls = [ToolCall("f", json.dumps({"x": i})) for i in range(30_000)]  # each with each would take an hour
    assert {match.kind for match in match_calls(calls, calls[::-1])} == {"match"}


# One row of reference/adversarial.md each, as the text that reaches the comparison.
@pytest.mark.parametrize(
    ("seen_in", "text", "problem"),
    [
        ("vllm#10395", '{"city": ""{"city": "Paris"}', "not_json"),
        ("vllm#28806", "", None),
        ("vllm#11392", "null", None),
        ("langchain#34242", "{}", None),
        ("vllm#48294", '{"city": "Paris", "days": 3}', None),
        ("vllm#38946", '{"city": "Paris"}<|tool_call_end|>', "not_json"),
        ("vllm#38946", '{"city": "Paris<|im_end|>"}', None),
        ("hermes-agent#7680", '{"city": "Par', "unclosed"),
        ("vllm#47761", "{'city': 'Paris'}", "not_json"),
        ("vllm#36116", '{"content": "' + "x" * 100_000 + '"}', None),
    ],
)
def test_symptoms_of_real_deployments(seen_in: str, text: str, problem: str | None) -> None:
    assert parse_arguments(text).problem == problem, seen_in


def test_one_unknown_or_broken_call_does_not_touch_its_siblings() -> None:
    primary = [ToolCall("f", '{"x": 1}'), ToolCall("nonsense", '{"y"'), ToolCall("g", "")]
    reference = [ToolCall("g", "{}"), ToolCall("f", '{"x":1}')]
    assert kinds(primary, reference) == [("match", 0, 1), ("extra", 1, None), ("match", 2, 0)]
