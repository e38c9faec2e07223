"""The dialects whose answers can be held back, and what holds each of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from proxy.gate import Gate, HeldTooMuchError, Whole
from proxy.gates.chat import ChatGate, ChatWhole
from proxy.gates.messages import MessagesGate, MessagesWhole
from proxy.gates.responses import ResponsesGate, ResponsesWhole
from proxy.gates.responses_reading import BUILT_IN
from proxy.inject import Removal
from shadow.exchange import Dialect


@dataclass(frozen=True, slots=True)
class Held:
    """How one dialect's answers are held.

    `gate` makes the gate of a stream (None: nothing was injected), `whole` reads an answer that does not stream: as the
    primary sent it, and as the client would get it. Both are told whether tools of the server's own are allowed.
    """

    gate: Callable[[Removal | None, bool], Gate]
    whole: Callable[[bytes, bytes, bool], Whole]

    def finds_call(self, raw: bytes, *, allowed: bool) -> bool:
        """Whether some reader may find a call in these bytes, which are no answer but an error, as a rule."""
        if (held := self.whole(raw, raw, allowed).held) is not None:
            return bool(held)
        gate = self.gate(None, allowed)
        try:
            gate.feed(raw)
            gate.end()
        except HeldTooMuchError:
            return True
        return bool(gate.undecided())


def _passing(allowed: bool) -> frozenset[str]:  # noqa: FBT001  (passed on)
    return BUILT_IN if allowed else frozenset()


HELD: Mapping[Dialect, Held] = MappingProxyType(
    {
        Dialect.CHAT: Held(lambda removal, _: ChatGate(removal), lambda raw, body, _: ChatWhole(raw, body)),
        Dialect.MESSAGES: Held(lambda _removal, _: MessagesGate(), lambda raw, body, _: MessagesWhole(raw, body)),
        Dialect.RESPONSES: Held(
            lambda removal, allowed: ResponsesGate(_passing(allowed), removal),
            lambda raw, body, allowed: ResponsesWhole(raw, body, _passing(allowed)),
        ),
    }
)
