import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow.breaker import Breaker, Circuit


def opened(**options: float) -> Breaker:
    breaker = Breaker(failures=3, **options)
    for _ in range(3):
        breaker.failed(leave(breaker, 0), 0)
    return breaker


def leave(breaker: Breaker, now: float) -> int:
    begun = breaker.begin(now)
    assert begun is not None
    return begun


def test_it_opens_after_so_many_failures_in_a_row_and_not_before() -> None:
    breaker = Breaker(failures=3)
    for outcome in (False, False, True, False, False):
        begun = leave(breaker, 0)
        if outcome:
            breaker.succeeded(begun)
        else:
            breaker.failed(begun, 0)
        assert breaker.state is Circuit.CLOSED
    breaker.failed(leave(breaker, 0), 0)
    assert breaker.state is Circuit.OPEN
    assert not breaker.allows(0)
    assert not breaker.begin(4.9)


def test_after_the_pause_one_exchange_is_a_trial_and_others_wait_for_it() -> None:
    breaker = opened()
    assert breaker.allows(5)
    trial = leave(breaker, 5)
    assert breaker.state == "trying"
    assert not breaker.allows(1000)
    assert breaker.begin(1000) is None
    breaker.succeeded(trial)
    assert breaker.state == "closed"
    assert breaker.begin(5)


def test_each_failed_trial_doubles_the_pause_up_to_the_longest() -> None:
    breaker, now, pauses = opened(pause=5, longest=30), 0.0, []
    for _ in range(5):
        start = now
        while not (trial := breaker.begin(now)):
            now += 1
        pauses.append(now - start)
        breaker.failed(trial, now)
    assert pauses == [5, 10, 20, 30, 30]
    breaker.succeeded(leave(breaker, now + 30))
    now += 30
    for _ in range(3):
        breaker.failed(leave(breaker, now), now)
    assert breaker.allows(now + 5), "a success forgets the long pause"


def test_a_trial_that_says_nothing_may_be_made_again() -> None:
    breaker = opened()
    breaker.abandoned(leave(breaker, 5))
    assert breaker.state is Circuit.OPEN
    assert breaker.begin(5)


def test_words_about_what_was_begun_before_it_opened_are_not_heard() -> None:
    breaker = Breaker(failures=3)
    old = [leave(breaker, 0) for _ in range(8)]
    for before in old[:3]:
        breaker.failed(before, 0)
    breaker.failed(old[3], 4)
    assert breaker.allows(5), "an old failure does not lengthen the pause"
    trial = leave(breaker, 7)
    breaker.abandoned(old[4])
    breaker.failed(old[5], 7)
    breaker.succeeded(old[6])
    assert breaker.state == "trying", "only the trial's own end ends it"
    assert breaker.begin(7) is None
    breaker.failed(trial, 7)
    breaker.succeeded(old[7])
    assert breaker.state == "open"
    assert not breaker.allows(16)
    assert breaker.allows(17)


@given(st.lists(st.tuples(st.sampled_from(["begin", "succeeded", "failed", "abandoned", "wait"]), st.integers(0, 9))))
def test_whatever_happens_it_never_stays_shut_for_good(steps: list[tuple[str, int]]) -> None:
    breaker, now = Breaker(), 0.0
    under_way: list[int] = []
    for step, which in steps:
        if step == "wait":
            now += which
        elif step == "begin":
            under_way += [begun] if (begun := breaker.begin(now)) else []
        elif under_way:
            begun = under_way.pop(which % len(under_way))
            if step == "failed":
                breaker.failed(begun, now)
            else:
                getattr(breaker, step)(begun)
    for begun in under_way:
        breaker.failed(begun, now)
    assert breaker.allows(now + 121)


@pytest.mark.parametrize("state", Circuit)
def test_states_have_the_names_that_logs_show(state: Circuit) -> None:
    assert state.value in {"closed", "open", "trying"}
