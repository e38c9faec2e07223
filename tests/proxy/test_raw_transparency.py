"""Answers, byte by byte: what a client gets of an answer is what the upstream wrote of it, however it was written."""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.proxy.rawhttp import Headers, Message, chunk, chunked, cut, fed
from tests.proxy.rawstage import Answer, Stage

pytestmark = pytest.mark.slow

# --- what may differ, and why; all else is equal -------------------------------------------------------------------

HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip
"""RFC 9110, section 7.6.1: they belong to one connection. Those that `Connection` names as well."""

FRAMING_OF_ITS_OWN = {(b"transfer-encoding", b"chunked")}
"""The one header that the client's own connection may need."""

OWN = {b"x-counterproof-id", b"x-counterproof-mode"}
"""Added by the proxy."""


def expected(wrote: Message) -> Headers:
    """The upstream's headers as a client gets them. Names are in lower case: the ASGI server writes them so."""
    dropped = HOP_BY_HOP | wrote.lists(b"connection")
    if wrote.status == 304:
        dropped.add(b"content-length")  # the ASGI server would wait for a body of that length
    return [(name.lower(), value) for name, value in wrote.headers if name.lower() not in dropped]


def assert_same(got: Message, wrote: Message) -> None:
    """Status, headers in order, body and wholeness. The reason phrase is the ASGI server's own: ASGI has none."""
    assert got.status == wrote.status
    assert {name for name, _ in got.headers} >= OWN
    assert [pair for pair in got.headers if pair[0] not in OWN and pair not in FRAMING_OF_ITS_OWN] == expected(wrote)
    assert (b"transfer-encoding" in dict(got.headers)) is (got.chunks is not None)
    assert got.body == wrote.body
    assert got.whole == wrote.whole
    assert not got.interim
    assert not got.trailers


# --- the table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An answer, and the method it answers."""

    answer: Answer
    method: bytes = b"GET"


TEXT = "Zażółć gęślą jaźń 👩‍💻 and more. ".encode()
EVENTS = b"".join(b'data: {"i": %d, "t": "%s"}\r\n\r\n' % (i, TEXT) for i in range(5)) + b"data: [DONE]\n\n"
EVERY_BYTE = bytes(range(256))
LARGE = bytes(range(251)) * (8 * 1024 * 1024 // 251 + 1)
TYPED = b"content-type: text/event-stream\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\n" + TYPED + b"transfer-encoding: chunked\r\n\r\n"


def answered(*pieces: bytes, end: str = "", method: bytes = b"GET") -> Case:
    return Case(Answer(pieces, end), method)


def sized(body: bytes, headers: bytes = b"", status: bytes = b"200 OK", method: bytes = b"GET") -> Case:
    head = b"HTTP/1.1 %s\r\n%scontent-length: %d\r\n\r\n" % (status, headers, len(body))
    return answered(head, *([body] if body else []), method=method)


FRAMING = {
    "a byte per chunk, each its own segment": answered(CHUNKED, *(chunk(bytes([b])) for b in TEXT), b"0\r\n\r\n"),
    "many chunks in one segment": answered(CHUNKED + chunked(*(bytes([b]) * 7 for b in TEXT))),
    "a byte per segment, the head too": answered(*cut(CHUNKED + chunked(TEXT, b"x" * 20, TEXT), 1)),
    "chunk heads across segments": answered(*cut(CHUNKED + chunked(*cut(EVENTS, 19)), 5)),
    "chunk extensions": answered(
        CHUNKED + chunk(b"one", b";name=value") + chunk(b"two", b';a="b;c"') + b"0;last=1\r\n\r\n"
    ),
    "chunk sizes in capitals and with zeros": answered(
        CHUNKED + b"0000001A\r\n" + b"z" * 26 + b"\r\n" + b"A\r\n0123456789\r\n" + b"000\r\n\r\n"
    ),
    "events cut anywhere": answered(CHUNKED, *(chunk(part) for part in cut(EVENTS, 11)), b"0\r\n\r\n"),
    "events across chunks and segments": answered(CHUNKED, *cut(chunked(*cut(EVENTS, 17)), 23)),
    "characters cut in the middle": answered(
        CHUNKED, chunk(b"\xf0\x9f"), chunk(b"\x91\xa9\xe2"), chunk(b"\x80\x8d"), b"0\r\n\r\n"
    ),
    "an empty chunked body": answered(CHUNKED + chunked()),
    "an empty chunked body, late": answered(CHUNKED, b"0\r\n", b"\r\n"),
    "trailers": answered(CHUNKED + chunk(TEXT) + b"0\r\nx-checksum: 1\r\nx-more: 2\r\n\r\n"),
    "announced trailers": answered(
        CHUNKED[:-2] + b"trailer: x-checksum\r\n\r\n", chunk(TEXT) + b"0\r\n", b"x-checksum: 1\r\n", b"\r\n"
    ),
    "chunked and closed": answered(CHUNKED[:-2] + b"connection: close\r\n\r\n", chunked(TEXT), end="close"),
    "a length, in pieces": answered(b"HTTP/1.1 200 OK\r\ncontent-length: 512\r\n\r\n", *cut(EVERY_BYTE * 2, 37)),
    "a length, and closed": answered(
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", end="close"
    ),
    "neither length nor chunks: to the end": answered(b"HTTP/1.1 200 OK\r\n\r\n", EVENTS, TEXT, end="close"),
    "HTTP/1.0, to the end": answered(b"HTTP/1.0 200 OK\r\n" + TYPED + b"\r\n", EVENTS, end="close"),
    "HTTP/1.0, a length": answered(b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", end="close"),
    "HTTP/1.0, nothing": answered(b"HTTP/1.0 204 No Content\r\n\r\n", end="close"),
    "8 MB by length": sized(LARGE),
    "8 MB chunked": answered(CHUNKED, *(chunk(part) for part in cut(LARGE, 1 << 20)), b"0\r\n\r\n"),
    "100 before": answered(b"HTTP/1.1 100 Continue\r\n\r\n", *sized(b"ok").answer.pieces),
    "102 before": answered(b"HTTP/1.1 102 Processing\r\nx-progress: 1\r\n\r\n", *sized(b"ok").answer.pieces),
    "103 before": answered(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", *sized(b"ok").answer.pieces),
    "several before, in one segment": answered(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 3 + CHUNKED + chunked(TEXT)
    ),
}

STATUS = {
    "201 with Location": sized(b"{}", b"location: /v1/files/1\r\n", b"201 Created"),
    "202": sized(b"queued", b"", b"202 Accepted"),
    "204": answered(b"HTTP/1.1 204 No Content\r\nx-a: b\r\n\r\n"),
    "204 with length 0": answered(b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n"),
    "205": answered(b"HTTP/1.1 205 Reset Content\r\ncontent-length: 0\r\n\r\n"),
    "206": sized(b"345", b"content-range: bytes 3-5/10\r\n", b"206 Partial Content"),
    "301": sized(b"moved", b"location: /elsewhere\r\n", b"301 Moved Permanently"),
    "302 without a body": sized(b"", b"location: http://example.invalid/x?y=z\r\n", b"302 Found"),
    "303 to a POST": sized(b"", b"location: /v1/results/1\r\n", b"303 See Other", method=b"POST"),
    "307 to a POST": sized(b"", b"location: //example.invalid/\r\n", b"307 Temporary Redirect", method=b"POST"),
    "308": sized(b"", b"location: /elsewhere\r\n", b"308 Permanent Redirect"),
    "304": answered(b'HTTP/1.1 304 Not Modified\r\netag: "a"\r\n\r\n'),
    "304 with a length": answered(b'HTTP/1.1 304 Not Modified\r\netag: "a"\r\ncontent-length: 1234\r\n\r\n'),
    "400": sized(
        b'{"error": {"message": "bad", "code": 400}}', b"content-type: application/json\r\n", b"400 Bad Request"
    ),
    "401": sized(b"", b'www-authenticate: Bearer realm="x"\r\n', b"401 Unauthorized"),
    "404 chunked": answered(
        b"HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(TEXT, EVERY_BYTE)
    ),
    "418": sized(b"short and stout", b"", b"418 I'm a Teapot"),
    "422": sized(EVERY_BYTE, b"", b"422 Unprocessable Entity"),
    "429": sized(b"later", b"retry-after: 7\r\nx-ratelimit-remaining: 0\r\n", b"429 Too Many Requests"),
    "500": sized(b'{"object":"error","message":"CUDA out of memory"}', b"", b"500 Internal Server Error"),
    "502": sized(b"<html>bad gateway</html>", b"server: nginx\r\n", b"502 Bad Gateway"),
    "503 with retry-after": sized(b"", b"retry-after: Wed, 21 Oct 2026 07:28:00 GMT\r\n", b"503 Service Unavailable"),
    "an unknown status, 299": sized(b"odd", b"", b"299 Odd"),
    "an unknown status, 599": sized(b"odd", b"", b"599 Timeout Of Some Kind"),
    "an empty reason": sized(b"fine", b"", b"200 "),
    "a long reason": sized(b"fine", b"", b"200 " + b"All is well, thank you. " * 20),
    "a reason in Latin-1": sized(b"fine", b"", b"200 Tr\xe8s bien"),
}

BODIES = {
    "gzip": sized(gzip.compress(EVENTS, mtime=0), b"content-encoding: gzip\r\n"),
    "gzip, chunked": answered(
        CHUNKED[:-2] + b"content-encoding: gzip\r\n\r\n",
        *map(chunk, cut(gzip.compress(EVENTS, mtime=0), 9)),
        b"0\r\n\r\n",
    ),
    "deflate": sized(zlib.compress(EVENTS), b"Content-Encoding: deflate\r\n"),
    "brotli": sized(bytes.fromhex("0b058068656c6c6f20776f726c6403"), b"content-encoding: br\r\n"),
    "zstd": sized(bytes.fromhex("28b52ffd200b59000068656c6c6f20776f726c64"), b"content-encoding: zstd\r\n"),
    "gzip in name only": sized(b"this is no gzip", b"content-encoding: gzip\r\n"),
    "an encoding nobody knows": sized(EVERY_BYTE, b"content-encoding: x-odd, gzip\r\n"),
    "no length at all": sized(b""),
    "every byte": sized(EVERY_BYTE * 4, b"content-type: application/octet-stream\r\n"),
    "what looks like an answer": sized(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    "what looks like chunks": sized(b"5\r\nhello\r\n0\r\n\r\n"),
    "line ends of all kinds": answered(
        CHUNKED, chunk(b"data: a\r"), chunk(b"\n\r\ndata: b\n\ndata: c\r\r"), b"0\r\n\r\n"
    ),
    "HEAD with a length": answered(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n", method=b"HEAD"),
    "HEAD, chunked": answered(CHUNKED, method=b"HEAD"),
    "HEAD with neither": answered(b"HTTP/1.1 200 OK\r\nx-a: b\r\n\r\n", method=b"HEAD"),
    "HEAD of nothing": answered(b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\n", method=b"HEAD"),
    "HEAD of a 304": answered(b'HTTP/1.1 304 Not Modified\r\netag: "a"\r\ncontent-length: 12\r\n\r\n', method=b"HEAD"),
}

HEADS = {
    "order and case": sized(b"", b"Zeta: 1\r\nalpha: 2\r\nX-MIXED-Case: Value Kept\r\nBeta: 3\r\n"),
    "duplicates": sized(b"", b"".join(b"Set-Cookie: c%d=%d; Path=/\r\nx-a: %d\r\n" % (i, i, i) for i in range(9))),
    "empty values": sized(b"", b"x-empty:\r\nx-blank:   \r\nx-after: 1\r\n"),
    "white space around": sized(b"", b"x-a:  \t padded \t \r\nx-b:none\r\nx-c: in  the\tmiddle\r\n"),
    "8 KB": sized(b"", b"x-long: " + b"v" * 8192 + b"\r\nx-after: 1\r\n"),
    "30 KB": sized(b"ok", b"x-long: " + b"v" * 30_000 + b"\r\nx-after: 1\r\n"),
    "200 KB in all": sized(b"ok", b"".join(b"x-%d: %s\r\n" % (i, b"v" * 20_000) for i in range(10))),
    "150 of them": sized(b"ok", b"".join(b"x-n%d: %d\r\n" % (i % 100, i) for i in range(150))),
    "odd names": sized(b"", b"!#$%&'*+-.^_`|~9: odd\r\n1: digit\r\nx_under: 1\r\n~: 2\r\n"),
    "UTF-8": sized(b"", "x-name: zażółć 👩‍💻\r\n".encode()),
    "Latin-1": sized(b"", b"x-name: Andr\xe9 \xff\xfe\x80\r\n"),
    "signs": sized(b"", b'x-a: "q\\"uoted", (comment), a=b;c=d, <>@:\\[]{}\r\nx-b: ,,,\r\nx-c: :\r\n'),
    "hop-by-hop": sized(
        b"", b"keep-alive: timeout=5\r\nx-a: 1\r\nproxy-authenticate: Basic\r\nupgrade: h2c\r\nx-b: 2\r\n"
    ),
    "named in Connection": sized(b"", b"connection: keep-alive, X-Foo,x-bar\r\nX-FOO: 1\r\nx-kept: 2\r\nx-bar: 3\r\n"),
    "two of Connection": sized(b"", b"connection: x-foo\r\nx-foo: 1\r\nx-kept: 2\r\nConnection: x-bar\r\nx-bar: 3\r\n"),
    "the proxy's own names": sized(b"", b"x-counterproof: mine\r\nx-counterproof-idea: mine too\r\n"),
    "date and server": sized(b"", b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\nserver: vllm\r\nvia: 1.1 a\r\nage: 0\r\n"),
    "CORS": sized(b"", b"access-control-allow-origin: *\r\nvary: Origin\r\nvary: Accept\r\n"),
}

CASES = {
    f"{kind}: {name}": case
    for kind, table in (("framing", FRAMING), ("status", STATUS), ("body", BODIES), ("head", HEADS))
    for name, case in table.items()
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage")).up() as up:
        yield up


@pytest.mark.parametrize("name", CASES)
def test_an_answer_arrives_as_the_upstream_wrote_it(stage: Stage, name: str) -> None:
    case = CASES[name]

    async def scene() -> None:
        wrote = await fed(case.answer.raw).response(case.method)
        stage.upstream.plays.append(case.answer)
        async with stage.client() as client:
            got = await client.ask(b"%s /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n" % case.method)
            assert_same(got, wrote)
            again = await client.ask(b"GET /v1/after HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (again.status, again.body) == (200, b"ok"), "the connection is of use afterwards"
        assert [request.target for request in stage.upstream.requests] == [b"/v1/x", b"/v1/after"]

    stage.play(scene())
