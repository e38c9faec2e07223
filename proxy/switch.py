"""The switch: which mode holds for whom, turned while the proxy runs. Pure: clocks are handed in.

A setting is for all, for a model, for a tool, or for a tool of a model. The most specific one counts: a tool of a model
before a tool before a model before all, and where there is none, the configured mode. A newer setting for the same
replaces the older one. An expiry is kept on the monotonic clock: a wall clock that is set anew does not move it.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from shadow.errors import CounterproofError
from validators.policy import normalised

Mode = Literal["off", "observe", "block"]
MODES: tuple[Mode, ...] = get_args(Mode)
"""From the weakest to the strongest."""

LONGEST_S = 30 * 86400.0
MAX_SETTINGS = 256
MAX_REASON, MAX_NAME = 500, 256  # characters

Target = tuple[str | None, str | None]
"""Whom a setting is for: a model, and a tool as policies see its name; None for any."""


class SwitchError(CounterproofError):
    """A setting cannot be meant; one clear line, with the name of what is at fault first."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A mode for a model (exactly that name) and a tool (without regard to case and separators); None is any.

    `ends` is on the monotonic clock, None where it does not end by itself; `at` is when `who` set it, in epoch seconds.
    """

    mode: Mode
    model: str | None
    tool: str | None
    ends: float | None
    reason: str | None
    who: str
    at: float

    @property
    def target(self) -> Target:
        """Whom it is for."""
        return self.model, None if self.tool is None else normalised(self.tool)


@dataclass(frozen=True, slots=True)
class Change:
    """One turn of the switch, for the record.

    A setting was `set` (`before` is the one that it replaced), was `cleared` by somebody, or has `expired`; or another
    mode is `configured` (`before`, the setting for all, falls away then). `who` is None where nobody did it. `at` and
    `until`, the setting's expiry, are epoch seconds by the wall clock of that moment; `mode` is what holds for all from
    then on.
    """

    did: Literal["set", "cleared", "expired", "configured"]
    mode: Mode
    at: float
    setting: Setting | None = None
    before: Setting | None = None
    until: float | None = None
    who: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Modes:
    """What the switch says at one moment: a request keeps the modes that it began with."""

    configured: Mode
    settings: Mapping[Target, Setting]

    @functools.cached_property
    def for_all(self) -> Mode:
        """The mode for all that nothing more specific is set for."""
        return self._of((None, None))

    @functools.cached_property
    def strongest(self) -> Mode:
        """The strongest mode that anything may be in, for whoever knows neither model nor tools yet."""
        return max((self.for_all, *(setting.mode for setting in self.settings.values())), key=MODES.index)

    @functools.cached_property
    def _tools(self) -> bool:
        return any(tool is not None for _model, tool in self.settings)

    def of_calls(self, model: str | None) -> Callable[[str], Mode]:
        """The mode for each tool's calls by a model."""
        modes, for_others = self._by_tool(model)
        return (lambda tool: modes.get(normalised(tool), for_others)) if modes else (lambda _tool: for_others)

    def mode_for(self, model: str | None) -> Mode:
        """The mode for a model's request: the strongest of any call that may come of it, of an undeclared tool too."""
        if not self.settings:  # nearly always, and asked for every request
            return self.configured
        modes, for_others = self._by_tool(model)
        return max(for_others, *modes.values(), key=MODES.index) if modes else for_others

    def _by_tool(self, model: str | None) -> tuple[dict[str, Mode], Mode]:
        """By tool, where one has a mode of its own with this model, and for all others."""
        if model == "":
            return self._of_any()
        for_others = self._of((model, None), (None, None))
        if not self._tools:
            return {}, for_others
        tools = {tool for at, tool in self.settings if tool is not None and at in {None, model}}
        return {tool: self._of((model, tool), (None, tool)) for tool in tools}, for_others

    def _of_any(self) -> tuple[dict[str, Mode], Mode]:
        """As `_by_tool` for a request that names no model: its server takes one, and that may be any of those named."""
        named = {model for model, _tool in self.settings if model} | {None}
        found = [self._by_tool(model) for model in named]
        tools = {tool for modes, _for_others in found for tool in modes}
        by_tool = {tool: [modes.get(tool, for_others) for modes, for_others in found] for tool in tools}
        for_others = max((for_others for _modes, for_others in found), key=MODES.index)
        return {tool: max(modes, key=MODES.index) for tool, modes in by_tool.items()}, for_others

    def _of(self, *targets: Target) -> Mode:
        for target in targets:
            if (setting := self.settings.get(target)) is not None:
                return setting.mode
        return self.configured


class Switch:
    """The settings in force, over the configured mode. `clock` gives monotonic seconds, `wall` epoch seconds.

    `record` is told of each change once. What somebody does is told before it is in force, and does not happen where
    `record` raises. What the clock or the configuration did has happened already: there it must not raise.
    """

    def __init__(
        self,
        configured: Mode,
        record: Callable[[Change], None] = lambda _change: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._record, self._clock, self._wall = record, clock, wall
        self._now = Modes(configured, {})
        self._next_end = math.inf

    # --- what is in force -------------------------------------------------------------------------------------

    @property
    def now(self) -> Modes:
        """What holds now, and goes on to hold for a request that begins now."""
        self.expire()
        return self._now

    @property
    def configured(self) -> Mode:
        """The mode that holds where no setting does."""
        return self._now.configured

    @property
    def mode(self) -> Mode:
        """The mode for all that nothing more specific is set for."""
        return self.now.for_all

    def settings(self) -> list[Setting]:
        """All settings, oldest first."""
        return list(self.now.settings.values())

    def until(self, setting: Setting) -> float | None:
        """When a setting ends, in epoch seconds by the wall clock as it is now."""
        return None if setting.ends is None else self._wall() + setting.ends - self._clock()

    def next_end(self) -> float | None:
        """Seconds until a setting ends by itself, 0 where one is due; None where none does."""
        return None if self._next_end == math.inf else max(0.0, self._next_end - self._clock())

    # --- turning it -------------------------------------------------------------------------------------------

    def set(
        self,
        mode: Mode,
        *,
        who: str,
        model: str | None = None,
        tool: str | None = None,
        seconds: float | None = None,
        reason: str | None = None,
    ) -> Setting:
        """Puts a mode in force for a target, for so many seconds (None: until somebody turns it again).

        Raises:
            SwitchError: it cannot be meant, or there are too many settings.
        """
        if mode not in MODES:
            raise SwitchError(f"mode: is one of {', '.join(MODES)}")
        ends = None if seconds is None else self._clock() + _duration(seconds)
        setting = Setting(mode, _name("model", model), _tool(tool), ends, _reason(reason), who, self._wall())
        self.expire()
        now = self._now
        before = now.settings.get(setting.target)
        if before is None and len(now.settings) >= MAX_SETTINGS:
            raise SwitchError(f"mode: {MAX_SETTINGS} settings are in force; clear some of them first")
        for_all = mode if setting.target == (None, None) else now.for_all
        self._record(
            Change("set", for_all, setting.at, setting, before, self.until(setting), who=who, reason=setting.reason)
        )
        others = {target: other for target, other in now.settings.items() if target != setting.target}
        self._put(now.configured, others | {setting.target: setting})
        return setting

    def clear(
        self, *, who: str, model: str | None = None, tool: str | None = None, reason: str | None = None
    ) -> Setting | None:
        """Takes a target's setting away; None where there was none, and nothing is told.

        Raises:
            SwitchError: names or reason cannot be meant.
        """
        target = _name("model", model), None if tool is None else normalised(_tool(tool) or "")
        said = _reason(reason)
        now = self.now
        setting = now.settings.get(target)
        if setting is None:
            return None
        for_all = now.configured if target == (None, None) else now.for_all
        self._record(Change("cleared", for_all, self._wall(), setting, who=who, reason=said))
        self._put(now.configured, {at: other for at, other in now.settings.items() if at != target})
        return setting

    def configure(self, mode: Mode) -> None:
        """Another mode is configured: it holds for all from now on, whatever was set for all before."""
        now = self.now
        self._put(mode, {target: other for target, other in now.settings.items() if target != (None, None)})
        self._record(Change("configured", mode, self._wall(), before=now.settings.get((None, None))))

    def expire(self) -> None:
        """Lets fall away what has ended; each one is told once."""
        if self._next_end == math.inf or (now := self._clock()) < self._next_end:
            return
        modes = self._now
        over = [setting for setting in modes.settings.values() if setting.ends is not None and setting.ends <= now]
        self._put(modes.configured, {at: setting for at, setting in modes.settings.items() if setting not in over})
        for setting in over:
            self._record(Change("expired", self._now.for_all, self._wall(), setting, until=self.until(setting)))

    def _put(self, configured: Mode, settings: Mapping[Target, Setting]) -> None:
        self._now = Modes(configured, MappingProxyType(dict(settings)))
        self._next_end = min((s.ends for s in settings.values() if s.ends is not None), default=math.inf)


def _duration(seconds: float) -> float:
    if not 0 < seconds <= LONGEST_S:  # NaN is neither
        raise SwitchError(f"expiry: lies ahead, by {LONGEST_S / 86400:.0f} days at most")
    return seconds


def _name(what: str, name: str | None) -> str | None:
    if name is not None and not (0 < len(name) <= MAX_NAME and name.isprintable()):
        raise SwitchError(f"{what}: is a name of 1 to {MAX_NAME} printable characters")
    return name


def _tool(name: str | None) -> str | None:
    if name is not None and not normalised(_name("tool", name) or ""):
        raise SwitchError("tool: names no tool: it holds no letter and no digit")
    return name


def _reason(reason: str | None) -> str | None:
    if reason is not None and not (reason.strip() and len(reason) <= MAX_REASON and reason.isprintable()):
        raise SwitchError(f"reason: is one line of 1 to {MAX_REASON} printable characters")
    return reason
