"""LangGraph over LangChain's OpenAI chat model: a graph of a model and a tool node."""

from typing import Any

from driving import MAX_TOKENS, TURNS, Asked, Device, answer
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


def _graph(asked: Asked) -> Any:
    @tool
    def read_status(device: Device) -> str:
        """Reads a device's status."""
        return asked.read_status(device)

    @tool
    def delete_device(device: Device) -> str:
        """Deletes a device."""
        return asked.delete_device(device)

    tools = [read_status, delete_device]
    chat = ChatOpenAI(
        base_url=asked.base_url,
        api_key=asked.api_key,
        model=asked.model,
        temperature=0,
        max_completion_tokens=MAX_TOKENS,
    )
    then = chat.bind_tools(tools, strict=True)
    first = chat.bind_tools(tools, strict=True, tool_choice=asked.tool_choice)

    async def model(state: MessagesState) -> dict[str, Any]:
        bound = first if isinstance(state["messages"][-1], HumanMessage) else then
        return {"messages": [await bound.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


async def _play(asked: Asked) -> str:
    graph, config = _graph(asked), {"recursion_limit": 2 * TURNS}
    begin = {"messages": [HumanMessage(asked.prompt)]}
    if not asked.stream:
        return str((await graph.ainvoke(begin, config))["messages"][-1].content)
    text = ""
    async for message, _ in graph.astream(begin, config, stream_mode="messages"):
        # A tool's result ends a turn: only the last one's text is the answer.
        text = text + str(message.content) if isinstance(message, AIMessageChunk) else ""
    return text


answer(_play)
