"""A call in the one form that receipts are about: kept for years, so it depends on nothing else here. Pure.

The canonical call is JSON: `{"arguments":…,"name":…}`, keys sorted by code points, no white space, ASCII with escapes,
each number as its digits (no zero at either end) with an exponent: 1.50 is `15e-1`, 0 is `0e0`. Arguments that cannot
be read in one way only (no JSON, repeated keys), or are longer than `MOST_READ`, stand as the text that they came as.
"""

import hashlib
import hmac
import json
from decimal import Decimal
from typing import Any

from validators import ToolCall
from validators.calls import HugeNumber

MOST_READ = 65_536
"""Characters of arguments that are read."""


def canonical_call(call: ToolCall) -> bytes:
    """The canonical call; equal for two calls of one name whose arguments are the same values."""
    arguments = call.read if len(call.arguments) <= MOST_READ else None
    if arguments is None or arguments.problem is not None or arguments.duplicate_keys:
        told = json.dumps(call.arguments)
    else:
        told = _written(arguments.value)
    return f'{{"arguments":{told},"name":{json.dumps(call.name)}}}'.encode("ascii")


def mark(call: ToolCall, key: bytes) -> str:
    """The HMAC-SHA256 of the canonical call, in hexadecimal."""
    return hmac.new(key, canonical_call(call), hashlib.sha256).hexdigest()


def _written(value: Any) -> str:
    match value:
        case HugeNumber():  # an exponent beyond what decimals hold: as it was written
            return str(value)
        case Decimal():
            return _number(value)
        case dict():
            return "{" + ",".join([f"{json.dumps(key)}:{_written(value[key])}" for key in sorted(value)]) + "}"
        case list():
            return "[" + ",".join([_written(item) for item in value]) + "]"
    return json.dumps(value)


def _number(number: Decimal) -> str:
    if not number:
        return "0e0"
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # JSON has neither infinities nor NaN
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    return f"{'-' * sign}{kept}e{exponent + len(text) - len(kept)}"
