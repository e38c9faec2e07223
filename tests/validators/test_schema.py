import json
import random
import socket
import sys
import threading
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from validators import schema as checking
from validators.calls import parse_arguments
from validators.schema import MAX_DETAIL, MAX_FINDINGS, Schemas
from validators.schema_cost import UnusableSchemaError
from validators.schema_reading import MAX_DEPTH, MAX_PATTERNS, MAX_SCHEMAS, read
from validators.verdict import Finding, Word


def check(parameters: Any, arguments: Any, schemas: Schemas | None = None) -> list[Finding]:
    """The findings about one call; arguments that are no text are written as JSON first."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    parsed = parse_arguments(text)
    assert parsed.problem is None
    return (schemas or Schemas()).findings({"name": "tool", "parameters": parameters}, 3, parsed)


def faults(parameters: Any, arguments: Any) -> list[tuple[str, str]]:
    """Where and by which rule; nothing but `invalid` may be found."""
    found = check(parameters, arguments)
    assert {finding.word for finding in found} <= {Word.INVALID}
    return [(finding.where, finding.rule) for finding in found]


def unusable(parameters: Any, arguments: Any = "{}") -> str | None:
    """The reason why arguments could not be checked, None where they could."""
    found = check(parameters, arguments)
    if not found or found[0].reason == "schema":
        return None
    (finding,) = found
    assert (finding.word, finding.tool, finding.call) == (Word.UNVERIFIED, "tool", 3)
    assert (finding.reason, finding.where, finding.detail) == ("schema_unusable", "", "")
    return finding.rule


def a(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


def nested(depth: int, leaf: Any, key: str = "a") -> Any:
    for _ in range(depth):
        leaf = {key: leaf}
    return leaf


# -- what is found


@pytest.mark.parametrize(
    ("schema", "good", "bad", "rule"),
    [
        (a({"enum": ["x", "y"]}), {"a": "x"}, {"a": "z"}, "enum"),
        (a({"const": 1}), {"a": 1.0}, {"a": True}, "const"),
        (a({"type": "integer"}), {"a": 2.0}, {"a": "2"}, "type"),
        (a({"type": "integer"}), {"a": 2}, {"a": 2.5}, "type"),
        (a({"type": "boolean"}), {"a": True}, {"a": 1}, "type"),
        (a({"type": ["string", "null"]}), {"a": None}, {"a": 1}, "type"),
        (a({"minimum": 1}), {"a": 1}, {"a": 0}, "minimum"),
        (a({"maximum": 1}), {"a": 1}, {"a": 2}, "maximum"),
        (a({"exclusiveMinimum": 1}), {"a": 2}, {"a": 1}, "exclusiveMinimum"),
        (a({"exclusiveMaximum": 1}), {"a": 0}, {"a": 1}, "exclusiveMaximum"),
        (a({"multipleOf": 3}), {"a": 6}, {"a": 7}, "multipleOf"),
        (a({"minLength": 2}), {"a": "éé"}, {"a": "é"}, "minLength"),
        (a({"maxLength": 1}), {"a": "😀"}, {"a": "ab"}, "maxLength"),
        (a({"pattern": "^a+$"}), {"a": "aa"}, {"a": "ab"}, "pattern"),
        (a({"minItems": 1}), {"a": [1]}, {"a": []}, "minItems"),
        (a({"maxItems": 1}), {"a": [1]}, {"a": [1, 1]}, "maxItems"),
        (a({"uniqueItems": True}), {"a": [1, "1", True]}, {"a": [1, 1.0]}, "uniqueItems"),
        (a({"contains": {"const": 1}}), {"a": [2, 1]}, {"a": [2]}, "contains"),
        (a({"minProperties": 1}), {"a": {"x": 1}}, {"a": {}}, "minProperties"),
        (a({"maxProperties": 1}), {"a": {"x": 1}}, {"a": {"x": 1, "y": 1}}, "maxProperties"),
        (a({"propertyNames": {"maxLength": 1}}), {"a": {"x": 1}}, {"a": {"xy": 1}}, "propertyNames"),
        (a({"required": ["x"]}), {"a": {"x": None}}, {"a": {"y": 1}}, "required"),
        (a({"dependentRequired": {"x": ["y"]}}), {"a": {"y": 1}}, {"a": {"x": 1}}, "required"),
        (a({"additionalProperties": False}), {"a": {}}, {"a": {"x": 1}}, "additionalProperties"),
        (a({"unevaluatedProperties": False}), {"a": {}}, {"a": {"x": 1}}, "unevaluatedProperties"),
        (a({"not": {"type": "string"}}), {"a": 1}, {"a": "x"}, "not"),
        (a({"anyOf": [{"minimum": 5}, {"maximum": 1}]}), {"a": 1}, {"a": 3}, "anyOf"),
        (a({"oneOf": [{"minimum": 1}, {"maximum": 5}]}), {"a": 0}, {"a": 3}, "oneOf"),
        (a({"allOf": [{"minimum": 1}, {"maximum": 5}]}), {"a": 3}, {"a": 6}, "maximum"),
        (a({"if": {"const": 1}, "then": False}), {"a": 2}, {"a": 1}, "falseSchema"),
        ({"properties": {"a": False}}, {}, {"a": 1}, "falseSchema"),
    ],
)  # fmt: skip
def test_each_keyword_is_checked(schema: Any, good: Any, bad: Any, rule: str) -> None:
    assert faults(schema, good) == []
    assert faults(schema, bad) == [("/a", rule)]


def test_a_finding_says_which_call_where_by_which_rule_and_in_plain_words() -> None:
    schema = a({"type": "array", "items": {"properties": {"x/y": {"enum": ["edge-1", "edge-2"]}}}})
    assert check(schema, {"a": [{}, {"x/y": "edge-9"}]}) == [
        Finding(
            Word.INVALID,
            "tool",
            3,
            "schema",
            where="/a/1/x~1y",
            rule="enum",
            detail='/a/1/x~1y: this value is not one of "edge-1", "edge-2"',
        )
    ]


def test_a_missing_and_an_unknown_argument_are_named() -> None:
    schema = a({"type": "string"}) | {"required": ["a"], "additionalProperties": False}
    assert [(f.where, f.rule, f.detail) for f in check(schema, {"b": 1})] == [
        ("", "additionalProperties", "Additional properties are not allowed ('b' was unexpected)"),
        ("", "required", '"a" is a required property'),
    ]


def test_of_a_choice_the_branch_that_fits_speaks() -> None:
    optional = {"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]}
    assert faults(a(optional), {"a": "z"}) == [("/a", "enum")]
    assert faults(a(optional), {"a": None}) == []
    (finding,) = check(a({"anyOf": [{"type": "integer"}, {"type": "null"}]}), {"a": "z"})
    assert (finding.where, finding.rule) == ("/a", "type")
    assert finding.detail == "/a: this value is none of integer, null"
    inner = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["m"]}
    assert faults(a({"oneOf": [{"type": "array"}, inner]}), {"a": {"n": "1"}}) == [("/a", "required"), ("/a/n", "type")]


def test_keys_that_only_the_model_knows_stand_in_no_pointer() -> None:
    schema = a({"additionalProperties": {"properties": {"n": {"type": "integer"}}}})
    (finding,) = check(schema, {"a": {"4711-secret": {"n": "x"}}})
    assert finding.where == "/a/*/n"
    assert finding.detail.startswith("/a/4711-secret/n: ")  # for the client alone
    assert faults({"additionalProperties": {"type": "integer"}}, {"secret": "x"}) == [("/*", "type")]


def test_findings_and_their_words_are_few_and_short() -> None:
    schema = {"additionalProperties": {"type": "integer"}, "required": ["r" * 500]}
    found = check(schema, {str(i) + "k" * 1000: "v" * 1000 for i in range(20)})
    assert len(found) == MAX_FINDINGS
    assert all(len(finding.detail) <= MAX_DETAIL and finding.detail.endswith("…") for finding in found)
    (finding,) = check(a({"enum": ["x" * 50] * 2 + list(range(5000))}), {"a": "y" * 100_000})
    assert len(finding.detail) == MAX_DETAIL
    deep = {"properties": {"p" * 400: {"type": "null"}}}
    assert len(check(deep, {"p" * 400: 1})[0].where) == MAX_DETAIL


def test_of_thousands_of_errors_only_what_is_told_is_put_into_words(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, seen = checking._plain, list[Any]()

    def counting(error: Any) -> Any:
        seen.append(error)
        return plain(error)

    monkeypatch.setattr(checking, "_plain", counting)
    found = check({"required": [f"k{i}" for i in range(4900)]}, {})
    assert [finding.detail.partition(" ")[0] for finding in found] == [f'"k{i}"' for i in range(MAX_FINDINGS)]
    assert len(seen) == MAX_FINDINGS
    assert len(check({"required": ["a", "b"]}, {})) == 2


@pytest.mark.parametrize("parameters", [None, {}, [], True, {"type": "object"}, {"type": "object", "properties": []}])
def test_no_parameters_allow_any_object(parameters: Any) -> None:
    assert check(parameters, {"anything": [1, None]}) == []
    assert check(parameters, "") == []


def test_a_function_without_parameters_or_name_is_no_obstacle() -> None:
    assert Schemas().findings({"name": "f"}, 0, parse_arguments('{"a": 1}')) == []
    (finding,) = Schemas().findings({"name": 7, "parameters": False}, 0, parse_arguments("{}"))
    assert (finding.tool, finding.rule) == ("", "falseSchema")


def test_strict_adds_nothing_to_what_the_schema_says() -> None:
    schemas, arguments = Schemas(), parse_arguments('{"b": 1}')
    loose = {"name": "f", "strict": True, "parameters": a({"type": "string"})}
    assert schemas.findings(loose, 0, arguments) == []
    closed = loose | {"parameters": {**a({"type": "string"}), "required": ["a"], "additionalProperties": False}}
    assert {f.rule for f in schemas.findings(closed, 0, arguments)} == {"required", "additionalProperties"}


# -- numbers


HUGE = "9" * 20  # as an exponent, beyond what decimals hold


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"multipleOf": 0.01}, "19.99", "19.991"),
        ({"multipleOf": 0.01}, "1234567890123456789.01", "1234567890123456789.015"),
        ({"multipleOf": 0.1}, "0.3", "0.35"),
        ({"multipleOf": 1e-8}, "123.00000001", "123.000000011"),
        ({"minimum": 1e300}, "1e300", "0.9e300"),
        ({"enum": [1e23]}, "1e23", "99999999999999991611392"),
        ({"maximum": 2**64}, "18446744073709551616", "18446744073709551617"),
        ({"maximum": 2**53}, "9007199254740992", "9007199254740993"),
        ({"maximum": 0.1}, "0.1", "0.10000000000000000000000001"),
        ({"const": 10**30}, "1000000000000000000000000000000.0", "1000000000000000000000000000001"),
        ({"enum": [1]}, "1.0", "true"),
        ({"enum": [1.0]}, "1", '"1"'),
        ({"enum": [100]}, "1e2", "1e3"),
        ({"enum": [9007199254740993]}, "9007199254740993", "9007199254740992"),
        ({"type": "integer"}, "1.0", "1.0000000000000000000000001"),
        ({"type": "integer"}, "1e400", "1e-400"),
        ({"type": "number", "minimum": 0}, f"1e{HUGE}", f"-1e{HUGE}"),
        ({"type": "integer"}, f"1e{HUGE}", f"1e-{HUGE}"),
        ({"type": "string"}, f'"1e{HUGE}"', f"1e{HUGE}"),
        ({"uniqueItems": True}, "[1000000000000000000000000000000, 1000000000000000000000000000001]", "[1, 1.0]"),
        ({"uniqueItems": True}, f"[1e{HUGE}, 2e{HUGE}, 1e{HUGE}9]", f"[1e{HUGE}, 1e{HUGE}]"),
        ({"maximum": 5}, "-" + "9" * 6000, "9" * 6000),
    ],
)  # fmt: skip
def test_numbers_are_judged_exactly(schema: Any, good: str, bad: str) -> None:
    assert check(a(schema), f'{{"a": {good}}}') == []
    assert {finding.word for finding in check(a(schema), f'{{"a": {bad}}}')} == {Word.INVALID}


def test_a_schema_may_hold_decimals() -> None:
    schema = a({"maximum": Decimal("0.1000000000000000000000000001")})
    assert check(schema, '{"a": 0.1000000000000000000000000001}') == []
    assert faults(schema, '{"a": 0.1000000000000000000000000002}') == [("/a", "maximum")]


def test_no_number_or_surrogate_takes_the_rest_out_of_the_check() -> None:
    schema = a({"enum": ["x"]}) | {"properties": {"a": {"enum": ["x"]}, "b": {"minLength": 1}, "c": {"type": "number"}}}
    for other in ('"b": "\\ud800"', '"\\udfff": 1', f'"c": 1e{HUGE}', '"c": ' + "1" * 9000):
        assert check(schema, f'{{"a": "x", {other}}}') == []
        assert faults(schema, f'{{"a": "y", {other}}}') == [("/a", "enum")]
        assert faults(schema, f'{{{other}, "a": "y"}}') == [("/a", "enum")]
    assert faults(a({"maxLength": 1}), '{"a": "\\ud800"}') == []
    assert faults(a({"maxLength": 1}), '{"a": "\\ud800x"}') == [("/a", "maxLength")]


# -- how schemas are read


DRAFT_4, DRAFT_7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
DRAFT_2019, DRAFT_2020 = "https://json-schema.org/draft/2019-09/schema", "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("draft", [DRAFT_7, DRAFT_7.rstrip("#"), DRAFT_2019, DRAFT_2020, "urn:unknown", 7, None])
@pytest.mark.parametrize("place", ["$defs", "definitions", "components/schemas"])
def test_references_inside_the_document_are_followed_in_every_draft(draft: Any, place: str) -> None:
    schema = a({"$ref": f"#/{place}/Kind%20of~1x"}) | {"$schema": draft}
    inner: Any = {"Kind of/x": {"enum": ["x"], "$schema": "urn:nothing"}}
    for part in reversed(place.split("/")):
        inner = {part: inner}
    assert faults(schema | inner, {"a": "x"}) == []
    assert faults(schema | inner, {"a": "y"}) == [("/a", "enum")]


def test_the_draft_decides_what_a_keyword_means() -> None:
    sibling = a({"$ref": "#/$defs/s", "maxLength": 1}) | {"$defs": {"s": {"type": "string"}}}
    assert faults(sibling, {"a": "xy"}) == [("/a", "maxLength")]
    assert faults(sibling | {"$schema": DRAFT_7}, {"a": "xy"}) == []
    tuple7 = a({"items": [{"type": "string"}], "additionalItems": False})
    for schema in (tuple7 | {"$schema": DRAFT_7}, tuple7):
        assert faults(schema, {"a": ["x"]}) == []
        assert faults(schema, {"a": [1]}) == [("/a/0", "type")]
        assert [where for where, _ in faults(schema, {"a": ["x", "y"]})] in (["/a"], ["/a/1"])
    exclusive = a({"minimum": 1, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": False})
    for schema in (exclusive | {"$schema": DRAFT_4}, exclusive):
        assert faults(schema, {"a": 5}) == []
        assert faults(schema, {"a": 1}) == [("/a", "exclusiveMinimum")]
    assert faults(a({"dependencies": {"x": ["y"]}}) | {"$schema": DRAFT_7}, {"a": {"x": 1}}) == [("/a", "required")]


def test_a_reference_to_the_whole_document_and_its_own_id_are_inside() -> None:
    schema = a({"anyOf": [{"$ref": "#"}, {"type": "null"}]}) | {"additionalProperties": False}
    assert faults(schema, {"a": {"a": {"a": None}}}) == []
    assert faults(schema, {"a": {"a": {"b": 1}}}) == [("/a/a", "additionalProperties")]
    own = a({"$ref": "https://example.invalid/x.json#/$defs/n"}) | {"$id": "https://example.invalid/x.json"}
    assert faults(own | {"$defs": {"n": {"type": "null"}}}, {"a": 1}) == [("/a", "type")]


@pytest.mark.parametrize(
    ("written", "good", "bad"),
    [
        ("dict", {}, []), ("float", 1, "1"), ("tuple", [1], {}), ("int", 1, 1.5), ("str", "x", 1), ("bool", True, 1),
        ("list", [], {}), ("STRING", "x", 1), ("OBJECT", {}, 1), ("double", 0.5, "x"), (["int", "none"], None, "x"),
    ],
)  # fmt: skip
def test_common_names_of_types_are_read_as_what_they_mean(written: Any, good: Any, bad: Any) -> None:
    assert faults(a({"type": written}), {"a": good}) == []
    assert faults(a({"type": written}), {"a": bad}) == [("/a", "type")]


def test_any_asserts_no_type() -> None:
    values: list[Any] = [1, "x", None, [], {}]
    for value in values:
        assert faults(a({"type": "any"}), {"a": value}) == []
        assert faults(a({"type": ["any", "string"]}), {"a": value}) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "enum": ["x"]},
        {"type": ["string"], "minLength": 1},
        {"enum": ["x"]},
        {"$ref": "#/$defs/s"},
        {"allOf": [{"$ref": "#/$defs/s"}]},
        {"const": "x"},
    ],
)
def test_nullable_allows_null_and_nothing_else(schema: dict[str, Any]) -> None:
    rest = {"$defs": {"s": {"type": "string"}}}
    assert faults(a(schema) | rest, {"a": None}) != []
    assert faults(a(schema | {"nullable": True}) | rest, {"a": None}) == []
    assert faults(a(schema | {"nullable": True}) | rest, {"a": "x"}) == []
    assert faults(a(schema | {"nullable": True}) | rest, {"a": 1}) != []
    assert faults(a(schema | {"nullable": False}) | rest, {"a": None}) != []


def test_a_keyword_that_is_null_is_absent() -> None:
    schema = a({"type": "string", "enum": None, "items": None, "minLength": None, "$ref": None, "pattern": None})
    assert faults(schema | {"required": None, "additionalProperties": None}, {"a": "x", "b": 1}) == []
    assert faults(a({"const": None}), {"a": 1}) == [("/a", "const")]


def test_a_property_may_be_called_like_a_keyword() -> None:
    names = ["$ref", "$id", "type", "enum", "properties", "$defs", "nullable", "required"]
    schema = {"properties": {name: {"type": "integer"} for name in names}, "required": names}
    assert faults(schema, dict.fromkeys(names, 1)) == []
    found = faults(schema, dict.fromkeys(names, 1) | dict.fromkeys(names[:4], "x"))
    assert sorted(where for where, _ in found) == sorted(f"/{name}" for name in names[:4])


@pytest.mark.parametrize("draft", [None, DRAFT_7])
def test_formats_and_contents_are_not_asserted(draft: Any) -> None:
    for schema in ({"format": "date"}, {"format": "uuid"}, {"contentMediaType": "application/json"}, {"format": "x"}):
        assert check(a(schema | {"contentEncoding": "base64"}) | {"$schema": draft}, {"a": "é{"}) == []


SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, "", "x", "xy"])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
KEYWORDS: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(["object", "array", "string", "integer", ["number", "null"]]),
    "enum": st.lists(JSON, min_size=1, max_size=3),
    "const": JSON.filter(lambda value: value is not None),
    "minimum": st.integers(-2, 2), "exclusiveMaximum": st.integers(-2, 2), "multipleOf": st.sampled_from([1, 2, 0.5]),
    "minLength": st.integers(0, 2), "pattern": st.sampled_from(["^x", "y$"]), "maxItems": st.integers(0, 2),
    "uniqueItems": st.booleans(), "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
    "dependentRequired": st.dictionaries(st.sampled_from("abc"), st.just(["a"]), max_size=1),
    "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]), "maxProperties": st.integers(0, 2),
}  # fmt: skip
PLACES: dict[str, Any] = {
    "properties": lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    "patternProperties": lambda inner: st.dictionaries(st.sampled_from(["a", "^b"]), inner, max_size=1),
    "dependentSchemas": lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=1),
    **dict.fromkeys(["allOf", "anyOf", "oneOf", "prefixItems"], lambda inner: st.lists(inner, min_size=1, max_size=2)),
    **dict.fromkeys(
        ["not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames",
         "unevaluatedProperties", "unevaluatedItems"],
        lambda inner: inner,
    ),
}  # fmt: skip
FLAT = st.fixed_dictionaries({}, optional={key: KEYWORDS[key] for key in KEYWORDS if key != "$ref"})
TREES = st.recursive(
    st.fixed_dictionaries({}, optional=KEYWORDS) | st.booleans(),
    lambda inner: st.fixed_dictionaries({}, optional={key: make(inner) for key, make in PLACES.items()} | KEYWORDS),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(TREES.filter(bool), FLAT, FLAT, st.lists(st.dictionaries(st.sampled_from("abc"), JSON, max_size=3), max_size=4))
def test_reading_a_schema_changes_no_answer(schema: Any, one: Any, two: Any, values: list[Any]) -> None:
    whole = {**schema, "$defs": {"one": one, "two": two}} if isinstance(schema, dict) else schema
    itself = jsonschema_rs.Draft202012Validator(whole, validate_formats=False)
    for value in values:
        found = check(whole, value)
        if not found or found[0].word is Word.INVALID:
            assert itself.is_valid(value) is (not found)
        else:
            assert [finding.rule for finding in found] == ["too_much_work"]


# -- schemas that cannot be used


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ("text", "not_a_schema"),
        (7, "not_a_schema"),
        ([{"type": "object"}], "not_a_schema"),
        ({"type": "whatever"}, "not_a_schema"),
        ({"type": {"type": "string"}}, "not_a_schema"),
        ({"properties": ["a"]}, "not_a_schema"),
        ({"properties": {"a": "string"}}, "not_a_schema"),
        ({"required": True}, "not_a_schema"),
        ({"minimum": "0"}, "not_a_schema"),
        ({"allOf": {}}, "not_a_schema"),
        ({"$ref": 7}, "not_a_schema"),
        ({"pattern": 7}, "not_a_schema"),
        ({"enum": ["\ud800"]}, "not_a_schema"),
        ({"$ref": "other.json"}, "remote_reference"),
        ({"$ref": "https://example.invalid/schema"}, "remote_reference"),
        ({"$ref": "//example.invalid/schema"}, "remote_reference"),
        (a({"$ref": "file:///etc/hostname"}), "remote_reference"),
        (a({"$ref": "json-schema:///x"}) | {"$id": "json-schema:///"}, "remote_reference"),
        ({"$schema": "https://example.invalid/draft-07", "$ref": "https://example.invalid/x"}, "remote_reference"),
        ({"$ref": "#/$defs/absent"}, "unknown_reference"),
        ({"$ref": "#/required/1", "required": ["x"]}, "unknown_reference"),
        ({"$ref": "#anchor", "$defs": {"x": {"$anchor": "anchor"}}}, "unknown_reference"),
        ({"$dynamicRef": "#x", "$dynamicAnchor": "x"}, "dynamic_reference"),
        (a({"$recursiveRef": "#"}) | {"$schema": DRAFT_2019}, "dynamic_reference"),
        (a({"$id": "https://example.invalid/x", "$ref": "#/$defs/n"}) | {"$defs": {"n": {}}}, "embedded_id"),
        ({"$ref": "#"}, "endless_reference"),
        ({"anyOf": [{"$ref": "#"}, {"type": "object"}]}, "endless_reference"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"not": {"$ref": "#/$defs/y"}}, "y": {"$ref": "#/$defs/x"}}},
         "endless_reference"),
        (nested(MAX_DEPTH, {}, "not"), "too_deep"),
        ({"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(99)} | {"99": {}}},
         "too_deep"),
        (a({"enum": [nested(MAX_DEPTH, 1)]}), "too_deep"),
        (a({"default": nested(900, 1)}), "too_deep"),
        ({"description": "x" * 200_000}, "too_large"),
        ({"properties": {f"p{i}": {} for i in range(MAX_SCHEMAS)}}, "too_large"),
        (a({"enum": list(range(20_001))}), "too_large"),
        ({"properties": {f"p{i}": {"pattern": f"x{i}"} for i in range(MAX_PATTERNS + 1)}}, "too_large"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_used_says_why(parameters: Any, reason: str) -> None:
    assert unusable(parameters) == reason


def test_depth_beyond_what_any_encoder_takes_is_too_deep() -> None:
    assert unusable(nested(50_000, {}, "not")) == "too_deep"


def test_ids_that_change_nothing_are_left_out() -> None:
    assert faults(a({"$id": "#/properties/a", "type": "null"}) | {"$id": "urn:x"}, {"a": 1}) == [("/a", "type")]
    assert faults(a({"$id": "https://example.invalid/a", "type": "null"}), {"a": 1}) == [("/a", "type")]


def test_nothing_outside_the_document_is_ever_fetched(tmp_path: Path) -> None:
    target = tmp_path / "schema.json"
    target.write_text('{"type": "integer"}', encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        base = f"http://127.0.0.1:{server.getsockname()[1]}"
        for outside in (f"{base}/schema.json", f"{base}/x#/y", target.as_uri(), str(target), "schema.json", "?x"):
            for keyword in ("$ref", "$schema", "$id", "id", "$dynamicRef", "$recursiveRef", "$anchor", "$vocabulary"):
                for schema in ({keyword: outside}, a({keyword: outside}), a({keyword: outside}) | {"$id": base}):
                    for draft in (None, DRAFT_4, DRAFT_7, outside):
                        found = check({"$schema": draft, **schema}, {"a": "text"})
                        assert not found or found[0].reason == "schema_unusable"
                assert check(a({keyword: outside, "$ref": "schema.json"}) | {"$id": base}, {"a": "text"}) != []
        with pytest.raises(TimeoutError):
            server.accept()


# -- patterns


def test_patterns_take_linear_time() -> None:
    for pattern in ("^(a+)+$", "^(a|a)*$", "(.*)*x", "^(([a-z])+.)+[A-Z]([a-z])+$"):
        assert faults(a({"pattern": pattern}), {"a": "a" * 20_000 + "!"}) == [("/a", "pattern")], pattern


LOOKING_AROUND = a({"pattern": r"^(?!\s*$).+"}) | {"required": ["a"]}


@pytest.mark.parametrize("pattern", [r"^(?!\s*$).+", r"(a)\1", "(", "((a{100}){100}){100}", "x" * 5000])
def test_a_pattern_that_the_linear_engine_cannot_compile_leaves_the_rest_checked(pattern: str) -> None:
    schema = a({"type": "string", "pattern": pattern, "maxLength": 3}) | {"required": ["a"]}
    assert unusable(schema, {"a": "x"}) == "pattern"
    assert faults(schema, {"a": 1}) == [("/a", "type")]
    assert faults(schema, {}) == [("", "required")]


@pytest.mark.parametrize(
    "schema",
    [
        a({"not": {"pattern": "(?=x)"}}),
        a({"oneOf": [{"pattern": "(?=x)"}, {"pattern": "y"}]}),
        a({"if": {"pattern": "(?=x)"}, "then": False}),
        a({"contains": {"pattern": "(?=x)"}, "maxContains": 1}),
        a({"patternProperties": {"(?=x)": {}}, "additionalProperties": False}),
    ],
)
def test_where_leaving_a_pattern_out_could_refuse_too_much_nothing_is_checked(schema: Any) -> None:
    assert unusable(schema, {"a": 1, "b": 1}) == "pattern"
    assert unusable(schema, {"a": ["x"]}) == "pattern"


def test_a_long_string_does_not_keep_the_rest_from_being_checked() -> None:
    evil = {"pattern": "(a|b)*a(a|b){90}c"}
    schema = {"properties": {"a": evil, "b": {"enum": ["x"]}, "c": {"pattern": r"\S"}}}
    text = "ab" * 200_000
    assert unusable(schema, {"a": text, "b": "x"}) == "too_much_work"
    assert faults(schema, {"a": text, "b": "y"}) == [("/b", "enum")]
    assert faults(schema, {"c": " " * 50_000}) == [("/c", "pattern")]  # a plain pattern is cheap
    negated = {"properties": {"a": {"not": evil}, "b": {"enum": ["x"]}}}
    assert unusable(negated, {"a": text, "b": "y"}) == "too_much_work"


# -- schemas made to take forever


def laughs(levels: int, keyword: str, leaf: Any) -> dict[str, Any]:
    """Each definition names the next one twice."""
    defs = {str(i): {keyword: [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(levels)}
    return {"$ref": "#/$defs/0", "$defs": {**defs, str(levels): leaf}}


def through_properties(levels: int) -> dict[str, Any]:
    defs: dict[str, Any] = {
        str(i): {
            "allOf": [{"properties": {"a": {"$ref": f"#/$defs/{i + 1}"}}}, {"items": {"$ref": f"#/$defs/{i + 1}"}}],
            "anyOf": [{"additionalProperties": {"$ref": f"#/$defs/{i + 1}"}}],
        }
        for i in range(levels)
    }
    return {"$ref": "#/$defs/0", "$defs": {**defs, str(levels): {"type": "null"}}}


def cycle(length: int, keyword: str) -> dict[str, Any]:
    """A ring of definitions, each naming the next one twice, the last one the first below a property."""
    defs: dict[str, Any] = {str(i): {keyword: [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(length)}
    defs[str(length)] = {"additionalProperties": {"$ref": "#/$defs/0"}, "not": {"const": 1}}
    return {"$ref": "#/$defs/0", "$defs": defs}


def unevaluated(levels: int, keyword: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {"a": {}}}
    for _ in range(levels):
        schema = {keyword: [schema], "unevaluatedProperties": False}
    return schema


DOUBLE = {"additionalProperties": {"$ref": "#"}}
BOMBS = [
    *[(laughs(levels, keyword, leaf), {"a": 1})
      for keyword in ("allOf", "anyOf", "oneOf") for levels in (8, 13, 18, 50) for leaf in ({}, {"type": "string"})],
    *[(through_properties(levels), nested(levels, 1)) for levels in (8, 13, 18, 40)],
    *[({"allOf": [DOUBLE, DOUBLE], "not": {"const": 1}}, nested(depth, leaf)) for depth in (9, 100) for leaf in (0, 1)],
    *[({"anyOf": [DOUBLE, DOUBLE], "not": {"const": 1}}, nested(depth, leaf)) for depth in (9, 100) for leaf in (0, 1)],
    *[(cycle(length, keyword), nested(100, leaf))
      for length in (1, 4, 9, 20) for keyword in ("allOf", "anyOf") for leaf in (0, 1)],
    *[(unevaluated(levels, keyword), {"a": 1}) for levels in (3, 9, 30) for keyword in ("anyOf", "allOf", "oneOf")],
    (a({"items": {"allOf": [{"multipleOf": 0.01}] * 1000}}), {"a": [0.5] * 3000}),
    (a({"items": {"enum": [{"x": i} for i in range(3000)]}}), {"a": [{"x": 2999}] * 3000}),
    (a({"uniqueItems": True}), {"a": [{"x": [i]} for i in range(20_000)]}),
    (a({"items": {"type": "string"}}), {"a": [1] * 20_000}),
    ({"required": [f"r{i}" for i in range(3000)]}, {f"k{i}": "x" * 3000 for i in range(300)}),
    ({"patternProperties": {f"(a|b)*a(a|b){{{90 + i}}}c": {} for i in range(50)}}, {"ab" * 5000: 1, "ba" * 5000: 1}),
    ({"propertyNames": {"pattern": "(a|b)*a(a|b){90}c"}}, {"ab" * 50_000: 1}),
    ({"allOf": [{"minimum": i} for i in range(4000)]}, {"a": 1}),
    ({"properties": {f"p{i}": {"pattern": f"(a|b)*a(a|b){{{400 + i}}}c"} for i in range(MAX_PATTERNS)}},
     {"p1": "ab" * 5000}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", range(len(BOMBS)))
def test_no_schema_and_no_arguments_make_a_check_endless(number: int) -> None:
    schema, arguments = BOMBS[number]  # without the bounds, most of these would take years, and memory to match
    schemas = Schemas()
    for _ in range(2):
        found = check(schema, arguments, schemas)
        assert len(found) <= MAX_FINDINGS


def test_recursion_by_itself_is_no_reason_not_to_check() -> None:
    kinds = [{"$ref": "#/$defs/and"}, {"$ref": "#/$defs/or"}, {"$ref": "#/$defs/is"}]
    several = {"type": "object", "properties": {"of": {"items": {"anyOf": kinds}}}, "required": ["of"]}
    single = {"type": "object", "properties": {"field": {"type": "string"}}, "required": ["field"]}
    schema = a({"anyOf": kinds}) | {"$defs": {"and": several, "or": several, "is": single}}
    for depth in (1, 5, 20, 60):
        good, bad = {"field": "x"}, {"field": 1}
        for _ in range(depth):
            good, bad = {"of": [good, {"field": "y"}]}, {"of": [bad, {"field": "y"}]}  # type: ignore[dict-item]
        assert check(schema, {"a": good}) == []
        assert {finding.word for finding in check(schema, {"a": bad})} == {Word.INVALID}
    sides = {"l": {"$ref": "#/$defs/t"}, "r": {"$ref": "#/$defs/t"}, "v": {"type": "integer"}}
    tree = {"$ref": "#/$defs/t", "$defs": {"t": {"properties": sides}}}
    assert faults(tree, {"l": {"r": {"v": 1}}, "r": {"l": {"v": "x"}}}) == [("/r/l/v", "type")]


def test_long_arguments_are_checked_whole() -> None:
    schema = a({"type": "array", "items": {"type": "integer"}})
    assert check(schema, {"a": list(range(60_000))}) == []
    assert {finding.word for finding in check(schema, {"a": [*range(60_000), "x"]})} == {Word.INVALID}
    assert check(a({"type": "string"}), {"a": "x" * 3_000_000}) == []
    assert faults(a({"type": "string"}) | {"required": ["b"]}, {"a": "x" * 3_000_000}) == [("", "required")]


RULES = {"too_large", "too_deep", "not_a_schema", "remote_reference", "unknown_reference", "dynamic_reference",
         "embedded_id", "endless_reference", "pattern", "too_much_work"}  # fmt: skip
WORDS = st.sampled_from([*PLACES, *KEYWORDS, "$defs", "$id", "$schema", "nullable", "a"]) | st.text(max_size=3)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.sampled_from(["#", "#/$defs/a", "object"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=200, deadline=None)
@given(ANYTHING, st.dictionaries(st.text(max_size=3), ANYTHING, max_size=3))
def test_no_schema_makes_it_raise(parameters: Any, value: dict[str, Any]) -> None:
    arguments = parse_arguments(json.dumps(value).replace("NaN", "0").replace("Infinity", "9"))
    for finding in Schemas().findings({"name": "f", "parameters": parameters}, 0, arguments):
        if finding.word is Word.INVALID:
            assert finding.rule in checking._RULES | {"schema"}
            assert finding.detail
        else:
            assert finding.rule in RULES


class PanicException(BaseException):
    pass


@pytest.mark.parametrize("error", [RuntimeError, PanicException, MemoryError, jsonschema_rs.ReferencingError("x")])
def test_whatever_the_library_does_the_call_gets_its_answer(monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(checking, "_compile", broken)
    assert unusable(a({})) == "failed"


def test_what_ends_the_program_is_not_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(checking, "_compile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check(a({}), "{}")


def test_it_works_close_to_the_end_of_the_stack() -> None:
    def deeper(left: int) -> list[Finding]:
        return deeper(left - 1) if left else check(nested(20, {"type": "null"}, "not"), "{}")

    for left in range(sys.getrecursionlimit() - 400, sys.getrecursionlimit() - 60, 20):
        assert len(deeper(left)) <= 1


# -- the cache


def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """The schemas that get read from now on."""
    seen: list[Mapping[str, Any]] = []

    def spy(parameters: Any, **options: Any) -> Any:
        seen.append(parameters)
        return read(parameters, **options)

    monkeypatch.setattr(checking, "read", spy)
    return seen


def test_a_schema_is_compiled_once_and_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, schemas = compiled(monkeypatch), Schemas(most=2)

    def ask(kind: str, value: Any) -> int:
        return len(check(a({"type": kind}), {"a": value}, schemas))

    assert [ask("string", "x"), ask("string", 1), ask("null", None), ask("string", "x")] == [0, 1, 0, 0]
    assert len(seen) == 2
    assert [ask("integer", 1), ask("string", 1), ask("integer", "x")] == [0, 1, 1]
    assert len(seen) == 3  # null was the oldest
    assert ask("null", 1) == 1
    assert len(seen) == 4


def test_schemas_that_cannot_be_used_are_remembered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, schemas = compiled(monkeypatch), Schemas()
    for _ in range(3):
        assert [finding.rule for finding in check({"$ref": "x"}, "{}", schemas)] == ["remote_reference"]
    assert len(seen) == 1


def test_equal_numbers_of_another_kind_are_other_schemas() -> None:
    schemas = Schemas()
    assert check(a({"enum": [1]}), {"a": True}, schemas) != []
    assert check(a({"enum": [True]}), {"a": True}, schemas) == []
    assert check(a({"const": "1"}), {"a": 1}, schemas) != []
    assert check(a({"const": 1}), {"a": 1}, schemas) == []


def test_large_schemas_push_others_out_by_their_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_CACHE_BYTES", 100_000)
    seen, schemas = compiled(monkeypatch), Schemas()
    large = a({"enum": ["x" * 3000]})
    for _ in range(2):
        check(large, "{}", schemas)
        check(a({"type": "null"}), "{}", schemas)
    assert len(seen) == 2
    check(a({"enum": ["y" * 3000]}), "{}", schemas)
    check(a({"type": "null"}), "{}", schemas)
    assert len(seen) == 3
    check(large, "{}", schemas)
    assert len(seen) == 4


def test_threads_may_share_it() -> None:
    schemas, wrong = Schemas(most=5), []

    def run(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            i = rng.randrange(12)
            if [f.rule for f in check(a({"const": i}), {"a": i + seed % 2}, schemas)] != ["const"] * (seed % 2):
                wrong.append(i)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(schemas._kept) == 5
    assert schemas._bytes == sum(kept.size for kept in schemas._kept.values())


def test_reading_names_its_reason_alone() -> None:
    with pytest.raises(UnusableSchemaError) as caught:
        read({"$ref": "https://example.invalid/secret"})
    assert str(caught.value) == "remote_reference"
