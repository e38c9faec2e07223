"""Chat streams that a gate must hold: every way in which a tool call, or a piece of one, could reach a client.

`CORPUS` holds the streams (`LeakStream` says what is known of each), `BY_NAME` the same by name, and `leaked` finds
what of a stream's secrets is in some bytes. They are synthetic, in the shapes that vLLM 0.32 sends and that public bug
reports tell of. To be used twice: refused, the client gets `clear` bytes of the body as they are, each choice's `text`,
`usage`, `error` and `[DONE]` as they were sent, and nothing that `leaked` finds; released, it gets `body`. Where one
choice is held while another goes on, that is `body` choice by choice; what is held when an error comes may stay held.
"""

import functools
import json
import re
from collections.abc import Iterator

from tests.proxy import (
    leakstreams_arguments,
    leakstreams_calls,
    leakstreams_choices,
    leakstreams_ends,
    leakstreams_framing,
    leakstreams_hidden,
    leakstreams_text,
)  # fmt: skip
from tests.proxy.leakstreams_shapes import LeakStream, Options

WINDOW = 4
"""So many bytes in a row of a secret are a leak."""

CORPUS: tuple[LeakStream, ...] = (
    *leakstreams_calls.SHELF,
    *leakstreams_arguments.SHELF,
    *leakstreams_text.SHELF,
    *leakstreams_ends.SHELF,
    *leakstreams_choices.SHELF,
    *leakstreams_framing.SHELF,
    *leakstreams_hidden.SHELF,
)

BY_NAME = {stream.name: stream for stream in CORPUS}


def leaked(sent: bytes, stream: LeakStream) -> bytes | None:
    """The first `WINDOW` bytes of a secret that stand in `sent`; None where there are none.

    A secret that is written with JSON escapes is looked for in clear, too.
    """
    pattern = _windows(stream.secrets)
    found = pattern.search(sent) if pattern else None
    return found.group() if found else None


@functools.cache
def _windows(secrets: tuple[bytes, ...]) -> re.Pattern[bytes] | None:
    forms = sorted({form for secret in secrets for form in _forms(secret)})
    return re.compile(b"|".join(re.escape(form) for form in forms)) if forms else None


def _forms(secret: bytes) -> Iterator[bytes]:
    for text in {secret, json.loads(b'"' + secret + b'"').encode()}:
        for start in range(len(text) - WINDOW + 1):
            yield text[start : start + WINDOW]


__all__ = ["BY_NAME", "CORPUS", "WINDOW", "LeakStream", "Options", "leaked"]
