import random
import statistics

import pytest

from bench import stats


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.1, 1), (0.11, 2), (0.5, 5), (0.51, 6), (0.9, 9), (0.99, 10), (1.0, 10)]
)
def test_a_percentile_is_the_nearest_rank(share: float, expected: int) -> None:
    values = list(range(1, 11))
    random.Random(1).shuffle(values)
    assert stats.percentile(values, share) == expected


def test_one_value_is_every_percentile_and_its_own_interval() -> None:
    assert [stats.percentile([3.0], share) for share in (0.0, 0.5, 1.0)] == [3.0] * 3
    assert stats.interval([3.0]) == stats.Interval(3.0, 3.0, 3.0)


def test_the_interval_holds_the_median_and_is_the_same_for_the_same_values() -> None:
    values = [random.Random(2).gauss(1.0, 0.1) for _ in range(15)]
    found = stats.interval(values)
    assert found == stats.interval(values)
    assert found.median == statistics.median(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    chance = random.Random(3)
    held = sum(stats.interval([chance.gauss(0.0, 1.0) for _ in range(15)]).holds(0.0) for _ in range(60))
    assert 52 <= held <= 60


def test_an_interval_reads_as_a_median_with_its_ends() -> None:
    found = stats.Interval(1.26, 1.2, 1.349)
    assert found.text(2) == "1.26 (1.20 to 1.35)"
    assert str(found) == "1.260 (1.200 to 1.349)"
    assert found.holds(1.2)
    assert not found.holds(1.35)


def test_what_belongs_together_is_compared_pair_by_pair() -> None:
    assert stats.paired([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert stats.differences([2.0, 9.0], [1.0, 3.0]) == [1.0, 6.0]
    with pytest.raises(ValueError, match="shorter"):
        stats.paired([1.0, 2.0], [1.0])


def test_a_table_is_markdown() -> None:
    assert stats.table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
