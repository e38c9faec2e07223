"""The door in front of a real engine: which of its routes are served, several primaries, calls without token ids."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from proxy.demo.rig import free_port
from proxy.demo.served import ProxyProcess
from proxy.demo.workload import router
from proxy.paths import ADMINISTRATIVE, Denied
from tests.engine.fixtures import READY_S, Engines, ObservingProxy

SERVED = {
    "/classify",
    "/detokenize",
    "/generative_scoring",
    "/health",
    "/inference/v1/generate",
    "/invocations",
    "/kv_event_sources",
    "/load",
    "/metrics",
    "/ping",
    "/pooling",
    "/rerank",
    "/score",
    "/tokenize",
    "/tokenizer_info",
    "/version",
}
"""Routes that generate or tell, and change nothing; those below /v1, /v2 and /cohere are all of that kind."""


def call(stream: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
    scenario = router()
    fields = {key: scenario[key] for key in ("tool_choice", "temperature", "max_tokens", "messages")}
    return fields | {"model": "smollm2", "tools": scenario["tools_strict"], "stream": stream}


def test_every_route_of_the_engine_is_known_to_change_nothing_or_is_denied(engines: Engines) -> None:
    denied = Denied(ADMINISTRATIVE)
    for engine in engines:
        listed = httpx2.get(f"{engine.root_url}/openapi.json", timeout=60, trust_env=False).json()["paths"]
        assert "/v1/chat/completions" in listed
        unknown = [
            path
            for path in listed
            if path not in SERVED and not path.startswith(("/v1/", "/v2/", "/cohere/")) and not denied(path.encode())
        ]
        assert unknown == [], "a route that this version of the engine has anew: serve it or deny it"


@pytest.mark.parametrize("path", ["/pause", "/v1/%6coad_lora_adapter", "//collective_rpc/"])
def test_an_administrative_path_does_not_reach_the_engine(proxy: ObservingProxy, path: str) -> None:
    root = proxy.process.base_url.removesuffix("/v1")
    answer = httpx2.post(root + path, json={}, timeout=60, trust_env=False)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == 403


@pytest.fixture(scope="module")
def plain(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A proxy that asks its primary for nothing, with the reference's model on a route of its own."""
    folder = tmp_path_factory.mktemp("plain")
    settings = {
        "primary": {"base_url": engines.primary.base_url, "logprobs": "off"},
        "shadows": [{"name": "reference", "base_url": engines.reference.base_url, "timeout": "300s"}],
        "mirror": {"other": 1},
        "routes": [{"model": "other-*", "primary": {"base_url": engines.reference.base_url}}],
        "ledger": {"path": str(folder / "counterproof.db"), "content": "full"},
        "listen": {"port": free_port()},
        "control": {"port": free_port()},
    }
    with ProxyProcess(settings, folder) as process:
        process.wait_fit("reference", READY_S)
        yield ObservingProxy(process, Path(folder / "counterproof.db"))


@pytest.mark.parametrize("stream", [False, True])
def test_calls_without_token_ids_are_compared_by_a_free_answer(
    plain: ObservingProxy,
    engines: Engines,
    stream: bool,  # noqa: FBT001
) -> None:
    answer = httpx2.post(f"{plain.process.base_url}/chat/completions", json=call(stream), timeout=300, trust_env=False)
    assert answer.status_code == 200
    assert b"token_ids" in answer.content
    assert b"token_id:" not in answer.content
    record = plain.judged(answer.headers["x-counterproof-id"])
    (examination,) = record["examinations"]
    assert (examination["outcome"], examination["choices"][0]["ways"]) == ("compared", ["replay"])
    assert examination["choices"][0]["positions"] == []
    # The reference's own words, by asking it directly and greedily.
    own = httpx2.post(f"{engines.reference.base_url}/chat/completions", json=call(), timeout=300, trust_env=False)
    (theirs,) = own.json()["choices"][0]["message"]["tool_calls"]
    (ours,) = record["choices"][0]["calls"]
    same = ours["name"] == theirs["function"]["name"] and ours["arguments"] == theirs["function"]["arguments"]
    (finding,) = examination["choices"][0]["findings"]
    assert (finding["word"], finding["reason"]) == (("match", "") if same else ("unverified", "no_token_ids"))


def test_another_model_goes_to_the_primary_of_its_route(plain: ObservingProxy) -> None:
    """The engine there does not serve that name, and says so itself."""
    body = call() | {"model": "other-model"}
    answer = httpx2.post(f"{plain.process.base_url}/chat/completions", json=body, timeout=300, trust_env=False)
    assert answer.status_code == 404
    assert "other-model" in answer.json()["error"]["message"]
    assert not answer.json()["error"]["message"].startswith("[counterproof]")
