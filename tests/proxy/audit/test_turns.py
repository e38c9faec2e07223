"""Whether a turn of the switch is in the audit; no turn waits for that."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from proxy.audit import AuditFile, Kind, NoAudit, Turns, turns
from proxy.audit.reading import records
from proxy.switch import Switch


class Hanging(NoAudit):
    """A disk that does not answer."""

    def submit(self, kind: Kind, who: str, data: Mapping[str, Any]) -> Future[int]:  # noqa: ARG002
        return Future()


def test_it_says_of_the_last_turn_whether_it_is_recorded(tmp_path: Path) -> None:
    audit = AuditFile(tmp_path / "audit.jsonl", {})

    async def main() -> None:
        told = Turns(audit)
        switch = Switch("observe", told.record)
        assert await told.recorded()  # nothing was turned
        switch.set("block", who="anna")
        assert await told.recorded()
        moved = audit.path.rename(tmp_path / "elsewhere")
        audit.path.touch()
        moved.unlink()
        switch.set("off", who="bo")
        assert switch.mode == "off"
        assert not await told.recorded()

    asyncio.run(main())
    audit.close()
    assert list(records(audit.path)) == []


def test_a_disk_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_PATIENCE_S", 0.01)

    async def main() -> None:
        told = Turns(Hanging())
        switch = Switch("observe", told.record)
        switch.set("block", who="anna")
        assert switch.mode == "block"
        assert not await told.recorded()

    asyncio.run(main())
