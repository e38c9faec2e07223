"""A record as the JSON that is stored, and back. Pure."""

import json
from typing import Any

import orjson

_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def read(text: bytes) -> dict[str, Any] | None:
    """A record, None where it cannot be read. Earlier versions could write NaN and Infinity: they are null."""
    try:
        try:
            record = orjson.loads(text)
        except orjson.JSONDecodeError:
            record = json.loads(text, parse_constant=lambda _name: None)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def dumps(record: dict[str, Any]) -> bytes:
    """JSON that `read` takes: NaN and Infinity are null, half a character is `?`, a body nested too deeply is left out.

    The body is the record's `request`.
    """
    try:
        return orjson.dumps(record, option=_JSON)
    except (TypeError, RecursionError):  # half a character or an integer beyond 64 bits, in a client's own JSON
        pass
    try:
        return _slowly(record)
    except RecursionError:  # nested beyond what a reader would take
        return _slowly({key: value for key, value in record.items() if key != "request"})


def _slowly(record: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(record, default=str, ensure_ascii=False, allow_nan=False)
    except ValueError:  # NaN or Infinity, which are null as the fast writer has them
        finite = json.loads(json.dumps(record, default=str), parse_constant=lambda _name: None)
        text = json.dumps(finite, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace")
