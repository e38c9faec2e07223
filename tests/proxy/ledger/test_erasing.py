"""A conversation's content is erased: not a byte of it is left, and what figures rest on stays."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from proxy import show
from proxy.audit import AuditError, AuditFile, Kind, NoAudit
from proxy.audit.erasing import erase
from proxy.audit.reading import records, verify
from proxy.ledger import (
    Content,
    Ledger,
    LedgerError,
    LedgerReader,
    examination_record,
    exchange_record,
    sqlite,
    verdict_record,
)
from proxy.ledger.erasing import Eraser
from proxy.ledger.records import NOT_OFFERED
from shadow.choice import ChoiceReport
from shadow.divergence import Basis, Outcome, Position
from shadow.examine import Examination
from shadow.exchange import Answer, Choice, Dialect, Exchange, Region, Request, Timings
from shadow.judge import Judged
from validators import Difference, Finding, ToolCall, Word
from validators.calls import Side
from validators.decision import Verdict
from validators.policy import Action

SECRETS = [
    f"SECRET-{name}".encode()
    for name in ("ARGUMENT", "TOKEN", "TEXT", "THOUGHT", "PROMPT", "OTHER", "RIVAL", "NAME", "DETAIL", "KEY")
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    one = Ledger(path)
    yield one
    one.close()


def told(identity: str, conversation: str, tag: str = "", content: Content = Content.FULL) -> list[dict[str, Any]]:
    """The records of an exchange, its examination and its verdict, with a secret in every place that can hold one."""
    calls = (ToolCall("wire_money", f'{{"account": "SECRET-ARGUMENT{tag}"}}'), ToolCall(f"SECRET-NAME{tag}", "{"))
    choice = Choice(
        0,
        prompt_ids=(1, 2, 3),
        token_ids=(7654322,),
        token_bytes=(b"SECRET-TOKEN" + tag.encode(),),
        content=f"SECRET-TEXT{tag}",
        reasoning=f"SECRET-THOUGHT{tag}",
        calls=calls,
        finish_reason="tool_calls",
    )
    tools = [{"type": "function", "function": {"name": "wire_money"}}]
    messages = [{"role": "user", "content": f"SECRET-PROMPT{tag}"}]
    request = Request(Dialect.CHAT, {"model": "m", "messages": messages, "tools": tools})
    exchange = Exchange(identity, request, Answer({0: choice}), 200, 1.0, Timings(0, 1, 2), conversation)
    flip = Position(0, Region.TOOL_CALL, Basis.WINNER, Outcome.FLIP, 7654322, 7654322, 7654323, 0.5)
    difference = Difference(f"/SECRET-KEY{tag}", Side.BOTH, f"SECRET-ARGUMENT{tag}", f"SECRET-OTHER{tag}")
    findings = [
        Finding(Word.MISMATCH, "wire_money", 0, "arguments", (difference,), detail=f"SECRET-DETAIL{tag}"),
        Finding(Word.INVALID, f"SECRET-NAME{tag}", 1, "unknown_tool", where=f"/SECRET-KEY{tag}"),
    ]
    report = ChoiceReport(
        0,
        positions=[flip],
        findings=findings,
        reference_calls=(ToolCall("wire_money", f'{{"account": "SECRET-OTHER{tag}"}}'),),
        texts={7654323: f"SECRET-RIVAL{tag}"},
    )
    verdict = Verdict(
        Word.INVALID,
        Action.REFUSE,
        tuple(("ref", finding) for finding in findings),
        substitute=(ToolCall("wire_money", f'{{"account": "SECRET-OTHER{tag}"}}'),),
        why="unknown_tool",
    )
    offered = request.tool_names
    return [
        exchange_record(exchange, [(0, finding) for finding in findings], content),
        examination_record(Examination("ref", choices=[report]), content, offered),
        verdict_record(request, Judged(0, calls, verdict), "refused", 0.25, content),
    ]


def keep(ledger: Ledger, identity: str, conversation: str, tag: str = "") -> None:
    exchange, examination, verdict = told(identity, conversation, tag)
    ledger.exchange(exchange)
    ledger.examination(identity, examination, 0.5)
    ledger.verdict(identity, verdict, conversation)


def bytes_of(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file())


def erased(ledger: Ledger, conversation: str, record: Callable[[int], None] = lambda _count: None) -> int:
    return ledger.erase(conversation, record).result(10)


def test_not_a_byte_is_left_and_other_conversations_are_whole(path: Path, ledger: Ledger) -> None:
    keep(ledger, "x-1", "c-1", "-ONE")
    keep(ledger, "x-2", "c-1", "-ONE")
    keep(ledger, "x-3", "c-2", "-TWO")
    assert erased(ledger, "c-1") == 2
    left = bytes_of(path.parent)  # while the ledger is open, its log included
    assert b"-ONE" not in left
    for secret in SECRETS:
        assert secret + b"-TWO" in left
    with LedgerReader(path) as reader:
        other = reader.exchange("x-3")
        assert other is not None
        assert other["request"]["messages"][0]["content"] == "SECRET-PROMPT-TWO"


def test_what_was_replaced_or_removed_is_not_left_in_free_pages(path: Path) -> None:
    clock = [1.0]
    ledger = Ledger(path, keep=100, clock=lambda: clock[0])
    for tag in (
        "-FIRST" + "x" * 20_000,
        "-SECOND",
    ):  # the same exchange again: a smaller record in place of a larger one
        keep(ledger, "x-1", "c-1", tag)
        erased(ledger, "c-9")  # written by now, and no more
    assert erased(ledger, "c-1") == 1
    left = bytes_of(path.parent)
    ledger.close()
    assert b"-FIRST" not in left
    assert b"-SECOND" not in left


def test_figures_stay(path: Path, ledger: Ledger) -> None:
    keep(ledger, "x-1", "c-1")
    with LedgerReader(path) as reader:
        erased(ledger, "c-9")
        before = reader.exchange("x-1")
        erased(ledger, "c-1")
        after = reader.exchange("x-1")
        assert [found["id"] for found in reader.exchanges(tool="wire_money", verdict="mismatch", flipped=True)] == []
        assert [found["id"] for found in reader.exchanges(tool="wire_money", verdict="invalid", flipped=True)] == [
            "x-1"
        ]
    assert before is not None
    assert after is not None
    assert after["erased"] is True
    for name in ("id", "began_at", "model", "conversation", "status", "seconds", "stream"):
        assert after[name] == before[name]
    choice = after["choices"][0]
    assert (choice["prompt_tokens"], choice["completion_tokens"], choice["finish_reason"]) == (3, 1, "tool_calls")
    assert choice["calls"] == [{"name": "wire_money"}, {"name": NOT_OFFERED}]
    (examination,) = after["examinations"]
    assert examination["counts"] == before["examinations"][0]["counts"]
    assert examination["verdict"] == "invalid"
    position = examination["choices"][0]["positions"][0]
    assert (position["outcome"], position["margin"], position["region"]) == ("flip", 0.5, "tool_call")
    assert "emitted" not in position
    (verdict,) = after["verdicts"]
    assert (verdict["word"], verdict["done"], verdict["why"], verdict["waited"]) == (
        "invalid",
        "refused",
        "unknown_tool",
        0.25,
    )
    assert [(f["word"], f["tool"], f["reason"]) for f in verdict["findings"]] == [
        ("mismatch", "wire_money", "arguments"),
        ("invalid", NOT_OFFERED, "unknown_tool"),
    ]


def test_what_is_erased_can_still_be_shown(path: Path, ledger: Ledger) -> None:
    keep(ledger, "x-1", "c-1")
    erased(ledger, "c-1")
    with LedgerReader(path) as reader:
        record = reader.exchange("x-1")
    assert record is not None
    console = Console(width=200)
    with console.capture() as shown:
        console.print(show.exchange(record), show.exchanges([record]))
    assert "erased" in shown.get()
    assert "c-1" in shown.get()


def test_a_verdict_without_a_record_of_its_exchange_is_erased_as_well(path: Path, ledger: Ledger) -> None:
    """The mirror may have dropped the exchange, or not have had it in its sample."""
    _, _, verdict = told("x-1", "c-1")
    ledger.verdict("x-1", verdict, "c-1")
    assert erased(ledger, "c-1") == 1
    left = bytes_of(path.parent)
    assert not [secret for secret in SECRETS if secret in left]


@pytest.mark.parametrize("content", Content)
def test_less_content_has_less_to_erase(content: Content) -> None:
    records_ = told("x-1", "c-1", content=content)
    eraser = Eraser(records_[0])
    exchange, examination, verdict = (
        eraser.exchange(records_[0]),
        eraser.examination(records_[1]),
        eraser.verdict(records_[2]),
    )
    assert not [secret for secret in SECRETS if secret in orjson.dumps([exchange, examination, verdict])]
    names = [call.get("name") for call in exchange["choices"][0]["calls"]]
    assert names == ([None, None] if content is Content.NONE else ["wire_money", NOT_OFFERED])


def test_erasing_twice_is_erasing(path: Path, ledger: Ledger) -> None:
    keep(ledger, "x-1", "c-1")
    assert erased(ledger, "c-1") == 1
    with LedgerReader(path) as reader:
        once = reader.exchange("x-1")
        assert erased(ledger, "c-1") == 1
        assert reader.exchange("x-1") == once


def test_a_conversation_that_is_not_there_has_nothing(ledger: Ledger) -> None:
    keep(ledger, "x-1", "c-1")
    assert erased(ledger, "c") == 0
    assert erased(ledger, "") == 0


def test_what_comes_afterwards_is_kept(path: Path, ledger: Ledger) -> None:
    keep(ledger, "x-1", "c-1")
    erased(ledger, "c-1")
    keep(ledger, "x-2", "c-1", "-LATER")
    erased(ledger, "c-9")
    with LedgerReader(path) as reader:
        assert reader.conversation("c-1") == 2
    assert b"SECRET-TEXT-LATER" in bytes_of(path.parent)


def test_a_record_that_is_nested_too_deep_to_be_read_goes_as_a_whole(path: Path, ledger: Ledger) -> None:
    keep(ledger, "x-1", "c-1")
    erased(ledger, "c-9")
    connection = sqlite3.connect(path)
    deep = b'{"request":' + b"[" * 5000 + b'"SECRET-DEEP"' + b"]" * 5000 + b"}"
    connection.execute("UPDATE exchanges SET record = ?", (deep,))
    connection.commit()
    connection.close()
    assert erased(ledger, "c-1") == 1
    left = bytes_of(path.parent)
    assert b"SECRET-DEEP" not in left
    assert not [secret for secret in SECRETS if secret in left]


# -- recorded, or not done


def test_an_erasure_is_in_the_audit(tmp_path: Path, ledger: Ledger) -> None:
    keep(ledger, "x-1", "c-1")
    audit = AuditFile(tmp_path / "audit.jsonl", {})
    assert erase(ledger, audit, "anna", "c-1") == 1
    audit.close()
    found = [(r.who, r.data) for r in records(audit.path) if r.kind == Kind.ERASED]
    assert found == [("anna", {"conversation": "c-1", "exchanges": 1})]
    assert verify(audit.path).fault is None


def test_what_cannot_be_recorded_is_not_erased(tmp_path: Path, path: Path, ledger: Ledger) -> None:
    keep(ledger, "x-1", "c-1")
    audit = AuditFile(tmp_path / "audit.jsonl", {})
    audit.path.unlink()
    with pytest.raises(AuditError):
        erase(ledger, audit, "anna", "c-1")
    audit.close()
    with LedgerReader(path) as reader:
        record = reader.exchange("x-1")
    assert record is not None
    assert record["choices"][0]["content"] == "SECRET-TEXT"
    assert erased(ledger, "c-1") == 1  # the writer goes on


def test_a_ledger_that_cannot_be_written_says_so(path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(ledger, "x-1", "c-1")
    erased(ledger, "c-9")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    ledger._connection.execute("PRAGMA busy_timeout=50")
    with pytest.raises(LedgerError, match="cannot be erased: database is locked"):
        erase(ledger, NoAudit(), "anna", "c-1")
    other.execute("ROLLBACK")
    other.close()
    assert erase(ledger, NoAudit(), "anna", "c-1") == 1
    monkeypatch.setattr(ledger, "_closed", True)
    with pytest.raises(LedgerError, match="cannot be written now"):
        erase(ledger, NoAudit(), "anna", "c-1")


def test_records_that_wait_are_written_before(path: Path, ledger: Ledger) -> None:
    waiting: list[Future[int]] = []
    for i in range(300):
        keep(ledger, f"x-{i}", "c-1")
        if i % 100 == 99:
            waiting.append(ledger.erase("c-1", lambda _count: None))
    counts = [future.result(30) for future in waiting]
    assert counts[-1] == 300
    assert not [secret for secret in SECRETS if secret in bytes_of(path.parent)]


def test_a_ledger_of_version_2_is_taken_over(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(sqlite._SCHEMA.replace(", conversation TEXT NOT NULL DEFAULT ''", ""))
    exchange, _, verdict = told("x-1", "c-1")
    row = ("x-1", time.time(), "m", "c-1", orjson.dumps(exchange))
    connection.execute("INSERT INTO exchanges VALUES (?, ?, ?, ?, ?)", row)
    kept = ("x-1", 0, 1.0, "invalid", "refused", orjson.dumps(verdict))
    connection.execute("INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?)", kept)
    connection.execute("PRAGMA user_version=2")
    connection.commit()
    connection.close()
    with LedgerReader(path) as reader:
        assert reader.conversation("c-1") == 1
        found = reader.exchange("x-1")
        assert found is not None
        assert len(found["verdicts"]) == 1
    ledger = Ledger(path)
    keep(ledger, "x-2", "c-1")
    assert erased(ledger, "c-1") == 2
    ledger.close()
    assert not [secret for secret in SECRETS if secret in bytes_of(path.parent)]
