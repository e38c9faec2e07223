"""The ledger: what was found about each exchange, for people and programs that ask later. Separate from the audit."""

from proxy.ledger.reading import LedgerReader
from proxy.ledger.records import Content, examination_record, exchange_record, verdict_record
from proxy.ledger.sqlite import Ledger, LedgerError

__all__ = [
    "Content",
    "Ledger",
    "LedgerError",
    "LedgerReader",
    "examination_record",
    "exchange_record",
    "verdict_record",
]
