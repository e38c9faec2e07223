import itertools

import pytest

from validators import Finding, Word, worst

# As the contracts write them, worst first.
PRECEDENCE = [
    "invalid", "violation", "repeat", "mismatch", "unverified", "near_tie", "sampled_choice", "equivalent", "match",
]  # fmt: skip


def test_the_words_are_those_of_the_contract() -> None:
    assert [word.value for word in Word] == PRECEDENCE


@pytest.mark.parametrize(("better", "worse"), [(b, a) for a, b in itertools.combinations(PRECEDENCE, 2)])
def test_the_worse_of_two_words_prevails(better: str, worse: str) -> None:
    assert worst([Word(better), Word(worse)]) is Word(worse)
    assert worst([Word(worse), Word(better), Word(better)]) is Word(worse)


def test_one_word_prevails_over_itself_and_none_is_refused() -> None:
    assert worst([Word.MATCH]) is Word.MATCH
    with pytest.raises(ValueError, match="empty"):
        worst([])


def test_a_finding_is_a_value() -> None:
    finding = Finding(Word.MATCH, "ping", 0)
    assert finding == Finding(Word.MATCH, "ping", 0, "", ())
    assert finding != Finding(Word.MATCH, "ping", 1)
    with pytest.raises(AttributeError):
        finding.word = Word.MISMATCH  # type: ignore[misc]
