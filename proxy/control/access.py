"""Who may use the control port: names it is called by, pages it is used from, tokens and their scopes."""

import ipaddress
from collections.abc import Collection
from typing import Annotated, Any

import structlog
from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.control.answers import BROKEN, NO_TOKEN, OTHER_HOST, OTHER_ORIGIN, RefusedError, answer, missing
from proxy.http import TOO_LARGE, Headers, Refusal, length
from proxy.tokens import Token, Tokens, TokenScope

log = structlog.get_logger("counterproof.control")

HEALTH = frozenset({"/healthz"})
"""Paths that answer everybody: they say that this process serves, and a probe calls them by any name."""

MAX_BODY = 1024 * 1024
"""Bytes of a request; the largest is a policy."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_TOKEN = "counterproof.token"  # noqa: S105  (where a request's scope keeps whose it is)
_bearer = HTTPBearer(auto_error=False, description="a token of the control port")  # for the OpenAPI document


async def _who(
    scopes: SecurityScopes,
    request: Request,
    _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> str:
    token: Token | None = request.scope.get(_TOKEN)
    if token is None:
        raise RefusedError(NO_TOKEN)
    for scope in scopes.scopes:
        if scope not in token.scopes:
            raise RefusedError(missing(scope))
    return token.name


def require(scope: TokenScope) -> Any:
    """A FastAPI dependency: the name of the request's token (the *who*), or 401 without one, 403 without the scope.

    It is a parameter, `who: Annotated[str, require("mode")]`, or where nobody needs the name, in `dependencies=[…]`.
    """
    return Security(_who, scopes=[scope])


class Access:
    """ASGI middleware before every route: 403 for another Host or Origin, 401 without a token, 413 beyond `MAX_BODY`.

    A page of another site reaches a loopback port by a name of its own (DNS rebinding), or by the browser's good will;
    both show in what the browser says of itself. A path in `open_to_all` needs no token. A route that raises is a 500
    without a traceback, which could hold content.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, hosts: Collection[str], open_to_all: Collection[str]) -> None:
        self._app, self._tokens, self._open = app, tokens, frozenset(open_to_all)
        self._hosts = _LOOPBACK | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves or refuses one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if refusal := self._refusal(scope):
            await answer(refusal)(scope, receive, send)
            return
        begun, received = False, 0

        async def receiving() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY:
                raise HTTPException(413)
            return message

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receiving, sending)
        except Exception as error:  # noqa: BLE001  (whatever it is: its type is logged, its text may hold content)
            route = getattr(scope.get("route"), "path", None)  # not the path: that is the client's to write
            log.error("a request to the control port failed", route=route, error=type(error).__name__)
            if not begun:
                await answer(BROKEN)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        if scope["path"] in HEALTH:
            return None
        headers: Headers = scope["headers"]
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._is_called(hosts[0], scope):
            return OTHER_HOST
        origins = {value.decode("latin-1").lower() for name, value in headers if name == b"origin"}
        if not origins <= {f"http://{hosts[0]}", f"https://{hosts[0]}"}:  # what ends TLS before this port is not known
            return OTHER_ORIGIN
        token = self._tokens.find(headers)
        if token is None and scope["path"] not in self._open:
            return NO_TOKEN
        if length(dict(headers)) > MAX_BODY:
            return TOO_LARGE
        scope[_TOKEN] = token
        return None

    def _is_called(self, host: str, scope: Scope) -> bool:
        """Whether a `Host` names this port: loopback, the address that the connection came in by, or configured."""
        name = host_of(host)
        if name is None:
            return False
        local = scope.get("server")
        return name in self._hosts or (local is not None and _same_address(name, local[0]))


def host_of(authority: str) -> str | None:
    """The host of `host`, `host:port`, `[::1]` or `[::1]:port` without brackets; None for anything else."""
    if authority.startswith("["):
        host, bracket, rest = authority[1:].partition("]")
        fits = bool(bracket) and ":" in host
    else:
        host, colon, port = authority.partition(":")
        rest, fits = colon + port, True
    if not fits or not host or (rest and not (rest[0] == ":" and rest[1:].isascii() and rest[1:].isdigit())):
        return None
    return host


def _same_address(name: str, local: str) -> bool:
    try:
        return _address(name) == _address(local)
    except ValueError:
        return False


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(text)
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address
