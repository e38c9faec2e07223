"""A call's values as CEL takes them: measured, numbers converted, and what cannot be said in CEL set aside."""

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

from validators.rulecost import MAX_NODES, Part, Problem

_WIDEST = 18  # the exponent of the last decimal digit that a 64 bit integer may have
_LEAST, _BEYOND = -(2**63), 2**63
_DIGITS = Context(prec=40, Emax=MAX_EMAX, Emin=MIN_EMIN)
_ONE = Decimal(1)


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
        return number(Decimal(repr(value)))
    if value is None or kind is bool:
        return value
    if kind is dict or kind is list:
        if len(value) > MAX_NODES - part.nodes:
            raise _ProblemError(TOO_LARGE)
        return _container(value, part)
    raise _ProblemError(NUMBER)  # a HugeNumber


def _container(value: dict[str, Any] | list[Any], part: Part) -> Any:
    before = part.nodes
    part.width = max(part.width, len(value))
    converted: Any
    if isinstance(value, list):
        converted = [_convert(child, part) for child in value]
    else:
        part.text += sum(map(text_size, value))
        converted = {key: _convert(child, part) for key, child in value.items()}
    if before > 1:  # not the whole
        part.element = max(part.element, part.nodes - before + 1)
    return converted


def text_size(value: str) -> int:
    """Bytes of a text as UTF-8; half of a surrogate pair, which JSON can write and UTF-8 cannot, is a problem."""
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise _ProblemError(TEXT) from None


def number(exact: Decimal) -> int | float:
    """By what it is worth: a whole number as an int, any other as the double that it is written for.

    Others than these would have to be rounded, by which `100.00000000000000000001` would be no more than 100.
    """
    if not exact.is_finite():
        raise _ProblemError(NUMBER)
    if not exact:
        return 0
    if exact.adjusted() > _WIDEST:
        raise _ProblemError(NUMBER)
    if not exact.same_quantum(_ONE):  # written with a fraction or an exponent
        given, exact = exact, _DIGITS.plus(exact)  # so that no conversion below takes longer for a million digits
        if exact != given:
            raise _ProblemError(NUMBER)
        if exact != exact.to_integral_value(context=_DIGITS):
            return _double(exact)
    whole = int(exact)
    if not _LEAST <= whole < _BEYOND:
        raise _ProblemError(NUMBER)
    return whole


def _double(exact: Decimal) -> float:
    """The double of a fraction that is what this double is, at the fraction's own number of digits."""
    double = float(exact)
    if not double or (exact != Decimal(repr(double)) and exact != _at_digits_of(exact, double)):
        raise _ProblemError(NUMBER)
    return double


def _at_digits_of(exact: Decimal, double: float) -> Decimal:
    """A double with as many digits as a decimal has: some servers write more of them than tell it from others."""
    return Context(prec=len(exact.as_tuple().digits), Emax=MAX_EMAX, Emin=MIN_EMIN).create_decimal_from_float(double)
