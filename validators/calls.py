"""Tool calls as values: how they are read, how two of them differ, and how two lists of them pair up.

Arguments are equal when they are equal *as JSON values*: key order, white space and the way a number is written never
matter, the types do (`1` is `1.0`, but neither is `true` nor `"1"`). Numbers are read as decimals, so that two long
account numbers that share a float stay two numbers. Call ids are random and never compared.
"""

import json
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, NoReturn

from validators.canonical import EXACT, ComparePolicy, HugeNumber, Paths, canonical, form_of

__all__ = [
    "EXACT",
    "MAX_DEPTH",
    "Arguments",
    "CallMatch",
    "ComparePolicy",
    "Difference",
    "HugeNumber",
    "Side",
    "ToolCall",
    "canonical",
    "diff",
    "match_calls",
    "parse_arguments",
]

# What is left of a literal, a number or an escape where a text was cut inside it.
_CUT_OFF = re.compile(r"t|tr|tru|f|fa|fal|fals|n|nu|nul|-|\.|[eE][+-]?|\\?(?:u[0-9a-fA-F]{0,3})?|[0-9a-fA-F]{0,3}")

_CONTAINERS = (dict, list)

MAX_DEPTH = 128
"""Arguments nested deeper than this many arrays or objects are not read: `too_deep`."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as an engine wrote it: `arguments` is its raw text, unparsed; `id` is random and never compared."""

    name: str
    arguments: str = ""
    id: str | None = None
    _read: "Arguments | None" = field(default=None, init=False, repr=False, compare=False)

    @property
    def read(self) -> "Arguments":
        """What the text holds, read once however often it is asked for. Nobody may change it."""
        if self._read is None:
            object.__setattr__(self, "_read", parse_arguments(self.arguments))
            assert self._read is not None
        return self._read


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a call's text holds: a JSON value, or the reason why none could be read.

    `problem` is None, `not_json` (white space after it, delimiters in it, NaN), `unclosed` (the text ends before its
    value does), `not_an_object` or `too_deep`. `duplicate_keys` says that some object repeats a key; the last one
    counts, as in most parsers, but clients may disagree.
    """

    value: Any = None
    problem: str | None = None
    duplicate_keys: bool = False


class Side(StrEnum):
    """Which side of a difference has a value."""

    BOTH = "changed"
    PRIMARY = "only_primary"
    REFERENCE = "only_reference"


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two calls' arguments differ: a JSON pointer and both values (content)."""

    pointer: str
    side: Side
    primary: Any = None
    reference: Any = None


class _TooDeepError(ValueError):
    pass


class _RepeatedKeyError(Exception):
    pass


def _number_of(text: str) -> Decimal | HugeNumber:
    try:
        return Decimal(text)
    except InvalidOperation:
        return HugeNumber(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _without_repeats(items: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(items)
    if len(result) < len(items):
        raise _RepeatedKeyError
    return result


# Kept, since making one costs as much as reading a short text; the second is for what the first says repeats a key.
_STRICT, _LENIENT = (
    json.JSONDecoder(
        parse_int=Decimal, parse_float=_number_of, parse_constant=_refuse_constant, object_pairs_hook=members
    )
    for members in (_without_repeats, dict)
)


def parse_arguments(text: str) -> Arguments:
    """Reads a call's argument text. `""`, `null` and `{}` are one no-argument call. Never raises."""
    if not text.strip():
        return Arguments({})
    duplicate = False
    try:
        try:
            value = _STRICT.decode(text)
        except _RepeatedKeyError:
            duplicate, value = True, _LENIENT.decode(text)
        _check_depth(value, MAX_DEPTH)
    except json.JSONDecodeError as error:
        return Arguments(problem=_json_problem(text, error))
    except (RecursionError, _TooDeepError):
        return Arguments(problem="too_deep")
    except ValueError:
        return Arguments(problem="not_json")
    if value is None:
        value = {}
    if not isinstance(value, dict):
        return Arguments(value, "not_an_object", duplicate)
    return Arguments(value, None, duplicate)


def _json_problem(text: str, error: json.JSONDecodeError) -> str:
    """`unclosed` where the text merely ends too early, else `not_json`."""
    rest = text[error.pos :].rstrip()
    cut = not rest or error.msg.startswith("Unterminated string") or _CUT_OFF.fullmatch(rest)
    return "unclosed" if cut else "not_json"


def _check_depth(value: Any, left: int) -> None:
    if isinstance(value, _CONTAINERS):
        if not left:
            raise _TooDeepError
        for child in value.values() if isinstance(value, dict) else value:
            if isinstance(child, _CONTAINERS):
                _check_depth(child, left - 1)


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def diff(primary: Any, reference: Any, policy: ComparePolicy = EXACT) -> tuple[Difference, ...]:
    """Where two JSON values differ under the policy, as JSON pointers in order of appearance; empty iff equal."""
    return tuple(_diff("", primary, reference, Paths.of(policy), policy.tolerance))


def _diff(pointer: str, a: Any, b: Any, paths: Paths, tolerance: Decimal) -> list[Difference]:
    """Goes down as far as both sides have the same shape, and compares what no longer opens: linear in size."""
    if paths.ignored or (type(a) is type(b) and isinstance(a, str | Decimal) and a == b):
        return []
    if isinstance(a, dict) and isinstance(b, dict):
        return _diff_objects(pointer, a, b, paths, tolerance)
    if isinstance(a, list) and isinstance(b, list) and () not in paths.unordered:
        kept = [[(i, v) for i, v in enumerate(side) if not paths.below(str(i)).ignored] for side in (a, b)]
        return _diff_arrays(pointer, kept[0], kept[1], paths, tolerance)
    same = form_of(a, paths, tolerance) == form_of(b, paths, tolerance)
    return [] if same else [Difference(pointer, Side.BOTH, a, b)]


def _diff_objects(
    pointer: str, a: dict[str, Any], b: dict[str, Any], paths: Paths, tolerance: Decimal
) -> list[Difference]:
    found: list[Difference] = []
    for key in [*a, *(key for key in b if key not in a)]:
        below, at = paths.below(key), f"{pointer}/{_escape(key)}"
        if key in a and key in b:
            found += _diff(at, a[key], b[key], below, tolerance)
        elif not below.ignored:
            found.append(_one_sided(at, a.get(key), b.get(key), in_primary=key in a))
    return found


def _diff_arrays(
    pointer: str, a: list[tuple[int, Any]], b: list[tuple[int, Any]], paths: Paths, tolerance: Decimal
) -> list[Difference]:
    """Elements that are not ignored, by their place among those; pointers say where they stand in their own array."""
    found: list[Difference] = []
    for (i, left), (_j, right) in zip(a, b, strict=False):
        found += _diff(f"{pointer}/{i}", left, right, paths.below(str(i)), tolerance)
    found += [_one_sided(f"{pointer}/{i}", value, None, in_primary=True) for i, value in a[len(b) :]]
    found += [_one_sided(f"{pointer}/{i}", None, value, in_primary=False) for i, value in b[len(a) :]]
    return found


def _one_sided(pointer: str, a: Any, b: Any, *, in_primary: bool) -> Difference:
    return Difference(pointer, Side.PRIMARY if in_primary else Side.REFERENCE, a, b)


@dataclass(frozen=True, slots=True)
class CallMatch:
    """How one call fared against the other side's calls.

    `primary` and `reference` are indices into the two lists; one of them is None for a call that only one side made.
    `kind` is `match` (equal exactly), `equivalent` (equal under the tool's policy), `arguments`, `name`, `extra` (only
    the primary made it) or `missing` (only the reference made it).
    """

    kind: str
    primary: int | None
    reference: int | None
    differences: tuple[Difference, ...] = field(default=())


def match_calls(
    primary: Sequence[ToolCall],
    reference: Sequence[ToolCall],
    policy: Callable[[str], ComparePolicy] = lambda _name: EXACT,
) -> list[CallMatch]:
    """Pairs two lists of calls as multisets: equal ones first, then equivalent ones, then what is left by name.

    `policy` gives the compare policy of a tool by its name. Every call of either side occurs in exactly one match;
    the result stands in the primary's order, calls that only the reference made last.
    """
    left, right = dict(enumerate(primary)), dict(enumerate(reference))
    found = _pair_equal("match", left, right, lambda call: (call.name, call.arguments))  # nearly always, unread
    if len(left) == len(right) == 1:  # most often: nothing to look for, so no forms are needed
        [(place, ours)], [(other, theirs)] = left.items(), right.items()
        if ours.name == theirs.name and not (ours.read.problem or theirs.read.problem):
            return sorted([*found, _pair(place, other, ours, theirs, policy(ours.name))], key=_in_order)
    found += _pair_equal("match", left, right, lambda call: _form(call, EXACT))
    if any(policy(call.name) != EXACT for call in left.values()):
        found += _pair_equal("equivalent", left, right, lambda call: _form(call, policy(call.name)))
    for i, call in list(left.items()):
        j = next((j for j, other in right.items() if other.name == call.name), None)
        if j is not None:
            found.append(CallMatch("arguments", i, j, _argument_diff(call, right.pop(j), policy(call.name))))
            del left[i]
    for i, j in zip(list(left), list(right), strict=False):
        del left[i], right[j]
        found.append(CallMatch("name", i, j))
    found += [CallMatch("extra", i, None) for i in left]
    found += [CallMatch("missing", None, j) for j in right]
    return sorted(found, key=_in_order)


def _in_order(match: CallMatch) -> tuple[bool, int, int]:
    return (match.primary is None, match.primary or 0, match.reference or 0)


def _pair(i: int, j: int, ours: ToolCall, theirs: ToolCall, policy: ComparePolicy) -> CallMatch:
    """Two calls of one tool, both read."""
    differences = diff(ours.read.value, theirs.read.value)
    if not differences:
        return CallMatch("match", i, j)
    if policy != EXACT:
        differences = diff(ours.read.value, theirs.read.value, policy)
    return CallMatch("arguments" if differences else "equivalent", i, j, differences)


def _form(call: ToolCall, policy: ComparePolicy) -> Hashable:
    if call.read.problem:  # what cannot be read is equal only to itself, letter by letter
        return (call.name, "text", call.arguments)
    return (call.name, canonical(call.read.value, policy))


def _pair_equal(
    kind: str, left: dict[int, ToolCall], right: dict[int, ToolCall], form: Callable[[ToolCall], Hashable]
) -> list[CallMatch]:
    waiting: dict[Hashable, list[int]] = {}
    for j, call in right.items():
        waiting.setdefault(form(call), []).append(j)
    found = []
    for i, call in list(left.items()):
        same = waiting.get(form(call))
        if same:
            j = same.pop(0)
            del left[i], right[j]
            found.append(CallMatch(kind, i, j))
    return found


def _argument_diff(a: ToolCall, b: ToolCall, policy: ComparePolicy) -> tuple[Difference, ...]:
    if a.read.problem or b.read.problem:
        return (Difference("", Side.BOTH, a.arguments, b.arguments),)
    return diff(a.read.value, b.read.value, policy)
