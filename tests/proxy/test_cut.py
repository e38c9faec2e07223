import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.cut import NotJsonError, Nulls, _cutter, replace, set_members, value_end
from proxy.inject import Level, plan
from shadow.exchange import Dialect, Request
from shadow.wire import sse

STREAMS = Path(__file__).parents[1] / "data" / "streams"
NONE: frozenset[bytes] = frozenset()
CHAT = Nulls(frozenset({b"prompt_token_ids"}), frozenset({b"logprobs", b"token_ids"}), drop_empty=True)


# -- what the engine sent with and without an injection


def cut_of(name: str, *, stream: bool) -> Nulls:
    dialect = Dialect.COMPLETIONS if name == "comp" else Dialect.CHAT
    body = b'{"model":"m","stream":true}' if stream else b'{"model":"m"}'
    injection = plan(Request(dialect, json.loads(body)), body, Level.FULL, 5)
    assert injection is not None
    return injection.nulls


def normalised(text: bytes) -> bytes:
    """Without what is random from one request to the next."""
    text = re.sub(rb'"created":\d+', b'"created":0', text)
    return re.sub(rb'"id":"(chatcmpl-tool|chatcmpl|cmpl)-[0-9a-f]{16}"', rb'"id":"\1"', text)


def cut_stream(stream: bytes, nulls: Nulls) -> bytes:
    splitter, out = sse.Splitter(), []
    for block in splitter.feed(stream):
        payload = sse.data_of(block)
        edited = None if payload is None else nulls.apply(payload)
        if payload is None:
            out.append(block)
        elif edited is not None:
            out.append(sse.with_data(block, edited))
    return b"".join(out) + splitter.rest


@pytest.mark.parametrize("name", ["auto", "comp", "n2", "req", "text"])
def test_an_injected_stream_is_cut_to_the_plain_one_byte_for_byte(name: str) -> None:
    injected, plain = ((STREAMS / f"{name}-{side}.sse").read_bytes() for side in ("inj", "plain"))
    assert b"token_id:" not in plain
    assert injected.count(b"token_id:") > 20
    assert normalised(cut_stream(injected, cut_of(name, stream=True))) == normalised(plain)


@pytest.mark.parametrize("name", ["auto", "comp", "n2", "req", "text"])
def test_an_injected_answer_is_cut_to_the_plain_one_byte_for_byte(name: str) -> None:
    injected, plain = ((STREAMS / f"{name}-{side}.json").read_bytes() for side in ("inj", "plain"))
    assert injected.count(b"token_id:") > 20
    edited = cut_of(name, stream=False).apply(injected)
    assert edited is not None
    assert normalised(edited) == normalised(plain)


@pytest.mark.parametrize("name", ["auto", "comp", "n2", "req", "text"])
def test_a_plain_answer_is_left_as_the_same_bytes(name: str) -> None:
    stream = (STREAMS / f"{name}-plain.sse").read_bytes()
    assert cut_stream(stream, cut_of(name, stream=True)) == stream
    plain = (STREAMS / f"{name}-plain.json").read_bytes()
    assert cut_of(name, stream=False).apply(plain) is plain


# -- by hand


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"prompt_token_ids":[1,2]}', b'{"prompt_token_ids":null}'),
        (b'{"prompt_token_ids": [1, 2] , "a":1}', b'{"prompt_token_ids": null , "a":1}'),
        (b'{"prompt_token_ids":{"a":[1]},"prompt_token_ids":7}', b'{"prompt_token_ids":null,"prompt_token_ids":null}'),
        (b'{"choices":[{"logprobs":{"content":[{"token":"}"}]},"i":0}]}', b'{"choices":[{"logprobs":null,"i":0}]}'),
        (
            b'{"choices":[{"token_ids":[1]},{"token_ids":[2]}],"prompt_token_ids":"x"}',
            b'{"choices":[{"token_ids":null},{"token_ids":null}],"prompt_token_ids":null}',
        ),
        (b'{"choices":[{"logprobs":"a\\"b]}"}]}', b'{"choices":[{"logprobs":null}]}'),
        (b'{ "choices" :\n[ {"logprobs" : 1 } ] }', b'{ "choices" :\n[ {"logprobs" : null } ] }'),
        (b'{"choices":[1,{"logprobs":1},[{"logprobs":1}]]}', b'{"choices":[1,{"logprobs":null},[{"logprobs":1}]]}'),
        (b'{"logprobs":1,"choices":[{"prompt_token_ids":[1]}]}', None),
        (b'{"choices":[{"delta":{"logprobs":1,"token_ids":[1]}}]}', None),
        (b'{"choices":[{"message":{"content":"{\\"logprobs\\":1}"}}]}', None),
        (b'{"kv_transfer_params":{"prompt_token_ids":[1],"choices":[{"logprobs":1}]}}', None),
        (b'{"choices":{"logprobs":1}}', None),
        (b'{"a":"prompt_token_ids","prompt_token_ids":null,"choices":[]}', None),
        (b'{"a":[{"choices":[{"logprobs":1}]}]}', None),
        (b"{}", None),
        (b'{"choices":[{}]}', None),
    ],
)
def test_only_the_top_level_and_choices_are_cut(payload: bytes, expected: bytes | None) -> None:
    if expected is None:
        assert CHAT.apply(payload) is payload
    else:
        assert CHAT.apply(payload) == expected


def test_what_json_parsers_would_lose_survives() -> None:
    kept = b'"n":12345678901234567890123,"n":1.0e+2,"x":NaN,"y":-Infinity,"e":"\\u0041\\ud83d\\/\xc3\xa9"'
    payload = b'{"prompt_token_ids":[1],' + kept + b',"choices":[{' + kept + b',"logprobs":{"v":NaN}}]}'
    assert CHAT.apply(payload) == b'{"prompt_token_ids":null,' + kept + b',"choices":[{' + kept + b',"logprobs":null}]}'


@pytest.mark.parametrize(
    ("payload", "dropped"),
    [
        (b'{"choices":[{"index":0,"delta":{},"logprobs":{"content":[]},"finish_reason":null,"token_ids":[1]}]}', True),
        (b'{"choices":[{"delta":{},"finish_reason":null}]}', True),
        (b'{"choices":[{"finish_reason":null,"delta":{}}],"usage":{}}', True),
        (b'{"choices":[{"delta":{},"finish_reason":"stop"}]}', False),
        (b'{"choices":[{"delta":{}}]}', False),
        (b'{"choices":[{"delta":{"content":""},"finish_reason":null}]}', False),
        (b'{"choices":[{"delta":{"content":null},"finish_reason":null}]}', False),
        (b'{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}', False),
        (b'{"choices":[{"delta":null,"finish_reason":null}]}', False),
        (b'{"choices":[{"finish_reason":null}]}', False),
        (b'{"choices":[]}', False),
        (b'{"choices":[{"delta":{},"finish_reason":null},{"delta":{},"finish_reason":null}]}', False),
        (b'{"choices":[{"delta":{},"finish_reason":null},{"delta":{"content":"x"},"finish_reason":null}]}', False),
        (b'{"delta":{},"finish_reason":null}', False),
        (b'{"choices":[{"x":{"delta":{},"finish_reason":null}}]}', False),
        (b"[DONE]", False),
    ],
)
def test_only_a_chunk_that_says_nothing_is_dropped(payload: bytes, dropped: bool) -> None:  # noqa: FBT001
    assert (CHAT.apply(payload) is None) == dropped
    kept = Nulls(CHAT.top, CHAT.choice).apply(payload)
    assert kept is not None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[DONE]",
        b"hello",
        b"null",
        b'"prompt_token_ids"',
        b'[{"prompt_token_ids":[1]}]',
        b"{",
        b'{"prompt_token_ids"',
        b'{"prompt_token_ids":',
        b'{"prompt_token_ids":[1',
        b'{"prompt_token_ids":[1]',
        b'{"prompt_token_ids":[1],',
        b'{"prompt_token_ids":[1],}',
        b'{"prompt_token_ids":[1] "a":1}',
        b'{"prompt_token_ids":[1]]',
        b"{prompt_token_ids:[1]}",
        b'{"prompt_token_ids":}',
        b'{"prompt_token_ids":"[1]}',
        b'{"choices":[{"logprobs":1}',
        b'{"choices":[{"logprobs":1}}',
        b'{"choices":[{"logprobs":1},]}',
        b'{"choices":[{"logprobs":1]}',
        b'{"choices":[{"logprobs":{"a":"}]}',
        b"\xff\xfe",
    ],
)  # fmt: skip
def test_what_is_no_json_object_is_returned_untouched(payload: bytes) -> None:
    assert CHAT.apply(payload) is payload


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 140))
def test_a_cut_off_chunk_is_returned_untouched(length: int) -> None:
    whole = b'{"prompt_token_ids":[1,2],"choices":[{"logprobs":{"a":[{"b":"\\"}"}]},"delta":{},"x":"{"}],"usage":{}}'
    payload = whole[: min(length, len(whole) - 1)]
    assert CHAT.apply(payload) is payload
    assert CHAT.apply(whole) != whole


@pytest.mark.parametrize("space", [b" ", b"\n", b"\r\n\t "])
def test_white_space_before_an_object_does_not_hide_it(space: bytes) -> None:
    assert CHAT.apply(space + b'{"prompt_token_ids":[1]}') == space + b'{"prompt_token_ids":null}'


# -- any JSON


NAMES = st.sampled_from(["prompt_token_ids", "logprobs", "token_ids", "choices", "delta", "a", "é", '"', "\\", "{", ""])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.sampled_from([0.5, "", "logprobs", '{"logprobs":1}', "é\n", '"', "\\", "]}", "token_ids", "\ud83d"]),
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
OBJECTS = st.dictionaries(NAMES, JSON | st.lists(st.dictionaries(NAMES, JSON, max_size=4), max_size=3), max_size=5)
SPACES = st.sampled_from(["", " ", "\n", "\t ", "\r\n"])


def dumped(value: Any, pad: str, *, ascii_only: bool, top: bool = True, choice: bool = False, cut: bool = False) -> str:
    """A value as JSON text, with `pad` wherever white space may stand; `cut` writes null for what is to be cut."""
    if isinstance(value, dict):
        hit = {"prompt_token_ids"} if top else {"logprobs", "token_ids"} if choice else set()
        members = []
        for key, child in value.items():
            inside = top and key == "choices" and isinstance(child, list)
            if cut and key in hit:
                text = "null"
            elif inside:
                each = (dumped(e, pad, ascii_only=ascii_only, top=False, choice=True, cut=cut) for e in child)
                text = "[" + pad + (pad + "," + pad).join(each) + pad + "]"
            else:
                text = dumped(child, pad, ascii_only=ascii_only, top=False, cut=cut)
            members.append(json.dumps(key, ensure_ascii=ascii_only) + pad + ":" + pad + text)
        return "{" + pad + (pad + "," + pad).join(members) + pad + "}"
    if isinstance(value, list):
        each = (dumped(e, pad, ascii_only=ascii_only, top=False, cut=cut) for e in value)
        return "[" + pad + (pad + "," + pad).join(each) + pad + "]"
    return json.dumps(value, ensure_ascii=ascii_only)


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@settings(max_examples=50, deadline=None)
@given(OBJECTS, SPACES, st.booleans())
def test_in_any_object_only_what_is_named_changes(value: dict[str, Any], pad: str, ascii_only: bool) -> None:  # noqa: FBT001
    payload = encoded(dumped(value, pad, ascii_only=ascii_only))
    assert json.loads(payload.decode("utf-8", "surrogatepass")) == value
    expected = encoded(dumped(value, pad, ascii_only=ascii_only, cut=True))
    assert Nulls(CHAT.top, CHAT.choice).apply(payload) == expected


@settings(max_examples=60, deadline=None)
@given(OBJECTS, SPACES, st.booleans(), st.dictionaries(NAMES, JSON, max_size=3))
def test_members_can_be_set_in_any_object(
    value: dict[str, Any],
    pad: str,
    ascii_only: bool,  # noqa: FBT001
    members: dict[str, Any],
) -> None:
    text = encoded(pad + dumped(value, pad, ascii_only=ascii_only) + pad)
    raw = {
        encoded(json.dumps(key, ensure_ascii=ascii_only)[1:-1]): encoded(json.dumps(new))
        for key, new in members.items()
    }
    result = set_members(text, raw)
    assert json.loads(result.decode("utf-8", "surrogatepass")) == value | members
    assert list(json.loads(result.decode("utf-8", "surrogatepass"))) == list(value | members)


@settings(max_examples=60, deadline=None)
@given(JSON, SPACES, st.booleans())
def test_a_value_ends_where_it_ends(value: Any, pad: str, ascii_only: bool) -> None:  # noqa: FBT001
    text = encoded(dumped(value, pad, ascii_only=ascii_only, top=False))
    for after in (b"", b",", b"]", b"}", b" ,"):
        assert value_end(b"xx" + text + after, 2) == 2 + len(text)


CHUNK = (
    b'{"id":"c-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":" a\\"}{"},"logprobs":{"content":[{"token":"token_id:7","logprob":-0.1,"bytes":[1,2],'
    b'"top_logprobs":[{"token":"token_id:7","logprob":-0.1,"bytes":[1,2]}]}]},"finish_reason":null,"token_ids":[7]}],'
    b'"usage":null}'
)
PIECES = [CHUNK[i : i + n] for i in range(0, len(CHUNK), 3) for n in (1, 4, 9)]
PIECES += [
    b'"token_ids":',
    b'"logprobs":null,',
    b'"delta":{},',
    b'"choices":[',
    b'"prompt_token_ids":[1],',
    b"{}",
    b"[]",
]
PIECES += [b'"finish_reason":null,', b'"a":1,', b'"token_ids":[8],', b'"x":{"token_ids":[9]},', b" ", b",", b"}", b"]"]


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(CHUNK)), st.integers(0, 12), st.sampled_from(PIECES), st.booleans())
def test_the_quick_way_through_a_usual_event_says_what_the_walk_says(
    at: int,
    gone: int,
    piece: bytes,
    drop: bool,  # noqa: FBT001
) -> None:
    nulls = Nulls(CHAT.top, CHAT.choice, drop_empty=drop)
    payload = CHUNK[:at] + piece + CHUNK[at + gone :]
    out = nulls.apply(payload)
    # What is cut out is not read, so what was broken only there may have been mended.
    assert out == nulls._walk(payload) or (not is_json(payload) and (out is None or is_json(out)))
    assert nulls.apply(CHUNK) == nulls._walk(CHUNK) != CHUNK


def is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return False
    return True


OWN = b'"logprobs":{"content":[{"token":"a","bytes":[1]}]}'
HARD = {
    "one deeper": b'"message":{"logprobs":{"content":[1]}}',
    "one deeper as well": b'"message":{"logprobs":{"content":[1]}},' + OWN,
    "one deeper, and its own is null": b'"message":{"logprobs":{"content":[1]}},"logprobs":null',
    "one deeper, and its own in another spelling": b'"x":{"logprobs":{"content":[1]}},"\\u006cogprobs" : null',
    "one deeper that is null": b'"message":{"logprobs":null},' + OWN,
    "twice": OWN + b"," + OWN,
    "twice, the first null": b'"logprobs":null,' + OWN,
    "twice, the last null": OWN + b',"logprobs":null',
    "the other key within": b'"logprobs":{"token_ids":[1,2]},"token_ids":[3]',
    "the other key within, alone": b'"logprobs":{"token_ids":[1,2]}',
    "an object within": b'"logprobs":{"content":{"a":{"b":1},"c":2},"d":3}',
    "an object that ends an object": b'"logprobs":{"content":{"a":1}}',
    "arrays within": b'"token_ids":[[1],[2]],' + OWN,
    "a brace in a string": b'"logprobs":{"content":[{"token":"},","bytes":[1]}]}',
    "braces in strings of both": b'"logprobs":{"content":[{"token":"}\\","}]},"token_ids":["],\\"",1]',
    "a mark for a value": b'"logprobs":-0.0e-7,"token_ids":[1]',
    "no object": b'"logprobs":"{}","token_ids":7',
    "spaces": b'"logprobs":{ "content" : [ { "a" : 1 } , { "b" : [ ] } ] } , "token_ids":[ 1 , 2 ]',
    "a space before": b'"logprobs": {"content":[1]},"token_ids": [1]',
}


@pytest.mark.parametrize("index", [b'"index":0,', b'"index":-1,', b'"index":"0",', b""])
@pytest.mark.parametrize("name", HARD)
def test_a_cut_that_looks_right_and_is_not_is_left_to_the_walk(name: str, index: bytes) -> None:
    choice = index + HARD[name] + b',"delta":{},"finish_reason":"x"'
    first, last = b'"prompt_token_ids":[1,2],', b',"prompt_token_ids":[1,2]'
    more = (b"", last, b',"choices":[]', b',"choices":[{"index":1}]', b',"choices":[{' + OWN + b"}]")
    for before, after in itertools.product((b"", first), more):
        payload = b"{" + before + b'"choices":[{' + choice + b"}]" + after + b"}"
        for nulls in (CHAT, Nulls(CHAT.top, CHAT.choice | CHAT.top), Nulls(NONE, CHAT.choice)):
            out, walked = nulls.apply(payload), nulls._walk(payload)
            assert out == walked or (before and after == last and json.loads(out or b"") == json.loads(walked or b""))


def test_the_quick_way_is_taken_for_what_an_engine_sends() -> None:
    taken = total = 0
    for name in ("auto", "req", "text"):
        nulls = cut_of(name, stream=True)
        for block in sse.Splitter().feed((STREAMS / f"{name}-inj.sse").read_bytes()):
            payload = sse.data_of(block) or b""
            if payload.startswith(b"{"):
                total += 1
                taken += _cutter(nulls.top, nulls.choice).cut(payload) is not None
    assert taken >= 0.9 * total > 30


# -- setting members


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{}", b'{"k":1}'),
        (b"{ }", b'{ "k":1}'),
        (b" {\n} \n", b' {\n"k":1} \n'),
        (b'{"a":2}', b'{"a":2,"k":1}'),
        (b'{"a":{"k":2}}', b'{"a":{"k":2},"k":1}'),
        (b'{"k":2,"a":3}', b'{"k":1,"a":3}'),
        (b'{"k" : [1, {"k": 2}] }', b'{"k" : 1 }'),
        (b'{"k":2,"k":3}', b'{"k":1,"k":1}'),
        (b'{"a":"\\"k\\":2"}', b'{"a":"\\"k\\":2","k":1}'),
        (b'{"a":12345678901234567890,"a":NaN}', b'{"a":12345678901234567890,"a":NaN,"k":1}'),
        (b'{"\\u006b":2}', b'{"\\u006b":1}'),  # the same key, spelled in another way
    ],
)
def test_members_are_replaced_where_they_stand_else_put_in_last(text: bytes, expected: bytes) -> None:
    assert set_members(text, {b"k": b"1"}) == expected


def test_several_members_and_none() -> None:
    assert set_members(b'{"b":0}', {b"a": b"1", b"b": b"2", b"c": b'"x"'}) == b'{"b":2,"a":1,"c":"x"}'
    text = b'{"b":0}'
    assert set_members(text, {}) is text


@pytest.mark.parametrize(
    "text", [b"", b"  ", b"[]", b"null", b'"{}"', b"{", b'{"a":1', b'{"a" 1}', b"{a:1}", b'{"a":1,}', b'{"a":}']
)
def test_members_go_into_objects_only(text: bytes) -> None:
    with pytest.raises(NotJsonError):
        set_members(text, {b"k": b"1"})


@pytest.mark.parametrize("text", [b'{"a":1}{"b":2}', b'{"a":1} x', b'{"a":1}}'])
def test_two_objects_are_no_object(text: bytes) -> None:
    with pytest.raises(NotJsonError):
        set_members(text, {b"k": b"1"})


def test_spans_are_replaced_in_order() -> None:
    assert replace(b"abcdef", [(1, 2, b"X"), (2, 2, b"-"), (4, 6, b"")]) == b"aX-cd"
    text = b"abc"
    assert replace(text, []) is text


# -- depth and length


@pytest.mark.parametrize("depth", [1, 5, 6, 7, 8, 1_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_depth_does_not_matter(depth: int, opening: bytes, closing: bytes) -> None:
    depth //= 1 if opening == b"[" or depth < 10_000 else 10
    deep = opening * depth + b'"logprobs"' + closing * depth
    payload = (
        b'{"x":' + deep + b',"prompt_token_ids":' + deep + b',"choices":[{"y":' + deep + b',"logprobs":' + deep + b"}]}"
    )
    assert CHAT.apply(payload) == (
        b'{"x":' + deep + b',"prompt_token_ids":null,"choices":[{"y":' + deep + b',"logprobs":null}]}'
    )
    assert set_members(b'{"x":' + deep + b"}", {b"k": b"1"}) == b'{"x":' + deep + b',"k":1}'
    broken = b'{"prompt_token_ids":[1],"x":' + opening * depth
    assert CHAT.apply(broken) is broken


@pytest.mark.parametrize(
    ("before", "unit", "after"),
    [
        (b'{"x":', b"[", b""),
        (b'{"x":[', b"[[[[[[[[]]]]]]]],", b"0]}"),
        (b'{"x":[', b"[],", b"0]}"),
        (b'{"x":[', b"{},", b"0]}"),
        (b'{"x":"', b'\\"', b'"}'),
        (b'{"x":{"y":"', b'\\"', b'"}}'),
        (b'{"x":["', b"\\\\", b'"]}'),
        (b'{"x":["', b"[", b'"]}'),
        (b'{"x":[', b'"a",', b'"b"]}'),
        (b'{"choices":[', b"{},", b"{}]}"),
        (b'{"choices":[', b'{"logprobs":[1]},', b"{}]}"),
        (b'{"a":0', b',"prompt_token_ids":[1]', b"}"),
        (b'{"a":0', b',"b":[', b""),
        (b'{"a":0', b" ", b"}"),
        (b'{"x":[', b"-", b"]}"),
        (b'{"x":[[', b"]", b""),
        (b'{"x":{', b"}{", b""),
        (b'{"x":{"y":"', b'\\"', b""),
    ],
)  # fmt: skip
@pytest.mark.slow
@pytest.mark.timeout(60)
def test_time_grows_with_length_only(before: bytes, unit: bytes, after: bytes) -> None:
    """At this length, what is linear takes a second and what is quadratic takes minutes."""
    CHAT.apply(before + unit * 150_000 + after)


def long_answer(**parts: bytes) -> bytes:
    entry = (
        b'{"token":"token_id:7","logprob":-0.5,"bytes":[34,93],"top_logprobs":[{"token":"token_id:7","logprob":-0.5}]}'
    )
    entries = parts.get("entries", b",".join([entry] * 60))
    return (
        b'{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"'
        + parts.get("content", b"x")
        + b'"}'
        b',"logprobs":{"content":[' + entries + b"]}" + parts.get("after", b"") + b',"finish_reason":"stop"'
        b',"token_ids":[1,2]}' + parts.get("more", b"") + b'],"usage":{"a":1},"prompt_token_ids":[3,4]}'
    )


LONG = {
    "usual": long_answer(),
    "marks in the text": long_answer(content=rb"],\"finish_reason\": ,\"logprobs\":{\"content\":[ ]},\""),
    "marks in a token": long_answer(entries=b",".join([b'{"token":"]},","logprob":-0.5,"bytes":[93]}'] * 120)),
    "something after them": long_answer(after=b',"refusal":{"a":[1]}'),
    "something after them that looks alike": long_answer(after=b',"refusal":{"content":[1]}'),
    "a finish reason within": long_answer(entries=b'{"a":[{"b":[1]},"finish_reason"]},' * 150 + b"1"),
    "another choice": long_answer(more=b',{"index":1,"logprobs":{"content":[1]},"finish_reason":"stop"}'),
    "logprobs elsewhere, too": long_answer(content=b'","logprobs":{"content":[1]},"finish_reason":"'),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_answer_loses_its_logprobs_as_the_walk_has_it(name: str) -> None:
    nulls = Nulls(frozenset({b"prompt_token_ids"}), frozenset({b"token_ids", b"logprobs"}))
    assert len(LONG[name]) > 4096
    assert nulls.apply(LONG[name]) == nulls._walk(LONG[name])


def test_a_long_answer_that_is_cut_off_is_returned_untouched() -> None:
    nulls = Nulls(frozenset({b"prompt_token_ids"}), frozenset({b"token_ids", b"logprobs"}))
    for cut in (1, 10, 60, 100, 3000):
        assert nulls.apply(LONG["usual"][:-cut]) == LONG["usual"][:-cut]
