"""The completions route: whole answers and streams of events."""

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

from tests.standin import checks, wire
from tests.standin.asking import Asking, Served, known, limits_of
from tests.standin.faults import Faults
from tests.standin.generation import Limits
from tests.standin.model import Row


def ask(served: Served, body: dict[str, Any], faults: Faults) -> Asking:
    """A completions request, understood and checked."""
    checks.completions(body)
    checks.model_known(body, served.name)
    k = checks.integer(body, "logprobs")
    checks.whole_context(body, served.max_model_len)
    prompts = _prompts(served, body["prompt"])
    for ids in prompts:
        known(served, ids)
        if len(ids) != served.max_model_len:
            checks.context(len(ids), served.max_model_len)
    checks.sampling(body, logprobs=k, vocabulary=len(served.model.tokenizer))
    for ids in prompts:
        checks.context(len(ids), served.max_model_len)
    as_ids = bool(body.get("return_tokens_as_token_ids"))
    asked = wire.Asked(k, bool(body.get("return_token_ids")), as_ids, faults.logprobs)
    limits = [Limits(**limits_of(served, body, faults, len(ids), default=16), rows=k is not None) for ids in prompts]
    head = wire.Head(f"cmpl-{served.ids.new()}", int(time.time()), served.name)
    return Asking(served, body, prompts, limits, asked, head)


def _prompts(served: Served, prompt: Any) -> list[list[int]]:
    if isinstance(prompt, str):
        prompt = [prompt]
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return [prompt]
    return [served.model.tokenizer.encode(one) if isinstance(one, str) else list(one) for one in prompt]


def _echo(asking: Asking, prompt: int) -> tuple[str, list[tuple[int, Row | None]]]:
    """What `echo` puts before an answer: the prompt's text (none where ids are told) and its logprobs' rows."""
    if not asking.body.get("echo"):
        return "", []
    ids, model = asking.prompts[prompt], asking.served.model
    rows: list[Row | None] = [None, *model.rows(ids)] if asking.asked.k is not None else []
    text = "" if asking.asked.ids else model.tokenizer.decode(ids)
    return text, list(zip(ids, rows, strict=False))


async def whole(asking: Asking) -> dict[str, Any]:
    """A whole completion."""
    choices, longest, total = [], 0, 0
    for index in range(asking.count):
        prompt = index // asking.n
        steps = [] if _only_echo(asking.body) else await asking.whole(index)
        longest, total = max(longest, len(steps)), total + max(1, len(steps))
        text, echoed = _echo(asking, prompt)
        choices.append(
            {
                "index": index,
                "text": text + "".join(step.text for step in steps),
                "logprobs": asking.logprobs.completions(steps, 0, echoed),
                "finish_reason": steps[-1].finish if steps else "length",
                "stop_reason": steps[-1].stop_reason if steps else None,
                "token_ids": [step.token for step in steps] if asking.asked.ids else None,
                "prompt_logprobs": asking.prompt_logprobs(prompt),
                "prompt_token_ids": asking.prompts[prompt] if asking.asked.ids else None,
                "routed_experts": None,
            }
        )
    await asking.served.pace.tokens(longest)
    counted = wire.usage(sum(map(len, asking.prompts)), total, *wire.USAGE_DETAILS)
    return wire.text_body(asking.head, choices, counted)


def _only_echo(body: dict[str, Any]) -> bool:
    return bool(body.get("echo")) and checks.integer(body, "max_tokens") == 0


async def events(asking: Asking) -> AsyncGenerator[bytes]:
    """A completion's events; the last payload is `[DONE]`."""
    with_usage, always = asking.usage_options
    counts, offsets = [0] * asking.count, [0] * asking.count
    async with contextlib.aclosing(asking.interleaved()) as steps:
        async for index, step in steps:
            prompt, first = index // asking.n, counts[index] == 0
            counts[index] += 1
            text, echoed = _echo(asking, prompt) if first else ("", [])
            logprobs = asking.logprobs.completions([step], offsets[index], echoed)
            if logprobs is not None:
                offsets[index] = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])
            tells_prompt = first and (asking.asked.ids or bool(asking.body.get("echo")))
            choice = {
                "index": index,
                "text": text + step.text,
                "logprobs": logprobs,
                "finish_reason": step.finish,
                "stop_reason": step.stop_reason,
                "prompt_token_ids": asking.prompts[prompt] if tells_prompt else None,
                "token_ids": [step.token] if asking.asked.ids else None,
            }
            chunk = asking.head.chunk("text_completion", [choice])
            if always:
                chunk["usage"] = wire.usage(len(asking.prompts[prompt]), counts[index])
            if step.finish is not None and not with_usage:
                chunk["system_fingerprint"] = wire.FINGERPRINT
            yield wire.dumps(chunk)
    if with_usage:
        counted = wire.usage(sum(map(len, asking.prompts)), sum(counts))
        yield wire.dumps(asking.head.chunk("text_completion", [], usage=counted, system_fingerprint=wire.FINGERPRINT))
    yield b"[DONE]"
