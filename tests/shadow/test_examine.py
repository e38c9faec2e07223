"""What a reference says of an exchange, on stand-ins whose drift is known beforehand."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shadow.capabilities import Capabilities, discover
from shadow.engine import Engine
from shadow.examine import Examination, examine
from shadow.exchange import Choice, Dialect, Exchange, Request, Timings
from shadow.wire import answers, dialects
from tests.standin import Call, Faults, Script, StandIn
from tests.standin.asking_it import HELLO, LEAD, PARIS, TOLD, TOOLS, chat, client, post
from validators import ToolCall, Word

NEARLY = Script(text=LEAD, calls=(Call("send", '{"city": "Rome", "n": 1}'),), margin=0.04)
CLEARLY = replace(NEARLY, margin=1.5)
SAME_IN_OTHER_WORDS = Script(text=LEAD, calls=(Call("send", '{"n": 1.0,   "city": "Paris"}'),))

pytestmark = pytest.mark.slow


async def exchange_with(engine: StandIn, **fields: Any) -> Exchange:
    """A whole exchange with a primary, with ids and logprobs told."""
    body = chat(tools=TOOLS) | fields
    raw = await post(engine, TOLD | body)
    answer = answers.read(Dialect.CHAT, raw, stream=bool(body.get("stream")))
    return Exchange("cp-1", Request(Dialect.CHAT, body), answer, 200, 0.0, Timings(0, 0, 0), "c")


def judged(
    ours: Sequence[Script], theirs: Sequence[Script], can: dict[str, Any] | None = None, **fields: Any
) -> Examination:
    """What a reference with scripts `theirs` says of a primary with scripts `ours`; `can` takes abilities away."""

    async def main() -> Examination:
        async with StandIn(ours) as primary, StandIn(theirs) as reference, client(reference) as engine:
            abilities = await discover(engine)
            exchange = await exchange_with(primary, **fields)
            return await examine(exchange, engine, replace(abilities, **(can or {})), None)

    return asyncio.run(main())


def words(examination: Examination) -> list[str]:
    return [finding.word.value for report in examination.choices for finding in report.findings]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ([PARIS], [PARIS], Word.MATCH),
        ([PARIS], [CLEARLY, PARIS], Word.MISMATCH),
        ([PARIS], [NEARLY, PARIS], Word.NEAR_TIE),
        ([replace(PARIS, sampled=frozenset({0})), CLEARLY], [CLEARLY, PARIS], Word.MISMATCH),
    ],
    ids=["the same", "a confident flip", "a near tie", "sampled a winner of neither"],
)
def test_the_word_for_a_call(ours: list[Script], theirs: list[Script], word: Word, stream: bool) -> None:  # noqa: FBT001
    if word is Word.MISMATCH and ours[0].sampled:
        word = Word.SAMPLED_CHOICE
        ours = [CLEARLY, ours[0]]
    result = judged(ours, theirs, stream=stream)
    assert (result.outcome, words(result)) == ("compared", [word.value])
    report = result.choices[0]
    assert report.ways == ["score", "continue"]
    assert report.start is not None
    assert report.start.exact
    regions = [position.region.value for position in report.positions]
    assert regions == ["text"] * report.start.index + ["tool_call"] * (len(regions) - report.start.index)


def test_a_call_in_other_words_matches_and_its_flips_are_still_counted() -> None:
    result = judged([PARIS], [SAME_IN_OTHER_WORDS, PARIS])
    assert words(result) == ["match"]
    assert any(p.outcome == "flip" for p in result.choices[0].positions)


def test_differences_are_named_by_pointers() -> None:
    finding = judged([PARIS], [CLEARLY, PARIS]).choices[0].findings[0]
    assert (finding.reason, [d.pointer for d in finding.differences]) == ("arguments", ["/city"])


def test_a_reference_that_would_not_have_called() -> None:
    text = Script(text=LEAD + "No call is needed here at all.")
    finding = judged([PARIS], [text, PARIS]).choices[0].findings[0]
    assert (finding.word, finding.reason) == (Word.MISMATCH, "no_call")


@pytest.mark.parametrize(
    ("can", "ways"),
    [
        ({"prompt_logprobs": False}, ["probe", "continue"]),
        ({"chat_prompt_ids": False}, ["score", "replay"]),
        ({"prompt_logprobs": False, "token_ids_in": False}, ["continue"]),
    ],
    ids=["no prompt logprobs", "no prompt ids on chat", "no ids in"],
)
def test_an_engine_is_asked_in_the_ways_that_it_can(can: dict[str, Any], ways: list[str]) -> None:
    result = judged([PARIS], [PARIS], can)
    assert (result.choices[0].ways, words(result)) == (ways, ["match"])


def test_another_call_from_the_start_says_nothing_without_a_shared_history() -> None:
    result = judged([PARIS], [CLEARLY, PARIS], {"chat_prompt_ids": False})
    finding = result.choices[0].findings[0]
    assert (finding.word, finding.reason) == (Word.UNVERIFIED, "no_shared_history")


def judged_as_response(
    theirs: Sequence[Script], can: dict[str, Any] | None = None, *, silent: bool = False, **fields: Any
) -> Examination:
    """Likewise of an exchange that was a response: its ids were told, and neither token texts nor logprobs."""

    async def main() -> Examination:
        async with StandIn([PARIS]) as primary, StandIn(theirs) as reference, client(reference) as engine:
            abilities = await discover(engine)
            exchange = await exchange_with(primary)
            tools = [{"type": "function", "name": "send", "parameters": {"type": "object"}}]
            sent: dict[str, Any] = {"model": "smollm2", "input": HELLO, "tools": tools, "max_output_tokens": 200}
            sent["temperature"] = 0
            exchange.request = dialects.request_of(Dialect.RESPONSES, sent | fields)
            for choice in exchange.answer.choices.values():
                choice.token_bytes = choice.top = choice.emitted_wins = None
                choice.lead = choice.content = "" if silent else choice.content
            return await examine(exchange, engine, replace(abilities, **(can or {})), None)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("theirs", "fields", "word", "reason"),
    [
        ([PARIS], {}, Word.MATCH, ""),
        ([PARIS], {"temperature": 1}, Word.MATCH, ""),
        ([CLEARLY, PARIS], {}, Word.MISMATCH, "arguments"),
        # whether it was sampled or chosen is not told
        ([CLEARLY, PARIS], {"temperature": 1}, Word.UNVERIFIED, "no_logprobs"),
        ([CLEARLY, PARIS], {"temperature": None}, Word.UNVERIFIED, "no_logprobs"),
        ([NEARLY, PARIS], {}, Word.NEAR_TIE, "arguments"),
        # with every penalty named, nothing but the winner can have been emitted
        ([NEARLY, PARIS], {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}, Word.NEAR_TIE,
         "arguments"),
    ],
)  # fmt: skip
def test_a_response_whose_ids_were_told_is_compared_on_them(
    theirs: list[Script], fields: dict[str, Any], word: Word, reason: str
) -> None:
    report = judged_as_response(theirs, **fields).choices[0]
    assert report.ways == ["score", "continue"]
    assert report.start is not None
    (finding,) = report.findings
    assert (finding.word, finding.reason) == (word, reason)


@pytest.mark.parametrize(
    ("silent", "temperature", "word", "reason"),
    [
        (True, 0, Word.MISMATCH, "arguments"),
        (True, 1, Word.UNVERIFIED, "no_shared_history"),
        (False, 0, Word.UNVERIFIED, "no_shared_history"),
    ],
)
def test_a_reference_that_takes_no_prompt_ids_repeats_a_response(
    monkeypatch: pytest.MonkeyPatch, silent: bool, temperature: int, word: Word, reason: str  # noqa: FBT001
) -> None:  # fmt: skip
    async def replay(*_args: Any, **_terms: Any) -> Choice:
        return Choice(0, content="" if silent else LEAD, calls=(ToolCall("send", '{"city": "Rome", "n": 1}'),))

    monkeypatch.setattr(Engine, "replay", replay)
    can = {"chat_prompt_ids": False}
    report = judged_as_response([PARIS], can, silent=silent, temperature=temperature).choices[0]
    assert report.ways == ["score", "replay"]
    assert [(finding.word, finding.reason) for finding in report.findings] == [(word, reason)]


def test_where_texts_are_unknown_the_call_is_found_by_detokenizing() -> None:
    async def main() -> Examination:
        async with StandIn([PARIS]) as primary, StandIn([CLEARLY, PARIS]) as reference, client(reference) as engine:
            abilities = await discover(engine)
            exchange = await exchange_with(primary)
            exchange.answer.choices[0].token_bytes = None
            return await examine(exchange, engine, abilities, None)

    report = asyncio.run(main()).choices[0]
    assert report.start is not None
    assert not report.start.exact
    assert report.ways == ["score", "continue"]
    assert report.findings[0].word is Word.MISMATCH


def test_the_template_may_drift_and_that_is_its_own_finding() -> None:
    async def main(messages: list[dict[str, str]]) -> Examination:
        async with StandIn([PARIS]) as primary, StandIn([PARIS]) as reference, client(reference) as engine:
            abilities = await discover(engine)
            exchange = await exchange_with(primary)
            exchange.request.body["messages"] = messages  # as if the reference's template wrote them otherwise
            return await examine(exchange, engine, abilities, None)

    assert asyncio.run(main([{"role": "user", "content": "Hello, host!"}])).prompt_differs is False
    drifted = asyncio.run(main([{"role": "user", "content": "Hello,  host!"}]))
    assert (drifted.prompt_differs, words(drifted)) == (True, ["match"])


FAILURES = {
    "500": (Faults(status=500), "failed", "server_error"),
    "garbage": (Faults(body=b"<html>"), "failed", "garbage"),
    "another shape": (Faults(body=b'{"choices": 3}'), "failed", "garbage"),
    "400": (Faults(status=400), "not_comparable", "refused"),
    "all-zero logprobs": (Faults(logprobs="zero"), "failed", "garbage"),
    "null logprobs": (Faults(logprobs="null"), "failed", "garbage"),
    "NaN in the JSON": (Faults(logprobs="nan"), "failed", "garbage"),
    "closed": (Faults(close_before_byte=True), "failed", "unreachable"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_reference_is_no_divergence(name: str) -> None:
    faults, outcome, reason = FAILURES[name]

    async def main() -> Examination:
        async with StandIn([PARIS]) as primary, StandIn([PARIS]) as reference, client(reference) as engine:
            abilities = await discover(engine)
            exchange = await exchange_with(primary)
            reference.faults = faults
            return await examine(exchange, engine, abilities, None)

    result = asyncio.run(main())
    assert (result.outcome, result.reason) == (outcome, reason)
    assert [(f.word, f.reason) for report in result.choices for f in report.findings] == [(Word.UNVERIFIED, reason)]
    assert not [p for report in result.choices for p in report.positions]


def test_a_call_that_only_continue_could_not_verify_keeps_its_positions() -> None:
    async def main() -> Examination:
        async with StandIn([PARIS]) as primary, StandIn([PARIS]) as reference, client(reference) as engine:
            abilities = await discover(engine)
            exchange = await exchange_with(primary)
            reference.faults = Faults(status=503, only=lambda path, _body: path.endswith("/chat/completions"))
            return await examine(exchange, engine, abilities, None)

    result = asyncio.run(main())
    assert (result.outcome, result.choices[0].ways) == ("compared", ["score"])
    assert [(f.word, f.reason) for f in result.choices[0].findings] == [(Word.UNVERIFIED, "server_error")]


def test_an_engine_that_ignores_the_ids_is_not_believed() -> None:
    async def main() -> Examination:
        async with StandIn([PARIS]) as primary, StandIn([PARIS], tokenizer_shift=3) as other, client(other) as engine:
            abilities: Capabilities = await discover(engine)
            exchange = await exchange_with(primary)
            request = Request(Dialect.CHAT, exchange.request.body | {"messages": []})
            exchange.request = request
            return await examine(exchange, engine, replace(abilities, max_model_len=None), None)

    result = asyncio.run(main())
    assert result.outcome in {"failed", "not_comparable", "compared"}
    assert words(result) != ["match"]


def test_a_full_context_is_scored_but_for_its_last_position_which_is_probed() -> None:
    async def main() -> tuple[Examination, int]:
        async with StandIn(ends=False) as primary, StandIn(max_model_len=60) as reference, client(reference) as engine:
            abilities = await discover(engine)
            exchange = await exchange_with(primary, tools=None, tool_choice=None, max_tokens=8)
            choice = exchange.answer.choices[0]
            assert choice.prompt_ids is not None
            room = 60 - len(choice.prompt_ids)
            exchange = await exchange_with(primary, tools=None, tool_choice=None, max_tokens=room)
            return await examine(exchange, engine, abilities, None), room

    result, room = asyncio.run(main())
    assert (result.outcome, result.choices[0].ways) == ("compared", ["score", "probe"])
    assert [p.index for p in result.choices[0].positions] == list(range(room))


FORGED = {
    "vllm_xargs": {"forced_ids": [1, 2, 3]},
    "kv_transfer_params": {"prompt_token_ids": [5, 6, 7]},
    "cache_salt": "salt",
    "priority": -100,
    "request_id": "chosen",
    "user": "someone",
    "metadata": {"a": "b"},
    "seed": 4,
    "temperature": 1.5,
    "n": 3,
    "stream_options": {"include_usage": True},
}


def test_a_client_cannot_steer_slow_or_read_the_reference() -> None:
    async def main() -> list[bytes]:
        async with StandIn([PARIS]) as primary, StandIn([PARIS]) as reference, client(reference) as engine:
            abilities = await discover(engine)
            exchange = await exchange_with(primary)
            exchange.request.body.update(FORGED)
            reference.received.clear()
            await examine(exchange, engine, replace(abilities, chat_prompt_ids=True), None)
            for_continue = [r.body for r in reference.received]
            reference.received.clear()
            await examine(exchange, engine, replace(abilities, chat_prompt_ids=False), None)
            assert not any(b"kv_transfer_params" in r.body for r in reference.received)
            return for_continue + [r.body for r in reference.received]

    bodies = asyncio.run(main())
    assert bodies
    for body in bodies:
        for name in (
            "vllm_xargs",
            "cache_salt",
            "priority",
            "request_id",
            "user",
            "metadata",
            "seed",
        ):
            assert f'"{name}":'.encode() not in body
        assert b"[5,6,7]" not in body
        assert b'"temperature":0' in body or b'"messages"' in body


# -- what has no token ids: the calls of a free answer


IMAGE = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
]


def judged_untold(
    ours: Sequence[Script], theirs: Sequence[Script], request: dict[str, Any] | None = None, **fields: Any
) -> Examination:
    """The same of an exchange whose answer carried no ids; `request` are fields that only the shadow's view has."""

    async def main() -> Examination:
        async with StandIn(ours) as primary, StandIn(theirs) as reference, client(reference) as engine:
            body = chat(tools=TOOLS) | fields
            answer = answers.read(Dialect.CHAT, await post(primary, body), stream=False)
            seen = Request(Dialect.CHAT, body | (request or {}))
            exchange = Exchange("cp-1", seen, answer, 200, 0.0, Timings(0, 0, 0), "c")
            result = await examine(exchange, engine, await discover(engine), None)
            asked = [r for r in reference.received if r.path == "/v1/chat/completions"]
            assert not result.choices or len(asked) <= 3  # those of `discover` included
            return result

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("request_fields", "why"),
    [
        ({}, "no_token_ids"),
        ({"include_reasoning": False}, "hidden_reasoning"),
        ({"messages": [{"role": "user", "content": IMAGE}]}, "multimodal"),
        ({"use_beam_search": True}, "not_injectable"),
    ],
)
@pytest.mark.parametrize(("theirs", "word"), [([PARIS], "match"), ([CLEARLY, PARIS], "unverified")])
def test_calls_without_token_ids_are_compared_with_a_free_answer(
    request_fields: dict[str, Any], why: str, theirs: list[Script], word: str
) -> None:
    result = judged_untold([PARIS], theirs, request_fields)
    assert (result.outcome, result.choices[0].ways, result.choices[0].positions) == ("compared", ["replay"], [])
    assert words(result) == [word]
    assert result.choices[0].findings[0].reason == ("" if word == "match" else why)
    assert result.choices[0].reference_calls


def test_a_call_of_the_reference_alone_is_seen_in_a_free_answer_too() -> None:
    result = judged_untold([Script(text="No.")], [PARIS])
    assert words(result) == ["unverified"]
    assert result.choices[0].calls == ()


def test_one_free_answer_serves_all_choices() -> None:
    result = judged_untold([PARIS], [PARIS], n=2, temperature=1)
    assert [report.ways for report in result.choices] == [["replay"], ["replay"]]


def test_where_no_tool_may_be_called_a_free_answer_would_tell_nothing() -> None:
    result = judged_untold(
        [Script(text="No.")], [PARIS], {"messages": [{"role": "user", "content": IMAGE}]}, tools=None
    )
    assert (result.outcome, result.reason) == ("not_comparable", "multimodal")
