import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow.exchange import Dialect, Request
from shadow.wire.messages_requests import as_chat, built_in, replayed

TOOL = {"name": "look_up", "description": "Looks.", "input_schema": {"type": "object"}, "strict": True}
FUNCTION = {"name": "look_up", "description": "Looks.", "parameters": {"type": "object"}, "strict": True}
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 40,
    "stream": True,
    "temperature": 0.5,
    "stop_sequences": ["END"],
    "metadata": {"user_id": "u1"},
    "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Be short."}],
    "tools": [TOOL],
    "messages": [
        {"role": "user", "content": "Weather in Rome?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"é": 1}},
                {"type": "tool_use", "id": "t2", "name": "look_up", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "So?"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
                {"type": "tool_result", "tool_use_id": "t2", "content": "c", "is_error": True},
            ],
        },
    ],
}


def messages_of(*messages: Any) -> Any:
    return as_chat({"messages": list(messages)})["messages"]


def test_a_request_in_the_words_of_chat() -> None:
    calls = [
        {"id": "t1", "type": "function", "function": {"name": "look_up", "arguments": '{"\\u00e9": 1}'}},
        {"id": "t2", "type": "function", "function": {"name": "look_up", "arguments": "{}"}},
    ]
    before = copy.deepcopy(BODY)
    assert as_chat(BODY) == {
        "model": "m",
        "max_tokens": 40,
        "stream": True,
        "temperature": 0.5,
        "stop": ["END"],
        "user": "u1",
        "tools": [{"type": "function", "function": FUNCTION}],
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Weather in Rome?"},
            {"role": "assistant", "reasoning": "Hm.", "tool_calls": calls, "content": "Let me see."},
            {"role": "tool", "tool_call_id": "t1", "content": "a\nb"},
            {"role": "tool", "tool_call_id": "t2", "content": "c"},
            {"role": "user", "content": "So?"},
        ],
    }
    assert before == BODY


@pytest.mark.parametrize(
    ("choice", "told", "word"),
    [
        (None, {}, "auto"),
        ({"type": "auto"}, {"tool_choice": "auto"}, "auto"),
        ({"type": "none"}, {"tool_choice": "none"}, "none"),
        ({"type": "any"}, {"tool_choice": "required"}, "required"),
        ({"disable_parallel_tool_use": True}, {"parallel_tool_calls": False}, "auto"),
        ({"disable_parallel_tool_use": False}, {"parallel_tool_calls": True}, "auto"),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "named"),
        ({"type": "tool"}, {}, "auto"),
        ({"type": ["any"]}, {}, "auto"),
        ("any", {}, "auto"),
    ],
)  # fmt: skip
def test_the_choice_of_tools(choice: Any, told: dict[str, Any], word: str) -> None:
    chat = as_chat({"tools": [TOOL], "tool_choice": choice})
    assert {name: chat[name] for name in ("tool_choice", "parallel_tool_calls") if name in chat} == told
    request = Request(Dialect.CHAT, chat)
    assert request.tool_choice == word
    assert request.tool_names == {"look_up"}


def test_system_messages_in_between() -> None:
    inline = {"role": "system", "content": [{"type": "text", "text": "Now "}, {"type": "text", "text": "this."}]}
    assert messages_of({"role": "user", "content": "a"}, inline, {"role": "system", "content": ""}) == [
        {"role": "user", "content": "a"},
        {"role": "system", "content": "Now this."},
    ]


def test_images_stand_as_they_came() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "see"}, image]}
    found = messages_of({"role": "user", "content": [result, {"type": "text", "text": "and"}, image]})
    assert found == [
        {"role": "tool", "tool_call_id": "t1", "content": "see"},
        {"role": "user", "content": [image]},
        {"role": "user", "content": [{"type": "text", "text": "and"}, image]},
    ]
    assert Request(Dialect.CHAT, {"messages": found}).multimodal


def test_tools_that_messages_add_and_take_away() -> None:
    def change(kind: str, tool: Any) -> dict[str, Any]:
        return {"role": "system", "content": [{"type": kind, "tool": tool}]}

    added = {"type": "tool_definition", "definition": TOOL | {"name": "added"}}
    changes = [
        change("tool_addition", added),
        change("tool_removal", {"type": "tool_reference", "name": "look_up"}),
        change("tool_removal", {"type": "tool_reference", "name": "back"}),
        change("tool_addition", {"type": "tool_reference", "name": "back"}),
        change("tool_removal", {"type": "tool_reference"}),
    ]
    chat = as_chat({"tools": [TOOL, TOOL | {"name": "back"}], "messages": changes})
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["back", "added"]


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ({"tools": [TOOL, TOOL | {"type": "custom"}, TOOL | {"type": "function"}]}, []),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}, {"type": "computer_toolset_20260801"}]}, []),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, ["web_search"]),
        ({"tools": [{"type": "code_execution_20260521"}, {"type": "code_execution_20250522"}]}, ["code_execution"]),
        ({"tools": [{"type": "tool_search_tool_bm25"}, {"type": "mcp_toolset"}]}, ["tool_search_tool", "mcp_toolset"]),
        ({"tools": [{"type": "bash_code_execution"}, {"type": 7}]}, ["unknown"]),
        ({"mcp_servers": [{"url": "https://example.org"}], "container": "c1"}, ["mcp_servers", "container"]),
        ({"mcp_servers": [], "container": None, "tools": "web_search"}, []),
        ({}, []),
    ],
)
def test_what_the_server_executes(body: dict[str, Any], kinds: list[str]) -> None:
    assert built_in(body) == kinds


def test_tools_of_the_server_are_none_of_the_clients() -> None:
    chat = as_chat(
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}]}
    )
    assert chat["tools"] == [{"type": "function", "function": {"name": "bash"}}]


def test_what_a_reference_may_see() -> None:
    private = {
        "kv_transfer_params": {"prompt_token_ids": [1]},
        "ec_transfer_params": {"a": 1},
        "vllm_xargs": {"forced_ids": [1]},
        "cache_salt": "s",
        "priority": 1,
        "request_id": "r",
        "mcp_servers": [{"url": "https://example.org"}],
        "container": "c",
        "service_tier": "auto",
        "top_p": 0.5,
        "top_k": 3,
        "anything": 1,
    }
    shaping = {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}, "chat_template_kwargs": {"a": 1}}
    choice = {"tool_choice": {"type": "any"}}
    sent = replayed(BODY | private | shaping | choice, "other")
    kept = {name: BODY[name] for name in ("messages", "system", "tools", "max_tokens", "stop_sequences")}
    assert sent == kept | shaping | choice | {"model": "other", "stream": False, "temperature": 0}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
BLOCK = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ("text", "tool_use", "tool_result", "image", "thinking", "tool_addition", "tool_removal")
        )
        | JSON
    },
    optional=dict.fromkeys(("text", "name", "id", "input", "content", "tool_use_id", "thinking", "tool"), JSON),
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(("user", "assistant", "system")) | JSON,
        "content": st.lists(BLOCK | JSON, max_size=3) | JSON,
    }
)
ANY_BODY = st.dictionaries(st.text(max_size=4), JSON, max_size=2) | st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(MESSAGE | JSON, max_size=3) | JSON,
        "tools": st.lists(st.dictionaries(st.sampled_from(("name", "type", "input_schema")), JSON) | JSON, max_size=3)
        | JSON,
        "tool_choice": st.dictionaries(st.sampled_from(("type", "name", "disable_parallel_tool_use")), JSON) | JSON,
        **dict.fromkeys(("system", "metadata", "stop_sequences", "mcp_servers", "model"), JSON),
    },
)


@settings(deadline=None)
@given(body=ANY_BODY)
def test_whatever_json_a_client_sends(body: dict[str, Any]) -> None:
    request = Request(Dialect.CHAT, as_chat(body))
    assert all(isinstance(message["role"], str) for message in request.body["messages"])
    assert len(request.tools) == len(request.body.get("tools", ()))
    assert request.tool_choice in {"none", "auto", "required", "named"}
    built_in(body)
    assert replayed(body, "m")["stream"] is False


def test_arguments_beyond_every_depth_are_left_out() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    block = {"type": "tool_use", "id": "t", "name": "f", "input": deep}
    assert messages_of({"role": "assistant", "content": [block, {"type": "text", "text": "x"}]}) == [
        {"role": "assistant", "content": "x"}
    ]
    json.dumps(messages_of({"role": "user", "content": [{"type": "text", "text": "\ud83d"}]}))
