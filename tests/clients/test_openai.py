"""The demo's agent through the official OpenAI client, on real engines: what it gets, and what is found about it."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from proxy import show
from proxy.demo import report, workload
from proxy.demo.rig import bfcl_data
from tests.engine.fixtures import ObservingProxy


@pytest.fixture(scope="module")
def questions() -> Path:
    return bfcl_data()


def test_the_workload_is_what_the_demo_promises(questions: Path) -> None:
    labels = [task.label for task in workload.tasks(questions)]
    assert labels[:3] == ["router, plain tools", "router, strict tools", "router, text"]
    assert sum(label.endswith(", strict") for label in labels) >= 10
    assert sum(label.endswith(", plain") for label in labels) >= 3
    strict = next(task for task in workload.tasks(questions) if task.label.endswith(", strict"))
    parameters = strict.fields["tools"][0]["function"]["parameters"]
    assert (parameters["type"], parameters["additionalProperties"]) == ("object", False)


def printed(renderable: Any) -> str:
    console = Console(width=160, record=True, file=None, quiet=True)
    console.quiet = False
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_the_routers_calls_are_judged_and_shown_side_by_side(proxy: ObservingProxy, questions: Path) -> None:
    tasks = workload.tasks(questions)
    seen: list[workload.Done] = []
    done = workload.run(proxy.process.base_url, [*tasks[:4]], seen.append)
    assert seen == done
    assert [item.calls for item in done[:2]] == [("run_command",), ("run_command",)]
    records = {item.exchange: proxy.judged(item.exchange) for item in done}
    for item in done[:2]:
        record = records[item.exchange]
        examination = record["examinations"][0]
        assert examination["outcome"] == "compared"
        assert examination["verdict"] in {"match", "mismatch", "near_tie"}
        (choice,) = examination["choices"]
        assert choice["ways"] == ["score", "continue"]
        assert choice["call_start"] == 0
        assert [call["name"] for call in choice["reference_calls"]] == ["run_command"]
        text = printed(show.exchange(record))
        assert "Tool calls on the same token history" in text
        for argument in ("device", "command", "interface"):
            assert argument in text
        if examination["verdict"] != "match":
            flip = next(p for p in choice["positions"] if p["outcome"] == "flip")
            assert len(flip["primary_logprobs"]) == len(flip["reference_logprobs"]) == 2
            assert f"{flip['margin']:.3f}" in text
    assert "run_command" in printed(report.tasks(done, records))
    table = printed(report.flips(list(records.values())))
    positions = sum(len(c["positions"]) for r in records.values() for c in r["examinations"][0]["choices"])
    assert f" {positions} " in table
    assert "reference" in printed(report.verdicts(list(records.values())))
    assert "run_command" in printed(show.exchanges(list(records.values())))
