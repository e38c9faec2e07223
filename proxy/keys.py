"""The clients' own keys for the data port, kept as hashes. Pure."""

import hashlib
import hmac
from collections.abc import Sequence

from proxy.http import Headers, header

_SCHEME = b"bearer "
CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
"""The (lower-case) headers that carry a client's key: OpenAI's and Anthropic's."""


def digest(key: str) -> bytes:
    """The SHA-256 of a key. Keys are long and random, so a slow hash would buy nothing."""
    return hashlib.sha256(key.encode()).digest()


class ClientKeys:
    """The names of known keys by their digests; with none, everybody may come in."""

    def __init__(self, keys: Sequence[tuple[str, bytes]]) -> None:
        self._keys = list(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def name(self, headers: Headers) -> str | None:
        """Whose key a request carries, None for nobody's. Takes the same time whichever key is tried."""
        given = header(headers, b"authorization") or b""
        if given[: len(_SCHEME)].lower() == _SCHEME:
            given = given[len(_SCHEME) :]
        else:
            given = header(headers, b"x-api-key") or b""
        tried, found = hashlib.sha256(given.strip()).digest(), None
        for name, known in self._keys:
            if hmac.compare_digest(tried, known):
                found = name
        return found
