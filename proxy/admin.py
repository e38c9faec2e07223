"""A client of the control port, for the command line: one request at a time, every failure one clear line."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2
import orjson
from pydantic import TypeAdapter, ValidationError

from proxy import tokenfile
from proxy.errors import StartError
from proxy.fields import BaseUrl, Key
from proxy.settings import LOOPBACK, ControlSettings
from shadow.errors import CounterproofError

_TIMEOUT_S = 10.0
_JSON = {"content-type": "application/json"}
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (where a port that listens everywhere is called)


class AdminError(CounterproofError):
    """The proxy did not do what was asked; one clear line. `status` is HTTP's, 0 where nothing answered."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Admin:
    """Talks to the control port at `url`, with a token where there is one. Answers are JSON values.

    Neither redirects nor the environment's proxies are followed: the token goes to that port and nowhere else. Every
    method raises AdminError.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self.url, self._has_token = url, token is not None
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._client = httpx2.Client(base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str, **params: str) -> Any:
        """Reads."""
        return self._ask("GET", path, params=params)

    def put(self, path: str, body: Any) -> Any:
        """Sets."""
        return self._ask("PUT", path, content=_json(body), headers=_JSON)

    def post(self, path: str, body: Any) -> Any:
        """Does."""
        return self._ask("POST", path, content=_json(body), headers=_JSON)

    def _ask(self, method: str, path: str, **more: Any) -> Any:
        try:
            response = self._client.request(method, path, **more)
        except httpx2.TransportError as error:
            raise AdminError(f"{self.url}: no proxy answers there ({type(error).__name__})") from None
        try:
            value = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            value = None
        if response.is_success and value is not None:
            return value
        raise AdminError(f"{self.url}: {self._problem(response.status_code, value)}", response.status_code)

    def _problem(self, status: int, value: Any) -> str:
        error = value.get("error") if isinstance(value, dict) else None
        told = error.get("message") if isinstance(error, dict) else None
        if not isinstance(told, str):
            return f"what answers there is no control port of Counterproof (HTTP {status})"
        if status == 401 and not self._has_token:
            return "a token is needed: --token, COUNTERPROOF_TOKEN, or the file that this user's proxy keeps here"
        return "this token is not known there" if status == 401 else told.removeprefix("[counterproof] ")


def _json(value: Any) -> str:
    """As ASCII: a command line may hold what is no text, which is the port's to refuse."""
    return json.dumps(value)


def connect(control: str | None, token: str | None, settings: ControlSettings) -> Admin:
    """A client for the port at the URL `control`, None for where these settings have it.

    Without a token, that of the file which a proxy on this machine keeps is taken; it goes to no other machine.

    Raises:
        StartError: the URL or the token cannot be meant, the token's file cannot be read.
    """
    url = _configured(settings) if control is None else _checked(BaseUrl, control, "--control")
    if token is not None:
        _checked(Key, token, "--token")
    elif control is None or urlsplit(url).hostname in LOOPBACK:
        token = _kept(settings.token_file, url)
    return Admin(url, token)


def _configured(settings: ControlSettings) -> str:
    host = _EVERYWHERE.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def _checked(kind: Any, value: str, option: str) -> str:
    if (fault := _fault(kind, value)) is not None:
        raise StartError(f"command line: {option}: {fault}")
    return value.rstrip("/")


def _fault(kind: Any, value: str) -> str | None:
    """What a value lacks to be of a kind; never the value itself."""
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        return error.errors()[0]["msg"].removeprefix("Value error, ")
    return None


def _kept(configured: Path | None, url: str) -> str | None:
    parts = urlsplit(url)
    path = configured
    try:
        path = path or tokenfile.default_path(parts.port or (443 if parts.scheme == "https" else 80))
        token = tokenfile.read(path)
    except OSError as error:
        raise StartError(f"{path or 'the token file'}: cannot be read: {error.strerror or error}") from None
    if token is not None and _fault(Key, token) is not None:
        raise StartError(f"{path}: holds no token")
    return token
