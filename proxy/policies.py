"""The `policy:` part of the configuration, and how it becomes the policy that calls are judged by."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from proxy.fields import FaultAt, Location, Seconds, Section
from proxy.sets import SetSource
from validators import ComparePolicy, Word
from validators.policy import (
    DEFAULT_ON,
    MOST_APPROVERS,
    Action,
    Policy,
    RepeatPolicy,
    Risk,
    ToolPolicy,
    merged,
    unreachable,
    without_effect,
)
from validators.rules import Rule, RuleError, compile_rule

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

Finite = Annotated[Seconds, Field(allow_inf_nan=False)]
"""A duration that ends."""


def _expression(value: Any) -> Any:
    """YAML reads an expression that is `true` or `false`, and nothing else, as what it says."""
    return str(value).lower() if isinstance(value, bool) else value


Expression = Annotated[str, BeforeValidator(_expression)]
"""An expression in CEL."""


class RuleSettings(Section):
    """A business rule that every call of the tool must meet."""

    id: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="its name in findings, logs and metrics; once in a tool"
    )
    cel: Expression = Field(description="an expression over args, tool and request that must be true")
    message: str = Field(default="", max_length=300, description="what the client is told where it is not")


class CompareSettings(Section):
    """What of a tool's arguments does not count when two calls are compared."""

    ignore: tuple[str, ...] = Field(default=(), description="JSON pointers to what is left out; * is any key or index")
    unordered: tuple[str, ...] = Field(default=(), description="pointers to arrays whose order does not matter")
    casefold: tuple[str, ...] = Field(default=(), description="pointers to texts whose case does not matter")
    tolerance: Decimal = Field(default=Decimal(0), description="numbers count as multiples of this; 0: exactly")

    @model_validator(mode="after")
    def _usable(self) -> Self:
        self.value()
        return self

    def value(self) -> ComparePolicy:
        """As calls are compared."""
        return ComparePolicy(self.ignore, self.unordered, self.casefold, self.tolerance)


class RepeatSettings(Section):
    """What makes a call of the tool a repeat."""

    window: Finite = Field(default=600.0, description="how long a call counts in its conversation")
    key: tuple[str, ...] = Field(default=(), description="JSON pointers to the arguments that count; default: all")

    @model_validator(mode="after")
    def _usable(self) -> Self:
        self.value()
        return self

    def value(self) -> RepeatPolicy:
        """As repeats are found."""
        return RepeatPolicy(self.window, self.key)


class _ToolTerms(Section):
    """What a tool's policy and the default one have in common."""

    on: Mapping[Word, Action] = Field(default={}, description="verdict: release, refuse, substitute or hold")
    risk: Risk | None = Field(
        default=None, description="low, normal or high: a call of high risk goes out once its receipt is kept"
    )
    verify_timeout: Finite | None = Field(default=None, description="what references have, from the call's end on")
    approve: Expression | None = Field(default=None, description="CEL: calls of which it is true need a person's yes")
    approval_timeout: Finite | None = Field(default=None, description="how long a call waits for a person")
    approvers: int | None = Field(
        default=None, ge=1, le=MOST_APPROVERS, description="how many different people must approve a call; default: 1"
    )
    compare: CompareSettings | None = Field(default=None, description="what does not count when calls are compared")
    repeat: RepeatSettings | None = Field(default=None, description="what makes a call a repeat; default: nothing does")
    rules: tuple[RuleSettings, ...] = Field(default=(), description="what must be true of every call")


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
    default: DefaultSettings = Field(default=DefaultSettings(), description="what holds where a tool says nothing")
    tools: tuple[ToolSettings, ...] = Field(default=(), description="what holds for some tools; the first match wins")
    sets: Mapping[str, SetSource] = Field(default={}, description="named sets that rules look values up in")
    headers: tuple[str, ...] = Field(default=(), description="request headers that rules may read, in lower case")
    unverifiable_paths: Literal["refuse", "release"] = Field(
        default="refuse", description="in block mode: generating paths and answers that cannot be checked for calls"
    )
    built_in: tuple[str, ...] = Field(
        default=(), description="in block mode: kinds of tools that the server runs by itself and that are let through"
    )
    refusal: Literal["message", "error"] = Field(
        default="message", description="a refusal is a text that the agent reads, or an error that it raises"
    )
    hold_keepalive: Finite | None = Field(default=None, description="an empty chunk so often while a call is held")
    status_wait: Finite = Field(default=20.0, description="how long headers wait for a verdict that may be an error")

    @field_validator("headers")
    @classmethod
    def _lower(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _HEADER.fullmatch(name):
                raise ValueError(f"{name!r} is no header's name")
        return tuple(sorted({name.lower() for name in value}))

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        self.compiled(0)
        return self

    @property
    def version(self) -> str:
        """Tells this policy from every other, however it is written: a short hash."""
        plain = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(plain.encode()).hexdigest()[:16]

    def compiled(self, references: int) -> Policy[Rule]:
        """The policy where so many references may vote.

        Raises:
            FaultAt: a rule that does not compile, a glob that names nothing, a key that is ignored: with its place, and
                all others of their kind beside it.
        """
        agree = min(1, references) if self.agree is None else self.agree
        base: ToolPolicy[Rule] = ToolPolicy("*", on=DEFAULT_ON)
        faults: list[FaultAt] = []
        default = self._tool(base, "*", self.default, ("default",), faults)
        tools = tuple(self._tool(default, tool.match, tool, ("tools", i), faults) for i, tool in enumerate(self.tools))
        if faults:
            raise FaultAt(faults[0].at, str(faults[0]), faults[1:])
        return Policy(agree, default, tools)

    def _tool(
        self, default: ToolPolicy[Rule], match: str, terms: _ToolTerms, at: Location, faults: list[FaultAt]
    ) -> ToolPolicy[Rule]:
        at = ("policy", *at)
        rules = self._rules({rule.id for rule in default.rules}, terms.rules, (*at, "rules"), faults)
        approve = None
        if terms.approve is not None:
            approve = self._rule("approve", terms.approve, "", (*at, "approve"), faults)
        try:
            return merged(
                default,
                match,
                on=terms.on,
                risk=terms.risk,
                verify_timeout=terms.verify_timeout,
                approve=approve,
                approval_timeout=terms.approval_timeout,
                approvers=terms.approvers,
                compare=terms.compare.value() if terms.compare else None,
                repeat=terms.repeat.value() if terms.repeat else None,
                rules=rules,
            )
        except ValueError as error:
            faults.append(FaultAt(at, str(error)))
            return default

    def _rules(
        self, taken: set[str], rules: tuple[RuleSettings, ...], at: Location, faults: list[FaultAt]
    ) -> list[Rule]:
        made = []
        for i, rule in enumerate(rules):
            if rule.id in taken:
                faults.append(FaultAt((*at, i, "id"), f"{rule.id!r} is the id of another rule for the same calls"))
            taken.add(rule.id)
            made.append(self._rule(rule.id, rule.cel, rule.message, (*at, i, "cel"), faults))
        return [rule for rule in made if rule is not None]

    def _rule(self, identity: str, cel: str, message: str, at: Location, faults: list[FaultAt]) -> Rule | None:
        try:
            return compile_rule(identity, cel, message, sets=self.sets.keys())
        except RuleError as error:
            faults.append(FaultAt(at, str(error)))
            return None

    def warnings(self, references: int) -> Iterator[str]:
        """What is allowed and cannot be meant, a line each."""
        policy = self.compiled(references)
        yield from unreachable(policy)
        yield from without_effect(policy)
