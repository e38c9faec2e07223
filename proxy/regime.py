"""What is in force: the mode, and the policy with its sets. Both follow their file; a bad new version is refused."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from pathlib import Path
from threading import Lock

import structlog

from proxy.block import Terms
from proxy.errors import ConfigError, StartError
from proxy.metrics import Metrics
from proxy.policies import PolicySettings
from proxy.sets import SetError, SetKeeper
from proxy.settings import Settings, StateSettings
from proxy.switch import Change, Mode, Switch
from shadow.judge import Rulebook
from shadow.tasks import Tasks, Wait
from validators.policy import SeenGlobs
from validators.repeats import Repeats
from validators.schema import Schemas

log = structlog.get_logger("counterproof.policy")

_LOOK_EVERY_S = 0.5
_OFFERS = 1000  # requests with tools after which a glob that has applied to none of them is told
_OFFERED, _LONGEST_NAME = 128, 256  # tools of one request that are looked at: they are the client's to write


class Regime:
    """The mode and the rulebooks; requests take what is in force when they begin, and keep it.

    `load` reads the configuration anew, from the file at `path` (None: nothing is followed). Rulebooks differ by how
    many references a primary has. `record` is told of each turn of the switch (see `proxy.switch.Switch`),
    `record_policy` of each new policy: `taken`, with its version, or `refused`.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        *,
        path: Path | None = None,
        load: Callable[[], Settings] | None = None,
        record: Callable[[Change], None] = lambda _change: None,
        record_policy: Callable[[str, str | None], None] = lambda _event, _version: None,
    ) -> None:
        self._metrics, self._path, self._load = metrics, path, load
        self._record, self._record_policy = record, record_policy
        self.switch = Switch(settings.mode, self._turned)
        self._started, self._voters = settings, settings.voters
        self._tasks = Tasks("policy")
        self._told: Mode = settings.mode
        self._expiring: Wait[None] | None = None
        self._schemas, self._repeats, self._repeats_lock = Schemas(), Repeats(clock=time.monotonic), Lock()
        self._policy = settings.policy
        self._keeper = self._keep(settings.policy)
        self._books: dict[int, Rulebook] = {}
        self._seen, self._offers = _seen(settings.policy), 0
        metrics.mode(self.mode)

    async def open(self) -> None:
        """Reads the sets and follows the files; needs a running loop.

        Raises:
            StartError: a set cannot be read.
        """
        try:
            await self._keeper.open()
        except SetError as error:
            raise StartError(*sets_unread(error)) from None
        self._warn()
        if self._path is not None and self._load is not None:
            self._tasks.start("follow", self._follow(self._path, self._load))

    async def close(self) -> None:
        """Stops following."""
        await self._tasks.close()
        await self._keeper.close()

    # --- what is in force -------------------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        """The mode for all; `switch` knows those for a model or a tool."""
        return self.switch.mode

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
            configured = self._policy
            book = Rulebook(
                configured.compiled(references),
                configured.version,
                configured.headers,
                self._schemas,
                self._keeper.sets,
                self._repeats,
                self._repeats_lock,
            )
            self._books[references] = book
        return book

    def saw(self, tools: Collection[str]) -> None:
        """A request offered these tools. Which globs have applied to none is told once: a typing error, perhaps."""
        if self._seen is None or not tools:
            return
        for tool in islice(tools, _OFFERED):
            if len(tool) <= _LONGEST_NAME:
                self._seen.saw(tool)
        self._offers += 1
        if self._offers >= _OFFERS:
            if unseen := self._seen.unseen():
                log.warning("globs of the policy apply to no tool that was offered", globs=unseen, requests=_OFFERS)
            self._seen = None

    # --- the switch -------------------------------------------------------------------------------------------

    def _turned(self, change: Change) -> None:
        """Records a turn of the switch, tells the operator, and sees to it that what ends does so by itself."""
        setting = change.setting
        try:
            self._record(change)
        except Exception as error:
            if change.did in {"set", "cleared"}:
                raise
            log.error("a turn of the switch was not recorded", did=change.did, error=type(error).__name__)
        named = {"target_model": setting.model, "target_tool": setting.tool, "to": setting.mode} if setting else {}
        log.warning("mode", mode=change.mode, before=self._told, did=change.did, who=change.who, **named)
        self._told = change.mode
        self._metrics.mode(change.mode)
        if change.until is not None and change.did == "set" and (self._expiring is None or self._expiring.done()):
            self._expiring = self._tasks.start("expire", self._expire())

    async def _expire(self) -> None:
        """Lets settings end though nobody asks for the mode; one that ends sooner may be set at any time."""
        while (left := self.switch.next_end()) is not None:
            await asyncio.sleep(min(left, _LOOK_EVERY_S))
            self.switch.expire()

    # --- a new version ----------------------------------------------------------------------------------------

    async def _follow(self, path: Path, load: Callable[[], Settings]) -> None:
        """Takes a version of the file that has kept still for one look, the first as well: it may be a newer one."""
        known: tuple[int, ...] | None = ()
        before: tuple[int, ...] | None = ()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            now = await asyncio.to_thread(_signature, path)
            still, before = now == before, now
            if not still or now == known:
                continue
            known = now
            if now is None:
                log.warning("the configuration's file is gone; what is in force stays")
            else:
                await self._take(load)

    async def _take(self, load: Callable[[], Settings]) -> None:
        """Takes over mode and policy of a new version of the file, or says why not."""
        try:
            settings = await asyncio.to_thread(load)
            self._references_suffice(settings.policy)
            changed = settings.policy != self._policy
            before = await self._replace(settings.policy) if changed else None
        except SetError as error:
            self._refused(sets_unread(error))
        except ConfigError as error:
            self._refused(error.problems)
        except Exception as error:  # noqa: BLE001  (whatever a version holds, the next one must be looked at)
            self._refused([f"it cannot be read ({type(error).__name__})"])
        else:
            self._taken(settings, policy=changed)
            if before is not None:
                self._tasks.start("close", before.close())

    def _references_suffice(self, policy: PolicySettings) -> None:
        """Shadows stay as they were at the start, whatever the new version says of them."""
        for primary, references in self._voters.items():
            if references < (policy.agree or 0):
                raise ConfigError(
                    f"policy.agree: {policy.agree} references must countersign, and {primary} has {references} until "
                    "the next start"
                )

    async def _replace(self, policy: PolicySettings) -> SetKeeper:
        """Puts a policy and its sets in force; what kept the sets before is handed out to be closed."""
        keeper = self._keep(policy)
        try:
            await keeper.open()
        except asyncio.CancelledError:
            await keeper.close()
            raise
        before, self._keeper = self._keeper, keeper
        for name in self._policy.sets.keys() - policy.sets.keys():
            self._metrics.set_stale(name, stale=False)
        self._policy, self._books = policy, {}
        self._seen, self._offers = _seen(policy), 0
        return before

    def _taken(self, settings: Settings, *, policy: bool) -> None:
        mode = settings.mode != self.switch.configured  # one that was set since by hand stays, unless it changes
        if mode:
            self.switch.configure(settings.mode)
        if policy:
            log.info("a new policy is in force", policy=self._policy.version)
            self._warn()
        if mode or policy:
            self._metrics.policy_reload("taken")
        if policy:
            self._record_policy("taken", self._policy.version)
        sections = [
            name
            for name in type(settings).model_fields
            if name not in {"mode", "policy"} and getattr(settings, name) != getattr(self._started, name)
        ]
        if sections:
            log.warning("these sections have changed, and are taken over at the next start only", sections=sections)

    def _refused(self, problems: Iterable[str]) -> None:
        self._metrics.policy_reload("refused")
        self._record_policy("refused", None)
        log.error("a new version of the configuration is refused; the old one stays", problems=list(problems))

    def _keep(self, policy: PolicySettings) -> SetKeeper:
        return keeper_of(policy, self._started.state, self._path, self._metrics.set_stale)

    def _warn(self) -> None:
        for warning in self._policy.warnings(max(self._voters.values())):
            log.warning("policy", warning=warning)


def keeper_of(
    policy: PolicySettings,
    state: StateSettings,
    path: Path | None,
    on_stale: Callable[[str, bool], None] = lambda _name, _stale: None,
) -> SetKeeper:
    """What reads a policy's sets; the names of their files are relative to the configuration's own at `path`."""
    url = state.url.get_secret_value() if state.url else None
    return SetKeeper(policy.sets, redis_url=url, directory=path.parent if path else Path(), on_stale=on_stale)


def sets_unread(error: SetError) -> list[str]:
    """A line with its place for each set that cannot be read."""
    return [f"policy.sets.{problem}" for problem in error.problems]


def _seen(policy: PolicySettings) -> SeenGlobs | None:
    return SeenGlobs(policy.compiled(0)) if policy.tools else None


def _signature(path: Path) -> tuple[int, ...] | None:
    """Tells one version of a file from another; None where there is none now."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
