"""HTTP as a proxy sees it: which headers go on, which belong to one connection, what a refusal looks like. Pure."""

import functools
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import orjson

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

Headers = Sequence[tuple[bytes, bytes]]

# RFC 9110, section 7.6.1: these belong to one connection, not to the message.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# `Host` is set anew; `Expect` is answered here, where the client waits.
_NOT_TO_PRIMARY = _HOP_BY_HOP | {b"host", b"expect"}
_NOT_WHEN_EDITED = _HOP_BY_HOP | {b"content-length"}
_KEPT = frozenset({b"keep-alive"})  # what nearly every request's `Connection` names
_UNSENDABLE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # what the ASGI server refuses to write in a value


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request's headers announce a body."""
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def only_chunked(headers: Headers) -> bool:
    """Whether a body is chunked and nothing else: another coding would go on with nothing left that says so."""
    return [value.strip().lower() for name, value in headers if name == b"transfer-encoding"] == [b"chunked"]


def length(headers: Mapping[bytes, bytes]) -> int:
    """The announced length of a body, 0 where none is announced."""
    value = headers.get(b"content-length", b"")
    return int(value) if value.isdigit() else 0


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first header of a (lower-case) name."""
    for key, value in headers:
        if key.lower() == name:
            return value
    return None


def _named(headers: Headers) -> AbstractSet[bytes]:
    """The names that a message's own `Connection` makes hop-by-hop."""
    lists = [value for name, value in headers if name.lower() == b"connection"]
    if not lists or lists in ([b"keep-alive"], [b"Keep-Alive"]):
        return _KEPT
    return {token.strip().lower() for value in lists for token in value.split(b",")}


@functools.lru_cache(maxsize=64)
def _not_to_primary(buffered: bool, readable: bool, drop: frozenset[bytes]) -> AbstractSet[bytes]:  # noqa: FBT001
    dropped = _NOT_TO_PRIMARY | drop
    if buffered:
        dropped |= {b"content-length"}
    return dropped | {b"accept-encoding"} if readable else dropped


def to_primary(
    headers: Headers, *, buffered: bool, readable: bool, drop: frozenset[bytes], authorization: bytes | None
) -> list[tuple[str, str]]:
    """A client's headers as the primary gets them, in their order: no hop-by-hop ones, none of `drop`.

    Names are in lower case, as ASGI has them. The length is set anew where the body was `buffered`; a `readable`
    answer is asked for where it is edited or held; `authorization` is what the primary gets for its own.
    """
    dropped = _not_to_primary(buffered, readable, drop)
    if not (named := _named(headers)) <= dropped:
        dropped |= named
    try:
        kept = [(name.decode(), value.decode()) for name, value in headers if name not in dropped]
    except UnicodeDecodeError:
        kept = [(name.decode("latin-1"), _text(value)) for name, value in headers if name not in dropped]
    if readable:
        kept.append(("accept-encoding", "identity"))
    if authorization:
        kept.append(("authorization", authorization.decode("latin-1")))
    return kept


def _text(value: bytes) -> str:
    """A header's value for an HTTP client that writes UTF-8: the same bytes again, unless they are none."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def to_client(headers: Headers, *, status: int, edited: bool, length: int | None) -> list[tuple[bytes, bytes]]:
    """The primary's raw headers as the client gets them: no hop-by-hop ones; an `edited` answer's new `length`.

    A 304 loses its length (it has no body, and the ASGI server would wait for one); what that server cannot write is
    left out.
    """
    dropped: AbstractSet[bytes] = _NOT_WHEN_EDITED if edited or status == 304 else _HOP_BY_HOP
    kept = [pair for pair in headers if pair[0].lower() not in dropped]
    if len(kept) < len(headers) and not (named := _named(headers)) <= dropped:
        kept = [pair for pair in kept if pair[0].lower() not in named]
    if _UNSENDABLE.search(b"".join([value for _, value in kept])):
        kept = [(name, value) for name, value in kept if not _UNSENDABLE.search(value)]
    return kept if length is None else [*kept, (b"content-length", str(length).encode())]


def own(exchange: str, mode: bytes = b"observe", acted: str = "") -> list[tuple[bytes, bytes]]:
    """What this proxy adds to every answer, and to one that it acted on."""
    added = [(b"x-counterproof-id", exchange.encode()), (b"x-counterproof-mode", mode)]
    return [*added, (b"x-counterproof-action", acted.encode())] if acted else added


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer of the proxy's own, in OpenAI's error shape; `close` ends the connection after it.

    `code` is the error's own word, the status where there is none. `typed` adds what Anthropic's clients look for.
    """

    status: int
    kind: str
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    close: bool = False
    code: str | None = None
    typed: bool = False

    @property
    def body(self) -> bytes:
        """The JSON body; the message gets this proxy's prefix."""
        message = f"[counterproof] {self.message}"
        error = {"message": message, "type": self.kind, "param": None, "code": self.code or self.status}
        return orjson.dumps({"type": "error", "error": error} if self.typed else {"error": error})

    async def answer(self, send: Send, exchange: str, mode: bytes = b"observe", acted: str = "") -> None:
        """Sends it."""
        body = self.body
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *self.headers,
            *own(exchange, mode, acted),
        ]
        if self.close:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


WEB_SOCKET = Refusal(501, "not_implemented_error", "web sockets are not served here", close=True)
NO_PATH = Refusal(400, "invalid_request_error", "the request's target is no path", close=True)
NO_SUCH_CODING = Refusal(
    501, "not_implemented_error", "a transfer coding other than chunked is not undone here", close=True
)
NO_UPGRADE = Refusal(501, "not_implemented_error", "no other protocol is spoken here", close=True)
PATH_DENIED = Refusal(
    403, "permission_error", "this path is not served here: it administers the engine (see paths.deny and paths.allow)"
)
NO_KEY = Refusal(
    401,
    "authentication_error",
    "a key of this proxy is needed: it was not given, or is not known",
    headers=((b"www-authenticate", b"Bearer"),),
)
BUSY = Refusal(503, "overloaded_error", "too many requests are open", headers=((b"retry-after", b"1"),))
SHUTTING_DOWN = Refusal(
    503, "overloaded_error", "the proxy is shutting down", headers=((b"retry-after", b"1"),), close=True
)
TOO_LARGE = Refusal(413, "invalid_request_error", "the request's body is larger than is taken here", close=True)
TOO_SLOW = Refusal(408, "invalid_request_error", "the request's body did not arrive in time", close=True)
UNREACHABLE = Refusal(502, "upstream_error", "the model server cannot be reached")
LATE = Refusal(504, "upstream_error", "the model server did not answer in time")


def not_passed_on(scope: Scope, heads: Mapping[bytes, bytes]) -> Refusal | None:
    """Why a request cannot be passed on as what it is, None where it can."""
    if b"upgrade" in heads:
        if heads[b"upgrade"].lower() == b"websocket":
            return WEB_SOCKET
        if has_body(heads) and b"upgrade" in _named(scope["headers"]):  # the parser takes it for the other protocol's
            return NO_UPGRADE
    if not scope["raw_path"].startswith(b"/"):  # `*`, or what would become a part of the primary's address
        return NO_PATH
    if b"transfer-encoding" in heads and not only_chunked(scope["headers"]):
        return NO_SUCH_CODING
    return None
