import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.ledger import Content, Ledger, LedgerError, LedgerReader, examination_record, exchange_record, sqlite
from shadow.choice import ChoiceReport
from shadow.divergence import Basis, Outcome, Position
from shadow.examine import Examination
from shadow.exchange import Answer, Choice, Dialect, Exchange, Region, Request, Timings
from validators import Difference, Finding, ToolCall, Word
from validators.calls import Side


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    one = Ledger(path)
    yield one
    one.close()


OFFERED = frozenset({"wire_money", "note"})


def record(identity: str, began_at: float = 1.0, *tools: str, **more: Any) -> dict[str, Any]:
    calls = [{"name": tool} for tool in tools]
    choices = [{"index": 0, "calls": calls}]
    return {"id": identity, "began_at": began_at, "model": "m", "conversation": "c", "choices": choices} | more


def view(shadow: str = "ref", verdict: str | None = "match", flips: int = 0) -> dict[str, Any]:
    return {"shadow": shadow, "outcome": "compared", "verdict": verdict, "counts": {"flip": flips}}


def ids(path: Path, **filters: Any) -> list[str]:
    with LedgerReader(path) as reader:
        return [found["id"] for found in reader.exchanges(**filters)]


def wait_for(path: Path, count: int) -> None:
    """Until the writer has written so many exchanges."""
    until = time.monotonic() + 10
    while len(ids(path, limit=10_000)) < count:
        assert time.monotonic() < until
        time.sleep(0.01)


# -- what is kept, in the file's own bytes


def stored_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


def keep_everything(path: Path, content: Content) -> None:
    argument = '{"account": "SECRET-ARGUMENT"}'
    choice = Choice(
        0,
        prompt_ids=(7654321,),
        token_ids=(7654322,),
        token_bytes=(b"SECRET-TOKEN",),
        content="SECRET-TEXT",
        reasoning="SECRET-THOUGHT",
        calls=(ToolCall("wire_money", argument),),
    )
    messages = [{"role": "user", "content": "SECRET-PROMPT"}]
    tools = [{"type": "function", "function": {"name": "wire_money"}}]
    request = Request(Dialect.CHAT, {"model": "m", "messages": messages, "tools": tools})
    exchange = Exchange("x-1", request, Answer({0: choice}), 200, 1.0, Timings(0, 1, 2), "c" * 32)
    flip = Position(
        0, Region.TOOL_CALL, Basis.WINNER, Outcome.FLIP, 7654322, 7654322, 7654323, 0.5, reference_logprob=-1.25
    )
    difference = Difference("/account", Side.BOTH, "SECRET-ARGUMENT", "SECRET-OTHER")
    report = ChoiceReport(
        0,
        positions=[flip],
        findings=[Finding(Word.MISMATCH, "wire_money", 0, "arguments", (difference,))],
        reference_calls=(ToolCall("wire_money", '{"account": "SECRET-OTHER"}'),),
        texts={7654323: "SECRET-RIVAL"},
    )
    ledger = Ledger(path)
    ledger.exchange(exchange_record(exchange, [(0, Finding(Word.INVALID, "wire_money", 0, "unclosed"))], content))
    ledger.examination("x-1", examination_record(Examination("ref", choices=[report]), content, OFFERED), 0.5)
    wait_for(path, 1)
    ledger.close()
    assert ledger.lost == 0


KEPT_IN_FULL = [
    b"SECRET-ARGUMENT", b"SECRET-TOKEN", b"SECRET-TEXT", b"SECRET-THOUGHT", b"SECRET-PROMPT", b"SECRET-OTHER",
    b"SECRET-RIVAL", b"7654321", b"7654322", b"7654323", b"-1.25",
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "structure", "everything"),
    [(Content.NONE, False, False), (Content.REDACTED, True, False), (Content.FULL, True, True)],
)
def test_the_file_holds_exactly_what_the_setting_says(
    path: Path, content: Content, *, structure: bool, everything: bool
) -> None:
    keep_everything(path, content)
    stored = stored_bytes(path.parent)
    assert [text in stored for text in KEPT_IN_FULL] == [everything] * len(KEPT_IN_FULL)
    assert [text in stored for text in (b"wire_money", b"/account")] == [structure] * 2
    assert b"mismatch" in stored
    assert b"SECRET" not in stored or everything


# -- writing and reading


def test_records_survive_reopening(path: Path) -> None:
    for identity in ("a", "b"):
        ledger = Ledger(path)
        ledger.exchange(record(identity, text="é ✓"))
        ledger.examination(identity, view(), 0.25)
        ledger.close()
    with LedgerReader(path) as reader:
        found = reader.exchange("a")
        assert found == record("a", text="é ✓") | {"examinations": [view() | {"lag_seconds": 0.25}], "verdicts": []}
    assert sorted(ids(path)) == ["a", "b"]


def test_a_record_of_the_same_id_takes_the_place_of_the_other(path: Path, ledger: Ledger) -> None:
    ledger.exchange(record("a", 1.0, status=500))
    ledger.exchange(record("a", 1.0, status=200))
    ledger.examination("a", view(verdict="match"), 1)
    ledger.examination("a", view(verdict="mismatch"), 2)
    ledger.close()
    with LedgerReader(path) as reader:
        (found,) = reader.exchanges()
    assert found["status"] == 200
    assert found["examinations"] == [view(verdict="mismatch") | {"lag_seconds": 2.0}]


def test_a_reader_works_beside_a_writer(path: Path, ledger: Ledger) -> None:
    ledger.exchange(record("a"))
    wait_for(path, 1)
    with LedgerReader(path) as reader:
        first = next(reader.exchanges())
        for i in range(300):
            ledger.exchange(record(f"b{i}", 2.0 + i))
        wait_for(path, 301)
        assert first["id"] == "a"
        assert len(list(reader.exchanges(limit=1000))) == 301
    assert ledger.lost == 0


def test_a_reader_cannot_write(path: Path, ledger: Ledger) -> None:
    ledger.exchange(record("a"))
    ledger.close()
    with LedgerReader(path) as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader._connection.execute("DELETE FROM exchanges")


def test_an_exchange_is_found_by_an_unambiguous_beginning_of_its_id(path: Path, ledger: Ledger) -> None:
    for identity in ("abc1", "abd2", "x%_"):
        ledger.exchange(record(identity))
    ledger.close()
    with LedgerReader(path) as reader:

        def found(identity: str) -> str | None:
            exchange = reader.exchange(identity)
            return exchange["id"] if exchange else None

        assert [found("abc1"), found("abc"), found("abd"), found("x")] == ["abc1", "abc1", "abd2", "x%_"]
        assert [found("ab"), found("abc12"), found("ABC"), found("%"), found("_bc1"), found("nope")] == [None] * 6


def test_a_whole_id_is_never_ambiguous(path: Path, ledger: Ledger) -> None:
    ledger.exchange(record("ab"))
    ledger.exchange(record("abc"))
    ledger.close()
    with LedgerReader(path) as reader:
        found = reader.exchange("ab")
    assert found is not None


def test_filters(path: Path, ledger: Ledger) -> None:
    ledger.exchange(record("none", 1.0, "ping"))
    ledger.exchange(record("match", 2.0, "ping", "reboot"))
    ledger.examination("match", view("ref", "match"), 1)
    ledger.exchange(record("both", 3.0, "reboot"))
    ledger.examination("both", view("ref", "match", flips=2), 1)
    ledger.examination("both", view("twin", "mismatch"), 1)
    ledger.exchange(record("text", 4.0))
    ledger.examination("text", view("twin", None, flips=1), 1)
    ledger.close()
    assert ids(path) == ["text", "both", "match", "none"]
    assert ids(path, limit=2) == ["text", "both"]
    assert ids(path, since=2.0) == ["text", "both", "match"]
    assert ids(path, since=2.5, tool="reboot") == ["both"]
    assert ids(path, tool="ping") == ["match", "none"]
    assert ids(path, tool="pin") == []
    assert ids(path, verdict="match") == ["both", "match"]
    assert ids(path, verdict="mismatch") == ["both"]
    assert ids(path, shadow="twin") == ["text", "both"]
    assert ids(path, shadow="twin", verdict="match") == []  # of one and the same shadow
    assert ids(path, shadow="ref", flipped=True) == ["both"]
    assert ids(path, flipped=True) == ["text", "both"]
    assert ids(path, flipped=True, limit=1) == ["text"]
    with LedgerReader(path) as reader:
        (both,) = reader.exchanges(verdict="mismatch")
    assert [examination["shadow"] for examination in both["examinations"]] == ["ref", "twin"]


def test_a_tool_cannot_be_filtered_by_where_no_names_are_kept(path: Path, ledger: Ledger) -> None:
    ledger.exchange(record("a") | {"choices": [{"index": 0, "calls": [{}]}]})
    ledger.close()
    assert ids(path, tool="ping") == []
    assert ids(path) == ["a"]


# -- files that are no ledger


def test_a_reader_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        LedgerReader(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "empty.db").touch()
    with pytest.raises(LedgerError, match="is no ledger yet"):
        LedgerReader(tmp_path / "empty.db")


@pytest.mark.parametrize("opened", [Ledger, LedgerReader])
def test_a_wrong_file_is_refused_and_left_alone(tmp_path: Path, opened: type[Ledger] | type[LedgerReader]) -> None:
    wrong = tmp_path / "notes.txt"
    wrong.write_text("These are my notes. " * 100)
    with pytest.raises(LedgerError, match="cannot be opened as a ledger"):
        opened(wrong)
    assert wrong.read_text() == "These are my notes. " * 100
    with pytest.raises(LedgerError, match="cannot be opened as a ledger"):
        opened(tmp_path)


@pytest.mark.parametrize("opened", [Ledger, LedgerReader])
def test_a_newer_version_is_refused_and_left_alone(path: Path, opened: type[Ledger] | type[LedgerReader]) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=4")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="a ledger of version 4, this program writes 3"):
        opened(path)
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be opened"):
        Ledger(tmp_path / "none" / "ledger.db")


def test_another_program_s_database_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(LedgerError):
        Ledger(path).close()


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    odd = tmp_path / "a b?c#d%20é.db"
    ledger = Ledger(odd)
    ledger.exchange(record("a"))
    ledger.close()
    assert odd.exists()
    assert ids(odd) == ["a"]


# -- what cannot be written


def test_what_does_not_fit_the_queue_is_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "MAX_PENDING", 3)
    told: list[int] = []
    hold, held = threading.Event(), threading.Event()

    class Slow(Ledger):
        def _write(self) -> None:
            held.set()
            hold.wait(10)
            super()._write()

    ledger = Slow(path, on_loss=lambda: told.append(1))
    held.wait(10)
    for i in range(5):
        ledger.exchange(record(f"x{i}", float(i)))
    assert ledger.lost == 2
    assert len(told) == 2
    hold.set()
    ledger.close()
    assert ids(path) == ["x2", "x1", "x0"]


def test_records_that_cannot_be_written_are_counted_and_the_next_ones_are_written(path: Path) -> None:
    told: list[int] = []
    ledger = Ledger(path, on_loss=lambda: told.append(1))
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE exchanges RENAME TO hidden")
    connection.commit()
    with capture_logs() as logs:
        ledger.exchange(record("SECRET"))
        until = time.monotonic() + 10
        while not told and time.monotonic() < until:
            time.sleep(0.01)
    connection.execute("ALTER TABLE hidden RENAME TO exchanges")
    connection.commit()
    connection.close()
    ledger.exchange(record("b"))
    ledger.close()
    assert (ledger.lost, len(told)) == (1, 1)
    assert [(entry["event"], entry["count"], entry["error"]) for entry in logs] == [
        ("records were not written", 1, "OperationalError")
    ]
    assert "SECRET" not in repr(logs)
    assert ids(path) == ["b"]


def test_writing_returns_at_once(path: Path) -> None:
    ledger = Ledger(path)
    assert isinstance(ledger._pending, queue.Queue)
    assert ledger._pending.maxsize == 10_000
    blocker = sqlite3.connect(path)
    blocker.execute("BEGIN EXCLUSIVE")
    began = time.monotonic()
    for i in range(100):
        ledger.exchange(record(f"x{i}"))
    assert time.monotonic() - began < 5  # SQLite itself would wait for ten
    blocker.execute("ROLLBACK")
    blocker.close()
    ledger.close()
    assert len(ids(path, limit=1000)) == 100


def test_closing_twice_is_closing(path: Path) -> None:
    ledger = Ledger(path)
    ledger.close()
    ledger.close(0.1)
    assert ids(path) == []


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("\ud83d", "?"),
        ({"\udcff": 1}, {"?": 1}),
        (2**64, float(2**64)),
        ([-(2**70)], [-float(2**70)]),
        ({"deep": [[[2**100]]]}, {"deep": [[[float(2**100)]]]}),
    ],
    ids=["text", "key", "2**64", "-2**70", "deep"],
)
def test_a_request_that_no_fast_writer_takes_is_kept_all_the_same(
    path: Path, ledger: Ledger, value: Any, kept: Any
) -> None:
    ledger.exchange(record("a", request={"model": "m", "x": value}))
    ledger.exchange(record("b", request={"model": "m", "x": 2**63}))
    ledger.close()
    with LedgerReader(path) as reader:
        a, b = reader.exchange("a"), reader.exchange("b")
    assert a == record("a", request={"model": "m", "x": kept}) | {"examinations": [], "verdicts": []}
    assert b is not None
    assert b["request"]["x"] == 2**63
    assert ledger.lost == 0


@pytest.mark.parametrize("content", [Content.REDACTED, Content.FULL])
def test_half_a_character_in_a_model_s_arguments_is_kept_or_replaced(
    path: Path, ledger: Ledger, content: Content
) -> None:
    """A model writes `{"\\ud83d": "\\ud83d"}`: JSON, and half an emoji."""
    difference = Difference("/\ud83d", Side.BOTH, "\ud83d", "x")
    finding = Finding(Word.MISMATCH, "note", 0, "arguments", (difference,))
    report = ChoiceReport(0, findings=[finding])
    ledger.exchange(record("a"))
    ledger.examination("a", examination_record(Examination("ref", choices=[report]), content, OFFERED), 0.5)
    ledger.close()
    assert ids(path, verdict="mismatch") == ["a"]


def test_what_comes_after_close_is_counted(path: Path) -> None:
    ledger = Ledger(path)
    ledger.close()
    ledger.exchange(record("late"))
    assert ledger.lost == 1


# -- retention, and what survives


def test_what_is_older_than_it_is_kept_is_removed_with_its_examinations(path: Path) -> None:
    now = 1_000_000.0
    ledger = Ledger(path)
    for i in range(1300):
        ledger.exchange(record(f"cp-{i:04}", now - i))
        ledger.examination(f"cp-{i:04}", view(), 0.1)
    ledger.close()
    Ledger(path, keep=99.5, clock=lambda: now).close()  # an end that comes at once removes nothing halfway
    ledger = Ledger(path, keep=99.5, clock=lambda: now)
    until = time.monotonic() + 20
    while len(ids(path, limit=10_000)) > 100:
        assert time.monotonic() < until
        time.sleep(0.01)
    ledger.exchange(record("cp-new", now + 1))
    ledger.close()
    assert ids(path, limit=10_000) == ["cp-new", *(f"cp-{i:04}" for i in range(100))]
    with sqlite3.connect(path) as direct:
        assert direct.execute("SELECT count(*) FROM examinations").fetchone() == (100,)
    direct.close()


def test_without_a_limit_everything_is_kept(path: Path) -> None:
    ledger = Ledger(path, keep=None)
    ledger.exchange(record("cp-old", 0.0))
    ledger.close()
    assert ids(path) == ["cp-old"]


WRITER = """
import sys, pathlib
from proxy.ledger import Ledger
ledger = Ledger(pathlib.Path(sys.argv[1]), keep=3600.0, clock=lambda: 1e6)
i = 0
while True:
    about = {"model": "m", "conversation": "c", "choices": [], "pad": "x" * 500}
    ledger.exchange({"id": f"cp-{i:08}", "began_at": 1e6 + i} | about)
    view = {"shadow": "s", "outcome": "compared", "verdict": None, "counts": {"flip": 0}}
    ledger.examination(f"cp-{i:08}", view, 0.1)
    i += 1
    if i % 50 == 0:
        print(i, flush=True)
        while ledger._pending.qsize() > 1000:
            pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("lines", [1, 7, 40])
def test_a_ledger_survives_a_killed_process_and_goes_on(path: Path, lines: int) -> None:
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline()
        wait_for(path, 1)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    found = ids(path, limit=10**6)
    # What is there is whole, and nothing is missing in the middle: transactions are written in their order.
    assert found == [f"cp-{i:08}" for i in range(len(found))][::-1]
    with sqlite3.connect(path) as direct:
        assert direct.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    direct.close()
    ledger = Ledger(path)
    ledger.exchange(record("cp-after", 2e6))
    ledger.close()
    assert ids(path, limit=1) == ["cp-after"]
