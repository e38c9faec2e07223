"""What can go wrong with an engine, each to be switched on; and the writer that does it to the bytes of an answer."""

import asyncio
import itertools
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web

GARBAGE = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
"""A body that is no JSON."""
WRONG_SHAPE = b'{"object":"chat.completion","choices":{"0":[]},"usage":"none","model":7}'
"""JSON, but not what the API answers."""

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass(frozen=True)
class Faults:
    """The faults of an engine; none by default. They hold for generating requests (POST below /v1) only.

    `skip` and `times` count those requests: the first `skip` are answered well, then `times` (None: all) are not.
    `only` further picks by path and parsed body. "After n events" counts the events of a stream, the role's included.

    close_before_byte   closes the connection in place of an answer
    hang_before_headers says nothing at all
    status              answers that status with vLLM's error body
    body                answers 200 with these bytes (see GARBAGE, WRONG_SHAPE); `status` changes the status
    refuse_logprobs     400 where logprobs or prompt logprobs are asked for
    logprobs            `nan` writes NaN into the JSON, `nan_400` answers as vLLM does then (not streamed: 400;
                        streamed: nulls), `null` nulls, `zero` zeroes
    hang_after          after n events, nothing more comes
    truncate_after      after n events the stream ends well as HTTP: no finish, no [DONE]
    short_after_bytes   a whole answer ends well as HTTP after n bytes, and is no longer JSON
    error_after         after n events an error event and [DONE]
    abort_after_bytes   after n bytes of the body the connection is closed
    cut_utf8            the connection is closed in the middle of the first character beyond ASCII
    endless             neither an end token nor a limit ends an answer
    delay_s             seconds before each event and before a whole answer, beside the engine's own latency
    crlf                lines end in CRLF
    comment             this is written between events, with a blank line (`: ping`, say)
    cuts                an answer's bytes are written in pieces: of that many bytes, or cut at those offsets
    drip_s              seconds between those pieces
    """

    close_before_byte: bool = False
    hang_before_headers: bool = False
    status: int | None = None
    body: bytes | None = None
    refuse_logprobs: bool = False
    logprobs: Literal["nan", "nan_400", "null", "zero"] | None = None
    hang_after: int | None = None
    truncate_after: int | None = None
    short_after_bytes: int | None = None
    error_after: int | None = None
    abort_after_bytes: int | None = None
    cut_utf8: bool = False
    endless: bool = False
    delay_s: float = 0.0
    crlf: bool = False
    comment: bytes | None = None
    cuts: int | Sequence[int] | None = None
    drip_s: float = 0.001  # without any, the kernel may put pieces together again
    skip: int = 0
    times: int | None = None
    only: Callable[[str, dict[str, Any]], bool] | None = None

    def hold(self, number: int) -> bool:
        """Whether they hold for the generating request of that number (from 0)."""
        return number >= self.skip and (self.times is None or number < self.skip + self.times)


class ClosedError(Exception):
    """The connection is to be closed without another byte."""


class EndedError(Exception):
    """The stream ends here."""


async def hang() -> None:
    """Waits until the client leaves or the engine stops."""
    await asyncio.Event().wait()


class Writer:
    """Writes an answer's body with the faults that hold for it."""

    def __init__(self, response: web.StreamResponse, faults: Faults) -> None:
        self._response = response
        self._faults = faults
        self._events = 0
        self._written = 0

    async def event(self, payload: bytes) -> None:
        """Writes one server-sent event.

        Raises:
            EndedError: the stream is to end here.
            ClosedError: the connection is.
        """
        faults = self._faults
        if faults.hang_after == self._events:
            await hang()
        if faults.truncate_after == self._events:
            raise EndedError
        if faults.error_after == self._events:
            error = {"error": {"message": ENGINE_DEAD, "type": "InternalServerError", "param": None, "code": 500}}
            await self.body(self._framed(json.dumps(error, separators=(",", ":")).encode()))
            await self.body(self._framed(b"[DONE]"))
            raise EndedError
        if faults.delay_s:
            await asyncio.sleep(faults.delay_s)
        if faults.comment is not None and self._events:
            await self.body(self._lines(faults.comment + b"\n\n"))
        self._events += 1
        await self.body(self._framed(payload))

    def _framed(self, payload: bytes) -> bytes:
        return self._lines(b"data: " + payload + b"\n\n")

    def _lines(self, raw: bytes) -> bytes:
        return raw.replace(b"\n", b"\r\n") if self._faults.crlf else raw

    async def whole(self, raw: bytes) -> None:
        """Writes an answer that is no stream.

        Raises:
            ClosedError: the connection is to be closed.
        """
        if self._faults.delay_s:
            await asyncio.sleep(self._faults.delay_s)
        await self.body(raw)

    async def body(self, raw: bytes) -> None:
        """Writes bytes of the body as they stand, in the pieces that the faults say."""
        end = self._end(raw)
        pieces = self._pieces(raw[:end] if end is not None else raw)
        for piece in pieces:
            await self._response.write(piece)
            self._written += len(piece)
            if self._faults.cuts is not None:
                await asyncio.sleep(self._faults.drip_s)
        if end is not None:
            raise ClosedError

    def _end(self, raw: bytes) -> int | None:
        """Where in `raw` the connection is to be closed, None if not there."""
        if (limit := self._faults.abort_after_bytes) is not None and self._written + len(raw) >= limit:
            return limit - self._written
        if self._faults.cut_utf8:
            return next((i + 1 for i, byte in enumerate(raw) if byte >= 0xC0), None)
        return None

    def _pieces(self, raw: bytes) -> Iterator[bytes]:
        cuts = self._faults.cuts
        if cuts is None:
            inner: list[int] = []
        elif isinstance(cuts, int):
            inner = list(range(cuts - self._written % cuts, len(raw), cuts))
        else:
            inner = sorted(cut - self._written for cut in cuts if 0 < cut - self._written < len(raw))
        edges = [0, *inner, len(raw)]
        return (raw[a:b] for a, b in itertools.pairwise(edges) if a < b)

    async def stream(self, payloads: AsyncIterator[bytes]) -> None:
        """Writes all events of a stream."""
        async for payload in payloads:
            await self.event(payload)


def spoil(value: float, kind: str | None) -> float | None:
    """A logprob as the fault wants it on the wire."""
    if kind is None:
        return value
    return {"nan": math.nan, "nan_400": None, "null": None, "zero": 0.0}[kind]
