"""`counterproof exchanges --erase`: removes what was said in a conversation, here or in the proxy that runs."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import typer

from proxy.admin import Admin
from proxy.audit import AuditBusyError, AuditFile, NoAudit
from proxy.audit.erasing import erase as erase_from
from proxy.commands.audit import by_whom
from proxy.control.erasures import PATH
from proxy.ledger import Ledger, LedgerReader
from shadow.errors import CounterproofError


def erase(conversation: str, ledger: Path, audit: Path | None, port: Callable[[], Admin], *, sure: bool) -> int:
    """Erases a conversation's content; how many exchanges it had.

    Where a proxy that runs writes the audit, it is asked to do it: nobody else can say so there.

    Raises:
        CounterproofError: there is no such conversation, or it could not be erased or recorded.
    """
    with LedgerReader(ledger) as reader:
        count = reader.conversation(conversation)
    if not count:
        raise CounterproofError(f"{ledger}: no exchange belongs to a conversation with the key {conversation!r}")
    if not sure:
        typer.confirm(f"Erase what was said in {count} exchanges? This cannot be undone.", abort=True, err=True)
    try:
        return _here(conversation, ledger, audit)
    except AuditBusyError:
        with port() as admin:
            return int(admin.post(PATH, {"conversation": conversation})["exchanges"])


def _here(conversation: str, ledger: Path, audit: Path | None) -> int:
    about = {"version": version("counterproof"), "command": "exchanges --erase"}
    kept = NoAudit() if audit is None else AuditFile(audit, about)
    try:
        opened = Ledger(ledger)
        try:
            return erase_from(opened, kept, by_whom(), conversation)
        finally:
            opened.close()
    finally:
        kept.close()
