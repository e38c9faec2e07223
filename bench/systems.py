"""What is measured, each on a loopback port of its own, in front of one upstream: started, made ready, ended."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx2
import psutil

from bench import peers, recording
from bench.procs import Unavailable, cores, pinned, process, until
from proxy.demo.building import RigError, cache_dir
from proxy.demo.rig import free_port
from proxy.demo.served import ProxyProcess

DIRECT, RELAY, LARGER, NGINX, ROUTER, LITELLM = "direct", "relay", "relay-larger", "nginx", "vllm-router", "litellm"
OFF, OUTSIDE, DOOR, COMPARED, HUNG = (
    "counterproof",
    "counterproof-outside",
    "counterproof-injected",
    "counterproof-compared",
    "counterproof-hung",
)
TITLES = {
    DIRECT: "no proxy",
    RELAY: "bare relay (uvicorn + aiohttp)",
    LARGER: "bare relay, the larger answer (its client asks for what is injected)",
    NGINX: "nginx (`proxy_buffering off`)",
    ROUTER: peers.VLLM_ROUTER.replace("==", " "),
    LITELLM: "LiteLLM proxy " + peers.LITELLM.partition("==")[2],
    OFF: "Counterproof, mirroring off",
    OUTSIDE: "Counterproof, mirroring on, outside of the sample",
    DOOR: "Counterproof, injected, exchanges dropped at the door",
    COMPARED: "Counterproof, injected, with the whole comparison",
    HUNG: "Counterproof, mirroring on, a hung shadow whose queue was filled",
}
PACE_MS = 10.0

_READY_S, _FIT_S = 120.0, 30.0


@dataclass(frozen=True)
class System:
    """One that runs. `pid` is None where nothing stands between client and upstream."""

    name: str
    port: int
    pid: int | None = None
    proxy: ProxyProcess | None = None

    @property
    def injects(self) -> bool | None:
        """Whether its requests must reach the upstream injected; None where that is not for the bench to say."""
        return {LARGER: True, OFF: False, OUTSIDE: False, DOOR: True, COMPARED: True}.get(self.name)

    def end(self) -> None:
        """Asks it to end, so that all of them end at once; the contexts then wait for each."""
        if self.pid is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(self.pid).terminate()


class Upstream:
    """The compiled upstream on a port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._http = httpx2.Client(trust_env=False, timeout=10)

    def stats(self) -> dict[str, int]:
        """What came since it began: requests, injected ones, streams, events, streams open and abandoned."""
        found: dict[str, int] = self._http.get(f"http://127.0.0.1:{self.port}/bench/stats").json()
        return found


@contextlib.contextmanager
def upstream(folder: Path, tokens: int) -> Iterator[Upstream]:
    """Compiles (once per source), records and starts the upstream, on the other core.

    Raises:
        Unavailable: there is no C compiler, or the source does not compile.
    """
    program, recorded, port = _compiled(), folder / "recording", free_port()
    recording.write(recorded, tokens)
    command: list[str | Path] = [program, str(port), recorded, f"{PACE_MS:g}"]
    log = folder / "upstream.log"
    with process(command, core=cores()[1], log=log) as one:
        until(lambda: _answers(f"http://127.0.0.1:{port}/health"), one, log, _FIT_S)
        yield Upstream(port)


def _compiled() -> Path:
    source = Path(__file__).with_name("upstream.c")
    program = cache_dir() / f"bench-upstream-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if program.exists():
        return program
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable("the bench's upstream is written in C: install a C compiler (Debian: gcc, libc6-dev)")
    program.parent.mkdir(parents=True, exist_ok=True)
    made = program.with_suffix(f".{os.getpid()}")
    done = subprocess.run([compiler, "-O2", "-o", made, source], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"upstream.c does not compile: {done.stderr.strip().splitlines()[-1:]}")
    made.rename(program)
    return program


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, trust_env=False, timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


def _relays(port: int) -> bool:
    try:
        url = f"http://127.0.0.1:{port}{recording.CHAT}"
        headers = {"content-type": "application/json", "authorization": "Bearer sk-bench"}
        return httpx2.post(url, content=recording.small(), headers=headers, trust_env=False, timeout=10).is_success
    except httpx2.HTTPError:
        return False


class Systems:
    """Starts what is asked for by name; everything ends with the stack of contexts."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, at: Upstream) -> None:
        self._stack, self._folder, self._at = stack, folder, at

    def start(self, name: str) -> System:
        """A system that relays.

        Raises:
            Unavailable: it is not there or does not start; the message says why.
        """
        folder = self._folder / name
        folder.mkdir()
        with contextlib.ExitStack() as stack:
            found = self._start(name, folder, stack)
            self._stack.push(stack.pop_all())
        return found

    def _start(self, name: str, folder: Path, stack: contextlib.ExitStack) -> System:
        if name == DIRECT:
            return System(name, self._at.port)
        if name in PROXIES:
            return _Proxy(name, folder, stack, self._at).start()
        port, one = stack.enter_context(_OTHERS[name](self._at.port, folder, cores()[0]))
        log = next(iter(sorted(folder.glob("*.log"), key=lambda path: -path.stat().st_size)), folder / "none.log")
        until(lambda: _relays(port), one, log, _READY_S)
        return System(name, port, one.pid)


@contextlib.contextmanager
def _relay(at: int, folder: Path, core: int) -> Iterator[peers.Started]:
    port = free_port()
    command = [sys.executable, "-m", "bench.relay", str(port), f"http://127.0.0.1:{at}"]
    with process(command, core=core, log=folder / "relay.log") as one:
        yield port, one


def _litellm(at: int, folder: Path, core: int) -> contextlib.AbstractContextManager[peers.Started]:
    return peers.litellm(at, folder, core, recording.MODEL)


_OTHERS: dict[str, Callable[[int, Path, int], contextlib.AbstractContextManager[peers.Started]]] = {
    RELAY: _relay,
    LARGER: _relay,
    NGINX: peers.nginx,
    ROUTER: peers.vllm_router,
    LITELLM: _litellm,
}

_ALL = {"tool_calls": 1, "other": 1}
PROXIES: dict[str, dict[str, Any]] = {
    OFF: {},
    OUTSIDE: {"mirror": {"other": recording.OTHER_RATE}},
    # No exchange fits into the queue, and none is known not to before it is there: what is left is the door's own work.
    DOOR: {"mirror": _ALL | {"max_queue_bytes": 1}},
    COMPARED: {"mirror": _ALL},
    HUNG: {"mirror": _ALL},
}
"""The mirror's settings of each variant; the first has no shadow."""


class _Proxy:
    """One variant of this proxy on its way to readiness, with a shadow of its own where it mirrors."""

    def __init__(self, name: str, folder: Path, stack: contextlib.ExitStack, at: Upstream) -> None:
        self._name, self._folder, self._stack, self._at = name, folder, stack, at

    def start(self) -> System:
        listening = {"port": free_port()}
        settings: dict[str, Any] = {
            "primary": {"base_url": f"http://127.0.0.1:{self._at.port}/v1"},
            "ledger": {"path": str(self._folder / "ledger.db")},
            "listen": listening,
            "control": {"port": free_port()},
            "log": {"format": "json"},
        }
        shadow = None
        if self._name != OFF:
            port, shadow = self._shadow()
            settings["shadows"] = [{"name": "reference", "base_url": f"http://127.0.0.1:{port}/v1"}]
        process = ProxyProcess(settings | PROXIES[self._name], self._folder)
        try:
            with pinned(cores()[0]):
                self._stack.enter_context(process)
            if shadow is not None:
                process.wait_fit("reference", _FIT_S)
        except RigError as error:
            raise Unavailable(str(error).partition("; log:")[0]) from error
        if shadow is not None and self._name == HUNG:
            shadow.send_signal(signal.SIGUSR1)
        return System(self._name, listening["port"], process.pid, process)

    def _shadow(self) -> tuple[int, subprocess.Popen[bytes]]:
        port, log = free_port(), self._folder / "shadow.log"
        command = [sys.executable, "-m", "bench.shadow", str(port), recording.MODEL, str(recording.MAX_MODEL_LEN)]
        one = self._stack.enter_context(process(command, core=cores()[1], log=log))
        until(lambda: _answers(f"http://127.0.0.1:{port}/health"), one, log, _FIT_S)
        return port, one


class Load:
    """The load generator in its own process, on the other core."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "load.log"

    def __enter__(self) -> Self:
        with pinned(cores()[1]), self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait()

    def __call__(
        self, do: str, *, opened: Callable[[], None] = lambda: None, strict: bool = True, **options: Any
    ) -> dict[str, Any]:
        """Runs one command; `opened` is called once all streams of it have begun.

        Raises:
            Unavailable: the generator gave up, or (if `strict`) an answer was not what it should be.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do} | options).encode() + b"\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            result: dict[str, Any] = json.loads(line)
            if "open" in result:
                opened()
                continue
            if result["bad"] and strict:
                raise Unavailable(f"answers were not as they should be: {str(result['bad'])[:200]}")
            return result
        raise Unavailable(f"the load generator gave up: {self._log.read_text('utf-8')[-200:]}")
