import pytest

from bench import report, stats
from bench.byte_path import chosen
from bench.measure import Figures
from bench.systems import COMPARED, DIRECT, DOOR, HUNG, LARGER, LITELLM, NGINX, OFF, RELAY, TITLES


def figures(small: float, *, injected: int = 0) -> Figures:
    return Figures(small=[small] * 3, chunk=[10.0] * 3, p50=[small] * 3, p99=[small] * 3, requests=3, injected=injected)


@pytest.mark.parametrize(
    ("only", "quick", "expected"),
    [
        (None, False, list(TITLES)),
        (None, True, [name for name in TITLES if name != LITELLM]),
        ("relay", True, [DIRECT, RELAY, LARGER]),
        ("litellm,relay", True, [DIRECT, RELAY, LARGER, LITELLM]),
        ("counterproof-injected,nginx", False, [DIRECT, NGINX, DOOR]),
    ],
)
def test_systems_are_chosen_by_how_their_names_begin(only: str | None, expected: list[str], *, quick: bool) -> None:
    assert chosen(only, quick=quick) == expected


def test_a_name_that_there_is_not_is_an_error_that_lists_them() -> None:
    with pytest.raises(ValueError, match="no system is called haproxy; there are direct, relay"):
        chosen("relay,haproxy", quick=False)


def test_a_target_is_met_or_missed_by_what_was_injected() -> None:
    lines = report.checks({RELAY: figures(10.0), OFF: figures(14.0), DOOR: figures(14.0, injected=3)})
    small = [line for line in lines if "small request" in line]
    assert small[0].startswith("- MISSED: Counterproof, mirroring off, small request: 1.40")
    assert small[1].startswith("- met: Counterproof, injected, exchanges dropped at the door, small request: 1.40")


def test_a_few_injected_requests_do_not_make_a_target_an_easier_one() -> None:
    few = Figures(small=[14.0] * 3, requests=1000, injected=4)
    (line,) = report.checks({RELAY: figures(10.0), HUNG: few})
    assert line.startswith("- MISSED")
    assert "of at most 1.3 x" in line


def test_what_could_not_be_measured_is_a_row_that_says_why() -> None:
    found = report.whole({DIRECT: figures(1.0), RELAY: figures(2.0), NGINX: Figures(problem="not installed")}, [], 0)
    assert "| nginx (`proxy_buffering off`) | not measured: not installed |" in found
    assert "CPU / that of nginx" not in found


def test_a_figure_that_was_not_taken_leaves_its_place_empty() -> None:
    rows = report.beside({RELAY: figures(2.0), COMPARED: figures(4.0)}, RELAY).splitlines()
    assert rows[-1].endswith("| 2.00 (2.00 to 2.00) | 1.00 (1.00 to 1.00) | – |")


@pytest.mark.parametrize(("low", "word"), [(-5.0, "lies inside"), (1.0, "lies OUTSIDE")])
def test_whether_a_hung_shadow_shows_is_said_of_its_interval(low: float, word: str) -> None:
    (line,) = report.hung([stats.Interval(3.0, low, 9.0)], 200)
    assert word in line
