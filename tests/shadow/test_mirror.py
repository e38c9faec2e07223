"""The mirror: bounded, with named reasons, and of no concern to the primary path."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.proxy.serving import Proxy, proxy
from tests.secrets import secret
from tests.standin import Faults, Script, StandIn
from tests.standin.asking_it import PARIS, TOOLS, chat

pytestmark = pytest.mark.slow

CLIENT, OWN = secret("client"), secret("primary")
TEXT = Script(text="Plain words, and more of them.")


async def ask(door: Proxy, count: int, **fields: Any) -> None:
    """So many requests, each a conversation of its own."""
    for i in range(count):
        status, _, _ = await door.chat(chat(messages=[{"role": "user", "content": f"Question {i}"}], **fields))
        assert status == 200


def test_a_full_queue_drops_by_count_and_by_bytes_under_their_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as hung, StandIn([TEXT]) as well:
            limits = {"max_queue": 3, "max_queue_bytes": 10_000_000}
            async with proxy(tmp_path, engine, hung, well, mirror=limits, shadow={"max_concurrency": 1}) as door:
                hung.faults = Faults(hang_before_headers=True)
                for _ in range(6):
                    await ask(door, 1)
                    async with asyncio.timeout(10):  # the healthy shadow keeps up
                        while await door.metric("counterproof_mirror_queue", shadow="s1"):
                            await asyncio.sleep(0.01)
                outcomes = await door.outcomes()
                assert outcomes["s0", "dropped", "queue_full"] == 3
                assert outcomes["s1", "compared", ""] == 6
                assert await door.metric("counterproof_mirror_queue", shadow="s0") == 3
                assert await door.metric("counterproof_mirror_queue_bytes", shadow="s0") > 0

    asyncio.run(main())


def test_a_queue_is_bounded_in_bytes(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow:
            async with proxy(tmp_path, engine, shadow, mirror={"max_queue_bytes": 1000}) as door:
                await ask(door, 2)
                await door.settled()
                assert await door.outcomes() == {("s0", "dropped", "queue_bytes"): 2}

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_sums_agree_whatever_the_shadow_does(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    """answered = compared + sampled out + dropped + failed + not comparable, for every shadow."""
    kinds = {
        Faults(status=500): "server_error",
        Faults(body=b"<html>"): "garbage",
        Faults(logprobs="zero"): "garbage",
        Faults(status=404): "refused",
        Faults(hang_before_headers=True): "timeout",
        Faults(abort_after_bytes=10): "unreachable",
    }

    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow:
            async with proxy(tmp_path, engine, shadow, shadow={"timeout": "500ms"}, mirror={"other": 0.6}) as door:
                asked = 0
                for faults in kinds:
                    shadow.faults = faults
                    await ask(door, 4, stream=stream)
                    asked += 4
                    await door.settled()
                outcomes = await door.outcomes()
                assert sum(outcomes.values()) == asked
                assert {reason for (_s, outcome, reason) in outcomes if outcome in {"failed", "not_comparable"}} <= {
                    *kinds.values()
                }
                assert outcomes["s0", "sampled_out", ""] > 0

    asyncio.run(main())


def test_a_hung_shadow_times_out_and_the_answer_was_there_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([PARIS]) as engine, StandIn([PARIS]) as shadow:
            async with proxy(tmp_path, engine, shadow, shadow={"timeout": "400ms"}) as door:
                shadow.faults = Faults(hang_before_headers=True)
                async with asyncio.timeout(5):
                    await ask(door, 1, tools=TOOLS)
                await door.settled()
                assert await door.outcomes() == {("s0", "failed", "timeout"): 1}
                record = (await door.records())[0]["examinations"][0]
                finding = record["choices"][0]["findings"][0]
                assert (finding["word"], finding["reason"]) == ("unverified", "timeout")
                assert await door.metric("counterproof_tool_calls_total", verdict="unverified", shadow="s0") == 1

    asyncio.run(main())


def test_no_more_is_asked_at_once_than_configured(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT], prefill_s=0.05) as shadow:
            async with proxy(tmp_path, engine, shadow, shadow={"max_concurrency": 2}) as door:
                highest = 0
                async with asyncio.TaskGroup() as group:
                    for i in range(10):
                        body = chat(messages=[{"role": "user", "content": str(i)}])
                        group.create_task(door.chat(body), name=f"ask {i}")
                while await door.metric("counterproof_mirror_queue", shadow="s0"):
                    highest = max(highest, shadow.running)
                    await asyncio.sleep(0.005)
                assert 1 <= highest <= 2
                assert await door.outcomes() == {("s0", "compared", ""): 10}

    asyncio.run(main())


def test_a_reference_with_another_tokenizer_or_a_shorter_context_is_refused_and_said_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn(tokenizer_shift=5) as other, StandIn(max_model_len=100) as short:
            async with proxy(tmp_path, engine, other, short, fit=False) as door:
                async with asyncio.timeout(10):
                    while any(r.peer.can is None for r in door.service.mirrors[0].references) or (
                        door.service.mirrors[0].primary.can is None
                    ):
                        await asyncio.sleep(0.01)
                await ask(door, 1)
                await door.settled()
                assert await door.outcomes() == {
                    ("s0", "not_comparable", "tokenizer_differs"): 1,
                    ("s1", "not_comparable", "context_too_short"): 1,
                }
                assert await door.metric("counterproof_shadow_up") == 0

    asyncio.run(main())


def test_a_shadow_that_was_away_is_found_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow, proxy(tmp_path, engine, shadow) as door:
            await shadow.refuse_connections()
            await ask(door, 1)
            await door.settled()
            assert await door.outcomes() == {("s0", "failed", "unreachable"): 1}
            await shadow.accept_connections()
            async with asyncio.timeout(20):
                while not await door.metric("counterproof_shadow_up", shadow="s0"):
                    await asyncio.sleep(0.05)
            await ask(door, 1)
            await door.settled()
            assert (await door.outcomes())["s0", "compared", ""] == 1

    asyncio.run(main())


def test_what_still_waits_at_the_end_is_dropped_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow:
            async with proxy(tmp_path, engine, shadow, shadow={"max_concurrency": 1}) as door:
                shadow.faults = Faults(hang_before_headers=True)
                await ask(door, 3)
                mirror, metrics = door.service.mirrors[0], door.service.metrics
                await mirror.close()
                text = metrics.text("")[0].decode()
                assert 'counterproof_mirror_total{outcome="dropped",reason="shutting_down",shadow="s0"} 3.0' in text
                await mirror.close()  # twice is once

    asyncio.run(main())


def test_neither_content_nor_secrets_reach_metrics_or_a_redacted_ledger(tmp_path: Path) -> None:
    word = "zebra-4711"
    script = Script(calls=(PARIS.calls[0].__class__("send", json.dumps({"city": word})),))

    async def main() -> str:
        async with StandIn([script]) as engine, StandIn([script]) as shadow:
            async with proxy(
                tmp_path, engine, shadow, ledger={"content": "redacted"}, primary={"api_key": OWN}
            ) as door:
                messages = [{"role": "user", "content": f"My word is {word}"}]
                status, body, _ = await door.chat(
                    chat(messages=messages, tools=TOOLS), headers={"authorization": f"Bearer {CLIENT}"}
                )
                assert status == 200
                assert word.encode() in body
                await door.settled()
                return door.service.metrics.text("")[0].decode()

    text = asyncio.run(main())
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    for hidden in (word, OWN, CLIENT):
        assert hidden not in text
        assert hidden.encode() not in stored
    assert 'verdict="match"' in text
    assert b'"send"' in stored


def test_what_cannot_be_recorded_costs_one_record_and_not_the_mirror(tmp_path: Path) -> None:
    huge = Script(calls=(PARIS.calls[0].__class__("send", '{"a": 1e9999999}'),), margin=1.5)

    async def main() -> None:
        async with StandIn([PARIS]) as engine, StandIn([huge, PARIS]) as shadow:
            async with proxy(tmp_path, engine, shadow, shadow={"max_concurrency": 1}) as door:
                deep: Any = 1
                for _ in range(900):
                    deep = [deep]
                await ask(door, 3, tools=TOOLS, unknown=deep)
                await door.settled()
                assert await door.outcomes() == {("s0", "compared", ""): 3}
                assert await door.metric("counterproof_tool_calls_total", shadow="s0") == 3

    asyncio.run(main())


def test_an_answer_that_is_not_whole_counts_with_what_it_might_have_held(tmp_path: Path) -> None:
    """Failures of tool traffic must not vanish in the sample of the rest."""

    async def main() -> None:
        async with StandIn([PARIS]) as engine, StandIn([PARIS]) as shadow:
            async with proxy(tmp_path, engine, shadow, mirror={"other": 0}) as door:
                engine.faults = Faults(status=500)
                status, _, _ = await door.chat(chat(tools=TOOLS))
                assert status == 500
                engine.faults = Faults(truncate_after=3)
                await door.chat(chat(tools=TOOLS, stream=True))
                await door.settled()
                assert await door.outcomes() == {
                    ("s0", "not_comparable", "primary_error"): 1,
                    ("s0", "not_comparable", "truncated"): 1,
                }

    asyncio.run(main())


def test_a_tool_that_was_not_offered_is_no_label(tmp_path: Path) -> None:
    invented = Script(calls=(PARIS.calls[0].__class__("John Doe, account 4711", "{}"),))

    async def main() -> None:
        async with StandIn([invented]) as engine, StandIn([invented]) as shadow:
            async with proxy(tmp_path, engine, shadow) as door:
                await ask(door, 1, tools=TOOLS)
                await door.settled()
                assert await door.metric("counterproof_tool_calls_total", tool="other", verdict="invalid") == 1
                assert "4711" not in door.service.metrics.text("")[0].decode()

    asyncio.run(main())


def test_a_shadow_that_fails_again_and_again_is_left_alone_then_tried(tmp_path: Path) -> None:
    now = [0.0]

    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow, StandIn([TEXT]) as other:
            async with proxy(tmp_path, engine, shadow, other, shadow={"max_concurrency": 1}) as door:
                door.service.mirrors[0].references[0]._clock = lambda: now[0]
                shadow.faults = Faults(status=500)
                await ask(door, 3)
                await door.settled()
                assert (await door.outcomes())["s0", "failed", "server_error"] == 3
                assert await door.metric("counterproof_shadow_circuit_open", shadow="s0") == 1
                generated = shadow.generated
                await ask(door, 5)
                await door.settled()
                assert (await door.outcomes())["s0", "dropped", "circuit_open"] == 5
                assert shadow.generated == generated, "an open circuit asks nothing"
                now[0] = 5.0
                await ask(door, 1)
                await door.settled()
                assert (await door.outcomes())["s0", "failed", "server_error"] == 4, "one trial, and it failed"
                shadow.faults = Faults()
                now[0] = 14.9
                await ask(door, 1)
                now[0] = 15.0
                await ask(door, 1)
                await door.settled()
                await ask(door, 4)
                await door.settled()
                outcomes = await door.outcomes()
                assert outcomes["s0", "dropped", "circuit_open"] == 6
                assert outcomes["s0", "compared", ""] == 5
                assert outcomes["s1", "compared", ""] == 15, "another shadow has nothing to do with it"
                assert sum(n for (name, _, _), n in outcomes.items() if name == "s0") == 15
                assert await door.metric("counterproof_shadow_circuit_open") == 0

    asyncio.run(main())


def test_nothing_is_asked_of_the_primary_for_shadows_whose_circuits_are_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow, proxy(tmp_path, engine, shadow) as door:
            shadow.faults = Faults(body=b"<html>")
            await ask(door, 3)
            await door.settled()
            engine.received.clear()
            await ask(door, 1)
            assert "return_token_ids" not in json.loads(engine.received[-1].body)

    asyncio.run(main())


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 503}, {"status": 429}, {"body": b"<html>"}], ids=str)
@pytest.mark.parametrize("whose", ["the shadow's", "the primary's"])
def test_an_engine_that_is_found_in_a_bad_moment_is_asked_again(
    tmp_path: Path, fault: dict[str, Any], whose: str
) -> None:
    """A gateway may answer so while its engine loads: that says nothing about what the engine can do."""

    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow:
            bad = shadow if whose == "the shadow's" else engine
            bad.faults = Faults(**fault)
            async with proxy(tmp_path, engine, shadow, fit=False) as door:
                async with asyncio.timeout(10):
                    while not bad.generated:
                        await asyncio.sleep(0.01)
                assert await door.metric("counterproof_shadow_up", shadow="s0") == 0
                bad.faults = Faults()
                async with asyncio.timeout(20):
                    while not await door.metric("counterproof_shadow_up", shadow="s0"):
                        await asyncio.sleep(0.05)
                await ask(door, 1)
                await door.settled()
                assert await door.outcomes() == {("s0", "compared", ""): 1}

    asyncio.run(main())


def test_what_is_too_large_or_out_of_the_sample_is_counted_once_it_is_answered_and_by_that_alone(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with StandIn([TEXT]) as engine, StandIn([TEXT]) as shadow:
            limits = {"other": 0, "tool_calls": 0, "max_body_bytes": 2000}
            async with proxy(tmp_path, engine, shadow, mirror=limits) as door:
                engine.faults = Faults(abort_after_bytes=900)
                with pytest.raises(aiohttp.ClientError):
                    await door.chat(chat(stream=True))
                await door.settled()
                assert await door.outcomes() == {("s0", "sampled_out", ""): 1}
                large = chat(messages=[{"role": "user", "content": "word " * 1000}])
                await engine.refuse_connections()
                assert (await door.chat(large))[0] == 502
                await engine.accept_connections()
                engine.faults = Faults()
                assert (await door.chat(large))[0] == 200
                assert await door.outcomes() == {("s0", "sampled_out", ""): 1, ("s0", "dropped", "too_large"): 1}

    asyncio.run(main())
