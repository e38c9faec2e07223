"""The OpenAI Agents SDK with one of its models, which is named on the command line: "chat" or "responses"."""

import sys

from agents import (
    Agent,
    AsyncOpenAI,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from driving import MAX_TOKENS, TURNS, Asked, Device, answer

set_tracing_disabled(disabled=True)  # it would send traces to its maker

_MODELS = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}


def _agent(asked: Asked, client: AsyncOpenAI) -> Agent:
    # Without a handler of their own a tool's errors would be told to the model instead of the test.
    @function_tool(failure_error_function=None)
    def read_status(device: Device) -> str:
        """Reads a device's status."""
        return asked.read_status(device)

    @function_tool(failure_error_function=None)
    def delete_device(device: Device) -> str:
        """Deletes a device."""
        return asked.delete_device(device)

    return Agent(
        name="operator",
        model=_MODELS[sys.argv[1]](model=asked.model, openai_client=client),
        # The choice holds for the first request: the agent resets it once a tool has run.
        model_settings=ModelSettings(tool_choice=asked.tool_choice, temperature=0, max_tokens=MAX_TOKENS),
        tools=[read_status, delete_device],
    )


async def _play(asked: Asked) -> str:
    async with AsyncOpenAI(base_url=asked.base_url, api_key=asked.api_key) as client:
        agent = _agent(asked, client)
        if not asked.stream:
            return str((await Runner.run(agent, asked.prompt, max_turns=TURNS)).final_output)
        run = Runner.run_streamed(agent, asked.prompt, max_turns=TURNS)
        async for _ in run.stream_events():
            pass
        return str(run.final_output)


answer(_play)
