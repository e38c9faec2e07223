"""`counterproof demo`: real engines, a real proxy process, a real client, and what differed."""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.rule import Rule

from proxy import show
from proxy.demo import report, workload
from proxy.demo.rig import PRIMARY_ARGS, REFERENCE_ARGS, Engine, Rig, bfcl_data, free_port, prepare
from proxy.demo.served import ProxyProcess
from proxy.ledger import LedgerReader

SHADOW = "float32"
_READY_SECONDS = 600.0
_COMPARED_SECONDS = 600.0


def run_demo(*, keep: bool, port: int, console: Console) -> None:
    """Runs the whole demo; with `keep`, engines and proxy stay up until Ctrl-C.

    Raises:
        RigError: the rig could not be built, or something did not come up; with one clear line and a log's path.
    """
    began = time.monotonic()
    say = _speaker(console, began)
    console.print(Rule("Counterproof demo: two real vLLM engines on this CPU"))
    rig = prepare(say)
    questions = bfcl_data(say)
    folder = Path(tempfile.mkdtemp(prefix="counterproof-demo-"))
    ledger = folder / "counterproof.db"
    with contextlib.ExitStack() as stack:
        primary, reference = stack.enter_context(_engines(rig, console))
        proxy = stack.enter_context(ProxyProcess(_settings(folder, primary, reference, port), folder))
        say(f"the proxy is up; agents would set base_url to {proxy.base_url}")
        with console.status("asking both engines what they can do, which warms them"):
            proxy.wait_fit(SHADOW, _READY_SECONDS)
        done = _work(proxy.base_url, workload.tasks(questions), console)
        _wait_compared(proxy, len(done), console)
        records = _records(ledger)
        _tell(console, done, records)
        console.print(Rule("Where to look"))
        where = {
            "metrics": f"{proxy.control_url}/metrics",
            "one exchange": f"counterproof exchanges --ledger {ledger} {done[1].exchange[:11]}",
            "all of them": f"counterproof exchanges --ledger {ledger}",
            "configuration": str(proxy.config),
        }
        for name, value in where.items():
            console.print(f"  {name:<14} {value}", markup=False, highlight=False, soft_wrap=True)
        console.print(
            f"[bold]{time.monotonic() - began:.0f} s[/bold], building included (the next run needs none of it)."
        )
        if keep:
            _stay(console, proxy.base_url)
        else:
            console.print(
                "Engines and proxy are being stopped; the ledger stays. `make demo KEEP=1` leaves all of it up."
            )


def _speaker(console: Console, began: float) -> Callable[[str], None]:
    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim] ", end="")
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    return say


@contextlib.contextmanager
def _engines(rig: Rig, console: Console) -> Iterator[tuple[Engine, Engine]]:
    """Both engines, each on its own core where there are two, serving; ended at the end."""
    cores: Sequence[int | None] = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else ()
    cores = cores if len(cores) == 2 else (None, None)
    started = []
    try:
        for name, core, args in (("primary", cores[0], PRIMARY_ARGS), ("reference", cores[1], REFERENCE_ARGS)):
            started.append(Engine.start(rig, name=name, port=free_port(), core=core, args=args))
        primary, reference = started
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task("starting two vLLM engines (about a minute)")
            asyncio.run(_ready(primary, reference))
        console.print(f"primary:   vllm serve {' '.join(PRIMARY_ARGS)}", markup=False, highlight=False)
        console.print(f"reference: vllm serve {' '.join(REFERENCE_ARGS)}", markup=False, highlight=False)
        yield primary, reference
    finally:
        for engine in started:
            engine.stop()


async def _ready(*engines: Engine) -> None:
    await asyncio.gather(*(engine.wait_ready(_READY_SECONDS) for engine in engines))


def _settings(folder: Path, primary: Engine, reference: Engine, port: int) -> dict[str, Any]:
    """The demo's configuration file: everything mirrored, content kept."""
    return {
        "primary": {"base_url": primary.base_url},
        "shadows": [{"name": SHADOW, "base_url": reference.base_url, "max_concurrency": 1, "timeout": "300s"}],
        "mirror": {"tool_calls": 1, "other": 1},
        "ledger": {"path": str(folder / "counterproof.db"), "content": "full"},
        "listen": {"port": port or free_port()},
        "control": {"port": free_port()},
        "log": {"format": "json"},
    }


def _wait_compared(proxy: ProxyProcess, count: int, console: Console) -> None:
    """Until every exchange has its outcome, with a progress bar."""
    with _bar(console) as bar:
        task = bar.add_task("comparing with the reference", total=count)
        proxy.wait_outcomes(count, _COMPARED_SECONDS, lambda seen: bar.update(task, completed=seen))


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def _work(base_url: str, tasks: list[workload.Task], console: Console) -> list[workload.Done]:
    with _bar(console) as bar:
        task = bar.add_task("the agent works", total=len(tasks))
        return workload.run(base_url, tasks, lambda _done: bar.advance(task))


def _records(ledger: Path) -> list[report.Record]:
    time.sleep(0.5)  # the ledger writes behind
    with LedgerReader(ledger) as reader:
        return list(reader.exchanges(limit=1000))


def _tell(console: Console, done: list[workload.Done], records: list[report.Record]) -> None:
    by_id = {record["id"]: record for record in records}
    console.print(Rule("What differed"))
    console.print(report.tasks(done, by_id))
    console.print(report.flips(records))
    console.print(report.verdicts(records))
    for item in done[:2]:
        if item.exchange in by_id:
            console.print(Rule(item.task.label))
            console.print(show.exchange(by_id[item.exchange]))
    console.print(
        "The reference is the same model in float32: a fidelity reference, not an oracle.",
        style="dim",
    )


def _stay(console: Console, base_url: str) -> None:
    console.print(f"Everything stays up: base_url {base_url}. Ctrl-C ends it.")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)
