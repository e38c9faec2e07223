"""What a model wrote, as text: short, printable, bounded in size and time; and as JSON, which never fails. Pure."""

import json
from collections.abc import Iterable
from decimal import Decimal
from itertools import islice
from typing import Any

import orjson

from validators.calls import HugeNumber

MOST = 160
"""Characters of one text or value."""

_SHOWN = 8  # members of an array or object
_LEVELS = 3  # of arrays and objects in each other
_JOINERS = frozenset("\u200c\u200d")  # show nothing, and are part of how words and emoji are written


def short(text: str, most: int = MOST) -> str:
    """One line of at most `most` characters. What steers a terminal, and half of a surrogate pair, becomes U+FFFD."""
    text = text.lstrip()
    line = " ".join(text[: 4 * most].split())
    if len(line) > most or len(text) > 4 * most:
        line = line[: most - 1] + "…"
    return "".join(c if c.isprintable() or c in _JOINERS else "\ufffd" for c in line)


def dumps(value_: Any) -> bytes:
    """A value as JSON, whatever a model server wrote in it: half of a surrogate pair, an integer beyond 64 bits."""
    try:
        return orjson.dumps(value_)
    except orjson.JSONEncodeError:
        return json.dumps(value_, separators=(",", ":")).encode()


def value(value_: Any, most: int = MOST) -> str:
    """A JSON value as JSON, cut where it is long: numbers as they were written, texts in quotes."""
    return short(_value(value_, _LEVELS), most)


def _value(value_: Any, levels: int) -> str:
    match value_:
        case None | bool():
            return json.dumps(value_)
        case str() if not isinstance(value_, HugeNumber):
            return json.dumps(value_[: 4 * MOST], ensure_ascii=False)
        case int():
            return str(Decimal(value_))  # str(int) has a limit
        case dict():
            members = (f"{_value(k, 0)}: {_value(v, levels - 1)}" for k, v in islice(value_.items(), _SHOWN))
            return f"{{{_several(members, len(value_), levels)}}}"
        case list() | tuple():
            items = (_value(v, levels - 1) for v in islice(value_, _SHOWN))
            return f"[{_several(items, len(value_), levels)}]"
    return str(value_)


def _several(shown: Iterable[str], count: int, levels: int) -> str:
    if count and not levels:
        return "…"
    return ", ".join(shown) + (", …" if count > _SHOWN else "")
