"""`/metrics` in Prometheus' format, and `/healthz`, which says that this process serves. Neither carries content."""

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

    @routes.get(METRICS, dependencies=[] if open_to_all else [require("metrics")])
    async def _metrics(request: Request) -> Response:
        for mirror in mirrors:
            metrics.references(mirror.references, mirror.primary)
        refresh()
        text, content_type = metrics.text(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    @routes.get("/healthz")
    async def _healthz() -> dict[str, str]:
        return {"status": "ok", "version": version("counterproof")}

    return routes
