"""A client waits for an answer that tells no tokens as it comes: references answer the whole request meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from shadow import examine
from shadow.choice import ChoiceReport
from shadow.compare import exact
from shadow.countersign import Countersigning
from shadow.engine import Engine
from shadow.errors import EngineError, Failed
from shadow.exchange import Answer, Choice, Dialect, Exchange, Timings
from shadow.wire import dialects
from tests.shadow.test_countersign import CHAT, OSLO, Stage, stage, words
from tests.standin.asking_it import HELLO, LEAD, PARIS
from validators import ToolCall

pytestmark = pytest.mark.slow

CITY = {"Paris": ToolCall("send", '{"city": "Paris", "n": 1}'), "Oslo": ToolCall("send", '{"city": "Oslo", "n": 1}')}


@dataclass
class Replays:
    """Stands in for a reference's own route of that dialect, which the stand-in engine does not have."""

    own: Choice | EngineError
    go: asyncio.Event = field(default_factory=asyncio.Event)
    expected: list[int] = field(default_factory=list)
    given_up: int = 0

    async def answer(self, _request: Any, _prompt: Any = None, *, expected: int) -> Choice:
        self.expected.append(expected)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if isinstance(self.own, EngineError):
            raise self.own
        return self.own


@dataclass
class Scene:
    """A stage whose request is one of another dialect, and what its client is waiting for."""

    on: Stage
    choice: Choice
    signing: Countersigning
    replays: Replays

    async def ask(self) -> ChoiceReport:
        return await self.signing.ask(self.on.reference, self.choice, exact)

    async def examined(self) -> examine.Examination:
        """What the mirror finds afterwards."""
        answer, can = Answer({0: self.choice}), self.on.reference.peer.can
        assert can is not None
        request = self.signing._request
        exchange = Exchange("cp-1", request, answer, 200, 0.0, Timings(0, 0, 0), "c", self.signing.continued)
        return await examine.examine(exchange, self.on.reference.peer.engine, can, None)


def saying(city: str, **fields: Any) -> Choice:
    return Choice(0, calls=(CITY[city],), finish_reason="tool_calls", **fields)


@contextlib.asynccontextmanager
async def scene(
    patch: pytest.MonkeyPatch, dialect: Dialect, own: Choice | EngineError, *theirs: Any, ids: bool = False
) -> AsyncIterator[Scene]:
    async with stage(PARIS, *theirs) as on:
        replays = Replays(own)
        patch.setattr(Engine, "replay", lambda _engine, *given, **terms: replays.answer(*given, **terms))
        sent: dict[str, Any] = {"model": "smollm2", "max_tokens": 200, "temperature": 0}
        tools = [{"type": "function", "name": "send", "input_schema": {"type": "object"}}]
        sent |= (
            {"input": HELLO, "tools": tools} if dialect is Dialect.RESPONSES else {"messages": HELLO, "tools": tools}
        )
        told = replace(on.choice, token_bytes=None, top=None, emitted_wins=None)
        choice = told if ids else replace(told, prompt_ids=None, token_ids=None, content="", lead="")
        signing = Countersigning(dialects.request_of(dialect, sent), [on.reference], on.primary)
        try:
            yield Scene(on, choice, signing, replays)
        finally:
            await signing.close()


BOTH = pytest.mark.parametrize("dialect", [Dialect.MESSAGES, Dialect.RESPONSES])


@BOTH
def test_it_is_begun_at_the_first_sign_of_a_call_and_asked_once(
    monkeypatch: pytest.MonkeyPatch, dialect: Dialect
) -> None:
    async def main() -> None:
        async with scene(monkeypatch, dialect, saying("Paris")) as one:
            for _ in range(3):
                one.signing.begin(Choice(0))
            await asyncio.sleep(0)
            assert len(one.replays.expected) == 1, "before anything is known of the call"
            one.replays.go.set()
            report = await one.ask()
            assert (words(report), report.ways) == ([("match", "")], ["replay"])
            (examined,) = (await one.examined()).choices
            assert (words(examined), examined.ways) == ([("match", "")], ["replay"])
            assert len(one.replays.expected) == 1, "the mirror has it, too"

    asyncio.run(main())


@BOTH
def test_another_call_is_no_other_for_being_asked_early(monkeypatch: pytest.MonkeyPatch, dialect: Dialect) -> None:
    async def main() -> None:
        for early in (True, False):
            async with scene(monkeypatch, dialect, saying("Oslo")) as one:
                if early:
                    one.signing.begin(Choice(0))
                one.replays.go.set()
                assert words(await one.ask()) == [("mismatch", "arguments")]
                assert len(one.replays.expected) == 1

    asyncio.run(main())


@pytest.mark.parametrize(("theirs", "word"), [(PARIS, ("match", "")), (OSLO, ("mismatch", "arguments"))])
def test_where_ids_are_told_at_the_end_another_call_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, theirs: Any, word: tuple[str, str]
) -> None:
    """Its own answer to the request was on another history: it says nothing against the call."""

    async def main() -> None:
        own = saying("Oslo", content="Something else first.")
        async with scene(monkeypatch, Dialect.RESPONSES, own, theirs, ids=True) as one:
            one.signing.begin(Choice(0))
            one.replays.go.set()
            report = await one.ask()
            assert words(report) == [word]
            assert report.ways[0] == "continue"
            (asked,) = [body for body in one.on.asked() if "kv_transfer_params" in body]
            history = asked["kv_transfer_params"]["prompt_token_ids"]
            prompt = list(one.choice.prompt_ids or ())
            assert history[: len(prompt)] == prompt

    asyncio.run(main())


def test_where_ids_are_told_the_same_call_needs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(monkeypatch, Dialect.RESPONSES, saying("Paris", content=LEAD), OSLO, ids=True) as one:
            one.signing.begin(Choice(0))
            one.replays.go.set()
            report = await one.ask()
            assert (words(report), report.ways) == ([("match", "")], ["replay"])
            assert [received.path for received in one.on.second.received if received.path == CHAT] == []
            # The mirror compares on the tokens all the same.
            (examined,) = (await one.examined()).choices
            assert examined.ways == ["score", "continue"]

    asyncio.run(main())


@pytest.mark.parametrize("own", [saying("Paris"), Failed("broken", 500)], ids=["met its limit", "failed"])
def test_what_came_of_nothing_is_asked_again(monkeypatch: pytest.MonkeyPatch, own: Choice | EngineError) -> None:
    async def main() -> None:
        first = replace(own, finish_reason="length") if isinstance(own, Choice) else own
        async with scene(monkeypatch, Dialect.MESSAGES, first) as one:
            one.signing.begin(Choice(0))
            one.replays.go.set()
            await asyncio.sleep(0)
            one.replays.own = saying("Paris")
            assert words(await one.ask()) == [("match", "")]
            assert len(one.replays.expected) == 2

    asyncio.run(main())


def test_a_client_that_leaves_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(monkeypatch, Dialect.MESSAGES, saying("Paris")) as one:
            one.signing.begin(Choice(0))
            await asyncio.sleep(0)
            await one.signing.close()
            assert (len(one.replays.expected), one.replays.given_up) == (1, 1)

    asyncio.run(main())
