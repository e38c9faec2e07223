"""`/admin/erasures`: removes a conversation's content from the ledger of a proxy that runs, and from its approvals."""

import asyncio
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from proxy.approvals import Approvals
from proxy.audit import Audit, AuditError
from proxy.audit.erasing import erase
from proxy.control.access import require
from proxy.control.answers import invalid
from proxy.ledger import Ledger, LedgerError

PATH = "/admin/erasures"


class Erasure(BaseModel):
    """Which conversation, by its key."""

    model_config = ConfigDict(extra="forbid")

    conversation: str = Field(min_length=1, max_length=256)


class Erased(BaseModel):
    """How many exchanges it had."""

    conversation: str
    exchanges: int


def erasure_routes(ledger: Ledger | None, audit: Audit, approvals: Approvals) -> APIRouter:
    """`POST`, for tokens with the scope `policy`; 503 where it cannot be done or recorded: nothing is erased then."""
    routes = APIRouter()

    @routes.post(PATH)
    async def _erase(erasure: Erasure, who: Annotated[str, require("policy")]) -> Erased:
        if ledger is None:
            raise invalid("no ledger is kept here", 404)
        try:
            count = await asyncio.to_thread(erase, ledger, audit, who, erasure.conversation)  # which waits for two
        except (AuditError, LedgerError) as error:
            raise invalid(f"{error}: nothing was erased", 503) from None
        approvals.erase(erasure.conversation, who)
        return Erased(conversation=erasure.conversation, exchanges=count)

    return routes
