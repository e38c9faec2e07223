"""What is in force: the mode, and the policy with its sets. Both follow their file; a bad new version is refused."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from proxy.block import Terms
from proxy.errors import ConfigError, StartError
from proxy.metrics import Metrics
from proxy.policies import PolicySettings
from proxy.sets import SetError, SetKeeper
from proxy.settings import Mode, Settings
from shadow.judge import Rulebook
from shadow.tasks import Tasks
from validators.policy import SeenGlobs
from validators.repeats import Repeats
from validators.schema import Schemas

log = structlog.get_logger("counterproof.policy")

_LOOK_EVERY_S = 1.0


class Regime:
    """The mode and the rulebooks; requests take what is in force when they begin, and keep it.

    `load` reads the configuration anew, from the file at `path` (None: nothing is followed). Rulebooks differ by how
    many references a primary has.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        *,
        path: Path | None = None,
        load: Callable[[], Settings] | None = None,
    ) -> None:
        self.mode: Mode = settings.mode
        self._metrics, self._path, self._load = metrics, path, load
        self._tasks = Tasks("policy")
        self._schemas, self._repeats = Schemas(), Repeats(clock=time.monotonic)
        self._policy = settings.policy
        self._keeper = SetKeeper(settings.policy.sets, on_stale=metrics.set_stale)
        self._books: dict[int, Rulebook] = {}
        self._seen: dict[int, SeenGlobs] = {}
        self._version = _signature(path)
        metrics.mode(self.mode)

    async def open(self) -> None:
        """Reads the sets and follows the files; needs a running loop.

        Raises:
            StartError: a set cannot be read.
        """
        try:
            await self._keeper.open()
        except SetError as error:
            raise StartError(f"policy.sets: {error}") from None
        for warning in self._policy.warnings(1):
            log.warning("policy", warning=warning)
        if self._path is not None and self._load is not None:
            self._tasks.start("follow", self._follow(self._path, self._load))

    async def close(self) -> None:
        """Stops following."""
        await self._tasks.close()
        await self._keeper.close()

    @property
    def policy(self) -> PolicySettings:
        """The policy in force, as it is configured."""
        return self._policy

    @property
    def judges(self) -> bool:
        """Whether calls are judged where no reference is configured: somebody has said what is allowed."""
        return bool(self._policy.model_fields_set)

    @property
    def terms(self) -> Terms:
        """How refusals are made now."""
        policy = self._policy
        return Terms(
            policy.refusal,
            policy.hold_keepalive,
            policy.status_wait,
            unread_passes=policy.unverifiable_paths == "release",
        )

    def book(self, references: int) -> Rulebook:
        """The rulebook for a primary with so many references that may vote."""
        book = self._books.get(references)
        if book is None:
            policy = self._policy.compiled(references)
            self._seen[references] = SeenGlobs(policy)
            book = Rulebook(
                policy, self._policy.version, self._policy.headers, self._schemas, self._keeper.sets, self._repeats
            )
            self._books[references] = book
        return book

    def saw(self, references: int, tools: Iterable[str]) -> None:
        """These tools were offered: the globs that never apply to any are told."""
        if (seen := self._seen.get(references)) is not None:
            for tool in tools:
                seen.saw(tool)

    def unseen(self) -> Mapping[int, list[str]]:
        """The globs that have not applied to any tool yet, by the number of references."""
        return {references: seen.unseen() for references, seen in self._seen.items()}

    async def _follow(self, path: Path, load: Callable[[], Settings]) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            version = await asyncio.to_thread(_signature, path)
            if version is not None and version != self._version:
                self._version = version
                await self._take(load)

    async def _take(self, load: Callable[[], Settings]) -> None:
        """Takes over mode and policy of a new version of the file, or says why not."""
        try:
            settings = await asyncio.to_thread(load)
            changed = settings.policy != self._policy
            if changed:
                await self._replace(settings.policy)
        except ConfigError as error:
            self._refused(error.problems)
            return
        except SetError as error:
            self._refused([f"policy.sets: {error}"])
            return
        if settings.mode != self.mode:
            log.warning("mode", mode=settings.mode, before=self.mode)
            self.mode = settings.mode
            self._metrics.mode(self.mode)
        if changed:
            self._metrics.policy_reload("taken")
            log.info("a new policy is in force", policy=self._policy.version)
            for warning in self._policy.warnings(1):
                log.warning("policy", warning=warning)

    async def _replace(self, policy: PolicySettings) -> None:
        keeper = SetKeeper(policy.sets, on_stale=self._metrics.set_stale)
        await keeper.open()
        before, self._keeper, self._policy = self._keeper, keeper, policy
        self._books, self._seen = {}, {}
        await before.close()

    def _refused(self, problems: Iterable[str]) -> None:
        self._metrics.policy_reload("refused")
        log.error("a new version of the configuration is refused; the old one stays", problems=list(problems))


def _signature(path: Path | None) -> tuple[int, int, int] | None:
    """Tells one version of a file from another; None where there is none now."""
    if path is None:
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
