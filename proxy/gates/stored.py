"""Which stored responses must not be handed out or built on: those that were refused, or not judged. Pure."""

from collections import OrderedDict
from collections.abc import Callable

MOST = 100_000
"""So many ids are remembered; the oldest go first."""

LONGEST = 256
"""Characters of an id; a longer one is remembered by its beginning."""


class Withheld:
    """Remembers the ids of responses that were withheld, for `seconds` of `clock`.

    A store that keeps responses for longer hands them out again after that: vLLM's is off by default, and one that is
    on (`VLLM_ENABLE_RESPONSES_API_STORE=1`) forgets nothing before it ends.
    """

    def __init__(self, clock: Callable[[], float], seconds: float, most: int = MOST) -> None:
        self._clock, self._seconds, self._most = clock, seconds, most
        self._until: OrderedDict[str, float] = OrderedDict()

    def refused(self, response: str) -> None:
        """A response was refused, or went by unjudged: its id is remembered from now on."""
        self._until[response[:LONGEST]] = self._clock() + self._seconds
        self._until.move_to_end(response[:LONGEST])
        while len(self._until) > self._most or self._oldest_is_over():
            self._until.popitem(last=False)

    def knows(self, response: str) -> bool:
        """Whether a response must not be handed out or built on."""
        return self._until.get(response[:LONGEST], float("-inf")) > self._clock()

    def _oldest_is_over(self) -> bool:
        return bool(self._until) and next(iter(self._until.values())) <= self._clock()
