import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gates.stored import LONGEST, Keeping, Withheld, response_id, stored_ids


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_refused_response_is_known_until_its_time_is_over() -> None:
    clock = Clock()
    withheld = Withheld(clock, 10)
    assert not withheld.knows("resp_1")
    withheld.refused("resp_1")
    clock.now = 9.9
    assert withheld.knows("resp_1")
    assert not withheld.knows("resp_2")
    withheld.refused("resp_1")  # again: from now on
    clock.now = 19.8
    assert withheld.knows("resp_1")
    clock.now = 19.9
    assert not withheld.knows("resp_1")


def test_what_is_over_is_forgotten() -> None:
    clock = Clock()
    withheld = Withheld(clock, 10)
    for number in range(100):
        withheld.refused(f"resp_{number}")
    clock.now = 11
    withheld.refused("resp_x")
    assert list(withheld._until) == ["resp_x"]


@given(st.lists(st.sampled_from("abcdef"), max_size=30), st.integers(1, 4))
def test_the_last_ones_are_remembered(refused: list[str], most: int) -> None:
    withheld = Withheld(lambda: 0.0, 1, most)
    for one in refused:
        withheld.refused(one)
    last = list(dict.fromkeys(reversed(refused)))[:most]
    assert [one for one in "abcdef" if withheld.knows(one)] == sorted(last)


def test_an_id_of_any_length_costs_the_same() -> None:
    withheld = Withheld(lambda: 0.0, 1)
    withheld.refused("x" * 100_000)
    assert withheld.knows("x" * 100_000)
    assert max(map(len, withheld._until)) == LONGEST


@pytest.mark.parametrize(
    ("head", "stream", "expected"),
    [
        (b'{"id": "resp_1", "output": []}', False, ("resp_1", True)),
        (b'{"object": "response", "id":"resp_1", "output": [{"cut', False, ("resp_1", False)),
        (b'{"metadata": {"id": "x"}, "id": "resp_1"}', False, ("resp_1", True)),
        (b'{"metadata": {"id": "x"}, "id": "re', False, ("x", False)),
        (b'event: response.created\ndata: {"type":"x","response":{"id":"resp_2"}}\n\n', True, ("resp_2", True)),
        (b'event: response.created\ndata: {"type":"x","response":{"id":"resp_2","to', True, ("resp_2", False)),
        (b": a comment\n\ndata: []\n\n", True, ("", True)),
        (b"", False, ("", False)),
        (b"", True, ("", False)),
        (b"[1]", False, ("", False)),
    ],
)
def test_what_a_response_is_called(head: bytes, stream: bool, expected: tuple[str, bool]) -> None:  # noqa: FBT001
    assert response_id(head, stream=stream) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/v1/responses/resp_1", ["resp_1"]),
        (b"/v1//responses/resp_1/cancel", ["resp_1"]),
        (b"/v1/x/../responses/./RESP_1;a", ["resp_1"]),
        (b"/v1/%72esponses/%72esp_1", ["resp_1"]),
        (b"/responses/responses/resp_1", ["responses", "resp_1"]),
        (b"/v1/responses", []),
        (b"/v1/responses/", []),
        (b"/v1/chat/completions", []),
        (b"/../responses/resp_1", []),  # denied anyway
    ],
)
def test_which_stored_responses_a_path_names(path: bytes, expected: list[str]) -> None:
    assert stored_ids(path) == expected


def keeping(withheld: Withheld, *pieces: bytes) -> Keeping:
    one = Keeping(withheld)
    for piece in pieces:
        one.see(piece, stream=False)
    return one


def test_it_is_kept_under_every_name_that_it_may_have() -> None:
    withheld = Withheld(lambda: 0.0, 10)
    one = keeping(withheld, b'{"metadata": {"id": "x"}, ', b'"id": "Resp_1", "output": []}')
    one.hold()
    assert withheld.knows("resp_1")
    assert withheld.knows("x")
    one.go()
    assert not withheld
    one.refused()
    assert withheld.refers(b"/v1/responses/RESP_1")


def test_what_another_refused_is_not_let_go() -> None:
    withheld = Withheld(lambda: 0.0, 10)
    withheld.refused("resp_1")
    one = keeping(withheld, b'{"id": "resp_1"}')
    one.hold()
    one.go()
    assert withheld.knows("resp_1")


def test_an_answer_without_end_names_itself_at_its_beginning_or_never() -> None:
    withheld = Withheld(lambda: 0.0, 10)
    one = keeping(withheld, b'{"x": "' + b"y" * 65_536, b'", "id": "resp_1"}')
    one.hold()
    assert not withheld
