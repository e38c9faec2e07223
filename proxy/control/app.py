"""The control port's app: the routes of each subject behind one check of who may come in."""

from collections.abc import Collection, Iterable
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from proxy.control import answers
from proxy.control.access import Access, require
from proxy.tokens import Tokens


def control_app(
    tokens: Tokens, routes: Iterable[APIRouter], *, hosts: Collection[str] = (), open_to_all: Collection[str] = ()
) -> FastAPI:
    """The routes, and `/docs`: their OpenAPI document (scope `read`).

    The document is JSON and no page: a page would load its scripts from elsewhere, and a browser that opens it has no
    token to show. `hosts` are names that the port is called by, beside loopback and its own address; paths in
    `open_to_all` need no token. No CORS headers: only pages of the port's own origin may use it.
    """
    app = FastAPI(
        title="Counterproof control",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=[Middleware(Access, tokens=tokens, hosts=hosts, open_to_all=open_to_all)],
        exception_handlers={
            answers.RefusedError: answers.refused,
            RequestValidationError: answers.not_valid,
            HTTPException: answers.not_served,
        },
    )
    for router in routes:
        app.include_router(router)

    @app.get("/docs", dependencies=[require("read")], include_in_schema=False)
    async def _docs(request: Request) -> dict[str, Any]:
        application: FastAPI = request.app
        return application.openapi()

    return app
