"""`counterproof mode`: the switch of a proxy that runs, shown or turned."""

from datetime import datetime
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from proxy.commands.common import AsJson, Config, Control, Token, admin, err, out, print_json
from proxy.control.mode import PATH
from proxy.errors import StartError

_COLOURS = {"off": "yellow", "observe": "cyan", "block": "green"}


def mode(
    to: Annotated[
        Literal["off", "observe", "block"] | None, typer.Argument(help="without one: what is in force")
    ] = None,
    lasts: Annotated[str | None, typer.Option("--for", help="30m, 2h or 7d, for example; at most 30d")] = None,
    model: Annotated[str | None, typer.Option(help="for this model only")] = None,
    tool: Annotated[str | None, typer.Option(help="for this tool only")] = None,
    reason: Annotated[str | None, typer.Option(help="why, for the record")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="take the setting away again")] = False,
    as_json: AsJson = False,
    control: Control = None,
    token: Token = None,
    config: Config = None,
) -> None:
    """Show the switch, or turn it: for all, a model, a tool or a tool of a model. It holds for requests to come."""
    turned = {"for": lasts, "model": model, "tool": tool, "reason": reason}
    given = {name: value for name, value in turned.items() if value is not None}
    if to is not None and clear:
        raise StartError("command line: give either a mode or --clear")
    if to is None and not clear and given:
        raise StartError(f"command line: --{next(iter(given))}: for which mode? off, observe, block, or --clear")
    with admin(control, token, config) as port:
        switch = port.put(PATH, {"mode": to, **given}) if to is not None or clear else port.get(PATH)
    if as_json:
        print_json(switch)
        return
    if switch.get("recorded") is False:
        err.print("[yellow]counterproof:[/] this is in force, and could not be recorded in the audit")
    out.print(Text.assemble("mode ", _word(switch["mode"]), f" (configured: {switch['configured']})"))
    if switch["settings"]:
        out.print(_settings(switch["settings"]))


def _settings(settings: list[dict[str, Any]]) -> Table:
    table = Table(title="Set over the configured mode", title_justify="left")
    for column in ("model", "tool", "mode", "until", "who", "since", "reason"):
        table.add_column(column, overflow="fold")
    for one in settings:
        table.add_row(
            Text(one["model"] or "all"),
            Text(one["tool"] or "all"),
            _word(one["mode"]),
            _time(one["until"]) if one["until"] else "turned again",
            Text(one["who"]),
            _time(one["at"]),
            Text(one["reason"] or "–"),
        )
    return table


def _word(value: str) -> Text:
    return Text(value, style=_COLOURS.get(value, ""))


def _time(text: str) -> str:
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S}"
