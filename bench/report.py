"""The byte path's figures as Markdown: the tables, the ratios, and the targets they are held against."""

import datetime as dt
import importlib.metadata
import platform
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import procs, stats
from bench.measure import CONNECTIONS, STREAMS, Figures, Size
from bench.systems import DIRECT, DOOR, HUNG, NGINX, OFF, OUTSIDE, PACE_MS, RELAY, ROUTER, TITLES

RESULTS = Path(__file__).parent / "results"

PLAIN_AT_MOST, INJECTED_AT_MOST = 1.3, 1.6
"""The targets: CPU beside the bare relay's, per small request and per paced chunk."""
_HELD = (OFF, OUTSIDE, DOOR, HUNG)
_NOTHING = "–"
_WHAT = {"small": "small request", "chunk": "paced chunk", "large": "400 KB prompt"}


def ratios(figures: Figures, to: Figures, what: str) -> stats.Interval | None:
    """The per-round ratios of one figure of two systems; None where either has none."""
    ours, theirs = getattr(figures, what), getattr(to, what)
    return stats.interval(stats.paired(ours, theirs)) if ours and len(ours) == len(theirs) else None


def _median(values: Sequence[float], digits: int = 0) -> str:
    return f"{statistics.median(values):,.{digits}f}" if values else _NOTHING


def _added(figures: Figures, direct: Figures | None, what: str) -> str:
    ours, theirs = getattr(figures, what), getattr(direct, what) if direct else []
    return _median(stats.differences(ours, theirs)) if ours and len(ours) == len(theirs) else _NOTHING


def costs(figures: Mapping[str, Figures]) -> str:
    """The absolute medians."""
    heads = ["system", "CPU per small request, µs", "CPU per paced chunk, µs", "CPU per 400 KB prompt, µs"]
    heads += ["added latency p50, µs", "p99, µs", "memory per open stream, KiB", "injected"]
    rows = []
    for name, one in figures.items():
        if one.problem:
            rows.append([TITLES[name], f"not measured: {one.problem}", *[""] * 6])
            continue
        if name == DIRECT:
            latency = [_median(one.p50) + " (whole)", _median(one.p99) + " (whole)"]
            rows.append([TITLES[name], *[_NOTHING] * 3, *latency, _NOTHING, _NOTHING])
            continue
        latency = [_added(one, figures.get(DIRECT), what) for what in ("p50", "p99")]
        memory = f"{one.memory / 1024:.1f}" if one.memory is not None else _NOTHING
        share = f"{one.injected / one.requests:.0%}" if one.requests else _NOTHING
        cpu = [_median(one.small), _median(one.chunk, 1), _median(one.large)]
        rows.append([TITLES[name], *cpu, *latency, memory, share])
    return stats.table(heads, rows)


def beside(figures: Mapping[str, Figures], base: str) -> str:
    """Ratios to one system, a median of the rounds' and its interval."""
    rows = []
    for name, one in figures.items():
        if name in {DIRECT, base} or one.problem:
            continue
        found = [ratios(one, figures[base], what) for what in _WHAT]
        rows.append([TITLES[name], *(str(ratio.text(2)) if ratio else _NOTHING for ratio in found)])
    return stats.table([f"CPU / that of {TITLES[base]}", *_WHAT.values()], rows)


def checks(figures: Mapping[str, Figures]) -> list[str]:
    """The targets, each with what was found."""
    lines = []
    for name in _HELD:
        if name not in figures or RELAY not in figures:
            continue
        # A hung shadow's time-outs free a place in its queue now and then: that makes it no injected one.
        injected = 2 * figures[name].injected > figures[name].requests
        most = INJECTED_AT_MOST if injected else PLAIN_AT_MOST
        for what in ("small", "chunk"):
            found = ratios(figures[name], figures[RELAY], what)
            if found is None:
                continue
            word = "met" if found.median <= most else "MISSED"
            lines.append(f"- {word}: {TITLES[name]}, {_WHAT[what]}: {found.text(2)} of at most {most} x the bare relay")
    return lines


FIRST_BYTES = (
    "no shadow is asked, requests are injected",
    "the shadow hangs and its queue fills, so requests are injected",
    "the shadow hangs and its queue is full",
)
"""In which states of the shadow the time to the first byte is held against mirroring off."""


def hung(found: Sequence[stats.Interval], count: int) -> list[str]:
    """What a shadow adds to the time to the first byte, in the states of `FIRST_BYTES`."""
    lines = []
    for state, one in zip(FIRST_BYTES, found, strict=False):
        inside = "0 lies inside" if one.holds(0) else "0 lies OUTSIDE"
        lines.append(
            f"- Time to first byte while {state}, minus mirroring off: {one.text(0)} µs, median and "
            f"95 % interval of {count} pairs of single streams that take turns; {inside}."
        )
    return lines


def whole(figures: Mapping[str, Figures], first_bytes: Sequence[stats.Interval], count: int) -> str:
    """Everything that was found."""
    parts = [costs(figures)]
    parts += [beside(figures, base) for base in (RELAY, NGINX, ROUTER) if base in figures and figures[base].small]
    parts.append("\n".join([*checks(figures), *hung(first_bytes, count)]))
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(title: str, command: str) -> str:
    """A result's title, and what it was measured with: command, date, machine, versions."""
    names = ("counterproof", "uvicorn", "uvloop", "aiohttp")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    when = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC"
    return f"# {title}\n\n{when}, `{command}`, {procs.machine()}; Python {platform.python_version()}, {versions}"


def about(size: Size, rounds: int, *, first: bool) -> str:
    """The rest of the heading, and how it was measured."""
    measured, other = procs.cores()
    priority = " All of it with real-time priority, since the machine did other work beside it." if first else ""
    return f""", {_nginx()}.{priority}

{rounds} rounds after one to warm up. All systems are up at once and take turns within each round, in an order that
rotates; each figure is taken of all of them before the next one. Ratios are paired within a round, with the median and
a 95 % bootstrap interval of it. What is measured runs on core {measured}; load generator, upstream and shadows on core
{other}.

- CPU is the on-CPU time of the system's process tree, all threads.
- Small requests: {size.turns} x {size.small} per round, the systems taking turns between them (the slowest have one
  turn), over {CONNECTIONS} kept connections, answered with 800 bytes by the upstream
  (about 16 KB where token ids and five logprobs were asked for). Latency is added to that without a proxy.
- Chunks: {STREAMS} streams at once, an event every {PACE_MS:g} ms each, {size.tokens} tokens. What the idle system uses
  is taken off; the requests' own cost is in.
- Long prompts: {size.large} per round, 400 KB (with token ids the answer repeats the prompt's, as vLLM does).
- Memory: growth of the resident size of a fresh process while {size.memory} streams are open.
- The whole comparison: {size.compared} small requests and the {STREAMS} streams, until every exchange was compared.
- The hung shadow's queue is filled first; with its defaults (120 s) time-outs follow in a long run, and its circuit
  breaker opens.
- The upstream replays answers of the tests' stand-in, which have vLLM 0.32's shapes.
"""


def _nginx() -> str:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        return "no nginx"
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr
    return said.strip().rpartition(" ")[2].replace("/", " ")


__all__ = ["FIRST_BYTES", "RESULTS", "about", "beside", "checks", "costs", "heading", "hung", "ratios", "whole"]
