"""Block mode in front of stand-ins: what is released, refused, substituted, held, and what a client sees of it."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs
from yarl import URL

from proxy.app import Recorder
from proxy.approvals import Approval, DecidedError
from shadow.exchange import Choice, Dialect
from shadow.judge import Case
from shadow.wire import answers
from tests.proxy.answers import same
from tests.proxy.serving import Proxy, proxy
from tests.secrets import secret
from tests.standin import Call, Faults, Script, StandIn
from tests.standin.asking_it import LEAD, PARIS, ROME, TOOLS, chat

pytestmark = pytest.mark.slow

CLIENT = secret("client")
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CERTAIN_ROME = Script(text=LEAD, calls=ROME.calls)
TEXT = Script(text="No tool is needed for that.")
OTHER_CASE = Script(text=LEAD, calls=(Call("Send", PARIS.calls[0].arguments),))
NAMED = {"type": "function", "function": {"name": "send"}}
NO_SUCH_TOOL = Script(calls=(Call("Send", '{"city": "Paris", "n": 1}'),))
CITIES = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "n": {"type": "integer"}},
    "required": ["city"],
}
STRICTER = [{"type": "function", "function": {"name": "send", "parameters": CITIES}}]


def asked(*, stream: bool, **fields: Any) -> dict[str, Any]:
    return chat(**({"tools": TOOLS} | fields | (STREAM if stream else {})))


def read(body: bytes, *, stream: bool) -> Choice:
    answer = answers.read(Dialect.CHAT, body, stream=stream)
    assert answer.problem is None, body
    return answer.choices[0]


def arguments(choice: Choice) -> list[Any]:
    return [json.loads(call.arguments) for call in choice.calls]


async def gated(door: Proxy) -> dict[tuple[str, str], int]:
    """What was done about choices with calls, by action and verdict."""
    async with door.session.get(f"{door.control}/metrics") as response:
        text = await response.text()
    found = re.findall(
        r'^counterproof_gate_total\{action="(\w+)",tool="\w+",verdict="(\w+)"\} (\d+)', text, re.MULTILINE
    )
    return {(action, verdict): int(count) for action, verdict, count in found}


CASES: dict[str, tuple[list[Script], list[Script], str, str]] = {
    "the same call": ([PARIS], [PARIS], "released", "match"),
    "another call": ([PARIS], [CERTAIN_ROME], "refused", "mismatch"),
    "no call": ([PARIS], [TEXT], "refused", "mismatch"),
    "another name's case": (
        [PARIS],
        [Script(text=LEAD, calls=(Call("Send", PARIS.calls[0].arguments),))],
        "refused",
        "mismatch",
    ),
    "nearly the same": ([PARIS], [ROME, PARIS], "released", "near_tie"),
    "a sampled loser": (
        [PARIS, Script(text=LEAD, calls=ROME.calls, sampled=frozenset({0}))],
        [PARIS, CERTAIN_ROME],
        "released",
        "sampled_choice",
    ),
    "a tool that is not offered": ([NO_SUCH_TOOL], [NO_SUCH_TOOL], "refused", "invalid"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", CASES)
def test_the_truth_table(tmp_path: Path, name: str, stream: bool) -> None:  # noqa: FBT001
    primary, reference, done, word = CASES[name]

    async def main() -> None:
        async with StandIn(primary) as engine, StandIn(reference) as second:
            async with proxy(tmp_path, engine, second) as door:  # what observe mode sends
                _, observed, _ = await door.chat(asked(stream=stream))
            async with proxy(tmp_path, engine, second, mode="block") as door:
                status, body, response = await door.chat(asked(stream=stream))
                assert await gated(door) == {(done, word): 1}
                assert await door.metric("counterproof_mode", mode="block") == 1
                identity = response.headers["x-counterproof-id"]
                async with asyncio.timeout(10):  # the other proxy's exchange is in the same ledger
                    while not (found := [one for one in await door.records() if one["id"] == identity]):
                        await asyncio.sleep(0.02)
                record = found[0]
        assert status == 200
        assert response.headers["x-counterproof-mode"] == "block"
        assert [(v["done"], v["word"]) for v in record["verdicts"]] == [(done, word)]
        choice = read(body, stream=stream)
        if done == "released":
            assert same(body) == same(observed)
        else:
            assert choice.calls == ()
            assert choice.finish_reason == "stop"
            lead = "" if name == "a tool that is not offered" else LEAD
            assert choice.content.startswith(f"{lead}[counterproof] The call of " + ("Send" if not lead else "send"))
            assert record["id"] in choice.content
            assert (b'"usage"' in body) == (b'"usage"' in observed)
        if name == "another call":
            assert '/city is "Paris", where the reference configuration has "Rome"' in choice.content

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "send"}}], ids=["required", "named"]
)
def test_a_call_that_was_demanded_is_refused_as_an_error(tmp_path: Path, choice: Any, stream: bool) -> None:  # noqa: FBT001
    async def main() -> None:
        forced = [Script(calls=PARIS.calls)]
        other = [Script(calls=ROME.calls)]
        async with StandIn(forced) as engine, StandIn(other) as second:
            async with proxy(tmp_path, engine, second, mode="block") as door:
                status, body, response = await door.chat(asked(stream=stream, tool_choice=choice))
        assert status == 422
        error = json.loads(body)["error"]
        assert (error["type"], error["code"]) == ("tool_call_refused", "tool_call_refused")
        assert error["message"].startswith("[counterproof] The call of send was refused: argument /city")
        assert response.headers["x-counterproof-action"] == "refused"

    asyncio.run(main())


def test_a_demanded_call_whose_verdict_takes_long_is_refused_inside_the_stream(tmp_path: Path) -> None:
    async def main() -> None:
        forced, other = [Script(calls=PARIS.calls)], [Script(calls=ROME.calls)]
        async with StandIn(forced, per_token_s=0.02) as engine, StandIn(other, per_token_s=0.02) as second:
            policy = {"status_wait": "100ms"}
            async with proxy(tmp_path, engine, second, mode="block", policy=policy) as door:
                status, body, _ = await door.chat(asked(stream=True, tool_choice="required"))
        assert status == 200
        assert b"Paris" not in body.split(b'"error"')[0]
        assert b'"type":"tool_call_refused"' in body
        assert body.endswith(b"data: [DONE]\n\n")
        assert b'"usage":{' in body

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_errors_where_errors_are_wanted(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    async def main() -> None:
        async with StandIn([Script(calls=PARIS.calls)]) as engine, StandIn([Script(calls=ROME.calls)]) as second:
            async with proxy(tmp_path, engine, second, mode="block", policy={"refusal": "error"}) as door:
                status, body, _ = await door.chat(asked(stream=stream))
        assert status == 422
        assert b"tool_call_refused" in body

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_references_call_in_its_place(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    async def main() -> None:
        policy = {"tools": [{"match": "send", "on": {"mismatch": "substitute"}}]}
        async with StandIn([PARIS]) as engine, StandIn([CERTAIN_ROME]) as second:
            async with proxy(tmp_path, engine, second, mode="block", policy=policy) as door:
                status, body, _ = await door.chat(asked(stream=stream))
                assert await gated(door) == {("substituted", "mismatch"): 1}
                _, body_barred, _ = await door.chat(asked(stream=stream, tools=OSLO_ONLY))
        assert status == 200
        choice = read(body, stream=stream)
        assert arguments(choice) == [{"city": "Rome", "n": 1}]
        assert choice.finish_reason == "tool_calls"
        assert choice.content == LEAD
        assert b"Paris" not in body
        assert read(body_barred, stream=stream).calls == ()

    asyncio.run(main())


OSLO_ONLY = [
    {
        "type": "function",
        "function": {"name": "send", "parameters": {"type": "object", "properties": {"city": {"const": "Paris"}}}},
    }
]


def test_schema_and_rules_need_no_reference(tmp_path: Path) -> None:
    async def main() -> None:
        policy = {
            "tools": [
                {
                    "match": "S-E-N-D",
                    "rules": [{"id": "few", "cel": "args.n < 1", "message": "at most none"}],
                }
            ]
        }
        async with StandIn([PARIS]) as engine:
            async with proxy(tmp_path, engine, mode="block", policy=policy) as door:
                _, body, _ = await door.chat(asked(stream=True, tools=STRICTER))
                choice = read(body, stream=True)
                assert choice.calls == ()
                assert "at most none" in choice.content or "/city" in choice.content
                assert await gated(door) == {("refused", "invalid"): 1}
                _, body, _ = await door.chat(asked(stream=True, seed=1))
                assert "at most none" in read(body, stream=True).content
                assert await gated(door) == {("refused", "invalid"): 1, ("refused", "violation"): 1}
                _, body, _ = await door.chat(asked(stream=False, seed=2))
                assert await door.metric("counterproof_gate_total", verdict="repeat") >= 0
                assert read(body, stream=False).calls == ()

    asyncio.run(main())


UNVERIFIED = {
    "dead": Faults(close_before_byte=True),
    "hung": Faults(hang_before_headers=True),
    "garbage": Faults(body=b"<html>"),
    "500": Faults(status=500),
}


@pytest.mark.parametrize("name", UNVERIFIED)
@pytest.mark.parametrize("action", ["release", "refuse"])
def test_without_a_second_opinion_the_policy_decides(tmp_path: Path, name: str, action: str) -> None:
    async def main() -> None:
        policy = {"default": {"on": {"unverified": action}, "verify_timeout": "300ms"}}
        async with StandIn([PARIS]) as engine, StandIn([PARIS]) as second:
            async with proxy(tmp_path, engine, second, mode="block", policy=policy) as door:
                second.faults = UNVERIFIED[name]
                _, body, _ = await door.chat(asked(stream=True))
                done = {"release": "released", "refuse": "refused"}[action]
                assert await gated(door) == {(done, "unverified"): 1}
        calls = read(body, stream=True).calls
        assert bool(calls) == (action == "release")

    asyncio.run(main())


PROBED = {"hung": Faults(hang_before_headers=True), "500": Faults(status=500)}


@pytest.mark.parametrize("name", PROBED)
def test_another_call_is_a_mismatch_where_nobody_tells_why(tmp_path: Path, name: str) -> None:
    """The reference has said its own call; that its tokens cannot be had any more takes nothing of it back."""

    async def main() -> None:
        policy = {"default": {"on": {"unverified": "release"}, "verify_timeout": "1s"}}
        async with StandIn([PARIS]) as engine, StandIn([ROME]) as second:
            async with proxy(tmp_path, engine, second, mode="block", policy=policy) as door:
                second.faults = replace(PROBED[name], only=lambda path, _body: path.endswith("/v1/completions"))
                _, body, _ = await door.chat(asked(stream=True))
                assert await gated(door) == {("refused", "mismatch"): 1}
                assert read(body, stream=True).calls == ()
                await door.chat(asked(stream=True, seed=1))  # and it is asked again when the same call comes again
                assert await gated(door) == {("refused", "mismatch"): 2}

    asyncio.run(main())


@pytest.mark.parametrize("answer", ["approved", "denied", "expired"])
def test_a_person_decides(tmp_path: Path, answer: str) -> None:
    async def main() -> None:
        wait = "200ms" if answer == "expired" else "20s"
        policy = {"tools": [{"match": "send", "approve": 'args.city == "Paris"', "approval_timeout": wait}]}
        async with StandIn([PARIS]) as engine, StandIn([PARIS]) as second:
            async with proxy(tmp_path, engine, second, mode="block", policy=policy) as door:
                asking = asyncio.get_running_loop().create_task(door.chat(asked(stream=True)))
                pending = await _pending(door)
                assert await door.metric("counterproof_approvals_pending") == 1
                assert [call.name for call in pending.calls] == ["send"]
                if answer != "expired":
                    await door.service.approvals.decide(pending.id, "anna", approved=answer == "approved")
                    with pytest.raises(DecidedError):
                        await door.service.approvals.decide(pending.id, "bo", approved=True)
                status, body, _ = await asking
                assert not door.service.approvals.pending()
        choice = read(body, stream=True)
        assert status == 200
        if answer == "approved":
            assert arguments(choice) == [{"city": "Paris", "n": 1}]
        else:
            assert choice.calls == ()
            said = {"denied": "A person has denied the call of send", "expired": "needs a person's approval (ap-"}
            assert said[answer] in choice.content

    asyncio.run(main())


async def _pending(door: Proxy) -> Approval:
    async with asyncio.timeout(10):
        while not (found := door.service.approvals.pending()):
            await asyncio.sleep(0.01)
    return found[0]


def test_a_client_that_leaves_ends_what_is_held_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        policy = {"tools": [{"match": "send", "approve": "true"}]}
        async with StandIn([PARIS]) as engine, StandIn([PARIS]) as second:
            async with proxy(tmp_path, engine, second, mode="block", policy=policy) as door:
                asking = asyncio.get_running_loop().create_task(door.chat(asked(stream=True)))
                await _pending(door)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                async with asyncio.timeout(10):
                    while door.service.approvals.pending() or door.service.data.in_flight:
                        await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.parametrize("after", [1500, 2500, 3500])
def test_a_primary_that_breaks_while_a_call_is_held(tmp_path: Path, after: int) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, StandIn([PARIS]) as second:
            async with proxy(tmp_path, engine, second, mode="block") as door:
                engine.faults = Faults(abort_after_bytes=after)
                got = await _until_it_breaks(door)
                assert b"tool_calls" not in got
                assert b"Paris" not in got

    asyncio.run(main())


async def _until_it_breaks(door: Proxy) -> bytes:
    got = b""
    async with door.session.post(f"{door.root}/v1/chat/completions", json=asked(stream=True)) as response:
        try:
            async for piece in response.content.iter_any():
                got += piece
        except aiohttp.ClientPayloadError:
            return got
    raise AssertionError("the answer ended well")


def test_an_error_of_the_primarys_while_a_call_is_held_passes_on_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, StandIn([PARIS]) as second:
            async with proxy(tmp_path, engine, second, mode="block") as door:
                engine.faults = Faults(error_after=24)
                _, body, _ = await door.chat(asked(stream=True))
        assert b'"error"' in body
        assert b"tool_calls" not in body

    asyncio.run(main())


def test_a_call_keeps_the_mode_it_began_with(tmp_path: Path) -> None:
    async def main() -> None:
        policy = {"tools": [{"match": "send", "approve": "true"}]}
        async with StandIn([PARIS]) as engine, StandIn([PARIS]) as second:
            async with proxy(tmp_path, engine, second, mode="block", policy=policy) as door:
                asking = asyncio.get_running_loop().create_task(door.chat(asked(stream=True)))
                pending = await _pending(door)
                door.service.regime.switch.set("observe", who="someone")
                status, body, response = await door.chat(asked(stream=True))
                assert read(body, stream=True).calls
                assert response.headers["x-counterproof-mode"] == "observe"
                await door.service.approvals.decide(pending.id, "anna", approved=False)
                status, body, response = await asking
                assert status == 200
                assert response.headers["x-counterproof-mode"] == "block"
                assert not read(body, stream=True).calls

    asyncio.run(main())


def test_observe_mode_says_what_would_have_been_done(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, StandIn([CERTAIN_ROME]) as second:
            async with proxy(tmp_path, engine, second) as door:
                _, body, _ = await door.chat(asked(stream=True))
                assert read(body, stream=True).calls
                await door.settled()
                assert await gated(door) == {("would_refuse", "mismatch"): 1}

    asyncio.run(main())


def test_a_client_cannot_steer_slow_or_read_the_reference(tmp_path: Path) -> None:
    forged = {
        "vllm_xargs": {"forced_ids": [1, 2, 3]},
        "kv_transfer_params": {"prompt_token_ids": [1, 2, 3], "do_remote_decode": True},
        "cache_salt": "salt-of-the-client",
        "priority": 9,
        "request_id": "req-of-the-client",
        "logit_bias": {},
        "user": "somebody",
    }

    async def main() -> None:
        async with StandIn([PARIS]) as engine, StandIn([PARIS]) as second:
            async with proxy(tmp_path, engine, second, mode="block") as door:
                second.received.clear()
                headers = {"authorization": f"Bearer {CLIENT}", "x-request-id": "req-of-the-client"}
                status, _, _ = await door.chat(asked(stream=True, **forged), headers=headers)
                await door.settled()
                sent = list(second.received)
        assert status == 200
        assert sent
        for received in sent:
            assert b"of-the-client" not in received.body
            assert "of-the-client" not in repr(received.headers)
            value = json.loads(received.body or b"{}")
            assert not value.keys() & {"vllm_xargs", "cache_salt", "priority", "request_id", "user"}
            params = value.get("kv_transfer_params")
            assert params is None or (params.keys() == {"prompt_token_ids"} and params["prompt_token_ids"] != [1, 2, 3])

    asyncio.run(main())


UNVERIFIABLE = {
    "responses that go on from what the server keeps": ("/v1/responses", b'{"previous_response_id": "resp_1"}', {}),
    "responses in the background": ("/v1/responses", b'{"input": "Go.", "background": true}', {}),
    "messages with a tool of the server's own": (
        "/v1/messages",
        b'{"messages": [], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}',
        {},
    ),
    "a stored response": ("/v1/responses/resp_1", None, {}),
    "a batch": ("/v1/chat/completions/batch", b"{}", {}),
    "batches": ("/v1/batches", b"{}", {}),
    "invocations": ("/invocations", b"{}", {}),
    "raw generate": ("/inference/v1/generate", b"{}", {}),
    "another case": ("/v1/Chat/Completions", b"{}", {}),
    "a slash at the end": ("/v1/chat/completions/", b"{}", {}),
    "two slashes": ("/v1//chat/completions", b"{}", {}),
    "a compressed body": ("/v1/chat/completions", b"\x1f\x8b", {"content-encoding": "gzip"}),
    "no JSON": ("/v1/chat/completions", b'{"model": NaN}', {}),
    "no object": ("/v1/chat/completions", b"[]", {}),
}


@pytest.mark.parametrize("name", UNVERIFIABLE)
def test_what_cannot_be_verified_is_refused(tmp_path: Path, name: str) -> None:
    path, body, headers = UNVERIFIABLE[name]

    async def main() -> None:
        async with StandIn([PARIS]) as engine:
            async with proxy(tmp_path, engine, mode="block") as door:
                engine.received.clear()
                method = "GET" if body is None else "POST"
                url = URL(door.root + path, encoded=True)
                async with door.session.request(method, url, data=body, headers=headers) as response:
                    assert response.status == 422
                    assert (await response.json())["error"]["code"] == "unverifiable_request"
                assert not engine.received
            async with proxy(tmp_path, engine, mode="block", policy={"unverifiable_paths": "release"}) as door:
                engine.received.clear()
                async with door.session.request(method, URL(door.root + path, encoded=True), data=body) as response:
                    await response.read()
                assert engine.received

    asyncio.run(main())


def test_a_held_stream_is_kept_alive_where_that_is_wanted(tmp_path: Path) -> None:
    async def main() -> None:
        policy = {
            "hold_keepalive": "50ms",
            "tools": [{"match": "send", "approve": "true", "approval_timeout": "400ms"}],
        }
        async with StandIn([PARIS]) as engine, StandIn([PARIS]) as second:
            async with proxy(tmp_path, engine, second, mode="block", policy=policy) as door:
                _, body, _ = await door.chat(asked(stream=True))
        assert body.count(b'"delta":{},"logprobs":null,"finish_reason":null') >= 3

    asyncio.run(main())


def test_choices_are_held_by_themselves(tmp_path: Path) -> None:
    async def main() -> None:
        sampled = Script(text=LEAD, calls=ROME.calls, sampled=frozenset({1}))
        policy = {"default": {"on": {"sampled_choice": "refuse"}}}
        async with StandIn([PARIS, sampled]) as engine, StandIn([PARIS, CERTAIN_ROME]) as second:
            async with proxy(tmp_path, engine, second, mode="block", policy=policy) as door:
                _, body, _ = await door.chat(asked(stream=True, n=2, temperature=1))
                _, whole, _ = await door.chat(asked(stream=False, n=2, temperature=1, seed=3))
        for sent, stream in ((body, True), (whole, False)):
            choices = answers.read(Dialect.CHAT, sent, stream=stream).choices
            assert arguments(choices[0]) == [{"city": "Paris", "n": 1}]
            assert choices[1].calls == ()
            assert "[counterproof]" in choices[1].content

    asyncio.run(main())


def test_a_refused_call_that_comes_again_is_a_repeat_and_a_repeated_request_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, StandIn([CERTAIN_ROME]) as second:
            async with proxy(tmp_path, engine, second, mode="block") as door:
                for _ in range(2):
                    await door.chat(asked(stream=False))
                assert await gated(door) == {("refused", "mismatch"): 2}
                await door.chat(asked(stream=False, seed=7))
                assert await gated(door) == {("refused", "mismatch"): 2, ("refused", "repeat"): 1}

    asyncio.run(main())


def test_large_and_many_calls_are_held_like_others(tmp_path: Path) -> None:
    async def main() -> None:
        large = Script(calls=(Call("send", json.dumps({"city": "x" * 20_000})),))
        many = Script(calls=tuple(Call("send", json.dumps({"n": i})) for i in range(200)))
        never = Script(calls=(Call("send", '{"city": "Paris'),))
        for script, calls in ((large, 1), (many, 200), (never, 0)):
            async with (
                StandIn([script], max_model_len=200_000) as engine,
                StandIn([script], max_model_len=200_000) as second,
                proxy(tmp_path, engine, second, mode="block") as door,
            ):
                _, body, _ = await door.chat(asked(stream=True, max_tokens=100_000))
            assert len(read(body, stream=True).calls) == calls

    asyncio.run(main())


def test_a_fault_of_our_own_lets_no_call_out_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any) -> None:
        raise ValueError("SECRET")

    async def main() -> None:
        monkeypatch.setattr(Case, "own", broken)
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, mode="block") as door:
            for stream in (True, False):
                _, body, _ = await door.chat(asked(stream=stream))
                choice = read(body, stream=stream)
                assert choice.calls == ()
                assert "could not be checked for tool calls" in choice.content
            assert await gated(door) == {("refused", "unverified"): 2}

    with capture_logs() as logs:
        asyncio.run(main())
    assert [entry["error"] for entry in logs if entry["event"] == "a call was not judged"] == ["ValueError"] * 2
    assert "SECRET" not in repr(logs)


def test_a_verdict_that_cannot_be_recorded_keeps_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any) -> None:
        raise OSError("SECRET")

    async def main() -> None:
        monkeypatch.setattr(Recorder, "judged", broken)
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, mode="block") as door:
            for stream in (True, False):
                _, body, _ = await door.chat(asked(stream=stream))
                assert len(read(body, stream=stream).calls) == 1

    with capture_logs() as logs:
        asyncio.run(main())
    assert [entry["error"] for entry in logs if entry["event"] == "a verdict was not recorded"] == ["OSError"] * 2
    assert "SECRET" not in repr(logs)


def test_a_call_longer_than_was_expected_is_no_other_call(tmp_path: Path) -> None:
    """Where a client sets no limit, what a reference writes beside the primary has one of its own."""
    long = Script(text=LEAD, calls=(Call("send", json.dumps({"city": " ".join(f"w{i}" for i in range(450))})),))

    async def main() -> None:
        async with StandIn([long]) as engine, StandIn([long]) as second:
            async with proxy(tmp_path, engine, second, mode="block") as door:
                body = asked(stream=True)
                del body["max_tokens"]
                _, sent, _ = await door.chat(body)
                assert len(read(sent, stream=True).calls) == 1
                assert await gated(door) == {("released", "match"): 1}

    asyncio.run(main())
