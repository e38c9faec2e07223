"""Completions: how one choice of a chunk, or of a whole body, is read. Its logprobs are four parallel lists."""

from typing import Any

from shadow.exchange import NO_ID
from shadow.wire.assembly import ChoiceAssembler, Token, number_of, token_id


def read_choice(choice: ChoiceAssembler, raw: dict[str, Any], _around: dict[str, Any]) -> None:
    """Reads one entry of `choices`: chunk and whole body have the same shape."""
    choice.prompt(raw.get("prompt_token_ids"))
    choice.text(raw.get("text"))
    choice.tokens(raw.get("token_ids"), logprob_entries(raw.get("logprobs")))
    choice.finish(raw.get("finish_reason"), raw.get("stop_reason"))


def logprob_entries(logprobs: Any) -> list[Token]:
    """The parallel lists as tokens; empty where there are none, or where they do not run parallel."""
    if not isinstance(logprobs, dict):
        return []
    tokens, values, tops = (logprobs.get(key) for key in ("tokens", "token_logprobs", "top_logprobs"))
    if not (isinstance(tokens, list) and isinstance(values, list) and len(tokens) == len(values)):
        return []
    tops = tops if isinstance(tops, list) and len(tops) == len(tokens) else [None] * len(tokens)
    return [_entry(token, value, top) for token, value, top in zip(tokens, values, tops, strict=True)]


def _entry(token: Any, value: Any, top: Any) -> Token:
    # Candidates are keyed: by id, or by text, where two tokens of one text lose one of them. Texts tell no winner.
    identity = token_id(token)
    return Token(identity, number_of(value), None, _candidates(top) if identity != NO_ID else [])


def _candidates(top: Any) -> list[tuple[int, float]]:
    return [(token_id(token), number_of(value)) for token, value in top.items()] if isinstance(top, dict) else []
