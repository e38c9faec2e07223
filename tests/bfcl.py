"""The Berkeley Function-Calling data as OpenAI-shaped tools and calls, for whichever test wants real ones.

The data ships in a wheel whose own dependencies are heavy and of no use here, so that it is fetched by itself, once,
into the project's cache folder: the version that the demo pins, checked against the hash below.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import filelock

from proxy.demo.building import DATA, cache_dir, clean_environment

CATEGORIES: Final = ("live_simple", "live_multiple", "parallel", "parallel_multiple")

_WHEEL_SHA256: Final = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"
_TYPES: Final = {"dict": "object", "float": "number", "tuple": "array"}


class Case(NamedTuple):
    """One prompt: its id, its tools and the calls that its label asks for, both as OpenAI's API writes them."""

    id: str
    tools: list[dict[str, Any]]
    calls: list[dict[str, Any]]


def cases(categories: Iterable[str] = CATEGORIES, *, closed: bool = False, published: bool = False) -> Iterator[Case]:
    """The labelled prompts, in the order in which they were published.

    Where a label leaves a choice, the first value counts; an argument that may be left out and whose first value is
    empty is left out. With `closed`, every object with declared properties allows no others. With `published`, the
    functions are as they were published, with `dict`, `float`, `tuple` and `any` for types.
    """
    with zipfile.ZipFile(_wheel()) as archive:
        for category in categories:
            labels = {row["id"]: row["ground_truth"] for row in _rows(archive, f"possible_answer/BFCL_v4_{category}")}
            for row in _rows(archive, f"BFCL_v4_{category}"):
                functions = {function["name"]: function for function in row["function"]}
                tools = [f if published else _mapped(f, closed=closed) for f in row["function"]]
                labelled = [next(iter(call.items())) for call in labels[row["id"]]]
                yield Case(
                    row["id"],
                    [{"type": "function", "function": function} for function in tools],
                    [_call(i, name, label, functions[name]["parameters"]) for i, (name, label) in enumerate(labelled)],
                )


def _mapped(function: dict[str, Any], *, closed: bool) -> dict[str, Any]:
    return function | {"parameters": _schema(function["parameters"], closed=closed)}


def _call(index: int, name: str, label: dict[str, list[Any]], schema: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(_members(label, schema), ensure_ascii=False)
    return {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _schema(raw: dict[str, Any], *, closed: bool) -> dict[str, Any]:
    """The same schema in JSON Schema's words."""
    schema = dict(raw)
    schema["type"] = _TYPES.get(raw["type"], raw["type"])
    if raw["type"] == "any":
        del schema["type"]
    if "properties" in raw:
        schema["properties"] = {name: _schema(inner, closed=closed) for name, inner in raw["properties"].items()}
        if closed:
            schema["additionalProperties"] = False
    if "items" in raw:
        schema["items"] = _schema(raw["items"], closed=closed)
    return schema


def _members(label: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """An object of which a label lists what each member may be."""
    result = {}
    for name, allowed in label.items():
        optional = name not in schema.get("required", [])
        empty = not allowed or allowed[0] is None or allowed[0] == ""
        if not allowed or (empty and optional and "" in allowed):
            continue
        first = next((value for value in allowed if value != ""), "")
        result[name] = _value(first, schema.get("properties", {}).get(name, {}))
    return result


def _value(value: Any, schema: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return _members(value, schema) if all(isinstance(inner, list) for inner in value.values()) else value
    if isinstance(value, list):
        return [_value(inner, schema.get("items", {})) for inner in value]
    return value


def _rows(archive: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in archive.read(f"bfcl_eval/data/{name}.json").splitlines()]


def _wheel() -> Path:
    """The wheel's path; downloaded unless it is there. Raises CalledProcessError, or ValueError for another file."""
    target = cache_dir() / f"bfcl-{_WHEEL_SHA256[:12]}.whl"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=target.parent) as folder:
        if not target.exists():
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--only-binary=:all:"]
            requirement = DATA / "bfcl-requirements.txt"
            subprocess.run([*pip, "--dest", folder, "--requirement", requirement], env=clean_environment(), check=True)
            (wheel,) = Path(folder).glob("*.whl")
            if hashlib.sha256(wheel.read_bytes()).hexdigest() != _WHEEL_SHA256:
                raise ValueError(f"{wheel.name} is not the file that these tests were written against")
            wheel.replace(target)
    return target
