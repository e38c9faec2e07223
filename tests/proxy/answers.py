"""When two answers are the same: all but what an engine makes at random."""

import json
from typing import Any


def same(body: bytes) -> bytes:
    """An answer without what is random in it."""
    return b"\n".join(_line(line) for line in body.replace(b"\r\n", b"\n").split(b"\n"))


def _line(line: bytes) -> bytes:
    payload = line.removeprefix(b"data: ")
    if not payload.startswith(b"{"):
        return line
    value = json.loads(payload)
    value["id"] = value["created"] = None
    text = json.dumps(value)
    for call in [c for choice in value.get("choices", ()) for c in _calls(choice)]:
        text = text.replace(call["id"], "call") if "id" in call else text
    return text.encode()


def _calls(choice: dict[str, Any]) -> list[dict[str, Any]]:
    said = choice.get("delta") or choice.get("message") or {}
    return said.get("tool_calls") or []
