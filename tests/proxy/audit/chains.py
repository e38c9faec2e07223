"""Chains to look at, break and mend."""

from pathlib import Path
from typing import Any

from proxy.audit import SELF, AuditFile, Kind
from proxy.audit.chain import Link, canonical, line
from proxy.audit.disk import beside

RECORDS: tuple[tuple[Kind, str, dict[str, Any]], ...] = (
    (Kind.START, SELF, {"chain": "c0ffee", "version": "0"}),
    (Kind.MODE, "anna", {"event": "set", "mode": "block"}),
    (Kind.APPROVAL, "bo", {"event": "approved", "id": "ap-1", "reason": "yes, ünïcode"}),
    (Kind.RELEASED, SELF, {"exchange": "cp-1", "calls": [{"tool": "send", "hash": "00"}]}),
    (Kind.STOP, SELF, {}),
)


def chain(count: int = len(RECORDS)) -> list[bytes]:
    """A chain's lines, each with its line end."""
    lines, link = [], Link()
    for i in range(count):
        kind, who, data = RECORDS[i % len(RECORDS)]
        text, link = line(link, 1_800_000_000.0 + i, kind, who, canonical(data))
        lines.append(text)
    return lines


def written(folder: Path) -> Path:
    """An audit as a proxy leaves it: file, head and key."""
    path = folder / "audit.jsonl"
    audit = AuditFile(path, {"version": "0"})
    for kind, who, data in RECORDS[1:-1]:
        audit.submit(kind, who, data).result(10)
    audit.close()
    assert beside(path, "head").exists()
    return path
