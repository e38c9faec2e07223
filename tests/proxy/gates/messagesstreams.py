"""Streams of the Messages API that a gate must hold: every way in which a call, or a piece of it, could reach a client.

`CORPUS` holds them, in the shapes that vLLM 0.32 sends and that a careless or another server could; `leaked` finds what
of a stream's secrets is in some bytes. Refused, a client gets `clear` bytes of the body as they are, and after them a
text and the answer's end; released, it gets the body.
"""

import functools
import re

from tests.proxy.gates import (
    messagesstreams_calls,
    messagesstreams_ends,
    messagesstreams_framing,
    messagesstreams_hidden,
)  # fmt: skip
from tests.proxy.gates.messagesstreams_writing import MessagesStream, dumps

WINDOW = 4
"""So many bytes in a row of a secret are a leak."""

CALL_WORDS = (b"tool_use", b"input_json", b"partial_json")
"""What says that something is a call: no visible text of the corpus has it."""

CORPUS: tuple[MessagesStream, ...] = (
    *messagesstreams_calls.SHELF,
    *messagesstreams_hidden.SHELF,
    *messagesstreams_framing.SHELF,
    *messagesstreams_ends.SHELF,
)

BY_NAME = {stream.name: stream for stream in CORPUS}


def leaked(sent: bytes, stream: MessagesStream) -> bytes | None:
    """The first `WINDOW` bytes of a secret, or the first word of a call, in `sent`; None where there are none."""
    found = _pattern(stream.secrets).search(sent)
    return found.group() if found else None


@functools.cache
def _pattern(secrets: tuple[bytes, ...]) -> re.Pattern[bytes]:
    windows = {secret[at : at + WINDOW] for secret in secrets for at in range(len(secret) - WINDOW + 1)}
    return re.compile(b"|".join(re.escape(form) for form in sorted(windows | set(CALL_WORDS))))


__all__ = ["BY_NAME", "CALL_WORDS", "CORPUS", "WINDOW", "MessagesStream", "dumps", "leaked"]
