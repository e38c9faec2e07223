"""The audit: records go through one thread to disk; what awaits a record goes on once it is there."""

import asyncio
import contextlib
import hashlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_bytes
from typing import Any, Protocol

import structlog

from proxy.audit import canonical, chain
from proxy.audit.chain import SELF, Kind
from proxy.audit.disk import KEY_BYTES, AuditError, ChainFile, beside, made_key
from validators import ToolCall

log = structlog.get_logger("counterproof.audit")

MAX_PENDING = 10_000
_AT_ONCE = 256  # records that share one fsync
_MOST_DATA = chain.MAX_LINE // 2
_CLOSED = "it is closed"


class Audit(Protocol):
    """What keeps records. A call's `mark` is its hash, keyed and in hexadecimal: it tells calls apart, no more."""

    def submit(self, kind: Kind, who: str, data: Mapping[str, Any]) -> Future[int]:
        """Keeps a record and returns at once; gives its number once it is on disk, or AuditError. From any thread."""

    async def write(self, kind: Kind, who: str, data: Mapping[str, Any]) -> int:
        """Keeps a record; returns its number once it is on disk.

        Raises:
            AuditError: it could not be kept.
        """

    def note(self, kind: Kind, who: str, data: Mapping[str, Any]) -> None:
        """Keeps a record and returns at once; one that is lost is counted."""

    def mark(self, call: ToolCall) -> str:
        """A call's hash: of its name and all its arguments as values, however they are written."""

    def close(self) -> None:
        """Nothing more is to come."""


class NoAudit:
    """Where none is configured: nothing is kept, and nothing fails."""

    def __init__(self) -> None:
        self._secret = token_bytes(KEY_BYTES)

    def submit(self, kind: Kind, who: str, data: Mapping[str, Any]) -> Future[int]:  # noqa: ARG002  (as `Audit` has it)
        """Keeps nothing; 0."""
        done: Future[int] = Future()
        done.set_result(0)
        return done

    async def write(self, kind: Kind, who: str, data: Mapping[str, Any]) -> int:  # noqa: ARG002  (as `Audit` has it)
        """Keeps nothing; 0."""
        return 0

    def note(self, kind: Kind, who: str, data: Mapping[str, Any]) -> None:
        """Keeps nothing."""

    def mark(self, call: ToolCall) -> str:
        """As `Audit` has it, by a secret of this process."""
        return canonical.mark(call, self._secret)

    def close(self) -> None:
        """Nothing was open."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A record that is to be written, and who waits for it."""

    kind: Kind
    who: str
    data: bytes
    done: Future[int] = field(default_factory=Future)


class AuditFile:
    """The audit at a path, which only one process can have open. Its first record, `start`, holds `about`.

    `clock` gives epoch seconds. `on_loss` is told how many records could not be kept, `on_up` whether they can be kept
    now; both may be called in the writer's thread. `close` it.

    Raises:
        AuditBusyError: another process has it.
        AuditError: it cannot be opened or written, or is no chain that could be gone on with.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.time,
        on_loss: Callable[[int], None] = lambda _count: None,
        on_up: Callable[[bool], None] = lambda _up: None,
    ) -> None:
        self.path = path
        self._clock, self._on_loss, self._on_up = clock, on_loss, on_up
        self._queue: queue.SimpleQueue[_Wanted | None] = queue.SimpleQueue()
        self._closed = False
        self._lost, self._counting = 0, threading.Lock()  # since a record was last kept
        with contextlib.ExitStack() as opened:
            self._file = opened.enter_context(ChainFile(path))
            self._secret = made_key(beside(path, "key"))
            self._link = self._file.link
            self._begin(about)
            self._close = opened.pop_all().close
        on_up(True)  # noqa: FBT003  (a callback)
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
        self._thread.start()

    def _begin(self, about: Mapping[str, Any]) -> None:
        """The first records: that a process starts, and what a killed one had left of a line."""
        told = {"chain": self._file.chain, "key": hashlib.sha256(self._secret).hexdigest()[:16], **about}
        wanted = [_Wanted(Kind.START, SELF, chain.canonical(told))]
        if cut := self._file.cut:
            told = {"cut_bytes": len(cut), "cut_sha256": hashlib.sha256(cut).hexdigest()}
            wanted.append(_Wanted(Kind.RECOVERED, SELF, chain.canonical(told)))
        try:
            self._append(wanted)
        except OSError as error:
            raise AuditError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    # --- what others call -------------------------------------------------------------------------------------

    def submit(self, kind: Kind, who: str, data: Mapping[str, Any]) -> Future[int]:
        """As `Audit` has it."""
        try:
            wanted = _Wanted(kind, who, chain.canonical(data))
        except TypeError:  # what a record is made of can come from outside: no caller fails for it, and nobody waits
            wanted = _Wanted(kind, who, b"")
        if self._closed:
            self._lose([wanted], _CLOSED)
        elif not wanted.data:
            self._lose([wanted], "a record is no JSON")
        elif self._queue.qsize() >= MAX_PENDING:
            self._lose([wanted], "too much waits for it")
        elif len(wanted.data) > _MOST_DATA:
            self._lose([wanted], "a record is too large for it")
        else:
            self._queue.put(wanted)
        return wanted.done

    async def write(self, kind: Kind, who: str, data: Mapping[str, Any]) -> int:
        """As `Audit` has it; who is cancelled while waiting has the record kept all the same."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(kind, who, data)))

    def note(self, kind: Kind, who: str, data: Mapping[str, Any]) -> None:
        """As `Audit` has it."""
        self.submit(kind, who, data)

    def mark(self, call: ToolCall) -> str:
        """As `Audit` has it; by the secret beside the file."""
        return canonical.mark(call, self._secret)

    def close(self, seconds: float = 10.0) -> None:
        """Writes what waits, and that this process stops; gives up after so many seconds."""
        if self._closed:
            return
        self.note(Kind.STOP, SELF, {})
        self._closed = True
        self._queue.put(None)
        self._thread.join(seconds)
        if not self._thread.is_alive():
            self._close()

    # --- the thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        ended = False
        while not ended:
            batch = self._waiting()
            ended = None in batch
            if wanted := [item for item in batch if item is not None]:
                self._keep(wanted)
        with contextlib.suppress(queue.Empty):  # what came in the moment of closing
            while (late := self._queue.get_nowait()) is not None:
                self._lose([late], _CLOSED)

    def _waiting(self) -> list[_Wanted | None]:
        batch = [self._queue.get()]
        with contextlib.suppress(queue.Empty):
            while len(batch) < _AT_ONCE:
                batch.append(self._queue.get_nowait())
        return batch

    def _keep(self, wanted: list[_Wanted]) -> None:
        lost = self._lost
        gap = [_Wanted(Kind.RECOVERED, SELF, chain.canonical({"lost": lost}))] if lost else []
        try:
            first = self._append(gap + wanted) + len(gap)
        except Exception as error:  # noqa: BLE001  (whatever it is, who waits is told, and the thread goes on)
            self._lose(wanted, getattr(error, "strerror", None) or type(error).__name__)
            return
        if lost:
            with self._counting:
                self._lost -= lost
            log.info("the audit can be written again", lost=lost)
            self._on_up(True)  # noqa: FBT003  (a callback)
        for number, one in enumerate(wanted, first):
            with contextlib.suppress(InvalidStateError):  # nobody waits any more
                one.done.set_result(number)

    def _append(self, wanted: list[_Wanted]) -> int:
        """Brings records to disk; the number of the first. Raises OSError: none of them is there then."""
        link, lines = self._link, []
        for one in wanted:
            text, link = chain.line(link, self._clock(), one.kind, one.who, one.data)
            lines.append(text)
        first = self._link.n + 1
        self._file.append(b"".join(lines), link)
        self._link = link
        return first

    def _lose(self, wanted: list[_Wanted], why: str) -> None:
        with self._counting:
            first = not self._lost
            self._lost += len(wanted)
        if first:
            log.error("the audit cannot be written; what needs it is refused", reason=why)
            self._on_up(False)  # noqa: FBT003  (a callback)
        self._on_loss(len(wanted))
        for one in wanted:
            with contextlib.suppress(InvalidStateError):
                one.done.set_exception(AuditError(f"the audit cannot be written: {why}"))
