"""What a soak does to a proxy: clients of many kinds, well-behaved and not, and a shadow that fails in turn."""

import asyncio
import contextlib
import itertools
import json
import random
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from proxy.demo.rig import free_port
from tests.proxy.answers import same

ROOT = Path(__file__).parents[1]
_TOOLS = [{"type": "function", "function": {"name": "send", "parameters": {"type": "object"}}}]
SCRIPTS: list[dict[str, Any]] = [
    {"text": "Plain words, one after the other, żółć 👩‍💻, and then no more of them.", "when": "Say"},
    {"text": "I look.\n", "calls": [{"name": "send", "arguments": '{"city": "Paris", "n": 1}'}], "when": "Do"},
    {"text": "and so on " * 130, "when": "Tell"},
]
_LARGE = 400 * 1000
_ANSWER_S = 90.0  # a request that takes longer has failed
_MOST_AT_ONCE = 300
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request: how often (a weight), what is sent, and how its client behaves.

    `manners`: `reads` the answer, `slowly`, or leaves: `in mid-stream`, `before a byte`, `in mid-upload`. `numbered`
    requests are conversations of their own: six digits, so that all of one kind have equal answers.
    """

    weight: float
    body: Any = None
    path: str = "/chat/completions"
    method: str = "POST"
    manners: str = "reads"

    def content(self, number: int) -> bytes | None:
        """The request's body, with its number."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body).replace("000000", f"{number:06d}").encode()


def _chat(content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "smollm2", "messages": [{"role": "user", "content": content}], "temperature": 0} | fields


_STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
_IMAGE = [
    {"type": "text", "text": "Say it, 000000."},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * _LARGE}},
]
KINDS: dict[str, Kind] = {
    "small": Kind(22, _chat("Say it, 000000.")),
    "streamed": Kind(22, _chat("Say it, 000000.", **_STREAM)),
    "tool call": Kind(8, _chat("Do it, 000000.", tools=_TOOLS)),
    "tool call, streamed": Kind(8, _chat("Do it, 000000.", tools=_TOOLS, **_STREAM)),
    "completion": Kind(4, {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 12}, "/completions"),
    "400 KB, an image": Kind(2, _chat(_IMAGE, stream=True)),
    "400 KB of text, compared": Kind(0.15, _chat("Do it, 000000. " + "interface " * (_LARGE // 10), tools=_TOOLS)),
    "read slowly": Kind(1, _chat("Tell it.", logprobs=True, top_logprobs=20, **_STREAM), manners="slowly"),
    "400: no such limit": Kind(3, _chat("Say it, 000000.", max_tokens=-1)),
    "400: broken JSON": Kind(3, b'{"model": "smollm2", "messages": ['),
    "GET": Kind(4, path="/models", method="GET"),
    "HEAD": Kind(2, path="/models", method="HEAD"),
    "leaves in mid-stream": Kind(6, _chat("Tell it, 000000.", **_STREAM), manners="in mid-stream"),
    "leaves before the first byte": Kind(4, _chat("Tell it, 000000.", **_STREAM), manners="before a byte"),
    "leaves a call that does not stream": Kind(4, _chat("Tell it, 000000."), manners="before a byte"),
    "leaves its upload": Kind(3, _chat(_IMAGE), manners="in mid-upload"),
    "leaves an upload that is passed on": Kind(2, _chat(_IMAGE), "/responses", manners="in mid-upload"),
}


class Load:
    """Clients at a bounded rate. `results` counts by kind and result, `failures` says what should not have been."""

    def __init__(self, rate: float) -> None:
        self.base_url = ""
        self.results: Counter[tuple[str, str]] = Counter()
        self.failures: list[str] = []
        self._rate = rate
        self._chance = random.Random(7)
        self._numbers = itertools.count()
        self._expected: dict[str, tuple[int, bytes]] = {}

    async def learn(self, base_url: str) -> None:
        """What the primary itself answers to every kind that reads its answer."""
        self.base_url = base_url
        async with aiohttp.ClientSession() as session:
            for name, kind in KINDS.items():
                if kind.manners in {"reads", "slowly"}:
                    self._expected[name] = await self._answer(session, kind)

    async def run(self, ends: float) -> None:
        """Sends requests until `ends` (monotonic seconds), and returns when all are answered."""
        names, weights = list(KINDS), [kind.weight for kind in KINDS.values()]
        slowly = aiohttp.TCPConnector(limit=0, socket_factory=_small_socket)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as usual,
            aiohttp.ClientSession(connector=slowly, read_bufsize=4096) as slow,
            asyncio.TaskGroup() as group,
        ):
            under_way: set[asyncio.Task[None]] = set()
            while time.monotonic() < ends:
                (name,) = self._chance.choices(names, weights)
                if len(under_way) >= _MOST_AT_ONCE:
                    self.results[name, "held back"] += 1
                else:
                    session = slow if KINDS[name].manners == "slowly" else usual
                    task = group.create_task(self._one(session, name), name=f"client:{name}")
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                await asyncio.sleep(self._chance.expovariate(self._rate))

    async def _one(self, session: aiohttp.ClientSession, name: str) -> None:
        kind, result = KINDS[name], "left"
        try:
            async with asyncio.timeout(_ANSWER_S):
                if kind.manners in {"reads", "slowly"}:
                    result = "as expected"
                    status, body = await self._answer(session, kind)
                    if (status, body) != self._expected[name]:
                        result = "not as expected"
                        self._fail(name, f"{status} with {len(body)} bytes, not as the primary answers")
                else:
                    await self._leave(kind)
        except (aiohttp.ClientError, OSError, EOFError, TimeoutError) as error:
            result = "failed"
            self._fail(name, f"{type(error).__name__} {error}")
        self.results[name, result] += 1

    def _fail(self, name: str, what: str) -> None:
        self.failures.append(f"{name}: {what} ({time.strftime('%H:%M:%S', time.gmtime())} UTC)")

    async def _answer(self, session: aiohttp.ClientSession, kind: Kind) -> tuple[int, bytes]:
        content = kind.content(next(self._numbers) % 1_000_000)
        async with session.request(
            kind.method, self.base_url + kind.path, data=content, headers=_JSON if content else {}
        ) as response:
            if kind.manners == "reads":
                body = await response.read()
            else:
                body = b""
                while piece := await response.content.read(16384):
                    body += piece
                    await asyncio.sleep(0.03)
            # What these hold is the primary's, and partly random.
            return response.status, b"" if kind.method != "POST" else same(body)

    async def _leave(self, kind: Kind) -> None:
        """Asks, and is gone at a random moment of the kind's: with a FIN, or with a reset."""
        address, _, root = self.base_url.removeprefix("http://").partition("/")
        host, port = address.split(":")
        content = kind.content(next(self._numbers) % 1_000_000) or b""
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            head = f"POST /{root}{kind.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(content))
            if kind.manners == "in mid-upload":
                content = content[: self._chance.randrange(1, len(content))]
            writer.write(content)
            if kind.manners == "in mid-stream":
                await reader.readuntil(b"data: ")
            await asyncio.sleep(self._chance.uniform(0, 1.5 if kind.manners == "in mid-stream" else 0.14))
        finally:
            if self._chance.random() < 0.5:
                writer.transport.abort()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _small_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """One that holds little, so that a slow reader is felt by who writes."""
    one = socket.socket(address[0], address[1], address[2])
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    return one


# --- the shadow that fails in turn ------------------------------------------------------------------------------------

_BEFORE = 60  # generating requests that are answered well: enough to be found fit
FAULTS: dict[str, dict[str, Any]] = {
    "healthy": {},
    "hung": {},
    "slow": {"delay_s": 6, "skip": _BEFORE},
    "garbage": {"body": "<html><body><h1>502 Bad Gateway</h1></body></html>", "skip": _BEFORE},
    "dead": {},
}
"""The states of a stand-in, in turn, and the faults that it is started with."""


class StandInProcess:
    """A stand-in engine as a process of its own, on a port that it keeps; `state` is one of `FAULTS` or "ended".

    What it says is appended to `log`: a client that leaves just as it is answered is an error to it.
    """

    def __init__(self, log: Path, *options: str) -> None:
        self.state = "ended"
        self._port = free_port()
        self._log, self._options = log, options
        self._process: asyncio.subprocess.Process | None = None

    @property
    def base_url(self) -> str:
        """Where OpenAI clients find it."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def become(self, state: str) -> None:
        """Ends the process and starts one that is in that state; `dead` has none, `hung` is a healthy one stopped."""
        if self.state != "healthy" or state not in {"healthy", "hung"}:
            await self.end()
            if state != "dead":
                await self._start(FAULTS[state])
        if state == "hung" and self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
        self.state = state

    async def _start(self, faults: dict[str, Any]) -> None:
        pipe = asyncio.subprocess.PIPE
        command = ("-m", "tests.standin", "--until-eof", "--port", str(self._port), "--faults", json.dumps(faults))
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *command, *self._options, stdin=pipe, stdout=pipe, stderr=log, cwd=ROOT
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            if not await self._process.stdout.readline():
                raise OSError(f"a stand-in did not start: {self._log.read_text(errors='replace')[-500:]}")

    async def end(self) -> None:
        """Ends the process, in whatever state it is."""
        process, self._process, self.state = self._process, None, "ended"
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            await process.wait()


async def fail_in_turn(shadow: StandInProcess, phase: float, ends: float) -> None:
    """Goes through the states, `phase` seconds in each, until `ends` (monotonic seconds)."""
    for state in itertools.cycle(FAULTS):
        if time.monotonic() >= ends:
            return
        await shadow.become(state)
        await asyncio.sleep(max(0.0, min(phase, ends - time.monotonic())))
