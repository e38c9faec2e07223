"""The official client's chat completions: an agent's loop by hand."""

import json
from typing import Any

import openai
from driving import DESCRIPTIONS, MAX_TOKENS, PARAMETERS, TURNS, Asked, answer

_TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": PARAMETERS, "strict": True},
    }
    for name, description in DESCRIPTIONS.items()
]


async def _play(asked: Asked) -> str:
    messages: list[Any] = [{"role": "user", "content": asked.prompt}]
    async with openai.AsyncOpenAI(base_url=asked.base_url, api_key=asked.api_key) as client:
        for turn in range(TURNS):
            forced = {"tool_choice": _forced(asked.tool_choice)} if asked.tool_choice and turn == 0 else {}
            fields = {"model": asked.model, "messages": messages, "tools": _TOOLS, "temperature": 0} | forced
            message = await _message(client, fields | {"max_completion_tokens": MAX_TOKENS}, stream=asked.stream)
            if not message.tool_calls:
                return str(message.content)
            messages.append(message)
            for call in message.tool_calls:
                result = asked.run(call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise RuntimeError(f"still calling tools after {TURNS} turns")


def _forced(choice: str) -> Any:
    return choice if choice == "required" else {"type": "function", "function": {"name": choice}}


async def _message(client: openai.AsyncOpenAI, fields: dict[str, Any], *, stream: bool) -> Any:
    if not stream:
        return (await client.chat.completions.create(**fields)).choices[0].message
    async with client.chat.completions.stream(**fields) as events:
        async for _ in events:
            pass
        return (await events.get_final_completion()).choices[0].message


answer(_play)
