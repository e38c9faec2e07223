"""Seeded random tests of what reads untrusted bytes.

    python -m bench.fuzz [sse|calls|policy|refusal|all] [--seconds 60] [--seed 1] [--failures FOLDER] [--write]
    python -m bench.fuzz sse --replay FOLDER/sse-….hex

Inputs are drawn by structure (`bench.fuzz_streams`, `bench.fuzz_policies`); what must hold of each is in
`bench.fuzz_checks`, `bench.fuzz_policies` and `bench.fuzz_refusals`. The n-th input of a seed is the same everywhere.
An input for which something does not hold is saved as hex; exit status 1 then.
"""

import argparse
import datetime as dt
import hashlib
import platform
import random
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import fuzz_checks, fuzz_policies, fuzz_refusals, fuzz_streams

RESULT = Path(__file__).parent / "results" / "fuzz.md"
_ABOUT = """\
# Fuzzing

Seeded, structure-aware random tests of what reads untrusted bytes, and policy files: `python -m bench.fuzz`. Inputs are
the streams of the tests' leak corpus and made-up ones, changed event by event, line by line, in their JSON and in their
bytes; and valid configurations, changed in their values, lines, words and bytes."""
_MOST_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Target:
    """What is tested: `make` draws an input, `check` raises where what `claim` says does not hold of it."""

    claim: str
    make: Callable[[random.Random], bytes]
    check: Callable[[bytes], None]


TARGETS: dict[str, Target] = {
    "sse": Target(
        "Event streams: any bytes in any pieces come out again, none twice, and are read as by a plain reader.",
        fuzz_streams.stream,
        fuzz_checks.splitting,
    ),
    "calls": Target(
        "Tool calls: any stream is read without raising, and to the same calls however it is cut, framed or told in "
        "smaller deltas; calls that are known come together again from deltas of any size and order.",
        fuzz_streams.stream,
        fuzz_checks.assembling,
    ),
    "policy": Target(
        "Policies: any file is a configuration, or an error with a line for each fault, in bounded time; a policy that "
        "is accepted judges any calls without raising.",
        fuzz_policies.policy_file,
        fuzz_policies.loading,
    ),
    "refusal": Target(
        "Refusals: any verdict is told in a short text, in valid JSON; of a stream whose calls are refused, no reader "
        "gets a call; of one whose calls are released, nothing is lost.",
        fuzz_refusals.stream,
        fuzz_refusals.refusing,
    ),
}
"""What can be fuzzed, by name; one more is one more entry."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An input of which something does not hold, and what or where that is (never the input's own text)."""

    number: int
    data: bytes
    error: str


@dataclass
class Run:
    """One target's run. `slowest` are seconds of one execution; failures at one place count once."""

    name: str
    executions: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    failed: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)

    def once(self, target: Target, data: bytes) -> None:
        """Checks one input."""
        began = time.perf_counter()
        try:
            target.check(data)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
            self.failed += 1
            place = _place(error)
            if len(self.failures) < _MOST_FAILURES:
                self.failures.setdefault(place, Failure(self.executions, data, place))
        self.slowest = max(self.slowest, time.perf_counter() - began)
        self.executions += 1


def _place(error: Exception) -> str:
    """What tells one finding from another: a claim's own words, or where something was raised."""
    if isinstance(error, AssertionError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {last.name}, line {last.lineno} of {Path(last.filename).name}"


def fuzz(name: str, target: Target, seed: int, *, seconds: float = 0.0, executions: int = 0) -> Run:
    """Runs one target for so many seconds, or for so many executions where they are given."""
    run, began = Run(name), time.monotonic()
    while run.executions < executions if executions else time.monotonic() - began < seconds:
        run.once(target, target.make(random.Random(f"{seed} {name} {run.executions}")))
    run.seconds = time.monotonic() - began
    return run


def save(run: Run, folder: Path) -> list[Path]:
    """Keeps the failures' inputs as hex, one file each."""
    files = []
    for failure in run.failures.values():
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{run.name}-{hashlib.sha256(failure.data).hexdigest()[:16]}.hex"
        file.write_text(failure.data.hex() + "\n", encoding="ascii")
        files.append(file)
    return files


def said(run: Run) -> str:
    """One line of a run's figures."""
    speed = run.executions / run.seconds if run.seconds else 0.0
    return (
        f"{run.executions:,} executions in {run.seconds:.0f} s ({speed:,.0f} a second), {run.failed:,} failed; "
        f"the slowest took {1000 * run.slowest:.0f} ms"
    )


def section(run: Run, target: Target, command: str) -> str:
    """A run as a section of the results."""
    when = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC"
    lines = [f"## {run.name}", "", target.claim, "", f"{when}, `{command}`, Python {platform.python_version()}:"]
    lines.append(f"{said(run)}.")
    return "\n".join([*lines, *(f"- {failure.error}" for failure in run.failures.values())])


def with_section(text: str, name: str, new: str) -> str:
    """The results with one section put in, or in place of the one of that name."""
    head, *sections = re.split(r"^(?=## )", text or _ABOUT, flags=re.MULTILINE)
    kept = {part.split("\n", 1)[0].removeprefix("## "): part.strip() for part in sections}
    kept[name] = new
    return "\n\n".join([head.strip(), *(kept[name] for name in sorted(kept))]) + "\n"


def main(arguments: Sequence[str] | None = None, result: Path = RESULT) -> int:
    """Runs what is named, says what was found; 1 where something was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--executions", type=int, default=0, help="for each target, in place of seconds")
    parser.add_argument("--seed", type=int, default=1)
    kept = Path(tempfile.gettempdir()) / "counterproof-fuzz"
    parser.add_argument("--failures", type=Path, default=kept, help="folder for the inputs that failed (%(default)s)")
    parser.add_argument("--replay", type=Path, help="check one saved input only")
    parser.add_argument("--write", action="store_true", help=f"write {result.name}")
    options = parser.parse_args(arguments)
    names = list(TARGETS) if options.target == "all" else [options.target]
    if options.replay:
        data = bytes.fromhex(options.replay.read_text(encoding="ascii"))
        for name in names:
            TARGETS[name].check(data)
        return 0
    failed = False
    for name in names:
        run = fuzz(name, TARGETS[name], options.seed, seconds=options.seconds, executions=options.executions)
        failed |= bool(run.failed)
        print(f"{name}: {said(run)}", flush=True)
        for failure, file in zip(run.failures.values(), save(run, options.failures), strict=True):
            print(f"  {failure.error} (input {failure.number}: {file})")
        if options.write:
            size = f"--executions {options.executions}" if options.executions else f"--seconds {options.seconds:g}"
            command = f"python -m bench.fuzz {name} {size} --seed {options.seed} --write"
            result.parent.mkdir(exist_ok=True)
            old = result.read_text(encoding="utf-8") if result.exists() else ""
            result.write_text(with_section(old, name, section(run, TARGETS[name], command)), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
