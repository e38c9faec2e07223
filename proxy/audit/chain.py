"""A chain of records: lines of canonical JSON, each with the SHA-256 of the line before it. Pure.

A line holds `n` (from 1), `at` (UTC, milliseconds), `kind`, `who`, `data`, `prev` (the hexadecimal SHA-256 of the
previous line's bytes without its line end; zeros for the first) and `hash` (that of the line's own canonical form
without it). A changed line differs from its own hash, or from what the line after it says; what says where a chain ends
lies beside it.
"""

import datetime as dt
import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

MAX_LINE = 1024 * 1024
"""Bytes of a line: a longer one is not written, and none that a chain holds."""

SELF = "(proxy)"
"""Who did what nobody asked for: the process itself. No token can have such a name."""

BEGINNING = b'{"at":'
"""What every line begins with."""

_GENESIS = "0" * 64
_CANONICAL = orjson.OPT_SORT_KEYS
_KINDS_OF_FIELDS = {"n": int, "at": str, "kind": str, "who": str, "data": dict, "prev": str, "hash": str}


class Kind(StrEnum):
    """What a record tells of."""

    START = "start"
    STOP = "stop"
    MODE = "mode"
    POLICY = "policy"
    APPROVAL = "approval"
    REFUSED = "refused"
    SUBSTITUTED = "substituted"
    RELEASED = "released"
    ERASED = "erased"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Link:
    """Where a chain stands: the number of its last line, and the SHA-256 of that line's bytes."""

    n: int = 0
    digest: str = _GENESIS


@dataclass(frozen=True, slots=True)
class Record:
    """One line, read. `kind` is a text: a later version may write others."""

    n: int
    at: str
    kind: str
    who: str
    data: dict[str, Any]
    prev: str
    hash: str

    def as_dict(self) -> dict[str, Any]:
        """As the line has it."""
        return {name: getattr(self, name) for name in _KINDS_OF_FIELDS}


def canonical(value: Any) -> bytes:
    """A JSON value as the one text that is hashed: sorted keys, no white space, UTF-8.

    Raises:
        TypeError: it is no JSON value.
    """
    return orjson.dumps(value, option=_CANONICAL)


def line(after: Link, at: float, kind: Kind, who: str, data: bytes) -> tuple[bytes, Link]:
    """The next line with its line end, and where the chain stands then; `at` in epoch seconds, `data` canonical."""
    fields: dict[str, Any] = {"n": after.n + 1, "at": stamp(at), "kind": kind.value, "who": who, "prev": after.digest}
    fields["data"] = orjson.Fragment(data)
    text = canonical(fields | {"hash": _sha256(canonical(fields))})
    return text + b"\n", Link(after.n + 1, _sha256(text))


def stamp(at: float) -> str:
    """Epoch seconds as UTC with milliseconds."""
    return dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read(text: bytes) -> Record:
    """A line without its line end.

    Raises:
        ValueError: it is not one that was written by this program, or not any more.
    """
    value = orjson.loads(text)
    if not isinstance(value, dict) or value.keys() != _KINDS_OF_FIELDS.keys():
        raise ValueError("not the fields of a record")
    if any(type(value[name]) is not kind for name, kind in _KINDS_OF_FIELDS.items()):
        raise ValueError("not the kinds of a record's fields")
    record = Record(**value)
    if canonical(value) != text:
        raise ValueError("not in canonical form")
    del value["hash"]
    if _sha256(canonical(value)) != record.hash:
        raise ValueError("another content than was hashed")
    return record


def link_of(text: bytes) -> Link:
    """Where a chain stands that ends with this line. Raises ValueError as `read` does."""
    return Link(read(text).n, _sha256(text))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Fault:
    """Where a chain is not whole: the line (from 1), a word for what is the matter with it, and words for people."""

    line: int
    what: str
    words: str


class Checker:
    """Follows a chain line by line, in constant memory. `fault` is the first that was found.

    After a gap it looks on for the line that should have come: whether that is missing or stands elsewhere is told by
    what follows.
    """

    def __init__(self, head: Link | None = None) -> None:
        self.link = Link()
        self.lines = 0
        self._fault: Fault | None = None
        self._gap: tuple[int, int] | None = None  # the line that was expected, and the number that stood there
        self._head = head

    @property
    def fault(self) -> Fault | None:
        """What was found so far; ask once more at the `end`."""
        if self._gap is not None and self._fault is None:
            expected, found = self._gap
            lines = f"line {expected} is" if found == expected + 1 else f"lines {expected} to {found - 1} are"
            return Fault(expected, "missing", f"{lines} missing: number {found} stands there")
        return self._fault

    def line(self, text: bytes) -> Record | None:
        """Takes the next line without its line end; its record while the chain is whole so far."""
        self.lines += 1
        try:
            record = read(text)
        except ValueError:
            self._found("changed", "is not as it was written")
            return None
        if self._gap is not None and self._fault is None and record.n == self._gap[0]:
            self._fault = Fault(record.n, "reordered", f"line {record.n} stands at place {self.lines}, after others")
        if self.fault is not None:
            return None
        return record if self._follows(record, Link(record.n, _sha256(text))) else None

    def _follows(self, record: Record, link: Link) -> bool:
        if record.n > self.lines:
            self._gap = (self.lines, record.n)
        elif record.n < self.lines:
            self._found("repeated", f"is number {record.n} once more")
        elif record.prev != self.link.digest:
            self._found("changed", f"does not follow the line before it: line {self.lines - 1} was another")
        elif self._head is not None and self._head.n == link.n and self._head.digest != link.digest:
            self._found("changed", "is another than the one whose hash was kept beside the file")
        else:
            self.link = link
            return True
        return False

    def end(self, rest: int = 0) -> None:
        """The file ends here, with so many bytes after its last line end."""
        if rest:
            self.lines += 1
            self._found("cut", f"is cut off after {rest} bytes: the next start of the proxy sets it apart")
        elif self._head is not None and self._head.n > self.link.n:
            first = self.link.n + 1
            lines = f"line {first} is" if self._head.n == first else f"lines {first} to {self._head.n} are"
            self.lines += 1
            self._found("missing", f"is where the file ends: {lines} missing")

    def _found(self, what: str, words: str) -> None:
        if self.fault is None:
            self._fault = Fault(self.lines, what, f"line {self.lines} {words}")
