"""Which keys some reader takes for the same, and which none does."""

import pytest

from shadow.wire.spelling import Vocabulary, folded, repeated

KNOWN = Vocabulary("tool_calls", "index", "function_call")


@pytest.mark.parametrize(
    "key", ["tool_calls", "Tool_Calls", "TOOL_CALLS", "toolCalls", "ToolCalls", "tool_call\u017f", "TOOL_CALL\u017f"]
)
def test_what_is_the_same_key(key: str) -> None:
    assert folded(key) == "toolcalls"


@pytest.mark.parametrize(
    ("key", "same"), [("\u212aey", "key"), ("f\u0131eld", "field"), ("F\u0130ELD", "field"), ("Stra\xdfe", "STRASSE")]
)
def test_letters_that_fold(key: str, same: str) -> None:
    assert folded(key) == folded(same)


@pytest.mark.parametrize("key", ["tool_calls ", "tool_calls\0", "tool-calls", "tool_call", "\uff54ool_calls", ""])
def test_what_is_another_key(key: str) -> None:
    assert folded(key) != "toolcalls"
    assert not KNOWN.respelled([key])


def test_a_known_key_in_another_spelling() -> None:
    assert not KNOWN.respelled(["tool_calls", "index", "content", "Content"])
    assert KNOWN.respelled(["tool_calls", "Index"])
    assert KNOWN.respelled({"functionCall": 1})
    assert not KNOWN.respelled([])


def test_two_keys_that_some_reader_takes_for_one() -> None:
    assert not repeated(["a", "b"])
    assert repeated(["a", "A"])
    assert repeated(["a", "a"])
    assert repeated(["item_id", "itemId"])
