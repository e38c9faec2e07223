import json
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from validators import ComparePolicy, Finding, ToolCall, Word, canonical, parse_arguments
from validators import repeats as module
from validators.policy import Policy, RepeatPolicy, ToolPolicy, merged
from validators.repeats import Repeats, RepeatStore, repeat_mark, whole_mark

DEFAULT: ToolPolicy[str] = ToolPolicy("*")
TOOLS = Policy(
    1,
    DEFAULT,
    (
        merged(DEFAULT, "pay", repeat=RepeatPolicy(600)),
        merged(
            DEFAULT,
            "run_command",
            repeat=RepeatPolicy(60, ("/device", "/command")),
            compare=ComparePolicy(casefold=("/command",), ignore=("/reason",)),
        ),
    ),
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Conversation:
    """One store, one clock, and one conversation after another."""

    def __init__(self, **bounds: Any) -> None:
        self.clock = Clock()
        self.store = Repeats(clock=self.clock, **bounds)

    def ask(
        self,
        *calls: ToolCall,
        history: Sequence[ToolCall] = (),
        request: bytes = b"now",
        scope: str = "one",
        tools: Policy[str] = TOOLS,
    ) -> list[tuple[int | None, str]]:
        found = self.store.findings(scope, request, history, calls, tools.of)
        assert all(finding.word is Word.REPEAT and finding.detail for finding in found)
        assert [finding.tool for finding in found] == [calls[finding.call or 0].name for finding in found]
        return [(finding.call, finding.reason) for finding in found]

    def release(self, *calls: ToolCall, request: bytes = b"before", scope: str = "one") -> None:
        self.store.released(scope, request, calls, TOOLS.of)

    def refuse(self, *calls: ToolCall, request: bytes = b"before", scope: str = "one") -> None:
        self.store.refused(scope, request, calls)


def call(name: str = "pay", **arguments: Any) -> ToolCall:
    return ToolCall(name, json.dumps(arguments))


PAY = call(to="x", amount=5)
PING = call("ping", host="a")


def test_it_is_a_store_as_others_will_be() -> None:
    store: RepeatStore = Repeats(clock=Clock())
    assert store.findings("s", b"", (), (PAY,), TOOLS.of) == []


# -- made before


def test_what_was_released_in_this_conversation_is_a_repeat_within_the_window() -> None:
    talk = Conversation()
    assert talk.ask(PAY) == []
    talk.release(PAY)
    assert talk.ask(PAY) == [(0, "repeated")]
    assert talk.ask(call(to="y", amount=5), PAY) == [(1, "repeated")]
    assert talk.ask(PAY, scope="two") == []
    talk.clock.now += 600
    assert talk.ask(PAY) == [(0, "repeated")]
    talk.clock.now += 0.1
    assert talk.ask(PAY) == []


def test_what_the_requests_own_history_tells_is_a_repeat() -> None:
    talk = Conversation()
    assert talk.ask(PAY, history=[PING, PAY, PING]) == [(0, "repeated")]
    assert talk.ask(PAY, history=[PING, call(to="x", amount=6)]) == []
    assert talk.ask(PAY, history=[ToolCall("pay", '{"amount":5.0,  "to":"\\u0078"}', "id")]) == [(0, "repeated")]


def test_a_history_whose_call_is_known_to_be_long_ago_is_none() -> None:
    talk = Conversation()
    talk.release(PAY)
    talk.clock.now += 601
    assert talk.ask(PAY, history=[PAY]) == []
    talk.release(PAY, request=b"later")
    assert talk.ask(PAY, history=[PAY, PAY]) == [(0, "repeated")]


def test_what_is_forgotten_is_told_by_the_history() -> None:
    talk = Conversation(forget=1000, most_conversations=1)
    talk.release(PAY)
    talk.clock.now += 1001
    assert talk.ask(PAY, history=[PAY]) == [(0, "repeated")]
    talk.release(PAY)
    talk.release(PAY, scope="two")
    assert talk.ask(PAY) == []
    assert talk.ask(PAY, history=[PAY]) == [(0, "repeated")]


def test_only_tools_that_say_so_are_checked() -> None:
    talk = Conversation()
    talk.release(PING)
    assert talk.store.conversations == 0
    assert talk.ask(PING, PING, history=[PING]) == []


def test_the_same_call_twice_in_one_answer_is_a_repeat() -> None:
    talk = Conversation()
    assert talk.ask(PAY, PING, PAY, PAY) == [(2, "repeated"), (3, "repeated")]
    assert talk.ask(PAY, call(to="x", amount=6)) == []
    talk.release(PAY)
    assert talk.ask(PAY, PAY) == [(0, "repeated"), (1, "repeated")]


def test_the_same_request_sent_again_is_no_repeat() -> None:
    talk = Conversation()
    talk.release(PAY, request=b"r1")
    assert talk.ask(PAY, request=b"r1") == []
    assert talk.ask(PAY, request=b"r2") == [(0, "repeated")]
    talk.release(PAY, request=b"r2")
    assert talk.ask(PAY, request=b"r2") == [(0, "repeated")]  # r1 made it, still
    assert talk.ask(PAY, request=b"r1") == [(0, "repeated")]  # r2 has made it since
    assert Conversation().ask(PAY, PAY, request=b"r1") == [(1, "repeated")]


def test_names_are_one_as_the_policy_has_them() -> None:
    talk = Conversation()
    talk.release(ToolCall("Pay", PAY.arguments))
    assert talk.ask(ToolCall("p-a-y", PAY.arguments)) == [(0, "repeated")]
    assert talk.ask(ToolCall("pay", PAY.arguments), history=[ToolCall("PAY", PAY.arguments)]) == [(0, "repeated")]
    symbols = Policy(1, merged(DEFAULT, "*", repeat=RepeatPolicy(60)))
    assert talk.ask(ToolCall("🔥"), ToolCall("💧"), tools=symbols) == []


def test_a_key_says_which_arguments_count_and_the_compare_policy_how() -> None:
    talk = Conversation()
    talk.release(call("run_command", device="a", command="show arp", reason="x", dry=True))
    assert talk.ask(call("run_command", command="SHOW arp", device="a", reason="y")) == [(0, "repeated")]
    assert talk.ask(call("run_command", command="show arp", device="A")) == []
    assert talk.ask(call("run_command", command="show arp")) == []


def test_a_call_with_nothing_at_the_keys_places_counts_with_all_it_has() -> None:
    talk = Conversation()
    talk.release(call("run_command", device=None, command=None), call("run_command", host="a"))
    assert talk.ask(call("run_command", host="b")) == []
    assert talk.ask(call("run_command", host="a")) == [(0, "repeated")]
    assert talk.ask(call("run_command")) == []
    assert talk.ask(call("run_command", device=None, command=None, other=1)) == [(0, "repeated")]


# -- refused before


def test_what_was_refused_and_comes_again_unchanged_is_a_repeat_for_every_tool() -> None:
    talk = Conversation()
    talk.refuse(PING)
    assert talk.ask(PING) == [(0, "refused_before")]
    assert talk.ask(ToolCall("ping", '{ "host" : "a" }', "other id")) == [(0, "refused_before")]
    assert talk.ask(call("ping", host="a", count=1), call("ping", host="A")) == []
    assert talk.ask(PING, scope="two") == []
    assert talk.ask(PING, request=b"before") == []  # sent again by the HTTP client
    assert talk.ask(PAY, PING, PING) == [(1, "refused_before"), (2, "refused_before")]


def test_a_refusal_is_forgotten_in_time() -> None:
    talk = Conversation(remember=100)
    talk.refuse(PING)
    talk.clock.now += 100
    assert talk.ask(PING) == [(0, "refused_before")]
    talk.clock.now += 1
    assert talk.ask(PING) == []


def test_a_refused_call_was_not_made() -> None:
    talk = Conversation()
    talk.refuse(PAY)
    assert talk.ask(PAY) == [(0, "refused_before")]
    assert talk.ask(PAY, history=[PAY]) == [(0, "refused_before"), (0, "repeated")]
    talk.clock.now += 3601
    assert talk.ask(PAY) == []


def test_nothing_is_kept_of_no_calls() -> None:
    talk = Conversation()
    talk.refuse()
    talk.release()
    assert talk.store.conversations == 0
    assert talk.ask() == []


# -- bounds


def test_conversations_are_bounded_and_the_longest_unused_goes_first() -> None:
    talk = Conversation(most_conversations=2)
    talk.release(PAY, scope="a")
    talk.release(PAY, scope="b")
    assert talk.ask(PAY, scope="a") == [(0, "repeated")]
    talk.refuse(PAY, scope="c")
    assert talk.store.conversations == 2
    assert [bool(talk.ask(PAY, scope=scope)) for scope in "abc"] == [True, False, True]


def test_calls_of_a_conversation_are_bounded_and_the_oldest_go_first() -> None:
    talk = Conversation(most_calls=3)
    payments = [call(to=i) for i in range(4)]
    for payment in payments:
        talk.release(payment)
    talk.refuse(*[call("ping", to=i) for i in range(4)])
    assert [bool(talk.ask(payment)) for payment in payments] == [False, True, True, True]
    assert [bool(talk.ask(call("ping", to=i))) for i in range(4)] == [False, True, True, True]
    talk.release(payments[1])
    talk.release(payments[0])
    assert [bool(talk.ask(payment)) for payment in payments] == [True, True, False, True]


def test_conversations_are_forgotten_in_time_but_not_before_their_window() -> None:
    talk = Conversation(forget=100)
    talk.release(PAY, scope="a")  # its window is 600
    talk.refuse(PING, scope="b")
    talk.refuse(PING, scope="c")
    talk.clock.now += 599
    assert talk.ask(PAY, scope="a") == [(0, "repeated")]
    talk.clock.now += 4000
    talk.release(PAY, scope="d")
    assert talk.store.conversations == 1


def test_a_conversation_is_kept_for_the_longest_time_that_anything_in_it_asks_for() -> None:
    talk = Conversation(forget=100, remember=300)
    talk.release(PAY)  # its window is 600
    talk.refuse(PING)
    talk.refuse(PING, scope="two")
    talk.clock.now += 299
    assert talk.ask(PING, scope="two") == [(0, "refused_before")]
    talk.clock.now += 300
    assert talk.ask(PAY, PING) == [(0, "repeated")]


def test_looking_at_a_conversation_keeps_it() -> None:
    talk = Conversation(forget=1000)
    talk.release(PAY)
    for _ in range(3):
        talk.clock.now += 900
        talk.ask(PING)
    assert talk.ask(PAY, history=[PAY]) == []  # still known to be long ago


@pytest.mark.parametrize("bounds", [{"most_conversations": 0}, {"most_calls": 0}])
def test_a_store_that_could_keep_nothing_is_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="remembers nothing"):
        Conversation(**bounds)


def test_a_clock_that_goes_back_forgets_nothing_too_early() -> None:
    talk = Conversation(remember=100)
    talk.release(PAY)
    talk.refuse(PING)
    talk.clock.now -= 5000
    assert talk.ask(PAY, PING) == [(0, "repeated"), (1, "refused_before")]
    talk.release(PAY, request=b"later")
    talk.clock.now += 5000
    assert talk.ask(PAY, PING) == [(0, "repeated"), (1, "refused_before")]


def test_of_a_long_history_the_newest_calls_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [call(to=i) for i in range(11)]
    assert (module._cost(others[0].arguments), module._cost(PAY.arguments)) == (8 + 2, 8 + 3)
    monkeypatch.setattr(module, "_MAX_HISTORY", 111)
    talk = Conversation()
    assert talk.ask(PAY, history=[PAY, *others[:10]]) == [(0, "repeated")]
    assert talk.ask(PAY, history=[PAY, *others]) == []
    assert talk.ask(PAY, history=[PAY, *others[:9], *[PING] * 100]) == [(0, "repeated")]  # others take no room
    commands = [call("run_command", device=i) for i in range(100)]
    assert talk.ask(PAY, history=[PAY, *others[:9], *commands]) == [(0, "repeated")]
    assert talk.ask(PAY, history=[PAY, call(to=[0] * 100)]) == []
    assert talk.ask(PAY, history=[PAY, call(to="x" * 110 * 1024)]) == []


def test_arguments_of_very_many_values_or_characters_are_compared_as_they_stand() -> None:
    talk = Conversation()
    beyond: list[Any] = ["x" * 70_000, [0] * 5000, [[]] * 5000, [{}] * 5000]
    for value in beyond:
        long = call(to=value)
        talk.release(long)
        assert talk.ask(long) == [(0, "repeated")]
        assert talk.ask(ToolCall("pay", long.arguments + " ")) == []
    within: list[Any] = ["x" * 60_000, 10**4000, [0] * 4000]
    for value in within:
        long = call(to=value)
        talk.release(long)
        assert talk.ask(ToolCall("pay", long.arguments + " ")) == [(0, "repeated")]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_text_has_no_more_values_than_are_counted(data: st.DataObject) -> None:
    def count(value: Any) -> int:
        below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + sum(count(child) for child in below)

    value = data.draw(OBJECTS)
    assert count(value) <= module._parts(json.dumps(value))


@pytest.mark.parametrize("text", ['{"to":', "[1]", '{"a":' * 200, "\ud800", "nonsense"])
def test_what_cannot_be_read_is_compared_by_its_text(text: str) -> None:
    talk = Conversation()
    talk.release(ToolCall("pay", text))
    talk.refuse(ToolCall("ping", text))
    again = [ToolCall("pay", text), ToolCall("ping", text)]
    assert talk.ask(*again) == [(0, "repeated"), (1, "refused_before")]
    assert talk.ask(*[ToolCall(one.name, one.arguments + " ") for one in again]) == []


# -- marks


def test_only_hashes_are_kept() -> None:
    talk = Conversation()
    secret = "correct horse battery"
    talk.release(call(to=secret), request=b"fingerprint")
    talk.refuse(call("ping", host=secret), request=b"fingerprint")
    kept = talk.store._conversations["one"]
    assert secret not in repr(kept)
    for notes in (kept.released, kept.refused):
        [(mark, [(by, _when)])] = notes.items()
        assert (len(mark), by) == (16, b"fingerprint")


def test_hashes_are_the_same_in_every_process_and_others_with_another_secret() -> None:
    assert whole_mark(call(a={"b": [1, True, None, "x"]}, c=1.50)).hex() == "cff432979b0126b4c21d7be9e7a6bbda"
    assert whole_mark(PAY, b"k1") != whole_mark(PAY, b"k2") != whole_mark(PAY)
    assert repeat_mark(PAY, TOOLS.of("pay"), b"k1") != repeat_mark(PAY, TOOLS.of("pay"))


NUMBERS = st.sampled_from(
    [0, -0.0, 1, 1.0, 10, 100, 1e2, -1, 0.1, 0.10, 1e-7, 123456789012345678901234567890, 123456789012345678901234567891]
)  # fmt: skip
VALUES = st.recursive(
    NUMBERS | st.none() | st.booleans() | st.sampled_from(["", "a", "A", "1", "1e0", "true", "ü", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", ""]), inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3)
POLICIES = st.sampled_from(
    [
        ComparePolicy(),
        ComparePolicy(ignore=("/a",), casefold=("/b",)),
        ComparePolicy(unordered=("/a", "/b/*"), tolerance=Decimal("0.5")),
        ComparePolicy(unordered=("", "/a"), casefold=("",)),
    ]
)


@settings(max_examples=150, deadline=None)
@given(OBJECTS, OBJECTS, POLICIES, st.randoms(use_true_random=False))
@example({"a": ["s", 1]}, {"a": ["s1"]}, ComparePolicy(), random.Random(0))
@example({"a": 10}, {"a": 100}, ComparePolicy(), random.Random(0))
@example({"a": 1}, {"a": -1}, ComparePolicy(), random.Random(0))
@example({"a": 1}, {"a": 1.0}, ComparePolicy(), random.Random(0))
def test_marks_are_equal_exactly_where_canonical_forms_are(
    a: dict[str, Any], b: dict[str, Any], compare: ComparePolicy, order: random.Random
) -> None:
    tool: ToolPolicy[str] = ToolPolicy("f", compare=compare, repeat=RepeatPolicy(1))
    texts = [json.dumps(a), json.dumps(b), json.dumps(dict(order.sample(list(a.items()), len(a))), indent=1)]
    forms = [canonical(parse_arguments(text).value, compare) for text in texts]
    marks = [repeat_mark(ToolCall("f", text), tool) for text in texts]
    assert (forms[0] == forms[1]) == (marks[0] == marks[1])
    assert marks[0] == marks[2]


@settings(max_examples=60, deadline=None)
@given(OBJECTS, OBJECTS)
def test_a_key_of_all_places_is_no_key(a: dict[str, Any], b: dict[str, Any]) -> None:
    keyed: ToolPolicy[str] = ToolPolicy("f", repeat=RepeatPolicy(1, ("/c", "/a", "/b")))
    plain: ToolPolicy[str] = ToolPolicy("f", repeat=RepeatPolicy(1))
    assert repeat_mark(call("f", **a), keyed) == repeat_mark(call("f", **a), plain) == whole_mark(call("f", **a))
    assert (repeat_mark(call("f", **a), keyed) == repeat_mark(call("f", **b), keyed)) == (
        whole_mark(call("f", **a)) == whole_mark(call("f", **b))
    )


PLACES: list[tuple[tuple[str, ...], dict[str, Any], dict[str, Any], bool]] = [
    (("/a/b",), {"a": {"b": 1, "c": 2}}, {"a": {"b": 1}, "d": 3}, True),
    (("/a/b",), {"a": {"b": 1}}, {"a": {"b": 2}}, False),
    (("/list/1",), {"list": [1, 2, 3]}, {"list": [0, 2]}, True),
    (("/list/1",), {"list": [1, 2]}, {"list": [2, 1]}, False),
    (("/list/01", "/x"), {"list": [1, 2], "x": 1}, {"list": [1, 3], "x": 1}, True),  # no index
    (("/list/-", "/x"), {"list": [1, 2], "x": 1}, {"list": [1, 3], "x": 1}, True),
    (("/list/9", "/x"), {"list": [1, 2], "x": 1}, {"list": [1, 3], "x": 1}, True),
    (("/list/99999999999999999999", "/x"), {"list": [1], "x": 1}, {"list": [2], "x": 1}, True),
    (("/list/\u0661", "/x"), {"list": [1, 2], "x": 1}, {"list": [1, 3], "x": 1}, True),
    (("/a", "/a/b"), {"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, False),
    (("/a/b", "/a"), {"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 2}, "d": 1}, True),
    (("/l", "/l/0"), {"l": [1, 2]}, {"l": [1, 3]}, False),
    (("/l/0/x", "/l/0"), {"l": [{"x": 1}, 2]}, {"l": [{"x": 1}, 3]}, True),
    (("/l/0", "/l/1"), {"l": [1, 2, 3]}, {"l": [1, 2, 4]}, True),
    (("/a~1b", "/~0"), {"a/b": 1, "~": 2, "c": 3}, {"a/b": 1, "~": 2}, True),
    (("/a~1b",), {"a/b": 1}, {"a/b": 2}, False),
    (("/~01",), {"~1": 1}, {"~1": 2}, False),
    (("/~01",), {"~1": 1, "/": 1}, {"~1": 1, "/": 2}, True),
    (("/l/0", "/l"), {"l": [1, 2]}, {"l": [1, 3]}, False),
    (("/a/b", "/x"), {"a": "text", "x": 1}, {"a": 7, "x": 1}, True),
    (("/a",), {"a": None}, {}, False),
    (("/",), {"": 1, "a": 1}, {"": 1, "a": 2}, True),
]


@pytest.mark.parametrize(("key", "a", "b", "same"), PLACES)
def test_places_of_a_key(key: tuple[str, ...], a: dict[str, Any], b: dict[str, Any], same: bool) -> None:  # noqa: FBT001
    tool: ToolPolicy[str] = ToolPolicy("f", repeat=RepeatPolicy(1, key))
    first, second = (repeat_mark(ToolCall("f", json.dumps(value)), tool) for value in (a, b))
    assert (first == second) is same


def test_long_numbers_stay_apart_and_huge_ones_are_borne() -> None:
    def mark(number: str) -> bytes:
        return whole_mark(ToolCall("f", f'{{"n": {number}}}'))

    assert mark("12345678901234567890123456789012345678") != mark("12345678901234567890123456789012345679")
    assert mark("1e999999") == mark("10e999998") == mark("1.0e999999") != mark("1e999998")
    assert mark("1e99999999999999999999") != mark("1e99999999999999999998")
    assert mark("0") == mark("-0.00") == mark("0e5")
    assert mark("100") == mark("1e2") == mark("1.00e+2") != mark("10")
    assert mark("0.010") == mark("1e-2")


def test_what_is_no_canonical_form_is_refused() -> None:
    with pytest.raises(TypeError, match="float"):
        module._encode(("float", 1.5))


SIMPLE = st.builds(call, st.sampled_from(["pay", "ping"]), to=st.sampled_from([1, 2]))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "release", "refuse", "wait"]),
        st.lists(SIMPLE, max_size=3),
        st.sampled_from([b"r1", b"r2"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from([0.0, 50.0, 601.0, 4000.0]),
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_it_finds_what_a_plain_list_of_all_that_happened_finds(steps: list[Any]) -> None:
    talk = Conversation(forget=1e9)
    log: list[tuple[str, ToolCall, bytes, str, float]] = []
    for what, calls, request, scope, seconds in steps:
        if what == "wait":
            talk.clock.now += seconds
        elif what == "ask":
            expected = []
            for i, one in enumerate(calls):
                ages: dict[str, list[float]] = {"release": [], "refuse": []}
                for kind, earlier, by, where, when in log:
                    if (earlier, where) == (one, scope) and by != request:
                        ages[kind].append(talk.clock.now - when)
                if any(age <= 3600 for age in ages["refuse"]):
                    expected.append((i, "refused_before"))
                if one.name == "pay" and (one in calls[:i] or any(age <= 600 for age in ages["release"])):
                    expected.append((i, "repeated"))
            assert talk.ask(*calls, request=request, scope=scope) == expected
        else:
            getattr(talk, what)(*calls, request=request, scope=scope)
            log += [(what, one, request, scope, talk.clock.now) for one in calls]


def test_a_finding_names_no_argument() -> None:
    talk = Conversation()
    talk.refuse(call(to="secret"))
    found = talk.store.findings("one", b"now", (), (call(to="secret"), call(to="secret")), TOOLS.of)
    assert found[0] == Finding(
        Word.REPEAT,
        "pay",
        0,
        "refused_before",
        detail="this call was refused earlier in this conversation and came again unchanged",
    )
    assert "secret" not in repr(found)
