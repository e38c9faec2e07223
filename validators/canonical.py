"""When two JSON values count as the same: the compare policy, and the canonical form that is equal iff they are."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import lru_cache
from typing import Any


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
"""Everything counts."""

_MAX_GRID_DIGITS = 5_000


class HugeNumber(str):
    """A JSON number whose exponent is beyond what decimals hold: equal only to itself, as it was written."""

    __slots__ = ()


_Group = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Paths:
    """The policy's pointers, still to be matched below the current value; `heads` is what they begin with."""

    ignore: _Group = ()
    unordered: _Group = ()
    casefold: _Group = ()
    folding: bool = False
    heads: frozenset[str] = frozenset()
    known: dict[str, "Paths"] = field(default_factory=dict, compare=False)  # below each head

    @classmethod
    def make(cls, ignore: _Group, unordered: _Group, casefold: _Group, *, folding: bool) -> "Paths":
        """From pointers in segments; `folding` says that case does not count here already."""
        heads = frozenset(path[0] for group in (ignore, unordered, casefold) for path in group if path)
        return cls(ignore, unordered, casefold, folding or () in casefold, heads)

    @classmethod
    @lru_cache(256)
    def of(cls, policy: ComparePolicy) -> "Paths":
        """A policy's pointers, at the root."""
        groups = (policy.ignore, policy.unordered, policy.casefold)
        ignore, unordered, casefold = (tuple(_split(pointer) for pointer in group) for group in groups)
        return cls.make(ignore, unordered, casefold, folding=False)

    def below(self, key: str) -> "Paths":
        """Those that are left below a key or an index."""
        head = key if key in self.heads else "*"
        if head not in self.heads:  # nearly every key
            return _FOLDING if self.folding else _NOTHING
        if (below := self.known.get(head)) is None:
            groups = (self.ignore, self.unordered, self.casefold)
            steps = [tuple(path[1:] for path in group if path and path[0] in {head, "*"}) for group in groups]
            below = self.known[head] = self.make(*steps, folding=self.folding)
        return below

    @property
    def ignored(self) -> bool:
        """Whether the value here does not count."""
        return () in self.ignore

    @property
    def nothing(self) -> bool:
        """Whether everything counts from here on."""
        return not (self.ignore or self.unordered or self.casefold or self.folding)


_NOTHING, _FOLDING = Paths(), Paths(folding=True)


def _split(pointer: str) -> tuple[str, ...]:
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def canonical(value: Any, policy: ComparePolicy = EXACT) -> Hashable:
    """A hashable form of a JSON value; two values are equal under the policy iff their forms are equal.

    Numbers may be int, float or Decimal. An ignored member is absent from the form.
    """
    return form_of(value, Paths.of(policy), policy.tolerance)


def form_of(value: Any, paths: Paths, tolerance: Decimal) -> Hashable:
    """The canonical form of a value somewhere below the root."""
    return _form(value, paths, tolerance) if tolerance or not paths.nothing else _exact(value)


def _exact(value: Any) -> Hashable:
    """The form in which everything counts, at a third of the time for what a parser gives."""
    kind = type(value)
    if kind is str:
        return ("string", value)
    if kind is Decimal:
        return ("number", value)
    if kind is dict:
        return ("object", frozenset([(key, _exact(child)) for key, child in value.items()]))
    if kind is list:
        return ("array", tuple([_exact(child) for child in value]))
    return _form(value, _NOTHING, EXACT.tolerance)


def _form(value: Any, paths: Paths, tolerance: Decimal) -> Hashable:
    match value:
        case None | bool():
            return ("literal", str(value))
        case int() | float() | Decimal() | HugeNumber():
            return ("number", _number(value, tolerance))
        case str():
            return ("string", value.casefold() if paths.folding else value)
        case dict():
            members = [(key, child, paths.below(key)) for key, child in value.items()]
            return ("object", frozenset([(k, form_of(c, p, tolerance)) for k, c, p in members if not p.ignored]))
        case list() | tuple():
            steps = ((child, paths.below(str(i))) for i, child in enumerate(value))
            items = [form_of(child, below, tolerance) for child, below in steps if not below.ignored]
            if () in paths.unordered:
                return ("multiset", frozenset(Counter(items).items()))
            return ("array", tuple(items))
    raise TypeError(f"not a JSON value: {type(value).__name__}")


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
