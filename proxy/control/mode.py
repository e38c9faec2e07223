"""`/admin/mode`: the switch, read and turned. It holds for requests that begin afterwards."""

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from fastapi import APIRouter
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from proxy.control.access import require
from proxy.control.answers import invalid
from proxy.fields import Seconds
from proxy.switch import Mode, Setting, Switch, SwitchError

PATH = "/admin/mode"


class SettingShown(BaseModel):
    """A setting in force; `until`, to the second, by the wall clock as it is now, null where it has no end."""

    mode: Mode
    model: str | None
    tool: str | None
    until: datetime | None
    reason: str | None
    who: str
    at: datetime


class ModeShown(BaseModel):
    """The mode for all, the configured one beneath it, and every setting, oldest first.

    `recorded` is there, and false, in the answer to a turn that is in force and could not be recorded.
    """

    mode: Mode
    configured: Mode
    settings: list[SettingShown]
    recorded: Literal[False] | None = None


class Turn(BaseModel):
    """A mode for all, a model, a tool or a tool of a model; null takes that setting away again."""

    model_config = ConfigDict(extra="forbid")

    mode: Mode | None
    model: str | None = None
    tool: str | None = None
    lasts: Seconds | None = Field(default=None, alias="for", description="seconds, or text like 30m")
    until: AwareDatetime | None = Field(default=None, description="instead of `for`: a time with its zone")
    reason: str | None = None

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.lasts is not None and self.until is not None:
            raise ValueError("give either for or until")
        if self.mode is None and (self.lasts is not None or self.until is not None):
            raise ValueError("what is taken away has no expiry")
        return self

    def seconds(self, now: float) -> float | None:
        """How long it holds, None for until it is turned again; `now` in epoch seconds."""
        return self.lasts if self.until is None else self.until.timestamp() - now


def mode_routes(switch: Switch, recorded: Callable[[], Awaitable[bool]]) -> APIRouter:
    """`GET` (scope `read`) and `PUT` (scope `mode`), which answers like `GET`; 422 where it cannot be meant.

    A turn is in force whether it can be recorded or not (`recorded` says of the last one): what an incident asks for
    must not wait for a disk. The answer says where it was not.
    """
    routes = APIRouter()

    @routes.get(PATH, dependencies=[require("read")], response_model_exclude_unset=True)
    async def _show() -> ModeShown:
        return shown(switch)

    @routes.put(PATH, response_model_exclude_unset=True)
    async def _turn(turn: Turn, who: Annotated[str, require("mode")]) -> ModeShown:
        try:
            if turn.mode is None:
                turned = switch.clear(who=who, model=turn.model, tool=turn.tool, reason=turn.reason)
            else:
                seconds = turn.seconds(time.time())
                turned = switch.set(
                    turn.mode, who=who, model=turn.model, tool=turn.tool, seconds=seconds, reason=turn.reason
                )
        except SwitchError as error:
            raise invalid(str(error)) from None
        if turned is not None and not await recorded():
            return shown(switch).model_copy(update={"recorded": False})
        return shown(switch)

    return routes


def shown(switch: Switch) -> ModeShown:
    """The switch as it is told."""
    settings = [_shown(setting, switch.until(setting)) for setting in switch.settings()]
    return ModeShown(mode=switch.mode, configured=switch.configured, settings=settings)


def _shown(setting: Setting, until: float | None) -> SettingShown:
    return SettingShown(
        mode=setting.mode,
        model=setting.model,
        tool=setting.tool,
        until=None if until is None else datetime.fromtimestamp(round(until), UTC),  # two clocks agree no better
        reason=setting.reason,
        who=setting.who,
        at=datetime.fromtimestamp(setting.at, UTC),
    )
