"""Ways to frame the same events: line ends, comments, fields, several data lines; and ways to spell their JSON."""

import json
from collections.abc import Callable

from tests.proxy.leakstreams_shapes import BEGIN, END, USAGE, dumps, entry, mark
from tests.proxy.leakstreams_writing import Shelf, Writer

SHELF = Shelf()
leak = SHELF.add

BOM = b"\xef\xbb\xbf"


def _conversation(w: Writer) -> None:
    w.open()
    w.say("Let me ", "see.")
    w.hermes(w.call(2))
    w.close()


# -- line ends


@leak("line ends", line_end=b"\r\n")
def crlf(w: Writer) -> None:
    """CRLF throughout."""
    _conversation(w)


@leak("line ends", line_end=b"\r")
def cr(w: Writer) -> None:
    """CR throughout: a line end, but clients that split at LF see one endless line."""
    w.open()
    w.say("Let me ", "see.")
    w.spoil()
    w.hermes(w.call(2))
    w.close()


@leak("line ends")
def lf_then_crlf(w: Writer) -> None:
    """The line ends change in mid-call."""
    one = w.call(3)
    w.open()
    w.say("See: ")
    w.begin(one)
    w.piece(one.pieces[0])
    w.line_end = b"\r\n"
    w.piece(one.pieces[1])
    w.line_end = b"\n"
    w.piece(one.pieces[2])
    w.line_end = b"\r\n"
    w.close()


@leak("line ends")
def all_three_in_turn(w: Writer) -> None:
    """LF, CRLF and CR, event by event."""
    w.open()
    w.line_end = b"\r\n"
    w.say("Let me ")
    w.line_end = b"\r"
    w.say("see.")
    w.line_end = b"\n"
    w.say(" So: ")
    w.spoil()
    one = w.call(3)
    w.line_end = b"\r"
    w.begin(one)
    for text, w.line_end in zip(one.pieces, (b"\r\n", b"\n", b"\r"), strict=True):
        w.piece(text)
    w.close()


@leak("line ends")
def one_line_end_between_events(w: Writer) -> None:
    """No blank lines: one event, that is no JSON, by the format; whole events to who reads line by line."""
    w.open()
    w.say("See: ")
    w.spoil()
    call = entry(0, w.marker(), w.marker(), f'{{"{w.marker()}": 1}}')
    for part in (w.calls_part([call]), w.finish_part()):
        w.block(b"data: " + w.chunk(part.plain) + b"\n")
    w.block(b"data: " + w.chunk(b"", USAGE) + b"\n\n")
    w.done()


@leak("line ends")
def many_blank_lines(w: Writer) -> None:
    """Between events, before the first and after the last."""
    w.block(b"\n\n\r\n\n")
    w.open()
    w.say("See: ")
    w.block(b"\n\n\n")
    w.hermes(w.call(2))
    w.block(b"\n\r\n\n\n")
    w.close()
    w.block(b"\n\n")


# -- comments and fields


@leak("comments and fields")
def comments_and_pings(w: Writer) -> None:
    """theopenco/llmgateway#2334: comments, bare colons, before, in and after a call."""
    one = w.call(2)
    ping = b": ping\n\n:\n\n:ok\n: still here\n\n"
    w.block(ping)
    w.open()
    w.say("See: ")
    w.block(ping)
    w.begin(one)
    for text in one.pieces:
        w.block(ping)
        w.piece(text)
    w.finish()
    w.block(ping)
    w.usage()
    w.block(ping)
    w.done()
    w.block(b":\n\n")


@leak("comments and fields")
def other_fields_around_the_data(w: Writer) -> None:
    """`event`, `id`, `retry`, an unknown field and a comment in the call's own events, before and after the data."""
    one = w.call(1)
    w.block(b"retry: 3000\n\n")
    w.open()
    w.say("See: ")
    w.expect(one.tool_call)
    call = w.chunk(w.calls_part([entry(0, one.id, one.name, one.arguments)]).plain)
    w.block(b"event: message\nid: 7\n: c\ndata: " + call + b"\nretry: 10\nodd: field\nid\n\n")
    w.block(b"event: ping\n\nevent: ping\nid: 8\n\n")
    w.close()


@leak("comments and fields", space=b"")
def no_space_after_the_colon(w: Writer) -> None:
    """praxis#739."""
    _conversation(w)


@leak("comments and fields", space=b"", line_end=b"\r\n")
def no_space_and_crlf(w: Writer) -> None:
    """Both at once."""
    _conversation(w)


@leak("comments and fields")
def a_comment_of_4_kb(w: Writer) -> None:
    """In front of the call, and in its event."""
    one = w.call(1)
    w.open()
    w.block(b": " + b"padding " * 500 + b"\n\n")
    w.expect(one.tool_call)
    call = w.chunk(w.calls_part([entry(0, one.id, one.name, one.arguments)]).plain)
    w.block(b":" + b"." * 500 + b"\ndata: " + call + b"\n\n")
    w.close()


@leak("long", with_injection=False)
def a_comment_of_200_kb(w: Writer) -> None:
    """One line."""
    w.open()
    w.block(b": " + b"padding " * 25_000 + b"\n\n")
    w.hermes(w.call(2))
    w.close()


@leak("comments and fields")
def fields_that_are_no_data(w: Writer) -> None:
    """`DATA`, ` data` and `datax` are unknown fields."""
    w.open()
    for field in (b"DATA: ", b" data: ", b"datax: ", b"data : "):
        w.block(field + b'{"choices":[]}\n\n')
    w.hermes(w.call(2))
    w.close()


# -- byte order mark


@leak("byte order mark")
def bom_at_the_start(w: Writer) -> None:
    """Allowed once, and no part of the first line."""
    w.block(BOM)
    _conversation(w)


@leak("byte order mark")
def bom_and_then_the_call(w: Writer) -> None:
    """Clients that do not know of the mark do not see the first event."""
    w.spoil()
    w.block(BOM)
    w.whole(w.call(1))
    w.close()


@leak("byte order mark")
def bom_before_a_later_event(w: Writer) -> None:
    """There the line is no data line by the format; some clients take it for one."""
    w.open()
    w.say("See: ")
    w.spoil()
    w.block(BOM)
    w.whole(w.call(1))
    w.close()


# -- several data lines


@leak("several data lines")
def call_in_the_second_data_line(w: Writer) -> None:
    """One event whose JSON goes on in a second line: put together by the format, two broken lines to others."""
    one = w.call(1)
    w.open()
    w.say("See: ")
    w.spoil()
    w.expect(one.tool_call)
    call = w.chunk(w.calls_part([entry(0, one.id, one.name, one.arguments)]).plain)
    w.raw(call.replace(b'"delta":', b'\n"delta":'))
    w.close()


@leak("several data lines")
def two_payloads_in_one_event(w: Writer) -> None:
    """Text in the first line, a call in the second: no JSON by the format, two events to who reads line by line."""
    w.open()
    w.say("See: ")
    w.spoil()
    call = w.calls_part([entry(0, w.marker(), w.marker(), f'{{"{w.marker()}": 1}}')])
    w.raw(w.chunk(w.text_part("harmless").plain) + b"\n" + w.chunk(call.plain))
    w.close()


@leak("several data lines")
def json_over_many_lines(w: Writer) -> None:
    """Indented JSON, a data line each."""
    one = w.call(1)
    w.open()
    w.spoil()
    w.expect(one.tool_call)
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [entry(0, one.id, one.name, one.arguments)]}}]}
    text = json.dumps(chunk, indent=1).encode()
    at = text.index(b"[", text.index(b"tool_calls"))
    until = text.rindex(b"]", 0, text.rindex(b"]")) + 1
    w.raw(text[:at] + BEGIN + text[at:until] + END + text[until:])
    w.close()


@leak("several data lines")
def empty_data_lines_around_a_call(w: Writer) -> None:
    """Empty data lines before and after the JSON, in the call's event: white space."""
    one = w.call(1)
    w.open()
    w.spoil()
    w.expect(one.tool_call)
    w.raw(b"\n" + w.chunk(w.calls_part([entry(0, one.id, one.name, one.arguments)]).plain) + b"\n\n")
    w.close()


@leak("several data lines")
def events_with_empty_data(w: Writer) -> None:
    """Some servers' keep-alive: an event by the format, which is no JSON."""
    w.open()
    w.say("See: ")
    w.spoil()
    w.block(b"data:\n\ndata: \n\ndata\n\n")
    w.hermes(w.call(2))
    w.close()


# -- text


def _cuts(*borders: tuple[str, str]) -> Callable[[Writer], None]:
    """A call whose pieces end and begin with these, a marker between them."""

    def write(w: Writer) -> None:
        w.open()
        w.say("Żółć ", "👩‍💻 ", "\u2028\u0085 ok ")
        ends = [*(end for end, _ in borders), '"}']
        begins = ['{"at": "', *(begin for _, begin in borders)]
        w.hermes(w.call([begin + w.marker() + end for begin, end in zip(begins, ends, strict=True)]))
        w.close()

    return write


for _name, _texts in {
    "utf-8 at piece borders": (("é", "ß"), ("漢", "漢"), ("e", "\u0301")),
    "emoji at piece borders": (("👩", "\u200d💻"), ("👩\u200d", "💻")),
    "escapes cut in pieces": (("\\ud83d", "\\udc69"), ("\\", "n"), ("\\u20", "28"), ("\\ud83d\\u", "dc69")),
    "line separators in arguments": (("\u2028", "\u2029"), ("\u0085", "\u2028data: {}")),
    "quotes and backslashes": (("\\", '"'), ("\\\\", "\\/"), ("<", "&>")),
}.items():
    SHELF.build(_name, "text in pieces", "Arguments with such text at their borders.", _cuts(*_texts))


@leak("text in pieces")
def every_letter_escaped(w: Writer) -> None:
    """Id, name and arguments written with JSON escapes."""
    (call_id, id_), (name, name_), (key, key_) = w.escaped(), w.escaped(), w.escaped()
    w.tools.append(name)
    one = w.call([f'{{"{key}": "\\u00e9"}}'], name=name)
    w.secrets.pop()
    w.expect(type(one.tool_call)(name, one.arguments, call_id))
    arguments = rf"{{\u0022{key_}\": \"\\u00e9\"}}"
    w.open()
    w.delta(b'{"tool_calls":%b}' % mark(rf'[{{"index":0,"id":"{id_}","function":{{"name":"{name_}","arguments":"{arguments}"}}}}]'.encode()))  # noqa: E501  # fmt: skip
    w.close()


@leak("text in pieces")
def a_surrogate_pair_in_two_deltas(w: Writer) -> None:
    """Half an emoji each, as JSON escapes of the wire: some readers join them, strict ones read no JSON."""
    key, value = w.marker(), w.marker()
    one = w.call([f'{{"{key}": "👩{value}"}}'])
    w.open()
    w.spoil()
    w.expect(one.tool_call)
    w.entries(entry(0, one.id, one.name))
    for half in (rf"{{\"{key}\": \"\ud83d", rf"\udc69{value}\"}}"):
        w.delta(b'{"tool_calls":%b}' % mark(b'[{"index":0,"function":{"arguments":"%b"}}]' % half.encode()))
    w.close()


@leak("white space")
def spaces_and_tabs_in_the_json(w: Writer) -> None:
    """Around every token, and after the payload."""
    one = w.call(1)
    w.open()
    w.expect(one.tool_call)
    call = dumps(entry(0, one.id, one.name, one.arguments))
    w.raw(b' { "choices" :\t[ { "index" : 0 , "delta" : { "tool_calls" : %b } } ] } \t ' % mark(b"[ " + call + b" ]"))
    w.close()


@leak("white space")
def spaces_around_done(w: Writer) -> None:
    """Some servers write them."""
    w.open()
    w.hermes(w.call(2))
    w.finish()
    w.usage()
    w.raw(b" [DONE] ", role="done")
