"""The stand-in's own tokenizer and chat template: small, fixed, and lossless (bytes are its smallest pieces)."""

import functools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2
"""`<|im_end|>`: what ends an answer."""

# Plain words make the pseudo-model's texts readable; subwords and JSON's punctuation cut arguments as real ones are.
_WORDS = """
the of and to in is it for on with as at by an be this that from or are was not have has had but all can her his
one two three four five six seven eight nine ten our out up so if about who get which go me when make like time no
just him know take people into year your good some could them see other than then now look only come over think
also back after use how work first well way even new want because any these give day most us city host port show
arp mac address table interface router device edge link name text value count command run state up down network
packet route traffic error status check answer question number line test data user model tool call arguments think
get set list find read write open close send weather price order account amount date city Paris Rome London Tokyo
"""
_SUBWORDS = "ing er ion ed es re th on al ent ether net gig bit face inter con pro ter est able tion low mode"
_PUNCTUATION = ('{"', '":', ' "', '",', '"}', "}}", " {", "</", "\n\n", "    ", ": ", ", ", ". ", "...", "=>")
_PIECES = re.compile(r" ?[A-Za-z]+|\d| ?[^\sA-Za-z0-9]+|\s+")
_LONGEST = 16


def _vocabulary() -> list[bytes]:
    words = dict.fromkeys(_WORDS.split())
    capital = dict.fromkeys(word.capitalize() for word in words)
    texts = [*words, *capital, *(" " + word for word in (*words, *capital)), *_SUBWORDS.split(), *_PUNCTUATION]
    single = [bytes([byte]) for byte in range(256)]
    return [text.encode() for text in SPECIALS] + single + [t.encode() for t in dict.fromkeys(texts) if len(t) > 1]


class UnknownTokenError(ValueError):
    """An id beyond the vocabulary."""


class Tokenizer:
    """Text to ids and back, the same in every process. Another `shift` is another tokenizer: other ids."""

    def __init__(self, shift: int = 0) -> None:
        pieces = _vocabulary()
        fixed, moved = pieces[: len(SPECIALS)], pieces[len(SPECIALS) :]
        shift %= len(moved)
        self.pieces: list[bytes] = fixed + moved[len(moved) - shift :] + moved[: len(moved) - shift]
        self._id = {piece: token for token, piece in enumerate(self.pieces)}
        self._special = re.compile("|".join(map(re.escape, SPECIALS)))
        self._encode_piece = functools.lru_cache(maxsize=65536)(self._pieces_of)

    def __len__(self) -> int:
        return len(self.pieces)

    def id(self, text: str) -> int:
        """The id of one piece of the vocabulary."""
        return self._id[text.encode()]

    def encode(self, text: str) -> list[int]:
        """The ids of a text; special tokens are recognised in it, as vLLM does in prompts."""
        ids: list[int] = []
        at = 0
        for special in self._special.finditer(text):
            ids += self._plain(text[at : special.start()])
            ids.append(self._id[special.group().encode()])
            at = special.end()
        return ids + self._plain(text[at:])

    def _plain(self, text: str) -> list[int]:
        return [token for piece in _PIECES.findall(text) for token in self._encode_piece(piece)]

    def _pieces_of(self, piece: str) -> tuple[int, ...]:
        raw = piece.encode("utf-8", "surrogatepass")
        ids, at = [], 0
        while at < len(raw):
            end = next(e for e in range(min(len(raw), at + _LONGEST), at, -1) if raw[at:e] in self._id)
            ids.append(self._id[raw[at:end]])
            at = end
        return tuple(ids)

    def piece(self, token: int) -> bytes:
        """The bytes of one token.

        Raises:
            UnknownTokenError: the id is beyond the vocabulary.
        """
        if not 0 <= token < len(self.pieces):
            raise UnknownTokenError(f"Token id {token} is out of vocabulary")
        return self.pieces[token]

    def decode(self, ids: Iterable[int], *, specials: bool = True) -> str:
        """The text of ids; half characters become U+FFFD."""
        kept = (self.piece(token) for token in ids if specials or token >= len(SPECIALS))
        return b"".join(kept).decode("utf-8", "replace")

    def words(self) -> list[int]:
        """The ids of plain words with their leading space: what the pseudo-model writes."""
        return [self.id(" " + word) for word in dict.fromkeys(_WORDS.split())]


ANSWER_OPENS = "<|im_start|>assistant\n"
"""What stands before every answer in a prompt of this template."""


def render(messages: Sequence[Any], tools: Sequence[Any] | None, *, opens: bool = True) -> str:
    """The prompt's text of chat messages, Hermes style; `opens` adds what the answer stands after."""
    parts = []
    if tools:
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        parts.append(f"<|im_start|>system\n# Tools\n<tools>\n{listed}\n</tools><|im_end|>\n")
    for message in messages:
        message = message if isinstance(message, dict) else {}  # noqa: PLW2901  (vLLM accepts stranger ones)
        role = "user" if message.get("role") == "tool" else message.get("role", "user")
        parts.append(f"<|im_start|>{role}\n{_said(message)}<|im_end|>\n")
    return "".join(parts) + (ANSWER_OPENS if opens else "")


def _said(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if message.get("role") == "tool":
        return f"<tool_response>\n{content}\n</tool_response>"
    calls = message.get("tool_calls") or ()
    said = [str(content)] if content else []
    for call in calls:
        function = call.get("function", {}) if isinstance(call, dict) else {}
        arguments = function.get("arguments") or "{}"
        said.append(f'<tool_call>\n{{"name": "{function.get("name")}", "arguments": {arguments}}}\n</tool_call>')
    return "\n".join(said)
