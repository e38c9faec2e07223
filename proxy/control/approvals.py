"""`/admin/approvals`: the calls that wait for people, with what they say, and people's answers."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from proxy.approvals import Approval, Approvals, DecidedError, State, UnknownError
from proxy.audit import AuditError
from proxy.control.access import require
from proxy.control.answers import invalid

PATH = "/admin/approvals"
MOST_REASON = 500
"""Characters of a reason."""

_SHOWN = 2000  # characters of arguments in a list; one approval by itself has all of them
_MOST_PAGE = 200


class CallShown(BaseModel):
    """A call that waits; `arguments` as the model wrote them, of so many `characters`, which a list may cut."""

    tool: str
    arguments: str
    characters: int


class VoteShown(BaseModel):
    """What one person said."""

    who: str
    answer: Literal["approved", "denied"]
    reason: str
    at: datetime


class ApprovalShown(BaseModel):
    """An approval; `needed` different people must approve it. One that is over has no calls any more.

    `word` is the verdict's, `why` the reason why the calls are held; `expires_at` is when its client stops waiting.
    """

    id: str
    state: State
    asked_at: datetime
    expires_at: datetime
    calls: list[CallShown]
    word: str
    why: str
    model: str
    conversation: str
    exchange: str
    needed: int
    votes: list[VoteShown]


class ApprovalsShown(BaseModel):
    """Those in a state, oldest first; `more` says that others follow the last one (`after`)."""

    approvals: list[ApprovalShown]
    more: bool


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("one line of text was expected")
    return text


class Reply(BaseModel):
    """A person's answer."""

    model_config = ConfigDict(extra="forbid")

    answer: Literal["approve", "deny"]
    reason: Annotated[str, Field(max_length=MOST_REASON), AfterValidator(_one_line)] = ""


class Refused(BaseModel):
    """An answer that does not count, and what the approval is now."""

    error: dict[str, Any] = Field(description="in the shape of every error")
    approval: ApprovalShown


Page = Annotated[int, Query(ge=1, le=_MOST_PAGE)]


def approval_routes(approvals: Approvals) -> APIRouter:
    """For tokens with the scope `approve`: who answers must see what the calls say, and nobody else is to.

    An answer is 404 where there is no such approval, 409 where it is decided, 410 where it has expired, 503 where it
    cannot be recorded; none of these counts.
    """
    routes = APIRouter(prefix=PATH)

    @routes.get("", dependencies=[require("approve")])
    async def _list(state: State | None = None, after: str = "", limit: Page = 50) -> ApprovalsShown:
        found = [one for one in _all(approvals) if state is None or one.state is state]
        begin = next((i + 1 for i, one in enumerate(found) if one.id == after), 0)
        page = found[begin : begin + limit]
        return ApprovalsShown(approvals=[shown(one, _SHOWN) for one in page], more=len(found) > begin + limit)

    @routes.get("/{identity}", dependencies=[require("approve")])
    async def _one(identity: str) -> ApprovalShown:
        approval = approvals.find(identity)
        if approval is None:
            raise invalid("there is no such approval, or it was long ago", 404)
        return shown(approval)

    @routes.post("/{identity}", response_model=ApprovalShown, responses={409: {"model": Refused}})
    async def _answer(identity: str, reply: Reply, who: Annotated[str, require("approve")]) -> ApprovalShown | Response:
        try:
            approved = reply.answer == "approve"
            return shown(await approvals.decide(identity, who, approved=approved, reason=reply.reason))
        except UnknownError:
            raise invalid("there is no such approval, or it was long ago", 404) from None
        except DecidedError as error:
            return _decided(error)
        except AuditError as error:
            raise invalid(f"{error}: the answer does not count", 503) from None

    return routes


def _all(approvals: Approvals) -> list[Approval]:
    return [*approvals.decided(), *approvals.late(), *approvals.pending()]


def _decided(error: DecidedError) -> Response:
    refusal = invalid(str(error), 410 if error.approval.state is State.LAPSED else 409).refusal
    body = Refused(error=orjson.loads(refusal.body)["error"], approval=shown(error.approval))
    return Response(body.model_dump_json(), refusal.status, media_type="application/json")


def shown(approval: Approval, most: int | None = None) -> ApprovalShown:
    """An approval as approvers see it, with at most so many characters of each call's arguments."""
    return ApprovalShown(
        id=approval.id,
        state=approval.state,
        asked_at=datetime.fromtimestamp(approval.asked_at, UTC),
        expires_at=datetime.fromtimestamp(approval.expires_at, UTC),
        calls=[
            CallShown(tool=_text(call.name), arguments=_text(call.arguments[:most]), characters=len(call.arguments))
            for call in approval.calls
        ],
        word=approval.verdict.word.value,
        why=approval.verdict.why,
        model=approval.model,
        conversation=approval.conversation,
        exchange=approval.exchange,
        needed=approval.needed,
        votes=[
            VoteShown(
                who=vote.who,
                answer="approved" if vote.approved else "denied",
                reason=vote.reason,
                at=datetime.fromtimestamp(vote.at, UTC),
            )
            for vote in approval.votes
        ],
    )


def _text(text: str) -> str:
    """Without half a surrogate pair, which a model can write and JSON cannot hold."""
    return text.encode("utf-8", "replace").decode()
