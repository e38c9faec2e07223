"""`/admin/policy:validate`: what a policy would be told if it were configured here. Nothing is put in force."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ValidationError

from proxy.configfile import dotted, faults
from proxy.control.access import require
from proxy.settings import Settings


class Fault(BaseModel):
    """One fault and its place, like `policy.tools.0.rules.1.cel`."""

    at: str
    message: str


class Validated(BaseModel):
    """`version` is what the policy would be known by, null where it has faults; `warnings` cannot be meant."""

    valid: bool
    version: str | None
    faults: list[Fault]
    warnings: list[str]


def policy_routes(settings: Settings) -> APIRouter:
    """`POST`, for tokens with the scope `policy`: the `policy:` section as JSON, held against everything else here.

    Named sets are not read.
    """
    routes = APIRouter()

    @routes.post("/admin/policy:validate", dependencies=[require("policy")])
    def _validate(document: dict[str, Any]) -> Validated:  # in a thread: many rules compile slowly
        return validated(settings, document)

    return routes


def validated(settings: Settings, document: dict[str, Any]) -> Validated:
    """Validates a policy section beside the other sections of these settings."""
    others = {name: getattr(settings, name) for name in Settings.model_fields if name != "policy"}
    try:
        policy = Settings.model_validate(others | {"policy": document}).policy
    except ValidationError as error:
        found = [Fault(at=dotted(at), message=message) for at, message in faults(error)]
        return Validated(valid=False, version=None, faults=found, warnings=[])
    warnings = list(policy.warnings(max(settings.voters.values())))
    return Validated(valid=True, version=policy.version, faults=[], warnings=warnings)
