"""The canonical call: what is the same has the same hash, for as long as receipts are kept."""

import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.audit import canonical
from proxy.audit.canonical import canonical_call, mark
from validators import ToolCall

FORMS = {
    '{"city": "Oslo", "n": 1}': b'{"arguments":{"city":"Oslo","n":1e0},"name":"f"}',
    '{"n":1.0,"city":"\\u004fslo"}': b'{"arguments":{"city":"Oslo","n":1e0},"name":"f"}',
    "": b'{"arguments":{},"name":"f"}',
    "null": b'{"arguments":{},"name":"f"}',
    '{"a": [true, false, null, "", {}]}': b'{"arguments":{"a":[true,false,null,"",{}]},"name":"f"}',
    '{"a": [1.50, -0.0, 100, 1e2, 0.001, -12e-3]}': b'{"arguments":{"a":[15e-1,0e0,1e2,1e2,1e-3,-12e-3]},"name":"f"}',
    '{"a": 12345678901234567890123456789012345678901}': (
        b'{"arguments":{"a":12345678901234567890123456789012345678901e0},"name":"f"}'
    ),
    '{"a": 1e9999999999999999999}': b'{"arguments":{"a":1e9999999999999999999},"name":"f"}',
    '{"ü": "ü", "a": "\\ud800"}': b'{"arguments":{"a":"\\ud800","\\u00fc":"\\u00fc"},"name":"f"}',
    '{"a": 1, "a": 2}': b'{"arguments":"{\\"a\\": 1, \\"a\\": 2}","name":"f"}',
    '{"a": ': b'{"arguments":"{\\"a\\": ","name":"f"}',
    "[1]": b'{"arguments":"[1]","name":"f"}',
}


@pytest.mark.parametrize("arguments", FORMS)
def test_the_form_is_what_it_was(arguments: str) -> None:
    """Receipts rest on these bytes: another form would be another hash for the same call."""
    assert canonical_call(ToolCall("f", arguments, "id")) == FORMS[arguments]


def test_the_hash_is_keyed() -> None:
    call = ToolCall("f", '{"a": 1}')
    assert mark(call, b"key") == hmac.new(b"key", canonical_call(call), hashlib.sha256).hexdigest()
    assert mark(call, b"key") != mark(call, b"other")


def test_long_arguments_count_by_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "MOST_READ", 10)
    assert canonical_call(ToolCall("f", '{"a": 1000}')) == b'{"arguments":"{\\"a\\": 1000}","name":"f"}'


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@given(OBJECTS)
def test_the_form_is_json_with_the_same_values(value: dict[str, Any]) -> None:
    text = canonical_call(ToolCall("f", json.dumps(value)))
    assert json.loads(text, parse_float=float) == {
        "name": "f",
        "arguments": json.loads(json.dumps(value), parse_int=float),
    }


@given(OBJECTS, OBJECTS)
def test_two_calls_are_the_same_where_their_values_are(a: dict[str, Any], b: dict[str, Any]) -> None:
    one, other = (canonical_call(ToolCall("f", json.dumps(value))) for value in (a, b))
    assert (one == other) == (typed(a) == typed(b))
    turned = json.dumps(dict(reversed(a.items())), indent=1)
    assert canonical_call(ToolCall("f", turned)) == one


def typed(value: Any) -> Any:
    """A value in which `true` is not 1."""
    if isinstance(value, dict):
        return {key: typed(child) for key, child in value.items()}
    return [typed(child) for child in value] if isinstance(value, list) else (isinstance(value, bool), value)
