"""What a CEL rule's text tells before it ever runs: the names it uses, and the most it can cost.

The library that evaluates CEL has no type checker and hands out no syntax tree, and an evaluation that runs cannot be
stopped. Both gaps are closed here, from the tokens of a text that the library itself has parsed: names, brackets and
literals, never values. Where a reading is in doubt, the rule is refused or its cost is counted too high.
"""

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import cel
import re2  # type: ignore[import-untyped]

from validators.rulecost import (
    CALL_BACK,
    CALLED_BACK,
    COPY,
    ELEMENT,
    EVERYTHING,
    OUTER,
    READ,
    SELECT,
    WALK,
    Cost,
    Source,
)

VARIABLES = ("args", "tool", "request")
OWN = {"matches": "_matches", "size": "_size"}
"""Functions of CEL that are not the library's own, and what stands for them in the text that it compiles: it has
patterns of another kind, compiled anew for every value, and counts bytes where CEL counts a text's characters."""
NOT_BOOLEAN = "it gives something other than true or false"

_MACROS = {"all": (1,), "exists": (1,), "exists_one": (1,), "existsOne": (1,), "filter": (1,), "map": (1, 2)}
"""Comprehensions and how many commas they have."""
_COPYING = {"filter", "map"}  # the library copies what it has collected, for every element anew
_LIGHT = {"startsWith", "endsWith"}
_SCALAR = {"int", "uint", "double", "dyn", "type", "duration", "timestamp"} | {
    f"get{part}" for part in ("Date", "DayOfMonth", "DayOfWeek", "DayOfYear", "FullYear", "Hours", "Milliseconds")
} | {f"get{part}" for part in ("Minutes", "Month", "Seconds")}  # fmt: skip
_FUNCTIONS = {"size", "contains", "matches", "in_set", "string", "bytes", *_LIGHT, *_SCALAR}
_BOOLEAN = {"has", "in_set", "matches", "contains", "all", "exists", "exists_one", "existsOne", *_LIGHT, "dyn"}
_ARITHMETIC = {"+", "-", "*", "/", "%"}
_CALLED_BACK = {"in_set", *OWN}

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<text>(?:[bB]?[rR]|[rR][bB])(?:\"\"\".*?\"\"\"|'''.*?'''|"[^"\n]*"|'[^'\n]*')
      |[bB]?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<name>[A-Za-z_]\w*)
    |(?P<number>0[xX][0-9a-fA-F]+[uU]?|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?[uU]?)
    |(?P<mark>&&|\|\||[<>=!]=|.)""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_MAX_PROGRAM = 4_000

_RE2 = re2.Options()
_RE2.log_errors = False
_RE2.never_capture = True


class Fault(ValueError):  # noqa: N818  (read as a sentence where it is raised)
    """What is not accepted of a rule, and where: an offset into its text, or None for the whole."""

    def __init__(self, at: int | None, reason: str) -> None:
        super().__init__(reason)
        self.at, self.reason = at, reason


@dataclass(frozen=True, slots=True)
class Scan:
    """What a rule's text says of itself. `keys` are the arguments that it names; `whole`: it may look at any."""

    source: str
    keys: frozenset[str]
    whole: bool
    tool: bool
    request: bool
    cost: Cost


@dataclass(slots=True)
class _Token:
    kind: str
    text: str
    at: int


@dataclass(slots=True)
class _Frame:
    """An open bracket: what is called with it, and what has been seen in it."""

    mark: str
    start: int
    callee: str = ""
    method: bool = False
    subscript: bool = False
    bound: str = ""
    commas: int = 0
    references: int = 0


_END = _Token("end", "", -1)


def pattern(text: str) -> Any:
    r"""A compiled RE2 pattern: no backtracking, `\w` and `\d` are ASCII, as CEL specifies.

    Raises:
        Fault: it is none, or its counted repeats make it too large.
    """
    try:
        found = re2.compile(text, _RE2)
    except (re2.error, UnicodeEncodeError):
        raise Fault(None, "RE2 does not take this pattern (it has no look-around and no back-references)") from None
    if found.programsize > _MAX_PROGRAM:
        raise Fault(None, "the counted repeats of this regular expression make it too large")
    return found


def scan(source: str, program: cel.Program, sets: Collection[str]) -> Scan:
    """Reads a rule that the library has parsed; `sets` are the names that `in_set` may be given.

    Raises:
        Fault: an unknown name, or a function that is not called as it must be.
    """
    reader = _Reader(source, sets)
    reader.read()
    words = {name for name in program.functions() if name.isidentifier()} | set(program.variables())
    if not words <= reader.words:
        raise Fault(None, "this cannot be read with certainty; write it more plainly")
    return reader.result()


@dataclass(slots=True)
class _Reader:
    source: str
    sets: Collection[str]
    tokens: list[_Token] = field(default_factory=list)
    stack: list[_Frame] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    whole: bool = False
    cost: Cost = field(default_factory=Cost)
    outside: set[str] = field(default_factory=set)
    """Operators outside of all brackets."""
    last: str = ""
    """What was called with the last bracket outside of all others."""

    def read(self) -> None:
        self.tokens = [
            _Token(str(found.lastgroup), found.group(), found.start())
            for found in _TOKEN.finditer(self.source)
            if found.lastgroup != "space"
        ]
        for i, token in enumerate(self.tokens):
            self.cost.count(self._depth())
            if token.kind == "name":
                self._name(i, token)
            elif token.kind == "mark":
                self._mark(i, token)
        arithmetic = self.outside & _ARITHMETIC and self.outside <= _ARITHMETIC | {"."}
        called = self.outside <= {"."} and self.tokens[-1].text == ")" and self.last
        if arithmetic or (called and self.last not in _BOOLEAN):
            raise Fault(None, NOT_BOOLEAN)

    def result(self) -> Scan:
        text = self.source
        for i, token in reversed(list(enumerate(self.tokens))):
            if token.text in OWN and self._at(i + 1).text == "(":
                text = text[: token.at] + OWN[token.text] + text[token.at + len(token.text) :]
        return Scan(text, frozenset(self.keys), self.whole, "tool" in self.used, "request" in self.used, self.cost)

    def _at(self, i: int) -> _Token:
        return self.tokens[i] if 0 <= i < len(self.tokens) else _END

    # Names

    def _name(self, i: int, token: _Token) -> None:
        self.words.add(token.text)
        before, after = self._at(i - 1), self._at(i + 1)
        if before.text == ".":
            if not _ends_value(self._at(i - 2)):
                raise Fault(before.at, "a name does not begin with a dot here")
            if after.text != "(":
                self._add(self._head(i), SELECT, COPY)
        elif token.text == "in":
            self._operator(i, token)
        elif after.text != "(" and token.text not in {"true", "false", "null"}:
            self._variable(i, token)

    def _variable(self, i: int, token: _Token) -> None:
        name = token.text
        bound = [frame.bound for frame in self.stack if frame.bound]
        if name not in VARIABLES and name not in bound:
            raise Fault(token.at, f"unknown variable {name!r}{_near(name, [*VARIABLES, *bound])}")
        for frame in self.stack:
            frame.references += 1
        self.cost.closed &= not bound or name == bound[-1]
        self.used.add(name)
        if name == "args":
            key = self._key_named(i)
            self.whole |= key is None
            if key is not None:
                self.keys.add(key)
        else:
            self._add(i, SELECT, COPY)

    def _key_named(self, i: int) -> str | None:
        """The one argument that `args` at `i` is asked for, where that can be told."""
        one, two, three = self._at(i + 1), self._at(i + 2), self._at(i + 3)
        if one.text == "." and two.kind == "name":
            return None if three.text == "(" else two.text
        if one.text == "[":
            return _literal(two) if two.kind == "text" and three.text == "]" else None
        if self._at(i - 1).text == "in" and self._at(i - 3).text in {"", "(", "&&", "||", ",", "?", ":"}:
            return _literal(self._at(i - 2))
        return None

    # What operations cost

    def _depth(self) -> int:
        return sum(bool(frame.bound) for frame in self.stack)

    def _add(self, head: int, per_node: float, per_byte: float) -> None:
        self.cost.add(self._depth(), self._source(head), per_node, per_byte)

    def _source(self, head: int) -> Source:
        """Where the value comes from whose path begins at `head`."""
        name = self._at(head).text
        innermost = next((frame.bound for frame in reversed(self.stack) if frame.bound), None)
        if self._at(head).kind != "name":
            return EVERYTHING
        if name == innermost:
            return ELEMENT
        if name == "args":
            key = self._key_named(head)
            return EVERYTHING if key is None else ("args", key)
        if name in VARIABLES:
            return ("", name)
        return OUTER if any(frame.bound == name for frame in self.stack) else EVERYTHING

    def _head(self, i: int) -> int:
        """Where a plain path like `x.items.first` begins that ends at `i`; -1 for anything else."""
        while self._at(i).kind == "name" and self._at(i - 1).text == ".":
            i -= 2
        return i if self._at(i).kind == "name" and self._at(i).text != "in" else -1

    def _alone(self, i: int) -> int:
        """`i`, where a plain path begins there and is all that stands before the next comma or bracket; else -1."""
        end = i
        while self._at(end).kind == "name" and self._at(end + 1).text == ".":
            end += 2
        return i if self._at(end).kind == "name" and self._at(end + 1).text in {",", ")"} else -1

    # Marks

    def _mark(self, i: int, token: _Token) -> None:
        if token.text in {"(", "[", "{"}:
            self._open(i, token)
        elif token.text in {")", "]", "}"}:
            self._close(i, self.stack.pop())
        elif token.text == ",":
            self.stack[-1].commas += 1
        else:
            self._operator(i, token)

    def _operator(self, i: int, token: _Token) -> None:
        if not self.stack:
            self.outside.add(token.text)
        before, after = self._at(i - 1), self._at(i + 1)
        match token.text:
            case "+" if "number" not in {before.kind, after.kind}:
                self.cost.growth += 1
                for side, head in ((before, self._head(i - 1)), (after, i + 1)):
                    if side.kind != "text":
                        self._add(head, WALK, READ)
            case "==" | "!=" if not (_is_scalar(before) or _is_scalar(after)):
                left, right = self._head(i - 1), i + 1
                # What is compared is as large as the smaller side: the one of which more is known will do.
                self._add(right if self._source(right) is ELEMENT or left < 0 else left, WALK, COPY)
            case "in" if after.text != "[":
                self._add(i + 1, WALK, COPY)

    def _open(self, i: int, token: _Token) -> None:
        before = self._at(i - 1)
        frame = _Frame(token.text, i + 1)
        if token.text == "(" and before.kind == "name" and before.text != "in":
            frame.callee, frame.method = before.text, self._at(i - 2).text == "."
            self._call(i, frame, before)
        elif token.text == "[" and _ends_value(before):
            frame.subscript = True
            self._add(self._head(i - 1), SELECT, COPY)
        self.stack.append(frame)

    def _call(self, i: int, frame: _Frame, name: _Token) -> None:
        callee = frame.callee
        operand = self._head(i - 3) if frame.method else self._alone(i + 1)
        if callee in _MACROS and frame.method:
            frame.bound = self._at(i + 1).text
            if frame.bound in VARIABLES:
                raise Fault(self._at(i + 1).at, f"{frame.bound!r} has a meaning already; name the element otherwise")
            self.cost.loops += 1
            self.cost.copies += callee in _COPYING
            self.cost.plain &= operand >= 0
            self._add(operand, SELECT, COPY)
        elif callee in _FUNCTIONS:
            called_back = callee in _CALLED_BACK
            self.cost.count(self._depth(), CALLED_BACK if called_back else 0)
            self._add(operand, CALL_BACK if called_back else WALK, COPY if callee in _LIGHT else READ)
        elif callee in _MACROS:
            raise Fault(name.at, f"{callee!r} belongs behind a list or a map and a dot")
        elif callee != "has" or frame.method:
            raise Fault(name.at, f"unknown function {callee!r}{_near(callee, [*_FUNCTIONS, *_MACROS, 'has'])}")

    def _close(self, i: int, frame: _Frame) -> None:
        name = self._at(frame.start - 2)
        if not self.stack:
            self.last = frame.callee
        if frame.bound and frame.commas not in _MACROS[frame.callee]:
            raise Fault(name.at, f"{frame.callee!r} takes a name and an expression")
        if frame.callee in _WHAT:
            self._look_up(i, frame, name)
        if not frame.callee and not frame.subscript and frame.mark != "(":
            self.cost.width = max(self.cost.width, frame.commas + 1)
            self.cost.growth += max(0, frame.references - 1)

    def _look_up(self, i: int, frame: _Frame, name: _Token) -> None:
        """`in_set(value, "set")` and `matches(value, "pattern")`, or either as a method of the value."""
        given = 0 if i == frame.start else frame.commas + 1
        if given + frame.method != 2:
            raise Fault(name.at, f"{frame.callee!r} takes a value and a {_WHAT[frame.callee]}")
        last = self._at(i - 1)
        value = _literal(last) if last.kind == "text" and self._at(i - 2).text in {",", "("} else None
        if frame.callee == "matches":
            if value is None:
                raise Fault(last.at, "a pattern must be written out: one that is put together could cost anything")
            try:
                pattern(value)
            except Fault as fault:
                raise Fault(last.at, fault.reason) from None
        elif value is not None and value not in self.sets:
            raise Fault(last.at, f"there is no set {value!r}{_near(value, list(self.sets))}")


_WHAT = {"in_set": "set's name", "matches": "pattern"}


def _ends_value(token: _Token) -> bool:
    return (
        token.text in {")", "]", "}"}
        or token.kind in {"text", "number"}
        or (token.kind == "name" and token.text != "in")
    )


def _is_scalar(token: _Token) -> bool:
    return token.kind in {"text", "number"} or token.text in {"true", "false", "null", "-"}


def _literal(token: _Token) -> str | None:
    """A text literal's value; None for bytes, and where there is none."""
    value = cel.evaluate(token.text) if token.kind == "text" else None
    return value if isinstance(value, str) else None


def _near(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if found:
        return f"; did you mean {found[0]!r}?"
    return f"; known are {', '.join(sorted(known))}" if known and len(known) <= len(_MACROS) else ""


def lines(source: str, at: int) -> tuple[int, int]:
    """Line and column of an offset, both from 1."""
    before = source[:at]
    return before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1
