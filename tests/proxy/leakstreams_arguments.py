"""Streams that differ in their call's arguments: how they are sent, and what is in them."""

from collections.abc import Callable

from tests.proxy.leakstreams_shapes import Spoken, entry
from tests.proxy.leakstreams_writing import Shelf, Writer
from validators import ToolCall

SHELF = Shelf()
leak = SHELF.add


# -- arguments


def _arguments(value: object) -> Callable[[Writer], None]:
    def write(w: Writer) -> None:
        one = w.call([""])
        w.open()
        w.expect(one.tool_call)
        w.entries(entry(0, one.id, one.name, value))
        w.close()

    return write


for _name, _value in {"empty": "", "null": None, "absent": ...}.items():
    SHELF.build(f"arguments {_name}", "arguments", "vllm#28806, #11392, langchain#34242.", _arguments(_value))


@leak("arguments")
def arguments_as_an_object(w: Writer) -> None:
    """Some servers send the value itself."""
    one = w.call([""])
    value = {w.marker(): [w.marker(), 1.5, None]}
    w.open()
    text = f'{{"{next(iter(value))}": ["{w.secrets[-1].decode()}", 1.5, null]}}'
    w.expect(ToolCall(one.name, text, one.id))
    w.entries(entry(0, one.id, one.name, value))
    w.close()


@leak("arguments")
def arguments_as_an_object_with_a_big_integer(w: Writer) -> None:
    """The integer keeps its digits; it comes in a delta after the name's."""
    one = w.call([""])
    key, number = w.marker(), 12345678901234567890123
    w.open()
    w.expect(ToolCall(one.name, f'{{"{key}": {number}}}', one.id))
    w.entries(entry(0, one.id, one.name))
    w.entries(entry(0, arguments={key: number}))
    w.close()


@leak("arguments")
def arguments_sent_twice(w: Writer) -> None:
    """vllm#10395: a quote too many, then all arguments once more."""
    key, value = w.marker(), w.marker()
    w.open()
    w.hermes(w.call([f'{{"{key}": ""', f'{{"{key}": "{value}"}}']))
    w.close()


@leak("arguments")
def arguments_that_grow(w: Writer) -> None:
    """Each delta has all arguments so far: put together they are no JSON."""
    first, second = f'{{"{w.marker()}": ', f'["{w.marker()}"'
    w.open()
    w.hermes(w.call([first, first + second, first + second + "]}"]))
    w.close()


@leak("arguments")
def arguments_that_never_close(w: Writer) -> None:
    """hermes-agent#7680: cut off, and yet `tool_calls`."""
    w.open()
    w.hermes(w.call([f'{{"{w.marker()}": "', w.marker()]))
    w.close()


@leak("arguments")
def arguments_cut_off_by_the_token_limit(w: Writer) -> None:
    """`length` in mid-call."""
    w.open()
    w.hermes(w.call([f'{{"{w.marker()}": [1, ', f'{{"{w.marker()}": ']))
    w.close("length")


@leak("arguments")
def delimiters_in_the_arguments(w: Writer) -> None:
    """vllm#38946: the template's delimiters leak into the JSON."""
    w.open()
    w.hermes(w.call([f'{{"{w.marker()}": 1}}', f"<|tool_call_end|>{w.marker()}"]))
    w.close()


@leak("arguments")
def arguments_as_a_python_dictionary(w: Writer) -> None:
    """vllm#47761."""
    w.open()
    w.hermes(w.call([f"{{'{w.marker()}': ", f"True, '{w.marker()}': None}}"]))
    w.close()


def _all_of_it(w: Writer, pieces: int) -> Spoken:
    """About 100 kB of arguments; each piece has a marker of its own."""
    texts = [w.marker() + "x" * (100_000 // pieces - 8) for _ in range(pieces)]
    return w.call([f'{{"{w.marker()}": "', *texts, f'{w.marker()}"}}'])


@leak("long", with_injection=False)
def a_call_of_100_kb_in_one_delta(w: Writer) -> None:
    """All at once."""
    one = _all_of_it(w, 1)
    w.open()
    w.say("Writing it.")
    w.whole(one)
    w.close()


@leak("long", with_injection=False)
def a_call_of_100_kb_in_pieces(w: Writer) -> None:
    """Two hundred pieces."""
    w.open()
    w.hermes(_all_of_it(w, 200))
    w.close()
