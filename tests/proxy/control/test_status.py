import asyncio
from importlib.metadata import version
from pathlib import Path

from proxy.tokenfile import read
from tests.proxy.control.serving import Port, on
from tests.proxy.serving import proxy
from tests.standin import StandIn
from tests.standin.asking_it import PARIS, chat


def test_what_a_proxy_is_doing() -> None:
    async def scene(port: Port) -> None:
        response = await port.ask("GET", "/admin/status", "read")
        assert response.json() == {
            "version": version("counterproof"),
            "mode": "observe",
            "strongest": "observe",
            "primaries": [{"name": "primary", "state": "cold", "why": "not asked yet", "shadows": []}],
            "open_requests": 0,
            "approvals_pending": 0,
            "policy": port.service.regime.policy.version,
        }
        await port.ask("PUT", "/admin/mode", "mode", json={"mode": "block", "tool": "send"})
        shown = (await port.ask("GET", "/admin/status", "read")).json()
        assert (shown["mode"], shown["strongest"]) == ("observe", "block")

    on(None, scene)


def test_shadows_are_told_with_their_states(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, StandIn([PARIS]) as second, proxy(tmp_path, engine, second) as door:
            await door.chat(chat())
            await door.settled()
            headers = {"authorization": f"Bearer {read(Path(str(door.service.settings.control.token_file)))}"}
            async with door.session.get(f"{door.control}/admin/status", headers=headers) as response:
                (primary,) = (await response.json())["primaries"]
        assert (primary["name"], primary["state"]) == ("primary", "ready")
        (shadow,) = primary["shadows"]
        assert (shadow["name"], shadow["role"], shadow["state"]) == ("s0", "reference", "ready")
        assert shadow["circuit_open"] is False

    asyncio.run(main())
