"""Has this call been made, or refused, before in this conversation: idempotency by the calls' hashes.

Only hashes of calls are kept, no content, bounded in number and in time. What was released and is forgotten is still
told by the request's own history, as far back as that is looked at.
"""

import hashlib
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from validators.calls import EXACT, ComparePolicy, ToolCall, canonical
from validators.policy import RepeatPolicy, ToolPolicy, normalised
from validators.verdict import Finding, Word

PolicyOf = Callable[[str], ToolPolicy[Any]]

_MAX_TEXT, _MAX_PARTS = 65_536, 4_096
"""Arguments of more characters or more values than this are compared by their text, not as JSON values."""

_MAX_HISTORY, _CALL_COST = 16_384, 8
"""How much of a history is looked at, the newest calls first: a unit is a value or 1024 characters, a call 8 more."""


class RepeatStore(Protocol):
    """What remembers calls. `scope` is a credential and a conversation, `fingerprint` tells requests apart.

    What a request with the same fingerprint did never counts: an HTTP client sent it again.
    """

    def findings(
        self,
        scope: str,
        fingerprint: bytes,
        history: Sequence[ToolCall],
        calls: Sequence[ToolCall],
        policy_of: PolicyOf,
    ) -> list[Finding]:
        """A `repeat` for each call that was made before (reason `repeated`) or refused before (`refused_before`)."""

    def released(self, scope: str, fingerprint: bytes, calls: Sequence[ToolCall], policy_of: PolicyOf) -> None:
        """Remembers calls that went out to the client."""

    def refused(self, scope: str, fingerprint: bytes, calls: Sequence[ToolCall]) -> None:
        """Remembers calls that were refused for themselves: a verdict's `remember`, or a person's no."""


def whole_mark(call: ToolCall, secret: bytes = b"") -> bytes:
    """A hash of a call with all its arguments, exactly; 16 bytes."""
    return _mark(call, None, EXACT, secret)


def repeat_mark(call: ToolCall, tool: ToolPolicy[Any], secret: bytes = b"") -> bytes:
    """A hash of what of a call makes it the same call again by its tool's policy; 16 bytes.

    Those are the values at the policy's key, or all arguments where it has none or where the call has nothing at any of
    its places; compared under the tool's compare policy. Arguments that cannot be read count by their text.
    """
    return _mark(call, tool.repeat, tool.compare, secret)


def _mark(call: ToolCall, repeat: RepeatPolicy | None, compare: ComparePolicy, secret: bytes) -> bytes:
    name = normalised(call.name) or call.name
    short = len(call.arguments) <= _MAX_TEXT and _parts(call.arguments) <= _MAX_PARTS
    arguments = call.read if short else None
    if arguments is None or arguments.problem:
        form = b"t" + _text(call.arguments)
    else:
        value = _chosen(arguments.value, repeat.key) if repeat else arguments.value
        form = _encode(canonical(value, compare))
    return hashlib.blake2b(_text(name) + form, digest_size=16, key=secret).digest()


def _parts(text: str) -> int:
    """At least as many as there are values in a JSON text: reading and encoding them is what takes time."""
    return 1 + text.count(",") + text.count("[") + text.count("{")


def _cost(text: str) -> int:
    """What looking at a call with these arguments costs, in units of `_MAX_HISTORY`."""
    return _CALL_COST + len(text) // 1024 + min(_parts(text), _MAX_PARTS)


def _chosen(value: dict[str, Any], key: Iterable[str]) -> dict[str, Any]:
    """Only what stands at the pointers, each in its place (arrays on the way become objects); all if nothing does."""
    chosen: dict[str, Any] = {}
    for pointer in key:  # in any order: what holds a place takes it over, what lies in a taken place is there already
        path = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        found: Any = value
        for part in path:
            found = _step(found, part)
        if found is not _ABSENT:
            _put(chosen, path, found)
    return chosen or value


_ABSENT = object()
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


def _step(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part, _ABSENT)
    if isinstance(value, list) and _INDEX.fullmatch(part) and int(part) < len(value):
        return value[int(part)]
    return _ABSENT


def _put(chosen: dict[str, Any], path: Sequence[str], found: Any) -> None:
    place = chosen
    for part in path[:-1]:
        below = place.setdefault(part, {})
        if not isinstance(below, dict):
            return
        place = below
    place[path[-1]] = found


def _encode(form: Any) -> bytes:
    """A canonical form as bytes, one text for equal forms: each part says how long it is or how many it has."""
    tag, value = form
    if tag == "string":
        return _text(value)
    if tag == "number":
        return b"d%b;" % (value if isinstance(value, str) else _digits(value)).encode()
    if tag == "literal":
        return b"l%b;" % value.encode()
    if tag == "object":  # by key: no key stands twice
        members = [_text(key) + _encode(child) for key, child in sorted(value, key=_KEY)]
        return b"o%d:%b" % (len(members), b"".join(members))
    if tag == "array":
        return b"a%d:%b" % (len(value), b"".join([_encode(child) for child in value]))
    if tag == "multiset":
        counted = sorted([b"%d*%b" % (count, _encode(child)) for child, count in value])
        return b"m%d:%b" % (len(counted), b"".join(counted))
    raise TypeError(f"not a canonical form: {tag}")


_KEY = operator.itemgetter(0)
_PLAIN_DIGITS = 30  # whole numbers of fewer digits are written out


def _text(text: str) -> bytes:
    body = text.encode("utf-8", "surrogatepass")
    return b"s%d:%b" % (len(body), body)


def _digits(number: Decimal) -> str:
    """One text for equal numbers, however they are written and however long: `normalize` would round them."""
    if not number:
        return "0"
    if -_PLAIN_DIGITS < number.adjusted() < _PLAIN_DIGITS and number == (whole := int(number)):
        return str(whole)
    mantissa, _, exponent = f"{number:E}".partition("E")  # one digit before the point: the exponent is the number's own
    return f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"


_Notes = OrderedDict[bytes, tuple[tuple[bytes, float], ...]]
"""By call: the two requests that were noted last, the later one first. One more would never be the latest of others."""


@dataclass(slots=True)
class _Conversation:
    """When which call was last released or refused, oldest first, and until when that is kept."""

    released: _Notes = field(default_factory=OrderedDict)
    refused: _Notes = field(default_factory=OrderedDict)
    until: float = 0.0


class Repeats:
    """A `RepeatStore` in this process. Not for several threads.

    `clock` gives monotonic seconds; one that goes back lets things be remembered for longer. At most
    `most_conversations` are kept, the longest unused are forgotten first, and of each the latest `most_calls` released
    and as many refused ones. A refusal is remembered for `remember` seconds, a conversation for `forget` seconds after
    it was last looked at, or for the longest window that a released call had. `secret` (up to 64 bytes) keys the
    hashes. Raises ValueError.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        most_conversations: int = 4096,
        most_calls: int = 64,
        remember: float = 3600.0,
        forget: float = 86_400.0,
        secret: bytes = b"",
    ) -> None:
        if most_conversations < 1 or most_calls < 1:
            raise ValueError("what remembers nothing finds no repeats")
        self._clock, self._secret = clock, secret
        self._most_conversations, self._most_calls = most_conversations, most_calls
        self._remember, self._forget = remember, forget
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()

    @property
    def conversations(self) -> int:
        """How many conversations are remembered."""
        return len(self._conversations)

    def findings(
        self,
        scope: str,
        fingerprint: bytes,
        history: Sequence[ToolCall],
        calls: Sequence[ToolCall],
        policy_of: PolicyOf,
    ) -> list[Finding]:
        """A `repeat` for each call that was made before, and for each that was refused, as `RepeatStore` has it.

        Refused before counts for every tool and with all arguments unchanged. Made before counts for tools with a
        repeat policy: a second time in this answer; within the window in this conversation; or in `history` (the calls
        that the request's own messages tell, oldest first), unless its last release is known and the window over.
        """
        now = self._clock()
        known = self._touch(scope, now)
        refused, released = (known.refused, known.released) if known else ({}, {})
        told = self._told(history, calls, policy_of)
        found, in_answer = [], set[bytes]()
        for i, call in enumerate(calls):
            if refused and now - _by_others(refused, whole_mark(call, self._secret), fingerprint) <= self._remember:
                found.append(Finding(Word.REPEAT, call.name, i, "refused_before", detail=_REFUSED))
            tool = policy_of(call.name)
            if tool.repeat is None:
                continue
            mark = repeat_mark(call, tool, self._secret)
            before = _by_others(released, mark, fingerprint)
            recent = mark in told if before == _NEVER else now - before <= tool.repeat.window
            if mark in in_answer or recent:
                detail = _TWICE if mark in in_answer else _MADE
                found.append(Finding(Word.REPEAT, call.name, i, "repeated", detail=detail))
            in_answer.add(mark)
        return found

    def released(self, scope: str, fingerprint: bytes, calls: Sequence[ToolCall], policy_of: PolicyOf) -> None:
        """Remembers calls that went out to the client; only those of tools with a repeat policy are kept."""
        tools = [(call, policy_of(call.name)) for call in calls]
        windows = [tool.repeat.window for _, tool in tools if tool.repeat]
        if windows:
            marks = [repeat_mark(call, tool, self._secret) for call, tool in tools if tool.repeat]
            known, now = self._open(scope, max(self._forget, *windows))
            self._note(known.released, marks, fingerprint, now)

    def refused(self, scope: str, fingerprint: bytes, calls: Sequence[ToolCall]) -> None:
        """Remembers calls that were refused for themselves: a verdict's `remember`, or a person's no."""
        if calls:
            known, now = self._open(scope, max(self._forget, self._remember))
            self._note(known.refused, [whole_mark(call, self._secret) for call in calls], fingerprint, now)

    def _told(self, history: Sequence[ToolCall], calls: Sequence[ToolCall], policy_of: PolicyOf) -> set[bytes]:
        """The marks of a history's calls to the tools that are called now and have a repeat policy."""
        marks, left = set[bytes](), _MAX_HISTORY
        if not history:
            return marks
        wanted = {normalised(call.name) for call in calls if policy_of(call.name).repeat}
        for call in reversed(history) if wanted else ():
            tool = policy_of(call.name)
            if tool.repeat is None or normalised(call.name) not in wanted:
                continue
            left -= _cost(call.arguments)
            if left < 0:
                break
            marks.add(repeat_mark(call, tool, self._secret))
        return marks

    def _touch(self, scope: str, now: float) -> _Conversation | None:
        known = self._conversations.get(scope)
        if known is None or now > known.until:
            self._conversations.pop(scope, None)
            return None
        known.until = max(known.until, now + self._forget)
        self._conversations.move_to_end(scope)
        return known

    def _open(self, scope: str, keep: float) -> tuple[_Conversation, float]:
        """The conversation, made where it is new, and the time; forgets what is over or too much."""
        now = self._clock()
        known = self._touch(scope, now) or self._conversations.setdefault(scope, _Conversation())
        known.until = max(known.until, now + keep)
        while len(self._conversations) > self._most_conversations or self._first_is_over(now):
            self._conversations.popitem(last=False)
        return known, now

    def _first_is_over(self, now: float) -> bool:
        return now > next(iter(self._conversations.values())).until

    def _note(self, notes: _Notes, marks: Iterable[bytes], fingerprint: bytes, now: float) -> None:
        for mark in marks:
            others = [note for note in notes.get(mark, ()) if note[0] != fingerprint]
            notes[mark] = ((fingerprint, now), *others[:1])
            notes.move_to_end(mark)
        while len(notes) > self._most_calls:
            notes.popitem(last=False)


_REFUSED = "this call was refused earlier in this conversation and came again unchanged"
_MADE = "the same call was made earlier in this conversation"
_TWICE = "this answer makes the same call more than once"


_NEVER = float("-inf")


def _by_others(notes: Mapping[bytes, tuple[tuple[bytes, float], ...]], mark: bytes, fingerprint: bytes) -> float:
    """When a call was last noted by a request other than this one."""
    return max((when for by, when in notes.get(mark, ()) if by != fingerprint), default=_NEVER)
