import unicodedata
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from validators import ComparePolicy, Word
from validators.policy import (
    DEFAULT_ON,
    Action,
    Policy,
    RepeatPolicy,
    SeenGlobs,
    ToolPolicy,
    actions_of,
    merged,
    never_matches,
    normalised,
    normalised_pattern,
    strength,
    strongest,
    unreachable,
    without_effect,
)

DEFAULT: ToolPolicy[str] = ToolPolicy("*")


def policy(*globs: str, agree: int = 1) -> Policy[str]:
    return Policy(agree, DEFAULT, tuple(merged(DEFAULT, glob) for glob in globs))


# -- actions


def test_refuse_prevails_over_hold_over_substitute_over_release() -> None:
    assert [action.value for action in Action] == ["refuse", "hold", "substitute", "release"]
    assert [strength(action) for action in Action] == [3, 2, 1, 0]
    for weaker in Action:
        for stronger in Action:
            expected = stronger if strength(stronger) >= strength(weaker) else weaker
            assert strongest([weaker, stronger]) is expected
    assert strongest([]) is Action.RELEASE


def test_the_default_is_that_of_the_contract() -> None:
    assert {word.value: action.value for word, action in DEFAULT_ON.items()} == {
        "invalid": "refuse",
        "violation": "refuse",
        "repeat": "refuse",
        "mismatch": "refuse",
        "near_tie": "release",
        "sampled_choice": "release",
        "unverified": "release",
        "match": "release",
        "equivalent": "release",
    }
    assert DEFAULT.on == DEFAULT_ON
    assert DEFAULT.verify_timeout == 10
    assert DEFAULT.repeat is None


def test_what_is_configured_is_read_and_what_is_unknown_names_what_is_allowed() -> None:
    assert actions_of({"unverified": "hold"}) == {Word.UNVERIFIED: Action.HOLD}
    assert actions_of({}) == {}
    with pytest.raises(ValueError, match="'deny' is no action; allowed: refuse, hold, substitute, release"):
        actions_of({"invalid": "deny"})
    with pytest.raises(ValueError, match="'wrong' is no verdict; allowed: invalid, violation, repeat, mismatch, "):
        actions_of({"wrong": "refuse"})
    values: list[Any] = [None, True, 1, [], {}]
    for value in values:
        with pytest.raises(ValueError, match="is no action"):
            actions_of({"invalid": value})


# -- one tool's policy


def test_a_tool_fills_up_from_the_default_word_by_word() -> None:
    default = merged(DEFAULT, "*", on={"unverified": "hold", "mismatch": "substitute"}, verify_timeout=3, rules=["a"])
    tool = merged(default, "run_command", on={"mismatch": "refuse", "match": "hold"}, risk="high", rules=("b", "c"))
    assert tool.on == {
        **DEFAULT_ON,
        Word.UNVERIFIED: Action.HOLD,
        Word.MISMATCH: Action.REFUSE,
        Word.MATCH: Action.HOLD,
    }
    assert (tool.verify_timeout, tool.risk, tool.rules, default.risk) == (3, "high", ("a", "b", "c"), "normal")


def test_everything_a_tool_does_not_say_comes_from_the_default() -> None:
    full: ToolPolicy[str] = ToolPolicy(
        "*",
        risk="low",
        on={**DEFAULT_ON, Word.MATCH: Action.HOLD},
        verify_timeout=1,
        approve="always",
        approval_timeout=2,
        compare=ComparePolicy(ignore=("/a",)),
        repeat=RepeatPolicy(5, ("/b",)),
        rules=("r",),
        approvers=2,
    )
    assert merged(full, "*") == full
    other = merged(
        full,
        "x",
        on={"match": "release"},
        risk="high",
        verify_timeout=10,
        approve="never",
        approval_timeout=20,
        compare=ComparePolicy(),
        repeat=RepeatPolicy(50),
        rules=("s",),
        approvers=3,
    )
    repeat = RepeatPolicy(50)
    assert other == ToolPolicy("x", "high", DEFAULT_ON, 10, "never", 20, ComparePolicy(), repeat, ("r", "s"), 3)


def test_a_policy_can_be_named_with_the_type_of_its_rules() -> None:
    assert ToolPolicy[int]("f", rules=(1,)).rules == (1,)
    assert Policy[int](0, ToolPolicy[int]("*")).agree == 0


def test_actions_cannot_be_changed_afterwards() -> None:
    on = dict(DEFAULT_ON)
    tool: ToolPolicy[str] = ToolPolicy("f", on=on)
    on[Word.INVALID] = Action.RELEASE
    assert tool.on[Word.INVALID] is Action.REFUSE
    with pytest.raises(TypeError):
        tool.on[Word.INVALID] = Action.RELEASE  # type: ignore[index]


NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"on": {Word.INVALID: Action.REFUSE}}, "no action for violation, repeat, mismatch, "),
    ({"on": {**DEFAULT_ON, Word.MATCH: Action.SUBSTITUTE}}, "match: the reference's call is the same call"),
    ({"on": {**DEFAULT_ON, Word.EQUIVALENT: Action.SUBSTITUTE}}, "equivalent: the reference's call is the same call"),
    ({"risk": "huge"}, "'huge' is no risk; allowed: low, normal, high"),
    ({"verify_timeout": 0}, "verify_timeout is a number of seconds above 0"),
    ({"verify_timeout": float("nan")}, "verify_timeout"),
    ({"approval_timeout": float("inf")}, "approval_timeout"),
    ({"approval_timeout": -1}, "approval_timeout"),
    ({"approvers": 0}, "approvers is a number of people from 1 to 10"),
    ({"approvers": 11}, "approvers is a number of people from 1 to 10"),
    ({"match": ""}, "names no tool"),
    ({"match": "_-_"}, "names no tool"),
    ({"match": "run[_-]command"}, "sets in brackets are not supported"),
    ({"repeat": RepeatPolicy(1, ("/a/b",)), "compare": ComparePolicy(ignore=("/a",))}, "the key '/a/b' is ignored"),
    ({"repeat": RepeatPolicy(1, ("/a/b",)), "compare": ComparePolicy(ignore=("/*/b",))}, "the key '/a/b' is ignored"),
]


@pytest.mark.parametrize(("fields", "message"), NONSENSE)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        ToolPolicy(**{"match": "f"} | fields)


def test_ignoring_something_below_or_beside_a_repeats_key_is_fine() -> None:
    compare = ComparePolicy(ignore=("/a/time", "/ab", "/c"))
    assert ToolPolicy[str]("f", repeat=RepeatPolicy(1, ("/a", "/b")), compare=compare).compare is compare


@pytest.mark.parametrize(
    ("window", "key", "message"),
    [
        (0, (), "a repeat's window is a number of seconds above 0"),
        (float("inf"), (), "a repeat's window"),
        (1, ("device",), "no JSON pointer"),
        (1, ("",), "no JSON pointer"),
        (1, ("/items/*/id",), r"one by one, without \*"),
    ],
)
def test_a_repeats_key_names_places(window: float, key: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RepeatPolicy(window, key)


def test_a_policy_counts_references_from_none_on_and_its_default_takes_every_tool() -> None:
    with pytest.raises(ValueError, match="from 0 on"):
        Policy(-1, DEFAULT)
    with pytest.raises(ValueError, match=r"the default's glob is \*"):
        Policy(1, merged(DEFAULT, "f"))


# -- names and globs

ONE_TOOL = [
    "run_command",
    "Run-Command",
    "runCommand",
    "RUN.COMMAND",
    "run command",
    "run/command",
    "run::command",
    " run__command ",
    "\uff52\uff55\uff4e\uff3f\uff43\uff4f\uff4d\uff4d\uff41\uff4e\uff44",  # full width
    "\U0001d4c7\U0001d4ca\U0001d4c3_command",  # script letters
    "\u24e1\u24e4\u24dd_command",
    "run\u200b_comm\u200dand",  # zero width
    "run\u00ad_command\ufeff",  # soft hyphen, byte order mark
    "run\ufe0f_com\u034fmand",  # variation selector, grapheme joiner
    "run\u3164command\u115f",  # fillers, which Unicode holds for letters
    "run\x00_command\n",
    "run\u202ecommand",  # right to left
    "run\U000e0061_command",  # tag letter
    "ru\u0301n_cómmand",
    "run_command\ud800",
]


@pytest.mark.parametrize("name", ONE_TOOL)
def test_case_separators_and_what_shows_nothing_never_count(name: str) -> None:
    assert normalised(name) == "runcommand"
    tools = policy("ping", "run_command", "*")
    assert tools.of(name).match == "run_command"


@pytest.mark.parametrize(
    "name", ["run_commands", "xrun_command", "run_c0mmand", "", "commandrun", "run_\u0441\u043emmand"]
)
def test_other_names_and_other_scripts_stay_others(name: str) -> None:
    assert policy("run_command").of(name) is DEFAULT


@pytest.mark.parametrize(
    ("glob", "takes", "leaves"),
    [
        ("*", ["", "f", "run_command", "🔥"], []),
        ("run_*", ["run_command", "RUN", "runner", "run-"], ["rerun", "ru"]),
        ("*_command", ["run_command", "COMMAND"], ["command_run"]),
        ("get_?", ["getA", "get-b", "get_1"], ["get", "get_ab", "get__"]),
        ("*net*", ["net", "Internet", "telnet_open"], ["n-e", "te"]),
        ("GET.Name", ["get_name", "getname"], ["get_names"]),
        ("\uff32\uff55\uff4e\uff0a", ["run", "run_x"], ["x"]),
        ("straße", ["STRASSE"], ["strase"]),
    ],
)
def test_globs(glob: str, takes: list[str], leaves: list[str]) -> None:
    tools = policy(glob)
    assert [tools.of(name).match for name in takes] == [glob] * len(takes)
    assert [tools.of(name) for name in leaves] == [DEFAULT] * len(leaves)


def test_glob_characters_in_a_name_are_no_glob() -> None:
    tools = policy("run_command", "run*")
    assert tools.of("*").match == "*"
    assert tools.of("run?command").match == "run_command"
    assert tools.of("[run]").match == "run*"


def test_the_first_matching_glob_wins() -> None:
    assert policy("run_*", "run_command").of("run_command").match == "run_*"
    assert policy("run_command", "run_*").of("run_command").match == "run_command"


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=8))
@example("\u0131")
@example("\u0130")
@example("\u1fb3")
@example("\u0149")
@example("Kelvin: \u212a")
def test_normalising_is_done_once_and_for_all(name: str) -> None:
    plain = normalised(name)
    assert normalised(plain) == plain
    assert normalised(name.upper()) == normalised(name.lower()) == normalised(name.swapcase()) == plain
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert normalised(unicodedata.normalize(form, name)) == plain
    for between in ("_", "-", ".", " ", "\u200b", "\u0301"):
        assert normalised(between.join(name)) == normalised(name)


@settings(max_examples=100, deadline=None)
@given(st.text("ab_*?", min_size=1, max_size=6), st.text("abAB-", max_size=5))
def test_a_glob_takes_what_it_takes_of_plain_names(glob: str, name: str) -> None:
    if not glob.strip("_"):
        return
    plain = name.replace("-", "").lower()
    assert (policy(glob).of(name) is not DEFAULT) == fnmatchcase(plain, glob.replace("_", ""))


def test_equal_globs_are_equal_texts() -> None:
    assert normalised_pattern("Run_**") == normalised_pattern("run*") == "run*"
    assert normalised_pattern("a*?b?*") == normalised_pattern("A?*_B*?") == "a?*b?*"


def test_what_is_kept_of_names_is_bounded() -> None:
    tools = policy("run_command")
    for i in range(3000):
        tools.of(f"tool_{i}")
    long = "run_command" + "_" * 100_000
    assert tools.of(long).match == "run_command"
    info = tools._remembered.cache_info()  # type: ignore[attr-defined]
    assert info.maxsize == info.currsize == 1024
    assert info.misses == 3000  # the long name was not kept


def test_a_name_made_to_take_long_does_not() -> None:
    tools = policy("*a*a*a*a*a*a*a*b")
    assert tools.of("a" * 100_000).match == "*"  # by trying every split this would not end


# -- what never applies


def test_a_glob_behind_one_that_takes_all_it_could_never_applies() -> None:
    assert unreachable(policy("run_command", "Run-Command")) == [
        "tools[1] ('Run-Command') never applies: tools[0] ('run_command') takes all it could"
    ]
    found = unreachable(policy("get_*", "get_name", "set_*", "get_?", "*", "last"))
    assert [line.split(" never")[0] for line in found] == [
        "tools[1] ('get_name')",
        "tools[3] ('get_?')",
        "tools[5] ('last')",
    ]
    assert unreachable(policy("run_command", "run_*", "*")) == []
    assert unreachable(policy("a?", "a*")) == []
    assert unreachable(policy("a", "a?", "?", "*a")) == []


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text("ab*?", min_size=1, max_size=4), min_size=2, max_size=4),
    st.lists(st.text("ab", max_size=5), min_size=10, max_size=20),
)
@example(["a?", "a*"], ["abb"])
@example(["?*", "*?"], ["a"])
def test_what_is_said_never_to_apply_takes_no_name(globs: list[str], names: list[str]) -> None:
    tools = policy(*globs)
    dead = {int(line.split("[")[1].split("]")[0]) for line in unreachable(tools)}
    taken = {id(tools.of(name)) for name in names}
    assert not any(id(tools.tools[i]) in taken for i in dead)


def test_globs_that_no_known_tool_falls_under_are_told() -> None:
    tools = policy("run_*", "ping", "reboot")
    assert never_matches(tools, ["RunCommand", "traceroute"]) == ["ping", "reboot"]
    assert never_matches(tools, []) == ["run_*", "ping", "reboot"]


def test_globs_are_ticked_off_as_tools_come_by() -> None:
    seen = SeenGlobs(policy("run_*", "ping", "run_command"))
    assert seen.unseen() == ["run_*", "ping", "run_command"]
    for i in range(1000):
        seen.saw(f"other_{i}")
    seen.saw("run_command")
    assert seen.unseen() == ["ping", "run_command"]
    seen.saw("P.I.N.G")
    assert seen.unseen() == ["run_command"]


def test_what_needs_references_has_no_effect_where_none_is_asked() -> None:
    strict = merged(DEFAULT, "run", on={"unverified": "refuse", "invalid": "substitute", "mismatch": "substitute"})
    assert without_effect(Policy(1, DEFAULT, (strict,))) == []
    assert without_effect(Policy(0, DEFAULT)) == []
    assert without_effect(Policy(0, DEFAULT, (strict,))) == [
        "tools[0] ('run'): unverified: refuse has no effect, agree is 0",
        "tools[0] ('run'): nothing to substitute (invalid, mismatch), agree is 0: refused",
    ]


def test_a_name_without_end_costs_no_more_than_a_long_one() -> None:
    assert normalised("\ufdfa" * 1_000_000) == normalised("\ufdfa" * 1024)
