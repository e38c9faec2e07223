"""The Messages API's requests: as chat says them, what of them the server executes, and as a reference may see them.

Whatever JSON a client sends, nothing here raises: what is odd is left out. Pure.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

# The client executes these; a tool of another type, the server does.
_CLIENTS_TOOLS = re.compile(
    r"custom|function|(bash|text_editor|memory|computer|computer_toolset|browser_toolset)_[0-9]+"
)
_SERVERS_TOOLS = ("web_search", "web_fetch", "code_execution", "tool_search_tool", "mcp_toolset", "advisor")
_SERVERS_MEMBERS = ("mcp_servers", "container")
BUILT_IN = frozenset({*_SERVERS_TOOLS, *_SERVERS_MEMBERS, "thread", "unknown"})
"""The words of `built_in`."""
_MEDIA = ("image", "document")
_ROLES = ("user", "assistant")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# A client's attribution header: another one in each request, and no part of what the model is told.
_NOT_SAID = "x-anthropic-billing-header"
_REPLAYED = (
    "messages",
    "system",
    "tools",
    "tool_choice",
    "max_tokens",
    "stop_sequences",
    "thinking",
    "output_config",
    "chat_template_kwargs",
)
"""What shapes the prompt, the grammar or the answer's length."""


def as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat completions request that says the same: for judging, never to be sent.

    Messages have texts, `reasoning`, `tool_calls` with arguments as text, and tool results, in the order in which vLLM
    puts them; images and documents stand as they came. Tools are those in force after the messages' own changes, the
    server's own left out.
    """
    chat: dict[str, Any] = {
        name: body[name] for name in ("model", "max_tokens", "stream", "temperature") if name in body
    }
    if isinstance(stop := body.get("stop_sequences"), list):
        chat["stop"] = stop
    if isinstance(user := _dict(body.get("metadata")).get("user_id"), str):
        chat["user"] = user
    system = _said(body.get("system"))
    chat["messages"] = [{"role": "system", "content": system}] if system else []
    for message in _dicts(body.get("messages")):
        chat["messages"] += _messages(message)
    tools = [_function(tool) for tool in _tools(body).values()]
    if tools or isinstance(body.get("tools"), list):
        chat["tools"] = tools
    return chat | _tool_choice(_dict(body.get("tool_choice")))


def _tool_choice(choice: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if choice.get("type") == "tool" and isinstance(name := choice.get("name"), str):
        found["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif isinstance(kind := choice.get("type"), str) and kind in _CHOICES:
        found["tool_choice"] = _CHOICES[kind]
    if isinstance(alone := choice.get("disable_parallel_tool_use"), bool):
        found["parallel_tool_calls"] = not alone
    return found


def _tools(body: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The client's tools by name, with what the messages add and take away."""
    found = {tool["name"]: tool for tool in _dicts(body.get("tools")) if _is_clients(tool)}
    removed: set[str] = set()
    for message in _dicts(body.get("messages")):
        for block in _dicts(message.get("content")):
            change = _dict(block.get("tool"))
            definition = _dict(change.get("definition"))
            name = (definition or change).get("name")
            if not isinstance(name, str):
                continue
            if block.get("type") == "tool_addition":
                removed.discard(name)
                if definition:
                    found[name] = definition
            elif block.get("type") == "tool_removal":
                removed.add(name)
    return {name: tool for name, tool in found.items() if name not in removed}


def _is_clients(tool: dict[str, Any]) -> bool:
    return isinstance(tool.get("name"), str) and _executed_by_server(tool) is None


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    told = {"name": "name", "description": "description", "input_schema": "parameters", "strict": "strict"}
    return {"type": "function", "function": {chat: tool[name] for name, chat in told.items() if name in tool}}


# --- messages ---------------------------------------------------------------------------------------------------------


def _messages(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if role == "system":
        if text := _said(content):
            yield {"role": role, "content": text}
    elif role in _ROLES and isinstance(content, str):
        yield {"role": role, "content": content}
    elif role == "user":
        for block in _dicts(content):
            if block.get("type") == "tool_result":
                yield from _result(block)
        if parts := _parts(content):
            yield {"role": role, "content": _simplest(parts)}
    elif role == "assistant":
        yield _assistant(content)


def _assistant(content: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant"}
    blocks = _dicts(content)
    reasoning = [text for block in blocks if isinstance(text := block.get("thinking"), str)]
    if reasoning:
        said["reasoning"] = "".join(reasoning)
    if calls := [call for block in blocks if block.get("type") == "tool_use" for call in _call(block)]:
        said["tool_calls"] = calls
    if parts := _parts(content):
        said["content"] = _simplest(parts)
    return said


def _call(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    name = block.get("name")
    try:
        arguments = json.dumps(block.get("input") or {})
    except (ValueError, RecursionError):  # deeper than anything that is compared as a value
        return
    if isinstance(name, str):
        yield {"id": block.get("id"), "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    content = block.get("content")
    yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": "\n".join(_texts(content))}
    if media := [part for part in _dicts(content) if part.get("type") in _MEDIA]:
        yield {"role": "user", "content": media}


def _parts(content: Any) -> list[dict[str, Any]]:
    """What a message says and shows; a text that says nothing is left out, as the server does."""
    found = []
    for block in _dicts(content):
        if block.get("type") in _MEDIA:
            found.append(block)
        elif block.get("type") == "text" and isinstance(text := block.get("text"), str) and text:
            found.append({"type": "text", "text": text})
    return found


def _simplest(parts: list[dict[str, Any]]) -> Any:
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _said(content: Any) -> str:
    return "".join(text for text in _texts(content) if not text.startswith(_NOT_SAID))


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    texts = [block.get("text") for block in _dicts(content) if block.get("type") == "text"]
    return [text for text in texts if isinstance(text, str)]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# --- what the server executes, and what a reference may see -----------------------------------------------------------


def built_in(body: Mapping[str, Any]) -> list[str]:
    """What of a request the *server* acts on by itself, before any answer could be held; each kind once, in order.

    Tools of the families `web_search`, `web_fetch`, `code_execution`, `tool_search_tool`, `mcp_toolset` and `advisor`;
    `unknown` for a tool of any other type that is not one of the client's own (no type, `custom`, `function`, and the
    dated `bash`, `text_editor`, `memory`, `computer` and their toolsets); `mcp_servers`, whose tools the server calls,
    `container`, in which it runs code, and `thread`, where the request goes on from what the server keeps. The words
    are these, whatever the client wrote.
    """
    tools = [_executed_by_server(tool) for tool in _dicts(body.get("tools"))]
    members = [name for name in _SERVERS_MEMBERS if body.get(name)]
    if _dict(body.get("thread")).get("type") == "continue":
        members.append("thread")
    return list(dict.fromkeys([kind for kind in tools if kind] + members))


def _executed_by_server(tool: dict[str, Any]) -> str | None:
    kind = tool.get("type")
    if kind is None or (isinstance(kind, str) and _CLIENTS_TOOLS.fullmatch(kind)):
        return None
    if isinstance(kind, str):
        return next((family for family in _SERVERS_TOOLS if kind.startswith(family)), "unknown")
    return "unknown"


def replayed(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The client's request as a reference may see it: allowed fields only, greedy, to be answered as a whole.

    The API has no neutral value for penalties: a reference's own defaults must be neutral.
    """
    sent = {name: body[name] for name in _REPLAYED if name in body}
    return sent | {"model": model, "stream": False, "temperature": 0}
