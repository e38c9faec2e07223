"""What is no request, or one that could be read in two ways: it reaches no upstream, or as one that is read in one."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.proxy.rawhttp import BrokenError, Client, EndedError, Message, Source, chunk, chunked, fed
from tests.proxy.rawstage import Stage, Upstream, ok
from tests.secrets import secret

pytestmark = pytest.mark.slow

HIDDEN = b"GET /v1/hidden HTTP/1.1\r\nHost: a\r\n\r\n"
SIZE = len(HIDDEN)
LIMIT = 64 * 1024
LISTEN = {"port": 0, "read_timeout": "300ms", "max_body_bytes": LIMIT, "max_head_bytes": LIMIT}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage"), listen=LISTEN).up() as up:
        yield up


def head(*lines: bytes, start: bytes = b"POST /v1/x HTTP/1.1") -> bytes:
    return b"\r\n".join([start, b"Host: a", *lines, b"", b""])


def length(value: bytes, body: bytes = HIDDEN) -> bytes:
    return head(b"Content-Length: " + value) + body


def coded(value: bytes, *lines: bytes, body: bytes | None = None) -> bytes:
    return head(b"Transfer-Encoding: " + value, *lines) + (chunked(HIDDEN) if body is None else body)


def pieces(wire: bytes) -> bytes:
    return head(b"Transfer-Encoding: chunked") + wire


N = b"%d" % SIZE
LENGTHS = {
    "two equal": head(b"Content-Length: " + N, b"Content-Length: " + N) + HIDDEN,
    "two, the first is 0": head(b"Content-Length: 0", b"Content-Length: " + N) + HIDDEN,
    "two, the last is 0": head(b"Content-Length: " + N, b"Content-Length: 0") + HIDDEN,
    "a list of equals": length(N + b", " + N),
    "a list": length(b"0, " + N),
    "a plus": length(b"+" + N),
    "negative": length(b"-1"),
    "hexadecimal": length(b"0x%x" % SIZE),
    "with a space": length(b"3 7"),
    "with letters after it": length(N + b"abc"),
    "empty": length(b""),
    "a fraction": length(N + b".0"),
    "an exponent": length(b"1e1"),
    "an underscore": length(b"3_7"),
    "other digits": length("٣٧".encode()),
    "beyond 64 bits": length(b"18446744073709551617", b"x"),
    "a hundred digits": length(b"9" * 100, b"x"),
    "leading zeros": length(b"000" + N),
    "a space before the colon": head(b"Content-Length : " + N) + HIDDEN,
    "a tab before the colon": head(b"Content-Length\t: " + N) + HIDDEN,
    "on a folded line": head(b"Content-Length:", b" " + N) + HIDDEN,
    "folded into another": head(b"X-A: b", b" Content-Length: " + N) + HIDDEN,
    "an underscore in the name": head(b"Content_Length: " + N, b"Content-Length: 0"),
    "NUL before it": head(b"\x00Content-Length: " + N) + HIDDEN,
    "a vertical tab": length(b"\x0b" + N),
}
CODINGS = {
    "a length before it": head(b"Content-Length: 5", b"Transfer-Encoding: chunked") + chunked() + HIDDEN,
    "a length after it": coded(b"chunked", b"Content-Length: %d" % (5 + SIZE), body=chunked() + HIDDEN),
    "a length of 0 beside it": coded(b"chunked", b"Content-Length: 0"),
    "xchunked": coded(b"xchunked"),
    "xchunked with a length": coded(b"xchunked", b"Content-Length: 3"),
    "chunked, identity": coded(b"chunked, identity"),
    "identity, chunked": coded(b"identity, chunked"),
    "identity with a length": coded(b"identity", b"Content-Length: " + N, body=HIDDEN),
    "identity alone": coded(b"identity", body=HIDDEN),
    "gzip, chunked": coded(b"gzip, chunked"),
    "twice in a list": coded(b"chunked, chunked"),
    "twice": coded(b"chunked", b"Transfer-Encoding: chunked"),
    "twice, the last is identity": coded(b"chunked", b"Transfer-Encoding: identity"),
    "twice, the first is identity": coded(b"identity", b"Transfer-Encoding: chunked"),
    "spaces around": coded(b"   chunked  \t"),
    "a tab": coded(b"\tchunked"),
    "a vertical tab": coded(b"\x0bchunked"),
    "a form feed after": coded(b"chunked\x0c"),
    "quoted": coded(b'"chunked"'),
    "a parameter": coded(b"chunked;q=1"),
    "a comma before": coded(b",chunked"),
    "a comma after": coded(b"chunked,"),
    "NUL": coded(b"chunked\x00"),
    "empty": coded(b""),
    "a letter of another alphabet": coded("\u0441hunked".encode()),
    "a space before the colon": head(b"Transfer-Encoding : chunked") + chunked(HIDDEN),
    "on a folded line": head(b"Transfer-Encoding:", b" chunked") + chunked(HIDDEN),
    "folded into another": head(b"X-A: b", b" Transfer-Encoding: chunked") + chunked(HIDDEN),
    "after a bare LF": head(b"X-A: b\nTransfer-Encoding: chunked") + chunked(HIDDEN),
    "after a bare CR": head(b"X-A: b\rTransfer-Encoding: chunked") + chunked(HIDDEN),
    "an underscore in the name": head(b"Transfer_Encoding: chunked", b"Content-Length: " + N) + HIDDEN,
    "HTTP/1.0": head(b"Transfer-Encoding: chunked", start=b"POST /v1/x HTTP/1.0") + chunked(HIDDEN),
}
CHUNKS = {
    "negative": pieces(b"-5\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "0x": pieces(b"0x5\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "a plus": pieces(b"+5\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "no digit": pieces(b"g\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "a letter after it": pieces(b"5g\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "a space before it": pieces(b" 5\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "a space after it": pieces(b"5 \r\nhello\r\n0\r\n\r\n"),
    "a space in it": pieces(b"5 5\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "an underscore": pieces(b"0_5\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "empty": pieces(b"\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "beyond 64 bits": pieces(b"10000000000000005\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "much beyond": pieces(b"f" * 40 + b"\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "huge": pieces(b"7fffffffffffffff\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "larger than is taken": pieces(b"fffffff\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "a bare LF after it": pieces(b"5\nhello\r\n0\r\n\r\n" + HIDDEN),
    "a bare CR after it": pieces(b"5\rhello\r\n0\r\n\r\n" + HIDDEN),
    "a bare LF in an extension": pieces(b"5;a\nhello\r\n0\r\n\r\n" + HIDDEN),
    "a bare CR in an extension": pieces(b"5;a\rhello\r\n0\r\n\r\n" + HIDDEN),
    "NUL in an extension": pieces(b"5;\x00\r\nhello\r\n0\r\n\r\n"),
    "nothing after the data": pieces(b"5\r\nhello0\r\n\r\n" + HIDDEN),
    "other bytes after the data": pieces(b"5\r\nhelloXX0\r\n\r\n" + HIDDEN),
    "a bare LF after the data": pieces(b"5\r\nhello\n0\r\n\r\n" + HIDDEN),
    "data longer than said": pieces(b"3\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "data shorter than said": pieces(b"9\r\nhello\r\n0\r\n\r\n" + HIDDEN),
    "a bare LF at the end": pieces(b"5\r\nhello\r\n0\r\n\n" + HIDDEN),
    "a bare LF in the last": pieces(b"5\r\nhello\r\n0\n\r\n" + HIDDEN),
    "a request for a trailer": pieces(b"5\r\nhello\r\n0\r\n" + HIDDEN),
    "a broken trailer": pieces(b"5\r\nhello\r\n0\r\nno colon\r\n\r\n" + HIDDEN),
}
TRAILERS = {
    "a length": pieces(b"5\r\nhello\r\n0\r\nContent-Length: %d\r\n\r\n" % (SIZE + 9)),
    "a coding": pieces(b"5\r\nhello\r\n0\r\nTransfer-Encoding: identity\r\n\r\n"),
    "a host": pieces(b"5\r\nhello\r\n0\r\nHost: hidden\r\n\r\n"),
}
HEADS = {
    "bare LF everywhere": b"GET /v1/x HTTP/1.1\nHost: a\n\n" + HIDDEN,
    "a bare LF in a value": head(b"X-A: b\nX-B: c", start=b"GET /v1/x HTTP/1.1"),
    "a bare CR in a value": head(b"X-A: b\rX-B: c", start=b"GET /v1/x HTTP/1.1"),
    "a bare CR at an end": head(b"X-A: b\r\r", start=b"GET /v1/x HTTP/1.1"),
    "NUL in a value": head(b"X-A: b\x00c", start=b"GET /v1/x HTTP/1.1"),
    "NUL in a name": head(b"X\x00A: b", start=b"GET /v1/x HTTP/1.1"),
    "a control character in a value": head(b"X-A: b\x01c", start=b"GET /v1/x HTTP/1.1"),
    "DEL in a value": head(b"X-A: b\x7fc", start=b"GET /v1/x HTTP/1.1"),
    "a space before the colon": head(b"X-A : b", start=b"GET /v1/x HTTP/1.1"),
    "a folded line": head(b"X-A: b", b"\tc", start=b"GET /v1/x HTTP/1.1"),
    "a folded first line": b"GET /v1/x HTTP/1.1\r\n Host: a\r\nX-A: b\r\n\r\n",
    "no colon": head(b"X-A b", start=b"GET /v1/x HTTP/1.1"),
    "no name": head(b": b", start=b"GET /v1/x HTTP/1.1"),
    "no token": head(b"X(A): b", start=b"GET /v1/x HTTP/1.1"),
    "a name in UTF-8": head("ż: b".encode(), start=b"GET /v1/x HTTP/1.1"),
    "two hosts": head(b"Host: b", start=b"GET /v1/x HTTP/1.1"),
    "an empty host": b"GET /v1/x HTTP/1.1\r\nHost:\r\n\r\n",
    "no version": b"GET /v1/x\r\n\r\n" + HIDDEN,
    "HTTP/0.9": head(start=b"GET /v1/x HTTP/0.9"),
    "HTTP/1.2": head(start=b"GET /v1/x HTTP/1.2"),
    "HTTP/3.0": head(start=b"GET /v1/x HTTP/3.0"),
    "HTTP/11": head(start=b"GET /v1/x HTTP/11"),
    "http/1.1": head(start=b"GET /v1/x http/1.1"),
    "more than a version": head(start=b"GET /v1/x HTTP/1.1 HTTP/1.1"),
    "HTTP/2's beginning": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "two spaces": head(start=b"GET  /v1/x HTTP/1.1"),
    "a tab": head(start=b"GET\t/v1/x HTTP/1.1"),
    "a space in the target": head(start=b"GET /v1/x y HTTP/1.1"),
    "a control character in the target": head(start=b"GET /v1/\x01x HTTP/1.1"),
    "a byte beyond ASCII in the target": head(start="GET /v1/ż HTTP/1.1".encode()),
    "a byte beyond ASCII in the query": head(start="GET /v1/x?ż HTTP/1.1".encode()),
    "a fragment": head(start=b"GET /v1/x#/../y HTTP/1.1"),
    "a target without a slash": head(start=b"GET v1/x HTTP/1.1"),
    "an empty target": head(start=b"GET HTTP/1.1"),
    "a whole URL": head(start=b"GET http://example.invalid/v1/x HTTP/1.1"),
    "a whole URL with credentials": head(start=b"GET http://u:p@example.invalid:99/v1/x HTTP/1.1"),
    "a whole URL without a path": head(start=b"GET http://example.invalid HTTP/1.1"),
    "another scheme": head(start=b"GET file:///etc/passwd HTTP/1.1"),
    "at": head(start=b"GET @example.invalid/v1/x HTTP/1.1"),
    "a star": head(start=b"OPTIONS * HTTP/1.1"),
    "a star and more": head(start=b"GET */v1/x HTTP/1.1"),
    "CONNECT": head(start=b"CONNECT example.invalid:443 HTTP/1.1") + HIDDEN,
    "a method in small letters": head(start=b"get /v1/x HTTP/1.1"),
    "a method nobody knows": head(start=b"HIDE /v1/x HTTP/1.1"),
    "no method": head(start=b" /v1/x HTTP/1.1"),
    "TLS": bytes.fromhex("16030100a5010000a10303") + b"\x00" * 160,
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "empty lines": b"\r\n\r\n\r\n" + head(start=b"GET /v1/x HTTP/1.1"),
    "an empty line of LF": b"\n" + head(start=b"GET /v1/x HTTP/1.1"),
}
SHAPES = {
    f"{kind}: {name}": raw
    for kind, table in (
        ("length", LENGTHS),
        ("coding", CODINGS),
        ("chunk", CHUNKS),
        ("trailer", TRAILERS),
        ("head", HEADS),
    )
    for name, raw in table.items()
}


async def strictly(raw: bytes) -> list[Message]:
    """The requests that a strict reader finds, up to the first that it does not take."""
    source, found = fed(raw), []
    while True:
        try:
            found.append(await source.request())
        except (BrokenError, EndedError):
            return found


LAST_BUT_ONE = b"GET /v1/x HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = b"GET /v1/last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


async def answers(client: Client) -> list[int]:
    """The statuses of all answers until the connection ends, all of them whole; after a good one it is asked to end."""
    found: list[int] = []
    while True:
        try:
            response = await client.response()
        except EndedError:
            assert not client.source.buffer
            return found
        assert response.whole
        if response.status in {400, 408, 413, 431}:
            assert response.all(b"connection") == [b"close"]
            assert json.loads(response.body)["error"]["message"].startswith("[counterproof] ")
        if not found and not response.all(b"connection"):
            await client.send(LAST)
        found.append(response.status)


@pytest.mark.parametrize("name", SHAPES)
def test_no_shape_of_a_request_smuggles_another(stage: Stage, name: str) -> None:
    """Refused and closed, with no whole request at the upstream; or as the one request that a strict reader sees."""

    async def scene() -> None:
        raw = SHAPES[name]
        strict = [request.target for request in await strictly(raw)]
        async with stage.client() as client:
            await client.send(raw)
            statuses = await answers(client)
        await stage.idle()
        seen = [request.target for request in stage.upstream.requests if request.whole]
        assert not stage.upstream.faults
        assert set(statuses) <= {200, 400, 408, 413, 501}
        assert len(seen) == statuses.count(200)
        if seen:
            assert seen in ([b"/v1/x"], [b"/v1/x", b"/v1/last"], [*strict, b"/v1/last"])
        assert b"/v1/hidden" in strict or not any(one.target == b"/v1/hidden" for one in stage.upstream.requests)
        async with stage.client() as client:
            assert (await client.ask(HIDDEN)).body == b"ok", "whatever it was, the next client is served"

    stage.play(scene())


@pytest.mark.parametrize(
    "target", [b"*@%s/v1/x", b"*:x@%s/v1/x", b"@%s/v1/x", b".@%s/v1/x", b"/\\@%s", b"//%s/v1/x", b"http://%s/"]
)
def test_no_target_leads_to_another_host(stage: Stage, target: bytes) -> None:
    async def scene() -> None:
        async with Upstream().serve() as elsewhere, stage.client() as client:
            raw = target % b"127.0.0.1:%d" % elsewhere.port
            response = await client.ask(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % raw)
            assert not elsewhere.requests
            assert response.status in {200, 400}

    stage.play(scene())


@pytest.mark.parametrize("framing", [b"content-length: 5", b"transfer-encoding: chunked"], ids=["length", "chunked"])
def test_a_transfer_coding_that_is_not_undone_is_refused(stage: Stage, framing: bytes) -> None:
    """Its body would reach the upstream encoded, with nothing left that says so."""

    async def scene() -> None:
        coding = framing.replace(b"content-length: 5", b"transfer-encoding: gzip").replace(
            b": chunked", b": gzip, chunked"
        )
        async with stage.client() as client:
            await client.send(head(coding) + chunked(b"\x1f\x8b\x08"))
            assert set(await answers(client)) <= {400, 501}
        assert not any(request.whole for request in stage.upstream.requests)

    stage.play(scene())


@pytest.mark.parametrize("later", [False, True], ids=["in one segment", "in a segment of their own"])
@pytest.mark.parametrize("path", [b"/v1/x", b"/v1/chat/completions"])
def test_trailers_do_not_become_headers(stage: Stage, path: bytes, later: bool) -> None:  # noqa: FBT001
    """RFC 9110, section 6.5.1: whoever checks or removes headers before this proxy does not look at trailers."""

    async def scene() -> None:
        trailers = (
            b"Authorization: Bearer "
            + secret("hidden").encode()
            + b"\r\nX-Trailer: hidden\r\nConnection: x-kept\r\n\r\n"
        )
        start = head(b"Transfer-Encoding: chunked", b"X-Kept: 1", start=b"POST " + path + b" HTTP/1.1") + chunk(b"{}")
        async with stage.client() as client:
            await client.send(*((start, b"0\r\n" + trailers) if later else (start + b"0\r\n" + trailers,)))
            assert (await client.response()).status == 200
        (seen,) = stage.upstream.requests
        assert seen.body == b"{}"
        assert b"hidden" not in seen.head
        assert seen.all(b"x-kept") == [b"1"]

    stage.play(scene())


@pytest.mark.parametrize("garbage", [b"{}" + HIDDEN, b"\x00", b"GET /v1/hidden\x01", b"HIDE / HTTP/1.1\r\n\r\n"])
def test_garbage_after_a_request_does_not_take_its_answer(stage: Stage, garbage: bytes) -> None:
    """The request is the upstream's already: a 400 in its answer's place would say that it was not."""

    async def slow(request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.05)
        return await ok()(request, source, writer)

    async def scene() -> None:
        stage.upstream.plays.append(slow)
        async with stage.client() as client:
            await client.send(LAST_BUT_ONE)
            while not stage.upstream.requests:
                await asyncio.sleep(0.001)
            await client.send(garbage)
            assert await answers(client) in ([200], [200, 400])
        assert [request.target for request in stage.upstream.requests] == [b"/v1/x"]

    stage.play(scene())
