"""Tool calls as values: their canonical form, how two of them differ, and how two lists of them pair up.

Arguments are equal when they are equal *as JSON values*: key order, white space and the way a number is written never
matter, the types do (`1` is `1.0`, but neither is `true` nor `"1"`). Numbers are read as decimals, so that two long
account numbers that share a float stay two numbers. Call ids are random and never compared.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation, localcontext
from enum import StrEnum
from typing import Any, NoReturn

# What is left of a literal, a number or an escape where a text was cut inside it.
_CUT_OFF = re.compile(r"t|tr|tru|f|fa|fal|fals|n|nu|nul|-|\.|[eE][+-]?|\\?(?:u[0-9a-fA-F]{0,3})?|[0-9a-fA-F]{0,3}")

MAX_DEPTH = 128
"""Arguments nested deeper than this many arrays or objects are not read: `too_deep`."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as an engine wrote it: `arguments` is its raw text, unparsed; `id` is random and never compared."""

    name: str
    arguments: str = ""
    id: str | None = None


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


@dataclass(frozen=True, slots=True)
class ComparePolicy:
    """What of a tool's arguments does not count. Paths are JSON pointers; a segment `*` stands for any key or index.

    `ignore` removes what a path names; `unordered` makes the array at a path a multiset; `casefold` compares the
    strings at or below a path without regard to case; `tolerance` compares numbers after rounding them to multiples
    of itself (a grid, so that equality stays transitive; 0 compares exactly).
    """

    ignore: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    casefold: tuple[str, ...] = ()
    tolerance: Decimal = Decimal(0)

    def __post_init__(self) -> None:
        """Refuses what is no JSON pointer, with ValueError: read as one, it would let every difference pass."""
        for pointer in (*self.ignore, *self.unordered, *self.casefold):
            if pointer and not pointer.startswith("/"):
                raise ValueError(f"{pointer!r} is no JSON pointer: it must begin with /")
        if "" in self.ignore:
            raise ValueError("ignoring the root would compare nothing")
        if not (self.tolerance >= 0 and self.tolerance.is_finite()):
            raise ValueError("a tolerance is a number from 0 on")


EXACT = ComparePolicy()


_MAX_GRID_DIGITS = 5_000


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


class HugeNumber(str):
    """A JSON number whose exponent is beyond what decimals hold: equal only to itself, as it was written."""

    __slots__ = ()


class _TooDeepError(ValueError):
    pass


def _number_of(text: str) -> Decimal | HugeNumber:
    try:
        return Decimal(text)
    except InvalidOperation:
        return HugeNumber(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def parse_arguments(text: str) -> Arguments:
    """Reads a call's argument text. `""`, `null` and `{}` are one no-argument call. Never raises."""
    if not text.strip():
        return Arguments({})
    duplicate = False

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal duplicate
        result = dict(items)
        duplicate = duplicate or len(result) < len(items)
        return result

    try:
        value = json.loads(
            text, parse_int=Decimal, parse_float=_number_of, parse_constant=_refuse_constant, object_pairs_hook=pairs
        )
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
    if isinstance(value, dict | list):
        if not left:
            raise _TooDeepError
        for child in value.values() if isinstance(value, dict) else value:
            _check_depth(child, left - 1)


@dataclass(frozen=True, slots=True)
class _Paths:
    """The policy's pointers, still to be matched below the current value."""

    ignore: tuple[tuple[str, ...], ...]
    unordered: tuple[tuple[str, ...], ...]
    casefold: tuple[tuple[str, ...], ...]
    folding: bool = False

    @classmethod
    def of(cls, policy: ComparePolicy) -> "_Paths":
        ignore, unordered, casefold = (
            tuple(_split(pointer) for pointer in group) for group in (policy.ignore, policy.unordered, policy.casefold)
        )
        return cls(ignore, unordered, casefold, folding=() in casefold)

    def below(self, key: str) -> "_Paths":
        def step(group: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
            return tuple(path[1:] for path in group if path and path[0] in {key, "*"})

        fold = step(self.casefold)
        return _Paths(step(self.ignore), step(self.unordered), fold, self.folding or () in fold)

    @property
    def ignored(self) -> bool:
        return () in self.ignore


def _split(pointer: str) -> tuple[str, ...]:
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def canonical(value: Any, policy: ComparePolicy = EXACT) -> Hashable:
    """A hashable form of a JSON value; two values are equal under the policy iff their forms are equal.

    Numbers may be int, float or Decimal. An ignored member is absent from the form.
    """
    return _canonical(value, _Paths.of(policy), policy.tolerance)


def _canonical(value: Any, paths: _Paths, tolerance: Decimal) -> Hashable:
    match value:
        case None | bool():
            return ("literal", str(value))
        case int() | float() | Decimal() | HugeNumber():
            return ("number", _number(value, tolerance))
        case str():
            return ("string", value.casefold() if paths.folding else value)
        case dict():
            members = ((key, child, paths.below(key)) for key, child in value.items())
            return ("object", frozenset((k, _canonical(c, p, tolerance)) for k, c, p in members if not p.ignored))
        case list() | tuple():
            steps = ((child, paths.below(str(i))) for i, child in enumerate(value))
            items = [_canonical(child, below, tolerance) for child, below in steps if not below.ignored]
            if () in paths.unordered:
                return ("multiset", frozenset(Counter(items).items()))
            return ("array", tuple(items))
    msg = f"not a JSON value: {type(value).__name__}"
    raise TypeError(msg)


def _number(value: float | Decimal | HugeNumber, tolerance: Decimal) -> Decimal | str:
    if isinstance(value, HugeNumber):
        return str(value)
    number = value if isinstance(value, Decimal) else Decimal(repr(value))
    if not tolerance or not number.is_finite():
        return number
    digits = max(28, number.adjusted() - tolerance.adjusted() + len(tolerance.as_tuple().digits) + 2)
    if digits > _MAX_GRID_DIGITS:  # so far from the grid that no two such numbers fall together by rounding
        return number
    with localcontext(Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)):
        return (number / tolerance).to_integral_value()


def diff(primary: Any, reference: Any, policy: ComparePolicy = EXACT) -> tuple[Difference, ...]:
    """Where two JSON values differ under the policy, as JSON pointers in order of appearance; empty iff equal."""
    return tuple(_diff("", primary, reference, _Paths.of(policy), policy.tolerance))


def _diff(pointer: str, a: Any, b: Any, paths: _Paths, tolerance: Decimal) -> list[Difference]:
    """Goes down as far as both sides have the same shape, and compares what no longer opens: linear in size."""
    if paths.ignored:
        return []
    if isinstance(a, dict) and isinstance(b, dict):
        return _diff_objects(pointer, a, b, paths, tolerance)
    if isinstance(a, list) and isinstance(b, list) and () not in paths.unordered:
        kept = [[(i, v) for i, v in enumerate(side) if not paths.below(str(i)).ignored] for side in (a, b)]
        return _diff_arrays(pointer, kept[0], kept[1], paths, tolerance)
    same = _canonical(a, paths, tolerance) == _canonical(b, paths, tolerance)
    return [] if same else [Difference(pointer, Side.BOTH, a, b)]


def _diff_objects(
    pointer: str, a: dict[str, Any], b: dict[str, Any], paths: _Paths, tolerance: Decimal
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
    pointer: str, a: list[tuple[int, Any]], b: list[tuple[int, Any]], paths: _Paths, tolerance: Decimal
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
    found = _pair_equal("match", left, right, lambda call: _form(call, EXACT))
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
    return sorted(found, key=lambda m: (m.primary is None, m.primary or 0, m.reference or 0))


def _form(call: ToolCall, policy: ComparePolicy) -> Hashable:
    arguments = parse_arguments(call.arguments)
    if arguments.problem:  # what cannot be read is equal only to itself, letter by letter
        return (call.name, "text", call.arguments)
    return (call.name, canonical(arguments.value, policy))


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
    left, right = parse_arguments(a.arguments), parse_arguments(b.arguments)
    if left.problem or right.problem:
        return (Difference("", Side.BOTH, a.arguments, b.arguments),)
    return diff(left.value, right.value, policy)
