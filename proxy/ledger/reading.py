"""The ledger's reading side, beside a running proxy or without one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from proxy.ledger.records import counts
from proxy.ledger.sqlite import OF_CONVERSATION, LedgerError, connect
from proxy.ledger.written import read

UNREADABLE = "this record cannot be read"
"""Said in the place of a record that is not what a ledger writes; the others are shown all the same."""


class LedgerReader:
    """The reading side; works beside a running proxy."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise LedgerError(f"{path}: there is no ledger (has the proxy run here? it writes ledger.path)")
        self._connection = connect(path, writable=False)
        self._version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def conversation(self, key: str) -> int:
        """How many exchanges a conversation has."""
        of = OF_CONVERSATION if self._version >= 3 else "SELECT id FROM exchanges WHERE conversation = ?"
        return len(self._connection.execute(of, (key,) * of.count("?")).fetchall())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def exchanges(
        self,
        *,
        verdict: str | None = None,
        tool: str | None = None,
        shadow: str | None = None,
        since: float | None = None,
        flipped: bool = False,
        limit: int = 50,
    ) -> Iterator[dict[str, Any]]:
        """The latest exchanges first, each with its `examinations`; `since` in epoch seconds."""
        rows = self._connection.execute(
            "SELECT id, record FROM exchanges WHERE began_at >= ? ORDER BY began_at DESC", (since or 0.0,)
        )
        found = 0
        if limit < 1:
            return
        for identity, record in rows:
            examinations = self._examinations(identity)
            wanted = [e for e in examinations if (shadow is None or e["shadow"] == shadow)
                      and (verdict is None or e["verdict"] == verdict)
                      and (not flipped or e["counts"]["flip"])]  # fmt: skip
            exchange = read(record) or self._unread_exchange(identity)
            verdicts = self._verdicts(identity)
            words = {f["word"] for f in exchange.get("findings", ())} | {v["word"] for v in verdicts}
            own = not shadow and not flipped and verdict in words
            if (verdict or shadow or flipped) and not wanted and not own:
                continue
            if tool and not any(call.get("name") == tool for choice in exchange["choices"] for call in choice["calls"]):
                continue
            yield exchange | {"examinations": examinations, "verdicts": verdicts}
            found += 1
            if found == limit:
                return

    def exchange(self, identity: str) -> dict[str, Any] | None:
        """One exchange by its id or an unambiguous beginning of it."""
        if not identity:
            return None
        rows = self._connection.execute("SELECT id, record FROM exchanges WHERE id = ?", (identity,)).fetchall()
        rows = (
            rows
            or self._connection.execute(
                "SELECT id, record FROM exchanges WHERE substr(id, 1, ?) = ? LIMIT 2", (len(identity), identity)
            ).fetchall()
        )
        if len(rows) != 1:
            return None
        found = rows[0][0]
        more = {"examinations": self._examinations(found), "verdicts": self._verdicts(found)}
        return (read(rows[0][1]) or self._unread_exchange(found)) | more

    def _unread_exchange(self, identity: str) -> dict[str, Any]:
        """What stands beside a record that cannot be read."""
        began_at, model, conversation = self._connection.execute(
            "SELECT began_at, model, conversation FROM exchanges WHERE id = ?", (identity,)
        ).fetchone()
        return {
            "id": identity,
            "began_at": began_at,
            "dialect": None,
            "model": model,
            "conversation": conversation,
            "stream": None,
            "status": None,
            "seconds": None,
            "problem": UNREADABLE,
            "choices": [],
            "findings": [],
            "unreadable": True,
        }

    def _examinations(self, exchange: str) -> list[dict[str, Any]]:
        rows = self._connection.execute(
            "SELECT lag, record, shadow, outcome, verdict FROM examinations WHERE exchange = ? ORDER BY shadow",
            (exchange,),
        )
        return [(read(record) or _unread_examination(*rest)) | {"lag_seconds": lag} for lag, record, *rest in rows]

    def _verdicts(self, exchange: str) -> list[dict[str, Any]]:
        if self._version < 2:
            return []
        rows = self._connection.execute(
            "SELECT record, choice, word, done FROM verdicts WHERE exchange = ? ORDER BY choice", (exchange,)
        )
        return [read(record) or _unread_verdict(*rest) for record, *rest in rows]


def _unread_examination(shadow: str, outcome: str, verdict: str | None) -> dict[str, Any]:
    return {
        "shadow": shadow,
        "outcome": outcome,
        "reason": UNREADABLE,
        "prompt_differs": None,
        "verdict": verdict,
        "method": None,
        "counts": counts([]),
        "choices": [],
        "unreadable": True,
    }


def _unread_verdict(choice: int, word: str, done: str) -> dict[str, Any]:
    why = {"choice": choice, "word": word, "done": done, "why": UNREADABLE, "unreadable": True}
    return why | {"calls": [], "findings": []}
