"""The words a tool call is judged with, and the findings they rest on."""

from dataclasses import dataclass
from enum import StrEnum

from validators.calls import Difference


class Word(StrEnum):
    """A verdict on one tool call; members stand in order of precedence, worst first.

    `invalid`, `violation` and `repeat` need no second opinion. `mismatch` says that the reference's own call, made on
    the same token history, differs; `near_tie` and `sampled_choice` explain such a difference away; `unverified` says
    that there was no second opinion to be had, and why stands beside it.
    """

    INVALID = "invalid"
    VIOLATION = "violation"
    REPEAT = "repeat"
    MISMATCH = "mismatch"
    UNVERIFIED = "unverified"
    NEAR_TIE = "near_tie"
    SAMPLED_CHOICE = "sampled_choice"
    EQUIVALENT = "equivalent"
    MATCH = "match"


_RANK = {word: rank for rank, word in enumerate(Word)}


def worst(words: list[Word]) -> Word:
    """The word that prevails among `words` (not empty)."""
    return min(words, key=_RANK.__getitem__)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found about one tool call.

    `call` is its index among the primary's calls of that choice (None for a call that only the reference made),
    `reference` that of its partner among the reference's calls (None without one),
    `tool` its name, `reason` a stable word (`name`, `arguments`, `missing`, `extra`, `not_json`, `unknown_tool`,
    `unclosed`, `schema`, `rule`, `rule_error`, …). `differences` and `detail` (plain words for the client whose call it
    is) hold argument values and are therefore content: they are kept as privacy allows. `where` is a JSON pointer into
    the call's arguments, `rule` the rule's id or the schema's keyword: structure, not content.
    """

    word: Word
    tool: str
    call: int | None = None
    reason: str = ""
    differences: tuple[Difference, ...] = ()
    reference: int | None = None
    where: str = ""
    rule: str = ""
    detail: str = ""
