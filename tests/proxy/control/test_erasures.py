"""`/admin/erasures`: a proxy that runs erases a conversation's content, and its audit says who asked for it."""

from pathlib import Path
from typing import Any

import pytest

from proxy.audit.reading import records, verify
from proxy.ledger import LedgerReader
from tests.proxy.control.serving import Port, message, on

PATH = "/admin/erasures"
RECORD: dict[str, Any] = {
    "id": "x-1",
    "began_at": 1.0,
    "model": "m",
    "conversation": "c-1",
    "choices": [{"index": 0, "content": "SECRET", "calls": []}],
    "findings": [],
}


def test_a_conversation_is_erased_and_the_audit_says_so(tmp_path: Path) -> None:
    async def scene(port: Port) -> None:
        assert port.service.ledger is not None
        port.service.ledger.exchange(RECORD)
        response = await port.ask("POST", PATH, "policy", json={"conversation": "c-1"})
        assert response.status_code == 200
        assert response.json() == {"conversation": "c-1", "exchanges": 1}

    on(tmp_path, scene)
    with LedgerReader(tmp_path / "ledger.db") as reader:
        found = reader.exchange("x-1")
    assert found is not None
    assert (found["erased"], "content" in found["choices"][0]) == (True, False)
    erased = [(r.who, r.data) for r in records(tmp_path / "audit.jsonl") if r.kind == "erased"]
    assert erased == [("policy", {"conversation": "c-1", "exchanges": 1})]
    assert verify(tmp_path / "audit.jsonl").fault is None


def test_what_cannot_be_recorded_is_not_erased(tmp_path: Path) -> None:
    async def scene(port: Port) -> None:
        assert port.service.ledger is not None
        port.service.ledger.exchange(RECORD)
        (tmp_path / "audit.jsonl").unlink()
        response = await port.ask("POST", PATH, "policy", json={"conversation": "c-1"})
        assert response.status_code == 503
        assert message(response).endswith("removed, or changed by somebody else: nothing was erased")

    on(tmp_path, scene)
    with LedgerReader(tmp_path / "ledger.db") as reader:
        found = reader.exchange("x-1")
    assert found is not None
    assert found["choices"][0]["content"] == "SECRET"


@pytest.mark.parametrize(
    "body", [{}, {"conversation": ""}, {"conversation": 1}, {"conversation": "c", "all": True}, []]
)
def test_what_names_no_conversation_erases_nothing(tmp_path: Path, body: Any) -> None:
    async def scene(port: Port) -> None:
        response = await port.ask("POST", PATH, "policy", json=body)
        assert response.status_code == 422
        message(response)

    on(tmp_path, scene)
