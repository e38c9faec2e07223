import json
import subprocess
from pathlib import Path
from typing import Any

from proxy.demo.building import clean_environment
from proxy.demo.rig import Rig

HERE = Path(__file__).parent
CASES = HERE / "hermes_cases.jsonl"
AGAIN = "python tests/engine/hermes_cases.py <model folder> > tests/engine/hermes_cases.jsonl, with the engines' python"


def cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


def test_the_recorded_cases_are_what_the_installed_vllm_does(rig: Rig) -> None:
    done = subprocess.run(
        [rig.python, HERE / "hermes_cases.py", rig.model],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment() | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    fresh = [json.loads(line) for line in done.stdout.splitlines()]
    recorded = cases()
    assert [case["name"] for case in fresh] == [case["name"] for case in recorded], f"write them anew: {AGAIN}"
    for now, then in zip(fresh, recorded, strict=True):
        assert now == then, f"write them anew: {AGAIN}"


def test_the_recorded_cases_are_many_and_whole() -> None:
    recorded = cases()
    assert len({case["name"] for case in recorded}) == len(recorded) > 100
    assert sum(case["marker_token"] is None for case in recorded) > 10
    for case in recorded:
        assert len(case["token_ids"]) == len(case["token_bytes_hex"])
        streamed = [token for chunk in case["chunks"] for token in chunk.get("token_ids", ())]
        assert streamed == case["token_ids"]
        assert "finish_reason" in case["chunks"][-1]


def test_a_call_is_streamed_long_after_its_first_token() -> None:
    """Why `continue` starts speculatively: Hermes says nothing of a call before its name is complete."""
    for case in cases():
        if case["marker_token"] is None or "[1]" not in case["name"]:
            continue
        seen = 0
        for chunk in case["chunks"]:
            seen += len(chunk.get("token_ids", ()))
            if "tool_calls" in chunk["delta"]:
                break
        assert seen - case["marker_token"] >= 10, case["name"]
