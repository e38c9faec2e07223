"""A deterministic pseudo-model: the next token's distribution is a function of the history of ids, and of nothing else.

So teacher forcing by prompt logprobs, by probes and by free greedy decoding agree exactly. Scripts are part of that
function: while the answer so far is the beginning of a script's, the script's next token wins.
"""

import functools
import hashlib
import math
import struct
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tests.standin.tokens import ANSWER_OPENS, EOS, Tokenizer

FLOOR = -9999.0
"""What vLLM writes for a logprob of minus infinity."""

_LISTED = 20  # candidates with a logprob of their own; every other token shares the tail's
_EOS_CHANCE = 5  # of 256
_EOS_NOT_BEFORE = 4  # an answer is at least so long


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call to write; `arguments` is written as it stands, JSON or not."""

    name: str
    arguments: str = "{}"


@dataclass(frozen=True)
class Script:
    """What to answer, as part of the model.

    It applies to prompts whose text holds `when`. `after` is for completions: the whole prompt it follows (the
    default is the template's opening of an answer). `raw` is the whole output's text in place of `reasoning`, `text`
    and `calls`. `finish_reason` other than None ends the answer with that reason and without an end token.

    Where several scripts go on from one history, the first wins, by `margin` nats over the next. The choices whose
    indices `sampled` names write this script whatever wins: tokens that were sampled, not preferred.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    finish_reason: str | None = None
    when: str = ""
    after: str | None = None
    raw: str | None = None
    margin: float = 2.5
    sampled: frozenset[int] = frozenset()

    @property
    def output(self) -> str:
        """The output's text with its markup."""
        if self.raw is not None:
            return self.raw
        thought = f"<think>\n{self.reasoning}\n</think>\n\n" if self.reasoning else ""
        calls = (f'<tool_call>\n{{"name": "{c.name}", "arguments": {c.arguments}}}\n</tool_call>' for c in self.calls)
        return thought + self.text + "\n".join(calls)


@dataclass(frozen=True, slots=True)
class Row:
    """The distribution of one position: `ids` by falling `logprobs` (nats), `tail` for every token not among them."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    tail: float
    vocabulary: int

    def logprob(self, token: int) -> float:
        """The token's logprob."""
        return self.logprobs[self.ids.index(token)] if token in self.ids else self.tail

    def rank(self, token: int) -> int:
        """How many tokens are at least as likely, as vLLM counts ranks."""
        value = self.logprob(token)
        return sum(lp >= value for lp in self.logprobs) + (self.vocabulary - len(self.ids) if value <= self.tail else 0)

    def top(self, token: int, k: int) -> list[tuple[int, float, int]]:
        """`token` first, then the `k` best, each once, as (id, logprob, rank): the order in which vLLM lists them."""
        best = [(t, lp, i + 1) for i, (t, lp) in enumerate(zip(self.ids[:k], self.logprobs[:k], strict=True))]
        return [(token, self.logprob(token), self.rank(token))] + [entry for entry in best if entry[0] != token]

    def biased(self, bias: Mapping[int, float]) -> "Row":
        """The row after a logit bias, normalised again: what decides, and what a `processed` logprobs mode shows."""
        values = dict(zip(self.ids, self.logprobs, strict=True))
        values |= {token: values.get(token, self.tail) + add for token, add in bias.items()}
        rest = math.exp(self.tail) * (self.vocabulary - len(values))
        top = max(values.values())
        total = top + math.log(math.fsum(math.exp(v - top) for v in values.values()) + rest * math.exp(-top))
        order = sorted(values, key=lambda t: -values[t])
        return Row(tuple(order), tuple(values[t] - total for t in order), self.tail - total, self.vocabulary)

    @classmethod
    def only(cls, token: int, vocabulary: int) -> "Row":
        """One legal token, as under a grammar: all others at minus infinity, listed in vLLM's fashion by low ids."""
        others = tuple(t for t in range(_LISTED) if t != token)
        return cls((token, *others), (0.0,) + (FLOOR,) * len(others), FLOOR, vocabulary)


@dataclass
class Model:
    """What one engine prefers. Two engines of one `seed` agree wherever neither scripts nor `flips` say otherwise.

    For answers without a script: `gaps` sets the nats between the two best at output positions (elsewhere at least
    0.25), and at the positions of `flips` this engine prefers the second best of the other. Positions count from the
    opening of the answer, in a history without one from its beginning. Unless `ends`, such answers have no end token.
    """

    tokenizer: Tokenizer
    scripts: Sequence[Script] = ()
    gaps: Mapping[int, float] = field(default_factory=dict)
    flips: Collection[int] = ()
    seed: bytes = b""
    ends: bool = True

    def __post_init__(self) -> None:
        self.opening = tuple(self.tokenizer.encode(ANSWER_OPENS))
        self.words = self.tokenizer.words()

    @functools.cached_property
    def outputs(self) -> list[tuple[int, ...]]:
        """Each script's output ids, an end token included unless it ends for another reason."""
        end = {True: (EOS,), False: ()}
        return [tuple(self.tokenizer.encode(s.output)) + end[s.finish_reason is None] for s in self.scripts]

    def start(self, ids: Sequence[int]) -> "Cursor":
        """A cursor after `ids`, at the cost of one hash over all of them."""
        cursor = Cursor(self)
        cursor.ids.extend(ids)
        cursor.hash.update(array("I", ids).tobytes())
        for begin in range(len(ids) - len(self.opening), -1, -1):
            if ids[begin] == self.opening[0] and tuple(ids[begin : begin + len(self.opening)]) == self.opening:
                cursor.open(begin + len(self.opening))
                break
        else:
            cursor.open(0)
        return cursor

    def rows(self, ids: Sequence[int]) -> list[Row]:
        """The distribution before each of `ids` but the first: what prompt logprobs are taken from."""
        cursor, rows = self.start(ids[:1]), []
        for token in ids[1:]:
            rows.append(cursor.row())
            cursor.advance(token)
        return rows


class Cursor:
    """A place in a history: tells the distribution of the next token, and moves on by one."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.ids: list[int] = []
        self.hash = hashlib.blake2b(model.seed, digest_size=64)
        self.begin = 0
        self._alive: list[tuple[int, int]] = []  # script, where its output begins in `ids`

    @property
    def position(self) -> int:
        """The output position of the next token."""
        return len(self.ids) - self.begin

    def open(self, begin: int) -> None:
        """An answer begins at `begin`: looks which scripts its prompt and its tokens so far leave alive."""
        self.begin = begin
        self._alive = []
        if not self.model.scripts:
            return
        text = self.model.tokenizer.decode(self.ids[:begin])
        for index, script in enumerate(self.model.scripts):
            start = begin if script.after is None else len(self.model.tokenizer.encode(script.after))
            follows = begin > 0 if script.after is None else self._follows(script.after, start)
            written = self.ids[start:]
            if follows and script.when in text and self.model.outputs[index][: len(written)] == tuple(written):
                self._alive.append((index, start))

    def _follows(self, after: str, length: int) -> bool:
        return len(self.ids) >= length and self.ids[:length] == self.model.tokenizer.encode(after)

    def advance(self, token: int) -> None:
        """Adds one token to the history."""
        self._alive = [(i, start) for i, start in self._alive if self._next(i, start) == token]
        self.ids.append(token)
        self.hash.update(token.to_bytes(4, "little"))
        opening = self.model.opening
        if token == opening[-1] and tuple(self.ids[-len(opening) :]) == opening:
            self.open(len(self.ids))
        elif self.begin == 0 and any(script.after is not None for script in self.model.scripts):
            self.open(0)

    def _next(self, script: int, start: int) -> int | None:
        output, at = self.model.outputs[script], len(self.ids) - start
        return output[at] if at < len(output) else None

    def script(self, choice: int = 0) -> Script | None:
        """The script that a choice is following here, None where none leads."""
        index = self._leader(choice)
        return None if index is None else self.model.scripts[index]

    def _leader(self, choice: int) -> int | None:
        sampled = [i for i, _ in self._alive if choice in self.model.scripts[i].sampled]
        return next(iter(sampled or [i for i, _ in self._alive]), None)

    def ended(self, choice: int = 0) -> str | None:
        """The finish reason of a script that ends here without an end token."""
        index = self._leader(choice)
        done = index is not None and self._next(index, dict(self._alive)[index]) is None
        return self.model.scripts[index].finish_reason if done and index is not None else None

    def sampled(self, choice: int) -> int | None:
        """The token that a script writes for this choice whatever wins, None where nothing of the kind holds."""
        for index, start in self._alive:
            if choice in self.model.scripts[index].sampled:
                return self._next(index, start)
        return None

    def winner(self) -> int:
        """The best token: row().ids[0] without the arithmetic."""
        return self._candidates(self.hash.copy().digest(), 2)[0][0]

    def _candidates(self, digest: bytes, count: int) -> tuple[list[int], float]:
        """The `count` best tokens in order, and the nats between the first two."""
        model = self.model
        scripted = dict.fromkeys(t for i, start in self._alive if (t := self._next(i, start)) is not None)
        found = dict(scripted)
        if model.ends and not scripted and digest[60] < _EOS_CHANCE and self.position >= _EOS_NOT_BEFORE:
            found[EOS] = None
        lead = model.scripts[self._alive[0][0]].margin if len(scripted) > 1 else 0.25 + digest[40] * 3.5 / 255
        for j in range(0, 2 * _LISTED, 2):
            if len(found) >= count:
                break
            at = int.from_bytes(digest[j : j + 2], "little")
            while (token := model.words[at % len(model.words)]) in found:
                at += 1
            found[token] = None
        order = list(found)[:count]
        if not scripted:
            lead = model.gaps.get(self.position, lead)
            if self.position in model.flips:
                order[:2] = order[1::-1]
        return order, lead

    def row(self) -> Row:
        """The distribution of the next token: float32 logprobs that sum to less than one."""
        digest = self.hash.copy().digest()
        ids, lead = self._candidates(digest, _LISTED)
        scores, score = [0.0], -lead
        for j in range(1, len(ids)):
            scores.append(score)
            score -= 0.05 + digest[40 + j] * 0.5 / 255
        vocabulary = len(self.model.tokenizer)
        tail = score - 3.0
        total = math.log(math.fsum(map(math.exp, scores)) + math.exp(tail) * (vocabulary - len(ids)))
        form = f"{len(ids) + 1}f"
        *logprobs, tail = struct.unpack(form, struct.pack(form, *(s - total for s in scores), tail - total))
        return Row(tuple(ids), tuple(logprobs), tail, vocabulary)
