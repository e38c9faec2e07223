"""The switch through a whole proxy: for a model, for a tool; and which mode a request keeps."""

import asyncio
import json
from pathlib import Path

import pytest

from proxy.switch import Mode
from tests.proxy.serving import proxy
from tests.proxy.test_block import asked, read
from tests.standin import StandIn
from tests.standin.asking_it import PARIS

REFUSING = {"agree": 0, "tools": [{"match": "*", "rules": [{"id": "none", "cel": "1 == 2"}]}]}


def test_block_mode_for_one_model_holds_its_calls_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, policy=REFUSING) as door:
            switch = door.service.regime.switch
            _, body, _ = await door.chat(asked(stream=True))
            assert read(body, stream=True).calls
            switch.set("block", who="me", model=asked(stream=True)["model"])
            _, body, response = await door.chat(asked(stream=True))
            assert not read(body, stream=True).calls
            assert response.headers["x-counterproof-mode"] == "block"
            switch.set("block", who="me", model="another")
            switch.clear(who="me", model=asked(stream=True)["model"])
            _, body, response = await door.chat(asked(stream=True))
            assert read(body, stream=True).calls
            assert response.headers["x-counterproof-mode"] == "observe"

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_s_own_mode_counts_call_by_call(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, policy=REFUSING, mode="block") as door:
            switch = door.service.regime.switch
            (call,) = PARIS.calls
            switch.set("observe", who="me", tool=call.name.upper())
            _, body, response = await door.chat(asked(stream=stream))
            assert read(body, stream=stream).calls  # released, and judged by the mirror afterwards
            assert response.headers["x-counterproof-mode"] == "block"
            async with asyncio.timeout(10):
                while not await door.metric("counterproof_gate_total", action="would_refuse", verdict="violation"):
                    await asyncio.sleep(0.02)
            switch.set("block", who="me", tool=call.name)
            _, body, _ = await door.chat(asked(stream=stream, seed=7))
            assert not read(body, stream=stream).calls
            assert await door.metric("counterproof_gate_total", action="refused", verdict="violation") == 1
            assert await door.metric("counterproof_coverage_total", dialect="chat", coverage="held") == 2

    asyncio.run(main())


def test_what_is_read_after_its_answer_keeps_the_mode_it_began_with(tmp_path: Path) -> None:
    """No shadow can be asked, so nothing is put in, and the request is read once it is answered."""

    async def main() -> None:
        async with StandIn([PARIS], prefill_s=0.3) as engine:
            async with proxy(tmp_path, engine, policy=REFUSING) as door:
                async with asyncio.TaskGroup() as group:
                    asking = group.create_task(door.chat(asked(stream=True)), name="ask")
                    await asyncio.sleep(0.1)
                    door.service.regime.switch.set("block", who="me")
                _, body, response = asking.result()
                assert read(body, stream=True).calls
                assert response.headers["x-counterproof-mode"] == "observe"
                async with asyncio.timeout(10):
                    while not await door.metric("counterproof_gate_total", action="would_refuse"):
                        await asyncio.sleep(0.02)
                assert await door.metric("counterproof_coverage_total", coverage="mirrored") == 1

    asyncio.run(main())


TURNS = [("block", "off"), ("block", "observe"), ("off", "block"), ("observe", "block")]


@pytest.mark.parametrize(("begun", "turned"), TURNS)
def test_a_request_keeps_the_mode_that_held_when_it_began_to_come(tmp_path: Path, begun: Mode, turned: Mode) -> None:
    async def main() -> None:
        body = json.dumps(asked(stream=False)).encode()
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
        )
        head += b"Content-Length: %d\r\n\r\n" % len(body)
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, policy=REFUSING, mode=begun) as door:
            host, port = door.root.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + body[:30])
            async with asyncio.timeout(10):
                while not await door.metric("counterproof_open_requests"):
                    await asyncio.sleep(0.01)
            door.service.regime.switch.set(turned, who="me")
            writer.write(body[30:])
            answer = await reader.read()
            writer.close()
            assert b"x-counterproof-mode: %b\r\n" % begun.encode() in answer
            assert (b'"tool_calls":[{' in answer) is (begun != "block")

    asyncio.run(main())
