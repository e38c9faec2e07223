"""`counterproof audit`: what the audit says, whether its chain is whole, and receipts of calls that went out."""

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Group, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from proxy.audit import AuditError, Kind, Record
from proxy.audit.canonical import mark
from proxy.audit.chain import stamp
from proxy.audit.disk import beside, read_key
from proxy.audit.reading import Report, records, verify
from proxy.commands import files
from proxy.commands.common import AsJson, Config, err, out, print_json, since_epoch
from proxy.errors import StartError
from proxy.ledger import LedgerError, LedgerReader
from shadow.errors import CounterproofError
from validators import ToolCall

app = typer.Typer(invoke_without_command=True, help="Who changed or approved what, and what countersigned the calls.")

File = Annotated[Path | None, typer.Option("--file", help="the audit's file; default: as configured, audit.jsonl")]

_TELL_EVERY = 1024 * 1024  # bytes
_RECEIPTS = frozenset({Kind.RELEASED, Kind.SUBSTITUTED, Kind.REFUSED})


@app.callback()
def audit(
    context: typer.Context,
    kind: Annotated[Kind | None, typer.Option(help="only records of this kind")] = None,
    since: Annotated[str | None, typer.Option(help="only the last 30m, 2h, 7d …")] = None,
    limit: Annotated[int, typer.Option(min=1, help="how many at most, the latest")] = 50,
    as_json: AsJson = False,
    file: File = None,
    config: Config = None,
) -> None:
    """Without a command: show the latest records."""
    if context.invoked_subcommand is not None:
        return
    begin = None if since is None else stamp(since_epoch(since))
    found = deque(
        (one for one in _records(file or files.audit(config)) if _wanted(one, kind, begin)),
        maxlen=limit,
    )
    if as_json:
        print_json([one.as_dict() for one in found])
    elif found:
        out.print(_table(found))
    else:
        out.print("The audit has no such record.")


def _wanted(record: Record, kind: Kind | None, begin: str | None) -> bool:
    return (kind is None or record.kind == kind) and (begin is None or record.at >= begin)


def _records(path: Path) -> Iterator[Record]:
    try:
        yield from records(path)
    except AuditError as error:
        raise StartError(str(error)) from None


@app.command("verify")
def check(
    file: Annotated[Path | None, typer.Argument(help="default: as configured, audit.jsonl")] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Check the whole chain. Exit code 1: a line was changed, is missing or stands elsewhere; 2: it cannot be read."""
    report = _verified(file or files.audit(config))
    if as_json:
        print_json(report.as_dict())
    else:
        out.print(_report(report), soft_wrap=True)
    if report.fault is not None:
        raise typer.Exit(1)


def _verified(path: Path) -> Report:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("checking the chain", total=path.stat().st_size if path.is_file() else None)
        seen = 0

        def advance(size: int) -> None:  # now and then: a line takes less time than telling it would
            nonlocal seen
            seen += size
            if seen >= _TELL_EVERY:
                progress.advance(task, seen)
                seen = 0

        try:
            return verify(path, advance)
        except AuditError as error:
            raise StartError(str(error)) from None


def _report(report: Report) -> Text:
    if report.fault is not None:
        return Text.assemble(
            (f"{report.path}: {report.fault.words}", "red"), f"\n{report.lines} lines before it are whole."
        )
    whole = Text(f"{report.path}: the chain {report.chain or '(empty)'} is whole: {report.lines} lines, ", "green")
    whole.append(f"the last one's hash is {report.digest}")
    if not report.anchored:
        whole.append(
            f"\nNothing beside it says where it ends ({beside(report.path, 'head').name} is not there).", "yellow"
        )
    return whole


@app.command()
def receipt(
    exchange: Annotated[str, typer.Argument(help="an exchange's id, or its beginning")],
    as_json: AsJson = False,
    file: File = None,
    ledger: Annotated[Path | None, typer.Option(help="the ledger's file, for what the calls say")] = None,
    config: Config = None,
) -> None:
    """Print what was done with an exchange's calls and what that rests on; what they say is taken from the ledger."""
    path = file or files.audit(config)
    found: list[Record] = []

    def take(record: Record) -> None:
        if record.kind in {*_RECEIPTS, Kind.APPROVAL} and str(record.data.get("exchange", "")).startswith(exchange):
            found.append(record)

    try:
        report = verify(path, take=take)
    except AuditError as error:
        raise StartError(str(error)) from None
    exchanges = {str(record.data["exchange"]) for record in found if record.kind in _RECEIPTS}
    if not exchange or len(exchanges) != 1:
        raise CounterproofError(f"{path}: no receipt, or more than one, begins with {exchange!r}")
    receipts = [record for record in found if record.data["exchange"] in exchanges and record.kind in _RECEIPTS]
    said = _Said(ledger or _ledger(config), path, exchanges.pop())
    if as_json:
        whole = report.fault is None
        print_json([record.as_dict() | {"chain_whole": whole, "said": said.of(record.data)} for record in receipts])
    else:
        out.print(Group(*(part for record in receipts for part in _receipt(record, report, said))))


def _ledger(config: Path | None) -> Path | None:
    try:
        return files.ledger(config)
    except StartError:  # none is kept
        return None


class _Said:
    """What the ledger still has of an exchange's calls, held against their hashes in the audit."""

    def __init__(self, ledger: Path | None, audit_file: Path, exchange: str) -> None:
        self._record: dict[str, Any] = {}
        try:
            self._key = read_key(beside(audit_file, "key"))
        except (AuditError, OSError):
            return
        try:
            if ledger is not None:
                with LedgerReader(ledger) as reader:
                    self._record = reader.exchange(exchange) or {}
        except LedgerError:
            return

    def of(self, data: dict[str, Any]) -> dict[str, str]:
        """The arguments of a receipt's calls by their hashes; without those that the ledger has not or not any more."""
        if "calls" not in data:
            return {}
        verdicts = [v for v in self._record.get("verdicts", []) if v["choice"] == data["choice"]]
        choices = [c for c in self._record.get("choices", []) if c["index"] == data["choice"]]
        calls = [call for one in (*verdicts, *choices) for call in (*one["calls"], *one.get("substitute", []))]
        known = [ToolCall(call["name"], call["arguments"]) for call in calls if "arguments" in call]
        return {mark(call, self._key): call.arguments for call in known}


def _receipt(record: Record, report: Report, said: _Said) -> Iterator[RenderableType]:
    data = record.data
    if "calls" not in data:  # refused before anybody knew of any
        names = ("exchange", "done", "why", "dialect", "model", "client")
        yield _grid({name: str(data[name]) for name in names if name in data} | {"at": record.at, "hash": record.hash})
        return
    rows = {
        "exchange": data["exchange"],
        "at": record.at,
        "done": data["done"],
        "verdict": f"{data['word']} ({data['why']})" if data["why"] else data["word"],
        "countersigned by": ", ".join(
            f"{one['name']} ({one['way']})" if one["way"] else one["name"] for one in data["agreed"]
        ),
        "approved by": _approved(data["approval"]),
        "policy": data["policy"],
        "model": data["model"],
        "conversation": data["conversation"],
        "line": f"{record.n} of the chain {report.chain}, {_standing(report)}",
        "hash": record.hash,
    }
    yield _grid(rows)
    arguments = said.of(data)
    yield _calls("calls", data["calls"], arguments)
    if "instead" in data:
        yield _calls("sent instead", data["instead"], arguments)
    yield _engines(data["engines"])


def _standing(report: Report) -> str:
    return "which is whole" if report.fault is None else f"which is not whole: {report.fault.words}"


def _approved(approval: dict[str, Any] | None) -> str:
    return "nobody was asked" if approval is None else f"{', '.join(approval['approvers'])} ({approval['id']})"


def _calls(title: str, calls: list[dict[str, Any]], said: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("tool", "risk", "hash (keyed)", "arguments, as the ledger has them"):
        table.add_column(name, overflow="fold")
    for call in calls:
        text = said.get(call["hash"])
        shown = "(not kept, or erased)" if text is None else _printable(text)
        table.add_row(Text(call["tool"]), call["risk"], call["hash"], Text(shown, "dim" if text is None else ""))
    return table


def _engines(engines: list[dict[str, Any]]) -> Table:
    table = Table(title="engines, as they said of themselves", title_justify="left")
    for name in ("name", "role", "model", "version", "context (tokens)", "tokenizer (hash)"):
        table.add_column(name, overflow="fold")
    for one in engines:
        keys = ("name", "role", "model", "version", "max_model_len", "tokenizer")
        table.add_row(*(Text("–" if one.get(key) is None else _printable(str(one[key]))) for key in keys))
    return table


def _grid(rows: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, "dim"), Text(_printable(value) or "–"))
    return table


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _table(found: deque[Record]) -> Table:
    table = Table()
    table.add_column("n", justify="right")
    for name in ("at", "kind", "who", "what"):
        table.add_column(name, overflow="fold")
    for record in found:
        data = orjson.dumps(_short(record.data)).decode()
        table.add_row(str(record.n), record.at, record.kind, Text(record.who), Text(_printable(data)))
    return table


def _short(data: dict[str, Any]) -> dict[str, Any]:
    """What a list shows of a record: its words and tools, without what a receipt has in detail."""
    words = {name: value for name, value in data.items() if value and not isinstance(value, list | dict)}
    tools = sorted({call["tool"] for call in data.get("calls", [])})
    return words | ({"tools": ", ".join(tools)} if tools else {})


def by_whom() -> str:
    """The *who* of what is done on this machine without a proxy."""
    return f"(uid {os.getuid()})"
