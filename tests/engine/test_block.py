"""Block mode on real engines: what two precisions say differently of one history is held back, and named.

Which conversations differ depends on the processor: they are found by asking both engines directly, with none of the
project's comparison code.
"""

import asyncio
import contextlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import aiohttp
import httpx2
import pytest
from aiohttp import web

from proxy.demo.rig import free_port
from proxy.demo.served import ProxyProcess
from proxy.demo.workload import router
from proxy.ledger import LedgerReader
from shadow.exchange import Choice, Dialect
from shadow.wire import answers
from tests.engine.fixtures import READY_S, Engines
from tests.engine.test_transparency import comparable

INTERFACES = (
    "GigabitEthernet0/0/1.201",
    "GigabitEthernet0/0/2.310",
    "GigabitEthernet0/1/3.12",
    "GigabitEthernet0/0/4.5",
    "TenGigE0/1/0.77",
    "GigabitEthernet0/0/0.9",
    "GigabitEthernet0/2/1.44",
    "TenGigE0/0/0/3.1100",
)
SEEDS = 20
PATIENT = {"default": {"verify_timeout": "120s"}, "status_wait": "250s"}  # these machines are slow


def asking(interface: str, **fields: Any) -> dict[str, Any]:
    scenario = router()
    asked = scenario["messages"][-1]["content"].replace(INTERFACES[0], interface)
    common = {"model": "smollm2", "tools": scenario["tools_strict"], "tool_choice": "required"}
    messages = [*scenario["messages"][:-1], {"role": "user", "content": asked}]
    return common | {"messages": messages, "temperature": 0, "max_tokens": 90} | fields


def post(base_url: str, body: dict[str, Any]) -> httpx2.Response:
    """Asks as somebody new: a call that was refused is no repeat in another conversation."""
    headers = {"x-session-id": str(uuid4())}
    return httpx2.post(f"{base_url}/chat/completions", json=body, headers=headers, timeout=300, trust_env=False)


def read(response: httpx2.Response) -> Choice:
    stream = response.headers["content-type"].startswith("text/event-stream")
    return answers.read(Dialect.CHAT, response.content, stream=stream).choices[0]


def arguments_of(base_url: str, body: dict[str, Any]) -> dict[str, Any]:
    calls = read(post(base_url, body)).calls
    return dict(json.loads(calls[0].arguments)) if calls else {}


@dataclass(frozen=True)
class Asked:
    """One conversation, and what each engine calls in it by itself."""

    interface: str
    primary: dict[str, Any]
    reference: dict[str, Any]


@pytest.fixture(scope="module")
def asked(engines: Engines) -> list[Asked]:
    with ThreadPoolExecutor(2) as pool:
        found = []
        for interface in INTERFACES:
            body = asking(interface)
            both = [pool.submit(arguments_of, e.base_url, body) for e in (engines.primary, engines.reference)]
            found.append(Asked(interface, both[0].result(), both[1].result()))
    return found


class Blocking:
    """A proxy in block mode between two engines, and its ledger."""

    def __init__(self, process: ProxyProcess, ledger: Any) -> None:
        self.process, self._ledger = process, ledger

    @property
    def base_url(self) -> str:
        return self.process.base_url

    def verdict(self, response: httpx2.Response) -> dict[str, Any]:
        """What the ledger says was decided about the one choice of an answer."""
        identity = response.headers["x-counterproof-id"]

        async def look() -> dict[str, Any]:
            async with asyncio.timeout(300):
                while True:
                    with LedgerReader(self._ledger) as reader:
                        record = reader.exchange(identity)
                    if record and record["verdicts"] and record["examinations"]:
                        return dict(record["verdicts"][0])
                    await asyncio.sleep(0.1)

        return asyncio.run(look())


@contextlib.contextmanager
def blocking(folder: Any, primary: str, reference: str, policy: dict[str, Any]) -> Iterator[Blocking]:
    folder.mkdir(exist_ok=True)
    settings = {
        "primary": {"base_url": primary},
        "shadows": [{"name": "reference", "base_url": reference, "timeout": "300s"}],
        "mirror": {"tool_calls": 1, "other": 1},
        "ledger": {"path": str(folder / "ledger.db"), "content": "full"},
        "listen": {"port": free_port()},
        "control": {"port": free_port()},
        "log": {"format": "json"},
        "conversation": {"header": "x-session-id"},
        "mode": "block",
        "policy": policy,
    }
    with ProxyProcess(settings, folder) as process:
        process.wait_fit("reference", READY_S)
        yield Blocking(process, folder / "ledger.db")


@pytest.fixture(scope="module")
def block(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blocking]:
    folder = tmp_path_factory.mktemp("block") / "plain"
    with blocking(folder, engines.primary.base_url, engines.reference.base_url, PATIENT) as one:
        yield one


def test_a_call_that_the_reference_makes_too_is_released_unchanged(
    asked: list[Asked], block: Blocking, engines: Engines
) -> None:
    agreed = [one for one in asked if one.primary == one.reference != {}]
    assert agreed, "two precisions of one model agree on no conversation of eight"
    for stream in (False, True):
        body = asking(agreed[0].interface, stream=stream)
        direct = [comparable(post(engines.primary.base_url, body)) for _ in range(3)]
        through = post(block.base_url, body)
        assert through.headers["x-counterproof-mode"] == "block"
        assert comparable(through) in direct
        verdict = block.verdict(through)
        assert (verdict["done"], verdict["word"], verdict["agreed"]) == ("released", "match", ["reference"])


def test_a_legal_call_that_only_the_reference_tells_apart_is_refused_and_named(
    asked: list[Asked], block: Blocking
) -> None:
    """Both calls are legal by the (strict) schema: only the reference's, on the same history, tells them apart."""
    differing = [one for one in asked if one.primary and one.reference and one.primary != one.reference]
    assert differing, "two precisions of one model agree on all of eight conversations"
    refused = 0
    for one in differing:
        for stream in (False, True):
            response = post(block.base_url, asking(one.interface, stream=stream))
            verdict = block.verdict(response)
            if verdict["word"] == "near_tie":  # so close that it is let through
                assert read(response).calls
                continue
            assert (verdict["done"], verdict["word"]) == ("refused", "mismatch")
            assert response.status_code == 422
            message = response.json()["error"]["message"]
            assert message.startswith("[counterproof] The call of run_command was refused: argument /")
            for pointer in differences(verdict):
                assert f"argument {pointer} is " in message
            refused += 1
        if refused:  # these machines are slow: one conversation in both forms is enough
            break
    assert refused


def differences(verdict: dict[str, Any]) -> list[str]:
    return [d["pointer"] for finding in verdict["findings"] for d in finding["differences"]]


def test_where_a_call_is_the_models_own_choice_the_refusal_is_a_message(
    asked: list[Asked], engines: Engines, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The small model calls nothing by itself: both engines stand behind a door that turns `auto` into `required`."""
    folder = tmp_path_factory.mktemp("auto") / "proxy"
    differing = [one for one in asked if one.primary and one.reference and one.primary != one.reference]
    with (
        demanding(engines.primary.root_url) as primary,
        demanding(engines.reference.root_url) as reference,
        blocking(folder, primary, reference, PATIENT) as door,
    ):
        words = Counter[str]()
        for one in differing:
            for stream in (False, True):
                response = post(door.base_url, asking(one.interface, tool_choice="auto", stream=stream))
                choice, verdict = read(response), door.verdict(response)
                words[verdict["word"]] += 1
                if verdict["done"] == "refused":
                    assert response.status_code == 200
                    assert (choice.calls, choice.finish_reason) == ((), "stop")
                    assert choice.content.startswith("[counterproof] The call of run_command was refused: argument /")
            if words["mismatch"]:
                break
    assert words["mismatch"], words


def test_the_references_call_in_place_of_the_primarys(
    asked: list[Asked], engines: Engines, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("substitute") / "proxy"
    differing = [one for one in asked if one.primary and one.reference and one.primary != one.reference]
    policy = PATIENT | {"default": {"verify_timeout": "120s", "on": {"mismatch": "substitute"}}}
    with blocking(folder, engines.primary.base_url, engines.reference.base_url, policy) as door:
        done = Counter[str]()
        for one in differing:
            response = post(door.base_url, asking(one.interface, stream=True))
            verdict = door.verdict(response)
            done[verdict["done"]] += 1
            if verdict["done"] == "substituted":
                sent = json.loads(read(response).calls[0].arguments)
                assert sent == json.loads(verdict["substitute"][0]["arguments"])
                assert sent != one.primary
                break
    assert done["substituted"], done


def test_the_schema_refuses_what_no_reference_is_asked_about(asked: list[Asked], block: Blocking) -> None:
    """The plain tools of the scenario, with an enum that the model does not meet."""
    one = next(one for one in asked if one.primary)
    tools = json.loads(json.dumps(router()["tools_strict"]))
    function = tools[0]["function"]
    function.pop("strict", None)
    function["parameters"]["properties"]["command"] = {"type": "string", "enum": ["show nothing"]}
    response = post(block.base_url, asking(one.interface, tools=tools, stream=True))
    verdict = block.verdict(response)
    assert (verdict["done"], verdict["word"]) == ("refused", "invalid")
    assert response.status_code == 422
    assert "/command" in response.json()["error"]["message"]


def test_sampled_calls_end_in_the_cases_of_the_truth_table(
    asked: list[Asked], block: Blocking, pytestconfig: pytest.Config
) -> None:
    """20 seeds at temperature 1: what was done follows from the word, and the words are shown."""
    interface = next(one.interface for one in asked if one.primary)
    seen, reasons = Counter[tuple[str, str]](), Counter[str]()
    for seed in range(SEEDS):
        response = post(block.base_url, asking(interface, temperature=1, seed=seed, stream=bool(seed % 2)))
        verdict = block.verdict(response)
        seen[verdict["word"], verdict["done"]] += 1
        reasons.update(finding["reason"] or finding["word"] for finding in verdict["findings"])
        released = verdict["done"] == "released"
        assert response.status_code == (200 if released else 422)
        assert released == (verdict["word"] in {"match", "equivalent", "near_tie", "sampled_choice", "unverified"})
    terminal = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    assert terminal is not None
    terminal.write_line(f"20 sampled calls: {dict(seen)}; reasons: {dict(reasons)}")
    assert len(seen) > 1
    assert not seen["unverified", "released"], reasons


@contextlib.contextmanager
def demanding(root_url: str) -> Iterator[str]:
    """An engine behind a door that turns `tool_choice: auto` into `required`; its base URL."""
    loop = asyncio.new_event_loop()
    up = threading.Event()
    where: list[str] = []
    sessions: list[aiohttp.ClientSession] = []

    async def pass_on(request: web.Request) -> web.StreamResponse:
        body = (await request.read()).replace(b'"tool_choice":"auto"', b'"tool_choice":"required"')
        body = re.sub(rb'"tool_choice": "auto"', b'"tool_choice": "required"', body)
        headers = {"content-type": request.headers.get("content-type", "application/json")}
        url = root_url + request.path_qs
        async with sessions[0].request(request.method, url, data=body, headers=headers) as answer:
            kind = {"content-type": answer.headers["content-type"]}
            response = web.StreamResponse(status=answer.status, headers=kind)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            return response

    async def serve() -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", pass_on)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
            sessions.append(session)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", port := free_port())
            await site.start()
            where.append(f"http://127.0.0.1:{port}/v1")
            up.set()
            try:
                await stop.wait()
            finally:
                await runner.cleanup()

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="demanding", daemon=True)
    thread.start()
    try:
        assert up.wait(30)
        yield where[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
