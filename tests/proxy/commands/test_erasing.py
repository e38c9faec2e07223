"""`counterproof exchanges --erase`: here where no proxy runs, through the proxy where one does."""

import asyncio
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from proxy.audit import AuditFile
from proxy.audit.reading import records, verify
from proxy.demo.rig import free_port
from proxy.demo.served import ProxyProcess
from proxy.ledger import Ledger, LedgerReader
from tests.proxy.commandline import Run
from tests.proxy.commands.typed import typed
from tests.proxy.serving import proxy
from tests.secrets import secret
from tests.standin import StandIn
from tests.standin.asking_it import PARIS, TOOLS, chat

RECORD: dict[str, Any] = {
    "id": "x-1",
    "began_at": time.time(),
    "dialect": "chat",
    "model": "m",
    "conversation": "c-1",
    "stream": False,
    "status": 200,
    "seconds": 1.0,
    "problem": None,
    "choices": [{"index": 0, "prompt_tokens": 1, "completion_tokens": 1, "content": "SECRET", "calls": []}],
    "findings": [],
}


def kept(folder: Path) -> Path:
    path = folder / "counterproof.db"
    ledger = Ledger(path)
    ledger.exchange(RECORD)
    ledger.exchange(RECORD | {"id": "x-2", "conversation": "c-2"})
    ledger.close()
    return path


def known(path: Path, conversation: str) -> int:
    with LedgerReader(path) as reader:
        return reader.conversation(conversation)


def content(path: Path) -> list[str | None]:
    with LedgerReader(path) as reader:
        return [
            found["choices"][0].get("content") for found in (reader.exchange("x-1"), reader.exchange("x-2")) if found
        ]


def erasures(folder: Path) -> list[tuple[bool, dict[str, Any]]]:
    """Whether it was done on this machine without a proxy, and what."""
    path = folder / "audit.jsonl"
    assert verify(path).fault is None
    return [(record.who.startswith("(uid "), record.data) for record in records(path) if record.kind == "erased"]


def test_where_no_proxy_runs_it_is_done_here(run: Run, tmp_path: Path) -> None:
    path = kept(tmp_path)
    code, out, err = run("exchanges", "--erase", "c-1", "--yes")
    assert (code, err) == (0, "")
    assert out == "What was said in 1 exchanges of c-1 is erased; what figures rest on stays.\n"
    assert content(path) == [None, "SECRET"]
    assert erasures(tmp_path) == [(True, {"conversation": "c-1", "exchanges": 1})]
    assert "erased" in run("exchanges", "x-1")[1]
    assert {record["id"] for record in json.loads(run("exchanges", "--json")[1])} == {"x-1", "x-2"}


def test_without_a_yes_nothing_is_erased(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, _, err = run("exchanges", "--erase", "c-1")
    assert code == 1
    assert "Erase what was said in 1 exchanges? This cannot be undone." in err
    assert content(path) == ["SECRET", "SECRET"]
    assert not (tmp_path / "audit.jsonl").exists()


def test_a_conversation_that_is_not_there(run: Run, tmp_path: Path) -> None:
    kept(tmp_path)
    for key in ("c", "C-1", ""):
        code, out, err = run("exchanges", "--erase", key, "--yes")
        assert (code, out) == (1, "")
        assert err == f"counterproof: counterproof.db: no exchange belongs to a conversation with the key {key!r}\n"
    (tmp_path / "counterproof.db").unlink()
    assert run("exchanges", "--erase", "c-1", "--yes")[0] == 2


def test_an_audit_that_cannot_be_gone_on_with_keeps_everything_as_it_is(run: Run, tmp_path: Path) -> None:
    path = kept(tmp_path)
    (tmp_path / "audit.jsonl").write_text("hello\n")
    code, _, err = run("exchanges", "--erase", "c-1", "--yes")
    assert code == 1
    assert err.startswith("counterproof: audit.jsonl: its last line is not as it was written; ")
    assert content(path) == ["SECRET", "SECRET"]


def test_where_somebody_else_has_the_audit_and_no_proxy_answers(run: Run, tmp_path: Path) -> None:
    path = kept(tmp_path)
    audit = AuditFile(tmp_path / "audit.jsonl", {})
    code, _, err = run(
        "exchanges", "--erase", "c-1", "--yes", "--control", "http://127.0.0.1:9", "--token", secret("x", "ct")
    )
    audit.close()
    assert (code, err) == (1, "counterproof: http://127.0.0.1:9: no proxy answers there (ConnectError)\n")
    assert content(path) == ["SECRET", "SECRET"]


@pytest.mark.slow
def test_where_a_proxy_runs_it_is_asked_to_do_it(run: Run, tmp_path: Path) -> None:
    path = kept(tmp_path)
    settings = {
        "primary": {"base_url": "http://127.0.0.1:9/v1"},
        "ledger": {"path": str(path)},
        "listen": {"port": free_port()},
        "control": {"port": free_port(), "token_file": str(tmp_path / "token")},
    }
    with ProxyProcess(settings, tmp_path) as process:
        at = ("--control", process.control_url, "--token", (tmp_path / "token").read_text().strip())
        code, out, err = run("exchanges", "--erase", "c-1", "--yes", *at)
        assert (code, err) == (0, "")
        assert out.startswith("What was said in 1 exchanges of c-1 is erased")
        assert content(path) == [None, "SECRET"]
    assert erasures(tmp_path) == [(False, {"conversation": "c-1", "exchanges": 1})]


@pytest.mark.slow
def test_what_a_call_says_is_not_shown_to_approvers_any_more(tmp_path: Path) -> None:
    """One that was decided and has not come again, and one that a client waits for."""
    asks = {"agree": 0, "tools": [{"match": "send", "approve": True, "approval_timeout": "100ms"}]}

    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, mode="block", policy=asks) as door:
            at = ("--control", door.control, "--token", (tmp_path / "control" / "token").read_text().strip())
            _, body, _ = await door.chat(chat(tools=TOOLS))
            assert b"needs a person's approval" in body
            (late,) = door.service.approvals.late()
            await door.service.approvals.decide(late.id, "anna", approved=True)
            async with asyncio.timeout(10):  # the ledger writes behind
                while not known(door.ledger, late.conversation):
                    await asyncio.sleep(0.02)
            assert "Paris" in (await typed("approvals", "show", late.id, *at))[1]
            erasing = ("exchanges", "--erase", late.conversation, "--yes", "--ledger", str(door.ledger))
            code, out, err = await typed(*erasing, *at)
            assert (code, err) == (0, "")
            assert out.startswith("What was said in 1 exchanges of")
            code, out, _ = await typed("approvals", "show", late.id, "--json", *at)
            shown = json.loads(out)
            assert (code, shown["state"], shown["calls"]) == (0, "lapsed", [])
            assert [(vote["who"], vote["answer"]) for vote in shown["votes"]] == [("anna", "approved")]
            _, body, _ = await door.chat(chat(tools=TOOLS, seed=1))
            assert b"needs a person's approval" in body  # what nobody can see any more lets nothing out

    asyncio.run(main())
    told = [record.data["event"] for record in records(tmp_path / "audit.jsonl") if record.kind == "approval"]
    assert told.count("erased") == 1
