"""The load generator: raw HTTP/1.1 on asyncio protocols, in a process of its own, so that it costs little per chunk.

    python -m bench.load        # commands as JSON lines on standard input, one line of result each

`{"do": "requests", "port", "body", "count", "connections"}`: so many requests over so many kept connections.
`{"do": "streams", "port", "body", "count", "over_s"}`: so many streams at once, begun evenly over so many seconds.
When all of them have begun, a line `{"open": true}` comes before the result.
`{"do": "turns", "ports", "body", "count"}`: single streams, one after the other, the ports taking turns.
"""

import asyncio
import json
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_EVENT = re.compile(rb"^data: ?", re.MULTILINE)
_END = b"0\r\n\r\n"
_PATIENCE_S = 120.0


class Reply:
    """One answer: its status, when it began and ended (ns), and its body as it came off the wire."""

    __slots__ = ("asked", "ended", "first", "parts", "problem", "size", "status", "until")

    def __init__(self) -> None:
        self.asked = time.perf_counter_ns()
        self.first = self.ended = 0
        self.status = 0
        self.parts: list[bytes] = []
        self.size = 0
        self.until: int | None = None
        self.problem = ""

    @property
    def body(self) -> bytes:
        """The body without its chunks' frames."""
        raw = b"".join(self.parts)
        return raw if self.until is not None else b"".join(dechunk(raw))

    @property
    def events(self) -> int:
        """How many events a stream had, the last one included."""
        return len(_EVENT.findall(self.body))

    @property
    def complete(self) -> bool:
        """Whether a stream came to its proper end."""
        return not self.problem and self.status == 200 and self.body.rstrip().endswith(b"data: [DONE]")


def dechunk(raw: bytes) -> Iterator[bytes]:
    """The chunks of a chunked body, as far as it came."""
    at = 0
    while (line := raw.find(b"\r\n", at)) >= 0 and (size := int(raw[at:line].partition(b";")[0], 16)):
        yield raw[line + 2 : line + 2 + size]
        at = line + 2 + size + 2


class Connection(asyncio.Protocol):
    """A kept connection that asks one thing at a time."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._head = b""
        self._reply: Reply | None = None
        self._done: asyncio.Future[Reply] | None = None
        self.begun = asyncio.Event()
        """Set once the answer to what was asked last has begun, or ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[Reply]:
        """Sends a request; the answer, or as much of it as came before the connection ended."""
        self._done = asyncio.get_running_loop().create_future()
        self.begun.clear()
        self._reply = Reply()
        if self.closed:
            self._end("the connection is closed")
        else:
            self._transport.write(request)
        return self._done

    @property
    def closed(self) -> bool:
        """Whether it can be used no more."""
        return bool(self._transport.is_closing())

    def close(self) -> None:
        """Ends it."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Takes what came; nothing is parsed but the head and the end."""
        reply = self._reply
        if reply is None:
            return
        if not reply.status:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data, self._head = self._head[: end + 4], self._head[end + 4 :], b""
            reply.status = int(head[9:12])
            length = _LENGTH.search(head)
            reply.until = int(length.group(1)) if length else None
        if data:
            if not reply.first:
                reply.first = time.perf_counter_ns()
                self.begun.set()
            reply.parts.append(data)
            reply.size += len(data)
        if reply.size == reply.until or (reply.until is None and self._at_end(reply)):
            self._end("")

    @staticmethod
    def _at_end(reply: Reply) -> bool:
        if not reply.parts:
            return False
        last = reply.parts[-1]
        if len(last) < len(_END):
            last = b"".join(reply.parts[-len(_END) :])
        # Every event ends in a line end before its chunk's, so nothing but the last chunk looks like this.
        return last.endswith(_END)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end has gone."""
        self._end(type(exc).__name__ if exc else "the connection ended")

    def _end(self, problem: str) -> None:
        reply, done, self._reply, self._done = self._reply, self._done, None, None
        if reply is None or done is None or done.done():
            return
        reply.ended, reply.problem = time.perf_counter_ns(), problem
        self.begun.set()
        done.set_result(reply)


def request_bytes(port: int, body: str) -> bytes:
    """A chat request as the official client writes it, as far as a proxy sees."""
    raw = body.encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: application/json\r\n"
        "Content-Type: application/json\r\nUser-Agent: OpenAI/Python 3.57.0\r\nAuthorization: Bearer sk-bench\r\n"
        f"Accept-Encoding: identity\r\nConnection: keep-alive\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


async def _connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


async def requests(port: int, body: str, count: int, connections: int) -> dict[str, Any]:
    """So many requests over so many kept connections: latencies in microseconds, statuses, problems."""
    request, replies = request_bytes(port, body), list[Reply]()

    async def ask(times: int) -> None:
        connection = await _connect(port)
        for _ in range(times):
            if connection.closed:
                connection = await _connect(port)
            replies.append(await connection.ask(request))
        connection.close()

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for i in range(connections):
            share = count // connections + (i < count % connections)
            group.create_task(ask(share), name=f"connection:{i}")
    return {
        "wall_s": time.perf_counter() - began,
        "latency_us": [(reply.ended - reply.asked) / 1000 for reply in replies],
        "bad": _bad(reply for reply in replies if reply.problem or reply.status != 200),
    }


async def streams(port: int, body: str, count: int, over_s: float) -> dict[str, Any]:
    """So many streams at once: events of each, microseconds to the first byte, what did not end well."""
    request = request_bytes(port, body)
    connections = [await _connect(port) for _ in range(count)]
    asked = []
    for connection in connections:
        asked.append(connection.ask(request))
        await asyncio.sleep(over_s / count)
    for connection in connections:
        await connection.begun.wait()
    _say({"open": True})
    replies = await asyncio.gather(*asked)
    for connection in connections:
        connection.close()
    return {
        "events": [reply.events for reply in replies],
        "first_byte_us": [(reply.first - reply.asked) / 1000 for reply in replies if reply.first],
        "bad": _bad(reply for reply in replies if not reply.complete),
    }


async def turns(ports: list[int], body: str, count: int) -> dict[str, Any]:
    """Single streams, the ports taking turns: microseconds to the first byte, by port."""
    connections = {port: await _connect(port) for port in ports}
    found: dict[int, list[float]] = {port: [] for port in ports}
    bad: list[Reply] = []
    for number in range(count):
        for port in ports if number % 2 == 0 else ports[::-1]:
            reply = await connections[port].ask(request_bytes(port, body))
            found[port].append((reply.first - reply.asked) / 1000)
            if not reply.complete:
                bad.append(reply)
                connections[port] = await _connect(port)
    for connection in connections.values():
        connection.close()
    return {"first_byte_us": [found[port] for port in ports], "bad": _bad(iter(bad))}


def _bad(replies: Iterator[Reply]) -> dict[str, int]:
    """What went other than it should, counted by how."""
    return dict(
        Counter(f"{reply.status} {reply.problem or reply.body[-200:].decode('utf-8', 'replace')}" for reply in replies)
    )


def _say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


_COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
    "requests": requests,
    "streams": streams,
    "turns": turns,
}


def main() -> None:
    """Does what comes in, one command after the other."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            command = json.loads(line)
            do = _COMMANDS[command.pop("do")]
            runner.run(_within(do(**command)))


async def _within(work: Coroutine[Any, Any, dict[str, Any]]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        _say(await work)


if __name__ == "__main__":
    main()
