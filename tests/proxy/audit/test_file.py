"""The audit on disk: appended to, locked, mended after a kill, and failing closed where the disk does not take it."""

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.audit import SELF, AuditBusyError, AuditError, AuditFile, Kind, NoAudit, file
from proxy.audit.chain import Link
from proxy.audit.disk import beside, read_head
from proxy.audit.reading import Report, records, verify
from tests.proxy.audit.chains import chain, written
from validators import ToolCall

SEND = ToolCall("send", '{"city": "Oslo", "n": 1}', "id-1")


def data(path: Path) -> list[tuple[str, dict[str, Any]]]:
    return [(record.kind, record.data) for record in records(path)]


def whole(path: Path) -> Report:
    report = verify(path)
    assert report.fault is None, report.fault
    assert report.anchored
    return report


# -- written and read


def test_records_are_numbered_and_on_disk_when_they_are_there(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def main() -> None:
        audit = AuditFile(path, {"version": "7", "mode": "block"}, clock=lambda: 1_800_000_000.5)
        try:
            assert await audit.write(Kind.MODE, "anna", {"mode": "off"}) == 2
            assert len(path.read_bytes().splitlines()) == 2  # before anything else happens
            assert await audit.write(Kind.ERASED, "bo", {}) == 3
        finally:
            audit.close()

    asyncio.run(main())
    first, *rest = records(path)
    assert (first.kind, first.who, first.at) == ("start", SELF, "2027-01-15T08:00:00.500Z")
    assert first.data["version"] == "7"
    assert first.data.keys() == {"chain", "key", "version", "mode"}
    assert [(r.n, r.kind, r.who) for r in rest] == [(2, "mode", "anna"), (3, "erased", "bo"), (4, "stop", SELF)]
    assert whole(path).lines == 4
    assert whole(path).chain == first.data["chain"]


def test_notes_are_kept_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditFile(path, {})
    for i in range(1000):
        audit.note(Kind.REFUSED, SELF, {"i": i})
    audit.close()
    assert [found["i"] for kind, found in data(path) if kind == "refused"] == list(range(1000))
    assert whole(path).lines == 1002


def test_threads_write_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditFile(path, {})
    numbers: list[int] = []

    def work(name: str) -> None:
        numbers.extend([audit.submit(Kind.MODE, name, {"i": i}).result(30) for i in range(50)])

    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    audit.close()
    assert sorted(numbers) == list(range(2, 402))
    assert whole(path).lines == 402


def test_a_writer_who_does_not_wait_has_the_record_kept(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def main() -> None:
        audit = AuditFile(path, {})
        waiting = asyncio.get_running_loop().create_task(audit.write(Kind.MODE, "anna", {}), name="waiting")
        await asyncio.sleep(0)  # its turn: the record is handed over, and not on disk yet
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        audit.close()

    asyncio.run(main())
    assert [record.kind for record in records(path)] == ["start", "mode", "stop"]


def test_another_start_goes_on_with_the_chain(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    AuditFile(path, {}).close()
    assert path.read_bytes().startswith(before)
    starts = [found for kind, found in data(path) if kind == "start"]
    assert [found["chain"] for found in starts] == [starts[0]["chain"]] * 2
    assert [found["key"] for found in starts] == [starts[0]["key"]] * 2
    assert whole(path).lines == 7


def test_a_clock_that_is_set_back_is_written_down(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    times = iter([2e9, 1e9, 0.0, 2e9, 2e9])
    audit = AuditFile(path, {}, clock=lambda: next(times))
    for _ in range(3):
        audit.submit(Kind.MODE, "anna", {}).result(10)
    audit.close()
    assert [record.at[:4] for record in records(path)] == ["2033", "2001", "1970", "2033", "2033"]
    assert whole(path).lines == 5


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    names = {found.name: found.stat().st_mode & 0o777 for found in tmp_path.iterdir()}
    assert names == {path.name: 0o600, f"{path.name}.key": 0o600, f"{path.name}.head": 0o600}


def test_the_head_says_how_far_it_came(tmp_path: Path) -> None:
    path = written(tmp_path)
    report = whole(path)
    assert read_head(beside(path, "head").read_bytes()) == Link(report.lines, report.digest)


# -- calls and their marks


def test_a_call_has_the_same_mark_however_it_is_written_and_in_every_start(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditFile(path, {})
    mark = audit.mark(SEND)
    assert audit.mark(ToolCall("send", '{"n":1.0,"city":"Oslo"}')) == mark
    assert audit.mark(ToolCall("send", '{"n":2,"city":"Oslo"}')) != mark
    audit.close()
    again = AuditFile(path, {})
    assert again.mark(SEND) == mark
    again.close()


def test_marks_of_two_chains_have_nothing_in_common(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    audits = [AuditFile(tmp_path / name / "audit.jsonl", {}) for name in ("a", "b")]
    assert audits[0].mark(SEND) != audits[1].mark(SEND) != NoAudit().mark(SEND)
    for audit in audits:
        audit.close()


def test_no_secret_is_in_the_chain(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert beside(path, "key").read_text().strip() not in path.read_text()


# -- two at once


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditFile(path, {})
    before = path.read_bytes()
    with pytest.raises(AuditBusyError, match=r"audit.jsonl: another process writes this audit; each proxy has one"):
        AuditFile(path, {})
    assert path.read_bytes() == before
    audit.close()
    AuditFile(path, {}).close()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditFile(path, {})
    ended = subprocess.run([sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=False)
    assert ended.stdout == "AuditBusyError\n"
    audit.close()


OPEN = """
import sys
from pathlib import Path
from proxy.audit import AuditError, AuditFile
try:
    AuditFile(Path(sys.argv[1]), {}).close()
except AuditError as error:
    print(type(error).__name__)
"""


# -- what cannot be opened


def test_what_is_no_audit_is_left_alone(tmp_path: Path) -> None:
    whole_chain = b"".join(chain())
    for name, content in {
        "a text": b"hello\nthere\n",
        "a text without an end": b"hello",
        "an empty line": b"\n",
        "binary": bytes(range(256)) * 10,
        "a chain and a text": whole_chain + b"hello",
        "a chain whose end was changed": whole_chain.replace(b'"stop"', b'"shop"'),
        "no line for a long time": b'{"at":' + b"x" * (3 * 1024 * 1024),
    }.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(content)
        with pytest.raises(AuditError, match=rf"{name}.jsonl: .*; `counterproof audit verify` says more"):
            AuditFile(path, {})
        assert path.read_bytes() == content, name


def test_lines_that_are_missing_at_the_end_are_noticed_at_the_start(tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(len(lines)):
        path.write_bytes(b"".join(lines[:count]))
        with pytest.raises(AuditError, match=rf"audit.jsonl: it had 5 lines, and has {count}; "):
            AuditFile(path, {})
        path.write_bytes(b"".join([*lines[:count], lines[count][:-2]]))  # one that was whole once
        with pytest.raises(AuditError, match="it had 5 lines"):
            AuditFile(path, {})


def test_another_chain_in_its_place_is_noticed_at_the_start(tmp_path: Path) -> None:
    path = written(tmp_path)
    content = path.read_bytes()
    path.write_bytes(b"".join(chain()))  # as long, and a chain by itself
    with pytest.raises(AuditError, match="its last line is another than the one that was written"):
        AuditFile(path, {})
    path.write_bytes(content)
    AuditFile(path, {}).close()


def test_what_cannot_be_opened_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"no/audit.jsonl: cannot be opened: No such file or directory"):
        AuditFile(tmp_path / "no" / "audit.jsonl", {})
    with pytest.raises(AuditError, match="cannot be opened: Is a directory"):
        AuditFile(tmp_path, {})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AuditError, match="pipe: is no file"):
        AuditFile(tmp_path / "pipe", {})
    path = written(tmp_path)
    beside(path, "key").write_text("hello")
    with pytest.raises(AuditError, match=r"audit.jsonl.key: holds no key of an audit"):
        AuditFile(path, {})
    beside(path, "key").unlink()
    AuditFile(path, {}).close()  # another key, and the chain says which
    assert len({found["key"] for kind, found in data(path) if kind == "start"}) == 2


def test_what_failed_to_open_holds_no_lock(tmp_path: Path) -> None:
    path = written(tmp_path)
    key = beside(path, "key")
    kept = key.read_text()
    key.write_text("hello")
    with pytest.raises(AuditError):
        AuditFile(path, {})
    key.write_text(kept)
    AuditFile(path, {}).close()


# -- killed


def test_half_a_line_is_cut_off_into_the_audit(tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = path.read_bytes()
    half = chain()[0][:-30]
    for size in (1, 6, 7, len(half)):
        path.write_bytes(lines + half[:size])
        assert (fault := verify(path).fault) is not None
        assert (fault.line, fault.what) == (lines.count(b"\n") + 1, "cut")
        AuditFile(path, {}).close()
        kind, found = data(path)[-2]
        assert (kind, found["cut_bytes"]) == ("recovered", size)
        assert path.read_bytes().startswith(lines)
        whole(path)
        lines = path.read_bytes()


def test_half_of_the_very_first_line_is_no_chain_yet(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(chain()[0][:50])
    AuditFile(path, {}).close()
    assert [kind for kind, _ in data(path)] == ["start", "recovered", "stop"]
    whole(path)


WRITE = """
import sys
from pathlib import Path
from proxy.audit import AuditFile, Kind
audit = AuditFile(Path(sys.argv[1]), {})
print("up", flush=True)
i = 0
while True:  # some large ones: the system cuts those off where it likes
    done = [audit.submit(Kind.MODE, "anna", {"i": i, "pad": "x" * (i % 7 * 20_000)}) for i in range(i, i + 5)]
    i += 5
    print(max(one.result() for one in done), flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_chain_that_goes_on_and_lost_nothing_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    seed = random.Random(5)
    for _ in range(20):
        told = _killed(path, seed.uniform(0.0, 0.15))
        lines = path.read_bytes().count(b"\n")
        assert lines >= told
        report = verify(path)
        assert report.fault is None or report.fault.what == "cut"
        assert report.lines == lines
    AuditFile(path, {}).close()
    assert whole(path).lines > 20


def _killed(path: Path, seconds: float) -> int:
    """Starts a process that writes, and kills it in the middle; the last number that it said was on disk."""
    with subprocess.Popen([sys.executable, "-c", WRITE, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        timer = threading.Timer(seconds, lambda: os.kill(process.pid, signal.SIGKILL))
        timer.start()
        told = [int(text) for text in process.stdout if text.endswith("\n")]
        timer.join()
    assert process.returncode == -signal.SIGKILL
    return max(told, default=0)


# -- a disk that does not take it


@contextlib.contextmanager
def largest(size: int) -> Iterator[None]:
    """Files of this process may be no larger than this: as on a full disk, half of what is written may still go in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_fails_closed_and_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lost: list[int] = []
    up: list[bool] = []

    async def main() -> None:
        audit = AuditFile(path, {}, on_loss=lost.append, on_up=up.append)
        before = path.read_bytes()
        with largest(len(before) + 100):
            for _ in range(3):
                with pytest.raises(AuditError, match="the audit cannot be written: File too large"):
                    await audit.write(Kind.MODE, "anna", {"mode": "off"})
            audit.note(Kind.MODE, "anna", {})
            with contextlib.suppress(AuditError):
                await audit.write(Kind.MODE, "anna", {})
            assert path.read_bytes() == before  # no half of a line
        assert await audit.write(Kind.MODE, "bo", {}) == 3
        audit.close()

    with capture_logs() as logs:
        asyncio.run(main())
    assert up == [True, False, True]
    assert sum(lost) == 5
    assert [kind for kind, _ in data(path)] == ["start", "recovered", "mode", "stop"]
    assert data(path)[1][1] == {"lost": 5}
    whole(path)
    assert [log["log_level"] for log in logs] == ["error", "info"]


def test_a_disk_that_is_full_at_the_start_is_said(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    with largest(len(before) + 10), pytest.raises(AuditError, match=r"audit.jsonl: cannot be written: File too large"):
        AuditFile(path, {})
    assert path.read_bytes() == before
    AuditFile(path, {}).close()


def test_a_file_that_is_removed_or_changed_fails_closed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditFile(path, {})
    with path.open("ab") as other:
        other.write(b"x")
    with pytest.raises(AuditError, match="its file was removed, or changed by somebody else"):
        audit.submit(Kind.MODE, "anna", {}).result(10)
    os.truncate(path, path.stat().st_size - 1)
    assert audit.submit(Kind.MODE, "anna", {}).result(10) == 3
    path.unlink()
    with pytest.raises(AuditError, match="its file was removed, or changed by somebody else"):
        audit.submit(Kind.MODE, "anna", {}).result(10)
    audit.close()


def test_too_much_at_once_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[int] = []
    audit = AuditFile(tmp_path / "audit.jsonl", {}, on_loss=lost.append)
    monkeypatch.setattr(file, "MAX_PENDING", 0)
    with pytest.raises(AuditError, match="too much waits for it"):
        audit.submit(Kind.MODE, "anna", {}).result(10)
    monkeypatch.undo()
    with pytest.raises(AuditError, match="a record is too large for it"):
        audit.submit(Kind.MODE, "anna", {"x": "x" * 600_000}).result(10)
    audit.close()
    assert lost == [1, 1]
    with pytest.raises(AuditError, match="it is closed"):
        audit.submit(Kind.MODE, "anna", {}).result(10)
    whole(audit.path)


def test_what_cannot_be_written_down_is_lost_by_itself(tmp_path: Path) -> None:
    """Half of a surrogate pair is no UTF-8; who waits for such a record is told, and the next one is kept."""
    lost: list[int] = []
    audit = AuditFile(tmp_path / "audit.jsonl", {}, on_loss=lost.append)
    with pytest.raises(AuditError, match="a record is no JSON"):
        audit.submit(Kind.MODE, "anna", {"reason": "\ud800"}).result(10)
    with pytest.raises(AuditError, match="the audit cannot be written: "):
        audit.submit(Kind.MODE, "\ud800", {}).result(10)
    audit.note(Kind.MODE, "anna", {"reason": object()})
    assert audit.submit(Kind.MODE, "anna", {}).result(10) == 3
    audit.close()
    assert lost == [1, 1, 1]
    assert data(audit.path)[1] == ("recovered", {"lost": 3})
    whole(audit.path)


def test_a_clock_that_makes_no_sense_ends_nothing(tmp_path: Path) -> None:
    times = [1.8e9, 1e300, 1.8e9, 1.8e9, 1.8e9]
    audit = AuditFile(tmp_path / "audit.jsonl", {}, clock=lambda: times.pop(0))
    with pytest.raises(AuditError, match="the audit cannot be written: "):
        audit.submit(Kind.MODE, "anna", {}).result(10)
    assert audit.submit(Kind.MODE, "anna", {}).result(10) == 3
    audit.close()
    whole(audit.path)


def test_who_gave_up_waiting_ends_nothing(tmp_path: Path) -> None:
    audit = AuditFile(tmp_path / "audit.jsonl", {})
    for _ in range(50):
        audit.submit(Kind.MODE, "anna", {}).cancel()
    assert audit.submit(Kind.MODE, "anna", {}).result(10) == 52
    audit.close()
    assert whole(audit.path).lines == 53


def test_closing_twice_is_closing(tmp_path: Path) -> None:
    audit = AuditFile(tmp_path / "audit.jsonl", {})
    audit.close()
    audit.close()
    assert [kind for kind, _ in data(audit.path)] == ["start", "stop"]


def test_without_an_audit_nothing_fails() -> None:
    async def main() -> None:
        audit = NoAudit()
        assert await audit.write(Kind.MODE, "anna", {}) == 0
        assert audit.submit(Kind.MODE, "anna", {}).result(0) == 0
        audit.note(Kind.MODE, "anna", {})
        assert audit.mark(SEND) == audit.mark(ToolCall("send", '{"n": 1, "city": "Oslo"}'))
        audit.close()

    asyncio.run(main())


def test_lines_are_json(tmp_path: Path) -> None:
    path = written(tmp_path)
    for text in path.read_text("utf-8").splitlines():
        assert json.loads(text).keys() == {"n", "at", "kind", "who", "data", "prev", "hash"}
