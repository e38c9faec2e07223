"""The `counterproof` command."""

import asyncio
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from proxy import commands, configfile, logs, show
from proxy.admin import Admin
from proxy.check import Checked, check_sets
from proxy.check import check as check_engines
from proxy.commands.common import AsJson, Config, Control, Token, admin, err, out, print_json, since_epoch
from proxy.errors import StartError
from proxy.ledger import LedgerError, LedgerReader
from proxy.server import run
from proxy.settings import Settings
from shadow.errors import CounterproofError

app = typer.Typer(
    help="A proxy that has every tool call of your agents read a second time by a reference engine of the same model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Primary = Annotated[str | None, typer.Option(help="the vLLM whose answers clients get, as http://host:8000/v1")]
Shadow = Annotated[list[str] | None, typer.Option(help="a reference, as NAME=http://host:8000/v1; may be repeated")]


def main() -> None:
    """The console entry point: what must be mended is one clear line each on standard error, exit code 2."""
    try:
        app()
    except StartError as error:
        for problem in error.problems:
            err.print(f"counterproof: {problem}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except CounterproofError as error:
        err.print(f"counterproof: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except BrokenPipeError:  # `counterproof exchanges | head`
        sys.stderr.close()
        sys.exit(0)


@app.callback(invoke_without_command=True)
def _root(show_version: Annotated[bool, typer.Option("--version", help="print the version and leave")] = False) -> None:
    if show_version:
        out.print(f"counterproof {version('counterproof')}")
        raise typer.Exit


def _overrides(primary: str | None, shadow: list[str] | None, **more: dict[str, Any]) -> dict[str, Any]:
    overrides: dict[str, Any] = {
        section: kept
        for section, values in more.items()
        if (kept := {k: v for k, v in values.items() if v is not None})
    }
    if primary is not None:
        overrides["primary"] = {"base_url": primary}
    if shadow:
        overrides["shadows"] = [_shadow(text) for text in shadow]
    return overrides


def _shadow(text: str) -> dict[str, str]:
    name, equals, url = text.partition("=")
    if not equals:
        raise StartError(f"command line: --shadow {text}: NAME=URL was expected, like ref=http://host:8000/v1")
    return {"name": name, "base_url": url}


@app.command()
def serve(
    config: Config = None,
    primary: Primary = None,
    shadow: Shadow = None,
    host: Annotated[
        str | None, typer.Option(help="where agents connect; 0.0.0.0 exposes it; default: 127.0.0.1")
    ] = None,
    port: Annotated[int | None, typer.Option(help="the data port; default: 8080")] = None,
    control_port: Annotated[int | None, typer.Option(help="metrics and the admin API; default: 8081")] = None,
    ledger: Annotated[Path | None, typer.Option(help="where what is found is kept; default: counterproof.db")] = None,
) -> None:
    """Run the proxy. With no file, --primary and --shadow suffice; agents set their base_url to it."""
    overrides = _overrides(
        primary,
        shadow,
        listen={"host": host, "port": port},
        control={"port": control_port},
        ledger={"path": str(ledger) if ledger else None},
    )
    settings = configfile.load(config, overrides)
    logs.configure(settings.log.level, settings.log.format)
    run(
        settings,
        lambda data, control: _greet(settings, data, control),
        path=config,
        load=lambda: configfile.load(config, overrides),
    )


def _greet(settings: Settings, data: str, control: str) -> None:
    shadows = ", ".join(f"{s.name} ({s.base_url})" for s in settings.shadows) or "none: nothing is compared"
    ledger = f"{settings.ledger.path} (content: {settings.ledger.content})" if settings.ledger.path else "none"
    lines = {
        "agents' base_url": f"http://{data}/v1",
        "metrics": f"http://{control}/metrics",
        "primary": settings.primary.base_url,
        "shadows": shadows,
        "mirrored": f"{settings.mirror.tool_calls:.0%} of answers with tool calls, {settings.mirror.other:.0%} of rest",
        "ledger": ledger,
        "audit": str(settings.audit_path or "none"),
    }
    does = {"off": "passes on, and compares nothing", "observe": "observes", "block": "blocks"}[settings.mode]
    err.print(f"counterproof {version('counterproof')} {does}")
    for name, value in lines.items():
        err.print(f"  {name:<17} {value}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def check(config: Config = None, primary: Primary = None, shadow: Shadow = None, as_json: AsJson = False) -> None:
    """Validate the configuration, read its sets, ask every engine what it can do. Exit code 1: one is away or unfit."""
    settings = configfile.load(config, _overrides(primary, shadow))
    asyncio.run(check_sets(settings, config))
    for warning in settings.policy.warnings(max(settings.voters.values())):
        err.print(f"policy: {warning}", markup=False, highlight=False, soft_wrap=True)
    found = _with_progress(settings)
    if as_json:
        print_json([engine.as_dict() for engine in found])
    else:
        out.print(show.capabilities(found))
        for engine in found:
            if engine.error:
                out.print(engine.error, markup=False, highlight=False, style="red")
            if engine.refusal:
                refused = f"{engine.name} is refused as a reference for this primary: {engine.refusal}"
                out.print(refused, markup=False, highlight=False, style="red")
        if not settings.shadows:
            out.print("No shadow is configured: nothing will be compared.")
    if not all(engine.fit for engine in found):
        raise typer.Exit(1)


def _with_progress(settings: Settings) -> list[Checked]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        waiting = {s.name: progress.add_task(f"asking {s.name}", total=1) for s in settings.shadows}
        waiting["primary"] = progress.add_task("asking primary (a cold engine compiles first)", total=1)

        def answered(name: str) -> None:
            progress.update(waiting[name], completed=1)

        return asyncio.run(check_engines(settings, answered))


@app.command()
def exchanges(
    exchange: Annotated[
        str | None, typer.Argument(help="an exchange's id, or its beginning; without one: a list")
    ] = None,
    *,
    config: Config = None,
    ledger: Annotated[
        Path | None, typer.Option(help="the ledger's file; default: as configured, counterproof.db")
    ] = None,
    verdict: Annotated[str | None, typer.Option(help="only with this verdict, like mismatch")] = None,
    tool: Annotated[str | None, typer.Option(help="only with a call of this tool")] = None,
    shadow: Annotated[str | None, typer.Option(help="only what this shadow looked at")] = None,
    since: Annotated[str | None, typer.Option(help="only the last 30m, 2h, 7d …")] = None,
    flipped: Annotated[bool, typer.Option("--flipped", help="only with a changed winner")] = False,
    limit: Annotated[int, typer.Option(min=1, help="how many at most")] = 50,
    erase: Annotated[
        str | None, typer.Option(metavar="CONVERSATION", help="remove what was said in the conversation with this key")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="erase without asking")] = False,
    as_json: AsJson = False,
    control: Control = None,
    token: Token = None,
) -> None:
    """What was found: a list of exchanges, or one of them side by side."""
    path = ledger or commands.files.ledger(config)
    if erase is not None:
        _erase(erase, path, ledger, config, yes, lambda: admin(control, token, config))
        return
    try:
        with LedgerReader(path) as reader:
            if exchange is not None:
                record = reader.exchange(exchange)
                if record is None:
                    raise CounterproofError(f"{path}: no exchange, or more than one, begins with {exchange!r}")
                print_json(record) if as_json else out.print(show.exchange(record))
                return
            found = list(
                reader.exchanges(
                    verdict=verdict,
                    tool=tool,
                    shadow=shadow,
                    since=since_epoch(since) if since else None,
                    flipped=flipped,
                    limit=limit,
                )
            )
    except LedgerError as error:
        raise StartError(str(error)) from None
    if as_json:
        print_json(found)
    elif found:
        out.print(show.exchanges(found))
        if len(found) == limit:
            out.print(f"The latest {limit}; --limit shows more.", style="dim")
    else:
        out.print("Nothing was found that fits.")


def _erase(
    conversation: str, path: Path, given: Path | None, config: Path | None, sure: bool, port: Callable[[], Admin]
) -> None:
    try:
        audit = commands.files.audit_beside(config, given)
        count = commands.erasing.erase(conversation, path, audit, port, sure=sure)
    except LedgerError as error:
        raise StartError(str(error)) from None
    out.print(f"What was said in {count} exchanges of {conversation} is erased; what figures rest on stays.")


app.command()(commands.mode.mode)
app.add_typer(commands.approvals.app, name="approvals")
app.add_typer(commands.audit.app, name="audit")


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="leave engines and proxy up at the end, until Ctrl-C")] = False,
    port: Annotated[int, typer.Option(help="the proxy's data port (0: any)")] = 0,
) -> None:
    """Two real vLLM engines on this CPU, a real agent workload through the proxy, and what differed."""
    try:
        from proxy.demo.run import run_demo  # noqa: PLC0415  (needs the `demo` extra, which `serve` does not)
    except ModuleNotFoundError as error:
        raise StartError(f"demo: {error.name} is not installed; pip install 'counterproof[demo]'") from None
    run_demo(keep=keep, port=port, console=out)
