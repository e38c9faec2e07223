"""One request, its answer, and what the wire told about its tokens.

Shapes: `P` prompt ids, `O` output ids of one choice, position `i` counts from 0 in `O`; logprobs in nats, natural
logarithm. vLLM writes minus infinity as -9999.0; here it is -inf again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from validators import ToolCall

FLOOR = -9999.0
"""What vLLM sends for a logprob of minus infinity."""

NO_ID = -1
"""Fills a place in an id array where no token is known."""

_TEXT_PARTS = ("text", "refusal", "thinking")
_LOOKED_AT = 10_000  # messages and parts of their content

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


class Dialect(StrEnum):
    """The API a request speaks."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


class Region(StrEnum):
    """What an output token belongs to."""

    REASONING = "reasoning"
    TEXT = "text"
    TOOL_CALL = "tool_call"


@dataclass(frozen=True, slots=True)
class TopK:
    """The top candidates of `n` positions: `ids` and `logprobs` of shape (n, k).

    A row is in no particular order; unused places hold NO_ID and -inf. A row of which nothing is known is all NO_ID.
    `texts` are the engine's own texts of ids, where it told them: for people to read, never to compare by.
    """

    ids: Ids
    logprobs: Floats
    texts: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice) -> "TopK":
        return TopK(self.ids[rows], self.logprobs[rows], self.texts)

    @classmethod
    def of(cls, rows: Sequence[Sequence[tuple[int, float]]], texts: Mapping[int, str] | None = None) -> "TopK":
        """From one list of (id, logprob) pairs per position; NaN logprobs are left out, FLOOR becomes -inf."""
        width = max((len(row) for row in rows), default=0)
        ids = np.full((len(rows), width), NO_ID, dtype=np.int64)
        logprobs = np.full((len(rows), width), -np.inf, dtype=np.float64)
        for i, row in enumerate(rows):
            for j, (token, logprob) in enumerate(row):
                if logprob == logprob:  # noqa: PLR0124  (NaN is the one value unequal to itself)
                    ids[i, j] = token
                    logprobs[i, j] = logprob if logprob > FLOOR else -np.inf
        return cls(ids, logprobs, texts or {})

    def then(self, other: "TopK") -> "TopK":
        """These positions followed by those of `other`; shape (n + m, the wider k)."""
        width = max(self.ids.shape[1], other.ids.shape[1])

        def wide(values: NDArray[Any], fill: float) -> NDArray[Any]:
            return np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=fill)

        ids = np.concatenate([wide(self.ids, NO_ID), wide(other.ids, NO_ID)])
        logprobs = np.concatenate([wide(self.logprobs, -np.inf), wide(other.logprobs, -np.inf)])
        return TopK(ids, logprobs, {**self.texts, **other.texts})

    def known(self) -> NDArray[np.bool_]:
        """Per position: is anything known of it. Shape (n,)."""
        return np.asarray((self.ids != NO_ID).any(axis=1), dtype=np.bool_)

    def best(self) -> Floats:
        """The highest logprob of each position, -inf where nothing is known. Shape (n,)."""
        best: Floats = self.logprobs.max(axis=1, initial=-np.inf)
        return best

    def winners(self, emitted: Ids) -> Ids:
        """The winning id of each position: the highest logprob; `emitted` (n,) where it ties it. NO_ID if unknown."""
        if not self.ids.shape[1]:
            return np.full(len(self.ids), NO_ID, dtype=np.int64)
        top = self.ids[np.arange(len(self.ids)), self.logprobs.argmax(axis=1)]
        result = np.where(self.ties(emitted), emitted, top)
        return np.where(self.known() & (self.best() > -np.inf), result, NO_ID)

    def ties(self, tokens: Ids) -> NDArray[np.bool_]:
        """Per position: does the token of `tokens` (n,) hold the highest logprob, alone or with others."""
        best = self.best()[:, None]
        hit = (self.ids == tokens[:, None]) & (self.logprobs == best) & (best > -np.inf)
        return np.asarray(hit.any(axis=1), dtype=np.bool_)

    def logprob_of(self, tokens: Ids) -> Floats:
        """The listed logprob of one token per position, NaN where it is not listed. Shape (n,)."""
        hit = (self.ids == tokens[:, None]) & (self.ids != NO_ID)
        value = np.where(hit, self.logprobs, -np.inf).max(axis=1, initial=-np.inf)
        return np.where(hit.any(axis=1), value, np.nan)


@dataclass(slots=True)
class Choice:
    """One choice of an answer, assembled.

    `prompt_ids` and `token_ids` are None where the wire did not tell them. `token_bytes[i]` is the text of `O[i]` as
    bytes (None where not told); `top` has a row per position where logprobs were told as ids, `emitted_wins[i]` says
    whether `O[i]` held the highest logprob of at least two listed (known from text-only lists too). `lead` is the
    content before the first call: what was streamed up to and including the first tool delta, or the whole content.
    """

    index: int
    prompt_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    token_bytes: tuple[bytes | None, ...] | None = None
    top: TopK | None = None
    emitted_wins: tuple[bool | None, ...] | None = None
    content: str = ""
    reasoning: str = ""
    lead: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class Answer:
    """What came back: its choices by index, and why it is not whole, if it is not.

    `problem` is None, `error` (an error body or an error inside a stream), `truncated` (no finish, no `[DONE]`),
    `garbage` (not what the API sends) or `too_large` (over the copy's bound).
    """

    choices: dict[int, Choice] = field(default_factory=dict)
    problem: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Monotonic seconds: when the request began, when the first answer byte and the last one came back."""

    began: float
    first_byte: float
    ended: float


_FLAG = TypeAdapter(bool)


def flag(value: Any) -> bool | None:
    """A JSON value as the server's own model reads a boolean (1, "true" and "on" are True); None for anything else."""
    if value is None or type(value) is bool:
        return value
    try:
        return _FLAG.validate_python(value)
    except ValidationError:
        return None


def _is_text(part: dict[str, Any]) -> bool:
    """Whether a part of a message's content is text; without a type, only its keys tell (an image may come so)."""
    kind = part.get("type")
    return part.keys() <= {"text"} if kind is None else kind in _TEXT_PARTS


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the client sent it, and what follows from it for a comparison.

    `body` is the parsed JSON object of a chat or completions request, and the chat request that says the same where
    `sent` is one of another dialect; `stream`, `n` and `model` are read with the API's defaults.
    """

    dialect: Dialect
    body: dict[str, Any]
    sent: dict[str, Any] | None = None

    @property
    def model(self) -> str:
        """The model asked for, "" if none."""
        model = self.body.get("model")
        return model if isinstance(model, str) else ""

    @property
    def stream(self) -> bool:
        """True where the client wants server-sent events."""
        return flag(self.body.get("stream")) is True

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The function objects of the request's tools (name, parameters, strict); what is no function is left out."""
        tools = self.body.get("tools")
        found = [t.get("function") for t in tools if isinstance(t, dict)] if isinstance(tools, list) else []
        return [f for f in found if isinstance(f, dict) and isinstance(f.get("name"), str)]

    @property
    def tool_names(self) -> frozenset[str]:
        """The names of the request's tools."""
        return frozenset(str(tool["name"]) for tool in self.tools)

    @property
    def tool_choice(self) -> str:
        """`none`, `auto`, `required` or `named`, as the server reads it (auto where tools are given, else none)."""
        choice = self.body.get("tool_choice")
        if isinstance(choice, dict):
            return "named"
        if isinstance(choice, str) and choice in {"none", "auto", "required"} and self.tools:
            return choice
        return "auto" if self.tools else "none"

    @property
    def multimodal(self) -> bool:
        """True where a message holds anything but text: engines ignore prompt ids beside images.

        So is a request of more than 10,000 messages and parts: that many are not looked at.
        """
        messages = self.body.get("messages")
        if not isinstance(messages, list):
            return False
        left = _LOOKED_AT - len(messages)
        for message in messages if left >= 0 else ():
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(content, list):
                left -= len(content)
                if left < 0:
                    break
                for part in content:
                    if isinstance(part, dict) and not _is_text(part):
                        return True
        return left < 0

    @property
    def client_logprobs(self) -> bool:
        """True where the client asked for logprobs itself."""
        asked = self.body.get("logprobs")
        return asked is not None if self.dialect is Dialect.COMPLETIONS else flag(asked) is True

    @property
    def client_token_ids(self) -> bool:
        """True where the client asked for token ids itself."""
        return flag(self.body.get("return_token_ids")) is True

    @property
    def tells_tokens(self) -> bool:
        """Whether this dialect's answers can tell token ids and logprobs as they come."""
        return self.dialect in {Dialect.CHAT, Dialect.COMPLETIONS}

    @property
    def hides_reasoning(self) -> bool:
        """True where the client asked for no reasoning: the server then tells neither ids nor logprobs."""
        return flag(self.body.get("include_reasoning")) is False

    @property
    def grammar(self) -> str:
        """Where a grammar bends the choice: `no`, `calls` (inside tool calls only) or `all` (after any reasoning)."""
        structured = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
        if any(self.body.get(key) is not None for key in structured):
            return "all"
        response = self.body.get("response_format")
        if isinstance(response, dict) and response.get("type") not in (None, "text"):
            return "all"
        if self.tool_choice in {"required", "named"}:
            return "all"
        if self.tool_choice == "auto" and flag(self.body.get("parallel_tool_calls")) is False:
            return "calls"
        if self.tool_choice == "auto" and any(tool.get("strict") is True for tool in self.tools):
            return "calls"
        return "no"

    @property
    def asks_greedy(self) -> bool:
        """True where the client itself asked for temperature 0 (the server's default may be another)."""
        temperature = self.body.get("temperature")
        return isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0


@dataclass(frozen=True, slots=True)
class Continuation:
    """A reference's own answer from output token `start` of the primary's history on; None: to the request alone."""

    start: int | None
    own: Choice


@dataclass(slots=True)
class Exchange:
    """One request and its answer, understood after the answer has ended. `began_at` is wall-clock seconds (epoch).

    `continued` holds what references were asked already, while the client waited, by shadow and choice.
    """

    id: str
    request: Request
    answer: Answer
    status: int
    began_at: float
    timings: Timings
    conversation: str
    continued: Mapping[tuple[str, int], Continuation] = field(default_factory=dict)
