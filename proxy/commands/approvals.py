"""`counterproof approvals`: the calls that wait for people, shown and answered."""

import contextlib
import json
import re
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from proxy.commands.common import AsJson, Config, Control, Token, admin, out, print_json
from proxy.control.approvals import PATH

app = typer.Typer(invoke_without_command=True, help="The calls that wait for people: shown and answered.")

Id = Annotated[str, typer.Argument(help="the approval's id, like ap-3f9a…", metavar="ID")]
Reason = Annotated[str, typer.Option(help="why, for the record")]
Row = dict[str, Any]

_OPEN = "\ue000"  # a private character, between two of which a number is
_NUMBER = re.compile(f'"{_OPEN}([^{_OPEN}]*){_OPEN}"')
_COLOURS = {"waiting": "yellow", "late": "yellow", "approved": "green", "released": "green", "denied": "red"}


@app.callback()
def approvals(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=200, help="how many at most")] = 50,
    as_json: AsJson = False,
    control: Control = None,
    token: Token = None,
    config: Config = None,
) -> None:
    """Without a command: list what waits, oldest first."""
    if context.invoked_subcommand is not None:
        return
    with admin(control, token, config) as port:
        found = port.get(PATH, limit=str(limit))
    if as_json:
        print_json(found)
    elif found["approvals"]:
        out.print(_table(found["approvals"], time.time()))
        if found["more"]:
            out.print(f"The oldest {limit}; --limit shows more.", style="dim")
    else:
        out.print("No call waits for anybody.")


@app.command()
def show(
    identity: Id, as_json: AsJson = False, control: Control = None, token: Token = None, config: Config = None
) -> None:
    """Show one with all that its calls say."""
    with admin(control, token, config) as port:
        found = port.get(_path(identity))
    print_json(found) if as_json else out.print(_whole(found))


@app.command()
def approve(
    identity: Id,
    reason: Reason = "",
    as_json: AsJson = False,
    control: Control = None,
    token: Token = None,
    config: Config = None,
) -> None:
    """Let its calls out: to the client that waits, or once when they come again."""
    _answer(identity, {"answer": "approve", "reason": reason}, as_json, control, token, config)


@app.command()
def deny(
    identity: Id,
    reason: Reason = "",
    as_json: AsJson = False,
    control: Control = None,
    token: Token = None,
    config: Config = None,
) -> None:
    """Refuse its calls."""
    _answer(identity, {"answer": "deny", "reason": reason}, as_json, control, token, config)


def _answer(identity: str, reply: Row, as_json: bool, control: Control, token: Token, config: Config) -> None:
    with admin(control, token, config) as port:
        found = port.post(_path(identity), reply)
    if as_json:
        print_json(found)
        return
    line = Text.assemble(found["id"], ": ", _state(found["state"]))
    if found["state"] in {"waiting", "late"}:
        line.append(f", approved by {_approvers(found)}: {_so_far(found)}")
    out.print(line)


def _path(identity: str) -> str:
    return f"{PATH}/{quote(identity, safe='')}"


def _table(found: Iterable[Row], now: float) -> Table:
    table = Table()
    for name in ("id", "state", "age", "expires in"):
        table.add_column(name, no_wrap=True)
    for name in ("tool", "why", "model", "approvals"):
        table.add_column(name, overflow="fold")
    for one in found:
        left = _epoch(one["expires_at"]) - now
        table.add_row(
            one["id"],
            _state(one["state"]),
            _duration(now - _epoch(one["asked_at"])),
            _duration(left) if left > 0 and one["state"] == "waiting" else "–",
            Text(", ".join(sorted({_line(call["tool"]) for call in one["calls"]}))),
            Text(f"{one['word']}: {one['why']}"),
            Text(_line(one["model"])),
            _so_far(one),
        )
    return table


def _whole(found: Row) -> Group:
    rows = {
        "approval": Text(found["id"]),
        "state": _state(found["state"]),
        "verdict": Text(f"{found['word']} ({found['why']})"),
        "model": Text(_line(found["model"])),
        "exchange": Text(found["exchange"] or "–"),
        "conversation": Text(found["conversation"]),
        "asked": Text(_time(found["asked_at"])),
        "client waits until": Text(_time(found["expires_at"])),
        "approvals": Text(_so_far(found)),
    }
    head = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        head.add_row(Text(name, "dim"), value)
    parts: list[RenderableType] = [head]
    parts += [
        Panel(Text(_arguments(call["arguments"])), title=Text(_line(call["tool"])), title_align="left")
        for call in found["calls"]
    ]
    for vote in found["votes"]:
        said = Text.assemble(f"{_time(vote['at'])}  {vote['who']} ", _state(vote["answer"]))
        parts.append(said.append(f": {vote['reason']}" if vote["reason"] else ""))
    return Group(*parts)


def _arguments(text: str) -> str:
    """A call's arguments for people, all of them: indented where they are JSON, and nothing that steers a terminal.

    Numbers stand as the model wrote them.
    """
    shown = text
    if _OPEN not in text and "\\ue000" not in text.lower():
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_number)
            shown = _NUMBER.sub(r"\1", json.dumps(value, indent=2, ensure_ascii=False))
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in shown)


def _number(text: str) -> str:
    return f"{_OPEN}{text}{_OPEN}"


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _state(value: str) -> Text:
    return Text(value, style=_COLOURS.get(value, "dim"))


def _approvers(found: Row) -> str:
    return ", ".join(vote["who"] for vote in found["votes"] if vote["answer"] == "approved")


def _so_far(found: Row) -> str:
    return f"{sum(vote['answer'] == 'approved' for vote in found['votes'])} of {found['needed']}"


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _time(text: str) -> str:
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S}"


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m {whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h {whole % 3600 // 60:02}m"
