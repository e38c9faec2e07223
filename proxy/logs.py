"""Logs on standard error, as JSON lines or for people; neither secrets nor content."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog

_SECRET = ("authorization", "api_key", "token", "password", "cookie")
_NOT_FINISHED = "ASGI callable returned without completing response."  # how this proxy says that a primary broke off


def _no_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A last line of defence: a value under a key that sounds like a secret is not printed."""
    for key in event:
        if any(word in key.lower() for word in _SECRET):
            event[key] = "[secret]"
    return event


def _no_exception_text(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Exceptions are logged by type: their messages and tracebacks can hold content."""
    info = event.pop("exc_info", None)
    kind = info[0] if isinstance(info, tuple) else type(info) if isinstance(info, BaseException) else None
    if kind is not None:
        event["error"] = kind.__name__
    return event


class _Quiet(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.getMessage() != _NOT_FINISHED


def configure(level: str, style: Literal["auto", "json", "console"]) -> None:
    """Sets structlog and the standard library's logging (uvicorn, asyncio) to one form."""
    for_people = style == "console" or (style == "auto" and sys.stderr.isatty())
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _no_exception_text,
        _no_secrets,
    ]
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if for_people else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    handler.addFilter(_Quiet())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(getattr(logging, level.upper()), logging.WARNING))
