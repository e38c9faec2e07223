"""What is asked of an engine and how its answers are read: pure builders and readers.

A request to a reference is built from a list of allowed fields. A client can send neither forced ids, prompt ids,
cache salt, priority, request id nor its credentials to a reference: it could steer, slow or read it.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from shadow.errors import Garbage
from shadow.exchange import Dialect, Request, TopK
from shadow.wire import completions
from shadow.wire.assembly import MAX_ID, number_of

TOP_K = 5
"""Candidates per position that are asked for."""

# What shapes the prompt, the grammar or the parser.
_CHAT = (
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "structured_outputs",
    "reasoning_effort",
    "chat_template_kwargs",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "mm_processor_kwargs",
)
_COMPLETIONS = ("prompt", "suffix", "response_format", "structured_outputs", "add_special_tokens")
NOT_RENDERED = ("kv_transfer_params", "chat_template", "truncate_prompt_tokens")
"""A request with one of these has a prompt of its own making: the reference's template says nothing about it."""
TOKENIZED = (
    "model",
    "messages",
    "tools",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)
"""What /tokenize takes of a chat request."""
NOT_TOKENIZED = ("reasoning_effort", "documents", "mm_processor_kwargs")
"""What shapes a prompt and /tokenize does not take."""

# What bends the choice or ends it, for both engines alike.
_SAMPLING = (
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
)
# What a model's generation_config would otherwise fill in: the reference answers greedily and unbent. Not where the
# primary's unbent choice is not told: then both are bent alike, each by its own server.
_NEUTRAL = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
_EXPLICIT = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "n": 1}


def allowed(request: Request, model: str) -> dict[str, Any]:
    """The client's request as a reference may see it: allowed fields only, greedy, one choice, token ids told."""
    chat = request.dialect is not Dialect.COMPLETIONS
    names = (_CHAT if chat else _COMPLETIONS) + _SAMPLING
    body = {name: request.body[name] for name in names if name in request.body}
    for name, neutral in _NEUTRAL.items() if request.tells_tokens else ():
        if body.get(name) is None:
            body[name] = neutral
    body |= _EXPLICIT | {"model": model, "stream": False} | told(request.dialect)
    return body


def told(dialect: Dialect, k: int = TOP_K) -> dict[str, Any]:
    """The fields that make an engine tell token ids and its top `k` logprobs."""
    ids: dict[str, Any] = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    return ids | ({"logprobs": k} if dialect is Dialect.COMPLETIONS else {"logprobs": True, "top_logprobs": k})


def room(expected: int, longest: int | None) -> int:
    """How many tokens a reference may write where the client set no limit: a call that never closes ends, too.

    Twice what is `expected` and a margin, but no more than its context of `longest` tokens: an engine cuts a limit down
    to what is left beside the prompt, and refuses one that is larger than all its context.
    """
    wanted = 2 * expected + 256
    return wanted if longest is None else min(wanted, longest)


def continuation(
    request: Request, model: str, history: Sequence[int], *, used: int, expected: int, longest: int | None = None
) -> dict[str, Any]:
    """A chat request that goes on from `history` (prompt ids and the output before the call).

    `used` output tokens are already spent of the client's own limit; where it set none, there is `room`.
    """
    body = allowed(request, model)
    limit = client_limit(request)
    for spent in ("max_completion_tokens", "truncate_prompt_tokens"):
        body.pop(spent, None)
    body["max_tokens"] = max(1, limit - used) if limit is not None else room(expected, longest)
    if isinstance(body.get("min_tokens"), int):
        body["min_tokens"] = max(0, body["min_tokens"] - used)
    return body | {"kv_transfer_params": {"prompt_token_ids": list(history)}}


def repetition(request: Request, model: str, *, expected: int, longest: int | None = None) -> dict[str, Any]:
    """The whole request again; where the client set no limit, there is `room`."""
    body = allowed(request, model)
    return body if client_limit(request) is not None else body | {"max_tokens": room(expected, longest)}


def warming(request: Request, model: str) -> dict[str, Any]:
    """The request for one token: its prompt is read, and kept in the prefix cache."""
    body = allowed(request, model)
    for name in ("max_completion_tokens", "min_tokens"):
        body.pop(name, None)
    return body | {"max_tokens": 1}


def client_limit(request: Request) -> int | None:
    """The client's own limit of output tokens, None where it set none."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = request.body.get(name)
        if type(value) is int:
            return value
    return None


def scoring(model: str, prompt: Sequence[int], output: Sequence[int], k: int = TOP_K) -> dict[str, Any]:
    """Teacher forcing by prompt logprobs: the whole history as a prompt, one token of output.

    k is at least 1: with 0 an exact tie of the emitted token ranks above 1.
    """
    return _ids_request(model, [*prompt, *output]) | {"max_tokens": 1, "prompt_logprobs": max(1, k)}


def probing(model: str, history: Sequence[int], k: int = TOP_K) -> dict[str, Any]:
    """Teacher forcing of one position through the prefix cache: one token after `history`."""
    return _ids_request(model, history) | {"max_tokens": 1, "logprobs": k, "return_tokens_as_token_ids": True}


def _ids_request(model: str, ids: Sequence[int]) -> dict[str, Any]:
    greedy = _NEUTRAL | _EXPLICIT
    return {"model": model, "prompt": list(ids), "add_special_tokens": False, **greedy}


def read_scoring(body: bytes, prompt: Sequence[int], output: Sequence[int]) -> TopK:
    """The reference's candidates of each output position, shape (len(output), k + 1 at most).

    Raises:
        Garbage: not the shape that was asked for, a row without the token it is about, or logprobs that cannot be.
    """
    rows = _scored_rows(body)
    if len(rows) != len(prompt) + len(output):
        raise Garbage("no prompt logprobs for every position")
    found: list[list[tuple[int, float]]] = []
    texts: dict[int, str] = {}
    for token, raw in zip(output, rows[len(prompt) :], strict=True):
        row = orjson.loads(memoryview(raw))  # valid JSON: it was gone over
        if not isinstance(row, dict) or str(token) not in row:
            raise Garbage("prompt logprobs of other tokens than asked about")
        entries = {_id(key): entry for key, entry in row.items() if isinstance(entry, dict)}
        found.append([(key, number_of(entry.get("logprob"))) for key, entry in entries.items()])
        texts |= {key: text for key, entry in entries.items() if isinstance(text := entry.get("decoded_token"), str)}
    return believable(TopK.of(found, texts))


def read_probe(body: bytes) -> list[tuple[int, float]]:
    """The candidates of the one position that a probe asked about, as (id, logprob).

    Raises:
        Garbage: no token with its candidates came back.
    """
    tokens = completions.logprob_entries(_only_choice(body).get("logprobs"))
    if len(tokens) != 1 or not (row := tokens[0].row()):
        raise Garbage("a probe without candidates")
    return row


class _ScoredChoice(msgspec.Struct):
    prompt_logprobs: list[msgspec.Raw]


class _Scored(msgspec.Struct):
    choices: list[_ScoredChoice]


_read_scored = msgspec.json.Decoder(_Scored).decode


def _scored_rows(body: bytes) -> list[msgspec.Raw]:
    """The rows of an answer's prompt logprobs, unread: of a long prompt's tens of megabytes only the end is needed."""
    try:
        choices = _read_scored(body).choices
    except (msgspec.MsgspecError, RecursionError):
        choices = []
    if len(choices) != 1:
        raise Garbage("no choice with prompt logprobs in the answer")
    return choices[0].prompt_logprobs


def _only_choice(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise Garbage("no choice in the answer")
    return choices[0]


def _id(key: str) -> int:
    if not key.isdecimal() or len(key) > 10 or int(key) > MAX_ID:
        raise Garbage("a token key that is no id")
    return int(key)


def believable(top: TopK) -> TopK:
    """Refuses candidates that are no probabilities: NaN for all, or more than one in sum (all zero, say).

    Raises:
        Garbage: a row of that kind.
    """
    for row in range(len(top)):
        values = [float(lp) for lp in top.logprobs[row] if lp > -math.inf]
        if not values or math.fsum(math.exp(min(lp, 1.0)) for lp in values) > 1.01:
            raise Garbage("logprobs that are no probabilities")
    return top
