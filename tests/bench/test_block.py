import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bench import block, holding, judging
from bench.holding import AFTER_TEXT, BLOCKED, DEMANDED, OBSERVED, OUTSIDE, Hold, delays, hold_of
from bench.paced import scripts_of
from bench.procs import Unavailable
from bench.tap import Passed, Tap, Way

MS = 1_000_000


def passed(*pieces: tuple[float, bytes]) -> Passed:
    """What passed, by milliseconds."""
    result = Passed()
    for at, data in pieces:
        result.add(data, int(at * MS))
    return result


def event(**delta: Any) -> bytes:
    """A chunk; `finish` and `ids` are the choice's."""
    finish, ids = delta.pop("finish", None), delta.pop("ids", None)
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "token_ids": ids}
    return b"data: " + json.dumps({"choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


CALL = {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}
STREAM = (
    (0.0, event(role="assistant", content="")),
    (10.0, event(content="Hi ", ids=[1])),
    (20.0, event(content="there.", ids=[2])),
    (40.0, event(ids=[3])),
    (60.0, event(ids=[4, 5], **CALL)),
    (80.0, event(ids=[6], finish="tool_calls")),
    (81.0, b"data: [DONE]\n\n"),
)
GONE_ON = b'{"kv_transfer_params":{"prompt_token_ids":[1,2]}}'


def way(asked_at: float, answered_at: float) -> Way:
    return Way(passed((asked_at, GONE_ON)), passed((answered_at - 1, b"{"), (answered_at, b"}")))


# -- what a tap saw


def test_each_byte_passed_with_its_piece() -> None:
    seen = passed((1, b"ab"), (2, b""), (3, b"cde"))
    assert (seen.raw, len(seen), seen.last) == (b"abcde", 5, 3 * MS)
    assert [seen.when(i) for i in range(5)] == [1 * MS, 1 * MS, 3 * MS, 3 * MS, 3 * MS]
    assert seen.first(b"bc") == 1 * MS
    assert seen.first(b"x") is None
    with pytest.raises(IndexError):
        seen.when(5)


@pytest.mark.parametrize("cut", [1, 30, -3])
def test_an_event_has_passed_with_its_last_byte(cut: int) -> None:
    body = event(content="Hi")
    seen = passed((0, b"5f\r\n" + body[:cut]), (7, body[cut:] + b"\r\n"))
    ((at, value),) = seen.events()
    assert at == 7 * MS
    assert value["choices"][0]["delta"] == {"content": "Hi"}


def test_a_tap_passes_everything_on_and_keeps_it() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.readexactly(4))
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with Tap.open(f"http://127.0.0.1:{port}/v1") as tap:
                at = int(tap.base_url.removesuffix("/v1").rpartition(":")[2])
                reader, writer = await asyncio.open_connection("127.0.0.1", at)
                writer.write(b"ping")
                assert await reader.read() == b"got ping"
                (seen,) = tap.take()
                assert (seen.asked.raw, seen.answered.raw) == (b"ping", b"got ping")
                assert tap.take() == []
                writer.close()

    asyncio.run(main())


# -- holds


def test_a_call_is_held_from_its_finish_to_its_first_byte() -> None:
    got = passed((11, event(content="Hi ")), (150, event(**CALL)))
    others = Way(passed((5, b'{"max_tokens":1}')), passed((30, b"{}")))
    hold = hold_of(passed(*STREAM), [others, way(45, 131)], got)
    assert hold == Hold(held=70, written=40, tokens=4, begun=5, waited=51, answered=86)
    assert hold.own == 19


def test_a_reference_that_was_asked_after_the_finish_is_told_so() -> None:
    hold = hold_of(passed(*STREAM), [way(95, 120)], passed((130, event(**CALL))))
    assert hold.begun is None
    assert (hold.held, hold.waited, hold.own) == (50, 40, 10)


def test_the_proxy_has_what_follows_the_later_of_finish_and_answer() -> None:
    assert hold_of(passed(*STREAM), [way(45, 70)], passed((83, event(**CALL)))).own == 3


@pytest.mark.parametrize(
    ("reference", "got"),
    [([], event(**CALL)), ([Way(passed((1, b"{}")), passed((2, b"{}")))], event(**CALL)), ([way(45, 70)], event())],
)
def test_no_call_or_no_continuation_is_no_hold(reference: list[Way], got: bytes) -> None:
    with pytest.raises(Unavailable):
        hold_of(passed(*STREAM), reference, passed((99, got)))


# -- text


def test_each_text_is_told_by_how_long_it_took() -> None:
    got = passed((13, event(content="Hi ")), (22, event(content="there.")))
    assert delays(passed(*STREAM), got) == [3, 2]
    with pytest.raises(Unavailable):
        delays(passed(*STREAM), passed((13, event(content="Hi there."))))
    with pytest.raises(Unavailable):
        delays(passed(), passed())


def test_modes_are_compared_chunk_by_chunk_and_stream_by_stream() -> None:
    assert holding.added([[3, 4, 9], [1, 1, 1]], [[1, 1, 1], [2, 2, 2]]) == [3, -1]


# -- what is said of it


HOLD = Hold(held=55.0, written=640.0, tokens=33, begun=2.0, waited=51.0, answered=690.0)
LATE = Hold(held=70.0, written=640.0, tokens=33, begun=None, waited=60.0, answered=30.0)


def test_a_limit_is_met_or_missed_by_the_median() -> None:
    assert block.limit([10, 59.9, 100], "a call").startswith("- met: a call: held 59.9 (")
    assert (
        block.limit([61.0], "a call") == "- MISSED: a call: held 61.0 (61.0 to 61.0) ms of at most 60 ms at the median"
    )


def test_holds_are_told_with_what_they_are_made_of() -> None:
    rows = block.held_table({"short": [HOLD, HOLD], "late": [LATE], "none": []}).splitlines()[2:]
    assert rows[0].startswith("| short | 2 | 33 | 640 | 55.0 (55.0 to 55.0) | 55.0 | 55.0 | 2.0 | 51.0 | 4.0 |")
    assert "| after the finish |" in rows[1]
    assert rows[2] == "| none | 0 | " + " | ".join(["–"] * 8) + " |"


def test_the_sections_say_what_was_done_and_whether_text_comes_later() -> None:
    said = block.calls({4: [HOLD], 30: [LATE]}, {"released match": 2})
    assert "- met: a call of 4 words" in said
    assert "- MISSED: a call of 30 words" in said
    assert said.endswith("- done with them: released match 2")
    even, late = [[1.0, 1.2], [1.1, 1.0]], [[2.0, 2.2], [2.1, 2.0]]
    said = block.text({BLOCKED: even, OBSERVED: even, OUTSIDE: late})
    assert f"- block mode minus {OBSERVED}: 0 (0 to 0) µs a chunk; 0 lies inside: no detectable effect" in said
    assert f"- block mode minus {OUTSIDE}: -1000 (-1000 to -1000) µs a chunk; 0 lies outside" in said
    said = block.real({AFTER_TEXT: [HOLD], DEMANDED: []}, {})
    assert "held 9 % of the generation's time; a token took the primary 20 ms" in said
    assert said.endswith("- done with them: nothing")


def test_what_judging_takes_is_told_part_by_part_and_held_against_its_limit() -> None:
    spent = judging.measure(judging.BATCH)
    assert spent.keys() == set(judging.PARTS)
    assert all(len(values) == 1 and values[0] > 0 for values in spent.values())
    told = judging.table({part: [7.0] for part in judging.PARTS}).splitlines()
    assert len(told) == 2 + len(judging.PARTS)
    assert all(row.endswith("| 7 | 7 |") for row in told[2:])
    limited = {part: [50.0] for part in judging.LIMITED}
    first, *whole = judging.check_limit(limited | {"agreed": [199.0], "differs": [201.0]}).splitlines()
    assert first == "- met: schema, five rules, repeat and diff: 200 (200 to 200) µs of at most 200 µs"
    assert [line.rpartition(": ")[2] for line in whole] == ["199 (199 to 199) µs", "201 (201 to 201) µs"]
    limited["diff"] = [51.0]
    assert judging.check_limit(limited | {"agreed": [1.0], "differs": [1.0]}).startswith(
        "- MISSED: schema, five rules,"
    )


# -- what is asked


def test_stand_ins_answer_each_request_of_the_bench_with_its_script(tmp_path: Path) -> None:
    file = tmp_path / "scripts.json"
    file.write_text(json.dumps(holding.scripts()))
    scripts = scripts_of(file)
    for words, script in zip(holding.CALL_WORDS, scripts, strict=False):
        assert script.when in holding.asked(f"exactly {words} words", 1)["messages"][1]["content"]
        assert len(json.loads(script.calls[0].arguments)["command"].split()) == words
        assert script.text == holding.LEAD
    text = scripts[-1]
    assert (text.calls, len(text.text.split())) == ((), holding.TEXT_TOKENS)
    prompts = [json.dumps(holding.asked("in text", number)) for number in range(50)]
    assert len(set(prompts)) == 50
    assert all(text.when in prompt and not any(s.when in prompt for s in scripts[:-1]) for prompt in prompts)


def test_real_engines_are_asked_for_calls_after_text_and_for_demanded_ones() -> None:
    asked = list(holding.lookups(3))
    assert [kind for kind, _ in asked] == [AFTER_TEXT, DEMANDED] * 3
    assert [body["tool_choice"] for _, body in asked] == ["auto", "required"] * 3
    assert len({json.dumps(body) for _, body in asked}) == 6
