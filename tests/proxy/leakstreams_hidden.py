"""Calls where not every reader looks for them, and events that not every reader can read."""

from collections.abc import Callable

from tests.proxy.leakstreams_shapes import dumps, entry, mark
from tests.proxy.leakstreams_writing import Shelf, Writer
from validators import ToolCall

SHELF = Shelf()
leak = SHELF.add


def _field(w: Writer) -> bytes:
    """A call field with markers in all of its parts."""
    return mark([entry(0, w.marker(), w.marker(), f'{{"{w.marker()}": "{w.marker()}"}}')])


def _function(w: Writer) -> bytes:
    return mark({"name": w.marker(), "arguments": f'{{"{w.marker()}": 1}}'})


def _after_text(payload: Callable[[Writer], bytes]) -> Callable[[Writer], None]:
    """Text, then an event that cannot be judged, then the rest of a quite usual answer."""

    def write(w: Writer) -> None:
        w.open()
        w.say("Let me ", "see.")
        w.spoil()
        w.raw(payload(w))
        w.say(" And then.")
        w.close("stop")

    return write


# -- other places


@leak("other places")
def older_function_call(w: Writer) -> None:
    """The API's older field, in pieces."""
    name, pieces = w.marker(), (f'{{"{w.marker()}', f'{w.marker()}": 1}}')
    w.tools.append(name)
    w.expect(ToolCall(name, "".join(pieces)))
    w.open()
    w.say("See: ")
    for piece in ({"name": name}, *({"arguments": text} for text in pieces)):
        w.delta(b'{"content":null,"function_call":%b}' % mark(piece))
    w.close("function_call")


@leak("other places")
def older_and_newer_call_in_one_delta(w: Writer) -> None:
    """Both fields, a call each."""
    one, name = w.call(1), w.marker()
    w.tools.append(name)
    w.open()
    w.expect(one.tool_call, ToolCall(name, "{}"))
    old, new = mark({"name": name, "arguments": "{}"}), mark([entry(0, one.id, one.name, one.arguments)])
    w.delta(b'{"function_call":%b,"tool_calls":%b}' % (old, new))
    w.close()


def _choice(form: bytes, field: Callable[[Writer], bytes] = _field) -> Callable[[Writer], bytes]:
    return lambda w: w.chunk(form % field(w))


ELSEWHERE = {
    "in a message inside the delta": _choice(b'{"index":0,"delta":{"message":{"tool_calls":%b}}}'),
    "in a message of the choice": _choice(b'{"index":0,"message":{"role":"assistant","tool_calls":%b}}'),
    "in a message beside a delta": _choice(b'{"index":0,"delta":{"content":"x"},"message":{"tool_calls":%b}}'),
    "in the choice itself": _choice(b'{"index":0,"delta":{},"tool_calls":%b}'),
    "at the top level": lambda w: w.chunk(b"", b',"tool_calls":' + _field(w)),
    "at the top level beside text": lambda w: w.chunk(w.text_part("x").plain, b',"tool_calls":' + _field(w)),
    "in an object without choices": lambda w: b'{"tool_calls":' + _field(w) + b"}",
    "in a list inside choices": _choice(b'[{"index":0,"delta":{"tool_calls":%b}}]'),
    "in a delta inside the delta": _choice(b'{"index":0,"delta":{"delta":{"tool_calls":%b}}}'),
    "an older one in a message": _choice(b'{"index":0,"message":{"function_call":%b}}', _function),
    "an older one at the top level": lambda w: w.chunk(b"", b',"function_call":' + _function(w)),
}
for _name, _payload in ELSEWHERE.items():
    SHELF.build(f"call {_name}", "other places", "Readers of the API do not look there.", _after_text(_payload))


@leak("other places")
def tool_calls_as_an_object(w: Writer) -> None:
    """One call instead of a list of calls."""
    w.open()
    w.say("See: ")
    w.spoil()
    w.delta(b'{"tool_calls":%b}' % mark(entry(0, w.marker(), w.marker(), "{}")))
    w.close()


@leak("other places")
def tool_calls_as_text(w: Writer) -> None:
    """JSON in a string instead of a list."""
    w.open()
    w.spoil()
    w.delta(b'{"tool_calls":%b}' % mark(f'[{{"function": {{"name": "{w.marker()}"}}}}]'))
    w.close()


def _no_calls(form: bytes, key: bytes = b"tool_calls") -> Callable[[Writer], None]:
    """Text, and a key that holds calls with something else in it, in the only event of its choice's end."""

    def write(w: Writer) -> None:
        w.open()
        w.say("See: ")
        w.spoil()
        call = mark({"index": 0, "function": {"name": w.marker(), "arguments": f'{{"{w.marker()}": 1}}'}})
        w.send(w.part(b'{"%b":%b}' % (key, form % call), finish="tool_calls"))
        w.end()

    return write


NO_CALLS = {
    "a list in a list": _no_calls(b"[[%b]]"),
    "a call beside null": _no_calls(b"[%b,null]"),
    "a call beside a text": _no_calls(b'[%b,"f()"]'),
    "a function as a list": _no_calls(b'[{"index":0,"function":[%b]}]'),
    "an older call in a list": _no_calls(b"[%b]", b"function_call"),
}
for _name, _write in NO_CALLS.items():
    SHELF.build(_name, "no list of calls", "Somebody may take calls from it all the same.", _write)


# -- keys


@leak("keys")
def key_written_with_escapes(w: Writer) -> None:
    r"""`tool\u005fcalls` is the same key to every JSON reader."""
    one = w.call(2)
    w.open()
    w.say("See: ")
    w.expect(one.tool_call)
    for call in (entry(0, one.id, one.name), *(entry(0, arguments=text) for text in one.pieces)):
        w.delta(rb'{"content":null,"tool\u005fcalls":' + mark([call]) + b"}")
    w.close()


@leak("keys")
def all_keys_written_with_escapes(w: Writer) -> None:
    r"""`\u0063hoices`, `delt\u0061` and the call's own."""
    one = w.call(1)
    w.open()
    w.expect(one.tool_call)
    call = dumps(entry(0, one.id, one.name, one.arguments)).replace(b'"function"', rb'"\u0066unction"')
    form = rb'{"\u0063hoices":[{"index":0,"delt\u0061":{"\u0074\u006F\u006f\u006c_calls":' + mark(b"[%b]" % call)
    w.raw(form + b"}}]}")
    w.close()


@leak("keys")
def older_key_written_with_escapes(w: Writer) -> None:
    r"""`function\u005Fcall`."""
    name = w.marker()
    w.tools.append(name)
    w.open()
    w.expect(ToolCall(name, "{}"))
    w.delta(rb'{"function\u005Fcall":' + mark({"name": name, "arguments": "{}"}) + b"}")
    w.close("function_call")


REPEATED = {
    "delta, the call last": _choice(b'{"index":0,"delta":{"content":"x"},"delta":{"tool_calls":%b}}'),
    "delta, the call first": _choice(b'{"index":0,"delta":{"tool_calls":%b},"delta":{"content":"x"}}'),
    "tool_calls, the call first": _choice(b'{"index":0,"delta":{"tool_calls":%b,"tool_calls":[]}}'),
    "tool_calls, the call last": _choice(b'{"index":0,"delta":{"tool_calls":null,"tool_calls":%b}}'),
    "choice index": _choice(b'{"index":1,"index":0,"delta":{"tool_calls":%b}}'),
    "choices": lambda w: w.chunk(
        b'{"index":0,"delta":{"tool_calls":%b}}' % _field(w), b',"choices":[{"index":0,"delta":{"content":"x"}}]'
    ),
    "tool_calls, once with escapes": _choice(rb'{"index":0,"delta":{"tool_calls":%b,"tool\u005fcalls":[]}}'),
}
for _name, _payload in REPEATED.items():
    SHELF.build(f"twice {_name}", "repeated keys", "Some read the first, some the last.", _after_text(_payload))


@leak("repeated keys")
def twice_arguments_and_name(w: Writer) -> None:
    """One reader's call is not the other's, although both are calls."""
    w.open()
    w.spoil()
    names, values = (w.marker(), w.marker()), (w.marker(), w.marker())
    function = '{{"name":"{}","name":"{}","arguments":"{}","arguments":"{}"}}'.format(*names, *values)
    w.delta(b'{"tool_calls":%b}' % mark(f'[{{"index":0,"id":"{w.marker()}","function":{function}}}]'.encode()))
    w.close()


# -- keys in another case: Go's and .NET's readers take them, protobuf's takes those without an underscore


def _respelled(key: bytes, spelled: bytes) -> Callable[[Writer], bytes]:
    def write(w: Writer) -> bytes:
        chunk = w.chunk(b'{"index":0,"delta":{"content":null,"tool_calls":%b}}' % _field(w))
        return chunk.replace(b'"%b":' % key, b'"%b":' % spelled)

    return write


RESPELLED: dict[str, Callable[[Writer], bytes]] = {
    f"{spelled} for {key}": _respelled(key.encode(), spelled.encode())
    for key, spelled in (
        ("tool_calls", "Tool_calls"),
        ("tool_calls", "TOOL_CALLS"),
        ("tool_calls", "toolCalls"),
        ("tool_calls", "tool_call\u017f"),
        ("tool_calls", "Tool\\u005fCalls"),
        ("choices", "Choices"),
        ("choices", "choice\u017f"),
        ("delta", "Delta"),
        ("index", "Index"),
        ("function", "Function"),
        ("name", "NAME"),
        ("arguments", "Arguments"),
        ("arguments", "argument\u017f"),
    )
} | {
    "Function_Call for function_call": _choice(b'{"index":0,"delta":{"Function_Call":%b}}', _function),
    "an i without a dot": _choice('{"index":0,"delta":{"funct\u0131on_call":%b}}'.encode(), _function),
    "an i with a dot": _choice('{"index":0,"delta":{"FUNCT\u0130ON_CALL":%b}}'.encode(), _function),
    "another Delta beside it": _choice(b'{"index":0,"delta":{"tool_calls":%b},"Delta":{}}'),
    "another Index beside it": _choice(b'{"index":0,"Index":1,"delta":{"tool_calls":%b}}'),
    "another Name beside it": lambda w: _choice(b'{"index":0,"delta":{"tool_calls":%b}}')(w).replace(
        b'"name":', b'"name":"look","Name":'
    ),
    "a Type of another dialect": _choice(b'{"index":0,"delta":{"content":[{"Type":"tool_use","x":%b}]}}'),
}
for _name, _payload in RESPELLED.items():
    SHELF.build(_name, "keys in another case", "Some readers take it for the same key.", _after_text(_payload))


# -- numbers


def _with_member(member: bytes, *, spoils: bool) -> Callable[[Writer], None]:
    """A call whose chunk has one more member."""

    def write(w: Writer) -> None:
        one = w.call(2)
        w.open()
        w.say("See: ")
        if spoils:
            w.spoil()
        w.expect(one.tool_call)
        for call in (entry(0, one.id, one.name), *(entry(0, arguments=text) for text in one.pieces)):
            w.delta(b'{"content":null,"tool_calls":%b}' % mark([call]), more=b',"score":' + member)
        w.close()

    return write


for _name, _member in {"NaN": b"NaN", "Infinity": b"-Infinity", "1e999": b"1e999"}.items():
    _note = "Some JSON readers take it, others do not."
    SHELF.build(f"{_name} beside a call", "numbers", _note, _with_member(_member, spoils=True))
for _name, _member in {"30 digits": b"123456789012345678901234567890", "small": b"-0.0e-999"}.items():
    SHELF.build(f"{_name} number beside a call", "numbers", "JSON all the same.", _with_member(_member, spoils=False))


# -- what is not JSON, or no object


def _broken(form: bytes) -> Callable[[Writer], bytes]:
    """A usual chunk with a call, with something done to it."""
    return lambda w: form % w.chunk(b'{"index":0,"delta":{"tool_calls":%b}}' % _field(w))


UNREADABLE: dict[str, Callable[[Writer], bytes]] = {
    "html": lambda w: b"<html>" + mark(f"tool_calls {w.marker()}".encode()) + b"</html>",
    "json that is cut": lambda w: w.chunk(b'{"index":0,"delta":{"tool_calls":%b}}' % _field(w))[:-2],
    "json and more": _broken(b"%b;"),
    "two objects": _broken(b"{}%b"),
    "a list around it": _broken(b"[%b]"),
    "a list of calls": _field,
    "a string": lambda w: mark(f"tool_calls {w.marker()}"),
    "bytes that are no utf-8": _choice(b'{"index":0,"delta":{"content":"\xff\xc3","tool_calls":%b}}'),
    "a nul in it": _broken(b"%b\0"),
    "a raw tab in a string": _choice(b'{"index":0,"delta":{"content":"\t","tool_calls":%b}}'),
    "a comma too many": _choice(b'{"index":0,"delta":{"tool_calls":%b,}}'),
    "single quotes": lambda w: b"{'choices':[{'delta':{'tool_calls':" + mark(f"['{w.marker()}']".encode()) + b"}}]}",
}
for _name, _payload in UNREADABLE.items():
    SHELF.build(
        f"no json object: {_name}", "unreadable", "A call in what strict readers refuse.", _after_text(_payload)
    )


@leak("unreadable")
def arguments_that_are_no_utf_8(w: Writer) -> None:
    """Half a character at a piece's border, as bytes."""
    one = w.call([f'{{"{w.marker()}": "é', f'{w.marker()}"}}'])
    w.open()
    w.spoil()
    w.expect(one.tool_call)
    first, second = (dumps([entry(0, one.id, one.name, text)]) for text in one.pieces)
    w.delta(b'{"tool_calls":%b}' % mark(first.replace(b"\xa9", b"")))
    w.delta(b'{"tool_calls":%b}' % mark(second.replace(b'"arguments":"', b'"arguments":"\xa9')))
    w.close()


@leak("unreadable")
def garbage_in_mid_call(w: Writer) -> None:
    """The call began well; what came in between may have been a part of it."""
    one = w.call(2)
    w.open()
    w.say("See: ")
    w.begin(one)
    w.piece(one.pieces[0])
    w.spoil()
    w.raw(b'{"choices":[{"index":0,"delta":{"tool_ca')
    w.piece(one.pieces[1])
    w.close()


@leak("unreadable")
def garbage_without_a_call(w: Writer) -> None:
    """Nothing tells whether it was one."""
    _after_text(lambda _: b"%%% internal %%%")(w)


# -- depth


@leak("depth")
def nested_beside_a_call(w: Writer) -> None:
    """200 arrays beside the delta."""
    _with_member(b"[" * 200 + b"]" * 200, spoils=False)(w)


@leak("depth")
def nested_arguments(w: Writer) -> None:
    """Deeper than arguments are read: judged as too deep."""
    w.open()
    w.hermes(w.call([f'{{"{w.marker()}": ' + "[" * 200, "]" * 200 + f', "{w.marker()}": 1}}']))
    w.close()


@leak("long", with_injection=False)
def nested_beyond_every_reader(w: Writer) -> None:
    """50,000 arrays around the call."""
    w.open()
    w.say("See: ")
    w.spoil()
    deep = 50_000
    w.raw(b'{"choices":' + b"[" * deep + b'{"delta":{"tool_calls":' + _field(w) + b"}}" + b"]" * deep + b"}")
    w.close()


@leak("depth")
def call_deep_down(w: Writer) -> None:
    """A call field 30 objects down."""

    def payload(w: Writer) -> bytes:
        call = b'{"tool_calls":[{"id":"%b"}]}' % w.marker().encode()
        return b'{"a":' * 30 + mark(call) + b"}" * 30

    _after_text(payload)(w)
