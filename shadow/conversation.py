"""Which conversation a request belongs to, and whether conversations are in the sample. Pure.

Sampling is sticky: a conversation is mirrored as a whole or not at all, so that a reference's prefix cache helps and
so that growing turns of one agent do not fall in and out of the figures.
"""

import hashlib

import orjson

from shadow.exchange import Dialect, Request

_PROMPT_START = 256  # characters of a completions prompt that identify it while it grows
_LONGEST_OPENING = 1000  # messages


def conversation_key(request: Request, header: str | None) -> str:
    """A stable key of the conversation: the configured header's value, else what the conversation began with.

    For chat that is everything up to and including the first user message (later turns repeat it), at most
    1,000 messages; for completions the prompt's first 256 characters or ids. The key is a hash: it holds no content.
    """
    if header:
        return _hash(b"header:" + header.encode("utf-8", "surrogateescape"))
    if request.dialect is not Dialect.COMPLETIONS:
        return _hash(b"chat:" + _dumps(_opening(request.body.get("messages"))))
    prompt = request.body.get("prompt")
    start = prompt[:_PROMPT_START] if isinstance(prompt, str | list) else None
    return _hash(b"prompt:" + _dumps(start))


def _opening(messages: object) -> list[object]:
    opening: list[object] = []
    if not isinstance(messages, list):
        return opening
    for message in messages if len(messages) <= _LONGEST_OPENING else messages[:_LONGEST_OPENING]:
        opening.append(message)
        if isinstance(message, dict) and message.get("role") == "user":
            break
    return opening


def _dumps(value: object) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, a lone surrogate, or nested very deep
        pass
    try:
        return repr(value).encode("utf-8", "surrogatepass")
    except RecursionError:
        return b"nested too deep to tell apart"


def _hash(data: bytes) -> str:
    # Not SHA-256: OpenSSL's costs three times as much for so little, once for each request.
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def in_sample(conversation: str, rate: float) -> bool:
    """Whether a conversation is in a sample of `rate` (0 to 1): uniform over keys, nested as rates grow."""
    return int(conversation[:13], 16) / 16**13 < rate
