"""Figures with their spread: medians, percentiles, bootstrap intervals. Pure."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_RESAMPLES = 2000
_LOW, _HIGH = 0.025, 0.975


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return self.text(3)

    def text(self, digits: int) -> str:
        """With so many digits after the point."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"

    def holds(self, value: float) -> bool:
        """Whether a value lies inside."""
        return self.low <= value <= self.high


def interval(values: Sequence[float]) -> Interval:
    """The median of some values and a 95 % percentile bootstrap interval of it; the same values give the same one.

    Method: B. Efron, "Bootstrap methods: another look at the jackknife", 1979.
    """
    chance = random.Random(7)
    medians = [statistics.median(chance.choices(values, k=len(values))) for _ in range(_RESAMPLES)]
    return Interval(statistics.median(values), percentile(medians, _LOW), percentile(medians, _HIGH))


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of all values do not exceed: the nearest rank, always one of the values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def paired(values: Sequence[float], to: Sequence[float]) -> list[float]:
    """The ratios of figures that belong together."""
    return [value / other for value, other in zip(values, to, strict=True)]


def differences(values: Sequence[float], to: Sequence[float]) -> list[float]:
    """The differences of figures that belong together."""
    return [value - other for value, other in zip(values, to, strict=True)]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
