"""Anthropic's official client: an agent's loop by hand."""

from typing import Any

import anthropic
from driving import DESCRIPTIONS, MAX_TOKENS, PARAMETERS, TURNS, Asked, answer

_TOOLS = [
    {"name": name, "description": description, "input_schema": PARAMETERS, "strict": True}
    for name, description in DESCRIPTIONS.items()
]
_GREEDY = {"extra_body": {"temperature": 0}}  # the client has no parameter of that name


async def _play(asked: Asked) -> str:
    messages: list[Any] = [{"role": "user", "content": asked.prompt}]
    # This client puts /v1 behind its base URL itself.
    async with anthropic.AsyncAnthropic(base_url=asked.base_url.removesuffix("/v1"), api_key=asked.api_key) as client:
        for turn in range(TURNS):
            forced = {"tool_choice": _forced(asked.tool_choice)} if asked.tool_choice and turn == 0 else {}
            fields = {"model": asked.model, "messages": messages, "tools": _TOOLS, **_GREEDY} | forced
            message = await _message(client, fields | {"max_tokens": MAX_TOKENS}, stream=asked.stream)
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return "".join([block.text for block in message.content if block.type == "text"])
            messages.append({"role": "assistant", "content": message.content})
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": asked.run(call.name, call.input)}
                for call in calls
            ]
            messages.append({"role": "user", "content": results})
    raise RuntimeError(f"still calling tools after {TURNS} turns")


def _forced(choice: str) -> Any:
    return {"type": "any"} if choice == "required" else {"type": "tool", "name": choice}


async def _message(client: anthropic.AsyncAnthropic, fields: dict[str, Any], *, stream: bool) -> Any:
    if not stream:
        return await client.messages.create(**fields)
    async with client.messages.stream(**fields) as events:
        return await events.get_final_message()


answer(_play)
