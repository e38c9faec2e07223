"""Reads an audit beside the proxy that writes it, line by line: whether its chain is whole, and what stands in it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from proxy.audit.chain import MAX_LINE, Checker, Fault, Link, Record
from proxy.audit.disk import AuditError, beside, read_head

_PATIENCE_S = 0.1  # for a line that is being written just now


@dataclass(frozen=True, slots=True)
class Report:
    """What was found of a chain: its name, its whole lines up to the first fault, and where it stands.

    `anchored` says that it was held against what the proxy keeps beside the file; without that, lines that are missing
    at the end are not seen.
    """

    path: Path
    chain: str
    lines: int
    digest: str
    anchored: bool
    fault: Fault | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON output."""
        fault = self.fault and {"line": self.fault.line, "what": self.fault.what, "words": self.fault.words}
        return {
            "path": str(self.path),
            "chain": self.chain,
            "lines": self.lines,
            "digest": self.digest,
            "anchored": self.anchored,
            "whole": self.fault is None,
            "fault": fault,
        }


def verify(
    path: Path,
    seen: Callable[[int], None] = lambda _size: None,
    take: Callable[[Record], None] = lambda _record: None,
) -> Report:
    """Checks a whole chain; `seen` is told how many bytes each line has, `take` gets each record before any fault.

    Raises:
        AuditError: the file cannot be read.
    """
    head = _head(path)  # before the lines: a proxy that writes now is never behind it
    checker, name, rest = Checker(head), "", b""
    for text, ended in _lines(path):
        seen(len(text) + ended)
        if not ended:
            rest = text
        elif (record := checker.line(text)) is not None:
            name = name or str(record.data.get("chain", ""))
            take(record)
    checker.end(len(rest))
    return Report(path, name, checker.link.n, checker.link.digest, head is not None, checker.fault)


def records(path: Path) -> Iterator[Record]:
    """The records of a chain up to its first fault, oldest first. Raises AuditError as `verify` does."""
    checker = Checker()
    for text, ended in _lines(path):
        record = checker.line(text) if ended else None
        if record is None:
            return
        yield record


def _head(path: Path) -> Link | None:
    try:
        return read_head(beside(path, "head").read_bytes())
    except OSError:
        return None


def _lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Each line without its line end, and whether it had one; what is longer than any line is cut into pieces."""
    try:
        with path.open("rb") as file:
            while text := _line(file):
                yield (text[:-1], True) if text.endswith(b"\n") else (text, len(text) > MAX_LINE)
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror or error}") from None


def _line(file: BinaryIO) -> bytes:
    text = file.readline(MAX_LINE + 1)
    if text and not text.endswith(b"\n") and len(text) <= MAX_LINE:
        time.sleep(_PATIENCE_S)
        text += file.readline(MAX_LINE + 1 - len(text))
    return text
