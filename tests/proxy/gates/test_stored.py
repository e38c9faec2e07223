from hypothesis import given
from hypothesis import strategies as st

from proxy.gates.stored import LONGEST, Withheld


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
