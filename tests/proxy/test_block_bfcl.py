"""The Berkeley data's labelled calls as a primary's own, through a whole proxy in block mode."""

import asyncio
from pathlib import Path

import pytest

from tests.bfcl import Case, cases
from tests.proxy.serving import Proxy, proxy
from tests.proxy.test_block import read
from tests.standin import Call, Script, StandIn
from tests.standin.asking_it import chat
from tests.validators.test_bfcl import CONTRADICTING
from validators import parse_arguments

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_AT_ONCE = 40  # scripts that the stand-in looks through for each request


def script(case: Case) -> Script:
    calls = (Call(call["function"]["name"], call["function"]["arguments"]) for call in case.calls)
    return Script(calls=tuple(calls), when=f"Case {case.id}.")


async def play(engine: StandIn, door: Proxy, some: list[Case], *, stream: bool) -> list[str]:
    """The cases whose calls did not come back as they were labelled; `invalid` where they were refused."""
    engine.model.scripts = tuple(script(case) for case in some)
    engine.model.__dict__.pop("outputs", None)
    differing = []
    for case in some:
        messages = [{"role": "user", "content": f"Case {case.id}."}]
        body = chat(messages=messages, tools=case.tools, max_tokens=3000, stream=stream)
        _, raw, response = await door.chat(body)
        labelled = [(c["function"]["name"], parse_arguments(c["function"]["arguments"]).value) for c in case.calls]
        got = [(call.name, parse_arguments(call.arguments).value) for call in read(raw, stream=stream).calls]
        if got != labelled:
            differing.append(case.id)
            assert response.headers["x-counterproof-mode"] == "block"
    return differing


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_labelled_calls_go_out_and_only_those_that_contradict_their_schema_do_not(
    tmp_path: Path,
    stream: bool,  # noqa: FBT001
) -> None:
    """Half of the data each: the other half is streamed."""

    async def main() -> None:
        mine = [case for i, case in enumerate(cases()) if i % 2 == stream]
        refused: list[str] = []
        async with StandIn(max_model_len=200_000) as engine, proxy(tmp_path, engine, mode="block") as door:
            for some in (mine[i : i + _AT_ONCE] for i in range(0, len(mine), _AT_ONCE)):
                refused += await play(engine, door, some, stream=stream)
            actions = {
                word: await door.metric("counterproof_gate_total", verdict=word) for word in ("invalid", "unverified")
            }
            everything = await door.metric("counterproof_gate_total")
        assert set(refused) == {case.id for case in mine} & CONTRADICTING.keys()
        # By tool: several in one answer count each. Without a reference, a call without a fault is `unverified`.
        assert sum(actions.values()) == everything >= len(mine) > 700
        assert actions["invalid"] >= len(refused)

    asyncio.run(main())
