"""What is put into a request so that its answer can be compared on tokens, and what is cut out of the answer again.

Injected: token ids, and logprobs with the top k candidates as ids; of a response, its raw messages, which hold ids. A
client that asked for logprobs itself keeps its own fields as they are. Never where the visible answer would change.
Pure; the rules are those that tests hold against a real engine.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from proxy.cut import NotJsonError, Nulls, add_members, set_members, text_of
from shadow.ask import client_limit
from shadow.exchange import Dialect, Request, flag
from shadow.wire import answers, sse

_CHAT_TOP = frozenset({b"prompt_token_ids"})
_CHAT_CHOICE = frozenset({b"token_ids"})
_COMPLETIONS_CHOICE = frozenset({b"prompt_token_ids", b"token_ids"})
_LOGPROBS = frozenset({b"logprobs"})
_RAW_MESSAGES = frozenset({b"input_messages", b"output_messages"})
_OUT_OF_RESPONSES = Nulls(_RAW_MESSAGES, frozenset(), within=b"response")
_SPOKEN_OF = frozenset(
    {
        "echo",
        "include_reasoning",
        "logprob_token_ids",
        "logprobs",
        "prompt_logprobs",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "top_logprobs",
        "use_beam_search",
    }
)
"""The members of a request that decide about what may be put in, or that are put in."""
_BYTES_PER_TOKEN = 1000  # of one position with five candidates; about 700 were seen


MAX_EVENT = 64 * 1024 * 1024
"""Bytes of one event: nothing of it can go to the client before its end."""


class EndlessEventError(ValueError):
    """An event of an injected stream does not end."""


class Level(StrEnum):
    """How much may be put in: nothing, token ids, or token ids and logprobs."""

    OFF = "off"
    IDS = "ids"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Injection:
    """A request's bytes with something put in, and the cut that takes it out of the answer."""

    body: bytes
    nulls: Nulls


def plan(
    request: Request,
    body: bytes,
    level: Level,
    k: int,
    *,
    room: int | None = None,
    longest: int | None = None,
    keeps_responses: bool = True,
) -> Injection | None:
    """What to send in place of `body`, or None where nothing may or need be put in.

    `k` is how many candidates the engine gives at most per position (at least 2 for a winner to show). An answer that
    is not streamed must be edited as a whole, in `room` bytes: where its logprobs might not fit (`longest` tokens a
    choice, if the client set no limit), ids alone are asked for. `keeps_responses` says whether a response may be
    fetched again from the primary.
    """
    if request.dialect is Dialect.RESPONSES:
        return None if level is Level.OFF else _plan_raw_messages(request, body, keeps_responses=keeps_responses)
    if not request.tells_tokens:
        return None
    # Most requests say nothing of any of this: one look tells.
    silent = request.body.keys().isdisjoint(_SPOKEN_OF)
    if level is Level.OFF or request.multimodal or not (silent or _may(request)):
        return None
    ids = silent or not request.client_token_ids
    may_add = silent or _may_add_logprobs(request)
    logprobs = level is Level.FULL and k >= 2 and may_add and _fits(request, room, longest)
    if not ids and not logprobs:
        return None
    # A chunk with an empty delta is plain where the client itself asked for what it carries.
    only_ours = ids and request.stream and (silent or not request.client_logprobs)
    edit = _edit(request.dialect, ids, k if logprobs else 0, only_ours)
    try:
        if silent or request.body.keys().isdisjoint(edit.names):
            sent = add_members(body, edit.text, empty=not request.body)
        else:
            sent = set_members(body, edit.members)
    except NotJsonError:
        return None
    return Injection(sent, edit.nulls)


def _plan_raw_messages(request: Request, body: bytes, *, keeps_responses: bool) -> Injection | None:
    """A response tells its ids at its end, in what it shows of its raw messages; logprobs it never tells as ids."""
    sent = request.sent or {}
    # Whoever fetches a response later gets all of it, and there nobody knows what was put in.
    kept = keeps_responses and flag(sent.get("store")) is not False
    asked = flag(sent.get("enable_response_messages")) is True
    if kept or flag(sent.get("background")) is True or asked or request.multimodal:
        return None
    try:
        if "enable_response_messages" in sent:
            new = set_members(body, {b"enable_response_messages": b"true"})
        else:
            new = add_members(body, b'"enable_response_messages":true', empty=not sent)
    except NotJsonError:
        return None
    return Injection(new, _OUT_OF_RESPONSES)


def _may(request: Request) -> bool:
    """False where asking for ids would change the visible answer, or would tell nothing."""
    body = request.body
    changes = body.get("echo") or body.get("logprob_token_ids") or body.get("use_beam_search")
    return not changes and not request.hides_reasoning


def _fits(request: Request, room: int | None, longest: int | None) -> bool:
    tokens = client_limit(request) or longest
    if request.stream or room is None or tokens is None:
        return True
    choices = request.body.get("n")
    return tokens * (choices if type(choices) is int and choices > 0 else 1) * _BYTES_PER_TOKEN <= room


def _may_add_logprobs(request: Request) -> bool:
    body = request.body
    if request.client_logprobs or body.get("prompt_logprobs") is not None:
        return False
    # Without `logprobs` this is the client's error, and its 400 must come back.
    return request.dialect is not Dialect.CHAT or body.get("top_logprobs") is None


class _Edit(NamedTuple):
    """What is put in, as members, as their text and by their names, and the cut that takes it out again."""

    members: Mapping[bytes, bytes]
    text: bytes
    names: frozenset[str]
    nulls: Nulls


@functools.lru_cache(maxsize=64)
def _edit(dialect: Dialect, ids: bool, k: int, drop_empty: bool) -> _Edit:  # noqa: FBT001  (a key of the cache)
    """The edit of all requests alike; `k` is 0 where no logprobs are asked for."""
    members = {b"return_token_ids": b"true"} if ids else {}
    if k:
        number = str(min(k, 5)).encode()
        chat = {b"logprobs": b"true", b"top_logprobs": number}
        members |= chat if dialect is Dialect.CHAT else {b"logprobs": number}
        # Without this one, a winner that was not emitted has no id on the wire: only text.
        members[b"return_tokens_as_token_ids"] = b"true"
    nothing: frozenset[bytes] = frozenset()
    cut = _LOGPROBS if k else nothing
    if dialect is Dialect.COMPLETIONS:
        nulls = Nulls(nothing, cut | (_COMPLETIONS_CHOICE if ids else nothing))
    else:
        nulls = Nulls(_CHAT_TOP if ids else nothing, cut | (_CHAT_CHOICE if ids else nothing), drop_empty=drop_empty)
    names = frozenset(name.decode() for name in members)
    return _Edit(members, text_of(members), names, nulls)


class Removal:
    """Cuts what was injected out of a stream, event by event, however the transport cut its bytes.

    `feed` gives what may go to the client, `rest` what no blank line has ended yet.

    Raises:
        EndlessEventError: an event has more than `MAX_EVENT` bytes, and no end yet.
    """

    def __init__(self, nulls: Nulls) -> None:
        self._nulls = nulls
        self._splitter = sse.Splitter()
        self._dropped_half = False

    def feed(self, chunk: bytes) -> bytes:
        """What of the stream is complete after this chunk, without what was injected."""
        if not self._dropped_half and not self._splitter.waiting and sse.is_one_event(chunk):
            payload = chunk[6:-2]
            edited = self._nulls.apply(payload)
            if edited is None:
                return b""
            return chunk if edited is payload else b"data: " + edited + b"\n\n"
        out = b"".join([self.edit(block) for block in self._splitter.feed(chunk)])
        if self._splitter.waiting > MAX_EVENT:
            raise EndlessEventError
        return out

    def event(self, chunk: bytes) -> bytes | None:
        """A chunk that is one event as vLLM frames it, JSON with one choice: as `feed` would give it.

        None for any other; nothing has changed then, and it is for `edit` or `feed`.
        """
        if self._dropped_half or not sse.is_one_event(chunk):
            return None
        payload = chunk[6:-2]
        found = self._nulls.apply_plainly(payload)
        if found is None:
            return None
        edited = found[0]
        if edited is None:
            return b""
        return chunk if edited is payload else b"data: " + edited + b"\n\n"

    @property
    def rest(self) -> bytes:
        """What the stream ended with, without an event's end: as an event if it is a whole one, else as it came.

        Half of one that names what was injected is nothing: it cannot be cut, and no reader takes it for an event.
        """
        rest = self._splitter.rest
        payload = sse.data_of(rest) if rest else None
        if payload is None:
            return rest
        if payload.strip() == sse.DONE or answers.read_object(payload) is not None:
            return self.edit(rest)
        return b"" if self._nulls.named_in(payload) else rest

    def edit(self, block: bytes) -> bytes:
        """One whole block of the stream, for who splits it: fed in order, and never beside `feed`."""
        if self._dropped_half and block.startswith(b"\n"):  # the other half of a CRLF that went with its event
            block = block[1:]
        self._dropped_half = False
        payload = sse.data_of(block)
        if payload is None:
            return block
        edited = self._nulls.apply(payload)
        if edited is None:
            self._dropped_half = block.endswith(b"\r")
            return b"\n" if block.startswith(b"\n") else b""  # half of the CRLF before, whose event went out
        return block if edited is payload else sse.with_data(block, edited)
