import json
import string
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.plain import MOST, dumps, short, value
from validators import parse_arguments


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("send", "send"),
        ("  two\r\n\tlines\u2028here ", "two lines here"),
        ("\x1b[2Jclear\x00\x07", "\ufffd[2Jclear\ufffd\ufffd"),
        ("\u202eevil\u2066", "\ufffdevil\ufffd"),
        ("half \ud83d", "half \ufffd"),
        ("ÄÖ \u65e5\u672c \U0001f680", "ÄÖ \u65e5\u672c \U0001f680"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
        ("a" * MOST, "a" * MOST),
        ("a" * (MOST + 1), "a" * (MOST - 1) + "…"),
        ("a" + " " * 10_000 + "b", "a…"),
        (" " * 10_000 + "b", "b"),
    ],
)
def test_a_text_is_one_printable_line(text: str, shown: str) -> None:
    assert short(text) == shown


@given(st.text(st.characters(), max_size=1000), st.integers(1, 300))
def test_no_text_is_too_long_or_steers_a_terminal(text: str, most: int) -> None:
    shown = short(text, most)
    assert len(shown) <= most
    assert not set(shown) & set(map(chr, [*range(32), 127, *range(0x80, 0xA0), 0x202E]))
    shown.encode()


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": "1"}', '{"a": "1"}'),
        ('{"a": [1.50, 1e2, -0]}', '{"a": [1.50, 1E+2, -0]}'),
        ('{"a": 123456789012345678901234567890}', '{"a": 123456789012345678901234567890}'),
        ('{"a": 1e999999999999999999999}', '{"a": 1e999999999999999999999}'),
        ('{"a": [true, false, null, ""]}', '{"a": [true, false, null, ""]}'),
        ('{"a": "line\\nend \\"q\\" \\u00e4 \\u001b"}', '{"a": "line\\nend \\"q\\" ä \\u001b"}'),
        ('{"a": "\\ud800"}', '{"a": "\ufffd"}'),
        ('{"a": {"b": {"c": {"d": 1}}}}', '{"a": {"b": {"c": {…}}}}'),
        ('{"a": {"b": {"c": {}}}}', '{"a": {"b": {"c": {}}}}'),
        ('{"a": [1,2,3,4,5,6,7,8,9]}', '{"a": [1, 2, 3, 4, 5, 6, 7, 8, …]}'),
        ("{}", "{}"),
    ],
)
def test_a_value_is_shown_as_the_json_that_it_was(arguments: str, shown: str) -> None:
    assert value(parse_arguments(arguments).value) == shown


@pytest.mark.parametrize(
    "big",
    [
        "x" * 5_000_000,
        Decimal("9" * 1_000_000),
        Decimal("1E+999999999"),
        10**10_000,
        dict.fromkeys(map(str, range(300_000))),
        {"k" * 1_000_000: 1},
        [["x" * 100_000] * 100] * 100,
        float("inf"),
    ],
    ids=["text", "digits", "exponent", "int", "members", "key", "nested", "inf"],
)
@pytest.mark.timeout(10)
def test_a_large_value_is_cut(big: Any) -> None:
    assert 1 <= len(value(big)) <= MOST


def test_a_tuple_is_an_array() -> None:
    assert value((1, "a")) == '[1, "a"]'


ODD = ["\ud800", "\udfff\ud800", 2**70, -(2**70), string.printable, "\x00", {"a": ["\ud800", 2**70]}]


@pytest.mark.parametrize("odd", ODD)
def test_json_is_written_of_whatever_can_be_read(odd: Any) -> None:
    raw = dumps({"a": odd})
    assert json.loads(raw) == {"a": odd}
    assert b"\n" not in raw
