"""What block mode costs: how long an agreed call is held, what text pays for it, and what judging a call takes.

    python -m bench.block [--quick] [--first] [--real PRIMARY REFERENCE] [--write]

Calls and text go through `counterproof serve` in front of two stand-ins that keep a GPU's pace (`bench.paced`), all of
them processes of their own, seen from outside. With `--real`, the base URLs of two engines that are up, calls are made
on those, too. `--first` gives the bench real-time priority: on a machine that does other work, everything that is
measured would also wait for that. What is beside a limit says whether it was met or missed.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench import holding, judging, procs, report, stats
from bench.doors import CACHED_MS, COLD_MS
from bench.holding import BLOCKED, OBSERVED, OUTSIDE, TEXT_TOKENS, TOKEN_MS, Hold
from bench.procs import Unavailable, cores, pinned

RESULT = report.RESULTS / "block.md"
LIMIT_MS = TOKEN_MS + CACHED_MS + 10.0
"""A token's time, a cached prefill, and 10 ms."""


@dataclass(frozen=True)
class Size:
    """How many calls of each length, streams of each mode, calls that are judged, and requests to real engines."""

    calls: int = 30
    streams: int = 40
    judged: int = 3000
    real: int = 8


QUICK = Size(calls=3, streams=4, judged=300, real=2)


def limit(values: Sequence[float], what: str, most: float = LIMIT_MS) -> str:
    """A hold against its limit, as a line."""
    median = stats.interval(values)
    word = "met" if median.median <= most else "MISSED"
    return f"- {word}: {what}: held {median.text(1)} ms of at most {most:.0f} ms at the median"


def held_table(found: Mapping[str, Sequence[Hold]]) -> str:
    """Holds and what they are made of, by kind of call, as Markdown."""
    heads = ["call", "calls", "tokens", "generation, ms", "held, ms: median", "p90", "longest"]
    heads += ["reference asked after, ms", "its answer after the finish, ms", "then, to the client, ms"]
    rows = []
    for name, all_holds in found.items():
        if not all_holds:
            rows.append([name, "0", *["–"] * (len(heads) - 2)])
            continue
        held = [hold.held for hold in all_holds]
        begun = [hold.begun for hold in all_holds if hold.begun is not None]
        rows.append(
            [
                name,
                str(len(all_holds)),
                f"{statistics.median(hold.tokens for hold in all_holds):.0f}",
                f"{statistics.median(hold.written for hold in all_holds):,.0f}",
                stats.interval(held).text(1),
                f"{stats.percentile(held, 0.9):.1f}",
                f"{max(held):.1f}",
                f"{statistics.median(begun):.1f}" if len(begun) == len(all_holds) else "after the finish",
                f"{statistics.median(hold.waited for hold in all_holds):.1f}",
                f"{statistics.median(hold.own for hold in all_holds):.1f}",
            ]
        )
    return stats.table(heads, rows)


def calls(found: Mapping[int, Sequence[Hold]], done: Mapping[str, int]) -> str:
    """The section about calls on stand-ins."""
    named = {f"{length} words": holds for length, holds in found.items()}
    lines = [limit([hold.held for hold in holds], f"a call of {name}") for name, holds in named.items()]
    every = [hold.held for holds in found.values() for hold in holds]
    lines.append(limit(every, "all of them"))
    unheld = f"- done with them: {_counts(done)}"
    return f"""## How long an agreed call is held

{TOKEN_MS:g} ms a token on primary and reference, {CACHED_MS:g} ms for a prefill of what the engine has read,
{COLD_MS:g} ms more for what it has not: each prompt is new to both engines. Streamed, some text before each call. A
call is held from when its finish event's last byte reached the proxy to when its first byte reached the client.
Generation: from its first token to its finish. The reference is asked as soon as the call's first token is there; a
prefill and a token later than the primary, its answer is whole.

{held_table(named)}

{chr(10).join([*lines, unheld])}"""


def _counts(done: Mapping[str, int]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(done.items())) or "nothing"


def text(found: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """The section about text."""
    rows = []
    for name, streams in found.items():
        medians = [1000 * statistics.median(one) for one in streams]
        late = [1000 * stats.percentile(one, 0.9) for one in streams]
        rows.append([name, stats.interval(medians).text(0), f"{statistics.median(late):,.0f}"])
    lines = []
    for to in (OBSERVED, OUTSIDE):
        effect = stats.interval([1000 * value for value in holding.added(found[BLOCKED], found[to])])
        inside = "0 lies inside: no detectable effect" if effect.holds(0) else "0 lies outside"
        lines.append(f"- block mode minus {to}: {effect.text(0)} µs a chunk; {inside}")
    return f"""## What text pays

`tool_choice: auto` with tools, answered with {TEXT_TOKENS} words of text, one every {holding.TEXT_TOKEN_MS:g} ms;
{len(found[BLOCKED])} streams of each mode, which take turns. A chunk's delay: from its last byte at the proxy to its
last byte at the client. In block mode the reference reads the prompt meanwhile. The difference is that of streams
of one turn, chunk by chunk: the median over a pair's chunks, and over pairs with its 95 % bootstrap interval.

{stats.table(["", "delay of a chunk, µs: median", "p90"], rows)}

{chr(10).join(lines)}"""


def judged(spent: dict[str, list[float]]) -> str:
    """The section about judging."""
    return f"""## What judging a call takes

{judging.BATCH * len(spent["own"])} calls of eleven values, none like another, each judged on its own; CPU time of the
thread over batches of {judging.BATCH}.

{judging.table(spent)}

{judging.check_limit(spent)}"""


def real(found: Mapping[str, Sequence[Hold]], done: Mapping[str, int]) -> str:
    """The section about real engines; without a limit, since both engines and the proxy share the machine's cores."""
    shares = [f"- {name}: {_share(holds)}" for name, holds in found.items() if holds]
    return f"""## On real engines

The calls that were released, on vLLM's CPU build, each engine on a core that others use, too (the proxy among them): a
token takes longer while both engines write.

{held_table(found)}

{chr(10).join([*shares, f"- done with them: {_counts(done)}"])}"""


def _share(holds: Sequence[Hold]) -> str:
    held = 100 * statistics.median(hold.held / hold.written for hold in holds)
    primary = statistics.median(hold.written / max(1, hold.tokens - 1) for hold in holds)
    reference = statistics.median(hold.answered / max(1, hold.tokens) for hold in holds)
    token = f"a token took the primary {primary:.0f} ms and the reference {reference:.0f} ms, its prefill included"
    return f"held {held:.0f} % of the generation's time; {token}"


async def outside(folder: Path, size: Size, engines: Sequence[str] | None) -> list[str]:
    """What is measured on running proxies, section by section."""
    sections = [calls(*await holding.holds(folder / "calls", size.calls))]
    sections.append(text(await holding.texts(folder / "text", size.streams)))
    if engines:
        try:
            sections.append(real(*await holding.real(folder / "engines", engines[0], engines[1], size.real)))
        except Unavailable as problem:
            sections.append(f"## On real engines\n\nNot measured: {problem}.")
    return sections


def main() -> None:
    """Runs it; `--write` keeps the result beside the others."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.block", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="under a minute: less of everything")
    parser.add_argument("--first", action="store_true", help="with real-time priority (Linux, CAP_SYS_NICE)")
    parser.add_argument("--real", nargs=2, metavar=("PRIMARY", "REFERENCE"), help="base URLs of two engines")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    asked = parser.parse_args()
    size = QUICK if asked.quick else Size()
    try:
        if asked.first:
            procs.first()
        with (
            tempfile.TemporaryDirectory(prefix="block-") as folder,
            pinned(cores()[1]),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            sections = runner.run(outside(Path(folder), size, asked.real))
    except Unavailable as problem:
        sys.exit(f"block: {problem}")
    sections.append(judged(judging.measure(size.judged)))
    found = "\n\n".join(sections)
    print("\n" + found)
    if asked.write:
        RESULT.write_text(f"{_heading(asked)}\n\n{found}\n", encoding="utf-8")


def _heading(asked: argparse.Namespace) -> str:
    named = {"--quick": asked.quick, "--first": asked.first, "--real …": asked.real, "--write": True}
    told = " ".join(["python -m bench.block", *(name for name, given in named.items() if given)])
    how = " All of it with real-time priority, since the machine did other work beside it." if asked.first else ""
    about = report.heading("What block mode costs", told)
    return f"{about}. Proxy on core {cores()[0]}, engines and client on core {cores()[1]}.{how}"


if __name__ == "__main__":
    main()
