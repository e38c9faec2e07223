"""The choices of one answer on their way out: what goes out in one piece is decided, and recorded, in one piece."""

import asyncio


class _Stage:
    """Where choices wait for each other."""

    def __init__(self) -> None:
        self.arrived: set[int] = set()
        self.holds = False
        self._over = asyncio.Event()

    def end(self, *, holds: bool) -> None:
        if not self._over.is_set():
            self.holds = holds
            self._over.set()

    async def wait(self) -> bool:
        await self._over.wait()
        return self.holds


class Together:
    """Lets the choices of an answer out once all of them are decided, and then recorded.

    With `all_or_none` one refusal is the refusal of all. `expected` is how many choices there are, None while that is
    not known. Once the client has the answer's beginning (`free`) each choice stands by itself. `place` tells the
    choices apart.
    """

    def __init__(self, *, all_or_none: bool = False, expected: int | None = None) -> None:
        self._all, self._expected = all_or_none, expected
        self._decided, self._recorded = _Stage(), _Stage()
        self.message = ""  # why nothing goes out

    def free(self) -> "Together":
        """From now on none waits for another."""
        self._end(holds=True)
        return self

    def expect(self, count: int) -> None:
        """There are so many choices."""
        self._expected = count
        self._look()

    def refuse(self, message: str) -> None:
        """Nothing goes out that still waits for others; `message` says why."""
        self.message = self.message or message
        self._end(holds=False)

    def refused(self, place: int, message: str) -> None:
        """A choice does not go out."""
        if self._all:
            self.refuse(message)
        else:
            self.passed(place)

    def passed(self, place: int) -> None:
        """No other choice has to wait for this one."""
        self._decided.arrived.add(place)
        self._recorded.arrived.add(place)
        self._look()

    async def decided(self, place: int) -> bool:
        """A choice may go out; whether it does, once all are decided."""
        self._decided.arrived.add(place)
        self._look()
        return await self._decided.wait()

    async def recorded(self, place: int) -> bool:
        """That a choice goes out is recorded; whether it does, once all are."""
        self._recorded.arrived.add(place)
        self._look()
        return await self._recorded.wait()

    def _look(self) -> None:
        for stage in (self._decided, self._recorded):
            if self._expected is not None and len(stage.arrived) >= self._expected:
                stage.end(holds=True)

    def _end(self, *, holds: bool) -> None:
        self._decided.end(holds=holds)
        self._recorded.end(holds=holds)
