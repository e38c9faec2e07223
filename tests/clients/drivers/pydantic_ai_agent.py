"""Pydantic AI with its OpenAI chat model."""

from dataclasses import dataclass
from typing import Any

from driving import MAX_TOKENS, TURNS, Asked, Device, answer
from pydantic_ai import Agent, AgentRunResultEvent, ModelSettings, RunContext, UsageLimits
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


@dataclass
class _FirstStep(AbstractCapability[None]):
    """A tool choice for the first request alone: the agent takes none that would hold for every step."""

    choice: str

    def get_model_settings(self) -> Any:
        forced: Any = self.choice if self.choice == "required" else [self.choice]

        def settings(context: RunContext[None]) -> ModelSettings:
            return ModelSettings(tool_choice=forced) if context.run_step == 1 else ModelSettings()

        return settings


def _agent(asked: Asked) -> Agent:
    agent = Agent(
        OpenAIChatModel(asked.model, provider=OpenAIProvider(base_url=asked.base_url, api_key=asked.api_key)),
        model_settings=ModelSettings(temperature=0, max_tokens=MAX_TOKENS),
        capabilities=[_FirstStep(asked.tool_choice)] if asked.tool_choice else [],
    )

    @agent.tool_plain(strict=True)
    def read_status(device: Device) -> str:
        """Reads a device's status."""
        return asked.read_status(device)

    @agent.tool_plain(strict=True)
    def delete_device(device: Device) -> str:
        """Deletes a device."""
        return asked.delete_device(device)

    return agent


async def _play(asked: Asked) -> str:
    agent, limits = _agent(asked), UsageLimits(request_limit=TURNS)
    if not asked.stream:
        return str((await agent.run(asked.prompt, usage_limits=limits)).output)
    # Not run_stream: that one takes a text before a call for the answer, and ends the run there.
    async with agent.run_stream_events(asked.prompt, usage_limits=limits) as events:
        return "".join([str(event.result.output) async for event in events if isinstance(event, AgentRunResultEvent)])


answer(_play)
