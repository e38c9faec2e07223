"""`python -m tests.standin --port N`: the stand-in as a process of its own, until SIGINT or SIGTERM."""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop

from tests.standin.faults import Faults
from tests.standin.model import Call, Script
from tests.standin.server import StandIn

_BYTES = {"body", "comment"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.standin", description=__doc__)
    parser.add_argument(
        "--port", type=int, default=0, help="0 takes a free one; the base URL is the first line printed"
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--prefill-s", type=float, default=0.0, help="seconds before the first token")
    parser.add_argument("--per-token-s", type=float, default=0.0, help="seconds per output token")
    parser.add_argument("--tokenizer-shift", type=int, default=0, help="other than 0: another tokenizer")
    parser.add_argument("--flip", type=int, action="append", default=[], help="an output position that drifts")
    parser.add_argument("--gap", action="append", default=[], metavar="POSITION=NATS")
    parser.add_argument("--scripts", type=Path, help="a JSON list of scripts: the fields of Script, calls as objects")
    parser.add_argument("--faults", type=_faults, default=Faults(), help="a JSON object: the fields of Faults")
    parser.add_argument("--until-eof", action="store_true", help="end with standard input, so with whoever holds it")
    return parser.parse_args()


def _faults(text: str) -> Faults:
    """What stands for bytes is text in JSON."""
    fields: dict[str, Any] = json.loads(text)
    for name in _BYTES & fields.keys():
        fields[name] = fields[name] and fields[name].encode()
    return Faults(**fields)


def _scripts(path: Path | None) -> list[Script]:
    listed = json.loads(path.read_text(encoding="utf-8")) if path else []
    scripts = []
    for fields in listed:
        calls = tuple(Call(**call) for call in fields.pop("calls", ()))
        scripts.append(Script(calls=calls, sampled=frozenset(fields.pop("sampled", ())), **fields))
    return scripts


async def _serve(asked: argparse.Namespace) -> None:
    gaps = {int(position): float(nats) for position, _, nats in (gap.partition("=") for gap in asked.gap)}
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    if asked.until_eof:
        loop.add_reader(sys.stdin, ended.set)
    engine = StandIn(
        _scripts(asked.scripts),
        model=asked.model,
        faults=asked.faults,
        gaps=gaps,
        flips=asked.flip,
        tokenizer_shift=asked.tokenizer_shift,
        max_model_len=asked.max_model_len,
        prefill_s=asked.prefill_s,
        per_token_s=asked.per_token_s,
        port=asked.port,
        keep=0,
    )
    async with engine:
        print(engine.base_url, flush=True)  # noqa: T201  (its caller waits for this line)
        await ended.wait()


with contextlib.suppress(KeyboardInterrupt):
    uvloop.run(_serve(_arguments()))
