import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.switch import LONGEST_S, MAX_NAME, MAX_REASON, MAX_SETTINGS, MODES, Change, Mode, Switch, SwitchError


class Clocks:
    """Both clocks, set by hand."""

    def __init__(self) -> None:
        self.monotonic, self.wall = 1000.0, 1_800_000_000.0

    def passes(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += seconds


class Stage:
    """A switch on clocks of its own, and what it told."""

    def __init__(self, configured: Mode = "observe", record: Callable[[Change], None] = lambda _change: None) -> None:
        self.clocks, self.told = Clocks(), list[Change]()

        def recording(change: Change) -> None:
            record(change)
            self.told.append(change)

        self.switch = Switch(configured, recording, clock=lambda: self.clocks.monotonic, wall=lambda: self.clocks.wall)

    def set(self, mode: Mode, **more: Any) -> None:
        self.switch.set(mode, **({"who": "ann"} | more))

    def mode(self) -> Mode:
        return self.switch.mode

    def did(self) -> list[str]:
        return [change.did for change in self.told]


def mode_of_tool(switch: Switch) -> Callable[[str | None, str], Mode]:
    return lambda model, tool: switch.now.of_calls(model)(tool)


# -- which mode holds


@pytest.mark.parametrize("configured", MODES)
def test_without_settings_the_configured_mode_holds(configured: Mode) -> None:
    switch = Stage(configured).switch
    assert switch.mode == switch.now.strongest == switch.now.mode_for("m") == switch.now.of_calls("m")("t")
    assert switch.mode == switch.configured == configured
    assert switch.settings() == []


Named = dict[str, str]
ALL, MODEL, TOOL, BOTH = Named(), {"model": "m"}, {"tool": "t"}, {"model": "m", "tool": "t"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # mode of tool t of model m, of tool t of another, of another tool of m, of neither; configured: observe
        ([("block", ALL)], ("block", "block", "block", "block")),
        ([("block", MODEL)], ("block", "observe", "block", "observe")),
        ([("block", TOOL)], ("block", "block", "observe", "observe")),
        ([("block", BOTH)], ("block", "observe", "observe", "observe")),
        ([("block", ALL), ("off", MODEL)], ("off", "block", "off", "block")),
        ([("block", ALL), ("off", TOOL)], ("off", "off", "block", "block")),
        ([("block", MODEL), ("off", TOOL)], ("off", "off", "block", "observe")),
        ([("off", TOOL), ("block", MODEL)], ("off", "off", "block", "observe")),
        ([("off", BOTH), ("block", TOOL)], ("off", "block", "observe", "observe")),
        ([("block", ALL), ("observe", MODEL), ("off", TOOL), ("block", BOTH)], ("block", "off", "observe", "block")),
    ],
)
def test_the_most_specific_setting_counts(
    settings: list[tuple[Mode, dict[str, str]]], expected: tuple[Mode, ...]
) -> None:
    stage = Stage()
    for mode, target in settings:
        stage.set(mode, **target)
    of = mode_of_tool(stage.switch)
    found = [of("m", "t"), of("other", "t"), of("m", "other"), of(None, "other")]
    assert found == list(expected)
    assert of(None, "t") == of("other", "t")


@pytest.mark.parametrize("name", ["run_command", "Run-Command", "runCommand", "RUN.COMMAND", "ｒｕｎ＿command"])  # noqa: RUF001
def test_a_tool_is_named_without_regard_to_case_and_separators(name: str) -> None:
    stage = Stage()
    stage.set("block", tool="run_command")
    assert stage.switch.now.of_calls("m")(name) == "block"
    assert stage.switch.now.mode_for("m") == "block"
    stage.set("off", tool=name)
    assert [(setting.mode, setting.tool) for setting in stage.switch.settings()] == [("off", name)]


@pytest.mark.parametrize("name", ["M", "m ", "mm", "m*", None])
def test_a_model_is_named_exactly(name: str | None) -> None:
    stage = Stage()
    stage.set("block", model="m")
    assert stage.switch.now.mode_for(name) == "observe"
    assert stage.switch.now.mode_for("m") == "block"


def test_a_request_that_names_no_model_may_be_for_any_that_is_named() -> None:
    stage = Stage()
    stage.set("block", model="m", tool="t")
    stage.set("block", model="n")
    stage.set("off", model="n", tool="u")
    assert stage.switch.now.mode_for("") == "block"
    assert stage.switch.now.of_calls("")("t") == "block"
    assert stage.switch.now.of_calls("")("u") == "observe"  # of any but n's
    stage.set("off")
    stage.set("observe", model="n")
    assert stage.switch.now.of_calls("")("t") == "block"
    assert stage.switch.now.of_calls("")("other") == "observe"


def test_no_name_is_a_pattern() -> None:
    stage = Stage()
    stage.set("block", tool="run*")
    stage.set("off", model="*")
    assert stage.switch.now.of_calls("m")("run_command") == "observe"
    assert stage.switch.now.of_calls("m")("run") == "block"  # a name without regard to marks
    with pytest.raises(SwitchError, match="tool: names no tool"):
        stage.set("block", tool="*")


@pytest.mark.parametrize(
    ("configured", "settings", "expected"),
    [
        ("observe", [("block", TOOL)], "block"),  # whether the request declares the tool or not
        ("observe", [("block", TOOL), ("observe", BOTH)], "observe"),
        ("observe", [("off", TOOL)], "observe"),
        ("off", [("observe", TOOL)], "observe"),
        ("off", [("off", ALL), ("observe", TOOL), ("block", {"tool": "u"})], "block"),
        ("block", [("off", TOOL)], "block"),
        ("block", [("off", MODEL)], "off"),
        ("block", [("off", MODEL), ("block", TOOL)], "block"),
        ("block", [("off", MODEL), ("block", BOTH)], "block"),
        ("off", [("block", {"model": "other", "tool": "t"})], "off"),
    ],
)
def test_a_request_is_in_the_strongest_mode_of_any_call_of_it(
    configured: Mode, settings: list[tuple[Mode, dict[str, str]]], expected: Mode
) -> None:
    stage = Stage(configured)
    for mode, target in settings:
        stage.set(mode, **target)
    assert stage.switch.now.mode_for("m") == expected


names = st.sampled_from([None, "m", "n", "o"])
settings = st.tuples(st.sampled_from(MODES), names, names)


@given(st.sampled_from(MODES), st.lists(settings, max_size=8), names, st.lists(st.sampled_from("mnop"), max_size=4))
def test_no_call_is_in_a_stronger_mode_than_its_request_or_the_strongest(
    configured: Mode, turns: list[tuple[Mode, str | None, str | None]], model: str | None, tools: list[str]
) -> None:
    stage = Stage(configured)
    for mode, of_model, tool in turns:
        stage.set(mode, model=of_model, tool=tool)
    request, strongest = stage.switch.now.mode_for(model), stage.switch.now.strongest
    calls = [stage.switch.now.of_calls(model)(tool) for tool in tools]
    for mode in [*calls, request, stage.switch.mode]:
        assert MODES.index(mode) <= MODES.index(strongest)
    every = [stage.switch.now.of_calls(model)(tool) for tool in ["m", "n", "o", "p", "undeclared"]]
    assert request == max(every, key=MODES.index)


def test_a_request_keeps_the_modes_it_began_with() -> None:
    stage = Stage()
    stage.set("block", tool="t")
    stage.set("off", model="n", seconds=10)
    began, of = stage.switch.now, stage.switch.now.of_calls("m")
    stage.set("off", tool="t")
    stage.set("block")
    stage.clocks.passes(11)
    assert (of("T"), of("other")) == ("block", "observe")
    assert (began.mode_for("m"), began.mode_for("n"), began.strongest) == ("block", "block", "block")
    assert (began.of_calls("n")("t"), began.of_calls("n")("other")) == ("block", "off")
    assert (stage.switch.now.of_calls("m")("t"), stage.switch.now.of_calls("m")("other")) == ("off", "block")


# -- turning it


def test_a_newer_setting_replaces_the_older_and_both_are_told() -> None:
    stage = Stage()
    stage.set("block", who="ann", reason="an incident")
    stage.clocks.passes(1)
    stage.set("off", who="bob")
    assert stage.mode() == "off"
    assert [(s.mode, s.who) for s in stage.switch.settings()] == [("off", "bob")]
    first, second = stage.told
    assert (first.did, first.who, first.reason, first.mode, first.before) == (
        "set",
        "ann",
        "an incident",
        "block",
        None,
    )
    assert (second.did, second.who, second.mode, second.before) == ("set", "bob", "off", first.setting)
    assert second.at == first.at + 1


def test_what_holds_for_all_is_told_of_a_narrow_setting_too() -> None:
    stage = Stage()
    stage.set("block", model="m")
    assert (stage.told[0].mode, stage.mode()) == ("observe", "observe")


def test_what_is_cleared_falls_away_and_is_told() -> None:
    stage = Stage()
    stage.set("block")
    stage.set("off", model="m")
    cleared = stage.switch.clear(who="bob", reason="over")
    assert cleared is not None
    assert cleared.mode == "block"
    assert stage.mode() == "observe"
    assert stage.switch.now.mode_for("m") == "off"
    last = stage.told[-1]
    assert (last.did, last.who, last.reason, last.mode, last.setting) == ("cleared", "bob", "over", "observe", cleared)


def test_a_tool_is_cleared_by_any_way_to_write_it() -> None:
    stage = Stage()
    stage.set("block", tool="run_command")
    assert stage.switch.clear(who="bob", tool="runCommand") is not None
    assert stage.switch.settings() == []


def test_clearing_what_is_not_set_tells_nothing() -> None:
    stage = Stage()
    stage.set("block", model="m")
    assert stage.switch.clear(who="bob") is None
    assert stage.switch.clear(who="bob", model="m", tool="t") is None
    assert stage.did() == ["set"]


def test_a_new_configured_mode_holds_for_all_and_leaves_the_narrow_ones() -> None:
    stage = Stage()
    stage.set("block")
    stage.set("block", tool="t")
    stage.switch.configure("off")
    assert (stage.mode(), stage.switch.configured) == ("off", "off")
    assert stage.switch.now.of_calls("m")("t") == "block"
    last = stage.told[-1]
    assert (last.did, last.who, last.mode) == ("configured", None, "off")
    assert last.before is not None
    assert last.before.mode == "block"


def test_what_cannot_be_recorded_does_not_happen() -> None:
    full = OSError("no space")

    def record(change: Change) -> None:
        if change.did == "cleared" or (change.setting is not None and change.setting.mode == "off"):
            raise full

    stage = Stage(record=record)
    stage.set("block")
    with pytest.raises(OSError, match="no space"):
        stage.set("off")
    with pytest.raises(OSError, match="no space"):
        stage.switch.clear(who="ann")
    assert stage.mode() == "block"


def test_settings_are_bounded_and_one_that_is_there_can_still_be_turned() -> None:
    stage = Stage()
    for i in range(MAX_SETTINGS):
        stage.set("block", model=f"m{i}", seconds=60)
    with pytest.raises(SwitchError, match="256 settings are in force"):
        stage.set("off")
    stage.set("off", model="m3", seconds=60)
    assert stage.switch.now.mode_for("m3") == "off"
    stage.clocks.passes(60)
    stage.set("off")
    assert len(stage.switch.settings()) == 1


# -- the end of a setting


def test_a_setting_ends_by_itself_and_is_told_once() -> None:
    stage = Stage()
    stage.set("block", seconds=30)
    stage.set("off", model="m", seconds=90)
    assert stage.switch.next_end() == 30
    stage.clocks.passes(29.9)
    assert stage.mode() == "block"
    stage.clocks.passes(0.1)
    assert stage.mode() == "observe"
    assert stage.switch.next_end() == 60
    for _ in range(3):
        stage.switch.expire()
    assert stage.did() == ["set", "set", "expired"]
    last = stage.told[-1]
    assert (last.who, last.mode, last.until, last.at) == (None, "observe", stage.clocks.wall, stage.clocks.wall)
    assert last.setting is not None
    assert last.setting.mode == "block"
    stage.clocks.passes(60)
    assert stage.switch.now.mode_for("m") == "observe"
    assert stage.switch.next_end() is None


@pytest.mark.parametrize(
    "look",
    [
        lambda switch: switch.mode,
        lambda switch: switch.now.strongest,
        lambda switch: switch.now.mode_for("m"),
        lambda switch: switch.now.of_calls("m")("t"),
        lambda switch: (switch.settings() and "block") or "observe",
    ],
)
def test_nothing_shows_a_setting_that_has_ended(look: Callable[[Switch], str]) -> None:
    stage = Stage()
    stage.set("block", model="m", tool="t", seconds=10)
    stage.set("block", seconds=10)
    assert look(stage.switch) == "block"
    stage.clocks.passes(10)
    assert look(stage.switch) == "observe"


def test_one_that_has_ended_is_told_before_the_next_is_set() -> None:
    stage = Stage()
    stage.set("block", seconds=10)
    stage.clocks.passes(11)
    stage.set("off")
    assert stage.did() == ["set", "expired", "set"]
    assert stage.told[-1].before is None


def test_a_newer_setting_takes_the_expiry_of_the_older_away() -> None:
    stage = Stage()
    stage.set("block", seconds=10)
    stage.set("block")
    stage.clocks.passes(LONGEST_S)
    assert stage.mode() == "block"
    assert stage.switch.next_end() is None


@pytest.mark.parametrize("by", [-7 * 86400.0, -3600.0, 3600.0, 7 * 86400.0])
def test_a_wall_clock_that_is_set_anew_moves_no_expiry(by: float) -> None:
    stage = Stage()
    stage.set("block", seconds=60)
    (setting,) = stage.switch.settings()
    assert stage.switch.until(setting) == stage.clocks.wall + 60
    stage.clocks.passes(20)
    stage.clocks.wall += by
    assert stage.mode() == "block"
    assert stage.switch.until(setting) == stage.clocks.wall + 40
    stage.clocks.passes(39.5)
    assert stage.mode() == "block"
    stage.clocks.passes(0.5)
    assert stage.mode() == "observe"


def test_one_without_an_end_has_none() -> None:
    stage = Stage()
    stage.set("block")
    (setting,) = stage.switch.settings()
    assert stage.switch.until(setting) is None
    assert stage.told[0].until is None


# -- what cannot be meant


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ({"mode": "blocked"}, "mode: is one of off, observe, block"),
        ({"mode": "BLOCK"}, "mode: is one of off, observe, block"),
        ({"mode": ""}, "mode: is one of off, observe, block"),
        ({"seconds": 0}, "expiry: lies ahead, by 30 days at most"),
        ({"seconds": -1}, "expiry: lies ahead, by 30 days at most"),
        ({"seconds": LONGEST_S + 1}, "expiry: lies ahead, by 30 days at most"),
        ({"seconds": math.inf}, "expiry: lies ahead, by 30 days at most"),
        ({"seconds": math.nan}, "expiry: lies ahead, by 30 days at most"),
        ({"reason": ""}, "reason: is one line"),
        ({"reason": "  "}, "reason: is one line"),
        ({"reason": "a\nb"}, "reason: is one line"),
        ({"reason": "a\x1b[2Jb"}, "reason: is one line"),
        ({"reason": "a\u202eb"}, "reason: is one line"),
        ({"reason": "a" * (MAX_REASON + 1)}, "reason: is one line"),
        ({"model": ""}, "model: is a name"),
        ({"model": "a\nb"}, "model: is a name"),
        ({"model": "a" * (MAX_NAME + 1)}, "model: is a name"),
        ({"tool": ""}, "tool: is a name"),
        ({"tool": "a\x00"}, "tool: is a name"),
        ({"tool": "a" * (MAX_NAME + 1)}, "tool: is a name"),
        ({"tool": "__"}, "tool: names no tool"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(bad: dict[str, Any], fault: str) -> None:
    stage = Stage()
    with pytest.raises(SwitchError) as caught:
        stage.switch.set(**({"mode": "block", "who": "ann"} | bad))
    assert str(caught.value).startswith(fault)
    assert "\n" not in str(caught.value)
    assert stage.told == []
    assert stage.switch.settings() == []
    if bad.keys() & {"reason", "model", "tool"}:
        with pytest.raises(SwitchError) as caught:
            stage.switch.clear(**({"who": "ann"} | bad))
        assert str(caught.value).startswith(fault)


def test_the_most_that_can_be_meant() -> None:
    stage = Stage()
    stage.set("block", model="m" * MAX_NAME, tool="t" * MAX_NAME, reason="r" * MAX_REASON, seconds=LONGEST_S)
    assert stage.switch.now.of_calls("m" * MAX_NAME)("t" * MAX_NAME) == "block"
