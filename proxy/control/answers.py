"""How the control port says no: the data port's error shape, and nothing of what was sent."""

from collections.abc import Iterable

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from proxy.http import TOO_LARGE, Refusal

NO_TOKEN = Refusal(
    401,
    "authentication_error",
    "a token of the control port is needed: it was not given, or is not known",
    headers=((b"www-authenticate", b"Bearer"),),
)
OTHER_HOST = Refusal(
    403, "permission_error", "the control port is not called by this name: see control.hosts", code="host_not_allowed"
)
OTHER_ORIGIN = Refusal(
    403, "permission_error", "pages of another origin may not use the control port", code="origin_not_allowed"
)
BROKEN = Refusal(500, "internal_error", "an error of this proxy's own; its log names the kind")

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 503: "internal_error"}


class RefusedError(Exception):
    """A request is not served; what its sender is told."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def invalid(message: str, status: int = 422) -> RefusedError:
    """What was asked for cannot be meant, or not be done now; the message is one line and repeats no secret."""
    return RefusedError(Refusal(status, _KINDS.get(status, "invalid_request_error"), message))


def missing(scope: str) -> Refusal:
    """A token is known, and may not do this."""
    return Refusal(403, "permission_error", f"this needs a token with the scope {scope}", code="scope_missing")


def answer(refusal: Refusal) -> Response:
    """As a response."""
    response = Response(refusal.body, refusal.status, media_type="application/json")
    response.raw_headers.extend(refusal.headers)
    if refusal.close:
        response.headers["connection"] = "close"
    return response


async def refused(_request: Request, error: Exception) -> Response:
    """Answers what a handler refused."""
    assert isinstance(error, RefusedError)
    return answer(error.refusal)


async def not_valid(_request: Request, error: Exception) -> Response:
    """Answers a request that has not the form it should; what stands there is not repeated."""
    assert isinstance(error, RequestValidationError)
    return answer(invalid("; ".join(_faults(error))).refusal)


def _faults(error: RequestValidationError) -> Iterable[str]:
    for fault in error.errors():
        at = ".".join(str(part) for part in fault["loc"][1:] if isinstance(part, str))  # without `body`, and offsets
        text = fault["msg"].removeprefix("Value error, ")
        yield f"{at}: {text}" if at else text


async def not_served(_request: Request, error: Exception) -> Response:
    """Answers a path or a method that is not served here, a body that is too large."""
    assert isinstance(error, HTTPException)
    if error.status_code == TOO_LARGE.status:
        return answer(TOO_LARGE)
    kind = _KINDS.get(error.status_code, "invalid_request_error")
    headers = tuple((name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items())
    return answer(Refusal(error.status_code, kind, error.detail.lower(), headers=headers))
