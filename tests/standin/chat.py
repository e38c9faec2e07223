"""The chat route: whole answers and streams of events."""

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from tests.standin import checks, wire
from tests.standin.asking import Asking, Served, known, limits_of
from tests.standin.faults import Faults
from tests.standin.generation import Limits, Step
from tests.standin.hermes import Stream, parse, split_reasoning
from tests.standin.tokens import render


def prompt_ids(served: Served, body: dict[str, Any]) -> list[int]:
    """The ids of a chat request's prompt: given ones, else the template's."""
    if (given := checks.given_ids(body)) is not None:
        known(served, given)
        checks.context(len(given), served.max_model_len, given_on_chat=True)
        return given
    if not body["messages"]:
        raise checks.bad("Cannot apply chat template to an empty conversation. Provide at least one message.")
    opens = body.get("add_generation_prompt") is not False
    return served.model.tokenizer.encode(render(body["messages"], body.get("tools"), opens=opens))


def ask(served: Served, body: dict[str, Any], faults: Faults) -> Asking:
    """A chat request, understood and checked."""
    checks.chat(body)
    checks.model_known(body, served.name)
    k = (checks.integer(body, "top_logprobs") or 0) if body.get("logprobs") else None
    checks.whole_context(body, served.max_model_len)
    ids = prompt_ids(served, body)
    if len(ids) != served.max_model_len:
        checks.context(len(ids), served.max_model_len)
    checks.sampling(body, logprobs=k, vocabulary=len(served.model.tokenizer))
    checks.context(len(ids), served.max_model_len)
    hidden = body.get("include_reasoning") is False
    as_ids = bool(body.get("return_tokens_as_token_ids"))
    asked = wire.Asked(None if hidden else k, bool(body.get("return_token_ids")), as_ids, faults.logprobs)
    limits = Limits(**limits_of(served, body, faults, len(ids), default=None), rows=k is not None,
                    specials=_parses(body), forced=_forced(served, body, ids))  # fmt: skip
    head = wire.Head(f"chatcmpl-{served.ids.new()}", int(time.time()), served.name)
    return Asking(served, body, [ids], [limits], asked, head)


def _choice(body: dict[str, Any]) -> str:
    """`tool_choice` as the server reads it: none, auto, required or named."""
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        return "named"
    return str(choice or "auto") if body.get("tools") else "none"


def _parses(body: dict[str, Any]) -> bool:
    return _choice(body) != "none"


def _forced(served: Served, body: dict[str, Any], ids: Sequence[int]) -> list[int] | None:
    """What the grammar of a forced call leaves legal, where no script answers: one call, made of its schema."""
    if _choice(body) not in {"required", "named"} or served.model.start(ids).script() is not None:
        return None
    named = body["tool_choice"]["function"]["name"] if _choice(body) == "named" else None
    tools = [tool["function"] for tool in body["tools"]]
    tool = next(tool for tool in tools if named in {None, tool["name"]})
    arguments = {
        name: _example(schema) for name, schema in (tool.get("parameters") or {}).get("properties", {}).items()
    }
    call = {"name": tool["name"], "arguments": arguments}
    return served.model.tokenizer.encode(f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>")


def _example(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return "text"
    if schema.get("enum"):
        return schema["enum"][0]
    return {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}.get(schema.get("type", ""), "text")


async def whole(asking: Asking) -> dict[str, Any]:
    """A whole chat completion."""
    served, body, asked = asking.served, asking.body, asking.asked
    choices, longest, total = [], 0, 0
    for index in range(asking.n):
        steps = await asking.whole(index)
        longest, total = max(longest, len(steps)), total + len(steps)
        choices.append(_chat_choice(asking, index, steps))
    await served.pace.tokens(longest)
    return wire.chat_body(
        asking.head,
        choices,
        wire.usage(len(asking.prompts[0]), total, *wire.USAGE_DETAILS),
        wire.FINGERPRINT,
        prompt_logprobs=asking.prompt_logprobs(0),
        prompt_token_ids=asking.prompts[0] if asked.ids else None,
        prompt_text=served.model.tokenizer.decode(asking.prompts[0]) if body.get("return_prompt_text") else None,
    )


def _chat_choice(asking: Asking, index: int, steps: list[Step]) -> dict[str, Any]:
    body, asked, last = asking.body, asking.asked, steps[-1]
    hidden = body.get("include_reasoning") is False
    message, called = read_message(asking.served, body, "".join(step.text for step in steps))
    finish = last.finish or "stop"
    # A named choice keeps the engine's reason; an automatic one says so even where the engine ran out of room.
    if (called and _choice(body) == "auto") or (finish == "stop" and _choice(body) == "required"):
        finish = "tool_calls"
    ids = [step.token for step in steps] if asked.ids and not hidden else None
    return wire.chat_choice(index, message, asking.logprobs.chat(steps), finish, last.stop_reason, ids)


def read_message(served: Served, body: dict[str, Any], text: str) -> tuple[dict[str, Any], bool]:
    """A whole output's text as a message, and whether it holds calls."""
    reasoning, text = split_reasoning(text) if served.thinks else (None, text)
    content, calls = parse(text) if _parses(body) else (text, [])
    if _choice(body) in {"required", "named"}:
        content = content or ""
    if body.get("parallel_tool_calls") is False:
        calls = calls[:1]
    shown = None if body.get("include_reasoning") is False else reasoning
    return wire.message(content, shown, calls, served.ids.call), bool(calls)


async def events(asking: Asking) -> AsyncGenerator[bytes]:
    """A chat completion's events; the last payload is `[DONE]`."""
    served, body, asked = asking.served, asking.body, asking.asked
    with_usage, always = asking.usage_options
    prompt = asking.prompts[0]
    counts = [0] * asking.n
    streams = [Stream(tools=_parses(body), thinks=served.thinks, new_id=served.ids.call) for _ in counts]
    kind, details = "chat.completion.chunk", ("completion_tokens_details",)
    text = served.model.tokenizer.decode(prompt) if body.get("return_prompt_text") else None
    for index in range(asking.n):
        choice = {"index": index, "delta": {"role": "assistant", "content": ""}}
        opening = asking.head.chunk(kind, [choice | {"logprobs": None, "finish_reason": None}])
        opening |= {"usage": wire.usage(len(prompt), 0, *details)} if always else {}
        yield wire.dumps(opening | {"prompt_token_ids": prompt if asked.ids else None, "prompt_text": text})
    async with contextlib.aclosing(asking.interleaved()) as steps:
        async for index, step in steps:
            counts[index] += 1
            if (found := _chat_chunk(asking, index, step, streams[index])) is None:
                continue
            chunk = asking.head.chunk(kind, [found])
            if always:
                chunk["usage"] = wire.usage(len(prompt), counts[index], *details)
            if step.finish is not None and not with_usage:
                chunk["system_fingerprint"] = wire.FINGERPRINT
            yield wire.dumps(chunk)
    if with_usage:
        counted = {"usage": wire.usage(len(prompt), sum(counts)), "system_fingerprint": wire.FINGERPRINT}
        yield wire.dumps(asking.head.chunk(kind, [], **counted))
    yield b"[DONE]"


def _chat_chunk(asking: Asking, index: int, step: Step, stream: Stream) -> dict[str, Any] | None:
    """The choice of one chunk, or None where the parser holds back and nothing else was asked for."""
    body, asked = asking.body, asking.asked
    hidden = body.get("include_reasoning") is False
    delta = stream.feed(step.text)
    logprobs, ids = asking.logprobs.chat([step]), asked.ids and not hidden
    if delta is None and step.finish is None and logprobs is None and not ids:
        return None
    delta = {} if delta is None else delta
    if hidden and delta:
        delta = {key: value for key, value in delta.items() if key != "reasoning"} | {"reasoning": None}
    if body.get("parallel_tool_calls") is False and "tool_calls" in delta:
        calls = [call for call in delta["tool_calls"] if call["index"] == 0]
        delta = {"content": delta["content"]} | ({"tool_calls": calls} if calls else {})
    choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
    if step.finish is not None:
        calls_made = stream.called and _choice(body) != "named" and step.finish == "stop"
        choice |= {"finish_reason": "tool_calls" if calls_made else step.finish, "stop_reason": step.stop_reason}
    return choice | {"token_ids": [step.token] if ids else None}
