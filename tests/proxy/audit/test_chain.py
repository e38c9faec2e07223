"""The chain by itself: whatever is done to its lines is found, and named by the first line it happened to."""

import hashlib
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.audit.chain import MAX_LINE, Checker, Fault, Kind, Link, canonical, line, link_of, read
from tests.proxy.audit.chains import RECORDS, chain

LINES = chain()


def checked(lines: list[bytes], head: Link | None = None) -> Checker:
    """A checker that has seen a file of these bytes."""
    checker = Checker(head)
    *whole, rest = b"".join(lines).split(b"\n")
    for text in whole:
        checker.line(text)
    checker.end(len(rest))
    return checker


def fault(lines: list[bytes], head: Link | None = None) -> Fault:
    found = checked(lines, head).fault
    assert found is not None
    return found


def head_of(lines: list[bytes]) -> Link:
    return link_of(lines[-1].rstrip(b"\n"))


def test_a_line_says_what_it_should() -> None:
    first, second = (json.loads(text) for text in LINES[:2])
    assert list(first) == ["at", "data", "hash", "kind", "n", "prev", "who"]
    assert (first["n"], first["prev"], first["kind"], first["who"]) == (1, "0" * 64, "start", "(proxy)")
    assert first["at"] == "2027-01-15T08:00:00.000Z"
    assert second["prev"] == hashlib.sha256(LINES[0].rstrip(b"\n")).hexdigest()
    own = second.pop("hash")
    text = json.dumps(second, sort_keys=True, separators=(",", ":"), ensure_ascii=False)  # by another JSON library
    assert own == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("count", range(7))
def test_a_chain_of_any_length_is_whole(count: int) -> None:
    lines = chain(count)
    checker = checked(lines, head_of(lines) if lines else None)
    assert checker.fault is None
    assert checker.link == (head_of(lines) if lines else Link())


def test_what_was_written_is_read() -> None:
    for text, (kind, who, data) in zip(LINES, RECORDS, strict=True):
        record = read(text.rstrip(b"\n"))
        assert (record.kind, record.who, record.data) == (kind, who, data)
        assert canonical(record.as_dict()) + b"\n" == text


def test_every_byte_that_is_another_is_found() -> None:
    """Each byte of a small chain with each of its bits turned, and as a line end."""
    whole = b"".join(LINES)
    ends = list(itertools.accumulate(len(text) for text in LINES))
    head = head_of(LINES)
    for at in range(len(whole)):
        place = 1 + sum(end <= at for end in ends)
        for other in {whole[at] ^ (1 << bit) for bit in range(8)} | {0x0A} - {whole[at]}:
            found = fault([whole[:at], bytes([other]), whole[at + 1 :]], head)
            assert found.line == place, (at, other, found)


def test_every_byte_that_is_left_out_or_put_in_is_found() -> None:
    whole = b"".join(LINES)
    head = head_of(LINES)
    for at in range(len(whole)):
        assert checked([whole[:at], whole[at + 1 :]], head).fault is not None, at
        assert checked([whole[:at], whole[at : at + 1], whole[at:]], head).fault is not None, at


@pytest.mark.parametrize("at", range(len(LINES)))
def test_a_missing_line_is_named(at: int) -> None:
    found = fault([*LINES[:at], *LINES[at + 1 :]], head_of(LINES))
    assert (found.line, found.what) == (at + 1, "missing")


def test_several_missing_lines_are_named() -> None:
    assert fault([LINES[0], *LINES[3:]]).words == "lines 2 to 3 are missing: number 4 stands there"
    assert fault(LINES[:2], head_of(LINES)).words == "line 3 is where the file ends: lines 3 to 5 are missing"


def test_without_a_head_only_the_end_can_be_missing_unseen() -> None:
    for count in range(len(LINES)):
        assert checked(LINES[:count]).fault is None
        assert checked(LINES[:count], head_of(LINES)).fault is not None


@pytest.mark.parametrize("order", [o for o in itertools.permutations(range(5)) if o != tuple(range(5))])
def test_every_other_order_is_found(order: tuple[int, ...]) -> None:
    found = fault([LINES[i] for i in order], head_of(LINES))
    first = next(i for i, was in enumerate(order) if i != was)
    assert (found.line, found.what) == (first + 1, "reordered")


@pytest.mark.parametrize(("at", "to"), list(itertools.product(range(5), range(6))))
def test_a_line_that_stands_there_twice_is_found(at: int, to: int) -> None:
    lines = [*LINES[:to], LINES[at], *LINES[to:]]
    found = fault(lines, head_of(LINES))
    assert found.what in {"repeated", "reordered"}
    assert found.line == to + 1 + (to == at)  # right before itself, the second one is one too many


def test_a_file_cut_off_anywhere_is_found() -> None:
    whole, head = b"".join(LINES), head_of(LINES)
    for size in range(len(whole)):
        found = fault([whole[:size]], head)
        cut = not whole[:size].endswith(b"\n") and size > 0
        assert found.what == ("cut" if cut else "missing")
        assert found.line == whole[:size].count(b"\n") + 1


def test_a_line_that_was_written_anew_with_all_its_own_hashes_is_found() -> None:
    """Whoever changes a line and its hash must change every line after it, and what is kept beside the file."""
    link = link_of(LINES[1].rstrip(b"\n"))
    forged, link = line(link, 1_800_000_002.0, Kind.APPROVAL, "mallory", canonical({"event": "denied"}))
    found = fault([*LINES[:2], forged, *LINES[3:]])
    assert (found.line, found.what) == (4, "changed")
    assert found.words == "line 4 does not follow the line before it: line 3 was another"
    rest = []
    for kind, who, data in RECORDS[3:]:
        text, link = line(link, 1_800_000_003.0, kind, who, canonical(data))
        rest.append(text)
    rewritten = [*LINES[:2], forged, *rest]
    assert checked(rewritten).fault is None  # by itself it is a chain
    assert fault(rewritten, head_of(LINES)).line == 5


def test_a_clock_that_is_set_back_breaks_nothing() -> None:
    link, lines = Link(), []
    for at in (1_800_000_000.0, 1_700_000_000.0, 0.0, 1_800_000_001.0):
        text, link = line(link, at, Kind.MODE, "anna", b"{}")
        lines.append(text)
    assert checked(lines, link).fault is None
    assert [read(text.rstrip(b"\n")).at[:4] for text in lines] == ["2027", "2023", "1970", "2027"]


ODD = {
    "nothing": b"",
    "no JSON": b"hello",
    "another value": b"[]",
    "a field less": b'{"n":1}',
    "white space": LINES[0].rstrip(b"\n").replace(b",", b", ", 1),
    "a key twice": LINES[0].rstrip(b"\n")[:-1] + b',"who":"(proxy)"}',
    "another kind of number": LINES[0].rstrip(b"\n").replace(b'"n":1', b'"n":1.0'),
    "no text": b"\xff\xfe",
    "too long": b'{"at":"' + b"x" * MAX_LINE + b'"}',
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_line_is_not_read(name: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read(ODD[name])
    assert fault([ODD[name] + b"\n"]).what == "changed"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.sampled_from(Kind), st.text(), st.dictionaries(st.text(), JSON, max_size=3)), max_size=5))
def test_whatever_is_recorded_makes_a_whole_chain(records: list[tuple[Kind, str, dict[str, object]]]) -> None:
    link, lines = Link(), []
    for kind, who, data in records:
        text, link = line(link, 1_800_000_000.0, kind, who, canonical(data))
        assert text.count(b"\n") == 1
        lines.append(text)
    assert checked(lines, link if lines else None).fault is None


@given(st.binary(max_size=400))
def test_no_bytes_trouble_the_checker(garbage: bytes) -> None:
    checker = checked([*LINES, garbage])
    assert (checker.fault is None) == (garbage == b"")
