"""`counterproof serve` as a process of its own, as a user starts it."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import httpx2
import yaml

from proxy.demo.building import RigError

_UP_SECONDS = 30.0
_END_SECONDS = 60.0


class ProxyProcess:
    """A proxy with its configuration file and log in `folder`; a context manager.

    `settings` is the file's content and must name both ports. `base_url` is what agents use, `control_url` the root
    of the control port.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        self.config = folder / "counterproof.yaml"
        self.log = folder / "proxy.log"
        self.config.write_text(yaml.safe_dump(dict(settings), sort_keys=False), encoding="utf-8")
        self.base_url = f"http://127.0.0.1:{settings['listen']['port']}/v1"
        self.control_url = f"http://127.0.0.1:{settings['control']['port']}"
        self._process: subprocess.Popen[bytes] | None = None
        # Kept, because it is asked ten times a second: a client of its own for each request costs 30 ms of CPU (TLS).
        self._client = httpx2.Client(
            base_url=self.control_url, timeout=5, trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0)
        )

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", "from proxy.cli import main; main()", "serve", "--config", str(self.config)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603
        try:
            self._until(lambda: self._get("/healthz") is not None, _UP_SECONDS, "the proxy did not come up")
        except RigError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._client.close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def metrics(self) -> str:
        """The metrics' exposition, "" where the proxy does not answer."""
        return self._get("/metrics") or ""

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry the labels; 0 where there are none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        samples = [line for line in self.metrics().splitlines() if line.startswith((name + "{", name + " "))]
        return sum(float(s.rpartition(" ")[2]) for s in samples if all(label in s for label in wanted))

    def wait_fit(self, shadow: str, seconds: float) -> None:
        """Returns when a shadow is found, warm and fit.

        Raises:
            RigError: it was not, within so many seconds.
        """
        self._until(
            lambda: self.metric("counterproof_shadow_up", shadow=shadow) == 1,
            seconds,
            f"the shadow {shadow!r} was not found fit",
        )

    def wait_outcomes(self, count: int, seconds: float, seen: Callable[[float], None] = lambda _: None) -> None:
        """Returns when so many exchanges have their outcome (summed over shadows); `seen` is told of progress.

        Raises:
            RigError: fewer had, within so many seconds.
        """

        def enough() -> bool:
            now = self.metric("counterproof_mirror_total")
            seen(now)
            return now >= count

        self._until(enough, seconds, f"fewer than {count} exchanges were compared")

    def _get(self, path: str) -> str | None:
        try:
            return self._client.get(path).text
        except httpx2.TransportError:
            return None

    def _until(self, true: Callable[[], bool], seconds: float, complaint: str) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if self._process is None or self._process.poll() is not None:
                raise RigError(f"{complaint}: the proxy ended; log: {self.log}")
            if time.monotonic() > deadline:
                raise RigError(f"{complaint} within {seconds:.0f} s; log: {self.log}")
            time.sleep(0.1)
