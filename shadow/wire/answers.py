"""A whole answer from its bytes, streamed or not, in either dialect. Never raises on what an engine sends."""

import json
import re
from collections.abc import Callable
from typing import Any

import orjson

from shadow.exchange import Answer, Choice, Dialect
from shadow.wire import chat, completions, sse
from shadow.wire.assembly import ChoiceAssembler, place_of

_ARGUMENTS_AS_VALUE = re.compile(rb'"arguments"\s*:\s*[{\[]')

ReadChoice = Callable[[ChoiceAssembler, dict[str, Any], dict[str, Any]], None]

_CHUNK: dict[Dialect, ReadChoice] = {Dialect.CHAT: chat.read_chunk, Dialect.COMPLETIONS: completions.read_choice}
_WHOLE: dict[Dialect, ReadChoice] = {Dialect.CHAT: chat.read_message, Dialect.COMPLETIONS: completions.read_choice}


class AnswerReader:
    """Takes an answer's JSON objects one by one and puts its choices together.

    Framing, errors, usage and completeness are common to the dialects; `read` knows how one choice is written.
    """

    def __init__(self, read: ReadChoice) -> None:
        self._read = read
        self._answer = Answer()
        self._choices: dict[int, ChoiceAssembler] = {}
        self._done = False

    @classmethod
    def of_stream(cls, dialect: Dialect) -> "AnswerReader":
        """A reader for the payloads of a stream."""
        return cls(_CHUNK[dialect])

    def payload(self, payload: bytes) -> None:
        """Takes the payload of one event."""
        if payload.strip() == sse.DONE:
            self.done()
        else:
            self.value(read_object(payload))

    def done(self) -> None:
        """Takes the end that a stream says of itself."""
        self._done = True

    def value(self, value: dict[str, Any] | None) -> None:
        """Takes one JSON object that was read already; None is what could not be read."""
        if value is None:
            self._answer.problem = self._answer.problem or "garbage"
            return
        if value.get("error") is not None:
            self._answer.problem = "error"
        if isinstance(value.get("model"), str):
            self._answer.model = value["model"]
        if isinstance(value.get("usage"), dict):
            self._answer.usage = value["usage"]
        choices = value.get("choices")
        for raw in choices if isinstance(choices, list) else ():
            if isinstance(raw, dict):
                place = place_of(raw.get("index"))
                if place is None:
                    self._answer.problem = self._answer.problem or "garbage"
                self._read(self._assembler(place or 0), raw, value)

    def _assembler(self, index: int) -> ChoiceAssembler:
        if index not in self._choices:
            self._choices[index] = ChoiceAssembler(index)
        return self._choices[index]

    def choice(self, index: int) -> Choice:
        """One choice as it stands."""
        return self._assembler(index).result()

    def conflict(self, index: int) -> bool:
        """Whether clients may put together other calls of a choice than these."""
        return index in self._choices and self._choices[index].conflict

    def result(self) -> Answer:
        """The answer as it stands; `truncated` where no `[DONE]` came or a choice did not finish.

        `garbage`, too, where clients may put together other calls.
        """
        answer = self._answer
        if answer.problem is None and any(choice.conflict for choice in self._choices.values()):
            answer.problem = "garbage"
        whole = self._done and self._choices and all(choice.finished for choice in self._choices.values())
        if answer.problem is None and not whole:
            answer.problem = "truncated"
        answer.choices = {index: choice.result() for index, choice in sorted(self._choices.items())}
        return answer

    @classmethod
    def whole(cls, dialect: Dialect, body: bytes) -> Answer:
        """Reads an answer that was not streamed."""
        reader = cls(_WHOLE[dialect])
        reader.value(read_object(body))
        reader.done()
        return reader.result()


def indices(body: bytes) -> list[int | None]:
    """The index of each element of `choices`, in their order on the wire: 0 where none is told, None if it is odd."""
    choices = (read_object(body) or {}).get("choices")
    choices = choices if isinstance(choices, list) else []
    return [place_of(choice.get("index")) if isinstance(choice, dict) else 0 for choice in choices]


def read_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object of an answer, None where the text is none."""
    try:
        # Arguments that come as an object, not as text, must keep integers beyond 64 bits.
        value = json.loads(text) if _ARGUMENTS_AS_VALUE.search(text) else orjson.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read(dialect: Dialect, body: bytes, *, stream: bool) -> Answer:
    """An answer's complete bytes: server-sent events where `stream`, else one JSON object."""
    if not stream:
        return AnswerReader.whole(dialect, body)
    reader, splitter = AnswerReader.of_stream(dialect), sse.Splitter()
    for block in splitter.feed(body):
        if (payload := sse.data_of(block)) is not None:
            reader.payload(payload)
    return reader.result()
