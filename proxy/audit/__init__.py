"""The audit: who changed or approved what, and what countersigned the calls that went out. Separate from the ledger.

A chain of lines that is only ever appended to, each with the hash of the one before it. It holds names, words and keyed
hashes of calls, never what a call says: erasing a conversation's content leaves it whole.
"""

from proxy.audit.chain import SELF, Fault, Kind, Record
from proxy.audit.disk import AuditBusyError, AuditError
from proxy.audit.file import Audit, AuditFile, NoAudit
from proxy.audit.receipts import engine, receipt, turned
from proxy.audit.turns import Turns
from proxy.audit.witness import Witness

__all__ = [
    "SELF",
    "Audit",
    "AuditBusyError",
    "AuditError",
    "AuditFile",
    "Fault",
    "Kind",
    "NoAudit",
    "Record",
    "Turns",
    "Witness",
    "engine",
    "receipt",
    "turned",
]
