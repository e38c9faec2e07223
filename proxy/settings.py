"""The configuration: one YAML file, environment variables `COUNTERPROOF_…`, command line; the later wins.

Unknown keys are errors. `${NAME}` in a value is that environment variable. How the file's lines are found again in an
error is `proxy.configfile`'s business.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    ByteSize,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from proxy.fields import BaseUrl, Endless, FaultAt, HostName, Key, Location, Port, Rate, Seconds, Section
from proxy.inject import Level
from proxy.keys import digest
from proxy.paths import ADMINISTRATIVE
from proxy.policies import PolicySettings
from proxy.switch import Mode
from proxy.tokens import Token, TokenScope
from shadow.engine import Endpoint
from shadow.mirror import Limits

ENV_PREFIX = "COUNTERPROOF_"
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_SHORTEST_KEY = 16
_GLOB = frozenset("*?[")


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
    keep: Endless | None = Field(
        default=30 * 86400.0, description="how long an exchange is kept (30d, 12h); null keeps everything"
    )
    content: Literal["none", "redacted", "full"] = "redacted"


class AuditSettings(Section):
    """Where it is kept who changed or approved what, and what countersigned the calls that went out."""

    path: Path | Literal["auto"] | None = Field(
        default="auto", description="auto: audit.jsonl beside the ledger, none without one; null keeps none"
    )
    receipts: Literal["high", "all"] = Field(
        default="high", description="which released calls get a receipt: those of high risk, or all"
    )


class ListenSettings(Section):
    """The data port."""

    host: str = "127.0.0.1"
    port: Port = 8080
    max_in_flight: int = Field(default=4096, ge=1, description="open requests; one more is told 503 and when to retry")
    max_body_bytes: ByteSize = Field(
        default=ByteSize(64 * 1024 * 1024), ge=1, description="a larger request body is 413"
    )
    max_head_bytes: ByteSize = Field(
        default=ByteSize(64 * 1024), ge=1024, description="a request's line and headers; larger ones are 431"
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


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
Holder = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


def _one_of_both(what: str, key: SecretStr | None, sha256: str | None) -> None:
    if (key is None) == (sha256 is None):
        raise ValueError(f"give either {what} or sha256 (of the {what}, in hexadecimal)")
    if key is not None and len(key.get_secret_value()) < _SHORTEST_KEY:
        raise ValueError(f"a {what} has at least {_SHORTEST_KEY} characters")


def _digest(key: SecretStr | None, sha256: str | None) -> bytes:
    return bytes.fromhex(sha256) if sha256 else digest(key.get_secret_value() if key else "")


class ClientKey(Section):
    """A key that lets a client in: itself, or its SHA-256."""

    name: Holder
    key: Key | None = None
    sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _either(self) -> Self:
        _one_of_both("key", self.key, self.sha256)
        return self

    @property
    def digest(self) -> bytes:
        """What is compared: the key itself is not kept."""
        return _digest(self.key, self.sha256)


class RouteSettings(Section):
    """Another primary, with shadows of its own, for some models."""

    model: str = Field(min_length=1, description="a glob on the request's model, like qwen*; the first match wins")
    primary: PrimarySettings
    shadows: tuple[ShadowSettings, ...] = ()

    def takes(self, model: str) -> bool:
        """Whether requests for a model go here."""
        return fnmatchcase(model, self.model)


class TokenSettings(Section):
    """A token of the control port: itself, or its SHA-256."""

    name: Holder = Field(description="the who of what is done with it")
    token: Key | None = None
    sha256: Sha256 | None = None
    scopes: frozenset[TokenScope] = Field(min_length=1, description="read, metrics, mode, approve, policy")

    @model_validator(mode="after")
    def _either(self) -> Self:
        _one_of_both("token", self.token, self.sha256)
        return self

    def value(self) -> Token:
        """As it is looked up."""
        return Token(self.name, _digest(self.token, self.sha256), self.scopes)


class ControlSettings(Section):
    """The control port: metrics, health and the admin API."""

    host: str = Field(default="127.0.0.1", description="loopback only, unless there are tokens")
    port: Port = 8081
    hosts: tuple[HostName, ...] = Field(
        default=(), description="names that it may be called by, beside loopback and its own address"
    )
    metrics: Literal["open", "token"] = Field(default="open", description="open, or for tokens with the scope metrics")
    tokens: tuple[TokenSettings, ...] = Field(default=(), description="without any, one is made at start")
    token_file: Path | None = Field(default=None, description="where the one that is made is kept")


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
    audit: AuditSettings = AuditSettings()
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
        _differ(("client_keys",), "key", [(key.name, key.digest) for key in self.client_keys])
        self._control_is_guarded()
        self._references_suffice()
        self._approvers_suffice()
        self._sets_have_their_source()
        lends = [at for at, primary, _ in self._primaries() if primary.api_key]
        if lends and not self.client_keys and self.listen.host not in LOOPBACK:
            raise FaultAt(
                ("listen", "host"),
                f"with {'.'.join(map(str, lends[0]))}.api_key an exposed data port would lend that key to everybody "
                "who reaches it: give the clients keys of their own (client_keys)",
            )
        if self.listen.port == self.control.port and self.listen.port:
            raise FaultAt(("control", "port"), f"{self.control.port} is the data port already")
        return self

    @property
    def audit_path(self) -> Path | None:
        """The audit's file, None where none is kept."""
        if self.audit.path != "auto":
            return self.audit.path
        return None if self.ledger.path is None else self.ledger.path.with_name("audit.jsonl")

    @property
    def named_tools(self) -> list[str]:
        """The tools that the policy names without a glob, as it spells them."""
        return [tool.match for tool in self.policy.tools if not _GLOB.intersection(tool.match)]

    @property
    def named_models(self) -> list[str]:
        """The models of primaries that the configuration names without a glob."""
        told = [primary.model for _, primary, _ in self._primaries() if primary.model]
        return [*told, *(route.model for route in self.routes if not _GLOB.intersection(route.model))]

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

    def _approvers_suffice(self) -> None:
        holders = sum("approve" in token.scopes for token in self.control.tokens) or 1
        terms = [
            (("default",), self.policy.default),
            *((("tools", i), tool) for i, tool in enumerate(self.policy.tools)),
        ]
        for at, tool in terms:
            if (tool.approvers or 1) > holders:
                raise FaultAt(
                    ("policy", *at, "approvers"),
                    f"{tool.approvers} different people must approve, and {holders} may (control.tokens with the scope "
                    "approve): none of its calls could ever be approved",
                )

    def _control_is_guarded(self) -> None:
        control = self.control
        tokens = [token.value() for token in control.tokens]
        _differ(("control", "tokens"), "token", [(token.name, token.digest) for token in tokens])
        if not tokens and control.host not in LOOPBACK:
            raise FaultAt(
                ("control", "host"), "is loopback only without control.tokens: whoever reached it could turn the switch"
            )
        clients = {key.digest for key in self.client_keys}
        for i, token in enumerate(tokens):
            if token.digest in clients:
                raise FaultAt(("control", "tokens", i), "is the key of a client as well, which would let agents in")


def _differ(place: Location, noun: str, holders: Sequence[tuple[str, bytes]]) -> None:
    """Names and digests stand once each; else nobody could say whose a request is."""
    names, digests = set(), set()
    for i, (name, known) in enumerate(holders):
        if name in names:
            raise FaultAt((*place, i, "name"), f"{name!r} is the name of another {noun} already")
        if known in digests:
            raise FaultAt((*place, i), f"is the same {noun} as another one; each holder has its own")
        names.add(name)
        digests.add(known)


def _place(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = "localhost" if host in {"127.0.0.1", "::1"} else host
    return host, parts.port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/").removesuffix("/v1")
