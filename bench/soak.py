"""Mixed load for an hour beside a shadow that fails in turn: what was open must close again, and memory must not grow.

    python -m bench.soak [--minutes 60] [--rate 20] [--write]

The proxy (`counterproof serve`), a primary and two shadows (stand-ins) are processes of their own. After a warm-up, in
the middle and at the end the load pauses, and what is open then is compared. Exit status 1: something was not closed,
memory grew by more than a tenth in the last half hour (of a run of at least 40 minutes), or a client saw what it should
not have seen.
"""

import argparse
import asyncio
import contextlib
import datetime as dt
import itertools
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from bench.soak_load import SCRIPTS, Load, StandInProcess, fail_in_turn
from bench.stats import percentile, table
from proxy.demo.rig import free_port
from proxy.demo.served import ProxyProcess

METHOD = """\
The proxy, a primary and two shadows are processes of their own (stand-ins; the primary takes 150 ms and 5 ms a token).
One shadow is healthy; the other is by turns healthy, hung (stopped), slow (6 s, where its time-out is 5), answering
garbage, and dead, a minute each. Requests arrive at random (exponential gaps), of the kinds below; whoever reads an
answer compares it with the primary's own. Calls are mirrored all, other answers by a quarter. Idle is measured without
load, after a minute of warm-up, in the middle and at the end: once both shadows are fit and nothing waits, and half a
minute more, the lowest of 15 looks, one a second (engines are looked at now and then). RSS is read every 10 s; its
slope is that of least squares through the medians of each minute."""
RESULT = Path(__file__).parent / "results" / "soak.md"
SAMPLE_S = 10.0
QUIET_S = 30.0
_WELL = "Nothing speaks against the proxy."
_SETTLE_S = 150.0  # a circuit may stay open for two minutes
_GROWTH = 0.10
_JUDGED_S = 2400.0  # a shorter run says too little about memory: caches are still being filled
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """The proxy at one moment; `at` in seconds since the load began, sizes in bytes, `cpu` in seconds."""

    at: float
    descriptors: int
    tasks: int
    open_requests: int
    rss: int
    cpu: float
    ledger: int
    waiting: int

    @property
    def left_open(self) -> tuple[int, int, int]:
        """What must be the same whenever nothing is asked."""
        return self.descriptors, self.tasks, self.open_requests


@dataclass
class Soak:
    """One run: its processes, and what was seen of them."""

    proxy: ProxyProcess
    ledger: Path
    faulty: StandInProcess
    load: Load
    began: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    idle: dict[str, Sample] = field(default_factory=dict)
    unsettled: list[str] = field(default_factory=list)
    loaded: list[tuple[Sample, Sample]] = field(default_factory=list)

    async def metrics(self) -> dict[str, float]:
        """All samples of the control port, those of one name summed; the mirror's by shadow and outcome, too."""
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
            text = (await client.get(f"{self.proxy.control_url}/metrics")).text
        found: defaultdict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] += sample.value
                if sample.name == "counterproof_mirror_total":
                    found["|".join(sample.labels[name] for name in ("shadow", "outcome", "reason"))] += sample.value
        return dict(found)

    async def sample(self) -> Sample:
        """How the proxy stands now."""
        seen = await self.metrics()
        files = [self.ledger, self.ledger.with_name(self.ledger.name + "-wal")]
        return Sample(
            at=time.monotonic() - self.began,
            descriptors=int(seen["process_open_fds"]),
            tasks=int(seen["counterproof_tasks"]),
            open_requests=int(seen["counterproof_open_requests"]),
            rss=int(seen["process_resident_memory_bytes"]),
            cpu=seen["process_cpu_seconds_total"],
            ledger=sum(file.stat().st_size for file in files if file.exists()),
            waiting=int(seen.get("counterproof_mirror_queue", 0)),  # not there before the first exchange
        )

    async def under_load(self, name: str, seconds: float, phase: float) -> None:
        """Load for so long, sampled; with a `phase` above 0 the faulty shadow changes so often."""
        ends, first = time.monotonic() + seconds, len(self.samples)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.load.run(ends), name="load")
            if phase:
                group.create_task(fail_in_turn(self.faulty, phase, ends), name="faults")
            for number in itertools.count():
                self.samples.append(await self.sample())
                if number % 6 == 0:
                    self._say(name)
                if (left := ends - time.monotonic()) <= 0:
                    break
                await asyncio.sleep(min(SAMPLE_S, left))
        self.loaded.append((self.samples[first], self.samples[-1]))

    def _say(self, name: str) -> None:
        now, results = self.samples[-1], self.load.results
        print(
            f"{now.at / 60:5.1f} min  {name:12} {sum(results.values()):6} requests, {len(self.load.failures)} failed"
            f"  fds {now.descriptors:3}  tasks {now.tasks:3}  open {now.open_requests:3}  RSS {_mib(now.rss)} MiB"
            f"  ledger {_mib(now.ledger)} MiB  waiting {now.waiting:4}  shadow {self.faulty.state}",
            flush=True,
        )

    async def rest(self, name: str) -> None:
        """No load: waits until the shadows are asked again and nothing waits, then for `QUIET_S`, and looks."""
        await self.faulty.become("healthy")
        deadline = time.monotonic() + _SETTLE_S
        while True:
            seen = await self.metrics()
            if seen["counterproof_shadow_up"] == 2 and not seen.get("counterproof_mirror_queue"):
                break
            if time.monotonic() > deadline:
                shadows = f"{seen['counterproof_shadow_up']:.0f} of 2 shadows are fit"
                self.unsettled.append(f"{name}: after {_SETTLE_S:.0f} s with healthy engines {shadows}")
                break
            await asyncio.sleep(1)
        await asyncio.sleep(QUIET_S / 2)  # what the load left behind ends; from then on it is looked at
        seen_idle = []
        for _ in range(int(QUIET_S / 2)):
            await asyncio.sleep(1)
            seen_idle.append(await self.sample())
        self.idle[name] = min(seen_idle, key=lambda sample: sample.left_open)  # an engine is looked at now and then
        self.samples.append(self.idle[name])
        self._say(f"idle ({name})")


@contextlib.asynccontextmanager
async def running(folder: Path, minutes: float, rate: float) -> AsyncIterator[Soak]:
    """All processes, up and fit."""
    scripts = folder / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS), encoding="utf-8")
    common = ("--scripts", str(scripts), "--max-model-len", "200000")
    log = folder / "stand-ins.log"
    primary = StandInProcess(log, *common, "--prefill-s", "0.15", "--per-token-s", "0.005")
    healthy, faulty = StandInProcess(log, *common), StandInProcess(log, *common)
    ledger = folder / "counterproof.db"
    shadows = [
        {"name": "healthy", "base_url": healthy.base_url, "timeout": "60s"},
        {"name": "faulty", "base_url": faulty.base_url, "timeout": "5s"},
    ]
    settings = {
        "primary": {"base_url": primary.base_url},
        "shadows": shadows,
        "mirror": {"tool_calls": 1.0, "other": 0.25},
        "ledger": {"path": str(ledger), "content": "full", "keep": f"{max(1.0, minutes / 6):g}m"},
        "listen": {"port": free_port()},
        "control": {"port": free_port()},
        "log": {"format": "json"},
    }
    engines = (primary, healthy, faulty)
    try:
        for engine in engines:
            await engine.become("healthy")
        load = Load(rate)
        await load.learn(primary.base_url)
        with ProxyProcess(settings, folder) as proxy:
            for shadow in shadows:
                await asyncio.to_thread(proxy.wait_fit, shadow["name"], 60)
            load.base_url = proxy.base_url
            yield Soak(proxy, ledger, faulty, load)
    finally:
        for engine in engines:
            await engine.end()


async def soak(folder: Path, minutes: float, rate: float) -> tuple[str, list[str]]:
    """The run: its figures as Markdown, and what speaks against the proxy."""
    warm_up = min(60.0, 15 * minutes)
    half = (60 * minutes - warm_up) / 2
    phase = min(60.0, half / 5)
    async with running(folder, minutes, rate) as run:
        await run.under_load("warm-up", warm_up, 0)
        await run.rest("start")
        for name in ("mid", "end"):
            await run.under_load("load", half, phase)
            await run.rest(name)
        seen = await run.metrics()
    log = (folder / "proxy.log").read_text(encoding="utf-8", errors="replace").splitlines()
    errors = Counter(json.loads(line)["event"] for line in log if '"level":"error"' in line.replace(" ", ""))
    return report(run, seen, errors)


def report(run: Soak, seen: Mapping[str, float], errors: Counter[str]) -> tuple[str, list[str]]:
    """Figures and faults of a run that has ended."""
    growth, failures = grown(run.samples), run.load.failures
    slope, low, high = slope_of(run.samples)
    busy = sum(b.cpu - a.cpu for a, b in run.loaded) / sum(b.at - a.at for a, b in run.loaded)
    idle = [[name, *map(str, at.left_open), _mib(at.rss), _mib(at.ledger)] for name, at in run.idle.items()]
    lines = [
        table(["idle", "descriptors", "tasks", "open requests", "RSS, MiB", "ledger, MiB"], idle),
        "",
        f"- RSS: {slope:+.1f} KiB/min in the last three quarters (95 % bootstrap interval {low:+.1f} to {high:+.1f})",
        f"  and {100 * growth:+.1f} % over the last half hour (half of a shorter run).",
        f"- Under load, the proxy took {100 * busy:.0f} % of a core.",
        f"- Failures that clients saw and should not have seen: {len(failures)}.",
        f"- Errors in the proxy's log: {', '.join(f'{name} ({n})' for name, n in errors.items()) or 'none'}.",
        "",
        table(["request", "result", "count"], [[*key, str(n)] for key, n in sorted(run.load.results.items())]),
        "",
        table(["shadow", "outcome", "reason", "exchanges"], [[*of, f"{n:.0f}"] for of, n in _outcomes(seen)]),
    ]
    return "\n".join(lines), list(faults_of(run, seen, growth))


def faults_of(run: Soak, seen: Mapping[str, float], growth: float) -> Iterator[str]:
    """What speaks against the proxy."""
    yield from (f"a client saw: {failure}" for failure in run.load.failures[:20])
    yield from run.unsettled
    start = run.idle["start"].left_open
    for name, at in run.idle.items():
        if at.left_open != start:
            yield f"descriptors, tasks, open requests ({name}): {at.left_open}, at the start {start}"
    if growth > _GROWTH and run.samples[-1].at >= _JUDGED_S:
        yield f"memory grew by {100 * growth:.1f} % in the last half hour"
    told: Counter[str] = Counter()
    for (shadow, *_), count in _outcomes(seen):
        told[shadow] += round(count)
    if len(set(told.values())) != 1:
        yield f"the shadows' outcomes do not agree in number: {dict(told)}"


def _outcomes(seen: Mapping[str, float]) -> list[tuple[list[str], float]]:
    return [(name.split("|"), count) for name, count in sorted(seen.items()) if "|" in name]


def _mib(size: int) -> str:
    return f"{size / _KIB / _KIB:.1f}"


def slope_of(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """The slope of RSS in KiB per minute over the last three quarters, and its 95 % bootstrap interval.

    Least squares through the medians of each minute; the interval by drawing minutes anew.
    """
    last = samples[-1].at
    minutes: dict[int, list[int]] = {}
    for sample in samples:
        if sample.at >= last / 4:
            minutes.setdefault(int(sample.at // 60), []).append(sample.rss)
    points = [(minute, statistics.median(values) / _KIB) for minute, values in minutes.items()]
    chance = random.Random(7)
    drawn = []
    for _ in range(2000):
        some = chance.choices(points, k=len(points))
        if len({minute for minute, _ in some}) > 1:
            drawn.append(_line(some))
    if not drawn:
        return 0.0, 0.0, 0.0
    return _line(points), percentile(drawn, 0.025), percentile(drawn, 0.975)


def _line(points: Sequence[tuple[int, float]]) -> float:
    return float(np.polyfit([x for x, _ in points], [y for _, y in points], 1)[0])


def grown(samples: Sequence[Sample]) -> float:
    """How much larger RSS is at the end than half an hour (half of a shorter run) before, as a share of it.

    Medians over the first and the last sixth of that time's samples.
    """
    last = samples[-1].at
    late = [sample.rss for sample in samples if sample.at >= last - min(1800.0, last / 2)]
    sixth = max(1, len(late) // 6)
    return statistics.median(late[-sixth:]) / statistics.median(late[:sixth]) - 1


def main() -> None:
    """Runs it; `--write` keeps the result beside the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of load; three pauses of half a minute come on top"
    )
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="counterproof-soak-") as folder:
        result, faults = asyncio.run(soak(Path(folder), options.minutes, options.rate))
    print(result)
    print("\n".join(faults) or _WELL)
    if options.write:
        about = (
            f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC, `python -m bench.soak --minutes {options.minutes:g} "
            f"--rate {options.rate:g} --write`, Python {platform.python_version()}, {platform.machine()}."
        )
        RESULT.parent.mkdir(exist_ok=True)
        said = "\n".join(f"- {fault}" for fault in faults) or _WELL
        RESULT.write_text(f"# Soak\n\n{about} {METHOD}\n\n{said}\n\n{result}\n", encoding="utf-8")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
