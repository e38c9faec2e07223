"""Calls that wait for a person: answered, out of time, left by their client, and made again."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from proxy import approvals
from proxy.approvals import Answer, DecidedError, State
from proxy.audit.reading import records
from shadow.exchange import Choice, Dialect
from shadow.tasks import Tasks
from shadow.wire import answers
from tests.proxy.approving import DIFFERS, HOLD, LONG, SEND, Stage, case, play
from tests.proxy.serving import proxy
from tests.standin import StandIn
from tests.standin.asking_it import HELLO, PARIS, TOOLS, chat
from validators import ToolCall

# -- while somebody waits


@pytest.mark.parametrize("approved", [True, False])
def test_an_answer_reaches_who_waits_and_is_given_once(approved: bool) -> None:  # noqa: FBT001
    async def scene(on: Stage) -> None:
        waiting = await on.asking()
        (pending,) = on.approvals.pending()
        assert len(on.approvals) == 1
        assert (pending.scope, pending.calls, pending.verdict) == ("me:1", SEND, HOLD)
        assert pending.id.startswith("ap-")
        assert await on.answer(pending.id, approved=approved)
        assert not await on.answer(pending.id, approved=not approved)
        assert await waiting == (pending.id, Answer.APPROVED if approved else Answer.DENIED)
        assert (on.approvals.pending(), on.approvals.late(), len(on.approvals)) == ([], [], 0)
        assert not await on.answer(pending.id, approved=approved)

    play(scene)


def test_nobody_answers_what_was_never_asked() -> None:
    async def scene(on: Stage) -> None:
        assert not await on.answer("ap-0", approved=True)
        assert not await on.answer("", approved=True)

    play(scene)


def test_each_waits_for_its_own_answer() -> None:
    async def scene(on: Stage) -> None:
        first, second = await on.asking(), await on.asking()  # the same calls: each would be executed
        one, two = on.approvals.pending()
        assert one.id != two.id
        assert await on.answer(two.id, approved=False)
        assert await second == (two.id, Answer.DENIED)
        assert not first.done()
        assert await on.answer(one.id, approved=True)
        assert await first == (one.id, Answer.APPROVED)

    play(scene)


def test_one_more_than_may_wait_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "MAX_PENDING", 2)

    async def scene(on: Stage) -> None:
        waiting = await on.asking()
        await on.asking()
        assert await on.approvals.ask(case(), SEND, HOLD, LONG) == ("", Answer.EXPIRED)
        assert on.approvals.late() == []
        assert await on.answer(on.approvals.pending()[0].id, approved=True)
        await waiting
        await on.asking()
        assert len(on.approvals) == 2

    play(scene)


# -- when nobody waits any more


@pytest.mark.parametrize("approved", [True, False])
def test_a_late_answer_is_for_the_same_call_when_it_comes_again_and_once(approved: bool) -> None:  # noqa: FBT001
    async def scene(on: Stage) -> None:
        identity = await on.expire()
        assert on.approvals.pending() == []
        assert [late.id for late in on.approvals.late()] == [identity]
        assert await on.answer(identity, approved=approved)
        assert not await on.answer(identity, approved=not approved)
        assert on.approvals.late() == []
        again = (ToolCall("send", '{ "n": 1.0, "city": "Oslo" }', "id-2"),)  # the same, as another text
        answer = Answer.APPROVED if approved else Answer.DENIED
        assert await on.approvals.ask(case(), again, HOLD, LONG) == (identity, answer)
        waiting = await on.asking()
        assert not waiting.done()
        assert on.approvals.pending()[0].id != identity

    play(scene)


OTHERS = {
    "other arguments": ((ToolCall("send", '{"city": "Rome", "n": 1}'),), HOLD, "me:1"),
    "another tool": ((ToolCall("post", '{"city": "Oslo", "n": 1}'),), HOLD, "me:1"),
    "one more call": ((*SEND, ToolCall("ping")), HOLD, "me:1"),
    "twice": (SEND * 2, HOLD, "me:1"),
    "another reason": (SEND, DIFFERS, "me:1"),
    "another conversation": (SEND, HOLD, "me:2"),
    "another client": (SEND, HOLD, "you:1"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_late_answer_is_for_nothing_else(name: str) -> None:
    calls, verdict, scope = OTHERS[name]

    async def scene(on: Stage) -> None:
        assert await on.answer(await on.expire(), approved=True)
        waiting = await on.asking(calls, verdict, scope)
        assert not waiting.done()
        assert len(on.approvals) == 1

    play(scene)


def test_parallel_calls_are_the_same_in_any_order() -> None:
    async def scene(on: Stage) -> None:
        ping = ToolCall("ping")
        identity = await on.expire((*SEND, ping))
        assert await on.answer(identity, approved=True)
        assert await on.approvals.ask(case(), (ping, *SEND), HOLD, LONG) == (identity, Answer.APPROVED)

    play(scene)


def test_what_comes_again_undecided_keeps_its_id() -> None:
    async def scene(on: Stage) -> None:
        identity = await on.expire()
        waiting = await on.asking()
        assert [pending.id for pending in on.approvals.pending()] == [identity]
        assert on.approvals.late() == []
        assert await on.answer(identity, approved=True)
        assert await waiting == (identity, Answer.APPROVED)

    play(scene)


def test_what_was_decided_goes_before_what_was_not() -> None:
    async def scene(on: Stage) -> None:
        waiting = [await on.asking(seconds=0.001), await on.asking(seconds=0.001)]
        (one, _), (two, _) = await asyncio.gather(*waiting)
        assert await on.answer(two, approved=True)
        assert await on.approvals.ask(case(), SEND, HOLD, LONG) == (two, Answer.APPROVED)
        assert on.approvals.late() == []  # nor passes the other one the same call once more
        assert (found := on.approvals.find(one)) is not None
        assert found.state is State.OVERTAKEN

    play(scene)


def test_what_its_client_left_can_still_be_decided() -> None:
    """Many clients end a request that takes long, and send it again."""

    async def scene(on: Stage) -> None:
        waiting = await on.asking()
        identity = on.approvals.pending()[0].id
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        assert on.approvals.pending() == []
        assert await on.answer(identity, approved=True)
        assert await on.approvals.ask(case(), SEND, HOLD, LONG) == (identity, Answer.APPROVED)

    play(scene)


def test_an_answer_that_its_client_did_not_wait_for_is_not_lost() -> None:
    async def scene(on: Stage) -> None:
        waiting = await on.asking()
        identity = on.approvals.pending()[0].id
        assert await on.answer(identity, approved=True)
        waiting.cancel()  # in the same turn of the loop
        await asyncio.gather(waiting, return_exceptions=True)
        assert on.approvals.late() == []
        assert await on.approvals.ask(case(), SEND, HOLD, LONG) == (identity, Answer.APPROVED)

    play(scene)


def test_an_answer_at_the_very_last_moment_counts() -> None:
    async def scene(on: Stage) -> None:
        waiting = await on.asking(seconds=0.02)
        identity = on.approvals.pending()[0].id
        answering = asyncio.get_running_loop().create_task(on.answer(identity, approved=True), name="answering")
        time.sleep(0.05)  # noqa: ASYNC251  (the answer and the deadline are both due then, in one turn of the loop)
        assert await waiting == (identity, Answer.APPROVED)
        assert await answering
        assert on.approvals.late() == []
        assert not (await on.asking()).done()  # it was given already

    play(scene)


# -- bounded


def test_what_is_late_is_forgotten_after_a_while() -> None:
    async def scene(on: Stage) -> None:
        first, second = await on.expire(), await on.expire(scope="me:2")
        on.clock.now += 3599
        assert await on.answer(second, approved=True)
        on.clock.now += 2
        assert on.approvals.late() == []
        assert not await on.answer(first, approved=True)
        assert await on.approvals.ask(case("me:2"), SEND, HOLD, LONG) == (second, Answer.APPROVED)

    play(scene)


def test_a_late_answer_is_forgotten_after_a_while() -> None:
    async def scene(on: Stage) -> None:
        assert await on.answer(await on.expire(), approved=True)
        on.clock.now += 3601
        waiting = await on.asking()
        assert not waiting.done()

    play(scene)


def test_so_much_is_late_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "_MOST_LATE", 3)

    async def scene(on: Stage) -> None:
        ids = [await on.expire(scope=f"me:{i}") for i in range(5)]
        assert [late.id for late in on.approvals.late()] == ids[2:]
        monkeypatch.setattr(approvals, "_MOST_LATE_CHARACTERS", 60)
        large = await on.expire((ToolCall("send", "x" * 50),), scope="me:9")
        assert [late.id for late in on.approvals.late()] == [large]
        await on.expire((ToolCall("send", "x" * 500),), scope="me:10")
        assert on.approvals.late() == []

    play(scene)


# -- through a whole proxy


def asked(**fields: Any) -> dict[str, Any]:
    return chat(tools=TOOLS, stream=True, **fields)


def read(body: bytes) -> Choice:
    answer = answers.read(Dialect.CHAT, body, stream=True)
    assert answer.problem is None
    return answer.choices[0]


ASKS = {"tools": [{"match": "send", "approve": True, "approval_timeout": "200ms"}]}


@pytest.mark.slow
def test_a_call_that_is_approved_late_goes_out_when_it_comes_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, mode="block", policy=ASKS) as door:
            _, body, _ = await door.chat(asked())
            refused = read(body)
            (late,) = door.service.approvals.late()
            assert refused.calls == ()
            assert f"needs a person's approval ({late.id})" in refused.content
            await door.service.approvals.decide(late.id, "anna", approved=True)
            turns = [*HELLO, {"role": "assistant", "content": refused.content}, {"role": "user", "content": "Again."}]
            _, body, _ = await door.chat(asked(messages=turns))
            assert len(read(body).calls) == 1
            _, body, _ = await door.chat(asked(messages=turns, seed=1))  # once more: another person's word is needed
            assert read(body).calls == ()
            assert await door.metric("counterproof_gate_total", action="held") == 2
            assert await door.metric("counterproof_gate_total", action="released") == 1

    asyncio.run(main())


@pytest.mark.slow
def test_a_call_that_was_denied_is_not_asked_about_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, mode="block", policy=ASKS) as door:
            await door.chat(asked())
            (late,) = door.service.approvals.late()
            await door.service.approvals.decide(late.id, "anna", approved=False)
            _, body, _ = await door.chat(asked())
            assert "A person has denied the call of send." in read(body).content
            _, body, _ = await door.chat(asked(seed=1))
            assert "this call was refused earlier in this conversation and came again unchanged" in read(body).content
            assert door.service.approvals.late() == []
            assert await door.metric("counterproof_gate_total", action="refused", verdict="repeat") == 1

    asyncio.run(main())


@pytest.mark.slow
def test_of_two_that_wait_for_the_same_call_one_approval_lets_one_out(tmp_path: Path) -> None:
    tool = {"match": "send", "approve": True, "approval_timeout": "2s", "repeat": {"window": "10m"}}

    async def main() -> None:
        tasks = Tasks("test")
        async with StandIn([PARIS]) as engine:
            async with proxy(tmp_path, engine, mode="block", policy={"tools": [tool]}) as door:
                approvals_ = door.service.approvals
                asking = [tasks.start(f"{i}", door.chat(asked(seed=i))) for i in range(2)]
                async with asyncio.timeout(10):
                    while len(approvals_) < 2:
                        await asyncio.sleep(0.01)
                first, second = approvals_.pending()
                await approvals_.decide(first.id, "anna", approved=True)
                bodies = [body for _, body, _ in await asyncio.gather(*asking)]
                assert sorted(len(read(body).calls) for body in bodies) == [0, 1]
                with pytest.raises(DecidedError, match="has gone out without it"):
                    await approvals_.decide(second.id, "anna", approved=True)
                _, body, _ = await door.chat(asked(seed=2))
                assert read(body).calls == ()
                assert b"the same call was made earlier in this conversation" in body
                assert await door.metric("counterproof_gate_total", action="released") == 1
        await tasks.close()

    asyncio.run(main())
    released = [r.data["id"] for r in records(tmp_path / "audit.jsonl") if r.data.get("event") == "released"]
    assert len(released) == 1
