"""Where tests get their credentials, and the search for them.

A credential has a core of its own in its middle: it is found though either end was cut off, and in the usual disguises.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

_CORE = 24
_WORD, _BITS, _ODD = 8, 22, np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Credential:
    """What must not be seen: `text` as it is given, `core` the part of it that is searched for; `name` may be shown."""

    name: str
    text: str
    core: str


@dataclass(frozen=True, slots=True)
class Found:
    """A credential where it should not be, and as what."""

    name: str
    disguise: str


def credential(name: str, start: str) -> Credential:
    """The credential of a name: the same in every run, and long enough for every setting."""
    core = hashlib.sha256(f"a credential of the tests: {start} {name}".encode()).hexdigest()[:_CORE]
    return Credential(name, f"{start}-{core}-{name}", core)


_KNOWN: dict[str, Credential] = {}


def secret(name: str, start: Literal["sk", "ct"] = "sk") -> str:
    """Hands out a credential that the whole run is searched for: a key (sk), or a token of the control port (ct)."""
    made = credential(name, start)
    _KNOWN[made.text] = made
    return made.text


def learn(name: str, text: str) -> str:
    """Has the run searched for a credential that was not made here."""
    _KNOWN[text] = Credential(name, text, text)
    return text


def known() -> list[Credential]:
    """Every credential so far."""
    return list(_KNOWN.values())


learn("bench", "sk-bench")  # what the programs in bench/ send
learn("demo", "not-needed")  # what the demo's agent sends


def _base64(text: bytes) -> Iterator[bytes]:
    """What of it is the same wherever it stands in what was encoded: one text for each remainder by three."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + text)
        first, end = (before * 8 + 5) // 6, (before + len(text)) * 8 // 6
        yield encoded[first:end]
        yield encoded[first:end].translate(bytes.maketrans(b"+/", b"-_"))


def _needles(one: Credential) -> Iterator[tuple[bytes, str]]:
    core = one.core.encode()
    yield core, "as it is"
    yield repr(one.core)[1:-1].encode(), "as Python shows it"
    yield json.dumps(one.core)[1:-1].encode(), "escaped for JSON"
    for form in ("%04x", "%04X"):
        yield "".join(f"\\u{form}" % ord(letter) for letter in one.core).encode(), "escaped for JSON"
    yield quote(one.core, safe="").encode(), "percent-encoded"
    for form in ("%%%02x", "%%%02X"):
        yield "".join(form % byte for byte in core).encode(), "percent-encoded"
    yield from ((text, "in base64") for text in _base64(core))
    hashed = hashlib.sha256(one.text.encode())
    for digits, disguise in ((core.hex(), "in hexadecimal"), (hashed.hexdigest(), "as its SHA-256")):
        yield digits.encode(), disguise
        yield digits.upper().encode(), disguise
    yield base64.b64encode(hashed.digest()).rstrip(b"="), "as its SHA-256"


class Search:
    """Looks for credentials and their disguises in bytes, in one pass for however many.

    The first eight bytes of every needle are marked in a table by a hash; where a place of the data is marked, those
    needles are compared that begin so.
    """

    def __init__(self, credentials: Iterable[Credential]) -> None:
        self._of: dict[bytes, dict[bytes, Found]] = {}
        self._marked = np.zeros(1 << _BITS, bool)
        self.longest = 0
        """No needle has more bytes."""
        for one in credentials:
            for needle, disguise in _needles(one):
                assert len(needle) >= _WORD, "too short to be looked for"
                self._of.setdefault(needle[:_WORD], {}).setdefault(needle, Found(one.name, disguise))
                self.longest = max(self.longest, len(needle))
        self._marked[_hashed(np.frombuffer(b"".join(self._of), np.uint64))] = True

    def within(self, data: bytes) -> set[Found]:
        """What is found."""
        found = set()
        for start in range(min(_WORD, max(len(data) - _WORD + 1, 0))):
            words = np.frombuffer(data, np.uint64, (len(data) - start) // _WORD, start)
            for at in (np.flatnonzero(self._marked[_hashed(words)]) * _WORD + start).tolist():
                for needle, what in self._of.get(data[at : at + _WORD], {}).items():
                    if data.startswith(needle, at):
                        found.add(what)
        return found


def _hashed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return (words * _ODD) >> np.uint64(64 - _BITS)
