"""What proxies say, and which credentials they are given, while tests run: kept for the search at the end of the run.

The doors that every proxy has are watched, whoever starts it and whoever asks it: a test's own process does so itself,
a proxy in a process of its own by `tests/watched/sitecustomize.py`.
"""

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, SecretStr

from proxy import configfile
from proxy.app import Service
from proxy.http import Message, Receive, Scope, Send
from proxy.joined import HeadKept
from proxy.keys import CREDENTIALS
from proxy.metrics import Metrics
from proxy.protocol import BoundedProtocol
from proxy.tokens import Tokens
from shadow.errors import CounterproofError

FOLDER = "COUNTERPROOF_TEST_WATCHED"
"""The variable that names the folder to a process that is watched."""

Kind = Literal["log", "metric", "error", "given", "made", "configuration", "file", "started"]
"""Said: a log, a metric's series, an answer or a message of an error. Noted: a credential that was given to a proxy or
made by one, a file that was read as a configuration, a log that lies elsewhere, a process that was started.
"""
SAID: tuple[Kind, ...] = ("log", "metric", "error")


@dataclass(frozen=True, slots=True)
class Seen:
    """One thing that was seen, the test in which, and the process."""

    kind: Kind
    test: str
    said: bytes
    process: int


class Watch:
    """Keeps each thing once, in a file of this process; before a folder is named, nothing.

    It disturbs no test: some leave this process no room for a file, or no descriptor. What cannot be written then is
    written later.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._kept: set[bytes] = set()
        self._owed = b""
        self._lock = threading.Lock()

    def see(self, kind: Kind, said: bytes | str) -> None:
        """Keeps it."""
        if self.folder is None or not said:
            return
        data = said.encode("utf-8", "surrogateescape") if isinstance(said, str) else bytes(said)
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        by = "" if kind == "metric" else test  # every test's proxies have the same hundreds of series
        name = hashlib.blake2b(f"{kind} {by} ".encode() + data, digest_size=16).digest()
        with self._lock:
            if name in self._kept:
                return
            self._kept.add(name)
            self._owed += json.dumps([kind, test, data.decode("latin-1")]).encode() + b"\n"
            self._write(self.folder)

    def _write(self, folder: Path) -> None:
        with contextlib.suppress(OSError), (folder / f"{os.getpid()}.jsonl").open("ab", buffering=0) as file:
            self._owed = self._owed[file.write(self._owed) :]

    def flush(self) -> None:
        """Writes what is owed."""
        with self._lock:
            if self.folder is not None and self._owed:
                self._write(self.folder)
            assert not self._owed

    def proxy(self) -> None:
        """Notes that this process is watched."""
        self.see("started", str(os.getpid()))


WATCH = Watch()
"""This process's."""


def seen(folder: Path) -> Iterator[Seen]:
    """All that was kept in a folder, by whichever process."""
    for file in sorted(folder.glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                kind, test, said = json.loads(line)
                yield Seen(kind, test, said.encode("latin-1"), int(file.stem))


Patch = Callable[[Any, str, Any], None]


def install(watch: Watch, patch: Patch = setattr) -> None:
    """Watches every proxy of this process from now on."""
    _answers(watch, patch)
    _metrics(watch, patch)
    _credentials(watch, patch)
    _errors(watch, patch)
    _configurations(watch, patch)


def _answers(watch: Watch, patch: Patch) -> None:
    """Answers of 400 and above on either port, and what was put in a blocked answer's place, head and body."""
    write = HeadKept.write

    def watched(kept: Any, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 "):
            kept.watched = is_own(int(data[9:12]) if data[9:12].isdigit() else 0, data)
        if getattr(kept, "watched", False):
            watch.see("error", data)
        write(kept, data)

    patch(HeadKept, "write", watched)


def is_own(status: int, head: bytes) -> bool:
    """Whether an answer may be one of the proxy's own words."""
    return status >= 400 or b"x-counterproof-action" in head


def asgi(app: Any, watch: Watch = WATCH) -> Any:
    """An app that is asked without sockets, watched like one on a port."""

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        own = False

        async def sent(message: Message) -> None:
            nonlocal own
            if message["type"] == "http.response.start":
                head = b"".join(name + b": " + value + b"\r\n" for name, value in message["headers"])
                if own := is_own(message["status"], head):
                    watch.see("error", head)
            elif own:
                watch.see("error", message.get("body", b""))
            await send(message)

        await app(scope, receive, sent)

    return watched


def _metrics(watch: Watch, patch: Patch) -> None:
    """Each series that was ever scraped, and all that there are when a proxy ends; numbers are left out."""
    text, close = Metrics.text, Service.close

    def scraped(metrics: Metrics, accept: str, *taken: Any) -> tuple[bytes, str]:
        said, kind = text(metrics, accept, *taken)
        for line in said.splitlines():
            watch.see("metric", line if line.startswith(b"#") else line.rpartition(b" ")[0])
        return said, kind

    async def closed(service: Service) -> None:
        for mirror in service.mirrors:
            service.metrics.references(mirror.references, mirror.primary)
        try:
            await close(service)
        finally:
            service.metrics.text("")

    patch(Metrics, "text", scraped)
    patch(Service, "close", closed)


def _credentials(watch: Watch, patch: Patch) -> None:
    """What a proxy is configured with, what requests carry, and the token that it makes for itself."""
    begin, heard, lend = Service.__init__, BoundedProtocol.on_headers_complete, Tokens.lend

    def begun(service: Service, settings: Any, **options: Any) -> None:
        for text in configured(settings):
            watch.see("given", text)
        watch.proxy()
        begin(service, settings, **options)

    def headers(protocol: Any) -> None:
        for name, value in protocol.headers:
            if name in CREDENTIALS:
                watch.see("given", value)
        heard(protocol)

    def lent(tokens: Tokens) -> str:
        made = lend(tokens)
        watch.see("made", made)
        return made

    patch(Service, "__init__", begun)
    patch(BoundedProtocol, "on_headers_complete", headers)
    patch(Tokens, "lend", lent)


def configured(value: Any) -> Iterator[str]:
    """The credentials in settings, however deep; a URL is one if it has a password."""
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        if "://" not in text or "@" in text:
            yield text
    elif isinstance(value, BaseModel):
        for child in vars(value).values():
            yield from configured(child)
    elif isinstance(value, tuple):
        for child in value:
            yield from configured(child)


def _errors(watch: Watch, patch: Patch) -> None:
    """What an error of this program says, whether or not anybody prints it."""

    def made(error: Exception, *args: object) -> None:
        Exception.__init__(error, *args)
        watch.see("error", "\n".join(map(str, args)))

    patch(CounterproofError, "__init__", made)


def _configurations(watch: Watch, patch: Patch) -> None:
    """The files in which credentials may stand: those that are read as a configuration."""
    read = configfile._read

    def noted(path: Path, environ: Any) -> Any:
        watch.see("configuration", str(path.resolve()))  # a link may lead to it
        return read(path, environ)

    patch(configfile, "_read", noted)
