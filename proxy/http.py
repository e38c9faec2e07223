"""HTTP as a proxy sees it: which headers go on, which belong to one connection, what a refusal looks like. Pure."""

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import orjson
from multidict import CIMultiDict

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

Headers = Iterable[tuple[bytes, bytes]]

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
_UNSENDABLE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # what the ASGI server refuses to write in a value
_ODD_NAME = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')  # and in a name
_NOTHING: frozenset[bytes] = frozenset()


def has_body(headers: Headers) -> bool:
    """Whether a request's headers announce a body."""
    return any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers)


def length(headers: Headers) -> int | None:
    """The announced length of a body, None where none is announced."""
    value = header(headers, b"content-length")
    return int(value) if value is not None and value.isdigit() else None


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first header of a (lower-case) name."""
    for key, value in headers:
        if key.lower() == name:
            return value
    return None


def _named_in_connection(headers: Headers) -> AbstractSet[bytes]:
    named = _NOTHING
    for name, value in headers:
        if name.lower() == b"connection":
            named |= {token.strip().lower() for token in value.split(b",")}
    return named


def to_primary(
    headers: Headers, *, buffered: bool, injected: bool, drop: AbstractSet[bytes], authorization: bytes | None
) -> CIMultiDict[str]:
    """A client's headers as the primary gets them, in their order: no hop-by-hop ones, none of `drop` (lower case).

    The length is set anew where the body was `buffered`; an `injected` request asks for an answer that can be read;
    `authorization` is what the primary gets for its own.
    """
    dropped = _NOT_TO_PRIMARY | _named_in_connection(headers) | drop
    if buffered:
        dropped |= {b"content-length"}
    if injected:
        dropped |= {b"accept-encoding"}
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in headers:
        if name.lower() not in dropped:
            kept.add(name.decode("latin-1"), _text(value))
    if injected:
        kept.add("accept-encoding", "identity")
    if authorization:
        kept.add("authorization", authorization.decode("latin-1"))
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
    dropped = _HOP_BY_HOP | _named_in_connection(headers)
    if edited or status == 304:
        dropped |= {b"content-length"}
    kept = [
        (name, value)
        for name, value in headers
        if name.lower() not in dropped and not _UNSENDABLE.search(value) and not _ODD_NAME.search(name)
    ]
    return kept if length is None else [*kept, (b"content-length", str(length).encode())]


def own(exchange: str) -> list[tuple[bytes, bytes]]:
    """What this proxy adds to every answer."""
    return [(b"x-counterproof-id", exchange.encode()), (b"x-counterproof-mode", b"observe")]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer of the proxy's own, in OpenAI's error shape; `close` ends the connection after it."""

    status: int
    kind: str
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    close: bool = False

    @property
    def body(self) -> bytes:
        """The JSON body; the message gets this proxy's prefix."""
        message = f"[counterproof] {self.message}"
        error = {"message": message, "type": self.kind, "param": None, "code": self.status}
        return orjson.dumps({"error": error})

    async def answer(self, send: Send, exchange: str) -> None:
        """Sends it."""
        body = self.body
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *self.headers,
            *own(exchange),
        ]
        if self.close:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


WEB_SOCKET = Refusal(501, "not_implemented_error", "web sockets are not served here", close=True)
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
