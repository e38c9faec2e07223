"""How findings look in a terminal: rich tables from the ledger's records."""

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from proxy.check import Checked

Record = dict[str, Any]

_COLOURS = {
    "match": "green",
    "equivalent": "green",
    "near_tie": "yellow",
    "sampled_choice": "yellow",
    "unverified": "yellow",
    "mismatch": "red",
    "invalid": "red",
    "compared": "green",
    "failed": "red",
    "not_comparable": "yellow",
}


def word(value: str | None) -> Text:
    """A verdict or an outcome in its colour."""
    return Text(value or "–", style=_COLOURS.get(value or "", "dim"))


def capabilities(found: Sequence[Checked]) -> Table:
    """What each engine can do, one column an engine."""
    table = Table(title="What each engine can do", title_justify="left")
    table.add_column("")
    for engine in found:
        table.add_column(engine.name, overflow="fold")
    table.add_row("address", *(engine.base_url for engine in found))
    table.add_row("fit", *(Text("yes", "green") if engine.fit else Text("no", "red") for engine in found))
    rows = {
        "model": "model",
        "version": "version",
        "context (tokens)": "max_model_len",
        "token ids in": "token_ids_in",
        "token ids out": "token_ids_out",
        "logprobs": "logprobs_mode",
        "top k at most": "max_logprobs",
        "prompt logprobs": "prompt_logprobs",
        "prompt ids on chat": "chat_prompt_ids",
        "prefix cache": "prefix_cache",
        "block size (tokens)": "block_size",
        "render": "render",
        "derender": "derender",
        "tokenizer (hash)": "tokenizer",
        "keeps responses": "keeps_responses",
        "ways to ask": "ways",
    }
    asked_of_references = {"prompt_logprobs", "chat_prompt_ids", "render", "derender", "ways"}
    for label, key in rows.items():
        cells = []
        for i, engine in enumerate(found):
            value = engine.can.as_dict()[key] if engine.can else None
            cells.append("not asked" if i == 0 and key in asked_of_references and engine.can else _cell(value))
        table.add_row(label, *cells)
    return table


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
    return ", ".join(value) if isinstance(value, list) else str(value)


def exchanges(records: Iterable[Record]) -> Table:
    """A list of exchanges, a line for each shadow that looked at it."""
    table = Table()
    table.add_column("exchange", no_wrap=True)
    table.add_column("when", no_wrap=True)
    for name in ("model", "tools", "shadow", "outcome", "calls"):
        table.add_column(name)
    table.add_column("flips / positions", justify="right")
    for record in records:
        when = dt.datetime.fromtimestamp(record["began_at"], dt.UTC).astimezone().strftime("%m-%d %H:%M:%S")
        tools = sorted({call.get("name", "?") for choice in record["choices"] for call in choice["calls"]})
        about = record["problem"] if record.get("unreadable") else ", ".join(tools)
        first = (record["id"][:11], when, record["model"], about)
        for finding in record["findings"]:
            table.add_row(*first, "(none needed)", finding["reason"], word(finding["word"]), "")
            first = ("", "", "", "")
        for examination in record["examinations"] or [None]:
            table.add_row(*first, *_examination_cells(examination))
            first = ("", "", "", "")
    return table


def _examination_cells(examination: Record | None) -> tuple[RenderableType, ...]:
    if examination is None:
        return ("–", Text("waiting", "dim"), "", "")
    counts = examination["counts"]
    evaluated = counts["same"] + counts["flip"]
    outcome = word(examination["outcome"])
    if examination["reason"]:
        outcome.append(f": {examination['reason']}")
    flips = f"{counts['flip']} / {evaluated}" if evaluated else "–"
    if counts["undetermined"]:
        flips += f" (+{counts['undetermined']} undetermined)"
    return (examination["shadow"], outcome, word(examination["verdict"]), flips)


def exchange(record: Record) -> Group:
    """One exchange: its calls beside each shadow's, where they differ, and the flips."""
    parts: list[RenderableType] = [_head(record)]
    if record["findings"]:
        lines = [f"{f['word']}: {f.get('tool', 'a call')} ({f['reason']})" for f in record["findings"]]
        parts.append(Panel("\n".join(lines), title="found without a reference", title_align="left", border_style="red"))
    for examination in record["examinations"]:
        parts.extend(_examination(record, examination))
    return Group(*parts)


def _head(record: Record) -> Table:
    table = Table.grid(padding=(0, 2))
    tokens = ", ".join(f"{c['prompt_tokens']} + {c['completion_tokens']}" for c in record["choices"])
    whole = not record.get("unreadable")
    kind = f"{record['dialect']}{', streamed' if record['stream'] else ''}, HTTP {record['status']}" if whole else None
    rows = {
        "exchange": record["id"],
        "conversation": record["conversation"],
        "content": "erased" if record.get("erased") else None,
        "model": record["model"],
        "kind": kind,
        "prompt + completion tokens": tokens or "–",
        "seconds": f"{record['seconds']:.3f}" if whole else None,
        "problem": record["problem"],
    }
    for name, value in rows.items():
        if value:
            table.add_row(Text(name, "dim"), str(value))
    return table


def _examination(record: Record, examination: Record) -> Iterable[RenderableType]:
    verdict = word(examination["verdict"] or examination["outcome"])
    if examination["reason"]:
        verdict.append(f" ({examination['reason']})")
    yield Text.assemble("\nshadow ", (examination["shadow"], "bold"), ": ", verdict)
    if examination["prompt_differs"]:
        yield Text("  its own chat template makes other prompt ids: a template drift, not one of the model", "yellow")
    for report in examination["choices"]:
        if report["findings"]:
            yield side_by_side(record, report, examination["shadow"])
        if flipped := [p for p in report["positions"] if p["outcome"] == "flip"]:
            yield flips(flipped, report, examination["shadow"])
    yield Text(f"  method: {examination['method']}; asked by {ways(examination)}", "dim")


def ways(examination: Record) -> str:
    """The ways in which a shadow was asked."""
    used = sorted({way for report in examination["choices"] for way in report["ways"]})
    return ", ".join(used) or "nothing"


def side_by_side(record: Record, report: Record, shadow: str) -> Table:
    """The primary's calls beside the shadow's, argument by argument where content was kept, else where they differ."""
    table = Table(title="Tool calls on the same token history", title_justify="left")
    for name in ("", "primary", shadow):
        table.add_column(name, overflow="fold")
    calls: list[Record] = next((c["calls"] for c in record["choices"] if c["index"] == report["index"]), [])
    theirs = report["reference_calls"]
    for finding in report["findings"]:
        ours = calls[finding["call"]] if finding["call"] is not None and finding["call"] < len(calls) else None
        partner = finding.get("reference")
        other = theirs[partner] if partner is not None and partner < len(theirs) else None
        table.add_row("verdict", word(finding["word"]), finding["reason"])
        table.add_row("tool", ours.get("name", "?") if ours else "–", other.get("name", "?") if other else "–")
        for name, left, right in _arguments(ours, other, finding):
            style = "" if left == right else "bold red"
            table.add_row(name, Text(left, style), Text(right, style))
    return table


def _arguments(ours: Record | None, theirs: Record | None, finding: Record) -> Iterable[tuple[str, str, str]]:
    left, right = _object(ours), _object(theirs)
    if left is not None or right is not None:
        left, right = left or {}, right or {}
        for key in [*left, *(key for key in right if key not in left)]:
            yield key, _json(left, key), _json(right, key)
        return
    for difference in finding.get("differences", ()):
        yield difference["pointer"] or "/", "differs", "(content is not kept)"


def _object(call: Record | None) -> Record | None:
    try:
        value = json.loads(call["arguments"]) if call and "arguments" in call else None
    except ValueError:
        value = {"(not JSON)": call["arguments"]} if call else None
    return value if isinstance(value, dict) else None


def _json(values: Record, key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "–"


def flips(flipped: Sequence[Record], report: Record, shadow: str, limit: int = 8) -> Table:
    """The positions at which the winner changed, with both engines' logprobs where content was kept."""
    title = f"Flips: {len(flipped)}" + (f", the first {limit}" if len(flipped) > limit else "")
    table = Table(title=title, title_justify="left")
    table.add_column("position", justify="right")
    for name in (
        "region",
        "margin (nats)",
        "primary's winner",
        f"{shadow}'s winner",
        "primary's logprobs",
        f"{shadow}'s",
    ):
        table.add_column(name)
    texts = {int(key): text for key, text in report.get("texts", {}).items()}
    for position in flipped[:limit]:
        table.add_row(
            str(position["index"]),
            position["region"],
            _margin(position),
            _token(position.get("primary_winner"), texts),
            _token(position.get("reference_winner"), texts),
            _pair(position.get("primary_logprobs")),
            _pair(position.get("reference_logprobs")),
        )
    return table


def _margin(position: Record) -> Text:
    if position["margin"] is None:
        return Text("not allowed there", "red")
    sign = "≥ " if position["margin_is_bound"] else ""
    return Text(
        f"{sign}{position['margin']:.3f} {position['clarity']}",
        "yellow" if position["clarity"] == "near_tie" else "red",
    )


def _token(token: int | None, texts: dict[int, str]) -> str:
    if token is None:
        return "(content is not kept)"
    return f"{json.dumps(texts[token], ensure_ascii=False)} ({token})" if token in texts else str(token)


def _pair(pair: Sequence[float | None] | None) -> str:
    if pair is None:
        return "–"
    return " / ".join("not listed" if value is None else f"{value:.3f}" for value in pair)
