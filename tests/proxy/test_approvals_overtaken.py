"""Approvals of calls that go out another way, of exactly these calls, and of conversations that are erased."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from proxy.approvals import Answer, Approval, DecidedError, State
from proxy.audit.reading import records, verify
from tests.proxy.approving import DIFFERS, HOLD, LONG, SEND, Stage, case, play
from validators import ToolCall
from validators.decision import Verdict

PING = ToolCall("ping", "{}")


def find(on: Stage, identity: str) -> Approval:
    approval = on.approvals.find(identity)
    assert approval is not None
    return approval


def state(on: Stage, identity: str) -> State:
    return find(on, identity).state


def events(path: Path) -> list[str]:
    assert verify(path).fault is None
    return [record.data["event"] for record in records(path) if record.kind == "approval"]


# -- what goes out another way


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize("verdict", [HOLD, DIFFERS])
def test_what_was_asked_about_a_call_that_went_out_passes_nothing_later(
    tmp_path: Path,
    decided: bool,  # noqa: FBT001
    verdict: Verdict,
) -> None:
    path = tmp_path / "audit.jsonl"

    async def scene(on: Stage) -> None:
        identity = await on.expire()
        if decided:
            assert await on.answer(identity, approved=True)
            assert on.approvals.approved("me:1", SEND)
        on.approvals.went_out("me:1", SEND, "cp-9")
        assert not on.approvals.approved("me:1", SEND)
        assert state(on, identity) is State.OVERTAKEN
        with pytest.raises(DecidedError, match="the same call has gone out without it, and it passes nothing any more"):
            await on.approvals.decide(identity, "bo", approved=True)
        waiting = await on.asking(verdict=verdict)
        assert not waiting.done()
        assert on.approvals.pending()[0].id != identity

    play(scene, path)
    found = [r.data for r in records(path) if r.data.get("event") == "overtaken"]
    assert [(one["id"][:3], one["exchange"]) for one in found] == [("ap-", "cp-9")]


@pytest.mark.parametrize(
    ("scope", "calls", "over"),
    [
        ("me:1", SEND, True),
        ("me:1", (PING, ToolCall("send", '{"n": 1.0, "city": "Oslo"}', "id-7")), True),  # among others, written so
        ("me:1", (PING,), False),
        ("me:1", (), False),
        ("me:2", SEND, False),
        ("you:1", SEND, False),
        ("me:1", (ToolCall("send", '{"city": "Oslo", "n": 2}'),), False),
    ],
)
def test_only_the_same_calls_of_the_same_scope_overtake_it(scope: str, calls: tuple[ToolCall, ...], over: bool) -> None:  # noqa: FBT001
    async def scene(on: Stage) -> None:
        identity = await on.expire()
        assert await on.answer(identity, approved=True)
        on.approvals.went_out(scope, calls)
        assert on.approvals.approved("me:1", SEND) is not over
        assert state(on, identity) is (State.OVERTAKEN if over else State.APPROVED)

    play(scene)


def test_one_of_several_approvers_who_said_yes_before_has_to_say_so_again() -> None:
    async def scene(on: Stage) -> None:
        await (await on.asking(approvers=2, seconds=0.001))
        (late,) = on.approvals.late()
        await on.approvals.decide(late.id, "anna", approved=True)
        on.approvals.went_out("me:1", SEND)
        with pytest.raises(DecidedError):
            await on.approvals.decide(late.id, "bo", approved=True)
        waiting = await on.asking(approvers=2)
        (pending,) = on.approvals.pending()
        assert (pending.id == late.id, pending.approvers, waiting.done()) == (False, [], False)

    play(scene)


def test_who_waits_gets_the_answer_that_is_for_it_and_leaves_nothing_behind() -> None:
    async def scene(on: Stage) -> None:
        waiting, in_vain = await on.asking(), await on.asking(seconds=0.1)
        first, second = on.approvals.pending()
        on.approvals.went_out("me:1", SEND)
        assert await on.answer(first.id, approved=True)
        assert await waiting == (first.id, Answer.APPROVED)
        assert state(on, first.id) is State.RELEASED
        assert await in_vain == (second.id, Answer.EXPIRED)
        assert state(on, second.id) is State.OVERTAKEN
        assert on.approvals.late() == on.approvals.decided() == []

    play(scene)


def test_a_no_stays_a_no() -> None:
    async def scene(on: Stage) -> None:
        identity = await on.expire()
        assert await on.answer(identity, approved=False)
        on.approvals.went_out("me:1", SEND)
        assert state(on, identity) is State.DENIED

    play(scene)


def test_what_another_thread_lets_out_counts_at_once() -> None:
    """The mirror judges in threads."""

    async def scene(on: Stage) -> None:
        identity = await on.expire()
        assert await on.answer(identity, approved=True)

        def thread() -> bool:
            on.approvals.went_out("me:1", SEND)
            return on.approvals.approved("me:1", SEND)

        assert not await asyncio.to_thread(thread)
        assert await on.approvals.ask(case(), SEND, HOLD, 0.001) != (identity, Answer.APPROVED)

    play(scene)


# -- on the way out


Record = Callable[[], Awaitable[None]]


async def stays(_on: Stage, _record: Record) -> None:
    """It does not go out."""


async def stays_after_all(_on: Stage, record: Record) -> None:
    await record()


async def leaves_its_client(_on: Stage, _record: Record) -> None:
    raise asyncio.CancelledError


async def is_erased(on: Stage, _record: Record) -> None:
    assert on.approvals.erase("1", "cy") == 1


async def is_overtaken(on: Stage, _record: Record) -> None:
    on.approvals.went_out("me:1", SEND)


@pytest.mark.parametrize("late", [False, True], ids=["waiting", "late"])
@pytest.mark.parametrize(
    ("how", "then"),
    [
        (stays, State.APPROVED),
        (stays_after_all, State.APPROVED),
        (leaves_its_client, State.APPROVED),
        (is_erased, State.LAPSED),
        (is_overtaken, State.OVERTAKEN),
    ],
)
def test_what_does_not_go_out_uses_nothing_up(
    tmp_path: Path,
    how: Callable[[Stage, Record], Awaitable[None]],
    then: State,
    late: bool,  # noqa: FBT001
) -> None:
    path = tmp_path / "audit.jsonl"

    async def scene(on: Stage) -> None:
        async def leaving(approval: Approval, record: Record) -> bool:
            assert (on.approvals.decided(), on.approvals.pending()) == ([approval], [])
            assert not on.approvals.approved("me:1", SEND)  # no second one leaves beside it
            await how(on, record)
            return False

        identity = await on.expire() if late else ""
        if late:
            assert await on.answer(identity, approved=True)
        work = on.approvals.ask(case(), SEND, HOLD, LONG, "cp-1", leaving)
        asking = asyncio.get_running_loop().create_task(work, name="asking")
        if not late:
            identity = await approved_by(on, "anna")
        await asyncio.gather(asking, return_exceptions=True)
        assert state(on, identity) is then
        assert on.approvals.approved("me:1", SEND) is (then is State.APPROVED)
        if then is State.APPROVED:
            assert await on.approvals.ask(case(), SEND, HOLD, LONG) == (identity, Answer.APPROVED)
            assert state(on, identity) is State.RELEASED

    play(scene, path)
    assert events(path).count("kept") == (how is stays_after_all)


async def approved_by(on: Stage, who: str) -> str:
    async with asyncio.timeout(10):
        while not on.approvals.pending():
            await asyncio.sleep(0.01)
    (pending,) = on.approvals.pending()
    await on.approvals.decide(pending.id, who, approved=True)
    return pending.id


# -- exactly these calls

EXACT = [
    ('{"x": 1, "x": 2}', '{"x": 3, "x": 2}'),
    ('{"x": 2}', '{"x": 1, "x": 2}'),
    ('{"a": {"x": 1, "x": 2}}', '{"a": {"x": 2}}'),
    ('{"x": 1}', '{"x": true}'),
    ("no JSON", "no JSON "),
]


@pytest.mark.parametrize(("approved", "comes"), [*EXACT, *((b, a) for a, b in EXACT)])
def test_an_approval_is_of_exactly_these_arguments(approved: str, comes: str) -> None:
    async def scene(on: Stage) -> None:
        identity = await on.expire((ToolCall("send", approved),))
        assert await on.answer(identity, approved=True)
        assert on.approvals.approved("me:1", (ToolCall("send", approved),))
        assert not on.approvals.approved("me:1", (ToolCall("send", comes),))
        assert not (await on.asking((ToolCall("send", comes),))).done()

    play(scene)


@pytest.mark.parametrize("name", ["DeleteAll", "delete-all", "delete_all ", "deleteall"])
def test_an_approval_is_of_exactly_this_name(name: str) -> None:
    async def scene(on: Stage) -> None:
        assert await on.answer(await on.expire((ToolCall("delete_all", "{}"),)), approved=True)
        assert on.approvals.approved("me:1", (ToolCall("delete_all", "{ }"),))
        assert not on.approvals.approved("me:1", (ToolCall(name, "{}"),))
        assert not (await on.asking((ToolCall(name, "{}"),))).done()

    play(scene)


# -- what is erased


def test_of_an_erased_conversation_nothing_that_was_said_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def scene(on: Stage) -> None:
        late, approved, denied = [await on.expire((ToolCall("send", f'{{"n": {i}}}'),)) for i in range(3)]
        assert await on.answer(approved, approved=True)
        assert await on.answer(denied, approved=False)
        other = await on.expire(scope="me:2")
        waiting = await on.asking()
        (pending,) = on.approvals.pending()
        assert on.approvals.erase("1", "cy") == 4
        assert pending.calls == ()
        assert await waiting == (pending.id, Answer.EXPIRED)
        for identity, now in (
            (late, State.LAPSED),
            (approved, State.LAPSED),
            (denied, State.DENIED),
            (pending.id, State.LAPSED),
        ):
            assert (find(on, identity).calls, state(on, identity)) == ((), now)
        assert [vote.who for vote in find(on, approved).votes] == ["anna"]
        assert not on.approvals.approved("me:1", (ToolCall("send", '{"n": 1}'),))
        assert [one.id for one in on.approvals.late()] == [other]
        assert on.approvals.erase("1", "cy") == 0

    play(scene, path)
    erased = [record.who for record in records(path) if record.data.get("event") == "erased"]
    assert erased == ["cy"] * 4


def test_nobody_approves_what_cannot_be_seen_any_more() -> None:
    async def scene(on: Stage) -> None:
        waiting = await on.asking()
        (pending,) = on.approvals.pending()
        on.approvals.erase("1", "cy")
        await on.answer(pending.id, approved=True)  # in the same turn of the loop
        assert await waiting == (pending.id, Answer.EXPIRED)
        assert state(on, pending.id) is State.LAPSED
        assert not on.approvals.approved("me:1", SEND)

    play(scene)
