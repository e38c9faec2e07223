"""A call's values as CEL takes them: measured, numbers converted, and what cannot be said in CEL set aside."""

from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

from validators.calls import HugeNumber
from validators.rulescan import Size

MAX_NODES = 5_000
"""JSON values that are looked at; there is no rule that may cost as much as more of them do."""
_WIDEST = 18  # the exponent of the last decimal digit that a 64 bit integer may have
_LEAST, _BEYOND = -(2**63), 2**63
_DIGITS = Context(prec=40, Emax=MAX_EMAX, Emin=MIN_EMIN)
_ONE = Decimal(1)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a rule cannot be evaluated on a call: a stable word, and plain words that hold no values."""

    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Part:
    """One argument, or another root that rules may name: its value for CEL and its size, or why it has none."""

    value: Any = None
    size: Size = Size()
    problem: Problem | None = None


TOO_LARGE = Problem("too_large", "the call's arguments are too large for it")
NUMBER = Problem("number", "a number in the call's arguments is beyond 64 bits")
TEXT = Problem("text", "a text in the call's arguments is not valid Unicode")


class _ProblemError(Exception):
    def __init__(self, problem: Problem) -> None:
        self.problem = problem


def part_of(value: Any) -> Part:
    """A JSON value with its size; never raises."""
    walk = _Walk()
    try:
        converted = walk.convert(value)
    except _ProblemError as error:
        return Part(size=Size(walk.nodes), problem=error.problem)
    return Part(converted, Size(walk.nodes, walk.width, walk.text))


class _Walk:
    def __init__(self) -> None:
        self.nodes = self.width = self.text = 0

    def convert(self, value: Any) -> Any:
        self.nodes += 1
        if isinstance(value, HugeNumber):
            raise _ProblemError(NUMBER)
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Decimal | int | float):
            return number(value)
        if len(value) > MAX_NODES - self.nodes:
            raise _ProblemError(TOO_LARGE)
        self.width = max(self.width, len(value))
        if isinstance(value, dict):
            return {self._text(key): self.convert(child) for key, child in value.items()}
        return [self.convert(child) for child in value]

    def _text(self, value: str) -> str:
        if value.isascii():
            self.text += len(value)
        else:
            try:
                self.text += len(value.encode())
            except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write and UTF-8 cannot
                raise _ProblemError(TEXT) from None
        return value


def number(value: Decimal | float) -> int | float:
    """By what it is worth: a whole number as an int, any other as the nearest double."""
    exact = value if isinstance(value, Decimal) else Decimal(value)
    if not exact.is_finite():
        raise _ProblemError(NUMBER)
    if not exact:
        return 0
    if exact.adjusted() > _WIDEST:
        raise _ProblemError(NUMBER)
    if not exact.same_quantum(_ONE):  # written with a fraction or an exponent
        exact = _DIGITS.plus(exact)  # so that no conversion below takes longer for a million digits
        if exact != exact.to_integral_value(context=_DIGITS):
            return _double(exact)
    whole = int(exact)
    if not _LEAST <= whole < _BEYOND:
        raise _ProblemError(NUMBER)
    return whole


def _double(exact: Decimal) -> float:
    double = float(exact)
    if not double:
        raise _ProblemError(NUMBER)
    return double
