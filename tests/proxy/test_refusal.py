"""What a client sees in place of a call: always a text, always short, and in the form that its agent understands."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from proxy import refusal
from proxy.gates import chat_writing as writing
from proxy.gates.chat_writing import Frame, with_messages
from shadow.compare import judge_calls, unverified
from shadow.exchange import Dialect, Request
from shadow.judge import Case, Rulebook
from shadow.wire import answers
from validators import Difference, Finding, ToolCall, Word
from validators.calls import Side
from validators.decision import Opinion, Verdict, decide
from validators.policy import Action, Policy, RepeatPolicy, ToolPolicy, merged
from validators.repeats import Repeats
from validators.rules import Rule, compile_rule

ID = "cp-0123"
FRAME = Frame("chatcmpl-1", 17, "qwen")
LIMIT = 4_000  # characters: nothing that a model writes makes a refusal longer
BASE: ToolPolicy[Rule] = ToolPolicy("*")
ALL_REFUSED = dict.fromkeys(Word, "refuse")


def policy(agree: int = 1, **terms: Any) -> Policy[Rule]:
    return Policy(agree, merged(BASE, "*", **({"on": ALL_REFUSED} | terms)))


def refused(
    calls: Sequence[ToolCall],
    own: Sequence[Finding] = (),
    opinions: Sequence[Opinion] = (),
    agree: int = 1,
    **terms: Any,
) -> str:
    """The text about calls of which these things were found, under a policy that refuses everything."""
    verdict = decide(
        policy(agree, **terms), calls, own, opinions, expired=True, wants_person=False, check_substitute=lambda _: []
    )
    assert verdict is not None
    assert verdict.action is Action.REFUSE
    return checked(refusal.text(verdict, ID))


def checked(text: str) -> str:
    """What is true of every refusal."""
    assert text.startswith("[counterproof] ")
    assert ID in text
    assert text.isprintable()
    assert len(text) <= LIMIT
    assert json.loads(json.dumps(text)) == text.encode().decode()
    return text


def said(*findings: Finding, calls: tuple[ToolCall, ...] = ()) -> Opinion:
    return Opinion("s0", twin=False, findings=findings, calls=calls)


SEND = ToolCall("send", '{"city": "Paris"}')


# -- the text


WITHOUT_REFERENCE = {
    "unknown_tool": "this request offers no such tool",
    "not_json": "its arguments are not JSON",
    "unclosed": "its arguments end before they are whole",
    "not_an_object": "its arguments are no JSON object",
    "too_deep": "its arguments nest too deep",
}


@pytest.mark.parametrize("reason", WITHOUT_REFERENCE)
def test_invalid_calls_in_plain_words(reason: str) -> None:
    text = refused([SEND], [Finding(Word.INVALID, "send", 0, reason)])
    assert text == (
        f"[counterproof] The call of send was refused: {WITHOUT_REFERENCE[reason]}. Nothing was executed. "
        f"Do not repeat this call unchanged. ({ID})"
    )


def case(*functions: dict[str, Any], rules: Sequence[Rule] = (), repeat: RepeatPolicy | None = None) -> Case:
    tools = [{"type": "function", "function": function} for function in functions]
    book = Rulebook(policy(0, rules=rules, repeat=repeat), repeats=Repeats(clock=lambda: 0.0))
    return Case(book, Request(Dialect.CHAT, {"tools": tools}), b"", "")


def test_what_a_schema_says_is_said_with_its_place_once() -> None:
    parameters = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city", "n"]}
    own = case({"name": "send", "parameters": parameters}).own([SEND])
    text = refused([SEND], own)
    assert '/city: this value is not one of "Oslo", "Rome"' in text
    assert text.count("/city") == 1
    assert '"n" is a required property' in text


def test_what_a_rule_says_is_said_whole() -> None:
    message = "only the capitals of the north may be written to from here, " * 4 + "and no others"
    rules = [compile_rule("north", 'args.city == "Oslo"', message), compile_rule("few", "args.n < 2", "too many")]
    own = case({"name": "send"}, rules=rules).own([SEND])
    text = refused([SEND], own)
    assert f"refused: {message}; rule 'few' could not be evaluated (missing): the call has no 'n'." in text


def test_a_rule_without_a_message_names_itself() -> None:
    own = case({"name": "send"}, rules=[compile_rule("north", "false")]).own([SEND])
    assert "rule 'north' does not allow this call" in refused([SEND], own)


def test_repeats_in_plain_words() -> None:
    own = case({"name": "send"}, repeat=RepeatPolicy(600)).own([SEND, SEND])
    assert "this answer makes the same call more than once" in refused([SEND, SEND], own)
    before = [Finding(Word.REPEAT, "send", 0, "refused_before")]
    assert "refused before, and nothing of it has changed" in refused([SEND], before)
    assert "the same call was made before" in refused([SEND], [Finding(Word.REPEAT, "send", 0, "repeated")])


def test_a_schema_that_cannot_be_used() -> None:
    own = case({"name": "send", "parameters": {"type": 7}}).own([SEND])
    assert "could not be checked: the tool's own schema is not usable" in refused([SEND], own, agree=0)


DIFFERING = {
    "arguments": ([SEND], [ToolCall("send", '{"city": "Rome"}')],
        'argument /city is "Paris", where the reference configuration has "Rome"'),
    "absent here": ([SEND], [ToolCall("send", '{"city": "Paris", "n": 1.50}')],
        "argument /n is absent, where the reference configuration has 1.50"),
    "absent there": ([ToolCall("send", '{"n": "1"}')], [ToolCall("send", "{}")],
        'argument /n is "1", where the reference configuration has none'),
    "unreadable": ([ToolCall("send", "{")], [SEND],
        'what it is called with is "{", where the reference configuration has "{\\"city\\": \\"Paris\\"}"'),
    "name": ([SEND], [ToolCall("post", "{}")], "on the same history, calls another tool"),
    "no call": ([SEND], [], "on the same history, makes no tool call here"),
    "missing": ([SEND], [SEND, ToolCall("post", "{}")], "on the same history, makes one more call"),
    "extra": ([SEND, ToolCall("post", "{}")], [SEND], "on the same history, does not make this call"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERING)
def test_what_differs_from_the_reference(name: str) -> None:
    ours, theirs, words = DIFFERING[name]
    text = refused(ours, opinions=[said(*judge_calls(ours, theirs, differing=Word.MISMATCH))])
    assert words in text
    assert f"The call of {'post' if name in {'missing', 'extra'} else 'send'} was refused" in text
    assert "wrong" not in text


@pytest.mark.parametrize(
    ("word", "words"),
    [
        (Word.NEAR_TIE, "the model was close to another choice here"),
        (Word.SAMPLED_CHOICE, "sampling chose what is not the model's first choice here"),
    ],
)
@pytest.mark.parametrize("kind", ["arguments", "name", "no call"])
def test_what_explains_a_difference_is_said_where_it_is_refused_all_the_same(word: Word, words: str, kind: str) -> None:
    ours, theirs, _ = DIFFERING[kind]
    assert words in refused(ours, opinions=[said(*judge_calls(ours, theirs, differing=word))])


@pytest.mark.parametrize("word", [Word.MATCH, Word.EQUIVALENT])
def test_even_the_same_call_may_be_refused(word: Word) -> None:
    text = refused([SEND], opinions=[said(Finding(word, "send", 0, reference=0))])
    assert "this tool's calls need more than a second opinion" in text


UNHEARD = {
    "timeout": "the reference did not answer in time",
    "refused": "the reference does not take this request",
    "no_quorum": "too few references agree",
    "unreachable": "the reference could not be asked (unreachable)",
    "server_error": "the reference could not be asked (server_error)",
    "garbage": "the reference could not be asked (garbage)",
    "circuit_open": "the reference could not be asked (circuit_open)",
    "cold": "the reference could not be asked (cold)",
    "internal_error": "the reference could not be asked (internal_error)",
    "tokenizer_differs": "the reference is not fit for this model (tokenizer_differs)",
    "context_too_short": "the reference is not fit for this model (context_too_short)",
    "multimodal": "this answer could not be compared (multimodal)",
    "no_token_ids": "this answer could not be compared (no_token_ids)",
    "no_shared_history": "this answer could not be compared (no_shared_history)",
    "a_word_of_tomorrow": "this answer could not be compared (a_word_of_tomorrow)",
    "": "this answer could not be compared.",
}


@pytest.mark.parametrize("reason", UNHEARD)
def test_why_there_is_no_second_opinion(reason: str) -> None:
    text = refused([SEND], opinions=[said(*unverified([SEND], reason))])
    assert f"no second opinion could be had: {UNHEARD[reason]}" in text


def test_nobody_to_ask() -> None:
    assert "no second opinion could be had: there is no reference to ask" in refused([SEND])
    silent = Opinion("s0", twin=False, findings=None)
    assert "no second opinion could be had: the reference did not answer in time" in refused([SEND], opinions=[silent])


@pytest.mark.parametrize("word", Word)
@pytest.mark.parametrize("reason", ["", "a_word_of_tomorrow"])
def test_a_reason_that_is_not_known_is_still_a_text(word: Word, reason: str) -> None:
    verdict = Verdict(word, Action.REFUSE, (("s0", Finding(word, "send", 0, reason)),), why=reason or word.value)
    assert "The call of send was refused: " in checked(refusal.text(verdict, ID))


def test_a_verdict_that_rests_on_nothing_is_still_a_text() -> None:
    text = checked(refusal.text(Verdict(Word.UNVERIFIED, Action.REFUSE), ID))
    assert "The call of a tool was refused: unverified." in text


def test_it_is_said_what_asked_for_the_refusal_not_what_is_worst() -> None:
    own = [Finding(Word.VIOLATION, "send", 0, "rule", detail="too many")]
    differs = said(*judge_calls([SEND], [], differing=Word.MISMATCH))
    text = refused([SEND], own, [differs], on={"violation": "release", "mismatch": "refuse"})
    assert "makes no tool call here" in text
    assert "too many" not in text


def test_all_calls_that_fell_for_one_word_are_named_with_their_reasons() -> None:
    calls = [SEND, ToolCall("post", "{"), ToolCall("ping", "{}")]
    own = [Finding(Word.INVALID, "send", 0, "unknown_tool"), Finding(Word.INVALID, "post", 1, "unclosed")]
    text = refused(calls, own)
    assert "The call of send, post was refused: this request offers no such tool; its arguments end before" in text
    assert "ping" not in text


def test_why_no_substitute_was_sent() -> None:
    differs = judge_calls([SEND], [ToolCall("send", '{"city": "Rome"}')], differing=Word.MISMATCH)
    opinion = said(*differs, calls=(ToolCall("send", '{"city": "Rome"}'),))
    verdict = decide(
        policy(on={"mismatch": "substitute"}), [SEND], [], [opinion], expired=True, wants_person=False,
        check_substitute=lambda _: [Finding(Word.INVALID, "send", 0, "schema")],
    )  # fmt: skip
    assert verdict is not None
    text = checked(refusal.text(verdict, ID))
    assert 'argument /city is "Paris"' in text
    assert "; what the reference calls instead is not allowed either." in text


def test_texts_about_persons_and_about_what_cannot_be_held() -> None:
    pending = checked(refusal.pending(["send", "send", "post"], "ap-1", ID))
    assert "The call of send, post needs a person's approval (ap-1), and nobody has decided yet." in pending
    assert "Once it is approved, the same call may be made again, unchanged." in pending
    crowded = checked(refusal.pending(["send"], "", ID))
    assert "too many calls wait for one already" in crowded
    assert "()" not in crowded
    denied = checked(refusal.denied(["send"], ID))
    assert "A person has denied the call of send." in denied
    assert "Do not repeat it unchanged." in denied
    unrecorded = checked(refusal.unrecorded(["send"], ID))
    assert "The call of send must be recorded before it goes out" in unrecorded
    assert "The same call may be made again later, unchanged." in unrecorded
    for text in (pending, crowded, denied, unrecorded):
        assert "Nothing was executed." in text
    assert "could not be checked for tool calls" in checked(refusal.unread(ID))
    assert "larger than can be checked" in checked(refusal.too_large(ID))


# -- bounded, whatever a model wrote


MONSTERS = {
    "a long name": ToolCall("n" * 1_000_000, "{}"),
    "no name": ToolCall("", "{}"),
    "a name of white space": ToolCall(" \t\n\u2003" * 1000, "{}"),
    "a name that steers": ToolCall("\x1b[2J\u202e\x00\ud800\nsend", "{}"),
    "long arguments": ToolCall("send", json.dumps({"city": "x" * 1_000_000})),
    "long keys": ToolCall("send", json.dumps({"k" * 1_000_000 + str(i): i for i in range(3)})),
    "many keys": ToolCall("send", json.dumps({f"k{i}": i for i in range(20_000)})),
    "half a pair": ToolCall("send", '{"city": "\\ud800", "\\udfff": 1}'),
    "raw half a pair": ToolCall("send", '{"city": "\ud800"}'),
    "control characters": ToolCall("send", '{"city": "\\u0000\\u001b[31m\\u202e\\r\\n"}'),
    "huge numbers": ToolCall("send", '{"a": 1e999999999999999999, "b": 1' + "0" * 100_000 + "}"),
    "not JSON": ToolCall("send", "\ud800\x00{" * 100_000),
    "deep": ToolCall("send", '{"a":' * 100 + "[]" + "}" * 100),
}


@pytest.mark.parametrize("name", MONSTERS)
@pytest.mark.timeout(20)
def test_a_refusal_is_short_and_clean_whatever_it_is_about(name: str) -> None:
    call = MONSTERS[name]
    texts = [
        refused([call], [Finding(Word.INVALID, call.name, 0, "unknown_tool")]),
        refused([call], opinions=[said(*unverified([call], "timeout"))]),
        checked(refusal.pending([call.name], "ap-1", ID)),
        checked(refusal.denied([call.name], ID)),
        checked(refusal.unrecorded([call.name], ID)),
    ]
    for theirs in (ToolCall(call.name, '{"city": "Rome"}'), SEND):
        both = [said(*judge_calls([call], [theirs], differing=Word.MISMATCH))]
        texts.append(refused([call], opinions=both))
        swapped = [said(*judge_calls([theirs], [call], differing=Word.MISMATCH))]
        texts.append(refused([theirs], opinions=swapped))
    for text in texts:
        for sent in forms(text):
            assert len(sent) < 6 * LIMIT
    if name in {"no name", "a name of white space"}:
        assert "The call of a tool without a name was refused" in texts[0]


def test_two_hundred_calls_that_all_differ() -> None:
    ours = [ToolCall(f"tool{i}", json.dumps({f"k{j}": "x" * 500 for j in range(20)})) for i in range(200)]
    theirs = [replace(call, arguments="{}") for call in ours]
    text = refused(ours, opinions=[said(*judge_calls(ours, theirs, differing=Word.MISMATCH))])
    assert "The call of tool0, tool1, tool2, tool3, tool4 and more was refused" in text
    assert text.count("where the reference configuration has") == 5


def test_many_calls_of_one_tool_name_it_once() -> None:
    calls = [ToolCall("send", str(i)) for i in range(200)]
    own = [Finding(Word.INVALID, "send", i, "not_an_object") for i in range(200)]
    assert "The call of send was refused: its arguments are no JSON object. " in refused(calls, own)
    assert "The call of send needs" in refusal.pending(["send"] * 200, "ap-1", ID)


def test_a_number_is_not_told_as_a_text() -> None:
    difference = Difference("/n", Side.BOTH, Decimal("1.10"), "1.1")
    verdict = Verdict(
        Word.MISMATCH, Action.REFUSE, (("s0", Finding(Word.MISMATCH, "send", 0, "arguments", (difference,))),),
        why="arguments",
    )  # fmt: skip
    text = refusal.text(verdict, ID)
    assert 'argument /n is 1.10, where the reference configuration has "1.1"' in text


# -- in each form


def events(raw: bytes) -> list[dict[str, Any]]:
    assert raw.endswith(b"\n\n")
    found = []
    for block in raw.removesuffix(b"\n\n").split(b"\n\n"):
        assert block.startswith(b"data: ")
        assert b"\n" not in block
        found.append(json.loads(block.removeprefix(b"data: ")))
    return found


def forms(text: str) -> list[bytes]:
    """Every form of a refusal, each valid."""
    stream = writing.message_events(FRAME, 0, text, begun=False, said="")
    error = writing.error_event(text)
    events(stream)
    events(error)
    status = refusal.as_status(text)
    body = status.body
    assert json.loads(body)["error"]["message"] == text
    whole = with_messages(b'{"choices":[{"index":0,"message":{}}]}', {0: (text, [])})
    assert json.loads(whole)["choices"][0]["message"]["content"] == text
    return [stream, error, body, whole]


def request(choice: Any = None) -> Request:
    tools = [{"type": "function", "function": {"name": "send"}}]
    return Request(Dialect.CHAT, {"tools": tools} | ({} if choice is None else {"tool_choice": choice}))


@pytest.mark.parametrize(
    ("choice", "form", "status"),
    [
        (None, "message", False),
        ("auto", "message", False),
        ("none", "message", False),
        ("required", "message", True),
        ({"type": "function", "function": {"name": "send"}}, "message", True),
        (None, "error", True),
        ("required", "error", True),
    ],
)
def test_a_demanded_call_is_refused_as_an_error(choice: Any, form: str, status: bool) -> None:  # noqa: FBT001
    assert refusal.needs_status(request(choice), form) is status


def test_an_error_of_its_own_is_one_that_nobody_repeats() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(refusal.as_status("[counterproof] no. (cp-1)").answer(send, "cp-1", b"block", "refused"))
    start, body = sent
    assert start["status"] == 422
    headers = dict(start["headers"])
    assert headers[b"x-counterproof-action"] == b"refused"
    assert json.loads(body["body"]) == {
        "error": {
            "message": "[counterproof] no. (cp-1)",
            "type": "tool_call_refused",
            "param": None,
            "code": "tool_call_refused",
        }
    }


def test_an_error_inside_a_stream() -> None:
    assert events(writing.error_event("[counterproof] no.")) == [
        {
            "error": {
                "message": "[counterproof] no.",
                "type": "tool_call_refused",
                "param": None,
                "code": "tool_call_refused",
            }
        }
    ]


def read(raw: bytes) -> Any:
    answer = answers.read(Dialect.CHAT, raw + b"data: [DONE]\n\n", stream=True)
    assert answer.problem is None
    return answer.choices


def test_a_message_in_the_place_of_a_call() -> None:
    first, last = events(writing.message_events(FRAME, 2, "no", begun=False, said=""))
    assert first == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 17,
        "model": "qwen",
        "choices": [
            {"index": 2, "delta": {"role": "assistant", "content": "no"}, "logprobs": None, "finish_reason": None}
        ],
    }
    assert last["choices"] == [{"index": 2, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert "tool_calls" not in json.dumps([first, last])
    assert "refusal" not in json.dumps([first, last])


@pytest.mark.parametrize(
    ("said_", "unsaid", "content"),
    [
        ("", "", "no"),
        ("I look.", "", "\n\nno"),
        ("I look.\n", "", "no"),
        ("", "I look.", "I look.\n\nno"),
        ("I ", "look.\n", "look.\nno"),
        ("I look.\n", " ", " \n\nno"),
    ],
)
def test_a_message_goes_on_after_what_was_said(said_: str, unsaid: str, content: str) -> None:
    first, last = events(writing.message_events(FRAME, 0, "no", begun=True, said=said_, unsaid=unsaid))
    assert first["choices"][0]["delta"] == {"content": content}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert refusal.after(said_ + unsaid, "no") == said_ + content


@pytest.mark.parametrize("unsaid", ["\ud800", "a \udfff", "\x00\x1b", "ä\U0001f680"])
def test_what_was_not_said_yet_may_be_any_text(unsaid: str) -> None:
    raw = writing.message_events(replace_frame(id="\ud800"), 0, "no", begun=True, said="", unsaid=unsaid)
    assert events(raw)[0]["choices"][0]["delta"]["content"] == f"{unsaid}\n\nno"
    whole = with_messages(b'{"choices":[{"index":0,"message":{}}]}', {0: (unsaid, [])})
    assert json.loads(whole)["choices"][0]["message"]["content"] == unsaid


def replace_frame(**fields: Any) -> Frame:
    return replace(FRAME, **fields)


def test_a_frame_may_hold_a_number_of_any_size() -> None:
    (only,) = events(writing.chunk(replace_frame(created=2**80), 0, {}, None))
    assert only["created"] == 2**80


def test_other_calls_in_the_place_of_a_call() -> None:
    calls = [ToolCall("send", '{"city": "Rome"}', "id-1"), ToolCall("ping")]
    raw = writing.call_events(FRAME, 1, calls, begun=False, unsaid="I look.")
    first, last = events(raw)
    delta = first["choices"][0]["delta"]
    assert (delta["role"], delta["content"]) == ("assistant", "I look.")
    assert [(call["index"], call["type"], call["function"]) for call in delta["tool_calls"]] == [
        (0, "function", {"name": "send", "arguments": '{"city": "Rome"}'}),
        (1, "function", {"name": "ping", "arguments": "{}"}),
    ]
    assert delta["tool_calls"][0]["id"] == "id-1"
    assert delta["tool_calls"][1]["id"].startswith("chatcmpl-tool-")
    assert last["choices"][0] == {"index": 1, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}
    assert [call.name for call in read(raw)[1].calls] == ["send", "ping"]
    again = events(writing.call_events(FRAME, 1, calls, begun=True))[0]["choices"][0]["delta"]
    assert again.keys() == {"tool_calls"}


def test_an_empty_chunk_says_nothing() -> None:
    assert writing.chunk(FRAME, 0, {}, None) == (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":17,"model":"qwen",'
        b'"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":null}]}\n\n'
    )
