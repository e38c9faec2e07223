"""What the demo found, as tables."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from proxy.demo.workload import Done
from proxy.show import word
from shadow.divergence import NEAR_TIE_NATS

Record = dict[str, Any]


def flips(records: Sequence[Record]) -> Table:
    """Positions and flips by region, over all exchanges."""
    seen: Counter[tuple[str, str]] = Counter()
    for record in records:
        for examination in record["examinations"]:
            for report in examination["choices"]:
                for position in report["positions"]:
                    seen[position["region"], position["clarity"] or position["outcome"]] += 1
    table = Table(
        title="Changed winners (top-1 by token id, teacher forcing on the primary's history)", title_justify="left"
    )
    table.add_column("region")
    for name in (
        "positions",
        "same",
        f"near-tie (< {NEAR_TIE_NATS} nats)",
        "confident",
        "undetermined",
        "not compared",
    ):
        table.add_column(name, justify="right")
    kinds = ("same", "near_tie", "confident", "undetermined", "excluded")
    regions = sorted({region for region, _kind in seen})
    for region in [*regions, "all"]:
        counts = [sum(seen[r, kind] for r in regions if region in {r, "all"}) for kind in kinds]
        table.add_row(region, str(sum(counts)), *(str(count) for count in counts), end_section=region == regions[-1])
    return table


def verdicts(records: Sequence[Record]) -> Table:
    """Tool calls by verdict: those of the reference, and what needs none."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for record in records:
        for finding in record["findings"]:
            seen["(no reference needed)", finding["word"], finding["reason"]] += 1
        for examination in record["examinations"]:
            for report in examination["choices"]:
                for finding in report["findings"]:
                    seen[examination["shadow"], finding["word"], finding["reason"]] += 1
    table = Table(title="Tool calls", title_justify="left")
    for name in ("judged by", "verdict", "in what"):
        table.add_column(name)
    table.add_column("calls", justify="right")
    for (shadow, verdict, reason), count in sorted(seen.items()):
        table.add_row(shadow, word(verdict), reason or "–", str(count))
    return table


def tasks(done: Sequence[Done], records: dict[str, Record]) -> Table:
    """A line per request of the agent."""
    table = Table(title="The agent's requests", title_justify="left")
    for name in ("request", "answer", "reference"):
        table.add_column(name)
    table.add_column("flips / positions", justify="right")
    for item in done:
        record = records.get(item.exchange)
        examination = record["examinations"][0] if record and record["examinations"] else None
        answer = f"calls {', '.join(item.calls)}" if item.calls else f"text ({len(item.text)} characters)"
        if examination is None:
            table.add_row(item.task.label, answer, word(None), "–")
            continue
        counts = examination["counts"]
        compared = counts["same"] + counts["flip"]
        table.add_row(
            item.task.label,
            answer,
            word(examination["verdict"] or examination["outcome"]),
            f"{counts['flip']} / {compared}",
        )
    return table
