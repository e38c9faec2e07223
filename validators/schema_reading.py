"""Reads a client's JSON Schema before it is compiled: what of it counts, in bounded form, and what it can cost."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import jsonschema_rs

from validators.schema_cost import Cost, Node, UnusableSchemaError

MAX_DEPTH: Final = 96
"""Objects and arrays inside one another in a schema document."""
MAX_VALUES: Final = 20_000
"""JSON values in a schema document."""
MAX_SCHEMAS: Final = 5_000
"""Subschemas that can be reached, those behind references once."""
MAX_PATTERNS: Final = 200
"""Different regular expressions."""
MAX_PATTERN: Final = 4_096
"""Characters of a regular expression."""

# Compiled size in bytes -> microseconds per character at worst, measured on patterns made to defeat the engine's cache.
_PATTERN_SIZES: Final = {1_000: 0.02, 3_000: 0.5, 10_000: 2, 100_000: 20}
ENGINE: Final = jsonschema_rs.RegexOptions(size_limit=max(_PATTERN_SIZES), dfa_size_limit=max(_PATTERN_SIZES))
"""The linear engine, and what a pattern and its cache may take: bytes, each."""

# What people write for JSON Schema's own type names, the Berkeley functions among them. None: any type.
_TYPES: Final[Mapping[str, str | None]] = {
    "any": None, "array": "array", "bool": "boolean", "boolean": "boolean", "dict": "object", "double": "number",
    "float": "number", "int": "integer", "integer": "integer", "list": "array", "map": "object", "none": "null",
    "null": "null", "number": "number", "object": "object", "str": "string", "string": "string", "tuple": "array",
}  # fmt: skip

# Keyword -> what its subschemas apply to; the words are attributes of Node.
_ONE: Final = {
    "not": "here", "if": "here", "then": "here", "else": "here", "additionalProperties": "others",
    "unevaluatedProperties": "members", "propertyNames": "keys", "contains": "items", "unevaluatedItems": "items",
}  # fmt: skip
_SOME: Final = {"allOf": "here", "anyOf": "choices", "oneOf": "choices", "prefixItems": "prefix"}
_NAMED: Final = {"patternProperties": "members", "dependentSchemas": "here", "dependencies": "here"}
_VALUES: Final = frozenset({
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength",
    "minLength", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties", "minProperties",
    "required", "dependentRequired",
})  # fmt: skip
_COMBINING: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "if", "const"})
# Where one of these is, asking less than the schema says could refuse what it allows.
_NOT_MONOTONE: Final = frozenset({"not", "if", "oneOf", "maxContains"})

_DRAFTS: Final = {
    "draft-04": jsonschema_rs.Draft4Validator,
    "draft-06": jsonschema_rs.Draft6Validator,
    "draft-07": jsonschema_rs.Draft7Validator,
    "2019-09": jsonschema_rs.Draft201909Validator,
    "2020-12": jsonschema_rs.Draft202012Validator,
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """A schema as it is compiled, and what it can cost.

    `names` are the property names that it declares, `patterns` is how many regular expressions it has. `loosened`:
    some were left out, so whatever passes was not wholly checked.
    """

    schema: dict[str, Any] | bool
    draft: type[jsonschema_rs.Validator]
    cost: Cost
    names: frozenset[str]
    patterns: int
    loosened: bool


def read(document: Any, *, patterns: bool = True) -> Plan:
    """Reads a tool's `parameters` (JSON from outside, at most some 100 kB) as JSON Schema.

    `$schema` names the draft (4, 6, 7, 2019-09 or 2020-12; 2020-12 where it names none of them). Only what asserts
    something and can be reached is kept. Read kindly: type names as Python, the Berkeley data or Gemini write them;
    OpenAPI's `nullable` and boolean `exclusiveMinimum`; `items` as a list; a keyword that is null as an absent one.
    `format` and content keywords assert nothing. A `pattern` that the linear engine cannot compile (look-around,
    back-references) is left out, all of them without `patterns`.

    Raises:
        UnusableSchemaError: `too_large`, `too_deep`, `not_a_schema`, `remote_reference` (what does not begin with `#`
            is never fetched), `unknown_reference` (not a JSON pointer, or to nothing), `dynamic_reference`,
            `embedded_id` (`$id` inside a schema that has references), `endless_reference`, or `pattern` (one that
            would be left out, where that could refuse what the schema allows).
    """
    _check_size(document)
    return _Reader(document, patterns=patterns).plan()


def _check_size(document: Any) -> None:
    count, depth, layer = 0, 0, [document]
    while layer:
        count, depth = count + len(layer), depth + 1
        if count > MAX_VALUES:
            raise UnusableSchemaError("too_large")
        layer = _inside(layer)
        if layer and depth > MAX_DEPTH:
            raise UnusableSchemaError("too_deep")


def _inside(layer: list[Any]) -> list[Any]:
    containers = [value for value in layer if isinstance(value, dict | list)]
    return [inside for value in containers for inside in (value.values() if isinstance(value, dict) else value)]


class _Reader:
    def __init__(self, document: Any, *, patterns: bool) -> None:
        self.document = document
        self.wanted = patterns
        top = document if isinstance(document, dict) else {}
        named = str(top.get("$schema"))
        self.draft = next((draft for word, draft in _DRAFTS.items() if word in named), None)
        self.base = str(top.get("$id", top.get("id", ""))).rstrip("#")
        self.nodes = [Node()]
        self.targets = {"": 0}
        self.body = 0
        self.waiting: list[tuple[int, Any]] = []
        self.patterns: dict[str, float | None] = {}
        self.names: set[str] = set()
        self.seen: set[str] = set()
        self.embedded = self.loosened = False

    def plan(self) -> Plan:
        schema = self._schema(self.document, 0)
        definitions = {}
        while self.waiting:
            index, raw = self.waiting.pop()
            self.body = self.nodes[index].body = index
            definitions[str(index)] = self._schema(raw, index)
        if self.embedded and "$ref" in self.seen:
            raise UnusableSchemaError("embedded_id")
        if self.loosened and self.seen & _NOT_MONOTONE:
            raise UnusableSchemaError("pattern")
        if definitions:
            schema["$defs"] = definitions
        draft = self.draft or jsonschema_rs.Draft202012Validator
        return Plan(schema, draft, Cost(self.nodes), frozenset(self.names), len(self.patterns), self.loosened)

    def _new(self) -> int:
        if len(self.nodes) >= MAX_SCHEMAS:
            raise UnusableSchemaError("too_large")
        self.nodes.append(Node(body=self.body))
        return len(self.nodes) - 1

    def _child(self, raw: Any, into: list[int]) -> Any:
        index = self._new()
        into.append(index)
        return self._schema(raw, index)

    def _schema(self, raw: Any, index: int) -> Any:
        if isinstance(raw, bool):
            self.nodes[index].errors = 1
            return raw
        if not isinstance(raw, dict):
            raise UnusableSchemaError("not_a_schema")
        if "$dynamicRef" in raw or "$recursiveRef" in raw:
            raise UnusableSchemaError("dynamic_reference")
        if index and not str(raw.get("$id", "#")).startswith("#"):
            self.embedded = True
        node = self.nodes[index]
        result: dict[str, Any] = {}
        self.seen |= raw.keys()
        for key, value in _modern(raw, self.draft).items():
            if value is not None or key == "const":
                self._keyword(key, value, node, result)
        return _with_null(result) if raw.get("nullable") is True else result

    def _keyword(self, key: str, value: Any, node: Node, result: dict[str, Any]) -> None:
        if key in _VALUES:
            self._value(key, value, node, result)
        elif key in _ONE:
            node.unevaluated |= key.startswith("unevaluated")
            result[key] = self._child(value, getattr(node, _ONE[key]))
        elif key in _SOME:
            result[key] = [self._child(raw, getattr(node, _SOME[key])) for raw in _checked(value, list)]
        elif key == "properties":
            properties = {} if value == [] else _checked(value, dict)  # PHP's empty object
            result[key] = {name: self._property(name, raw, node) for name, raw in properties.items()}
        elif key in _NAMED:
            result[key] = self._named(key, value, node)
        elif key in {"items", "additionalItems"}:
            listed = isinstance(value, list)
            result[key] = [self._child(raw, node.prefix) for raw in value] if listed else self._child(value, node.items)
        elif key == "$ref":
            result[key] = self._reference(value, node)
        elif key == "pattern":
            self._pattern(value, node, result)
        node.errors += key in result

    def _value(self, key: str, value: Any, node: Node, result: dict[str, Any]) -> None:
        if key == "type":
            value = _type(value)
            if value is None:
                return
        size, layer = 0, [value]
        while layer := _inside(layer):
            size += len(layer)
        node.cost += size // 4 + 4 * (key == "multipleOf")
        node.errors += size if key in {"required", "dependentRequired"} else 0
        node.unique |= key == "uniqueItems"
        result[key] = _exact(value)

    def _property(self, name: str, raw: Any, node: Node) -> Any:
        self.names.add(name)
        index = node.named[name] = self._new()
        return self._schema(raw, index)

    def _named(self, key: str, value: Any, node: Node) -> dict[str, Any]:
        result = {}
        for name, raw in _checked(value, dict).items():
            if key == "patternProperties":
                cost = self._engine(name)
                if cost is None:  # leaving it out would turn its properties into additional ones
                    raise UnusableSchemaError("pattern")
                node.key_character += cost
            listed = key == "dependencies" and isinstance(raw, list)
            result[name] = raw if listed else self._child(raw, getattr(node, _NAMED[key]))
        return result

    def _pattern(self, value: Any, node: Node, result: dict[str, Any]) -> None:
        cost = self._engine(_checked(value, str)) if self.wanted else None
        if cost is None:
            self.loosened = True
        else:
            node.character += cost
            result["pattern"] = value

    def _engine(self, pattern: str) -> float | None:
        """What a pattern costs per character, or None where the linear engine does not compile it."""
        if pattern not in self.patterns:
            if len(self.patterns) >= MAX_PATTERNS:
                raise UnusableSchemaError("too_large")
            fitting = (cost for size, cost in _PATTERN_SIZES.items() if _compiles(pattern, size))
            self.patterns[pattern] = next(fitting, None)
        return self.patterns[pattern]

    def _reference(self, value: Any, node: Node) -> str:
        reference = _checked(value, str)
        if self.base and reference.startswith(f"{self.base}#"):
            reference = reference.removeprefix(self.base)
        if not reference.startswith("#"):
            raise UnusableSchemaError("remote_reference")
        pointer = unquote(reference[1:])
        if pointer not in self.targets:
            target = _resolve(self.document, pointer)
            self.targets[pointer] = self._new()
            self.waiting.append((self.targets[pointer], target))
        index = self.targets[pointer]
        node.reference = index
        return f"#/$defs/{index}" if index else "#"


def _checked(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise UnusableSchemaError("not_a_schema")
    return value


def _modern(raw: dict[str, Any], draft: object) -> dict[str, Any]:
    """Older spellings in 2020-12's words, where `$schema` does not ask for the draft that had them."""
    if draft not in {None, jsonschema_rs.Draft202012Validator}:
        return raw
    result = dict(raw)
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(raw.get(exclusive), bool):
            result[exclusive] = result.pop(bound, None) if raw[exclusive] else None
    if isinstance(raw.get("items"), list):
        result["prefixItems"], result["items"] = raw["items"], raw.get("additionalItems")
    result.pop("additionalItems", None)
    return result


def _type(value: Any) -> Any:
    """`type` in JSON Schema's own names; None where it allows everything. What is no known name stays as it is."""
    if isinstance(value, str):
        return _TYPES.get(value.lower(), value)
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        names = [_TYPES.get(name.lower(), name) for name in value]
        return None if None in names else list(dict.fromkeys(names))
    return value


def _exact(value: Any) -> Any:
    """The same value with floats as the decimals that they were written as."""
    if isinstance(value, float) and math.isfinite(value):
        return Decimal(repr(value))
    if isinstance(value, dict):
        return {key: _exact(inside) for key, inside in value.items()}
    return [_exact(inside) for inside in value] if isinstance(value, list) else value


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, null allowed: OpenAPI's `nullable`."""
    if schema.keys() & _COMBINING:
        return {"anyOf": [{"type": "null"}, schema]}
    kinds = schema.get("type")
    if kinds is not None:
        schema["type"] = list(dict.fromkeys([*(kinds if isinstance(kinds, list) else [kinds]), "null"]))
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    return schema


def _resolve(document: Any, pointer: str) -> Any:
    found = document
    if not pointer.startswith("/"):
        raise UnusableSchemaError("unknown_reference")
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and re.fullmatch(r"0|[1-9][0-9]{0,5}", key) and int(key) < len(found):
            found = found[int(key)]
        else:
            raise UnusableSchemaError("unknown_reference")
    return found


def _compiles(pattern: str, size: int) -> bool:
    if len(pattern) > MAX_PATTERN:
        return False
    try:
        jsonschema_rs.Draft202012Validator(
            {"pattern": pattern}, offline=True, pattern_options=jsonschema_rs.RegexOptions(size_limit=size)
        )
    except ValueError:
        return False
    return True
