"""What is handed to the mirror of a request that is over."""

from types import SimpleNamespace
from typing import Any, cast

from proxy.passage import Passage
from proxy.reading import Reading
from proxy.recording import Recording
from shadow.exchange import Dialect, Request


def test_what_waits_counts_with_the_memory_that_its_read_request_takes() -> None:
    offered: list[tuple[str, int]] = []
    mirror = SimpleNamespace(offer=lambda identity, size, _capture: offered.append((identity, size)))
    request = Request(Dialect.CHAT, {})
    for body in (b"x" * 100, None):
        passage: Any = SimpleNamespace(id="cp-1", sampled=True, copied=7, body=body, to=SimpleNamespace(mirror=mirror))
        Recording(cast("Reading", None), cast("Any", None))._offer(cast("Passage", passage), request)
    assert offered == [("cp-1", 507), ("cp-1", 7)]
