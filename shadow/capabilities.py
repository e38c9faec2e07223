"""What an engine can do, found out by asking it: unknown fields are silently accepted, so effects are checked."""

import hashlib
import re
from collections.abc import Awaitable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from shadow import ask
from shadow.engine import Engine, read_object
from shadow.errors import Failed, Garbage, Refused
from shadow.exchange import NO_ID, Dialect
from shadow.wire import answers
from shadow.wire.assembly import ids_of

# Fixed texts: words, numbers, code, white space, other scripts, an emoji, what looks like markup.
TOKENIZER_TEXTS = (
    'show interfaces GigabitEthernet0/0/1.201 {"amount": -1234.50}\n\n\tdef f(x):\n        return x',
    "Zażółć gęślą jaźń, 数据, العربية, नमस्ते, e\u0301, 👩\u200d💻 <tool_call></tool_call><think>",
)

_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_RESPONSE_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")
_MAX_K = 20
_RAW_TOLERANCE = 0.5  # nats: a bias of 100 moves a processed logprob by far more


class LogprobsMode(StrEnum):
    """When an engine takes its logprobs: before temperature, penalties and bias, or after."""

    RAW = "raw"
    PROCESSED = "processed"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one engine was seen to do. `max_logprobs` is the largest k of 20, 5, 2 that it took (0: none).

    `tokenizer` is a hash of the ids of fixed texts, None where the engine does not tokenize. `block_size` in tokens.
    `keeps_responses`: whether a response can be fetched again from it, None where it was not asked.
    """

    model: str
    version: str | None = None
    max_model_len: int | None = None
    token_ids_in: bool = False
    token_ids_out: bool = False
    prompt_logprobs: bool = False
    chat_prompt_ids: bool = False
    render: bool = False
    derender: bool = False
    prefix_cache: bool | None = None
    block_size: int | None = None
    logprobs_mode: LogprobsMode = LogprobsMode.NONE
    max_logprobs: int = 0
    tokenizer: str | None = None
    keeps_responses: bool | None = None

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways to ask this engine for a second opinion, best first."""
        raw = self.logprobs_mode is LogprobsMode.RAW
        ways = {
            "score": self.token_ids_in and self.prompt_logprobs,
            # Without a prefix cache every probe would be a whole prefill.
            "probe": self.token_ids_in and raw and self.prefix_cache is not False,
            "continue": self.chat_prompt_ids,
            "replay": True,
        }
        return tuple(way for way, can in ways.items() if can)

    def as_dict(self) -> dict[str, Any]:
        """For JSON output."""
        return asdict(self) | {"ways": list(self.ways)}


def refusal_as_pair(primary: Capabilities, reference: Capabilities) -> str | None:
    """Why a reference cannot give a second opinion on a primary, in words, or None.

    Token histories are compared by id: another tokenizer makes every id mean something else. A shorter context would
    silently leave out the long exchanges, where drift shows first.
    """
    if not primary.tokenizer or not reference.tokenizer:
        return "tokenizer_unknown: an engine does not tokenize, so that nobody knows whether its ids mean the same"
    if primary.tokenizer != reference.tokenizer:
        return "tokenizer_differs: the reference's tokenizer gives other ids for the same texts"
    if primary.max_model_len and reference.max_model_len and reference.max_model_len < primary.max_model_len:
        return (
            f"context_too_short: the reference's context is {reference.max_model_len} tokens, "
            f"the primary's {primary.max_model_len}"
        )
    if not reference.token_ids_in:
        return "no_token_input: the reference does not take token ids"
    return None


T = TypeVar("T")


_NOT_THERE = frozenset({404, 405, 501})
# What says "not now", and nothing about what an engine can do.
_NOT_NOW = frozenset({408, 425, 429, 502, 503, 504})


async def _tried(work: Awaitable[T]) -> T | None:
    """The result, or None where the engine does not take that request, fails on it or answers something else.

    Raises:
        EngineError: it cannot be asked now.
    """
    try:
        return await work
    except (Refused, Failed) as error:
        if error.status in _NOT_NOW:
            raise
        return None
    except Garbage:
        return None


async def _check_up(engine: Engine) -> None:
    """Asks for the plainest completion: an engine that fails on it is not well, and what it can do is not known yet.

    Raises:
        EngineError: it is not.
    """
    try:
        read_object(await engine.post("/v1/completions", {"model": engine.model, "prompt": "Hi.", "max_tokens": 1}))
    except Refused as error:  # without such a route, or without such prompts, it may be well all the same
        if error.status in _NOT_NOW:
            raise


async def discover(engine: Engine, *, reference: bool = True) -> Capabilities:
    """Asks an engine what it can do; its first answers also warm it (kernels, grammars, tokenizer).

    A primary (`reference=False`) is asked only for what is read off it: neither prompt logprobs nor prompt ids on the
    chat route, which some deployments give a meaning of their own. Only a primary is asked whether it keeps responses.

    Raises:
        EngineError: the engine is not there, broken, or serves no model of the configured name.
    """
    model, max_len = await served_model(engine)
    engine.model, engine.longest = model, max_len
    version = await _tried(engine.get("/version"))
    metrics = await _tried(engine.get("/metrics"))
    cache = cache_info((metrics or b"").decode("utf-8", "replace"))
    texts = [await _tried(engine.tokenize(text)) for text in TOKENIZER_TEXTS]
    ids = texts[0] or (1, 2, 3, 4)
    await _check_up(engine)
    completion = await _tried(_completion(engine, ids))
    token_ids = completion is not None and completion.prompt_ids == tuple(ids)
    scored = await _tried(engine.score(ids[:-2], ids[-2:])) if token_ids and reference else None
    return Capabilities(
        model=model,
        version=_version(version),
        max_model_len=max_len,
        token_ids_in=token_ids,
        token_ids_out=completion is not None and completion.token_ids is not None,
        prompt_logprobs=scored is not None,
        chat_prompt_ids=reference and await _takes_prompt_ids(engine, ids),
        render=reference and await _tried(_render(engine)) is not None,
        derender=reference and await _tried(_derender(engine, ids)) is not None,
        prefix_cache={"True": True, "False": False}.get(cache.get("enable_prefix_caching", "")),
        block_size=int(size) if (size := cache.get("block_size", "")).isdecimal() else None,
        logprobs_mode=await logprobs_mode(engine, ids),
        max_logprobs=await _max_logprobs(engine, ids),
        tokenizer=_hash([text for text in texts if text is not None]) if all(texts) else None,
        keeps_responses=None if reference else await _keeps_responses(engine),
    )


def _hash(texts: list[tuple[int, ...]]) -> str:
    return hashlib.sha256(repr(texts).encode()).hexdigest()[:16]


def _version(body: bytes | None) -> str | None:
    try:
        found = read_object(body or b"").get("version")
    except Garbage:
        return None
    return found if isinstance(found, str) else None


def cache_info(metrics: str) -> dict[str, str]:
    """The labels of vLLM's own `cache_config_info` metric; empty where there is none."""
    found = _CACHE_INFO.search(metrics)
    return dict(_LABEL.findall(found.group(1))) if found else {}


async def served_model(engine: Engine) -> tuple[str, int | None]:
    """The configured model (or the first that the engine serves) and its context in tokens.

    Raises:
        EngineError: the engine is away, or serves no such model.
    """
    listed = read_object(await engine.get("/v1/models")).get("data")
    models = [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
    wanted = engine.endpoint.model
    found = next((m for m in models if wanted is None or m.get("id") == wanted), None)
    if found is None or not isinstance(found.get("id"), str):
        names = ", ".join(str(m.get("id")) for m in models) or "none"
        raise Garbage(f"{engine.name}: serves no model {wanted or ''!r} (it has: {names})")
    length = found.get("max_model_len")
    return found["id"], length if type(length) is int else None


async def _completion(engine: Engine, ids: tuple[int, ...], **extra: Any) -> Any:
    """One greedy token after `ids`, with candidates; `extra` fields are added."""
    body = ask.probing(engine.model, ids, k=2) | {"return_token_ids": True} | extra
    answer = answers.read(Dialect.COMPLETIONS, await engine.post("/v1/completions", body), stream=False)
    if answer.problem is not None or 0 not in answer.choices:
        raise Garbage(f"{engine.name}: no completion")
    return answer.choices[0]


async def logprobs_mode(engine: Engine, ids: tuple[int, ...]) -> LogprobsMode:
    """Raw or processed: with a large bias on the runner-up, a raw logprob stays what it was."""
    before = await _tried(_completion(engine, ids))
    if before is None or before.top is None or len(before.top.ids[0]) < 2:
        return LogprobsMode.NONE
    runner_up = next((int(t) for t in before.top.ids[0] if (int(t),) != before.token_ids), NO_ID)
    if runner_up == NO_ID:
        return LogprobsMode.NONE
    after = await _tried(_completion(engine, ids, logit_bias={str(runner_up): 100}))
    if after is None or after.top is None or after.token_ids != (runner_up,):
        return LogprobsMode.NONE
    asked = np.array([runner_up], dtype=np.int64)
    moved = float(after.top.logprob_of(asked)[0] - before.top.logprob_of(asked)[0])
    return LogprobsMode.RAW if abs(moved) < _RAW_TOLERANCE else LogprobsMode.PROCESSED


async def _max_logprobs(engine: Engine, ids: tuple[int, ...]) -> int:
    for k in (_MAX_K, ask.TOP_K, 2):
        if await _tried(_completion(engine, ids, logprobs=k)) is not None:
            return k
    return 0


async def _takes_prompt_ids(engine: Engine, ids: tuple[int, ...]) -> bool:
    body = {
        "model": engine.model,
        "messages": [{"role": "user", "content": "Hi."}],
        "max_tokens": 1,
        "temperature": 0,
        "return_token_ids": True,
        "kv_transfer_params": {"prompt_token_ids": list(ids)},
    }
    raw = await _tried(engine.post("/v1/chat/completions", body))
    if raw is None:
        return False
    answer = answers.read(Dialect.CHAT, raw, stream=False)
    return 0 in answer.choices and answer.choices[0].prompt_ids == tuple(ids)


async def _keeps_responses(engine: Engine) -> bool:
    """Whether a response may be fetched again: only an engine that plainly says so has no such API, or keeps none."""
    try:
        identity = await _respond(engine)
        await engine.get(f"/v1/responses/{identity}")
    except Garbage:
        return True  # it answers in a way of its own: nothing is known of what it keeps
    except (Refused, Failed) as error:
        if error.status in _NOT_NOW:
            raise
        return error.status not in _NOT_THERE
    return True


async def _respond(engine: Engine) -> str:
    """Has an engine answer with a response that it may keep; its id."""
    body = {"model": engine.model, "input": "Hi.", "max_output_tokens": 1, "temperature": 0, "store": True}
    identity = read_object(await engine.post("/v1/responses", body)).get("id")
    if not isinstance(identity, str) or not _RESPONSE_ID.fullmatch(identity):
        raise Garbage(f"{engine.name}: a response without an id")
    return identity


async def _render(engine: Engine) -> bytes:
    body = {"model": engine.model, "messages": [{"role": "user", "content": "Hi."}]}
    raw = await engine.post("/v1/chat/completions/render", body)
    if ids_of(read_object(raw).get("token_ids")) is None:
        raise Garbage(f"{engine.name}: the render route gave no ids")
    return raw


async def _derender(engine: Engine, ids: tuple[int, ...]) -> bytes:
    choice = {"index": 0, "token_ids": list(ids), "finish_reason": "stop"}
    body = {
        "model": engine.model,
        "generate_response": {"request_id": "counterproof", "choices": [choice]},
        "prompt_tokens": 1,
        "chat_request": {"model": engine.model, "messages": [{"role": "user", "content": "Hi."}]},
    }
    return await engine.post("/v1/chat/completions/derender", body)


__all__ = ["Capabilities", "LogprobsMode", "cache_info", "discover", "refusal_as_pair", "served_model"]
