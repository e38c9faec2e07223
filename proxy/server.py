"""Runs a proxy: both ports in one event loop, signals, and an orderly end."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import structlog
import uvicorn
import uvloop

from proxy import process
from proxy.app import Service
from proxy.errors import StartError
from proxy.protocol import BoundedProtocol
from proxy.settings import ListenSettings, Settings
from proxy.tokenfile import lent
from shadow.tasks import Tasks

log = structlog.get_logger("counterproof.server")

_CONTROL_GRACE_SECONDS = 2  # a scrape is short


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to `run`: two of them share one process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: Any, protocol: type[BoundedProtocol], grace: float) -> _Server:
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=grace,  # type: ignore[arg-type]
    )
    return _Server(config)


def _bounded(settings: ListenSettings) -> type[BoundedProtocol]:
    """The data port's protocol with its bounds: uvicorn takes a class and makes the connections itself."""

    class Bounded(BoundedProtocol):
        max_head_bytes = int(settings.max_head_bytes)
        head_timeout = settings.read_timeout

    return Bounded


def listen(host: str, port: int, what: str) -> socket.socket:
    """A bound, listening socket.

    Raises:
        StartError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise StartError(f"{what}: cannot listen on {host}:{port}: {error.strerror or error}") from None
    bound.setblocking(False)  # noqa: FBT003
    return bound


def address(bound: socket.socket) -> str:
    """`host:port` of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


Started = Callable[[str, str], None]


def run(
    settings: Settings,
    started: Started,
    until: Callable[[], Awaitable[None]] | None = None,
    *,
    path: Path | None = None,
    load: Callable[[], Settings] | None = None,
) -> None:
    """Serves until a signal comes (or `until` ends), then lets open streams finish and closes everything.

    `started(data address, control address)` is called once both ports answer. Mode and policy follow the file at
    `path`, which `load` reads anew.

    Raises:
        StartError: a port is taken, the ledger cannot be opened; nothing was started then.
    """
    process.prepare()
    data = listen(settings.listen.host, settings.listen.port, "listen.port")
    try:
        control = listen(settings.control.host, settings.control.port, "control.port")
    except StartError:
        data.close()
        raise
    with data, control, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Service(settings, path=path, load=load), data, control, started, until))


async def serve(
    service: Service,
    data: socket.socket,
    control: socket.socket,
    started: Started,
    until: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serves a service on two sockets, in a running loop."""
    listening = service.settings.listen
    servers = (
        _server(service.data, _bounded(listening), listening.shutdown_timeout),
        _server(service.control, BoundedProtocol, _CONTROL_GRACE_SECONDS),
    )
    tasks = Tasks("server")
    stop = asyncio.Event()

    def signalled() -> None:
        if stop.is_set():  # asked a second time: what is open is cut off
            for server in servers:
                server.force_exit = True
        stop.set()

    with _signals(signalled):
        await service.open()
        try:
            with lent(service.tokens, service.settings.control.token_file, control.getsockname()[1]):
                running = [
                    tasks.start(name, server.serve(sockets=[bound]))
                    for name, server, bound in zip(("data", "control"), servers, (data, control), strict=True)
                ]
                started(address(data), address(control))
                waits = [tasks.start("stop", stop.wait()), *running]
                if until is not None:
                    waits.append(tasks.start("until", _until(until)))
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                log.info("shutting down", open_requests=service.data.in_flight, at_most_s=listening.shutdown_timeout)
                for server in servers:
                    server.should_exit = True
                await asyncio.wait(running)
        finally:
            await tasks.close()
            await service.close()


async def _until(until: Callable[[], Awaitable[None]]) -> None:
    await until()


@contextlib.contextmanager
def _signals(signalled: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    caught: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
    try:
        for number in caught:
            loop.add_signal_handler(number, signalled)
    except (RuntimeError, ValueError):  # not in the main thread: whoever runs this one stops it by `until`
        caught = ()
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
