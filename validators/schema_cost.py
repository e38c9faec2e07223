"""What checking a value with a schema can cost, found out before it is checked.

A schema comes from outside and the arguments from a model, so neither may decide how long a check takes.
jsonschema-rs compiles in linear time, and remembers what it found where a reference leads back into itself. But
references that fan out (`a` names `b` twice, `b` names `c` twice, ...) double its work with every step, and so does all
recursion when it lists errors. Hence this graph: it is walked beside a value, counting as the library would, until a
budget is spent.
"""

import math
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NamedTuple

MAX_STEPS: Final = 64
"""Subschemas applied to one and the same value, each through the one before it."""

# Measured: each level of unevaluated* inside another makes the library look three to six times at what is below it.
_UNEVALUATED: Final = 6
# Beyond so many orders of compiling, what the library remembers is not relied upon; see `_recursion`.
_MOST_ORDERS: Final = 1_000
_MOST_REFERENCES: Final = 500


class UnusableSchemaError(ValueError):
    """A schema that arguments cannot be checked with; the message is one word, one of a fixed set."""


@dataclass(slots=True)
class Node:
    """One subschema: what it costs by itself, and which others it applies (by index) to what.

    `here` and `choices` (whose failures the library lists beside one another) apply to the same value; `named`,
    `others` (but the named), `members` (all) and `keys` to an object's; `prefix` and `items` to an array's.
    `reference` is the node that its `$ref` names, for the same value; `body` is the node whose schema it stands in and
    that references can name. `cost` counts microseconds per value, `character` and `key_character` per character of a
    string or of the keys, `errors` what it may find at fault by itself.
    """

    body: int = 0
    reference: int | None = None
    cost: int = 1
    errors: int = 0
    character: float = 0
    key_character: float = 0
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
        return [*self.here, *self.choices] if self.reference is None else [*self.here, *self.choices, self.reference]

    @property
    def below(self) -> list[int]:
        """The nodes that apply to what is inside it."""
        return [*self.named.values(), *self.others, *self.members, *self.keys, *self.prefix, *self.items]


class Cost:
    """The cost of checking with a schema, given its nodes, the first being the schema itself.

    `work` bounds the microseconds that each of an argument's values and characters can cost; None where the schema is
    recursive.

    Raises:
        UnusableSchemaError: `endless_reference` (it applies itself to the same value) or `too_deep`.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._leaf = [not (node.same or node.below) for node in nodes]
        self._check_steps()
        self.work = self._total()
        self._recursive, self._orders = _recursion(nodes)

    def affordable(self, value: Any, budget: float) -> bool:
        """Whether checking `value` is certain to end within about `budget` microseconds.

        Finding out takes a few times as long as that at worst.
        """
        relied = bool(self._recursive) and self._orders <= _MOST_ORDERS
        return (relied and self._walk(value, budget / self._orders, recalling=True)) or self._walk(value, budget)

    def explainable(self, value: Any, most: float, budget: float) -> bool:
        """Whether listing all errors of `value` gives at most `most` and takes at most about `budget` microseconds.

        The library remembers nothing then, and keeps every branch of every choice, again at every level of choices.
        """
        return self._walk(value, most, errors=True) and self._walk(value, budget)

    def _walk(self, value: Any, budget: float, *, errors: bool = False, recalling: bool = False) -> bool:
        nodes = self._nodes
        seen: set[tuple[int, int]] = set()
        stack = [(nodes[0], value, 1)]
        while stack:
            node, value, weight = stack.pop()
            budget -= weight * (node.errors if errors else node.cost + _own_size(node, value))
            if budget < 0:
                return False
            inner = weight * _UNEVALUATED if node.unevaluated else weight
            stack += [(nodes[i], value, inner) for i in node.here]
            stack += [(nodes[i], value, inner + errors) for i in node.choices]
            if node.reference is not None:
                key = (node.reference, id(value))
                if key not in seen:
                    stack.append((nodes[node.reference], value, inner))
                if recalling and {node.body, node.reference} <= self._recursive and isinstance(value, dict | list):
                    seen.add(key)
            for i, values in _applied(node, value):
                if self._leaf[i] and not nodes[i].character:
                    budget -= weight * (nodes[i].errors if errors else nodes[i].cost) * len(values)
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

    def _total(self) -> float | None:
        """The cost of the first node and everything that it applies, every reference followed."""
        work = [0.0] * len(self._nodes)
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


def _recursion(nodes: list[Node]) -> tuple[set[int], float]:
    """Which bodies refer to themselves, directly or not, and a bound on what the order of compiling makes of it.

    A reference that is compiled while its target is being compiled is checked once per object or array, its result
    kept. Which references of a cycle that are depends on the order; all others are checked again each time. Without
    those whose results are kept there is no cycle, and so nothing is checked more often than there are ways through
    the recursive bodies that enter none twice: of each length, at most the product of their references to one another.
    """
    references = [(node.body, node.reference) for node in nodes if node.reference is not None]
    if len(references) > _MOST_REFERENCES or any(node.unevaluated for node in nodes):
        return set(), math.inf if references else 1
    targets: dict[int, set[int]] = {}
    for body, target in references:
        targets.setdefault(body, set()).add(target)
    recursive = {body for body in targets if body in _reachable(targets, body)}
    orders = float(max(len(recursive), 1))
    for body in recursive:
        orders *= sum(1 for start, target in references if start == body and target in recursive)
    return recursive, orders


def _reachable(targets: dict[int, set[int]], start: int) -> set[int]:
    found: set[int] = set()
    waiting = [start]
    while waiting:
        new = targets.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def _own_size(node: Node, value: Any) -> float:
    if isinstance(value, str):
        return node.character * len(value)
    if isinstance(value, dict) and node.key_character:
        return node.key_character * sum(map(len, value))
    if isinstance(value, list) and node.unique:
        return sum(extent(value)[:2])
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


class Extent(NamedTuple):
    """How many JSON values there are in one, itself included, and how many characters in its strings and keys.

    `plain`: no number among them is beyond decimals, and no string beyond UTF-8 (a lone surrogate).
    """

    values: int
    characters: int
    plain: bool


def extent(value: Any) -> Extent:
    """Measures a value that `parse_arguments` read."""
    values, characters, plain, layer = 0, 0, True, [value]
    while layer:
        values += len(layer)
        below: list[Any] = []
        for inside in layer:
            if isinstance(inside, str):
                characters += len(inside)
                plain = plain and _plain(inside)
            elif isinstance(inside, dict):
                characters += sum(map(len, inside))
                plain = plain and all(map(_plain, inside))
                below += inside.values()
            elif isinstance(inside, list):
                below += inside
        layer = below
    return Extent(values, characters, plain)


def _plain(text: str) -> bool:
    if text.isascii():
        return type(text) is str  # HugeNumber is another
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
