"""Responses streams that a gate must hold: every way in which a call, or a piece of one, could reach a client.

`CORPUS` holds the streams (`Stream` says what is known of each), in the shapes that vLLM 0.32 sends, that other servers
send, and that somebody might send to get past a gate. Refused, the client gets `clear` bytes of the body as they are
and nothing that `leaked` finds; released, it gets `body`.
"""

import functools
import re

from tests.proxy.gates import responsesstreams_engines, responsesstreams_hidden, responsesstreams_readings
from tests.proxy.gates.responsesstreams_writing import Stream, dumps

WINDOW = 4
"""So many bytes in a row of a secret are a leak."""

_KINDS = re.compile(rb"(?:function|custom_tool|mcp|web_search|code_interpreter|shell)_call|tool_use|approval_request")

CORPUS: tuple[Stream, ...] = (
    *responsesstreams_engines.SHELF,
    *responsesstreams_hidden.SHELF,
    *responsesstreams_readings.SHELF,
)
BY_NAME = {stream.name: stream for stream in CORPUS}
SHORT = tuple(stream for stream in CORPUS if not stream.long)


def leaked(sent: bytes, stream: Stream) -> bytes | None:
    """What of a call stands in `sent`: a piece of a secret, or what says that there is a call; None for nothing."""
    bare = re.sub(rb'"(?:parallel_tool_calls|max_tool_calls)"', b"", sent)
    found = (_windows(stream.secrets).search(bare) or _KINDS.search(bare)) if stream.secrets else None
    return found.group() if found else None


@functools.cache
def _windows(secrets: tuple[bytes, ...]) -> re.Pattern[bytes]:
    forms = {secret[i : i + WINDOW] for secret in secrets for i in range(len(secret) - WINDOW + 1)}
    return re.compile(b"|".join(re.escape(form) for form in sorted(forms)))


__all__ = ["BY_NAME", "CORPUS", "SHORT", "WINDOW", "Stream", "dumps", "leaked"]
