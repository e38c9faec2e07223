"""What the audit says of calls that were decided about: names, words, keyed hashes; no text and no argument. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.audit.chain import stamp
from proxy.ledger.records import NOT_OFFERED
from proxy.plain import short
from proxy.switch import Change
from shadow.capabilities import Capabilities
from shadow.exchange import Request
from shadow.judge import Judged
from validators import ToolCall
from validators.policy import Policy

_MOST_NAME = 80
_MOST_CALLS = 256  # a receipt tells so many, and how many there were
_MOST_FINDINGS = 32
Mark = Callable[[ToolCall], str]


def engine(name: str, role: str, can: Capabilities | None) -> dict[str, Any]:
    """An engine as it is known: its name, its role, and what it said of itself; no address, which may hold a secret."""
    told = {} if can is None else can.as_dict()
    return {"name": name, "role": role} | {
        key: told.get(key) for key in ("model", "version", "max_model_len", "tokenizer")
    }


def _tool(name: str, offered: frozenset[str]) -> str:
    return short(name, _MOST_NAME) if name in offered else NOT_OFFERED


def described(calls: Sequence[ToolCall], offered: frozenset[str], policy: Policy[Any], mark: Mark) -> dict[str, Any]:
    """Calls by tool, risk and keyed hash: `calls`, and how many there are (`of`) where not all are told."""
    told = [
        {"tool": _tool(call.name, offered), "risk": policy.of(call.name).risk, "hash": mark(call)}
        for call in calls[:_MOST_CALLS]
    ]
    return {"calls": told} | ({"of": len(calls)} if len(calls) > _MOST_CALLS else {})


def turned(change: Change) -> dict[str, Any]:
    """A turn of the switch; times in UTC."""
    setting, before = change.setting, change.before
    return {
        "event": change.did,
        "mode": change.mode,
        "set": setting and {"mode": setting.mode, "model": setting.model, "tool": setting.tool},
        "before": before and {"mode": before.mode, "who": before.who},
        "until": None if change.until is None else stamp(change.until),
        "reason": change.reason,
    }


def turned_away(exchange: str, why: str, *, model: str, dialect: str, client: str) -> dict[str, Any]:
    """A refusal of an answer or a request whose calls are not known; `client` is the credential's name, if any."""
    told = {"exchange": exchange, "done": "refused", "why": why}
    more = {"model": short(model, _MOST_NAME), "dialect": dialect, "client": client}
    return told | {name: value for name, value in more.items() if value}


def receipt(
    exchange: str,
    request: Request,
    judged: Judged,
    done: str,
    *,
    policy: Policy[Any],
    version: str,
    conversation: str,
    mark: Mark,
    ways: Mapping[str, str],
    engines: Sequence[Mapping[str, Any]],
    approval: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What was done with a choice's calls, and what that rests on.

    `version` is the policy's, `ways` how each reference was asked, `engines` as `engine` gives them, `approval` as
    `Approval.receipt` does. Where others were substituted, `instead` holds the calls that went out.
    """
    verdict, offered = judged.verdict, request.tool_names
    sent = {"instead": described(verdict.substitute, offered, policy, mark)["calls"]} if verdict.substitute else {}
    return {
        "exchange": exchange,
        "conversation": conversation,
        "model": short(request.model, _MOST_NAME),
        "choice": judged.choice,
        **described(judged.calls, offered, policy, mark),
        **sent,
        "done": done,
        "word": verdict.word.value,
        "action": verdict.action.value,
        "why": short(verdict.why, _MOST_NAME),
        "agreed": [{"name": name, "way": ways.get(name, "")} for name in verdict.agreed],
        "findings": [
            {"shadow": shadow, "word": found.word.value, "reason": found.reason, "rule": short(found.rule, _MOST_NAME)}
            for shadow, found in verdict.findings[:_MOST_FINDINGS]
        ],
        "engines": [dict(one) for one in engines],
        "policy": version,
        "approval": None if approval is None else dict(approval),
    }
