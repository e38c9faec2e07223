"""`counterproof demo`: real engines, a real proxy process, a real client, and what differed."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import httpx2
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.rule import Rule

from proxy import show
from proxy.demo import report, workload
from proxy.demo.rig import PRIMARY_ARGS, REFERENCE_ARGS, Engine, Rig, RigError, bfcl_data, free_port, prepare
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
    with contextlib.ExitStack() as stack:
        primary, reference = stack.enter_context(_engines(rig, console))
        proxy = stack.enter_context(_Proxy(folder, primary, reference, port))
        say(f"the proxy is up; agents would set base_url to {proxy.base_url}")
        proxy.wait(SHADOW, console)
        done = _work(proxy.base_url, workload.tasks(questions), console)
        proxy.wait_compared(len(done), console)
        records = _records(proxy.ledger)
        _tell(console, done, records)
        console.print(Rule("Where to look"))
        where = {
            "metrics": f"{proxy.control_url}/metrics",
            "one exchange": f"counterproof exchanges --ledger {proxy.ledger} {done[1].exchange[:11]}",
            "all of them": f"counterproof exchanges --ledger {proxy.ledger}",
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


class _Proxy:
    """`counterproof serve` as a process of its own, as a user starts it."""

    def __init__(self, folder: Path, primary: Engine, reference: Engine, port: int) -> None:
        self.config = folder / "counterproof.yaml"
        self.ledger = folder / "counterproof.db"
        self._log = folder / "proxy.log"
        data, control = port or free_port(), free_port()
        self.base_url = f"http://127.0.0.1:{data}/v1"
        self.control_url = f"http://127.0.0.1:{control}"
        settings = {
            "primary": {"base_url": primary.base_url},
            "shadows": [{"name": SHADOW, "base_url": reference.base_url, "max_concurrency": 1, "timeout": "300s"}],
            "mirror": {"tool_calls": 1, "other": 1},
            "ledger": {"path": str(self.ledger), "content": "full"},
            "listen": {"port": data},
            "control": {"port": control},
            "log": {"format": "json"},
        }
        self.config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", "from proxy.cli import main; main()", "serve", "--config", str(self.config)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603
        self._until(lambda: self._get("/healthz") is not None, 30, "the proxy did not come up")
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait(60)

    def _get(self, path: str) -> str | None:
        try:
            return httpx2.get(self.control_url + path, timeout=5, trust_env=False).text
        except httpx2.TransportError:
            return None

    def _until(self, true: Callable[[], bool], seconds: float, complaint: str) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if (self._process and self._process.poll() is not None) or time.monotonic() > deadline:
                raise RigError(f"{complaint}; log: {self._log}")
            time.sleep(0.25)

    def _metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry the labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = (self._get("/metrics") or "").splitlines()
        found = [line for line in lines if line.startswith(name + "{") and all(label in line for label in wanted)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def wait(self, shadow: str, console: Console) -> None:
        """Until the shadow is found, warm and fit."""
        with console.status("asking both engines what they can do, which warms them"):
            self._until(
                lambda: self._metric("counterproof_shadow_up", shadow=shadow) == 1,
                _READY_SECONDS,
                "the reference was not found fit",
            )

    def wait_compared(self, count: int, console: Console) -> None:
        """Until every exchange has its outcome, with a progress bar."""
        with _bar(console) as bar:
            task = bar.add_task("comparing with the reference", total=count)

            def compared() -> bool:
                seen = self._metric("counterproof_mirror_total")
                bar.update(task, completed=seen)
                return seen >= count

            self._until(compared, _COMPARED_SECONDS, "the reference did not finish")


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
