"""`/metrics` in Prometheus' format, and `/healthz`, which says that this process serves. Neither carries content."""

import asyncio
from collections.abc import Callable, Sequence
from importlib.metadata import version

from fastapi import APIRouter, Request, Response

from proxy.control.access import require
from proxy.metrics import Metrics
from shadow.mirror import Mirror

METRICS = "/metrics"


def scrape_routes(
    metrics: Metrics, mirrors: Sequence[Mirror], refresh: Callable[[], None], *, open_to_all: bool
) -> APIRouter:
    """Metrics (unless `open_to_all`, for tokens with the scope `metrics`) and health.

    `refresh` is called before metrics are read.
    """
    routes = APIRouter()
    one_at_a_time = asyncio.Lock()  # a second thread of them would take the loop's turns as well

    @routes.get(METRICS, dependencies=[] if open_to_all else [require("metrics")])
    async def _metrics(request: Request) -> Response:
        for mirror in mirrors:
            metrics.references(mirror.references, mirror.primary)
        refresh()
        accept = request.headers.get("accept", "")
        async with one_at_a_time:  # tens of thousands of lines take a second, and the data port's streams go on
            text, content_type = await asyncio.to_thread(metrics.text, accept, metrics.taken())
        return Response(text, headers={"content-type": content_type})

    @routes.get("/healthz")
    async def _healthz() -> dict[str, str]:
        return {"status": "ok", "version": version("counterproof")}

    return routes
