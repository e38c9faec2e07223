import asyncio

import pytest

from bench.load import Connection, Reply, dechunk, request_bytes

EVENTS = [b'data: {"a":1}\n\n', b"data: [DONE]\n\n"]
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(
    b"%x\r\n%s\r\n" % (len(event), event) for event in [*EVENTS, b""]
)
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"


class Wire(asyncio.Transport):
    """What a connection writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def is_closing(self) -> bool:
        return False


def answered(*pieces: bytes, lost: bool = False) -> Reply:
    async def main() -> Reply:
        wire, connection = Wire(), Connection()
        connection.connection_made(wire)
        reply = connection.ask(request_bytes(1, "{}"))
        assert wire.sent.endswith(b"Content-Length: 2\r\n\r\n{}")
        for piece in pieces:
            assert not reply.done()
            connection.data_received(piece)
        if lost:
            connection.connection_lost(None)
        assert connection.begun.is_set()
        return await asyncio.wait_for(reply, 1)

    return asyncio.run(main())


@pytest.mark.parametrize("cut", range(1, len(CHUNKED)))
def test_a_stream_ends_with_its_last_chunk_wherever_it_is_cut(cut: int) -> None:
    reply = answered(CHUNKED[:cut], CHUNKED[cut:])
    assert reply.body == b"".join(EVENTS)
    assert (reply.status, reply.events, reply.complete) == (200, 2, True)


def test_a_stream_ends_with_its_last_chunk_though_it_comes_byte_by_byte() -> None:
    assert answered(*(CHUNKED[i : i + 1] for i in range(len(CHUNKED)))).complete


def test_a_body_of_known_length_may_look_like_a_last_chunk() -> None:
    reply = answered(WHOLE)
    assert (reply.body, reply.problem) == (b"0\r\n\r\n", "")


@pytest.mark.parametrize("cut", [0, 60, len(CHUNKED) - 5])
def test_a_stream_that_breaks_off_is_not_complete(cut: int) -> None:
    reply = answered(CHUNKED[:cut], lost=True)
    assert reply.problem
    assert not reply.complete


def test_a_stream_without_its_done_is_not_complete() -> None:
    assert not answered(CHUNKED.replace(b"[DONE]", b"[GONE]")).complete


def test_chunks_with_extensions_are_read() -> None:
    assert list(dechunk(b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n")) == [b"abc", b"0123456789"]
