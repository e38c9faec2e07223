"""Approvals on a clock of the test's own, and who asks for them."""

import asyncio
import contextlib
import resource
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from proxy.approvals import Answer, Approvals, DecidedError, UnknownError
from proxy.audit import Audit, AuditFile, NoAudit
from shadow.exchange import Dialect, Request
from shadow.judge import Case, Rulebook
from validators import ToolCall, Word
from validators.decision import Verdict
from validators.policy import Action, Policy, ToolPolicy
from validators.repeats import Repeats
from validators.rules import Rule

HOLD = Verdict(Word.MATCH, Action.HOLD, why="wants_person")
DIFFERS = Verdict(Word.MISMATCH, Action.HOLD, why="arguments")
SEND = (ToolCall("send", '{"city": "Oslo", "n": 1}', "id-1"),)
LONG = 60.0


class Clock:
    """Seconds that pass as a test says."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def case(scope: str = "me:1", approvers: int = 1) -> Case:
    policy: Policy[Rule] = Policy(0, ToolPolicy("*"), (ToolPolicy("send", approvers=approvers, risk="high"),))
    book = Rulebook(policy, "v1", repeats=Repeats(clock=lambda: 0.0))
    tools = [{"type": "function", "function": {"name": "send"}}]
    return Case(book, Request(Dialect.CHAT, {"model": "qwen", "tools": tools}), b"", scope)


@contextlib.contextmanager
def full(path: Path) -> Iterator[None]:
    """No byte more goes into files as long as this one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Stage:
    """Approvals on a clock of the test's own, and who asks for them. `wall` is what people's clocks show."""

    def __init__(self, audit: Audit | None = None) -> None:
        self.clock, self.wall = Clock(), Clock(1_800_000_000.0)
        self.audit = audit or NoAudit()
        self.approvals = Approvals(self.clock, wall=self.wall, audit=self.audit)
        self._group: list[asyncio.Task[tuple[str, Answer]]] = []

    async def asking(
        self,
        calls: tuple[ToolCall, ...] = SEND,
        verdict: Verdict = HOLD,
        scope: str = "me:1",
        seconds: float = LONG,
        approvers: int = 1,
    ) -> asyncio.Task[tuple[str, Answer]]:
        """Somebody who has begun to wait."""
        work = self.approvals.ask(case(scope, approvers), calls, verdict, seconds, "cp-1")
        task = asyncio.get_running_loop().create_task(work, name="asking")
        self._group.append(task)
        await asyncio.sleep(0)  # its turn: it has begun to wait when this goes on
        return task

    async def expire(self, calls: tuple[ToolCall, ...] = SEND, verdict: Verdict = HOLD, scope: str = "me:1") -> str:
        """Somebody waits in vain; the id."""
        identity, answer = await self.approvals.ask(case(scope), calls, verdict, 0.001)
        assert answer is Answer.EXPIRED
        return identity

    async def answer(self, identity: str, *, approved: bool) -> bool:
        """Somebody's answer; whether it counts. Without an audit the loop has no turn meanwhile."""
        try:
            await self.approvals.decide(identity, "anna", approved=approved)
        except (UnknownError, DecidedError):
            return False
        return True

    async def end(self) -> None:
        for task in self._group:
            task.cancel()
        await asyncio.gather(*self._group, return_exceptions=True)


def play(scene: Callable[[Stage], Awaitable[None]], audit: Path | None = None) -> None:
    """Plays a scene; where a path is given, with an audit there."""

    async def main() -> None:
        stage = Stage(None if audit is None else AuditFile(audit, {}))
        try:
            await scene(stage)
        finally:
            await stage.end()
            stage.audit.close()

    asyncio.run(main())
