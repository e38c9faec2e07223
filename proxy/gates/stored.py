"""Which stored responses must not be handed out or built on: those that were refused, or are not judged yet. Pure."""

import itertools
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from proxy.gate import Gate
from proxy.http import Refusal
from proxy.paths import segments
from shadow.wire import answers, sse

MOST = 100_000
"""So many ids are remembered; the oldest go first."""

LONGEST = 256
"""Characters of an id; a longer one is remembered by its beginning, and all without regard to case."""

_HEAD = 64 * 1024  # of an answer, in which it says what it is called

_ID = re.compile(rb'"id"\s*:\s*"([A-Za-z0-9_-]{1,256})"')

WITHHELD = Refusal(
    422,
    "response_withheld",
    "this response's tool calls were not let through here: it is neither handed out nor built on",
    code="response_withheld",
)


class Withheld:
    """Remembers the ids of responses that were withheld, for `seconds` of `clock`.

    A store that keeps responses for longer hands them out again after that: vLLM's is off by default, and one that is
    on (`VLLM_ENABLE_RESPONSES_API_STORE=1`) forgets nothing before it ends.
    """

    def __init__(self, clock: Callable[[], float], seconds: float, most: int = MOST) -> None:
        self._clock, self._seconds, self._most = clock, seconds, most
        self._until: OrderedDict[str, float] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._until)

    def refused(self, response: str) -> None:
        """A response was refused, or is not judged yet: its id is remembered from now on."""
        if not response:
            return
        key = _key(response)
        self._until[key] = self._clock() + self._seconds
        self._until.move_to_end(key)
        while len(self._until) > self._most or self._oldest_is_over():
            self._until.popitem(last=False)

    def let_go(self, response: str) -> None:
        """It was released after all."""
        self._until.pop(_key(response), None)

    def knows(self, response: str) -> bool:
        """Whether a response must not be handed out or built on."""
        return self._until.get(_key(response), float("-inf")) > self._clock()

    def refers(self, path: bytes) -> bool:
        """Whether a raw path names such a response."""
        return any(map(self.knows, stored_ids(path)))

    def _oldest_is_over(self) -> bool:
        return bool(self._until) and next(iter(self._until.values())) <= self._clock()


def _key(response: str) -> str:
    return response[:LONGEST].lower()


class Keeping:
    """Keeps one response from being fetched or built on while it is held: under all names that it may have.

    `name` it as soon as it says what it is called; `hold` it before anybody could know of its calls, and let it `go`
    before its client gets them, for that may be quick to build on it.
    """

    def __init__(self, withheld: Withheld) -> None:
        self._withheld = withheld
        self._names: set[str] = set()
        self._held: set[str] = set()
        self._head, self._certain = b"", False

    def see(self, chunk: bytes, *, stream: bool) -> None:
        """Takes the answer's next bytes, as far as they may tell its name."""
        if not self._certain:
            self._head += chunk[:_HEAD]
            name, self._certain = response_id(self._head, stream=stream)
            self._certain = self._certain or len(self._head) >= _HEAD
            self._names |= {name} - {""}

    def hold(self) -> None:
        """A call is held."""
        for name in self._names:
            if not self._withheld.knows(name):
                self._withheld.refused(name)
                self._held.add(name)

    def go(self) -> None:
        """All that was held goes out as it was."""
        while self._held:
            self._withheld.let_go(self._held.pop())

    def refused(self) -> None:
        """Something of it did not go out as it was, and never will."""
        for name in self._names:
            self._withheld.refused(name)


class Watched:
    """A gate of which it is told when it begins to hold, and when all that it held goes out."""

    def __init__(self, gate: Gate, keeping: Keeping, acted: Callable[[], str]) -> None:
        self._gate, self._keeping, self._acted = gate, keeping, acted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate, name)

    def feed(self, chunk: bytes) -> bytes:
        """As the gate does it."""
        return self._told(self._gate.feed(chunk))

    def end(self) -> bytes:
        """As the gate does it."""
        return self._told(self._gate.end())

    def decide(self, index: int, instead: bytes | None) -> bytes:
        """As the gate does it."""
        out = self._gate.decide(index, instead)
        if not (self._gate.waiting or self._acted()):
            self._keeping.go()
        return out

    def _told(self, out: bytes) -> bytes:
        if self._gate.waiting:
            self._keeping.hold()
        return out


def response_id(head: bytes, *, stream: bool) -> tuple[str, bool]:
    """What a response is called, from the beginning of its answer ("": it does not say), and whether that is certain.

    A whole answer that has not come to its end can be called by what only looks like its name.
    """
    payload: bytes | None = head
    if stream:
        payload = next((data for block in sse.Splitter().feed(head) if (data := sse.data_of(block)) is not None), None)
    value = answers.read_object(payload or b"")
    told = (value or {}).get("response", value) if stream else value
    identity = told.get("id") if isinstance(told, dict) else None
    if isinstance(identity, str):
        return identity, True
    found = None if stream and payload is not None else _ID.search(head)
    return (found.group(1).decode() if found else ""), stream and payload is not None


def stored_ids(path: bytes) -> list[str]:
    """The ids of stored responses that a raw path may name, whatever a server makes of it; none for other paths."""
    plain = segments(path) or ()
    return [name for above, name in itertools.pairwise(plain) if above == "responses"]
