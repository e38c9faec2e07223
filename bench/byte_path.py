"""What this proxy costs on the byte path, beside a bare relay of the same stack and beside its peers.

    python -m bench.byte_path [--rounds 15] [--quick] [--only NAME,NAME] [--first] [--write]

All systems are up at once, in front of one upstream, and take turns within every round in an order that rotates: a
machine that drifts drifts for all of them. What is measured runs on one core, load and upstream (and shadows) on the
other. Names: see `--help`; a name stands for all that begin with it.
"""

import argparse
import contextlib
import functools
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from bench import procs, report, stats
from bench.measure import MEASURES, QUICK, Figures, Meter, Size
from bench.procs import Unavailable
from bench.systems import COMPARED, DIRECT, DOOR, HUNG, LITELLM, OFF, TITLES, Load, System, Systems, upstream

RESULT = report.RESULTS / "byte-path.md"
_SLOW = frozenset({LITELLM, COMPARED})
"""One turn in each round is enough of them: they take a hundred times as long."""


def chosen(only: str | None, *, quick: bool) -> list[str]:
    """The names that are measured, in the table's order; `direct` always, since latencies are told against it.

    Raises:
        ValueError: a name that there is not.
    """
    if only is None:
        return [name for name in TITLES if not (quick and name == LITELLM)]
    wanted = only.split(",")
    if unknown := [name for name in wanted if not any(title.startswith(name) for title in TITLES)]:
        raise ValueError(f"no system is called {', '.join(unknown)}; there are {', '.join(TITLES)}")
    return [name for name in TITLES if name == DIRECT or name.startswith(tuple(wanted))]


def start(systems: Systems, names: Iterable[str], figures: dict[str, Figures]) -> dict[str, System]:
    """Starts what can be started; what cannot is a row that says why."""
    running = {}
    for name in names:
        figures[name] = Figures()
        try:
            running[name] = systems.start(name)
            print(f"{name}: ready", flush=True)
        except Unavailable as problem:
            figures[name].problem = str(problem)
            print(f"{name}: {problem}", flush=True)
    return running


def measure(meter: Meter, running: dict[str, System], figures: dict[str, Figures], rounds: int) -> None:
    """Memory first, on fresh processes; then one round to warm up, and `rounds` that count."""
    for name, system in running.items():
        attempt(figures[name], functools.partial(meter.memory, system, figures[name]))
    print("memory: done", flush=True)
    order = list(running)
    for number in range(rounds + 1):
        print(f"round {number} of {rounds}" + ("" if number else " (to warm up)"), flush=True)
        for what in MEASURES:  # of all systems before the next: what is compared lies as close together as can be
            turns = meter.size.turns if what == "small" else 1
            for turn in range(turns):
                for name in order:
                    if not figures[name].problem and not (turn and name in _SLOW):
                        attempt(figures[name], functools.partial(meter.measure, what, running[name], figures[name]))
            for name in order if turns > 1 else ():
                figures[name].fold(1 if name in _SLOW else turns)
            seen = ((name, getattr(figures[name], what)) for name in running)
            print(
                f"  {what}, µs: " + ", ".join(f"{name} {values[-1]:,.0f}" for name, values in seen if values),
                flush=True,
            )
        order = order[1:] + order[:1]
    for one in figures.values():
        one.drop_first()


def pairs(meter: Meter, running: dict[str, System], figures: dict[str, Figures], count: int) -> list[stats.Interval]:
    """What a shadow adds to the time to the first byte, µs, in the three states of `report.FIRST_BYTES`.

    Leaves the hung shadow's queue full. Empty where not all systems are there.
    """
    if not {OFF, DOOR, HUNG} <= running.keys():
        return []
    found: list[stats.Interval] = []

    def measured() -> None:
        states = ((DOOR, True), (HUNG, True), (HUNG, False))
        for state, (name, injected) in zip(report.FIRST_BYTES, states, strict=True):
            if not injected:
                meter.fill(running[name])
            added = meter.first_bytes(running[OFF], running[name], count, injected=injected)
            found.append(stats.interval(added))
            print(f"time to first byte, {count} pairs, {state}: done", flush=True)

    attempt(figures[HUNG], measured)
    return found


def attempt(figures: Figures, work: Callable[[], None]) -> None:
    """Measures; what goes wrong becomes the system's row."""
    try:
        work()
    except (Unavailable, psutil.NoSuchProcess) as problem:
        figures.problem = str(problem)
        print(f"not measured any more: {problem}", flush=True)


def options() -> argparse.Namespace:
    """What was asked for on the command line."""
    names = "names: " + ", ".join(TITLES)
    parser = argparse.ArgumentParser(
        prog="python -m bench.byte_path",
        description=__doc__,
        epilog=names,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, help="default: 15; with --quick 2")
    parser.add_argument("--quick", action="store_true", help="under a minute: less of everything, and no LiteLLM")
    parser.add_argument("--only", metavar="NAMES", help="these systems, by the beginnings of their names")
    parser.add_argument("--first", action="store_true", help="with real-time priority (Linux, CAP_SYS_NICE)")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    asked = parser.parse_args()
    asked.rounds = asked.rounds or (2 if asked.quick else 15)
    try:
        asked.names = chosen(asked.only, quick=asked.quick)
    except ValueError as error:
        parser.error(str(error))
    return asked


def main() -> None:
    """Runs the bench; `--write` keeps the result beside the others."""
    asked = options()
    size = QUICK if asked.quick else Size()
    figures: dict[str, Figures] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="byte-path-")))
        try:
            if asked.first:
                procs.first()
            at = stack.enter_context(upstream(folder, size.tokens))
        except Unavailable as problem:
            sys.exit(f"byte_path: {problem}")
        load = stack.enter_context(Load(folder))
        running = start(Systems(stack, folder, at), asked.names, figures)
        meter = Meter(load, at, size)
        first_bytes = pairs(meter, running, figures, size.pairs)
        measure(meter, running, figures, asked.rounds)
        for system in running.values():
            system.end()
    found = report.whole(figures, first_bytes, size.pairs)
    print("\n" + found)
    if asked.write:
        told = " ".join(["python -m bench.byte_path", *sys.argv[1:]])
        about = report.heading("What the byte path costs", told) + report.about(size, asked.rounds, first=asked.first)
        report.RESULTS.mkdir(exist_ok=True)
        RESULT.write_text(f"{about}\n{found}", encoding="utf-8")


if __name__ == "__main__":
    main()
