"""A circuit breaker: a shadow that fails again and again is left alone for a while, then tried with one exchange. Pure.

Own, and small: the libraries guard a call and know failure as an exception on a wall clock; here an outcome is told
after the fact, by whichever worker had it, on a clock that is handed in.
"""

from enum import StrEnum


class Circuit(StrEnum):
    """`closed`: it is asked. `open`: it is not. `trying`: one exchange is on its way to it."""

    CLOSED = "closed"
    OPEN = "open"
    TRYING = "trying"


class Breaker:
    """Opens after `failures` in a row, tries again after `pause` seconds, twice as long each time up to `longest`.

    `now` is seconds of any clock that never goes back.
    """

    def __init__(self, *, failures: int = 3, pause: float = 5.0, longest: float = 120.0) -> None:
        self._limit, self._first_pause, self._longest = failures, pause, longest
        self._pause = pause
        self._failures = 0
        self._open_until: float | None = None
        self._trying = False
        self._epoch = 1

    @property
    def state(self) -> Circuit:
        """What the breaker does now."""
        if self._trying:
            return Circuit.TRYING
        return Circuit.CLOSED if self._open_until is None else Circuit.OPEN

    def allows(self, now: float) -> bool:
        """Whether another exchange may be asked about."""
        if self._open_until is None:
            return True
        return not self._trying and now >= self._open_until

    def begin(self, now: float) -> int | None:
        """Leave to ask about an exchange, or None; of an open breaker whose pause is over the first one gets it.

        How that ends is told with what was given here: words about what was begun before the last change are not heard.
        """
        if not self.allows(now):
            return None
        if self._open_until is not None:
            self._trying = True
            self._epoch += 1
        return self._epoch

    def succeeded(self, leave: int) -> None:
        """The engine answered: whatever it said, it can be asked."""
        if leave == self._epoch:
            self._failures, self._pause, self._open_until, self._trying = 0, self._first_pause, None, False

    def failed(self, leave: int, now: float) -> None:
        """The engine did not answer, or not with what it should."""
        if leave != self._epoch:
            return
        self._failures += 1
        if self._trying:
            self._pause = min(2 * self._pause, self._longest)
        elif self._failures < self._limit:
            return
        self._open_until, self._trying = now + self._pause, False
        self._epoch += 1

    def abandoned(self, leave: int) -> None:
        """What was begun ended without a word about the engine: a trial may be made anew."""
        if leave == self._epoch:
            self._trying = False
