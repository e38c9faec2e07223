"""Tells the audit what is done with calls, and holds back what must not go out unrecorded."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from proxy.audit.chain import SELF, Kind
from proxy.audit.file import Audit
from proxy.audit.receipts import receipt, turned_away
from shadow.judge import Case, Judged

log = structlog.get_logger("counterproof.audit")

_KINDS = {"released": Kind.RELEASED, "substituted": Kind.SUBSTITUTED, "refused": Kind.REFUSED, "held": Kind.REFUSED}


class Witness:
    """Keeps a record of every refusal and substitution, and a receipt of every release of a call of high risk.

    With `all_releases` the others get receipts, too, for which nothing waits. `count` is told why each answer or
    request was turned away.
    """

    def __init__(
        self, audit: Audit, *, all_releases: bool = False, count: Callable[[str], None] = lambda _why: None
    ) -> None:
        self._audit, self._all, self._count = audit, all_releases, count

    async def see(
        self,
        exchange: str,
        case: Case,
        judged: Judged,
        done: str,
        *,
        ways: Mapping[str, str],
        engines: Sequence[Mapping[str, Any]],
        approval: Mapping[str, Any] | None = None,
    ) -> None:
        """To be awaited before anything of it reaches the client; `done` is the action in the contract's words.

        Returns once the receipt is on disk where a call of high risk goes out, the primary's or another in its place,
        and at once otherwise.

        Raises:
            AuditError: it cannot be kept; the calls must not go out.
        """
        released = done in {"released", "substituted"}
        sent = judged.verdict.substitute or () if done == "substituted" else judged.calls
        risky = released and any(case.policy.of(call.name).risk == "high" for call in sent)
        if done == "released" and not risky and not self._all:
            return
        data = receipt(
            exchange,
            case.request,
            judged,
            done,
            policy=case.policy,
            version=case.rulebook.version,
            conversation=case.conversation,
            mark=self._audit.mark,
            ways=ways,
            engines=engines,
            approval=approval,
        )
        if risky:
            await self._audit.write(_KINDS[done], SELF, data)
        else:
            self._audit.note(_KINDS[done], SELF, data)

    def turned_away(self, exchange: str, why: str, *, model: str = "", dialect: str = "", client: str = "") -> None:
        """A request, or the whole answer to one, was refused, and what it calls is not known or was not looked at.

        `why` is a stable word: `unread`, `too_large`, `unverifiable_path`, `built_in` or `withheld`; `client` is the
        credential's name. Returns at once and never raises: a refusal needs no record to be one.
        """
        try:
            data = turned_away(exchange, why, model=model, dialect=dialect, client=client)
            self._audit.note(Kind.REFUSED, SELF, data)
            self._count(why)
        except Exception as error:  # noqa: BLE001  (see above)
            log.error("a refusal was not recorded", exchange=exchange, error=type(error).__name__)
