"""The switch as the regime keeps it: recorded, logged, shown as a metric, ended by itself, beside the file's mode."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.configfile import load
from proxy.metrics import Metrics
from proxy.regime import Regime
from proxy.settings import Settings
from proxy.switch import Change
from tests.secrets import secret


def settings(mode: str) -> Settings:
    return load(None, {"primary": {"base_url": "http://h"}, "mode": mode}, {})


SECRET = secret("very-secret")


class Stage:
    """A regime, what it told, and a record that can fail."""

    def __init__(self) -> None:
        self.metrics, self.recorded, self.full = Metrics(), list[Change](), False
        self.regime = Regime(settings("observe"), self.metrics, record=self.record)
        self.logs: list[Any] = []

    def record(self, change: Change) -> None:
        if self.full:
            raise OSError(f"no space left, said of {SECRET}")
        self.recorded.append(change)

    def gauge(self) -> list[str]:
        value = self.metrics.registry.get_sample_value
        return [mode for mode in ("off", "observe", "block") if value("counterproof_mode", {"mode": mode})]

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not reached():
                await asyncio.sleep(0.01)


def on(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        stage = Stage()
        with capture_logs() as stage.logs:
            await stage.regime.open()
            try:
                await scene(stage)
            finally:
                await stage.regime.close()

    asyncio.run(main())


def test_a_turn_is_recorded_logged_and_shown() -> None:
    async def scene(one: Stage) -> None:
        setting = one.regime.switch.set("block", who="ann", reason=f"about {SECRET}")
        assert (one.regime.mode, one.gauge()) == ("block", ["block"])
        assert [(change.did, change.setting) for change in one.recorded] == [("set", setting)]
        (entry,) = one.logs
        assert (entry["event"], entry["mode"], entry["before"], entry["who"]) == ("mode", "block", "observe", "ann")
        assert SECRET not in str(one.logs)

    on(scene)


def test_a_narrow_turn_leaves_what_is_shown_for_all() -> None:
    async def scene(one: Stage) -> None:
        one.regime.switch.set("block", who="ann", model="qwen", tool="send")
        assert (one.regime.mode, one.gauge()) == ("observe", ["observe"])
        (entry,) = one.logs
        assert (entry["mode"], entry["target_model"], entry["target_tool"], entry["to"]) == (
            "observe",
            "qwen",
            "send",
            "block",
        )
        one.regime.switch.clear(who="bob", model="qwen", tool="send")
        assert [change.did for change in one.recorded] == ["set", "cleared"]

    on(scene)


def test_a_setting_ends_though_nobody_looks() -> None:
    async def scene(one: Stage) -> None:
        for mode in ("block", "off"):  # the second starts anew what the first has ended
            one.regime.switch.set(mode, who="ann", seconds=0.05)
            assert one.gauge() == [mode]
            await one.until(lambda: one.gauge() == ["observe"])
        assert [change.did for change in one.recorded] == ["set", "expired"] * 2
        assert [entry["did"] for entry in one.logs] == ["set", "expired"] * 2
        await one.until(lambda: len(one.regime._tasks) == 0)

    on(scene)


def test_one_that_ends_sooner_is_not_kept_by_one_that_ends_later() -> None:
    async def scene(one: Stage) -> None:
        one.regime.switch.set("off", who="ann", model="m", seconds=3600)
        await asyncio.sleep(0)  # whoever waits for that one has begun
        one.regime.switch.set("block", who="ann", seconds=0.05)
        await one.until(lambda: one.gauge() == ["observe"])
        assert len(one.regime.switch.settings()) == 1
        assert len(one.regime._tasks) == 1

    on(scene)


def test_what_cannot_be_recorded_does_not_happen() -> None:
    async def scene(one: Stage) -> None:
        one.full = True
        with pytest.raises(OSError, match="no space"):
            one.regime.switch.set("off", who="ann", seconds=0.05)
        assert (one.regime.mode, one.gauge(), one.logs) == ("observe", ["observe"], [])
        assert len(one.regime._tasks) == 0

    on(scene)


def test_an_end_that_cannot_be_recorded_happens_and_is_told() -> None:
    async def scene(one: Stage) -> None:
        one.regime.switch.set("block", who="ann", seconds=0.05)
        one.full = True
        await one.until(lambda: one.gauge() == ["observe"])
        (entry,) = [entry for entry in one.logs if entry["log_level"] == "error"]
        assert (entry["event"], entry["error"]) == ("a turn of the switch was not recorded", "OSError")
        assert SECRET not in str(one.logs)

    on(scene)


def test_a_new_mode_of_the_file_holds_for_all_and_leaves_narrow_settings() -> None:
    async def scene(one: Stage) -> None:
        one.regime.switch.set("block", who="ann")
        one.regime.switch.set("block", who="ann", tool="send")
        one.regime._taken(settings("observe"), policy=False)
        assert one.regime.mode == "block"  # it has not changed
        one.regime._taken(settings("off"), policy=False)
        assert (one.regime.mode, one.gauge()) == ("off", ["off"])
        assert one.regime.switch.now.of_calls("m")("send") == "block"
        last = one.recorded[-1]
        assert (last.did, last.who, last.mode) == ("configured", None, "off")
        assert one.logs[-1]["before"] == "block"

    on(scene)
