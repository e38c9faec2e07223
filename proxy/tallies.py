"""Counters and histograms of the byte path: custom collectors of the metrics client, for one thread, without a lock.

Several of them are moved per request, and the client's own ones, made for many threads, take microseconds each.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


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
        family = CounterMetricFamily(self._name, self._about, labels=self._labels)
        for labels, count in self._counts.items():
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
        family = HistogramMetricFamily(self._name, self._about, labels=[self._label])
        for label, counts in self._counts.items():
            total, buckets = 0, []
            for name, count in zip(self._names, counts, strict=True):
                total += count
                buckets.append((name, total))
            family.add_metric([label], buckets, self._sums[label])
        yield family
