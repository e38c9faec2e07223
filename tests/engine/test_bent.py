"""What bends a greedy choice is no drift: a repetition penalty, asked for or added by the model's generation_config.

The engine of this module adds the penalty unasked, and has a shorter context than the others: as a reference it is
refused.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from proxy.demo.rig import PRIMARY_ARGS, Engine, Rig, free_port
from proxy.demo.served import ProxyProcess
from tests.engine.fixtures import READY_S, Engines, ObservingProxy
from tests.engine.test_flips import winners_by_prompt_logprobs, winners_by_replay
from tests.watching import WATCH

pytestmark = pytest.mark.timeout(420)

PENALTY = 1.3
QUESTION = [{"role": "user", "content": "Count slowly: one, one, two, two, three, three. Go on like this."}]
BODY: dict[str, Any] = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def bending(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine whose generation_config has a repetition penalty; a shorter context, another chat template, a store."""
    template = tmp_path_factory.mktemp("template") / "other.jinja"
    template.write_text("<|im_start|>system\nBe brief.<|im_end|>\n" + rig.template.read_text(encoding="utf-8"))
    override = ("--override-generation-config", json.dumps({"repetition_penalty": PENALTY}))
    args = (*PRIMARY_ARGS, *override, "--max-model-len", "2048", "--chat-template", str(template))
    cores: list[int | None] = [*sorted(os.sched_getaffinity(0))]
    # Bound to one core as the others are: three engines that each take all cores starve one another.
    core = cores[1] if len(cores) > 1 else None
    keeping = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
    engine = Engine.start(rig, name="test-bending", port=free_port(), core=core, args=args, env=keeping)
    WATCH.see("file", str(engine.log))
    try:
        asyncio.run(engine.wait_ready(READY_S))
        _warm(engine.base_url)
        yield engine
    finally:
        engine.stop()


def _settings(primary: str, reference: str, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "primary": {"base_url": primary} | more,
        "shadows": [{"name": "reference", "base_url": reference, "timeout": "300s"}],
        "mirror": {"other": 1},
        "ledger": {"path": str(folder / "counterproof.db"), "content": "full"},
        "listen": {"port": free_port()},
        "control": {"port": free_port()},
    }


def _warm(base_url: str) -> None:
    """Asks directly first: a cached prefix is computed in other shapes than a cold one, and bf16 shows it."""
    for penalty in ({}, {"repetition_penalty": PENALTY}):
        httpx2.post(f"{base_url}/chat/completions", json=BODY | penalty, timeout=300, trust_env=False)


def _ask(base_url: str, body: dict[str, Any]) -> str:
    answer = httpx2.post(f"{base_url}/chat/completions", json=body, timeout=300, trust_env=False)
    assert answer.status_code == 200
    return answer.headers["x-counterproof-id"]


def check_no_flip_is_invented(record: dict[str, Any], primary: str, reference: str) -> None:
    """Flips are those of the raw winners, and a token that only the penalty chose is none of them."""
    choice = record["choices"][0]
    prompt, output = choice["prompt_ids"], choice["token_ids"]
    raw = winners_by_replay(primary, record["request"], prompt, output)
    bent = [i for i in range(len(output)) if output[i] not in raw[i]]
    assert bent, "the penalty bent nothing: this prompt tests nothing"
    theirs = winners_by_prompt_logprobs(reference, prompt, output)
    expected = [i for i in range(len(output)) if not raw[i] & theirs[i]]
    positions = record["examinations"][0]["choices"][0]["positions"]
    assert {p["basis"] for p in positions} == {"winner"}
    assert [p["index"] for p in positions if p["outcome"] == "flip"] == expected
    naive = [i for i in range(len(output)) if output[i] not in theirs[i]]
    assert set(naive) - set(expected), "taking the emitted token for the winner would have made no difference here"


def test_a_penalty_that_was_asked_for_invents_no_flip(proxy: ObservingProxy, engines: Engines) -> None:
    _warm(engines.primary.base_url)
    exchange = _ask(proxy.process.base_url, BODY | {"repetition_penalty": PENALTY})
    record = proxy.judged(exchange)
    check_no_flip_is_invented(record, engines.primary.base_url, engines.reference.base_url)
    assert record["examinations"][0]["prompt_differs"] is False


def test_a_penalty_of_the_generation_config_invents_no_flip(bending: Engine, engines: Engines, tmp_path: Path) -> None:
    settings = _settings(bending.base_url, engines.reference.base_url, tmp_path)
    with ProxyProcess(settings, tmp_path) as process:
        process.wait_fit("reference", READY_S)
        observing = ObservingProxy(process, tmp_path / "counterproof.db")
        record = observing.judged(_ask(process.base_url, BODY))
        assert "repetition_penalty" not in record["request"]
        check_no_flip_is_invented(record, bending.base_url, engines.reference.base_url)
        # The templates differ too: its own finding, and the token history is the primary's all the same.
        assert record["examinations"][0]["prompt_differs"] is True
        assert process.metric("counterproof_prompt_differs_total", shadow="reference") == 1


def test_without_logprobs_an_emitted_token_is_no_winner(bending: Engine, engines: Engines, tmp_path: Path) -> None:
    settings = _settings(bending.base_url, engines.reference.base_url, tmp_path, logprobs="ids")
    with ProxyProcess(settings, tmp_path) as process:
        process.wait_fit("reference", READY_S)
        observing = ObservingProxy(process, tmp_path / "counterproof.db")
        positions = observing.judged(_ask(process.base_url, BODY))["examinations"][0]["choices"][0]["positions"]
    assert positions
    assert {(p["basis"], p["outcome"]) for p in positions} == {("sampled", "excluded")}
    assert all(p["reference_logprob"] is not None for p in positions)


def test_a_reference_with_a_shorter_context_is_refused_as_a_pair(
    bending: Engine, engines: Engines, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "from proxy.cli import main; main()", "check", "--json"]
    command += ["--primary", engines.primary.base_url, "--shadow", f"short={bending.base_url}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    WATCH.see("error", done.stdout + done.stderr)
    assert done.returncode == 1
    primary, short = json.loads(done.stdout)
    assert primary["fit"]
    assert not short["fit"]
    assert short["refusal"].startswith("context_too_short: the reference's context is 2048 tokens")
    settings = _settings(engines.primary.base_url, bending.base_url, tmp_path)
    with ProxyProcess(settings, tmp_path) as process:
        observing = ObservingProxy(process, tmp_path / "counterproof.db")
        examination = observing.judged(_ask(process.base_url, BODY))["examinations"][0]
        # Until both engines were asked the pair is cold, and said to be.
        assert examination["outcome"] == "not_comparable"
        assert examination["reason"] in {"cold", "context_too_short"}
        deadline = time.monotonic() + 180
        while examination["reason"] == "cold" and time.monotonic() < deadline:
            time.sleep(0.5)
            examination = observing.judged(_ask(process.base_url, BODY))["examinations"][0]
        assert examination["reason"] == "context_too_short"
        assert process.metric("counterproof_shadow_up", shadow="reference") == 0


def test_a_response_that_is_kept_has_nothing_put_into_it(bending: Engine, engines: Engines, tmp_path: Path) -> None:
    """Whoever fetches it later gets all of it; where it is not to be kept, its ids are told."""
    settings = _settings(bending.base_url, engines.reference.base_url, tmp_path)
    body = {"model": "smollm2", "input": "Hello.", "temperature": 0, "max_output_tokens": 4}
    with ProxyProcess(settings, tmp_path) as process, httpx2.Client(timeout=300, trust_env=False) as client:
        process.wait_fit("reference", READY_S)
        observing = ObservingProxy(process, tmp_path / "counterproof.db")
        kept = client.post(f"{process.base_url}/responses", json=body)
        fetched = client.get(f"{process.base_url}/responses/{kept.json()['id']}")
        assert (fetched.status_code, fetched.json()["input_messages"]) == (200, None)
        assert fetched.json()["output"] == kept.json()["output"]
        unkept = client.post(f"{process.base_url}/responses", json=body | {"store": False})
        assert client.get(f"{process.base_url}/responses/{unkept.json()['id']}").status_code == 404
        told = [observing.judged(one.headers["x-counterproof-id"])["choices"][0] for one in (kept, unkept)]
    assert [choice["token_ids"] is None for choice in told] == [True, False]
