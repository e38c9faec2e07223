"""Hermes tool calls out of text, whole or as it streams, with the quirks of vLLM 0.32's parser.

Whole: one call that does not parse turns all of them into text, and arguments are written anew. Streamed: arguments
go out as the model wrote them, what could be the beginning of a marker is held back, and is lost where the answer
ends there. Also reasoning between `<think>` and `</think>`.
"""

import json
import re
from collections.abc import Callable
from typing import Any

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_WHOLE = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>", re.DOTALL)


def split_reasoning(text: str) -> tuple[str | None, str]:
    """The reasoning (None where there is none) and what follows it."""
    if found := _THOUGHT.match(text):
        return found.group(1), text[found.end() :]
    if text.lstrip().startswith("<think>"):
        return text.lstrip().removeprefix("<think>"), ""
    return None, text


def parse(text: str) -> tuple[str | None, list[tuple[str, str]]]:
    """Content and calls (name, arguments) of a whole answer; the text as it stands where a call does not parse."""
    if _OPEN not in text:
        return text, []
    try:
        values = [json.loads(closed or unclosed) for closed, unclosed in _WHOLE.findall(text)]
        calls = [(value["name"], json.dumps(value["arguments"], ensure_ascii=False)) for value in values]
    except (ValueError, KeyError, TypeError):
        return text, []
    return text[: text.find(_OPEN)] or None, calls


class Stream:
    """One choice's deltas: `feed` takes new text and gives a delta's fields in wire order, None if nothing is due."""

    def __init__(self, *, tools: bool, thinks: bool, new_id: Callable[[], str]) -> None:
        self._tools = tools
        self._new_id = new_id
        self._text = ""
        self._sent = 0
        self._thinking: bool | None = None if thinks else False  # None until the first characters have told
        self._names: list[str | None] = []
        self._arguments: list[str] = []
        self.called = False

    def feed(self, text: str) -> dict[str, Any] | None:
        """The delta that `text` makes due."""
        if not text:
            return None
        thought, text = self._think(text)
        if thought is not None:
            return {"reasoning": thought} if thought else None
        if not self._tools:
            return {"content": text} if text else None
        self._text += text
        content, calls = self._content(), self._calls()
        if not content and not calls:
            return None
        self.called |= bool(calls)
        return {"content": content} | ({"tool_calls": calls} if calls else {})

    def _think(self, text: str) -> tuple[str | None, str]:
        """Splits off reasoning: (None, text) outside of it. Markup goes out with neither."""
        if self._thinking is False:
            return None, text
        self._text += text
        if self._thinking is None and not (seen := self._text.lstrip()).startswith("<think>"):
            if "<think>".startswith(seen):
                return "", ""
            self._thinking = False
            text, self._text = self._text, ""
            return None, text
        self._thinking = True
        end = self._text.find("</think>")
        held = _overlap(self._text, "</think>")
        until = end if end >= 0 else len(self._text) - held
        begin = max(self._sent, self._text.index("<think>") + len("<think>"))
        thought, self._sent = self._text[begin:until], max(begin, until)
        if end < 0 or thought:
            return thought, ""
        self._thinking = False
        rest = self._text[end + len("</think>") :]
        self._text, self._sent = "", 0
        return None, rest

    def _content(self) -> str | None:
        at = self._text.find(_OPEN)
        until = at if at >= 0 else len(self._text) - _overlap(self._text, _OPEN)
        if until <= self._sent:
            return None
        content, self._sent = self._text[self._sent : until], until
        return content

    def _calls(self) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for index, (body, complete) in enumerate(self._bodies()):
            if index == len(self._names):
                self._names.append(None)
                self._arguments.append("")
            if self._names[index] is None:
                if not (name := _NAME.search(body)):
                    break
                self._names[index] = name.group(1)
                head = {"id": self._new_id(), "type": "function", "index": index}
                deltas.append(head | {"function": {"name": name.group(1)}})
            if new := self._new_arguments(index, body, complete=complete):
                deltas.append({"index": index, "function": {"arguments": new}})
        return deltas

    def _bodies(self) -> list[tuple[str, bool]]:
        found: list[tuple[str, bool]] = []
        at = 0
        while (start := self._text.find(_OPEN, at)) >= 0:
            begin = start + len(_OPEN)
            end = self._text.find(_CLOSE, begin)
            if end < 0:
                body = self._text[begin:]
                body = body[: len(body) - _overlap(body, _CLOSE)].strip()
                return [*found, (body, _is_json(body))]
            found.append((self._text[begin:end].strip(), True))
            at = end + len(_CLOSE)
        return found

    def _new_arguments(self, index: int, body: str, *, complete: bool) -> str:
        if not (found := _ARGUMENTS.search(body)):
            return ""
        arguments = body[found.end() :]
        if complete and (arguments := arguments.rstrip()).endswith("}"):
            arguments = arguments[:-1].rstrip()
        new = arguments[len(self._arguments[index]) :]
        if new:
            self._arguments[index] = arguments
        return new


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` could begin `tag`."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)


def _is_json(text: str) -> bool:
    if not text.endswith("}"):
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
