"""Is a choice's call allowed, and what becomes of it: schema, rules, repeats and references, under one policy.

The one path that the gate, the mirror and offline acceptance take from an answer to a verdict. Pure but for what
repeats remember.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import orjson

from shadow.compare import leaked_calls
from shadow.exchange import Choice, Request
from validators import ComparePolicy, Finding, ToolCall, Word
from validators.decision import WANTS_PERSON, Opinion, Verdict, action_for, decide
from validators.policy import Action, Policy
from validators.repeats import Repeats
from validators.rules import RequestFacts, Rule, Sets, check, holds
from validators.schema import Schemas


@dataclass(frozen=True, slots=True)
class Rulebook:
    """What calls are judged by: one version of the policy, and what it looks things up in.

    `lock` is held while repeats are looked up or noted: the gate judges in its event loop, the mirror in threads.
    """

    policy: Policy[Rule]
    version: str = ""
    headers: tuple[str, ...] = ()
    schemas: Schemas = field(default_factory=Schemas)
    sets: Sets = field(default_factory=Sets)
    repeats: Repeats = field(default_factory=lambda: Repeats(clock=time.monotonic))
    lock: Lock = field(default_factory=Lock)

    def compare(self, tool: str) -> ComparePolicy:
        """What of a tool's arguments counts."""
        return self.policy.of(tool).compare


@dataclass(frozen=True, slots=True)
class Judged:
    """One choice and what was decided about its calls."""

    choice: int
    calls: tuple[ToolCall, ...]
    verdict: Verdict


class Case:
    """One request under the rulebook that was in force when it arrived.

    `scope` is whose calls are each other's repeats (credential and conversation), `body` the request's raw bytes: the
    same bytes again are a repeated request, not a repeated call. `approved` (from any thread) says whether a person has
    approved calls of a scope that have not gone out yet: those are no repeats, and held, so that the yes is used up.
    `went_out` (from any thread) is told of calls of a scope that the client has.
    """

    def __init__(
        self,
        rulebook: Rulebook,
        request: Request,
        body: bytes,
        scope: str,
        headers: Mapping[str, str] | None = None,
        approved: Callable[[str, Sequence[ToolCall]], bool] = lambda _scope, _calls: False,
        went_out: Callable[[str, Sequence[ToolCall]], None] = lambda _scope, _calls: None,
    ) -> None:
        self.rulebook, self.request, self.scope = rulebook, request, scope
        self._approved, self._went_out = approved, went_out
        self._functions = {str(tool["name"]): tool for tool in request.tools}
        user = request.body.get("user")
        self._facts = RequestFacts(request.model, user if isinstance(user, str) else None, dict(headers or {}))
        self._body = body
        self._fingerprint: bytes | None = None
        self._history: list[ToolCall] | None = None
        self._exempt: set[tuple[ToolCall, ...]] = set()

    @property
    def policy(self) -> Policy[Rule]:
        """The policy in force."""
        return self.rulebook.policy

    @property
    def conversation(self) -> str:
        """The conversation's key, without whose it is."""
        return self.scope.rpartition(":")[2]

    @property
    def fingerprint(self) -> bytes:
        """Tells this request from every other."""
        if self._fingerprint is None:
            self._fingerprint = hashlib.blake2b(self._body, digest_size=16).digest()
        return self._fingerprint

    @property
    def history(self) -> list[ToolCall]:
        """The calls that the request's own messages hold."""
        if self._history is None:
            self._history = _history(self.request)
        return self._history

    def own(self, calls: Sequence[ToolCall]) -> list[Finding]:
        """What can be said of calls without any reference, in the order of the calls."""
        found: list[Finding] = []
        for i, call in enumerate(calls):
            found += self._of_call(i, call)
        book, fingerprint, history = self.rulebook, self.fingerprint, self.history
        with book.lock:
            repeats = book.repeats.findings(self.scope, fingerprint, history, calls, self.policy.of)
        return found + self._binding(calls, repeats)

    def _binding(self, calls: Sequence[ToolCall], repeats: list[Finding]) -> list[Finding]:
        """The repeats that count: what a person has approved passes once, whatever was made or refused before."""
        if not repeats or not self._approved(self.scope, calls):
            return repeats
        self._exempt.add(tuple(calls))
        return [finding for finding in repeats if action_for(self.policy, finding) is Action.HOLD]

    def _of_call(self, i: int, call: ToolCall) -> list[Finding]:
        function, tool, arguments = self._functions.get(call.name), self.policy.of(call.name), call.read
        if function is not None and arguments.problem is None:
            found = self.rulebook.schemas.findings(function, i, arguments)
            if arguments.duplicate_keys:  # who takes the first of two has another call than who takes the last
                found.append(Finding(Word.INVALID, call.name, i, "duplicate_keys"))
        else:
            problem = arguments.problem if function is not None else None
            found = [Finding(Word.INVALID, call.name, i, problem or "unknown_tool")]
            if tool.on[Word.INVALID] is Action.REFUSE:
                return found
        if tool.rules:  # of an invalid call, too, where a policy does not stop it for that alone
            found += check(tool.rules, call.name, i, arguments, self._facts, self.rulebook.sets)
        return found

    def leaks(self, choice: Choice) -> list[Finding]:
        """Calls that stand in plain text. They are told and counted; no client takes them for calls."""
        leaked = leaked_calls(choice.content, self.request.tool_names)
        return [Finding(Word.INVALID, name, None, "leaked_markup") for name in leaked]

    def wants_person(self, calls: Sequence[ToolCall]) -> list[bool]:
        """Per call: does its tool's policy ask for a person's yes. What cannot be evaluated does.

        So does what passes as no repeat by a person's yes: asking for it is what uses it up.
        """
        exempt = tuple(calls) in self._exempt
        return [exempt or self._wants(call) for call in calls]

    def _wants(self, call: ToolCall) -> bool:
        approve = self.policy.of(call.name).approve
        if approve is None:
            return False
        return holds(approve, call.name, call.read, self._facts, self.rulebook.sets) is not False

    def decide(
        self, calls: Sequence[ToolCall], own: Sequence[Finding], opinions: Sequence[Opinion], *, expired: bool
    ) -> Verdict | None:
        """What becomes of a choice's calls; None while it is not decided."""
        return decide(
            self.policy,
            calls,
            own,
            opinions,
            expired=expired,
            wants_person=self.wants_person(calls),
            check_substitute=self._check_substitute,
        )

    def _check_substitute(self, calls: Sequence[ToolCall]) -> list[Finding]:
        asks = zip(calls, self.wants_person(calls), strict=True)
        wants = [Finding(Word.MATCH, call.name, i, WANTS_PERSON) for i, (call, asked) in enumerate(asks) if asked]
        return self.own(calls) + wants

    def verify_timeout(self, calls: Sequence[ToolCall]) -> float:
        """Seconds that references have for these calls, from their end on: as long as for the one with most.

        They wait for each other, so that a cheap call takes no time from the check of a dear one.
        """
        return max((self.policy.of(call.name).verify_timeout for call in calls), default=0.0)

    def settle(self, calls: Sequence[ToolCall], verdict: Verdict, *, released: bool, denied: bool = False) -> None:
        """Remembers what went out, and what did not.

        `released`: the client has these calls, whatever the verdict asked for; `denied`: a person said no.
        """
        repeats, fingerprint = self.rulebook.repeats, self.fingerprint
        # Only the calls that were refused themselves: those beside them did nothing.
        refused = () if released else self._asked_about(calls, verdict) if denied else verdict.remember
        sent = calls if released else verdict.substitute or ()
        with self.rulebook.lock:
            repeats.refused(self.scope, fingerprint, [calls[i] for i in refused])
            repeats.released(self.scope, fingerprint, sent, self.policy.of)
        if sent:
            self._went_out(self.scope, sent)

    def _asked_about(self, calls: Sequence[ToolCall], verdict: Verdict) -> Iterable[int]:
        """The calls that a person was asked about, by an expression or for what was found."""
        asked = {i for i, wants in enumerate(self.wants_person(calls)) if wants}
        for _shadow, finding in verdict.findings:
            if finding.call is not None and action_for(self.policy, finding) is Action.HOLD:
                asked.add(finding.call)
        return sorted(asked) or range(len(calls))


def _history(request: Request) -> list[ToolCall]:
    messages = request.body.get("messages")
    found: list[ToolCall] = []
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            found += _told(call.get("function") if isinstance(call, dict) else None)
        found += _told(message.get("function_call"))  # the API's older kind
    return found


def _told(function: Any) -> Iterator[ToolCall]:
    """A call as a client's message tells it: arguments may be a text, or (against the API) the value itself."""
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        return
    arguments = function.get("arguments")
    if arguments is None or isinstance(arguments, str):
        yield ToolCall(name, arguments or "")
    else:
        try:
            yield ToolCall(name, orjson.dumps(arguments).decode())
        except orjson.JSONEncodeError:  # deeper than anything that is compared as a value
            return
