"""A client that leaves ends its request in the real engine, whenever it leaves; no reference is asked about it.

The engine's own gauges tell. It takes notice between two steps, so one step is allowed for, and a second for everything
else; a step is measured on this very machine, which may be busy. A try in which this process itself had no turn for too
long shows nothing, and is made again: a kernel was seen to leave it without one for as long as the engine wrote.
"""

import contextlib
import itertools
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import httpx2
import pytest
import tenacity

from tests.engine.counters import totals
from tests.engine.fixtures import Engines, ObservingProxy

GRACE_S = 1.0
STALL_S = 0.4  # between two looks of which the second came too late
PATIENCE_S = 60.0  # after which something has failed, and is not slow
LONG = {"model": "smollm2", "temperature": 0, "ignore_eos": True}
STORY = [{"role": "user", "content": "Tell me a story without an end."}]
MIRROR, REQUESTS = "counterproof_mirror_total", "counterproof_requests_total"


class StalledError(Exception):
    """This process was kept waiting: what it would have shown was over when its turn came."""


made_again = tenacity.retry(
    retry=tenacity.retry_if_exception_type(StalledError), stop=tenacity.stop_after_attempt(4), reraise=True
)


class Client:
    """A client on a socket of its own, which can leave at any moment. Sends the head and `sent` bytes of the body."""

    def __init__(self, base_url: str, path: str, body: bytes, sent: int | None = None) -> None:
        host, _, port = base_url.removeprefix("http://").removesuffix("/v1").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        head = f"POST /v1{path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        self._socket.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body[:sent])
        self.received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def read(self, until: bytes) -> None:
        """Reads on until what was received holds `until`."""
        while until not in self.received:
            piece = self._socket.recv(65536)
            assert piece, "the connection was closed"
            self.received += piece

    def look(self) -> None:
        """Takes in what has come, and waits for nothing."""
        self._socket.setblocking(False)  # noqa: FBT003
        try:
            self.received += self._socket.recv(65536)
        except BlockingIOError:
            pass
        finally:
            self._socket.settimeout(PATIENCE_S)

    def gaps(self, events: int) -> list[float]:
        """Reads so many events (the role's not among them) and tells the seconds between them."""
        self.read(b"data: ")
        times: list[float] = []
        seen = self.received.count(b"data: ")
        while len(times) <= events:
            piece = self._socket.recv(65536)
            assert piece, "the stream has ended"
            self.received += piece
            if (now_seen := self.received.count(b"data: ")) > seen:
                times.append(time.monotonic())
                seen = now_seen
        return [b - a for a, b in itertools.pairwise(times)]

    @property
    def exchange(self) -> str:
        """The exchange's id, from the head of its answer."""
        found = re.search(rb"x-counterproof-id: (cp-\w+)\r\n", self.received)
        assert found, "no head of an answer"
        return found[1].decode()


class Counts(NamedTuple):
    """What must have moved by so much, or not at all, when a client has left."""

    left: float
    mirrored: float
    mirrored_as_left: float
    posts_to_reference: float


class Scene:
    """The engines, the proxy between them, and what they say about themselves."""

    def __init__(self, engines: Engines, proxy: ObservingProxy, client: httpx2.Client) -> None:
        self.proxy, self.base_url = proxy.process, proxy.process.base_url
        self.judged = proxy.judged
        self._client = client
        self._primary, self._reference = engines.primary.root_url, engines.reference.root_url

    def counts_at_rest(self) -> Counts:
        """The counters once nothing runs, and nothing waits to be looked at."""
        until(lambda: self.running == 0 and self.proxy.metric("counterproof_mirror_queue") == 0)
        return self.counts()

    @property
    def running(self) -> float:
        """The requests that run or wait in the primary."""
        return sum(totals(self._client, self._primary, "vllm:num_requests_running", "vllm:num_requests_waiting"))

    @property
    def tokens(self) -> list[float]:
        """The tokens that the primary has read and written, once a request's first token was there."""
        return totals(self._client, self._primary, "vllm:prompt_tokens_total", "vllm:generation_tokens_total")

    def counts(self) -> Counts:
        """The counters as they stand."""
        return Counts(
            self.proxy.metric(REQUESTS, code="499"),
            self.proxy.metric(MIRROR),
            self.proxy.metric(MIRROR, outcome="not_comparable", reason="client_left"),
            *totals(self._client, self._reference, "http_requests_total", method="POST"),
        )

    def ends(self, step: float) -> None:
        """The client has just left: the engine must have ended its request within one step and a second.

        Raises:
            StalledError: it was not looked at often enough to say so.
        """
        began = time.monotonic()
        asked = looked = stalled = 0.0
        while True:
            looked, asked = asked, time.monotonic() - began  # an answer to this says how things stood then, or later
            stalled = max(stalled, asked - looked)
            if self.running == 0:
                break
            assert asked < PATIENCE_S, "the engine goes on"
            time.sleep(0.01)
        if asked > step + GRACE_S and stalled > STALL_S:
            raise StalledError
        assert asked <= step + GRACE_S

    def is_counted(self, before: Counts, *, answered: bool) -> None:
        """Counted as left; in the mirror, too, if an answer had begun; the reference was not asked; all goes on."""
        until(lambda: self.counts().left == before.left + 1)
        until(lambda: self.counts().mirrored == before.mirrored + answered)
        assert self.proxy.metric("counterproof_open_requests") == 0
        after = self.counts()
        assert after.mirrored_as_left == before.mirrored_as_left + answered
        assert after.posts_to_reference == before.posts_to_reference
        body = LONG | {"messages": STORY, "max_tokens": 2}
        again = self._client.post(f"{self.base_url}/chat/completions", json=body)
        assert again.status_code == 200
        assert again.json()["usage"]["completion_tokens"] == 2


def until(true: Callable[[], bool]) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def chat(**fields: Any) -> bytes:
    return json.dumps(LONG | {"messages": STORY, "max_tokens": 3000} | fields).encode()


@contextlib.contextmanager
def first_in_line() -> Iterator[None]:
    """This process has its turn before the engines, where that is allowed: it does little, and is what measures.

    Little it must be: looks that cost 100 ms of CPU each, on the primary's core, left the primary none for as long as
    the test looked.
    """
    if not hasattr(os, "sched_setscheduler"):
        yield
        return
    before = os.sched_getscheduler(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))


@pytest.fixture
def scene(engines: Engines, proxy: ObservingProxy) -> Iterator[Scene]:
    # One client for all, without kept connections: making its TLS context is most of what a request would cost.
    alone = httpx2.Limits(max_keepalive_connections=0)
    with httpx2.Client(timeout=PATIENCE_S, trust_env=False, limits=alone) as client, first_in_line():
        yield Scene(engines, proxy, client)


@made_again
def test_in_mid_stream(scene: Scene) -> None:
    before = scene.counts_at_rest()
    with Client(scene.base_url, "/chat/completions", chat(stream=True)) as client:
        step = max(client.gaps(8))
        if scene.running != 1:
            client.read(b"data: [DONE]")  # else it was not running
            raise StalledError
        client.leave()
        scene.ends(step)
    scene.is_counted(before, answered=True)
    (examination,) = scene.judged(client.exchange)["examinations"]
    assert (examination["outcome"], examination["reason"]) == ("not_comparable", "client_left")


@made_again
def test_before_the_first_byte(scene: Scene) -> None:
    """While the prompt is read: it takes two steps, and after the first the engine tells that it runs."""
    before, tokens = scene.counts_at_rest(), scene.tokens
    prompt = f"{uuid.uuid4()} " + "the cat sat on a mat and " * 430  # nothing of it is in the prefix cache
    messages = [{"role": "user", "content": prompt}]
    began = time.monotonic()
    with Client(scene.base_url, "/chat/completions", chat(stream=True, messages=messages, max_tokens=500)) as client:
        until(lambda: scene.running == 1)
        step = time.monotonic() - began
        client.look()
        assert client.received.endswith(b"\r\n\r\n"), "a head, and nothing of the body"
        client.leave()
        scene.ends(step)
    assert scene.tokens == tokens, "nothing was written"
    scene.is_counted(before, answered=True)
    (examination,) = scene.judged(client.exchange)["examinations"]
    assert (examination["outcome"], examination["reason"]) == ("not_comparable", "client_left")


@made_again
def test_during_a_call_that_does_not_stream(scene: Scene, engines: Engines) -> None:
    with Client(engines.primary.base_url, "/chat/completions", chat(stream=True)) as direct:
        step = max(direct.gaps(8))
    before = scene.counts_at_rest()
    with Client(scene.base_url, "/chat/completions", chat(stream=False)) as client:
        deadline = time.monotonic() + PATIENCE_S
        while scene.running != 1:
            client.look()
            if client.received:
                raise StalledError
            assert time.monotonic() < deadline
        client.look()
        assert client.received == b""
        client.leave()
        scene.ends(step)
    scene.is_counted(before, answered=False)


@pytest.mark.parametrize("path", ["/chat/completions", "/responses"], ids=["read whole", "passed on as it comes"])
def test_during_an_upload(scene: Scene, path: str) -> None:
    before, tokens = scene.counts_at_rest(), scene.tokens
    body = chat(stream=True, input="Tell me a story.")
    seen = []
    with Client(scene.base_url, path, body, sent=len(body) // 2) as client:
        until(lambda: scene.proxy.metric("counterproof_open_requests") == 1)
        for _ in range(10):
            seen.append(scene.running)
            time.sleep(0.05)
        client.leave()
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            seen.append(scene.running)
    assert set(seen) == {0}
    assert scene.tokens == tokens
    scene.is_counted(before, answered=False)
