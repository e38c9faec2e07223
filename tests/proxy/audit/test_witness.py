"""What the audit is told of calls: receipts that say what countersigned them and nothing of what they say."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.audit import AuditError, AuditFile, Record, Witness, engine, turned
from proxy.audit.reading import records, verify
from proxy.ledger.records import NOT_OFFERED
from proxy.switch import Switch
from shadow.capabilities import Capabilities
from shadow.exchange import Dialect, Request
from shadow.judge import Case, Judged, Rulebook
from validators import Finding, ToolCall, Word
from validators.decision import Verdict
from validators.policy import Action, Policy, ToolPolicy

SEND, RUN = ToolCall("send", '{"city": "Oslo"}', "id-1"), ToolCall("run", '{"command": "conf t"}')
MADE_UP = ToolCall("SECRET-NAME", '{"city": "Oslo"}')
POLICY: Policy[Any] = Policy(1, ToolPolicy("*"), (ToolPolicy("run", risk="high"), ToolPolicy("secret*", risk="high")))
MATCH = Verdict(Word.MATCH, Action.RELEASE, (("ref", Finding(Word.MATCH, "run", 0)),), agreed=("ref",), why="match")
DIFFERS = Verdict(
    Word.MISMATCH,
    Action.REFUSE,
    (("ref", Finding(Word.MISMATCH, "run", 0, "arguments", detail="SECRET-DETAIL", where="/SECRET-KEY")),),
    why="arguments",
)
ENGINES = [
    engine("primary", "primary", Capabilities("qwen", version="0.32.0", max_model_len=4096, tokenizer="abcd")),
    engine("ref", "reference", None),
]


def case(policy: Policy[Any] = POLICY) -> Case:
    tools = [{"type": "function", "function": {"name": name}} for name in ("send", "run")]
    return Case(Rulebook(policy, "v7"), Request(Dialect.CHAT, {"model": "qwen", "tools": tools}), b"", "0123:c0ffee")


def seen(
    folder: Path,
    calls: Sequence[ToolCall],
    verdict: Verdict,
    done: str,
    *,
    all_releases: bool = False,
    approval: dict[str, Any] | None = None,
    full: bool = False,
) -> list[Record]:
    """What the audit has once a witness has seen this."""
    audit = AuditFile(folder / "audit.jsonl", {})

    async def main() -> None:
        if full:
            os.truncate(audit.path, 1)
        await Witness(audit, all_releases=all_releases).see(
            "cp-1",
            case(),
            Judged(0, tuple(calls), verdict),
            done,
            ways={"ref": "continue"},
            engines=ENGINES,
            approval=approval,
        )

    try:
        asyncio.run(main())
    finally:
        audit.close()
    if full:
        return []
    assert verify(audit.path).fault is None
    return [record for record in records(audit.path) if record.kind not in {"start", "stop"}]


def test_a_call_of_high_risk_goes_out_with_a_receipt(tmp_path: Path) -> None:
    (record,) = seen(
        tmp_path, [RUN, SEND], MATCH, "released", approval={"id": "ap-1", "approvers": ["anna"], "needed": 1}
    )
    assert (record.kind, record.who) == ("released", "(proxy)")
    data = record.data
    hashes = [call.pop("hash") for call in data["calls"]]
    assert len({*hashes}) == 2
    assert data == {
        "exchange": "cp-1",
        "conversation": "c0ffee",
        "model": "qwen",
        "choice": 0,
        "calls": [{"tool": "run", "risk": "high"}, {"tool": "send", "risk": "normal"}],
        "done": "released",
        "word": "match",
        "action": "release",
        "why": "match",
        "agreed": [{"name": "ref", "way": "continue"}],
        "findings": [{"shadow": "ref", "word": "match", "reason": "", "rule": ""}],
        "engines": [
            {
                "name": "primary",
                "role": "primary",
                "model": "qwen",
                "version": "0.32.0",
                "max_model_len": 4096,
                "tokenizer": "abcd",
            },
            {
                "name": "ref",
                "role": "reference",
                "model": None,
                "version": None,
                "max_model_len": None,
                "tokenizer": None,
            },
        ],
        "policy": "v7",
        "approval": {"id": "ap-1", "approvers": ["anna"], "needed": 1},
    }


def test_a_call_of_no_high_risk_goes_out_without_one_unless_all_have_one(tmp_path: Path) -> None:
    assert seen(tmp_path, [SEND], MATCH, "released") == []
    (record,) = seen(tmp_path, [SEND], MATCH, "released", all_releases=True)
    assert record.data["calls"][0]["risk"] == "normal"


@pytest.mark.parametrize(
    ("done", "kind"), [("refused", "refused"), ("held", "refused"), ("substituted", "substituted")]
)
def test_what_does_not_go_out_is_recorded_whatever_the_risk(tmp_path: Path, done: str, kind: str) -> None:
    verdict = Verdict(Word.MISMATCH, Action.SUBSTITUTE, substitute=(SEND,)) if done == "substituted" else DIFFERS
    (record,) = seen(tmp_path, [SEND], verdict, done)
    assert (record.kind, record.data["done"], record.data["word"]) == (kind, done, "mismatch")
    assert ("instead" in record.data) == (done == "substituted")


def test_nothing_of_what_a_call_says_is_in_it(tmp_path: Path) -> None:
    for verdict, done in ((MATCH, "released"), (DIFFERS, "refused")):
        seen(tmp_path, [RUN, MADE_UP], verdict, done, all_releases=True)
    text = (tmp_path / "audit.jsonl").read_text()
    assert NOT_OFFERED in text
    for secret in ("conf t", "Oslo", "SECRET", "id-1", "0123"):
        assert secret not in text


def test_the_same_call_has_the_same_hash_in_every_receipt(tmp_path: Path) -> None:
    (first,) = seen(tmp_path, [RUN], MATCH, "released")
    again = ToolCall("run", '{ "command" : "conf t" }', "id-9")
    hashes = [record.data["calls"][0]["hash"] for record in seen(tmp_path, [again], MATCH, "released")]
    assert hashes == [first.data["calls"][0]["hash"]] * 2


@pytest.mark.parametrize(
    ("calls", "verdict", "done", "closed"),
    [
        ([RUN], MATCH, "released", True),
        ([SEND, RUN], MATCH, "released", True),
        ([SEND], MATCH, "released", False),
        ([RUN], DIFFERS, "refused", False),
        ([SEND], Verdict(Word.MISMATCH, Action.SUBSTITUTE, substitute=(RUN,)), "substituted", True),
        ([RUN], Verdict(Word.MISMATCH, Action.SUBSTITUTE, substitute=(SEND,)), "substituted", False),
    ],
)
def test_only_what_goes_out_at_high_risk_waits_for_its_record(
    tmp_path: Path,
    calls: list[ToolCall],
    verdict: Verdict,
    done: str,
    closed: bool,  # noqa: FBT001
) -> None:
    if closed:
        with pytest.raises(AuditError):
            seen(tmp_path, calls, verdict, done, all_releases=True, full=True)
    else:
        seen(tmp_path, calls, verdict, done, all_releases=True, full=True)


def test_what_is_turned_away_is_recorded_and_counted_and_says_nothing_of_what_was_said(tmp_path: Path) -> None:
    audit, counted = AuditFile(tmp_path / "audit.jsonl", {}), list[str]()
    witness = Witness(audit, count=counted.append)
    witness.turned_away("cp-1", "built_in", model="m" * 1000, dialect="responses", client="team-a")
    witness.turned_away("cp-2", "unverifiable_path")
    audit.close()
    first, second = [record for record in records(audit.path) if record.kind == "refused"]
    model = first.data.pop("model")
    assert len(model) <= 80
    assert first.data == {
        "exchange": "cp-1",
        "done": "refused",
        "why": "built_in",
        "dialect": "responses",
        "client": "team-a",
    }
    assert second.data == {"exchange": "cp-2", "done": "refused", "why": "unverifiable_path"}
    assert counted == ["built_in", "unverifiable_path"]


def test_no_refusal_fails_for_its_record(tmp_path: Path) -> None:
    def broken(_why: str) -> None:
        raise ValueError("SECRET")

    audit = AuditFile(tmp_path / "audit.jsonl", {})
    audit.path.unlink()
    with capture_logs() as logs:
        Witness(audit).turned_away("cp-1", "unread")
        Witness(audit, count=broken).turned_away("cp-2", "unread")
        audit.close()
    assert [e["exchange"] for e in logs if e["event"] == "a refusal was not recorded"] == ["cp-2"]
    assert "SECRET" not in repr(logs)


def test_a_thousand_parallel_calls_make_one_record(tmp_path: Path) -> None:
    calls = [ToolCall("run", f'{{"i": {i}}}') for i in range(1000)]
    (record,) = seen(tmp_path, calls, MATCH, "released")
    assert (len(record.data["calls"]), record.data["of"]) == (256, 1000)


def test_turns_of_the_switch_are_told_with_their_times() -> None:
    told: list[dict[str, Any]] = []
    switch = Switch(
        "observe", lambda change: told.append(turned(change)), clock=lambda: 0.0, wall=lambda: 1_800_000_000.0
    )
    switch.set("block", who="anna", model="qwen", tool=None, seconds=60.0, reason="a try")
    switch.set("off", who="bo", model="qwen", tool=None, seconds=None, reason=None)
    first, second = told
    assert first == {
        "event": "set",
        "mode": "observe",
        "set": {"mode": "block", "model": "qwen", "tool": None},
        "before": None,
        "until": "2027-01-15T08:01:00.000Z",
        "reason": "a try",
    }
    assert (second["before"], second["until"]) == ({"mode": "block", "who": "anna"}, None)
