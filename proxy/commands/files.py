"""Where the files lie that a proxy keeps: by its configuration, else by the environment, else in this folder."""

import os
from pathlib import Path

from proxy import configfile
from proxy.errors import StartError


def ledger(config: Path | None) -> Path:
    """The ledger's file. Raises StartError where none is kept."""
    if config is None:
        return Path(os.environ.get("COUNTERPROOF_LEDGER__PATH", "counterproof.db"))
    path = configfile.load(config).ledger.path
    if path is None:
        raise StartError(f"{config}: ledger.path is null: no ledger is kept")
    return path


def audit(config: Path | None) -> Path:
    """The audit's file. Raises StartError where none is kept."""
    path = audit_beside(config, None)
    if path is None:
        raise StartError(f"{config}: audit.path is null: no audit is kept")
    return path


def audit_beside(config: Path | None, given: Path | None) -> Path | None:
    """The audit's file, None where none is kept; `given` is a ledger that was named on the command line."""
    if config is not None:
        return configfile.load(config).audit_path
    told = os.environ.get("COUNTERPROOF_AUDIT__PATH", "auto")
    return (given or ledger(None)).with_name("audit.jsonl") if told == "auto" else Path(told)
