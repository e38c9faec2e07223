"""Server-sent events at the byte level.

`Splitter` cuts a stream into raw blocks (each up to and including the blank line that ends it) whatever the cuts of
the transport, so that the bytes of all blocks put together are the bytes of the stream; `data_of` reads a block.
Line ends may be LF, CRLF or CR; comments and other fields are kept in the bytes and are no data.
Method: the event-stream format of the WHATWG HTML standard.
"""

import re
from collections.abc import Iterator

# Atomic groups: a CRLF is one line end, never a CR followed by an empty line.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LINE_END_OR_LAST = re.compile(rb"\r\n|\n|\r|\Z")
_BOM = b"\xef\xbb\xbf"
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")

DONE = b"[DONE]"
"""The payload that ends an OpenAI stream."""


class Splitter:
    """Cuts a byte stream into raw event blocks. Feed what arrives; `rest` is what no blank line has ended yet.

    Time grows with length only, however long an event is; how much memory one may take is for who feeds it to say.

    Attributes:
        waiting: how many bytes `rest` has.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._last = b""  # of the parts: as much as may begin a blank line
        self.waiting = 0

    @property
    def rest(self) -> bytes:
        """The bytes after the last complete block."""
        return b"".join(self._parts)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yields each block that `chunk` completes, its ending blank line included.

        A CR at the very end may be half a CRLF: the block goes out at once all the same, and a following LF opens the
        next block, where it means nothing.
        """
        known, text, start = len(self._last), self._last + chunk, 0
        while end := _BLANK_LINE.search(text, start):
            block = b"".join([*self._parts, text[max(start, known) : end.end()]])
            self._parts.clear()
            self.waiting = 0
            yield block
            start = end.end()
        if rest := text[max(start, known) :]:
            self._parts.append(rest)
            self.waiting += len(rest)
        self._last = text[max(start, len(text) - 3) :]


def is_one_event(chunk: bytes) -> bool:
    """Whether bytes are exactly one event as vLLM frames it: `data: …` and two LF. A stray CR is another framing."""
    one = chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") and chunk.find(b"\n") == len(chunk) - 2
    return one and b"\r" not in chunk


def is_text(block: bytes) -> bool:
    """Whether a block can be lines of text; what cannot is packed, or written in another way than is read here."""
    return _NO_TEXT.search(block) is None


def data_of(block: bytes) -> bytes | None:
    """The payload of a block: its `data` lines joined by LF, or None where it has none (a comment, a lone field)."""
    if is_one_event(block):
        return block[6:-2]
    lines = [line[5:].removeprefix(b" ") for line in _lines(block) if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _lines(block: bytes) -> list[bytes]:
    """A block's lines, each without a byte order mark before it: where a block begins depends on the transport's cuts.

    A line `data` without a colon is a data line with an empty value.
    """
    lines = [line.removeprefix(_BOM) for line in _LINE_END.split(block)]
    return [b"data:" if line == b"data" else line for line in lines]


def with_data(block: bytes, payload: bytes) -> bytes:
    """The block with another payload: comments, other fields, line ends and the order of lines stay as they were."""
    if is_one_event(block):
        return b"data: " + payload + b"\n\n"
    out, left, position = [], payload.split(b"\n"), 0
    for end in _LINE_END_OR_LAST.finditer(block):
        line = block[position : end.start()]
        position = end.end()
        if not (line.removeprefix(_BOM).startswith(b"data:") or line.removeprefix(_BOM) == b"data"):
            out.append(line + end.group())
        elif left:
            prefix = line[: line.index(b":") + 1] if b":" in line else line + b":"
            prefix += b" " if line[len(prefix) :].startswith(b" ") else b""
            out.append(prefix + left.pop(0) + end.group())
    return b"".join(out)
