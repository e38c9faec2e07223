"""A client waits: references are warmed, go on before the call is whole, and are heard when it is."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from shadow import reference as references
from shadow.capabilities import discover
from shadow.choice import ChoiceReport
from shadow.compare import exact
from shadow.countersign import Countersigning
from shadow.engine import Endpoint
from shadow.exchange import Choice, Dialect, Request
from shadow.reference import Peer, Reference, State
from shadow.regions import call_start
from shadow.tasks import Tasks
from shadow.wire import answers
from tests.standin import Call, Faults, Script, StandIn
from tests.standin.asking_it import LEAD, PARIS, TOLD, TOOLS, chat, post

pytestmark = pytest.mark.slow

OSLO = Script(text=LEAD, calls=(Call("send", '{"city": "Oslo", "n": 1}'),))
CHAT = "/v1/chat/completions"


@dataclass
class Stage:
    """One exchange's references: its primary's choice as it was streamed, the first reference's engine."""

    request: Request
    choice: Choice
    primary: Peer
    reference: Reference
    second: StandIn
    signing: Countersigning

    @property
    def begun(self) -> int:
        """How many tokens came before the call."""
        start = call_start(self.choice)
        assert start is not None
        return start.index

    def early(self, tokens: int = 2, index: int = 0) -> Choice:
        """The choice when so many of its call's tokens have come and nothing was told of them."""
        count = self.begun + tokens
        ids, texts = self.choice.token_ids, self.choice.token_bytes
        assert ids is not None
        assert texts is not None
        return replace(
            self.choice, index=index, token_ids=ids[:count], token_bytes=texts[:count], top=None, calls=(),
            content=self.choice.lead, finish_reason=None,
        )  # fmt: skip

    async def ask(self, choice: Choice | None = None) -> ChoiceReport:
        return await self.signing.ask(self.reference, choice or self.choice, exact)

    def fail_once(self, faults: Faults) -> None:
        """The reference's next answer has these faults."""
        self.second.faults = replace(faults, skip=self.second.generated, times=1)

    def asked(self) -> list[dict[str, Any]]:
        """The bodies of the chat requests that the reference got."""
        return [json.loads(received.body) for received in self.second.received if received.path == CHAT]

    async def reached(self, count: int) -> None:
        """Returns when the reference got so many."""
        async with asyncio.timeout(10):
            while len(self.asked()) < count:
                await asyncio.sleep(0.005)

    async def left(self, count: int) -> None:
        """Returns when so many requests were given up by their client, and none is under way."""
        async with asyncio.timeout(10):
            while self.second.disconnects < count or self.second.running:
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def stage(
    ours: Script = PARIS, theirs: Script = PARIS, *, role: str = "reference", patience: float = 20.0, **fields: Any
) -> AsyncIterator[Stage]:
    """Two engines that were asked what they can do, and a whole answer of the first."""
    body = chat(tools=TOOLS, stream=True) | fields
    body = {name: value for name, value in body.items() if value is not None}
    request = Request(Dialect.CHAT, body)
    async with StandIn([ours]) as engine, StandIn([theirs]) as second:
        answer = answers.read(Dialect.CHAT, await post(engine, TOLD | body), stream=True)
        primary = Peer(Endpoint("primary", engine.base_url, "smollm2"), reference=False)
        one = Reference(Endpoint("s0", second.base_url, "smollm2", timeout=patience), role)
        for peer in (primary, one.peer):
            peer.can = await discover(peer.engine)
            peer.state = State.READY
        second.received.clear()
        signing = Countersigning(request, [one], primary)
        try:
            yield Stage(request, answer.choices[0], primary, one, second, signing)
        finally:
            await signing.close()
            await primary.close()
            await one.peer.close()


def on_stage(scene: Callable[[Stage], Awaitable[None]], *scripts: Script, **terms: Any) -> None:
    async def main() -> None:
        async with stage(*scripts, **terms) as one:
            await scene(one)

    asyncio.run(main())


def words(report: ChoiceReport) -> list[tuple[str, str]]:
    return [(finding.word.value, finding.reason) for finding in report.findings]


# -- before the call is whole


def test_what_was_begun_early_is_what_is_heard() -> None:
    async def scene(one: Stage) -> None:
        one.signing.begin(one.early())
        await one.reached(1)
        report = await one.ask()
        assert words(report) == [("match", "")]
        assert [call.arguments for call in report.reference_calls] == [PARIS.calls[0].arguments]
        (sent,) = one.asked()  # once, from the call's first token on
        ids = one.choice.token_ids or ()
        history = [*(one.choice.prompt_ids or ()), *ids[: one.begun]]
        assert sent["kv_transfer_params"]["prompt_token_ids"] == history
        assert one.signing.continued["s0", 0].start == one.begun

    on_stage(scene)


def test_it_is_begun_once_however_often_more_of_it_comes() -> None:
    async def scene(one: Stage) -> None:
        for tokens in (1, 1, 2, 5):
            one.signing.begin(one.early(tokens))
        one.signing.begin(one.choice)
        await one.ask()
        assert len(one.asked()) == 1

    on_stage(scene)


def test_what_was_not_begun_is_asked_when_it_is_whole() -> None:
    async def scene(one: Stage) -> None:
        assert words(await one.ask()) == [("match", "")]
        assert len(one.asked()) == 1
        assert one.signing.continued.keys() == {("s0", 0)}

    on_stage(scene)


def test_another_call_is_explained_by_its_tokens() -> None:
    async def scene(one: Stage) -> None:
        one.signing.begin(one.early())
        report = await one.ask()
        assert words(report) == [("mismatch", "arguments")]
        assert report.ways == ["continue", "probe"]

    on_stage(scene, PARIS, OSLO)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "send"}}])
def test_a_demanded_call_is_begun_with_the_prompt_alone(choice: Any) -> None:
    async def scene(one: Stage) -> None:
        one.signing.begin(Choice(0, prompt_ids=one.choice.prompt_ids))
        await one.reached(1)
        one.signing.begin(one.choice)
        assert words(await one.ask()) == [("match", "")]
        (sent,) = one.asked()
        assert sent["kv_transfer_params"]["prompt_token_ids"] == list(one.choice.prompt_ids or ())
        assert sent["tool_choice"] == choice

    demanded = Script(calls=PARIS.calls)
    on_stage(scene, demanded, demanded, tool_choice=choice)


def test_nothing_is_begun_where_the_place_cannot_be_told() -> None:
    async def scene(one: Stage) -> None:
        early = one.early()
        for choice in (
            replace(early, prompt_ids=None),
            replace(early, token_ids=None),
            replace(early, token_bytes=None),
            replace(early, token_ids=(), token_bytes=()),
            Choice(0),
        ):
            one.signing.begin(choice)
        await asyncio.sleep(0.05)  # so long that it would have been asked
        assert one.asked() == []

    on_stage(scene)


def test_what_was_text_after_all_is_forgotten() -> None:
    async def scene(one: Stage) -> None:
        one.fail_once(Faults(hang_before_headers=True))
        one.signing.begin(one.early())
        await one.reached(1)
        one.signing.forget(0)
        await one.left(1)
        assert words(await one.ask()) == [("match", "")]
        assert len(one.asked()) == 2
        one.signing.forget(0)  # nothing there: nothing happens
        one.signing.forget(7)

    on_stage(scene)


def test_only_that_choice_is_forgotten() -> None:
    async def scene(one: Stage) -> None:
        one.fail_once(Faults(hang_before_headers=True))
        one.signing.begin(one.early(index=1))
        await one.reached(1)
        one.signing.begin(one.early())
        await one.reached(2)
        one.signing.forget(1)
        await one.left(1)
        assert words(await one.ask()) == [("match", "")]
        assert len(one.asked()) == 2

    on_stage(scene)


def test_a_call_that_began_elsewhere_is_asked_again_from_there() -> None:
    async def scene(one: Stage) -> None:
        one.fail_once(Faults(hang_before_headers=True))
        early = one.early()
        one.signing.begin(replace(early, lead=LEAD[:4], content=LEAD[:4]))  # as if more of it were no text
        await one.reached(1)
        assert words(await one.ask()) == [("match", "")]
        await one.left(1)
        assert one.signing.continued["s0", 0].start == one.begun

    on_stage(scene)


def test_what_was_begun_elsewhere_ends_when_the_right_place_is_known() -> None:
    async def scene(one: Stage) -> None:
        one.fail_once(Faults(hang_before_headers=True))
        one.signing.begin(replace(one.early(), lead=LEAD[:4], content=LEAD[:4]))
        await one.reached(1)
        one.signing.begin(one.early())
        await one.left(1)
        await one.reached(2)
        assert words(await one.ask()) == [("match", "")]
        assert len(one.asked()) == 2

    on_stage(scene)


def test_a_call_longer_than_was_expected_is_asked_again() -> None:
    """What is begun early has a limit of its own where the client set none: cut there, it is no other call."""
    arguments = json.dumps({"city": " ".join(f"word{i}" for i in range(320))})
    long = Script(text=LEAD, calls=(Call("send", arguments),))

    async def scene(one: Stage) -> None:
        assert len(one.choice.token_ids or ()) > 2 * 512 + 256
        one.signing.begin(one.early())
        report = await one.ask()
        assert words(report) == [("match", "")]
        assert len(one.asked()) == 2

    on_stage(scene, long, long, max_tokens=None)


# -- engines that fail


@pytest.mark.parametrize(
    "faults",
    [
        Faults(status=500),
        Faults(status=400),
        Faults(body=b"<html>"),
        Faults(close_before_byte=True),
    ],
    ids=["500", "400", "garbage", "closed"],
)
def test_what_failed_early_is_asked_again(faults: Faults) -> None:
    async def scene(one: Stage) -> None:
        one.fail_once(faults)
        one.signing.begin(one.early())
        await one.reached(1)
        with capture_logs() as logs:
            assert words(await one.ask()) == [("match", "")]
        assert len(one.asked()) == 2
        assert logs == []

    on_stage(scene)


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (Faults(status=500), "server_error"),
        (Faults(status=400), "refused"),
        (Faults(body=b"<html>"), "garbage"),
        (Faults(close_before_byte=True), "unreachable"),
        (Faults(hang_before_headers=True), "timeout"),
    ],
    ids=["500", "400", "garbage", "closed", "silent"],
)
def test_an_engine_that_fails_leaves_the_call_unverified_under_its_reason(faults: Faults, reason: str) -> None:
    async def scene(one: Stage) -> None:
        one.second.faults = faults
        one.signing.begin(one.early())
        assert words(await one.ask()) == [("unverified", reason)]
        assert one.signing.continued == {}

    on_stage(scene, patience=0.3)


def test_a_fault_of_our_own_is_one_reference_s_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_args: Any, **_more: Any) -> ChoiceReport:
        raise ValueError("the call was SECRET")

    async def scene(one: Stage) -> None:
        monkeypatch.setattr(references, "countersign", broken)
        with capture_logs() as logs:
            report = await one.ask()
        assert words(report) == [("unverified", "internal_error")]
        assert report.calls == one.choice.calls
        assert [(entry["shadow"], entry["error"]) for entry in logs] == [("s0", "ValueError")]
        assert "SECRET" not in repr(logs)

    on_stage(scene)


def test_who_cannot_be_asked_says_why_and_gets_nothing_early() -> None:
    async def scene(one: Stage) -> None:
        one.reference.peer.state = State.COLD
        one.signing.warm()
        one.signing.begin(one.early())
        assert words(await one.ask()) == [("unverified", "cold")]
        one.reference.peer.state = State.DOWN
        assert words(await one.ask()) == [("unverified", "unreachable")]
        assert one.asked() == []

    on_stage(scene)


def test_a_reference_that_takes_no_ids_is_asked_for_the_whole() -> None:
    async def scene(one: Stage) -> None:
        assert one.reference.peer.can is not None
        one.reference.peer.can = replace(one.reference.peer.can, chat_prompt_ids=False)
        one.signing.begin(one.early())
        report = await one.ask()
        assert report.ways == ["replay"]
        assert words(report) == [("match", "")]
        assert len(one.asked()) == 1
        assert "kv_transfer_params" not in one.asked()[0]

    on_stage(scene)


def test_twins_are_never_asked() -> None:
    async def scene(one: Stage) -> None:
        assert one.signing.references == []
        one.signing.warm()
        one.signing.begin(one.early())
        await asyncio.sleep(0.05)  # so long that it would have been asked
        assert one.asked() == []

    on_stage(scene, role="twin")


# -- warming, and the end


def test_warming_reads_the_prompt_for_one_token() -> None:
    async def scene(one: Stage) -> None:
        one.signing.warm()
        await one.reached(1)
        (sent,) = one.asked()
        assert sent["max_tokens"] == 1
        assert sent["messages"] == one.request.body["messages"]

    on_stage(scene)


@pytest.mark.parametrize("faults", [Faults(status=500), Faults(body=b"<html>"), Faults(close_before_byte=True)])
def test_an_engine_that_cannot_be_warmed_says_nothing_yet(faults: Faults) -> None:
    async def scene(one: Stage) -> None:
        one.fail_once(faults)
        with capture_logs() as logs:
            one.signing.warm()
            await one.reached(1)
            assert words(await one.ask()) == [("match", "")]
        assert logs == []

    on_stage(scene)


def test_the_end_ends_everything() -> None:
    async def scene(one: Stage) -> None:
        one.second.faults = Faults(hang_before_headers=True)
        one.signing.warm()
        one.signing.begin(one.early())
        one.signing.begin(one.early(index=1))
        waiting = one.signing.ask(one.reference, one.choice, exact)
        await one.reached(3)
        await one.signing.close()
        assert waiting.cancelled()
        await one.left(3)
        with pytest.raises(RuntimeError):
            one.signing.warm()
        assert one.reference.asked(one.primary)  # what was given up says nothing of the engine

    on_stage(scene)


# -- the circuit, and who is asked first


def test_what_an_engine_refuses_closes_it_to_nobody() -> None:
    async def scene(one: Stage) -> None:
        one.second.faults = Faults(status=400)
        for _ in range(5):
            assert words(await one.ask()) == [("unverified", "refused")]
        one.second.faults = Faults()
        assert words(await one.ask()) == [("match", "")]

    on_stage(scene)


@pytest.mark.parametrize("early", [True, False], ids=["begun early", "asked when whole"])
@pytest.mark.parametrize(
    ("why", "opens"), [(references.TOO_LATE, True), (None, False)], ids=["out of time", "left by its client"]
)
def test_an_engine_that_hangs_opens_its_circuit(why: str | None, *, opens: bool, early: bool) -> None:
    async def scene(one: Stage) -> None:
        one.second.faults = Faults(hang_before_headers=True)
        with capture_logs() as logs:
            for count in range(1, 4):
                if early:
                    one.signing.begin(one.early())
                asking = one.signing.ask(one.reference, one.choice, exact)
                await one.reached(count)
                asking.cancel(why)
                with pytest.raises(asyncio.CancelledError):
                    await asking
        assert one.reference.breaker.state == ("open" if opens else "closed")
        assert [entry["reason"] for entry in logs] == (["timeout"] if opens else [])
        if opens:
            one.second.faults = Faults()
            assert words(await one.ask()) == [("unverified", "circuit_open")]

    on_stage(scene)


def test_an_engine_that_answers_others_is_busy_and_does_not_hang() -> None:
    async def scene(one: Stage) -> None:
        assert words(await one.ask()) == [("match", "")]
        one.second.faults = Faults(hang_before_headers=True)
        for count in range(2, 7):
            asking = one.signing.ask(one.reference, one.choice, exact)
            await one.reached(count)
            asking.cancel(references.TOO_LATE)
            with pytest.raises(asyncio.CancelledError):
                await asking
        one.second.faults = Faults()
        assert words(await one.ask()) == [("match", "")]

    on_stage(scene)


def test_a_client_that_waits_does_not_queue_behind_what_nobody_waits_for() -> None:
    async def scene(one: Stage) -> None:
        one.second.faults = Faults(hang_before_headers=True, only=lambda path, _body: path != CHAT)
        engine, ids = one.reference.peer.engine, one.choice.token_ids or ()
        slots = engine.endpoint.max_concurrency
        mirrored = Tasks("mirror")
        for i in range(2 * slots):
            mirrored.start(f"score:{i}", engine.score((1, 2), ids))
        try:
            async with asyncio.timeout(10):
                while one.second.running < slots:
                    await asyncio.sleep(0.005)
            one.signing.warm()
            one.signing.begin(one.early())
            assert words(await one.ask()) == [("match", "")]
            assert one.second.running == slots
        finally:
            await mirrored.close()

    on_stage(scene, patience=60)


def test_what_waits_has_no_more_slots_than_were_configured() -> None:
    async def scene(one: Stage) -> None:
        one.second.faults = Faults(hang_before_headers=True)
        slots = one.reference.peer.engine.endpoint.max_concurrency
        asked = [one.signing.ask(one.reference, one.choice, exact) for _ in range(slots + 3)]
        await one.reached(slots)
        await asyncio.sleep(0.05)  # so long that more would have been asked
        assert len(one.asked()) == slots
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    on_stage(scene, patience=60)


def test_no_more_is_asked_for_than_the_engine_can_hold() -> None:
    """An engine refuses a limit above its whole context, and cuts any other down to what is left beside the prompt."""
    arguments = json.dumps({"city": " ".join(f"word{i}" for i in range(320))})
    long = Script(text=LEAD, calls=(Call("send", arguments),))

    async def scene(one: Stage) -> None:
        engine, can = one.reference.peer.engine, one.reference.peer.can
        assert can is not None
        assert engine.longest == can.max_model_len
        engine.longest = 1500
        await one.ask()
        assert one.asked()[0]["max_tokens"] == 1500

    on_stage(scene, long, long, max_tokens=None)
