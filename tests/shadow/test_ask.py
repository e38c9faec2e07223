import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow.ask import (
    allowed,
    believable,
    client_limit,
    continuation,
    probing,
    read_probe,
    read_scoring,
    repetition,
    room,
    scoring,
    told,
)
from shadow.errors import Garbage
from shadow.exchange import Dialect, Request, TopK

# Written out here once more: what of a client's request may reach a reference.
PASSED_BOTH = {
    "response_format", "structured_outputs", "add_special_tokens", "max_tokens", "max_completion_tokens", "stop",
    "stop_token_ids", "ignore_eos", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "bad_words", "allowed_token_ids", "skip_special_tokens", "spaces_between_special_tokens",
    "truncate_prompt_tokens",
}  # fmt: skip
PASSED = {
    Dialect.CHAT: PASSED_BOTH | {
        "messages", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs",
        "documents", "add_generation_prompt", "continue_final_message", "mm_processor_kwargs",
    },
    Dialect.COMPLETIONS: PASSED_BOTH | {"prompt", "suffix"},
}  # fmt: skip
PASSED |= dict.fromkeys((Dialect.RESPONSES, Dialect.MESSAGES), PASSED[Dialect.CHAT])  # as chat requests, for warming
SET = {
    "temperature", "top_p", "top_k", "min_p", "n", "model", "stream", "return_token_ids",
    "return_tokens_as_token_ids", "logprobs",
}  # fmt: skip
DENIED = [
    "kv_transfer_params", "cache_salt", "priority", "request_id", "user", "prompt_token_ids", "prompt_embeds",
    "stream_options", "prompt_logprobs", "best_of", "echo", "use_beam_search", "seed", "vllm_xargs", "chat_template",
    "api_key", "metadata", "store", "service_tier", "safety_identifier", "logprob_token_ids", "include_reasoning",
]  # fmt: skip
KNOWN = [*DENIED, *sorted(PASSED[Dialect.CHAT] | PASSED[Dialect.COMPLETIONS] | SET)]


def request(dialect: Dialect = Dialect.CHAT, **body: Any) -> Request:
    return Request(dialect, body)


@pytest.mark.parametrize("name", DENIED)
@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_client_cannot_steer_slow_or_read_a_reference(dialect: Dialect, name: str) -> None:
    body = allowed(request(dialect, **{name: "evil"}), "ref")
    assert name not in body
    assert "evil" not in json.dumps(body)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(Dialect)),
    st.dictionaries(
        st.sampled_from(KNOWN) | st.text(max_size=4),
        st.sampled_from([None, 0, 2, "x", True, [1], {"a": 1}]),
        max_size=12,
    ),
)  # fmt: skip
def test_only_allowed_fields_pass_and_they_pass_unchanged(dialect: Dialect, body: dict[str, Any]) -> None:
    before = json.dumps(body)
    asked = allowed(Request(dialect, body), "ref")
    assert set(asked) <= PASSED[dialect] | SET | {"top_logprobs"}
    for name in PASSED[dialect] - {"repetition_penalty", "presence_penalty", "frequency_penalty"}:
        assert (name in asked) == (name in body)
        assert name not in body or asked[name] == body[name]
    assert (asked["model"], asked["stream"], asked["n"]) == ("ref", False, 1)
    assert (asked["temperature"], asked["top_p"], asked["top_k"], asked["min_p"]) == (0, 1, 0, 0)
    assert json.dumps(body) == before


def test_a_chat_request_as_a_reference_gets_it() -> None:
    messages = [{"role": "user", "content": "hi"}]
    asked = allowed(request(messages=messages, model="theirs", temperature=0.7, n=3, stream=True, max_tokens=9), "ref")
    penalties = {"presence_penalty", "frequency_penalty"}
    assert {name: value for name, value in asked.items() if name not in penalties} == {
        "messages": messages,
        "max_tokens": 9,
        "repetition_penalty": 1,
        "temperature": 0,
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        "n": 1,
        "model": "ref",
        "stream": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "logprobs": True,
        "top_logprobs": 5,
    }


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_no_penalty_of_the_model_s_own_configuration_bends_the_reference(name: str) -> None:
    assert allowed(request(messages=[]), "ref")[name] == 0


@pytest.mark.parametrize("dialect", [Dialect.RESPONSES, Dialect.MESSAGES])
def test_where_the_unbent_choice_is_not_told_both_are_bent_alike(dialect: Dialect) -> None:
    """What the client left to the primary's server is left to the reference's."""
    assert "repetition_penalty" not in allowed(request(dialect), "ref")
    assert allowed(request(dialect, repetition_penalty=1.1), "ref")["repetition_penalty"] == 1.1


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_a_penalty_of_null_does_not_reach_the_reference(name: str) -> None:
    asked = allowed(Request(Dialect.CHAT, {name: None}), "ref")
    assert asked[name] == (1 if name == "repetition_penalty" else 0)


def test_a_completions_request_as_a_reference_gets_it() -> None:
    asked = allowed(request(Dialect.COMPLETIONS, prompt="hi", logprobs=1, repetition_penalty=1.2, messages=[]), "ref")
    assert (asked["prompt"], asked["repetition_penalty"], asked["logprobs"]) == ("hi", 1.2, 5)
    assert "messages" not in asked
    assert "top_logprobs" not in asked


def test_a_broken_call_that_a_client_sends_back_goes_on_as_it_is() -> None:
    """vllm#47761: the reference's 4xx to it is `refused`, and no difference."""
    broken = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{'a': 1}"}}]}
    assert allowed(request(messages=[broken]), "ref")["messages"] == [broken]


@pytest.mark.parametrize(
    ("dialect", "k", "expected"),
    [
        (Dialect.CHAT, 5, {"logprobs": True, "top_logprobs": 5}),
        (Dialect.CHAT, 2, {"logprobs": True, "top_logprobs": 2}),
        (Dialect.COMPLETIONS, 3, {"logprobs": 3}),
    ],
)
def test_how_ids_and_logprobs_are_asked_for(dialect: Dialect, k: int, expected: dict[str, Any]) -> None:
    assert told(dialect, k) == expected | {"return_token_ids": True, "return_tokens_as_token_ids": True}


# -- going on from the primary's history


@pytest.mark.parametrize(
    ("body", "used", "expected", "limit", "minimum"),
    [
        ({}, 4, 10, 276, None),
        ({}, 0, 0, 256, None),
        ({"max_tokens": 100}, 40, 10, 60, None),
        ({"max_completion_tokens": 50, "max_tokens": 100}, 40, 10, 10, None),
        ({"max_completion_tokens": 50}, 50, 10, 1, None),
        ({"max_tokens": 5}, 50, 10, 1, None),
        ({"max_tokens": None}, 4, 10, 276, None),
        ({"max_tokens": True}, 4, 10, 276, None),
        ({"max_tokens": 100, "min_tokens": 30}, 10, 10, 90, 20),
        ({"max_tokens": 100, "min_tokens": 3}, 10, 10, 90, 0),
    ],
)
def test_a_continuation_keeps_the_client_s_limits(
    body: dict[str, Any], used: int, expected: int, limit: int, minimum: int | None
) -> None:
    asked = continuation(request(**body), "ref", (1, 2, 3), used=used, expected=expected)
    assert asked["max_tokens"] == limit
    assert "max_completion_tokens" not in asked
    assert asked.get("min_tokens") == minimum
    assert asked["kv_transfer_params"] == {"prompt_token_ids": [1, 2, 3]}
    assert asked["stream"] is False


@pytest.mark.parametrize(("longest", "limit"), [(None, 8256), (8192, 8192), (8256, 8256), (100_000, 8256)])
def test_no_more_is_asked_for_than_the_engine_s_whole_context(longest: int | None, limit: int) -> None:
    assert room(4000, longest) == limit
    for asked in (
        continuation(request(), "ref", (1, 2, 3), used=4, expected=4000, longest=longest),
        repetition(request(), "ref", expected=4000, longest=longest),
    ):
        assert asked["max_tokens"] == limit


def test_a_client_s_own_history_never_stands_in_a_continuation() -> None:
    evil = request(kv_transfer_params={"prompt_token_ids": [666], "do_remote_prefill": True}, max_tokens=5)
    asked = continuation(evil, "ref", (1,), used=0, expected=1)
    assert asked["kv_transfer_params"] == {"prompt_token_ids": [1]}


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({}, None),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4, "max_tokens": 3}, 4),
        ({"max_completion_tokens": None, "max_tokens": 3}, 3),
        ({"max_tokens": "3"}, None),
        ({"max_tokens": 3.0}, None),
        ({"max_tokens": 0}, 0),
    ],
)
def test_the_client_s_own_limit(body: dict[str, Any], limit: int | None) -> None:
    assert client_limit(request(**body)) == limit


# -- teacher forcing


NEUTRAL = {
    "temperature": 0,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "n": 1,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
}


def test_scoring_asks_about_the_whole_history() -> None:
    expected = NEUTRAL | {"model": "ref", "prompt": [1, 2, 3], "add_special_tokens": False, "max_tokens": 1}
    assert scoring("ref", (1, 2), (3,)) == expected | {"prompt_logprobs": 5}
    assert scoring("ref", (1, 2), (3,), k=0)["prompt_logprobs"] == 1


def test_probing_asks_for_one_token_after_the_history() -> None:
    assert probing("ref", (1, 2), k=3) == NEUTRAL | {
        "model": "ref",
        "prompt": [1, 2],
        "add_special_tokens": False,
        "max_tokens": 1,
        "logprobs": 3,
        "return_tokens_as_token_ids": True,
    }


def scored(*rows: Any) -> bytes:
    return json.dumps({"choices": [{"prompt_logprobs": list(rows)}]}).encode()


def lp(value: Any) -> dict[str, Any]:
    return {"logprob": value, "rank": 1, "decoded_token": "x"}


def test_scores_are_read_for_the_output_only() -> None:
    top = read_scoring(
        scored(None, {"2": lp(-0.5)}, {"3": lp(-2.0), "9": lp(-0.25)}, {"4": lp(-0.1), "8": lp(-9999.0)}),
        (1, 2),
        (3, 4),
    )
    assert top.ids.tolist() == [[3, 9], [4, 8]]
    assert top.logprobs.tolist() == [[-2.0, -0.25], [-0.1, -np.inf]]
    assert top.texts == {3: "x", 9: "x", 4: "x", 8: "x"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"choices": []}',
        b'{"choices": [{}, {}]}',
        b'{"choices": [1]}',
        b'{"choices": [{"prompt_logprobs": null}]}',
        b'{"choices": [{"prompt_logprobs": [null, {"5": {"logprob": NaN}}]}]}',
        scored(None),
        scored(None, {"5": lp(-0.1)}, {}),
        scored(None, None),
        scored(None, {"6": lp(-0.1)}),
        scored(None, {"5": lp(-0.1), "x": lp(-3)}),
        scored(None, {"5": lp(-0.1), "-1": lp(-3)}),
        scored(None, {"5": lp(None)}),
        scored(None, {"5": lp(0.0), "6": lp(0.0)}),
        scored(None, {"5": lp(-9999.0)}),
        scored(None, {"5": None}),
    ],
)
def test_scores_that_cannot_be_are_garbage(body: bytes) -> None:
    with pytest.raises(Garbage):
        read_scoring(body, (1,), (5,))


def test_scores_of_a_monstrous_id_are_garbage() -> None:
    with pytest.raises(Garbage):
        read_scoring(scored(None, {"5": lp(-0.1), "9" * 20: lp(-3)}), (1,), (5,))


@pytest.mark.parametrize(
    ("row", "fits"),
    [
        ([(1, -0.1), (2, -3.0)], True),
        ([(1, 0.0)], True),
        ([(1, 0.0), (2, -9999.0)], True),
        ([(1, 0.0), (2, -4.7)], True),  # rounding
        ([(1, 0.0), (2, -3.0)], False),
        ([(1, 0.1)], False),
        ([(1, 1e300)], False),
        ([(1, -9999.0)], False),
        ([(1, float("nan"))], False),
        ([], False),
    ],
)
def test_candidates_must_be_probabilities(row: list[tuple[int, float]], fits: bool) -> None:  # noqa: FBT001
    top = TopK.of([[(1, -0.5)], row])
    if fits:
        assert believable(top) is top
    else:
        with pytest.raises(Garbage, match="no probabilities"):
            believable(top)


def probed(**logprobs: Any) -> bytes:
    return json.dumps({"choices": [{"text": "x", "logprobs": logprobs}]}).encode()


def test_a_probe_is_read_by_id() -> None:
    body = probed(
        tokens=["token_id:5"], token_logprobs=[-2.0], top_logprobs=[{"token_id:9": -0.1, "token_id:7": -1.0}]
    )  # fmt: skip
    assert sorted(read_probe(body)) == [(5, -2.0), (7, -1.0), (9, -0.1)]


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"{}",
        probed(),
        probed(tokens=[], token_logprobs=[], top_logprobs=[]),
        probed(tokens=["token_id:5"], token_logprobs=[-2.0], top_logprobs=[{}]),
        probed(tokens=["a"], token_logprobs=[-2.0], top_logprobs=[{"a": -2.0, "b": -3.0}]),
        probed(tokens=["token_id:5"] * 2, token_logprobs=[-2.0] * 2, top_logprobs=[{"token_id:9": -0.1}] * 2),
    ],
)
def test_a_probe_without_candidates_is_garbage(body: bytes) -> None:
    with pytest.raises(Garbage):
        read_probe(body)
