"""Checks a tool call's arguments against the JSON Schema that the request gave for the tool.

The check is jsonschema-rs's; what is here bounds it (see `validators.schema_cost`), keeps compiled schemas, and puts
its errors into findings. Numbers reach it as the decimals they were read as, so that `multipleOf: 0.01`, long account
numbers and `1` beside `1.0` are judged exactly.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from threading import Lock
from typing import Any, Final

import jsonschema_rs
import orjson

from validators.calls import Arguments, HugeNumber
from validators.schema_cost import UnusableSchemaError, extent
from validators.schema_reading import ENGINE, Plan, read
from validators.verdict import Finding, Word

MAX_BYTES: Final = 128 * 1024
"""A schema whose JSON is longer than this is not read: `too_large`."""
MAX_FINDINGS: Final = 5
"""Findings about one call."""
MAX_DETAIL: Final = 300
"""Characters of a finding's detail, and of where it is."""

# Microseconds that a check may take, by an upper bound. Long arguments may take longer, as they do everywhere else.
_CHECKING: Final = 50_000
_PER_VALUE: Final = 4
# Errors that are listed at most, some 20 microseconds each, and characters of arguments times errors: each error
# carries the value that it is about.
_MOST_ERRORS: Final = 5_000
_COPYING: Final = 200_000_000
# Of memory, for all kept schemas together. Measured: a schema takes some 20 times its JSON, a pattern up to 200 kB.
_CACHE_BYTES: Final = 128 * 1024 * 1024
_BYTES_PER_BYTE: Final = 20
_BYTES_PER_PATTERN: Final = 200_000

# The library's names for what failed, as far as they are keywords that are checked here.
_RULES: Final = frozenset({
    "additionalItems", "additionalProperties", "anyOf", "const", "contains", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "falseSchema", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength",
    "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern", "propertyNames", "required", "type",
    "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
})  # fmt: skip


class Schemas:
    """The compiled schemas of the tools seen last, at most `most` of them, and the check with them.

    May be used by several threads. The first call with a schema compiles it, which takes from 0.1 ms to some 100 ms
    for the largest; later ones cost a digest of its JSON and the check.
    """

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, _Compiled] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def findings(self, function: Mapping[str, Any], call: int, arguments: Arguments) -> list[Finding]:
        """What of a call contradicts its tool's schema. Never raises.

        `function` is the request's tool `function` object, untrusted; absent, null or empty `parameters` allow any
        object. `strict` adds nothing: in strict mode the schema itself says what it asks for. `call` is the call's
        index among the primary's calls, `arguments` what `parse_arguments` gave for its text, without a problem.

        Every finding has the reason `schema` (invalid; `where` is a JSON pointer into the arguments with `*` for a key
        that the schema does not declare, `rule` the keyword, or `schema` where listing the errors would cost too
        much) or `schema_unusable` (unverified; `rule` says why: a word of `validators.schema_reading.read`,
        `too_much_work` for such arguments, `pattern` where all was checked but a pattern, `failed`).
        """
        parameters = function.get("parameters")
        if parameters is None or parameters in ({}, []):  # PHP writes an empty object as []
            return []
        name = function.get("name")
        about = _About(name if isinstance(name, str) else "", call)
        try:
            return self._checked(about, parameters, arguments.value)
        except UnusableSchemaError as error:
            return [about.unusable(str(error))]
        except Exception:  # noqa: BLE001 - whatever the library does with such a schema, the call must get its answer
            return [about.unusable("failed")]
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # how a Rust panic arrives; it has no importable name
                raise
            return [about.unusable("failed")]

    def _checked(self, about: "_About", parameters: Any, value: Any) -> list[Finding]:
        compiled = self._compiled(parameters)
        found = compiled.findings(about, value)
        if found is not None:
            return found
        if compiled.plan and compiled.plan.patterns:  # a long string must not keep the rest from being checked
            found = _compile(parameters, 0, patterns=False).findings(about, value)
        return [finding for finding in found or [] if finding.word is Word.INVALID] or [about.unusable("too_much_work")]

    def _compiled(self, parameters: Any) -> "_Compiled":
        text = _serialized(parameters)
        if len(text) > MAX_BYTES:
            raise UnusableSchemaError("too_large")
        key = hashlib.sha256(text).digest()
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        made = _compile(parameters, len(text))
        with self._lock:
            replaced = self._kept.pop(key, None)
            self._kept[key] = made
            self._bytes += made.size - (replaced.size if replaced else 0)
            while len(self._kept) > self._most or self._bytes > _CACHE_BYTES:
                self._bytes -= self._kept.popitem(last=False)[1].size
        return made


def _serialized(parameters: Any) -> bytes:
    try:
        return orjson.dumps(parameters)
    except TypeError:  # a long integer, a lone surrogate, great depth
        pass
    try:
        return json.dumps(parameters, default=repr).encode()
    except RecursionError:
        raise UnusableSchemaError("too_deep") from None


def _compile(parameters: Any, size: int, *, patterns: bool = True) -> "_Compiled":
    size *= _BYTES_PER_BYTE
    try:
        plan = read(parameters, patterns=patterns)
        validator = plan.draft(
            plan.schema, validate_formats=False, offline=True, mask="this value", pattern_options=ENGINE
        )
    except UnusableSchemaError as error:
        return _Compiled(size, unusable=str(error))
    except (ValueError, jsonschema_rs.ReferencingError):
        return _Compiled(size, unusable="not_a_schema")
    return _Compiled(size + plan.patterns * _BYTES_PER_PATTERN, plan, validator)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A schema that can be checked with, or the reason why not; `size` is what it takes of memory, about."""

    size: int
    plan: Plan | None = None
    validator: jsonschema_rs.Validator | None = None
    unusable: str = ""

    def findings(self, about: "_About", value: Any) -> list[Finding] | None:
        """None where checking `value` could take too long."""
        plan, validator = self.plan, self.validator
        if plan is None or validator is None:
            return [about.unusable(self.unusable)]
        values, characters, plain = extent(value)
        work, budget = plan.cost.work, max(_CHECKING, _PER_VALUE * values)
        cheap = work is not None and work * (values + characters) <= _CHECKING
        if not cheap and not plan.cost.affordable(value, budget):
            return None
        if not plain:
            value = _presentable(value, {})
        if validator.is_valid(value):
            return [about.unusable("pattern")] if plan.loosened else []
        most = min(_MOST_ERRORS, _COPYING // (values + characters))
        told = _first(about, _errors(validator, value), plan) if plan.cost.explainable(value, most, _CHECKING) else []
        return told or [about.invalid("schema", [], "the arguments do not match the tool's schema", plan.names)]


@dataclass(frozen=True, slots=True)
class _About:
    """Which call the findings are about."""

    tool: str
    call: int

    def invalid(self, rule: str, path: list[str | int], words: str, names: frozenset[str]) -> Finding:
        where = _pointer([part if isinstance(part, int) or part in names else "*" for part in path])
        return Finding(
            Word.INVALID,
            self.tool,
            self.call,
            "schema",
            where=_cut(where),
            rule=rule if rule in _RULES else "schema",
            detail=_cut(f"{_pointer(path)}: {words}" if path else words),
        )

    def unusable(self, rule: str) -> Finding:
        return Finding(Word.UNVERIFIED, self.tool, self.call, "schema_unusable", rule=rule)


def _presentable(value: Any, huge: dict[str, Decimal]) -> Any:
    """A copy with what the library cannot read (it answers anything then) put into its like.

    A number whose exponent decimals cannot hold becomes one of its sign and digits with an exponent of its own near
    the end of what they hold; a lone surrogate, which UTF-8 cannot carry, becomes the replacement character.
    """
    match value:
        case HugeNumber():
            if value not in huge:
                digits, exponent = value.lower().split("e")
                sign = "-" if exponent.startswith("-") else ""
                huge[value] = Decimal(f"{digits}e{sign}{10**17 + len(huge)}")
            return huge[value]
        case str():
            return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_presentable(key, huge): _presentable(inside, huge) for key, inside in value.items()}
        case list():
            return [_presentable(inside, huge) for inside in value]
    return value


_Plain = tuple[str, list[str | int], str]
"""Keyword, path and plain words of what is at fault."""


def _first(about: _About, errors: Iterable[_Plain], plan: Plan) -> list[Finding]:
    """The first different findings, as many as are told; none where the library cannot say them.

    What is at fault is put into words one by one: of a schema that asks for thousands of arguments, most are not told.
    """
    found: dict[Finding, None] = {}
    try:
        for error in errors:
            found[about.invalid(*error, plan.names)] = None
            if len(found) == MAX_FINDINGS:
                break
    except ValueError:  # it names an integer with more digits than Python turns into one
        return []
    return list(found)


def _errors(validator: jsonschema_rs.Validator, value: Any) -> Iterator[_Plain]:
    for error in validator.iter_errors(value):
        yield from _plain(error)


def _plain(error: jsonschema_rs.ValidationError) -> Iterator[_Plain]:
    """One error; of a choice, what its only fitting branch says, or the types that all of its branches ask for."""
    branches: list[list[jsonschema_rs.ValidationError]] = getattr(error.kind, "context", [])
    typed = [
        [e for e in branch if e.kind.name == "type" and e.instance_path == error.instance_path] for branch in branches
    ]
    fitting = [branch for branch, wrong in zip(branches, typed, strict=True) if branch and not wrong]
    if len(fitting) == 1 and all(branches):
        for inner in fitting[0]:
            yield from _plain(inner)
    elif branches and all(typed):
        types = [name for wrong in typed for name in wrong[0].kind.types]  # type: ignore[attr-defined]
        yield "type", error.instance_path, f"this value is none of {', '.join(dict.fromkeys(types))}"
    elif error.kind.name == "enum":  # the library names two and counts the others
        options = islice(error.kind.value, MAX_DETAIL)
        allowed = ", ".join(json.dumps(option, ensure_ascii=False, default=str) for option in options)
        yield "enum", error.instance_path, f"this value is not one of {allowed}"
    elif error.kind.name == "falseSchema":
        closed = error.schema_path[-1:] == ["additionalProperties"] != error.instance_path[-1:]
        rule = "additionalProperties" if closed else "falseSchema"
        yield rule, error.instance_path, "no property is allowed here" if closed else "this value is not allowed"
    else:
        yield error.kind.name, error.instance_path, error.message


def _pointer(path: list[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_DETAIL else text[: MAX_DETAIL - 1] + "…"
