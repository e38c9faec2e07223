"""A chain on disk: locked, its end checked and mended, whole lines appended or none; and what lies beside it.

Beside `audit.jsonl` lie `audit.jsonl.key`, the random secret that calls' hashes are keyed with (a plain hash of a short
call could be guessed), and `audit.jsonl.head`, which says how far the chain had come: without it, nobody could tell
that lines are missing at the end.
"""

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Self

from proxy.audit import chain
from proxy.audit.chain import Link
from shadow.errors import CounterproofError

KEY_BYTES = 32
_WINDOW = 2 * chain.MAX_LINE + 2  # holds a whole last line, and half of one after it


class AuditError(CounterproofError):
    """The audit cannot be written, or its file is none."""


class AuditBusyError(AuditError):
    """Another process writes it."""


def beside(path: Path, what: str) -> Path:
    """Where what belongs to an audit lies: its `key`, its `head`."""
    return path.with_name(f"{path.name}.{what}")


class ChainFile:
    """The chain on disk: locked, its end checked and mended, appended to. `cut` is what was left of half a line."""

    def __init__(self, path: Path) -> None:
        self._path, self._torn, self.cut = path, False, b""
        with contextlib.ExitStack() as opened:
            self._fd = _opened(path, os.O_APPEND)
            opened.callback(os.close, self._fd)
            self._head = _opened(beside(path, "head"))
            opened.callback(os.close, self._head)
            try:
                self._read_end()
                self.chain = self._name()
            except OSError as error:
                raise AuditError(f"{path}: cannot be read: {error.strerror or error}") from None
            self.close = opened.pop_all().close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _read_end(self) -> None:
        """Finds the chain's last line, and cuts off what a killed process has left after it."""
        self._size = os.fstat(self._fd).st_size
        begin = max(0, self._size - _WINDOW)
        whole, end, cut = os.pread(self._fd, _WINDOW, begin).rpartition(b"\n")
        last = whole.rpartition(b"\n")[2]
        head = read_head(os.pread(self._head, 128, 0))
        try:
            self.link = chain.link_of(last) if end or self._size > _WINDOW else Link()
        except ValueError:
            raise self._broken("its last line is not as it was written") from None
        if head is not None and head.n > self.link.n:
            raise self._broken(f"it had {head.n} lines, and has {self.link.n}")
        if head is not None and head.n == self.link.n and head != self.link:
            raise self._broken("its last line is another than the one that was written")
        if not cut.startswith(chain.BEGINNING[: len(cut)]) or len(cut) > chain.MAX_LINE:
            raise self._broken("what stands at its end was not written by this program")
        if cut:
            self.cut = cut
            self._size -= len(cut)
            os.ftruncate(self._fd, self._size)

    def _broken(self, what: str) -> AuditError:
        return AuditError(
            f"{self._path}: {what}; `counterproof audit verify` says more, and a new chain begins where the file and "
            "what lies beside it are moved away"
        )

    def _name(self) -> str:
        """The chain's own name, from its first line; a new one for a new chain."""
        if not self._size:
            return token_hex(8)
        first = os.pread(self._fd, chain.MAX_LINE + 1, 0).partition(b"\n")[0]
        try:
            return str(chain.read(first).data["chain"])
        except (ValueError, KeyError):
            raise self._broken("its first line is not as it was written") from None

    def append(self, lines: bytes, link: Link) -> None:
        """Brings whole lines to disk, or none of them.

        Raises:
            OSError: the disk is full, the file was removed, or somebody else has written into it.
        """
        if self._torn:
            os.ftruncate(self._fd, self._size)
            self._torn = False
        found = os.fstat(self._fd)
        if not found.st_nlink or found.st_size != self._size:
            raise OSError(errno.ESTALE, "its file was removed, or changed by somebody else")
        try:
            left = memoryview(lines)
            while left:
                left = left[os.write(self._fd, left) :]
            os.fsync(self._fd)
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):  # tried once more before the next record
                os.ftruncate(self._fd, self._size)
                self._torn = False
            raise
        self._size += len(lines)
        with contextlib.suppress(OSError):  # one that lags behind tells less, and nothing false
            os.pwrite(self._head, b"%020d %b\n" % (link.n, link.digest.encode()), 0)


def _opened(path: Path, flags: int = 0) -> int:
    """A locked descriptor of a file that only its owner may read where it is new."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | flags, 0o600)
    except OSError as error:
        raise AuditError(f"{path}: cannot be opened: {error.strerror or error}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise AuditError(f"{path}: is no file")
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise AuditBusyError(f"{path}: another process writes this audit; each proxy has one of its own") from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_head(text: bytes) -> Link | None:
    """How far a chain had come, None where nothing tells."""
    number, _, digest = text.decode("latin-1").strip().partition(" ")
    return Link(int(number), digest) if number.isdecimal() and len(digest) == 64 else None


def made_key(path: Path) -> bytes:
    """The key beside the file, made where there is none: under another name first, so that it is never half a key."""
    try:
        if not path.exists():
            made = beside(path, "new")
            with open(made, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(token_bytes(KEY_BYTES).hex().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            made.replace(path)
            _sync(path.parent)  # and the audit's own name
        return read_key(path)
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror or error}") from None


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_key(path: Path) -> bytes:
    """The key that calls' hashes are keyed with. Raises OSError and AuditError."""
    try:
        key = bytes.fromhex(path.read_text("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise AuditError(f"{path}: holds no key of an audit")
    return key
