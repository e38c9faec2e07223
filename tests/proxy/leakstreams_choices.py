"""Streams of several choices: each is held by itself, whatever the others do."""

from collections.abc import Callable

from tests.proxy.leakstreams_shapes import Part, Spoken, entry, mark
from tests.proxy.leakstreams_writing import Shelf, Writer

SHELF = Shelf()
leak = SHELF.add


def _begun(w: Writer, one: Spoken, choice: int) -> Part:
    """The first delta of a call, as one entry of `choices`."""
    w.expect(one.tool_call, choice=choice)
    return w.calls_part([entry(0, one.id, one.name)], choice)


def _piece(w: Writer, text: str, choice: int) -> Part:
    return w.calls_part([entry(0, arguments=text)], choice)


def _with_index(part: Part, index: bytes) -> Part:
    """The same entry of the first choice, with another index."""
    old, new = b'{"index":0,"delta"', b'{"index":%b,"delta"' % index
    return Part(part.plain.replace(old, new, 1), part.injected.replace(old, new, 1), part.choice, part.text)


@leak("several choices", n=2)
def call_in_the_first_of_two(w: Writer) -> None:
    """The other choice's text goes on while the call is held."""
    one = w.call(2)
    w.open()
    w.say("It is ", choice=1)
    w.begin(one)
    w.say("up, ", choice=1)
    w.piece(one.pieces[0])
    w.say("I think.", choice=1)
    w.piece(one.pieces[1])
    w.finish("stop", 1)
    w.close("tool_calls", 0)


@leak("several choices", n=2)
def call_in_the_second_of_two(w: Writer) -> None:
    """The first has ended before the second begins."""
    w.open(0)
    w.say("It ", "is up.")
    w.finish("stop", 0)
    w.open(1)
    w.say("I look: ", choice=1)
    w.hermes(w.call(2), choice=1)
    w.close("tool_calls", 1)


@leak("several choices", n=2)
def interleaved_calls_in_both(w: Writer) -> None:
    """Pieces take turns; one ends early."""
    first, second = w.call(2), w.call(3)
    w.open()
    w.say("A. ", choice=0)
    w.say("B. ", choice=1)
    w.begin(second, choice=1)
    w.begin(first, choice=0)
    for step in range(2):
        w.piece(second.pieces[step], choice=1)
        w.piece(first.pieces[step], choice=0)
    w.finish("tool_calls", 0)
    w.piece(second.pieces[2], choice=1)
    w.close("tool_calls", 1)


@leak("several choices", n=3)
def calls_in_two_of_three(w: Writer) -> None:
    """The one in the middle only talks."""
    first, third = w.call(2), w.call(2)
    w.open()
    w.begin(third, choice=2)
    w.say("Hm, ", choice=1)
    w.begin(first, choice=0)
    for step in range(2):
        w.piece(first.pieces[step], choice=0)
        w.say(f"step {step} ", choice=1)
        w.piece(third.pieces[step], choice=2)
    w.close("tool_calls", 2)
    w.finish("stop", 1)
    w.close("tool_calls", 0)


@leak("several choices", n=3, include_usage=False)
def same_call_in_all_of_three(w: Writer) -> None:
    """Whole calls, no usage."""
    w.open()
    for choice in (2, 0, 1):
        w.whole(w.call(1), choice=choice)
    w.close()


@leak("several choices", n=2)
def one_choice_does_not_finish(w: Writer) -> None:
    """The call's own choice has its finish, the other never gets one."""
    w.open()
    w.say("It is ", choice=1)
    w.hermes(w.call(2))
    w.close("tool_calls", 0)


@leak("several choices", n=2)
def error_while_one_of_two_holds_a_call(w: Writer) -> None:
    """The other has said something already."""
    w.open()
    w.say("It is ", choice=1)
    w.hermes(w.call(2))
    w.error()
    w.done()


@leak("several choices in one event", n=2)
def text_beside_a_call_of_another_choice(w: Writer) -> None:
    """Each event holds both choices."""
    one = w.call(2)
    w.open()
    w.send(w.text_part("Well, ", 0), w.text_part("so ", 1))
    w.send(_begun(w, one, 0), w.text_part("it is ", 1))
    w.send(w.text_part("quite ", 1), _piece(w, one.pieces[0], 0))
    w.send(_piece(w, one.pieces[1], 0), w.text_part("up.", 1))
    w.send(w.finish_part("tool_calls", 0), w.finish_part("stop", 1))
    w.end()


@leak("several choices in one event", n=2)
def calls_of_both_choices_in_one_event(w: Writer) -> None:
    """And both end in one event."""
    first, second = w.call(2), w.call(2)
    w.open()
    w.send(_begun(w, first, 0), _begun(w, second, 1))
    for step in range(2):
        w.send(_piece(w, first.pieces[step], 0), _piece(w, second.pieces[step], 1))
    w.send(w.finish_part("tool_calls", 1), w.finish_part("tool_calls", 0))
    w.end()


@leak("several choices in one event", n=2)
def everything_in_one_event(w: Writer) -> None:
    """Two choices, a call each, finish and all, in reverse order."""
    parts = []
    for choice in (1, 0):
        one = w.call(1)
        w.expect(one.tool_call, choice=choice)
        call = entry(0, one.id, one.name, one.arguments)
        parts.append(w.calls_part([call], choice, content="See: ", finish="tool_calls"))
    w.send(*parts)
    w.end()


@leak("several choices in one event")
def one_choice_twice_in_one_event(w: Writer) -> None:
    """Text and call of the same choice as two entries."""
    one = w.call(1)
    w.open()
    w.expect(one.tool_call)
    call = w.calls_part([entry(0, one.id, one.name, one.arguments)])
    w.send(w.text_part("See: "), call)
    w.close()


@leak("choice index")
def choice_index_missing(w: Writer) -> None:
    """A choice without an index is the first."""
    one = w.call(1)
    w.open()
    w.expect(one.tool_call)
    call = mark([entry(0, one.id, one.name, one.arguments)])
    w.raw(w.chunk(b'{"delta":{"tool_calls":%b},"finish_reason":null}' % call))
    w.close()


@leak("choice index", n=2)
def choice_index_null_beside_text_of_another_choice(w: Writer) -> None:
    """In one event: what is left of it without the first choice must hold nothing of that."""
    one = w.call(1)
    w.open()
    w.expect(one.tool_call)
    call = w.calls_part([entry(0, one.id, one.name, one.arguments)], finish="tool_calls")
    text = w.part(b'{"content":"hi"}', 1, spelled="hi", text="hi", finish="stop")
    w.send(_with_index(call, b"null"), text)
    w.end()


def _odd_index(index: bytes) -> Callable[[Writer], None]:
    """A call beside another choice's text, in an event."""

    def write(w: Writer) -> None:
        w.open()
        w.say("It is ", choice=1)
        w.spoil()
        call = w.calls_part([entry(0, w.marker(), w.marker(), "{}")], finish="tool_calls")
        w.send(_with_index(call, index), w.text_part("up.", 1))
        w.close("stop")

    return write


for _index in (b"false", b"true", b"0.0", b"1.0", b'"0"', b'""', b"[]", b"{}", b"4294967296"):
    SHELF.build(f"choice index {_index.decode()}", "choice index", "Readers differ.", _odd_index(_index), n=2)


@leak("choice index")
def choice_that_nobody_asked_for(w: Writer) -> None:
    """One choice was asked for, the call comes in the eighth."""
    w.open()
    w.say("It is up.")
    w.finish("stop", 0)
    w.whole(w.call(1), choice=7)
    w.finish("tool_calls", 7)
    w.end()


@leak("choice index", n=2)
def choice_index_as_text(w: Writer) -> None:
    """Some readers take `"1"` for 1, others for another choice."""
    w.open()
    w.say("It is ", choice=0)
    w.spoil()
    call = mark([entry(0, w.marker(), w.marker(), "{}")])
    w.raw(w.chunk(b'{"index":"1","delta":{"tool_calls":%b},"finish_reason":null}' % call))
    w.close()


@leak("choice index")
def choice_index_below_zero(w: Writer) -> None:
    """No choice has it."""
    w.open()
    w.say("It is ")
    w.spoil()
    call = mark([entry(0, w.marker(), w.marker(), "{}")])
    w.raw(w.chunk(b'{"index":-1,"delta":{"tool_calls":%b},"finish_reason":null}' % call))
    w.close()


@leak("choice index")
def choices_as_an_object(w: Writer) -> None:
    """Not the list that readers look for."""
    w.open()
    w.say("It is ")
    w.spoil()
    call = mark([entry(0, w.marker(), w.marker(), "{}")])
    w.raw(b'{"id":"x","choices":{"0":{"index":0,"delta":{"tool_calls":%b}}}}' % call)
    w.close()
