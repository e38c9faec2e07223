"""Counters and histograms of the byte path: custom collectors of the metrics client, for one thread, without a lock.

Several of them are moved per request, and the client's own ones, made for many threads, take microseconds each. What
another thread is to write out is taken first, on theirs.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

Collect = Callable[[], Iterable[Metric]]


class Counts(Collector):
    """How often each combination of labels was seen. Filled and collected on one thread."""

    def __init__(self, name: str, about: str, labels: Sequence[str]) -> None:
        self._name, self._about, self._labels = name, about, tuple(labels)
        self._counts: defaultdict[tuple[str, ...], int] = defaultdict(int)

    def add(self, *labels: str) -> None:
        """Counts one."""
        self._counts[labels] += 1

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What was counted so far."""
        return self._told(self._counts)

    def taken(self) -> Collect:
        """What was counted so far and does not move any more, for another thread to collect."""
        counts = self._counts.copy()
        return lambda: self._told(counts)

    def _told(self, counts: Mapping[tuple[str, ...], int]) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._about, labels=self._labels)
        for labels, count in counts.items():
            family.add_metric(labels, count)
        yield family


class Times(Collector):
    """Seconds by one label, in buckets with inclusive upper bounds. Filled and collected on one thread."""

    def __init__(self, name: str, about: str, label: str, bounds: Sequence[float]) -> None:
        self._name, self._about, self._label = name, about, label
        self._bounds = [float(bound) for bound in bounds]
        self._names = [*map(floatToGoString, self._bounds), "+Inf"]
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, label: str, seconds: float) -> None:
        """Counts one value."""
        counts = self._counts.get(label)
        if counts is None:
            counts = self._counts[label] = [0] * len(self._names)
            self._sums[label] = 0.0
        counts[bisect_left(self._bounds, seconds)] += 1
        self._sums[label] += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What was counted so far, its buckets added up as the format wants them."""
        return self._told(self._counts, self._sums)

    def taken(self) -> Collect:
        """What was counted so far and does not move any more, for another thread to collect."""
        counts, sums = {label: counts.copy() for label, counts in self._counts.items()}, self._sums.copy()
        return lambda: self._told(counts, sums)

    def _told(self, seen: Mapping[str, Sequence[int]], sums: Mapping[str, float]) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._about, labels=[self._label])
        for label, counts in seen.items():
            total, buckets = 0, []
            for name, count in zip(self._names, counts, strict=True):
                total += count
                buckets.append((name, total))
            family.add_metric([label], buckets, sums[label])
        yield family


class Registry(CollectorRegistry):
    """The client's registry, with the collectors of this module beside those of the client's own.

    `collect` is for the thread that counts. What `taken` gives may be collected in another one: the client's own
    collectors are made for that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tallies: list[Counts | Times] = []

    def tally(self, one: Counts | Times) -> None:
        """Takes in a collector of this module."""
        self._tallies.append(one)

    def collect(self) -> Iterator[Metric]:
        """Everything as it is."""
        for tally in self._tallies:
            yield from tally.collect()
        yield from super().collect()

    def taken(self) -> Collector:
        """What this module's collectors have counted up to now, and the client's own as they are when collected."""
        return _Taken([*(tally.taken() for tally in self._tallies), super().collect])


class _Taken(Collector):
    def __init__(self, parts: Sequence[Collect]) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        for collect in self._parts:
            yield from collect()
