import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from validators import Arguments, Finding, Word, parse_arguments
from validators.rules import BUDGET, MAX_SOURCE, RequestFacts, RuleError, Sets, check, compile_rule, holds

FACTS = RequestFacts("qwen3", "ada", {"x-team": "core"})
SETS = Sets({"interfaces": ["eth0", "eth1"], "empty": []})


def found(cel: str, arguments: str | Arguments, message: str = "", sets: Sets = SETS) -> list[Finding]:
    rule = compile_rule("r1", cel, message, sets=("interfaces", "empty"))
    given_ = arguments if isinstance(arguments, Arguments) else parse_arguments(arguments)
    return check([rule], "run", 0, given_, FACTS, sets)


def says(cel: str, arguments: str | Arguments) -> bool | None:
    """What a rule says of a call, and that `check` and `holds` say the same."""
    findings = found(cel, arguments)
    given_ = arguments if isinstance(arguments, Arguments) else parse_arguments(arguments)
    answer = holds(compile_rule("r1", cel, sets=("interfaces", "empty")), "run", given_, FACTS, SETS)
    assert [finding.reason for finding in findings] == {True: [], False: ["rule"], None: ["rule_error"]}[answer]
    return answer


def problem(cel: str, arguments: str | Arguments) -> str:
    """Why a rule cannot be evaluated on a call: the word in brackets."""
    (finding,) = found(cel, arguments)
    assert finding.reason == "rule_error"
    return finding.detail.partition("(")[2].partition(")")[0]


def refused(cel: str, sets: tuple[str, ...] = ("interfaces",)) -> RuleError:
    with pytest.raises(RuleError) as caught:
        compile_rule("r1", cel, sets=sets)
    return caught.value


# What a rule sees


@pytest.mark.parametrize(
    ("cel", "arguments", "expected"),
    [
        ('in_set(args.interface, "interfaces")', '{"interface": "eth0"}', True),
        ('in_set(args.interface, "interfaces")', '{"interface": "eth9"}', False),
        ('args.interface.in_set("interfaces")', '{"interface": "eth1"}', True),
        ('in_set(args.interface, "empty")', '{"interface": "eth1"}', False),
        ('args.command.startsWith("conf")', '{"command": "conf t"}', True),
        ("!has(args.force) || !args.force", "{}", True),
        ("!has(args.force) || !args.force", '{"force": true}', False),
        ('"force" in args', '{"force": null}', True),
        ('"force" in args', "{}", False),
        ('args["a b"] == "c"', '{"a b": "c"}', True),
        ("args.ids.all(i, i > 0) && args.ids.exists(i, i == 2)", '{"ids": [1, 2]}', True),
        ("args.lines.all(l, l.tags.all(t, t != l.name))", '{"lines": [{"name": "a", "tags": ["b", "a"]}]}', False),
        ("args.lines.filter(l, l.n > 1).size() <= 1", '{"lines": [{"n": 1}, {"n": 2}]}', True),
        ("args.all(k, k in ['a', 'b'])", '{"a": 1, "c": 2}', False),
        ("args.size() == 2", '{"a": 1, "b": 2}', True),
        ('tool == "run"', "{}", True),
        ('request.model == "qwen3" && request.user == "ada"', "{}", True),
        ('request.headers["x-team"] == "core"', "{}", True),
        ('"x-other" in request.headers', "{}", False),
        ("timestamp(args.at).getFullYear() == 2026", '{"at": "2026-11-30T00:00:00Z"}', True),
        ('duration(args.wait) <= duration("1h")', '{"wait": "59m"}', True),
        ("size(args.t) == 2 && args.t.size() == 2", '{"t": "é漢"}', True),
        ("size(args.l) == 2 && size(args.m) == 1", '{"l": [1, [2]], "m": {"a": 1}}', True),
        ("args.size == args.matches", '{"size": 1, "matches": 1}', True),
        ("args.x == null", '{"x": null}', True),
        ("args.x in [1, 2.5]", '{"x": 2.5}', True),
    ],
)  # fmt: skip
def test_rules_see_arguments_tool_and_request(cel: str, arguments: str, *, expected: bool) -> None:
    assert says(cel, arguments) is expected


def test_a_violation_tells_the_rules_own_message_or_its_name() -> None:
    assert found("args.n < 3", '{"n": 3}', "not so many") == [
        Finding(Word.VIOLATION, "run", 0, "rule", rule="r1", detail="not so many")
    ]
    assert found("args.n < 3", '{"n": 3}')[0].detail == "rule 'r1' does not allow this call"


def test_all_rules_are_judged_in_their_order() -> None:
    sources = {"b": "args.n < 3", "a": "args.n > 100", "c": "args.missing", "d": "args.n == 50"}
    rules = [compile_rule(name, cel) for name, cel in sources.items()]
    findings = check(rules, "run", 4, parse_arguments('{"n": 50}'), FACTS, SETS)
    assert [(f.rule, f.reason, f.call) for f in findings] == [
        ("b", "rule", 4),
        ("a", "rule", 4),
        ("c", "rule_error", 4),
    ]
    assert check([], "run", 0, parse_arguments("{}"), FACTS, SETS) == []


def test_a_call_without_arguments_has_none() -> None:
    assert says("args.size() == 0", "") is True
    assert says("args.size() == 0", "null") is True


# Numbers


@pytest.mark.parametrize("amount", ["100", "100.0", "1e2", "100.00", "1.0E+2", "0.1e3", "-0", "0", "0.0", "99.5", "-7"])
@pytest.mark.parametrize("limit", ["100", "100.0", "100.5"])
def test_a_number_compares_however_it_is_written(amount: str, limit: str) -> None:
    assert says(f"args.amount <= {limit}", f'{{"amount": {amount}}}') is True
    assert says(f"args.amount > {limit}", f'{{"amount": {amount}}}') is False


@pytest.mark.parametrize("one", ["1", "1.0", "1e0", "10e-1"])
def test_whole_numbers_are_ints_however_they_are_written(one: str) -> None:
    assert says("args.n + 1 == 2 && args.n % 2 == 1 && string(args.n) == '1'", f'{{"n": {one}}}') is True


def test_the_ends_of_64_bits_are_exact() -> None:
    assert says("args.n == 9223372036854775807", '{"n": 9223372036854775807}') is True
    assert says("args.n < 9223372036854775807", '{"n": 9223372036854775806}') is True
    assert says("args.n == -9223372036854775808", '{"n": -9223372036854775808}') is True


@pytest.mark.parametrize(
    "number",
    [
        "9223372036854775808",
        "-9223372036854775809",
        "1e30",
        "1e400",
        "-1e400",
        "1e-400",
        "1e99999999999999999999",
        "1" * 5000,
        "123456789012345678901234.5",
        "1e1000000",
        "18446744073709551615",
    ],
)
def test_what_64_bits_do_not_hold_is_never_rounded(number: str) -> None:
    arguments = f'{{"n": {number}, "other": 1}}'
    assert problem("args.n <= 100", arguments) == "number"
    assert problem("args.n != 3", arguments) == "number"
    assert problem("args.size() > 0", arguments) == "number"
    assert says("args.other == 1", arguments) is True


@pytest.mark.parametrize(
    "number",
    [
        "100.000000000000000000001", "99.99999999999999999999", "100." + "0" * 60 + "1", "3.14159265358979323846",
        "9007199254740993.5", "0.12345678901234567",
    ],
)  # fmt: skip
def test_a_fraction_that_no_double_tells_is_never_rounded(number: str) -> None:
    assert problem("args.n <= 100", f'{{"n": {number}}}') == "number"


@pytest.mark.parametrize("number", ["0.1", "0.10000000000000001", "0.10000000000000000555", "1e-7", "100." + "0" * 60])
def test_a_fraction_is_its_double_in_however_many_digits_that_is_written(number: str) -> None:
    assert says("args.n <= 100 && args.n > 0.0", f'{{"n": {number}}}') is True


def test_whole_bounds_beyond_53_bits_are_exact() -> None:
    assert says("args.n <= 9007199254740992", '{"n": 9007199254740993}') is False


def test_a_number_of_a_million_digits_is_taken_for_what_it_is_worth() -> None:
    assert problem("args.n < 2 && args.n > 1.1", '{"n": 1.' + "2" * 1_000_000 + "}") == "number"
    assert says("args.n < 2 && args.n > 1.1", '{"n": 1.2' + "0" * 1_000_000 + "}") is True


def test_numbers_that_others_have_parsed_are_taken_too() -> None:
    assert says("args.n == 2 && args.f == 0.1 && args.g == 1", Arguments({"n": 2, "f": 0.1, "g": 1.0})) is True
    assert problem("args.n == 2", Arguments({"n": float("nan")})) == "number"
    assert problem("args.n == 2", Arguments({"n": 2**70})) == "number"


# What cannot be evaluated counts as violated


@pytest.mark.parametrize(
    ("cel", "arguments", "kind"),
    [
        ("args.x == 1", "{}", "missing"),
        ("args.x.y == 1", '{"x": {}}', "missing"),
        ("args.x[2] == 1", '{"x": [1]}', "missing"),
        ("args.x > 1", '{"x": "a"}', "type"),
        ("args.x", '{"x": "a"}', "type"),
        ("args.x", '{"x": null}', "type"),
        ("args.x.y > 1", '{"x": 1}', "type"),
        ("!args.x", '{"x": 1}', "type"),
        ("args.x.matches('a')", '{"x": 1}', "type"),
        ("in_set(args.x, 'interfaces')", '{"x": 1}', "type"),
        ("in_set(args.x, 'interfaces')", '{"x": ["eth0"]}', "type"),
        ("!in_set(args.x, 'interfaces')", '{"x": null}', "type"),
        ("in_set('eth0', args.x)", '{"x": "nowhere"}', "set"),
        ("in_set('eth0', args.x)", '{"x": 3}', "set"),
        ("args.x + 1 > 0", '{"x": 9223372036854775807}', "arithmetic"),
        ("1 / args.x == 1", '{"x": 0}', "arithmetic"),
        ("int(args.x) == 1", '{"x": "one"}', "value"),
        ("timestamp(args.x) > timestamp('2020-01-01T00:00:00Z')", '{"x": "tomorrow"}', "value"),
        ("args.x.startsWith('a')", '{"x": 1}', "value"),
        ("size(args.x) == 1", '{"x": 1}', "type"),
        ("args.x + args.y < 3", '{"x": 1, "y": 1.5}', "type"),
        ("args.x == 'a'", '{"x": "\\ud800"}', "text"),
        ("args.size() == 1", '{"\\ud800": 1}', "text"),
        ("args.x == 1", "[1]", "arguments"),
        ("args.x == 1", '{"x": 1', "arguments"),
        ("true", "nonsense", "arguments"),
    ],
)
def test_what_cannot_be_evaluated_says_why(cel: str, arguments: str, kind: str) -> None:
    assert problem(cel, arguments) == kind
    assert says(cel, arguments) is None


def test_details_of_what_cannot_be_evaluated_hold_no_values_and_nothing_of_the_library() -> None:
    details = [
        found(cel, arguments)[0].detail
        for cel, arguments in [
            ("args.x > 1", '{"x": "SECRET"}'),
            ("args.x[args.y] == 1", '{"x": {}, "y": "SECRET"}'),
            ("int(args.x) == 1", '{"x": "SECRET"}'),
            ("in_set('a', args.x)", '{"x": "SECRET"}'),
            ("args.y == 'SECRET' && args.x == 1", '{"y": "SECRET"}'),
        ]
    ]
    assert details == [
        "rule 'r1' could not be evaluated (type): a value has another type than it needs",
        "rule 'r1' could not be evaluated (missing): a value that it needs is missing",
        "rule 'r1' could not be evaluated (value): a function is given a value that it does not take",
        "rule 'r1' could not be evaluated (set): it names a set that there is not",
        "rule 'r1' could not be evaluated (missing): the call has no 'x'",
    ]


def test_a_function_without_an_answer_leaves_none_even_where_cel_could_do_without_it() -> None:
    assert says("in_set(args.x, 'interfaces') || true", '{"x": 1}') is None
    assert says("true || in_set(args.x, 'interfaces')", '{"x": 1}') is True


def test_a_problem_stays_with_the_rule_that_has_it() -> None:
    rules = [
        compile_rule(name, cel) for name, cel in {"a": "args.n < 3", "b": "args.n < 3.5", "c": "args.t == 'x'"}.items()
    ]
    findings = check(rules, "run", 0, parse_arguments('{"n": 1e30, "t": "x"}'), FACTS, SETS)
    assert [(f.rule, f.reason) for f in findings] == [("a", "rule_error"), ("b", "rule_error")]


# Hostile text


def test_text_is_taken_whole() -> None:
    assert says("args.c == 'conf'", r'{"c": "conf\u0000; rm"}') is False
    assert says(r"args.c == 'conf\u0000; rm'", r'{"c": "conf\u0000; rm"}') is True
    assert says("in_set(args.c, 'interfaces')", r'{"c": "eth0\u0000"}') is False
    assert says("args.c.matches('^eth0$')", r'{"c": "eth0\n"}') is False


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("^[a-z]+$", "abc", True),
        ("b", "abc", True),
        (r"^\\d+$", "12", True),
        (r"^\\d+$", "١٢", False),
        (r"^\\w+$", "café", False),
        (r"^[\\w.-]{1,253}$", "a.example.org", True),
        ("^(a+)+$", "a" * 2_000 + "!", False),
        ("^(a|aa)+$", "a" * 2_000 + "!", False),
        ("(?i)^EN$", "en", True),
        ("^é$", "é", True),
    ],
)
def test_patterns_are_re2(pattern: str, text: str, *, expected: bool) -> None:
    arguments = json.dumps({"t": text})
    assert says(f'args.t.matches("{pattern}")', arguments) is expected
    assert says(f'matches(args.t, "{pattern}")', arguments) is expected


def test_a_field_may_be_named_like_a_function() -> None:
    assert (
        says("args.matches == 1 && args.in_set == 2 && args.all == 3", '{"matches": 1, "in_set": 2, "all": 3}') is True
    )
    assert says('args.matches.matches("a")', '{"matches": "a"}') is True


# Bounds


NUMBERS = "[" + ",".join(["1"] * 3_000) + "]"
FEWER = "[" + ",".join(["1"] * 300) + "]"


@pytest.mark.parametrize(
    ("cel", "arguments"),
    [
        ("args.a.all(x, x >= 0)", f'{{"a": {NUMBERS}}}'),
        ("args.a.all(x, args.a.exists(y, y == x))", f'{{"a": {FEWER}}}'),
        ("args.a.all(x, x in args.a)", f'{{"a": {FEWER}}}'),
        ("args.a.map(x, x) != []", f'{{"a": {FEWER}}}'),
        ("[args.a].map(x, x + x).map(x, x + x).map(x, x + x) != []", f'{{"a": {FEWER}}}'),
        ("args.size() > 0", json.dumps({f"k{i}": i for i in range(4_000)})),
        ("args.a.size() > 0", json.dumps({"a": {f"k{i}": i for i in range(4_000)}})),
        ("args.a != []", json.dumps({"a": [[[i] * 100] for i in range(100)]})),
        ("args.a.all(x, args.t == x)", json.dumps({"a": ["b"] * 100, "t": "b" * 1_000_000})),
        ("args.t.matches('(a|b)*a(a|b){200}$')", json.dumps({"t": "ab" * 5_000})),
        ("args.a.exists(x, x.matches('(a|b)*a(a|b){200}$'))", json.dumps({"a": ["ab" * 100] * 100})),
        ("!args.t.contains('x')", json.dumps({"t": "é" * 5_000_000})),
    ],
)
def test_what_could_take_too_long_is_not_begun(cel: str, arguments: str) -> None:
    assert problem(cel, arguments) == "too_large"


def test_usual_sizes_are_judged() -> None:
    many = {"ids": [f"eth{i % 2}" for i in range(1_000)], "body": "confidential " * 2_000}
    order = {"lines": [{"price": 10.5, "count": i, "tags": ["a", "b"]} for i in range(100)]}
    assert says("args.ids.all(i, in_set(i, 'interfaces'))", json.dumps(many)) is True
    assert says("!args.body.matches('(?i)secret') && args.body.contains('conf')", json.dumps(many)) is True
    assert says("args.lines.all(l, l.price * double(l.count) + 1.0 < 9000.0)", json.dumps(order)) is True
    assert says("args.lines.all(l, l.tags.all(t, t != 'c'))", json.dumps(order)) is True


def test_what_a_rule_does_not_name_costs_it_nothing() -> None:
    arguments = json.dumps({"path": "/srv/a", "content": "x" * 5_000_000, "rows": [[1] * 100] * 100})
    assert says("args.path.startsWith('/srv/') && !('mode' in args)", arguments) is True
    assert says("has(args.path) && args['path'] != ''", arguments) is True


def test_one_call_has_one_budget_for_all_its_rules() -> None:
    arguments = parse_arguments(json.dumps({"a": ["x"] * 1_000}))
    rules = [compile_rule(f"r{i}", "args.a.all(x, x != 'y')") for i in range(20)]
    findings = check(rules, "run", 0, arguments, FACTS, SETS)
    assert 0 < len(findings) < len(rules)
    assert {f.reason for f in findings} == {"rule_error"}
    assert [f.rule for f in findings] == [f"r{i}" for i in range(len(rules) - len(findings), len(rules))]


def test_values_too_many_to_measure_leave_the_other_rules_alone() -> None:
    wide = {f"k{i}": [1] * 2_900 for i in range(40)}
    rules = [compile_rule(f"r{i}", f"size(args.k{i}) > 0") for i in range(40)]
    findings = check(
        [*rules, compile_rule("t", "tool == 'run'")], "run", 0, parse_arguments(json.dumps(wide)), FACTS, SETS
    )
    assert {f.reason for f in findings} == {"rule_error"}
    assert len(findings) > 35
    assert BUDGET < 200_000  # a step is about 1/16 µs


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
CALLS = st.dictionaries(st.sampled_from(["a", "b", "s", "unused"]), VALUES)
SOURCES = [
    "args.a > 1",
    "args.a.all(x, x == args.b)",
    "in_set(args.s, 'interfaces')",
    "args.s.matches('^[a-z]+$')",
    "has(args.a.b) ? args.a.b : 'b' in args",
    "args['a'][0] != null",
    "size(args.b) + 1 < 3",
    "args.a.exists(x, x.b.exists(y, y in args.b))",
    "args.a.map(x, [x, x]) == args.b || args.a.filter(x, x == 1) == []",
    "!(args.s + args.s).startsWith(string(args.b))",
]


@settings(max_examples=150, deadline=None)
@given(CALLS, st.sampled_from(SOURCES))
def test_a_rule_says_the_same_whatever_else_the_call_holds(call: dict[str, Any], cel: str) -> None:
    with_more = call | {"extra": {"deep": [1, "\ud800", 10**40]}}
    assert found(cel, json.dumps(call)) == found(cel, json.dumps(with_more))


# What is refused when a rule is read


@pytest.mark.parametrize(
    ("cel", "column", "reason"),
    [
        ("args.amount <= 100 &&", 22, "the expression ends too early"),
        ("", 1, "the expression ends too early"),
        ("args.amount <= )", 16, "')' was not expected here"),
        ("args..b", 6, "'..' was not expected here"),
        ("args.a = 1", 8, "'= ' is no part of CEL"),
        ("args.x == 1 && arg.y == 2", 16, "unknown variable 'arg'; did you mean 'args'?"),
        ("now > 3", 1, "unknown variable 'now'; known are args, request, tool"),
        ("args.a.all(x, x > 0) && x > 1", 25, "unknown variable 'x'; known are args, request, tool"),
        ("x.all(x, x > 0)", 1, "unknown variable 'x'; known are args, request, tool"),
        ("args.a.all(args, args > 0)", 12, "'args' has a meaning already; name the element otherwise"),
        ("args.t.startWith('a')", 8, "unknown function 'startWith'; did you mean 'startsWith'?"),
        ("math.greatest(1, args.x) == 1", 1, "unknown variable 'math'; known are args, request, tool"),
        ("size(args.t) > 1 && _matches(args.t, 'a')", 21, "unknown function '_matches'; did you mean 'matches'?"),
        ("all(args.a, true)", 1, "'all' belongs behind a list or a map and a dot"),
        ("args.a.all(x, true, false)", 8, "'all' takes a name and an expression"),
        ("true && in_set(args.a, 'interfaced')", 24, "there is no set 'interfaced'; did you mean 'interfaces'?"),
        ("args.a.in_set('other')", 15, "there is no set 'other'; known are interfaces"),
        ("in_set(args.a)", 1, "'in_set' takes a value and a set's name"),
        ("in_set()", 1, "'in_set' takes a value and a set's name"),
        ("args.a.in_set()", 8, "'in_set' takes a value and a set's name"),
        ("matches(args.a)", 1, "'matches' takes a value and a pattern"),
        ("args.a.matches(args.p)", 21, "a pattern must be written out: one that is put together could cost anything"),
        ("args.a.matches('(')", 16, "RE2 does not take this pattern (it has no look-around and no back-references)"),
        (
            "args.a.matches('(?=a)')",
            16,
            "RE2 does not take this pattern (it has no look-around and no back-references)",
        ),
        ("args.a.matches('\\\\p{L}{1,64}')", 16, "the counted repeats of this regular expression make it too large"),
        ("Thing{a: 1}.a == 1", 1, "unknown variable 'Thing'; known are args, request, tool"),
        (".args.a == 1", 1, "a name does not begin with a dot here"),
        ("(" * 200 + ")" * 200, 97, "nested too deeply"),
    ],
)
def test_a_fault_is_told_with_its_column(cel: str, column: int, reason: str) -> None:
    error = refused(cel)
    assert (error.rule, error.column, error.line) == ("r1", column, 1)
    assert error.reason == reason
    assert str(error) == f"rule 'r1', column {column}: {reason}"


def test_a_fault_in_a_later_line_is_told_with_its_line() -> None:
    error = refused("args.a > 1 &&\n  b > 2")
    assert (error.line, error.column) == (2, 3)
    assert str(error).startswith("rule 'r1', line 2, column 3: unknown variable 'b'")
    assert refused("args.a > 1 &&\n  > 2").line == 2


@pytest.mark.parametrize(
    "cel",
    [
        "1",
        "'a'",
        "tool",
        "args",
        "size(tool)",
        "args.a + 1",
        "args.a.map(x, x)",
        "args.a.filter(x, x > 1)",
        "'a' + tool",
        "args.a - args.b * 2",
        "string(args.a)",
        "args.a.size()",
        "request.user",
        "[args.size() > 1]",
        "{'a': true}",
    ],
)
def test_what_is_known_to_give_no_boolean_is_refused(cel: str) -> None:
    error = refused(cel)
    assert error.column is None
    assert str(error) == "rule 'r1': it gives something other than true or false"


@pytest.mark.parametrize(
    "cel",
    [
        "args.a",
        "args.a ? args.b : args.c",
        "!args.a",
        "args.a in args.b",
        "args.a.b[0]",
        "(args.a)",
        "true",
        "has(args.a)",
        "args.a.exists_one(x, x)",
        "[1, 2].exists(i, i == args.a)",
        "args.a + 1 == 2",
        "args.a - 1 in args.b",
        "args.a // the end\n == 1",
        "r'a\\' == args.a",
        "'''it's''' == args.a",
        "args.a == -1",
        "1.5 < args.a",
    ],
)
def test_what_may_give_a_boolean_is_accepted(cel: str) -> None:
    assert compile_rule("r1", cel).cel == cel


def test_what_can_never_be_evaluated_is_refused() -> None:
    assert str(refused("1 / 0 == 1")) == "rule 'r1': it can never be evaluated"
    assert (
        str(refused("true || " * (MAX_SOURCE // 8 + 1) + "true")) == f"rule 'r1': longer than {MAX_SOURCE} characters"
    )


def test_a_rule_is_a_value() -> None:
    assert compile_rule("a", "args.x == 1", "m") == compile_rule("a", "args.x == 1", "m")
    assert compile_rule("a", "args.x == 1") != compile_rule("a", "args.x == 2")
    assert repr(compile_rule("a", "args.x == 1", "m")) == "Rule(id='a', cel='args.x == 1', message='m')"


# Sets


def test_a_set_is_replaced_as_a_whole_and_a_snapshot_stays() -> None:
    sets = Sets({"a": ["x"]})
    before = sets.snapshot()
    sets.replace("a", ["y", "z"])
    sets.replace("b", {"q"})
    assert sets.contains("a", "y")
    assert not sets.contains("a", "x")
    assert sets.contains("b", "q")
    assert before == {"a": {"x"}}
    with pytest.raises(KeyError):
        sets.contains("c", "x")


def test_a_call_is_judged_on_one_state_of_the_sets() -> None:
    class Turning(Sets):
        """Changes as soon as it has been looked at."""

        def snapshot(self) -> Mapping[str, frozenset[str]]:
            now = super().snapshot()
            self.replace("interfaces", ["new"])
            return now

    sets = Turning({"interfaces": ["old"]})
    cel = "in_set('old', 'interfaces') && !in_set('new', 'interfaces')"
    rules = [compile_rule(name, cel, sets=["interfaces"]) for name in "abc"]
    assert check(rules, "run", 0, parse_arguments("{}"), FACTS, sets) == []
    assert len(check(rules, "run", 0, parse_arguments("{}"), FACTS, sets)) == 3


def test_sets_are_replaced_while_others_read() -> None:
    sets, torn = Sets({"a": ["0"], "b": ["0"]}), []
    done = threading.Event()

    def write() -> None:
        for i in range(300):
            sets.replace("a", [str(i)])
            sets.replace("b", [str(i)])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        state = sets.snapshot()
        if state != dict(state) or len(state["a"]) != 1:
            torn.append(state)
    writer.join()
    assert torn == []
    assert sets.snapshot() == {"a": {"299"}, "b": {"299"}}
