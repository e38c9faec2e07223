"""What checking a value with a schema can cost, found out before it is checked.

A schema comes from outside and the arguments from a model, so neither may decide how long a check takes.
jsonschema-rs compiles in linear time and remembers what it found below a recursive reference. But references that fan
out (`a` names `b` twice, `b` names `c` twice, ...) double its work with every step, and so does all recursion when it
lists errors. Hence this graph: it is walked beside a value, counting as the library would, until a budget is spent.
"""

from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

MAX_STEPS: Final = 64
"""Subschemas applied to one and the same value, each through the one before it."""

# Measured: each level of unevaluated* inside another makes the library look three to six times at what is below it.
_UNEVALUATED: Final = 6


class UnusableSchemaError(ValueError):
    """A schema that arguments cannot be checked with; the message is one word, one of a fixed set."""


@dataclass(slots=True)
class Node:
    """One subschema: what it costs by itself, and which others it applies (by index) to what.

    `here` and `choices` (whose failures the library lists beside one another) apply to the same value; `named`,
    `others` (but the named), `members` (all) and `keys` to an object's; `prefix` and `items` to an array's.
    `cost` counts microseconds per value, `character` and `key_character` per character of a string or of the keys.
    """

    cost: int = 1
    character: int = 0
    key_character: int = 0
    unevaluated: bool = False
    unique: bool = False
    here: list[int] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    named: dict[str, int] = field(default_factory=dict)
    others: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    prefix: list[int] = field(default_factory=list)
    items: list[int] = field(default_factory=list)

    @property
    def same(self) -> list[int]:
        """The nodes that apply to the same value."""
        return [*self.here, *self.choices]

    @property
    def below(self) -> list[int]:
        """The nodes that apply to what is inside it."""
        return [*self.named.values(), *self.others, *self.members, *self.keys, *self.prefix, *self.items]


class Cost:
    """The cost of checking with a schema, given its nodes, the first being the schema itself.

    `work` bounds the microseconds that a value of `extent` 1 can cost; None where the schema is recursive.

    Raises:
        UnusableSchemaError: `endless_reference` (it applies itself to the same value) or `too_deep`.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._leaf = [not (node.same or node.below) for node in nodes]
        self._check_steps()
        self.work = self._total()

    def affordable(self, value: Any, budget: int, *, errors: bool = False) -> bool:
        """Whether checking `value` is certain to end within about `budget` microseconds.

        With `errors`, whether listing all its errors is: the library keeps every branch of every choice, again at
        every level of choices. Finding out takes no longer than the budget.
        """
        nodes = self._nodes
        stack = [(nodes[0], value, 1)]
        while stack:
            node, value, weight = stack.pop()
            budget -= weight * (node.cost + _own_size(node, value))
            if budget < 0:
                return False
            inner = weight * _UNEVALUATED if node.unevaluated else weight
            stack += [(nodes[i], value, inner) for i in node.here]
            stack += [(nodes[i], value, inner + errors) for i in node.choices]
            for i, values in _applied(node, value):
                if self._leaf[i] and not nodes[i].character:
                    budget -= weight * nodes[i].cost * len(values)
                elif budget >= len(values):
                    stack += [(nodes[i], inside, weight) for inside in values]
                else:
                    return False
        return budget >= 0

    def _check_steps(self) -> None:
        height = [0] * len(self._nodes)
        try:
            for i in TopologicalSorter({i: node.same for i, node in enumerate(self._nodes)}).static_order():
                height[i] = 1 + max((height[j] for j in self._nodes[i].same), default=0)
        except CycleError:
            raise UnusableSchemaError("endless_reference") from None
        if max(height) > MAX_STEPS:
            raise UnusableSchemaError("too_deep")

    def _total(self) -> int | None:
        """The cost of the first node and everything that it applies, every reference followed."""
        work = [0] * len(self._nodes)
        graph = {i: [*node.same, *node.below] for i, node in enumerate(self._nodes)}
        try:
            for i in TopologicalSorter(graph).static_order():
                node = self._nodes[i]
                same = sum(work[j] for j in node.same) * (_UNEVALUATED if node.unevaluated else 1)
                own = node.cost + node.character + node.key_character + node.unique
                work[i] = own + same + sum(work[j] for j in node.below)
        except CycleError:
            return None
        return work[0]


def _own_size(node: Node, value: Any) -> int:
    if isinstance(value, str):
        return node.character * len(value)
    if isinstance(value, dict) and node.key_character:
        return node.key_character * sum(map(len, value))
    if isinstance(value, list) and node.unique:
        return extent(value)
    return 0


def _applied(node: Node, value: Any) -> list[tuple[int, list[Any]]]:
    """Which nodes apply to which values inside `value`."""
    applied: list[tuple[int, list[Any]]] = []
    if isinstance(value, dict):
        applied += [(node.named[name], [inside]) for name, inside in value.items() if name in node.named]
        for i in node.others:
            applied.append((i, [inside for name, inside in value.items() if name not in node.named]))
        for i in node.members:
            applied.append((i, list(value.values())))
        for i in node.keys:
            applied.append((i, list(value)))
    elif isinstance(value, list):
        applied += [(i, [inside]) for i, inside in zip(node.prefix, value, strict=False)]
        applied += [(i, value) for i in node.items]
    return applied


def extent(value: Any) -> int:
    """How many JSON values and characters of strings and keys there are in `value`."""
    count, layer = 0, [value]
    while layer:
        below: list[Any] = []
        for inside in layer:
            count += 1
            if isinstance(inside, str):
                count += len(inside)
            elif isinstance(inside, dict):
                count += sum(map(len, inside))
                below += inside.values()
            elif isinstance(inside, list):
                below += inside
        layer = below
    return count
