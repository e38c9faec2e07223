import pytest
from cel import compile as compile_cel

from validators.rulecost import Cost, Part, Source
from validators.rulescan import Fault, Scan, lines, pattern, scan


def read(source: str) -> Scan:
    return scan(source, compile_cel(source), ["names"])


def steps(source: str, nodes: int = 1_000, width: int = 100, text: int = 10_000, small: str = "") -> float:
    """What a rule costs where every argument is that large, but for one that holds nothing to speak of."""
    found = read(source)
    every = Part(nodes=nodes, width=width, element=nodes // 10, text=text)
    parts: dict[Source, Part] = {("args", key): every for key in found.keys}
    parts["args", small] = Part(nodes=1, text=10)
    return found.cost.steps(parts, every)


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("args.a == 1", {"a"}),
        ("args.a.b.c == 1 && args.d[0]", {"a", "d"}),
        ("args['a b'] == 1", {"a b"}),
        ('args[r"\\a"] == 1', {"\\a"}),
        ("'a' in args && ('b' in args)", {"a", "b"}),
        ("has(args.a.b)", {"a"}),
        ("args.a.all(x, x.args == args.b)", {"a", "b"}),
        ("request.args.args == 1", set()),
        ("tool == 'args.x' // args.y", set()),
        ("args . a == 1", {"a"}),
    ],
)
def test_the_arguments_that_a_rule_names(source: str, keys: set[str]) -> None:
    found = read(source)
    assert found.keys == keys
    assert not found.whole


@pytest.mark.parametrize(
    "source",
    [
        "args == {}",
        "args.size() > 1",
        "args.all(k, true)",
        "args[tool] == 1",
        "args['a' + tool] == 1",
        "args[b'a'] == 1",
        "'a' + tool in args",
        "tool in args",
        "[args] == []",
        "{'a': args}.a == 1",
        "args.in_set('names')",
        "'a' == 'b' in args",
    ],
)
def test_a_rule_that_may_look_at_any_argument_says_so(source: str) -> None:
    assert read(source).whole


def test_tool_and_request_are_taken_only_where_they_are_named() -> None:
    assert (read("tool == ''").tool, read("args.tool == ''").tool) == (True, False)
    assert (read("request.user == ''").request, read("args.request == 'request'").request) == (True, False)


def test_functions_that_are_not_the_librarys_own_are_replaced_where_they_are_called() -> None:
    source = "size ( args.size ) == 1 && args.matches . matches('size(x)') // size(y)"
    assert read(source).source == "_size ( args.size ) == 1 && args.matches . _matches('size(x)') // size(y)"


def test_nesting_multiplies_and_standing_side_by_side_does_not() -> None:
    one = steps("args.a.all(x, x == args.b)")
    side_by_side = steps("args.a.all(x, x == args.b) && args.a.all(x, x == args.b)")
    nested = steps("args.a.all(x, args.a.all(y, y == args.b))")
    assert one < side_by_side < 5 * one
    assert nested > 30 * one


def test_elements_that_are_only_looked_at_by_themselves_share_the_cost() -> None:
    closed = "args.a.all(x, x.b.all(y, y.c.all(z, z != '')))"
    assert steps(closed) < 100_000
    assert steps(closed, nodes=2_000) < 3 * steps(closed)
    assert steps("args.a.all(x, x.b.all(y, y.c.all(z, z != x)))") > 10_000_000
    assert steps("args.a.all(x, [1, 2].all(y, y != x))") > steps("args.a.all(x, x != 1)")


@pytest.mark.parametrize(
    ("dearer", "cheaper"),
    [
        ("args.a.map(x, x) == []", "args.a.all(x, x == 1)"),
        ("args.a.all(x, x in args.b)", "args.a.all(x, x in [1, 2])"),
        ("args.a == args.b", "args.a == 'b'"),
        ("args.a + args.b == []", "args.a == args.b"),
        ("args.a.all(x, x + x == args.b)", "args.a.all(x, x == args.b)"),
        ("[args.a, args.a].all(x, x == args.b)", "args.a.all(x, x == args.b)"),
        ("args.a.map(x, x + x).map(x, x + x) == []", "args.a.map(x, x + x) == []"),
        ("args.a.contains('b')", "args.a.startsWith('b')"),
        ("args.a[args.n] == 1", "args.a['n'] == 1"),
        ("args.a.all(x, [1, 2, 3].exists(y, y == x))", "args.a.exists(y, y == 1)"),
        ("in_set(args.a, 'names')", "args.a == 1"),
    ],
)
def test_what_walks_copies_or_grows_costs_more(dearer: str, cheaper: str) -> None:
    assert steps(dearer) > steps(cheaper)


def test_an_operand_costs_by_its_own_size() -> None:
    named = "args.a.all(x, x == args.b && x in args.b)"
    assert steps(named, small="b") < steps(named) / 30
    assert steps("args.a.all(x, x != '') && size(args.b) > 1") < 2 * steps("args.a.all(x, x != '')")


def test_a_plain_comparison_costs_next_to_nothing_however_large_the_rest_is() -> None:
    assert steps("args.a == 1", nodes=10**6, width=10**6, text=10**6, small="a") < 50


def test_no_comprehension_is_no_level() -> None:
    cost = Cost()
    cost.count(0, 3)
    assert cost.steps({}, Part(nodes=10**6, width=10**6, text=10**6)) == 3


def test_a_pattern_is_compiled_or_its_fault_told() -> None:
    assert pattern("^a+$").search("aaa")
    for bad in ("(", "(?=a)", "(a)\\1", "a{2000}", "\\p{L}{1,64}", "\ud800"):
        with pytest.raises(Fault):
            pattern(bad)


def test_an_offset_becomes_line_and_column() -> None:
    assert lines("ab\ncd", 0) == (1, 1)
    assert lines("ab\ncd", 4) == (2, 2)
