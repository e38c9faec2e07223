"""A call's values as CEL takes them: measured, numbers converted, and what cannot be said in CEL set aside."""

from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

MAX_NODES = 3_000
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


@dataclass(slots=True)
class Part:
    """A value that rules may name: as CEL takes it, and how large it is; or why it cannot be taken.

    `nodes` are the JSON values in it, `width` the children of the widest of them, `text` its bytes of text.
    """

    value: Any = None
    nodes: int = 0
    width: int = 0
    text: int = 0
    problem: Problem | None = None


TOO_LARGE = Problem("too_large", "the call's arguments are too large for it")
NUMBER = Problem("number", "a number in the call's arguments is beyond 64 bits")
TEXT = Problem("text", "a text in the call's arguments is not valid Unicode")


class _ProblemError(Exception):
    def __init__(self, problem: Problem) -> None:
        self.problem = problem


def part_of(value: Any) -> Part:
    """A JSON value, converted and measured. Never raises."""
    part = Part()
    try:
        part.value = _convert(value, part)
    except _ProblemError as error:
        part.problem = error.problem
    return part


def _convert(value: Any, part: Part) -> Any:
    part.nodes += 1
    kind = type(value)
    if kind is str:
        part.text += text_size(value)
        return value
    if kind is Decimal:
        return number(value)
    if kind is int or kind is float:
        return number(Decimal(value))
    if value is None or kind is bool:
        return value
    if kind is dict or kind is list:
        if len(value) > MAX_NODES - part.nodes:
            raise _ProblemError(TOO_LARGE)
        part.width = max(part.width, len(value))
        if kind is list:
            return [_convert(child, part) for child in value]
        part.text += sum(map(text_size, value))
        return {key: _convert(child, part) for key, child in value.items()}
    raise _ProblemError(NUMBER)  # a HugeNumber


def text_size(value: str) -> int:
    """Bytes of a text as UTF-8; half of a surrogate pair, which JSON can write and UTF-8 cannot, is a problem."""
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise _ProblemError(TEXT) from None


def number(exact: Decimal) -> int | float:
    """By what it is worth: a whole number as an int, any other as the nearest double."""
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
