"""Processes of the bench: started on one core, ended with certainty, their CPU time and memory read."""

import contextlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

_PATIENCE_S = 10.0
_CPU_CLOCK = 2  # CPUCLOCK_SCHED: the time that the scheduler counted, in nanoseconds


class Unavailable(Exception):  # noqa: N818  (not an error: a row of the table says so)
    """Something that would be measured is not there; the message says why, in one line."""


def cores() -> tuple[int, int]:
    """The core of what is measured, and the core of everything else: the same one where there is only one."""
    mine = sorted(_ALL)
    return mine[0], mine[min(1, len(mine) - 1)]


_ALL = os.sched_getaffinity(0)


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Binds this process, and so whatever it starts meanwhile, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def first() -> None:
    """From now on this process, and whatever it starts, has its turn before all that is not as urgent.

    Raises:
        Unavailable: that is not allowed here.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError as error:
        raise Unavailable("real-time priority is not allowed here (it needs CAP_SYS_NICE)") from error


@contextlib.contextmanager
def process(
    command: Sequence[str | Path], *, core: int, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its output in a file, on one core, until the context ends."""
    with log.open("wb") as output, pinned(core):
        try:
            one = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env
            )
        except OSError as error:
            raise Unavailable(f"{command[0]}: {error.strerror}") from error
    try:
        yield one
    finally:
        end(one)


def end(one: subprocess.Popen[bytes]) -> None:
    """Ends a process and its children."""
    children = tree(one.pid)[1:]
    one.terminate()
    try:
        one.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        one.kill()
        one.wait()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def until(true: Callable[[], bool], one: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    """Waits until something is true of a process.

    Raises:
        Unavailable: the process ended, or the time did.
    """
    deadline = time.monotonic() + seconds
    while not true():
        if one.poll() is not None:
            raise Unavailable(f"it ended at once: {_last_line(log)}")
        if time.monotonic() > deadline:
            raise Unavailable(f"it was not ready in {seconds:.0f} s: {_last_line(log)}")
        time.sleep(0.05)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "emerg" in line]
    return re.sub(r"/[^\s:]+/", "", (errors or lines or ["it said nothing"])[-1])[:160]


def tree(pid: int) -> list[psutil.Process]:
    """A process and its descendants."""
    try:
        one = psutil.Process(pid)
        return [one, *one.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_ns(pid: int) -> int:
    """CPU time of a process and its descendants, all threads, those that ended included; nanoseconds."""
    return sum(map(_cpu_ns, tree(pid)))


def _cpu_ns(one: psutil.Process) -> int:
    try:
        return time.clock_gettime_ns((~one.pid << 3) | _CPU_CLOCK)  # clock_getcpuclockid(3), in so many bits
    except OSError:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            return int((times.user + times.system) * 1e9)
        return 0


def memory(pid: int) -> int:
    """Resident bytes of a process and its descendants."""
    total = 0
    for one in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += one.memory_info().rss
    return total


def machine() -> str:
    """The kind of machine in words: processor, cores, kernel."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        model = found.group(1) if found else model
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{os.cpu_count()} x {model} ({platform.machine()}), Linux {kernel}"
