"""How streams end, what text is in them, and streams without a call."""

from tests.proxy.gates.messagesstreams_writing import Shelf, Writer, dumps

SHELF = Shelf()
leak = SHELF.add


# --- ends -------------------------------------------------------------------------------------------------------------


@leak("cut off")
def no_end(w: Writer) -> None:
    """The stream ends in mid-call."""
    w.open()
    w.say("Now ")
    one = w.spoken([f'{{"{w.marker()}": "', w.marker()])
    w.begin(one)
    for text in one.pieces:
        w.piece(text)
    w.calls.append(one.tool_call)


@leak("cut off")
def no_stop_reason(w: Writer) -> None:
    """Only the last event."""
    w.open()
    w.call(w.spoken(1))
    w.event("message_stop")


@leak("cut off")
def cut_inside_a_piece(w: Writer) -> None:
    """The last event has neither the end of its JSON nor its blank line."""
    one = w.spoken(2)
    w.open()
    w.begin(one)
    w.piece(one.pieces[0])
    w.spoil()
    w.block(
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"partial_json":"'
        + one.pieces[1].encode()[:6]
    )


@leak("cut off")
def cut_inside_the_first_event_of_a_call(w: Writer) -> None:
    """Nothing was held before."""
    one = w.spoken(1)
    w.open()
    w.say("Now ")
    w.spoil()
    start = dumps({"type": "content_block_start", "content_block": one.block, "index": 1})
    w.block(b"event: content_block_start\ndata: " + start[:-30])


@leak("cut off")
def a_call_without_its_blank_line(w: Writer) -> None:
    """No event by the format, but some clients read line by line."""
    w.open()
    w.say("Now ")
    w.spoil()
    start = dumps({"type": "content_block_start", "content_block": w.spoken([]).block, "index": 1})
    w.block(b"event: content_block_start\ndata: " + start + b"\n")


@leak("error")
def error_before_any_call(w: Writer) -> None:
    """Nothing is held."""
    w.open()
    w.say("Let me")
    w.error()


@leak("error")
def error_in_mid_call(w: Writer) -> None:
    """What is held is dropped, the error passes on."""
    one = w.spoken(2)
    w.open()
    w.say("Let me")
    w.begin(one)
    w.piece(one.pieces[0])
    w.error()


@leak("error")
def error_of_another_dialect(w: Writer) -> None:
    """As vLLM's other routes have it."""
    w.open()
    w.call(w.spoken(1))
    w.payload(b'{"error":{"message":"boom","type":"InternalServerError","code":500}}')
    w.failed = True


@leak("error", over=True)
def a_call_after_an_error(w: Writer) -> None:
    """Most clients have raised by then."""
    w.open()
    w.say("Let me")
    w.event("error", error={"type": "overloaded_error", "message": "boom"})
    w.spoil()
    w.call(w.spoken(1))
    w.close()


# --- text -------------------------------------------------------------------------------------------------------------


@leak("text in pieces")
def characters_at_piece_borders(w: Writer) -> None:
    """Arguments and text beyond ASCII, escapes in halves."""
    w.open()
    w.say("Żółć ", "👩‍💻 ", "\u2028\u0085 ok ")
    w.call(w.spoken([f'{{"é": "👩{w.marker()}', "\u200d💻\\", "n\\ud83d", "\\udc69", "漢 e", '\u0301"}']))
    w.close()


@leak("text in pieces")
def half_a_pair_of_the_wire_in_each_event(w: Writer) -> None:
    """Half an emoji each, as JSON escapes of the wire: strict readers read no JSON."""
    one = w.spoken([f'{{"{w.marker()}": "'])
    w.open()
    w.begin(one)
    w.piece(one.pieces[0])
    w.spoil()
    for half in (rb"\ud83d", rb"\udc69"):
        w.payload(
            b'{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"%b"}}' % half,
            "content_block_delta",
        )
    w.close()


@leak("long")
def arguments_of_half_a_megabyte(w: Writer) -> None:
    """Many pieces, and one that is long."""
    w.open()
    w.say("See: ")
    w.call(w.spoken(["{" + f'"{w.marker()}": "', *["abcdefgh" * 100] * 100, "x" * 400_000 + w.marker(), '"}']))
    w.close()


@leak("long")
def text_of_many_pieces(w: Writer) -> None:
    """Two hundred, and a call."""
    w.open()
    w.say(*[f"word {i} " for i in range(200)])
    w.call(w.spoken(1))
    w.close()


# --- no call ----------------------------------------------------------------------------------------------------------


@leak("no call")
def text_only(w: Writer) -> None:
    """Nothing is held."""
    w.open()
    w.think("Hm")
    w.say("Hello ", "there.")
    w.close("end_turn")


@leak("no call")
def no_content(w: Writer) -> None:
    """As vLLM sends it where the model says nothing."""
    w.open()
    w.close("end_turn")


@leak("no call")
def text_that_quotes_a_call(w: Writer) -> None:
    """It is no call."""
    w.open()
    w.say('The event {"type": "tool\u005fresult", "name": "x", "input": {}} and ', '"\\u0041"')
    w.close("end_turn")


@leak("no call")
def unknown_events_and_fields(w: Writer) -> None:
    """What nobody knows of is no call, either."""
    w.open(service_tier="standard")
    w.event("odd", a={"b": [1, {"c": "input"}]})
    w.say("Hello.")
    w.delta({"type": "citations_delta", "citation": {"type": "char_location", "cited_text": "x"}}, 0)
    w.event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1, "server_tools": {"web": 0}})
    w.event("message_stop", **{"amazon-bedrock-invocationMetrics": {"inputTokenCount": 1}})


@leak("no call")
def done_at_the_end(w: Writer) -> None:
    """Some servers add what ends other streams, and empty events."""
    w.open()
    w.block(b"data:\n\n")
    w.say("Hello.")
    w.close("end_turn")
    w.block(b"data: [DONE]\n\n")
