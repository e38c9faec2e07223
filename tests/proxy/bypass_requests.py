"""Ways around that a client can try by itself: other paths, methods, codings, framings, headers, and coming again.

The model server of these answers whatever reaches it with a call.
"""

import gzip
import json
import zlib
from collections.abc import Iterator

from proxy.switch import Mode
from tests.proxy.bypass import (
    FUNCTION_CALL,
    PATHS,
    STREAM,
    WHOLE,
    Attempt,
    answered,
    asked,
    dumps,
    get,
    head,
    post,
    responses_answer,
    streamed,
)
from tests.proxy.rawhttp import chunk, chunked
from tests.proxy.rawstage import Answer

CHAT, RESPONSES, MESSAGES = PATHS["chat"], PATHS["responses"], PATHS["messages"]
MOST = 64 * 1024
"""`mirror.max_body_bytes` of the suite's proxy."""

_ENGINE = {dialect: answered(body) for dialect, body in WHOLE.items()}
_UNVERIFIABLE = b'"code":"unverifiable_request"'
_REFUSED = b"[counterproof] The call of QXZK_JVWG "
_WITHHELD = b'"code":"response_withheld"'
_BAD = b"[counterproof] "


def _never(kind: str, name: str, *pieces: bytes, status: int = 422, says: bytes = _UNVERIFIABLE) -> Attempt:
    """It reaches nobody."""
    return Attempt(kind, name, pieces, _ENGINE["chat"], (status,), says, reaches=0)


def _held(kind: str, name: str, *pieces: bytes, answer: Answer | None = None, dialect: str = "chat") -> Attempt:
    """It is a request like any other, and its call is refused."""
    return Attempt(kind, name, pieces, answer or _ENGINE[dialect], (200,), _REFUSED)


def _routes() -> Iterator[Attempt]:
    kind = "another route"
    for target in (
        CHAT + b"/batch",
        b"/v1/batches",
        b"/v1/batch",
        MESSAGES + b"/batches",
        b"/invocations",
        b"/inference/v1/generate",
        b"/generate",
        b"/generative_scoring",
        b"/cohere/v2/chat",
        b"/v1/interactions",
        b"/v1/conversations/conv_1/items",
        RESPONSES + b"/resp_0/cancel",
    ):
        yield _never(kind, f"POST {target.decode()}", post(target))
    for target in (RESPONSES + b"/resp_0", RESPONSES + b"/resp_0/input_items", CHAT + b"/c", b"/v1/realtime"):
        yield _never(kind, f"GET {target.decode()}", get(target))


def _stored() -> Iterator[Attempt]:
    kind = "state of the server's own"
    for name, value in {
        "previous_response_id": "resp_1",
        "conversation": "conv_1",
        "background": True,
        "store": True,
        "prompt": {"id": "pmpt_1"},
        "previous_input_messages": [{"role": "user", "content": "x"}],
    }.items():
        yield _never(kind, name, post(RESPONSES, asked("responses", **{name: value})))
    for spelled in ("yes", "ON", 1, "t"):  # what a lenient server takes for true
        yield _never(kind, f"background: {spelled!r}", post(RESPONSES, asked("responses", background=spelled)))
    # Clients may name their responses, and these names are those of routes that generate nothing.
    for name in ("render", "derender", "RENDER", "render;x"):
        yield _never(kind, f"a response called {name}", get(RESPONSES + b"/" + name.encode()))
        yield _never(kind, f"a conversation called {name}", get(b"/v1/conversations/" + name.encode()))
    posted = post(RESPONSES, asked("responses", request_id="resp_mine"), last=False)
    kept = answered(dumps(responses_answer(FUNCTION_CALL, id="resp_mine")))
    for name, second in {
        "fetched": get(RESPONSES + b"/resp_mine"),
        "built on": post(RESPONSES, asked("responses", previous_response_id="resp_mine")),
    }.items():
        yield Attempt(kind, f"a refused response is {name}", (posted, second), kept, (200, 422), _WITHHELD)
    for tool in ("web_search_preview", "mcp", "code_interpreter"):
        yield _never(kind, f"the tool {tool}", post(RESPONSES, asked("responses", tools=[{"type": tool}])))
    yield _never(kind, "mcp_servers", post(MESSAGES, asked("messages", mcp_servers=[{"type": "url", "name": "x"}])))
    search = [{"type": "web_search_20250305", "name": "web_search"}]
    yield _never(kind, "a server's tool", post(MESSAGES, asked("messages", tools=search)))


def _paths() -> Iterator[Attempt]:
    kind = "the path's spelling"
    for target in (
        b"/V1/Chat/Completions",
        b"//v1/chat/completions",
        b"/v1//chat/completions",
        b"/v1/chat/completions/",
        b"/v1/./chat/completions",
        b"/v1/x/../chat/completions",
        b"/v1/x/%2e%2e/chat/completions",
        b"/v1/x/..%2fchat/completions",
        b"/v1%2fchat%2fcompletions%2f",
        b"/v1/chat%252fcompletions",
        b"/v1\\chat\\completions",
        b"/v1/chat%5ccompletions",
        b"/v1/chat/completions;v=1",
        b"/v1/chat;v=1/completions",
        b"/v1/chat/completions%3fx",
        b"/v1/responses%3fx",
        b"/inference/v1/generate%23x",
        b"/v1/chat/completions%00",
        b"/v1/chat/completions%20",
        b"/v1/%63hat/completions%2f",
        b"/engine/v1/chat/completions",
        b"/chat/completions",
        b"/v2/messages",
    ):
        yield _never(kind, target.decode(), post(target))
    for target in (b"/v1/%63hat/completions", b"/v1%2fchat/completions", CHAT + b"?stream=true", CHAT + b"?/v1/models"):
        yield _held(kind, target.decode(), post(target))
    for target in (
        b"http://a/v1/chat/completions",
        b"http://a/v1/responses/resp_0",
        b"https://a:1/v1/chat/completions",
    ):
        yield _absolute(kind, target)
    yield _never(kind, "an asterisk", post(b"*", method=b"OPTIONS"), status=400, says=_BAD)
    yield _never(kind, "no slash", post(b"v1/chat/completions"), status=400, says=_BAD)


def _absolute(kind: str, target: bytes) -> Attempt:
    """A target in absolute form is taken apart as one in origin form is."""
    if target.endswith(b"/chat/completions"):
        return _held(kind, target.decode(), post(target))
    return _never(kind, target.decode(), get(target))


def _methods() -> Iterator[Attempt]:
    kind = "the method"
    for method in (b"GET", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"):
        yield _never(kind, f"{method.decode()} with a body", post(CHAT, method=method))
    yield _never(kind, "HEAD", get(CHAT, method=b"HEAD"), says=b"422")
    yield _never(kind, "QUERY", post(CHAT, method=b"QUERY"), says=b"[counterproof]")
    yield _never(kind, "post", post(CHAT, method=b"post"), status=400, says=_BAD)
    for name in (b"X-HTTP-Method-Override", b"X-HTTP-Method", b"X-Method-Override"):
        yield _never(kind, f"GET, {name.decode()}", post(CHAT, None, name + b": POST", method=b"GET"))
        yield _held(kind, f"POST, {name.decode()}", post(CHAT, None, name + b": GET"))
    yield _never(kind, "GET of a held path", get(RESPONSES))


def _bodies() -> Iterator[Attempt]:
    kind = "the request's body"
    plain = asked("chat")
    packed = {b"gzip": gzip.compress(plain), b"deflate": zlib.compress(plain), b"identity": plain, b"x-gzip": b"\x1f"}
    for coding, body in packed.items():
        yield _never(kind, coding.decode(), post(CHAT, body, b"Content-Encoding: " + coding))
    form = b"application/x-www-form-urlencoded"
    multipart = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + plain + b"\r\n--x--\r\n"
    unread = {
        "utf-16": (plain.decode().encode("utf-16"), b"application/json; charset=utf-16"),
        "utf-32": (plain.decode().encode("utf-32"), b"application/json; charset=utf-32"),
        "a byte order mark": (b"\xef\xbb\xbf" + plain, b"application/json"),
        "a form": (b"json=" + plain, form),
        "multipart": (multipart, b"multipart/form-data; boundary=x"),
        "lines of JSON": (plain + b"\n" + plain, b"application/x-ndjson"),
        "a list": (b"[" + plain + b"]", b"application/json"),
        "null": (b"null", b"application/json"),
        "nothing": (b"", b"application/json"),
        "NaN": (plain[:-1] + b',"temperature":NaN}', b"application/json"),
        "Infinity": (plain[:-1] + b',"temperature":-Infinity}', b"application/json"),
        "a lone surrogate": (plain[:-1] + b',"user":"\\ud800"}', b"application/json"),
        "no UTF-8": (plain[:-1] + b',"user":"\xff"}', b"application/json"),
        "a comment": (plain + b"//", b"application/json"),
        "a control character": (plain[:-1] + b',"user":"\x01"}', b"application/json"),
        "a comma too many": (plain[:-1] + b",}", b"application/json"),
        "MessagePack": (b"\x81\xa5model\xa1m", b"application/msgpack"),
    }
    for name, (body, typed) in unread.items():
        yield _never(kind, name, post(CHAT, body, kind=typed))
    for other in (None, b"text/plain", b"application/json; charset=utf-16", form, b"multipart/form-data"):
        yield _held(kind, f"JSON as {other.decode() if other else 'nothing'}", post(CHAT, plain, kind=other))
    streaming = streamed(STREAM["chat"])
    for name, members in {
        "stream twice": b',"stream":false,"stream":true}',
        "stream twice, the other way": b',"stream":true,"stream":false}',
        "stream with escapes": b',"\\u0073tream":true}',
        "stream as a text": b',"stream":"yes"}',
        "tools twice": b',"tools":[]}',
        "no call is wanted": b',"tool_choice":"none"}',
    }.items():
        for answer in (_ENGINE["chat"], streaming):
            told = f"{name}, {'streamed' if answer is streaming else 'whole'}"
            offered = plain if name != "tools twice" else plain[:-1] + b',"tools":[],"tools":%b}' % _tools(plain)
            yield _held(
                kind, told, post(CHAT, offered[:-1] + (members if name != "tools twice" else b"}")), answer=answer
            )
    pieces = (head(b"POST " + CHAT, b"Transfer-Encoding: chunked"), chunk(plain[:40]), chunked(plain[40:]))
    yield _held(kind, "in chunks", *pieces)
    yield _held(kind, "with trailers", pieces[0], chunk(plain), b"0\r\nContent-Encoding: gzip\r\n\r\n")


def _tools(body: bytes) -> bytes:
    return dumps(json.loads(body)["tools"])


def _sizes() -> Iterator[Attempt]:
    kind = "the request's size"
    for dialect, path in PATHS.items():
        large = asked(dialect, metadata={"x": "x" * MOST})
        yield _never(kind, f"{dialect} beyond what is compared", post(path, large))
    large = asked("chat", user="x" * MOST)
    chunks = (
        head(b"POST " + CHAT, b"Transfer-Encoding: chunked"),
        *(chunk(large[i : i + 8192]) for i in range(0, len(large), 8192)),
    )
    yield _never(kind, "in chunks", *chunks, b"0\r\n\r\n")
    yield _held(kind, "just within", post(CHAT, asked("chat", user="x" * (MOST - 500))))


def _connections() -> Iterator[Attempt]:
    kind = "a second request within one"
    hidden = get(RESPONSES + b"/resp_0")
    start, plain = b"POST " + CHAT, asked("chat")
    long, coded = b"Content-Length: %d" % len(plain), b"Transfer-Encoding: chunked"
    for name, pieces in {
        "a length and chunks": head(start, long, coded) + chunked(plain) + hidden,
        "chunks and a length": head(start, coded, long) + chunked() + hidden,
        "two lengths": head(start, long, b"Content-Length: 0") + plain + hidden,
        "a length with a plus": head(start, b"Content-Length: +%d" % len(plain)) + plain,
        "chunked, with a space before the colon": head(start, b"Transfer-Encoding : chunked") + chunked(plain),
        "a chunk with a bare LF": head(start, coded) + b"%x\n%b\n0\n\n" % (len(plain), plain) + hidden,
        "a folded header": head(start, b"X-A: b\r\n Content-Length: 5", long) + plain,
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0",
    }.items():
        yield _never(kind, name, pieces, status=400, says=_BAD)
    for coding in (b"identity, chunked", b"gzip, chunked"):
        wire = head(start, b"Transfer-Encoding: " + coding) + chunked(plain)
        yield _never(kind, coding.decode(), wire, status=501, says=_BAD)
    yield _never(kind, "inside a body", post(CHAT, hidden))
    yield _never(kind, "HTTP/0.9", b"GET " + RESPONSES + b"/resp_0\r\n\r\n")
    kind = "several requests on one connection"
    for name, first, second in (
        ("a stored answer behind a held one", post(CHAT, last=False), hidden),
        ("the same twice", post(CHAT, last=False), post(CHAT)),
    ):
        ended = 200 if second is not hidden else 422
        says = _REFUSED if second is not hidden else _UNVERIFIABLE
        yield Attempt(kind, name, (first + second,), _ENGINE["chat"], (200, ended), says, 2 if ended == 200 else 1)
    wire = post(RESPONSES + b"/resp_0/cancel", last=False) + post(CHAT)
    yield Attempt(kind, "a held one behind a refused one", (wire,), _ENGINE["chat"], (422, 200), _REFUSED)
    kind = "another protocol"
    socket = (b"Upgrade: websocket", b"Sec-WebSocket-Key: x", b"Sec-WebSocket-Version: 13")
    for target in (b"/v1/realtime", CHAT):
        wire = head(b"GET " + target, *socket, b"Connection: Upgrade", last=False)
        yield _never(kind, f"a web socket to {target.decode()}", wire, status=501, says=_BAD)
    upgrade = (b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAMAAABk")
    yield _never(kind, "HTTP/2 by upgrade", head(start, long, *upgrade, last=False) + plain, status=501, says=_BAD)
    yield _never(
        kind, "HTTP/2 by upgrade of a stored answer", head(b"GET " + RESPONSES + b"/resp_0", *upgrade, last=False)
    )
    yield _never(kind, "CONNECT", b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n" + post(CHAT), status=400, says=_BAD)
    kind = "a body that waits to be asked for"
    wire = post(CHAT, None, b"Expect: 100-continue")
    yield _held(kind, "in two pieces", wire[: -len(plain)], plain)
    yield _held(kind, "at once", wire)
    yield _never(kind, "to be refused", post(RESPONSES + b"/x/cancel", None, b"Expect: 100-continue"))


def _headers() -> Iterator[Attempt]:
    for line in (
        b"X-Counterproof-Mode: off",
        b"x-counterproof-mode: observe",
        b"X-Counterproof-Action: released",
        b"X-Counterproof-Id: cp-1",
        b"X-Forwarded-Prefix: /v1/models",
        b"X-Original-URL: /v1/models",
        b"Connection: X-Counterproof-Mode",
        b"Accept: text/event-stream",
        b"Accept-Encoding: gzip, br",
        b"Range: bytes=0-20",
        b"TE: trailers, chunked",
        b"Prefer: respond-async",
        b"X-Stainless-Retry-Count: 2",
    ):
        yield _held("a header", line.decode(), post(CHAT, None, line))


def _models() -> Iterator[Attempt]:
    kind = "the switch is for one model"
    modes: tuple[tuple[Mode, str | None], ...] = (("observe", None), ("block", "m"))
    for dialect, path in PATHS.items():
        body = json.loads(asked(dialect))
        named = {
            "no model": {name: value for name, value in body.items() if name != "model"},
            "an empty one": body | {"model": ""},
            "null": body | {"model": None},
            "its own": body,
        }
        for name, sent in named.items():
            yield Attempt(
                kind, f"{dialect}, {name}", (post(path, dumps(sent)),), _ENGINE[dialect], (200,), _REFUSED, modes=modes
            )
    for name, member in {
        "the last of two": b'"model":"free","model":"m"',
        "with escapes": b'"\\u006dodel":"\\u006d"',
        "its key in two spellings": b'"model":"free","mode\\u006c":"m"',
    }.items():
        body = asked("chat").replace(b'"model":"m"', member)
        yield Attempt(kind, name, (post(CHAT, body),), _ENGINE["chat"], (200,), _REFUSED, modes=modes)
    for name, wire in {
        "a body that nobody reads": post(CHAT, b"{"),
        "a large one": post(CHAT, asked("chat", user="x" * MOST)),
        "a stored answer": get(RESPONSES + b"/resp_0"),
    }.items():
        yield Attempt(kind, name, (wire,), _ENGINE["chat"], (422,), _UNVERIFIABLE, 0, modes)


ATTEMPTS = (
    *_routes(), *_stored(), *_paths(), *_methods(), *_bodies(), *_sizes(), *_connections(), *_headers(), *_models(),
)  # fmt: skip
