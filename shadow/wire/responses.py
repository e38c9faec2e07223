"""Requests of the Responses API: in the words of chat completions, for judging only; and as a reference is asked.

Method: what vLLM 0.32 makes of such a request (`construct_input_messages`, `get_function_tools`). Its answers are read
in `shadow.wire.responses_answer`. Nothing here raises, whatever JSON a client sends: what is odd is left out.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from shadow.exchange import flag

CUSTOM_INPUT = "input"
"""The one argument of a custom tool, in the words of a function: the engine shows it to the model like that."""

_SEPARATOR = "__"  # between a namespace and the name of its function, as the engine shows it to the model
_FUNCTION = ("name", "description", "parameters", "strict")
_HELD_KINDS = frozenset({"function", "custom"})
_TEXT_PARTS = frozenset({"", "input_text", "output_text", "text", "refusal", "summary_text"})
_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}

# What both APIs write alike, and a comparison looks at.
_ALIKE = (
    "model",
    "parallel_tool_calls",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "user",
    "include_reasoning",
    "structured_outputs",
    "chat_template_kwargs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
)

# What shapes the prompt, the grammar or the parser, or bends the choice: all that a reference may see of a request.
_REPLAYED = (
    "input",
    "instructions",
    "parallel_tool_calls",
    "reasoning",
    "include_reasoning",
    "text",
    "truncation",
    "structured_outputs",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "max_output_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "skip_special_tokens",
    "include_stop_str_in_output",
)
_GREEDY = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0}


def flat_name(name: str, namespace: Any) -> str:
    """The name of a function as the model knows it: one in a namespace is `<namespace>__<name>`."""
    return f"{namespace}{_SEPARATOR}{name}" if isinstance(namespace, str) and namespace else name


def custom_arguments(payload: str) -> str:
    """A custom tool's free text as the arguments of a function, as the engine writes them in a prompt."""
    return json.dumps({CUSTOM_INPUT: payload}, ensure_ascii=False)


def text_of(value: Any) -> str | None:
    """A text, or (against the API) a JSON object or array as one; None for anything else."""
    if isinstance(value, dict | list):
        try:
            return json.dumps(value, ensure_ascii=False)
        except RecursionError:
            return None
    return value if isinstance(value, str) else None


def _kind(value: dict[str, Any]) -> str:
    """What an object says that it is, "" where it says nothing."""
    kind = value.get("type")
    return kind if isinstance(kind, str) else ""


def _objects(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


# --- what a request says, in chat's words -----------------------------------------------------------------------------


def as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat completions body that says the same, to be judged by; it is never sent.

    Functions in namespaces have their flat names, custom tools are functions of one text `input`. Tools that the server
    runs, references to stored items, and what has no counterpart are left out: see `built_in`.
    """
    chat = {name: body[name] for name in _ALIKE if name in body}
    chat["messages"] = _messages(body)
    if tools := list(_functions(body.get("tools"))):
        chat["tools"] = [{"type": "function", "function": function} for function in tools]
    if (choice := _tool_choice(body.get("tool_choice"))) is not None:
        chat["tool_choice"] = choice
    if "max_output_tokens" in body:
        chat["max_tokens"] = body["max_output_tokens"]
    if (response_format := _response_format(body.get("text"))) is not None:
        chat["response_format"] = response_format
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict) and "effort" in reasoning:
        chat["reasoning_effort"] = reasoning["effort"]
    return chat


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if isinstance(instructions := body.get("instructions"), str) and instructions:
        messages.append({"role": "system", "content": instructions})
    given = body.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    for item in _objects(given):
        _add_item(messages, item)
    return messages


def _add_item(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    match _kind(item):
        case "function_call" | "custom_tool_call":
            if (call := _call_of(item)) is not None:
                _assistant(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output" | "custom_tool_call_output":
            content = _content(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        case "" | "message" if isinstance(item.get("role"), str):
            messages.append({"role": item["role"], "content": _content(item.get("content"))})


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a call belongs to: the assistant's last one, if nobody spoke since."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _call_of(item: dict[str, Any]) -> dict[str, Any] | None:
    name = item.get("name")
    if not isinstance(name, str):
        return None
    if item["type"] == "custom_tool_call":
        payload = item.get("input")
        arguments = custom_arguments(payload if isinstance(payload, str) else "")
    else:
        arguments = text_of(item.get("arguments")) or ""
    function = {"name": flat_name(name, item.get("namespace")), "arguments": arguments}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _content(content: Any) -> Any:
    """A message's content: one text where there is nothing but text, else parts as chat has them."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    parts = [_part(part) for part in _objects(content)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: dict[str, Any]) -> dict[str, Any]:
    kind = _kind(part)
    if kind not in _TEXT_PARTS:
        return {"type": kind}  # an image, say: enough to know that the prompt is not text alone
    text = part.get("refusal" if kind == "refusal" else "text")
    return {"type": "text", "text": text if isinstance(text, str) else ""}


# --- tools ------------------------------------------------------------------------------------------------------------


def _functions(tools: Any) -> Iterator[dict[str, Any]]:
    """The functions that the model is shown, in chat's words."""
    for tool, namespace in _tools(tools):
        if isinstance(tool.get("name"), str) and _kind(tool) in _HELD_KINDS:
            function = {key: tool[key] for key in _FUNCTION if key in tool}
            function["name"] = flat_name(tool["name"], namespace)
            if tool["type"] == "custom":
                function |= {"parameters": _CUSTOM_PARAMETERS}
            yield function


def _tools(tools: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """All tools, those in namespaces one by one, each with its namespace."""
    for tool in _objects(tools):
        if _kind(tool) == "namespace":
            for one in _objects(tool.get("tools")):
                yield one, tool.get("name")
        else:
            yield tool, None


def _tool_choice(choice: Any) -> Any:
    """A tool choice in chat's words; None where there is none, or where it asks for what the server runs."""
    if not isinstance(choice, dict):
        return choice
    if _kind(choice) in _HELD_KINDS:
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice.get("mode") if _kind(choice) == "allowed_tools" else None


def _response_format(text: Any) -> dict[str, Any] | None:
    asked = text.get("format") if isinstance(text, dict) else None
    if not isinstance(asked, dict):
        return None
    if asked.get("type") != "json_schema":
        return {"type": asked.get("type")}
    schema = {key: asked[key] for key in ("name", "description", "schema", "strict") if key in asked}
    return {"type": "json_schema", "json_schema": schema}


def own_name(name: str, tools: Any) -> tuple[str, str | None, bool]:
    """From a flat name and the tools: the tool's own name, its namespace, and whether it is a custom tool."""
    for tool, namespace in _tools(tools):
        own = tool.get("name")
        if isinstance(own, str) and flat_name(own, namespace) == name:
            return own, namespace if isinstance(namespace, str) and namespace else None, _kind(tool) == "custom"
    return name, None, False


# --- what cannot be held ----------------------------------------------------------------------------------------------

_ELSEWHERE = ("previous_response_id", "conversation", "previous_input_messages", "prompt")
UNKNOWN = "unknown_tool"
BUILT_IN = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "container",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "namespace",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
        "background",
        "store",
        UNKNOWN,
        *_ELSEWHERE,
    }
)
"""The words of `built_in` that are the API's own, or vLLM's, and none of a client."""


def built_in(body: Mapping[str, Any]) -> list[str]:
    """What of a request lets actions happen that a gate cannot hold, in no particular order; empty for most requests.

    The kinds are the client's own words: only those in `BUILT_IN` may stand in a log or a metric.

    - The kind of each tool that is neither a function nor a custom tool (`web_search_preview`, `code_interpreter`,
      `container`, `mcp`, …): the server runs it while it answers, or (`computer_use_preview`, `local_shell`, `shell`,
      `apply_patch`) the client runs what is no function call. So with a tool choice of such a kind.
    - `background`: the answer is fetched later, by another request.
    - `store`: the client asks for an answer that can be fetched again. (Not asked for, it is the server's own choice:
      vLLM stores nothing unless it was started with `VLLM_ENABLE_RESPONSES_API_STORE=1`, and everything then.)
    - `previous_response_id`, `conversation`: the request goes on from what the server keeps, calls included.
    - `previous_input_messages`, `prompt`: a history, or a request, that is not in `input`.
    """
    found = [_word(tool) for tool, _ in _tools(body.get("tools")) if _kind(tool) not in _HELD_KINDS]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and _kind(choice) not in _HELD_KINDS | {"allowed_tools"}:
        found.append(_word(choice))
    found += [name for name in ("background", "store") if flag(body.get(name)) is True]
    return list(dict.fromkeys([*found, *(name for name in _ELSEWHERE if body.get(name))]))


def _word(tool: dict[str, Any]) -> str:
    """A tool's kind as a short word, by which a policy may allow it."""
    kind = _kind(tool)
    return kind if kind.isidentifier() and kind.isascii() and len(kind) <= 40 else UNKNOWN


# --- what a reference is asked ----------------------------------------------------------------------------------------


def replayed(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The request as a reference gets it for an answer of its own: allowed fields only, greedy, whole, token ids told.

    Penalties that the client left to the server are left to the reference's: nothing tells the primary's choice before
    they bent it, so that both must be bent alike.

    Tools that the server runs are left out: they would run once more. What the server keeps (`previous_response_id`)
    is the primary's alone; such a request has another prompt on a reference, and its answer says nothing.
    """
    sent = {name: body[name] for name in _REPLAYED if name in body}
    if tools := [tool for tool in _objects(body.get("tools")) if _kind(tool) in _HELD_KINDS | {"namespace"}]:
        sent["tools"] = tools
        if _tool_choice(body.get("tool_choice")) is not None:
            sent["tool_choice"] = body["tool_choice"]
    return sent | _GREEDY | {"model": model, "stream": False, "store": False, "enable_response_messages": True}
