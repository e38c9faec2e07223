"""The command as a user types it, in the test's own process."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from proxy import cli
from tests.watching import WATCH

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """Runs `counterproof ARGS` in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def command(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["counterproof", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        WATCH.see("error", captured.out + captured.err)
        code = ended.value.code
        return (code if isinstance(code, int) else 0), captured.out, captured.err

    yield command
    structlog.reset_defaults()  # what a command set up writes to this test's own standard error
