import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest

from proxy.tokenfile import read
from tests.proxy.control.serving import Port, message, on
from tests.proxy.serving import proxy
from tests.secrets import secret
from tests.standin import StandIn
from tests.standin.asking_it import PARIS, chat

SECRET = secret("very-secret")


async def put(port: Port, scope: str = "mode", **body: Any) -> httpx2.Response:
    return await port.ask("PUT", "/admin/mode", scope, json=body)


async def get(port: Port) -> dict[str, Any]:
    response = await port.ask("GET", "/admin/mode", "read")
    assert response.status_code == 200
    shown: dict[str, Any] = response.json()
    return shown


def about(text: str, expected: datetime) -> bool:
    """Whether a time is the expected one, give or take what a slow machine takes."""
    return abs(datetime.fromisoformat(text) - expected) < timedelta(seconds=60)


def test_the_switch_is_shown_as_it_is_configured() -> None:
    async def scene(port: Port) -> None:
        assert await get(port) == {"mode": "observe", "configured": "observe", "settings": []}

    on(None, scene)


def test_it_is_turned_and_says_by_whom_and_why() -> None:
    async def scene(port: Port) -> None:
        response = await put(port, mode="block", reason="an incident")
        assert response.status_code == 200
        assert response.json() == await get(port)
        shown = await get(port)
        assert (shown["mode"], shown["configured"]) == ("block", "observe")
        (setting,) = shown["settings"]
        assert about(setting.pop("at"), datetime.now(UTC))
        assert setting == {
            "mode": "block",
            "model": None,
            "tool": None,
            "until": None,
            "reason": "an incident",
            "who": "mode",
        }
        assert port.service.regime.mode == "block"
        assert b'counterproof_mode{mode="block"} 1.0' in (await port.ask("GET", "/metrics")).content

    on(None, scene)


def test_for_a_model_and_a_tool() -> None:
    async def scene(port: Port) -> None:
        await put(port, mode="block", model="qwen", tool="run_command")
        await put(port, mode="off", model="qwen")
        shown = await get(port)
        assert shown["mode"] == "observe"
        assert [(s["mode"], s["model"], s["tool"]) for s in shown["settings"]] == [
            ("block", "qwen", "run_command"),
            ("off", "qwen", None),
        ]
        switch = port.service.regime.switch
        assert switch.now.mode_for("qwen") == "block"
        assert switch.now.of_calls("qwen")("runCommand") == "block"
        assert switch.now.of_calls("qwen")("other") == "off"
        assert switch.now.strongest == "block"

    on(None, scene)


@pytest.mark.parametrize("lasts", ["30m", 1800, "1800s", "0.5h"])
def test_it_lasts_as_long_as_is_said(lasts: str | int) -> None:
    async def scene(port: Port) -> None:
        await port.ask("PUT", "/admin/mode", "mode", json={"mode": "block", "for": lasts})
        (setting,) = (await get(port))["settings"]
        assert about(setting["until"], datetime.now(UTC) + timedelta(minutes=30))

    on(None, scene)


@pytest.mark.parametrize("hours", [-11, 0, 5])
def test_or_until_a_time_in_any_zone(hours: int) -> None:
    async def scene(port: Port) -> None:
        end = datetime.now(UTC) + timedelta(minutes=30)
        zone = (end + timedelta(hours=hours)).replace(tzinfo=None).isoformat() + f"{hours:+03d}:00"
        await put(port, mode="block", until=zone)
        (setting,) = (await get(port))["settings"]
        assert about(setting["until"], end)
        again = await put(port, mode="block", until=setting["until"])  # what is shown can be set
        assert again.status_code == 200

    on(None, scene)


def test_null_takes_a_setting_away() -> None:
    async def scene(port: Port) -> None:
        await put(port, mode="block")
        await put(port, mode="off", model="qwen")
        response = await put(port, mode=None, reason="over")
        assert (response.json()["mode"], len(response.json()["settings"])) == ("observe", 1)
        assert (await put(port, mode=None, model="qwen")).json()["settings"] == []
        assert (await put(port, mode=None)).status_code == 200

    on(None, scene)


def test_two_operators_at_once_the_last_wins_and_both_are_recorded() -> None:
    tokens = [{"name": name, "token": secret(name, "ct"), "scopes": ["mode"]} for name in ("ann", "bob")]

    async def scene(port: Port) -> None:
        async def turns(name: str, mode: str) -> None:
            headers = {"authorization": f"Bearer {secret(name, 'ct')}"}
            assert (await port.ask("PUT", "/admin/mode", json={"mode": mode}, headers=headers)).status_code == 200

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(turns("ann", "block"))
                group.create_task(turns("bob", "off"))
        told = [(change.who, change.setting.mode) for change in changes if change.setting]
        assert sorted(told) == [("ann", "block")] * 20 + [("bob", "off")] * 20
        (setting,) = port.service.regime.switch.settings()
        assert (setting.who, setting.mode) == told[-1]
        for before, after in pairwise(changes):
            assert after.before == before.setting

    changes: list[Any] = []

    async def recorded(port: Port) -> None:
        record = port.service.regime._record

        def recording(change: Any) -> None:
            changes.append(change)
            record(change)

        port.service.regime._record = recording
        await scene(port)

    on(None, recorded, tokens=tokens)


PAST = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
FAR = (datetime.now(UTC) + timedelta(days=31)).isoformat()


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({"mode": "blocked"}, "mode: Input should be 'off', 'observe' or 'block'"),
        ({"mode": True}, "mode: Input should be 'off', 'observe' or 'block'"),
        ({}, "mode: Field required"),
        ({"model": "m"}, "mode: Field required"),
        ({"mode": "off", "modle": "m"}, "modle: Extra inputs are not permitted"),
        ({"mode": "off", "for": 0}, "for: Input should be greater than 0"),
        ({"mode": "off", "for": -5}, "for: Input should be greater than 0"),
        ({"mode": "off", "for": "0s"}, "for: Input should be greater than 0"),
        ({"mode": "off", "for": "soon"}, "for: a duration like 500ms, 10s, 5m, 2h or 30d was expected"),
        ({"mode": "off", "for": "31d"}, "expiry: lies ahead, by 30 days at most"),
        ({"mode": "off", "for": 1e300}, "expiry: lies ahead, by 30 days at most"),
        ({"mode": "off", "until": PAST}, "expiry: lies ahead, by 30 days at most"),
        ({"mode": "off", "until": FAR}, "expiry: lies ahead, by 30 days at most"),
        ({"mode": "off", "until": "9999-12-31T23:59:59Z"}, "expiry: lies ahead, by 30 days at most"),
        ({"mode": "off", "until": "0001-01-01T00:00:00Z"}, "expiry: lies ahead, by 30 days at most"),
        ({"mode": "off", "until": "2027-01-01T00:00:00"}, "until: Input should have timezone info"),
        ({"mode": "off", "for": "5m", "until": FAR}, "give either for or until"),
        ({"mode": None, "for": "5m"}, "what is taken away has no expiry"),
        ({"mode": "off", "reason": ""}, "reason: is one line of 1 to 500 printable characters"),
        ({"mode": None, "reason": ""}, "reason: is one line of 1 to 500 printable characters"),
        ({"mode": "off", "reason": "a\nb"}, "reason: is one line of 1 to 500 printable characters"),
        ({"mode": "off", "reason": "a" * 501}, "reason: is one line of 1 to 500 printable characters"),
        ({"mode": "off", "model": ""}, "model: is a name of 1 to 256 printable characters"),
        ({"mode": "off", "tool": "*"}, "tool: names no tool"),
        ({"mode": "off", "tool": ["a"]}, "tool: Input should be a valid string"),
        ([], "Input should be a valid dictionary"),
        ("block", "Input should be a valid dictionary"),
    ],
)
def test_what_cannot_be_meant_changes_nothing(body: Any, fault: str) -> None:
    async def scene(port: Port) -> None:
        response = await port.ask("PUT", "/admin/mode", "mode", json=body)
        assert response.status_code == 422
        assert message(response).startswith(fault)
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert (await get(port))["settings"] == []

    on(None, scene)


ODD = [
    b'{"mode": "off", "reason": "\\ud800"}',
    b'{"mode": "off", "model": "\\udc80"}',
    b'{"mode": "off", "for": NaN}',
    b'{"mode": "off", "for": Infinity}',
    b'{"mode": "off", "for": 1e999}',
]


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"mode": "off"', b"\xff\xfe", b"[" * 100_000, b'{"mode": "off"} x', *ODD]
)
def test_what_is_no_json_that_can_be_meant_changes_nothing(content: bytes) -> None:
    async def scene(port: Port) -> None:
        headers = {"content-type": "application/json"}
        response = await port.ask("PUT", "/admin/mode", "mode", content=content, headers=headers)
        assert response.status_code in {400, 422}
        assert message(response)
        assert (await get(port))["settings"] == []

    on(None, scene)


def test_what_was_sent_is_not_repeated() -> None:
    async def scene(port: Port) -> None:
        for body in ({"mode": SECRET}, {"mode": "off", "for": SECRET}):
            response = await put(port, **body)
            assert response.status_code == 422
            assert SECRET not in response.text

    on(None, scene)


# -- on a proxy that serves


async def turned(door: Any, body: dict[str, Any], headers: dict[str, str] | None = None) -> int:
    token = read(Path(door.service.settings.control.token_file))
    headers = {"authorization": f"Bearer {token}"} | (headers or {})
    async with door.session.put(f"{door.control}/admin/mode", json=body, headers=headers) as response:
        status: int = response.status
        return status


async def modes(door: Any, *bodies: dict[str, Any]) -> list[str]:
    found = []
    for body in bodies:
        _status, _body, response = await door.chat(body)
        found.append(response.headers["x-counterproof-mode"])
    return found


def test_the_next_request_is_in_the_new_mode(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine) as door:
            assert await modes(door, chat()) == ["observe"]
            assert await turned(door, {"mode": "block"}) == 200
            assert await modes(door, chat()) == ["block"]
            assert await door.metric("counterproof_mode", mode="block") == 1
            assert await turned(door, {"mode": None}) == 200
            assert await modes(door, chat()) == ["observe"]

    asyncio.run(main())


def test_an_expiry_is_told_though_nobody_asks(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine) as door:
            assert await turned(door, {"mode": "block", "for": "200ms"}) == 200
            gauge = door.service.metrics.registry.get_sample_value
            async with asyncio.timeout(20):
                while gauge("counterproof_mode", {"mode": "observe"}) != 1:
                    await asyncio.sleep(0.02)
            assert await modes(door, chat()) == ["observe"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8081"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
    ],
)
def test_a_page_elsewhere_turns_nothing_though_it_had_the_token(tmp_path: Path, headers: dict[str, str]) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine) as door:
            assert await turned(door, {"mode": "off"}, headers) == 403
            assert await modes(door, chat()) == ["observe"]
            own = {"origin": door.control}
            assert await turned(door, {"mode": "off"}, own) == 200

    asyncio.run(main())


def test_without_the_token_of_the_file_nobody_turns_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine) as door:
            for headers in ({}, {"authorization": f"Bearer {secret('wrong', 'ct')}"}):
                url = f"{door.control}/admin/mode"
                async with door.session.put(url, json={"mode": "off"}, headers=headers) as response:
                    assert response.status == 401
            assert read(path)

    path = tmp_path / "control" / "token"
    asyncio.run(main())
    assert not path.exists()
