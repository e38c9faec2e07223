"""A conversation's records without their content: what figures rest on stays, what was said goes. Pure.

Only what is named here stays, so that what a later version adds is erased until somebody decides otherwise. JSON
pointers go as well: they can hold keys that a model made up.
"""

from collections.abc import Mapping
from typing import Any

from proxy.ledger.records import NOT_OFFERED

Record = dict[str, Any]

_EXCHANGE = ("id", "began_at", "dialect", "model", "conversation", "stream", "status", "seconds", "problem")
_CHOICE = ("index", "prompt_tokens", "completion_tokens", "finish_reason")
_FINDING = ("choice", "shadow", "word", "call", "reference", "reason", "rule")
_EXAMINATION = ("shadow", "outcome", "reason", "prompt_differs", "verdict", "method", "counts")
_REPORT = ("index", "not_comparable", "ways", "call_start", "call_start_exact")
_POSITION = ("index", "region", "basis", "outcome", "margin", "margin_is_bound", "clarity")
_VERDICT = ("choice", "word", "action", "done", "shadow", "why", "agreed", "waited")


class Eraser:
    """Takes the content out of one exchange's records. `exchange` is its own record, None where it has none.

    A tool's name stays where the request offered that tool, or where other names were left out when it was recorded.
    """

    def __init__(self, exchange: Record | None) -> None:
        self._offered = _offered(exchange or {})

    def exchange(self, record: Record) -> Record:
        """The exchange's record."""
        named = self._names(record)
        choices = [_kept(c, _CHOICE) | {"calls": named.calls(c.get("calls", []))} for c in record.get("choices", [])]
        findings = named.findings(record)
        return _kept(record, _EXCHANGE) | {"choices": choices, "findings": findings, "erased": True}

    def examination(self, record: Record) -> Record:
        """A shadow's view of it."""
        named = self._names(record)
        reports = [
            _kept(report, _REPORT)
            | {
                "findings": named.findings(report),
                "reference_calls": named.calls(report.get("reference_calls", [])),
                "positions": [_kept(position, _POSITION) for position in report.get("positions", [])],
            }
            for report in record.get("choices", [])
        ]
        return _kept(record, _EXAMINATION) | {"choices": reports}

    def verdict(self, record: Record) -> Record:
        """What was decided about a choice's calls."""
        named = self._names(record)
        sent = {"substitute": named.calls(record["substitute"])} if "substitute" in record else {}
        calls, findings = named.calls(record.get("calls", [])), named.findings(record)
        return _kept(record, _VERDICT) | {"calls": calls, "findings": findings} | sent

    def _names(self, record: Record) -> "_Names":
        if self._offered is None and _is_full(record):
            return _Names(frozenset())  # what was offered is not known, and any name may stand there
        return _Names(self._offered)


class _Names:
    """The names of tools that may stay; None: all that stand there."""

    def __init__(self, offered: frozenset[str] | None) -> None:
        self._offered = offered

    def findings(self, record: Record) -> list[Record]:
        return [_kept(one, _FINDING) | self._named(one, "tool") for one in record.get("findings", [])]

    def calls(self, calls: list[Record]) -> list[Record]:
        return [self._named(call, "name") for call in calls]

    def _named(self, record: Record, key: str) -> Record:
        if key not in record:
            return {}
        name = record[key]
        return {key: name if self._offered is None or name in self._offered else NOT_OFFERED}


def _is_full(record: Record) -> bool:
    """Whether a record was made with all content."""
    parts = [*record.get("choices", ()), *record.get("calls", ()), *record.get("substitute", ())]
    return any(key in part for part in parts for key in ("content", "texts", "arguments"))


def _offered(exchange: Record) -> frozenset[str] | None:
    """The tools that the recorded request offered, None where the request was not recorded."""
    if "request" not in exchange:
        return None
    tools = exchange["request"].get("tools")
    told = [tool.get("function", tool) for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    names = [one.get("name") for one in told if isinstance(one, dict)]
    return frozenset(name for name in names if isinstance(name, str))


def _kept(record: Mapping[str, Any], names: tuple[str, ...]) -> Record:
    return {name: record[name] for name in names if name in record}
