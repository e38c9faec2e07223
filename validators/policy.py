"""What is done about what was found: actions, each tool's policy, and which policy a tool's name falls under.

Rules and approval expressions are opaque here (`R`): they are only handed on.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, get_args

from validators.calls import EXACT, ComparePolicy
from validators.verdict import Word

R = TypeVar("R")

Risk = Literal["low", "normal", "high"]

MOST_APPROVERS = 10
"""So many people must approve a call at most."""


class Action(StrEnum):
    """What is done with the calls of a choice; members stand in order of precedence, strongest first."""

    REFUSE = "refuse"
    HOLD = "hold"
    SUBSTITUTE = "substitute"
    RELEASE = "release"


_STRENGTH = {action: rank for rank, action in enumerate(reversed(Action))}


def strength(action: Action) -> int:
    """How strong an action is: 0 for release, growing."""
    return _STRENGTH[action]


def strongest(actions: Iterable[Action]) -> Action:
    """The action that prevails; of none at all, release."""
    return max(actions, key=strength, default=Action.RELEASE)


_REFUSED = frozenset({Word.INVALID, Word.VIOLATION, Word.REPEAT, Word.MISMATCH})

DEFAULT_ON: Mapping[Word, Action] = MappingProxyType(
    {word: Action.REFUSE if word in _REFUSED else Action.RELEASE for word in Word}
)
"""What is done about each word where nothing else was configured."""

_SAME_CALL = frozenset({Word.MATCH, Word.EQUIVALENT})


def actions_of(on: Mapping[Any, str]) -> dict[Word, Action]:
    """Reads a configured `on`. Raises ValueError, naming what is allowed."""
    return {_one_of(Word, word, "verdict"): _one_of(Action, action, "action") for word, action in on.items()}


_Choice = TypeVar("_Choice", Word, Action)


def _one_of(kind: type[_Choice], text: Any, what: str) -> _Choice:
    try:
        return kind(text)
    except ValueError:
        allowed = ", ".join(kind)
        raise ValueError(f"{text!r} is no {what}; allowed: {allowed}") from None


def _positive(what: str, seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{what} is a number of seconds above 0")


@dataclass(frozen=True, slots=True)
class RepeatPolicy:
    """What makes a call of a tool a repeat: the arguments at `key`, once more within `window` seconds.

    `key` holds JSON pointers into the arguments; empty: all of them. Raises ValueError.
    """

    window: float
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses what would make every call of the tool a repeat, or none."""
        _positive("a repeat's window", self.window)
        for pointer in self.key:
            if not pointer.startswith("/"):
                raise ValueError(f"{pointer!r} is no JSON pointer: it must begin with /")
            if "*" in pointer.split("/"):
                raise ValueError(f"{pointer!r}: a repeat's key names its places one by one, without *")


@dataclass(frozen=True)  # no slots: with them, Python 3.11 refuses ToolPolicy[Rule](…)
class ToolPolicy(Generic[R]):
    """What one tool, or the tools a glob names, are entitled to. Times are seconds. Raises ValueError.

    `match` is a glob of `*` and `?` (see `normalised`). `on` says what is done about each word and is complete;
    `substitute` on `match` or `equivalent` is refused, since under the tool's own compare policy the reference's call
    is the same call. `approve` is an expression that asks for a person's yes, `approvers` how many different people
    must say it. What goes out at the `risk` high has its receipt first.
    """

    match: str
    risk: Risk = "normal"
    on: Mapping[Word, Action] = field(default_factory=lambda: DEFAULT_ON)
    verify_timeout: float = 10.0
    approve: R | None = None
    approval_timeout: float = 300.0
    compare: ComparePolicy = EXACT
    repeat: RepeatPolicy | None = None
    rules: tuple[R, ...] = ()
    approvers: int = 1

    def __post_init__(self) -> None:
        """Refuses what cannot be meant; keeps `on` from being changed afterwards."""
        normalised_pattern(self.match)
        if self.risk not in get_args(Risk):
            raise ValueError(f"{self.risk!r} is no risk; allowed: {', '.join(get_args(Risk))}")
        _positive("verify_timeout", self.verify_timeout)
        _positive("approval_timeout", self.approval_timeout)
        if not 1 <= self.approvers <= MOST_APPROVERS:
            raise ValueError(f"approvers is a number of people from 1 to {MOST_APPROVERS}")
        on = actions_of(self.on)
        if missing := [word.value for word in Word if word not in on]:
            raise ValueError(f"no action for {', '.join(missing)}")
        for word in sorted(_SAME_CALL):
            if on[word] is Action.SUBSTITUTE:
                raise ValueError(f"{word.value}: the reference's call is the same call, there is nothing to substitute")
        _check_key(self.repeat, self.compare)
        object.__setattr__(self, "on", MappingProxyType(on))


def _check_key(repeat: RepeatPolicy | None, compare: ComparePolicy) -> None:
    for pointer in repeat.key if repeat else ():
        parts = pointer.split("/")
        for ignored in compare.ignore:
            above = ignored.split("/")
            if len(above) <= len(parts) and all(a in {"*", p} for a, p in zip(above, parts, strict=False)):
                raise ValueError(f"repeat: the key {pointer!r} is ignored by compare ({ignored!r})")


def merged(
    default: ToolPolicy[R],
    match: str,
    *,
    on: Mapping[Any, str] = MappingProxyType({}),
    risk: Risk | None = None,
    verify_timeout: float | None = None,
    approve: R | None = None,
    approval_timeout: float | None = None,
    approvers: int | None = None,
    compare: ComparePolicy | None = None,
    repeat: RepeatPolicy | None = None,
    rules: Iterable[R] = (),
) -> ToolPolicy[R]:
    """A tool's policy, with what it does not say taken from `default`, and `on` filled up word by word.

    The default's rules hold for every tool; its own come after them. Raises ValueError.
    """
    return ToolPolicy(
        match,
        risk=default.risk if risk is None else risk,
        on={**default.on, **actions_of(on)},
        verify_timeout=default.verify_timeout if verify_timeout is None else verify_timeout,
        approve=default.approve if approve is None else approve,
        approval_timeout=default.approval_timeout if approval_timeout is None else approval_timeout,
        approvers=default.approvers if approvers is None else approvers,
        compare=default.compare if compare is None else compare,
        repeat=default.repeat if repeat is None else repeat,
        rules=(*default.rules, *rules),
    )


# Letters by Unicode's book that show nothing; every other invisible character is no letter.
_BLANK_LETTERS = frozenset("\u115f\u1160")


def normalised(name: str) -> str:
    """A tool's name as policies see it: compatibility forms undone, case folded, only letters and digits left.

    So `run_command`, `Run-Command`, `runCommand`, `RUN.COMMAND` and full-width forms are one name, with or without
    invisible characters and accents. Look-alikes from other scripts stay other names; a tool that the request does not
    declare is `invalid` anyway. Names told apart by nothing but marks and symbols share a policy.
    """
    return _folded(name) if len(name) <= _REMEMBERED_LENGTH else _fold(name, "")


def normalised_pattern(match: str) -> str:
    """A glob as it is held against normalised names: `*` and `?` stay. Raises ValueError where it could match nothing.

    A run of both is put in one order (`?` first, one `*`), so that equal globs are equal texts.
    """
    if "[" in match or "]" in match:
        raise ValueError(f"{match!r}: sets in brackets are not supported; case and separators never count")
    pattern = re.sub(r"[*?]*\*[*?]*", lambda run: "?" * run[0].count("?") + "*", _fold(match, "*?"))
    if not pattern:
        raise ValueError(f"{match!r} names no tool: it holds no letter, no digit, no * and no ?")
    return pattern


_LONGEST_NAME = 1024  # characters that count: some of them fold to eighteen others


@lru_cache(1024)
def _folded(name: str) -> str:
    return _fold(name, "")


def _fold(text: str, kept: str) -> str:
    # By way of the capital, since a dotless i shares it with i. Folding composes, and decomposing brings up capitals
    # again: both are done twice.
    capital = unicodedata.normalize("NFKD", text[:_LONGEST_NAME]).upper()
    folded = unicodedata.normalize("NFKD", capital.casefold()).casefold()
    return "".join(c for c in folded if (c.isalnum() and c not in _BLANK_LETTERS) or c in kept)


_REMEMBERED_NAMES = 1024
_REMEMBERED_LENGTH = 256  # names come from models: a long one is looked up, not kept


@dataclass(frozen=True)
class Policy(Generic[R]):
    """The whole policy: how many references must countersign, and each tool's own; the first matching glob wins.

    Raises ValueError.
    """

    agree: int
    default: ToolPolicy[R]
    tools: tuple[ToolPolicy[R], ...] = ()
    _find: Callable[[str], ToolPolicy[R]] = field(init=False, repr=False, compare=False)
    _remembered: Callable[[str], ToolPolicy[R]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compiles the globs."""
        if self.agree < 0:
            raise ValueError("agree is a number of references from 0 on")
        if self.default.match != "*":
            raise ValueError("the default's glob is *")
        globs = [(re.compile(translate(normalised_pattern(tool.match))), tool) for tool in self.tools]

        def find(name: str) -> ToolPolicy[R]:
            plain = normalised(name)
            return next((tool for glob, tool in globs if glob.match(plain)), self.default)

        object.__setattr__(self, "_find", find)
        object.__setattr__(self, "_remembered", lru_cache(_REMEMBERED_NAMES)(find))

    def of(self, name: str) -> ToolPolicy[R]:
        """The policy that a tool falls under, by its name as the model wrote it."""
        return self._remembered(name) if len(name) <= _REMEMBERED_LENGTH else self._find(name)


def unreachable(policy: Policy[Any]) -> list[str]:
    """Globs that can never apply, because one before them takes every name they could: a line for each.

    Finds what a single earlier glob takes, not what several take together.
    """
    patterns = [normalised_pattern(tool.match) for tool in policy.tools]
    # Held against a later glob's text: its * only falls to an earlier *, its ? to either.
    wider = [re.compile(translate(pattern.replace("?", "[!*]"))) for pattern in patterns]
    found = []
    for j, tool in enumerate(policy.tools):
        i = next((i for i in range(j) if wider[i].match(patterns[j])), None)
        if i is not None:
            first = policy.tools[i].match
            found.append(f"tools[{j}] ({tool.match!r}) never applies: tools[{i}] ({first!r}) takes all it could")
    return found


def without_effect(policy: Policy[Any]) -> list[str]:
    """What is configured for references where none is asked (`agree: 0`): a line for each."""
    if policy.agree:
        return []
    found = []
    for where, tool in [("default", policy.default), *((f"tools[{i}]", t) for i, t in enumerate(policy.tools))]:
        if tool.on[Word.UNVERIFIED] is not Action.RELEASE:
            found.append(f"{where} ({tool.match!r}): unverified: {tool.on[Word.UNVERIFIED]} has no effect, agree is 0")
        words = [word.value for word in Word if tool.on[word] is Action.SUBSTITUTE]
        if words:
            found.append(f"{where} ({tool.match!r}): nothing to substitute ({', '.join(words)}), agree is 0: refused")
    return found


def never_matches(policy: Policy[Any], names: Iterable[str]) -> list[str]:
    """The globs that none of these tools falls under, in the policy's order."""
    seen = SeenGlobs(policy)
    for name in names:
        seen.saw(name)
    return seen.unseen()


class SeenGlobs:
    """Which globs have applied to some tool since this was made; as large as the policy, however many names come."""

    def __init__(self, policy: Policy[Any]) -> None:
        self._policy = policy
        self._seen: set[int] = set()

    def saw(self, name: str) -> None:
        """A request declared, or a model called, a tool of this name."""
        self._seen.add(id(self._policy.of(name)))

    def unseen(self) -> list[str]:
        """The globs that have not applied to any tool yet, in the policy's order."""
        return [tool.match for tool in self._policy.tools if id(tool) not in self._seen]
