"""Kinds of values that the configuration is made of."""

import re
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv6Address
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from yarl import URL

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def _seconds(value: Any) -> Any:
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip())
        if found is None:
            raise ValueError("a duration like 500ms, 10s, 5m, 2h or 30d was expected")
        return float(found.group(1)) * _UNITS[found.group(2)]
    return value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
"""A duration that ends: a number of seconds, or text with a unit."""

Endless = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
"""A duration, or infinity."""

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,63}")


def _is_host(name: str) -> bool:
    if ":" in name:
        with suppress(ValueError):
            return bool(IPv6Address(name))
        return False
    labels = name.removesuffix(".").split(".")
    return len(name) <= 253 and all(_LABEL.fullmatch(label) for label in labels)


def _base_url(value: str) -> str:
    # No message repeats the value: whatever stands there may be a key in the wrong place.
    if not value.isprintable() or " " in value:
        raise ValueError("a URL has neither spaces nor line ends")
    try:
        if not value.isascii():  # as a browser does: the host in punycode, the path percent-encoded
            value = str(URL(value))
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError("not a URL: a host and a port from 1 to 65535 were expected") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("a URL like http://host:8000/v1 was expected")
    if parts.username or parts.password:
        raise ValueError("credentials do not belong in the URL; use api_key")
    if parts.query or parts.fragment:
        raise ValueError("a base URL has no query and no fragment")
    if not _is_host(parts.hostname) or port == 0:
        raise ValueError("nothing can be reached there: a host's name or address was expected, a port from 1 to 65535")
    return value.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(_base_url)]
"""As OpenAI clients write it: `http://host:8000/v1`."""


def _key(value: SecretStr) -> SecretStr:
    secret = value.get_secret_value()
    if not secret or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise ValueError("a key is printable ASCII without spaces or line ends (one at the end of a file, perhaps?)")
    return value


Key = Annotated[SecretStr, AfterValidator(_key)]
"""A bearer token that can stand in a header."""

HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]([A-Za-z0-9._-]{0,252}[A-Za-z0-9_.])?$|^[0-9A-Fa-f:.]{2,45}$")]
"""A host as a browser names it, without a port; an IPv6 address without brackets."""

Rate = Annotated[float, Field(ge=0, le=1)]
Port = Annotated[int, Field(ge=0, le=65535)]


Location = tuple[str | int, ...]
"""Where in the configuration: keys and list positions."""


class FaultAt(ValueError):  # noqa: N818  (read as a sentence where it is raised)
    """A fault of the whole that shows at one place, with the `others` that were found beside it."""

    def __init__(self, at: Location, message: str, others: Sequence["FaultAt"] = ()) -> None:
        super().__init__(message)
        self.at, self.others = at, others


class Section(BaseModel):
    """A part of the configuration: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)
