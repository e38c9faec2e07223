import copy
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadow.exchange import Answer, Dialect
from shadow.wire import answers, sse

TESTS = Path(__file__).parents[2]
RECORDED = {path.stem: path.read_bytes() for path in sorted((TESTS / "data" / "streams").glob("*.sse"))}
HERMES = [
    json.loads(line)
    for line in (TESTS / "engine" / "hermes_cases.jsonl").read_text(encoding="utf-8").splitlines()
]  # fmt: skip


def hermes_payloads(case: dict[str, Any]) -> list[bytes]:
    """A recorded case as the payloads of a stream, with the logprobs that carry its tokens' ids and bytes."""
    texts, at, payloads = case["token_bytes_hex"], 0, []
    for chunk in case["chunks"]:
        ids = chunk.get("token_ids", [])
        entries = [
            {"token": f"token_id:{token}", "logprob": -0.5, "bytes": list(bytes.fromhex(text)), "top_logprobs": []}
            for token, text in zip(ids, texts[at : at + len(ids)], strict=True)
        ]
        at += len(ids)
        choice = {"index": 0, "finish_reason": None} | chunk | ({"logprobs": {"content": entries}} if ids else {})
        payloads.append(json.dumps({"id": "x", "choices": [choice]}, ensure_ascii=False).encode())
    return [*payloads, b"[DONE]"]


def stream_of(payloads: Iterable[bytes]) -> bytes:
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads)


def payloads_of(stream: bytes) -> list[bytes]:
    """The payloads of a stream that is framed as vLLM frames it, by plain text means."""
    parts = stream.split(b"\n\n")
    assert parts.pop() == b""
    assert all(part.startswith(b"data: ") for part in parts)
    return [part[6:] for part in parts]


def variants(payloads: list[bytes]) -> Iterator[tuple[str, bytes, list[bytes]]]:
    """The same payloads in every framing that the format allows: name, bytes, what is to be read."""
    for name, end in (("LF", b"\n"), ("CRLF", b"\r\n"), ("CR", b"\r")):
        yield name, b"".join(b"data: " + p + end + end for p in payloads), payloads
        yield f"{name}, no space", b"".join(b"data:" + p + end + end for p in payloads), payloads
        before, after = b": ping" + end + end + b":" + end + b"event: x" + end, b"id: 7" + end + end
        commented = (before + b"data: " + p + end + after for p in payloads)
        yield f"{name}, comments and fields", b"".join(commented), payloads
        yield f"{name}, BOM", b"\xef\xbb\xbf" + b"".join(b"data: " + p + end + end for p in payloads), payloads
        split = [p.replace(b", ", b",\n ", 1) for p in payloads]
        lines = (b"".join(b"data: " + line + end for line in p.split(b"\n")) + end for p in split)
        yield f"{name}, several data lines", b"".join(lines), split
        unended = b"".join(b"data: " + p + end + end for p in payloads) + b"data: cut" + end
        yield f"{name}, no blank line at the end", unended, payloads


def blocks_of(pieces: Iterable[bytes]) -> tuple[list[bytes], bytes]:
    splitter = sse.Splitter()
    blocks = [block for piece in pieces for block in splitter.feed(piece)]
    return blocks, splitter.rest


def data_in(blocks: Iterable[bytes]) -> list[bytes]:
    return [payload for block in blocks if (payload := sse.data_of(block)) is not None]


def told(answer: Answer) -> Any:
    """An answer as values that can be compared (arrays as lists)."""
    choices = {
        index: (
            c.prompt_ids, c.token_ids, c.token_bytes, c.emitted_wins, c.content, c.reasoning, c.lead, c.calls,
            c.finish_reason, c.stop_reason, c.top and (c.top.ids.tolist(), c.top.logprobs.tolist()),
        )
        for index, c in answer.choices.items()
    }  # fmt: skip
    return choices, answer.problem, answer.model, answer.usage


def answer_of(dialect: Dialect, payloads: Iterable[bytes]) -> Any:
    reader = answers.AnswerReader.of_stream(dialect)
    for payload in payloads:
        reader.payload(payload)
    return told(reader.result())


def cut_everywhere(stream: bytes, payloads: list[bytes]) -> None:
    """Cuts a stream in two at every byte.

    A splitter is as new at the end of a block, so what a cut can change lies in the block of the cut and in how the
    next one begins: only these are fed again for each cut, the second piece to a copy of what has taken the first.
    """
    blocks, rest = blocks_of([stream])
    assert b"".join(blocks) + rest == stream
    assert data_in(blocks) == payloads
    at = 0
    for block in blocks:
        at += len(block)
        after, expected = stream[at : at + 4], data_in([block])
        window, first, before = block + after, sse.Splitter(), list[bytes]()
        for cut in range(len(block) + 1):
            second = forked(first)
            found = [*before, *second.feed(window[cut:])]
            assert b"".join(found) + second.rest == window
            assert data_in(found) == expected, (cut, window)
            if second.rest != after:  # half of a CRLF was left over for the next block, where it means nothing
                assert second.rest == b"\n" + after
                assert cut >= len(block) - 1
                assert data_in(blocks_of([b"\n" + stream[at:]])[0]) == data_in(blocks_of([stream[at:]])[0])
            before += first.feed(window[cut : cut + 1])


def forked(splitter: sse.Splitter) -> sse.Splitter:
    other = copy.copy(splitter)
    other._parts = splitter._parts.copy()
    return other


def byte_by_byte(stream: bytes, payloads: list[bytes]) -> None:
    blocks, rest = blocks_of(stream[i : i + 1] for i in range(len(stream)))
    assert b"".join(blocks) + rest == stream
    assert data_in(blocks) == payloads


def test_the_corpus_is_there() -> None:
    assert set(RECORDED) == {
        f"{name}-{kind}" for name in ("auto", "comp", "n2", "req", "text") for kind in ("inj", "plain")
    }
    assert len(HERMES) >= 150
    assert len(payloads_of(RECORDED["text-plain"])) == 19


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_stream_reads_the_same_however_it_is_cut_in_two(name: str) -> None:
    stream = RECORDED[name]
    cut_everywhere(stream, payloads_of(stream))


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_stream_reads_the_same_byte_by_byte(name: str) -> None:
    stream, dialect = RECORDED[name], Dialect.COMPLETIONS if name.startswith("comp") else Dialect.CHAT
    byte_by_byte(stream, payloads_of(stream))
    blocks, _ = blocks_of(stream[i : i + 1] for i in range(len(stream)))
    assert answer_of(dialect, data_in(blocks)) == told(answers.read(dialect, stream, stream=True))


@pytest.mark.parametrize("name", ["text-plain", "comp-plain"])
def test_every_cut_gives_the_same_answer(name: str) -> None:
    stream, dialect = RECORDED[name], Dialect.COMPLETIONS if name.startswith("comp") else Dialect.CHAT
    whole = told(answers.read(dialect, stream, stream=True))
    assert whole[1] is None
    for cut in range(0, len(stream) + 1, 7):  # all bytes in turn are cut above; here the answer is put together, too
        blocks, _ = blocks_of([stream[:cut], stream[cut:]])
        assert answer_of(dialect, data_in(blocks)) == whole


@pytest.mark.parametrize("name", ["emoji, joined [1]", "two calls, glued [5]"])
def test_every_framing_of_a_tool_call_reads_the_same_however_it_is_cut(name: str) -> None:
    payloads = hermes_payloads(next(case for case in HERMES if case["name"] == name))
    for _name, stream, expected in variants(payloads[:2] + payloads[-3:]):
        cut_everywhere(stream, expected)
        byte_by_byte(stream, expected)


def test_tool_call_streams_read_the_same_in_small_pieces() -> None:
    for number, case in enumerate(HERMES[::2]):
        payloads = hermes_payloads(case)
        expected = answer_of(Dialect.CHAT, payloads)
        assert expected[1] is None, case["name"]
        framings = list(variants(payloads))
        name, stream, split = framings[number % len(framings)]
        step = 1 if number % 8 == 0 else number % 11 + 2
        blocks, rest = blocks_of(stream[i : i + step] for i in range(0, len(stream), step))
        assert b"".join(blocks) + rest == stream
        assert data_in(blocks) == split, (case["name"], name)
        assert answer_of(Dialect.CHAT, split) == expected, (case["name"], name)


SOUP = st.lists(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"data: x", b"data:y", b"data", b": c", b"e: z", b"\xc3", b"\xa9", b" "]),
    max_size=12,
).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(SOUP, st.lists(st.integers(0, 40), max_size=5))
def test_any_bytes_in_any_pieces_come_out_again_and_mean_the_same(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    blocks, rest = blocks_of(pieces)
    assert b"".join(blocks) + rest == stream
    whole, _ = blocks_of([stream])
    assert data_in(blocks) == data_in(whole)


def test_a_block_goes_out_with_the_byte_that_ends_it() -> None:
    splitter = sse.Splitter()
    assert list(splitter.feed(b"data: a\n")) == []
    assert splitter.rest == b"data: a\n"
    assert list(splitter.feed(b"\n")) == [b"data: a\n\n"]
    assert splitter.rest == b""
    assert list(splitter.feed(b"data: b\r\n\r")) == [b"data: b\r\n\r"]
    assert list(splitter.feed(b"\ndata: c\r\n\r\n")) == [b"\ndata: c\r\n\r\n"]
    assert list(splitter.feed(b"")) == []


def test_a_crlf_is_one_line_end() -> None:
    assert blocks_of([b"data: a\r\ndata: b\r\n"]) == ([], b"data: a\r\ndata: b\r\n")
    assert blocks_of([b"data: a\r", b"\n", b"\r", b"\n"]) == ([b"data: a\r\n\r"], b"\n")


def test_a_long_block_in_small_pieces_is_neither_searched_nor_copied_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blank_line, seen = sse._BLANK_LINE, list[int]()

    class Counted:
        def search(self, text: bytes, start: int) -> re.Match[bytes] | None:
            seen.append(len(text))
            return blank_line.search(text, start)

    monkeypatch.setattr(sse, "_BLANK_LINE", Counted())
    splitter = sse.Splitter()
    for count in range(1_000):
        assert splitter.waiting == 100 * count
        assert list(splitter.feed(b"x" * 100)) == []
    assert list(splitter.feed(b"\n\n")) == [b"x" * 100_000 + b"\n\n"]
    assert splitter.waiting == 0
    assert sum(seen) < 110_000


@pytest.mark.parametrize(
    ("block", "payload"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x\n\n", b" x"),
        (b"data: \n\n", b""),
        (b"data\n\n", b""),
        (b"data: x\r\n\r\n", b"x"),
        (b"data: x\r\r", b"x"),
        (b"data: x\r\n\n", b"x"),
        (b"data: x\ndata: y\n\n", b"x\ny"),
        (b"data: x\rdata: y\n\n", b"x\ny"),
        (b"data: x\ndata\ndata: y\n\n", b"x\n\ny"),
        (b": comment\ndata: x\nid: 1\n\n", b"x"),
        (b"data: x: y\n\n", b"x: y"),
        (b"\xef\xbb\xbfdata: x\n\n", b"x"),
        (b"\ndata: x\r\n\r\n", b"x"),
        (b": data: x\n\n", None),
        (b":\n\n", None),
        (b"event: ping\n\n", None),
        (b"\n\n", None),
        (b"datax: 1\n\n", None),
        (b" data: x\n\n", None),
        (b"DATA: x\n\n", None),
        (b"data: caf\xc3\xa9\n\n", b"caf\xc3\xa9"),
        (b"data: [DONE]\n\n", sse.DONE),
    ],
)
def test_what_a_block_says(block: bytes, payload: bytes | None) -> None:
    assert sse.data_of(block) == payload


@pytest.mark.parametrize(
    ("block", "payload", "expected"),
    [
        (b"data: x\n\n", b"new", b"data: new\n\n"),
        (b"data:x\n\n", b"new", b"data:new\n\n"),
        (b"data: x\r\n\r\n", b"new", b"data: new\r\n\r\n"),
        (b"data: x\r\r", b"new", b"data: new\r\r"),
        (b": c\r\nevent: e\r\ndata: x\r\nid: 1\r\n\r\n", b"new", b": c\r\nevent: e\r\ndata: new\r\nid: 1\r\n\r\n"),
        (b"data: x\nid: 1\ndata:y\n\n", b"1\n2", b"data: 1\nid: 1\ndata:2\n\n"),
        (b"data: x\ndata: y\n\n", b"one", b"data: one\n\n"),
        (b"\xef\xbb\xbfdata: x\n\n", b"new", b"\xef\xbb\xbfdata: new\n\n"),
        (b"\ndata: x\n\n", b"new", b"\ndata: new\n\n"),
        (b": only a comment\n\n", b"new", b": only a comment\n\n"),
        (b"event: x\ndata: a", b"b", b"event: x\ndata: b"),  # a stream's last line, which nothing ends
    ],
)
def test_a_new_payload_leaves_everything_else_as_it_was(block: bytes, payload: bytes, expected: bytes) -> None:
    assert sse.with_data(block, payload) == expected


LINES = st.sampled_from(
    [
        b"data: x",
        b"data:y",
        b"data: ",
        b"data:",
        b"data:  z: data: 1",
        b": c",
        b":",
        b"id: 1",
        b"odd",
        b"data: \xc3\xa9",
    ]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=5), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans())
def test_giving_a_block_its_own_payload_changes_no_byte(lines: list[bytes], end: bytes, bom: bool) -> None:  # noqa: FBT001
    block = (b"\xef\xbb\xbf" if bom else b"") + b"".join(line + end for line in lines) + end
    payload = sse.data_of(block)
    assert (payload is None) == (not any(line.startswith(b"data") for line in lines))
    if payload is not None:
        assert sse.with_data(block, payload) == block


@pytest.mark.parametrize("block", [b"data: x\rdata: y\n\n", b"data: x\r\n\n", b"data: x\r: c\n\n"])
def test_giving_a_block_with_mixed_line_ends_its_own_payload_changes_no_byte(block: bytes) -> None:
    payload = sse.data_of(block)
    assert payload is not None
    assert sse.with_data(block, payload) == block


def test_a_mark_after_a_crlf_that_was_cut_is_no_part_of_the_field() -> None:
    block = b"\n\xef\xbb\xbfdata: {}\r\n\r\n"
    assert sse.data_of(block) == b"{}"
    assert sse.with_data(block, b"[]") == b"\n\xef\xbb\xbfdata: []\r\n\r\n"


def test_a_mark_before_any_line_is_no_part_of_its_field() -> None:
    block = b"event: x\n\xef\xbb\xbfdata: no\ndata: {}\n\n"
    assert sse.data_of(block) == b"no\n{}"
    assert sse.with_data(block, b"[]") == b"event: x\n\xef\xbb\xbfdata: []\n\n"
    assert sse.with_data(b"\xef\xbb\xbfdata\n\n", b"[]") == b"\xef\xbb\xbfdata:[]\n\n"
    assert sse.data_of(b"\r\n\xef\xbb\xbfdata: {}\r\r") == b"{}"
