"""The clients' own keys for the data port, kept as hashes. Pure."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import TypeVar

from proxy.http import Headers, header

T = TypeVar("T")

_SCHEME = b"bearer "
CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
"""The (lower-case) headers that carry a client's key: OpenAI's and Anthropic's."""


def digest(key: str) -> bytes:
    """The SHA-256 of a key. Keys are long and random, so a slow hash would buy nothing."""
    return hashlib.sha256(key.encode()).digest()


def bearer(headers: Headers) -> bytes | None:
    """What a request's `Authorization: Bearer …` carries, None where there is none."""
    given = header(headers, b"authorization") or b""
    return given[len(_SCHEME) :] if given[: len(_SCHEME)].lower() == _SCHEME else None


def whose(given: bytes, known: Iterable[tuple[T, bytes]]) -> T | None:
    """Whose digest is that of the given key. Every one is compared, so that no key takes longer than another."""
    tried, found = hashlib.sha256(given.strip()).digest(), None
    for holder, expected in known:
        if hmac.compare_digest(tried, expected):
            found = holder
    return found


class ClientKeys:
    """The names of known keys by their digests; with none, everybody may come in."""

    def __init__(self, keys: Sequence[tuple[str, bytes]]) -> None:
        self._keys = list(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def name(self, headers: Headers) -> str | None:
        """Whose key a request carries, None for nobody's. Takes the same time whichever key is tried."""
        given = bearer(headers)
        return whose((header(headers, b"x-api-key") or b"") if given is None else given, self._keys)
