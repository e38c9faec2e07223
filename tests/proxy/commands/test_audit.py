"""`counterproof audit`: records shown, the chain checked, a receipt printed."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.audit import AuditFile, Kind, Witness, engine
from proxy.audit.disk import beside
from proxy.ledger import Content, Ledger, verdict_record
from shadow.capabilities import Capabilities
from shadow.exchange import Dialect, Request
from shadow.judge import Case, Judged, Rulebook
from tests.proxy.audit.chains import written
from tests.proxy.commandline import Run
from validators import Finding, ToolCall, Word
from validators.decision import Verdict
from validators.policy import Action, Policy, ToolPolicy

COMMAND = ToolCall(
    "run_command", '{"device": "edge-1", "command": "show arp", "interface": "GigabitEthernet0/0/1.201"}'
)
REQUEST = Request(Dialect.CHAT, {"model": "qwen", "tools": [{"type": "function", "function": {"name": "run_command"}}]})
VERDICT = Verdict(
    Word.MATCH,
    Action.HOLD,
    (("float32", Finding(Word.MATCH, "run_command", 0)),),
    agreed=("float32",),
    why="wants_person",
)


def released(folder: Path, content: Content = Content.FULL) -> None:
    """A proxy has let a call of high risk out that a person approved; ledger and audit lie in the folder."""
    judged = Judged(0, (COMMAND,), VERDICT)
    ledger = Ledger(folder / "counterproof.db")
    ledger.exchange(_exchange(content))
    ledger.verdict("cp-77f0", verdict_record(REQUEST, judged, "released", 2.5, content), "c0ffee")
    ledger.close()
    policy: Policy[Any] = Policy(1, ToolPolicy("*"), (ToolPolicy("run*", risk="high"),))
    audit = AuditFile(folder / "audit.jsonl", {"version": "0"})
    primary = Capabilities("qwen", version="0.32.0", max_model_len=4096, tokenizer="ab12")

    async def main() -> None:
        await Witness(audit).see(
            "cp-77f0",
            Case(Rulebook(policy, "v7"), REQUEST, b"", "0123:c0ffee"),
            judged,
            "released",
            ways={"float32": "continue"},
            engines=[engine("primary", "primary", primary), engine("float32", "reference", primary)],
            approval={"id": "ap-1", "approvers": ["anna", "bo"], "needed": 2},
        )

    asyncio.run(main())
    audit.close()


def _exchange(content: Content) -> dict[str, Any]:
    call = {"name": "run_command"} | ({"arguments": COMMAND.arguments} if content is Content.FULL else {})
    return {
        "id": "cp-77f0",
        "began_at": 1.0,
        "model": "qwen",
        "conversation": "c0ffee",
        "choices": [{"index": 0, "calls": [call]}],
        "findings": [],
    }


# -- verify


def test_a_whole_chain(run: Run, tmp_path: Path) -> None:
    written(tmp_path)
    code, out, err = run("audit", "verify")
    assert (code, err) == (0, "")
    assert out.startswith("audit.jsonl: the chain ")
    assert " is whole: 5 lines, the last one's hash is " in out
    code, out, _ = run("audit", "verify", "audit.jsonl", "--json")
    report = json.loads(out)
    assert (code, report["whole"], report["lines"], report["anchored"], report["fault"]) == (0, True, 5, True, None)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_changed_line_is_named_and_exit_code_1(run: Run, tmp_path: Path, as_json: bool) -> None:  # noqa: FBT001
    path = written(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"mode":"block"', b'"mode":"off"'))
    code, out, err = run("audit", "verify", str(path), *(["--json"] if as_json else []))
    assert (code, err) == (1, "")
    if as_json:
        assert json.loads(out)["fault"]["line"] == 2
    else:
        assert out == f"{path}: line 2 is not as it was written\n1 lines before it are whole.\n"


def test_a_chain_without_its_head(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path)
    beside(path, "head").unlink()
    code, out, _ = run("audit", "verify")
    assert code == 0
    assert "Nothing beside it says where it ends (audit.jsonl.head is not there)." in out


def test_what_cannot_be_read_is_exit_code_2(run: Run) -> None:
    for args in (("audit", "verify"), ("audit",), ("audit", "receipt", "cp-1")):
        code, out, err = run(*args)
        assert (code, out) == (2, "")
        assert err == "counterproof: audit.jsonl: cannot be read: No such file or directory\n"


# -- show


def test_records_are_listed(run: Run, tmp_path: Path) -> None:
    written(tmp_path)
    code, out, err = run("audit")
    assert (code, err) == (0, "")
    for word in ("start", "mode", "approval", "stop", "anna", "ünïcode"):
        assert word in out
    assert [r["kind"] for r in json.loads(run("audit", "--json")[1])] == [
        "start",
        "mode",
        "approval",
        "released",
        "stop",
    ]
    assert [r["n"] for r in json.loads(run("audit", "--json", "--limit", "2")[1])] == [4, 5]
    assert [r["who"] for r in json.loads(run("audit", "--json", "--kind", "mode")[1])] == ["anna"]
    assert run("audit", "--kind", "erased")[1] == "The audit has no such record.\n"
    assert len(json.loads(run("audit", "--json", "--since", "1h")[1])) == 5
    assert run("audit", "--since", "yesterday")[0] == 2
    assert run("audit", "--kind", "nonsense")[0] == 2


def test_records_are_found_where_they_were_configured(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = written(tmp_path / "elsewhere")
    (tmp_path / "c.yaml").write_text("primary: {base_url: http://h/v1}\nledger: {path: elsewhere/l.db}\n")
    assert run("audit", "verify", "--config", "c.yaml")[0] == 0
    (tmp_path / "c.yaml").write_text(
        f"primary: {{base_url: http://h/v1}}\nledger: {{path: null}}\naudit: {{path: {path}}}\n"
    )
    assert run("audit", "verify", "--config", "c.yaml")[0] == 0
    (tmp_path / "c.yaml").write_text("primary: {base_url: http://h/v1}\nledger: {path: null}\n")
    assert run("audit", "--config", "c.yaml")[::2] == (
        2,
        "counterproof: c.yaml: audit.path is null: no audit is kept\n",
    )
    monkeypatch.setenv("COUNTERPROOF_LEDGER__PATH", "elsewhere/l.db")
    assert run("audit", "verify")[0] == 0
    monkeypatch.delenv("COUNTERPROOF_LEDGER__PATH")
    monkeypatch.setenv("COUNTERPROOF_AUDIT__PATH", str(path))
    assert run("audit", "verify")[0] == 0
    monkeypatch.delenv("COUNTERPROOF_AUDIT__PATH")
    assert run("audit", "--file", str(path))[0] == 0


# -- a receipt


def test_a_receipt_says_what_went_out_and_what_that_rests_on(run: Run, tmp_path: Path) -> None:
    released(tmp_path)
    code, out, err = run("audit", "receipt", "cp-77")
    assert (code, err) == (0, "")
    for word in (
        "cp-77f0", "released", "match (wants_person)", "float32 (continue)", "anna, bo (ap-1)", "v7", "c0ffee",
        "run_command", "high", COMMAND.arguments, "0.32.0", "4096", "ab12", "2 of the chain", "which is whole",
    ):  # fmt: skip
        assert word in out, word
    (found,) = json.loads(run("audit", "receipt", "cp-77f0", "--json")[1])
    assert found["chain_whole"] is True
    assert found["said"] == {found["data"]["calls"][0]["hash"]: COMMAND.arguments}
    assert "show arp" not in (tmp_path / "audit.jsonl").read_text()


def test_a_receipt_without_what_the_call_said(run: Run, tmp_path: Path) -> None:
    released(tmp_path, Content.REDACTED)
    code, out, _ = run("audit", "receipt", "cp-77f0")
    assert code == 0
    assert "(not kept, or erased)" in out
    (tmp_path / "counterproof.db").unlink()
    assert "(not kept, or erased)" in run("audit", "receipt", "cp-77f0")[1]
    beside(tmp_path / "audit.jsonl", "key").unlink()
    assert "(not kept, or erased)" in run("audit", "receipt", "cp-77f0")[1]


def test_a_ledger_that_says_something_else_is_not_believed(run: Run, tmp_path: Path) -> None:
    released(tmp_path)
    ledger = Ledger(tmp_path / "counterproof.db")
    other = Judged(0, (ToolCall("run_command", '{"command": "reload"}'),), VERDICT)
    ledger.exchange(_exchange(Content.NONE))
    ledger.verdict("cp-77f0", verdict_record(REQUEST, other, "released", 2.5, Content.FULL), "c0ffee")
    ledger.close()
    out = run("audit", "receipt", "cp-77f0")[1]
    assert "reload" not in out
    assert "(not kept, or erased)" in out


def test_a_receipt_of_a_chain_that_is_not_whole_says_so(run: Run, tmp_path: Path) -> None:
    released(tmp_path)
    path = tmp_path / "audit.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"stop"', b'"shop"'))
    code, out, _ = run("audit", "receipt", "cp-77f0")
    assert code == 0
    assert "which is not whole: line 3 is not as it was written" in out


def test_a_receipt_that_is_not_there(run: Run, tmp_path: Path) -> None:
    released(tmp_path)
    for name in ("cp-78", "", "f0"):
        code, out, err = run("audit", "receipt", name)
        assert (code, out) == (1, "")
        assert err == f"counterproof: audit.jsonl: no receipt, or more than one, begins with {name!r}\n"
    audit = AuditFile(tmp_path / "audit.jsonl", {})
    audit.submit(Kind.REFUSED, "(proxy)", {"exchange": "cp-7799"}).result(10)
    audit.close()
    assert run("audit", "receipt", "cp-77")[0] == 1
    assert run("audit", "receipt", "cp-77f0")[0] == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_a_refusal_whose_calls_nobody_knows_has_none_to_show(run: Run, tmp_path: Path, as_json: bool) -> None:  # noqa: FBT001
    audit = AuditFile(tmp_path / "audit.jsonl", {})
    Witness(audit).turned_away("cp-1", "unread", model="qwen", dialect="chat")
    audit.close()
    code, out, err = run("audit", "receipt", "cp-1", *(["--json"] if as_json else []))
    assert (code, err) == (0, "")
    for word in ("cp-1", "refused", "unread", "qwen"):
        assert word in out
