"""The bare relay: the floor of this stack. uvicorn and aiohttp as the proxy uses them, and nothing else.

    python -m bench.relay PORT ROOT_URL

It reads a request's body, sends it on, and relays the answer's chunks as they come. It does not notice clients that
leave, counts nothing and compares nothing.
"""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import uvicorn
from yarl import URL

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)
_NOT_ON = _HOP_BY_HOP | {b"host", b"content-length"}  # set anew


class Relay:
    """An ASGI app that relays to one server."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Relays one request; opens and closes the connection pool as the server starts and ends."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        assert self._session is not None
        body = await _whole(receive)
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        url = URL(self._root + (scope["raw_path"] + query).decode("latin-1"), encoded=True)
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"] if k not in _NOT_ON]
        async with self._session.request(
            scope["method"], url, headers=headers, data=body or None, allow_redirects=False
        ) as response:
            back = [(k, v) for k, v in response.raw_headers if k.lower() not in _HOP_BY_HOP]
            await send({"type": "http.response.start", "status": response.status, "headers": back})
            while chunk := await response.content.readany():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=256 * 1024,
        )
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._session.close()
        await send({"type": "lifespan.shutdown.complete"})


async def _whole(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


if __name__ == "__main__":
    uvicorn.run(
        Relay(sys.argv[2]),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        http="httptools",
        ws="none",
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
    )
