"""Edits JSON by cutting its bytes: what is not named stays byte for byte as it was.

Decoding and encoding again would lose big integers, duplicate keys and NaN, and cost a hundred times as much. The
walk is by depth: a key counts at the top level or in an element of the top level's `choices`, never inside a string
or deeper down. Whatever is no JSON object is returned untouched. Pure.
"""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import astuple

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_MEMBER = re.compile(rb"\s*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_STRING_AT = re.compile(_STRING, re.DOTALL)
_STEP = re.compile(_STRING + rb'|[{}\[\]"]', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}\"{\[]+")
_NEXT = re.compile(rb"\s*([,}\]])")
_SPACE = re.compile(rb"\s*")


def _skip_space(text: bytes, position: int) -> int:
    space = _SPACE.match(text, position)
    return space.end() if space else position


def _end_of_text(text: bytes, position: int) -> None:
    if _skip_space(text, position) != len(text):
        raise NotJsonError("something stands after the object")


def _nested(depth: int) -> bytes:
    """A pattern for arrays and objects that nest at most `depth` deep; possessive, so it never backtracks."""
    plain = rb'(?:[^"{}\[\]]++|' + _STRING
    content = plain + rb")*+"
    for _ in range(depth - 1):
        content = plain + rb"|[\[{]" + content + rb"[\]}])*+"
    return rb"[\[{]" + content + rb"[\]}]"


# A chunk's logprobs nest six deep: one match in C for what would be a hundred steps in Python.
_SHALLOW = re.compile(_nested(6), re.DOTALL)

_OPEN_BRACE, _OPEN_BRACKET, _QUOTE = b"{"[0], b"["[0], b'"'[0]


class NotJsonError(ValueError):
    """The bytes are not the JSON that was expected."""


def value_end(text: bytes, start: int) -> int:
    """The end of the JSON value that begins at `start`."""
    first = text[start] if start < len(text) else 0
    if first == _QUOTE:
        found = _STRING_AT.match(text, start)
    elif first == _OPEN_BRACKET and (end := _flat_array_end(text, start)):
        return end
    elif first in {_OPEN_BRACE, _OPEN_BRACKET}:
        return _nested_end(text, start)
    else:
        found = _SCALAR.match(text, start)
    if found is None:
        raise NotJsonError("a value was expected")
    return found.end()


def _flat_array_end(text: bytes, start: int) -> int:
    """The end of an array of numbers, found at the speed of a memory scan (100,000 prompt ids); 0 for any other."""
    end = text.find(b"]", start)
    if end < 0 or text.find(b'"', start, end) >= 0 or text.find(b"[", start + 1, end) >= 0:
        return 0
    return 0 if text.find(b"{", start, end) >= 0 else end + 1


def _nested_end(text: bytes, start: int) -> int:
    if shallow := _SHALLOW.match(text, start):
        return shallow.end()
    depth = 0
    for step in _STEP.finditer(text, start):
        token = step.group()
        if token in {b"{", b"["}:
            depth += 1
        elif token in {b"}", b"]"}:
            depth -= 1
            if not depth:
                return step.end()
        elif token == b'"':  # a string without end: trying each later quote as a beginning would be quadratic
            break
    raise NotJsonError("a value without end")


Visit = Callable[[bytes, int], int | None]


def _object(text: bytes, start: int, visit: Visit) -> int:
    """Walks the members of the object at `start`; `visit(key, value start)` may return the value's end."""
    position = start + 1
    closing = _NEXT.match(text, position)
    if closing and closing.group(1) == b"}":
        return closing.end()
    while True:
        member = _MEMBER.match(text, position)
        if member is None:
            raise NotJsonError("a member was expected")
        value = member.end()
        end = visit(_name(member.group(1)), value)
        following = _NEXT.match(text, value_end(text, value) if end is None else end)
        if following is None or following.group(1) == b"]":
            raise NotJsonError("a comma or a brace was expected")
        position = following.end()
        if following.group(1) == b"}":
            return position


def _name(key: bytes) -> bytes:
    """A key without its quotes, as every reader has it: escapes can spell one in another way."""
    if b"\\" not in key:
        return key[1:-1]
    try:
        return msgspec.json.decode(key, type=str).encode("utf-8", "surrogatepass")
    except msgspec.MsgspecError:
        return key[1:-1]  # no text: nobody's key


def _array(text: bytes, start: int, element: Callable[[int], int]) -> int:
    """Walks the elements of the array at `start`; `element(start)` returns its end."""
    position = start + 1
    closing = _NEXT.match(text, position)
    if closing and closing.group(1) == b"]":
        return closing.end()
    while True:
        following = _NEXT.match(text, element(_skip_space(text, position)))
        if following is None or following.group(1) == b"}":
            raise NotJsonError("a comma or a bracket was expected")
        position = following.end()
        if following.group(1) == b"]":
            return position


class _Cutter:
    """Cuts the named values out of a payload with one choice in C: nearly every answer and event.

    Each is cut where it seems to end, which is quickly told, and the library reads only what is left: nearly all of an
    answer are its logprobs. A cut that ended too early would have left closing brackets, or half a string, that nothing
    opens, and one in another place no mark where the value should stand. What is cut is not read: it may be broken.
    """

    def __init__(self, top: frozenset[bytes], choice: frozenset[bytes]) -> None:
        names = [name.decode() for name in sorted(choice, key=lambda name: (name.startswith(b"prompt"), name))]
        above = [name.decode() for name in sorted(top)]
        # In the order in which an engine writes them: in any other, the walk does the work.
        self._keys = [b'"' + name.encode() + b'":' for name in (*names, *above)]
        kind = msgspec.defstruct("Choice", [_raw(name) for name in (*names, "index", "delta", "finish_reason")])
        fields: list[Any] = [("choices", list[kind]), *(_raw(name) for name in above)]  # type: ignore[valid-type]
        self._read: Callable[[bytes], Any] = msgspec.json.Decoder(msgspec.defstruct("Payload", fields)).decode

    def cut(self, payload: bytes) -> tuple[bytes, bool, msgspec.Raw] | None:
        """The payload with nulls for the named values; whether its choice says nothing yet; the choice's index.

        The same object where nothing stood there; None where the payload has another shape. Of a key that stands twice,
        which no engine sends, the value that counts is cut.
        """
        pieces: list[bytes] = []
        marks: list[msgspec.Raw] = []
        rest = payload
        for key in self._keys:
            at = rest.find(key)
            if at < 0:
                marks.append(_NONE)
                continue
            start = at + len(key)
            if end := _seeming_end(rest, start):
                pieces.append(rest[:start])
                rest = rest[end:]
                marks.append(_MARKED)
            else:
                marks.append(_NULL)  # or a value that is no such
        pieces.append(rest)
        try:
            choices, *above = astuple(self._read(_MARK.join(pieces)))
        except (msgspec.MsgspecError, RecursionError):
            return None
        if len(choices) != 1:
            return None
        *values, index, delta, finish_reason = astuple(choices[0])
        if values + above != marks:
            return None
        return b"null".join(pieces) if len(pieces) > 1 else payload, delta == _EMPTY and finish_reason == _NULL, index


def _seeming_end(text: bytes, start: int) -> int:
    """Where an array of numbers, or an object as logprobs are, ends; 0 for any other value.

    Of any other array or object this may be too early, and is never too late: the first `]` is the array's own or one
    within it, and behind the brace of a member's value stands white space, a brace, or a comma with no `{` after it.
    """
    first = text[start] if start < len(text) else 0
    if first == _OPEN_BRACKET:
        return text.find(b"]", start) + 1
    closed = _CLOSED.search(text, start) if first == _OPEN_BRACE else None
    return closed.end() if closed else 0


# Within logprobs every object stands in an array, so this is the brace that ends them.
_CLOSED = re.compile(rb"\}(?!\]|,\{)")
_MARK = b"-0.0e-7"  # a value that nobody sends
_MARKED, _NONE, _NULL, _EMPTY = (msgspec.Raw(text) for text in (_MARK, b"", b"null", b"{}"))
_cutter = functools.lru_cache(maxsize=64)(_Cutter)


def _raw(name: str) -> tuple[str, type[msgspec.Raw], msgspec.Raw]:
    return name, msgspec.Raw, msgspec.Raw()


@dataclass(frozen=True, slots=True)
class Nulls:
    """Puts `null` in place of the values of some keys.

    `top` are keys of the top level, `choice` keys of the elements of `choices`. With `within`, `top` are keys of that
    object as well, and what names none of them is not looked through (there are no choices). With `drop_empty`, a
    payload whose only choice has exactly `"delta":{}` and `"finish_reason":null` is dropped: it exists only because ids
    were asked.
    """

    top: frozenset[bytes]
    choice: frozenset[bytes]
    drop_empty: bool = False
    within: bytes | None = None

    def named_in(self, payload: bytes) -> bool:
        """Whether some of the keys may stand in a payload, which may be the beginning of one."""
        return any(b'"' + key + b'"' in payload for key in self.top | self.choice)

    def apply(self, payload: bytes) -> bytes | None:
        """The payload with nulls put back, the same object if nothing stood there, None where it is to be dropped."""
        if self.within is not None:  # no choices there: what names none of the keys is left alone
            return self._walk(payload) if any(key in payload for key in self.top) else payload
        found = _cutter(self.top, self.choice).cut(payload)
        if found is None:
            return self._walk(payload)
        return None if found[1] and self.drop_empty else found[0]

    def apply_plainly(self, payload: bytes) -> tuple[bytes | None] | None:
        """What `apply` gives, in a tuple; None (to be asked of `apply`) where that is no JSON with one usual choice.

        A usual one has an index that counts from 0, or leaves it out.
        """
        found = _cutter(self.top, self.choice).cut(payload)
        if found is None or (len(found[2]) and not bytes(found[2]).isdigit()):
            return None
        return (None if found[1] and self.drop_empty else found[0],)

    def _walk(self, payload: bytes) -> bytes | None:
        start = _skip_space(payload, 0)
        if not payload.startswith(b"{", start):
            return payload
        walk = _Walk(self, payload)
        try:
            _end_of_text(payload, _object(payload, start, walk.top))
        except NotJsonError:
            return payload
        if self.drop_empty and walk.empty == [True]:
            return None
        return replace(payload, [(start, end, b"null") for start, end in walk.spans])


class _Walk:
    """One payload on its way through `Nulls`: the spans to blank, and which choices say nothing."""

    def __init__(self, nulls: Nulls, payload: bytes) -> None:
        self._nulls = nulls
        self._payload = payload
        self._delta = self._open = False
        self.spans: list[tuple[int, int]] = []
        self.empty: list[bool] = []

    def top(self, key: bytes, value: int) -> int | None:
        if key in self._nulls.top:
            return self._blank(value)
        if key == self._nulls.within and self._payload.startswith(b"{", value):
            return _object(self._payload, value, self._inner)
        if key == b"choices" and self._payload.startswith(b"[", value):
            return _array(self._payload, value, self._choice)
        return None

    def _inner(self, key: bytes, value: int) -> int | None:
        return self._blank(value) if key in self._nulls.top else None

    def _choice(self, start: int) -> int:
        if not self._payload.startswith(b"{", start):
            return value_end(self._payload, start)
        self._delta = self._open = False
        end = _object(self._payload, start, self._member)
        self.empty.append(self._delta and self._open)
        return end

    def _member(self, key: bytes, value: int) -> int | None:
        if key in self._nulls.choice:
            return self._blank(value)
        if key == b"delta":
            self._delta = self._payload.startswith(b"{}", value)
        elif key == b"finish_reason":
            self._open = self._payload.startswith(b"null", value)
        return None

    def _blank(self, start: int) -> int:
        end = value_end(self._payload, start)
        if self._payload[start:end] != b"null":
            self.spans.append((start, end))
        return end


def replace(text: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """The text with spans replaced; edits stand in order and do not overlap."""
    if not edits:
        return text
    parts, position = [], 0
    for start, end, new in edits:
        parts += [text[position:start], new]
        position = end
    return b"".join([*parts, text[position:]])


def set_choices(text: bytes, choices: Mapping[int, bytes]) -> bytes:
    """A JSON object with other elements at some positions of its array `choices`; the rest byte for byte.

    Raises:
        NotJsonError: the text is no JSON object, or has no such elements.
    """
    edits: list[tuple[int, int, bytes]] = []
    place = -1

    def element(start: int) -> int:
        nonlocal place
        place += 1
        end = value_end(text, start)
        if place in choices:
            edits.append((start, end, choices[place]))
        return end

    def member(key: bytes, value: int) -> int | None:
        return _array(text, value, element) if key == b"choices" and text.startswith(b"[", value) else None

    _end_of_text(text, _object(text, _skip_space(text, 0), member))
    if len(edits) != len(choices):
        raise NotJsonError("an element to replace was expected")
    return replace(text, edits)


def text_of(members: Mapping[bytes, bytes]) -> bytes:
    """Members as they stand in a JSON object."""
    return b",".join([b'"' + key + b'":' + value for key, value in members.items()])


def add_members(text: bytes, members: bytes, *, empty: bool) -> bytes:
    """A JSON object with (the text of) top-level members put in before its closing brace.

    For text that is known to be a valid object without these members; `empty` says whether it has any other.

    Raises:
        NotJsonError: the text is no JSON object.
    """
    end = text.rfind(b"}")
    if end < 0:
        raise NotJsonError("an object was expected")
    return b"".join((text[:end], b"" if empty else b",", members, text[end:]))


def set_members(text: bytes, members: Mapping[bytes, bytes]) -> bytes:
    """A JSON object with top-level members set: replaced where they stand, else put in before the closing brace.

    Raises:
        NotJsonError: the text is no JSON object.
    """
    start = _skip_space(text, 0)
    if text[start : start + 1] != b"{":
        raise NotJsonError("an object was expected")
    edits: list[tuple[int, int, bytes]] = []
    seen: set[bytes] = set()
    count = 0

    def member(key: bytes, value: int) -> int | None:
        nonlocal count
        count += 1
        if key not in members:
            return None
        end = value_end(text, value)
        edits.append((value, end, members[key]))
        seen.add(key)
        return end

    end = _object(text, start, member)
    _end_of_text(text, end)
    added = text_of({key: value for key, value in members.items() if key not in seen})
    if added:
        edits.append((end - 1, end - 1, (b"," if count else b"") + added))
    return replace(text, edits)
