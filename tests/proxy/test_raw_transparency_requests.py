"""Requests, byte by byte: what an upstream gets of a request is what the client wrote of it."""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.proxy.rawhttp import Headers, Message, chunk, chunked, cut, fed
from tests.proxy.rawstage import Stage
from tests.secrets import secret

pytestmark = pytest.mark.slow

# --- what may differ, and why; all else is equal -------------------------------------------------------------------

KEYS = (secret("client").encode(), secret("batch").encode())
HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip
"""RFC 9110, section 7.6.1: they belong to one connection. Those that `Connection` names as well."""

ANEW = {b"host", b"expect", b"content-length"}
"""`Host` names the upstream, `Expect` is answered by the proxy, and a body's framing is the connection's own: a length
may be set for a body that came in chunks or for none at all."""


def expected(wrote: Message) -> Headers:
    """A client's headers as an upstream gets them. Names are in lower case: ASGI has them so."""
    dropped = HOP_BY_HOP | ANEW | wrote.lists(b"connection")
    return [(name.lower(), utf8(value)) for name, value in wrote.headers if name.lower() not in dropped]


def utf8(value: bytes) -> bytes:
    """The HTTP client towards the upstream writes UTF-8: what is none is taken for Latin-1."""
    try:
        return value.decode().encode()
    except UnicodeDecodeError:
        return value.decode("latin-1").encode()


def assert_same(got: Message, wrote: Message, host: bytes) -> None:
    """Method, target, headers in order, body."""
    # To ASGI a query that is empty is none.
    target = wrote.target[:-1] if wrote.target.find(b"?") == len(wrote.target) - 1 else wrote.target
    assert (got.method, got.target, got.version) == (wrote.method, target, b"HTTP/1.1")
    framing = {(b"transfer-encoding", b"chunked"), (b"connection", b"close")}  # of the upstream's own connection
    passed = [(name, value) for name, value in got.headers if name.lower() not in ANEW]
    assert [(name, value) for name, value in passed if (name.lower(), value) not in framing] == expected(wrote)
    assert got.body == wrote.body
    assert got.whole
    assert got.all(b"host") == [host]
    assert not got.all(b"expect")
    if wrote.chunks is None:
        assert got.chunks is None, "a length stays a length"


# --- the table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A request in its pieces, and whether its connection is of use after it."""

    pieces: tuple[bytes, ...]
    kept: bool = True


EVERY_BYTE = bytes(range(256))
LARGE = bytes(range(251)) * (8 * 1024 * 1024 // 251 + 1)
JSON = '{"model": "m", "messages": [{"role": "user", "content": "zażółć 👩‍💻"}], "x": 1e400}'.encode()


def target(raw: str) -> Case:
    return Case((b"GET %s HTTP/1.1\r\nHost: agent\r\n\r\n" % raw.encode(),))


def plain(method: str, headers: bytes = b"") -> Case:
    return Case((b"%s /v1/x HTTP/1.1\r\nHost: agent\r\n%s\r\n" % (method.encode(), headers),))


def sized(*body: bytes, method: str = "POST", headers: bytes = b"", path: str = "/v1/x") -> Case:
    head = b"%s %s HTTP/1.1\r\nHost: agent\r\n%sContent-Length: %d\r\n\r\n"
    return Case((head % (method.encode(), path.encode(), headers, sum(map(len, body))), *body))


def streamed(*wire: bytes, method: str = "POST", headers: bytes = b"", path: str = "/v1/x") -> Case:
    head = b"%s %s HTTP/1.1\r\nHost: agent\r\n%sTransfer-Encoding: chunked\r\n\r\n"
    return Case((head % (method.encode(), path.encode(), headers), *wire))


# As every stock JDK client writes on each cleartext request, bodies included.
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n"


def unkept(case: Case) -> Case:
    return Case(case.pieces, kept=False)


def at_once(case: Case) -> Case:
    return Case((b"".join(case.pieces),))


METHODS = {
    **{method: plain(method) for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")},
    **{method: plain(method) for method in ("PROPFIND", "REPORT", "MKCOL", "PURGE", "LINK", "QUERY")},
    **{f"{method} with a body": sized(JSON, method=method) for method in ("PUT", "PATCH", "OPTIONS", "PROPFIND")},
}

TARGETS = {
    "%2F": target("/v1/models/org%2Fname"),
    "%2f and more": target("/v1/models/a%2fb%3Fc%23d%25e"),
    "a percent sign alone": target("/v1/x%zz%"),
    "doubled slashes": target("/v1//models///x//"),
    "doubled slashes at the beginning": target("//v1/x"),
    "dots": target("/v1/./x/../y"),
    "encoded dots": target("/v1/%2e/x%2E%2E"),
    "semicolons": target("/v1/x;a=b;c/y;d?e;f=g"),
    "signs": target("/v1/a+b~c!$&'()*,=:@-._/[]{}|^`\\\"<>"),
    "a root": target("/"),
    "Unicode, encoded": target("/v1/%E2%82%AC/%f0%9f%91%a9?q=%C3%A9"),
    "not UTF-8, encoded": target("/v1/%ff%FE?q=%80"),
    "a query": target("/v1/x?a=1&b=2"),
    "an empty query": target("/v1/x?"),
    "a query of a question mark": target("/v1/x??"),
    "odd queries": target("/v1/x?&&a&=b&c==d&?e=/f?&%zz&+%20+"),
    "signs in a query": target("/v1/x?a[]=1&b={2}|^`\\\"<>'"),
    "a URL in a query": target("/v1/x?u=http://example.invalid:80/a?b=c&d=//e"),
    "8 KB of a query": target("/v1/x?q=" + "a%20" * 2048),
    "8 KB of a path": target("/v1/" + "p" * 8192),
    "a colon": target("/v1/x:y/z:80"),
    "at": target("/v1/@x:y@z"),
}

HEADS = {
    "order and case": plain("GET", b"Zeta: 1\r\nalpha: 2\r\nX-MIXED-Case: Value Kept\r\nBeta: 3\r\n"),
    "duplicates": plain("GET", b"".join(b"Cookie: c%d=%d\r\nX-A: %d\r\n" % (i, i, i) for i in range(9))),
    "empty values": plain("GET", b"x-empty:\r\nx-blank:   \r\nx-after: 1\r\n"),
    "white space around": plain("GET", b"x-a:  \t padded \t \r\nx-b:none\r\nx-c: in  the\tmiddle\r\n"),
    "8 KB": plain("GET", b"x-long: " + b"v" * 8192 + b"\r\nx-after: 1\r\n"),
    "30 KB": plain("GET", b"x-long: " + b"v" * 30_000 + b"\r\nx-after: 1\r\n"),
    "150 of them": plain("GET", b"".join(b"x-n%d: %d\r\n" % (i % 100, i) for i in range(150))),
    "odd names": plain("GET", b"!#$%&'*+-.^_`|~9: odd\r\n1: digit\r\nx_under: 1\r\n~: 2\r\n"),
    "UTF-8": plain("GET", "x-name: zażółć 👩‍💻\r\n".encode()),
    "Latin-1": plain("GET", b"x-name: Andr\xe9 \xff\xfe\x80\r\n"),
    "UTF-8 and Latin-1": plain("GET", "x-one: zażółć\r\n".encode() + b"x-two: Andr\xe9\r\nx-three: \xc3\xa9\r\n"),
    "signs": plain("GET", b'x-a: "q\\"uoted", (comment), a=b;c=d, <>@:\\[]{}\r\nx-b: ,,,\r\nx-c: :\r\n'),
    "none that is usual": plain("GET"),
    "Authorization": plain("GET", b"Authorization: Bearer %b\r\nx-api-key: %b\r\nAccept: */*\r\n" % KEYS),
    "encodings": plain("GET", b"accept-encoding: gzip, br, zstd;q=0.1\r\nTE: trailers, deflate\r\nx-a: 1\r\n"),
    "hop-by-hop": plain(
        "GET",
        b"Keep-Alive: 5\r\nx-a: 1\r\nProxy-Authorization: Basic %b\r\nProxy-Connection: keep-alive\r\nx-b: 2\r\n"
        % KEYS[0],
    ),
    "Upgrade": unkept(plain("GET", H2C + b"x-a: 1\r\n")),
    "Upgrade, not named": plain("GET", b"Upgrade: TLS/1.2\r\nx-a: 1\r\n"),
    "named in Connection": plain(
        "GET", b"Connection: keep-alive, X-Foo,x-bar\r\nX-FOO: 1\r\nx-kept: 2\r\nx-bar: 3\r\n"
    ),
    "two of Connection": plain(
        "GET", b"Connection: x-foo\r\nx-foo: 1\r\nx-kept: 2\r\nconnection: x-bar\r\nx-bar: 3\r\n"
    ),
    "forwarded by others": plain(
        "GET", b"Via: 1.1 a\r\nX-Forwarded-For: 10.0.0.1\r\nForwarded: for=x\r\nX-Real-IP: y\r\n"
    ),
    "ranges and conditions": plain("GET", b'Range: bytes=0-5\r\nIf-None-Match: W/"a", "b"\r\nIf-Range: "c"\r\n'),
    "no Host at all": Case((b"GET /v1/x HTTP/1.1\r\nx-a: 1\r\n\r\n",)),
    "one byte at a time": Case(
        cut(b"POST /v1/x?a=b HTTP/1.1\r\nHost: agent\r\nX-A: b\r\nContent-Length: 4\r\n\r\nbody", 1)
    ),
}

BODIES = {
    "length 0": sized(),
    "GET with length 0": sized(method="GET"),
    "GET with a body": sized(JSON, method="GET"),
    "GET with a chunked body": streamed(chunked(JSON), method="GET"),
    "DELETE with a body": sized(JSON, method="DELETE"),
    "in the head's segment": at_once(sized(EVERY_BYTE)),
    "in the head's segment, chunked": at_once(streamed(chunked(EVERY_BYTE, JSON))),
    "a byte per chunk, each its own segment": streamed(*(chunk(bytes([b])) for b in EVERY_BYTE), b"0\r\n\r\n"),
    "many chunks in one segment": streamed(b"".join(chunk(bytes([b])) for b in EVERY_BYTE) + b"0\r\n\r\n"),
    "chunk heads across segments": streamed(*cut(chunked(*cut(JSON, 7)), 3)),
    "chunk extensions": streamed(chunk(b"one", b";name=value") + chunk(b"two", b';a="b;c"') + b"0;last=1\r\n\r\n"),
    "trailers": streamed(chunk(b"one") + b"0\r\nx-checksum: 1\r\n\r\n", headers=b"Trailer: x-checksum\r\n"),
    "an empty chunked body": streamed(chunked()),
    "capitals of Chunked": Case(
        (b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTRANSFER-ENCODING: Chunked\r\n\r\n", chunked(JSON))
    ),
    "8 MB by length": sized(LARGE),
    "8 MB by length, in pieces": sized(*cut(LARGE, 1 << 20)),
    "8 MB chunked": streamed(*(chunk(part) for part in cut(LARGE, 1 << 20)), b"0\r\n\r\n"),
    "gzip": sized(
        gzip.compress(JSON, mtime=0), headers=b"Content-Encoding: gzip\r\nContent-Type: application/json\r\n"
    ),
    "gzip, chunked": streamed(chunked(*cut(gzip.compress(JSON, mtime=0), 9)), headers=b"content-encoding: gzip\r\n"),
    "what looks like a request": sized(b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"),
    "multipart": sized(
        b'--x\r\nContent-Disposition: form-data; name="f"\r\n\r\n' + EVERY_BYTE + b"\r\n--x--\r\n",
        headers=b"Content-Type: multipart/form-data; boundary=x\r\n",
    ),
    "chat": sized(JSON, path="/v1/chat/completions", headers=b"Content-Type: application/json\r\n"),
    "chat, chunked": streamed(*map(chunk, cut(JSON, 10)), b"0\r\n\r\n", path="/v1/chat/completions"),
    "chat, not JSON": sized(EVERY_BYTE, path="/v1/chat/completions", headers=b"Content-Type: application/json\r\n"),
    "completions, empty": sized(path="/v1/completions"),
}

CASES = {
    f"{kind}: {name}": case
    for kind, table in (("method", METHODS), ("target", TARGETS), ("head", HEADS), ("body", BODIES))
    for name, case in table.items()
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage")).up() as up:
        yield up


@pytest.mark.parametrize("name", CASES)
def test_a_request_arrives_as_the_client_wrote_it(stage: Stage, name: str) -> None:
    async def scene() -> None:
        case = CASES[name]
        wrote = await fed(b"".join(case.pieces)).request()
        async with stage.client() as client:
            response = await client.ask(*case.pieces)
            assert (response.status, response.whole) == (200, True)
            assert bool(response.all(b"connection")) is not case.kept
            if case.kept:
                again = await client.ask(b"GET /v1/after HTTP/1.1\r\nhost: a\r\n\r\n")
                assert (again.status, again.body) == (200, b"ok"), "the connection is of use afterwards"
        assert not stage.upstream.faults
        got, *after = stage.upstream.requests
        assert_same(got, wrote, b"127.0.0.1:%d" % stage.upstream.port)
        assert [request.target for request in after] == [b"/v1/after"] * case.kept

    stage.play(scene())


@pytest.mark.parametrize(
    "case",
    [
        sized(JSON, headers=H2C),
        at_once(sized(JSON, headers=H2C)),
        streamed(*map(chunk, cut(JSON, 10)), b"0\r\n\r\n", headers=H2C),
        sized(LARGE[: 1 << 20], headers=H2C),
    ],
    ids=["by length", "in the head's segment", "chunked", "1 MB"],
)
def test_a_body_that_comes_with_an_upgrade_is_501(stage: Stage, case: Case) -> None:
    """The server's parser takes it for the other protocol's: it would go on without its body."""

    async def scene() -> None:
        async with stage.client() as client:
            response = await client.ask(*case.pieces)
            assert (response.status, response.all(b"connection")) == (501, [b"close"])
        assert not stage.upstream.requests

    stage.play(scene())
