"""A whole proxy and its audit: that it began and ended, who turned the switch, and who else may not write it."""

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.app import Service
from proxy.audit.reading import records, verify
from proxy.configfile import load
from proxy.errors import StartError
from proxy.tokenfile import read
from tests.proxy.approving import full
from tests.proxy.commands.typed import typed
from tests.proxy.control.serving import Port, on, settings
from tests.proxy.serving import Proxy, proxy
from tests.standin import StandIn
from tests.standin.asking_it import PARIS, chat


def test_a_start_says_what_was_in_force(tmp_path: Path) -> None:
    async def scene(port: Port) -> None:
        metrics = (await port.ask("GET", "/metrics")).text
        assert "\ncounterproof_audit_up 1.0\n" in metrics
        assert "\ncounterproof_audit_lost_total 0.0\n" in metrics

    for _ in range(2):
        on(tmp_path, scene)
    found = list(records(tmp_path / "audit.jsonl"))
    assert [record.kind for record in found] == ["start", "stop"] * 2
    assert (found[0].data["version"], found[0].data["mode"]) == (version("counterproof"), "observe")
    assert len(found[0].data["policy"]) == 16
    assert found[2].data["chain"] == found[0].data["chain"]


def test_who_turned_the_switch_is_recorded_and_the_last_one_wins(tmp_path: Path) -> None:
    async def scene(port: Port) -> None:
        turns = [{"mode": "block", "for": 60, "reason": "an incident"}, {"mode": "off", "reason": "a mistake"}]
        for response in await asyncio.gather(*(port.ask("PUT", "/admin/mode", "mode", json=turn) for turn in turns)):
            assert response.status_code == 200
        assert port.service.regime.mode == "off"

    on(tmp_path, scene)
    told = [(r.who, r.data["event"], r.data["mode"], r.data["reason"]) for r in records(tmp_path / "audit.jsonl")
            if r.kind == "mode"]  # fmt: skip
    assert told == [("mode", "set", "block", "an incident"), ("mode", "set", "off", "a mistake")]


def test_two_proxies_on_one_audit_are_one_too_many(tmp_path: Path) -> None:
    async def scene(_port: Port) -> None:
        with pytest.raises(StartError) as caught:
            Service(load(None, settings(tmp_path), {}))
        assert caught.value.problems == (
            f"audit.path: {tmp_path}/audit.jsonl: another process writes this audit; each proxy has one of its own",
        )

    on(tmp_path, scene)
    assert verify(tmp_path / "audit.jsonl").lines == 2


def test_no_audit_is_kept_where_none_is_wanted(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine:
            async with proxy(tmp_path, engine, audit={"path": None}) as door:
                assert (await door.chat(chat()))[0] == 200
                assert await door.metric("counterproof_audit_up") == 0

    asyncio.run(main())
    assert not (tmp_path / "audit.jsonl").exists()


def test_answers_go_on_while_the_audit_cannot_be_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine:
            async with proxy(tmp_path, engine, mode="block") as door:
                (tmp_path / "audit.jsonl").unlink()
                door.service.regime.switch.set("block", who="anna", model=None, tool=None, seconds=None, reason=None)
                assert (await door.chat(chat()))[0] == 200
                async with asyncio.timeout(10):
                    while await door.metric("counterproof_audit_up") != 0:
                        await asyncio.sleep(0.01)
                assert (await door.chat(chat()))[0] == 200

    asyncio.run(main())


def test_a_turn_of_the_switch_that_cannot_be_recorded_is_in_force_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def turn(door: Proxy, mode: str | None) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {read(tmp_path / 'control' / 'token')}"}
        async with door.session.put(f"{door.control}/admin/mode", json={"mode": mode}, headers=headers) as response:
            assert response.status == 200
            shown: dict[str, Any] = await response.json()
            return shown

    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine) as door:
            assert "recorded" not in await turn(door, "off")
            with full(path):
                for mode in ("observe", "block", "off"):
                    shown = await turn(door, mode)
                    assert (shown["mode"], shown["recorded"]) == (mode, False)
                    _, _, response = await door.chat(chat())
                    assert response.headers["x-counterproof-mode"] == mode
                assert (await turn(door, None))["recorded"] is False
                assert "recorded" not in await turn(door, None)  # it is cleared already: nothing turns
                assert await door.metric("counterproof_audit_lost_total") == 4
            assert "recorded" not in await turn(door, "block")

    with capture_logs() as logs:
        asyncio.run(main())
    lost = [(e["did"], e["mode"], e["who"]) for e in logs if e["event"] == "a turn of the switch is not in the audit"]
    assert [(did, mode) for did, mode, _who in lost] == [
        ("set", "observe"),
        ("set", "block"),
        ("set", "off"),
        ("cleared", "observe"),
    ]
    assert {who for _did, _mode, who in lost} == {found[1].who for found in [list(records(path))]}
    kinds = [(r.kind, r.data.get("mode"), r.data.get("lost")) for r in records(path)]
    assert kinds[1:-1] == [("mode", "off", None), ("recovered", None, 4), ("mode", "block", None)]
    assert verify(path).fault is None


@pytest.mark.slow
def test_who_turns_it_from_a_terminal_is_told_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine) as door:
            at = ("--control", door.control, "--token", str(read(tmp_path / "control" / "token")))
            code, _, err = await typed("mode", "off", *at)
            assert (code, err) == (0, "")
            (tmp_path / "audit.jsonl").unlink()
            code, out, err = await typed("mode", "block", *at)
            assert code == 0
            assert out.startswith("mode block")
            assert err == "counterproof: this is in force, and could not be recorded in the audit\n"

    asyncio.run(main())
