import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow.exchange import Answer, Choice, Dialect, Request, TopK
from shadow.judge import Case, Rulebook
from shadow.wire import answers
from validators import ToolCall
from validators.policy import Policy, ToolPolicy

STREAMS = Path(__file__).parents[2] / "data" / "streams"
HERMES = Path(__file__).parents[2] / "engine" / "hermes_cases.jsonl"


def chunk(delta: Any = None, finish: str | None = None, index: Any = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": {} if delta is None else delta, "finish_reason": finish}
    return json.dumps({"choices": [choice | more]}).encode()


def read(*payloads: bytes, dialect: Dialect = Dialect.CHAT) -> Answer:
    return answers.read(dialect, b"".join(b"data: " + p + b"\n\n" for p in payloads), stream=True)


def whole(*choices: Any, dialect: Dialect = Dialect.CHAT, **more: Any) -> Answer:
    return answers.read(dialect, json.dumps({"choices": list(choices)} | more).encode(), stream=False)


def listed(top: TopK | None) -> list[dict[int, float]]:
    assert top is not None
    return [dict(zip(i.tolist(), lp.tolist(), strict=True)) for i, lp in zip(top.ids, top.logprobs, strict=True)]


# -- what real engines sent


def dialect_of(name: str) -> Dialect:
    return Dialect.COMPLETIONS if name.startswith("comp") else Dialect.CHAT


def recorded(name: str, kind: str) -> Answer:
    path = STREAMS / f"{name}.{kind}"
    return answers.read(dialect_of(name), path.read_bytes(), stream=kind == "sse")


@pytest.mark.parametrize("kind", ["sse", "json"])
@pytest.mark.parametrize("side", ["plain", "inj"])
@pytest.mark.parametrize(
    ("name", "contents", "finishes"),
    [
        ("auto", ["The host is 10.0.1.201."], ["stop"]),
        ("req", [""], ["tool_calls"]),
        ("text", ["2+2 is a mathematical concept that represents the sum of two numbers."], ["stop"]),
        (
            "n2",
            [
                "2+2 is 4 in mathematics.",
                "I'm sorry but I don't use Unicode on my keyboard. I can talk, not write,",
            ],
            ["stop", "length"],
        ),
        ("comp", [" Paris.\n\nThe United", "-tailed test, which is"], ["length", "length"]),
    ],
)
def test_recorded_answers(name: str, contents: list[str], finishes: list[str], side: str, kind: str) -> None:
    answer = recorded(f"{name}-{side}", kind)
    assert answer.problem is None
    assert answer.model == "smollm2"
    assert list(answer.choices) == list(range(len(contents)))
    assert [choice.content for choice in answer.choices.values()] == contents
    assert [choice.finish_reason for choice in answer.choices.values()] == finishes
    assert answer.usage is not None
    for choice in answer.choices.values():
        known = side == "inj"
        assert (choice.prompt_ids is not None) == (choice.token_ids is not None) == (choice.top is not None) == known
    if side == "inj":
        told = sum(len(choice.token_ids or ()) for choice in answer.choices.values())
        assert told == answer.usage["completion_tokens"]


@pytest.mark.parametrize("kind", ["sse", "json"])
@pytest.mark.parametrize("side", ["plain", "inj"])
def test_a_recorded_call(side: str, kind: str) -> None:
    (call,) = recorded(f"req-{side}", kind).choices[0].calls
    assert call.name == "run_command"
    assert call.arguments == (
        '{"device": "edge-1", "command": "show mac address table", "interface": "GigabitEthernet0/1/1.201"}'
    )
    assert call.id is not None
    assert call.id.startswith("chatcmpl-tool-")


@pytest.mark.parametrize("name", ["auto-inj", "comp-inj", "n2-inj", "req-inj", "text-inj"])
def test_recorded_tokens_are_the_same_streamed_or_not(name: str) -> None:
    streamed, at_once = recorded(name, "sse"), recorded(name, "json")
    for index, choice in streamed.choices.items():
        other = at_once.choices[index]
        assert choice.prompt_ids == other.prompt_ids
        assert choice.token_ids == other.token_ids
        assert choice.token_bytes == other.token_bytes
        assert choice.emitted_wins == other.emitted_wins
        assert len(listed(choice.top)) == len(choice.token_ids or ())


def test_recorded_logprobs_by_hand() -> None:
    choice = recorded("text-inj", "sse").choices[0]
    first = {34: -2.018951654434204, 10813: -2.143951654434204, 57: -2.893951654434204, 33: -2.893951654434204}
    assert listed(choice.top)[0] == first | {504: -3.143951654434204}
    assert (choice.token_ids or ())[:3] == (34, 27, 34)
    assert (choice.token_bytes or ())[:3] == (b"2", b"+", b"2")
    assert b"".join(text for text in choice.token_bytes or () if text) == (
        b"2+2 is a mathematical concept that represents the sum of two numbers.<|im_end|>"
    )
    completion = recorded("comp-inj", "sse").choices
    assert completion[0].prompt_ids == (504, 3575, 282, 4649, 314)
    assert completion[1].prompt_ids == (2705, 827)
    assert completion[0].token_bytes == (None,) * 6
    assert listed(completion[0].top)[0][7042] == -0.11895039677619934


def test_minus_9999_is_minus_infinity() -> None:
    top = listed(recorded("req-inj", "json").choices[0].top)
    assert top[0] == {44: 0.0, 1: -np.inf, 3: -np.inf, 4: -np.inf, 0: -np.inf}


def test_streams_of_the_real_parser_are_assembled() -> None:
    """Against a second, simpler assembly of the same deltas."""
    called = 0
    for line in HERMES.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        names: dict[int, str] = {}
        arguments: dict[int, str] = {}
        text = ""
        for part in case["chunks"]:
            text += part["delta"].get("content") or ""
            for call in part["delta"].get("tool_calls", ()):
                names[call["index"]] = names.get(call["index"], "") + call["function"].get("name", "")
                arguments[call["index"]] = arguments.get(call["index"], "") + call["function"].get("arguments", "")
        answer = read(*(chunk(c["delta"], c.get("finish_reason")) for c in case["chunks"]), b"[DONE]")
        assert answer.problem is None
        choice = answer.choices[0]
        assert choice.content == text
        assert choice.calls == tuple(ToolCall(names[i], arguments[i], f"call_{i}") for i in sorted(names)), case["name"]
        called += bool(names)
    assert called >= 30


# -- what may go wrong


def test_a_whole_stream() -> None:
    answer = read(chunk({"role": "assistant", "content": ""}), chunk({"content": "Hi"}), chunk({}, "stop"), b"[DONE]")
    assert answer.problem is None
    assert answer.choices[0].content == "Hi"


@pytest.mark.parametrize(
    "payloads",
    [
        [chunk({"content": "Hi"}), chunk({}, "stop")],
        [chunk({"content": "Hi"}), b"[DONE]"],
        [chunk({"content": "a"}, "stop"), chunk({"content": "b"}, index=1), b"[DONE]"],
        [b"[DONE]"],
        [],
    ],
    ids=["no DONE", "no finish", "one of two finished", "nothing but DONE", "nothing"],
)
def test_an_answer_that_is_not_whole_is_truncated_and_never_completed(payloads: list[bytes]) -> None:
    answer = read(*payloads)
    assert answer.problem == "truncated"
    assert all(choice.finish_reason in {None, "stop"} for choice in answer.choices.values())


def test_a_last_event_without_its_blank_line_was_not_sent() -> None:
    body = b"data: " + chunk({"content": "a"}, "stop") + b"\n\ndata: [DONE]\n"
    assert answers.read(Dialect.CHAT, body, stream=True).problem == "truncated"
    assert answers.read(Dialect.CHAT, body + b"\n", stream=True).problem is None


@pytest.mark.parametrize("error", [{"message": "no"}, "no", 500])
def test_an_error_inside_a_stream(error: Any) -> None:
    answer = read(chunk({"content": "Hi"}), json.dumps({"error": error}).encode(), b"[DONE]")
    assert answer.problem == "error"
    assert answer.choices[0].content == "Hi"


def test_an_error_stands_over_garbage_and_null_is_none() -> None:
    assert read(b"garbage", b'{"error": {}}', b"[DONE]").problem == "error"
    assert read(b'{"error": {}}', b"garbage", b"[DONE]").problem == "error"
    assert read(b'{"error": null, "choices": [{"finish_reason": "stop"}]}', b"[DONE]").problem is None
    assert whole(error={"message": "no"}).problem == "error"


@pytest.mark.parametrize("payload", [b"hello", b"[1]", b"null", b'"x"', b"{", b'{"a": NaN}', b"\xff", b"7", b""])
def test_what_is_not_an_object_is_garbage(payload: bytes) -> None:
    answer = read(chunk({"content": "Hi"}), payload, chunk({}, "stop"), b"[DONE]")
    assert answer.problem == "garbage"
    assert answer.choices[0].content == "Hi"
    assert answers.read(Dialect.CHAT, payload, stream=False).problem == "garbage"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": None},
        {"choices": {}},
        {"choices": [None, 1, "x", []]},
        {"choices": [{}]},
        {"choices": [{"index": 0, "message": None, "delta": []}]},
        {"choices": [{"index": 0, "message": {"content": [], "tool_calls": {}}}]},
        {"usage": [], "model": 7, "choices": [{"index": None, "message": {"content": "x"}}]},
        {"choices": [{"logprobs": {"content": [{"top_logprobs": [None, {"token": []}]}]}, "token_ids": [1]}]},
    ],
)
@pytest.mark.parametrize("dialect", [Dialect.CHAT, Dialect.COMPLETIONS])
def test_odd_shapes_are_read_without_raising(body: Any, dialect: Dialect) -> None:
    for stream in (False, True):
        text = json.dumps(body).encode()
        answer = answers.read(dialect, b"data: " + text + b"\n\n" if stream else text, stream=stream)
        assert answer.problem == "truncated"
        assert answer.model is None


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 300) | st.sampled_from(["", "x", "token_id:5", -9999.0, "stop"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "index",
                    "delta",
                    "message",
                    "content",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "id",
                    "token_ids",
                    "logprobs",
                    "token",
                    "logprob",
                    "bytes",
                    "top_logprobs",
                    "tokens",
                    "token_logprobs",
                    "finish_reason",
                    "text",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(JUNK, max_size=3), st.sampled_from([Dialect.CHAT, Dialect.COMPLETIONS]), st.booleans())
def test_reading_never_raises(choices: list[Any], dialect: Dialect, stream: bool) -> None:  # noqa: FBT001
    text = json.dumps({"choices": choices}).encode()
    body = b"data: " + text + b"\n\n" if stream else text
    answer = answers.read(dialect, body, stream=stream)
    assert answer.problem in {None, "truncated", "garbage"}
    for choice in answer.choices.values():
        assert choice.top is None or len(choice.top) == len(choice.token_ids or ())


@pytest.mark.parametrize("digits", ["9" * 20, "9" * 5000], ids=["20 digits", "5000 digits"])
def test_reading_never_raises_on_monstrous_ids(digits: str) -> None:
    top = [{"token": f"token_id:{digits}", "logprob": -1.0}, {"token": "token_id:5", "logprob": -2.0}]
    logprobs = {"content": [{"token": "token_id:5", "logprob": -2.0, "bytes": [97], "top_logprobs": top}]}
    message = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop", "token_ids": [5], "logprobs": logprobs}
    assert whole(message).choices[0].content == "a"


def test_output_ids_beyond_64_bits_are_not_ids() -> None:
    body = (
        b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop","token_ids":[9223372036854775808]}]}'
    )
    assert answers.read(Dialect.CHAT, body, stream=False).choices[0].token_ids is None


def test_deeply_nested_bytes_are_garbage() -> None:
    assert answers.read(Dialect.CHAT, b'{"choices":' + b"[" * 100_000, stream=False).problem == "garbage"
    assert answers.read(Dialect.CHAT, b"[" * 100_000 + b"]" * 100_000, stream=False).problem == "garbage"


def test_a_whole_body_needs_no_done_but_a_finish() -> None:
    message = {"index": 0, "message": {"role": "assistant", "content": "Hi"}}
    assert whole(message | {"finish_reason": "stop"}).problem is None
    assert whole(message).problem == "truncated"
    assert whole().problem == "truncated"


def test_choices_without_an_index_are_the_first() -> None:
    answer = read(chunk({"content": "a"}, index=None), chunk({"content": "b"}, "stop", index="1"), b"[DONE]")
    assert answer.choices[0].content == "ab"


@pytest.mark.parametrize("index", ["1", True, 1.0, -1, 2**31])
def test_an_index_that_readers_differ_about_is_garbage(index: Any) -> None:
    answer = read(chunk({"content": "a"}), chunk({"content": "b"}, "stop", index=index), b"[DONE]")
    assert (answer.problem, answer.choices[0].content) == ("garbage", "ab")
    assert whole({"index": index, "message": {"content": "x"}, "finish_reason": "stop"}).problem == "garbage"


def test_calls_that_clients_put_together_in_two_ways_are_garbage() -> None:
    first, second = ({"index": i, "id": "0", "function": {"name": "f", "arguments": "{}" * i}} for i in (0, 1))
    answer = read(chunk({"tool_calls": [first]}), chunk({"tool_calls": [second]}, "tool_calls"), b"[DONE]")
    assert answer.problem == "garbage"
    message = {"tool_calls": [first, second]}  # whole calls are nobody's pieces
    assert whole({"index": 0, "message": message, "finish_reason": "tool_calls"}).problem is None


# -- calls, reasoning, older shapes


def called(*deltas: Any, finish: str = "tool_calls") -> Choice:
    answer = read(*(chunk(delta) for delta in deltas), chunk({}, finish), b"[DONE]")
    assert answer.problem is None
    return answer.choices[0]


def test_the_older_function_call() -> None:
    pieces: list[dict[str, Any]] = [{"name": "f"}, {"arguments": '{"x":'}, {"arguments": "1}"}]
    choice = called(*({"function_call": piece} for piece in pieces))
    assert choice.calls == (ToolCall("f", '{"x":1}'),)
    message = {"content": None, "function_call": {"name": "f", "arguments": "{}"}}
    assert whole({"index": 0, "message": message, "finish_reason": "stop"}).choices[0].calls == (ToolCall("f", "{}"),)
    none = {"content": "x", "function_call": None, "tool_calls": None}
    assert whole({"index": 0, "message": none, "finish_reason": "stop"}).choices[0].calls == ()


def test_a_call_counts_whatever_the_finish_reason_says() -> None:
    delta = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}
    assert called(delta, finish="stop").calls == (ToolCall("f", "{}", "a"),)
    assert called({"content": ""}, finish="tool_calls").calls == ()


def test_several_calls_in_one_delta_and_content_beside_them() -> None:
    delta = {
        "content": "Both.",
        "tool_calls": [
            {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}},
            {"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}},
        ],
    }
    choice = called({"content": "Now. "}, delta, {"content": " Done."})
    assert choice.calls == (ToolCall("f", "{}", "a"), ToolCall("g", "", "b"))
    assert (choice.lead, choice.content) == ("Now. Both.", "Now. Both. Done.")


def test_arguments_that_come_at_once_after_a_long_silence() -> None:
    silence: list[dict[str, Any]] = [{}] * 300
    name = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "write", "arguments": ""}}]}
    text = json.dumps({"text": "x" * 50_000})
    arguments = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
    assert called(name, *silence, arguments).calls == (ToolCall("write", text, "a"),)


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_under_both_of_its_names(key: str) -> None:
    choice = called({key: "Let me "}, {key: "think."}, {"content": "Yes."})
    assert (choice.reasoning, choice.content) == ("Let me think.", "Yes.")
    message = {"content": "Yes.", "reasoning": None, key: "Hm."}
    assert whole({"index": 0, "message": message, "finish_reason": "stop"}).choices[0].reasoning == "Hm."


def entries(*calls: Any) -> Sequence[ToolCall]:
    message = {"content": None, "tool_calls": list(calls)}
    return whole({"index": 0, "message": message, "finish_reason": "tool_calls"}).choices[0].calls


def test_each_entry_of_a_whole_message_is_a_call_without_ids() -> None:
    assert entries({"function": {"name": "reboot"}}, {"function": {"name": "ping", "arguments": "{}"}}) == (
        ToolCall("reboot", ""),
        ToolCall("ping", "{}"),
    )


def test_each_entry_of_a_whole_message_is_a_call_whatever_its_id() -> None:
    first = {"id": "c", "function": {"name": "ping", "arguments": '{"a":1}'}}
    second = {"id": "c", "function": {"name": "ping", "arguments": '{"a":2}'}}
    assert entries(first, second) == (ToolCall("ping", '{"a":1}', "c"), ToolCall("ping", '{"a":2}', "c"))


def test_arguments_as_an_object_keep_big_integers() -> None:
    body = (
        b'{"choices":[{"index":0,"message":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":'
        b'{"account":12345678901234567890123}}}]},"finish_reason":"tool_calls"}]}'
    )
    (call,) = answers.read(Dialect.CHAT, body, stream=False).choices[0].calls
    assert call.arguments == '{"account": 12345678901234567890123}'


def test_arguments_as_text_keep_every_character() -> None:
    text = '{"account":12345678901234567890123,"a":1,"a":2,"n":NaN}'
    assert [call.arguments for call in entries({"id": "a", "function": {"name": "f", "arguments": text}})] == [text]


# -- tokens


def logprobs(*tokens: tuple[Any, Any, list[tuple[Any, Any]]]) -> dict[str, Any]:
    return {
        "content": [
            {"token": token, "logprob": lp, "bytes": None, "top_logprobs": [{"token": t, "logprob": x} for t, x in top]}
            for token, lp, top in tokens
        ]
    }


def test_logprobs_that_skip_tokens_are_aligned_by_id() -> None:
    one = logprobs(("token_id:5", -0.1, [("token_id:5", -0.1), ("token_id:6", -2.5)]))
    three = logprobs(("token_id:7", -0.3, [("token_id:7", -0.3), ("token_id:8", -1.5)]))
    answer = read(
        chunk({"content": "a"}, token_ids=[5], logprobs=one),
        chunk({}, token_ids=[6], logprobs=None),
        chunk({"content": "c"}, "stop", token_ids=[7], logprobs=three),
        b"[DONE]",
    )
    assert answer.choices[0].token_ids == (5, 6, 7)
    assert listed(answer.choices[0].top) == [{5: -0.1, 6: -2.5}, {-1: -np.inf}, {7: -0.3, 8: -1.5}]


def test_text_only_logprobs_say_who_won_but_name_no_candidate() -> None:
    lists = logprobs(("a", -0.1, [("a", -0.1), ("b", -2.0)]), ("c", -3.0, [("d", -0.1), ("c", -3.0)]), ("e", 0, []))
    choice = read(chunk({"content": "ace"}, "stop", token_ids=[5, 6, 7], logprobs=lists), b"[DONE]").choices[0]
    assert choice.emitted_wins == (True, False, None)
    assert choice.top is not None
    assert not choice.top.known().any()


def test_two_tokens_with_one_text_stay_two() -> None:
    by_text = logprobs(("a", -0.7, [("a", -0.6), ("a", -0.7)]))
    assert read(chunk({}, "stop", token_ids=[5], logprobs=by_text), b"[DONE]").choices[0].emitted_wins == (False,)
    by_id = logprobs(("token_id:5", -0.7, [("token_id:9", -0.6), ("token_id:5", -0.7)]))
    choice = read(chunk({}, "stop", token_ids=[5], logprobs=by_id), b"[DONE]").choices[0]
    assert listed(choice.top) == [{9: -0.6, 5: -0.7}]


def test_null_logprobs_are_unknown_and_never_a_number() -> None:
    lists = logprobs(("token_id:5", None, [("token_id:5", None), ("token_id:6", -0.5), ("token_id:7", -1.0)]))
    choice = read(chunk({}, "stop", token_ids=[5], logprobs=lists), b"[DONE]").choices[0]
    assert choice.emitted_wins == (None,)
    assert listed(choice.top) == [{-1: -np.inf, 6: -0.5, 7: -1.0}]


def test_a_nan_makes_the_chunk_garbage() -> None:
    answer = read(chunk({}, "stop", logprobs={"content": [{"token": "a", "logprob": float("nan")}]}), b"[DONE]")
    assert answer.problem == "garbage"


def test_an_empty_text_and_missing_bytes() -> None:
    lists = {"content": [{"token": "token_id:5", "logprob": 0, "bytes": []}, {"token": "token_id:6", "logprob": 0}]}
    choice = read(chunk({}, "stop", token_ids=[5, 6], logprobs=lists), b"[DONE]").choices[0]
    assert choice.token_bytes == (b"", None)


def test_prompt_ids_stand_around_chat_choices_and_inside_completions_choices() -> None:
    body = json.dumps({"prompt_token_ids": [1, 2], "choices": [{"index": 0, "prompt_token_ids": [3]}]}).encode()
    assert answers.read(Dialect.CHAT, body, stream=False).choices[0].prompt_ids == (1, 2)
    assert answers.read(Dialect.COMPLETIONS, body, stream=False).choices[0].prompt_ids == (3,)


# -- one row of reference/adversarial.md each, from bytes to what is said of the call


@pytest.mark.parametrize(
    ("seen_in", "deltas", "reasons"),
    [
        (
            "vllm#10395",
            [
                {"index": 0, "id": "a", "function": {"name": "ping", "arguments": '{"host": ""'}},
                {"index": 0, "function": {"arguments": '{"host": "a"}'}},
            ],
            ["not_json"],
        ),
        ("vllm#28806: absent", [{"index": 0, "id": "a", "function": {"name": "ping"}}], []),
        ("vllm#28806: null", [{"index": 0, "id": "a", "function": {"name": "ping", "arguments": None}}], []),
        ("vllm#28806: null as text", [{"index": 0, "id": "a", "function": {"name": "ping", "arguments": "null"}}], []),
        ("vllm#28806: empty", [{"index": 0, "id": "a", "function": {"name": "ping", "arguments": ""}}], []),
        ("vllm#48294", [{"index": 0, "id": "a", "function": {"name": "ping", "arguments": '{"host": "a"}'}}], []),
        (
            "sglang#34677",
            [
                {"index": 0, "id": "a", "function": {"name": "ping", "arguments": "{}"}},
                {"index": 1, "id": "b", "function": {"name": "pong", "arguments": "{}"}},
                {"index": 2, "id": "c", "function": {"name": "ping", "arguments": "{}"}},
            ],
            ["unknown_tool"],
        ),
        (
            "vllm#38946",
            [{"index": 0, "id": "a", "function": {"name": "ping", "arguments": '{"host": "a"}<|call_end|>'}}],
            ["not_json"],
        ),
        (
            "openai-python#3246",
            [
                {"id": "a", "function": {"name": "ping", "arguments": '{"host":'}},
                {"function": {"arguments": '"a"}'}},
                {"id": "b", "function": {"name": "ping", "arguments": "{}"}},
            ],
            [],
        ),
        (
            "hermes-agent#7680",
            [{"index": 0, "id": "a", "function": {"name": "ping", "arguments": '{"h'}}],
            ["unclosed"],
        ),
        ("vllm#47761", [{"index": 0, "id": "a", "function": {"name": "ping", "arguments": "{'h': 1}"}}], ["not_json"]),
    ],
)
def test_symptoms_of_real_deployments(seen_in: str, deltas: list[Any], reasons: list[str]) -> None:
    request = Request(Dialect.CHAT, {"tools": [{"type": "function", "function": {"name": "ping"}}]})
    case = Case(Rulebook(Policy(0, ToolPolicy("*"))), request, b"", "")
    for finish in ("tool_calls", "stop"):
        choice = called(*({"tool_calls": [delta]} for delta in deltas), finish=finish)
        assert [finding.reason for finding in case.own(choice.calls)] == reasons, seen_in
