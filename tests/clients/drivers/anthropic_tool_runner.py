"""The tool runner of Anthropic's official client."""

from typing import Any

import anthropic
from driving import DESCRIPTIONS, MAX_TOKENS, TURNS, Asked, Device, answer


def _tools(asked: Asked) -> list[Any]:
    @anthropic.beta_async_tool(strict=True, description=DESCRIPTIONS["read_status"])
    async def read_status(device: Device) -> str:
        return asked.read_status(device)

    @anthropic.beta_async_tool(strict=True, description=DESCRIPTIONS["delete_device"])
    async def delete_device(device: Device) -> str:
        return asked.delete_device(device)

    return [read_status, delete_device]


async def _play(asked: Asked) -> str:
    # This client puts /v1 behind its base URL itself.
    async with anthropic.AsyncAnthropic(base_url=asked.base_url.removesuffix("/v1"), api_key=asked.api_key) as client:
        fields: dict[str, Any] = {
            "model": asked.model,
            "messages": [{"role": "user", "content": asked.prompt}],
            "tools": _tools(asked),
            "max_tokens": MAX_TOKENS,
            "extra_body": {"temperature": 0},  # the client has no parameter of that name
        }
        forced = {"tool_choice": _forced(asked.tool_choice)} if asked.tool_choice else {}
        # By itself it would leave the history to the server, and send no more than what is new: vLLM keeps none.
        runner = client.beta.messages.tool_runner(
            **fields, **forced, thread=False, max_iterations=TURNS, stream=asked.stream
        )
        message = None
        async for turn in runner:
            message = await turn.get_final_message() if asked.stream else turn
            # The choice holds for the first request: the runner itself would keep it for all.
            runner.set_messages_params(lambda params: {**params, "tool_choice": {"type": "auto"}})
    assert message is not None
    return "".join([block.text for block in message.content if block.type == "text"])


def _forced(choice: str) -> Any:
    return {"type": "any"} if choice == "required" else {"type": "tool", "name": choice}


answer(_play)
