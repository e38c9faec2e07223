"""The official client's responses: an agent's loop by hand."""

import json
from typing import Any

import openai
from driving import DESCRIPTIONS, MAX_TOKENS, PARAMETERS, TURNS, Asked, answer

_TOOLS = [
    {"type": "function", "name": name, "description": description, "parameters": PARAMETERS, "strict": True}
    for name, description in DESCRIPTIONS.items()
]


async def _play(asked: Asked) -> str:
    items: list[Any] = [{"role": "user", "content": asked.prompt}]
    async with openai.AsyncOpenAI(base_url=asked.base_url, api_key=asked.api_key) as client:
        for turn in range(TURNS):
            forced = {"tool_choice": _forced(asked.tool_choice)} if asked.tool_choice and turn == 0 else {}
            fields = {"model": asked.model, "input": items, "tools": _TOOLS, "temperature": 0} | forced
            response = await _response(client, fields | {"max_output_tokens": MAX_TOKENS}, stream=asked.stream)
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return str(response.output_text)
            items += response.output
            for call in calls:
                result = asked.run(call.name, json.loads(call.arguments))
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    raise RuntimeError(f"still calling tools after {TURNS} turns")


def _forced(choice: str) -> Any:
    return choice if choice == "required" else {"type": "function", "name": choice}


async def _response(client: openai.AsyncOpenAI, fields: dict[str, Any], *, stream: bool) -> Any:
    if not stream:
        return await client.responses.create(**fields)
    async with client.responses.stream(**fields) as events:
        async for _ in events:
            pass
        return await events.get_final_response()


answer(_play)
