"""What a client sees in place of a call that is not let through. Pure.

How clients take each form was observed on seventeen of them; so: a text with `finish_reason: "stop"`, never an empty
message, never `tool_calls` with an empty list, never a status that SDKs repeat. The text names the tool and why, in
plain words, and may repeat argument values: it goes to the client whose call it is, and nowhere else.
"""

from collections.abc import Sequence

from proxy import plain
from proxy.http import Refusal
from proxy.plain import short
from shadow.exchange import Request
from validators import Difference, Finding, Word
from validators.calls import Side
from validators.decision import Verdict

PREFIX = "[counterproof] "
STATUS = 422
"""One request and a typed exception in every client that was seen."""

KIND = "tool_call_refused"
"""The type and code of a refusal that is an error."""
_MOST_REASONS = 5
_MOST_NAME = 80
_MOST_DETAIL = 300  # what a schema's finding and a rule's message may have

_WITHOUT_REFERENCE = {
    "unknown_tool": "this request offers no such tool",
    "not_json": "its arguments are not JSON",
    "unclosed": "its arguments end before they are whole",
    "not_an_object": "its arguments are no JSON object",
    "too_deep": "its arguments nest too deep",
    "duplicate_keys": "its arguments name a key twice, and not every program takes the same one",
    "schema": "its arguments do not match the tool's schema",
    "schema_unusable": "its arguments could not be checked: the tool's own schema is not usable",
    "rule": "a rule does not allow it",
    "rule_error": "a rule could not be evaluated on it",
    "repeated": "the same call was made before",
    "refused_before": "the same call was refused before, and nothing of it has changed",
}
_REFERENCE = "the reference configuration of this model, on the same history,"
_DIFFERS = {
    "name": f"{_REFERENCE} calls another tool",
    "arguments": f"{_REFERENCE} gives it other arguments",
    "no_call": f"{_REFERENCE} makes no tool call here",
    "missing": f"{_REFERENCE} makes one more call",
    "extra": f"{_REFERENCE} does not make this call",
}
_ACTED_ON = {
    Word.NEAR_TIE: "the model was close to another choice here",
    Word.SAMPLED_CHOICE: "sampling chose what is not the model's first choice here",
    Word.MATCH: "this tool's calls need more than a second opinion",
    Word.EQUIVALENT: "this tool's calls need more than a second opinion",
}
_UNHEARD = {
    "no_reference": "there is no reference to ask",
    "no_quorum": "too few references agree",
    "timeout": "the reference did not answer in time",
    "refused": "the reference does not take this request",
}
_AWAY = frozenset({"cold", "unreachable", "circuit_open", "server_error", "garbage", "failed", "internal_error"})
_UNFIT = frozenset({"tokenizer_unknown", "tokenizer_differs", "context_too_short", "no_token_input"})


def text(verdict: Verdict, exchange: str) -> str:
    """The refusal of a choice's calls, with its prefix."""
    findings = _asking(verdict)
    tools = [finding.tool for finding in findings or [finding for _shadow, finding in verdict.findings]]
    return (
        f"{PREFIX}The call of {_list(tools)} was refused: {'; '.join(_reasons(findings, verdict))}. Nothing was "
        f"executed. Do not repeat this call unchanged. ({exchange})"
    )


def _asking(verdict: Verdict) -> list[Finding]:
    """The findings that the refusal rests on: all of the word of what asked for it, which may not be the worst word."""
    found = [finding for _shadow, finding in verdict.findings]
    words = {finding.word for finding in found if (finding.reason or finding.word.value) == verdict.why}
    word = min(words, key=list(Word).index, default=verdict.word)
    return [finding for finding in found if finding.word is word]


def unread(exchange: str) -> str:
    """The refusal of what cannot be read as an answer, and so not be checked for calls."""
    return f"{PREFIX}The model server's answer could not be checked for tool calls, and is held back. ({exchange})"


def too_large(exchange: str) -> str:
    """The refusal of calls that outgrew what may be held."""
    return f"{PREFIX}The tool call is larger than can be checked here, and is held back. ({exchange})"


def pending(tools: Sequence[str], approval: str, exchange: str) -> str:
    """What is said of a call that waited for a person in vain; `approval` is empty where nobody was asked."""
    if not approval:
        return (
            f"{PREFIX}The call of {_list(tools)} needs a person's approval, and too many calls wait for one already. "
            f"Nothing was executed. The same call may be made again later, unchanged. ({exchange})"
        )
    return (
        f"{PREFIX}The call of {_list(tools)} needs a person's approval ({approval}), and nobody has decided yet. "
        f"Nothing was executed. Once it is approved, the same call may be made again, unchanged. ({exchange})"
    )


def denied(tools: Sequence[str], exchange: str) -> str:
    """What is said of a call that a person denied."""
    return (
        f"{PREFIX}A person has denied the call of {_list(tools)}. Nothing was executed. Do not repeat it unchanged. "
        f"({exchange})"
    )


def unrecorded(tools: Sequence[str], exchange: str) -> str:
    """What is said of a call that must not go out unrecorded while nothing can be recorded."""
    return (
        f"{PREFIX}The call of {_list(tools)} must be recorded before it goes out, and the record cannot be written "
        f"now. Nothing was executed. The same call may be made again later, unchanged. ({exchange})"
    )


def _list(tools: Sequence[str]) -> str:
    """The tools' names, each once, no more than a few."""
    names = list(dict.fromkeys(tools))
    shown = [short(name, _MOST_NAME) or "a tool without a name" for name in names[:_MOST_REASONS]]
    return ", ".join(shown) + (" and more" if len(names) > _MOST_REASONS else "") or "a tool"


def _reasons(findings: Sequence[Finding], verdict: Verdict) -> list[str]:
    told = list(dict.fromkeys(reason for finding in findings for reason in _reason(finding)))[:_MOST_REASONS]
    if verdict.why == "substitute_refused":
        told.append("what the reference calls instead is not allowed either")
    return told or [short(verdict.why or verdict.word.value)]


def _reason(finding: Finding) -> list[str]:
    """One finding in plain words: a line each for what differs."""
    if finding.detail:
        return [short(finding.detail, _MOST_DETAIL)]
    if finding.word is Word.UNVERIFIED and finding.reason not in _WITHOUT_REFERENCE:
        return [f"no second opinion could be had: {_unheard(finding.reason)}"]
    if finding.word is Word.MISMATCH and finding.differences:
        return [_difference(difference) for difference in finding.differences[:_MOST_REASONS]]
    known = _WITHOUT_REFERENCE.get(finding.reason) or _ACTED_ON.get(finding.word) or _DIFFERS.get(finding.reason)
    return [known or short(finding.reason or finding.word.value)]


def _unheard(reason: str) -> str:
    """Why there is no second opinion; the stable word stands beside what several have in common."""
    if reason in _UNHEARD:
        return _UNHEARD[reason]
    if reason in _AWAY:
        return f"the reference could not be asked ({reason})"
    return f"the reference is not fit for this model ({reason})" if reason in _UNFIT else _uncompared(reason)


def _uncompared(reason: str) -> str:
    return f"this answer could not be compared ({short(reason)})" if reason else "this answer could not be compared"


def _difference(difference: Difference) -> str:
    ours = plain.value(difference.primary) if difference.side is not Side.REFERENCE else "absent"
    theirs = plain.value(difference.reference) if difference.side is not Side.PRIMARY else "none"
    where = f"argument {short(difference.pointer)}" if difference.pointer else "what it is called with"
    return f"{where} is {ours}, where the reference configuration has {theirs}"


# --- in each form -----------------------------------------------------------------------------------------------------


def needs_status(request: Request, form: str) -> bool:
    """Whether a refusal must be an error: asked for, or because a text would make the agent ask again forever."""
    return form == "error" or request.tool_choice in {"required", "named"}


def as_status(message: str) -> Refusal:
    """The refusal as an answer of its own, while nothing was sent."""
    return Refusal(STATUS, KIND, message.removeprefix(PREFIX), code=KIND)


def after(said: str, message: str) -> str:
    """A text that goes on with the refusal."""
    return said + ("\n\n" if said and not said.endswith("\n") else "") + message
