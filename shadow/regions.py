"""Which output tokens are reasoning, text or tool call, and where the call begins.

A continuation must start at the call's first token, its opening marker included and nothing of the text before it.
Token texts tell: the visible text before the call is a prefix of what the tokens spell, and the first token with a
byte beyond it opens the call. Counting ids up to the last text chunk would be wrong: with merged deltas or a stop
buffer it lands inside the marker, which the engine then cannot parse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from shadow.exchange import Choice, Region


@dataclass(frozen=True, slots=True)
class CallStart:
    """The index in `O` of a call's first token.

    `exact` is False where it may be earlier than the marker itself (a token that straddles text and marker, white
    space or markup that a parser took away). It is never later.
    """

    index: int
    exact: bool


def _offsets(texts: Sequence[bytes]) -> list[int]:
    """Where each token begins in the bytes of all; one more entry for the end."""
    return [0, *accumulate(len(text) for text in texts)]


def _token_at(offsets: Sequence[int], position: int) -> int | None:
    """The token that holds the byte at `position`; tokens without text are skipped. None beyond the end."""
    return next((i for i in range(len(offsets) - 1) if offsets[i] <= position < offsets[i + 1]), None)


_REPLACEMENT = "\ufffd".encode()  # what a detokenizer shows for bytes that are no character; no token spells it


def _walk(spelled: bytes, lead: bytes) -> tuple[int, bool]:
    """How far the tokens' bytes spell the visible text, and whether all of it was met.

    A replacement character of the text is passed over where the tokens do not have it: half a character, or one whose
    bytes the wire left empty.
    """
    at = met = 0
    for piece in lead.split(_REPLACEMENT):
        common = _common_prefix(spelled[at:], piece)
        at, met = at + common, met + common
        if common < len(piece):
            return at, False
        if spelled.startswith(_REPLACEMENT, at) and lead.startswith(_REPLACEMENT, met):
            at += len(_REPLACEMENT)
        met += len(_REPLACEMENT)
    return at, True


def _common_prefix(a: bytes, b: bytes) -> int:
    if a.startswith(b):
        return len(b)
    return next(i for i in range(len(b)) if a[i : i + 1] != b[i : i + 1])


def _reasoning_end(spelled: bytes, reasoning: str) -> int | None:
    """The byte after the reasoning (its closing markup not included), 0 where there is none, None if not found."""
    if not reasoning:
        return 0
    wanted = reasoning.encode()
    found = spelled.find(wanted)
    return None if found < 0 else found + len(wanted)


def _texts(choice: Choice) -> list[bytes] | None:
    """Every token's bytes, or None where any is unknown."""
    if choice.token_bytes is None:
        return None
    texts = [text for text in choice.token_bytes if text is not None]
    return texts if len(texts) == len(choice.token_bytes) else None


def call_start(choice: Choice) -> CallStart | None:
    """Where the call of a choice begins, or None where the tokens' texts are unknown or do not spell it.

    `choice.lead` is the visible text before the first call. A named call, or a required one without a marker, has no
    text before it and begins at 0, or right after the reasoning.
    """
    texts = _texts(choice)
    if texts is None:
        return None
    spelled, offsets = b"".join(texts), _offsets(texts)
    after_reasoning = _reasoning_end(spelled, choice.reasoning)
    if after_reasoning is None:
        return None
    lead, exact = choice.lead.encode(), True
    if not choice.reasoning:
        position, exact = _walk(spelled, lead)
    elif lead and (found := spelled.find(lead, after_reasoning)) >= 0:
        position = found + len(lead)  # markup between reasoning and content is skipped
        exact = spelled.find(lead, found + 1) < 0  # the markup itself may spell the content: then this is early
    else:
        position, exact = after_reasoning, False  # the markup that closes the reasoning comes first
    index = _token_at(offsets, position)
    if index is None:
        return None
    starts_there = offsets[index] == position and not texts[index].isspace()
    return CallStart(index, exact and starts_there)


def regions(choice: Choice, start: CallStart | None) -> list[Region]:
    """One region per output token. Without texts, everything before the call counts as text."""
    count = len(choice.token_ids or ())
    result = [Region.TEXT] * count
    texts = _texts(choice)
    if choice.reasoning and texts is not None:
        end = _reasoning_end(b"".join(texts), choice.reasoning) or 0
        offsets = _offsets(texts)
        for i in range(count):
            if offsets[i] < end:
                result[i] = Region.REASONING
    for i in range(start.index if start else count, count):
        result[i] = Region.TOOL_CALL
    return result
