"""Searches a whole run for credentials, after its last test. A pytest plugin (see tests/conftest.py).

What stands in files is searched below the run's folder, everything else is what tests/watching.py has kept.
"""

import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import LogCapture

from proxy.demo.served import ProxyProcess
from tests.secrets import Credential, Found, Search, known
from tests.watching import FOLDER, SAID, WATCH, Kind, Seen, install, seen

ROOT = Path(__file__).parents[1]
SITE = Path(__file__).parent / "watched"
_PIECE = 16 << 20  # bytes of a file at once
_SQLITE = b"SQLite format 3\0"
_KEY = re.compile(rb"[0-9a-f]{64}\s*")
_LAST = pytest.StashKey[list[pytest.Item]]()
_PASSED = pytest.StashKey[set[str]]()
_WATCHED = pytest.StashKey[list[Path]]()


# -- the run


@pytest.fixture(autouse=True, scope="session")
def _watched(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[None]:
    """Every proxy of the run is watched, whichever process it is in."""
    WATCH.folder = tmp_path_factory.mktemp("watched")
    pytestconfig.stash.setdefault(_WATCHED, []).append(WATCH.folder)
    with pytest.MonkeyPatch.context() as patch:
        install(WATCH, patch.setattr)
        patch.setattr(LogCapture, "__call__", _captured(LogCapture.__call__))
        patch.setattr(ProxyProcess, "__enter__", _started(ProxyProcess.__enter__))
        yield


def _captured(call: Any) -> Any:
    """What a test takes away from the log is part of it."""

    def watched(self: LogCapture, logger: Any, method: str, event: Any) -> Any:
        WATCH.see("log", repr(event))
        return call(self, logger, method, event)

    return watched


def _started(enter: Any) -> Any:
    """A proxy in a process of its own watches itself."""

    def watched(process: ProxyProcess) -> ProxyProcess:
        WATCH.see("configuration", str(process.config.resolve()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join((str(SITE), str(ROOT))))
            patch.setenv(FOLDER, str(WATCH.folder))
            entered: ProxyProcess = enter(process)
        WATCH.see("started", str(process.pid))
        return entered

    return watched


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Whatever a test's process and those of its own wrote is in its report, though it passed."""
    for _, text in report.sections:
        WATCH.see("log", text)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.passed:
        item.config.stash.setdefault(_PASSED, set()).add(item.nodeid.partition("[")[0])
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked `last` runs when all else has ended, the run's own fixtures included."""
    last = [item for item in items if item.get_closest_marker("last")]
    others = [item for item in items if item not in last]
    if others and not config.option.collectonly:
        config.stash[_LAST], items[:] = last, others
    else:
        items[:] = others + last


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    last = session.config.stash.get(_LAST, [])
    session.testscollected += len(last)
    result = yield
    for item in last:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return result


# -- the search


@dataclass
class Run:
    """What a run left, and what was found in it.

    Attributes:
        root: its folder.
        files: those that were searched, by kind.
        seen: what was kept of what proxies said.
        faults: one line for each credential that stands where it should not; they do not repeat it.
    """

    root: Path
    files: dict[str, list[Path]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    faults: set[str] = field(default_factory=set)

    def kinds_of(self, test: str) -> set[str]:
        """What there was of a test: what was kept while it ran, and the files in its own folder."""
        folder = re.sub(r"\W", "_", test.rpartition("::")[2])[:30]  # as pytest names it
        kinds: set[str] = {one.kind for one in self.seen if one.test.partition("[")[0] == test}
        for kind, paths in self.files.items():
            if any(path.as_posix().startswith(f"{self.root.as_posix()}/{folder}") for path in paths):
                kinds.add(kind)
        return kinds

    def noted(self, kind: Kind) -> set[str]:
        """All of a kind."""
        return {one.said.decode() for one in self.seen if one.kind == kind}

    @property
    def started(self) -> set[int]:
        """The proxies that were started as processes of their own."""
        return {int(one.said) for one in self.seen if one.kind == "started" and int(one.said) != one.process}

    @property
    def watched(self) -> set[int]:
        """The processes in which proxies were watched."""
        return {one.process for one in self.seen if one.kind == "started" and int(one.said) == one.process}


def passed(config: pytest.Config) -> set[str]:
    """The tests that have passed so far, without their parameters."""
    return config.stash.get(_PASSED, set())


def watched(config: pytest.Config) -> list[Path]:
    """The folders in which was kept what this run's proxies said."""
    return config.stash.get(_WATCHED, [])


def search(root: Path, folders: Iterable[Path], credentials: Iterable[Credential] = ()) -> Run:
    """Searches a run.

    Args:
        root: the run's folder, all of which is searched but for `folders`.
        folders: where `tests.watching` has kept what was said.
        credentials: what is searched for, beside what the run itself made; none: every one that tests know.
    """
    WATCH.flush()
    run, folders = Run(root), set(folders)
    run.seen = [one for folder in folders for one in seen(folder)]
    files = [path for path in _files(root) if path.parent not in folders]
    made, keys = run.noted("made"), dict(_keys(files))
    sought = list(credentials) or known()
    sought += [Credential("made by a proxy", text, text) for text in made]
    sought += [Credential("an audit's key", text, text) for text in {*keys.values()}]
    looking, may = Search(sought), {Path(path) for path in run.noted("configuration")}
    elsewhere = {Path(path) for path in run.noted("file")} - {*files}
    for path in [*files, *sorted(elsewhere)]:
        if path.resolve() in may:
            continue
        kind, found = _within(path, looking)
        run.files.setdefault(kind, []).append(path)
        if path in keys:
            found -= {Found("an audit's key", "as it is")}
        elif found and _is_token_file(path, made):
            found = set()
        where = path.relative_to(root) if path.is_relative_to(root) else path.name
        run.faults |= {_fault(f"{where}: a file ({kind})", one) for one in found}
    for one in run.seen:
        if one.kind in SAID:
            run.faults |= {_fault(f"{one.test}: what was said ({one.kind})", hit) for hit in looking.within(one.said)}
        elif one.kind == "given" and not _is_known(one.said, sought):
            run.faults.add(f"{one.test}: a proxy was given a credential that tests/secrets.py did not hand out")
    return run


def _fault(where: str, found: Found) -> str:
    return f"{where} holds the credential {found.name!r} {found.disguise}"


def _is_token_file(path: Path, made: set[str]) -> bool:
    """Whether this is the one place where a token is kept that a proxy made: a file of nothing else, for its owner."""
    return stat.S_IMODE(path.stat().st_mode) == 0o600 and path.read_bytes() in {f"{one}\n".encode() for one in made}


def _is_known(given: bytes, sought: Iterable[Credential]) -> bool:
    scheme = given.strip().lower() in {b"", b"bearer", b"basic"}
    return scheme or any(one.core.encode() in given for one in sought)


def _files(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if stat.S_ISREG(path.lstat().st_mode):
                yield path


def _keys(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Audits' keys: what calls' hashes are keyed with stands in a file of its own."""
    for path in files:
        if path.name.endswith(".key") and path.with_name(path.name.removesuffix(".key")).exists():
            text = path.read_bytes()
            if _KEY.fullmatch(text):
                yield path, text.decode().strip()


def _within(path: Path, looking: Search) -> tuple[str, set[Found]]:
    found: set[Found] = set()
    with path.open("rb") as file:
        first = kept = file.read(_PIECE)
        while kept:
            found |= looking.within(kept)
            more = file.read(_PIECE)
            kept = kept[-looking.longest :] + more if more else b""
    if first.startswith(_SQLITE):
        return "ledger", found | _in_rows(path, looking)
    if path.name.endswith(("-wal", "-shm")):
        return "ledger", found
    kinds = {".jsonl": "audit", ".log": "log"}
    return kinds.get(path.suffix, "other"), found


def _in_rows(path: Path, looking: Search) -> set[Found]:
    """What is found in a database's values: on disk, a long one lies in pages that need not follow each other."""
    found = set()
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("", "-wal"):
            if (part := path.with_name(path.name + ending)).exists():
                shutil.copy(part, Path(folder, f"copy.db{ending}"))
        with closing(sqlite3.connect(Path(folder, "copy.db"))) as database:
            database.text_factory = bytes
            try:
                tables = [
                    row[0].decode() for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
                ]
                for table in tables:
                    for row in database.execute(f'SELECT * FROM "{table}"'):
                        for value in row:
                            if isinstance(value, bytes):
                                found |= looking.within(value)
            except sqlite3.DatabaseError:
                pass  # some tests spoil theirs: the bytes were searched
    return found
