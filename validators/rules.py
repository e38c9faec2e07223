r"""Business rules: CEL expressions over a call's arguments that must be true.

A rule sees `args` (the call's arguments, a map), `tool` (its name) and `request` (a map of `model`, `user` and
`headers`), and `in_set(value, "name")` over named sets of texts. What cannot be evaluated on a call counts as violated
and says so: a rule that only sometimes speaks protects nobody.

**Numbers** count by what they are worth, not by how they are written: a whole one is an int (`100`, `100.0` and `1e2`
alike), any other a double; CEL compares the two kinds with each other, and arithmetic over both needs `double(…)`.
What 64 bits do not hold is not rounded: a rule that looks at such a number (beyond 64 bits, or a fraction of more
digits than a double tells apart) cannot be evaluated. Between an int and a double the library compares doubles: beyond
2**53, write a bound as an int.

**Cost.** An evaluation cannot be interrupted, so it is not begun before what it can take at most is known to be small:
`rulecost` counts operations and nested comprehensions when a rule is compiled, and only the arguments that a rule names
are measured and handed over. One call has a budget of `BUDGET` steps (some 6 ms) over all its rules; beyond it, a rule
is `too_large`. Patterns are RE2: linear, compiled once.

**Why this library.** Tried in November 2026 on Python 3.11, two cores: `common-expression-language` 0.10.0 (Rust
bindings of cel-rust), `cel-python` 0.5.0 (pure), `cel-expr-python` 0.1.3 (Google's C++). All are Apache-2.0.

- *cel-python*: 330 µs for a usual rule (1.7 ms for five); refuses `100 <= 100.5`, for it compares no int with a
  double; its compiled form failed on `in_set(…)`. Errors have line and column. Any platform; five packages.
- *cel-expr-python* has what the others lack, a type checker with columns and a limit of 10,000 iterations, and takes 5
  to 10 µs for a rule. But it cuts text at a NUL (`"conf\0; rm"` passes as `conf`), loses 134 bytes with every call into
  a Python function, ends the process on deep values, converts all arguments again for every rule (38 ms for 100,000
  numbers), and counts `args.a.all(x, x in args.a)` over 9,000 numbers as 9,000 iterations (2.4 s). Third release, June
  2026; 16 MB; wheels for 3.11 to 3.13.
- *common-expression-language*: 0.3 to 2 µs for a usual rule, once some 10 µs to convert what a call's rules name; exact
  about text and memory, no crash in 20,000 random rules on hostile values; syntax errors with line and column. Five
  releases since May 2026, mostly one author; 1.8 MB; wheels for 3.11 to 3.13 on Linux (x86-64, arm64) and macOS. What
  it lacks is made up for in `rulescan` and `rulecost`: no type checker, no limit, `map` and `filter` are quadratic,
  `size` counts a text's bytes, and `matches` compiles its pattern anew each time, with Unicode classes (81 ms for
  `^[\w.-]{1,64}$`): google-re2 stands in for it, which is the syntax that CEL specifies.
"""

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from cel import Context, Program
from cel import compile as compile_cel

from validators.calls import Arguments
from validators.rulecost import MAX_NODES, Part, Problem, Source
from validators.rulescan import NOT_BOOLEAN, OWN, Fault, Scan, lines, pattern, scan
from validators.rulevalues import TOO_LARGE, part_of
from validators.verdict import Finding, Word

BUDGET = 100_000
"""Steps that one call's rules may take together; see `validators.rulecost`."""
MATCH_BUDGET = 400_000
"""Bytes of text times instructions of a pattern, for all matches of one rule on one call."""
MAX_SOURCE = 4_096
_MEASURE, _CONVERT = 12, 18  # steps that one value takes, here and in the library
_PATTERNS = 4_096
_SYNTAX = re.compile(r"<input>:(\d+):(\d+): (.*)")
_REASONS = (
    (re.compile(r".*<EOF>"), "the expression ends too early"),
    (re.compile(r"(?:mismatched|extraneous) input ('.*?') expecting"), "{} was not expected here"),
    (re.compile(r"no viable alternative at input ('.*')"), "{} was not expected here"),
    (re.compile(r"token recognition error at: ('.*')"), "{} is no part of CEL"),
    (re.compile(r".*Recursion limit"), "nested too deeply"),
    (re.compile(r"Incomplete"), "the expression is not complete"),
)


class RuleError(ValueError):
    """A rule that is not accepted. `column` and `line` count from 1; None: the whole of it is meant."""

    def __init__(self, rule: str, column: int | None, reason: str, line: int = 1) -> None:
        where = f"{f', line {line}' if line > 1 else ''}{f', column {column}' if column is not None else ''}"
        super().__init__(f"rule {rule!r}{where}: {reason}")
        self.rule, self.column, self.reason, self.line = rule, column, reason, line


@dataclass(frozen=True, slots=True)
class Rule:
    """A compiled rule, from `compile_rule`. `message` tells a client what is not allowed."""

    id: str
    cel: str
    message: str
    scan: Scan = field(repr=False, compare=False)
    program: Program = field(repr=False, compare=False)

    def __hash__(self) -> int:
        """Of its name alone: rules are looked up, several at a time, for every call."""
        return hash(self.id)


class Sets:
    """Named sets of texts, replaced as a whole while others read: whoever took a `snapshot` keeps it."""

    def __init__(self, initial: Mapping[str, Collection[str]] | None = None) -> None:
        self._sets = {name: frozenset(values) for name, values in (initial or {}).items()}
        self._writing = threading.Lock()

    def contains(self, name: str, value: str) -> bool:
        """Whether the set holds the text now; KeyError for a set that is not there."""
        return value in self._sets[name]

    def replace(self, name: str, values: Collection[str]) -> None:
        """Gives a set new values, or makes it."""
        fresh = frozenset(values)
        with self._writing:
            self._sets = {**self._sets, name: fresh}

    def snapshot(self) -> Mapping[str, frozenset[str]]:
        """All sets as they are now; no later change shows in it."""
        return self._sets


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What rules may know of the request: `headers` are those that configuration names, by lower-case name."""

    model: str
    user: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def compile_rule(id: str, cel: str, message: str = "", *, sets: Collection[str] = ()) -> Rule:  # noqa: A002
    """Reads a rule; `sets` are the sets that there are.

    Raises:
        RuleError: a syntax error, an unknown variable, function or set, a pattern that is none, or an expression that
            gives something other than true or false.
    """
    return _compile(id, cel, message, sets)


def _compile(identity: str, source: str, message: str, sets: Collection[str]) -> Rule:
    if len(source) > MAX_SOURCE:
        raise RuleError(identity, None, f"longer than {MAX_SOURCE} characters")
    try:
        found = scan(source, compile_cel(source), sets)
        program = compile_cel(found.source)
    except Fault as fault:
        line, column = (1, None) if fault.at is None else lines(source, fault.at)
        raise RuleError(identity, column, fault.reason, line) from None
    except ValueError as error:
        raise _syntax_error(identity, str(error)) from None
    _check_kind(identity, found, program)
    return Rule(identity, source, message, found, program)


def _syntax_error(identity: str, text: str) -> RuleError:
    found = _SYNTAX.search(text)
    if found is None:
        return RuleError(identity, None, "this is no CEL expression")
    text = found.group(3).removeprefix("Syntax error: ")
    for known, words in _REASONS:
        reason = known.match(text)
        if reason is not None:
            text = words.format(*reason.groups())
            break
    return RuleError(identity, int(found.group(2)), text, int(found.group(1)))


def _check_kind(identity: str, found: Scan, program: Program) -> None:
    """Refuses what gives no boolean on an empty call; most rules cannot be evaluated on one, and pass."""
    request: dict[str, Any] = {"model": "", "user": None, "headers": {}}
    evaluation = _Evaluation({"args": {}, "tool": "", "request": request}, {})
    try:
        value = program.execute(evaluation.context)
    except _LIBRARY:
        if not (found.whole or found.keys or found.tool or found.request):
            raise RuleError(identity, None, "it can never be evaluated") from None
        return
    if not isinstance(value, bool):
        raise RuleError(identity, None, NOT_BOOLEAN)


_LIBRARY = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""What the library raises, each with values in its text."""


def check(
    rules: Sequence[Rule], tool: str, call: int, arguments: Arguments, request: RequestFacts, sets: Sets
) -> list[Finding]:
    """What the rules find in a call, in their order: nothing where all are true. `call` is the call's index."""
    findings = []
    for rule, outcome in zip(rules, _outcomes(rules, tool, arguments, request, sets), strict=True):
        if isinstance(outcome, Problem):
            detail = f"rule {rule.id!r} could not be evaluated ({outcome.kind}): {outcome.words}"
            findings.append(Finding(Word.VIOLATION, tool, call, "rule_error", rule=rule.id, detail=detail))
        elif not outcome:
            detail = rule.message or f"rule {rule.id!r} does not allow this call"
            findings.append(Finding(Word.VIOLATION, tool, call, "rule", rule=rule.id, detail=detail))
    return findings


def holds(rule: Rule, tool: str, arguments: Arguments, request: RequestFacts, sets: Sets) -> bool | None:
    """Whether a rule is true of a call; None where it cannot be evaluated."""
    outcome = _outcomes([rule], tool, arguments, request, sets)[0]
    return outcome if isinstance(outcome, bool) else None


def _outcomes(
    rules: Sequence[Rule], tool: str, arguments: Arguments, request: RequestFacts, sets: Sets
) -> list[bool | Problem]:
    """What each rule says of one call, all under one state of the sets and one budget."""
    if arguments.problem is not None or not isinstance(arguments.value, dict):
        return [_UNREADABLE] * len(rules)
    values = _Values(tool, arguments.value, request)
    small = values.admit_small(_needs(tuple(rules)))
    refused = [None if small else values.admit(rule.scan) for rule in rules]
    evaluation = _Evaluation(values.variables, sets.snapshot())
    return [no or evaluation.outcome(rule) for rule, no in zip(rules, refused, strict=True)]


@dataclass(frozen=True, slots=True)
class _Needs:
    """What several rules look at together, and whether all of them can be evaluated on any small call."""

    keys: frozenset[str]
    tool: bool
    request: bool
    affordable: bool


@lru_cache(1024)
def _needs(rules: tuple[Rule, ...]) -> _Needs:
    scans = [rule.scan for rule in rules]
    steps = sum(scan_.cost.steps(_EverySmall(), _SMALL) for scan_ in scans) + (_MEASURE + _CONVERT) * _SMALL.nodes
    return _Needs(
        frozenset().union(*(scan_.keys for scan_ in scans)),
        tool=any(scan_.tool for scan_ in scans),
        request=any(scan_.request for scan_ in scans),
        affordable=steps <= BUDGET and not any(scan_.whole for scan_ in scans),
    )


_SMALL = Part(nodes=64, width=64, element=64, text=4_096)


class _EverySmall(dict[Source, Part]):
    """All operands, each as large as a small call's can be."""

    def get(self, _source: Source, _default: Part | None = None) -> Part:  # type: ignore[override]
        return _SMALL


class _Values:
    """What one call's rules look at, converted once for all of them and charged to one budget."""

    def __init__(self, tool: str, arguments: Mapping[str, Any], request: RequestFacts) -> None:
        self._tool, self._arguments, self._request = tool, arguments, request
        self._left: float = BUDGET
        self._parts: dict[Source, Part] = {}
        self._args: dict[str, Any] = {}
        self.variables: dict[str, Any] = {"args": self._args}
        """What the library gets: as much as the rules that were let in look at."""

    def admit_small(self, needs: _Needs) -> bool:
        """Takes what all rules look at, where that is so little that they cannot cost too much, whatever it is."""
        if not needs.affordable:
            return False
        nodes = text = 1
        taken: list[tuple[dict[str, Any], str, Part]] = []
        for root, into, names in (
            ("args", self._args, needs.keys & self._arguments.keys()),
            ("", self.variables, [name for name, used in (("tool", needs.tool), ("request", needs.request)) if used]),
        ):
            for name in names:
                part = self._part(root, name)
                nodes += part.nodes
                text += part.text
                if part.problem is not None or nodes > _SMALL.nodes or text > _SMALL.text:
                    return False
                taken.append((into, name, part))
        for into, name, part in taken:
            into[name] = part.value
        return True

    def admit(self, rule: Scan) -> Problem | None:
        """Takes what a rule looks at and charges its cost; says why it cannot be evaluated, where it cannot."""
        looked = self._looked_at(rule)
        if isinstance(looked, Problem):
            return looked
        total, steps = Part(nodes=1, width=len(looked)), 0.0
        for into, name, part in looked:
            total.nodes += part.nodes
            total.text += part.text
            total.width = max(total.width, part.width)
            total.element = max(total.element, part.nodes if rule.whole else part.element)
            if name not in into:
                steps += _CONVERT * part.nodes
        steps += rule.cost.steps(self._parts, total)
        if steps > self._left:
            return TOO_LARGE
        self._left -= steps
        for into, name, part in looked:
            into[name] = part.value
        return None

    def _looked_at(self, rule: Scan) -> list[tuple[dict[str, Any], str, Part]] | Problem:
        """The values that a rule names, each with the map that it belongs into."""
        arguments, args = self._arguments, self._args
        if rule.whole and len(arguments) > MAX_NODES:
            return TOO_LARGE
        names = arguments if rule.whole else rule.keys
        looked = [(args, name, self._part("args", name)) for name in names if name in arguments]
        if rule.whole:
            looked.append(({}, "", self._part("names", "")))
        for name, used in (("tool", rule.tool), ("request", rule.request)):
            if used:
                looked.append((self.variables, name, self._part("", name)))
        return next((part.problem for _, _, part in looked if part.problem is not None), looked)

    def _part(self, root: str, name: str) -> Part:
        part = self._parts.get((root, name))
        if part is None:
            if self._left <= 0:
                return _UNMEASURED
            part = self._parts[root, name] = part_of(self._value(root, name))
            self._left -= _MEASURE * part.nodes
        return part

    def _value(self, root: str, name: str) -> Any:
        if root == "args":
            return self._arguments[name]
        if root == "names":
            return list(self._arguments)
        if name == "tool":
            return self._tool
        request = self._request
        return {"model": request.model, "user": request.user, "headers": dict(request.headers)}


_UNMEASURED = Part(problem=TOO_LARGE)


class _Evaluation:
    """Rules on one call's values. What the library calls back never raises: the library would log the exception."""

    def __init__(self, variables: dict[str, Any], sets: Mapping[str, frozenset[str]]) -> None:
        self._sets = sets
        self._begin()
        functions: dict[str, Callable[..., Any]] = {
            "in_set": self._in_set,
            OWN["matches"]: self._matches,
            OWN["size"]: self._size,
        }
        self.context = Context(variables, functions)

    def _begin(self) -> None:
        self._problem: Problem | None = None
        self._left = MATCH_BUDGET

    def outcome(self, rule: Rule) -> bool | Problem:
        """What a rule says. Where a function had no answer there is none, even if CEL could do without it."""
        self._begin()
        try:
            value = rule.program.execute(self.context)
        except _LIBRARY as error:
            return self._problem or _problem_of(error, rule.scan)
        if self._problem is not None:
            return self._problem
        return value if isinstance(value, bool) else _NOT_BOOLEAN

    def _in_set(self, value: Any, name: Any) -> bool:
        members = self._sets.get(name) if isinstance(name, str) else None
        if members is None:
            self._problem = _UNKNOWN_SET
        elif not isinstance(value, str):
            self._problem = _NOT_TEXT
        return members is not None and isinstance(value, str) and value in members

    def _size(self, value: Any) -> int:
        if isinstance(value, str | bytes | list | dict):
            return len(value)
        self._problem = _TYPE
        return 0

    def _matches(self, value: Any, text: str) -> bool:
        if not isinstance(value, str):
            self._problem = _TYPE
            return False
        compiled = _pattern(text)
        self._left -= compiled.programsize * (len(value) if value.isascii() else len(value.encode()))
        if self._left < 0:
            self._problem = TOO_LARGE
            return False
        return compiled.search(value) is not None


_pattern = lru_cache(_PATTERNS)(pattern)


def _problem_of(error: Exception, scan_: Scan) -> Problem:
    match error:
        case KeyError() if error.args and error.args[0] in scan_.keys:  # the rule's own word, so no content
            return Problem("missing", f"the call has no {error.args[0]!r}")
        case KeyError():
            return _MISSING
        case IndexError():
            return _INDEX
        case ArithmeticError():
            return _ARITHMETIC
        case TypeError():
            return _TYPE
    return _VALUE


_UNREADABLE = Problem("arguments", "the call's arguments could not be read")
_UNKNOWN_SET = Problem("set", "it names a set that there is not")
_NOT_TEXT = Problem("type", "only a text can be looked up in a set; string(…) makes one of a number")
_NOT_BOOLEAN = Problem("type", NOT_BOOLEAN)
_MISSING = Problem("missing", "a value that it needs is missing")
_INDEX = Problem("missing", "a list is shorter than it needs")
_TYPE = Problem("type", "a value has another type than it needs")
_ARITHMETIC = Problem("arithmetic", "a number overflows or is divided by zero")
_VALUE = Problem("value", "a function is given a value that it does not take")
