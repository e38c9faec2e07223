"""Answers of the Responses API, streamed or not: from their JSON objects to one choice. Never raises.

A stream tells the same thing up to four times: in deltas, in an item's `done` events, and in the final response. What
is told twice must be told alike where it is a call: else two clients read two calls, and `conflict` says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shadow.exchange import Answer, Choice
from shadow.wire import sse
from shadow.wire.answers import read_object
from shadow.wire.assembly import ids_of, place_of
from shadow.wire.responses import custom_arguments, flat_name, text_of
from validators import ToolCall

CALLS = frozenset({"function_call", "custom_tool_call"})
"""The kinds of items that are calls for the client to execute."""

LIFECYCLE = frozenset({"response.created", "response.queued", "response.in_progress"})
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
"""The events that tell of the response as a whole: while it goes on, and its end."""

_WHOLE = LIFECYCLE | ENDS
_ITEM_OF = {"output_text": "message", "refusal": "message", "reasoning_text": "reasoning", "summary_text": "reasoning"}
# The events that tell a piece of text: the kind of its item, and the kind of its part.
_TEXTS = {
    "response.output_text": ("message", "output_text"),
    "response.refusal": ("message", "refusal"),
    "response.reasoning_text": ("reasoning", "reasoning_text"),
    "response.reasoning_summary_text": ("reasoning", "summary_text"),
}
_ARGUMENTS = {
    "response.function_call_arguments": ("function_call", "arguments"),
    "response.custom_tool_call_input": ("custom_tool_call", "input"),
}
_FINISHED = {"max_output_tokens": "length", "content_filter": "content_filter"}
_COUNTS = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens", "total_tokens": "total_tokens"}


@dataclass(slots=True)
class Part:
    """One text of an item. `whole` is what was told of it at once; its deltas come first where there are any.

    `done`: its text was told as done; `closed`: the part was.
    """

    kind: str
    pieces: list[str] = field(default_factory=list)
    whole: str = ""
    done: bool = False
    closed: bool = False

    @property
    def text(self) -> str:
        """The text as far as it has come."""
        return "".join(self.pieces) or self.whole


@dataclass(slots=True)
class Item:
    """One output item as far as it has come.

    `value` is the object that was told of it last, `closed` says that it was told as done, `parts` are its texts by
    kind and place. Of a call, `arguments` is what its deltas tell and `whole` what was told at once.
    """

    kind: str
    id: str | None = None
    index: int | None = None
    parts: dict[tuple[bool, int], Part] = field(default_factory=dict)
    begun: bool = False
    closed: bool = False
    value: dict[str, Any] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    whole: str | None = None
    told: dict[str, str] = field(default_factory=dict)
    odd: bool = False

    def part(self, kind: str, place: Any) -> Part:
        """The text at a place; summaries of reasoning are counted apart."""
        key = (kind == "summary_text", place if type(place) is int else 0)
        if key not in self.parts:
            self.parts[key] = Part(kind)
        return self.parts[key]

    def tell(self, name: str, value: Any) -> None:
        """Takes one of the fields that may be told more than once; nothing told is nothing said."""
        if isinstance(value, str) and value:
            self.odd = self.odd or self.told.setdefault(name, value) != value

    def tell_whole(self, arguments: Any) -> None:
        """Takes arguments that were told at once."""
        text = text_of(arguments)
        if text is None:
            self.odd = self.odd or arguments is not None
            return
        self.odd = self.odd or self.whole not in {None, text}
        self.whole = text

    @property
    def two_readings(self) -> bool:
        """Whether what was told of this item can be read in two ways."""
        return self.odd or bool(self.arguments and self.whole is not None and "".join(self.arguments) != self.whole)

    def call(self) -> ToolCall:
        """The item as a call."""
        text = "".join(self.arguments) or self.whole or ""
        name = flat_name(self.told.get("name", ""), self.told.get("namespace"))
        arguments = custom_arguments(text) if self.kind == "custom_tool_call" else text
        return ToolCall(name, arguments, self.told.get("call_id") or self.id)


class ResponseReader:
    """Takes the events of one stream in any order they come, or one whole response.

    `conflict` says that a call was told in two ways, so that two clients may execute two calls.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.ended = self.conflict = False
        self._answer = Answer()
        self._choice = Choice(0)
        self._lead: str | None = None
        self._touched: Item | None = None
        self._ids: dict[str, Item] = {}
        self._indices: dict[int, Item] = {}
        self._begun = False

    @classmethod
    def of_stream(cls) -> "ResponseReader":
        """A reader for the events of a stream."""
        return cls()

    @classmethod
    def whole(cls, body: bytes) -> Answer:
        """Reads an answer that was not streamed."""
        reader = cls()
        reader.take_whole(read_object(body))
        return reader.result()

    @property
    def spoke(self) -> bool:
        """Whether there is any text that a client shows."""
        parts = (part for item in self.items if item.kind == "message" for part in item.parts.values())
        return any(part.whole or any(part.pieces) for part in parts)

    def take_whole(self, value: dict[str, Any] | None) -> None:
        """Takes a response that was not streamed; None is what could not be read."""
        if value is None or ("output" not in value and value.get("error") is None):
            self._garbage()
        elif "output" not in value:
            self._answer.problem = "error"
        else:
            self._begun = True
            self._final(value)

    def take_ids(self, event: dict[str, Any] | None) -> None:
        """Takes the token ids of an event that tells of the response as a whole, and nothing else of it."""
        response = (event or {}).get("response")
        if isinstance(response, dict) and (ids := token_ids(response)) is not None:
            self._choice.prompt_ids, self._choice.token_ids = ids

    def payload(self, payload: bytes) -> None:
        """Takes the payload of one event."""
        if payload.strip() != sse.DONE:
            self.value(read_object(payload))

    def value(self, event: dict[str, Any] | None) -> None:
        """Takes one event that was read already; None is what could not be read."""
        if event is None:
            self._garbage()
            return
        self._begun = True
        if self.ended:  # what comes after the end is no part of the answer, and nothing that the API sends
            self._garbage()
            return
        kind = event.get("type")
        kind = kind if isinstance(kind, str) else ""
        name, _, what = kind.rpartition(".")
        if kind in _WHOLE:
            self._response(event.get("response"), ends=kind in ENDS)
        elif kind in {"response.output_item.added", "response.output_item.done"}:
            self._item(event, done=what == "done")
        elif kind in {"response.content_part.added", "response.content_part.done"}:
            self._part(event, done=what == "done")
        elif name in _TEXTS and what in {"delta", "done"}:
            self._text(event, *_TEXTS[name], done=what == "done")
        elif name in _ARGUMENTS and what in {"delta", "done"}:
            self._arguments(event, *_ARGUMENTS[name], done=what == "done")
        elif kind == "error" or event.get("error") is not None:
            self._answer.problem = "error"
        if self._touched is not None:  # only this item: what is read again for each event must not grow with all
            self._doubt(self._touched)
            self._touched = None

    def choice(self) -> Choice:
        """The answer's one choice as it stands."""
        choice = self._choice
        choice.content = "".join(self._texts("message"))
        choice.lead = choice.content if self._lead is None else self._lead
        choice.reasoning = "".join(self._texts("reasoning"))
        choice.calls = tuple(item.call() for item in self.items if item.kind in CALLS)
        return choice

    def result(self) -> Answer:
        """The answer as it stands; `truncated` before its end, `garbage` where its calls can be read in two ways."""
        answer = self._answer
        if answer.problem is None and self.conflict:
            answer.problem = "garbage"
        if answer.problem is None and not self.ended:
            answer.problem = "truncated"
        answer.choices = {0: self.choice()} if self._begun else {}
        return answer

    def _garbage(self) -> None:
        self._answer.problem = self._answer.problem or "garbage"

    def _texts(self, kind: str) -> Iterator[str]:
        for item in self.items:
            if item.kind == kind:
                shown = [key for key in sorted(item.parts) if not key[0]] or sorted(item.parts)  # else its summary
                yield from (item.parts[key].text for key in shown)

    # --- which item an event is about -------------------------------------------------------------------------

    def _of(self, event: dict[str, Any], kind: str, identity: Any) -> Item:
        """The item that an event tells of, by its id and its place; where it tells neither, the last of its kind."""
        own, told = identity if isinstance(identity, str) and identity else None, event.get("output_index")
        index = None if told is None else place_of(told)
        by_id = self._ids.get(own) if own is not None else None
        by_index = self._indices.get(index) if index is not None else None
        item = by_id or by_index
        in_doubt = told is not None and index is None
        if item is None and own is None and index is None:
            going_on = [item for item in self.items if item.kind == kind and not item.closed]
            item, in_doubt = going_on[-1] if going_on else None, in_doubt or len(going_on) > 1
        if item is None:
            item = self._new(kind)
        elif item.kind != kind:
            self._clash(item, kind)
        if by_id and by_index and by_id is not by_index:
            self._clash(by_index, kind)
        if in_doubt:  # whose it is, some find out in another way
            self._clash(item, kind)
        self._bind(item, own, index)
        self._touched = item
        return item

    def _new(self, kind: str) -> Item:
        if kind in CALLS and self._lead is None:
            self._lead = "".join(self._texts("message"))
        self.items.append(item := Item(kind))
        return item

    def _clash(self, item: Item, kind: str) -> None:
        """One item is told as two, or two as one: it matters where one of them is a call."""
        item.odd = True
        self.conflict = self.conflict or kind in CALLS or item.kind in CALLS

    def _doubt(self, item: Item) -> None:
        self.conflict = self.conflict or (item.kind in CALLS and item.two_readings)

    def _bind(self, item: Item, own: str | None, index: int | None) -> None:
        if own is not None:
            item.odd = item.odd or item.id not in {None, own}
            item.id = item.id or own
            self._ids.setdefault(own, item)
        if index is not None:
            item.odd = item.odd or item.index not in {None, index}
            item.index = index if item.index is None else item.index
            self._indices.setdefault(index, item)

    # --- what events tell -------------------------------------------------------------------------------------

    def _item(self, event: dict[str, Any], *, done: bool) -> None:
        value = event.get("item")
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            return
        item = self._of(event, value["type"], value.get("id"))
        item.odd = item.odd or (item.begun and not done)  # begun twice
        self._take(item, value, done=done)
        item.begun, item.closed = True, item.closed or done

    def _take(self, item: Item, value: dict[str, Any], *, done: bool) -> None:
        """Takes an item's object: as it begins, or whole."""
        item.value = value
        if item.kind in CALLS:
            for name in ("name", "namespace", "call_id"):
                item.tell(name, value.get(name))
            arguments = value.get("arguments" if item.kind == "function_call" else "input")
            if done:
                item.tell_whole(arguments)
            elif arguments:  # what deltas go on from
                item.odd = item.odd or bool(item.arguments)
                item.arguments.append(text_of(arguments) or "")
        for name, kind in (("content", ""), ("summary", "summary_text")):
            parts = value.get(name)
            for place, part in enumerate(parts if isinstance(parts, list) else ()):
                if isinstance(part, dict) and isinstance(part.get("type"), str):
                    self._take_part(item, part, kind, place)

    def _part(self, event: dict[str, Any], *, done: bool) -> None:
        part = event.get("part")
        if isinstance(part, dict) and isinstance(told := part.get("type"), str) and told in _ITEM_OF:
            item = self._of(event, _ITEM_OF[told], event.get("item_id"))
            taken = self._take_part(item, part, "", event.get("content_index"))
            taken.closed = taken.closed or done

    @staticmethod
    def _take_part(item: Item, value: dict[str, Any], kind: str, place: Any) -> Part:
        part = item.part(kind or value["type"], place)
        text = value.get("refusal" if part.kind == "refusal" else "text")
        part.whole = text if isinstance(text, str) else part.whole
        return part

    def _text(self, event: dict[str, Any], kind: str, part_kind: str, *, done: bool) -> None:
        summary = part_kind == "summary_text"
        item = self._of(event, kind, event.get("item_id"))
        part = item.part(part_kind, event.get("summary_index" if summary else "content_index"))
        text = event.get(("refusal" if part_kind == "refusal" else "text") if done else "delta")
        part.done = part.done or done
        if isinstance(text, str) and done:
            part.whole = text
        elif isinstance(text, str):
            part.pieces.append(text)

    def _arguments(self, event: dict[str, Any], kind: str, field_name: str, *, done: bool) -> None:
        item = self._of(event, kind, event.get("item_id"))
        item.tell("name", event.get("name"))
        if done:
            item.tell_whole(event.get(field_name))
        elif (text := text_of(event.get("delta"))) is not None:
            item.arguments.append(text)

    # --- the response as a whole ------------------------------------------------------------------------------

    def _response(self, response: Any, *, ends: bool) -> None:
        if not isinstance(response, dict):
            self.ended = self.ended or ends
        elif ends:
            self._final(response)
        else:
            self._about(response)

    def _about(self, response: dict[str, Any]) -> None:
        if isinstance(response.get("model"), str):
            self._answer.model = response["model"]
        if isinstance(usage := response.get("usage"), dict):
            self._answer.usage = {chat: usage[own] for own, chat in _COUNTS.items() if own in usage}

    def _final(self, response: dict[str, Any]) -> None:
        self._about(response)
        known = [item for item in self.items if item.kind in CALLS]
        told = [self._final_item(place, value) for place, value in _items_of(response)]
        calls = [item for item in told if item.kind in CALLS]
        if known and calls and sorted(map(id, known)) != sorted(map(id, calls)):
            self.conflict = True
        if (ids := token_ids(response)) is not None:
            self._choice.prompt_ids, self._choice.token_ids = ids
        self._finish(response)

    def _final_item(self, place: int, value: dict[str, Any]) -> Item:
        own, kind = value.get("id"), value["type"]
        by_id = self._ids.get(own) if isinstance(own, str) else None
        item = by_id or (self._indices.get(place) if not own else None) or self._new(kind)
        if item.kind != kind:
            self._clash(item, kind)
        self._take(item, value, done=True)
        item.id = item.id or (own if isinstance(own, str) else None)
        item.closed = True
        self._doubt(item)
        return item

    def _finish(self, response: dict[str, Any]) -> None:
        status, details = response.get("status"), response.get("incomplete_details")
        status = status if isinstance(status, str) else ""
        if status == "failed" or response.get("error") is not None:
            self._answer.problem = "error"
        self.ended = status not in {"queued", "in_progress", "cancelled"}
        if status == "completed":
            self._choice.finish_reason = "tool_calls" if any(item.kind in CALLS for item in self.items) else "stop"
        elif status == "incomplete":
            reason = details.get("reason") if isinstance(details, dict) else None
            self._choice.finish_reason = _FINISHED.get(reason, "length") if isinstance(reason, str) else "length"


def _items_of(response: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    output = response.get("output")
    found = enumerate(output if isinstance(output, list) else ())
    return [(i, value) for i, value in found if isinstance(value, dict) and isinstance(value.get("type"), str)]


def read(body: bytes, *, stream: bool) -> Answer:
    """An answer's complete bytes: server-sent events where `stream`, else one JSON object."""
    if not stream:
        return ResponseReader.whole(body)
    reader, splitter = ResponseReader.of_stream(), sse.Splitter()
    for block in splitter.feed(body):
        if (payload := sse.data_of(block)) is not None:
            reader.payload(payload)
    return reader.result()


def token_ids(response: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The prompt's ids and the output's, where the response tells them (`enable_response_messages`); else None.

    Both are one raw message each; with more of them (a server that ran tools in between) nothing is one prompt.
    """
    prompt, output = (_raw_ids(response.get(name)) for name in ("input_messages", "output_messages"))
    return None if prompt is None or output is None else (prompt, output)


def _raw_ids(messages: Any) -> tuple[int, ...] | None:
    if not isinstance(messages, list) or len(messages) != 1 or not isinstance(messages[0], dict):
        return None
    return ids_of(messages[0].get("tokens")) if messages[0].get("type") == "raw_message_tokens" else None
