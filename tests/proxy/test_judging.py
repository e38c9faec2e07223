"""What is recorded of calls is what becomes of them: of choices that fall together, and where no record can be made."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.approvals import DecidedError, State
from proxy.audit import Record
from proxy.audit.reading import records, verify
from shadow.choice import ChoiceReport
from shadow.exchange import Choice
from shadow.judge import Case
from tests.proxy.serving import Proxy, proxy
from tests.proxy.test_block import asked, gated, read
from tests.standin import Call, Faults, Script, StandIn
from tests.standin.asking_it import LEAD, PARIS, TOOLS
from validators import Finding, Word

pytestmark = pytest.mark.slow

SECOND = frozenset({1})  # these are the second choices of their answers
ROME = Script(text=LEAD, calls=(Call("send", '{"city": "Rome", "n": 1}'),), sampled=SECOND)
PARIS_SECOND = Script(text=LEAD, calls=PARIS.calls, sampled=SECOND)
PING = Script(text=LEAD, calls=(Call("ping", "{}"),))
BOTH = [*TOOLS, {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}]
ONLY_PARIS = [{"id": "paris", "cel": 'args.city == "Paris"'}]
WINDOW = {"window": "10m"}


@asynccontextmanager
async def blocking(folder: Path, scripts: list[Script], *tools: dict[str, Any], **terms: Any) -> AsyncIterator[Proxy]:
    """A proxy in block mode without references, in front of a stand-in whose choices have these scripts."""
    async with StandIn(scripts) as engine:
        async with proxy(folder, engine, mode="block", policy={"agree": 0, "tools": list(tools)} | terms) as door:
            yield door


def audited(folder: Path, *kinds: str) -> list[Record]:
    path = folder / "audit.jsonl"
    assert verify(path).fault is None
    return [record for record in records(path) if record.kind in (kinds or ("released", "refused", "substituted"))]


def done(folder: Path) -> list[tuple[str, int, str]]:
    """What the audit has of choices: in what kind of record, of which, and why."""
    return [(record.kind, record.data["choice"], record.data["why"]) for record in audited(folder)]


STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


# -- choices that fall together


@STREAMS
def test_what_fell_with_another_choice_did_not_go_out(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    tool = {"match": "send", "risk": "high", "repeat": WINDOW, "rules": ONLY_PARIS}

    async def main() -> None:
        async with blocking(tmp_path, [PARIS, ROME], tool) as door:
            status, body, _ = await door.chat(asked(stream=stream, n=2, temperature=1, tool_choice="required"))
            assert status == 422
            assert b"rule 'paris'" in body
            assert await gated(door) == {("refused", "unverified"): 1, ("refused", "violation"): 1}
            _, body, _ = await door.chat(asked(stream=stream, seed=1))
            assert len(read(body, stream=stream).calls) == 1  # it is no repeat: nobody has made it yet

    asyncio.run(main())
    assert sorted(done(tmp_path)) == [
        ("refused", 0, "beside_refused"),
        ("refused", 1, "rule"),
        ("released", 0, "not_asked"),
    ]


@STREAMS
def test_what_fell_with_another_choice_uses_up_no_approval(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    tool = {"match": "send", "approve": True, "approval_timeout": "100ms", "rules": ONLY_PARIS}

    async def main() -> None:
        async with blocking(tmp_path, [PARIS, ROME], tool) as door:
            approvals = door.service.approvals
            await door.chat(asked(stream=stream))
            (late,) = approvals.late()
            await approvals.decide(late.id, "anna", approved=True)
            status, _, _ = await door.chat(asked(stream=stream, n=2, temperature=1, tool_choice="required", seed=1))
            assert status == 422
            assert [one.state for one in approvals.decided()] == [State.APPROVED]
            _, body, _ = await door.chat(asked(stream=stream, seed=2))
            assert len(read(body, stream=stream).calls) == 1
            _, body, _ = await door.chat(asked(stream=stream, seed=3))
            assert not read(body, stream=stream).calls

    asyncio.run(main())
    events = [record.data["event"] for record in audited(tmp_path, "approval")]
    assert events.count("released") == 1


@STREAMS
def test_what_could_be_recorded_falls_with_what_could_not(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    send, ping = {"match": "send", "risk": "high"}, {"match": "ping", "repeat": WINDOW}

    async def main() -> None:
        async with blocking(tmp_path, [PING, PARIS_SECOND], send, ping) as door:
            (tmp_path / "audit.jsonl").unlink()
            asking = asked(stream=stream, n=2, temperature=1, tool_choice="required", tools=BOTH)
            status, body, _ = await door.chat(asking)
            assert status == 422
            assert b"must be recorded before it goes out" in body
            assert await gated(door) == {("refused", "unverified"): 1, ("held", "unverified"): 1}
            _, body, _ = await door.chat(asked(stream=stream, tools=BOTH, seed=1))
            assert len(read(body, stream=stream).calls) == 1  # of no high risk, and made for the first time

    asyncio.run(main())


def test_once_an_answer_has_begun_each_choice_stands_by_itself(tmp_path: Path) -> None:
    ping, send = {"match": "ping", "risk": "high"}, {"match": "send", "approve": True, "approval_timeout": "30s"}

    async def main() -> None:
        async with blocking(tmp_path, [PING, PARIS_SECOND], ping, send, status_wait="50ms") as door:
            body = asked(stream=True, n=2, temperature=1, tool_choice="required", tools=BOTH)
            got = b""
            async with asyncio.timeout(20), door.session.post(f"{door.root}/v1/chat/completions", json=body) as answer:
                async for piece in answer.content.iter_any():
                    got += piece
                    for pending in door.service.approvals.pending() if b'"ping"' in got else ():
                        await door.service.approvals.decide(pending.id, "anna", approved=False)
            assert b"Paris" not in got
            assert b"tool_call_refused" in got
            assert b"A person has denied the call of send" in got

    asyncio.run(main())
    assert [(kind, choice) for kind, choice, _why in done(tmp_path)] == [("released", 0), ("refused", 1)]


def test_what_ends_after_its_answer_was_refused_did_not_go_out(tmp_path: Path) -> None:
    long = Script(calls=(Call("send", '{"city": "Paris", "why": "' + "a word, " * 40 + '"}'),), sampled=SECOND)
    short = Script(calls=(Call("send", '{"city": "Rome"}'),))
    tool = {"match": "send", "risk": "high", "repeat": WINDOW, "rules": ONLY_PARIS}

    async def main() -> None:
        async with StandIn([short, long], per_token_s=0.01) as engine:
            policy = {"agree": 0, "tools": [tool], "status_wait": "1ms"}
            async with proxy(tmp_path, engine, mode="block", policy=policy) as door:
                asking = asked(stream=True, n=2, temperature=1, tool_choice="required")
                status, body, _ = await door.chat(asking)
                assert status == 200
                assert body.count(b'"error"') == 1
                assert b"Paris" not in body
                assert body.endswith(b"data: [DONE]\n\n")
                assert body.count(b"[DONE]") == 1
                assert await gated(door) == {("refused", "violation"): 1, ("refused", "unverified"): 1}

    asyncio.run(main())
    assert done(tmp_path) == [("refused", 0, "rule"), ("refused", 1, "beside_refused")]


def test_of_a_whole_answer_that_nobody_waits_for_nothing_went_out(tmp_path: Path) -> None:
    ping = {"match": "ping", "risk": "high", "repeat": WINDOW}

    async def main() -> None:
        async with blocking(tmp_path, [PING, PARIS_SECOND], ping, {"match": "send", "approve": True}) as door:
            body = asked(stream=False, n=2, temperature=1, tools=BOTH)
            asking = asyncio.get_running_loop().create_task(door.chat(body))
            async with asyncio.timeout(10):
                while not door.service.approvals.pending():
                    await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            async with asyncio.timeout(10):
                while door.service.data.in_flight:
                    await asyncio.sleep(0.01)
            assert done(tmp_path) == []
            _, answer, _ = await door.chat(asked(stream=False, tools=BOTH, seed=1))
            assert len(read(answer, stream=False).calls) == 1

    asyncio.run(main())
    assert [(kind, choice) for kind, choice, _why in done(tmp_path)] == [("released", 0)]


# -- an audit that cannot be written


@STREAMS
def test_a_call_of_high_risk_does_not_go_out_unrecorded_and_others_do(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    tool = {"match": "send", "risk": "high", "repeat": WINDOW}

    async def main() -> None:
        async with blocking(tmp_path, [PARIS], tool) as door:
            (tmp_path / "audit.jsonl").unlink()
            for seed in range(2):  # the second is no repeat: nothing has gone out
                status, body, response = await door.chat(asked(stream=stream, seed=seed))
                refused = read(body, stream=stream)
                assert status == 200
                assert refused.calls == ()
                assert "send must be recorded before it goes out, and the record cannot be written" in refused.content
                if not stream:  # a stream's head is out before its verdict
                    assert response.headers["x-counterproof-action"] == "held"
            assert b"Paris" not in body
            assert await gated(door) == {("held", "unverified"): 2}
            assert await door.metric("counterproof_audit_up") == 0
        (other := tmp_path / "other").mkdir()
        async with blocking(other, [PARIS], {"match": "send"}) as door:
            (other / "audit.jsonl").unlink()
            _, body, _ = await door.chat(asked(stream=stream))
            assert len(read(body, stream=stream).calls) == 1

    asyncio.run(main())


def test_a_substitute_that_did_not_go_out_unrecorded_was_not_made(tmp_path: Path) -> None:
    tool = {"match": "send", "risk": "high", "on": {"mismatch": "substitute"}, "repeat": WINDOW}

    async def main() -> None:
        certain = Script(text=LEAD, calls=ROME.calls)
        async with StandIn([PARIS]) as engine, StandIn([certain]) as second:
            async with proxy(tmp_path, engine, second, mode="block", policy={"tools": [tool]}) as door:
                (tmp_path / "audit.jsonl").unlink()
                for seed in range(2):
                    _, body, _ = await door.chat(asked(stream=False, seed=seed))
                    assert "send must be recorded before it goes out" in read(body, stream=False).content
                assert await gated(door) == {("held", "mismatch"): 2}

    asyncio.run(main())


# -- refusals without a verdict


def test_an_answer_that_cannot_be_read_is_refused_and_that_is_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, mode="block") as door:
            engine.faults = Faults(body=b'{"choices": [{"index": 0, "message": {"tool_calls": [')
            status, body, response = await door.chat(asked(stream=False))
            assert status == 422
            assert b"could not be checked" in body
            assert await gated(door) == {("refused", "unverified"): 1}
            exchanges.append(response.headers["x-counterproof-id"])

    exchanges: list[str] = []
    asyncio.run(main())
    (record,) = audited(tmp_path)
    assert record.data == {
        "exchange": exchanges[0],
        "done": "refused",
        "why": "unread",
        "model": "smollm2",
        "dialect": "chat",
    }


@STREAMS
def test_an_answer_that_is_too_large_is_refused_and_that_is_recorded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr("proxy.forward.MAX_EDITED", 200)
    monkeypatch.setattr("proxy.gates.chat.MAX_HELD", 200)

    async def main() -> None:
        async with blocking(tmp_path, [PARIS]) as door:
            _, body, _ = await door.chat(asked(stream=stream))
            assert b"larger than can be checked" in body
            assert await gated(door) == {("refused", "unverified"): 1}

    asyncio.run(main())
    assert [record.data["why"] for record in audited(tmp_path)] == ["too_large"]


def test_a_fault_of_our_own_is_a_refusal_and_recorded_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any) -> None:
        raise ValueError("SECRET")

    monkeypatch.setattr(Case, "own", broken)

    async def main() -> None:
        async with blocking(tmp_path, [PARIS]) as door:
            await door.chat(asked(stream=True))

    asyncio.run(main())
    (record,) = audited(tmp_path)
    assert (record.kind, record.data["done"], record.data["why"]) == ("refused", "refused", "internal_error")
    assert record.data["calls"][0]["tool"] == "send"


# -- a call that goes out another way


def speaks(door: Proxy, *words: Word) -> None:
    """What the reference will say of the calls that come, one answer after the other."""
    left = iter(words)

    async def countersign(_request: Any, choice: Choice, *_more: Any) -> ChoiceReport:
        word = next(left)
        return ChoiceReport(choice.index, findings=[Finding(word, call.name, i) for i, call in enumerate(choice.calls)])

    door.service.mirrors[0].references[0].countersign = countersign  # type: ignore[method-assign,assignment]


@asynccontextmanager
async def spoken_of(folder: Path, tool: dict[str, Any], *words: Word) -> AsyncIterator[Proxy]:
    async with StandIn([PARIS]) as engine, StandIn([PARIS]) as second:
        async with proxy(folder, engine, second, mode="block", policy={"tools": [tool]}) as door:
            speaks(door, *words)
            yield door


@pytest.mark.parametrize("decided", ["before", "after"])
def test_one_approval_is_not_two_executions(tmp_path: Path, decided: str) -> None:
    """The call is held for what nobody can verify, approved late, and goes out once it can be verified."""
    tool = {"match": "send", "on": {"unverified": "hold"}, "approval_timeout": "100ms", "repeat": WINDOW}

    async def main() -> None:
        async with spoken_of(tmp_path, tool, Word.UNVERIFIED, Word.MATCH, Word.UNVERIFIED) as door:
            approvals = door.service.approvals
            await door.chat(asked(stream=True))
            (late,) = approvals.late()
            if decided == "before":
                await approvals.decide(late.id, "anna", approved=True)
            _, body, _ = await door.chat(asked(stream=True, seed=1))
            assert len(read(body, stream=True).calls) == 1
            if decided == "after":
                with pytest.raises(DecidedError, match="has gone out without it"):
                    await approvals.decide(late.id, "anna", approved=True)
            assert [one.state for one in (approvals.find(late.id),) if one] == [State.OVERTAKEN]
            _, body, _ = await door.chat(asked(stream=True, seed=2))
            assert read(body, stream=True).calls == ()
            assert "the same call was made earlier in this conversation" in read(body, stream=True).content

    asyncio.run(main())


def test_an_approved_call_passes_once_though_the_same_one_was_refused_meanwhile(tmp_path: Path) -> None:
    tool = {"match": "send", "approve": True, "approval_timeout": "100ms", "repeat": WINDOW}

    async def main() -> None:
        async with spoken_of(tmp_path, tool, Word.MATCH, Word.MISMATCH, Word.MATCH) as door:
            await door.chat(asked(stream=True))
            (late,) = door.service.approvals.late()
            _, body, _ = await door.chat(asked(stream=True, seed=1))
            assert "The call of send was refused" in read(body, stream=True).content
            await door.service.approvals.decide(late.id, "anna", approved=True)
            for seed, calls in ((2, 1), (3, 0)):  # once, and not twice
                _, body, _ = await door.chat(asked(stream=True, seed=seed))
                assert len(read(body, stream=True).calls) == calls
            assert "this call was refused earlier in this conversation" in read(body, stream=True).content

    asyncio.run(main())
