"""The configuration: one YAML file, environment variables `COUNTERPROOF_…`, command line; the later wins.

Unknown keys are errors. `${NAME}` in a value is that environment variable. How the file's lines are found again in an
error is `proxy.configfile`'s business.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    ByteSize,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from proxy.fields import BaseUrl, FaultAt, Key, Location, Port, Rate, Seconds, Section
from proxy.inject import Level
from proxy.keys import digest
from proxy.paths import ADMINISTRATIVE
from proxy.policies import PolicySettings
from shadow.engine import Endpoint
from shadow.mirror import Limits

ENV_PREFIX = "COUNTERPROOF_"
Mode = Literal["off", "observe", "block"]
_SHORTEST_KEY = 16


class PrimarySettings(Section):
    """The vLLM whose answers clients get."""

    base_url: BaseUrl
    model: str | None = Field(
        default=None, description="the model asked about at start; default: the first that it serves"
    )
    api_key: Key | None = Field(default=None, description="replaces the client's Authorization header")
    logprobs: Literal["auto", "ids", "off"] = Field(
        "auto",
        description="what is asked for beside the client's own wishes: token ids and logprobs, ids only, nothing",
    )
    connect_timeout: Seconds = 10.0
    read_timeout: Seconds = Field(default=600.0, description="the longest silence of the primary")

    @property
    def level(self) -> Level:
        """The most that may be injected."""
        return {"auto": Level.FULL, "ids": Level.IDS, "off": Level.OFF}[self.logprobs]

    def endpoint(self, name: str = "primary") -> Endpoint:
        """The primary as an engine that can be asked what it can do."""
        return Endpoint(name, self.base_url, self.model, _secret(self.api_key), max_concurrency=1)


class ShadowSettings(Section):
    """A reference engine."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    base_url: BaseUrl
    model: str | None = Field(default=None, description="the name it serves; default: its first")
    api_key: Key | None = None
    role: Literal["reference", "twin"] = "reference"
    max_concurrency: int = Field(default=4, ge=1, le=256)
    timeout: Seconds = 120.0

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, value: str) -> str:
        if value in {"none", "primary", "other"}:
            raise ValueError(f"{value!r} has a meaning of its own; choose another name")
        return value

    def endpoint(self) -> Endpoint:
        """The shadow as an engine."""
        return Endpoint(self.name, self.base_url, self.model, _secret(self.api_key), self.timeout, self.max_concurrency)


def _secret(value: SecretStr | None) -> str | None:
    return value.get_secret_value() if value else None


class MirrorSettings(Section):
    """How much is mirrored, and how much may wait for it."""

    tool_calls: Rate = 1.0
    other: Rate = 0.05
    max_queue: int = Field(default=1000, ge=1)
    max_queue_bytes: ByteSize = ByteSize(256 * 1024 * 1024)
    max_body_bytes: ByteSize = ByteSize(8 * 1024 * 1024)

    def limits(self) -> Limits:
        """As the mirror takes them."""
        return Limits(self.tool_calls, self.other, self.max_queue, int(self.max_queue_bytes), int(self.max_body_bytes))


class ConversationSettings(Section):
    """What makes requests one conversation."""

    header: str | None = Field(default=None, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")


class LedgerSettings(Section):
    """Where what was found is kept, and how much of it."""

    path: Path | None = Field(default=Path("counterproof.db"), description="null keeps no ledger")
    keep: Seconds | None = Field(
        default=30 * 86400.0, description="how long an exchange is kept (30d, 12h); null keeps everything"
    )
    content: Literal["none", "redacted", "full"] = "redacted"


class ListenSettings(Section):
    """The data port."""

    host: str = "127.0.0.1"
    port: Port = 8080
    max_in_flight: int = Field(default=4096, ge=1, description="open requests; one more is told 503 and when to retry")
    max_body_bytes: ByteSize = Field(default=ByteSize(64 * 1024 * 1024), description="a larger request body is 413")
    max_head_bytes: ByteSize = Field(
        default=ByteSize(64 * 1024), description="a request's line and headers; larger ones are 431"
    )
    read_timeout: Seconds = Field(
        default=60.0, description="the longest silence of a client that is sending its head or its body"
    )
    shutdown_timeout: Seconds = Field(default=30.0, description="what open answers may take to finish at shutdown")


class PathSettings(Section):
    """What of the primary is served."""

    deny: tuple[str, ...] = Field(
        default=ADMINISTRATIVE, description="paths that are 403, at any depth; a list of yours replaces the default one"
    )
    allow: tuple[str, ...] = Field(default=(), description="whole paths that are served all the same")

    @field_validator("deny", "allow")
    @classmethod
    def _paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if not path.startswith("/") or not path.strip("/"):
                raise ValueError(f"{path!r}: a path begins with / and names something, like /sleep")
        return value


class ClientKey(Section):
    """A key that lets a client in: itself, or its SHA-256."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    key: Key | None = None
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("give either key or sha256 (of the key, in hexadecimal)")
        if self.key is not None and len(self.key.get_secret_value()) < _SHORTEST_KEY:
            raise ValueError(f"a key has at least {_SHORTEST_KEY} characters")
        return self

    @property
    def digest(self) -> bytes:
        """What is compared: the key itself is not kept."""
        return bytes.fromhex(self.sha256) if self.sha256 else digest(self.key.get_secret_value() if self.key else "")


class RouteSettings(Section):
    """Another primary, with shadows of its own, for some models."""

    model: str = Field(min_length=1, description="a glob on the request's model, like qwen*; the first match wins")
    primary: PrimarySettings
    shadows: tuple[ShadowSettings, ...] = ()

    def takes(self, model: str) -> bool:
        """Whether requests for a model go here."""
        return fnmatchcase(model, self.model)


class ControlSettings(Section):
    """The control port: metrics and health."""

    host: Literal["127.0.0.1", "::1", "localhost"] = Field(
        default="127.0.0.1", description="loopback only, until tokens can be configured"
    )
    port: Port = 8081


class StateSettings(Section):
    """Where what replicas share is kept."""

    url: SecretStr | None = Field(default=None, description="redis://host:6379/0: where named sets are looked up")

    @field_validator("url")
    @classmethod
    def _redis(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and urlsplit(value.get_secret_value()).scheme not in {"redis", "rediss", "unix"}:
            raise ValueError("a URL like redis://host:6379/0 was expected")
        return value


class LogSettings(Section):
    """What is said on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


class Settings(BaseSettings):
    """Everything that can be configured."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    primary: PrimarySettings
    shadows: tuple[ShadowSettings, ...] = ()
    mirror: MirrorSettings = MirrorSettings()
    conversation: ConversationSettings = ConversationSettings()
    routes: tuple[RouteSettings, ...] = ()
    client_keys: tuple[ClientKey, ...] = ()
    paths: PathSettings = PathSettings()
    ledger: LedgerSettings = LedgerSettings()
    listen: ListenSettings = ListenSettings()
    control: ControlSettings = ControlSettings()
    log: LogSettings = LogSettings()
    mode: Mode = Field(
        default="observe", description="off, observe, or block: no tool call goes out before its verdict"
    )
    policy: PolicySettings = PolicySettings()
    state: StateSettings = StateSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Values come merged from `proxy.configfile`, so that each one's origin is known to its errors."""
        return (init_settings,)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._shadows_are_others()
        self._keys_differ()
        self._references_suffice()
        self._sets_have_their_source()
        lends = [at for at, primary, _ in self._primaries() if primary.api_key]
        if lends and not self.client_keys and self.listen.host not in {"127.0.0.1", "::1", "localhost"}:
            raise FaultAt(
                ("listen", "host"),
                f"with {'.'.join(map(str, lends[0]))}.api_key an exposed data port would lend that key to everybody "
                "who reaches it: give the clients keys of their own (client_keys)",
            )
        if self.listen.port == self.control.port and self.listen.port:
            raise FaultAt(("control", "port"), f"{self.control.port} is the data port already")
        return self

    def _primaries(self) -> Iterator[tuple[Location, PrimarySettings, tuple[ShadowSettings, ...]]]:
        """Each primary with its place in the configuration and its shadows; the default one last, as it is asked."""
        for i, route in enumerate(self.routes):
            yield ("routes", i, "primary"), route.primary, route.shadows
        yield ("primary",), self.primary, self.shadows

    def _shadows_are_others(self) -> None:
        seen = set()
        for at, primary, shadows in self._primaries():
            for i, shadow in enumerate(shadows):
                place = (*at[:-1], "shadows", i)
                if shadow.name in seen:
                    raise FaultAt((*place, "name"), f"{shadow.name!r} is the name of another shadow already")
                seen.add(shadow.name)
                same_model = shadow.model is None or primary.model is None or shadow.model == primary.model
                if same_model and _place(shadow.base_url) == _place(primary.base_url):
                    raise FaultAt(
                        (*place, "base_url"),
                        "is the primary itself; an engine cannot give a second opinion on itself",
                    )

    def _sets_have_their_source(self) -> None:
        for name, source in self.policy.sets.items():
            if source.redis is not None and self.state.url is None:
                raise FaultAt(("policy", "sets", name, "redis"), "is a key in Redis, and state.url names none")

    @property
    def voters(self) -> dict[str, int]:
        """How many references may vote (twins never do), by the place of their primary in the configuration."""
        return {
            ".".join(map(str, at)): sum(shadow.role == "reference" for shadow in shadows)
            for at, _primary, shadows in self._primaries()
        }

    def _references_suffice(self) -> None:
        agree = self.policy.agree or 0
        for primary, references in self.voters.items():
            if references < agree:
                raise FaultAt(
                    ("policy", "agree"),
                    f"{agree} references must countersign, and {primary} has {references} (twins never vote): none of "
                    "its calls could ever be verified",
                )

    def _keys_differ(self) -> None:
        names, digests = set(), set()
        for i, key in enumerate(self.client_keys):
            if key.name in names:
                raise FaultAt(("client_keys", i, "name"), f"{key.name!r} is the name of another key already")
            if key.digest in digests:
                raise FaultAt(("client_keys", i), "is the same key as another one; each client has its own")
            names.add(key.name)
            digests.add(key.digest)


def _place(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = "localhost" if host in {"127.0.0.1", "::1"} else host
    return host, parts.port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/").removesuffix("/v1")
