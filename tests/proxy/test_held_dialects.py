"""Calls of messages and responses that wait for a person, through a whole proxy: what their clients get of them.

The answers are those that vLLM 0.32 gave.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shadow.exchange import Dialect
from shadow.wire import dialects, sse
from tests.proxy.gates.test_messages import message_of
from tests.proxy.gates.test_responses import as_the_client_reads, events
from tests.proxy.primary import Primary
from tests.proxy.serving import Proxy, proxy

DATA = Path(__file__).parent / "gates" / "data"
BOTH = (Dialect.MESSAGES, Dialect.RESPONSES)
STREAMS = {
    Dialect.MESSAGES: DATA / "messages" / "made_thinking_text_calls.sse",
    Dialect.RESPONSES: DATA / "responses" / "text-call.sse",
}
WHOLE = {Dialect.MESSAGES: DATA / "messages" / "any.json", Dialect.RESPONSES: DATA / "responses" / "required.json"}


@dataclass(frozen=True)
class Said:
    """What the model server says: its bytes, and the names of its calls."""

    dialect: Dialect
    body: bytes
    stream: bool

    @classmethod
    def of(cls, dialect: Dialect, *, stream: bool) -> "Said":
        return cls(dialect, (STREAMS if stream else WHOLE)[dialect].read_bytes(), stream)

    @property
    def names(self) -> list[str]:
        choice = dialects.read(self.dialect, self.body, stream=self.stream).choices[0]
        return list(dict.fromkeys(call.name for call in choice.calls))

    def request(self) -> dict[str, Any]:
        """A request that offers its tools; whether one is called is the model's choice."""
        schema = {"type": "object"}
        if self.dialect is Dialect.MESSAGES:
            tools = [{"name": name, "input_schema": schema} for name in self.names]
            turns = [{"role": "user", "content": "Go."}]
            return {"model": "m", "messages": turns, "max_tokens": 99, "stream": self.stream, "tools": tools}
        functions = [{"type": "function", "name": name, "parameters": schema} for name in self.names]
        return {"model": "m", "input": "Go.", "stream": self.stream, "tools": functions}


def policy(timeout: str, **more: Any) -> dict[str, Any]:
    return {"agree": 0, "tools": [{"match": "*", "approve": "true", "approval_timeout": timeout}]} | more


async def asked_about(door: Proxy) -> str:
    """The id of the approval that somebody waits for."""
    async with asyncio.timeout(10):
        while not (pending := door.service.approvals.pending()):
            await asyncio.sleep(0.01)
    return pending[0].id


async def blocks(content: Any) -> AsyncIterator[bytes]:
    """The events of an answer, as they arrive."""
    splitter = sse.Splitter()
    async for data in content.iter_any():
        for block in splitter.feed(data):
            yield block
    assert not splitter.rest


# --- a stream that is kept alive --------------------------------------------------------------------------------------


async def kept_alive(folder: Path, said: Said, is_keepalive: Callable[[bytes], bool], *, approved: bool) -> list[bytes]:
    """The events that a client gets of a call that is decided once three keep-alives have arrived."""
    got: list[bytes] = []
    terms = policy("1m", hold_keepalive="20ms")
    async with (
        Primary({said.dialect: said.body}) as url,
        proxy(folder, url, fit=False, mode="block", policy=terms) as door,
        asyncio.timeout(30),
        door.session.post(f"{door.root}{dialects.PATHS[said.dialect]}", json=said.request()) as response,
    ):
        assert response.status == 200
        decided = False
        async for block in blocks(response.content):
            got.append(block)
            if not decided and sum(map(is_keepalive, got)) >= 3:
                decided = True
                await door.service.approvals.decide(await asked_about(door), "anna", approved=approved)
        assert decided
    return got


@pytest.mark.parametrize("approved", [True, False])
def test_a_held_message_is_kept_alive_by_pings(tmp_path: Path, approved: bool) -> None:  # noqa: FBT001
    said = Said.of(Dialect.MESSAGES, stream=True)
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    assert ping not in said.body
    got = asyncio.run(kept_alive(tmp_path, said, ping.__eq__, approved=approved))
    without = b"".join(block for block in got if block != ping)
    first, last = got.index(ping), len(got) - got[::-1].index(ping)
    assert set(got[first:last]) == {ping}  # nothing of the call in between
    before = b"".join(got[:first])
    assert said.body.startswith(before)
    assert b"text_delta" in before
    assert b"tool_use" not in before
    message = message_of(b"".join(got))
    if approved:
        assert without == said.body
        assert {block["name"] for block in message["content"] if block["type"] == "tool_use"} == set(said.names)
    else:
        assert b"tool_use" not in without
        assert b"partial_json" not in without
        assert "A person has denied the call of " in message["content"][-1]["text"]
        assert message["stop_reason"] == "refusal"


def is_repeated(block: bytes) -> bool:
    """Whether an event tells once more that the response goes on: engines do so once, as their second event."""
    value = json.loads(sse.data_of(block) or b"{}")
    return bool(value.get("type") == "response.in_progress" and value["sequence_number"] > 1)


@pytest.mark.parametrize("approved", [True, False])
def test_a_held_response_is_kept_alive_by_events_that_take_no_number(tmp_path: Path, approved: bool) -> None:  # noqa: FBT001
    said = Said.of(Dialect.RESPONSES, stream=True)
    got = asyncio.run(kept_alive(tmp_path, said, is_repeated, approved=approved))
    kept = [block for block in got if is_repeated(block)]
    without = b"".join(block for block in got if not is_repeated(block))
    first = got.index(kept[0])
    assert got[first : first + len(kept)] == kept == kept[:1] * len(kept)
    before = b"".join(got[:first])
    assert said.body.startswith(before)
    assert b"response.output_text.delta" in before
    assert b"function_call" not in before
    told = events(b"".join(got))
    assert [event["sequence_number"] for event in events(without)] == list(range(len(events(without))))
    assert {event["sequence_number"] for event in events(b"".join(kept))} == {events(before)[-1]["sequence_number"]}
    assert {event["response"]["id"] for event in told if "response" in event} == {told[0]["response"]["id"]}
    response = as_the_client_reads(b"".join(got))
    assert response.status == "completed"
    if approved:
        assert without == said.body
        assert {item.name for item in response.output if item.type == "function_call"} == set(said.names)
    else:
        assert {item.type for item in response.output} == {"message"}
        assert "A person has denied the call of " in response.output_text


# --- what is said of a call that nobody approved ----------------------------------------------------------------------


def texts(said: Said, body: bytes) -> str:
    """All that an answer says; it has no call."""
    answer = dialects.read(said.dialect, body, stream=said.stream)
    assert answer.problem is None
    choice = answer.choices[0]
    assert choice.calls == ()
    assert choice.finish_reason == ("content_filter" if said.dialect is Dialect.MESSAGES else "stop")
    return choice.content


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", BOTH)
def test_a_denial_is_a_text_in_the_answer(tmp_path: Path, dialect: Dialect, stream: bool) -> None:  # noqa: FBT001
    said = Said.of(dialect, stream=stream)

    async def main() -> None:
        async with (
            Primary({dialect: said.body}) as url,
            proxy(tmp_path, url, fit=False, mode="block", policy=policy("1m")) as door,
        ):
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(answered(door, said), name="ask")
                await door.service.approvals.decide(await asked_about(door), "anna", approved=False)
            status, body = asking.result()
        assert status == 200
        assert f"A person has denied the call of {', '.join(said.names)}. Nothing was executed." in texts(said, body)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", BOTH)
def test_that_nobody_decided_is_a_text_in_the_answer(tmp_path: Path, dialect: Dialect, stream: bool) -> None:  # noqa: FBT001
    said = Said.of(dialect, stream=stream)

    async def main() -> None:
        async with (
            Primary({dialect: said.body}) as url,
            proxy(tmp_path, url, fit=False, mode="block", policy=policy("10ms")) as door,
        ):
            status, body = await answered(door, said)
            (late,) = door.service.approvals.late()
        assert status == 200
        assert f"needs a person's approval ({late.id}), and nobody has decided yet" in texts(said, body)

    asyncio.run(main())


async def answered(door: Proxy, said: Said) -> tuple[int, bytes]:
    async with door.session.post(f"{door.root}{dialects.PATHS[said.dialect]}", json=said.request()) as response:
        return response.status, await response.read()
