"""`counterproof approvals`: a person sees a call that waits in a proxy that runs, and lets it out, or does not."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.approvals import Approval
from proxy.audit.reading import records
from proxy.commands.approvals import _arguments, _duration
from shadow.exchange import Dialect
from shadow.tasks import Tasks
from shadow.wire import answers
from tests.proxy.commands.typed import typed
from tests.proxy.serving import Proxy, proxy
from tests.secrets import secret
from tests.standin import StandIn
from tests.standin.asking_it import PARIS, TOOLS, chat

TOKENS = [
    {"name": name, "token": secret(name, "ct"), "scopes": scopes}
    for name, scopes in (("anna", ["approve"]), ("bo", ["approve"]), ("reader", ["read"]))
]
ASKS = {"tools": [{"match": "send", "approve": True, "approval_timeout": "60s"}]}


async def pending(door: Proxy) -> Approval:
    async with asyncio.timeout(10):
        while not (found := door.service.approvals.pending()):
            await asyncio.sleep(0.01)
    return found[0]


def calls(body: bytes) -> list[Any]:
    choice = answers.read(Dialect.CHAT, body, stream=True).choices[0]
    return [json.loads(call.arguments) for call in choice.calls]


@pytest.mark.slow
def test_a_person_sees_a_call_and_lets_it_out(tmp_path: Path) -> None:
    async def main() -> None:
        tasks = Tasks("test")
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, mode="block", policy=ASKS) as door:
            at = ("--control", door.control, "--token", (tmp_path / "control" / "token").read_text().strip())
            assert await typed("approvals", *at) == (0, "No call waits for anybody.\n", "")
            asking = tasks.start("asking", door.chat(chat(tools=TOOLS, stream=True)))
            one = await pending(door)
            code, out, err = await typed("approvals", *at)
            assert (code, err) == (0, "")
            for word in (one.id, "waiting", "send", "unverified: wants_person", "0 of 1"):
                assert word in out
            code, out, _ = await typed("approvals", "show", one.id, *at)
            assert code == 0
            assert '"city": "Paris"' in out
            assert "Paris" in (await typed("approvals", "--json", *at))[1]
            assert not asking.done()
            code, out, err = await typed("approvals", "approve", one.id, "--reason", "as agreed", *at)
            assert (code, err) == (0, "")
            assert out in {f"{one.id}: approved\n", f"{one.id}: released\n"}
            _, body, _ = await asking
            assert calls(body) == [{"city": "Paris", "n": 1}]
            code, out, err = await typed("approvals", "deny", one.id, *at)
            assert (code, out, err) == (1, "", f"counterproof: {door.control}: it is released already\n")
            code, _, err = await typed("approvals", "show", "ap-0", *at)
            assert (code, err.partition(": there")[2]) == (1, " is no such approval, or it was long ago\n")
        await tasks.close()

    asyncio.run(main())
    told = [(r.who, r.data["event"], r.data.get("reason")) for r in records(tmp_path / "audit.jsonl") if "id" in r.data]
    assert told == [
        ("(proxy)", "asked", None),
        ("local", "approved", "as agreed"),
        ("(proxy)", "released", None),
        ("local", "not_counted", None),
    ]
    assert "Paris" not in (tmp_path / "audit.jsonl").read_text()


@pytest.mark.slow
def test_two_people_are_needed_and_one_no_is_enough(tmp_path: Path) -> None:
    policy = {"tools": [{"match": "send", "approve": True, "approval_timeout": "60s", "approvers": 2}]}

    async def main() -> None:
        tasks = Tasks("test")
        async with StandIn([PARIS]) as engine:
            async with proxy(tmp_path, engine, mode="block", policy=policy, control={"tokens": TOKENS}) as door:
                asking = tasks.start("asking", door.chat(chat(tools=TOOLS, stream=True)))
                one = await pending(door)

                async def anna(*args: str) -> tuple[int, str, str]:
                    return await typed(
                        "approvals", *args, "--control", door.control, COUNTERPROOF_TOKEN=secret("anna", "ct")
                    )

                code, out, _ = await anna("approve", one.id)
                assert (code, out) == (0, f"{one.id}: waiting, approved by anna: 1 of 2\n")
                code, _, err = await anna("approve", one.id)
                assert (code, err.endswith("anna has approved it already, and another person must\n")) == (1, True)
                assert "1 of 2" in (await anna())[1]
                as_reader = ("--control", door.control, "--token", secret("reader", "ct"))
                code, _, err = await typed("approvals", "approve", one.id, *as_reader)
                assert (code, err.endswith("this needs a token with the scope approve\n")) == (1, True)
                as_bo = ("--control", door.control, "--token", secret("bo", "ct"), "--json")
                code, out, _ = await typed("approvals", "deny", one.id, *as_bo)
                assert code == 0
                assert [(v["who"], v["answer"]) for v in json.loads(out)["votes"]] == [
                    ("anna", "approved"),
                    ("bo", "denied"),
                ]
                _, body, _ = await asking
                assert b"A person has denied the call of send." in body
                assert calls(body) == []
        await tasks.close()

    asyncio.run(main())


def test_arguments_are_shown_whole_and_steer_no_terminal() -> None:
    assert _arguments('{"a": 1.10, "b": ["5", 1e999, "\\u001b[2J", "\\u0063onf\\u202e"]}') == (
        '{\n  "a": 1.10,\n  "b": [\n    "5",\n    1e999,\n    "\\u001b[2J",\n    "conf\ufffd"\n  ]\n}'
    )
    assert _arguments('{"a": "\\uE0005\\ue000"}') == '{"a": "\\uE0005\\ue000"}'  # no text passes for a number
    assert _arguments("no \x1b[31m JSON") == "no \ufffd[31m JSON"
    assert _arguments("[" * 100_000) == "[" * 100_000


def test_durations_are_short() -> None:
    assert [_duration(s) for s in (-1, 0.4, 59, 60, 3599, 3600, 90_000)] == [
        "0s", "0s", "59s", "1m 00s", "59m 59s", "1h 00m", "25h 00m",
    ]  # fmt: skip
