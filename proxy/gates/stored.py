"""Which stored responses must not be handed out or built on: those that were refused, or not judged. Pure."""

import re
from collections import OrderedDict
from collections.abc import Callable

from proxy.http import Refusal
from shadow.wire import answers, sse

MOST = 100_000
"""So many ids are remembered; the oldest go first."""

LONGEST = 256
"""Characters of an id; a longer one is remembered by its beginning."""


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
        """A response was refused, or went by unjudged: its id is remembered from now on."""
        if not response:
            return
        self._until[response[:LONGEST]] = self._clock() + self._seconds
        self._until.move_to_end(response[:LONGEST])
        while len(self._until) > self._most or self._oldest_is_over():
            self._until.popitem(last=False)

    def knows(self, response: str) -> bool:
        """Whether a response must not be handed out or built on."""
        return self._until.get(response[:LONGEST], float("-inf")) > self._clock()

    def _oldest_is_over(self) -> bool:
        return bool(self._until) and next(iter(self._until.values())) <= self._clock()


def response_id(head: bytes, *, stream: bool) -> str:
    """What a response is called, from the beginning of its answer; "" where that does not say."""
    payload: bytes | None = head
    if stream:
        payload = next((data for block in sse.Splitter().feed(head) if (data := sse.data_of(block)) is not None), None)
    value = answers.read_object(payload or b"") or {}
    told = value.get("response", value) if stream else value
    identity = told.get("id") if isinstance(told, dict) else None
    if isinstance(identity, str):
        return identity
    found = _ID.search(head)  # a whole answer that is longer than its beginning
    return found.group(1).decode() if found else ""


def stored_id(path: str) -> str:
    """The id in the path of a stored response, "" for other paths."""
    parts = [part for part in path.split("/") if part]
    return parts[parts.index("responses") + 1] if "responses" in parts[:-1] else ""
