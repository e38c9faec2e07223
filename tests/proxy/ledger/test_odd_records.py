"""Records that the database, the writer of JSON or its reader does not take: each costs itself and no other."""

import io
import math
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from proxy import show
from proxy.ledger import Content, Ledger, LedgerReader, examination_record
from proxy.ledger.reading import UNREADABLE
from proxy.ledger.written import dumps, read
from shadow.choice import ChoiceReport
from shadow.divergence import Basis, Outcome, Position
from shadow.examine import Examination
from shadow.exchange import Region
from validators import Difference, Finding, Word
from validators.calls import Side

BEYOND = 2**63  # one more than a column takes


def record(identity: str, **more: Any) -> dict[str, Any]:
    about = {"id": identity, "began_at": float(len(identity)), "model": "m", "conversation": "c", "dialect": "chat"}
    kind: dict[str, Any] = {
        "stream": False,
        "status": 200,
        "seconds": 0.5,
        "problem": None,
        "choices": [],
        "findings": [],
    }
    return about | kind | more


def verdict(choice: int = 0) -> dict[str, Any]:
    return {"choice": choice, "word": "match", "done": "released", "calls": [], "findings": []}


def view(shadow: str) -> dict[str, Any]:
    return examination_record(Examination(shadow, choices=[ChoiceReport(0)]), Content.FULL)


class Held(Ledger):
    """Writes nothing before `go`, so that what is put before is one batch; counts the transactions."""

    def __init__(self, path: Path, on_loss: Callable[[], None] = lambda: None) -> None:
        self.go, self.transactions = threading.Event(), 0
        super().__init__(path, on_loss=on_loss)

    def _write(self) -> None:
        self.go.wait(10)
        super()._write()

    def _transact(self, statements: Any) -> Any:
        self.transactions += 1
        return super()._transact(statements)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def ids(path: Path) -> list[str]:
    with LedgerReader(path) as reader:
        return [found["id"] for found in reader.exchanges()]


# -- the writer


def test_a_row_that_the_database_does_not_take_costs_no_other(path: Path) -> None:
    told: list[int] = []
    with capture_logs() as logs:
        ledger = Held(path, on_loss=lambda: told.append(1))
        ledger.exchange(record("a"))
        ledger.verdict("SECRET", verdict(BEYOND))
        ledger.verdict("SECRET\ud83d", verdict())
        ledger.exchange(record("bb"))
        ledger.go.set()
        ledger.close()
    assert ids(path) == ["bb", "a"]
    assert (ledger.lost, len(told)) == (2, 2)
    assert [(entry["event"], entry["count"], entry["error"]) for entry in logs] == [
        ("records were not written", 2, "OverflowError, UnicodeEncodeError")
    ]
    assert "SECRET" not in repr(logs)


def test_the_writer_goes_on_after_a_row_that_it_could_not_write(path: Path) -> None:
    lost = threading.Event()
    ledger = Ledger(path, on_loss=lost.set)
    ledger.verdict("a", verdict(BEYOND))
    assert lost.wait(10)
    ledger.exchange(record("b"))
    ledger.close()
    assert ids(path) == ["b"]
    assert ledger.lost == 1


def test_a_file_that_takes_nothing_is_not_tried_for_each_record(path: Path) -> None:
    ledger = Held(path)
    with sqlite3.connect(path) as direct:
        direct.execute("ALTER TABLE exchanges RENAME TO hidden")
    direct.close()
    for identity in ("a", "b", "c"):
        ledger.exchange(record(identity))
    ledger.go.set()
    ledger.close()
    assert (ledger.lost, ledger.transactions) == (3, 1)


def test_a_file_that_stops_taking_anything_is_not_tried_for_the_rest(path: Path) -> None:
    class Full(Held):
        def _transact(self, statements: Any) -> Any:
            failed = super()._transact(statements)
            return sqlite3.OperationalError() if self.transactions == 3 else failed

    ledger = Full(path)
    ledger.exchange(record("a"))
    ledger.verdict("a", verdict(BEYOND))
    ledger.exchange(record("bb"))
    ledger.exchange(record("ccc"))
    ledger.go.set()
    ledger.close()
    assert ids(path) == ["a"]
    assert (ledger.lost, ledger.transactions) == (3, 3)


def test_a_model_s_name_with_half_a_character(path: Path) -> None:
    ledger = Ledger(path)
    ledger.exchange(record("a", model="m\ud83d"))
    ledger.close()
    assert ledger.lost == 0
    with LedgerReader(path) as reader:
        assert [found["model"] for found in reader.exchanges()] == ["m?"]


# -- what is written


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("beside", ["x", "\ud83d", 2**64], ids=["nothing", "half a character", "2**64"])
def test_no_number_is_written_that_json_has_not(value: float, beside: Any) -> None:
    written = dumps({"a": [value, {"b": value}], "c": beside})
    assert b"Infinity" not in written
    assert b"NaN" not in written
    found = read(written)
    assert found is not None
    assert found["a"] == [None, {"b": None}]


def test_a_pair_without_a_second_beside_half_a_character(path: Path) -> None:
    flip = Position(
        0,
        Region.TOOL_CALL,
        Basis.WINNER,
        Outcome.FLIP,
        1,
        1,
        2,
        primary_pair=(-0.5, -math.inf),
        reference_pair=(math.nan, -0.25),
    )
    difference = Difference("/x", Side.BOTH, "\ud83d", "x")
    finding = Finding(Word.MISMATCH, "note", 0, "arguments", (difference,))
    kept = examination_record(
        Examination("ref", choices=[ChoiceReport(0, positions=[flip], findings=[finding])]), Content.FULL
    )
    assert kept["choices"][0]["positions"][0]["primary_logprobs"] == (-0.5, None)
    assert kept["choices"][0]["positions"][0]["reference_logprobs"] == (None, -0.25)
    ledger = Ledger(path)
    ledger.exchange(record("a"))
    ledger.examination("a", kept, 0.5)
    ledger.close()
    with LedgerReader(path) as reader:
        ((examination,),) = [found["examinations"] for found in reader.exchanges()]
    assert examination["choices"][0]["positions"][0]["primary_logprobs"] == [-0.5, None]


# -- what is read


def stored(path: Path) -> None:
    """Two exchanges, each with two views and a verdict."""
    ledger = Ledger(path)
    for identity in ("a", "bb"):
        ledger.exchange(record(identity))
        ledger.verdict(identity, verdict())
        for shadow in ("ref", "twin"):
            ledger.examination(identity, view(shadow), 0.5)
    ledger.close()


def spoil(path: Path, table: str, where: str, text: bytes) -> None:
    with sqlite3.connect(path) as direct:
        done = direct.execute(f"UPDATE {table} SET record = ? WHERE {where}", (text,))
        assert done.rowcount == 1
    direct.close()


def shown(*what: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(*what)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


BROKEN = [b"", b"{", b"[1]", b"\xff", b'{"id": "a", "began', b"[" * 100_000, b"null"]
NAMES = ["empty", "begun", "a list", "no text", "cut", "deep", "null"]


@pytest.mark.parametrize("text", BROKEN, ids=NAMES)
def test_an_exchange_that_cannot_be_read_is_said_to_be_there(path: Path, text: bytes) -> None:
    stored(path)
    spoil(path, "exchanges", "id = 'a'", text)
    with LedgerReader(path) as reader:
        whole, unread = reader.exchanges()
        assert reader.exchange("a") == unread
    assert (whole["id"], whole["status"], "unreadable" in whole) == ("bb", 200, False)
    assert (unread["id"], unread["began_at"], unread["model"], unread["conversation"]) == ("a", 1.0, "m", "c")
    assert (unread["unreadable"], unread["problem"]) == (True, UNREADABLE)
    assert [one["shadow"] for one in unread["examinations"]] == ["ref", "twin"]
    assert UNREADABLE in shown(show.exchange(unread))
    assert shown(show.exchanges([whole, unread])).count(UNREADABLE) == 1


@pytest.mark.parametrize("text", BROKEN, ids=NAMES)
def test_a_view_and_a_verdict_that_cannot_be_read_are_said_to_be_there(path: Path, text: bytes) -> None:
    stored(path)
    spoil(path, "examinations", "exchange = 'a' AND shadow = 'ref'", text)
    spoil(path, "verdicts", "exchange = 'a'", text)
    with LedgerReader(path) as reader:
        whole, found = reader.exchanges()
        assert [one["id"] for one in reader.exchanges(shadow="ref")] == ["bb", "a"]
    assert [one.get("unreadable", False) for one in whole["examinations"] + whole["verdicts"]] == [False] * 3
    first, second = found["examinations"]
    assert (first["shadow"], first["outcome"], first["reason"], first["unreadable"]) == (
        "ref", "compared", UNREADABLE, True,
    )  # fmt: skip
    assert second == view("twin") | {"lag_seconds": 0.5}
    (decided,) = found["verdicts"]
    assert (decided["choice"], decided["word"], decided["done"], decided["why"]) == (0, "match", "released", UNREADABLE)
    assert UNREADABLE in shown(show.exchange(found))
    assert UNREADABLE in shown(show.exchanges([found]))


def test_what_an_earlier_version_wrote_that_is_no_json_is_read(path: Path) -> None:
    stored(path)
    spoil(path, "exchanges", "id = 'a'", dumps(record("a", seconds=7777)).replace(b"7777", b"-Infinity"))
    with LedgerReader(path) as reader:
        found = reader.exchange("a")
    assert found is not None
    assert (found["status"], found["seconds"]) == (200, None)
    assert "unreadable" not in found
