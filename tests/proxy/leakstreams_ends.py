"""How streams end and in which order things come: finish reasons, cuts, errors, usage; and streams without a call."""

from typing import Any

from tests.proxy.leakstreams_shapes import USAGE, dumps, entry, mark
from tests.proxy.leakstreams_writing import Shelf, Writer

SHELF = Shelf()
leak = SHELF.add

NAMED = {"type": "function", "function": {"name": "look"}}


# -- finish


@leak("finish")
def whole_call_in_the_finish_chunk(w: Writer) -> None:
    """The call begins and ends with the choice."""
    w.open()
    w.say("Done: ")
    w.whole(w.call(1), finish="tool_calls")
    w.end()


@leak("finish")
def last_piece_in_the_finish_chunk(w: Writer) -> None:
    """The finish chunk still brings arguments."""
    one = w.call(3)
    w.open()
    w.begin(one)
    w.piece(one.pieces[0])
    w.piece(one.pieces[1])
    w.entries(entry(0, arguments=one.pieces[2]), finish="tool_calls")
    w.end()


@leak("finish", tool_choice=NAMED)
def named_choice_finishes_with_stop(w: Writer) -> None:
    """vllm#25054: id, name and first piece in one delta, and `stop` at the end."""
    one = w.call(2, name="look")
    w.open()
    w.expect(one.tool_call)
    w.entries(entry(0, one.id, one.name, one.pieces[0]))
    w.piece(one.pieces[1])
    w.close("stop")


@leak("finish")
def content_filter_after_a_call(w: Writer) -> None:
    """A call counts whatever the finish reason says."""
    w.open()
    w.hermes(w.call(2))
    w.close("content_filter")


@leak("finish")
def finish_reason_twice(w: Writer) -> None:
    """A second finish chunk after the first."""
    w.open()
    w.hermes(w.call(2))
    w.finish("tool_calls")
    w.close("stop")


# -- cut off


def _cut_off(w: Writer, call: dict[str, Any]) -> None:
    """The beginning of an event, up to the middle of a call field."""
    begun = w.chunk(b'{"index":0,"delta":{"tool_calls":').removesuffix(b"]}")
    w.block(b"data: " + begun + mark(dumps([call])[:-6]))


@leak("cut off")
def no_finish(w: Writer) -> None:
    """vllm#52852: `[DONE]`, but no finish reason."""
    w.open()
    w.hermes(w.call(2))
    w.end()


@leak("cut off")
def no_done(w: Writer) -> None:
    """TensorRT-LLM#18289."""
    w.open()
    w.hermes(w.call(2))
    w.finish()
    w.usage()


@leak("cut off")
def neither_finish_nor_done(w: Writer) -> None:
    """The stream ends in mid-call."""
    w.open()
    w.say("Now ")
    w.hermes(w.call([f'{{"{w.marker()}": "', w.marker()]))


@leak("cut off")
def cut_inside_a_call_event(w: Writer) -> None:
    """The last event has neither the end of its JSON nor its blank line."""
    w.open()
    w.hermes(w.call([f'{{"{w.marker()}": "']))
    _cut_off(w, entry(0, arguments=f"{w.marker()} and on"))


@leak("cut off")
def cut_inside_the_first_event_of_a_call(w: Writer) -> None:
    """Nothing was held before."""
    w.open()
    w.say("Now ")
    _cut_off(w, entry(0, w.marker(), w.marker(), "{"))


@leak("cut off")
def a_call_without_its_blank_line(w: Writer) -> None:
    """The last line is whole, no blank line follows: no event, but many clients read line by line."""
    w.open()
    w.say("Now ")
    w.spoil()
    call = entry(0, w.marker(), w.marker(), f'{{"{w.marker()}": 1}}')
    w.block(b"data: " + w.chunk(w.calls_part([call]).plain) + b"\n")


@leak("cut off")
def done_without_its_blank_line(w: Writer) -> None:
    """`[DONE]` was not sent, as the format has it."""
    w.open()
    w.hermes(w.call(2))
    w.finish()
    w.usage()
    w.block(b"data: [DONE]\n")


# -- errors


@leak("error")
def error_before_any_call(w: Writer) -> None:
    """vllm#40986: an error inside a 200 stream."""
    w.open()
    w.say("Let me")
    w.error()
    w.done()


@leak("error")
def error_in_mid_call(w: Writer) -> None:
    """What is held is dropped, the error passes on."""
    w.open()
    w.say("Let me")
    w.hermes(w.call(2))
    w.error()
    w.done()


@leak("error")
def error_event_with_a_name_in_mid_call(w: Writer) -> None:
    """`event: error`, and then nothing more."""
    w.open()
    w.hermes(w.call(2))
    w.error(event=b"event: error\n")


@leak("error")
def error_after_the_finish(w: Writer) -> None:
    """The call is complete when the error comes."""
    w.open()
    w.hermes(w.call(2))
    w.finish()
    w.error()
    w.done()


@leak("error")
def error_and_call_in_one_event(w: Writer) -> None:
    """Some readers raise, others take the call."""
    w.open()
    w.say("Let me")
    w.spoil()
    call = w.calls_part([entry(0, w.marker(), w.marker(), "{}")])
    w.send(call, more=b',"error":{"message":"odd","code":500}')
    w.close()


# -- order


@leak("order")
def call_after_the_finish(w: Writer) -> None:
    """The choice has ended, and then makes a call."""
    w.open()
    w.say("All done.")
    w.finish("stop")
    w.spoil()
    w.whole(w.call(1))
    w.end()


@leak("order")
def call_after_the_usage_chunk(w: Writer) -> None:
    """Everything but `[DONE]` has been said."""
    w.open()
    w.say("All done.")
    w.finish("stop")
    w.usage()
    w.spoil()
    w.whole(w.call(1))
    w.done()


@leak("order")
def call_after_done(w: Writer) -> None:
    """Most clients stop at `[DONE]`, some do not."""
    w.open()
    w.say("All done.")
    w.close("stop")
    w.spoil()
    w.whole(w.call(1))


@leak("order")
def call_after_done_with_its_own_done(w: Writer) -> None:
    """A second answer after the first."""
    w.open()
    w.say("All done.")
    w.close("stop")
    w.spoil()
    w.open()
    w.hermes(w.call(2))
    w.close()


@leak("order")
def call_after_a_finished_call(w: Writer) -> None:
    """The first call was complete, and may have been decided."""
    w.open()
    w.hermes(w.call(1))
    w.finish()
    w.spoil()
    w.hermes(w.call(1), first=1)
    w.end()


@leak("order")
def text_after_done(w: Writer) -> None:
    """No call in it."""
    w.open()
    w.say("All done.")
    w.close("stop")
    w.say(" Really.")


@leak("order")
def usage_in_mid_call(w: Writer) -> None:
    """Usage comes before the call has ended."""
    one = w.call(2)
    w.open()
    w.begin(one)
    w.piece(one.pieces[0])
    w.usage()
    w.piece(one.pieces[1])
    w.finish()
    w.done()


# -- usage


@leak("usage", counting=True)
def usage_in_every_chunk(w: Writer) -> None:
    """`continuous_usage_stats`."""
    w.open()
    w.say("Let me ")
    w.hermes(w.call(2))
    w.close()


@leak("usage")
def usage_null_in_every_chunk(w: Writer) -> None:
    """As OpenAI sends it."""
    null = b',"usage":null'
    one = w.call(2)
    w.open()
    w.send(w.text_part("Let me "), more=null)
    w.expect(one.tool_call)
    w.send(w.calls_part([entry(0, one.id, one.name, "")]), more=null)
    for text in one.pieces:
        w.send(w.calls_part([entry(0, arguments=text)]), more=null)
    w.send(w.finish_part(), more=null)
    w.end()


@leak("usage")
def usage_in_the_finish_chunk(w: Writer) -> None:
    """No usage chunk of its own."""
    w.open()
    w.hermes(w.call(2))
    w.send(w.finish_part(), more=USAGE)
    w.done()


@leak("usage")
def call_and_finish_in_the_usage_chunk(w: Writer) -> None:
    """Everything in one event, so that usage cannot go out as it was sent."""
    one = w.call(1)
    w.open()
    w.expect(one.tool_call)
    w.send(w.calls_part([entry(0, one.id, one.name, one.arguments)], finish="tool_calls"), more=USAGE)
    w.done()


@leak("usage")
def call_in_the_usage_chunk_after_the_finish(w: Writer) -> None:
    """The choice has ended, and the usage chunk has a choice."""
    one = w.call(1)
    w.open()
    w.say("Done.")
    w.finish("stop")
    w.spoil()
    w.expect(one.tool_call)
    w.send(w.calls_part([entry(0, one.id, one.name, one.arguments)]), more=USAGE)
    w.done()
