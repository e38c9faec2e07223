import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import inject
from proxy.cut import Nulls
from proxy.inject import EndlessEventError, Injection, Level, Removal, plan
from shadow.exchange import Dialect, Request
from shadow.wire import dialects

TOKEN_DIALECTS = [Dialect.CHAT, Dialect.COMPLETIONS]

NONE: frozenset[bytes] = frozenset()
IDS = {"return_token_ids": True}
CHAT_LOGPROBS = {"logprobs": True, "top_logprobs": 5, "return_tokens_as_token_ids": True}
COMPLETIONS_LOGPROBS = {"logprobs": 5, "return_tokens_as_token_ids": True}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]


def planned(
    dialect: Dialect = Dialect.CHAT, level: Level = Level.FULL, k: int = 5, text: bytes | None = None, **body: Any
) -> Injection | None:
    raw = text if text is not None else json.dumps(body).encode()
    return plan(Request(dialect, body if text is None else json.loads(raw)), raw, level, k)


def added(injection: Injection | None, body: dict[str, Any]) -> dict[str, Any]:
    assert injection is not None
    sent = json.loads(injection.body)
    return {key: value for key, value in sent.items() if key not in body or body[key] != value}


@pytest.mark.parametrize("dialect", TOKEN_DIALECTS)
@pytest.mark.parametrize(
    "body",
    [
        {"echo": True},
        {"use_beam_search": True},
        {"logprob_token_ids": [1, 2]},
        {"include_reasoning": False},
        {"messages": IMAGE},
        {"echo": True, "logprobs": 3},
    ],
)
def test_nothing_is_put_in_where_the_visible_answer_would_change(dialect: Dialect, body: dict[str, Any]) -> None:
    for level in Level:
        assert planned(dialect, level, **body) is None


@pytest.mark.parametrize(
    "body",
    [
        {"echo": False},
        {"echo": None},
        {"use_beam_search": False},
        {"logprob_token_ids": None},
        {"logprob_token_ids": []},
        {"include_reasoning": True},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {},
    ],
)
def test_what_is_switched_off_does_not_stand_in_the_way(body: dict[str, Any]) -> None:
    assert added(planned(**body), body) == IDS | CHAT_LOGPROBS


@pytest.mark.parametrize(
    ("dialect", "level", "k", "body", "expected"),
    [
        (Dialect.CHAT, Level.FULL, 5, {}, IDS | CHAT_LOGPROBS),
        (Dialect.COMPLETIONS, Level.FULL, 5, {}, IDS | COMPLETIONS_LOGPROBS),
        (Dialect.CHAT, Level.IDS, 5, {}, IDS),
        (Dialect.COMPLETIONS, Level.IDS, 5, {}, IDS),
        # k candidates: five at most, two at least
        (Dialect.CHAT, Level.FULL, 20, {}, IDS | CHAT_LOGPROBS),
        (Dialect.CHAT, Level.FULL, 3, {}, IDS | CHAT_LOGPROBS | {"top_logprobs": 3}),
        (Dialect.CHAT, Level.FULL, 2, {}, IDS | CHAT_LOGPROBS | {"top_logprobs": 2}),
        (Dialect.COMPLETIONS, Level.FULL, 2, {}, IDS | COMPLETIONS_LOGPROBS | {"logprobs": 2}),
        (Dialect.CHAT, Level.FULL, 1, {}, IDS),
        (Dialect.CHAT, Level.FULL, 0, {}, IDS),
        # the client's own logprobs stay as they are
        (Dialect.CHAT, Level.FULL, 5, {"logprobs": True}, IDS),
        (Dialect.CHAT, Level.FULL, 5, {"logprobs": True, "top_logprobs": 2}, IDS),
        (Dialect.CHAT, Level.FULL, 5, {"logprobs": False}, IDS | CHAT_LOGPROBS),
        (Dialect.CHAT, Level.FULL, 5, {"logprobs": None, "top_logprobs": None}, IDS | CHAT_LOGPROBS),
        (Dialect.COMPLETIONS, Level.FULL, 5, {"logprobs": 0}, IDS),
        (Dialect.COMPLETIONS, Level.FULL, 5, {"logprobs": 1}, IDS),
        (Dialect.COMPLETIONS, Level.FULL, 5, {"logprobs": None}, IDS | COMPLETIONS_LOGPROBS),
        (Dialect.CHAT, Level.FULL, 5, {"prompt_logprobs": 1}, IDS),
        (Dialect.CHAT, Level.FULL, 5, {"prompt_logprobs": 0}, IDS),
        # candidates without logprobs are the client's error, and its 400 must come back
        (Dialect.CHAT, Level.FULL, 5, {"top_logprobs": 3}, IDS),
        (Dialect.CHAT, Level.FULL, 5, {"top_logprobs": 0, "logprobs": False}, IDS),
        # the client's own ids
        (Dialect.CHAT, Level.FULL, 5, {"return_token_ids": True}, CHAT_LOGPROBS),
        (Dialect.CHAT, Level.FULL, 5, {"return_token_ids": False}, IDS | CHAT_LOGPROBS),
        (Dialect.CHAT, Level.FULL, 5, {"return_token_ids": None}, IDS | CHAT_LOGPROBS),
    ],
)
def test_what_is_put_in(
    dialect: Dialect, level: Level, k: int, body: dict[str, Any], expected: dict[str, Any]
) -> None:  # fmt: skip
    assert added(planned(dialect, level, k, **body), body) == expected


@pytest.mark.parametrize(
    ("level", "k", "body"),
    [
        (Level.OFF, 5, {}),
        (Level.OFF, 5, {"logprobs": True}),
        (Level.IDS, 5, {"return_token_ids": True}),
        (Level.FULL, 5, {"return_token_ids": True, "logprobs": True}),
        (Level.FULL, 1, {"return_token_ids": True}),
        (Level.FULL, 5, {"return_token_ids": True, "top_logprobs": 2}),
    ],
)
def test_where_nothing_need_be_put_in_there_is_no_plan(level: Level, k: int, body: dict[str, Any]) -> None:
    assert planned(Dialect.CHAT, level, k, **body) is None


@pytest.mark.parametrize(
    ("dialect", "body", "top", "choice", "drops"),
    [
        (Dialect.CHAT, {"stream": True}, {"prompt_token_ids"}, {"token_ids", "logprobs"}, True),
        (Dialect.CHAT, {"stream": False}, {"prompt_token_ids"}, {"token_ids", "logprobs"}, False),
        (Dialect.CHAT, {}, {"prompt_token_ids"}, {"token_ids", "logprobs"}, False),
        # a chunk with an empty delta is the client's own where it asked for ids or logprobs
        (Dialect.CHAT, {"stream": True, "logprobs": True}, {"prompt_token_ids"}, {"token_ids"}, False),
        (Dialect.CHAT, {"stream": True, "return_token_ids": True}, set(), {"logprobs"}, False),
        (Dialect.COMPLETIONS, {"stream": True}, set(), {"prompt_token_ids", "token_ids", "logprobs"}, False),
        (Dialect.COMPLETIONS, {"stream": True, "logprobs": 2}, set(), {"prompt_token_ids", "token_ids"}, False),
        (Dialect.COMPLETIONS, {"return_token_ids": True}, set(), {"logprobs"}, False),
    ],
)
def test_what_is_cut_out_again(
    dialect: Dialect,
    body: dict[str, Any],
    top: set[str],
    choice: set[str],
    drops: bool,  # noqa: FBT001
) -> None:
    injection = planned(dialect, **body)
    assert injection is not None
    assert injection.nulls.top == {name.encode() for name in top}
    assert injection.nulls.choice == {name.encode() for name in choice}
    assert injection.nulls.drop_empty is drops


def test_ids_only_still_drops_what_only_ids_made() -> None:
    injection = planned(Dialect.CHAT, Level.IDS, stream=True)
    assert injection is not None
    assert injection.nulls.choice == {b"token_ids"}
    assert injection.nulls.drop_empty


def test_every_other_byte_of_the_request_stays() -> None:
    text = b' {"model": "m",\n "big": 12345678901234567890123, "e": "\\u00e9\xc3\xa9", "logprobs" : false } '
    injection = planned(text=text)
    assert injection is not None
    assert injection.body == (
        b' {"model": "m",\n "big": 12345678901234567890123, "e": "\\u00e9\xc3\xa9", "logprobs" : true '
        b',"return_token_ids":true,"top_logprobs":5,"return_tokens_as_token_ids":true} '
    )


def test_a_body_that_cannot_be_edited_has_no_plan() -> None:
    assert plan(Request(Dialect.CHAT, {}), b"[]", Level.FULL, 5) is None
    assert plan(Request(Dialect.CHAT, {}), b"", Level.FULL, 5) is None


VALUES = st.sampled_from([None, True, False, 0, 1, 5, "x", [1], {"a": 1}])
FIELDS = st.sampled_from(
    ["model", "stream", "n", "logprobs", "top_logprobs", "return_token_ids", "prompt_logprobs", "echo", "temperature"]
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(FIELDS, VALUES, max_size=5), st.sampled_from(TOKEN_DIALECTS), st.sampled_from(list(Level)))
def test_nothing_but_our_fields_is_ever_touched(body: dict[str, Any], dialect: Dialect, level: Level) -> None:
    injection = planned(dialect, level, **body)
    if injection is None:
        return
    sent = json.loads(injection.body)
    ours = {"return_token_ids", "logprobs", "top_logprobs", "return_tokens_as_token_ids"}
    assert set(sent) <= set(body) | ours
    assert {key: value for key, value in sent.items() if key not in ours} == {
        key: value for key, value in body.items() if key not in ours
    }
    assert level is not Level.OFF
    if dialect is Dialect.COMPLETIONS and type(body.get("logprobs")) is int:
        assert sent["logprobs"] == body["logprobs"]


@pytest.mark.parametrize("yes", [1, "true", "yes", "on", 1.0])
def test_what_the_server_reads_as_true_is_the_client_s_own_wish(yes: Any) -> None:
    body = {"logprobs": yes, "top_logprobs": None}
    injection = planned(**body)
    assert injection is not None
    assert json.loads(injection.body)["logprobs"] == yes
    assert b"logprobs" not in injection.nulls.choice


DROPPING = Nulls(frozenset({b"prompt_token_ids"}), frozenset({b"token_ids", b"logprobs"}), drop_empty=True)
PAYLOADS = (
    b'{"choices":[{"delta":{"role":"a"},"finish_reason":null,"token_ids":null}]}',
    b'{"choices":[{"delta":{},"finish_reason":null,"token_ids":[1]}]}',
    b'{"choices":[{"delta":{"content":"x"},"finish_reason":null,"token_ids":[2]}]}',
    b'{"choices":[{"delta":{},"finish_reason":null,"token_ids":[3]}]}',
    b"[DONE]",
)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("between", [b"", b": still here"], ids=["", "comments"])
def test_what_was_injected_is_cut_out_of_a_stream_cut_at_every_byte(end: bytes, between: bytes) -> None:
    comment = between + 2 * end if between else b""
    stream = b"".join(b"data: " + payload + 2 * end + comment for payload in PAYLOADS)
    plain = b"".join(
        (b"data: " + payload.replace(b"[2]", b"null") + 2 * end if b'"delta":{}' not in payload else b"") + comment
        for payload in PAYLOADS
    )
    for cut in range(1, len(stream)):
        removal = Removal(DROPPING)
        assert removal.feed(stream[:cut]) + removal.feed(stream[cut:]) + removal.rest == plain, cut
    removal = Removal(DROPPING)
    assert b"".join(removal.feed(stream[i : i + 1]) for i in range(len(stream))) + removal.rest == plain


def test_nothing_is_put_into_what_tells_no_tokens() -> None:
    body: dict[str, Any] = {"model": "m", "messages": []}
    assert plan(Request(Dialect.MESSAGES, body, body), json.dumps(body).encode(), Level.FULL, 5) is None


def planned_response(
    sent: dict[str, Any], text: bytes | None = None, level: Level = Level.FULL, *, keeps: bool = False
) -> Injection | None:
    raw = json.dumps(sent).encode() if text is None else text
    return plan(dialects.request_of(Dialect.RESPONSES, sent), raw, level, 5, keeps_responses=keeps)


@pytest.mark.parametrize("level", [Level.IDS, Level.FULL])
@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"input": "Hi.", "stream": True},
        {"enable_response_messages": False},
        {"enable_response_messages": None, "input": "Hi."},
        {"store": True},
        {"background": False},
    ],
)
def test_a_response_is_asked_for_its_raw_messages(sent: dict[str, Any], level: Level) -> None:
    assert added(planned_response(sent, level=level), sent) == {"enable_response_messages": True}


@pytest.mark.parametrize(
    ("sent", "keeps"),
    [
        ({"enable_response_messages": True}, False),
        ({"enable_response_messages": "yes"}, False),
        ({"background": True, "store": False}, False),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, False),
        # whoever fetches it later would be shown what was put in
        ({"input": "Hi."}, True),
        ({"input": "Hi.", "store": True}, True),
        ({"input": "Hi.", "store": None}, True),
    ],
)
def test_a_response_is_left_as_it_is(sent: dict[str, Any], keeps: bool) -> None:  # noqa: FBT001
    assert planned_response(sent, keeps=keeps) is None


def test_a_response_that_is_not_to_be_kept_tells_its_ids_everywhere() -> None:
    assert planned_response({"store": False}, keeps=True) is not None
    assert planned_response({"store": False}, level=Level.OFF) is None


def test_every_other_byte_of_a_responses_request_stays() -> None:
    text = b' {"model": "m",\n "big": 12345678901234567890123, "enable_response_messages" : false } '
    injection = planned_response(json.loads(text), text)
    assert injection is not None
    assert injection.body == text.replace(b"false", b"true")
    injection = planned_response({"a": 1}, b'{"a":1 }\n')
    assert injection is not None
    assert injection.body == b'{"a":1 ,"enable_response_messages":true}\n'


RAW = b'[{"message":"<tool_call> \\"input_messages\\":1","tokens":[1,2,3],"type":"raw_message_tokens"}]'


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (b'{"id":"r","input_messages":%b,"output_messages":%b}',
         b'{"id":"r","input_messages":null,"output_messages":null}'),
        (b'{"response":{"id":"r","input_messages":%b},"output_messages":%b}',
         b'{"response":{"id":"r","input_messages":null},"output_messages":null}'),
        # as vLLM spells the others of the same name: no ids in them, and nothing of ours
        (b'{"response":{"text":%b,"metadata":{"input_messages":%b}}}', None),
        (b'{"item":{"input_messages":%b},"delta":%b}', None),
    ],
)  # fmt: skip
def test_raw_messages_are_cut_out_of_a_response(told: bytes, shown: bytes | None) -> None:
    injection = planned_response({})
    assert injection is not None
    payload = told % (RAW, RAW)
    assert injection.nulls.apply(payload) == (payload if shown is None else shown)
    for end in (b"\n", b"\r\n"):
        event = end.join((b"event: response.completed", b"data: %b", b"", b""))
        for at in range(1, len(event % payload)):
            removal, sent = Removal(injection.nulls), event % payload
            got = removal.feed(sent[:at]) + removal.feed(sent[at:]) + removal.rest
            assert got == event % (payload if shown is None else shown)


def test_what_says_nothing_of_raw_messages_is_not_looked_through() -> None:
    injection = planned_response({})
    assert injection is not None
    for payload in (
        b'{"delta":"input_messages","type":"response.output_text.delta"}',
        b"no JSON",
        b'{"response":{"a":',
    ):
        assert injection.nulls.apply(payload) is payload


RESPONSES, CHAT = planned_response({}), planned(stream=True)
WHOLE = b'{"response":{"id":"r","input_messages":[1]},"type":"response.completed"}'


@pytest.mark.parametrize(
    ("injection", "rest", "shown"),
    [
        (RESPONSES, b"data: " + WHOLE, b"data: " + WHOLE.replace(b"[1]", b"null")),
        (RESPONSES, b"event: x\ndata: " + WHOLE + b"\n", b"event: x\ndata: " + WHOLE.replace(b"[1]", b"null") + b"\n"),
        (RESPONSES, b"event: x\ndata: " + WHOLE[:-20], b""),
        (RESPONSES, b"event: x\ndata: " + WHOLE[:20], b"event: x\ndata: " + WHOLE[:20]),
        (RESPONSES, b"event: x\n", b"event: x\n"),
        (RESPONSES, b'data: {"input_messages":null}', b'data: {"input_messages":null}'),
        (CHAT, b'data: {"choices":[{"delta":{"content":"a"},"token_ids":[1]}]}',
         b'data: {"choices":[{"delta":{"content":"a"},"token_ids":null}]}'),
        (CHAT, b'data: {"choices":[{"delta":{"content":"a"},"token_ids":[1', b""),
        (CHAT, b'data: {"choices":[{"delta":{"content":"a', b'data: {"choices":[{"delta":{"content":"a'),
        (CHAT, b"data: [DONE]", b"data: [DONE]"),
    ],
)  # fmt: skip
def test_what_a_stream_ends_with_is_cut_as_well(injection: Injection | None, rest: bytes, shown: bytes) -> None:
    assert injection is not None
    for pieces in ([rest], [rest[:9], rest[9:]]):
        removal = Removal(injection.nulls)
        assert b"".join(map(removal.feed, pieces)) + removal.rest == shown


def test_an_event_without_an_end_is_not_gathered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inject, "MAX_EVENT", 1000)
    removal = Removal(Nulls(frozenset({b"prompt_token_ids"}), frozenset({b"token_ids"})))
    event = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 900 + b'"},"token_ids":[1]}]}\n\n'
    assert b"".join(removal.feed(event[at : at + 10]) for at in range(0, len(event), 10)).endswith(b":null}]}\n\n")
    assert removal.feed(event[:-1]) == b""
    with pytest.raises(EndlessEventError):
        removal.feed(b" " * 100)
