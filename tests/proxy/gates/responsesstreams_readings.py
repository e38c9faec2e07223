"""Calls that are told in two ways, so that two readers read two calls."""

from collections.abc import Callable
from typing import Any

from tests.proxy.gates.responsesstreams_writing import Shelf, Writer

SHELF = Shelf()
leak = SHELF.add


# --- two readings -----------------------------------------------------------------------------------------------------


def _twice(first: Callable[[Writer, dict[str, Any]], None]) -> Callable[[Writer], None]:
    def write(w: Writer) -> None:
        w.open()
        w.say("See.")
        w.spoil()
        item = w.new_call()
        w.begin(item)
        first(w, item)
        w.close()

    return write


def _other(w: Writer, item: dict[str, Any], key: str = "arguments") -> dict[str, Any]:
    return item | {key: w.marker() if key != "arguments" else f'{{"{w.marker()}": 1}}'}


def _deltas_and_done(w: Writer, item: dict[str, Any]) -> None:
    w.piece(item, item["arguments"], 1)
    w.whole(_other(w, item), 1)


def _done_and_item(w: Writer, item: dict[str, Any]) -> None:
    w.whole(item, 1)
    w.items[1] = _other(w, item)
    w.finish(1)


def _another_name(w: Writer, item: dict[str, Any]) -> None:
    w.piece(item, item["arguments"], 1)
    w.items[1] = _other(w, item, "name")
    w.finish(1)


def _another_id(w: Writer, item: dict[str, Any]) -> None:
    w.items[1] = _other(w, item, "call_id")
    w.finish(1)


def _delta_after_its_end(w: Writer, item: dict[str, Any]) -> None:
    w.piece(item, item["arguments"], 1)
    w.finish(1)
    w.piece(item, w.marker(), 1)


def _final_differs(w: Writer, item: dict[str, Any]) -> None:
    w.whole(item, 1)
    w.finish(1)
    w.items[1] = _other(w, item)


def _another_call_at_the_end(w: Writer, item: dict[str, Any]) -> None:
    w.whole(item, 1)
    w.finish(1)
    w.items[1] = w.new_call()


def _one_more_at_the_end(w: Writer, item: dict[str, Any]) -> None:
    w.whole(item, 1)
    w.finish(1)
    w.items.append(w.new_call())


def _two_in_one_place(w: Writer, item: dict[str, Any]) -> None:
    w.whole(item, 1)
    second = w.new_call()
    w.event("response.output_item.added", output_index=1, item=second)
    w.items[1] = second


def _a_message_that_is_a_call(w: Writer, _item: dict[str, Any]) -> None:
    w.event("response.output_text.delta", item_id="msg_1", output_index=1, content_index=0, delta="x", logprobs=[])
    w.finish(1)


def _begun_twice(w: Writer, item: dict[str, Any]) -> None:
    w.event("response.output_item.added", output_index=1, item=item | {"arguments": f'{{"{w.marker()}": 1}}'})
    w.finish(1)


for _tell in (
    _deltas_and_done, _done_and_item, _another_name, _another_id, _delta_after_its_end, _final_differs,
    _another_call_at_the_end, _one_more_at_the_end, _two_in_one_place, _a_message_that_is_a_call, _begun_twice,
):  # fmt: skip
    SHELF.build(_tell.__name__.strip("_").replace("_", " "), "two readings", _twice(_tell))
