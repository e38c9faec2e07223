import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import fuzz, fuzz_checks, fuzz_policies, fuzz_refusals, fuzz_streams
from bench.fuzz import TARGETS, Target
from proxy import refusal
from proxy.configfile import load
from proxy.errors import ConfigError
from proxy.gates import chat_calls
from proxy.gates.chat import ChatGate
from shadow.judge import Case
from shadow.wire import sse
from shadow.wire.assembly import CallAssembler


def odd(data: bytes) -> None:
    """Fails for one input in two, and in two ways."""
    if data[0] % 4 == 0:
        raise AssertionError("divisible by four")
    if data[0] % 2 == 0:
        raise KeyError(data)


BROKEN = Target("No byte is even.", lambda chance: bytes([chance.randrange(256)]), odd)


@pytest.mark.parametrize("name", TARGETS)
def test_what_reads_untrusted_bytes_bears_a_short_run(name: str) -> None:
    executions = {"policy": 100, "refusal": 150}.get(name, 300)
    run = fuzz.fuzz(name, TARGETS[name], seed=1, executions=executions)
    assert run.executions == executions
    assert not run.failures, {place: failure.data.hex() for place, failure in run.failures.items()}


@pytest.mark.parametrize("name", TARGETS)
def test_the_inputs_of_a_seed_are_always_the_same(name: str) -> None:
    def drawn(seed: str) -> list[bytes]:
        return [TARGETS[name].make(random.Random(f"{seed} {i}")) for i in range(30)]

    assert drawn("a") == drawn("a")
    assert len(set(drawn("a") + drawn("b"))) > 55
    assert max(map(len, drawn("a"))) <= 2 * fuzz_streams.MOST


def test_a_share_of_the_policy_files_is_accepted_and_another_one_is_not(tmp_path: Path) -> None:
    file, accepted = tmp_path / "cp.yaml", 0
    for number in range(60):
        file.write_bytes(fuzz_policies.policy_file(random.Random(number)))
        with contextlib.suppress(ConfigError):
            accepted += load(file, {}, {}).policy is not None
    assert 8 <= accepted <= 52


def test_pieces_are_the_whole() -> None:
    for seed in range(50):
        body = random.Random(seed).randbytes(seed * 20)
        assert b"".join(fuzz_streams.pieces_of(body, random.Random(seed))) == body


def test_every_kind_of_failure_is_kept_once_with_its_input(tmp_path: Path) -> None:
    run = fuzz.fuzz("odd", BROKEN, seed=1, executions=100)
    assert run.executions == 100
    assert 30 < run.failed < 70
    first, second = sorted(run.failures)
    assert first.startswith("KeyError in odd, line ")
    assert second == "divisible by four"
    files = fuzz.save(run, tmp_path / "found")
    assert [bytes.fromhex(file.read_text()) for file in files] == [f.data for f in run.failures.values()]
    for failure in run.failures.values():
        assert BROKEN.make(random.Random(f"1 odd {failure.number}")) == failure.data


def test_the_command_says_what_failed_and_replays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TARGETS, "odd", BROKEN)
    result, found = tmp_path / "results" / "fuzz.md", tmp_path / "found"
    options = ["--executions", "60", "--failures", str(found), "--write"]
    assert fuzz.main(["sse", *options], result) == 0
    assert not found.exists()
    assert fuzz.main(["odd", *options], result) == 1
    said = capsys.readouterr().out
    assert "sse: 60 executions in " in said
    assert "  divisible by four (input " in said
    written = result.read_text()
    assert written.index("## odd") < written.index("No byte is even.") < written.index("\n- ") < written.index("## sse")
    assert "`python -m bench.fuzz odd --executions 60 --seed 1 --write`" in written
    (file, _) = sorted(found.iterdir())
    with pytest.raises((AssertionError, KeyError)):
        fuzz.main(["odd", "--replay", str(file)], result)
    assert fuzz.main(["sse", "--replay", str(file)], result) == 0


def test_a_section_of_the_results_is_rewritten_and_the_others_stay() -> None:
    text = fuzz.with_section("", "b", "## b\n\nfirst")
    text = fuzz.with_section(text, "a", "## a\n\nof a\n- one")
    text = fuzz.with_section(text, "b", "## b\n\nsecond")
    head, *rest = text.split("\n\n## ")
    assert head.startswith("# Fuzzing\n")
    assert rest == ["a\n\nof a\n- one", "b\n\nsecond\n"]
    assert fuzz.with_section(text, "b", "## b\n\nsecond") == text


# -- what the checks notice


def found_by(name: str) -> set[str]:
    return set(fuzz.fuzz(name, TARGETS[name], seed=3, executions=60).failures)


def test_a_splitter_that_overlooks_a_blank_line_in_two_pieces_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Overlooking(sse.Splitter):
        def feed(self, chunk: bytes) -> list[bytes]:  # type: ignore[override]
            blocks = list(super().feed(chunk))
            self._last = b""
            return blocks

    monkeypatch.setattr(sse, "Splitter", Overlooking)
    assert "a cut changes what is read" in found_by("sse")
    assert "a cut changes the answer" in found_by("calls")


def test_an_assembler_that_does_not_look_at_ids_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    find = CallAssembler._find

    def last_or_index(
        self: CallAssembler, index: int | None, call_id: str | None, function: dict[str, object]
    ) -> object:
        return self._calls[-1] if self._calls and index is None else find(self, index, call_id, function)

    monkeypatch.setattr(CallAssembler, "_find", last_or_index)
    assert "known calls are put together in another way" in found_by("calls")


@pytest.mark.parametrize(
    ("instead", "claim"),
    [
        (lambda _: None, "a refused call is there for some reader"),
        (lambda given: given or b"", "released, it is not what observe mode sends"),
    ],
)
def test_a_gate_that_does_something_else_than_was_decided_is_noticed(
    monkeypatch: pytest.MonkeyPatch, instead: Callable[[bytes | None], bytes | None], claim: str
) -> None:
    decide = ChatGate.decide
    monkeypatch.setattr(ChatGate, "decide", lambda gate, index, given: decide(gate, index, instead(given)))
    assert claim in found_by("refusal")


def test_a_gate_that_looks_for_one_kind_of_call_only_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_calls, "_CALL_KEYS", frozenset({"function_call"}))
    monkeypatch.setattr(chat_calls, "_CALL_KEYS_FOLDED", frozenset({"functioncall"}))
    assert "a refused call is there for some reader" in found_by("refusal")


def test_a_refusal_without_bounds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal, "short", lambda text, *_: text)
    assert {"a text without end", "a text that steers a terminal, or no text"} <= found_by("refusal")


def test_a_fault_without_a_line_and_a_policy_that_cannot_judge_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConfigError, "__init__", lambda error, *_: setattr(error, "problems", ()))
    monkeypatch.setattr(Case, "wants_person", lambda _case, calls: [calls[9]])
    found = found_by("policy")
    assert "an error without a line" in found
    assert any(place.startswith("IndexError") for place in found)


@pytest.mark.parametrize(
    "payload",
    [
        b'data: {"choices":[{"delta":{"tool_calls":[{"id":"a"}]}}]}\n\n',
        b'data:{"function_call":{"name":"f"}}',
        b': c\rdata: {"a":[{"tool_calls":"f"}]}\r',
        b'data: {"tool_calls":[1],"tool_calls":[]}\n\n',
        b'data: {"tool\\u005fcalls":{"a":1}}\n\n',
        b'data: {"tool_calls":[{\n\n',
    ],
)
def test_some_reader_finds_every_call(payload: bytes) -> None:
    assert fuzz_refusals._calls_in(b'data: {"choices":[]}\n\n' + payload) is not None


def test_no_reader_finds_calls_where_there_are_none() -> None:
    text = b'data: {"choices":[{"delta":{"content":"tool_calls","tool_calls":[]},"finish_reason":"tool_calls"}]}\n\n'
    assert fuzz_refusals._calls_in(text + b": tool_calls\n\ndata: [DONE]\n\n") is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n\n",
        b"\xef\xbb\xbfdata: x\n\n",
        b"data: a\rdata\r\n: c\nid: 1\ndata:  b\n\ndata: unended\n",
        b"data\r\r",
    ],
)
def test_the_plain_reader_reads_as_the_format_has_it(body: bytes) -> None:
    fuzz_checks.splitting(body)
    assert fuzz_checks._read_plainly(b"data: a\rdata\r\n: c\ndata:  b\n\ndata: c\n") == [b"a\n\n b"]
