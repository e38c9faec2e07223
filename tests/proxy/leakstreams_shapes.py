"""What leakstreams are, and the parts they are written from: chat chunks as vLLM 0.32 sends them."""

import functools
import json
import re
from dataclasses import dataclass
from typing import Any

from validators import ToolCall

LONG = 12 * 1024
"""A longer body is `long`: too much to be cut at every byte."""

MARKER_LETTERS = "QXZKJVWG"
"""No visible text has four of these in a row."""

BEGIN, END = b"\x02", b"\x03"
"""Around a call field while a stream is being written; JSON has no such bytes unescaped."""

MARKS = re.compile(b"[\x02\x03]")
HEAD = (
    b'{"id":"chatcmpl-8ace9476d59639ca","object":"chat.completion.chunk","created":1796001580,"model":"smollm2",'
    b'"choices":['
)
USAGE = b',"usage":{"prompt_tokens":4,"total_tokens":24,"completion_tokens":20}'
FINGERPRINT = b',"system_fingerprint":"vllm-0.32.0-5ca1ab1e"'
PROMPT = (1, 4093, 198, 2)
EOS = (2, b"<|im_end|>")
TOKEN_BYTES = 12


@dataclass(frozen=True, slots=True)
class Options:
    """What of the request a gate may look at. `tools` is its function list."""

    tools: tuple[dict[str, Any], ...]
    n: int
    include_usage: bool
    tool_choice: Any

    def body(self) -> dict[str, Any]:
        """The chat request."""
        body: dict[str, Any] = {"model": "smollm2", "messages": [{"role": "user", "content": "Go."}], "stream": True}
        body |= {"n": self.n} if self.n > 1 else {}
        body |= {"stream_options": {"include_usage": True}} if self.include_usage else {}
        body |= {"tools": list(self.tools)} if self.tools else {}
        return body | ({"tool_choice": self.tool_choice} if self.tool_choice is not None else {})


@dataclass(frozen=True, slots=True)
class LeakStream:
    """One stream, and what is known of it. Dictionaries are by choice index.

    `body`: all bytes as the primary sends them where nothing was injected; `injected`: the same answer with token ids
    and logprobs, None where that is the same. `secrets`: strings that occur in call fields only, in the bytes of the
    body; no four bytes in a row of one (nor of what it says, where it is escaped) occur anywhere else. `spans`: where
    call fields stand in `body`. A tool's name is a secret, too: a refusal that names it must not be searched for it.

    `clear`: how many bytes of `body` come before the first event that a gate may hold: all these go out, as they come.
    `text`: the content that was said in events before a choice's call and before anything that cannot be judged: it
    must reach the client, whatever is decided. `beside`: content in an event that holds a call, too: it may be held.

    `calls`: what a reader puts together. `verdictable`: all readers put together the same, so that a gate can judge it;
    else readers differ (or none can tell), and a gate must hold everything from the first such event as unverified.
    `complete`: each choice has a finish reason, and `[DONE]` is there. `usage`, `error`: that event's exact bytes;
    `usage` is None, too, where it stands in an event that holds a call or a finish. `done`: there is a `[DONE]`.
    `long`: more than `LONG` bytes.
    """

    name: str
    kind: str
    note: str
    body: bytes
    injected: bytes | None
    secrets: tuple[bytes, ...]
    spans: tuple[tuple[int, int], ...]
    clear: int
    text: dict[int, str]
    beside: dict[int, str]
    usage: bytes | None
    error: bytes | None
    done: bool
    calls: dict[int, tuple[ToolCall, ...]]
    complete: bool
    verdictable: bool
    long: bool
    options: Options


@dataclass(frozen=True, slots=True)
class Spoken:
    """A call as it is to be written: its arguments in pieces."""

    id: str
    name: str
    pieces: tuple[str, ...]

    @property
    def arguments(self) -> str:
        """The whole arguments."""
        return "".join(self.pieces)

    @property
    def tool_call(self) -> ToolCall:
        """What a reader puts together."""
        return ToolCall(self.name, self.arguments, self.id)


@dataclass(frozen=True, slots=True)
class Part:
    """One entry of a chunk's `choices`, in both forms."""

    plain: bytes
    injected: bytes
    choice: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Some bytes of the stream: `plain` is None for an event that only the injection made."""

    plain: bytes | None
    injected: bytes
    role: str = ""


def dumps(value: Any) -> bytes:
    """JSON as the server writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def mark(value: Any) -> bytes:
    """A call field: a JSON value, or bytes as they are to stand there."""
    return BEGIN + (value if isinstance(value, bytes) else dumps(value)) + END


def entry(
    index: Any = None, call_id: str | None = None, name: str | None = None, arguments: Any = ..., **more: Any
) -> dict[str, Any]:
    """One entry of `delta.tool_calls`, in vLLM's order; what is not given is absent."""
    function = {} if name is None else {"name": name}
    function |= {} if arguments is ... else {"arguments": arguments}
    found = {} if call_id is None else {"id": call_id, "type": "function"}
    found |= {} if index is None else {"index": index}
    return found | ({"function": function} if function else {}) | more


@functools.cache
def logprob(token: int, spelled: bytes) -> bytes:
    """One entry of `logprobs.content`, five candidates, tokens as ids."""
    names = [f"token_id:{token + i}" for i in range(5)]
    top = [{"token": name, "logprob": -0.1 - 3 * i, "bytes": list(name.encode())} for i, name in enumerate(names)]
    return dumps({"token": names[0], "logprob": -0.1, "bytes": list(spelled), "top_logprobs": top})


def unmarked(marked: bytes, at: int) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes without marks, and where call fields stand in them, from `at` on."""
    parts = MARKS.split(marked)
    if len(parts) % 2 == 0:
        raise ValueError("a call field begins and does not end")
    spans = []
    for number, part in enumerate(parts):
        if number % 2:
            spans.append((at, at + len(part)))
        at += len(part)
    return b"".join(parts), spans
