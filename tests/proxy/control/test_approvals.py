"""`/admin/approvals`: who waits, what for, and what an answer comes to."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.approvals import Answer, Approvals
from proxy.audit.reading import records, verify
from shadow.tasks import Tasks, Wait
from tests.proxy.approving import HOLD, LONG, SEND, case
from tests.proxy.control.serving import Port, message, on
from tests.secrets import secret
from validators import ToolCall

PATH = "/admin/approvals"
TWO = [{"name": name, "token": secret(name, "ct"), "scopes": ["approve"]} for name in ("anna", "bo")]


class Waiting:
    """Calls that wait in a service, of conversations of their own."""

    def __init__(self, port: Port, tasks: Tasks) -> None:
        self.port, self._tasks = port, tasks
        self.approvals: Approvals = port.service.approvals

    async def asks(
        self, scope: str = "me:1", calls: tuple[ToolCall, ...] = SEND, approvers: int = 1
    ) -> Wait[tuple[str, Answer]]:
        before = len(self.approvals)
        work = self.approvals.ask(case(scope, approvers), calls, HOLD, LONG, "cp-1")
        task = self._tasks.start(scope, work)
        async with asyncio.timeout(10):
            while len(self.approvals) == before:
                await asyncio.sleep(0)
        return task

    async def answer(self, identity: str, answer: str, who: str = "approve", **more: Any) -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {secret(who, 'ct')}"}
        response = await self.port.client.post(f"{PATH}/{identity}", json={"answer": answer, **more}, headers=headers)
        return response.status_code, response.json()

    async def list(self, **params: str) -> Any:
        response = await self.port.ask("GET", PATH, "approve", params=params)
        assert response.status_code == 200
        return response.json()


def played(folder: Path, scene: Callable[[Waiting], Awaitable[None]], **control: Any) -> None:
    async def with_tasks(port: Port) -> None:
        tasks = Tasks("waiting")
        try:
            await scene(Waiting(port, tasks))
        finally:
            await tasks.close()

    on(folder, with_tasks, **control)


def test_who_may_answer_sees_what_the_calls_say(tmp_path: Path) -> None:
    async def scene(on: Waiting) -> None:
        await on.asks()
        found = await on.list()
        assert found["more"] is False
        (one,) = found["approvals"]
        assert one["calls"] == [{"tool": "send", "arguments": SEND[0].arguments, "characters": 24}]
        assert (one["state"], one["word"], one["why"], one["model"]) == ("waiting", "match", "wants_person", "qwen")
        assert (one["exchange"], one["conversation"], one["needed"], one["votes"]) == ("cp-1", "1", 1, [])
        assert (await on.port.ask("GET", f"{PATH}/{one['id']}", "approve")).json() == one
        assert "me" not in str(one["conversation"])  # whose it is, is not told

    played(tmp_path, scene)


@pytest.mark.parametrize(("answer", "state"), [("approve", "released"), ("deny", "denied")])
def test_an_answer_reaches_who_waits(tmp_path: Path, answer: str, state: str) -> None:
    async def scene(on: Waiting) -> None:
        waiting = await on.asks()
        identity = (await on.list())["approvals"][0]["id"]
        status, body = await on.answer(identity, answer, reason="as agreed")
        assert status == 200
        assert [(v["who"], v["reason"]) for v in body["votes"]] == [("approve", "as agreed")]
        assert (await waiting)[1] is (Answer.APPROVED if answer == "approve" else Answer.DENIED)
        assert (await on.list())["approvals"] == []
        shown = (await on.port.ask("GET", f"{PATH}/{identity}", "approve")).json()
        assert (shown["state"], shown["calls"]) == (state, [])

    played(tmp_path, scene)
    steps = [
        (record.who, record.data["event"]) for record in records(tmp_path / "audit.jsonl") if "event" in record.data
    ]
    assert steps[:2] == [("(proxy)", "asked"), ("approve", "approved" if answer == "approve" else "denied")]
    assert verify(tmp_path / "audit.jsonl").fault is None


def test_an_answer_that_comes_second_is_told_what_it_is_now(tmp_path: Path) -> None:
    async def scene(on: Waiting) -> None:
        waiting = await on.asks()
        identity = (await on.list())["approvals"][0]["id"]
        first, second = await asyncio.gather(on.answer(identity, "approve"), on.answer(identity, "deny"))
        assert first[0] == 200
        assert second[0] == 409
        assert second[1]["error"]["message"].startswith("[counterproof] it is ")
        assert second[1]["approval"]["votes"] == first[1]["votes"]
        await waiting
        status, body = await on.answer(identity, "approve")
        assert (status, body["approval"]["state"]) == (409, "released")

    played(tmp_path, scene)
    events = [record.data["event"] for record in records(tmp_path / "audit.jsonl") if record.who == "approve"]
    assert events == ["approved", "not_counted", "not_counted"]


def test_two_people_must_be_two(tmp_path: Path) -> None:
    async def scene(on: Waiting) -> None:
        waiting = await on.asks(approvers=2)
        identity = on.approvals.pending()[0].id
        assert (await on.answer(identity, "approve", "anna"))[0] == 200
        status, body = await on.answer(identity, "approve", "anna")
        assert status == 409
        assert body["error"]["message"].endswith("anna has approved it already, and another person must")
        assert not waiting.done()
        status, body = await on.answer(identity, "approve", "bo")
        assert (status, [vote["who"] for vote in body["votes"]]) == (200, ["anna", "bo"])
        assert (await waiting)[1] is Answer.APPROVED

    played(tmp_path, scene, tokens=TWO)


def test_what_was_never_there_and_what_has_expired(tmp_path: Path) -> None:
    async def scene(on: Waiting) -> None:
        clock = on.approvals._clock
        for method, more in (("GET", {}), ("POST", {"json": {"answer": "approve"}})):
            response = await on.port.ask(method, f"{PATH}/ap-0", "approve", **more)
            assert response.status_code == 404
            assert message(response) == "there is no such approval, or it was long ago"
        identity, _ = await on.approvals.ask(case(), SEND, HOLD, 0.001)
        assert [one["state"] for one in (await on.list())["approvals"]] == ["late"]
        on.approvals._clock = lambda: clock() + 3601
        status, body = await on.answer(identity, "approve")
        assert (status, body["approval"]["state"]) == (410, "lapsed")

    played(tmp_path, scene)


BAD: list[Any] = [
    {},
    {"answer": "yes"},
    {"answer": "approve", "who": "bo"},
    {"answer": "deny", "reason": "x" * 501},
    {"answer": "deny", "reason": "a\nb"},
    {"answer": "deny", "reason": "\x1b[2J"},
    {"answer": ["approve"]},
    "approve",
    None,
]


@pytest.mark.parametrize("body", BAD)
def test_what_is_no_answer_answers_nothing(tmp_path: Path, body: Any) -> None:
    async def scene(on: Waiting) -> None:
        waiting = await on.asks()
        identity = on.approvals.pending()[0].id
        response = await on.port.ask("POST", f"{PATH}/{identity}", "approve", json=body)
        assert response.status_code == 422
        message(response)
        assert not waiting.done()
        assert on.approvals.pending()[0].votes == []

    played(tmp_path, scene)


def test_lists_come_in_pages_and_cut_what_is_long(tmp_path: Path) -> None:
    async def scene(on: Waiting) -> None:
        for i in range(5):
            await on.asks(f"me:{i}", (ToolCall("send", '{"x": "' + "y" * 5000 + '"}'),))
        first = await on.list(limit="2")
        ids = [one["id"] for one in first["approvals"]]
        assert (len(ids), first["more"]) == (2, True)
        call = first["approvals"][0]["calls"][0]
        assert (len(call["arguments"]), call["characters"]) == (2000, 5009)
        second = await on.list(limit="2", after=ids[-1])
        third = await on.list(limit="2", after=second["approvals"][-1]["id"])
        assert (second["more"], third["more"]) == (True, False)
        everything = [one["id"] for page in (first, second, third) for one in page["approvals"]]
        assert everything == [one.id for one in on.approvals.pending()]
        whole = (await on.port.ask("GET", f"{PATH}/{ids[0]}", "approve")).json()
        assert len(whole["calls"][0]["arguments"]) == 5009
        for bad in ("0", "201", "x"):
            assert (await on.port.ask("GET", PATH, "approve", params={"limit": bad})).status_code == 422

    played(tmp_path, scene)


def test_lists_by_state(tmp_path: Path) -> None:
    async def scene(on: Waiting) -> None:
        await on.asks("me:1")
        late, _ = await on.approvals.ask(case("me:2"), SEND, HOLD, 0.001)
        approved, _ = await on.approvals.ask(case("me:3"), SEND, HOLD, 0.001)
        await on.answer(approved, "approve")
        assert [one["id"] for one in (await on.list(state="late"))["approvals"]] == [late]
        assert [one["id"] for one in (await on.list(state="approved"))["approvals"]] == [approved]
        assert [one["state"] for one in (await on.list())["approvals"]] == ["approved", "late", "waiting"]

    played(tmp_path, scene)


def test_half_a_character_that_a_model_wrote_is_shown(tmp_path: Path) -> None:
    async def scene(on: Waiting) -> None:
        await on.asks(calls=(ToolCall("se\ud800nd", '{"city": "\ud83d"}'),))
        (one,) = (await on.list())["approvals"]
        assert one["calls"][0] == {"tool": "se?nd", "arguments": '{"city": "?"}', "characters": 13}

    played(tmp_path, scene)


def test_without_an_audit_to_write_an_answer_is_503_and_does_not_count(tmp_path: Path) -> None:
    async def scene(on: Waiting) -> None:
        waiting = await on.asks()
        identity = on.approvals.pending()[0].id
        async with asyncio.timeout(10):
            while len(list(records(tmp_path / "audit.jsonl"))) < 2:  # that it is asked about is recorded first
                await asyncio.sleep(0.01)
        (tmp_path / "audit.jsonl").unlink()
        status, body = await on.answer(identity, "approve")
        assert status == 503
        assert body["error"]["message"].endswith("removed, or changed by somebody else: the answer does not count")
        assert not waiting.done()
        metrics = (await on.port.ask("GET", "/metrics")).text
        assert "\ncounterproof_audit_up 0.0\n" in metrics
        assert "\ncounterproof_audit_lost_total 1.0\n" in metrics

    played(tmp_path, scene)


def test_no_content_and_no_token_is_logged(tmp_path: Path) -> None:
    async def scene(on: Waiting) -> None:
        await on.asks()
        identity = on.approvals.pending()[0].id
        await on.list()
        await on.answer(identity, "deny", reason="not to Oslo")
        await on.answer(identity, "deny")
        await on.port.ask("POST", f"{PATH}/{identity}", "read", json={"answer": "approve"})

    with capture_logs() as logs:
        played(tmp_path, scene)
    assert "Oslo" not in str(logs)
    assert "ct-" not in str(logs)
    assert "ct-" not in (tmp_path / "audit.jsonl").read_text()
    assert '"city"' not in (tmp_path / "audit.jsonl").read_text()
