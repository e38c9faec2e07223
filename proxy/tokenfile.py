"""The file of the token that is made at start: for its owner's eyes only, there while the proxy serves."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import structlog

from proxy.errors import StartError
from proxy.keys import digest
from proxy.tokens import Tokens

log = structlog.get_logger("counterproof.control")

_LONGEST = 4096


def default_path(port: int) -> Path:
    """Where the token of the proxy with this control port lies: one place for a service and a login of the same user.

    Raises:
        OSError: the user has no home.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        base = state if state.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        raise OSError("there is no home folder") from None
    return base / "counterproof" / f"control-{port}.token"


@contextlib.contextmanager
def lent(tokens: Tokens, path: Path | None, port: int) -> Iterator[None]:
    """Makes a token where none is known, and keeps it in a file at `path` (None: the default place) meanwhile.

    Where the default place cannot be written, nobody gets a token, which the log says: metrics and health need none.

    Raises:
        StartError: the configured file cannot be written.
    """
    if len(tokens):
        yield
        return
    written = None
    try:
        at = path or default_path(port)
        written = _write(at, tokens.lend())
        log.info("the control port's token is kept", file=str(at))
    except OSError as error:
        why = error.strerror or str(error)
        if path is not None:
            raise StartError(f"control.token_file: {path}: cannot be written: {why}") from None
        log.warning("the control port's token could not be kept: nobody can use the admin API", error=why)
    try:
        yield
    finally:
        if written is not None:
            _remove(at, written)


def read(path: Path) -> str | None:
    """The token in a file, None where there is no file.

    Raises:
        OSError: it cannot be read, or is not a file of this user's own.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in {os.geteuid(), 0}:
            raise OSError("it is not a file of this user's own")
        return os.read(handle, _LONGEST).decode("ascii", "replace").strip()
    finally:
        os.close(handle)


def _write(path: Path, token: str) -> bytes:
    """Writes a fresh file, whatever was there before; the token's hash is all that is kept here."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        owner = os.fstat(folder)
        if owner.st_uid not in {os.geteuid(), 0} or owner.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError("its folder may be written by others; it needs one of its own")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(path.name, flags, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, 0o600)  # whatever the umask took from it
        file.write(token.encode() + b"\n")
    return digest(token)


def _remove(path: Path, written: bytes) -> None:
    """Takes the file away, unless another proxy has put its own there since."""
    with contextlib.suppress(OSError):
        if digest(read(path) or "") == written:
            path.unlink()
