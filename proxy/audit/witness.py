"""Tells the audit what is done with calls, and holds back what must not go out unrecorded."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.audit.chain import SELF, Kind
from proxy.audit.file import Audit
from proxy.audit.receipts import receipt
from shadow.judge import Case, Judged

_KINDS = {"released": Kind.RELEASED, "substituted": Kind.SUBSTITUTED, "refused": Kind.REFUSED, "held": Kind.REFUSED}


class Witness:
    """Keeps a record of every refusal and substitution, and a receipt of every release of a call of high risk.

    With `all_releases` the others get receipts, too, for which nothing waits.
    """

    def __init__(self, audit: Audit, *, all_releases: bool = False) -> None:
        self._audit, self._all = audit, all_releases

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
