"""Named sets that rules look values up in: written out, kept in a file, or a set in Redis; they follow their source.

At start every set must be readable. Later, one whose source is gone or unusable keeps its old values, says so once,
and heals by itself. A file is read when it has kept still for one look, so that half-written versions are rare; to be
sure, write another file and rename it. An empty set does not exist in Redis: a key that is gone counts as lost, not as
emptied, and a set that is meant to be empty holds some value that never occurs.
"""

import asyncio
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

import structlog
from pydantic import Field, model_validator
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from proxy.errors import StartError
from proxy.fields import Section
from shadow.tasks import Tasks
from validators.rules import Sets

log = structlog.get_logger("counterproof.sets")

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_VALUES = 200_000
MAX_REDIS_VALUES = 100_000
"""Fewer than in a file: an answer is parsed in the event loop (some 30 ms for so many)."""
MAX_VALUE_BYTES = 4_096

_REDIS_TIMEOUT_S = 2.0
_AT_MOST = 20  # Redis is asked no oftener than that many times as long as its answer took


class SetSource(Section):
    """Where the values of a named set are: exactly one of three."""

    inline: tuple[str, ...] | None = Field(default=None, max_length=MAX_VALUES, description="the values themselves")
    file: Path | None = Field(default=None, description="a file with a value a line; # begins a comment line")
    redis: str | None = Field(default=None, min_length=1, description="the key of a Redis set")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(kind is not None for kind in (self.inline, self.file, self.redis)) != 1:
            raise ValueError("a set has exactly one of inline, file and redis")
        return self


class SetError(StartError):
    """Sets that cannot be read at start; each line names one of them."""


class _UnusableError(Exception):
    """Why a source gives no values; holds none."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def values_in(raw: bytes) -> frozenset[str]:
    """The values of a set file: one a line, without the white space around it; `#` begins a comment line."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _UnusableError("it is not UTF-8") from None
    if "\0" in text:
        raise _UnusableError("it is no text file")
    lines = (line.strip() for line in text.split("\n"))
    return _bounded(line for line in lines if line and not line.startswith("#"))


def _bounded(values: Iterable[str], most: int = MAX_VALUES) -> frozenset[str]:
    found = frozenset(values)
    if len(found) > most:
        raise _UnusableError(f"it has more than {most} values")
    if any(len(value) * 4 > MAX_VALUE_BYTES and len(value.encode()) > MAX_VALUE_BYTES for value in found):
        raise _UnusableError(f"a value is longer than {MAX_VALUE_BYTES} bytes")
    return found


_Version = tuple[int, int, int, int]


class _File:
    """A set's file. Everything here blocks: it runs in a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: _Version | None = None
        """The version whose values are in use; None while the file is missing or unusable."""
        self._seen: _Version | None = None
        self._refused: tuple[_Version, str] | None = None

    def read(self) -> frozenset[str]:
        """The values that are in the file now.

        Raises:
            _UnusableError: there is no such file, or it holds none.
        """
        self._read = None
        version = self._version()
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise _UnusableError(f"it cannot be read: {type(error).__name__}") from None
        try:
            if len(raw) > MAX_FILE_BYTES:
                raise _UnusableError(f"it is larger than {MAX_FILE_BYTES} bytes")
            values = values_in(raw)
        except _UnusableError as error:
            self._refused = (version, error.reason)
            raise
        self._read = self._seen = version
        return values

    def look(self) -> frozenset[str] | None:
        """The values, where the file has changed and kept still since the look before; None where there is no news."""
        try:
            version = self._version()
        except _UnusableError:
            self._read = self._seen = None
            raise
        if version == self._read:
            return None
        if self._refused is not None and self._refused[0] == version:
            raise _UnusableError(self._refused[1])
        if version != self._seen:
            self._seen = version
            return None
        return self.read()

    def _version(self) -> _Version:
        try:
            found = self._path.stat()
        except OSError as error:
            raise _UnusableError(f"it cannot be read: {type(error).__name__}") from None
        if not stat.S_ISREG(found.st_mode):
            raise _UnusableError("it is no regular file")
        return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


class SetKeeper:
    """Reads the sets of a configuration and keeps them current in `sets`.

    `redis_url` is where sets in Redis are, `directory` what relative file names are relative to. `on_stale(name,
    stale)` hears of each set when it has been read first, and whenever it begins or ceases to be stale.
    """

    def __init__(
        self,
        sources: Mapping[str, SetSource],
        *,
        redis_url: str | None = None,
        directory: Path = Path(),
        on_stale: Callable[[str, bool], None] = lambda _name, _stale: None,
        file_every_s: float = 1.0,
        redis_every_s: float = 5.0,
    ) -> None:
        self.sets = Sets({name: source.inline for name, source in sources.items() if source.inline is not None})
        self._files = {
            name: _File(directory / source.file) for name, source in sources.items() if source.file is not None
        }
        self._keys = {name: source.redis for name, source in sources.items() if source.redis is not None}
        self._redis_url = redis_url
        self._redis: Redis | None = None
        self._on_stale, self._stale = on_stale, dict.fromkeys(sources, False)
        self._file_every_s, self._redis_every_s = file_every_s, redis_every_s
        self._tasks = Tasks("sets")

    async def open(self) -> None:
        """Reads every set once and starts to follow them; needs a running loop.

        Raises:
            SetError: a set cannot be read.
        """
        problems = [f"{name}: {reason}" for name, reason in (await self._first()).items()]
        if problems:
            await self.close()
            raise SetError(*problems)
        for name, stale in self._stale.items():
            self._on_stale(name, stale)
        if self._files:
            self._tasks.start("files", self._follow_files())
        if self._keys:
            self._tasks.start("redis", self._follow_redis())

    async def close(self) -> None:
        """Stops following; the values stay as they are."""
        await self._tasks.close()
        if self._redis is not None:
            await self._redis.aclose()

    async def _first(self) -> dict[str, str]:
        """Reads all sets; what is wrong with which."""
        problems = {}
        for name, file in self._files.items():
            try:
                self.sets.replace(name, await asyncio.to_thread(file.read))
            except _UnusableError as error:
                problems[name] = error.reason
        if not self._keys:
            return problems
        try:
            redis = self._redis = _client(self._redis_url)
        except _UnusableError as error:
            return problems | dict.fromkeys(self._keys, error.reason)
        for name, key in self._keys.items():
            try:
                self.sets.replace(name, await _members(redis, key))
            except _UnusableError as error:
                problems[name] = error.reason
        return problems

    async def _follow_files(self) -> None:
        while True:
            await asyncio.sleep(self._file_every_s)
            for name, file in self._files.items():
                try:
                    values = await asyncio.to_thread(file.look)
                except _UnusableError as error:
                    self._now_stale(name, error.reason)
                else:
                    if values is not None:
                        self._fresh(name, values)

    async def _follow_redis(self) -> None:
        assert self._redis is not None
        loop = asyncio.get_running_loop()
        pause = self._redis_every_s
        while True:
            await asyncio.sleep(pause)
            began = loop.time()
            for name, key in self._keys.items():
                try:
                    self._fresh(name, await _members(self._redis, key))
                except _UnusableError as error:
                    self._now_stale(name, error.reason)
            pause = max(self._redis_every_s, _AT_MOST * (loop.time() - began))

    def _fresh(self, name: str, values: frozenset[str]) -> None:
        if values != self.sets.snapshot()[name]:
            self.sets.replace(name, values)
            log.info("a set has new values", set=name, values=len(values))
        if self._stale[name]:
            log.info("a set is current again", set=name)
            self._turn(name)

    def _now_stale(self, name: str, reason: str) -> None:
        if not self._stale[name]:
            log.warning("a set is stale; its old values stay", set=name, reason=reason)
            self._turn(name)

    def _turn(self, name: str) -> None:
        self._stale[name] = not self._stale[name]
        self._on_stale(name, self._stale[name])


def _client(url: str | None) -> Redis:
    if url is None:
        raise _UnusableError("it is kept in Redis, and no Redis is configured")
    try:
        return Redis.from_url(
            url,
            socket_timeout=_REDIS_TIMEOUT_S,
            socket_connect_timeout=_REDIS_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # the next look is the retry
        )
    except ValueError:  # its text holds the URL, which may hold a password
        raise _UnusableError("the URL of Redis is none") from None


async def _members(redis: Redis, key: str) -> frozenset[str]:
    """The members of a Redis set, all of one moment (SMEMBERS).

    Raises:
        _UnusableError: Redis does not answer, or there is no usable set at the key.
    """
    try:
        async with asyncio.timeout(2 * _REDIS_TIMEOUT_S):
            count = await redis.scard(key)
            if count == 0:
                raise _UnusableError("there is no such set in Redis")
            if count > MAX_REDIS_VALUES:
                raise _UnusableError(f"it has more than {MAX_REDIS_VALUES} values")
            members = await redis.smembers(key)
    except ResponseError:
        raise _UnusableError("Redis refuses to read it: no set, or no right to") from None
    except (RedisError, OSError) as error:  # TimeoutError is an OSError
        raise _UnusableError(f"Redis does not answer: {type(error).__name__}") from None
    return await asyncio.to_thread(_decoded, members)


def _decoded(members: Iterable[bytes | str]) -> frozenset[str]:
    try:
        return _bounded(
            (member.decode() if isinstance(member, bytes) else member for member in members), MAX_REDIS_VALUES
        )
    except UnicodeDecodeError:
        raise _UnusableError("a value of it is not UTF-8") from None
