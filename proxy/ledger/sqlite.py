"""The embedded ledger: a SQLite file with write-ahead logging, written by one thread, read by anybody (`reading`).

Writing never holds up the event loop: records queue for the writer, at most `MAX_PENDING` of them; what comes beyond
is counted and lost. Each record is one row of JSON with the few columns that lists are filtered by.
"""

import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from proxy.ledger.erasing import Eraser
from proxy.ledger.written import dumps, read
from shadow.errors import CounterproofError

log = structlog.get_logger("counterproof.ledger")

MAX_PENDING = 10_000
_PRUNE_EVERY_S = 600.0
_PRUNE_AT_ONCE = 500  # exchanges of one transaction: records that wait are written in between
_SCHEMA_VERSION = 3
_READABLE = {1, 2, _SCHEMA_VERSION}  # 1 had no verdicts, 2 did not say which conversation they belong to
_SCHEMA = """
CREATE TABLE IF NOT EXISTS exchanges (
  id TEXT PRIMARY KEY, began_at REAL NOT NULL, model TEXT NOT NULL, conversation TEXT NOT NULL, record BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS exchanges_by_time ON exchanges (began_at);
CREATE TABLE IF NOT EXISTS examinations (
  exchange TEXT NOT NULL, shadow TEXT NOT NULL, outcome TEXT NOT NULL, verdict TEXT, flips INTEGER NOT NULL,
  lag REAL NOT NULL, record BLOB NOT NULL, PRIMARY KEY (exchange, shadow)
) STRICT;
CREATE TABLE IF NOT EXISTS verdicts (
  exchange TEXT NOT NULL, choice INTEGER NOT NULL, at REAL NOT NULL, word TEXT NOT NULL, done TEXT NOT NULL,
  record BLOB NOT NULL, conversation TEXT NOT NULL DEFAULT '', PRIMARY KEY (exchange, choice)
) STRICT;
CREATE INDEX IF NOT EXISTS verdicts_by_time ON verdicts (at);
"""
_OLDEST = "SELECT id FROM exchanges WHERE began_at < ? ORDER BY began_at LIMIT ?"
_OLDEST_VERDICTS = "SELECT rowid FROM verdicts WHERE at < ? ORDER BY at LIMIT ?"
_FROM_2 = "ALTER TABLE verdicts ADD COLUMN conversation TEXT NOT NULL DEFAULT ''"
# Verdicts may stand alone: an exchange that the mirror dropped has no record of its own.
OF_CONVERSATION = (
    "SELECT id FROM exchanges WHERE conversation = ? UNION SELECT exchange FROM verdicts WHERE conversation = ?"
)


class LedgerError(CounterproofError):
    """The ledger file cannot be opened, or is not one of this version."""


def connect(path: Path, *, writable: bool) -> sqlite3.Connection:
    """The file, made where it is to be `writable` and is not there. Raises LedgerError."""
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if writable else 'ro'}"
    connection = None
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=10, isolation_level=None, check_same_thread=False)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in {0, *_READABLE}:
            raise LedgerError(f"{path}: a ledger of version {version}, this program writes {_SCHEMA_VERSION}")
        if version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise LedgerError(f"{path}: is another program's database")
        if writable:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA secure_delete=ON")  # what is removed or erased is not left in free pages
            if version == 2:
                connection.execute(_FROM_2)
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
        elif version == 0:
            raise LedgerError(f"{path}: is no ledger yet")
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise LedgerError(f"{path}: cannot be opened as a ledger: {error}") from None
    except LedgerError:
        if connection is not None:
            connection.close()
        raise
    return connection


@dataclass(frozen=True, slots=True)
class _Erasure:
    """A conversation whose content is to go, once `record` has returned, and who waits for it."""

    conversation: str
    record: Callable[[int], None]
    done: Future[int] = field(default_factory=Future)


_OF_THE_FILE = sqlite3.OperationalError
"""Full, locked, gone: no other record would fare better, and each try may take the ten seconds of a lock."""

_Row = tuple[str, tuple[Any, ...]]
_Item = _Row | _Erasure | None


class Ledger:
    """The writing side. `lost` counts records that did not fit the queue or could not be written.

    What began more than `keep` seconds ago (of `clock`, epoch) is removed from time to time; None keeps everything. The
    file's space is used again, it does not shrink. Whatever a transaction has committed survives the process.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep: float | None = None,
        on_loss: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._keep, self._clock = keep, clock
        self._prune_at = time.monotonic()
        self.lost = 0
        self._closed = False
        self._on_loss = on_loss
        self._connection = connect(path, writable=True)
        self._pending: queue.Queue[_Item] = queue.Queue(MAX_PENDING)
        self._thread = threading.Thread(target=self._write, name="ledger", daemon=True)
        self._thread.start()

    def exchange(self, record: dict[str, Any]) -> None:
        """Keeps an exchange. Returns at once."""
        model = record["model"].encode("utf-8", "replace").decode()  # half a character is no text to the database
        row = (record["id"], record["began_at"], model, record["conversation"], dumps(record))
        self._put("INSERT OR REPLACE INTO exchanges VALUES (?, ?, ?, ?, ?)", row)

    def examination(self, exchange: str, record: dict[str, Any], lag: float) -> None:
        """Keeps a shadow's view of an exchange; `lag` in seconds. Returns at once."""
        verdict, flips = record["verdict"], record["counts"]["flip"]
        row = (exchange, record["shadow"], record["outcome"], verdict, flips, lag, dumps(record))
        self._put("INSERT OR REPLACE INTO examinations VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def verdict(self, exchange: str, record: dict[str, Any], conversation: str = "") -> None:
        """Keeps what was decided about a choice's calls. Returns at once."""
        row = (exchange, record["choice"], self._clock(), record["word"], record["done"], dumps(record), conversation)
        self._put("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def erase(self, conversation: str, record: Callable[[int], None]) -> Future[int]:
        """Removes what was said in a conversation so far; gives how many exchanges it had. Returns at once.

        `record` is called in the writer's thread with that number before anything is final: what it raises is given,
        and nothing is removed then. LedgerError is given where the file does not take it.
        """
        erasure = _Erasure(conversation, record)
        try:
            if self._closed:
                raise queue.Full
            self._pending.put_nowait(erasure)
        except queue.Full:
            erasure.done.set_exception(LedgerError(f"{self.path}: cannot be written now"))
        return erasure.done

    def _put(self, statement: str, row: tuple[Any, ...]) -> None:
        if self._closed:
            self._lose(1)
            return
        try:
            self._pending.put_nowait((statement, row))
        except queue.Full:
            self._lose(1)

    def _lose(self, count: int) -> None:
        self.lost += count
        for _ in range(count):
            self._on_loss()

    def _write(self) -> None:
        ended = False
        while not ended:
            batch = self._waiting()
            ended = None in batch
            self._store([item for item in batch if isinstance(item, tuple)])
            for item in batch:
                if isinstance(item, _Erasure):
                    self._erase(item)
            if not ended and self._keep is not None and time.monotonic() >= self._prune_at:
                self._prune(self._clock() - self._keep)

    def _store(self, rows: list[_Row]) -> None:
        if not rows or (failed := self._transact(rows)) is None:
            return
        lost, kinds = len(rows), {type(failed).__name__}
        if lost > 1 and not isinstance(failed, _OF_THE_FILE):
            lost, kinds = self._store_singly(rows)
        if lost:
            log.error("records were not written", count=lost, error=", ".join(sorted(kinds)))
            self._lose(lost)

    def _store_singly(self, rows: list[_Row]) -> tuple[int, set[str]]:
        """Writes each by itself, since one that cannot be written is to cost no other; how many are lost, and why."""
        lost, kinds = 0, set()
        for i, row in enumerate(rows):
            if (failed := self._transact([row])) is None:
                continue
            kinds.add(type(failed).__name__)
            if isinstance(failed, _OF_THE_FILE):
                return lost + len(rows) - i, kinds
            lost += 1
        return lost, kinds

    def _erase(self, erasure: _Erasure) -> None:
        """Erases in one transaction, and has the log in which old pages may still stand taken over into the file."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            count = _erase(self._connection, erasure.conversation)
            erasure.record(count)
            self._connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001  (who waits is told; the writer goes on)
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            failed = isinstance(error, sqlite3.Error)
            erasure.done.set_exception(LedgerError(f"{self.path}: cannot be erased: {error}") if failed else error)
        else:
            with contextlib.suppress(sqlite3.Error):  # a reader holds it up: the next one does it
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            erasure.done.set_result(count)

    def _waiting(self) -> list[_Item]:
        """What is to be written next, at most 256 records; empty when it is time to remove old ones."""
        timeout = None if self._keep is None else max(0.0, self._prune_at - time.monotonic())
        batch: list[_Item] = []
        with contextlib.suppress(queue.Empty):
            batch.append(self._pending.get(timeout=timeout) if timeout != 0 else self._pending.get_nowait())
            while len(batch) < 256:
                batch.append(self._pending.get_nowait())
        return batch

    def _transact(self, statements: list[_Row]) -> Exception | None:
        """Executes all, or nothing and gives why. The writer outlives whatever a value does to the driver."""
        try:
            self._connection.execute("BEGIN")
            for statement, values in statements:
                self._connection.execute(statement, values)
            self._connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001  (OverflowError, UnicodeEncodeError: none is an sqlite3.Error)
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            return error
        return None

    def _prune(self, before: float) -> None:
        """Removes the oldest exchanges, and comes back soon if there may be more of them."""
        which = (before, _PRUNE_AT_ONCE)
        count = self._connection.total_changes
        failed = self._transact([
            (f"DELETE FROM examinations WHERE exchange IN ({_OLDEST})", which),  # noqa: S608  (a constant)
            (f"DELETE FROM exchanges WHERE id IN ({_OLDEST})", which),  # noqa: S608
            (f"DELETE FROM verdicts WHERE rowid IN ({_OLDEST_VERDICTS})", which),  # noqa: S608
        ])  # fmt: skip
        if failed is not None:
            log.error("old records were not removed", error=type(failed).__name__)
        removed = self._connection.total_changes - count
        self._prune_at = time.monotonic() + (0.0 if failed is None and removed else _PRUNE_EVERY_S)
        if removed:
            log.debug("old records were removed", count=removed)

    def close(self, seconds: float = 10.0) -> None:
        """Writes what waits and closes the file; gives up after so many seconds."""
        self._closed = True
        try:
            self._pending.put(None, timeout=seconds)
        except queue.Full:  # the disk does not take what waits
            return
        self._thread.join(seconds)
        if not self._thread.is_alive():
            self._connection.close()


def _erase(connection: sqlite3.Connection, conversation: str) -> int:
    """Rewrites every record of a conversation without its content; how many exchanges they belong to."""
    exchanges = [row[0] for row in connection.execute(OF_CONVERSATION, (conversation, conversation)).fetchall()]
    for identity in exchanges:
        found = connection.execute("SELECT rowid, record FROM exchanges WHERE id = ?", (identity,)).fetchall()
        eraser = Eraser(read(found[0][1]) if found else None)
        _rewrite(connection, "exchanges", found, eraser.exchange)
        for table, erased in (("examinations", eraser.examination), ("verdicts", eraser.verdict)):
            found = connection.execute(f"SELECT rowid, record FROM {table} WHERE exchange = ?", (identity,)).fetchall()  # noqa: S608
            _rewrite(connection, table, found, erased)
    return len(exchanges)


def _rewrite(
    connection: sqlite3.Connection, table: str, rows: list[tuple[int, bytes]], erased: Callable[[Any], Any]
) -> None:
    for at, text in rows:
        record = read(text)
        if record is None:  # nested deeper than is read: nothing of it can be kept
            connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (at,))  # noqa: S608  (a constant)
        else:
            connection.execute(f"UPDATE {table} SET record = ? WHERE rowid = ?", (dumps(erased(record)), at))  # noqa: S608
