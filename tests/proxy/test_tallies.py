"""The byte path's own collectors give what the metrics client's would."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from proxy.tallies import Counts, Times

BOUNDS = (0.001, 0.25, 1, 30)
VALUES = st.one_of(st.sampled_from([0.0, *BOUNDS, 31.0]), st.floats(0, 100))


def shown(registry: CollectorRegistry) -> list[str]:
    """The exposition without the client's own time stamps of creation."""
    return sorted(line for line in generate_latest(registry).decode().splitlines() if "_created" not in line)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["chat", "other", 'a"b\\c\n']), VALUES), max_size=30))
def test_a_histogram_of_ours_is_the_clients(seen: Sequence[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    times = Times("x_seconds", "About.", "dialect", BOUNDS)
    ours.register(times)
    histogram = Histogram("x_seconds", "About.", ["dialect"], buckets=BOUNDS, registry=theirs)
    for label, seconds in seen:
        times.observe(label, seconds)
        histogram.labels(label).observe(seconds)
    assert shown(ours) == shown(theirs)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["", "200"])), max_size=30))
def test_a_counter_of_ours_is_the_clients(seen: Sequence[tuple[str, str]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counts = Counts("x", "About.", ["one", "two"])
    ours.register(counts)
    counter = Counter("x", "About.", ["one", "two"], registry=theirs)
    for labels in seen:
        counts.add(*labels)
        counter.labels(*labels).inc()
    assert shown(ours) == shown(theirs)
