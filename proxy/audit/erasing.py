"""Erases a conversation's content from the ledger, and says so in the audit. The chain holds none, and stays whole."""

from typing import Any

from proxy.audit.chain import Kind
from proxy.audit.file import Audit
from proxy.ledger import Ledger, LedgerError


def erase(ledger: Ledger, audit: Audit, who: str, conversation: str) -> int:
    """How many exchanges the conversation had, once the content of all of them is gone. Waits; not in an event loop.

    Raises:
        AuditError: it cannot be recorded; nothing is erased then.
        LedgerError: it cannot be erased.
    """
    told: dict[str, Any] = {"conversation": conversation}

    def record(exchanges: int) -> None:
        told["exchanges"] = exchanges
        audit.submit(Kind.ERASED, who, told).result()

    try:
        return ledger.erase(conversation, record).result()
    except LedgerError:
        if "exchanges" in told:  # the record is there already
            audit.note(Kind.ERASED, who, told | {"failed": True})
        raise
