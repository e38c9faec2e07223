"""What one system costs: CPU per small request, per paced chunk, per long prompt; latency; memory per open stream."""

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from bench import recording, stats
from bench.procs import Unavailable, cpu_ns, memory
from bench.systems import COMPARED, LARGER, OUTSIDE, Load, System, Upstream

MEASURES = ("small", "chunk", "large")
CONNECTIONS = 8
STREAMS = 64
_SLOW_PACE_MS = 100.0  # where it is memory that counts, and not how many events a second
_SETTLED_S = 120.0
_FILL = 1200  # requests that fill a hung shadow's queue of 1,000


@dataclass(frozen=True)
class Size:
    """How much is measured per round: requests, seconds, and the tokens of each of the 64 streams.

    Small requests come in so many `turns` of `small`, between which the systems take turns, too: a slice of a tenth of
    a second is short beside what else goes on in the machine, and what is compared lies close together.
    `memory` streams are held open for `hold` tokens to see what they weigh; `pairs` of single streams show the time to
    the first byte.
    """

    small: int = 300
    turns: int = 5
    tokens: int = 150
    large: int = 30
    idle_s: float = 1.0
    memory: int = 256
    hold: int = 80
    compared: int = 100
    pairs: int = 200


QUICK = Size(small=150, turns=2, tokens=30, large=10, idle_s=0.3, memory=64, hold=8, compared=20, pairs=30)


@dataclass
class Figures:
    """What was measured of one system, a value per round; `memory` in bytes per open stream, once.

    CPU in microseconds: `small` and `large` per request, `chunk` per event. Latency in microseconds. `injected` is the
    share of requests that reached the upstream injected, over all rounds.
    """

    small: list[float] = field(default_factory=list)
    chunk: list[float] = field(default_factory=list)
    large: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    memory: float | None = None
    requests: int = 0
    injected: int = 0
    problem: str = ""

    def fold(self, turns: int) -> None:
        """The last `turns` of small requests become one figure: their mean, and of latencies too."""
        for values in (self.small, self.p50, self.p99):
            if values:
                values[-turns:] = [statistics.fmean(values[-turns:])]

    def drop_first(self) -> None:
        """Forgets the round that only warmed it up."""
        for values in (self.small, self.chunk, self.large, self.p50, self.p99, self.idle):
            del values[:1]


class Meter:
    """Measures one system after the other with the same load."""

    def __init__(self, load: Load, upstream: Upstream, size: Size) -> None:
        self._load, self._upstream, self.size = load, upstream, size

    def measure(self, what: str, system: System, into: Figures) -> None:
        """One turn of a system at one of `MEASURES`; nothing happens where that has no meaning for it.

        Raises:
            Unavailable: an answer was not as it should be, or the requests were not injected as this system must.
        """
        # Nothing stands there whose CPU could be read; and the stand-in reads a long prompt far slower than an engine.
        if what != "small" and (system.pid is None or (what, system.name) == ("large", COMPARED)):
            return
        before, outside = self._upstream.stats(), _outside(system)
        {"small": self._small, "chunk": self._chunks, "large": self._large}[what](system, into)
        after = self._upstream.stats()
        requests, injected = after["requests"] - before["requests"], after["injected"] - before["injected"]
        into.requests += requests
        into.injected += injected
        if system.injects is not None and injected != requests * system.injects:
            raise Unavailable(f"{injected} of {requests} requests were injected")
        if system.name == OUTSIDE and (counted := _outside(system) - outside) != requests:
            raise Unavailable(f"{counted:.0f} of {requests} exchanges were counted as sampled_out")

    def _small(self, system: System, into: Figures) -> None:
        count = self.size.compared if system.name == COMPARED else self.size.small
        cost, result = self._cost(
            system, "requests", body=recording.small(), exchanges=count, count=count, connections=CONNECTIONS
        )
        into.small.append(cost / count / 1000)
        into.p50.append(stats.percentile(result["latency_us"], 0.5))
        into.p99.append(stats.percentile(result["latency_us"], 0.99))

    def _chunks(self, system: System, into: Figures) -> None:
        assert system.pid is not None
        began, before = time.monotonic(), cpu_ns(system.pid)
        time.sleep(self.size.idle_s)
        idle = (cpu_ns(system.pid) - before) / (time.monotonic() - began)  # ns per second
        count, tokens = STREAMS, self.size.tokens
        began = time.monotonic()
        cost, _ = self._cost(system, "streams", body=recording.stream(tokens), exchanges=count, count=count, over_s=0.2)
        cost -= idle * (time.monotonic() - began)
        into.idle.append(idle / 1e9)
        into.chunk.append(cost / count / (tokens + 1) / 1000)

    def _large(self, system: System, into: Figures) -> None:
        count = self.size.large
        cost, _ = self._cost(system, "requests", body=recording.large(), exchanges=count, count=count, connections=2)
        into.large.append(cost / count / 1000)

    def memory(self, system: System, into: Figures) -> None:
        """How much a system that has served a little grows while streams are open, per stream."""
        if system.pid is None:
            return
        count, pid, seen = self.size.memory, system.pid, list[tuple[int, int]]()
        self._load("requests", port=system.port, body=recording.small().decode(), count=100, connections=CONNECTIONS)
        self._load("streams", port=system.port, body=recording.stream(3).decode(), count=CONNECTIONS, over_s=0)
        before = memory(pid)

        def opened() -> None:
            time.sleep(0.3)  # until what the last one to begin took is taken
            seen.append((memory(pid), self._upstream.stats()["open"]))

        body = recording.stream(self.size.hold, _SLOW_PACE_MS).decode()
        self._load("streams", opened=opened, port=system.port, body=body, count=count, over_s=count / 256)
        grown, still_open = seen[0][0] - before, seen[0][1]
        if still_open == count:  # else it was so slow to begin them that some had ended again: no figure
            into.memory = grown / count

    def fill(self, system: System) -> None:
        """Fills the queue of a proxy whose shadow hangs.

        Raises:
            Unavailable: it does not fill.
        """
        body = recording.small().decode()
        self._load("requests", port=system.port, body=body, count=_FILL, connections=CONNECTIONS)
        if not _outcomes(system, "dropped"):
            raise Unavailable("the hung shadow's queue did not fill")

    def first_bytes(self, off: System, hung: System, count: int, *, injected: bool) -> list[float]:
        """What `hung` adds to the time to the first byte, microseconds: single streams of two systems that take turns.

        Raises:
            Unavailable: not all of its streams were injected, or (if not `injected`) one was.
        """
        body, before = recording.stream(2).decode(), self._upstream.stats()["injected"]
        found = self._load("turns", ports=[off.port, hung.port], body=body, count=count)["first_byte_us"]
        seen = self._upstream.stats()["injected"] - before
        if seen != count * injected:
            raise Unavailable(f"{seen} of {count} streams were injected while the time to the first byte was taken")
        return stats.differences(found[1], found[0])

    def _cost(
        self, system: System, do: str, *, body: bytes, exchanges: int, **options: Any
    ) -> tuple[float, dict[str, Any]]:
        """CPU nanoseconds of a load, its comparisons included where that is what is measured; the load's result."""
        compared = _outcomes(system, "compared") if system.name == COMPARED else 0.0
        if system.name == LARGER:
            body = recording.injected(body)
        before = cpu_ns(system.pid) if system.pid is not None else 0
        result = self._load(do, port=system.port, body=body.decode(), **options)
        if system.name == COMPARED:
            _settle(system, compared + exchanges)
        return (cpu_ns(system.pid) - before if system.pid is not None else 0), result


def _outcomes(system: System, outcome: str) -> float:
    assert system.proxy is not None
    return system.proxy.metric("counterproof_mirror_total", outcome=outcome)


def _outside(system: System) -> float:
    return _outcomes(system, "sampled_out") if system.name == OUTSIDE else 0.0


def _settle(system: System, compared: float) -> None:
    """Waits until so many exchanges have been compared."""
    deadline = time.monotonic() + _SETTLED_S
    while (now := _outcomes(system, "compared")) < compared:
        if time.monotonic() > deadline:
            raise Unavailable(f"{compared - now:.0f} exchanges were not compared in {_SETTLED_S:.0f} s")
        time.sleep(0.2)


__all__ = ["CONNECTIONS", "MEASURES", "QUICK", "STREAMS", "Figures", "Meter", "Size"]
