"""How calls are cut into events, in which order and under which indices they come."""

from collections.abc import Callable
from typing import Any

from tests.proxy.gates.messagesstreams_writing import Shelf, Writer, dumps

SHELF = Shelf()
leak = SHELF.add


# --- calls ------------------------------------------------------------------------------------------------------------


@leak("one call")
def one_call(w: Writer) -> None:
    """As vLLM sends it."""
    w.open()
    w.call(w.spoken(3))
    w.close()


@leak("one call")
def text_and_a_call(w: Writer) -> None:
    """Text first."""
    w.open()
    w.say("Let me ", "see.\n")
    w.call(w.spoken(2))
    w.close()


@leak("one call")
def a_call_without_arguments(w: Writer) -> None:
    """vLLM sends no delta."""
    w.open()
    w.call(w.spoken([]))
    w.close()


@leak("one call")
def a_stop_reason_of_another_kind(w: Writer) -> None:
    """A call counts whatever the stop reason says."""
    w.open()
    w.call(w.spoken(1))
    w.close("end_turn")


@leak("one call")
def aborted(w: Writer) -> None:
    """vLLM's abort: no stop reason."""
    w.open()
    w.call(w.spoken(1))
    w.close(None)


@leak("parallel calls")
def three_calls(w: Writer) -> None:
    """One after the other."""
    w.open()
    w.say("So: ")
    w.call(w.spoken(2), w.spoken([]), w.spoken(1))
    w.close()


@leak("parallel calls")
def calls_whose_pieces_alternate(w: Writer) -> None:
    """Both blocks are open, and the index tells them apart."""
    first, second = w.spoken(2), w.spoken(2)
    w.open()
    w.begin(first)
    w.index = 1
    w.begin(second)
    for place in range(2):
        w.piece(first.pieces[place], 0)
        w.piece(second.pieces[place], 1)
    w.event("content_block_stop", index=0)
    w.event("content_block_stop", index=1)
    w.calls += [first.tool_call, second.tool_call]
    w.close()


@leak("text around calls")
def text_between_and_after(w: Writer) -> None:
    """What is said after a call is held with it."""
    w.open()
    w.say("Let me see.")
    w.call(w.spoken(1))
    w.say("And now")
    w.call(w.spoken(1))
    w.say("done")
    w.close()


@leak("text around calls")
def two_texts_before(w: Writer) -> None:
    """Two blocks of text."""
    w.open()
    w.say("One ")
    w.say("two\n")
    w.call(w.spoken(1))
    w.close()


@leak("text around calls")
def text_whose_block_stays_open(w: Writer) -> None:
    """The call begins before the text's block has ended."""
    w.open()
    w.event("content_block_start", content_block={"type": "text", "text": "Well, "}, index=0)
    w.delta({"type": "text_delta", "text": "so"})
    w.text = "Well, so"
    w.index = 1
    w.call(w.spoken(2))
    w.event("content_block_stop", index=0)
    w.close()


@leak("reasoning")
def reasoning_text_and_a_call(w: Writer) -> None:
    """As vLLM sends it."""
    w.open()
    w.think("The user ", "wants it")
    w.say("So: ")
    w.call(w.spoken(2))
    w.close()


@leak("reasoning")
def reasoning_between_calls(w: Writer) -> None:
    """A block of it that nobody may read, too."""
    w.open()
    w.event("content_block_start", content_block={"type": "redacted_thinking", "data": "AAAA"}, index=0)
    w.end()
    w.call(w.spoken(1))
    w.think("Hm")
    w.call(w.spoken(1))
    w.close()


@leak("whole call")
def whole_input_at_the_start(w: Writer) -> None:
    """The first event of the call has all of it, and no delta follows."""
    one = w.spoken([f'{{"{w.marker()}": 123456789012345678901234567890}}'])
    w.open()
    w.hold()
    block = dumps(one.block).replace(b'"input":{}', b'"input":' + one.pieces[0].encode())
    w.payload(b'{"type":"content_block_start","content_block":%b,"index":0}' % block, "content_block_start")
    w.end()
    w.calls.append(one.tool_call)
    w.close()


@leak("whole call")
def input_at_the_start_and_in_deltas(w: Writer) -> None:
    """Some clients take the one, some the other, some both."""
    one = w.spoken(1)
    w.open()
    w.spoil()
    w.event("content_block_start", content_block=one.block | {"input": {w.marker(): 1}}, index=0)
    w.piece(one.pieces[0])
    w.end()
    w.close()


@leak("whole call")
def calls_in_the_message_start(w: Writer) -> None:
    """Some clients begin with the content that the message begins with."""
    w.spoil()
    w.open(content=[w.spoken(1).block])
    w.close()


# --- order and indices ------------------------------------------------------------------------------------------------


@leak("order")
def a_piece_before_its_call(w: Writer) -> None:
    """The block has not begun."""
    one = w.spoken(2)
    w.open()
    w.spoil()
    w.piece(one.pieces[0])
    w.begin(one)
    w.piece(one.pieces[1])
    w.end()
    w.calls.append(one.tool_call)
    w.close()


@leak("order")
def a_piece_after_its_block_has_ended(w: Writer) -> None:
    """Some clients have made the call by then."""
    one = w.spoken(2)
    w.open()
    w.begin(one)
    w.piece(one.pieces[0])
    w.end()
    w.spoil()
    w.piece(one.pieces[1], 0)
    w.close()


@leak("order")
def no_end_of_the_block(w: Writer) -> None:
    """Only the message ends."""
    one = w.spoken(1)
    w.open()
    w.begin(one)
    w.piece(one.pieces[0])
    w.calls.append(one.tool_call)
    w.close()


@leak("order")
def no_message_start(w: Writer) -> None:
    """The call is the first event."""
    w.call(w.spoken(1))
    w.close()


@leak("order")
def a_second_message_start(w: Writer) -> None:
    """Some clients begin anew."""
    w.open()
    w.say("One. ")
    w.open()
    w.spoil()
    w.call(w.spoken(1))
    w.close()


@leak("order")
def a_call_after_the_stop_reason(w: Writer) -> None:
    """The message has ended, but for its last event."""
    w.open()
    w.say("All done.")
    w.finish("end_turn")
    w.spoil()
    w.call(w.spoken(1))
    w.event("message_stop")


@leak("order", over=True)
def a_call_after_the_end(w: Writer) -> None:
    """Most clients have stopped reading."""
    w.open()
    w.say("All done.")
    w.close("end_turn")
    w.spoil()
    w.call(w.spoken(1))
    w.close()


@leak("order")
def a_second_answer_after_a_call(w: Writer) -> None:
    """The first may have been decided."""
    w.open()
    w.call(w.spoken(1))
    w.close()
    w.spoil()
    w.open()
    w.call(w.spoken(1))
    w.close()


@leak("index")
def no_index_at_all(w: Writer) -> None:
    """One block at a time: the last one is meant."""
    one = w.spoken(2)
    w.open()
    w.hold()
    w.event("content_block_start", content_block=one.block)
    for text in one.pieces:
        w.event("content_block_delta", delta={"type": "input_json_delta", "partial_json": text})
    w.event("content_block_stop")
    w.calls.append(one.tool_call)
    w.close()


@leak("index")
def no_index_while_two_are_open(w: Writer) -> None:
    """Nothing tells whose piece it is."""
    first, second = w.spoken(1), w.spoken(1)
    w.open()
    w.begin(first)
    w.index = 1
    w.begin(second)
    w.spoil()
    w.event("content_block_delta", delta={"type": "input_json_delta", "partial_json": first.pieces[0]})
    w.piece(second.pieces[0], 1)
    w.close()


def _first_index(index: Any) -> Callable[[Writer], None]:
    def write(w: Writer) -> None:
        w.open()
        w.spoil()
        w.index = index
        one = w.spoken(1)
        w.begin(one)
        w.piece(one.pieces[0])
        w.close()

    return write


for _index in (1, -1, "0", 0.0, True):
    SHELF.build(f"index {_index!r} first", "index", "Not the block's place.", _first_index(_index))


@leak("index")
def the_same_index_twice(w: Writer) -> None:
    """Two blocks to who counts, one to who goes by the index."""
    w.open()
    w.call(w.spoken(1))
    w.index = 0
    w.spoil()
    w.call(w.spoken(1))
    w.close()


@leak("index")
def a_piece_for_a_block_of_text(w: Writer) -> None:
    """No call has begun."""
    w.open()
    w.event("content_block_start", content_block={"type": "text", "text": ""}, index=0)
    w.spoil()
    w.piece(f'{{"{w.marker()}": 1}}')
    w.end()
    w.close("end_turn")
