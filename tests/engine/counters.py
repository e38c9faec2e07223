"""What a real engine counts."""

import httpx2
from prometheus_client.parser import text_string_to_metric_families


def totals(client: httpx2.Client, root_url: str, *names: str, **labels: str) -> list[float]:
    """Of each name, the sum of an engine's samples with these labels; 0 where there are none.

    Only their lines are parsed: an engine has a thousand, and some of who asks do so many times a second.
    """
    text = client.get(f"{root_url}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith(names)]
    sums = dict.fromkeys(names, 0.0)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if sample.name in sums and labels.items() <= sample.labels.items():
                sums[sample.name] += sample.value
    return list(sums.values())


def total(root_url: str, name: str, **labels: str) -> float:
    """One of `totals`, asked once."""
    with httpx2.Client(timeout=60, trust_env=False) as client:
        return totals(client, root_url, name, **labels)[0]
