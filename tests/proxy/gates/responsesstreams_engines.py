"""Streams as engines send them: calls among text, in any order of events, in any framing, to any end."""

from tests.proxy.gates.responsesstreams_writing import Shelf, Writer, dumps
from validators import ToolCall

SHELF = Shelf()
leak = SHELF.add


# --- as engines send them ---------------------------------------------------------------------------------------------


@leak("no call")
def text_alone(w: Writer) -> None:
    w.open()
    w.think("Hm.")
    w.say("A tool_call, ", "\\u0041 function_call's arguments: ", '{"type":"function_call"}')
    w.close()


@leak("no call")
def text_that_is_cut_by_its_limit(w: Writer) -> None:
    w.open()
    w.say("And so")
    w.close("incomplete", incomplete_details={"reason": "max_output_tokens"})


@leak("one call")
def a_call(w: Writer) -> None:
    w.open()
    w.event("response.in_progress", response=w.response())
    w.call(3)
    w.close()


@leak("one call")
def a_call_without_arguments(w: Writer) -> None:
    w.open()
    w.held()
    item = w.new_call() | {"arguments": ""}
    del w.secrets[:3]
    w.calls = [w.tool_call(item)]
    place = w.begin(item)
    w.whole(item, place)
    w.finish(place)
    w.close()


@leak("one call")
def a_call_in_one_delta(w: Writer) -> None:
    w.open()
    w.call(1)
    w.close()


@leak("one call")
def a_custom_tool_call(w: Writer) -> None:
    w.open()
    w.call(kind="custom_tool_call")
    w.close()


@leak("one call")
def a_call_in_a_namespace(w: Writer) -> None:
    w.open()
    item = w.call(namespace="net")
    w.calls = [ToolCall(f"net__{item['name']}", item["arguments"], item["call_id"])]
    w.close()


@leak("text and calls")
def text_then_a_call(w: Writer) -> None:
    w.open()
    w.say("Let me ", "see.\n")
    w.call()
    w.close()


@leak("text and calls")
def text_between_and_after_calls(w: Writer) -> None:
    w.open()
    w.say("One: ")
    w.call()
    w.say("Two: ")
    w.call(1)
    w.say("Done.")
    w.close()


@leak("text and calls")
def a_call_then_text(w: Writer) -> None:
    w.open()
    w.call()
    w.say("Done.")
    w.close()


@leak("text and calls")
def reasoning_text_and_a_call(w: Writer) -> None:
    w.open()
    w.think("I should ", "look.")
    w.say("Let me see.")
    w.call()
    w.close()


@leak("parallel calls")
def two_calls(w: Writer) -> None:
    w.open()
    w.call()
    w.call(1)
    w.close()


@leak("parallel calls")
def calls_whose_deltas_are_mixed(w: Writer) -> None:
    w.open()
    w.held()
    one, two = w.new_call(), w.new_call()
    w.calls = [w.tool_call(one), w.tool_call(two)]
    first, second = w.begin(one), w.begin(two)
    for start in range(0, 60, 20):
        for item, place in ((one, first), (two, second)):
            w.piece(item, item["arguments"][start : start + 20], place)
    for item, place in ((two, second), (one, first)):
        w.whole(item, place)
        w.finish(place)
    w.close()


# --- in other orders --------------------------------------------------------------------------------------------------


@leak("other orders")
def deltas_before_the_item(w: Writer) -> None:
    w.open()
    w.held()
    item = w.new_call()
    w.calls = [w.tool_call(item)]
    w.piece(item, item["arguments"][:10], 0)
    w.begin(item)
    w.piece(item, item["arguments"][10:], 0)
    w.finish(0)
    w.close()


@leak("other orders")
def arguments_at_their_end_only(w: Writer) -> None:
    w.open()
    w.call(deltas=False)
    w.close()


@leak("other orders")
def arguments_in_the_item_only(w: Writer) -> None:
    w.open()
    w.call(deltas=False, done=False)
    w.close()


@leak("other orders")
def an_item_that_was_never_begun(w: Writer) -> None:
    w.open()
    w.call(added=False)
    w.close()


@leak("other orders")
def an_item_without_its_end(w: Writer) -> None:
    w.open()
    w.call(done=False, ended=False)
    w.close()


@leak("other orders")
def arguments_in_the_final_response_only(w: Writer) -> None:
    w.open()
    w.call(deltas=False, done=False, ended=False)
    w.close()


@leak("other orders")
def a_call_in_the_final_response_only(w: Writer) -> None:
    w.open()
    w.say("See: ")
    w.call(added=False, deltas=False, done=False, ended=False)
    w.close()


@leak("other orders")
def a_final_response_without_output(w: Writer) -> None:
    w.open()
    w.call()
    w.close(output=[])


@leak("other orders")
def deltas_without_a_place(w: Writer) -> None:
    w.open()
    w.say("See: ")
    w.held()
    item = w.new_call()
    w.calls = [w.tool_call(item)]
    w.begin(item)
    w.event("response.function_call_arguments.delta", delta=item["arguments"])
    w.event("response.function_call_arguments.done", arguments=item["arguments"])
    w.finish(1)
    w.close()


@leak("other orders")
def a_stream_without_numbers(w: Writer) -> None:
    w.payload(dumps({"type": "response.created", "response": w.response()}))
    w.held()
    item = w.new_call()
    w.calls = [w.tool_call(item)]
    w.payload(dumps({"type": "response.output_item.done", "output_index": 0, "item": item}))
    w.items.append(item)
    w.close()
    w.modelled = False


# --- what is open when a call begins ----------------------------------------------------------------------------------


@leak("open items")
def a_message_that_is_open(w: Writer) -> None:
    w.open()
    w.say("Let me ", "see", close=False)
    w.call()
    w.close()


@leak("open items")
def a_message_that_goes_on_after_the_call(w: Writer) -> None:
    w.open()
    place = w.say("Let me ", close=False)
    w.call()
    w.event(
        "response.output_text.delta", item_id="msg_0", output_index=place, content_index=0, delta="see", logprobs=[]
    )
    w.items[0]["content"][0]["text"] = "Let me see"
    w.finish(place)
    w.close()


@leak("open items")
def reasoning_that_is_open(w: Writer) -> None:
    w.open()
    item = {"id": "rs_0", "type": "reasoning", "summary": []}
    w.begin(item)
    w.event("response.reasoning_summary_part.added", item_id="rs_0", output_index=0, summary_index=0,
            part={"type": "summary_text", "text": ""})  # fmt: skip
    w.event("response.reasoning_summary_text.delta", item_id="rs_0", output_index=0, summary_index=0, delta="Hm")
    w.event("response.reasoning_text.delta", item_id="rs_0", output_index=0, content_index=0, delta="Well")
    w.call()
    w.close()


# --- ends -------------------------------------------------------------------------------------------------------------


@leak("ends")
def a_call_after_the_end(w: Writer) -> None:
    w.open()
    w.say("That is all.")
    w.close()
    w.spoil()
    w.call()
    w.event("response.completed", response=w.response(output=[w.new_call()]))


@leak("ends")
def an_unknown_event_after_the_end(w: Writer) -> None:
    w.open()
    w.say("That is all.")
    w.close()
    w.spoil()
    w.event("response.more", item=w.new_call())
    w.raw(b"data: [DONE]\n\n")


@leak("ends")
def a_call_that_is_cut_by_the_limit(w: Writer) -> None:
    w.open()
    w.held()
    item = w.new_call()
    item["arguments"] = item["arguments"][:-2]
    w.calls = [w.tool_call(item)]
    w.piece(item, item["arguments"], w.begin(item))
    w.finish(0)
    w.close("incomplete", incomplete_details={"reason": "max_output_tokens"})


@leak("ends")
def a_stream_that_ends_in_a_call(w: Writer) -> None:
    w.open()
    w.say("See.")
    w.call(done=False, ended=False)


@leak("ends")
def a_stream_that_ends_in_an_event(w: Writer) -> None:
    w.open()
    w.say("See.")
    w.call()
    w.spoil()
    w.raw(b'event: response.completed\ndata: {"response":{"output":%b' % dumps(w.items)[:-1])


@leak("ends")
def an_event_without_a_blank_line(w: Writer) -> None:
    w.open()
    w.call()
    w.close()
    w.out[-1] = w.out[-1][:-2]


@leak("ends")
def no_end_but_done(w: Writer) -> None:
    w.open()
    w.say("See.")
    w.call()
    w.raw(b"data: [DONE]\n\n")


@leak("errors")
def an_error_without_a_call(w: Writer) -> None:
    w.open()
    w.say("See.", close=False)
    w.event("error", code="server_error", message="a function_call failed", param=None)
    w.error = True


@leak("errors")
def an_error_in_a_call(w: Writer) -> None:
    w.open()
    w.say("See.")
    w.call(done=False, ended=False)
    w.event("error", code="server_error", message="no more memory", param=None)
    w.error = True


@leak("errors")
def a_response_that_fails_in_a_call(w: Writer) -> None:
    w.open()
    w.say("See.")
    w.call()
    raw = {"message": w.marker(), "tokens": []}
    failed = w.response("failed", output=w.items, error={"code": "x", "message": "no"}, output_messages=[raw])
    w.event("response.failed", response=failed)
    w.error = w.complete = True


@leak("errors")
def a_response_that_fails_and_tells_of_a_call(w: Writer) -> None:
    w.open()
    w.say("See.")
    w.call(added=False, deltas=False, done=False, ended=False)
    w.event("response.failed", response=w.response("failed", output=w.items, error={"code": "x", "message": "no"}))
    w.error = w.complete = True


@leak("errors")
def an_error_as_chat_has_it(w: Writer) -> None:
    w.open()
    w.call(done=False, ended=False)
    w.payload(b'{"error":{"message":"no","type":"InternalServerError","param":null,"code":500}}')
    w.raw(b"data: [DONE]\n\n")
    w.error = True


# --- long -------------------------------------------------------------------------------------------------------------


@leak("long")
def arguments_in_800_pieces(w: Writer) -> None:
    w.open()
    w.say("See.")
    w.call(800)
    w.close()


@leak("long")
def arguments_of_100_kb(w: Writer) -> None:
    w.open()
    w.say("See.")
    w.held()
    item = w.new_call(1)
    item["arguments"] = item["arguments"].replace(": ", ": " + 100_000 * " ")
    w.calls = [w.tool_call(item)]
    place = w.begin(item)
    for start in range(0, len(item["arguments"]), 5000):
        w.piece(item, item["arguments"][start : start + 5000], place)
    w.whole(item, place)
    w.finish(place)
    w.close()


@leak("long")
def forty_calls(w: Writer) -> None:
    w.open()
    for _ in range(40):
        w.call(3)
    w.close()


# --- framing ----------------------------------------------------------------------------------------------------------


def _usual(w: Writer) -> None:
    w.open()
    w.say("Schön: “é” 🙂")
    w.call()
    w.close()


SHELF.build("lines that end in crlf", "framing", _usual, line_end=b"\r\n")
SHELF.build("lines that end in cr", "framing", _usual, line_end=b"\r")
SHELF.build("no event lines", "framing", _usual, named=False)


@leak("framing")
def comments_and_pings(w: Writer) -> None:
    w.raw(b": hello\n\n")
    w.open()
    w.raw(b": ping\n\n")
    w.event("keepalive")
    w.say("See.")
    w.modelled = False
    w.held()
    w.raw(b": ping\n\n")
    w.call()
    w.raw(b":\n\n")
    w.close()
    w.raw(b": bye\n\n")


@leak("framing")
def a_byte_order_mark_and_no_space(w: Writer) -> None:
    w.raw(b'\xef\xbb\xbfdata:{"type":"response.created","sequence_number":0,"response":%b}\n\n' % dumps(w.response()))
    w.number = 1
    w.call()
    w.close()


@leak("framing")
def a_done_at_the_end(w: Writer) -> None:
    _usual(w)
    w.raw(b"data: [DONE]\n\n")
