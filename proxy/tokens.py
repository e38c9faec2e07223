"""The control port's tokens: their names and what they may do, kept as hashes. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Literal, get_args

from proxy.http import Headers
from proxy.keys import bearer, digest, whose

TokenScope = Literal["read", "metrics", "mode", "approve", "policy"]
"""What a token may do: see what is found, scrape, turn the switch, answer approvals, have policies checked."""

SCOPES: frozenset[TokenScope] = frozenset(get_args(TokenScope))
LOCAL = "local"
"""The name of the token that is made at start where none is configured."""


@dataclass(frozen=True, slots=True)
class Token:
    """Who holds it (the *who* of every record), and what that one may do; never the token itself."""

    name: str
    digest: bytes = field(repr=False)
    scopes: frozenset[TokenScope] = SCOPES


class Tokens:
    """The tokens that are known."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._tokens = list(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, headers: Headers) -> Token | None:
        """The token that a request carries, None for an unknown one or none. Takes the same time whichever is tried."""
        return whose(bearer(headers) or b"", [(token, token.digest) for token in self._tokens])

    def lend(self) -> str:
        """Makes a random token that may do everything; it is known from now on, and handed out this once."""
        made = token_urlsafe(32)
        self._tokens.append(Token(LOCAL, digest(made)))
        return made
