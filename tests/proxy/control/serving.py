"""The control port of a whole service, asked without sockets; nothing behind it is opened."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2

from proxy.app import Service
from proxy.configfile import load
from tests.secrets import secret
from tests.watching import asgi

TOKENS = {scope: secret(scope, "ct") for scope in ("read", "metrics", "mode", "approve", "policy")}
"""A token for each scope, of the same name."""

ADDRESS = "127.0.0.1"


def settings(folder: Path | None, **control: Any) -> dict[str, Any]:
    """A configuration with these tokens, whose ledger and audit are kept in a folder, if any."""
    return {
        "primary": {"base_url": "http://127.0.0.1:9/v1"},
        "ledger": {"path": None if folder is None else str(folder / "ledger.db")},
        "control": {"tokens": [{"name": s, "token": token, "scopes": [s]} for s, token in TOKENS.items()]} | control,
    }


class Port:
    """A service's control port."""

    def __init__(self, service: Service, address: str = ADDRESS) -> None:
        self.service, self.app = service, service.control
        transport = httpx2.ASGITransport(app=asgi(self.app), raise_app_exceptions=True)
        host = f"[{address}]" if ":" in address else address
        self.client = httpx2.AsyncClient(transport=transport, base_url=f"http://{host}:8081")

    async def ask(self, method: str, path: str, scope: str | None = None, **more: Any) -> httpx2.Response:
        """Asks with the token of a scope, None for none."""
        headers = dict(more.pop("headers", {}))
        if scope is not None:
            headers["authorization"] = f"Bearer {TOKENS[scope]}"
        return await self.client.request(method, path, headers=headers, **more)


def on(
    folder: Path | None, scene: Callable[[Port], Awaitable[None]], *, address: str = ADDRESS, **control: Any
) -> None:
    """Plays a scene with the control port of a service, which has its files in a folder, if any; its own `address`."""

    async def main() -> None:
        async with _service(folder, **control) as service:
            port = Port(service, address)
            async with port.client:
                await scene(port)

    asyncio.run(main())


@contextlib.asynccontextmanager
async def _service(folder: Path | None, **control: Any) -> AsyncIterator[Service]:
    service = Service(load(None, settings(folder, **control), {}))
    try:
        yield service
    finally:
        await service.close()


def message(response: httpx2.Response) -> str:
    """What an error says; its shape is the data port's."""
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    text: str = body["error"]["message"]
    assert text.startswith("[counterproof] ")
    assert "\n" not in text
    return text.removeprefix("[counterproof] ")
