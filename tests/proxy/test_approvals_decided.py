"""People's answers: how many are needed, what does not count, and what the audit has of each step."""

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from proxy import approvals
from proxy.approvals import Answer, Approval, DecidedError, State, UnknownError
from proxy.audit import AuditError, Record
from proxy.audit.reading import records, verify
from tests.proxy.approving import HOLD, LONG, SEND, Stage, case, full, play
from validators import ToolCall


def steps(path: Path) -> list[tuple[str, str]]:
    """Who did what, as the audit has it."""
    assert verify(path).fault is None
    return [(record.who, record.data["event"]) for record in told(path)]


def told(path: Path) -> list[Record]:
    return [record for record in records(path) if record.kind == "approval"]


async def refused(stage: Stage, identity: str, who: str, *, approved: bool) -> str:
    with pytest.raises(DecidedError) as caught:
        await stage.approvals.decide(identity, who, approved=approved)
    assert caught.value.approval.id == identity
    return str(caught.value)


def found(stage: Stage, identity: str) -> Approval:
    approval = stage.approvals.find(identity)
    assert approval is not None
    return approval


# -- one person


@pytest.mark.parametrize("approved", [True, False])
def test_an_answer_is_recorded_and_counts(tmp_path: Path, approved: bool) -> None:  # noqa: FBT001
    path = tmp_path / "audit.jsonl"

    async def scene(on: Stage) -> None:
        waiting = await on.asking()
        (pending,) = on.approvals.pending()
        on.wall.now += 5
        decided = await on.approvals.decide(pending.id, "anna", approved=approved, reason="as agreed")
        assert decided is pending
        assert await waiting == (pending.id, Answer.APPROVED if approved else Answer.DENIED)
        ended = found(on, pending.id)
        assert ended.state is (State.RELEASED if approved else State.DENIED)
        assert ended.calls == ()  # content is not kept longer than it is needed
        assert [(v.who, v.approved, v.reason, v.at) for v in ended.votes] == [
            ("anna", approved, "as agreed", 1_800_000_005.0)
        ]
        assert ended.receipt() == {"id": pending.id, "approvers": ["anna"] if approved else [], "needed": 1}

    play(scene, path)
    answered = ("anna", "approved" if approved else "denied")
    assert steps(path) == [("(proxy)", "asked"), answered, *([("(proxy)", "released")] if approved else [])]
    asked, given = told(path)[:2]
    assert asked.data["exchange"] == "cp-1"
    assert asked.data["conversation"] == "1"
    assert (asked.data["word"], asked.data["why"], asked.data["policy"]) == ("match", "wants_person", "v1")
    assert [(call["tool"], call["risk"]) for call in asked.data["calls"]] == [("send", "high")]
    assert (given.data["reason"], given.data["needed"], given.data["so_far"]) == ("as agreed", 1, int(approved))
    assert "Oslo" not in path.read_text()


def test_times_are_those_that_people_see() -> None:
    async def scene(on: Stage) -> None:
        await on.asking(seconds=90)
        (pending,) = on.approvals.pending()
        assert (pending.asked_at, pending.expires_at) == (1_800_000_000.0, 1_800_000_090.0)
        assert (pending.model, pending.exchange, pending.conversation) == ("qwen", "cp-1", "1")

    play(scene)


def test_a_wall_clock_that_is_set_back_changes_nothing_but_what_is_shown() -> None:
    async def scene(on: Stage) -> None:
        identity = await on.expire()
        on.wall.now = 0.0
        on.clock.now += 3599
        await on.approvals.decide(identity, "anna", approved=True)
        on.clock.now += 3599
        assert await on.approvals.ask(case(), SEND, HOLD, LONG) == (identity, Answer.APPROVED)
        assert found(on, identity).votes[0].at == 0.0

    play(scene)


# -- two people

TABLE: dict[str, tuple[list[tuple[str, bool]], State, list[str]]] = {
    "two approve": ([("anna", True), ("bo", True)], State.APPROVED, ["anna", "bo"]),
    "one approves": ([("anna", True)], State.WAITING, ["anna"]),
    "the same one twice": ([("anna", True), ("anna", True)], State.WAITING, ["anna"]),
    "the same one twice, and another": ([("anna", True), ("anna", True), ("bo", True)], State.APPROVED, ["anna", "bo"]),
    "one denies": ([("anna", False)], State.DENIED, []),
    "one approves, the other denies": ([("anna", True), ("bo", False)], State.DENIED, ["anna"]),
    "one approves and thinks again": ([("anna", True), ("anna", False)], State.DENIED, ["anna"]),
    "one denies, and two approve": ([("anna", False), ("bo", True), ("cy", True)], State.DENIED, []),
    "a third": ([("anna", True), ("bo", True), ("cy", True)], State.APPROVED, ["anna", "bo"]),
    "too late a denial": ([("anna", True), ("bo", True), ("cy", False)], State.APPROVED, ["anna", "bo"]),
}


@pytest.mark.parametrize("late", [False, True], ids=["waiting", "late"])
@pytest.mark.parametrize("name", TABLE)
def test_two_different_people_must_approve(name: str, late: bool) -> None:  # noqa: FBT001
    answers, state, approvers = TABLE[name]

    async def scene(on: Stage) -> None:
        waiting = await on.asking(approvers=2, seconds=0.001 if late else LONG)
        if late:
            await waiting
        (open_,) = on.approvals.late() if late else on.approvals.pending()
        for who, approved in answers:
            with contextlib.suppress(DecidedError):
                await on.approvals.decide(open_.id, who, approved=approved)
        expected = State.LATE if late and state is State.WAITING else state
        assert (open_.state, open_.approvers) == (expected, approvers)
        again = waiting
        if late:
            again = await on.asking(approvers=2)
        if state is State.WAITING:
            assert not again.done()
        else:
            assert await again == (open_.id, Answer(state.value))

    play(scene)


def test_what_was_approved_by_one_stays_so_when_the_call_comes_again() -> None:
    async def scene(on: Stage) -> None:
        await (await on.asking(approvers=2, seconds=0.001))
        (late,) = on.approvals.late()
        await on.approvals.decide(late.id, "anna", approved=True)
        waiting = await on.asking(approvers=2)
        (pending,) = on.approvals.pending()
        assert (pending.id, pending.approvers) == (late.id, ["anna"])
        await on.approvals.decide(late.id, "bo", approved=True)
        assert await waiting == (late.id, Answer.APPROVED)

    play(scene)


def test_as_many_must_approve_as_the_strictest_of_parallel_calls_asks_for() -> None:
    async def scene(on: Stage) -> None:
        await on.asking((ToolCall("ping"), *SEND), approvers=3)
        await on.asking((ToolCall("ping"),), approvers=3)
        assert [pending.needed for pending in on.approvals.pending()] == [3, 1]

    play(scene)


# -- what does not count


@pytest.mark.parametrize(("first", "second"), list(itertools.product([True, False], repeat=2)))
def test_the_second_of_two_at_once_is_told_and_recorded(tmp_path: Path, first: bool, second: bool) -> None:  # noqa: FBT001
    path = tmp_path / "audit.jsonl"

    async def scene(on: Stage) -> None:
        waiting = await on.asking()
        (pending,) = on.approvals.pending()
        one, two = await asyncio.gather(
            on.approvals.decide(pending.id, "anna", approved=first),
            on.approvals.decide(pending.id, "bo", approved=second),
            return_exceptions=True,
        )
        assert one is pending
        assert isinstance(two, DecidedError)
        assert str(two) in {f"it is {'approved' if first else 'denied'} already", "it is released already"}
        assert await waiting == (pending.id, Answer.APPROVED if first else Answer.DENIED)

    play(scene, path)
    words = {True: "approved", False: "denied"}
    assert [step for step in steps(path) if step[0] != "(proxy)"] == [("anna", words[first]), ("bo", "not_counted")]
    (not_counted,) = [record.data for record in told(path) if record.who == "bo"]
    assert not_counted["answer"] == words[second]


def test_what_it_is_now_is_told() -> None:
    async def scene(on: Stage) -> None:
        with pytest.raises(UnknownError, match="there is no approval ap-0, or it was long ago"):
            await on.approvals.decide("ap-0", "anna", approved=True)
        identity = await on.expire()
        await on.approvals.decide(identity, "anna", approved=True)
        assert await refused(on, identity, "bo", approved=False) == "it is approved already"
        assert await on.approvals.ask(case(), SEND, HOLD, LONG) == (identity, Answer.APPROVED)
        assert await refused(on, identity, "bo", approved=True) == "it is released already"
        other = await on.expire(scope="me:2")
        await on.approvals.decide(other, "anna", approved=False)
        assert await on.approvals.ask(case("me:2"), SEND, HOLD, LONG) == (other, Answer.DENIED)
        assert await refused(on, other, "bo", approved=True) == "it is denied already"
        waiting = await on.asking(approvers=2, scope="me:3")
        (pending,) = on.approvals.pending()
        await on.approvals.decide(pending.id, "anna", approved=True)
        said = await refused(on, pending.id, "anna", approved=True)
        assert said == "anna has approved it already, and another person must"
        assert not waiting.done()

    play(scene)


def test_after_its_hour_nothing_can_be_answered(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def scene(on: Stage) -> None:
        first, second = await on.expire(), await on.expire(scope="me:2")
        await on.approvals.decide(second, "anna", approved=True)
        on.clock.now += 3601
        for identity in (first, second):
            assert await refused(on, identity, "bo", approved=True) == "it has expired, and cannot be answered any more"
            assert found(on, identity).state is State.LAPSED
        waiting = await on.asking(scope="me:2")
        assert not waiting.done()

    play(scene, path)
    assert steps(path)[:8] == [
        *[("(proxy)", "asked"), ("(proxy)", "expired")] * 2,
        ("anna", "approved"),
        *[("(proxy)", "lapsed")] * 2,
        ("bo", "not_counted"),
    ]


def test_what_is_over_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "_MOST_ENDED", 2)

    async def scene(on: Stage) -> None:
        ids = []
        for i in range(4):
            waiting = await on.asking(scope=f"me:{i}")
            (pending,) = on.approvals.pending()
            ids.append(pending.id)
            await on.approvals.decide(pending.id, "anna", approved=True)
            await waiting
        assert [on.approvals.find(identity) is not None for identity in ids] == [False, False, True, True]
        with pytest.raises(UnknownError):
            await on.approvals.decide(ids[0], "anna", approved=True)

    play(scene)


# -- an approved call that comes again


def test_what_is_approved_and_has_not_gone_out_is_known_until_it_has() -> None:
    async def scene(on: Stage) -> None:
        again = (ToolCall("send", '{"n": 1.0, "city": "Oslo"}', "id-9"),)
        identity = await on.expire()
        assert not on.approvals.approved("me:1", SEND)
        await on.approvals.decide(identity, "anna", approved=True)
        assert on.approvals.approved("me:1", again)
        assert not on.approvals.approved("me:2", again)
        assert not on.approvals.approved("me:1", SEND * 2)
        await on.approvals.ask(case(), again, HOLD, LONG)
        assert not on.approvals.approved("me:1", SEND)
        denied = await on.expire()
        await on.approvals.decide(denied, "anna", approved=False)
        assert not on.approvals.approved("me:1", SEND)

    play(scene)


def test_it_passes_once_however_many_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def scene(on: Stage) -> None:
        identity = await on.expire()
        await on.approvals.decide(identity, "anna", approved=True)
        asking = [await on.asking() for _ in range(5)]
        async with asyncio.timeout(10):
            while not any(task.done() for task in asking):
                await asyncio.sleep(0.01)
        assert [task.result() for task in asking if task.done()] == [(identity, Answer.APPROVED)]
        assert len(on.approvals) == 4

    play(scene, path)
    assert steps(path).count(("(proxy)", "released")) == 1


# -- an audit that cannot be written


def test_nobody_is_asked_unrecorded(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def scene(on: Stage) -> None:
        with full(path), pytest.raises(AuditError):
            await on.approvals.ask(case(), SEND, HOLD, LONG)
        assert on.approvals.pending() == on.approvals.late() == []
        waiting = await on.asking()
        assert len(on.approvals) == 1
        assert not waiting.done()

    play(scene, path)


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("late", [False, True], ids=["waiting", "late"])
def test_an_answer_that_cannot_be_recorded_does_not_count(tmp_path: Path, late: bool, approved: bool) -> None:  # noqa: FBT001
    path = tmp_path / "audit.jsonl"

    async def scene(on: Stage) -> None:
        waiting = await on.asking(seconds=0.001 if late else LONG)
        if late:
            await waiting
        else:
            await _recorded(path, 2)
        (open_,) = on.approvals.late() if late else on.approvals.pending()
        with full(path), pytest.raises(AuditError):
            await on.approvals.decide(open_.id, "anna", approved=approved)
        assert open_.votes == []
        assert open_.state is (State.LATE if late else State.WAITING)
        assert waiting.done() == late
        await on.approvals.decide(open_.id, "bo", approved=approved)  # there is room again
        assert [vote.who for vote in open_.votes] == ["bo"]

    play(scene, path)


async def _recorded(path: Path, lines: int) -> None:
    async with asyncio.timeout(10):
        while len(list(records(path))) < lines:
            await asyncio.sleep(0.01)


def test_what_is_approved_does_not_go_out_unrecorded_and_can_come_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def scene(on: Stage) -> None:
        waiting = await on.asking()
        await _recorded(path, 2)
        (pending,) = on.approvals.pending()
        await on.approvals.decide(pending.id, "anna", approved=True)
        assert not waiting.done()  # it has yet to have its turn, and no record can be written then
        with full(path):
            with pytest.raises(AuditError):
                await waiting
            assert found(on, pending.id).state is State.APPROVED
            with pytest.raises(AuditError):
                await on.approvals.ask(case(), SEND, HOLD, LONG)
            assert on.approvals.approved("me:1", SEND)
        assert await on.approvals.ask(case(), SEND, HOLD, LONG) == (pending.id, Answer.APPROVED)
        assert not on.approvals.approved("me:1", SEND)

    play(scene, path)
    released: list[dict[str, Any]] = [r.data for r in told(path) if r.data["event"] == "released"]
    assert len(released) == 1
