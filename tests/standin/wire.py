"""vLLM 0.32's JSON, key by key: bodies, chunks and logprobs, in its order and with its nulls."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.standin.faults import spoil
from tests.standin.generation import Step
from tests.standin.model import Row
from tests.standin.tokens import Tokenizer

FINGERPRINT = "vllm-0.32.0-5ca1ab1e"


def dumps(value: Any) -> bytes:
    """JSON as the server writes it: compact, in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def usage(prompt: int, completion: int, *details: str) -> dict[str, Any]:
    """The usage object; `details` are the keys that hold null here."""
    counted = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    return counted | dict.fromkeys(details)


@dataclass(frozen=True)
class Asked:
    """What a request asked to be told beside the text: `k` candidates (None: no logprobs), ids, tokens as ids."""

    k: int | None
    ids: bool
    as_ids: bool
    spoiled: str | None = None


@dataclass(frozen=True)
class Logprobs:
    """Writes candidates for one request."""

    tokenizer: Tokenizer
    asked: Asked

    def token(self, token: int, spelled: bytes | None = None) -> str:
        """A token as the wire names it."""
        if self.asked.as_ids:
            return f"token_id:{token}"
        return (self.tokenizer.piece(token) if spelled is None else spelled).decode("utf-8", "replace")

    def value(self, logprob: float) -> float | None:
        """A logprob, spoiled where a fault says so."""
        return spoil(logprob, self.asked.spoiled)

    def chat(self, steps: Iterable[Step]) -> dict[str, Any] | None:
        """`logprobs` of a chat choice, or null where none were asked for."""
        if self.asked.k is None:
            return None
        return {"content": [self._chat_entry(step, self.asked.k) for step in steps if step.row is not None]}

    def _chat_entry(self, step: Step, k: int) -> dict[str, Any]:
        row = _row(step)
        top = []
        for token, logprob, _rank in row.top(step.token, k)[:k]:
            name = self.token(token)
            # vLLM spells out the bytes of what it writes, `token_id:7` too; only the emitted token has its real ones.
            top.append({"token": name, "logprob": self.value(logprob), "bytes": list(name.encode())})
        return {
            "token": self.token(step.token, step.spelled),
            "logprob": self.value(row.logprob(step.token)),
            "bytes": list(step.spelled),
            "top_logprobs": top,
        }

    def completions(
        self, steps: Sequence[Step], offset: int, echoed: Sequence[tuple[int, Row | None]] = ()
    ) -> dict[str, Any] | None:
        """`logprobs` of a completions choice; `echoed` are the prompt's tokens before it."""
        if self.asked.k is None:
            return None
        tokens, values, offsets, tops = [], [], [], []
        for token, row in [*echoed, *((step.token, _row(step)) for step in steps)]:
            tokens.append(name := self.token(token))
            offsets.append(offset)
            offset += len(name)
            values.append(None if row is None else self.value(row.logprob(token)))
            tops.append(None if row is None else self._named(row, token, self.asked.k))
        return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}

    def _named(self, row: Row, token: int, k: int) -> dict[str, Any]:
        return {self.token(t): self.value(logprob) for t, logprob, _rank in row.top(token, k)}

    def prompt(self, ids: Sequence[int], rows: Sequence[Row], k: int) -> list[dict[str, Any] | None]:
        """`prompt_logprobs`: null for the first token, then the actual token and the best `k`."""
        found: list[dict[str, Any] | None] = [None]
        for token, row in zip(ids[1:], rows, strict=True):
            entry = {}
            for t, logprob, rank in row.top(token, k):
                text = self.tokenizer.piece(t).decode("utf-8", "replace")
                entry[str(t)] = {"logprob": self.value(logprob), "rank": rank, "decoded_token": text}
            found.append(entry)
        return found


def _row(step: Step) -> Row:
    assert step.row is not None, "logprobs were asked for, so rows are kept"
    return step.row


@dataclass(frozen=True)
class Head:
    """What every body and chunk of one answer begins with."""

    id: str
    created: int
    model: str

    def chunk(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """A body or chunk; `more` follows the choices."""
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return head | {"choices": choices} | more


def chat_choice(
    index: int, message: dict[str, Any], logprobs: Any, finish: str, stop_reason: Any, ids: Any
) -> dict[str, Any]:
    """One choice of a chat completion."""
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop_reason,
        "token_ids": ids,
        "routed_experts": None,
    }


def message(
    content: str | None, reasoning: str | None, calls: Sequence[tuple[str, str]], new_id: Callable[[], str]
) -> dict[str, Any]:
    """A chat completion's message; `tool_calls` is absent where there are none."""
    said: dict[str, Any] = {"role": "assistant", "content": content}
    said |= dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
    if calls:
        said["tool_calls"] = [
            {"id": new_id(), "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ]
    return said | {"reasoning": reasoning}


def chat_body(
    head: Head, choices: list[dict[str, Any]], counted: dict[str, Any], fingerprint: str | None, **prompt: Any
) -> dict[str, Any]:
    """A chat completion."""
    told = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None} | prompt
    last = dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "metrics"))
    more = {"service_tier": None, "system_fingerprint": fingerprint, "usage": counted} | told | last
    return head.chunk("chat.completion", choices, **more)


def text_body(head: Head, choices: list[dict[str, Any]], counted: dict[str, Any]) -> dict[str, Any]:
    """A completion."""
    more = {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": counted}
    last = dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "metrics"))
    return head.chunk("text_completion", choices, **more, **last)


USAGE_DETAILS = ("prompt_tokens_details", "completion_tokens_details")


def permission(new_id: str, created: int) -> dict[str, Any]:
    """The permission object of a listed model."""
    allowed = {
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
    }
    head = {"id": f"modelperm-{new_id}", "object": "model_permission", "created": created}
    return head | allowed | {"organization": "*", "group": None, "is_blocking": False}
