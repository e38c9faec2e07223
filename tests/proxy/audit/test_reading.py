"""Reading an audit: beside who writes it, in little memory, and what is said of what was done to it."""

import threading
import tracemalloc
from pathlib import Path

import pytest

from proxy.audit import SELF, AuditError, AuditFile, Kind, Record
from proxy.audit.chain import MAX_LINE, Link, line
from proxy.audit.disk import beside
from proxy.audit.reading import records, verify
from tests.proxy.audit.chains import written


def test_every_record_is_handed_out_and_every_byte_counted(tmp_path: Path) -> None:
    path = written(tmp_path)
    taken: list[Record] = []
    sizes: list[int] = []
    report = verify(path, sizes.append, taken.append)
    assert (report.lines, report.anchored, report.fault) == (5, True, None)
    assert taken == list(records(path))
    assert sum(sizes) == path.stat().st_size
    assert report.as_dict()["whole"] is True


@pytest.mark.parametrize("at", range(1, 6))
def test_records_end_where_the_chain_does(tmp_path: Path, at: int) -> None:
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[at - 1] = lines[at - 1].replace(b'"at":"2', b'"at":"3')
    path.write_bytes(b"".join(lines))
    assert len(list(records(path))) == at - 1
    report = verify(path)
    assert report.fault is not None
    assert (report.fault.line, report.lines) == (at, at - 1)
    assert report.as_dict()["fault"] == {
        "line": at,
        "what": "changed",
        "words": f"line {at} is not as it was written",
    }


def test_without_its_head_a_chain_is_not_anchored(tmp_path: Path) -> None:
    path = written(tmp_path)
    beside(path, "head").unlink()
    assert verify(path).anchored is False
    beside(path, "head").write_bytes(b"garbage")
    assert verify(path).anchored is False


def test_a_head_of_another_chain_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path)
    beside(path, "head").write_bytes(b"%020d %b\n" % (3, b"ab" * 32))
    report = verify(path)
    assert report.fault is not None
    assert report.fault.words == "line 3 is another than the one whose hash was kept beside the file"


def test_what_is_no_audit_is_a_fault_in_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    for content in (b"hello\n", b"\n", b"\0" * (3 * MAX_LINE), b'{"at":' + b"x" * MAX_LINE):
        path.write_bytes(content)
        report = verify(path)
        assert report.fault is not None
        assert (report.fault.line, report.lines) == (1, 0)


def test_an_empty_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"")
    report = verify(path)
    assert (report.fault, report.lines, report.chain) == (None, 0, "")


def test_what_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"no.jsonl: cannot be read: No such file or directory"):
        verify(tmp_path / "no.jsonl")
    with pytest.raises(AuditError, match="cannot be read: Is a directory"):
        list(records(tmp_path))


def test_a_chain_is_whole_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditFile(path, {})
    enough = threading.Event()

    def write() -> None:
        while not enough.is_set():
            for _ in range(20):
                audit.note(Kind.REFUSED, SELF, {"pad": "x" * 5000})
            audit.submit(Kind.REFUSED, SELF, {}).result(30)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        reports = [verify(path)]
        while len({report.lines for report in reports}) < 10:
            reports.append(verify(path))
    finally:
        enough.set()
        thread.join()
        audit.close()
    assert {report.fault for report in reports} == {None}


def test_a_long_chain_is_checked_in_little_memory(tmp_path: Path) -> None:
    path, link = tmp_path / "audit.jsonl", Link()
    with path.open("wb") as file:
        for i in range(20_000):
            text, link = line(link, float(i), Kind.REFUSED, SELF, b'{"pad":"%b"}' % (b"x" * 500))
            file.write(text)
    size = path.stat().st_size
    tracemalloc.start()
    try:
        report = verify(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (report.lines, report.fault) == (20_000, None)
    assert peak < size / 10
