"""Which names take a place among the labels, and how a scrape is written while the data port goes on."""

import asyncio
import threading
from typing import Any

import pytest

from proxy.metrics import Metrics
from shadow.exchange import Answer, Dialect, Exchange, Request, Timings
from tests.proxy.control.serving import Port, on
from validators import Finding, Word


def answered(metrics: Metrics, model: str, code: int = 200) -> None:
    """One request has been answered."""
    metrics.request(dialect="chat", model=model, code=code, stream=False, upstream=0.5, total=0.5, first_byte=None)


def requests(metrics: Metrics, model: str, code: int = 200) -> float | None:
    labels = {"dialect": "chat", "model": model, "code": str(code), "stream": "false"}
    return metrics.registry.get_sample_value("counterproof_requests_total", labels)


@pytest.mark.parametrize("code", [400, 404, 413, 499, 502, 503])
def test_a_model_takes_a_place_once_it_has_answered(code: int) -> None:
    metrics = Metrics(models=2)
    for i in range(5):
        answered(metrics, f"made up {i}", code)
    for _ in range(2):
        answered(metrics, "real")
    answered(metrics, "real", code)
    assert (requests(metrics, "other", code), requests(metrics, "real"), requests(metrics, "real", code)) == (5, 2, 1)


def test_a_tool_of_a_request_that_was_refused_takes_no_place() -> None:
    metrics = Metrics(tools=1)
    for name, status in (("made_up", 404), ("real", 200)):
        tools = [{"type": "function", "function": {"name": name}}]
        request = Request(Dialect.CHAT, {"model": "m", "messages": [], "tools": tools})
        exchange = Exchange("x", request, Answer({}), status, 1.0, Timings(0, 1, 2), "c")
        metrics.findings(exchange, [(0, Finding(Word.INVALID, name, 0, "unclosed"))])
    labels = {"model": "m", "shadow": "none", "verdict": "invalid"}
    found = metrics.registry.get_sample_value("counterproof_tool_calls_total", labels | {"tool": "real"})
    assert found == 1


def test_names_that_are_told_at_the_start_have_their_places() -> None:
    metrics = Metrics(tools=2, models=2, first_tools=["wire_money"], first_models=["ours"])
    for model in ("a", "b", "ours"):
        answered(metrics, model)
    assert [requests(metrics, model) for model in ("a", "b", "ours", "other")] == [1, None, 1, 1]
    assert [metrics._tool(name) for name in ("x", "y", "wire_money")] == ["x", "other", "wire_money"]


def test_what_is_taken_does_not_move() -> None:
    metrics = Metrics()
    answered(metrics, "m")
    taken = metrics.taken()
    before = metrics.text("", taken)[0]
    assert b'model="m"' in before
    answered(metrics, "m")
    answered(metrics, "n", 404)
    lines = [line for line in before.splitlines() if not line.startswith((b"process_", b"python_"))]
    assert set(lines) <= set(metrics.text("", taken)[0].splitlines())
    assert requests(metrics, "m") == 2


def test_what_is_taken_is_everything() -> None:
    metrics = Metrics()
    answered(metrics, "m")
    metrics.covered("chat", "held")
    metrics.outcome("ref", "compared", "")
    metrics.mode("block")

    def series(text: bytes) -> list[bytes]:
        return [line.rpartition(b" ")[0] for line in text.splitlines()]

    assert series(metrics.text("", metrics.taken())[0]) == series(metrics.text("")[0])


def test_a_scrape_is_written_while_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    text, begun, go = Metrics.text, asyncio.Event(), threading.Event()

    async def scene(port: Port) -> None:
        loop, metrics = asyncio.get_running_loop(), port.service.metrics

        def written(*given: Any) -> tuple[bytes, str]:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(10)  # on the loop's own thread nobody would say so
            return text(*given)

        monkeypatch.setattr(Metrics, "text", written)
        answered(metrics, "early")
        async with asyncio.TaskGroup() as group:
            scrapes = [group.create_task(port.ask("GET", "/metrics"), name=f"scrape {i}") for i in range(2)]
            await begun.wait()
            answered(metrics, "late")
            go.set()
        first, second = [scrape.result().text for scrape in scrapes]
        assert 'model="early"' in first
        assert 'model="late"' not in first  # what is written is what was counted when it was asked for
        assert 'model="late"' in second  # which is written after it and not beside it

    on(None, scene)
