"""Ways around by the answer: its status, its type, its coding and framing, and where the call stands in it.

The requests of these are like any other.
"""

import gzip
import json
from collections.abc import Iterator
from typing import Any

from tests.proxy.bypass import (
    PATHS,
    STREAM,
    WHOLE,
    Attempt,
    answered,
    asked,
    chat_message,
    dumps,
    post,
    streamed,
)
from tests.proxy.bypass_bodies import (
    OURS,
    chat_streams,
    chat_wholes,
    in_another_case,
    other_streams,
    other_wholes,
)
from tests.proxy.rawhttp import chunk, chunked, cut
from tests.proxy.rawstage import Answer

SSE = b"text/event-stream"
_REFUSED = b"[counterproof] The call of QXZK_JVWG "
_UNREAD = b"could not be checked for tool calls"


def _try(
    kind: str, name: str, dialect: str, answer: Answer, says: bytes = _REFUSED, *, status: int = 200, **others: Any
) -> Attempt:
    request = post(PATHS[dialect], asked(dialect, **others))
    return Attempt(kind, f"{dialect}, {name}", (request,), answer, (status,), says)


def _unread(kind: str, name: str, dialect: str, answer: Answer) -> Attempt:
    """A whole answer that is not read."""
    return _try(kind, name, dialect, answer, OURS, status=422)


def _statuses() -> Iterator[Attempt]:
    kind = "the answer's status"
    for dialect in PATHS:
        for status in (300, 301, 307, 400, 401, 404, 422, 429, 500, 503):
            start = b"HTTP/1.1 %d Odd" % status
            yield _unread(kind, f"{status} with a call", dialect, answered(WHOLE[dialect], start=start))
            yield _unread(kind, f"{status} with a stream", dialect, answered(STREAM[dialect], SSE, start=start))
        text = answered(STREAM[dialect], b"text/plain", start=b"HTTP/1.1 500 Odd")
        yield _unread(kind, "500 with a stream as text", dialect, text)
        packed = answered(
            gzip.compress(WHOLE[dialect]), b"application/json", b"Content-Encoding: gzip", start=b"HTTP/1.1 500 Odd"
        )
        yield _unread(kind, "500, packed", dialect, packed)
        for status in (201, 202, 203, 206, 226):
            start = b"HTTP/1.1 %d Odd" % status
            yield _try(kind, f"{status} with a call", dialect, answered(WHOLE[dialect], start=start), status=status)
            odd = answered(STREAM[dialect], SSE, start=start)
            yield _try(kind, f"{status} with a stream", dialect, odd, status=status)
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX-A: b\r\n\r\n"
    yield _try(kind, "100 and 103 before it", "chat", Answer((early + answered(WHOLE["chat"]).raw,)))
    switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + WHOLE["chat"]
    yield _try(kind, "101", "chat", Answer((switching,), end="close"), b"upstream_error", status=502)


def _types() -> Iterator[Attempt]:
    kind = "the answer's type"
    for dialect in PATHS:
        for typed in (b"text/plain", b"application/json", b"application/octet-stream", None):
            told = typed.decode() if typed else "nothing"
            yield _unread(kind, f"a stream as {told}", dialect, answered(STREAM[dialect], typed))
        for typed in (b"text/plain", b"text/html; charset=iso-8859-1", b"application/octet-stream", None):
            told = typed.decode() if typed else "nothing"
            yield _try(kind, f"JSON as {told}", dialect, answered(WHOLE[dialect], typed))
        yield _try(kind, "a stream as Text/Event-Stream", dialect, answered(STREAM[dialect], b"Text/Event-Stream"))
        yield _try(kind, "JSON as a stream", dialect, streamed(WHOLE[dialect]), _UNREAD)
        yield _try(kind, "JSON and a line's end as a stream", dialect, streamed(WHOLE[dialect] + b"\n\n"), _UNREAD)
        spread = json.dumps(json.loads(WHOLE[dialect]), indent=1).replace("\n", "\n\n").encode()
        yield _try(kind, "JSON with empty lines as a stream", dialect, streamed(spread), _UNREAD)
        yield _try(kind, "a stream though none was asked for", dialect, streamed(STREAM[dialect]), stream=False)
        yield _try(kind, "none though a stream was asked for", dialect, answered(WHOLE[dialect]), stream=True)
        both = answered(STREAM[dialect], b"application/json", b"Content-Type: text/event-stream")
        yield _try(kind, "two types", dialect, both)
        for charset in ("utf-16", "utf-16-le", "utf-32", "utf-7", "shift_jis"):
            for body, typed in ((WHOLE[dialect], b"application/json"), (STREAM[dialect], SSE)):
                spelled = typed + b"; charset=" + charset.encode()
                told = f"{typed.decode()} in {charset}"
                yield _unread(kind, told, dialect, answered(body.decode().encode(charset), spelled))
        yield _unread(kind, "utf-16 that is not told", dialect, answered(WHOLE[dialect].decode().encode("utf-16")))
        yield _unread(kind, "a byte order mark", dialect, answered(b"\xef\xbb\xbf" + WHOLE[dialect]))


def _codings() -> Iterator[Attempt]:
    kind = "the answer's coding"
    for dialect in PATHS:
        for coding in (b"gzip", b"x-gzip", b"identity, gzip", b"GZIP"):
            for body, typed in ((WHOLE[dialect], b"application/json"), (STREAM[dialect], SSE)):
                answer = answered(gzip.compress(body), typed, b"Content-Encoding: " + coding)
                yield _unread(kind, f"{coding.decode()}, {typed.decode()}", dialect, answer)
        untold = answered(gzip.compress(WHOLE[dialect]))
        yield _unread(kind, "gzip that is not told", dialect, untold)


def _framings() -> Iterator[Attempt]:
    kind = "the answer's framing"
    for dialect in PATHS:
        for body, typed in ((WHOLE[dialect], b"application/json"), (STREAM[dialect], SSE)):
            told, name = b"Content-Type: " + typed + b"\r\n", typed.decode()
            start = b"HTTP/1.1 200 OK\r\n" + told + b"Transfer-Encoding: chunked\r\n"
            yield _try(kind, f"chunks, {name}", dialect, Answer((start + b"\r\n" + chunked(*cut(body, 50)),)))
            yield _try(
                kind, f"bytes, {name}", dialect, Answer((start + b"\r\n", *map(chunk, cut(body, 29)), b"0\r\n\r\n"))
            )
            until = b"HTTP/1.0 200 OK\r\n" + told + b"\r\n" + body
            yield _try(kind, f"until it closes, {name}", dialect, Answer((until,), end="close"))
    text = dumps(chat_message({"content": "hello"}, finish_reason="stop"))
    start = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nTrailer: X-Call\r\n\r\n"
    )
    trailers = start + chunk(text) + b"0\r\nX-Call: " + WHOLE["chat"] + b"\r\n\r\n"
    yield _try(kind, "a call in a trailer", "chat", Answer((trailers,)), b"hello")
    behind = answered(text).raw + answered(WHOLE["chat"]).raw
    yield _try(kind, "a second answer behind it", "chat", Answer((behind,), end="close"), b"hello")


def _bodies() -> Iterator[Attempt]:
    for name, body, says in chat_streams():
        yield _try("where a call stands in a stream", name, "chat", streamed(body), says, stream=True)
    for dialect, name, body, says in other_streams():
        yield _try("where a call stands in a stream", name, dialect, streamed(body), says, stream=True)
    kind = "where a call stands in a whole answer"
    for name, body, says in chat_wholes():
        yield _try(kind, name, "chat", answered(body), says, status=422 if says == OURS else 200)
    for dialect, name, body, says in other_wholes():
        yield _try(kind, name, dialect, answered(body), says, status=422 if says == OURS else 200)
    kind = "keys in another case"
    for dialect, name, body in in_another_case(STREAM):
        yield _try(kind, f"{name}, streamed", dialect, streamed(body), _UNREAD, stream=True)
    for dialect, name, body in in_another_case(WHOLE):
        yield _unread(kind, f"{name}, whole", dialect, answered(body))


ATTEMPTS = (*_statuses(), *_types(), *_codings(), *_framings(), *_bodies())


# --- what no reader of the dialect takes for a call -------------------------------------------------------------------


def _foreign() -> Iterator[Attempt]:
    """Calls of other dialects, and streams in other characters, that no server sends: each gate holds them."""
    kind = "what a client of the dialect does not read"
    for dialect in ("messages", "responses"):
        yield _try(kind, f"a whole answer of {dialect}", "chat", answered(WHOLE[dialect]))
    yield _try(kind, "a stream of messages", "chat", streamed(STREAM["messages"]), stream=True)
    for dialect in PATHS:
        for charset in ("utf-16", "utf-32"):
            body = STREAM[dialect].decode().encode(charset)
            yield _try(kind, f"a stream in {charset}, untold", dialect, streamed(body, kind=SSE), stream=True)
        yield _try(kind, "a packed stream, untold", dialect, streamed(gzip.compress(STREAM[dialect])), stream=True)


FOREIGN = tuple(_foreign())
