import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from validators import ComparePolicy, Finding, ToolCall, Word, match_calls
from validators.decision import NONE, WANTS_PERSON, Opinion, Verdict, action_for, decide, outcome
from validators.policy import Action, Policy, ToolPolicy, merged, strength

DEFAULT: ToolPolicy[str] = ToolPolicy("*")
A, B, C = (ToolCall("run", f'{{"device": "{name}"}}') for name in "abc")
CALLS = (A,)


def policy(agree: int = 1, default: dict[str, str] | None = None, **tools: dict[str, str]) -> Policy[str]:
    base = merged(DEFAULT, "*", on=default or {})
    return Policy(agree, base, tuple(merged(base, name, on=on) for name, on in tools.items()))


def found(word: str, call: int | None = 0, reason: str = "", tool: str = "run") -> Finding:
    return Finding(Word(word), tool, call, reason)


def says(shadow: str, *words: str, calls: Sequence[ToolCall] = (), twin: bool = False) -> Opinion:
    """One word per call of the primary; without any, no answer yet."""
    findings = tuple(found(word, i, f"{shadow}_{word}") for i, word in enumerate(words))
    return Opinion(shadow, twin, findings or None, tuple(calls))


def fine(_calls: Sequence[ToolCall]) -> list[Finding]:
    return []


def judge(
    rules: Policy[str],
    opinions: Sequence[Opinion] = (),
    own: Sequence[Finding] = (),
    calls: Sequence[ToolCall] = CALLS,
    **more: Any,
) -> Verdict | None:
    settled: dict[str, Any] = {"expired": False, "wants_person": False, "check_substitute": fine} | more
    return decide(rules, calls, own, opinions, **settled)


def decided(*given: Any, **more: Any) -> Verdict:
    verdict = judge(*given, **more)
    assert verdict is not None
    return verdict


def short(verdict: Verdict | None) -> str | None:
    return None if verdict is None else f"{verdict.word} {verdict.action} {verdict.shadow} {verdict.why}"


# -- the references' word: agree, opinions in short ("?": not there yet, "~": a twin), expired -> word action shadow why
QUORUM: list[tuple[int, dict[str, str], bool, str | None]] = [
    # nobody is asked
    (0, {}, False, "unverified release none not_asked"),
    (0, {"r": "mismatch"}, False, "unverified release none not_asked"),
    (0, {"r": "?"}, False, "unverified release none not_asked"),
    # nobody is there
    (1, {}, False, "unverified release none no_reference"),
    (1, {"t": "~match"}, False, "unverified release none no_reference"),
    (1, {"t": "~?"}, False, "unverified release none no_reference"),
    (2, {"r": "match"}, False, "unverified release none no_quorum"),
    # one is enough
    (1, {"r": "match"}, False, "match release r r_match"),
    (1, {"r": "equivalent"}, False, "equivalent release r r_equivalent"),
    (1, {"r": "match", "s": "?"}, False, "match release r r_match"),
    (1, {"r": "match", "s": "mismatch"}, False, "match release r r_match"),
    (1, {"r": "equivalent", "s": "match"}, False, "match release s s_match"),
    # while one can still agree
    (1, {"r": "?"}, False, None),
    (1, {"r": "mismatch", "s": "?"}, False, None),
    (1, {"r": "unverified", "s": "?"}, False, None),
    (1, {"r": "near_tie", "s": "?"}, False, None),
    # when nobody can any more
    (1, {"r": "mismatch"}, False, "mismatch refuse r r_mismatch"),
    (1, {"r": "near_tie"}, False, "near_tie release r r_near_tie"),
    (1, {"r": "sampled_choice"}, False, "sampled_choice release r r_sampled_choice"),
    (1, {"r": "unverified"}, False, "unverified release r r_unverified"),
    (1, {"r": "mismatch", "s": "mismatch"}, False, "mismatch refuse r r_mismatch"),
    (1, {"r": "near_tie", "s": "near_tie", "u": "sampled_choice"}, False, "near_tie release r r_near_tie"),
    (1, {"r": "near_tie", "s": "mismatch"}, False, "mismatch refuse s s_mismatch"),
    (1, {"r": "near_tie", "s": "unverified"}, False, "unverified release s s_unverified"),
    (1, {"r": "mismatch", "t": "~match"}, False, "mismatch refuse r r_mismatch"),
    (1, {"r": "match", "t": "~mismatch"}, False, "match release r r_match"),
    (1, {"r": "match", "t": "~?"}, False, "match release r r_match"),
    # out of time
    (1, {"r": "?"}, True, "unverified release r timeout"),
    (1, {"r": "?", "s": "near_tie"}, True, "unverified release r timeout"),
    (1, {"r": "?", "s": "mismatch"}, True, "mismatch refuse s s_mismatch"),
    (1, {"r": "?", "s": "match"}, True, "match release s s_match"),
    (1, {"r": "near_tie", "t": "~?"}, True, "near_tie release r r_near_tie"),
    # two must agree
    (2, {"r": "match", "s": "match"}, False, "match release r r_match"),
    (2, {"r": "match", "s": "equivalent"}, False, "equivalent release s s_equivalent"),
    (2, {"r": "match", "s": "equivalent", "u": "match"}, False, "match release r r_match"),
    (2, {"r": "match", "s": "match", "u": "?"}, False, "match release r r_match"),
    (2, {"r": "match", "s": "?"}, False, None),
    (2, {"r": "match", "s": "mismatch", "u": "?"}, False, None),
    (2, {"r": "match", "s": "near_tie"}, False, "near_tie release s s_near_tie"),
    (2, {"r": "match", "s": "match", "t": "~match"}, False, "match release r r_match"),
    (2, {"r": "match", "t": "~match"}, False, "unverified release none no_quorum"),
    (2, {"r": "match", "s": "?"}, True, "unverified release s timeout"),
    # they cannot any more, and nothing is stronger than refuse
    (2, {"r": "mismatch", "s": "?"}, False, "mismatch refuse r r_mismatch"),
    # they cannot any more, and one that is still to come may differ
    (2, {"r": "unverified", "s": "?"}, False, None),
    (2, {"r": "unverified", "s": "mismatch"}, False, "mismatch refuse s s_mismatch"),
    (2, {"r": "unverified", "s": "match"}, False, "unverified release r r_unverified"),
    (3, {"r": "match", "s": "?"}, False, None),
]  # fmt: skip


@pytest.mark.parametrize(("agree", "opinions", "expired", "expected"), QUORUM)
def test_quorum(agree: int, opinions: dict[str, str], expired: bool, expected: str | None) -> None:  # noqa: FBT001
    given = []
    for shadow, text in opinions.items():
        word = text.removeprefix("~")
        given.append(says(shadow, *([] if word == "?" else [word]), twin=text.startswith("~")))
    for order in itertools.permutations(given):
        assert short(judge(policy(agree), order, expired=expired)) == expected


def test_who_countersigned_is_told_where_enough_did() -> None:
    both = [says("s", "match"), says("r", "equivalent"), says("u", "mismatch"), says("t", "match", twin=True)]
    assert decided(policy(1), both).agreed == ("r", "s")
    assert decided(policy(2), both).agreed == ("r", "s")
    assert decided(policy(3), both).agreed == ()


def test_a_call_that_only_the_reference_made_is_no_agreement() -> None:
    more = Opinion("r", twin=False, findings=(found("match"), found("mismatch", None, "missing", "reboot")))
    assert short(decided(policy(1), [more])) == "mismatch refuse r missing"
    odd = Opinion("r", twin=False, findings=(found("match"), found("match", None)))
    assert decided(policy(1), [odd]).agreed == ()


def test_silence_about_a_call_countersigns_nothing() -> None:
    half = Opinion("r", twin=False, findings=(found("match", 0),))
    verdict = decided(policy(1), [half], calls=(A, B))
    assert short(verdict) == "unverified release r not_compared"
    assert ("r", Finding(Word.UNVERIFIED, "run", 1, "not_compared")) in verdict.findings
    nothing = Opinion("r", twin=False, findings=())
    assert short(decided(policy(1), [nothing])) == "unverified release r not_compared"


def test_parallel_calls_stand_and_fall_together() -> None:
    assert short(decided(policy(1), [says("r", "match", "mismatch", "match")], calls=(A, B, C))) == (
        "mismatch refuse r r_mismatch"
    )
    # one reference for one call and another for the other: nobody agrees with the whole
    crossed = [says("r", "match", "near_tie"), says("s", "mismatch", "match")]
    assert short(decided(policy(1), crossed, calls=(A, B))) == "mismatch refuse s s_mismatch"


# -- own findings


@pytest.mark.parametrize("word", ["invalid", "violation", "repeat"])
@pytest.mark.parametrize("opinions", [[], [says("r")], [says("r", "match")], [says("r", "mismatch")]])
def test_what_is_refused_for_itself_waits_for_nobody(word: str, opinions: list[Opinion]) -> None:
    for agree in (0, 1, 2):
        verdict = decided(policy(agree), opinions, own=[found(word, reason="why")])
        assert short(verdict) == f"{word} refuse none why"


def test_own_findings_that_do_not_refuse_wait_for_the_references() -> None:
    rules = policy(1, {"violation": "hold", "repeat": "release"})
    own = [found("violation", reason="rule")]
    assert judge(rules, [says("r")], own=own) is None
    assert short(decided(rules, [says("r", "match")], own=own)) == "violation hold none rule"
    assert short(decided(rules, [says("r", "mismatch")], own=own)) == "violation refuse none r_mismatch"
    assert short(decided(rules, [says("r", "match")], own=[found("repeat")])) == "repeat release none repeat"
    assert short(decided(policy(0, {"repeat": "release"}), own=[found("repeat")])) == "repeat release none repeat"


def test_a_choice_without_calls_is_released_where_nobody_is_asked_or_nothing_must_be_verified() -> None:
    assert short(decided(policy(0), calls=())) == "unverified release none no_call"
    assert short(decided(policy(1), calls=())) == "unverified release none no_reference"
    assert short(decided(policy(1), [says("r")], calls=(), expired=True)) == "unverified release r timeout"


def test_silence_about_no_calls_is_no_agreement() -> None:
    strict = policy(1, {"unverified": "refuse"})
    late, silent = says("r"), Opinion("r", twin=False, findings=())
    for opinions, why in (([], "none no_reference"), ([late], "r timeout"), ([silent], "r not_compared")):
        verdict = decided(strict, opinions, calls=(), expired=True)
        assert short(verdict) == f"unverified refuse {why}"
        assert verdict.agreed == ()
    missing = Opinion("r", twin=False, findings=(found("mismatch", None, "missing"),))
    assert short(decided(strict, [missing], calls=())) == "mismatch refuse r missing"


# -- actions


@pytest.mark.parametrize("word", list(Word))
@pytest.mark.parametrize("action", list(Action))
def test_each_word_has_the_action_that_the_tool_configures(word: Word, action: Action) -> None:
    if action is Action.SUBSTITUTE and word in {Word.MATCH, Word.EQUIVALENT}:
        return  # refused when the policy is read
    rules = policy(1, {word.value: "hold"}, run={word.value: action.value})
    assert action_for(rules, found(word.value)) is action
    own = word in {Word.INVALID, Word.VIOLATION, Word.REPEAT}
    opinion = says("r", *(["match"] if own else [word.value]))
    verdict = decided(rules, [opinion], own=[found(word.value)] if own else [])
    assert verdict.word is word
    assert verdict.action is (Action.REFUSE if action is Action.SUBSTITUTE else action)  # nothing to put in its place


def test_the_strongest_action_prevails_whatever_the_words() -> None:
    rules = policy(1, ping={"match": "hold"}, loose={"invalid": "release", "mismatch": "release"})
    calls = (ToolCall("ping"), ToolCall("loose"))
    mixed = Opinion("r", twin=False, findings=(found("match", 0, tool="ping"), found("mismatch", 1, tool="loose")))
    assert short(decided(rules, [mixed], calls=calls)) == "mismatch hold r match"
    own = [found("invalid", 1, "unclosed", tool="loose")]
    assert short(decided(rules, [mixed], own=own, calls=calls)) == "invalid hold none match"


def test_a_missing_call_falls_under_its_own_policy_and_the_default() -> None:
    missing = Opinion("r", twin=False, findings=(found("match"), found("near_tie", None, "missing", "reboot")))
    assert decided(policy(1), [missing]).action is Action.RELEASE
    assert decided(policy(1, reboot={"near_tie": "hold"}), [missing]).action is Action.HOLD
    assert decided(policy(1, {"near_tie": "hold"}, reboot={"near_tie": "release"}), [missing]).action is Action.HOLD
    assert decided(policy(1, run={"near_tie": "refuse"}), [missing]).action is Action.RELEASE


def test_a_tool_that_must_be_verified_is_refused_without_a_reference() -> None:
    rules = policy(1, run={"unverified": "refuse"})
    assert short(decided(rules)) == "unverified refuse none no_reference"
    assert short(decided(rules, [says("r")], expired=True)) == "unverified refuse r timeout"
    assert short(decided(rules, [says("r"), says("s", "match")], expired=True)) == "match release s s_match"


def test_a_person_is_asked_where_the_tool_wants_one() -> None:
    agreed = [says("r", "match")]
    assert short(decided(policy(1), agreed, wants_person=True)) == "match hold r wants_person"
    assert short(decided(policy(1), agreed, wants_person=[False, True])) == "match hold r wants_person"
    assert decided(policy(1), agreed, wants_person=[False, False]).action is Action.RELEASE
    assert decided(policy(1), agreed, wants_person=[]).action is Action.RELEASE
    assert short(decided(policy(0), wants_person=True)) == "unverified hold none wants_person"
    assert judge(policy(1), [says("r")], wants_person=True) is None  # the reference may still refuse
    assert decided(policy(1), [says("r", "mismatch")], wants_person=True).action is Action.REFUSE
    swapped = policy(1, {"mismatch": "substitute"})
    assert short(decided(swapped, [says("r", "mismatch", calls=[B])], wants_person=True)) == (
        "mismatch hold r wants_person"
    )


def test_holding_what_agrees_asks_as_little_as_the_quorum_allows() -> None:
    rules = policy(1, {"equivalent": "hold"})
    assert decided(rules, [says("r", "equivalent"), says("s", "match")]).action is Action.RELEASE
    assert decided(rules, [says("r", "equivalent")]).action is Action.HOLD
    assert (
        decided(policy(2, {"equivalent": "hold"}), [says("r", "equivalent"), says("s", "match")]).action is Action.HOLD
    )


# -- substitution

SWAP = {"mismatch": "substitute", "violation": "substitute", "invalid": "substitute", "unverified": "substitute"}


def test_the_references_call_takes_its_place() -> None:
    verdict = decided(policy(1, SWAP), [says("r", "mismatch", calls=[B])])
    assert short(verdict) == "mismatch substitute r r_mismatch"
    assert verdict.substitute == (B,)
    own = decided(policy(1, SWAP), [says("r", "mismatch", calls=[B, C])], own=[found("violation", reason="rule")])
    assert (short(own), own.substitute) == ("violation substitute none rule", (B, C))


NOTHING: list[tuple[int, list[Opinion], str]] = [
    (1, [says("r", "mismatch")], "no_substitute"),  # it made no call
    (1, [], "no_substitute"),
    (0, [says("r", "mismatch", calls=[B])], "no_substitute"),  # nobody is asked
    (1, [says("t", "mismatch", calls=[B], twin=True)], "no_substitute"),
    (1, [says("r", "unverified", calls=[B])], "no_substitute"),  # not on the primary's history
    (1, [says("r", "match", calls=[A])], "no_substitute"),
    (1, [says("r", "mismatch", calls=[A])], "no_substitute"),  # the same call once more
    (1, [says("r", "match", calls=[A]), says("s", "mismatch", calls=[B])], "no_substitute"),  # countersigned
    (1, [says("r", "mismatch", calls=[B]), says("s", "mismatch", calls=[C])], "substitutes_differ"),
    (2, [says("r", "mismatch", calls=[B]), says("s", "mismatch", calls=[C])], "no_substitute"),
    (2, [says("r", "mismatch", calls=[B]), says("s", "match", calls=[A])], "no_substitute"),
    (2, [says("r", "mismatch", calls=[B, B]), says("s", "mismatch", calls=[B])], "no_substitute"),
    (2, [says(n, "mismatch", calls=[c]) for n, c in zip("qrst", (B, B, C, C), strict=True)], "substitutes_differ"),
]  # fmt: skip


@pytest.mark.parametrize(("agree", "opinions", "why"), NOTHING)
def test_what_has_nothing_to_take_its_place_is_refused(agree: int, opinions: list[Opinion], why: str) -> None:
    for order in itertools.permutations(opinions):
        verdict = decided(policy(agree, SWAP), order, own=[found("violation", reason="rule")])
        assert short(verdict) == f"violation refuse none {why}"
        assert verdict.substitute is None


def test_as_many_references_as_must_agree_must_have_made_the_substitute() -> None:
    rules = policy(2, SWAP)
    waiting = [says("r", "mismatch", calls=[B]), says("s"), says("u")]
    assert judge(rules, waiting) is None
    three = [says("r", "mismatch", calls=[B]), says("s", "mismatch", calls=[B]), says("u", "mismatch", calls=[C])]
    assert decided(rules, three).substitute == (B,)
    one_agrees = [says("r", "mismatch", calls=[B]), says("s", "mismatch", calls=[B]), says("u", "match", calls=[A])]
    assert decided(rules, one_agrees).substitute == (B,)


def test_the_tools_compare_policy_says_which_calls_are_the_same() -> None:
    base = merged(DEFAULT, "*", on=SWAP, compare=ComparePolicy(casefold=("/device",)))
    rules = Policy(2, base)
    upper = ToolCall("run", '{"device": "B"}')
    for first, second in (("r", "s"), ("s", "r")):
        opinions = [says(first, "mismatch", calls=[B]), says(second, "mismatch", calls=[upper])]
        assert decided(rules, opinions).substitute == ((B,) if first == "r" else (upper,))  # the first by name
    again = says("r", "mismatch", calls=[ToolCall("run", '{"device": "A"}')])
    assert decided(Policy(1, base), [again]).why == "no_substitute"


def test_a_substitute_must_pass_every_check_itself() -> None:
    seen: list[Sequence[ToolCall]] = []

    def check(*findings: Finding) -> Verdict:
        def checking(calls: Sequence[ToolCall]) -> list[Finding]:
            seen.append(calls)
            return list(findings)

        rules = policy(1, SWAP, loose={"violation": "release"}, tight={"violation": "hold"})
        return decided(rules, [says("r", "mismatch", calls=[B])], check_substitute=checking)

    assert check().action is Action.SUBSTITUTE
    assert check(found("violation", tool="loose"), found("match")).action is Action.SUBSTITUTE
    refused = [
        check(found("repeat")),
        check(found("violation", tool="tight")),
        check(found("violation", tool="loose"), found("invalid")),  # its action would be another substitution
        check(found("match", reason=WANTS_PERSON)),
    ]
    assert {short(verdict) for verdict in refused} == {"mismatch refuse r substitute_refused"}
    assert all(verdict.substitute is None for verdict in refused)
    assert set(seen) == {(B,)}


def test_a_substitute_is_checked_only_where_one_is_wanted() -> None:
    def never(_calls: Sequence[ToolCall]) -> list[Finding]:
        raise AssertionError

    opinions = [says("r", "mismatch", calls=[B])]
    assert decided(policy(1), opinions, check_substitute=never).action is Action.REFUSE
    assert decided(policy(1, SWAP), opinions, own=[found("repeat")], check_substitute=never).action is Action.REFUSE
    assert judge(policy(1, SWAP), [*opinions, says("s")], check_substitute=never) is None


def test_with_a_call_to_substitute_the_others_are_heard_first() -> None:
    rules = policy(2, SWAP)
    early = [says("r", "mismatch", calls=[B]), says("s")]
    assert judge(rules, early) is None
    assert decided(rules, early, expired=True).why == "no_substitute"
    assert decided(rules, [early[0], says("s", "mismatch", calls=[B])]).substitute == (B,)


# -- what is recorded and remembered


def test_everything_that_was_said_is_recorded_whether_it_counted_or_not() -> None:
    own = [found("repeat", reason="repeated")]
    opinions = [says("t", "mismatch", twin=True), says("s", "mismatch"), says("r", "match"), says("u")]
    verdict = decided(policy(1, {"repeat": "release"}), opinions, own=own)
    assert verdict.findings == (
        (NONE, own[0]),
        ("r", found("match", 0, "r_match")),
        ("s", found("mismatch", 0, "s_mismatch")),
        ("t", found("mismatch", 0, "t_mismatch")),
    )
    late = decided(policy(2), [says("u"), says("t", twin=True)], expired=True, calls=(A, B))
    assert late.findings == (
        ("u", found("unverified", 0, "timeout")),
        ("u", found("unverified", 1, "timeout")),
    )
    alone = decided(policy(1), own=[found("violation", reason="rule")], calls=(A, B))
    assert alone.findings == ((NONE, found("violation", 0, "rule")),)
    nobody = decided(policy(1), calls=(A,))
    assert nobody.findings == ((NONE, found("unverified", 0, "no_reference")),)


def test_only_calls_that_were_refused_for_themselves_and_for_good_are_remembered() -> None:
    three = (A, B, C)
    assert decided(policy(1), own=[found("violation", 1)], calls=three).remember == (1,)
    assert decided(policy(1), [says("r", "match", "mismatch", "mismatch")], calls=three).remember == (1, 2)
    assert decided(policy(1), own=[found("repeat", 0), found("invalid", 2)], calls=three).remember == (2,)
    assert decided(policy(1, {"unverified": "refuse"}), calls=three).remember == ()
    missing = Opinion("r", twin=False, findings=(found("match"), found("mismatch", None, "missing")))
    assert decided(policy(1), [missing]).remember == ()
    assert decided(policy(1), [says("r", "match")]).remember == ()
    assert decided(policy(1, {"mismatch": "hold"}), [says("r", "mismatch")]).remember == ()
    assert decided(policy(1, SWAP), [says("r", "mismatch", calls=[B])]).remember == ()
    assert decided(policy(1, SWAP), [says("r", "mismatch")]).remember == (0,)


@pytest.mark.parametrize(
    ("action", "block", "word"),
    [
        ("release", True, "released"), ("release", False, "released"),
        ("refuse", True, "refused"), ("refuse", False, "would_refuse"),
        ("substitute", True, "substituted"), ("substitute", False, "would_substitute"),
        ("hold", True, "held"), ("hold", False, "would_hold"),
    ],
)  # fmt: skip
def test_the_contracts_words_for_what_was_done(action: str, block: bool, word: str) -> None:  # noqa: FBT001
    assert outcome(Action(action), block=block) == word


# -- properties

REFERENCE_WORDS = [
    Word.MISMATCH, Word.UNVERIFIED, Word.NEAR_TIE, Word.SAMPLED_CHOICE, Word.EQUIVALENT, Word.MATCH,
]  # fmt: skip
POOL = [A, B, C]


def _findings(words: list[Word], *, missing: bool) -> tuple[Finding, ...]:
    more = (found("mismatch", None, "missing", "reboot"),) if missing else ()
    return tuple(found(word.value, i) for i, word in enumerate(words)) + more


def opinion_of(shadow: str, *, twin: bool | None = None) -> st.SearchStrategy[Opinion]:
    return st.builds(
        Opinion,
        shadow=st.just(shadow),
        twin=st.booleans() if twin is None else st.just(twin),
        findings=st.none()
        | st.builds(
            _findings,
            st.lists(st.sampled_from(REFERENCE_WORDS), min_size=2, max_size=2),
            missing=st.sampled_from([False, False, True]),
        ),
        calls=st.lists(st.sampled_from(POOL), max_size=2).map(tuple),
    )


OPINIONS = st.tuples(*[st.none() | opinion_of(name) for name in "qrst"]).map(lambda some: [o for o in some if o])
OWN = st.lists(
    st.builds(
        found, st.sampled_from(["invalid", "violation", "repeat"]), st.sampled_from([0, 1, None]), st.sampled_from("xy")
    ),
    max_size=2,
)
ACTIONS = st.sampled_from(["refuse", "hold", "release", "substitute"])
SANE = st.fixed_dictionaries(
    {word.value: ACTIONS for word in Word if word not in {Word.MATCH, Word.EQUIVALENT}}
)  # what agrees is released
ANY = st.fixed_dictionaries(
    {word.value: ACTIONS.filter(lambda action: action != "substitute") for word in (Word.MATCH, Word.EQUIVALENT)}
).flatmap(lambda agreeing: SANE.map(lambda other: other | agreeing))
AGREE = st.integers(0, 3)
TWO = (A, ToolCall("ping"))
EXAMPLES = settings(max_examples=100, deadline=None)


@EXAMPLES
@given(ANY, AGREE, OPINIONS, OWN, st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_opinions_never_matters(
    on: dict[str, str], agree: int, opinions: list[Opinion], own: list[Finding], expired: bool, person: bool,  # noqa: FBT001
    order: random.Random,
) -> None:  # fmt: skip
    def judged(some: list[Opinion]) -> Verdict | None:
        return judge(policy(agree, on), some, own=own, calls=TWO, expired=expired, wants_person=person)

    assert judged(opinions) == judged(order.sample(opinions, len(opinions)))


@EXAMPLES
@given(ANY, AGREE, OPINIONS, OWN, st.booleans(), opinion_of("twin", twin=True))
def test_a_twin_changes_nothing_but_the_record(
    on: dict[str, str], agree: int, opinions: list[Opinion], own: list[Finding], expired: bool, twin: Opinion  # noqa: FBT001
) -> None:  # fmt: skip
    without = judge(policy(agree, on), opinions, own=own, calls=TWO, expired=expired)
    beside = judge(policy(agree, on), [*opinions, twin], own=own, calls=TWO, expired=expired)
    assert (without is None) == (beside is None)
    if without is not None and beside is not None:
        assert replace(beside, findings=without.findings) == without
        assert set(beside.findings) - set(without.findings) <= {("twin", f) for f in twin.findings or ()}


@EXAMPLES
@given(ANY, AGREE, OPINIONS, OWN)
def test_it_is_always_decided_in_the_end_and_nothing_given_is_lost(
    on: dict[str, str], agree: int, opinions: list[Opinion], own: list[Finding]
) -> None:
    verdict = decided(policy(agree, on), opinions, own=own, calls=TWO, expired=True)
    assert verdict.findings[: len(own)] == tuple((NONE, finding) for finding in own)
    for opinion in opinions:
        for finding in opinion.findings or ():
            assert (opinion.shadow, finding) in verdict.findings
    assert (verdict.substitute is not None) == (verdict.action is Action.SUBSTITUTE)
    assert bool(verdict.agreed) <= (verdict.word not in {Word.MISMATCH, Word.UNVERIFIED})


@EXAMPLES
@given(SANE, AGREE, OPINIONS, OWN, st.data())
def test_what_was_decided_stays_when_more_opinions_come(
    on: dict[str, str], agree: int, opinions: list[Opinion], own: list[Finding], data: st.DataObject
) -> None:
    early = judge(policy(agree, on), opinions, own=own, calls=TWO)
    later = [data.draw(opinion_of(o.shadow, twin=o.twin)) if o.findings is None else o for o in opinions]
    late = judge(policy(agree, on), later, own=own, calls=TWO)
    if early is not None:
        assert late is not None
        assert late.action is early.action
        assert late.substitute == early.substitute
        assert set(early.agreed) <= set(late.agreed)


@EXAMPLES
@given(SANE, AGREE, OPINIONS, OWN, st.booleans())
def test_one_more_that_agrees_never_makes_it_worse(
    on: dict[str, str], agree: int, opinions: list[Opinion], own: list[Finding], expired: bool  # noqa: FBT001
) -> None:  # fmt: skip
    yes = Opinion("zz", twin=False, findings=_findings([Word.MATCH, Word.MATCH], missing=False), calls=TWO)
    on = {word: "refuse" if action == "substitute" else action for word, action in on.items()}
    before = judge(policy(agree, on), opinions, own=own, calls=TWO, expired=expired)
    after = judge(policy(agree, on), [*opinions, yes], own=own, calls=TWO, expired=expired)
    if before is not None and after is not None:
        assert strength(after.action) <= strength(before.action)


@EXAMPLES
@given(SANE, AGREE, OPINIONS, OWN, st.booleans())
def test_one_more_that_differs_never_makes_it_better(
    on: dict[str, str], agree: int, opinions: list[Opinion], own: list[Finding], expired: bool  # noqa: FBT001
) -> None:  # fmt: skip
    no = Opinion("zz", twin=False, findings=_findings([Word.MATCH, Word.MISMATCH], missing=False))
    on = {word: "refuse" if action == "substitute" else action for word, action in on.items()} | {"mismatch": "refuse"}
    before = judge(policy(agree, on), opinions, own=own, calls=TWO, expired=expired)
    after = judge(policy(agree, on), [*opinions, no], own=own, calls=TWO, expired=expired)
    if before is not None and after is not None:
        assert strength(after.action) >= strength(before.action)


@EXAMPLES
@given(ANY, AGREE, OPINIONS, OWN, st.booleans())
def test_nothing_is_released_that_any_own_finding_refuses_or_that_no_quorum_carries(
    on: dict[str, str], agree: int, opinions: list[Opinion], own: list[Finding], expired: bool  # noqa: FBT001
) -> None:  # fmt: skip
    rules = policy(agree, on)
    verdict = judge(rules, opinions, own=own, calls=TWO, expired=expired)
    if verdict is None or verdict.action is not Action.RELEASE:
        return
    assert all(action_for(rules, finding) is Action.RELEASE for finding in own)
    if agree and len(verdict.agreed) < agree:
        voters = {NONE, *(opinion.shadow for opinion in opinions if not opinion.twin)}
        heard = [finding for shadow, finding in verdict.findings if shadow in voters]
        differing = [finding for finding in heard if finding.word not in {Word.MATCH, Word.EQUIVALENT}]
        assert differing
        assert all(action_for(rules, finding) is Action.RELEASE for finding in differing)


@EXAMPLES
@given(SANE, AGREE, OPINIONS, OWN)
def test_a_substitute_has_as_many_references_behind_it_as_must_agree(
    on: dict[str, str], agree: int, opinions: list[Opinion], own: list[Finding]
) -> None:
    verdict = decided(policy(agree, on | {"mismatch": "substitute"}), opinions, own=own, calls=TWO, expired=True)
    if verdict.substitute is not None:
        voters = [opinion for opinion in opinions if not opinion.twin and opinion.findings is not None]
        kinds = [{match.kind for match in match_calls(voter.calls, verdict.substitute)} for voter in voters]
        assert kinds.count({"match"}) >= agree >= 1
