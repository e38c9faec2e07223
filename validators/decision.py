"""Findings -> verdict -> action: what becomes of the calls of one choice. Pure.

Parallel calls stand and fall together. The word is the worst that prevails, the action the strongest that any finding
asks for under the policy of the tool that it is about.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from validators.calls import ToolCall, match_calls
from validators.policy import Action, Policy, strength, strongest
from validators.verdict import Finding, Word, worst

NONE = "none"
"""The shadow's name beside findings that need no reference."""

WANTS_PERSON = "wants_person"
"""Reason of a finding by which `check_substitute` says that a call in question asks for a person itself."""

_AGREEING = frozenset({Word.MATCH, Word.EQUIVALENT})
_RANK = {word: rank for rank, word in enumerate(Word)}


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one shadow says of a choice; one per shadow that was or is being asked.

    `findings` is None while it has not answered. `calls` are the shadow's own, for a substitution (content); `way` is
    how it was asked. A twin's findings are recorded and never vote.
    """

    shadow: str
    twin: bool
    findings: tuple[Finding, ...] | None
    calls: tuple[ToolCall, ...] = ()
    way: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about the calls of one choice.

    `findings` are all that were known, each with the shadow that said it (`none`: no reference needed). `shadow` is
    whose finding the word rests on. `why` is a stable word for the action: the reason of the finding that asked for it
    (its word where it has none), `wants_person`, `not_asked`, `no_call`, or, for a refusal in place of a substitution,
    `no_substitute`, `substitutes_differ` or `substitute_refused`. `agreed` are the references that countersigned, where
    enough did. `substitute` are the calls to send instead (content), None unless the action is `substitute`.
    `remember` are the indices of refused calls that were refused before should they come again: those whose own
    findings asked for it, for a reason that lasts.
    """

    word: Word
    action: Action
    findings: tuple[tuple[str, Finding], ...] = ()
    substitute: tuple[ToolCall, ...] | None = None
    shadow: str = NONE
    why: str = ""
    agreed: tuple[str, ...] = ()
    remember: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Voice:
    """One finding, who said it, and what the policy does about it."""

    shadow: str
    finding: Finding
    action: Action

    @property
    def order(self) -> tuple[int, bool, str, int]:
        """Worst word first; then those without a reference, by name, by call."""
        call = -1 if self.finding.call is None else self.finding.call
        return (_RANK[self.finding.word], self.shadow != NONE, self.shadow, call)


@dataclass(frozen=True, slots=True)
class _Stand:
    """What the references say together: the voices that count, and who countersigned."""

    voices: tuple[_Voice, ...]
    agreed: tuple[str, ...] = ()


def decide(
    policy: Policy[Any],
    calls: Sequence[ToolCall],
    own: Sequence[Finding],
    opinions: Sequence[Opinion],
    *,
    expired: bool,
    wants_person: bool | Iterable[bool],
    check_substitute: Callable[[Sequence[ToolCall]], Sequence[Finding]],
) -> Verdict | None:
    """What becomes of a choice's calls, or None while something that can still come may change it.

    `own` are the findings that need no reference (`calls` are their calls), `opinions` one per shadow. `expired`: who
    has not answered will not. `wants_person`: for the choice or per call, whether `approve` was true or could not be
    evaluated. `check_substitute` gives every finding that needs no reference about calls that would be sent instead,
    and one with the reason `WANTS_PERSON` for each that asks for a person.

    `agree` references that find every call the same are enough, and nothing is waited for. While so many can still
    agree, they are waited for. When they cannot any more, the others are still heard, since their word may be worse,
    until nothing could be stronger (refuse) or time is out. With `agree: 0` nobody is asked, and that nobody was is
    no reason to act. A choice without calls is not verified by a reference that said nothing: no word of it agrees.
    """
    heard = [_heard(calls, opinion, expired=expired) for opinion in opinions]
    ours = _voices(policy, NONE, own)
    refused = _strongest(ours) is Action.REFUSE
    stand = _Stand(()) if refused else _references(policy, calls, heard)
    if stand is None:
        return None
    counted = (*ours, *stand.voices)
    asked = wants_person if isinstance(wants_person, bool) else any(wants_person)
    action = strongest([_strongest(counted), Action.HOLD if asked else Action.RELEASE])
    asking = [voice for voice in counted if voice.action is action]
    substitute, why = None, _why(asking, action, "not_asked" if calls else "no_call")
    if action is Action.SUBSTITUTE:
        substitute, failed = _substitute(policy, calls, heard, stand, check_substitute)
        action, why = (Action.REFUSE, failed) if substitute is None else (action, why)
    words = [voice.finding.word for voice in counted]
    unheard = Word.MATCH if stand.agreed else Word.UNVERIFIED
    return Verdict(
        word=worst(words) if words else unheard,
        action=action,
        findings=_record(own, heard, stand),
        substitute=substitute,
        shadow=min(counted, key=lambda voice: voice.order).shadow if counted else NONE,
        why=why,
        agreed=stand.agreed,
        remember=_lasting(asking) if action is Action.REFUSE else (),
    )


_OUTCOMES = {
    Action.RELEASE: ("released", "released"),
    Action.REFUSE: ("refused", "would_refuse"),
    Action.SUBSTITUTE: ("substituted", "would_substitute"),
    Action.HOLD: ("held", "would_hold"),
}


def outcome(action: Action, *, block: bool) -> str:
    """The contract's word for what was done in block mode, or would have been done in observe mode."""
    done, would = _OUTCOMES[action]
    return done if block else would


def action_for(policy: Policy[Any], finding: Finding) -> Action:
    """What one finding asks for: by its tool's policy, and by the default's too where the primary made no such call."""
    action = policy.of(finding.tool).on[finding.word]
    return action if finding.call is not None else strongest([action, policy.default.on[finding.word]])


def _voices(policy: Policy[Any], shadow: str, findings: Iterable[Finding]) -> tuple[_Voice, ...]:
    return tuple(_Voice(shadow, finding, action_for(policy, finding)) for finding in findings)


def _strongest(voices: Iterable[_Voice]) -> Action:
    return strongest(voice.action for voice in voices)


def _why(asking: Sequence[_Voice], action: Action, silence: str) -> str:
    """The reason of the first of those who asked for the action; `silence` where nobody said anything."""
    if asking:
        finding = min(asking, key=lambda voice: voice.order).finding
        return finding.reason or finding.word.value
    return WANTS_PERSON if action is Action.HOLD else silence


def _lasting(asking: Iterable[_Voice]) -> tuple[int, ...]:
    """The calls whose refusal outlasts the moment.

    A repeat has a window of its own, which remembering would stretch; that nobody could verify a call says nothing of
    the call. Siblings that fell with it may come again by themselves.
    """
    passing = {Word.REPEAT, Word.UNVERIFIED}
    calls = {voice.finding.call for voice in asking if voice.finding.word not in passing}
    return tuple(sorted(call for call in calls if call is not None))


def _heard(calls: Sequence[ToolCall], opinion: Opinion, *, expired: bool) -> Opinion:
    """The opinion with what it leaves out: silence about a call, or beyond the time, countersigns nothing."""
    if opinion.twin or (opinion.findings is None and not expired):
        return opinion
    if opinion.findings is None:
        return replace(opinion, findings=tuple(_unverified(calls, "timeout")))
    told = {finding.call for finding in opinion.findings}
    untold = (finding for finding in _unverified(calls, "not_compared") if finding.call not in told)
    return replace(opinion, findings=(*opinion.findings, *untold))


def _references(policy: Policy[Any], calls: Sequence[ToolCall], opinions: Sequence[Opinion]) -> _Stand | None:
    """What the references' word rests on, or None while it may still change."""
    if not policy.agree:
        return _Stand(())
    votes = [opinion for opinion in opinions if not opinion.twin]
    heard = {o.shadow: _voices(policy, o.shadow, o.findings) for o in votes if o.findings is not None}
    agreeing = {shadow: voices for shadow, voices in heard.items() if _agrees(voices)}
    if len(agreeing) >= policy.agree:
        return _countersigned(agreeing, policy.agree)
    against = tuple(voice for shadow, voices in heard.items() if shadow not in agreeing for voice in voices)
    pending = sum(opinion.findings is None for opinion in votes)
    if pending and (len(agreeing) + pending >= policy.agree or _strongest(against) is not Action.REFUSE):
        return None
    if not against:  # nobody differs, and there are too few of them
        against = _voices(policy, NONE, _unverified(calls, "no_quorum" if votes else "no_reference"))
    return _Stand(against)


def _unverified(calls: Sequence[ToolCall], reason: str) -> list[Finding]:
    """That nobody verified these calls; where there is none, that nobody said so: else all of none would agree."""
    if not calls:
        return [Finding(Word.UNVERIFIED, "", None, reason)]
    return [Finding(Word.UNVERIFIED, call.name, i, reason) for i, call in enumerate(calls)]


def _agrees(voices: Iterable[_Voice]) -> bool:
    return all(voice.finding.word in _AGREEING and voice.finding.call is not None for voice in voices)


def _countersigned(agreeing: dict[str, tuple[_Voice, ...]], agree: int) -> _Stand:
    """So many as must agree, those first that ask for least: one more that agrees never makes it worse."""
    if len(agreeing) == 1:
        [(only, voices)] = agreeing.items()
        return _Stand(voices, (only,))

    def order(shadow: str) -> tuple[int, int, str]:
        voices = agreeing[shadow]
        return (strength(_strongest(voices)), -min((_RANK[v.finding.word] for v in voices), default=len(_RANK)), shadow)

    counted = sorted(agreeing, key=order)[:agree]
    return _Stand(tuple(voice for shadow in counted for voice in agreeing[shadow]), tuple(sorted(agreeing)))


def _substitute(
    policy: Policy[Any],
    calls: Sequence[ToolCall],
    opinions: Sequence[Opinion],
    stand: _Stand,
    check: Callable[[Sequence[ToolCall]], Sequence[Finding]],
) -> tuple[tuple[ToolCall, ...] | None, str]:
    """The calls to send instead, or why there are none.

    As many references must have made them as must agree, on the primary's history (an unverified opinion was not), and
    no other calls may have as many behind them. Where the primary's own calls were countersigned there are none.
    """
    groups: list[list[tuple[ToolCall, ...]]] = []
    for opinion in () if stand.agreed else sorted(opinions, key=lambda o: o.shadow):
        if opinion.twin or not opinion.calls or _is_unverified(opinion) or _same(policy, calls, opinion.calls):
            continue
        group = next((group for group in groups if _same(policy, group[0], opinion.calls)), None)
        if group is None:
            groups.append([opinion.calls])
        else:
            group.append(opinion.calls)
    backed = [group[0] for group in groups if len(group) >= policy.agree > 0]
    if len(backed) != 1:
        return None, "substitutes_differ" if backed else "no_substitute"
    found = check(backed[0])
    barred = any(f.reason == WANTS_PERSON or action_for(policy, f) is not Action.RELEASE for f in found)
    return (None, "substitute_refused") if barred else (backed[0], "")


def _is_unverified(opinion: Opinion) -> bool:
    return opinion.findings is None or any(finding.word is Word.UNVERIFIED for finding in opinion.findings)


def _same(policy: Policy[Any], a: Sequence[ToolCall], b: Sequence[ToolCall]) -> bool:
    matches = match_calls(a, b, lambda name: policy.of(name).compare)
    return all(match.kind in _AGREEING for match in matches)


def _record(own: Sequence[Finding], opinions: Sequence[Opinion], stand: _Stand) -> tuple[tuple[str, Finding], ...]:
    """Everything that was said, whether it counted or not: own findings, what nobody said, then shadows by name."""
    nobody = (voice.finding for voice in stand.voices if voice.shadow == NONE)
    said = [(opinion.shadow, f) for opinion in opinions for f in opinion.findings or ()]
    return (*((NONE, finding) for finding in (*own, *nobody)), *sorted(said, key=lambda entry: entry[0]))
