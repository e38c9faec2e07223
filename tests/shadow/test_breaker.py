import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow.breaker import Breaker, Circuit


def opened(**options: float) -> Breaker:
    breaker = Breaker(failures=3, **options)
    for _ in range(3):
        assert breaker.begin(0)
        breaker.failed(0)
    return breaker


def test_it_opens_after_so_many_failures_in_a_row_and_not_before() -> None:
    breaker = Breaker(failures=3)
    for outcome in (False, False, True, False, False):
        assert breaker.begin(0)
        (breaker.succeeded if outcome else lambda: breaker.failed(0))()
        assert breaker.state is Circuit.CLOSED
    breaker.failed(0)
    assert breaker.state is Circuit.OPEN
    assert not breaker.allows(0)
    assert not breaker.begin(4.9)


def test_after_the_pause_one_exchange_is_a_trial_and_others_wait_for_it() -> None:
    breaker = opened()
    assert breaker.allows(5)
    assert breaker.begin(5)
    assert breaker.state == "trying"
    assert not breaker.allows(1000)
    assert not breaker.begin(1000)
    breaker.succeeded()
    assert breaker.state == "closed"
    assert breaker.begin(5)


def test_each_failed_trial_doubles_the_pause_up_to_the_longest() -> None:
    breaker, now, pauses = opened(pause=5, longest=30), 0.0, []
    for _ in range(5):
        start = now
        while not breaker.begin(now):
            now += 1
        pauses.append(now - start)
        breaker.failed(now)
    assert pauses == [5, 10, 20, 30, 30]
    while not breaker.begin(now):
        now += 1
    breaker.succeeded()
    for _ in range(3):
        breaker.failed(now)
    assert breaker.allows(now + 5), "a success forgets the long pause"


def test_a_trial_that_says_nothing_may_be_made_again() -> None:
    breaker = opened()
    assert breaker.begin(5)
    breaker.abandoned()
    assert breaker.state is Circuit.OPEN
    assert breaker.begin(5)


def test_failures_of_what_was_asked_before_it_opened_do_not_lengthen_the_pause() -> None:
    breaker = opened()
    for _ in range(10):
        breaker.failed(4)
    assert breaker.begin(5)


@given(st.lists(st.sampled_from(["begin", "succeeded", "failed", "abandoned", "wait"]), max_size=60))
def test_whatever_happens_it_never_stays_shut_for_good(steps: list[str]) -> None:
    breaker, now = Breaker(), 0.0
    for step in steps:
        if step == "wait":
            now += 1
        elif step == "begin":
            breaker.begin(now)
        elif step == "failed":
            breaker.failed(now)
        else:
            getattr(breaker, step)()
    breaker.abandoned()
    assert breaker.allows(now + 121)


@pytest.mark.parametrize("state", Circuit)
def test_states_have_the_names_that_logs_show(state: Circuit) -> None:
    assert state.value in {"closed", "open", "trying"}
