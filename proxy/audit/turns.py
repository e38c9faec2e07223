"""Turns of the switch in the audit. A turn never waits for its record: what is stricter must always be in force."""

import asyncio
from concurrent.futures import Future

import structlog

from proxy.audit.chain import SELF, Kind
from proxy.audit.disk import AuditError
from proxy.audit.file import Audit
from proxy.audit.receipts import turned
from proxy.switch import Change

log = structlog.get_logger("counterproof.audit")

_PATIENCE_S = 5.0  # for a disk that does not answer


class Turns:
    """Records each turn, and knows of the last one whether it is recorded. For one event loop."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._last: Future[int] | None = None

    def record(self, change: Change) -> None:
        """Keeps a record of a turn. Returns at once; what is lost is told in the log, and counted."""
        who = change.who or SELF
        self._last = kept = self._audit.submit(Kind.MODE, who, turned(change))
        kept.add_done_callback(lambda done: _tell(done, change.did, change.mode, who))

    async def recorded(self) -> bool:
        """Whether the last turn, as it is when this is called, is on disk; False where that takes long."""
        if self._last is None:
            return True
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await asyncio.shield(asyncio.wrap_future(self._last))
        except (AuditError, TimeoutError):
            return False
        return True


def _tell(done: Future[int], did: str, mode: str, who: str) -> None:
    if not done.cancelled() and done.exception() is not None:
        log.error("a turn of the switch is not in the audit", did=did, mode=mode, who=who)
