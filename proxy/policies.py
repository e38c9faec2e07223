"""The `policy:` part of the configuration, and how it becomes the policy that calls are judged by."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from validators.rules import Rule, RuleError, compile_rule

from proxy.fields import FaultAt, Location, Seconds, Section
from proxy.sets import SetSource
from validators import ComparePolicy, Word
from validators.policy import (
    DEFAULT_ON,
    Action,
    Policy,
    RepeatPolicy,
    Risk,
    ToolPolicy,
    actions_of,
    merged,
    unreachable,
    without_effect,
)

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class RuleSettings(Section):
    """A business rule that every call of the tool must meet."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    cel: str = Field(min_length=1, description="an expression over args, tool and request that must be true")
    message: str = Field(default="", max_length=300, description="what the client is told where it is not")


class CompareSettings(Section):
    """What of a tool's arguments does not count when two calls are compared."""

    ignore: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    casefold: tuple[str, ...] = ()
    tolerance: Decimal = Decimal(0)

    @model_validator(mode="after")
    def _usable(self) -> Self:
        self.value()
        return self

    def value(self) -> ComparePolicy:
        """As calls are compared."""
        return ComparePolicy(self.ignore, self.unordered, self.casefold, self.tolerance)


class RepeatSettings(Section):
    """What makes a call of the tool a repeat."""

    window: Seconds = Field(default=600.0, description="how long a call counts in its conversation")
    key: tuple[str, ...] = Field(default=(), description="JSON pointers to the arguments that count; default: all")

    def value(self) -> RepeatPolicy:
        """As repeats are found."""
        return RepeatPolicy(self.window, self.key)


class _ToolTerms(Section):
    """What a tool's policy and the default one have in common."""

    on: Mapping[Word, Action] = Field(default={}, description="verdict: release, refuse, substitute or hold")
    risk: Risk | None = None
    verify_timeout: Seconds | None = Field(default=None, description="what references have, from the call's end on")
    approve: str | None = Field(default=None, description="CEL: calls of which it is true need a person's yes")
    approval_timeout: Seconds | None = None
    compare: CompareSettings | None = None
    repeat: RepeatSettings | None = None
    rules: tuple[RuleSettings, ...] = ()

    @field_validator("on", mode="before")
    @classmethod
    def _actions(cls, value: Any) -> Any:
        # YAML 1.1 reads a bare `on` as true, and so would read this section's own name; the loader keeps words.
        return actions_of(value) if isinstance(value, Mapping) else value


class DefaultSettings(_ToolTerms):
    """What holds for every tool that says nothing else."""


class ToolSettings(_ToolTerms):
    """What holds for the tools that a glob names; the first that matches counts."""

    match: str = Field(min_length=1, description="a glob, without regard to case and separators")


class PolicySettings(Section):
    """What is found of calls, and what is done about it."""

    agree: int | None = Field(
        default=None, ge=0, description="references that must countersign; default: 1, or 0 where there are none"
    )
    default: DefaultSettings = DefaultSettings()
    tools: tuple[ToolSettings, ...] = ()
    sets: Mapping[str, SetSource] = Field(default={}, description="named sets that rules look values up in")
    headers: tuple[str, ...] = Field(default=(), description="request headers that rules may read, in lower case")
    unverifiable_paths: Literal["refuse", "release"] = Field(
        default="refuse", description="in block mode: generating paths and answers that cannot be checked for calls"
    )
    refusal: Literal["message", "error"] = "message"
    hold_keepalive: Seconds | None = Field(default=None, description="an empty chunk so often while a call is held")
    status_wait: Seconds = Field(default=20.0, description="how long headers wait for a verdict that may be an error")

    @field_validator("headers")
    @classmethod
    def _lower(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _HEADER.fullmatch(name):
                raise ValueError(f"{name!r} is no header's name")
        return tuple(name.lower() for name in value)

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        self.compiled(0)
        return self

    @property
    def version(self) -> str:
        """Tells this policy from every other: a short hash."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def compiled(self, references: int) -> Policy[Rule]:
        """The policy where so many references may vote.

        Raises:
            FaultAt: a rule that does not compile, a glob that names nothing, a key that is ignored: with its place.
        """
        agree = min(1, references) if self.agree is None else self.agree
        base: ToolPolicy[Rule] = ToolPolicy("*", on=DEFAULT_ON)
        default = self._tool(base, "*", self.default, ("default",))
        tools = tuple(self._tool(default, tool.match, tool, ("tools", i)) for i, tool in enumerate(self.tools))
        return Policy(agree, default, tools)

    def _tool(self, default: ToolPolicy[Rule], match: str, terms: _ToolTerms, at: Location) -> ToolPolicy[Rule]:
        rules = [
            self._rule(rule.id, rule.cel, rule.message, (*at, "rules", i, "cel")) for i, rule in enumerate(terms.rules)
        ]
        approve = self._rule("approve", terms.approve, "", (*at, "approve")) if terms.approve else None
        try:
            return merged(
                default,
                match,
                on=terms.on,
                risk=terms.risk,
                verify_timeout=terms.verify_timeout,
                approve=approve,
                approval_timeout=terms.approval_timeout,
                compare=terms.compare.value() if terms.compare else None,
                repeat=terms.repeat.value() if terms.repeat else None,
                rules=rules,
            )
        except ValueError as error:
            raise FaultAt(("policy", *at), str(error)) from None

    def _rule(self, identity: str, cel: str, message: str, at: Location) -> Rule:
        try:
            return compile_rule(identity, cel, message, sets=self.sets.keys())
        except RuleError as error:
            raise FaultAt(("policy", *at), str(error)) from None

    def warnings(self, references: int) -> Iterator[str]:
        """What is allowed and cannot be meant, a line each."""
        policy = self.compiled(references)
        yield from unreachable(policy)
        yield from without_effect(policy)
