"""The command as a process of its own, beside a proxy that runs in the test's event loop."""

import asyncio
import os
import sys

from tests.watching import WATCH

_MAIN = "from proxy.cli import main; main()"


async def typed(*args: str, **environ: str) -> tuple[int, str, str]:
    """Runs `counterproof ARGS`: (exit code, standard output, standard error)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _MAIN,
        *args,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"COLUMNS": "160", "NO_COLOR": "1"} | environ,
    )
    out, err = await process.communicate()
    WATCH.see("error", out + err)
    return process.returncode or 0, out.decode(), err.decode()
