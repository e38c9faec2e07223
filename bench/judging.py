"""What judging one call costs in process: the CPU time of each part, call by call, never the same call twice."""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench import stats
from shadow.compare import judge_calls
from shadow.exchange import Dialect, Request
from shadow.judge import Case, Rulebook
from validators import ComparePolicy, Finding, ToolCall, Word, match_calls
from validators.decision import Opinion, Verdict
from validators.policy import Policy, RepeatPolicy, ToolPolicy
from validators.repeats import Repeats
from validators.rules import RequestFacts, Sets, check, compile_rule
from validators.schema import Schemas

LIMIT_US = 200.0
BEFORE = 20
"""Calls that the conversation has made before."""

_TOOL = "run_command"
_SCHEMA = {
    "type": "object",
    "properties": {
        "device": {"enum": ["edge-1", "edge-2", "core-1"]},
        "command": {"type": "string", "maxLength": 200},
        "interface": {"type": "string", "pattern": "^GigabitEthernet0/[01]/[0-9](\\.[0-9]{1,3})?$"},
        "timeout": {"type": "number", "minimum": 0},
        "options": {
            "type": "object",
            "properties": {
                "format": {"enum": ["text", "json"]},
                "lines": {"type": "integer", "maximum": 1000},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
        },
    },
    "required": ["device", "command", "interface"],
    "additionalProperties": False,
}
_RULES = (
    'in_set(args.device, "devices")',
    'args.command.startsWith("show")',
    "args.timeout <= 60.0",
    "size(args.options.tags) < 5",
    'args.interface.matches("^Gigabit[A-Za-z0-9/.]+$")',
)

LIMITED = ("schema", "five rules", "repeat check", "diff")
"""What the limit is about, each of them with its own reading of the call; the diff is that of two calls that differ."""

BATCH = 20
"""Calls between two looks at the clock: a look costs as much as a part of what is measured, and cools the caches."""

PARTS = ("schema", "five rules", "repeat check", "own", "match_calls", "diff", "decide", "agreed", "differs")
"""`own` is `Case.own`, so the three before it; `match_calls` compares with the same call, `diff` with another one;
`agreed` and `differs` are own, a comparison and `decide`, one call after the other."""


def _policy() -> Policy[Any]:
    rules = tuple(compile_rule(f"r{i}", cel, sets=["devices"]) for i, cel in enumerate(_RULES))
    compare = ComparePolicy(ignore=("/timeout",), casefold=("/command",))
    tool = ToolPolicy(_TOOL, compare=compare, repeat=RepeatPolicy(600.0), rules=rules)
    return Policy(1, ToolPolicy("*"), (tool,))


def _call(number: int, device: str = "edge-1") -> ToolCall:
    """One of many calls: eleven values, 170 bytes."""
    arguments = {
        "device": device,
        "command": f"show arp {number}",
        "interface": f"GigabitEthernet0/1/{number % 10}.{number % 1000}",
        "timeout": 10 + number % 7,
        "options": {"format": "json", "lines": 100, "tags": ["a", "b"]},
    }
    return ToolCall(_TOOL, json.dumps(arguments))


@dataclass(frozen=True, slots=True)
class _One:
    """One call: its case, what a reference made in agreement, and what one made that differs."""

    case: Case
    calls: tuple[ToolCall]
    same: tuple[ToolCall]
    other: tuple[ToolCall]


class Judging:
    """A conversation whose calls are judged one after the other."""

    def __init__(self) -> None:
        repeats = Repeats(clock=time.monotonic, most_calls=BEFORE)
        sets = Sets({"devices": ["edge-1", "edge-2"]})
        self._book = Rulebook(_policy(), schemas=Schemas(), sets=sets, repeats=repeats)
        self._rules = self._book.policy.of(_TOOL).rules
        self._function = {"name": _TOOL, "description": "Run one CLI command on a router", "parameters": _SCHEMA}
        body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Go."}]}
        body["tools"] = [{"type": "function", "function": self._function}]
        self._request, self._raw = Request(Dialect.CHAT, body), json.dumps(body).encode()
        self._facts = RequestFacts(self._request.model)

    def batch(self, first: int) -> dict[str, float]:
        """CPU microseconds of each of `PARTS` per call, over the calls from that number on."""
        work = {
            "agreed": lambda one: self._judged(one, one.same, Word.MATCH),
            "differs": lambda one: self._judged(one, one.other, Word.MISMATCH),
            "schema": lambda one: self._book.schemas.findings(self._function, 0, one.calls[0].read),
            "five rules": lambda one: check(self._rules, _TOOL, 0, one.calls[0].read, self._facts, self._book.sets),
            "repeat check": self._repeated,
            "own": lambda one: one.case.own(one.calls),
            "match_calls": lambda one: match_calls(one.calls, one.same, self._book.compare),
            "diff": lambda one: match_calls(one.calls, one.other, self._book.compare),
            "decide": lambda one: self._decided(one, one.same, []),
        }
        # Each part of its own: a call keeps what was read of its text, and no part is to profit from another.
        spent = {part: _timed(do, self._ones(first)) for part, do in work.items()}
        for one in self._ones(first):
            one.case.settle(one.calls, self._decided(one, one.same, []), released=True)
        return spent

    def _ones(self, first: int) -> list[_One]:
        return [self._one(number) for number in range(first, first + BATCH)]

    def _one(self, number: int) -> _One:
        case = Case(self._book, self._request, self._raw + str(number).encode(), "scope")
        call = _call(number)
        return _One(case, (call,), (_call(number),), (_call(number, "edge-2"),))

    def _judged(self, one: _One, reference: tuple[ToolCall], word: Word) -> None:
        verdict = self._decided(one, reference, one.case.own(one.calls))
        if verdict.word is not word:
            raise AssertionError("a call was not judged as it should be")

    def _decided(self, one: _One, reference: tuple[ToolCall], own: Sequence[Finding]) -> Verdict:
        findings = judge_calls(one.calls, reference, differing=Word.MISMATCH, policy=self._book.compare)
        opinion = Opinion("reference", twin=False, findings=tuple(findings), calls=reference, way="continue")
        verdict = one.case.decide(one.calls, own, [opinion], expired=False)
        assert verdict is not None
        return verdict

    def _repeated(self, one: _One) -> list[Finding]:
        case, policy = one.case, self._book.policy
        return self._book.repeats.findings(case.scope, case.fingerprint, case.history, one.calls, policy.of)


def _timed(do: Callable[[_One], object], ones: Sequence[_One]) -> float:
    began = time.thread_time_ns()
    for one in ones:
        do(one)
    return (time.thread_time_ns() - began) / 1000 / len(ones)


def measure(count: int) -> dict[str, list[float]]:
    """CPU microseconds per call of each part, a value for each batch, `count` calls in all (after some to warm up)."""
    judging = Judging()
    for number in range(0, 10 * BATCH, BATCH):
        judging.batch(number)
    found = [judging.batch(10 * BATCH + number) for number in range(0, count, BATCH)]
    return {part: [one[part] for one in found] for part in PARTS}


def table(spent: dict[str, list[float]]) -> str:
    """The figures as Markdown."""
    told = {
        "the tool's schema": spent["schema"],
        "five rules": spent["five rules"],
        f"the repeat check, after {BEFORE} calls": spent["repeat check"],
        "`Case.own`, all three": spent["own"],
        "`match_calls`, the same call": spent["match_calls"],
        "`match_calls`, another call, with its differences": spent["diff"],
        "`decide`, with a `match_calls` of its own": spent["decide"],
        "an agreed call: own, match_calls, decide": spent["agreed"],
        "a call that differs: own, match_calls, decide": spent["differs"],
    }
    rows = [
        [name, f"{statistics.median(values):.0f}", f"{stats.percentile(values, 0.9):.0f}"]
        for name, values in told.items()
    ]
    return stats.table(["part", "CPU µs, median", "p90"], rows)


def check_limit(spent: dict[str, list[float]]) -> str:
    """The limit, with what was found; and what judging takes as a whole, with reading and deciding."""
    asked = [sum(parts) for parts in zip(*(spent[part] for part in LIMITED), strict=True)]
    found = stats.interval(asked)
    word = "met" if found.median <= LIMIT_US else "MISSED"
    lines = [f"- {word}: schema, five rules, repeat and diff: {found.text(0)} µs of at most {LIMIT_US:.0f} µs"]
    for what, part in (("an agreed call", "agreed"), ("a call that differs", "differs")):
        lines.append(f"- all of it, with reading and deciding: {what}: {stats.interval(spent[part]).text(0)} µs")
    return "\n".join(lines)
