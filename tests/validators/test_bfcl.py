"""Real functions and the calls that people labelled as right for them, whole and damaged in five ways."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.bfcl import Case, cases
from validators import Finding, Word, parse_arguments
from validators.schema import Schemas

pytestmark = pytest.mark.slow

# Labels that contradict their own function's schema: the data's faults, found by the validator and looked at one by
# one. (call, where, rule) of each finding.
CONTRADICTING = {
    # A value that is not among those that the enum lists.
    "live_simple_71-35-0": {(0, "/metrics", "enum")},  # a string enum on an array
    "live_multiple_87-38-4": {(0, "/type", "enum")},
    "live_multiple_152-58-6": {(0, "/metrics", "enum")},  # a string enum on an array
    "live_multiple_750-169-5": {(0, "/genre", "enum")},
    "live_multiple_756-169-11": {(0, "/genre", "enum")},  # horror, where the enum has Horror
    "live_multiple_835-178-10": {(0, "/genre", "enum")},
    "live_multiple_871-182-8": {(0, "/genre", "enum")},
    "live_multiple_947-197-0": {(0, "/duration", "enum")},
    # A boolean or a number where the schema lists strings that look like them.
    "live_multiple_552-153-1": {(0, "/is_unisex", "enum"), (0, "/is_unisex", "type")},
    "live_multiple_595-158-1": {(0, "/number_of_rooms", "enum"), (0, "/number_of_rooms", "type")},
    "live_multiple_596-158-2": {(0, "/number_of_rooms", "enum"), (0, "/number_of_rooms", "type")},
    "live_multiple_731-167-2": {(0, "/in_unit_laundry", "enum"), (0, "/in_unit_laundry", "type")},
    "live_multiple_733-167-4": {(0, "/in_unit_laundry", "enum"), (0, "/in_unit_laundry", "type")},
    "live_multiple_735-167-6": {(0, "/in_unit_laundry", "enum"), (0, "/in_unit_laundry", "type")},
    # Another type than the declared one.
    "live_multiple_1038-265-0": {(0, "/start_date", "type")},  # null
    "parallel_multiple_21": {(1, "/x", "type"), (1, "/y", "type")},  # Python source for an array
    "parallel_multiple_94": {(0, f"/elements/{i}", "type") for i in range(5)},  # words where integers are declared
    # A required argument for which the label has no value, or another name.
    "live_simple_106-63-0": {(0, "", "required")},
    "live_simple_112-68-0": {(0, "", "required")},
    "live_multiple_964-207-0": {(0, "", "required")},
}
# Where no other than the declared arguments are allowed, moreover these: they have some of the label's own making.
CONTRADICTING_CLOSED = {
    **CONTRADICTING,
    "live_multiple_964-207-0": {(0, "", "required"), (0, "", "additionalProperties")},
    "live_multiple_189-83-0": {(0, "/data", "additionalProperties")},
    "live_multiple_862-181-3": {(0, "", "additionalProperties")},
    "parallel_multiple_26": {(1, "", "additionalProperties")},
}


def findings(schemas: Schemas, case: Case, index: int, arguments: Any = None) -> list[Finding]:
    """About one call of a case, or about other arguments for it."""
    call = case.calls[index]["function"]
    function = next(tool["function"] for tool in case.tools if tool["function"]["name"] == call["name"])
    parsed = parse_arguments(call["arguments"] if arguments is None else json.dumps(arguments))
    assert parsed.problem is None
    return schemas.findings(function, index, parsed)


@pytest.mark.parametrize("closed", [False, True])
def test_no_labelled_call_is_invalid_but_where_its_label_contradicts_the_schema(*, closed: bool) -> None:
    schemas, found, calls = Schemas(), {}, 0
    for case in cases(closed=closed):
        calls += len(case.calls)
        about = [finding for i in range(len(case.calls)) for finding in findings(schemas, case, i)]
        if about:
            assert {finding.word for finding in about} == {Word.INVALID}
            found[case.id] = {(finding.call, finding.where, finding.rule) for finding in about}
    assert calls == 2458
    assert found == (CONTRADICTING_CLOSED if closed else CONTRADICTING)
    assert (len(CONTRADICTING), len(CONTRADICTING_CLOSED)) == (20, 23)


def test_the_data_as_published_is_read_alike() -> None:
    schemas, found = Schemas(), set()
    for case in cases(published=True):
        if any(findings(schemas, case, i) for i in range(len(case.calls))):
            found.add(case.id)
    assert found == set(CONTRADICTING)


# -- damage. Each kind gives the arguments damaged and whether the schema says anything against them, worked out from
# the one property that was touched, without a validator.

Damaged = tuple[dict[str, Any], bool]
Damage = Callable[[dict[str, Any], dict[str, Any], random.Random], Damaged | None]

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,),
}  # fmt: skip
_SAMPLES: list[Any] = ["text", 7, 7.5, True, None, ["text"], {"key": "text"}]


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a simple value is of the declared type and, where there is an enum or a maximum, within it."""
    kinds = _PYTHON_TYPES.get(schema.get("type", ""), (object,))
    if isinstance(value, bool) and bool not in kinds and object not in kinds:
        return False
    if not isinstance(value, kinds) or ("enum" in schema and value not in schema["enum"]):
        return False
    return not ("maximum" in schema and isinstance(value, int) and value > schema["maximum"])


def properties(schema: dict[str, Any], arguments: dict[str, Any]) -> list[str]:
    return [name for name in arguments if name in schema["properties"]]


def wrong_enum(schema: dict[str, Any], arguments: dict[str, Any], rng: random.Random) -> Damaged | None:
    listed = [name for name in properties(schema, arguments) if "enum" in schema["properties"][name]]
    if not listed:
        return None
    return arguments | {rng.choice(listed): "none of these"}, True


def missing_required(schema: dict[str, Any], arguments: dict[str, Any], rng: random.Random) -> Damaged | None:
    if not arguments:
        return None
    left_out = rng.choice(sorted(arguments))
    return {name: arguments[name] for name in arguments if name != left_out}, left_out in schema.get("required", [])


def extra_key(schema: dict[str, Any], arguments: dict[str, Any], _rng: random.Random) -> Damaged | None:
    return arguments | {"no_such_argument": 1}, schema.get("additionalProperties") is False


def wrong_type(schema: dict[str, Any], arguments: dict[str, Any], rng: random.Random) -> Damaged | None:
    known = properties(schema, arguments)
    if not known:
        return None
    name = rng.choice(known)
    declared = schema["properties"][name].get("type")
    others = [value for value in _SAMPLES if declared is None or not fits(value, {"type": declared})]
    value = rng.choice(others)
    return arguments | {name: value}, declared is not None or not fits(value, schema["properties"][name])


def changed_value(schema: dict[str, Any], arguments: dict[str, Any], rng: random.Random) -> Damaged | None:
    """Another value of the same kind, which only an enum or a bound can tell from a right one."""
    simple = [name for name in properties(schema, arguments) if isinstance(arguments[name], str | int | float)]
    if not simple:
        return None
    name = rng.choice(simple)
    declared, old = schema["properties"][name], arguments[name]
    value: Any
    if "enum" in declared:
        value = rng.choice([option for option in declared["enum"] if option != old] or [old])
    elif isinstance(old, bool):
        value = not old
    else:
        value = f"{old} or so" if isinstance(old, str) else old + 1
    return arguments | {name: value}, not fits(value, declared)


DAMAGES: list[Damage] = [wrong_enum, missing_required, extra_key, wrong_type, changed_value]


def damaged(*, closed: bool) -> Iterator[tuple[str, bool, list[Finding]]]:
    """Kind of damage, whether the schema says anything against it, and what was found."""
    schemas = Schemas()
    for case in cases(closed=closed):
        if case.id in CONTRADICTING_CLOSED:
            continue
        schema_of = {tool["function"]["name"]: tool["function"]["parameters"] for tool in case.tools}
        for i, call in enumerate(case.calls):
            arguments = json.loads(call["function"]["arguments"])
            for damage in DAMAGES:
                rng = random.Random(f"{case.id} {i} {damage.__name__}")
                done = damage(schema_of[call["function"]["name"]], arguments, rng)
                if done is not None:
                    yield damage.__name__, done[1], findings(schemas, case, i, done[0])


@pytest.mark.parametrize("closed", [False, True])
def test_all_damage_that_a_schema_can_tell_is_found(*, closed: bool) -> None:
    made: Counter[str] = Counter()
    catchable: Counter[str] = Counter()
    caught: Counter[str] = Counter()
    for kind, can_tell, found in damaged(closed=closed):
        made[kind] += 1
        catchable[kind] += can_tell
        caught[kind] += bool(found)
        assert {finding.word for finding in found} == ({Word.INVALID} if can_tell else set()), kind
    print(f"\n{'additionalProperties: false' if closed else 'as published'}")  # noqa: T201 - seen with pytest -s
    print(f"{'damage':18}{'made':>8}{'schema can tell':>18}{'found':>8}{'let through':>14}")  # noqa: T201
    for kind in made:
        print(f"{kind:18}{made[kind]:8}{catchable[kind]:18}{caught[kind]:8}{made[kind] - caught[kind]:14}")  # noqa: T201
    assert caught == catchable
    assert made["extra_key"] > 2400
    assert (catchable["extra_key"] == made["extra_key"]) is closed
