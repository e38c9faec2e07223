"""The control port: metrics and health, on loopback. It carries no content."""

from collections.abc import Callable, Sequence
from importlib.metadata import version

from fastapi import FastAPI, Request, Response

from proxy.metrics import Metrics
from shadow.mirror import Mirror


def control_app(metrics: Metrics, mirrors: Sequence[Mirror], refresh: Callable[[], None]) -> FastAPI:
    """`/metrics` in Prometheus' format and `/healthz`, which says that this process serves.

    `refresh` is called before metrics are read.
    """
    app = FastAPI(title="Counterproof control", openapi_url=None, docs_url=None, redoc_url=None)

    @app.get("/metrics")
    async def _metrics(request: Request) -> Response:
        for mirror in mirrors:
            metrics.references(mirror.references, mirror.primary)
        refresh()
        text, content_type = metrics.text(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    @app.get("/healthz")
    async def _healthz() -> dict[str, str]:
        return {"status": "ok", "version": version("counterproof")}

    return app
