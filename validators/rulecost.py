"""What evaluating a CEL rule can take at most: counted from its text, applied to how large a call's values are.

A step is about 1/16 µs. The weights are those of the library's version that constraints.txt names, measured on values
of ten to ten thousand elements and rounded up. What shaped them: the library copies a value whole whenever it is
selected (`args.a.b` copies `args.a`, then its `b`), and what `map` and `filter` have collected anew for every element.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MAX_NODES = 3_000
"""JSON values that are looked at; there is no rule that may cost as much as more of them do."""

Source = tuple[str, str]
"""Where an operation's operand comes from: a root and a name in it, or one of the two below."""
EVERYTHING: Final = ("*", "")
"""It may be any value that the rule looks at, or all of them."""
ELEMENT: Final = ("<", "")
"""It is the element that the innermost comprehension is at: over a whole run, all elements are one value."""
OUTER: Final = (">", "")
"""It is the element that another comprehension is at."""

SELECT, WALK, CALL_BACK = 4.0, 2.0, 12.0
"""Steps per JSON value: copying it, comparing or searching it, handing it to Python."""
COPY, READ = 1 / 400, 1 / 11
"""Steps per byte of text: copying or comparing it, searching or converting it."""
CALLED_BACK = 24
"""Steps of a call into Python."""
_COLLECT = 5


@dataclass(slots=True)
class Part:
    """A value that rules may name, as CEL takes it, and how large it is; or why it cannot be taken.

    `nodes` are the JSON values in it, `width` the children of the widest of them, `element` the values in the largest
    that is not the whole, `text` its bytes of text.
    """

    value: Any = None
    nodes: int = 0
    width: int = 0
    element: int = 1
    text: int = 0
    problem: "Problem | None" = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a rule cannot be evaluated on a call: a stable word, and plain words that hold no values."""

    kind: str
    words: str


@dataclass(slots=True)
class Cost:
    """What a rule does. Depths count the comprehensions around an operation."""

    tokens: list[int] = field(default_factory=lambda: [0])
    """By depth."""
    work: dict[tuple[int, Source], tuple[float, float]] = field(default_factory=dict)
    """By depth and operand: steps per JSON value and steps per byte of text."""
    loops: int = 0
    copies: int = 0
    growth: int = 0
    """Operations that may make a value larger than those given."""
    width: int = 1
    """Elements of the widest list that the rule itself writes out."""
    plain: bool = True
    """Whether every comprehension runs over something given, and over nothing that the rule has put together."""
    closed: bool = True
    """Whether the body of each looks at its own element only: all its iterations share the value among them."""

    def count(self, depth: int, tokens: int = 1) -> None:
        """Adds tokens (an operation has one or two) at a depth."""
        self.tokens += [0] * (depth + 1 - len(self.tokens))
        self.tokens[depth] += tokens

    def add(self, depth: int, source: Source, per_node: float, per_byte: float) -> None:
        """Adds an operation on an operand."""
        node, byte = self.work.get((depth, source), (0.0, 0.0))
        self.work[depth, source] = (node + per_node, byte + per_byte)

    def steps(self, parts: Mapping[Source, Part], total: Part) -> float:
        """An upper bound for one evaluation.

        `parts` are the sizes of the operands that can be told apart, `total` that of all that the rule looks at.
        """
        growth = (1 + self.growth) ** (1 if self.plain else max(1, self.loops)) if self.growth else 1
        shared = self.plain and self.closed
        width = max(total.width * (1 if self.plain else growth), self.width)
        nodes, text = total.nodes * growth, total.text * growth
        sizes = {EVERYTHING: nodes, ELEMENT: nodes, OUTER: total.element * growth if self.plain else nodes}
        steps = float(self.tokens[0])
        for depth in range(1, len(self.tokens)):
            steps += self.tokens[depth] * (nodes if shared else width**depth)
        for (depth, source), (per_node, per_byte) in self.work.items():
            if source in sizes:
                once = per_node * sizes[source] + per_byte * text
            else:
                part = parts.get(source)
                once = 0.0 if part is None else growth * (per_node * part.nodes + per_byte * part.text)
            if depth and not shared:
                once *= width ** (depth - (source is ELEMENT))
            steps += once
        if self.copies:
            steps += self.copies * _COLLECT * nodes * (width if shared else width ** (len(self.tokens) - 1))
        return steps
