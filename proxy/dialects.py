"""The dialects whose answers can be held back, and what holds each of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from proxy.gate import Gate, Whole
from proxy.gates.chat import ChatGate, ChatWhole
from proxy.inject import Removal
from shadow.exchange import Dialect


@dataclass(frozen=True, slots=True)
class Held:
    """How one dialect's answers are held.

    `gate` makes the gate of a stream (None: nothing was injected), `whole` reads an answer that does not stream: as the
    primary sent it, and as the client would get it.
    """

    gate: Callable[[Removal | None], Gate]
    whole: Callable[[bytes, bytes], Whole]


HELD: Mapping[Dialect, Held] = MappingProxyType({Dialect.CHAT: Held(ChatGate, ChatWhole)})
