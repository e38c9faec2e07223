import asyncio
from typing import Any

import pytest

from proxy.joined import HeadKept, joined

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Transport(asyncio.Transport):
    """Keeps what is written, one item per write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("size", "writes"), [(0, 1), (1, 1), (64 * 1024, 1), (64 * 1024 + 1, 2)])
def test_only_what_is_cheap_to_copy_is_joined(size: int, writes: int) -> None:
    transport, body = Transport(), b"x" * size
    joined(transport, HEAD, body)
    assert b"".join(transport.writes) == HEAD + body
    assert len(transport.writes) == writes


def kept(*steps: str | bytes) -> list[bytes]:
    """What is written once the steps were done: bytes are written, `turn` is one of the loop's, the rest is called."""

    async def main() -> list[bytes]:
        transport = Transport()
        server = HeadKept(transport, asyncio.get_running_loop())
        for step in steps:
            if isinstance(step, bytes):
                server.write(step)
            elif step == "turn":
                await asyncio.sleep(0)
            elif step == "close":
                server.close()
            else:
                transport.closed = True
        return list(transport.writes)

    return asyncio.run(main())


def test_a_head_goes_with_the_body_that_follows_at_once() -> None:
    assert kept(HEAD, b"body", b"more", "turn") == [HEAD + b"body", b"more"]


def test_a_head_whose_body_is_not_there_goes_in_the_next_turn() -> None:
    assert kept(HEAD) == []
    assert kept(HEAD, "turn", b"body") == [HEAD, b"body"]


def test_a_kept_head_goes_before_the_connection_ends() -> None:
    assert kept(HEAD, "close", "turn") == [HEAD]


def test_a_kept_head_is_dropped_where_nobody_is_left() -> None:
    assert kept(HEAD, "lost", "turn") == []


def test_a_second_head_goes_behind_the_first() -> None:
    assert kept(HEAD, HEAD, b"body", "turn") == [HEAD + HEAD, b"body"]
