"""A generating request, understood: its prompts, its limits, and what was asked to be told."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.standin import checks, wire
from tests.standin.faults import Faults
from tests.standin.generation import Limits, Step, generate
from tests.standin.model import Model
from tests.standin.tokens import UnknownTokenError


@dataclass
class Ids:
    """Ids that look random and are the same in every run."""

    seed: bytes
    count: int = 0

    def new(self) -> str:
        """Sixteen hexadecimal digits."""
        self.count += 1
        return hashlib.blake2b(self.seed + self.count.to_bytes(8, "little"), digest_size=8).hexdigest()

    def call(self) -> str:
        """A tool call's id."""
        return f"chatcmpl-tool-{self.new()}"


@dataclass(frozen=True)
class Pace:
    """A GPU's time: seconds for a prefill, and for each output token."""

    prefill_s: float = 0.0
    per_token_s: float = 0.0

    async def prefill(self) -> None:
        """Waits for the prefill."""
        await asyncio.sleep(self.prefill_s)

    async def tokens(self, count: int = 1) -> None:
        """Waits for `count` tokens; the loop gets its turn in any case."""
        await asyncio.sleep(self.per_token_s * count)


@dataclass(frozen=True)
class Served:
    """What an answer is made with."""

    model: Model
    name: str
    max_model_len: int
    ids: Ids
    pace: Pace
    processed: bool
    thinks: bool


@dataclass
class Asking:
    """One request, understood: its prompts and what was asked of every choice."""

    served: Served
    body: dict[str, Any]
    prompts: list[list[int]]
    limits: list[Limits]
    asked: wire.Asked
    head: wire.Head

    @property
    def n(self) -> int:
        """Choices per prompt."""
        return checks.integer(self.body, "n") or 1

    @property
    def usage_options(self) -> tuple[bool, bool]:
        """Whether usage is told at the end, and with every chunk."""
        options = self.body.get("stream_options") or {}
        asked = bool(options.get("include_usage"))
        return asked, asked and bool(options.get("continuous_usage_stats"))

    @property
    def logprobs(self) -> wire.Logprobs:
        """Writes the candidates as this request wants them."""
        return wire.Logprobs(self.served.model.tokenizer, self.asked)

    def steps(self, index: int) -> Iterator[Step]:
        """The steps of choice `index`, counted over all prompts."""
        prompt, choice = divmod(index, self.n)
        return generate(self.served.model.start(self.prompts[prompt]), self.limits[prompt], choice)

    @property
    def count(self) -> int:
        """Choices of all prompts."""
        return len(self.prompts) * self.n

    async def whole(self, index: int) -> list[Step]:
        """All steps of a choice at once, without its time."""
        steps = []
        for step in self.steps(index):
            steps.append(step)
            if len(steps) % 64 == 0:
                await asyncio.sleep(0)
        return steps

    async def interleaved(self) -> AsyncGenerator[tuple[int, Step]]:
        """The steps of all choices in turn, each round at the pace of one token."""
        running = {index: self.steps(index) for index in range(self.count)}
        while running:
            await self.served.pace.tokens()
            for index, steps in list(running.items()):
                if (step := next(steps, None)) is None:
                    del running[index]
                else:
                    yield index, step

    def prompt_logprobs(self, prompt: int) -> Any:
        """`prompt_logprobs` of a prompt, null where they were not asked for (echo asks for them, too)."""
        k = checks.integer(self.body, "prompt_logprobs")
        if k is None and self.body.get("echo"):
            k = self.asked.k
        if k is None:
            return None
        ids = self.prompts[prompt]
        return self.logprobs.prompt(ids, self.served.model.rows(ids), k)


def limits_of(
    served: Served, body: dict[str, Any], faults: Faults, prompt: int, *, default: int | None
) -> dict[str, Any]:
    """The fields of `Limits` that both routes read alike; `default` is the route's own limit of output tokens."""
    asked = checks.integer(body, "max_completion_tokens") or checks.integer(body, "max_tokens") or default
    room = served.max_model_len - prompt
    stop = body.get("stop") or ()
    return {
        "max_tokens": min(asked, room) if asked is not None else room,
        "stop": (stop,) if isinstance(stop, str) else tuple(stop),
        "stop_ids": frozenset(body.get("stop_token_ids") or ()),
        "keep_stop": bool(body.get("include_stop_str_in_output")),
        "ignore_eos": bool(body.get("ignore_eos")),
        "endless": faults.endless,
        "bias": {int(token): add for token, add in (body.get("logit_bias") or {}).items()},
        "processed": served.processed,
    }


def known(served: Served, ids: Sequence[int]) -> None:
    """Refuses ids beyond the vocabulary."""
    try:
        for token in ids:
            served.model.tokenizer.piece(token)
    except UnknownTokenError as error:
        raise checks.bad(str(error)) from None
