"""From a file, the environment and the command line to `Settings`, and from a fault back to its line and key."""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource, SettingsError
from pydantic_settings.sources.utils import parse_env_vars

from proxy.errors import ConfigError
from proxy.fields import FaultAt, Location
from proxy.settings import ENV_PREFIX, ControlSettings, Settings

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OPEN, _CLOSE = "\ue000", "\ue001"  # private characters that stand for the braces while YAML reads
_MARKED = re.compile(f"{_OPEN}(.*?){_CLOSE}")


_OTHERWISE = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool"}


class _Loader(yaml.SafeLoader):
    """Reads dates as text (nothing here is one, and some are none), and `on` and `off` as the words they are."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OTHERWISE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?i:true|false)\Z"), list("tTfF"))


def load(
    path: Path | None, overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Reads the configuration.

    Args:
        path: the YAML file, None for none.
        overrides: nested values from the command line; they win over everything.
        environ: the environment, default that of the process.

    Raises:
        ConfigError: with one line per fault.
    """
    environ = os.environ if environ is None else environ
    data, lines = _read(path, environ) if path else ({}, {})
    from_env = _from_environment(environ)
    merged = _merge(_merge(data, from_env), dict(overrides or {}))
    try:
        return Settings(**merged)
    except ValidationError as error:
        where = _Where(path, lines, from_env, overrides or {})
        raise ConfigError(*(where.line(at, message) for at, message in faults(error))) from None


def control(path: Path | None, environ: Mapping[str, str] | None = None) -> ControlSettings:
    """Where the control port is, for who talks to a proxy that runs: by its file, else by the environment alone.

    Raises:
        ConfigError: with one line per fault.
    """
    if path is not None:
        return load(path, environ=environ).control
    from_env = _from_environment(os.environ if environ is None else environ)
    try:
        return ControlSettings.model_validate(from_env.get("control", {}))
    except ValidationError as error:
        where = _Where(None, {}, from_env, {})
        raise ConfigError(*(where.line(("control", *at), message) for at, message in faults(error))) from None


def _read(path: Path, environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[Location, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    # Before YAML sees it: a brace would open a mapping where `${NAME}` stands in a flow mapping.
    text = _VARIABLE.sub(f"{_OPEN}\\1{_CLOSE}", text)
    faults: list[str] = []
    try:
        node = yaml.compose(text, Loader=_Loader)
        lines = _bounded_lines(node, path, faults) if node is not None else {}
        data = yaml.load(text, Loader=_Loader)  # noqa: S506  (a safe loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{at}: not YAML: {getattr(error, 'problem', None) or 'unreadable'}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: not usable: a value of a type that means nothing here") from None
    if faults:
        raise ConfigError(*faults)
    if data is None:
        raise ConfigError(f"{path}: is empty; the least that is needed is primary: {{base_url: http://host:8000/v1}}")
    if not isinstance(data, dict) or node is None:
        raise ConfigError(f"{path}: a mapping was expected (primary: …, shadows: …)")
    expanded = _expand(data, (), lines, path, environ, faults)
    if faults:
        raise ConfigError(*faults)
    return expanded, lines


_MOST_VALUES = 100_000  # an alias in an alias in an alias is as many values as it stands for


def _bounded_lines(node: yaml.Node, path: Path, faults: list[str]) -> dict[Location, int]:
    lines: dict[Location, int] = {}
    for at, line in _lines(node, (), path, faults):
        lines[at] = line
        if len(lines) > _MOST_VALUES:
            raise ConfigError(f"{path}: has more than {_MOST_VALUES} values")
    return lines


def _lines(node: yaml.Node, at: Location, path: Path, faults: list[str]) -> Iterator[tuple[Location, int]]:
    """The line of every key and list item; a key that stands twice is a fault (YAML would silently take the last)."""
    yield at, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if key.tag != "tag:yaml.org,2002:str":
                faults.append(f"{path}:{key.start_mark.line + 1}: {dotted((*at, name))}: a key is a word")
            if name in seen:
                faults.append(f"{path}:{key.start_mark.line + 1}: {dotted((*at, name))}: stands here a second time")
            seen.add(name)
            yield from _lines(value, (*at, name), path, faults)
            yield (*at, name), key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield from _lines(item, (*at, i), path, faults)


def _expand(
    value: Any, at: Location, lines: Mapping[Location, int], path: Path, environ: Mapping[str, str], faults: list[str]
) -> Any:
    if isinstance(value, dict):
        return {key: _expand(child, (*at, key), lines, path, environ, faults) for key, child in value.items()}
    if isinstance(value, list):
        return [_expand(child, (*at, i), lines, path, environ, faults) for i, child in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in environ:
            faults.append(f"{path}:{lines.get(at, 1)}: {dotted(at)}: the environment variable {name} is not set")
        return environ.get(name, "")

    return _MARKED.sub(variable, value)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Values like `COUNTERPROOF_MIRROR__OTHER=1`.

    Names without `__` are left alone unless they name a section: Kubernetes puts COUNTERPROOF_PORT and others into
    every pod beside a service of that name.
    """
    sections = {name.upper() for name in Settings.model_fields}
    mine = {name: value for name, value in environ.items() if name.startswith(ENV_PREFIX)}
    for name in mine:
        section, nested, _ = name.removeprefix(ENV_PREFIX).partition("__")
        if nested and section.upper() not in sections:
            hint = _near(section.lower(), [s.lower() for s in sections])
            raise ConfigError(f"environment: {name}: there is no section {section.lower()!r}{hint}")
    source = EnvSettingsSource(Settings, env_parse_none_str="null")
    source.env_vars = parse_env_vars(mine, parse_none_str="null")
    try:
        return source()
    except SettingsError as error:
        raise ConfigError(f"environment: {error}") from None


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _near(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else f"; known are {', '.join(sorted(known))}"


def dotted(at: Location) -> str:
    """A place as it is written: `policy.tools.0.match`."""
    return ".".join(str(part) for part in at)


def faults(error: ValidationError) -> Iterator[tuple[Location, str]]:
    """Each fault that settings have: its place, and what it is, without the value that stands there."""
    for fault in error.errors():
        cause = fault.get("ctx", {}).get("error")
        if isinstance(cause, FaultAt):
            for one in (cause, *cause.others):
                yield one.at, str(one)
        else:  # of a mapping's own key, pydantic says `[key]` behind it
            yield tuple(part for part in fault["loc"] if part != "[key]"), _message(fault)


def _message(fault: ErrorDetails) -> str:
    at = fault["loc"]
    if fault["type"] == "extra_forbidden":
        return "unknown key" + _near(str(at[-1]), _fields(at[:-1]))
    if fault["type"] == "missing":
        missing = "is missing"
        return f"{missing}: give a file with it, or --primary URL" if at == ("primary",) else missing
    return fault["msg"].removeprefix("Value error, ")


class _Where:
    """Where a value came from, for its error."""

    def __init__(
        self,
        path: Path | None,
        lines: Mapping[Location, int],
        environment: Mapping[str, Any],
        overrides: Mapping[str, Any],
    ) -> None:
        self._path, self._lines = path, lines
        self._environment, self._overrides = environment, overrides

    def line(self, at: Location, message: str) -> str:
        """A fault as it is told."""
        return f"{self._origin(at)}{dotted(at)}{': ' if at else ''}{message}"

    def _origin(self, at: Location) -> str:
        if _has(self._overrides, at):
            return "command line: "
        if _has(self._environment, at):
            name = "__".join(str(part).upper() for part in at if isinstance(part, str))
            return f"environment: {ENV_PREFIX}{name}: "
        if self._path is None:
            return ""
        known = next((self._lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in self._lines), None)
        return f"{self._path}:{known}: " if known else f"{self._path}: "


def _has(values: Any, at: Location) -> bool:
    for part in at:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return False
    return bool(at)


def _fields(at: Location) -> list[str]:
    """The keys that are known at a place."""
    model: type[BaseModel] = Settings
    for part in at:
        if isinstance(part, int) or part not in model.model_fields:  # a list's place, a mapping's own key
            continue
        annotation = model.model_fields[str(part)].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return list(model.model_fields)
