"""`/admin/status`: what this proxy is doing, at a glance. No content."""

from collections.abc import Callable, Sequence
from importlib.metadata import version

from fastapi import APIRouter
from pydantic import BaseModel

from proxy.approvals import Approvals
from proxy.control.access import require
from proxy.regime import Regime
from proxy.switch import Mode
from shadow.breaker import Circuit
from shadow.mirror import Mirror
from shadow.reference import Reference, State


class ShadowStatus(BaseModel):
    """A shadow: whether it can be asked about its primary, and why not; an open circuit is left alone for a while."""

    name: str
    role: str
    state: State
    why: str
    circuit_open: bool


class PrimaryStatus(BaseModel):
    """A primary as it was found when it was asked what it can do, and its shadows."""

    name: str
    state: State
    why: str
    shadows: list[ShadowStatus]


class Status(BaseModel):
    """`mode` is the one for all, `strongest` what a model or a tool may be in; `policy` is the version in force."""

    version: str
    mode: Mode
    strongest: Mode
    primaries: list[PrimaryStatus]
    open_requests: int
    approvals_pending: int
    policy: str


def status_routes(
    regime: Regime, mirrors: Sequence[Mirror], approvals: Approvals, in_flight: Callable[[], int]
) -> APIRouter:
    """`GET`, for tokens with the scope `read`; `in_flight` counts the data port's open requests."""
    routes = APIRouter()

    @routes.get("/admin/status", dependencies=[require("read")])
    async def _status() -> Status:
        return Status(
            version=version("counterproof"),
            mode=regime.mode,
            strongest=regime.switch.now.strongest,
            primaries=[_primary(mirror) for mirror in mirrors],
            open_requests=in_flight(),
            approvals_pending=len(approvals),
            policy=regime.policy.version,
        )

    return routes


def _primary(mirror: Mirror) -> PrimaryStatus:
    peer = mirror.primary
    shadows = [_shadow(reference, mirror) for reference in mirror.references]
    return PrimaryStatus(name=peer.name, state=peer.state, why=peer.why, shadows=shadows)


def _shadow(reference: Reference, mirror: Mirror) -> ShadowStatus:
    state, why = reference.standing(mirror.primary)
    is_open = reference.breaker.state is not Circuit.CLOSED
    return ShadowStatus(name=reference.name, role=reference.role, state=state, why=why, circuit_open=is_open)
