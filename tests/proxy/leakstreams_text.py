"""What is said beside calls: text before, between and after them, reasoning; and streams without a call."""

from tests.proxy.leakstreams_shapes import dumps, entry, mark
from tests.proxy.leakstreams_writing import Shelf, Writer

SHELF = Shelf()
leak = SHELF.add


# -- text and calls


@leak("text and call")
def text_then_call(w: Writer) -> None:
    """Text goes on until the call begins."""
    w.open()
    w.say("Let me ", "look at ", "the switch.")
    w.hermes(w.call(2))
    w.close()


@leak("text and call")
def text_then_call_then_text(w: Writer) -> None:
    """What is said after a call is held with it."""
    w.open()
    w.say("First ", "this.")
    w.hermes(w.call(2))
    w.say(" And ", "then.")
    w.close()


@leak("text and call")
def text_between_two_calls(w: Writer) -> None:
    """Both calls stand and fall together."""
    w.open()
    w.hermes(w.call(1))
    w.say(" and also ")
    w.hermes(w.call(1), first=1)
    w.close()


@leak("text and call")
def text_and_call_in_the_same_delta(w: Writer) -> None:
    """One delta says the text and makes the call."""
    w.open()
    w.whole(w.call(1), content="I will do it.")
    w.close()


@leak("text and call")
def text_and_then_text_with_a_call(w: Writer) -> None:
    """The same after a text of its own; each later piece carries content, too."""
    one = w.call(2)
    w.open()
    w.say("I will ")
    w.expect(one.tool_call)
    w.entries(entry(0, one.id, one.name), content="do it.")
    for text in one.pieces:
        w.entries(entry(0, arguments=text), content="")
    w.close()


@leak("text and call")
def empty_content_and_line_breaks_before_a_call(w: Writer) -> None:
    """Models like to end their text with line breaks."""
    w.open()
    w.say("", "\n", "\n\n")
    w.hermes(w.call(2))
    w.close()


# -- reasoning


@leak("reasoning")
def reasoning_then_call(w: Writer) -> None:
    """Reasoning is no call, even if it talks of one."""
    w.open()
    w.think("I need ", "a tool call: ", '{"name": "look"}')
    w.hermes(w.call(2))
    w.close()


@leak("reasoning")
def reasoning_content_then_text_then_call(w: Writer) -> None:
    """The other name of the field."""
    w.open()
    w.think("Hm. ", "Yes.", key="reasoning_content")
    w.say("So: ")
    w.hermes(w.call(2))
    w.close()


@leak("reasoning")
def reasoning_and_call_in_the_same_delta(w: Writer) -> None:
    """The last thought stands beside a whole call."""
    one = w.call(1)
    w.open()
    w.think("Let me see. ")
    w.expect(one.tool_call)
    call = mark([entry(0, one.id, one.name, one.arguments)])
    w.delta(b'{"reasoning":%b,"tool_calls":%b}' % (dumps("Now."), call))
    w.close()


# -- no call


@leak("no call")
def tool_calls_without_any_call(w: Writer) -> None:
    """Under `required` with stop strings this occurs."""
    w.open()
    w.say("Well.")
    w.close("tool_calls")


@leak("no call")
def text_only(w: Writer) -> None:
    """Nothing to hold."""
    w.open()
    w.say("It ", "is ", "up.")
    w.close("stop")


@leak("no call")
def refusal_of_the_primary(w: Writer) -> None:
    """The model's own refusal."""
    w.open()
    for text in ("I can not ", "do that."):
        w.delta(dumps({"refusal": text}))
    w.close("stop")


@leak("no call")
def content_filter(w: Writer) -> None:
    """The primary's own filter."""
    w.open()
    w.say("It is ")
    w.close("content_filter")


@leak("no call")
def empty_call_fields(w: Writer) -> None:
    """Call fields that are there, and hold nothing."""
    w.open()
    for empty in (b"null", b"[]"):
        w.send(w.part(b'{"content":"It ","tool_calls":%b,"function_call":null}' % empty, text="It "))
    w.close("stop")


@leak("no call")
def call_markup_as_text(w: Writer) -> None:
    """A parser that did not see the call: what it left in the content is visible text, judged as a leak of markup."""
    w.tools.append("look")
    w.open()
    w.say("<tool_call>\n", '{"name": "look", ', '"arguments": {"at": 1}}', "\n</tool_call>")
    w.close("stop")


@leak("no call")
def text_that_quotes_the_wire(w: Writer) -> None:
    """Text about tool calls, with the very JSON of one in it."""
    w.open()
    w.say('A delta holds "tool_calls":[{"index":0,', '"function":{"name":"look"}}] or "function_call":{}.')
    w.say("\u007fdata: [DONE]\n\n", 'data: {"choices":[]}\n\n')
    w.close("stop")


@leak("no call")
def keys_that_are_nearly_those_of_calls(w: Writer) -> None:
    """Other keys to every reader, whatever it takes for the same."""
    w.open()
    for key in (b"tool_calls ", b" tool_calls", b"tool_call", b"tool-calls", b"function_calls", b"tool_calls\\u0000"):
        delta = b'{"content":"x","%b":[{"index":0,"function":{"name":"look"}}]}' % key
        w.send(w.part(delta, text="x"))
    w.close("stop")


@leak("no call")
def role_chunk_only(w: Writer) -> None:
    """An empty answer."""
    w.open()
    w.close("stop")
