"""Ways to frame the same events: line ends, comments, fields, several data lines, names."""

from collections.abc import Callable

from tests.proxy.gates.messagesstreams_writing import Shelf, Writer, dumps

SHELF = Shelf()
leak = SHELF.add

_BOM = b"\xef\xbb\xbf"


def _conversation(w: Writer) -> None:
    w.open()
    w.say("Let me ", "see.")
    w.call(w.spoken(2))
    w.close()


SHELF.build("crlf", "line ends", "CRLF throughout.", _conversation, line_end=b"\r\n")
SHELF.build("no space after the colon", "line ends", "As the format allows.", _conversation, space=b"")


@leak("line ends", line_end=b"\r")
def cr(w: Writer) -> None:
    """CR throughout: a line end, but clients that split at LF see one endless line."""
    w.open()
    w.say("Let me see.")
    w.spoil()
    w.call(w.spoken(2))
    w.close()


@leak("line ends")
def a_cr_in_a_comment(w: Writer) -> None:
    """The call's line is part of the comment to who splits at LF."""
    one = w.spoken(1)
    w.open()
    w.spoil()
    start = dumps({"type": "content_block_start", "content_block": one.block, "index": 0})
    w.block(b": hello\revent: content_block_start\rdata: " + start + b"\n\n")
    w.piece(one.pieces[0])
    w.close()


@leak("comments and fields")
def comments_and_pings(w: Writer) -> None:
    """Before, in and after a call."""
    one = w.spoken(2)
    w.block(b": ok\n\n:\n\n")
    w.open()
    w.event("ping")
    w.say("See: ")
    w.begin(one)
    for text in one.pieces:
        w.block(b": still here\n\n")
        w.event("ping")
        w.piece(text)
    w.end()
    w.calls.append(one.tool_call)
    w.close()
    w.block(b"\n\n")


@leak("comments and fields")
def other_fields_around_the_data(w: Writer) -> None:
    """`id`, `retry`, and a comment in the call's own event."""
    one = w.spoken(1)
    w.block(b"retry: 3000\n\n")
    w.open()
    w.hold()
    start = dumps({"type": "content_block_start", "content_block": one.block, "index": 0})
    w.block(b"id: 7\n: c\nevent: content_block_start\ndata: " + start + b"\nretry: 10\nid\n\n")
    w.piece(one.pieces[0])
    w.end()
    w.calls.append(one.tool_call)
    w.close()


@leak("comments and fields")
def a_comment_that_speaks_of_a_call(w: Writer) -> None:
    """No event, and no client should take it for one."""
    w.open()
    w.spoil()
    w.block(b": " + dumps(w.spoken(1).block) + b"\n\n")
    w.close("end_turn")


@leak("several data lines")
def call_in_the_second_data_line(w: Writer) -> None:
    """One event whose JSON goes on in a second line."""
    one = w.spoken(1)
    w.open()
    w.spoil()
    start = dumps({"type": "content_block_start", "index": 0, "content_block": one.block})
    w.payload(start.replace(b'"content_block":', b'\n"content_block":'), "content_block_start")
    w.piece(one.pieces[0])
    w.close()


@leak("several data lines")
def two_payloads_in_one_event(w: Writer) -> None:
    """Text in the first line, a call in the second: two events to who reads line by line."""
    w.open()
    w.spoil()
    text = dumps({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "x"}})
    call = dumps({"type": "content_block_start", "index": 1, "content_block": w.spoken(1).block})
    w.payload(text + b"\n" + call, "content_block_start")
    w.close()


@leak("several data lines")
def no_blank_line_between_events(w: Writer) -> None:
    """One event that is no JSON by the format; whole events to who reads line by line."""
    w.open()
    w.spoil()
    start = dumps({"type": "content_block_start", "index": 0, "content_block": w.spoken(1).block})
    w.block(b"event: content_block_start\ndata: " + start + b"\n")
    w.close()


@leak("byte order mark")
def a_mark_before_the_call(w: Writer) -> None:
    """No line of data by the format, one to some clients."""
    w.open()
    w.spoil()
    w.block(_BOM)
    w.call(w.spoken(1))
    w.close()


SHELF.build("no names at all", "names", "Readers that go by the type have it all.", _conversation, named=False)


@leak("names")
def a_piece_without_a_name(w: Writer) -> None:
    """The official client skips it, others do not."""
    one = w.spoken(2)
    w.open()
    w.begin(one)
    w.piece(one.pieces[0])
    w.spoil()
    w.named = False
    w.piece(one.pieces[1])
    w.named = True
    w.end()
    w.close()


def _misnamed(name: bytes) -> Callable[[Writer], None]:
    def write(w: Writer) -> None:
        one = w.spoken(1)
        w.open()
        w.say("See: ")
        w.spoil()
        start = dumps({"type": "content_block_start", "content_block": one.block, "index": 1})
        w.block(name + b"data: " + start + b"\n\n")
        w.piece(one.pieces[0])
        w.close()

    return write


for _event in (b"ping", b"error", b"content_block_delta", b"odd", b"content_block_start\nevent: ping"):
    SHELF.build(
        f"named {_event.decode()}", "names", "Another name than its type.", _misnamed(b"event: " + _event + b"\n")
    )


@leak("names")
def a_misnamed_text_before(w: Writer) -> None:
    """A block that some do not see: to them the call's place is another one."""
    w.open()
    w.block(
        b'event: ping\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    )
    w.index = 1
    w.spoil()
    w.call(w.spoken(1), w.spoken(1))
    w.close()


@leak("names")
def no_type_but_a_name(w: Writer) -> None:
    """The name tells what it is to some, nothing does to others."""
    one = w.spoken(1)
    w.open()
    w.spoil()
    w.payload(dumps({"content_block": one.block | {"input": {w.marker(): 1}}, "index": 0}), "content_block_begin")
    w.close()
