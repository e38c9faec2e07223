"""What the commands have in common: options, where they print, and how they reach a proxy that runs."""

import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from proxy import configfile
from proxy.admin import Admin, connect
from proxy.errors import StartError
from proxy.settings import ControlSettings

out, err = Console(), Console(stderr=True)

Config = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file", envvar="COUNTERPROOF_CONFIG")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Control = Annotated[
    str | None, typer.Option(help="the control port, as http://host:8081; default: as configured, on this machine")
]
Token = Annotated[
    str | None,
    typer.Option(help="default: the one that a proxy on this machine keeps in its file", envvar="COUNTERPROOF_TOKEN"),
]


def admin(control: str | None, token: str | None, config: Path | None) -> Admin:
    """A client of the control port that the options name.

    Raises:
        StartError: they cannot be meant, or the configuration has a fault.
    """
    settings = ControlSettings() if control is not None else configfile.control(config)
    return connect(control, token or None, settings)


def since_epoch(text: str) -> float:
    """What `--since` says, as epoch seconds. Raises StartError."""
    found = re.fullmatch(r"(\d+)\s*(s|m|h|d)", text.strip())
    if found is None:
        raise StartError(f"command line: --since {text}: 30m, 2h or 7d was expected")
    return time.time() - int(found.group(1)) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found.group(2)]


def print_json(value: Any) -> None:
    """Prints a JSON value on standard output."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")
