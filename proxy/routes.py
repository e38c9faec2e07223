"""Which primary a request goes to, and what belongs to each: its address, its key, its shadows, what it refuses."""

import functools
import time
from collections.abc import Sequence

import aiohttp
import msgspec
from yarl import URL

from proxy.inject import Level
from proxy.keys import CREDENTIALS
from proxy.settings import PrimarySettings, RouteSettings
from shadow.exchange import Dialect
from shadow.mirror import Mirror

_PLAIN_FOR_S = 600.0  # how long a model is left plain after an injected request failed where a plain one did not
_REMEMBERED_MODELS = 1000  # a client can make up any number of names


class Upstream:
    """One primary as the door uses it.

    `drop` are the (lower-case) headers of a client that it does not get, `authorization` what it gets in their place.
    """

    def __init__(self, primary: PrimarySettings, mirror: Mirror, *, own_keys: bool) -> None:
        self.mirror = mirror
        self.timeout = aiohttp.ClientTimeout(total=None, sock_connect=primary.connect_timeout)
        self.read_timeout = primary.read_timeout
        key = primary.api_key
        self.authorization = b"Bearer " + key.get_secret_value().encode() if key else None
        # Keys that this proxy knows are its own: a primary has no use for them.
        self.drop = CREDENTIALS if own_keys else frozenset({b"authorization"}) if key else frozenset()
        self._level = primary.level
        self._root = primary.base_url.removesuffix("/v1").encode()
        self._plain_until: dict[tuple[Dialect, str], float] = {}
        self._short_url = functools.lru_cache(maxsize=256)(self._url)

    def url(self, path: bytes, query: bytes) -> URL:
        """Where a path of the data port is on this primary, byte for byte."""
        return self._short_url(path, query) if len(path) + len(query) < 256 else self._url(path, query)

    def _url(self, path: bytes, query: bytes) -> URL:
        return URL((self._root + path + (b"?" + query if query else b"")).decode("latin-1"), encoded=True)

    def level(self, dialect: Dialect, model: str) -> Level:
        """How much may be injected for a model now: each dialect has something else put in."""
        plain = self._plain_until and time.monotonic() < self._plain_until.get((dialect, model), 0.0)
        return Level.OFF if plain else self._level

    def leave_plain(self, dialect: Dialect, model: str) -> float:
        """Injects nothing for a model for a while; returns for how many seconds."""
        now = time.monotonic()
        if len(self._plain_until) >= _REMEMBERED_MODELS:
            self._plain_until = {name: until for name, until in self._plain_until.items() if until > now}
        if len(self._plain_until) < _REMEMBERED_MODELS:
            self._plain_until[dialect, model] = now + _PLAIN_FOR_S
        return _PLAIN_FOR_S


class Routes:
    """The primaries by model: the first rule that takes a model's name, else the default one."""

    def __init__(self, default: Upstream, rules: Sequence[tuple[RouteSettings, Upstream]] = ()) -> None:
        self.default = default
        self._rules = list(rules)

    @property
    def by_model(self) -> bool:
        """Whether a request's model has to be known."""
        return bool(self._rules)

    @property
    def all(self) -> list[Upstream]:
        """Every primary, the default one first."""
        return [self.default, *(upstream for _, upstream in self._rules)]

    def pick(self, model: str) -> Upstream:
        """Where requests for a model go."""
        if not self._rules:
            return self.default
        return next((upstream for rule, upstream in self._rules if rule.takes(model)), self.default)

    def pick_by_path(self, path: str) -> Upstream:
        """Where a request without a body goes: `/v1/models/NAME` names a model, other paths name none."""
        return self.pick(path.removeprefix("/v1/models/")) if path.startswith("/v1/models/") else self.default


class _Named(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw(b"null")


_NAMED, _TEXT = msgspec.json.Decoder(_Named), msgspec.json.Decoder(str)


def model_of(body: bytes) -> str:
    """The model that a JSON request names, "" where it names none. Nothing else of it is made an object."""
    try:
        return _TEXT.decode(_NAMED.decode(body).model)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ""
