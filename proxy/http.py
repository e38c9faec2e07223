"""HTTP as a proxy sees it: which headers go on, which belong to one connection, what a refusal looks like. Pure."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
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


def has_body(headers: Headers) -> bool:
    """Whether a request's headers announce a body."""
    return any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers)


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first header of a (lower-case) name."""
    return next((value for key, value in headers if key.lower() == name), None)


def _named_in_connection(headers: Headers) -> frozenset[bytes]:
    return frozenset(
        token.strip().lower() for name, value in headers if name.lower() == b"connection" for token in value.split(b",")
    )


def to_primary(headers: Headers, *, buffered: bool, injected: bool, authorization: bytes | None) -> CIMultiDict[str]:
    """A client's headers as the primary gets them: no hop-by-hop ones, `authorization` in place of the client's own.

    The length is set anew where the body was `buffered`; an `injected` request asks for an answer that can be read.
    """
    headers = list(headers)
    drop = _HOP_BY_HOP | _named_in_connection(headers) | {b"host"}
    drop |= {b"content-length"} if buffered else frozenset()
    drop |= {b"accept-encoding"} if injected else frozenset()
    drop |= {b"authorization"} if authorization else frozenset()
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in headers:
        if name.lower() not in drop:
            kept.add(name.decode("latin-1"), value.decode("latin-1"))
    if injected:
        kept.add("accept-encoding", "identity")
    if authorization:
        kept.add("authorization", authorization.decode("latin-1"))
    return kept


def to_client(headers: Headers, *, edited: bool, length: int | None) -> list[tuple[bytes, bytes]]:
    """The primary's raw headers as the client gets them: no hop-by-hop ones; an `edited` answer's new `length`."""
    headers = list(headers)
    drop = _HOP_BY_HOP | _named_in_connection(headers) | ({b"content-length"} if edited else frozenset())
    kept = [(name, value) for name, value in headers if name.lower() not in drop]
    return kept if length is None else [*kept, (b"content-length", str(length).encode())]


def own(exchange: str) -> list[tuple[bytes, bytes]]:
    """What this proxy adds to every answer."""
    return [(b"x-counterproof-id", exchange.encode()), (b"x-counterproof-mode", b"observe")]


def openai_error(message: str, kind: str, code: int) -> bytes:
    """A JSON body in OpenAI's error shape; the message gets this proxy's prefix."""
    error = {"message": f"[counterproof] {message}", "type": kind, "param": None, "code": code}
    return orjson.dumps({"error": error})


async def refuse_websocket(send: Send) -> None:
    """501: no dialect that is compared speaks web sockets."""
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 501, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
