"""What is kept of a request that is over: it is counted, and its exchange is handed to the mirror."""

import time

import structlog

from proxy.metrics import Metrics
from proxy.passage import Passage, capture
from proxy.reading import DIALECTS, Reading
from shadow.exchange import Dialect, Request
from shadow.mirror import Capture

log = structlog.get_logger("counterproof.door")

_READ = 5  # bytes that a request takes while it waits, for each of its text: an agent's, once read, took four more
_CLIENT_LEFT = 499  # the status in metrics of an answer that nobody was left to read


class Recording:
    """Records passages. Of a request that was not read before its answer, that is done first."""

    def __init__(self, reading: Reading, metrics: Metrics) -> None:
        self._reading, self._metrics = reading, metrics

    async def read_and_record(self, passage: Passage, dialect: Dialect) -> None:
        """As `record`, of a large request that is read only now."""
        now = time.monotonic()
        try:
            await self._reading.understand_aside(passage, dialect)
        finally:
            self.record(passage, now)

    def record(self, passage: Passage, now: float) -> None:
        """Counts the request and hands it to the mirror; whatever fails there, the answer has been given.

        `now` is when it was over, in monotonic seconds.
        """
        try:
            if passage.later is not None:
                self._reading.understand(passage, passage.later)
            self._count(passage, now)
            self._cover(passage)
            if passage.answered and passage.unread:
                passage.to.mirror.skip("too_large")
            elif passage.answered and passage.request is not None:
                self._offer(passage, passage.request)
        except Exception as error:  # noqa: BLE001  (nothing of the record may break the primary path)
            log.error("an exchange was not recorded", exchange=passage.id, error=type(error).__name__)

    def _captured(self, passage: Passage, request: Request) -> Capture:
        case = passage.holding.case if passage.holding else self._reading.case(passage, request)
        return capture(passage, request, case)

    def _cover(self, passage: Passage) -> None:
        """Counts who looks at the calls of this request's answer, if its path has any."""
        dialect = DIALECTS.get(passage.scope["path"])
        if dialect is None or passage.scope["method"] != "POST":
            return
        if passage.holding is not None:
            coverage = "held"
        elif passage.request is not None:
            coverage = "mirrored" if passage.sampled else "sampled_out"
        else:
            coverage = "off" if passage.mode == "off" else "unread"
        self._metrics.covered(dialect.value, coverage)

    def _count(self, passage: Passage, now: float) -> None:
        self._metrics.request(
            dialect=passage.request.dialect.value if passage.request else "other",
            model=passage.request.model if passage.request else "",
            code=_CLIENT_LEFT if passage.problem == "client_left" else passage.status,
            stream=passage.sse,
            upstream=passage.waited,
            total=now - passage.began,
            first_byte=passage.first_byte - passage.began if passage.first_byte else None,
        )

    def _offer(self, passage: Passage, request: Request) -> None:
        """Hands an answered exchange over, or counts it as out of the sample."""
        if not passage.sampled:
            passage.to.mirror.leave_out()
            return
        size = passage.copied + _READ * (len(passage.body) if isinstance(passage.body, bytes) else 0)
        passage.to.mirror.offer(passage.id, size, lambda: self._captured(passage, request))
