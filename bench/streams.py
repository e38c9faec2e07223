"""Two thousand streams open at once through the proxy: none may be lost, and what each of them weighs.

    python -m bench.streams [--count 2000] [--write]

Once with mirroring off, and once with every stream injected (its exchange is dropped at the end, since the queue takes
none: it is the byte path that is looked at). Proxy on one core, load generator and upstream on the other.
"""

import argparse
import contextlib
import resource
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench import procs, recording, report, stats
from bench.procs import Unavailable, cpu_ns, memory
from bench.systems import DOOR, OFF, TITLES, Load, System, Systems, Upstream, upstream

RESULT = report.RESULTS / "streams.md"
TOKENS = 40
PACE_MS = 500.0

_BEGUN_PER_S = 400
_SPARE = 200  # descriptors beside those of the streams


@dataclass
class Seen:
    """What became of the streams. Memory in bytes per open stream, CPU as a share of the core while they were open."""

    count: int
    at_once: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    short: int = 0
    memory: float = 0.0
    cpu: float = 0.0
    first_byte_ms: tuple[float, float] = (0.0, 0.0)

    @property
    def lost(self) -> int:
        """Streams that did not come to their proper end, or had not all of their events."""
        return max(sum(self.bad.values()), self.short)


def hold(system: System, load: Load, at: Upstream, count: int) -> Seen:
    """Opens so many streams and reads all of them to their end."""
    assert system.pid is not None
    pid, seen = system.pid, Seen(count)
    warm = recording.stream(3).decode()
    load("streams", port=system.port, body=warm, count=8, over_s=0)
    before = memory(pid)
    began, cpu_before = time.monotonic(), cpu_ns(pid)

    def opened() -> None:
        time.sleep(1.0)  # until what the last ones to begin took is taken
        seen.at_once = at.stats()["open"]
        seen.memory = (memory(pid) - before) / count

    body = recording.stream(TOKENS, PACE_MS).decode()
    over_s = count / _BEGUN_PER_S
    found = load("streams", opened=opened, strict=False, port=system.port, body=body, count=count, over_s=over_s)
    seen.cpu = (cpu_ns(pid) - cpu_before) / 1e9 / (time.monotonic() - began)
    seen.bad = found["bad"]
    seen.short = sum(events != TOKENS + 2 for events in found["events"])
    waits = found["first_byte_us"] or [0.0]
    seen.first_byte_ms = (stats.percentile(waits, 0.5) / 1000, stats.percentile(waits, 0.99) / 1000)
    return seen


def table(found: dict[str, Seen]) -> str:
    """The figures as a Markdown table."""
    heads = [
        "",
        "streams",
        "open at once",
        "lost",
        "memory per stream, KiB",
        "CPU of the core",
        "first byte p50, p99, ms",
    ]
    rows = []
    for name, seen in found.items():
        waits = ", ".join(f"{wait:.1f}" for wait in seen.first_byte_ms)
        figures = [
            f"{seen.count:,}",
            f"{seen.at_once:,}",
            str(seen.lost),
            f"{seen.memory / 1024:.1f}",
            f"{seen.cpu:.0%}",
        ]
        rows.append([TITLES[name], *figures, waits])
    return stats.table(heads, rows)


def run(count: int) -> dict[str, Seen]:
    """Both variants, one after the other, each a process of its own.

    Raises:
        Unavailable: something of the bench is missing, or the system's limits are too low.
    """
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * count + _SPARE:
        raise Unavailable(f"{count} streams need {2 * count + _SPARE} open files, this system allows {hard}")
    found = {}
    for name in (OFF, DOOR):
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streams-")))
            at = stack.enter_context(upstream(folder, TOKENS))
            load = stack.enter_context(Load(folder))
            system = Systems(stack, folder, at).start(name)
            print(f"{TITLES[name]}: {count} streams ...", flush=True)
            found[name] = seen = hold(system, load, at, count)
            injected = at.stats()["injected"]
        print(f"  lost: {seen.lost} {seen.bad or ''}", flush=True)
        if (injected >= count) != (name == DOOR):
            raise Unavailable(f"{TITLES[name]}: {injected} requests were injected")
    return found


def main() -> None:
    """Runs the bench; `--write` keeps the result beside the others; exits with 1 where a stream was lost."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.streams", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    asked = parser.parse_args()
    try:
        found = run(asked.count)
    except Unavailable as problem:
        sys.exit(f"streams: {problem}")
    shown = table(found)
    print("\n" + shown)
    if asked.write:
        told = " ".join(["python -m bench.streams", *sys.argv[1:]])
        about = (
            f"{report.heading('Many streams at once', told)}.\n\n"
            f"Each stream has {TOKENS} tokens, one every {PACE_MS:g} ms; {_BEGUN_PER_S} begin per second. A stream is "
            "lost that does not end with `[DONE]` or lacks an event. Memory is the growth of the proxy's resident size "
            f"while all of them are open. Proxy on core {procs.cores()[0]}, load generator and upstream on core "
            f"{procs.cores()[1]}."
        )
        report.RESULTS.mkdir(exist_ok=True)
        RESULT.write_text(f"{about}\n\n{shown}\n", encoding="utf-8")
    sys.exit(any(seen.lost for seen in found.values()))


if __name__ == "__main__":
    main()
