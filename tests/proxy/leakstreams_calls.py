"""Streams of one choice with a call in it: how calls are cut into deltas, and what stands around them."""

from collections.abc import Callable
from typing import Any

from tests.proxy.leakstreams_shapes import entry, mark
from tests.proxy.leakstreams_writing import Shelf, Writer
from validators import ToolCall

SHELF = Shelf()
leak = SHELF.add


# -- one call


@leak("one call")
def hermes(w: Writer) -> None:
    """Id and name first, then the arguments in pieces, as vLLM's Hermes parser sends them."""
    w.open()
    w.hermes(w.call(3))
    w.close()


@leak("one call", include_usage=False)
def hermes_without_usage(w: Writer) -> None:
    """The finish chunk carries the fingerprint."""
    w.open()
    w.hermes(w.call(2))
    w.close()


@leak("one call")
def hermes_in_many_small_pieces(w: Writer) -> None:
    """Twelve pieces."""
    w.open()
    w.hermes(w.call(12))
    w.close()


@leak("one call")
def the_first_event_is_the_call(w: Writer) -> None:
    """Some servers send the role with the call's first delta, and no chunk before it."""
    one = w.call(2)
    w.expect(one.tool_call)
    first = entry(0, one.id, one.name, "")
    w.delta(b'{"role":"assistant","content":null,"tool_calls":%b}' % mark([first]))
    for text in one.pieces:
        w.piece(text)
    w.close()


@leak("whole call")
def whole_call_in_one_delta(w: Writer) -> None:
    """vllm#48294, #47907."""
    w.open()
    w.whole(w.call(1))
    w.close()


@leak("whole call")
def two_whole_calls_in_one_delta(w: Writer) -> None:
    """Both end at once."""
    w.open()
    w.whole(w.call(1), w.call(1))
    w.close()


@leak("whole call")
def whole_call_without_a_role_chunk(w: Writer) -> None:
    """The stream's very first event is a whole call."""
    w.whole(w.call(1))
    w.close()


@leak("whole call")
def whole_call_after_a_long_silence(w: Writer) -> None:
    """vllm#36116: name, nothing but pings, then all arguments at once."""
    one = w.call(1)
    w.open()
    w.begin(one)
    for _ in range(5):
        w.block(b": still here\n\n")
    w.piece(one.arguments)
    w.close()


# -- parallel calls


@leak("parallel calls")
def one_call_after_the_other(w: Writer) -> None:
    """Two calls, one after the other."""
    w.open()
    w.hermes(w.call(2), w.call(2))
    w.close()


@leak("parallel calls")
def calls_with_interleaved_pieces(w: Writer) -> None:
    """Three calls whose pieces take turns."""
    calls = [w.call(3) for _ in range(3)]
    w.open()
    for index, one in enumerate(calls):
        w.begin(one, index)
    for step in range(3):
        for index, one in enumerate(calls):
            w.piece(one.pieces[step], index)
    w.close()


@leak("parallel calls")
def pieces_of_two_calls_in_each_delta(w: Writer) -> None:
    """Each delta goes on with both calls."""
    calls = [w.call(2), w.call(2)]
    w.open()
    w.expect(*(one.tool_call for one in calls))
    w.entries(*(entry(i, one.id, one.name) for i, one in enumerate(calls)))
    for step in range(2):
        w.entries(*(entry(i, arguments=one.pieces[step]) for i, one in enumerate(calls)))
    w.close()


@leak("parallel calls")
def twenty_parallel_calls(w: Writer) -> None:
    """In one delta."""
    w.open()
    w.whole(*(w.call(1) for _ in range(20)))
    w.close()


@leak("parallel calls", with_injection=False)
def two_hundred_parallel_calls(w: Writer) -> None:
    """In four deltas of fifty."""
    w.open()
    for _ in range(4):
        calls = [w.call(1) for _ in range(50)]
        first = len(w.calls.get(0, ()))
        w.expect(*(one.tool_call for one in calls))
        w.entries(*(entry(first + i, one.id, one.name, one.arguments) for i, one in enumerate(calls)))
    w.close()


# -- index, id, name


@leak("index and id")
def index_missing(w: Writer) -> None:
    """openai-python#3246: a new id is a new call."""
    w.open()
    for one in (w.call(2), w.call(2)):
        w.begin(one, None)
        for text in one.pieces:
            w.piece(text, None)
    w.close()


@leak("index and id")
def index_null_and_the_id_in_every_piece(w: Writer) -> None:
    """Two calls, interleaved, told apart by their ids."""
    calls = [w.call(2), w.call(2)]
    w.open()
    for one in calls:
        w.begin(one, None)
    for step in range(2):
        for one in calls:
            w.entries({"index": None, "id": one.id, "function": {"arguments": one.pieces[step]}})
    w.close()


@leak("index and id")
def the_same_index_for_two_calls(w: Writer) -> None:
    """Some servers never count: the same index with another id is another call."""
    w.open()
    w.hermes(w.call(2))
    w.hermes(w.call(2))
    w.close()


@leak("index and id")
def the_same_id_for_two_calls(w: Writer) -> None:
    """Two calls by their indices; each has an object of arguments, so that nobody has another call by the id alone."""
    w.open()
    for index, one in enumerate((w.call(1), w.call(1))):
        w.unsaid(one.id)
        w.expect(ToolCall(one.name, one.arguments, "0"))
        w.entries(entry(index, "0", one.name, one.arguments))
    w.close()


def _in_two_ways(*pieces: tuple[Any, str, str]) -> Callable[[Writer], None]:
    """Entries with these indices, ids and arguments; what they are put together to depends on the client."""

    def write(w: Writer) -> None:
        w.open()
        w.say("See: ")
        w.spoil()
        for index, own, arguments in pieces:
            w.entries(entry(index, own, w.marker(), arguments))
        w.say(" And then.")
        w.close()

    return write


IN_TWO_WAYS: dict[str, Callable[[Writer], None]] = {
    "an id under two indices": _in_two_ways((0, "0", ""), (1, "0", '{"disk": "b"}')),
    "an index under two ids": _in_two_ways((0, "a", ""), (0, "b", '{"p": "/"}')),
    "an index under two ids, the second bare": _in_two_ways((0, "a", '{"p": "/"}'), (0, "b", "")),
    "no index under two ids": _in_two_ways((None, "a", ""), (None, "b", '{"p": "/"}')),
    "an index for some": _in_two_ways((0, "a", "{}"), (None, "b", "{}")),
    "an index as a text": _in_two_ways(("0", "a", "{}"), ("1", "b", "{}")),
    "an index below zero": _in_two_ways((-1, "a", "{}")),
}
for _name, _write in IN_TWO_WAYS.items():
    SHELF.build(_name, "two readings", "Clients that go by index and by id differ.", _write)


@leak("two readings", n=2)
def two_readings_of_one_choice_of_two(w: Writer) -> None:
    """And one that never finishes; the other has ended."""
    w.open()
    w.say("See: ")
    w.say("It is up.", choice=1)
    w.finish("stop", 1)
    w.spoil()
    for own, arguments in (("a", ""), ("b", "{}")):
        w.entries(entry(0, own, w.marker(), arguments))
    w.end()


@leak("index and id")
def indices_with_gaps_from_seven_down(w: Writer) -> None:
    """Calls stand in order of their first delta."""
    w.open()
    for index in (7, 3, 1):
        w.hermes(w.call(1), first=index)
    w.close()


@leak("index and id")
def neither_index_nor_id(w: Writer) -> None:
    """A second name after arguments is a second call."""
    w.open()
    for one in (w.call(2), w.call(2)):
        w.unsaid(one.id)
        w.expect(ToolCall(one.name, one.arguments))
        w.entries(entry(name=one.name))
        for text in one.pieces:
            w.entries(entry(arguments=text))
    w.close()


@leak("index and id")
def the_id_comes_last(w: Writer) -> None:
    """Arguments, then the name, then the id."""
    one = w.call(1)
    w.open()
    w.expect(one.tool_call)
    w.entries(entry(0, arguments=one.arguments))
    w.entries(entry(0, name=one.name))
    w.entries(entry(0, one.id))
    w.close()


@leak("name")
def name_in_pieces(w: Writer) -> None:
    """The name's pieces come one by one."""
    first, second = w.marker(), w.marker()
    one = w.call(2, name=first + second)
    w.open()
    w.expect(one.tool_call)
    w.entries(entry(0, one.id, first))
    w.entries(entry(0, name=second))
    for text in one.pieces:
        w.piece(text)
    w.close()


@leak("name")
def name_in_every_delta(w: Writer) -> None:
    """The whole name again with each piece."""
    one = w.call(3)
    w.open()
    w.expect(one.tool_call)
    for text in one.pieces:
        w.entries(entry(0, one.id, one.name, text))
    w.close()


@leak("name")
def a_tool_that_nobody_offered(w: Writer) -> None:
    """sglang#34677: the unknown tool's sibling is known."""
    known, unknown = w.call(1), w.call(1)
    w.tools.remove(unknown.name)
    w.open()
    w.hermes(unknown, known)
    w.close()
