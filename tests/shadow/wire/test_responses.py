from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow.exchange import Dialect, Request
from shadow.judge import Case, Rulebook
from shadow.wire import responses
from shadow.wire.responses import as_chat, built_in, own_name, replayed
from validators import ToolCall
from validators.policy import Policy, ToolPolicy

ARGUMENTS = '{"device":"edge-1"}'
FUNCTION = {
    "type": "function",
    "name": "reboot",
    "description": "d",
    "parameters": {"type": "object"},
    "strict": True,
    "x": 1,
}


def test_a_request_in_chat_s_words() -> None:
    body = {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Go"},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": "I "}, {"type": "output_text", "text": "go."}]},
            {"type": "function_call", "call_id": "c1", "name": "reboot", "arguments": ARGUMENTS},
            {"type": "function_call", "call_id": "c2", "name": "run", "namespace": "net", "arguments": {"a": 1}},
            {"type": "custom_tool_call", "call_id": "c3", "name": "note", "input": "hé"},
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
            {"type": "custom_tool_call_output", "call_id": "c3", "output": [{"type": "input_text", "text": "noted"}]},
            {"type": "item_reference", "id": "x"},
            {"type": "function_call", "call_id": "c4", "name": "look", "arguments": "{}"},
            {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
        ],
        "tools": [
            FUNCTION,
            {"type": "custom", "name": "note", "description": "n"},
            {"type": "namespace", "name": "net", "tools": [{"type": "function", "name": "run", "parameters": {}}]},
            {"type": "web_search_preview"},
        ],
        "tool_choice": {"type": "function", "name": "reboot"},
        "parallel_tool_calls": False,
        "max_output_tokens": 9,
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}},
        "reasoning": {"effort": "low"},
        "user": "u",
        "metadata": {"a": "b"},
    }  # fmt: skip
    chat = as_chat(body)
    assert chat["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go"},
        {
            "role": "assistant",
            "content": "I go.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "reboot", "arguments": ARGUMENTS}},
                {"id": "c2", "type": "function", "function": {"name": "net__run", "arguments": '{"a": 1}'}},
                {"id": "c3", "type": "function", "function": {"name": "note", "arguments": '{"input": "hé"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "tool", "tool_call_id": "c3", "content": "noted"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c4", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "user", "content": "And?"},
    ]
    request = Request(Dialect.CHAT, chat)
    assert request.tools[0] == {key: value for key, value in FUNCTION.items() if key not in {"type", "x"}}
    assert [tool["name"] for tool in request.tools] == ["reboot", "note", "net__run"]
    assert request.tool_choice == "named"
    assert request.grammar == "all"
    assert not request.multimodal
    assert (chat["max_tokens"], chat["user"], chat["reasoning_effort"]) == (9, "u", "low")
    assert chat["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert "metadata" not in chat


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ("none", "none"),
        (None, "auto"),
        ({"type": "custom", "name": "reboot"}, "named"),
        ({"type": "allowed_tools", "mode": "required", "tools": []}, "required"),
        ({"type": "web_search_preview"}, "auto"),
    ],
)
def test_tool_choices(choice: Any, word: str) -> None:
    chat = as_chat({"input": "x", "tools": [FUNCTION], "tool_choice": choice})
    assert Request(Dialect.CHAT, chat).tool_choice == word


def test_an_image_is_seen() -> None:
    content = [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:"}]
    assert Request(Dialect.CHAT, as_chat({"input": [{"role": "user", "content": content}]})).multimodal


def test_calls_are_judged_by_the_chat_body() -> None:
    body = as_chat({"model": "m", "input": "x", "tools": [{"type": "custom", "name": "note"}]})
    case = Case(Rulebook(Policy(0, ToolPolicy("*"))), Request(Dialect.CHAT, body), b"", "s")
    assert not case.own([ToolCall("note", responses.custom_arguments("hello"))])
    assert {finding.reason for finding in case.own([ToolCall("note", '{"text": 1}')])} == {"schema"}


def test_names_come_back() -> None:
    tools = [{"type": "namespace", "name": "net", "tools": [FUNCTION]}, {"type": "custom", "name": "note"}, FUNCTION]
    assert own_name("net__reboot", tools) == ("reboot", "net", False)
    assert own_name("reboot", tools) == ("reboot", None, False)
    assert own_name("note", tools) == ("note", None, True)
    assert own_name("net__other", tools) == ("net__other", None, False)
    assert own_name("x", None) == ("x", None, False)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"input": "x", "tools": [FUNCTION, {"type": "custom", "name": "n"}], "store": None, "background": False}, []),
        (
            {"tools": [{"type": "mcp", "server_label": "x"}, {"type": "container"}, {"type": "mcp"}]},
            ["mcp", "container"],
        ),
        ({"tools": [{"type": "namespace", "tools": [FUNCTION, {"type": "code_interpreter"}]}]}, ["code_interpreter"]),
        ({"tools": [{}, {"type": ["x"]}, {"type": "a secret text"}]}, ["unknown_tool"]),
        ({"tool_choice": {"type": "file_search"}}, ["file_search"]),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, []),
        ({"background": True, "store": "true"}, ["background", "store"]),
        ({"previous_response_id": "resp_1", "conversation": {"id": "c"}}, ["previous_response_id", "conversation"]),
        ({"previous_input_messages": [{}], "prompt": {"id": "p"}}, ["previous_input_messages", "prompt"]),
    ],
)
def test_what_cannot_be_held(body: dict[str, Any], found: list[str]) -> None:
    assert built_in(body) == found


def test_what_a_reference_is_asked() -> None:
    kept = {
        "input": "x",
        "instructions": "i",
        "text": {},
        "max_output_tokens": 5,
        "stop": ["a"],
        "tool_choice": "required",
    }
    dropped = {
        "store": True, "background": True, "previous_response_id": "r", "metadata": {}, "user": "u", "stream": True,
        "kv_transfer_params": {}, "vllm_xargs": {}, "priority": 1, "cache_salt": "s", "request_id": "i", "seed": 1,
        "include": [], "service_tier": "flex", "prompt_cache_key": "k", "top_logprobs": 1, "session_id": "s",
    }  # fmt: skip
    search = {"type": "web_search_preview"}
    sent = replayed(kept | dropped | {"tools": [FUNCTION, search], "temperature": 0.7, "presence_penalty": 1}, "ref")
    assert sent == kept | {
        "model": "ref", "tools": [FUNCTION], "stream": False, "store": False, "enable_response_messages": True,
        "temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "presence_penalty": 1,
    }  # fmt: skip
    alone = replayed({"input": "x", "tools": [search], "tool_choice": search}, "ref")
    assert "tools" not in alone
    assert "tool_choice" not in alone


# -- at random

_WORDS = st.sampled_from(
    [
        "type",
        "name",
        "arguments",
        "call_id",
        "content",
        "text",
        "input",
        "tools",
        "role",
        "tool_choice",
        "output",
        "instructions",
        "namespace",
        "format",
        "store",
        "reasoning",
    ]
)
_KINDS = st.sampled_from(
    [
        "function_call",
        "custom_tool_call",
        "message",
        "namespace",
        "function",
        "custom",
        "output_text",
        "refusal",
        "function_call_output",
        "allowed_tools",
        "json_schema",
    ]
)
_LEAVES = st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=4) | _KINDS
_JSON = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=5), max_leaves=14
)
_OBJECTS = st.dictionaries(_WORDS, _JSON, max_size=6)


@settings(max_examples=150, deadline=None)
@given(_OBJECTS)
def test_any_request_at_all(body: dict[str, Any]) -> None:
    request = Request(Dialect.CHAT, as_chat(body))
    assert isinstance(request.tool_choice, str)
    assert all(isinstance(name, str) for name in built_in(body))
    assert replayed(body, "m")["store"] is False
