import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow.exchange import Answer
from shadow.wire import responses_answer
from shadow.wire.responses_answer import ResponseReader, token_ids
from validators import ToolCall

RECORDED = Path(__file__).parents[2] / "proxy" / "gates" / "data" / "responses"
ARGUMENTS = '{"device":"edge-1"}'


def recorded(name: str, kind: str) -> Answer:
    return responses_answer.read((RECORDED / f"{name}.{kind}").read_bytes(), stream=kind == "sse")


def read(*events: dict[str, Any]) -> ResponseReader:
    reader = ResponseReader.of_stream()
    for event in events:
        reader.payload(json.dumps(event).encode())
    return reader


def call(**more: Any) -> dict[str, Any]:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "reboot", "arguments": ARGUMENTS}
    return item | more


def added(item: dict[str, Any], index: int | None = 0) -> dict[str, Any]:
    return {"type": "response.output_item.added", "item": item} | ({} if index is None else {"output_index": index})


def done(item: dict[str, Any], index: int | None = 0) -> dict[str, Any]:
    return added(item, index) | {"type": "response.output_item.done"}


def delta(text: Any, own: str | None = "fc_1", index: int | None = 0) -> dict[str, Any]:
    told: dict[str, Any] = {"type": "response.function_call_arguments.delta", "delta": text}
    return told | ({"item_id": own} if own else {}) | ({} if index is None else {"output_index": index})


def whole_arguments(text: Any, **more: Any) -> dict[str, Any]:
    told = {"type": "response.function_call_arguments.done", "item_id": "fc_1", "output_index": 0, "arguments": text}
    return told | more


def ended(*items: Any, status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"status": status, "model": "m", "output": list(items)} | more}


ONE = (ToolCall("reboot", ARGUMENTS, "call_1"),)


# -- what real engines sent


@pytest.mark.parametrize("kind", ["sse", "json"])
@pytest.mark.parametrize(
    ("name", "content", "calls", "finish"),
    [
        ("text", "I'm so glad you're here. I'm so glad", [], "length"),
        ("required", "", ["run_command"], "tool_calls"),
        ("named", "", ["run_command"], "tool_calls"),
        ("text-call", "Let me see.\n", ["run_command"], "tool_calls"),
        ("two-calls", "", ["run_command", "reboot"], "tool_calls"),
        ("namespace", "", ["net__run_command"], "tool_calls"),
        ("non-ascii", "Schön: “é” 🙂\n", ["reboot"], "tool_calls"),
        ("no-arguments", "", ["reboot"], "tool_calls"),
    ],
)
def test_recorded_answers(name: str, content: str, calls: list[str], finish: str, kind: str) -> None:
    answer = recorded(name, kind)
    choice = answer.choices[0]
    assert answer.problem is None
    assert answer.model == "smollm2"
    assert choice.content == choice.lead == content
    assert [one.name for one in choice.calls] == calls
    assert all(one.read.problem is None and (one.id or "").startswith("chatcmpl-tool-") for one in choice.calls)
    assert choice.finish_reason == finish
    assert answer.usage is not None
    assert answer.usage["prompt_tokens"] + answer.usage["completion_tokens"] == answer.usage["total_tokens"]


@pytest.mark.parametrize("name", ["text-call", "two-calls", "non-ascii", "no-arguments", "namespace"])
def test_streamed_or_not_it_is_the_same_call(name: str) -> None:
    streamed, at_once = (recorded(name, kind).choices[0].calls for kind in ("sse", "json"))
    assert [(c.name, c.read.value) for c in streamed] == [(c.name, c.read.value) for c in at_once]


def test_a_custom_tool_s_text_is_the_argument_of_a_function() -> None:
    (one,) = recorded("custom", "sse").choices[0].calls
    assert one.name == "note"
    assert list(one.read.value) == ["input"]
    assert one.read.value["input"].startswith('{\n    "type": "string"')


def test_a_call_that_the_model_did_not_close() -> None:
    (one,) = recorded("broken", "sse").choices[0].calls
    assert one.read.problem == "unclosed"
    assert not recorded("broken", "json").choices[0].calls  # not streamed, the engine gives it back as text


@pytest.mark.parametrize("name", ["text-ids", "required-ids"])
def test_recorded_token_ids(name: str) -> None:
    for kind in ("sse", "json"):
        answer = recorded(name, kind)
        choice = answer.choices[0]
        assert answer.usage is not None
        assert len(choice.prompt_ids or ()) == answer.usage["prompt_tokens"]
        assert len(choice.token_ids or ()) == answer.usage["completion_tokens"]
    assert recorded(name.removesuffix("-ids"), "sse").choices[0].token_ids is None


@pytest.mark.parametrize("name", ["bad-model", "background"])
def test_recorded_errors(name: str) -> None:
    answer = recorded(name, "json")
    assert answer.problem == "error"
    assert not answer.choices


# -- orders


ORDERS: dict[str, list[dict[str, Any]]] = {
    "the engine's": [added(call(arguments="")), delta(ARGUMENTS[:5]), delta(ARGUMENTS[5:]), whole_arguments(ARGUMENTS),
                     done(call()), ended(call())],
    "deltas first": [delta(ARGUMENTS[:5]), added(call(arguments="")), delta(ARGUMENTS[5:]), ended(call())],
    "no deltas": [added(call(arguments="")), whole_arguments(ARGUMENTS), done(call()), ended(call())],
    "the item alone": [done(call()), ended(call())],
    "the end alone": [ended({"type": "message", "content": []}, call())],
    "no output at the end": [done(call()), ended()],
    "no places": [added(call(arguments=""), None), delta(ARGUMENTS, None, None), done(call(), None), ended(call())],
    "no ids of items": [added(call(arguments="", id=None)), delta(ARGUMENTS, None), done(call(id=None)),
                        ended(call(id=None))],
    "text goes on": [added({"type": "message", "id": "m"}), added(call(arguments=""), 1), delta(ARGUMENTS, index=1),
                     {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "delta": "x"},
                     done(call(), 1), ended({"type": "message", "id": "m", "content": []}, call())],
    "the name comes late": [added(call(arguments="", name="")), delta(ARGUMENTS), done(call()), ended(call())],
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_a_call_in_any_order(order: str) -> None:
    reader = read(*ORDERS[order])
    assert reader.result().problem is None
    assert reader.choice().calls == ONE
    assert reader.choice().finish_reason == "tool_calls"
    assert not reader.conflict


def test_calls_whose_deltas_are_mixed() -> None:
    other = call(id="fc_2", call_id="call_2", name="look", arguments="{}")
    reader = read(
        added(call(arguments="")), added(other | {"arguments": ""}, 1), delta(ARGUMENTS[:4]), delta("{", "fc_2", 1),
        delta(ARGUMENTS[4:], index=None), delta("}", None, 1), done(other, 1), done(call()), ended(call(), other),
    )  # fmt: skip
    assert reader.choice().calls == (*ONE, ToolCall("look", "{}", "call_2"))
    assert not reader.conflict


TWICE: dict[str, list[dict[str, Any]]] = {
    "arguments": [added(call(arguments="")), delta("{}"), whole_arguments(ARGUMENTS)],
    "arguments of the item": [whole_arguments("{}"), done(call())],
    "arguments at the end": [done(call()), ended(call(arguments="{}"))],
    "arguments that begin": [added(call()), delta(ARGUMENTS), done(call())],
    "arguments that are a number": [done(call(arguments=5))],
    "name": [added(call(arguments="")), done(call(name="erase"))],
    "name of the arguments": [added(call(arguments="")), whole_arguments(ARGUMENTS, name="erase")],
    "namespace": [added(call(arguments="", namespace="net")), done(call(namespace="other"))],
    "id": [added(call(arguments="")), done(call(call_id="call_2"))],
    "a delta after the end": [done(call()), delta("x")],
    "begun again": [added(call(arguments="")), added(call(arguments=""))],
    "the final calls": [done(call()), ended(call(id="fc_2", call_id="call_2"))],
    "one more call": [done(call()), ended(call(), call(id="fc_2", call_id="call_2"))],
    "one place": [added(call(arguments="")), added(call(arguments="", id="fc_2"))],
    "two places": [added(call(arguments="")), done(call(), 1)],
    "two kinds": [added({"type": "message", "id": "fc_1"}), done(call())],
    "two kinds of text": [done(call()), {"type": "response.output_text.delta", "item_id": "fc_1", "delta": "x"}],
    "two items": [added(call(arguments="")), added(call(arguments="", id="fc_2"), 1), delta("{}", "fc_1", 1)],
    "a place as a text": [added(call(arguments="")), delta("{}", None) | {"output_index": "0"}],
    "a place that is true": [added(call(arguments="")), delta("{}") | {"output_index": True}],
    "neither id nor place, of two": [added(call()), added(call(id="fc_2", arguments=""), 1), delta("{}", None, None)],
}


@pytest.mark.parametrize("what", TWICE)
def test_a_call_that_is_told_in_two_ways(what: str) -> None:
    reader = read(*TWICE[what])
    assert reader.conflict
    assert reader.result().problem == "garbage"


def test_text_that_is_told_in_two_ways_is_text() -> None:
    message = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "other"}]}
    text = {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": "one"}
    reader = read(added({"type": "message", "id": "m", "content": []}), text, done(message), ended(message))
    assert not reader.conflict
    assert reader.choice().content == "one"


# -- text


def test_texts_in_their_order() -> None:
    def part(kind: str, text: str) -> dict[str, Any]:
        return {"type": kind, "refusal" if kind == "refusal" else "text": text}

    thought = {
        "type": "reasoning",
        "id": "r",
        "summary": [part("summary_text", "S")],
        "content": [part("reasoning_text", "R")],
    }
    said = {"type": "message", "id": "m", "content": [part("output_text", "A"), part("refusal", "B")]}
    after = {"type": "message", "id": "n", "content": [part("output_text", "C")]}
    choice = read(ended(thought, said, call(), after)).choice()
    assert (choice.reasoning, choice.content, choice.lead) == ("R", "ABC", "AB")
    del thought["content"]
    assert read(ended(thought)).choice().reasoning == "S"


def test_parts_of_a_text_are_told_by_their_places() -> None:
    at = {"item_id": "m", "output_index": 0}
    reader = read(
        {"type": "response.content_part.added", **at, "content_index": 1, "part": {"type": "output_text", "text": ""}},
        {"type": "response.output_text.delta", **at, "content_index": 1, "delta": "b"},
        {"type": "response.output_text.done", **at, "content_index": 0, "text": "a"},
        {"type": "response.refusal.delta", **at, "content_index": 2, "delta": "c"},
    )
    assert reader.choice().content == "abc"
    assert reader.spoke
    assert reader.result().problem == "truncated"


# -- ends


@pytest.mark.parametrize(
    ("event", "problem", "finish"),
    [
        (ended(), None, "stop"),
        (ended(status="incomplete", incomplete_details={"reason": "max_output_tokens"}), None, "length"),
        (ended(status="incomplete", incomplete_details={"reason": "content_filter"}), None, "content_filter"),
        (ended(status="incomplete"), None, "length"),
        (ended(status="failed"), "error", None),
        (ended(error={"code": "x"}), "error", "stop"),
        (ended(status="cancelled"), "truncated", None),
        (ended(status="in_progress"), "truncated", None),
        ({"type": "response.failed", "response": {"error": {"code": "x"}}}, "error", None),
        ({"type": "error", "message": "no"}, "error", None),
        ({"error": {"message": "no"}}, "error", None),
        ({"type": "response.created", "response": {"model": "m"}}, "truncated", None),
    ],
)
def test_how_a_stream_ends(event: dict[str, Any], problem: str | None, finish: str | None) -> None:
    answer = read(event).result()
    assert answer.problem == problem
    assert answer.choices[0].finish_reason == finish


def test_what_comes_after_the_end_is_no_part_of_the_answer() -> None:
    reader = read(ended(), done(call()))
    assert reader.result().problem == "garbage"
    assert not reader.choice().calls


def test_nothing_is_read_as_nothing() -> None:
    for stream in (True, False):
        answer = responses_answer.read(b"", stream=stream)
        assert answer.problem == ("truncated" if stream else "garbage")
        assert not answer.choices
    assert responses_answer.read(b'data: {"type"\n\n', stream=True).problem == "garbage"


def test_which_token_ids_are_told() -> None:
    one, two = {"type": "raw_message_tokens", "tokens": [1, 2]}, {"type": "raw_message_tokens", "tokens": [3]}
    assert token_ids({"input_messages": [one], "output_messages": [two]}) == ((1, 2), (3,))
    assert token_ids({"input_messages": [one], "output_messages": [one, two]}) is None
    assert token_ids({"input_messages": [one], "output_messages": None}) is None
    assert token_ids({"input_messages": [one], "output_messages": [{"role": "assistant"}]}) is None
    assert token_ids({"input_messages": [one | {"tokens": [-1]}], "output_messages": [two]}) is None


# -- at random

_WORDS = st.sampled_from(
    [
        "type",
        "item",
        "delta",
        "id",
        "name",
        "arguments",
        "output",
        "response",
        "call_id",
        "content",
        "text",
        "part",
        "summary",
        "output_index",
        "content_index",
        "item_id",
        "status",
        "error",
        "usage",
    ]
)
_KINDS = st.sampled_from(
    [
        "function_call",
        "custom_tool_call",
        "message",
        "reasoning",
        "output_text",
        "refusal",
        "summary_text",
        "response.completed",
        "response.created",
        "response.output_item.added",
        "response.output_item.done",
        "error",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_text.delta",
        "response.content_part.added",
        "response.custom_tool_call_input.done",
    ]
)
_LEAVES = st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=4) | _KINDS
_JSON = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=5), max_leaves=14
)
_OBJECTS = st.dictionaries(_WORDS, _JSON, max_size=6)


@settings(max_examples=150, deadline=None)
@given(st.lists(_OBJECTS.flatmap(lambda o: _KINDS.map(lambda kind: o | {"type": kind})), max_size=6))
def test_any_events_at_all(events: list[dict[str, Any]]) -> None:
    reader = ResponseReader.of_stream()
    for event in events:
        reader.value(event)
        assert isinstance(reader.choice().content, str)
    answer = reader.result()
    assert all(isinstance(one.arguments, str) for choice in answer.choices.values() for one in choice.calls)


@settings(max_examples=100, deadline=None)
@given(_OBJECTS)
def test_any_whole_answer_at_all(body: dict[str, Any]) -> None:
    assert isinstance(responses_answer.read(json.dumps(body).encode(), stream=False), Answer)


def test_recorded_streams_with_bytes_missing() -> None:
    chance = random.Random(5)
    for path in sorted(RECORDED.glob("*.sse")):
        body = path.read_bytes()
        for _ in range(20):
            at = chance.randrange(len(body))
            answer = responses_answer.read(body[:at] + body[at + chance.randrange(1, 40) :], stream=True)
            assert answer.problem in {None, "garbage", "truncated", "error"}
