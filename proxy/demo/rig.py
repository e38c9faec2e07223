"""The rig: two small vLLM engines on this machine's CPU, built once and started when they are wanted.

`prepare` builds environment and model, `Engine` runs one engine of them. The primary keeps its KV cache in FP8, as
many clusters do; the reference computes in float32. With greedy decoding they differ often enough to show something.
"""

import asyncio
import atexit
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import httpx2

from proxy.demo.building import DATA, Rig, RigError, bfcl_data, cache_dir, clean_environment, prepare

__all__ = [
    "PRIMARY_ARGS",
    "REFERENCE_ARGS",
    "Engine",
    "Rig",
    "RigError",
    "bfcl_data",
    "cache_dir",
    "free_port",
    "prepare",
]

MODEL_NAME: Final = "smollm2"

_HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.25
_TERM_S: Final = 12.0
_KILL_S: Final = 10.0
_TAIL_LINES: Final = 12
_COMMON_ARGS: Final = (
    *("--served-model-name", MODEL_NAME),
    "--enforce-eager",
    *("--max-model-len", "4096"),
    # The CPU's default block of 128 tokens would leave most of a short prompt out of the prefix cache.
    *("--block-size", "32"),
    *("--tool-call-parser", "hermes"),
    "--enable-auto-tool-choice",
)
_ENVIRONMENT: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


def _has_avx512() -> bool:
    try:
        return "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False


# vLLM's CPU kernels take an FP8 KV cache on AVX-512 only; bf16 alone differs from float32 as well.
PRIMARY_ARGS: Final[tuple[str, ...]] = (
    *("--dtype", "bfloat16"),
    *(("--kv-cache-dtype", "fp8_e4m3") if _has_avx512() else ()),
)
REFERENCE_ARGS: Final[tuple[str, ...]] = ("--dtype", "float32", "--enable-scale-out")


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class Engine:
    """One vLLM server in a process group of its own, which ends with this process at the latest.

    Attributes:
        name: what it is called in logs and messages.
        base_url: the root of its OpenAI API, ``http://127.0.0.1:<port>/v1``.
        log: the file with everything it wrote.
    """

    def __init__(self, name: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.base_url = f"http://{_HOST}:{port}/v1"
        self.log = log
        self._health = f"http://{_HOST}:{port}/health"
        self._process = process
        self._stopped = False
        # The keeper ends the engine in any case; this waits until it has.
        atexit.register(self.stop)

    @classmethod
    def start(
        cls,
        rig: Rig,
        *,
        name: str,
        port: int,
        core: int | None,
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """Starts ``vllm serve`` and returns at once; `wait_ready` says when it serves (30 to 60 s later).

        Args:
            rig: what `prepare` built.
            name: names the engine and its log file.
            port: the loopback port it listens on.
            core: the one CPU core its threads are bound to (two engines that share cores starve each other); None
                leaves the choice to vLLM.
            args: further arguments of ``vllm serve``: `PRIMARY_ARGS`, `REFERENCE_ARGS`.
            env: further environment variables, the last word: ``PYTHONPATH`` for a plugin, say.

        Raises:
            RigError: the port is taken, or the process cannot be started.
        """
        _check_port(name, port)
        log = cache_dir() / "logs" / f"{name}-{port}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        # By module: the `vllm` script names its interpreter by a path, which a deep cache folder makes too long.
        serve = [str(rig.python), "-m", "vllm.entrypoints.cli.main", "serve", str(rig.model)]
        serve += ["--host", _HOST, "--port", str(port), *_COMMON_ARGS, "--chat-template", str(rig.template), *args]
        keeper = [str(rig.python), "-I", "-S", str(DATA / "keeper.py")]
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                    [*keeper, *serve],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=_engine_environment(core, env or {}),
                    start_new_session=True,
                )
            except OSError as error:
                raise RigError(f"engine {name} cannot be started: {error}") from error
        return cls(name, port, process, log)

    async def wait_ready(self, timeout_s: float) -> None:
        """Returns when the engine serves.

        Raises:
            RigError: it ended, or did not serve within `timeout_s` seconds; with the last lines of its log.
        """
        deadline = time.monotonic() + timeout_s
        async with httpx2.AsyncClient(trust_env=False, timeout=5) as client:
            while self._process.poll() is None:
                with contextlib.suppress(httpx2.TransportError):
                    if (await client.get(self._health)).status_code == 200:
                        return
                if time.monotonic() > deadline:
                    raise RigError(f"engine {self.name} did not serve within {timeout_s:.0f} s; {self._tail()}")
                await asyncio.sleep(_POLL_S)
        raise RigError(f"engine {self.name} ended before it served; {self._tail()}")

    def stop(self) -> None:
        """Ends the engine and everything it started, and returns when they are gone. Twice is once.

        Raises:
            RigError: something of the process group outlived SIGKILL by ten seconds.
        """
        if self._stopped:
            return
        # The keeper's id is the group's, and the kernel gives it to nobody else while a member is left.
        group = self._process.pid
        for number, patience_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
            if not self._is_running(group):
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)
            deadline = time.monotonic() + patience_s
            while self._is_running(group) and time.monotonic() < deadline:
                time.sleep(0.05)
        if self._is_running(group):
            raise RigError(f"engine {self.name} does not end: process group {group} is still there after SIGKILL")
        self._stopped = True
        if self._process.stdin:
            self._process.stdin.close()
        atexit.unregister(self.stop)

    def _is_running(self, group: int) -> bool:
        # Polling reaps the keeper, whose zombie would otherwise count as a member.
        return self._process.poll() is None or _group_lives(group)

    def _tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n  ".join([f"log: {self.log}", *lines[-_TAIL_LINES:]])


def _engine_environment(core: int | None, extra: Mapping[str, str]) -> dict[str, str]:
    # A user's own VLLM_* settings (a key, a port, a plugin) are for their own engines.
    own = {name: value for name, value in clean_environment().items() if not name.startswith("VLLM_")}
    binding = {} if core is None else {"VLLM_CPU_OMP_THREADS_BIND": str(core)}
    return own | _ENVIRONMENT | binding | dict(extra)


def _check_port(name: str, port: int) -> None:
    """RigError if somebody listens there already: their answers to /health would pass for the engine's."""
    with socket.socket() as probe:
        # As servers do: without it a port counts as taken for a minute after its last owner ended.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise RigError(f"engine {name} cannot listen on {_HOST}:{port}: {error.strerror}") from error


def _group_lives(group: int) -> bool:
    """Whether a process of the group is left. Zombies do not count: in a container, often nobody reaps them."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    processes = Path("/proc")
    if not (processes / "self" / "stat").exists():
        return True
    for entry in processes.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (name, which may hold anything) state parent group ...
            state, _, member_of = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
            if member_of == str(group) and state not in {"Z", "X"}:
                return True
    return False
