"""From a choice's calls to what becomes of them: what needs no reference, who is asked, and what is remembered."""

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from shadow.exchange import Choice, Dialect, Request
from shadow.judge import Case, Rulebook
from validators import ComparePolicy, Finding, ToolCall, Word
from validators.decision import Opinion, Verdict
from validators.policy import Action, Policy, RepeatPolicy, ToolPolicy, merged
from validators.repeats import Repeats
from validators.rules import Rule, Sets, compile_rule
from validators.schema import Schemas

BASE: ToolPolicy[Rule] = ToolPolicy("*")
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "n": {"type": "integer"}},
    "required": ["city"],
}
FUNCTIONS = [
    {"name": "send", "parameters": CITY},
    {"name": "ping"},
    {"name": "run_command", "parameters": {"type": "object"}},
]
SETS = Sets({"cities": ["Oslo"]})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def rule(cel: str, identity: str = "r", message: str = "") -> Rule:
    return compile_rule(identity, cel, message, sets=["cities"])


def tool(match: str = "*", **terms: Any) -> ToolPolicy[Rule]:
    return merged(BASE, match, **terms)


def rulebook(*tools: ToolPolicy[Rule], agree: int = 0, clock: Clock | None = None, **terms: Any) -> Rulebook:
    policy = Policy(agree, merged(BASE, "*", **terms), tools)
    return Rulebook(policy, "v1", ("x-tenant",), Schemas(), SETS, Repeats(clock=clock or Clock()))


def request(messages: Any = None, functions: Any = FUNCTIONS, **fields: Any) -> Request:
    tools = [{"type": "function", "function": function} for function in functions]
    return Request(Dialect.CHAT, {"model": "qwen", "messages": messages, "tools": tools} | fields)


def case_of(
    book: Rulebook,
    asked: Request | None = None,
    body: bytes = b"1",
    scope: str = "me:1",
    headers: Mapping[str, str] | None = None,
) -> Case:
    return Case(book, asked or request(), body, scope, headers)


def call(name: str = "ping", arguments: str = "{}") -> ToolCall:
    return ToolCall(name, arguments)


SEND_OSLO, SEND_PARIS = call("send", '{"city": "Oslo"}'), call("send", '{"city": "Paris"}')


def told(findings: Sequence[Finding]) -> list[tuple[str, str, int | None, str]]:
    return [(finding.word.value, finding.tool, finding.call, finding.reason) for finding in findings]


# -- what needs no reference


def test_what_is_wrong_with_each_call_by_itself() -> None:
    calls = [
        call(),
        call("ping", '{"a":'),
        call("ping", "{'a': 1}"),
        call("ping", "[1]"),
        call("ping", '{"a":' * 200 + "1" + "}" * 200),
        call("reboot"),
        call("reboot", "{"),
        call("Ping"),
        call(""),
        SEND_PARIS,
        SEND_OSLO,
    ]
    assert told(case_of(rulebook()).own(calls)) == [
        ("invalid", "ping", 1, "unclosed"),
        ("invalid", "ping", 2, "not_json"),
        ("invalid", "ping", 3, "not_an_object"),
        ("invalid", "ping", 4, "too_deep"),
        ("invalid", "reboot", 5, "unknown_tool"),
        ("invalid", "reboot", 6, "unknown_tool"),
        ("invalid", "Ping", 7, "unknown_tool"),
        ("invalid", "", 8, "unknown_tool"),
        ("invalid", "send", 9, "schema"),
    ]


@pytest.mark.parametrize("arguments", ["", "null", "{}", ' {"a": 1} '])
def test_readable_calls_of_known_tools_are_not_invalid(arguments: str) -> None:
    assert case_of(rulebook()).own([call("ping", arguments)]) == []


def test_a_schema_finding_says_where_and_which_keyword() -> None:
    (finding,) = case_of(rulebook()).own([SEND_PARIS])
    assert (finding.where, finding.rule) == ("/city", "enum")
    assert "Oslo" in finding.detail


def test_a_schema_that_is_none_leaves_the_call_unverified() -> None:
    asked = request(functions=[{"name": "ping", "parameters": {"type": 7}}])
    assert told(case_of(rulebook(), asked).own([call()])) == [("unverified", "ping", 0, "schema_unusable")]


@pytest.mark.parametrize("tools", [None, {}, "ping", [], [None, 7, {"function": "ping"}, {"function": {"name": 7}}]])
def test_a_request_without_tools_knows_none(tools: Any) -> None:
    asked = Request(Dialect.CHAT, {"tools": tools})
    assert told(case_of(rulebook(), asked).own([call()])) == [("invalid", "ping", 0, "unknown_tool")]


def test_rules_see_arguments_tool_model_user_and_named_headers() -> None:
    rules = [
        rule('args.city != "Oslo"', "city"),
        rule('tool != "send"', "tool"),
        rule('request.model != "qwen"', "model"),
        rule('request.user != "ann"', "user"),
        rule('request.headers["x-tenant"] != "a"', "header"),
        rule('in_set(args.city, "cities")', "set"),
    ]
    case = case_of(rulebook(tool("send", rules=rules)), request(user="ann"), headers={"x-tenant": "a"})
    findings = case.own([SEND_OSLO])
    assert told(findings) == [("violation", "send", 0, "rule")] * 5
    assert [finding.rule for finding in findings] == ["city", "tool", "model", "user", "header"]


@pytest.mark.parametrize("user", [None, 7, ["ann"], {"name": "ann"}])
def test_a_user_that_is_no_text_is_none(user: Any) -> None:
    book = rulebook(rules=[rule("request.user == null")])
    assert case_of(book, request(user=user)).own([call()]) == []


def test_a_header_that_is_not_there_makes_its_rule_unevaluable() -> None:
    book = rulebook(rules=[rule('request.headers["x-tenant"] == "a"', message="only tenant a")])
    assert told(case_of(book).own([call()])) == [("violation", "ping", 0, "rule_error")]
    (finding,) = case_of(book, headers={"x-tenant": "b"}).own([call()])
    assert (finding.reason, finding.detail) == ("rule", "only tenant a")


def test_the_default_s_rules_come_first_and_each_call_has_its_own() -> None:
    book = rulebook(tool("send"), rules=[rule("false", "always")])
    findings = case_of(replace(book, policy=Policy(0, tool(rules=[rule("false", "d")])))).own([call(), SEND_OSLO])
    assert [(finding.tool, finding.call, finding.rule) for finding in findings] == [("ping", 0, "d"), ("send", 1, "d")]
    own = merged(tool(rules=[rule("false", "d")]), "send", rules=[rule("false", "own")])
    both = case_of(replace(book, policy=Policy(0, tool(), (own,)))).own([SEND_OSLO])
    assert [finding.rule for finding in both] == ["d", "own"]


UNREADABLE = {
    "not offered": call("Send", '{"city": "Oslo"}'),
    "not JSON": call("send", "city=Oslo"),
    "unclosed": call("send", '{"city": "Oslo"'),
    "no object": call("send", '["Oslo"]'),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_rules_hold_for_invalid_calls_where_those_are_let_through(name: str) -> None:
    never = rule('args.city != "Oslo"', "never")
    book = rulebook(tool("send", rules=[never], on={"invalid": "release"}))
    words = [finding.word for finding in case_of(book).own([UNREADABLE[name]])]
    assert words == [Word.INVALID, Word.VIOLATION]
    refused = rulebook(tool("send", rules=[never]))  # stopped for that alone: counted once
    assert [finding.word for finding in case_of(refused).own([UNREADABLE[name]])] == [Word.INVALID]


def test_a_call_twice_in_one_answer_is_a_repeat_where_its_tool_says_so() -> None:
    book = rulebook(tool("send", repeat=RepeatPolicy(600, ("/city",))))
    again = call("send", '{"n": 2, "city": "Oslo"}')
    assert told(case_of(book).own([SEND_OSLO, call(), call(), again])) == [("repeat", "send", 3, "repeated")]


def test_findings_of_the_calls_stand_before_repeats_and_in_the_order_of_the_calls() -> None:
    book = rulebook(tool("send", repeat=RepeatPolicy(600), rules=[rule("false")]))
    assert told(case_of(book).own([SEND_PARIS, SEND_PARIS])) == [
        ("invalid", "send", 0, "schema"),
        ("violation", "send", 0, "rule"),
        ("invalid", "send", 1, "schema"),
        ("violation", "send", 1, "rule"),
        ("repeat", "send", 1, "repeated"),
    ]


def test_two_hundred_parallel_calls_are_each_judged() -> None:
    calls = [call("send", json.dumps({"city": "Oslo" if i % 2 else "Paris", "n": i})) for i in range(200)]
    found = case_of(rulebook()).own(calls)
    assert [finding.call for finding in found] == list(range(0, 200, 2))


@pytest.mark.parametrize(
    "arguments",
    ['{"n": 1e999999999999999999999, "city": "Oslo"}', '{"n": 123456789012345678901234567890, "city": "Oslo"}',
     '{"city": "\\ud800"}', '{"city": "Oslo", "city": "Rome"}', '{"city": "\\u0000\\u001b[2J"}'],
)  # fmt: skip
def test_odd_values_are_judged_like_others(arguments: str) -> None:
    book = rulebook(rules=[rule("args.n < 10")], repeat=RepeatPolicy(600))
    for finding in case_of(book).own([call("send", arguments)]):
        assert finding.word in {Word.INVALID, Word.VIOLATION}


# -- calls that stand in plain text


def test_calls_in_text_are_told_under_the_names_that_were_offered() -> None:
    content = 'Sure. <tool_call>{"name": "ping", "arguments": {}}</tool_call> {"name": "reboot"}'
    case = case_of(rulebook())
    assert told(case.leaks(Choice(0, content=content))) == [("invalid", "ping", None, "leaked_markup")]
    assert case.leaks(Choice(0, content="ping")) == []
    assert case_of(rulebook(), Request(Dialect.CHAT, {})).leaks(Choice(0, content=content)) == []


# -- who needs a person


def test_an_expression_says_who_needs_a_person() -> None:
    book = rulebook(tool("send", approve=rule('args.city == "Oslo"')), tool("run*", approve=rule("true")))
    calls = [SEND_OSLO, SEND_PARIS, call(), call("run_command"), call("Run-Command")]
    assert case_of(book).wants_person(calls) == [True, False, False, True, True]
    assert case_of(book).wants_person([]) == []


@pytest.mark.parametrize(
    ("cel", "arguments"),
    [
        ('args.command.startsWith("conf")', "{}"),
        ('args.command.startsWith("conf")', '{"command": 7}'),
        ('args.command.startsWith("conf")', '{"command":'),
        ('args.command.startsWith("conf")', '["conf"]'),
        ("args.n < 10", '{"n": 123456789012345678901234567890}'),
        ("args.n < 10", '{"n": 1e999999999999999999999}'),
        ('args.s == "a"', '{"s": "\\ud800"}'),
        ('request.headers["x-tenant"] == "a"', "{}"),
        ("args.l.all(x, x > 0)", json.dumps({"l": [1] * 50_000})),
    ],
)
def test_what_cannot_be_evaluated_needs_a_person(cel: str, arguments: str) -> None:
    book = rulebook(approve=rule(cel))
    assert case_of(book).wants_person([call("run_command", arguments)]) == [True]


def test_an_expression_that_is_false_needs_none() -> None:
    book = rulebook(approve=rule('args.command.startsWith("conf")'))
    assert case_of(book).wants_person([call("run_command", '{"command": "show"}')]) == [False]


# -- what becomes of them


def decided(case: Case, *calls: ToolCall, opinions: Sequence[Opinion] = ()) -> Verdict:
    verdict = case.decide(calls, case.own(calls), opinions, expired=True)
    assert verdict is not None
    return verdict


def other(*calls: ToolCall, shadow: str = "s0", tool: str = "send") -> Opinion:
    return Opinion(shadow, twin=False, findings=(Finding(Word.MISMATCH, tool, 0, "arguments"),), calls=calls)


def test_nothing_against_a_call_and_nobody_to_ask_releases_it() -> None:
    verdict = decided(case_of(rulebook()), call())
    assert (verdict.word, verdict.action, verdict.why) == (Word.UNVERIFIED, Action.RELEASE, "not_asked")


def test_a_verdict_is_waited_for_while_a_reference_may_still_speak() -> None:
    case = case_of(rulebook(agree=1))
    silent = Opinion("s0", twin=False, findings=None)
    assert case.decide([call()], [], [silent], expired=False) is None
    late = case.decide([call()], [], [silent], expired=True)
    assert late is not None
    assert (late.word, late.action, late.why) == (Word.UNVERIFIED, Action.RELEASE, "timeout")


def test_what_is_invalid_is_refused_without_waiting() -> None:
    case = case_of(rulebook(agree=1))
    verdict = case.decide(
        [SEND_PARIS], case.own([SEND_PARIS]), [Opinion("s0", twin=False, findings=None)], expired=False
    )
    assert verdict is not None
    assert (verdict.word, verdict.action, verdict.why, verdict.remember) == (
        Word.INVALID, Action.REFUSE, "schema", (0,),
    )  # fmt: skip


def test_a_person_is_asked_about_what_is_right() -> None:
    case = case_of(rulebook(tool("send", approve=rule('args.city == "Oslo"')), agree=1))
    match = Opinion("s0", twin=False, findings=(Finding(Word.MATCH, "send", 0, reference=0),))
    assert decided(case, SEND_OSLO, opinions=[match]).action is Action.HOLD
    assert decided(case, call("send", '{"city": "Rome"}'), opinions=[match]).action is Action.RELEASE


SUBSTITUTE: dict[str, Any] = {"on": {"mismatch": "substitute"}}


def test_the_reference_s_call_must_pass_every_check_itself() -> None:
    rome = call("send", '{"city": "Rome"}')
    book = rulebook(agree=1, **SUBSTITUTE)
    verdict = decided(case_of(book), SEND_OSLO, opinions=[other(rome)])
    assert (verdict.action, verdict.substitute) == (Action.SUBSTITUTE, (rome,))
    for barred in (
        SEND_PARIS,  # its schema
        call("reboot"),  # not offered
        call("send", "{"),  # not whole
    ):
        verdict = decided(case_of(book), SEND_OSLO, opinions=[other(barred)])
        assert (verdict.action, verdict.why, verdict.substitute) == (Action.REFUSE, "substitute_refused", None)


@pytest.mark.parametrize(
    "terms",
    [
        {"rules": [rule('args.city != "Rome"')]},
        {"approve": rule('args.city == "Rome"')},
        {"approve": rule('args.n == 1 && args.city != ""')},
    ],
    ids=["rule", "approval", "approval that cannot be evaluated"],
)
def test_rules_and_approvals_bar_a_substitute(terms: dict[str, Any]) -> None:
    book = rulebook(agree=1, **(SUBSTITUTE | terms))
    oslo = call("send", '{"city": "Oslo", "n": 2}')
    verdict = decided(case_of(book), oslo, opinions=[other(call("send", '{"city": "Rome"}'))])
    assert (verdict.action, verdict.why) == (Action.REFUSE, "substitute_refused")


def test_a_repeat_bars_a_substitute() -> None:
    book = rulebook(agree=1, repeat=RepeatPolicy(600), **SUBSTITUTE)
    rome = call("send", '{"city": "Rome"}')
    before = case_of(book, body=b"0")
    before.settle([rome], decided(before, rome), released=True)
    verdict = decided(case_of(book), SEND_OSLO, opinions=[other(rome)])
    assert (verdict.action, verdict.why) == (Action.REFUSE, "substitute_refused")


def test_references_have_as_long_as_for_the_tool_with_most() -> None:
    """The calls of a choice wait for each other: a cheap one must not let a dear one out unverified."""
    case = case_of(rulebook(tool("send", verify_timeout=2.0), tool("ping", verify_timeout=5.0)))
    assert case.verify_timeout([call(), SEND_OSLO]) == 5.0
    assert case.verify_timeout([SEND_OSLO, call("run_command"), call()]) == 10.0
    assert case.verify_timeout([SEND_OSLO]) == 2.0
    assert case.verify_timeout([call("run_command")]) == 10.0
    assert case.verify_timeout([]) == 0.0


def test_each_tool_has_its_compare_policy() -> None:
    ignoring = ComparePolicy(ignore=("/why",))
    book = rulebook(tool("send", compare=ignoring))
    assert book.compare("S-E-N-D") is ignoring
    assert book.compare("ping") == ComparePolicy()


# -- what is remembered


REPEATING: dict[str, Any] = {"repeat": RepeatPolicy(600)}


def repeats(case: Case, *calls: ToolCall) -> list[tuple[int | None, str]]:
    return [(f.call, f.reason) for f in case.own(calls) if f.word is Word.REPEAT]


def test_what_went_out_is_remembered_for_the_other_requests_of_its_conversation() -> None:
    clock = Clock()
    book = rulebook(clock=clock, **REPEATING)
    first = case_of(book)
    first.settle([SEND_OSLO], decided(first, SEND_OSLO), released=True)
    assert repeats(case_of(book), SEND_OSLO) == []  # the same bytes: the request was sent again
    assert repeats(case_of(book, body=b"2"), SEND_OSLO) == [(0, "repeated")]
    assert repeats(case_of(book, body=b"2", scope="me:2"), SEND_OSLO) == []
    assert repeats(case_of(book, body=b"2", scope="you:1"), SEND_OSLO) == []
    clock.now = 601
    assert repeats(case_of(book, body=b"2"), SEND_OSLO) == []


def test_what_is_held_back_was_not_made() -> None:
    book = rulebook(**REPEATING)
    first = case_of(book)
    first.settle([SEND_OSLO], decided(first, SEND_OSLO), released=False)  # a person was asked in vain, say
    assert repeats(case_of(book, body=b"2"), SEND_OSLO) == []


def test_of_refused_calls_only_those_are_remembered_that_were_refused_themselves() -> None:
    book = rulebook()
    first = case_of(book)
    verdict = decided(first, SEND_OSLO, SEND_PARIS)
    assert (verdict.action, verdict.remember) == (Action.REFUSE, (1,))
    first.settle([SEND_OSLO, SEND_PARIS], verdict, released=False)
    assert repeats(case_of(book, body=b"2"), SEND_OSLO, SEND_PARIS) == [(1, "refused_before")]


def test_a_substitute_is_what_went_out() -> None:
    book = rulebook(agree=1, **(REPEATING | SUBSTITUTE))
    rome, first = call("send", '{"city": "Rome"}'), case_of(book)
    verdict = decided(first, SEND_OSLO, opinions=[other(rome)])
    first.settle([SEND_OSLO], verdict, released=False)
    assert repeats(case_of(book, body=b"2"), SEND_OSLO, rome) == [(1, "repeated")]


def test_where_nobody_acts_the_calls_themselves_went_out() -> None:
    """In observe mode a client has the primary's calls, whatever the policy would have made of them."""
    book = rulebook(agree=1, **(REPEATING | SUBSTITUTE))
    rome, first = call("send", '{"city": "Rome"}'), case_of(book)
    verdict = decided(first, SEND_OSLO, opinions=[other(rome)])
    assert verdict.action is Action.SUBSTITUTE
    first.settle([SEND_OSLO], verdict, released=True)
    assert repeats(case_of(book, body=b"2"), SEND_OSLO, rome) == [(0, "repeated")]
    refused = case_of(book, body=b"3")
    refused.settle([SEND_PARIS], decided(refused, SEND_PARIS), released=True)
    assert repeats(case_of(book, body=b"4"), SEND_PARIS) == [(0, "repeated")]


def test_who_keeps_approvals_is_told_what_went_out_and_nothing_else() -> None:
    told: list[tuple[str, list[ToolCall]]] = []

    def went_out(scope: str, calls: Sequence[ToolCall]) -> None:
        told.append((scope, list(calls)))

    book = rulebook(agree=1, **SUBSTITUTE)
    case = Case(book, request(), b"1", "me:1", None, went_out=went_out)
    rome = call("send", '{"city": "Rome"}')
    substitutes = decided(case, SEND_OSLO, opinions=[other(rome)])
    assert substitutes.action is Action.SUBSTITUTE
    case.settle([SEND_OSLO], substitutes, released=True)
    case.settle([SEND_OSLO], substitutes, released=False)
    case.settle([SEND_OSLO], replace(substitutes, substitute=None), released=False)
    case.settle([SEND_OSLO], replace(substitutes, substitute=None), released=False, denied=True)
    case.settle([], Verdict(Word.MATCH, Action.RELEASE), released=True)
    assert told == [("me:1", [SEND_OSLO]), ("me:1", [rome])]


def test_a_person_s_no_holds_for_the_calls_that_were_asked_about() -> None:
    book = rulebook(tool("run*", approve=rule("true")))
    first, risky = case_of(book), call("run_command", '{"command": "conf t"}')
    verdict = decided(first, SEND_OSLO, risky)
    assert verdict.action is Action.HOLD
    first.settle([SEND_OSLO, risky], verdict, released=False, denied=True)
    again = case_of(book, body=b"2")
    assert repeats(again, SEND_OSLO, risky) == [(1, "refused_before")]
    assert decided(again, risky).action is Action.REFUSE  # nobody is asked a second time
    assert decided(again, call("run_command", '{"command": "show"}')).action is Action.HOLD


def test_a_person_s_no_to_what_was_found_holds_for_the_calls_it_was_found_of() -> None:
    book = rulebook(agree=1, on={"mismatch": "hold"})
    first = case_of(book)
    verdict = decided(first, SEND_OSLO, call(), opinions=[other(tool="send")])
    assert verdict.action is Action.HOLD
    first.settle([SEND_OSLO, call()], verdict, released=False, denied=True)
    assert repeats(case_of(book, body=b"2"), SEND_OSLO, call()) == [(0, "refused_before")]


def test_a_person_s_no_to_what_the_primary_did_not_call_holds_for_all_it_called() -> None:
    book = rulebook(agree=1, on={"mismatch": "hold"})
    first = case_of(book)
    missing = Opinion("s0", twin=False, findings=(
        Finding(Word.MATCH, "ping", 0), Finding(Word.MISMATCH, "send", None, "missing"),
    ))  # fmt: skip
    verdict = decided(first, call(), opinions=[missing])
    assert verdict.action is Action.HOLD
    first.settle([call()], verdict, released=False, denied=True)
    assert repeats(case_of(book, body=b"2"), call()) == [(0, "refused_before")]


def test_a_person_s_yes_is_a_call_like_others() -> None:
    book = rulebook(approve=rule("true"), **REPEATING)
    first = case_of(book)
    first.settle([SEND_OSLO], decided(first, SEND_OSLO), released=True)
    assert repeats(case_of(book, body=b"2"), SEND_OSLO) == [(0, "repeated")]


def approved_case(book: Rulebook, *approved: ToolCall) -> Case:
    """Another request of the conversation, in which a person has approved these calls, and they have not gone out."""

    def is_approved(scope: str, calls: Sequence[ToolCall]) -> bool:
        return (scope, tuple(calls)) == ("me:1", approved)

    return Case(book, request(), b"2", "me:1", None, is_approved)


def test_a_person_s_yes_passes_as_no_repeat_and_is_asked_for_so_that_it_is_used_up() -> None:
    book = rulebook(**REPEATING)
    first = case_of(book)
    first.settle([SEND_OSLO], decided(first, SEND_OSLO), released=True)
    again = approved_case(book, SEND_OSLO)
    verdict = decided(again, SEND_OSLO)
    assert (verdict.action, verdict.findings) == (Action.HOLD, ())
    assert decided(again, SEND_OSLO, call()).action is Action.REFUSE  # other calls
    assert decided(case_of(book, body=b"3"), SEND_OSLO).action is Action.REFUSE  # and nobody else's


def test_a_person_s_yes_counts_for_what_was_refused_before() -> None:
    book = rulebook(approve=rule("true"))
    first = case_of(book)
    first.settle([SEND_OSLO], decided(first, SEND_OSLO), released=False, denied=True)
    assert decided(case_of(book, body=b"2"), SEND_OSLO).action is Action.REFUSE
    assert decided(approved_case(book, SEND_OSLO), SEND_OSLO).action is Action.HOLD


def test_a_person_s_yes_counts_for_nothing_but_repeats() -> None:
    book = rulebook(**REPEATING)
    first = case_of(book)
    first.settle([SEND_PARIS], decided(first, SEND_PARIS), released=True)
    verdict = decided(approved_case(book, SEND_PARIS), SEND_PARIS)
    assert (verdict.word, verdict.action) == (Word.INVALID, Action.REFUSE)


def test_a_repeat_that_a_person_was_asked_about_stays_one() -> None:
    """It is held for the same reason as before: only so is the answer its own."""
    book = rulebook(on={"repeat": "hold"}, **REPEATING)
    first = case_of(book)
    first.settle([SEND_OSLO], decided(first, SEND_OSLO), released=True)
    verdict = decided(approved_case(book, SEND_OSLO), SEND_OSLO)
    assert (verdict.word, verdict.action, verdict.why) == (Word.REPEAT, Action.HOLD, "repeated")


def test_a_conversation_s_key_says_nothing_of_whose_it_is() -> None:
    assert case_of(rulebook(), scope="0123abcd:feed").conversation == "feed"


def test_what_is_remembered_outlives_a_new_version_of_the_policy() -> None:
    book = rulebook(**REPEATING)
    first = case_of(book)
    first.settle([SEND_OSLO], decided(first, SEND_OSLO), released=True)
    stricter = replace(book, policy=Policy(0, tool(rules=[rule("false")], **REPEATING)), version="v2")
    assert repeats(case_of(stricter, body=b"2"), SEND_OSLO) == [(0, "repeated")]
    assert first.rulebook.version == "v1"


def test_several_threads_may_judge_at_once() -> None:
    book = replace(rulebook(**REPEATING), repeats=Repeats(clock=Clock(), most_conversations=3))
    faults: list[str] = []
    before = sys.getswitchinterval()

    def judge(step: int) -> None:
        for i in range(2_000):
            one = case_of(book, body=b"%d" % (i % 50), scope=str(i * step % 5))
            try:
                one.own([SEND_OSLO])
                one.settle([SEND_OSLO], Verdict(Word.MATCH, Action.RELEASE), released=True)
            except (LookupError, RuntimeError) as error:
                faults.append(repr(error))

    threads = [threading.Thread(target=judge, args=(step,)) for step in (1, 2, 3)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert faults == []


# -- what the request's own messages tell


def assistant(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def history(messages: Any) -> list[tuple[str, str]]:
    case = case_of(rulebook(), request(messages))
    assert case.history is case.history
    return [(told_call.name, told_call.arguments) for told_call in case.history]


def test_calls_of_the_messages_in_their_order() -> None:
    messages = [
        {"role": "user", "content": "go"},
        assistant(
            {"id": "a", "type": "function", "function": {"name": "send", "arguments": '{"city": "Oslo"}'}},
            {"id": "b", "type": "function", "function": {"name": "ping", "arguments": ""}},
        ),
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
        assistant({"function": {"name": "ping"}}),
    ]
    assert history(messages) == [("send", '{"city": "Oslo"}'), ("ping", ""), ("ping", "")]


def test_a_call_of_the_api_s_older_kind_is_one_of_the_history() -> None:
    messages = [
        assistant({"function": {"name": "ping", "arguments": "{}"}}),
        {"role": "assistant", "content": None, "function_call": {"name": "send", "arguments": '{"city": "Oslo"}'}},
        {"role": "function", "name": "send", "content": "ok"},
    ]
    assert history(messages) == [("ping", "{}"), ("send", '{"city": "Oslo"}')]
    assert repeats(case_of(rulebook(**REPEATING), request(messages)), SEND_OSLO) == [(0, "repeated")]


def test_arguments_that_come_as_a_value_are_that_value() -> None:
    value = {"city": "Oslo", "n": [1.5, None, True, {"ä": "\n"}]}
    ((name, text),) = history([assistant({"function": {"name": "send", "arguments": value}})])
    assert (name, json.loads(text)) == ("send", value)
    book = rulebook(**REPEATING)
    asked = request([assistant({"function": {"name": "send", "arguments": {"city": "Oslo"}}})])
    assert repeats(case_of(book, asked), SEND_OSLO, call()) == [(0, "repeated")]


@pytest.mark.parametrize(
    "messages",
    [
        None,
        7,
        "messages",
        {},
        [None, 7, "x", []],
        [{"tool_calls": None}, {"tool_calls": 7}, {"tool_calls": {"function": {"name": "ping"}}}],
        [{"function_call": None}, {"function_call": 7}, {"function_call": "ping"}, {"function_call": []}],
        [{"function_call": {}}, {"function_call": {"name": None}}, {"function_call": {"name": ["ping"]}}],
        [assistant(None, 7, "x", [], {}, {"function": None}, {"function": "ping"}, {"function": []})],
        [assistant({"function": {}}, {"function": {"name": None}}, {"function": {"name": 7}})],
        [assistant({"function": {"name": ["ping"], "arguments": "{}"}})],
    ],
)
def test_messages_of_odd_shapes_tell_no_calls(messages: Any) -> None:
    assert history(messages) == []


def test_arguments_too_deep_to_be_written_down_are_left_out() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    assert history([assistant({"function": {"name": "send", "arguments": deep}}, {"function": {"name": "ping"}})]) == [
        ("ping", "")
    ]


def test_what_the_messages_tell_counts_for_tools_that_say_so() -> None:
    asked = request([assistant({"function": {"name": "send", "arguments": '{"city":"Oslo"}'}})])
    book = rulebook(tool("send", repeat=RepeatPolicy(600)))
    assert repeats(case_of(book, asked), SEND_OSLO, call("send", '{"city": "Rome"}')) == [(0, "repeated")]
    assert repeats(case_of(rulebook(), asked), SEND_OSLO) == []


def test_arguments_that_name_a_key_twice_are_read_in_two_ways_and_so_invalid() -> None:
    request = Request(Dialect.CHAT, {"model": "m", "messages": [], "tools": [{"function": {"name": "f"}}]})
    case = Case(Rulebook(Policy(0, ToolPolicy("*"))), request, b"", "s")
    found = case.own([ToolCall("f", '{"path": "/tmp", "path": "/"}')])
    assert [(finding.word, finding.reason) for finding in found] == [(Word.INVALID, "duplicate_keys")]
