"""Runs one engine and ends with whoever started it: ``python -I -S keeper.py command...``.

Standard input is a pipe whose other end only the starting process holds. However that process ends, killed outright
included, the kernel closes the pipe, and the engine with all its children is ended. (The kernel's own "signal on
parent's death" is no help: it fires when the *thread* that started the child ends, is lost by the engine's
grandchildren, and exists on Linux only.)

The keeper must lead the process group that it ends: start it in a new session.
"""

import os
import select
import signal
import subprocess
import sys

POLL_S = 0.2
GRACE_S = 10.0


def main(command: list[str]) -> None:
    """Runs `command` until it ends or standard input does; then nothing of the process group is left."""
    # A group is signalled as a whole, and the keeper has to outlive the others. Handlers, not SIG_IGN: what is ignored
    # would stay ignored in the engine, too.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    engine = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - our own command
    if not _ended_first(engine):
        os.killpg(0, signal.SIGTERM)
    try:
        sys.stderr.write(f"keeper: the engine ended with exit status {engine.wait(GRACE_S)}\n")
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"keeper: the engine did not end within {GRACE_S} s\n")
    sys.stderr.flush()
    # Whatever the engine left behind, its core above all (2 to 3 GB); and the keeper itself.
    os.killpg(0, signal.SIGKILL)


def _ended_first(engine: "subprocess.Popen[bytes]") -> bool:
    while engine.poll() is None:
        readable, _, _ = select.select([0], [], [], POLL_S)
        if readable and not os.read(0, 1):
            return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
