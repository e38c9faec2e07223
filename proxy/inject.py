"""What is put into a request so that its answer can be compared on tokens, and what is cut out of the answer again.

Injected: token ids, and logprobs with the top k candidates as ids. A client that asked for logprobs itself keeps its
own fields as they are. Never where the visible answer would change. Pure; the rules are those that tests hold against
a real engine.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from proxy.cut import NotJsonError, Nulls, add_members, set_members
from shadow.ask import client_limit
from shadow.exchange import Dialect, Request
from shadow.wire import sse

_CHAT_TOP = frozenset({b"prompt_token_ids"})
_CHAT_CHOICE = frozenset({b"token_ids"})
_COMPLETIONS_CHOICE = frozenset({b"prompt_token_ids", b"token_ids"})
_LOGPROBS = frozenset({b"logprobs"})
_BYTES_PER_TOKEN = 1000  # of one position with five candidates; about 700 were seen


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
    request: Request, body: bytes, level: Level, k: int, *, room: int | None = None, longest: int | None = None
) -> Injection | None:
    """What to send in place of `body`, or None where nothing may or need be put in.

    `k` is how many candidates the engine gives at most per position (at least 2 for a winner to show). An answer that
    is not streamed must be edited as a whole, in `room` bytes: where its logprobs might not fit (`longest` tokens a
    choice, if the client set no limit), ids alone are asked for.
    """
    if level is Level.OFF or not _may(request):
        return None
    ids = not request.client_token_ids
    logprobs = level is Level.FULL and k >= 2 and _may_add_logprobs(request) and _fits(request, room, longest)
    if not ids and not logprobs:
        return None
    members, names = _members(request.dialect, ids=ids, k=k if logprobs else 0)
    try:
        if request.body.keys().isdisjoint(names):
            sent = add_members(body, members, empty=not request.body)
        else:
            sent = set_members(body, members)
    except NotJsonError:
        return None
    # A chunk with an empty delta is plain where the client itself asked for what it carries.
    only_ours = ids and request.stream and not request.client_logprobs
    return Injection(sent, _nulls(request.dialect, ids=ids, logprobs=logprobs, drop_empty=only_ours))


def _may(request: Request) -> bool:
    """False where asking for ids would change the visible answer, or would tell nothing."""
    body = request.body
    changes = body.get("echo") or body.get("logprob_token_ids") or body.get("use_beam_search")
    return not changes and not request.multimodal and not request.hides_reasoning


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


@functools.lru_cache(maxsize=64)
def _members(dialect: Dialect, *, ids: bool, k: int) -> tuple[Mapping[bytes, bytes], frozenset[str]]:
    """What is put in, and the names of it; `k` is 0 where no logprobs are asked for."""
    members = {b"return_token_ids": b"true"} if ids else {}
    if k:
        number = str(min(k, 5)).encode()
        chat = {b"logprobs": b"true", b"top_logprobs": number}
        members |= chat if dialect is Dialect.CHAT else {b"logprobs": number}
        # Without this one, a winner that was not emitted has no id on the wire: only text.
        members[b"return_tokens_as_token_ids"] = b"true"
    return members, frozenset(name.decode() for name in members)


@functools.lru_cache(maxsize=64)
def _nulls(dialect: Dialect, *, ids: bool, logprobs: bool, drop_empty: bool) -> Nulls:
    nothing: frozenset[bytes] = frozenset()
    cut = _LOGPROBS if logprobs else nothing
    if dialect is Dialect.COMPLETIONS:
        return Nulls(nothing, cut | (_COMPLETIONS_CHOICE if ids else nothing))
    return Nulls(_CHAT_TOP if ids else nothing, cut | (_CHAT_CHOICE if ids else nothing), drop_empty=drop_empty)


class Removal:
    """Cuts what was injected out of a stream, event by event, however the transport cut its bytes.

    `feed` gives what may go to the client, `rest` what no blank line has ended yet.
    """

    def __init__(self, nulls: Nulls) -> None:
        self._nulls = nulls
        self._splitter = sse.Splitter()
        self._dropped_half = False

    def feed(self, chunk: bytes) -> bytes:
        """What of the stream is complete after this chunk, without what was injected."""
        if not self._dropped_half and not self._splitter.rest and sse.is_one_event(chunk):
            payload = chunk[6:-2]
            edited = self._nulls.apply(payload)
            if edited is None:
                return b""
            return chunk if edited is payload else b"data: " + edited + b"\n\n"
        return b"".join([self.edit(block) for block in self._splitter.feed(chunk)])

    @property
    def rest(self) -> bytes:
        """What the stream ended with, without an event's end: as it came."""
        return self._splitter.rest

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
