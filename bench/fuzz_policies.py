"""Policy files for fuzzing: valid ones, changed in their text and in their values; what must hold of each.

Whatever stands in the file, it is a configuration or a `ConfigError` with a line for each fault; and a policy that is
accepted judges any call.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.fuzz_streams import junk
from proxy import refusal
from proxy.configfile import load
from proxy.errors import ConfigError
from proxy.policies import PolicySettings
from shadow.compare import judge_calls, unverified
from shadow.exchange import Dialect, Request
from shadow.judge import Case, Rulebook
from validators import ToolCall, Word
from validators.decision import Opinion
from validators.rules import Sets

MOST = 32 * 1024
LOAD_S, JUDGE_S = 5.0, 5.0
"""CPU seconds that a file, or one round of judging, may take at most; a usual one takes milliseconds."""

_ROOT = "primary: {base_url: http://vllm:8000/v1}\nshadows:\n- {name: a, base_url: http://a/v1}\nmode: block\n"
_FILES = (
    _ROOT
    + """policy:
  agree: 1
  default: {on: {invalid: refuse, violation: refuse, mismatch: hold, unverified: release}, verify_timeout: 10s}
  unverifiable_paths: refuse
  tools:
    - match: run_command
      risk: high
      on: {unverified: refuse}
      approve: args.command.startsWith("conf")
      approval_timeout: 5m
      compare: {ignore: [/reason], unordered: [/ids], casefold: [/command], tolerance: 0.01}
      repeat: {window: 10m, key: [/device, /command]}
      rules:
        - {id: known-interface, cel: 'in_set(args.interface, "interfaces")', message: "no such interface"}
        - {id: few, cel: 'args.n < 10 && size(args.ids) <= 3', message: "too many"}
  sets: {interfaces: {inline: [a, b]}, accounts: {inline: []}, lines: {file: lines.txt}}
  headers: [X-Tenant, x-team]
  refusal: message
  hold_keepalive: 15s
  status_wait: 20s
""",
    _ROOT
    + """policy:
  agree: 0
  default:
    on: {match: release, equivalent: release, near_tie: hold, sampled_choice: substitute, mismatch: substitute}
    rules:
    - id: short
      cel: size(args) < 5 && args.all(k, size(k) < 20)
    - {id: who, cel: 'request.model != "" && tool != "x" && request.headers.exists(h, h == "x-team")'}
  tools:
  - {match: "send*", compare: {ignore: [/a/*/b, "/*/c"], unordered: [/x, "/y/*"]}, repeat: {}}
  - {match: "*mail?", approve: "true"}
  - {match: "*", on: {repeat: release, violation: hold}, rules: [{id: t, cel: 'args.text.matches("^[a-z]+$")'}]}
  refusal: error
  unverifiable_paths: release
""",
    _ROOT + "policy: {tools: [{match: f, rules: [{id: a, cel: args.a == 1.0}, {id: b, cel: 'true'}]}]}\n",
    _ROOT + "policy: &all\n  default: {verify_timeout: 500ms}\n  tools: []\n",
)
_WORDS = (
    "", "0", "-1", "1e999", ".inf", ".nan", "null", "~", "true", "false", "on", "off", "2026-11-30", "[]", "{}",
    "[[[]]]", "*", "?", "**", "[a]", "''", '"\\ud800"', '"\\0"', "!!python/object:os.system", "!!binary aGk=",
    "!!set {a}", "&a", "*a", "<<: *all", "| x", "refuse", "release", "hold", "substitute", "match", "mismatch", "/a",
    "a", "/", "/*", "0s", "1d", "1e400s", "9" * 400, "0x10", "1_000", "args", "args.a", 'args["a"] in [1, 2]',
    "size(args.a) > 1", "in_set(args.a, 'accounts')", "1 / 0 == 1", "args.a.b.c == null",
    "args.map(k, args.map(j, k + j)) == []", "request.user == 'x'", "tool.matches('(a+)+$')", "${HOME}", "${", "é👩",
    "\u200b", "\ufeff", "\t", "---", "...", "%YAML 1.1", "# x", ": ", "- ", "? ",
)  # fmt: skip
_NAMES = (
    "run_command",
    "Run-Command",
    "send",
    "sendMail",
    "mail1",
    "f",
    "x",
    "",
    "\ud800",
    "é",
    "a" * 300,
    "run_command\0",
)
_ARGUMENTS = (
    "", "{}", "null", "[1]", "{", '{"a": 1}', '{"a": 1e999999999}', '{"n": 3, "ids": [3, 1, 2], "command": "conf t"}',
    '{"command": "\\ud800", "interface": "a", "device": {"x": []}, "n": 10.5, "ids": []}',
    '{"a": {"q": {"b": 1}}, "y": {"z": [1, 1]}}', '{"text": "abc", "reason": null, "x": [1, 1.0, 2]}',
    '{"a": ' + "[" * 200 + "]" * 200 + "}", '{"a": 1, "a": 2}', '{"text": "' + "a" * 5000 + '"}',
)  # fmt: skip


def policy_file(chance: random.Random) -> bytes:
    """A configuration with a policy, with up to four changes, most of them in the policy."""
    text = chance.choice(_FILES)
    if chance.random() < 0.4:
        text = _with_other_values(text, chance)
    raw = text.encode("utf-8", "surrogatepass")
    kept = 0 if chance.random() < 0.2 else max(0, raw.find(b"policy:"))
    head, tail = raw[:kept], raw[kept:]
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 4))):
        tail = chance.choice(_CHANGES)(tail, chance)[:MOST]
    return head + tail + b"\n# %d" % chance.getrandbits(32)  # so that other calls are drawn for the same policy


def _with_other_values(text: str, chance: random.Random) -> str:
    """The same file with some of the policy's values others, gone, or under another key, written anew."""
    value = yaml.load(text, Loader=yaml.BaseLoader)  # every value is a text
    for _ in range(chance.randint(1, 3)):
        _change_value(value["policy"], chance)
    policy = yaml.safe_dump({"policy": value["policy"]}, default_flow_style=chance.choice((None, True, False)))
    return _ROOT + str(policy).removeprefix("{").removesuffix("}\n")


def _change_value(value: Any, chance: random.Random) -> None:
    while isinstance(value, dict | list) and value:
        key: Any = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.8:
            value = value[key]
            continue
        match chance.randrange(4):
            case 0:
                value[key] = chance.choice((chance.choice(_WORDS), chance.choice((0, -1, 1.5, True, None, 10**30))))
            case 1:
                value[key] = [value[key]]
            case 2:
                del value[key]
            case _:
                value[key] = json.loads(json.dumps(junk(chance, 2)).replace("\\ud83d", "x"))
        return


def _change_lines(raw: bytes, chance: random.Random) -> bytes:
    lines = raw.split(b"\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(other, lines[at])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            lines[at] = b" " * chance.randint(1, 3) + lines[at]
        case _:
            lines[at] = lines[at][chance.randint(1, 3) :]
    return b"\n".join(lines)


def _change_word(raw: bytes, chance: random.Random) -> bytes:
    """One word or value in place of another, or beside it."""
    word = chance.choice(_WORDS).encode("utf-8", "surrogatepass")
    at = chance.randint(0, len(raw))
    begin = max(raw.rfind(mark, 0, at) for mark in (b" ", b"[", b"{", b",")) + 1
    ends = [found for mark in (b" ", b"\n", b",", b"}", b"]") if (found := raw.find(mark, at)) >= 0]
    end = min(ends, default=len(raw)) if chance.random() < 0.7 else begin
    return raw[:begin] + word + raw[end:]


def _change_bytes(raw: bytes, chance: random.Random) -> bytes:
    at = chance.randint(0, len(raw))
    until = min(len(raw), at + chance.choice((1, 1, 2, 8, 64)))
    match chance.randrange(3):
        case 0:
            return raw[:at] + bytes([chance.randrange(128 if chance.random() < 0.8 else 256)]) + raw[at + 1 :]
        case 1:
            return raw[:at] + raw[until:]
        case _:
            return raw[:until] + raw[at:]


_CHANGES: Sequence[Callable[[bytes, random.Random], bytes]] = (_change_lines, _change_word, _change_word, _change_bytes)


# -- what must hold


def _must(holds: object, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def loading(raw: bytes) -> None:
    """A file is a configuration, or a `ConfigError` that says why, a line for each fault; an accepted policy judges."""
    began = time.thread_time()
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        Path(file.name).write_bytes(raw)
        try:
            policy = load(Path(file.name), {}, {}).policy
        except ConfigError as error:
            _must(error.problems and all(problem.strip() for problem in error.problems), "an error without a line")
            _must(not any("\n" in problem for problem in error.problems), "a fault of more than one line")
            return
        finally:
            _must(time.thread_time() - began < LOAD_S, "reading a file takes too long")
    began = time.thread_time()
    judging(policy, random.Random(raw))
    _must(time.thread_time() - began < JUDGE_S, "judging takes too long")


def judging(policy: PolicySettings, chance: random.Random) -> None:
    """A policy judges any calls, with and without references, and what it refuses can be told."""
    _must(len(policy.version) == 16, "a policy without a version")
    for references in (0, 1, 2):
        _must(all(line and "\n" not in line for line in policy.warnings(references)), "a warning that is no line")
    sets = Sets(dict.fromkeys(policy.sets, ("a", "b")))
    book = Rulebook(policy.compiled(1), policy.version, policy.headers, sets=sets)
    for _ in range(4):
        calls, theirs = _calls(chance), _calls(chance)
        case = Case(book, _request(chance), chance.randbytes(4), "scope", {"x-team": "é"})
        own = case.own(calls)
        expired = chance.random() < 0.5
        opinions = [_opinion(f"s{i}", calls, theirs, case, chance) for i in range(chance.randint(0, 2))]
        verdict = case.decide(calls, own, opinions, expired=expired)
        if verdict is None:
            _must(not expired, "nothing is decided though time is out")
            continue
        _must(verdict.substitute is None or all(isinstance(c, ToolCall) for c in verdict.substitute), "no calls")
        case.settle(calls, verdict, released=chance.random() < 0.5)
        _must(refusal.text(verdict, "cp-1").startswith(refusal.PREFIX), "a refusal without its prefix")
        _must(case.verify_timeout(calls) >= 0, "a negative time-out")


def _opinion(
    shadow: str, calls: Sequence[ToolCall], theirs: Sequence[ToolCall], case: Case, chance: random.Random
) -> Opinion:
    match chance.randrange(4):
        case 0:
            findings = None
        case 1:
            findings = tuple(unverified(calls, "timeout"))
        case 2:
            theirs, findings = calls, tuple(judge_calls(calls, calls, differing=Word.MISMATCH))
        case _:
            word = chance.choice((Word.MISMATCH, Word.NEAR_TIE, Word.SAMPLED_CHOICE))
            findings = tuple(judge_calls(calls, theirs, differing=word, policy=case.rulebook.compare))
    return Opinion(shadow, twin=chance.random() < 0.1, findings=findings, calls=tuple(theirs), way="continue")


def _calls(chance: random.Random) -> tuple[ToolCall, ...]:
    def one() -> ToolCall:
        arguments = chance.choice(_ARGUMENTS) if chance.random() < 0.8 else json.dumps(junk(chance, 3))
        return ToolCall(chance.choice(_NAMES), arguments, chance.choice((None, "id")))

    return tuple(one() for _ in range(chance.choice((0, 1, 1, 1, 2, 3))))


def _request(chance: random.Random) -> Request:
    schemas: tuple[Any, ...] = (
        {},
        {"type": "object"},
        {"type": "object", "required": ["a"]},
        {"pattern": "("},
        None,
        7,
    )
    functions = [{"name": name, "parameters": chance.choice(schemas)} for name in chance.sample(_NAMES, 8)]
    history = [{"role": "assistant", "tool_calls": [{"function": {"name": "run_command", "arguments": "{}"}}]}]
    body = {"model": "m", "messages": history if chance.random() < 0.5 else [], "user": chance.choice((None, "u", 1))}
    return Request(Dialect.CHAT, body | {"tools": [{"type": "function", "function": f} for f in functions]})
