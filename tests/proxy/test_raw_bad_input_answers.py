"""An upstream's bad answers: 502 while nothing has gone out, a broken connection after that, never a finished one."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.proxy.rawhttp import Client, Message, Source, chunk
from tests.proxy.rawstage import Answer, Play, Stage, Upstream, address_of
from tests.proxy.serving import proxy

pytestmark = pytest.mark.slow

GET = b"GET /v1/x HTTP/1.1\r\nhost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HIDDEN = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhidden"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Its time-out is far away: what ends here ends by itself."""
    with Stage(tmp_path_factory.mktemp("stage")).up() as up:
        yield up


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """It does not wait for long."""
    with Stage(tmp_path_factory.mktemp("hasty"), primary={"read_timeout": "500ms"}).up() as up:
        yield up


def assert_is_ours(response: Message, status: int, kind: str = "upstream_error") -> None:
    """In OpenAI's error shape, whole."""
    assert (response.status, response.whole) == (status, True)
    error = json.loads(response.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == (kind, status)
    assert b"127.0.0.1" not in response.body


def closing(*pieces: bytes) -> Answer:
    return Answer(pieces, end="close")


# --- before anything has gone out ----------------------------------------------------------------------------------

NO_HEAD = {
    "text": closing(b"hello, world\r\n\r\n"),
    "text and no line end": closing(b"hello, world"),
    "NUL": closing(b"\x00" * 100),
    "TLS": closing(bytes.fromhex("15030300020228")),
    "HTML": closing(b"<html><body>It works!</body></html>\r\n\r\n"),
    "a request": closing(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"),
    "another protocol": closing(b"SSH-2.0-OpenSSH_9.9\r\n"),
    "HTTP/2": closing(bytes.fromhex("000006040000000000000300000064")),
    "only line ends": closing(b"\r\n\r\n\r\n"),
    "no status": closing(b"HTTP/1.1 \r\n\r\n"),
    "a status of letters": closing(b"HTTP/1.1 abc OK\r\ncontent-length: 0\r\n\r\n"),
    "a status of two digits": closing(b"HTTP/1.1 20 OK\r\ncontent-length: 0\r\n\r\n"),
    "a status of four digits": closing(b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n"),
    "status 000": closing(b"HTTP/1.1 000 None\r\ncontent-length: 0\r\n\r\n"),
    "status 600": closing(b"HTTP/1.1 600 Beyond\r\ncontent-length: 0\r\n\r\n"),
    "status 999": closing(b"HTTP/1.1 999 Denied\r\ncontent-length: 0\r\n\r\n"),
    "101 that nobody asked for": closing(
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
    ),
    "100 without end": closing(b"HTTP/1.1 100 Continue\r\n\r\n" * 3),
    "a version of letters": closing(b"HTTP/x.y 200 OK\r\ncontent-length: 0\r\n\r\n"),
    "a status line of 1 MB": closing(b"HTTP/1.1 200 " + b"x" * (1 << 20) + b"\r\n\r\n"),
    "a header of 1 MB": closing(OK + b"x-a: " + b"x" * (1 << 20) + b"\r\n\r\n"),
    "a name of 1 MB": closing(OK + b"x" * (1 << 20) + b": a\r\n\r\n"),
    "a hundred thousand headers": closing(OK + b"a: b\r\n" * 100_000 + b"\r\n"),
    "no colon": closing(OK + b"x-a\r\ncontent-length: 0\r\n\r\n"),
    "no name": closing(OK + b": a\r\ncontent-length: 0\r\n\r\n"),
    "a space in a name": closing(OK + b"x a: b\r\ncontent-length: 0\r\n\r\n"),
    "signs in a name": closing(OK + b"x(a): b\r\ncontent-length: 0\r\n\r\n"),
    "two lengths": closing(OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nokk"),
    "two lengths, a list": closing(OK + b"content-length: 2, 3\r\n\r\nokk"),
    "a negative length": closing(OK + b"content-length: -1\r\n\r\nok"),
    "a length with a plus": closing(OK + b"content-length: +2\r\n\r\nok"),
    "a length of letters": closing(OK + b"content-length: two\r\n\r\nok"),
    "a length beyond 64 bits": closing(OK + b"content-length: 18446744073709551618\r\n\r\nok"),
    "an empty length": closing(OK + b"content-length: \r\n\r\nok"),
    "a length and chunks": closing(OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunks and a length": closing(OK + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n0\r\n\r\n"),
    "half a head, reset": Answer((OK + b"content-le",), end="reset"),
}


@pytest.mark.parametrize("name", NO_HEAD)
@pytest.mark.parametrize("path", [b"/v1/x", b"/v1/chat/completions"])
def test_what_is_no_answer_is_502(stage: Stage, name: str, path: bytes) -> None:
    async def scene() -> None:
        await stage.fresh()
        stage.upstream.plays.append(NO_HEAD[name])
        async with stage.client() as client:
            assert_is_ours(await client.ask(b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}" % path), 502)
            assert (await client.ask(GET)).body == b"ok", "the client's connection is none the worse"

    stage.play(scene())


# --- in the middle -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """An answer that is not whole, and what of its body arrives."""

    answer: Answer
    body: bytes


EVENT = 'data: {"t": "zażółć"}\n\n'.encode()
HALF = EVENT[: EVENT.index("ż".encode()) + 1]
BROKEN = {
    "a length that is not reached": Broken(closing(OK + b"content-length: 10\r\n\r\n", b"hello"), b"hello"),
    "a length of which nothing comes": Broken(closing(OK + b"content-length: 10\r\n\r\n"), b""),
    "a length that is not reached, reset": Broken(
        Answer((OK + b"content-length: 10\r\n\r\n", b"hello"), end="reset"), b"hello"
    ),
    "no last chunk": Broken(closing(CHUNKED, chunk(EVENT)), EVENT),
    "no chunk": Broken(closing(CHUNKED), b""),
    "no last chunk, reset": Broken(Answer((CHUNKED, chunk(EVENT)), end="reset"), EVENT),
    "the middle of a character": Broken(closing(CHUNKED, chunk(EVENT), chunk(HALF)), EVENT + HALF),
    "the middle of a chunk": Broken(closing(CHUNKED, chunk(EVENT), b"40\r\n" + HALF), EVENT + HALF),
    "the middle of a chunk's size": Broken(closing(CHUNKED, chunk(EVENT), b"4"), EVENT),
    "before a chunk's end": Broken(closing(CHUNKED, chunk(EVENT)[:-2]), EVENT),
    "before the end of the trailers": Broken(closing(CHUNKED, chunk(EVENT), b"0\r\nx-a: b\r\n"), EVENT),
    "before the last line end": Broken(closing(CHUNKED, chunk(EVENT), b"0\r\n"), EVENT),
    "a size of letters": Broken(closing(CHUNKED, chunk(EVENT), b"xyz\r\nhidden\r\n0\r\n\r\n"), EVENT),
    "an empty size": Broken(closing(CHUNKED, chunk(EVENT), b"\r\nhidden\r\n0\r\n\r\n"), EVENT),
    "a negative size": Broken(closing(CHUNKED, chunk(EVENT), b"-6\r\nhidden\r\n0\r\n\r\n"), EVENT),
    "a size beyond 64 bits": Broken(closing(CHUNKED, chunk(EVENT), b"10000000000000006\r\nhidden\r\n0\r\n\r\n"), EVENT),
    "no line end after a chunk": Broken(closing(CHUNKED, chunk(EVENT), b"5\r\nhello0\r\n\r\n"), EVENT + b"hello"),
    "a chunk longer than said": Broken(
        closing(CHUNKED, chunk(EVENT), b"5\r\nhello, hidden\r\n0\r\n\r\n"), EVENT + b"hello"
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_answer_that_breaks_is_broken_for_the_client_too(stage: Stage, name: str) -> None:
    """What came arrives as it came, and then the connection ends: no last chunk, no bytes of another answer."""
    case = BROKEN[name]

    async def scene() -> None:
        await stage.fresh()
        stage.upstream.plays.append(case.answer)
        async with stage.client() as client:
            async with asyncio.timeout(3):  # and not after a time-out of ten minutes
                response = await client.ask(GET)
            assert response.status == 200
            assert not response.whole
            assert response.body == case.body
            assert await client.rest() == b""
        async with stage.client() as client:
            assert (await client.ask(GET)).body == b"ok"

    stage.play(scene())


def test_an_answer_cut_at_any_byte_is_never_a_whole_one(stage: Stage) -> None:
    wire = OK + b"x-a: b\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"one") + chunk(HALF) + b"0\r\nx-b: c\r\n\r\n"

    async def one(end: int) -> None:
        stage.upstream.plays.append(closing(wire[:end]))
        async with stage.client() as client:
            response = await client.ask(GET)
            if response.status == 502:
                assert_is_ours(response, 502)
                assert end <= wire.index(b"\r\n\r\n") + 4
            else:
                assert not response.whole
                assert (b"one" + HALF).startswith(response.body)

    async def scene() -> None:
        await stage.fresh()
        for end in range(1, len(wire)):
            await one(end)

    stage.play(scene())


# --- more than an answer -------------------------------------------------------------------------------------------

MORE = {
    "a second answer at once": Answer((OK + b"content-length: 2\r\n\r\nok" + HIDDEN,)),
    "more than its length": Answer((OK + b"content-length: 2\r\n\r\nok and more",)),
    "more than its chunks": Answer((OK + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"ok") + b"0\r\n\r\nmore",)),
    "a body of 204": Answer((b"HTTP/1.1 204 No Content\r\n\r\n" + HIDDEN,)),
    "a body of 304": Answer((b"HTTP/1.1 304 Not Modified\r\n\r\nbody", HIDDEN)),
    "a length and a body of 204": Answer((b"HTTP/1.1 204 No Content\r\ncontent-length: 6\r\n\r\nhidden",)),
    "a body of HEAD": Answer((OK + b"content-length: 6\r\n\r\nhidden",)),
    "an answer before the request is whole": Answer(
        (HIDDEN.replace(b"hidden", b"ok").replace(b"6", b"2") + HIDDEN,), early=True
    ),
}


@pytest.mark.parametrize("name", MORE)
def test_what_comes_after_an_answer_is_nobodys_answer(stage: Stage, name: str) -> None:
    async def scene() -> None:
        method = b"HEAD" if "HEAD" in name else b"GET"
        await stage.fresh()
        stage.upstream.plays.append(MORE[name])
        async with stage.client() as client, stage.client() as other:
            first = await client.ask(method + b" /v1/x HTTP/1.1\r\nhost: a\r\n\r\n")
            assert first.status in {200, 204, 304, 502}
            assert b"hidden" not in first.body
            for delay in (0, 0.05):  # at once, and when the rest of that answer has come
                await asyncio.sleep(delay)
                response = await other.ask(GET)
                assert (response.status, response.body) == (200, b"ok")
            with_rest = bytes(client.source.buffer)
            assert b"hidden" not in with_rest

    stage.play(scene())


LATE = {
    "a second answer": Answer((OK + b"content-length: 2\r\n\r\nok", HIDDEN)),
    "half a second answer": Answer((OK + b"content-length: 2\r\n\r\nok", HIDDEN[:-3])),
    "an empty line": Answer((OK + b"content-length: 2\r\n\r\nok", b"\r\n")),
    "a body of HEAD": Answer((OK + b"content-length: 6\r\n\r\n", b"hidden")),
    "chunks of HEAD": Answer((OK + b"transfer-encoding: chunked\r\n\r\n", chunk(b"hidden") + b"0\r\n\r\n")),
}


@pytest.mark.parametrize("name", LATE)
def test_what_a_kept_connection_says_unasked_is_nobodys_answer(stage: Stage, name: str) -> None:
    """Shown for what arrives while nobody waits: bytes that cross the next request cannot be told from its answer."""

    async def scene() -> None:
        method = b"HEAD" if "HEAD" in name else b"GET"
        said = asyncio.Event()

        async def play(request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
            kept = await LATE[name](request, source, writer)
            said.set()
            return kept

        await stage.fresh()
        stage.upstream.plays.append(play)
        async with stage.client() as client:
            first = await client.ask(method + b" /v1/x HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (first.status, first.body) == (200, b"" if method == b"HEAD" else b"ok")
            await said.wait()
            await asyncio.sleep(0.02)  # until it has crossed the wire, while nobody waits for it
            for _ in range(2):
                response = await client.ask(GET)
                assert (response.status, response.body) == (200, b"ok")
        assert len(stage.upstream.requests) == 3

    stage.play(scene())


# --- heads that a lenient reader takes ------------------------------------------------------------------------------

ODD = {
    "a control character in a value": b"x-a: b\x01c\r\n",
    "NUL in a value": b"x-a: b\x00c\r\n",
    "DEL in a value": b"x-a: b\x7fc\r\n",
    "an escape in a value": b"x-a: \x1b[31mred\r\n",
    "a bare CR in a value": b"x-a: b\rx-hidden: 1\r\n",
    "a bare CR and an answer": b"x-a: b\r\rHTTP/1.1 200 OK\r\n",
    "a bare LF in a head": b"x-a: b\nx-b: c\r\n",
    "a folded line": b"x-a: b\r\n x-hidden: c\r\n",
    "a space before a colon": b"x-a : b\r\n",
    "two lengths, equal": b"content-length: 2\r\n",
    "another coding": b"transfer-encoding: identity\r\n",
    "Connection that names the length": b"connection: content-length\r\n",
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_head_is_502_or_its_odd_part_is_left_out(stage: Stage, name: str) -> None:
    """Nothing that two readers could take differently goes on to a client."""

    async def scene() -> None:
        await stage.fresh()
        head = OK + b"x-before: 1\r\n" + ODD[name] + b"x-after: 2\r\ncontent-length: 2\r\n\r\n"
        stage.upstream.plays.append(closing(head, b"ok"))
        async with stage.client() as client:
            response = await client.ask(GET)
            if response.status == 502:
                assert_is_ours(response, 502)
                return
            assert (response.status, response.body, response.whole) == (200, b"ok", True)
            assert (response.all(b"x-before"), response.all(b"x-after")) == ([b"1"], [b"2"])
            assert not response.all(b"x-hidden")
            assert len(response.all(b"content-length")) <= 1
            assert all(char >= 0x20 or char == 0x09 for _, value in response.headers for char in value)

    stage.play(scene())


# --- heads without end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [b"x" * 4096, b"x-a: b\r\n" * 512], ids=["a header", "headers"])
def test_a_head_without_end_is_502_after_a_bounded_number_of_bytes(stage: Stage, piece: bytes) -> None:
    async def scene() -> None:
        await stage.fresh()
        written = 0

        async def play(request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
            nonlocal written
            await source.request_body(request)
            writer.write(OK + b"x-a: ")
            while written < 50 * 1024 * 1024:
                writer.write(piece)
                await writer.drain()
                written += len(piece)
            return False

        stage.upstream.plays.append(play)
        async with stage.client() as client:
            assert_is_ours(await client.ask(GET), 502)
        await stage.upstream.closed()
        assert written < 8 * 1024 * 1024

    stage.play(scene())


def then_silence(*pieces: bytes) -> Play:
    async def play(request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
        await Answer(pieces)(request, source, writer)
        await source.more()  # until the other side closes
        return False

    return play


@pytest.mark.parametrize("head", [b"", OK, OK + b"x-a: b", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_head_that_does_not_come_is_504(hasty: Stage, head: bytes) -> None:
    async def scene() -> None:
        await hasty.fresh()
        hasty.upstream.plays.append(then_silence(head))
        async with hasty.client() as client:
            assert_is_ours(await client.ask(GET), 504)
        await hasty.upstream.closed()

    hasty.play(scene())


def test_nothing_but_interim_answers_is_504(hasty: Stage) -> None:
    async def play(request: Message, source: Source, writer: asyncio.StreamWriter) -> bool:
        while True:
            await Answer((b"HTTP/1.1 102 Processing\r\n\r\n", b""))(request, source, writer)

    async def scene() -> None:
        await hasty.fresh()
        hasty.upstream.plays.append(play)
        async with hasty.client() as client:
            assert_is_ours(await client.ask(GET), 504)
        await hasty.upstream.closed()

    hasty.play(scene())


def test_silence_in_the_middle_breaks_the_answer(hasty: Stage) -> None:
    async def scene() -> None:
        await hasty.fresh()
        hasty.upstream.plays.append(then_silence(CHUNKED, chunk(EVENT), b"5\r\n"))
        async with hasty.client() as client:
            response = await client.ask(GET)
            assert (response.status, response.body, response.whole) == (200, EVENT, False)
        await hasty.upstream.closed()

    hasty.play(scene())


def test_nobody_listening_is_502(tmp_path: Path) -> None:
    async def main() -> None:
        async with Upstream().serve() as upstream:
            base_url = upstream.base_url
        async with proxy(tmp_path, base_url, fit=False) as door, Client(address_of(door)) as client:
            for _ in range(2):
                assert_is_ours(await client.ask(GET), 502)

    asyncio.run(main())
