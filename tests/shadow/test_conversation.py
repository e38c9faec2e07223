from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow.conversation import conversation_key, in_sample
from shadow.exchange import Dialect, Request

SYSTEM = {"role": "system", "content": "You work for Ostrava Networks."}
ASK = {"role": "user", "content": "Is edge-1 up?"}
CALL = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "ping", "arguments": "{}"}}]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "up"}
AGAIN = {"role": "user", "content": "And edge-2?"}


def key(*messages: Any, header: str | None = None, **body: Any) -> str:
    return conversation_key(Request(Dialect.CHAT, {"messages": list(messages)} | body), header)


def prompt_key(prompt: Any, header: str | None = None) -> str:
    return conversation_key(Request(Dialect.COMPLETIONS, {"prompt": prompt}), header)


def test_a_growing_conversation_keeps_its_key() -> None:
    turns = [SYSTEM, ASK, CALL, RESULT, AGAIN]
    keys = {key(*turns[:length]) for length in range(2, 6)}
    assert len(keys) == 1
    assert key(*turns, temperature=1, model="other", tools=[{}]) in keys


def test_other_beginnings_are_other_conversations() -> None:
    keys = {
        key(SYSTEM, ASK),
        key(ASK),
        key(SYSTEM, AGAIN),
        key(SYSTEM | {"content": "x"}, ASK),
        key(SYSTEM),
        key(),
        key(ASK | {"name": "ann"}),
    }
    assert len(keys) == 7


def test_the_header_wins_over_what_was_said() -> None:
    assert key(SYSTEM, ASK, header="s-1") == key(AGAIN, header="s-1") == prompt_key("x", header="s-1")
    assert key(SYSTEM, ASK, header="s-1") != key(SYSTEM, ASK, header="s-2")
    assert key(SYSTEM, ASK, header="") == key(SYSTEM, ASK)
    assert key(header="[]") != key()


def test_key_order_within_messages_does_not_matter() -> None:
    assert key({"content": "hi", "role": "user"}) == key({"role": "user", "content": "hi"})


def test_a_growing_prompt_keeps_its_key_beyond_its_first_kilobyte() -> None:
    start = "word " * 300
    assert prompt_key(start) == prompt_key(start + "and more")
    assert prompt_key(start) != prompt_key("other " + start)
    ids = list(range(2000))
    assert prompt_key(ids) == prompt_key([*ids, 7])
    assert prompt_key(ids) != prompt_key([7, *ids])
    assert prompt_key("short") != prompt_key("shorter")


def test_of_an_opening_without_end_a_thousand_messages_count() -> None:
    opening = [SYSTEM | {"content": str(i)} for i in range(1000)]
    assert key(*opening) == key(*opening, SYSTEM) == key(*opening, ASK)
    assert key(*opening[:-1]) != key(*opening) != key(*opening[:-1], ASK)


def test_the_dialects_are_kept_apart() -> None:
    assert key() != prompt_key(None)


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "x",
        7,
        {"role": "user"},
        [None, 1, "x"],
        [{"role": ["user"]}],
        [{"role": "user", "content": 2**70}],
        [{"role": "user", "content": "\ud800"}],
    ],
)
def test_odd_messages_have_a_key_too(messages: Any) -> None:
    request = Request(Dialect.CHAT, {"messages": messages})
    first = conversation_key(request, None)
    assert first == conversation_key(request, None)
    assert len(first) == 32
    assert set(first) <= set("0123456789abcdef")


def test_deeply_nested_messages_have_a_key_too() -> None:
    content: Any = []
    for _ in range(1015):
        content = [content]
    assert len(key({"role": "user", "content": content})) == 32


def test_a_key_holds_no_content() -> None:
    assert "Ostrava" not in key(SYSTEM, ASK)
    assert "s-1" not in key(header="s-1")
    assert prompt_key("deadbeef") != "deadbeef"


# -- the sample


def test_all_or_nothing() -> None:
    keys = [prompt_key(str(i)) for i in range(200)]
    assert not any(in_sample(one, 0.0) for one in keys)
    assert all(in_sample(one, 1.0) for one in keys)
    assert in_sample("f" * 32, 1.0)
    assert not in_sample("0" * 32, 0.0)


def test_by_hand() -> None:
    half = "8" + "0" * 31
    assert not in_sample(half, 0.5)
    assert in_sample(half, 0.5000001)
    assert in_sample("7" + "f" * 31, 0.5)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_samples_are_sticky_and_nested(header: str, a: float, b: float) -> None:
    one = key(ASK, header=header)
    assert in_sample(one, a) == in_sample(key(CALL, ASK, header=header), a) or not header
    low, high = sorted((a, b))
    assert not in_sample(one, low) or in_sample(one, high)


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_samples_are_roughly_of_their_rate(rate: float) -> None:
    count = 4_000
    share = sum(in_sample(key({"role": "user", "content": f"number {i}"}), rate) for i in range(count)) / count
    assert abs(share - rate) < 4 * (rate * (1 - rate) / count) ** 0.5


def test_keys_fill_their_range_evenly() -> None:
    tenths = [0] * 10
    for i in range(4_000):
        tenths[int(int(prompt_key(f"prompt {i}")[:13], 16) / 16**13 * 10)] += 1
    assert all(320 < count < 480 for count in tenths)
