"""The `policy:` part of the configuration: what it becomes, and what is said of its faults and oddities."""

import itertools
import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from proxy import policies
from proxy.configfile import load
from proxy.errors import ConfigError
from proxy.fields import Section
from proxy.policies import PolicySettings
from proxy.settings import Settings
from validators import ComparePolicy, Word, parse_arguments
from validators.policy import Action, RepeatPolicy
from validators.rules import RequestFacts, Sets, holds

PRIMARY = "primary: {base_url: http://vllm:8000/v1}\n"
SHADOWS = "shadows:\n- {name: a, base_url: http://a/v1}\n- {name: b, base_url: http://b/v1, role: twin}\n"


def read(tmp_path: Path, text: str, env: dict[str, str] | None = None) -> Settings:
    file = tmp_path / "cp.yaml"
    file.write_text(PRIMARY + text)
    return load(file, {}, env or {})


def faults(tmp_path: Path, text: str, env: dict[str, str] | None = None) -> list[str]:
    """The lines of the error, the file's folder taken off."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, env)
    return [problem.replace(f"{tmp_path}{os.sep}", "") for problem in caught.value.problems]


def policy(**terms: Any) -> PolicySettings:
    return PolicySettings.model_validate(terms)


# -- what it becomes


def test_nothing_said_is_the_contract_s_default(tmp_path: Path) -> None:
    settings = read(tmp_path, "").policy
    of = settings.compiled(1).of("anything")
    refused = {word for word in Word if of.on[word] is Action.REFUSE}
    assert refused == {Word.INVALID, Word.VIOLATION, Word.REPEAT, Word.MISMATCH}
    assert set(of.on.values()) == {Action.REFUSE, Action.RELEASE}
    assert (of.verify_timeout, of.approval_timeout, of.risk, of.rules, of.approve) == (10.0, 300.0, "normal", (), None)
    assert (settings.unverifiable_paths, settings.refusal, settings.hold_keepalive) == ("refuse", "message", None)


def test_the_contract_s_example(tmp_path: Path) -> None:
    (tmp_path / "interfaces.txt").write_text("eth0\n")
    settings = read(
        tmp_path,
        SHADOWS
        + """
mode: block
policy:
  agree: 1
  default: {on: {invalid: refuse, violation: refuse, mismatch: refuse, unverified: release}, verify_timeout: 10s}
  unverifiable_paths: refuse
  tools:
    - match: run_command
      risk: high
      on: {unverified: refuse}
      approve: args.command.startsWith("conf")
      approval_timeout: 5m
      approvers: 1
      compare: {ignore: [/reason], unordered: [/ids], casefold: [/command], tolerance: 0.01}
      repeat: {window: 10m, key: [/device, /command]}
      rules:
        - {id: known-interface, cel: 'in_set(args.interface, "interfaces")', message: "no such interface"}
  sets: {interfaces: {file: interfaces.txt}, more: {inline: [a, b]}}
  headers: [X-Tenant, x-team]
  refusal: message
  hold_keepalive: null
""",
    )
    assert settings.mode == "block"
    compiled = settings.policy.compiled(1)
    assert compiled.agree == 1
    tool = compiled.of("Run-Command")
    assert (tool.risk, tool.on[Word.UNVERIFIED], tool.on[Word.MISMATCH]) == ("high", Action.REFUSE, Action.REFUSE)
    assert (tool.verify_timeout, tool.approval_timeout, tool.approvers) == (10.0, 300.0, 1)
    assert tool.compare == ComparePolicy(("/reason",), ("/ids",), ("/command",), Decimal("0.01"))
    assert tool.repeat == RepeatPolicy(600.0, ("/device", "/command"))
    assert [(rule.id, rule.message) for rule in tool.rules] == [("known-interface", "no such interface")]
    assert settings.policy.headers == ("x-team", "x-tenant")
    assert compiled.of("ping").on[Word.UNVERIFIED] is Action.RELEASE


@pytest.mark.parametrize(
    ("agree", "references", "asked"), [(None, 0, 0), (None, 1, 1), (None, 3, 1), (0, 3, 0), (2, 3, 2)]
)
def test_how_many_must_agree(agree: int | None, references: int, asked: int) -> None:
    assert policy(agree=agree).compiled(references).agree == asked


def test_the_default_s_terms_hold_where_a_tool_says_nothing() -> None:
    compiled = policy(
        default={
            "on": {"mismatch": "hold"},
            "approve": "args.n > 1",
            "rules": [{"id": "all", "cel": "args.n > 0"}],
            "repeat": {},
            "compare": {"ignore": ["/why"]},
            "risk": "low",
        },
        tools=[
            {"match": "send*", "rules": [{"id": "own", "cel": "args.n < 9"}], "on": {"near_tie": "refuse"}},
            {"match": "quiet", "approve": False, "risk": "high"},
        ],
    ).compiled(1)
    send, quiet, other = compiled.of("send_it"), compiled.of("quiet"), compiled.of("other")
    assert [rule.id for rule in send.rules] == ["all", "own"]
    assert [rule.id for rule in other.rules] == ["all"]
    assert (send.on[Word.MISMATCH], send.on[Word.NEAR_TIE]) == (Action.HOLD, Action.REFUSE)
    assert (send.compare, send.repeat, send.risk) == (ComparePolicy(("/why",)), RepeatPolicy(600.0), "low")
    assert send.approve is not None
    assert quiet.approve is not None
    assert (send.approve.cel, quiet.approve.cel, quiet.risk) == ("args.n > 1", "false", "high")


@pytest.mark.parametrize(
    ("written", "asks"),
    [("true", True), ("'true'", True), ("false", False), ('args.command.startsWith("conf")', True)],
)
def test_who_needs_a_person(tmp_path: Path, written: str, asks: bool) -> None:  # noqa: FBT001
    tool = read(tmp_path, f"policy: {{tools: [{{match: run, approve: {written}}}]}}\n").policy.compiled(0).of("run")
    assert tool.approve is not None
    arguments = parse_arguments('{"command": "conf t"}')
    assert holds(tool.approve, "run", arguments, RequestFacts("m"), Sets()) is asks


def test_on_and_off_are_words(tmp_path: Path) -> None:
    text = (
        "mode: off\npolicy:\n  default:\n    on:\n      mismatch: hold\n  tools: [{match: a, on: {repeat: release}}]\n"
    )
    settings = read(tmp_path, text)
    assert settings.mode == "off"
    assert settings.policy.default.on == {Word.MISMATCH: Action.HOLD}
    assert settings.policy.tools[0].on == {Word.REPEAT: Action.RELEASE}


def test_durations_are_read_everywhere(tmp_path: Path) -> None:
    text = """
policy:
  default: {verify_timeout: 500ms, approval_timeout: 2h, repeat: {window: 1d}}
  hold_keepalive: 15s
  status_wait: 3
"""
    settings = read(tmp_path, text).policy
    default = settings.default
    assert (default.verify_timeout, default.approval_timeout) == (0.5, 7200.0)
    assert default.repeat is not None
    assert (default.repeat.window, settings.hold_keepalive, settings.status_wait) == (86_400.0, 15.0, 3.0)


# -- which wins


def test_nested_keys_come_from_the_environment_too(tmp_path: Path) -> None:
    env = {
        "COUNTERPROOF_MODE": "block",
        "COUNTERPROOF_POLICY__AGREE": "0",
        "COUNTERPROOF_POLICY__DEFAULT__ON__MISMATCH": "hold",
        "COUNTERPROOF_POLICY__DEFAULT__VERIFY_TIMEOUT": "3s",
        "COUNTERPROOF_POLICY__DEFAULT__REPEAT__WINDOW": "1m",
        "COUNTERPROOF_POLICY__DEFAULT__RULES": '[{"id": "few", "cel": "args.n < 2"}]',
        "COUNTERPROOF_POLICY__TOOLS": '[{"match": "send", "on": {"repeat": "refuse"}}]',
        "COUNTERPROOF_POLICY__HEADERS": '["X-Tenant"]',
        "COUNTERPROOF_POLICY__SETS": '{"names": {"inline": ["a", "b"]}}',
        "COUNTERPROOF_POLICY__REFUSAL": "error",
    }
    settings = read(tmp_path, "policy: {agree: 1, default: {on: {mismatch: refuse, near_tie: hold}}}\n" + SHADOWS, env)
    found = settings.policy
    assert settings.mode == "block"
    assert (found.agree, found.refusal, found.headers) == (0, "error", ("x-tenant",))
    assert found.default.on == {Word.MISMATCH: Action.HOLD, Word.NEAR_TIE: Action.HOLD}  # beside what the file says
    assert found.default.verify_timeout == 3.0
    assert [rule.id for rule in found.compiled(0).of("x").rules] == ["few"]
    assert found.tools[0].match == "send"
    assert found.sets["names"].inline == ("a", "b")


@pytest.mark.parametrize(
    ("env", "fault"),
    [
        (
            {"COUNTERPROOF_POLICY__DEFAULT__ON__MISMATCH": "hld"},
            "environment: COUNTERPROOF_POLICY__DEFAULT__ON__MISMATCH: policy.default.on.mismatch: Input should be ",
        ),
        (
            {"COUNTERPROOF_POLICY__DEFAULT__APPROVE": "args."},
            "environment: COUNTERPROOF_POLICY__DEFAULT__APPROVE: policy.default.approve: rule 'approve', column 6: ",
        ),
        (
            {"COUNTERPROOF_POLICY__TOOLS": '[{"match": "a", "rules": [{"id": "x", "cel": "1"}]}]'},
            "environment: COUNTERPROOF_POLICY__TOOLS__RULES__CEL: policy.tools.0.rules.0.cel: rule 'x': ",
        ),
    ],
)
def test_faults_of_the_environment_are_told_as_its_own(tmp_path: Path, env: dict[str, str], fault: str) -> None:
    (found,) = faults(tmp_path, "", env)
    assert found.startswith(fault), found


# -- faults, with their line


ON = "policy:\n  default:\n    on:\n      match: release\n"
TOOLS = "policy:\n  tools:\n    - match: send\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ON + "      mismatch: rlease\n", ["cp.yaml:6: policy.default.on.mismatch: Input should be 'refuse', "]),
        (ON + "      mismtch: hold\n", ["cp.yaml:6: policy.default.on.mismtch: Input should be 'invalid', "]),
        (ON + "      mismatch: off\n", ["cp.yaml:6: policy.default.on.mismatch: Input should be 'refuse'"]),
        (ON + "      mismatch:\n", ["cp.yaml:6: policy.default.on.mismatch: Input should be 'refuse'"]),
        ("policy:\n  default: {on: [refuse]}\n", ["cp.yaml:3: policy.default.on: Input should be a valid dictionary"]),
        ("policy:\n  default:\n    on:\n", ["cp.yaml:4: policy.default.on: Input should be a valid dictionary"]),
        (
            TOOLS + "      on:\n        match: substitute\n",
            ["cp.yaml:4: policy.tools.0: match: the reference's call is the same call, there is nothing to substitute"],
        ),
        ("policy:\n  tools:\n  - risk: high\n", ["cp.yaml:4: policy.tools.0.match: is missing"]),
        (TOOLS + "      rsk: high\n", ["cp.yaml:5: policy.tools.0.rsk: unknown key; did you mean 'risk'?"]),
        (TOOLS + "      risk: higher\n", ["cp.yaml:5: policy.tools.0.risk: Input should be 'low', 'normal' or 'high'"]),
        (TOOLS + "      compare: {ignor: []}\n", ["cp.yaml:5: policy.tools.0.compare.ignor: unknown key; did"]),
        (TOOLS + "      repeat: {windw: 1m}\n", ["cp.yaml:5: policy.tools.0.repeat.windw: unknown key; did you mean"]),
        (TOOLS + "      rules: [{id: a, sel: 'x'}]\n", [
            "cp.yaml:5: policy.tools.0.rules.0.cel: is missing",
            "cp.yaml:5: policy.tools.0.rules.0.sel: unknown key; did you mean 'cel'?",
        ]),
        (TOOLS + "    - match: '--'\n", ["cp.yaml:5: policy.tools.1: '--' names no tool: it holds no letter"]),
        (TOOLS + "    - match: ''\n", ["cp.yaml:5: policy.tools.1.match: "]),
        (TOOLS + "    - match: '[ab]'\n", ["cp.yaml:5: policy.tools.1: '[ab]': sets in brackets are not supported"]),
        (TOOLS + "      verify_timeout: soon\n", ["cp.yaml:5: policy.tools.0.verify_timeout: a duration like"]),
        (TOOLS + "      approval_timeout: 0s\n", ["cp.yaml:5: policy.tools.0.approval_timeout: Input should be"]),
        (TOOLS + "      approval_timeout: .inf\n", ["cp.yaml:5: policy.tools.0.approval_timeout: Input should be a"]),
        ("policy:\n  status_wait: .inf\n", ["cp.yaml:3: policy.status_wait: Input should be a finite number"]),
        ("policy:\n  hold_keepalive: .nan\n", ["cp.yaml:3: policy.hold_keepalive: "]),
        ("policy:\n  defualt: {}\n", ["cp.yaml:3: policy.defualt: unknown key; did you mean 'default'?"]),
        ("policy:\n  agree: -1\n", ["cp.yaml:3: policy.agree: Input should be greater than or equal to 0"]),
        ("policy:\n  headers: ['x tenant']\n", ["cp.yaml:3: policy.headers: 'x tenant' is no header's name"]),
        ("policy:\n  refusal: loud\n", ["cp.yaml:3: policy.refusal: Input should be 'message' or 'error'"]),
        ("policy:\n", ["cp.yaml:2: policy: Input should be a valid dictionary"]),
        ("mode: blok\n", ["cp.yaml:2: mode: Input should be 'off', 'observe' or 'block'"]),
        ("mode: no\n", ["cp.yaml:2: mode: Input should be 'off', 'observe' or 'block'"]),
    ],
)  # fmt: skip
def test_a_fault_names_its_line_and_key(tmp_path: Path, text: str, expected: list[str]) -> None:
    found = faults(tmp_path, text)
    assert len(found) == len(expected), found
    for line, beginning in zip(found, expected, strict=True):
        assert line.startswith(beginning), line


@pytest.mark.parametrize(
    ("compare", "fault"),
    [
        ("ignore: [reason]", "'reason' is no JSON pointer: it must begin with /"),
        ("unordered: [ids/]", "'ids/' is no JSON pointer: it must begin with /"),
        ("casefold: ['#/a']", "'#/a' is no JSON pointer: it must begin with /"),
        ("ignore: ['']", "ignoring the root would compare nothing"),
        ("tolerance: -1", "a tolerance is a number from 0 on"),
    ],
)
def test_faults_of_what_is_compared(tmp_path: Path, compare: str, fault: str) -> None:
    text = TOOLS + f"      risk: high\n      compare: {{{compare}}}\n"
    assert faults(tmp_path, text) == [f"cp.yaml:6: policy.tools.0.compare: {fault}"]


@pytest.mark.parametrize(
    ("repeat", "fault"),
    [
        ("key: [device]", "repeat: 'device' is no JSON pointer: it must begin with /"),
        ("key: [/a/*]", "repeat: '/a/*': a repeat's key names its places one by one, without *"),
        ("window: .inf", "repeat.window: Input should be a finite number"),
        ("window: 0", "repeat.window: Input should be greater than 0"),
    ],
)
def test_faults_of_what_is_a_repeat(tmp_path: Path, repeat: str, fault: str) -> None:
    text = TOOLS + f"      risk: high\n      repeat: {{{repeat}}}\n"
    assert faults(tmp_path, text) == [f"cp.yaml:6: policy.tools.0.{fault}"]


def test_a_repeat_s_key_that_is_not_compared(tmp_path: Path) -> None:
    text = TOOLS + "      repeat: {key: [/device]}\n      compare: {ignore: [/device]}\n"
    (fault,) = faults(tmp_path, text)
    assert fault == "cp.yaml:4: policy.tools.0: repeat: the key '/device' is ignored by compare ('/device')"


RULES = TOOLS + "      rules:\n        - id: first\n          message: no\n          cel: "


@pytest.mark.parametrize(
    ("cel", "fault"),
    [
        ("'args.n <'", "rule 'first', column 9: the expression ends too early"),
        ("'args.n = 1'", "rule 'first', column 8: '= ' is no part of CEL"),
        ("'arg.n < 1'", "rule 'first', column 1: unknown "),
        ("'args.n.hash() < 1'", "rule 'first', column 8: unknown function 'hash'"),
        ("'args.n + 1'", "rule 'first'"),
        ("''", "rule 'first', column 1: the expression ends too early"),
        ("'in_set(args.x, \"hosts\")'", "rule 'first', column 16: there is no set 'hosts'"),
        ("'args.s.matches(\"[\")'", "rule 'first', column 16: "),
        (f"'{'a' * 5000}'", "rule 'first': longer than 4096 characters"),
        ("|\n            args.a < 1 &&\n            args.b <\n", "rule 'first', line 3, column 1: the expression ends"),
        ("|\n            args.a < 1 &&\n            foo(args.b)\n", "rule 'first', line 2, column 1: unknown function"),
    ],
)  # fmt: skip
def test_a_bad_rule_names_line_rule_column_and_reason(tmp_path: Path, cel: str, fault: str) -> None:
    (found,) = faults(tmp_path, RULES + cel + "\n")
    assert found.startswith(f"cp.yaml:8: policy.tools.0.rules.0.cel: {fault}"), found


def test_all_bad_rules_are_named_at_once(tmp_path: Path) -> None:
    text = """policy:
  default:
    approve: args.
    rules: [{id: a, cel: 'args.n <'}]
  tools:
    - match: send
      approve: ''
      rules:
        - {id: b, cel: 'args.n < 1'}
        - {id: c, cel: 'in_set(args.n, "none")'}
    - match: '[x]'
"""
    assert [fault.split(": ")[:2] for fault in faults(tmp_path, text)] == [
        ["cp.yaml:5", "policy.default.rules.0.cel"],
        ["cp.yaml:4", "policy.default.approve"],
        ["cp.yaml:11", "policy.tools.0.rules.1.cel"],
        ["cp.yaml:8", "policy.tools.0.approve"],
        ["cp.yaml:12", "policy.tools.1"],
    ]


@pytest.mark.parametrize("identity", ["", "Known", "-a", "a b", "a" * 64])
def test_a_rule_s_id_is_a_plain_word(tmp_path: Path, identity: str) -> None:
    (fault,) = faults(tmp_path, TOOLS + f"      rules: [{{id: '{identity}', cel: 'true'}}]\n")
    assert fault.startswith("cp.yaml:5: policy.tools.0.rules.0.id: ")


def test_two_rules_of_one_id_for_the_same_calls(tmp_path: Path) -> None:
    text = """policy:
  default: {rules: [{id: a, cel: 'true'}, {id: b, cel: 'true'}]}
  tools:
    - match: send
      rules:
        - {id: b, cel: 'true'}
        - {id: c, cel: 'true'}
        - {id: c, cel: 'true'}
    - match: post
      rules: [{id: c, cel: 'true'}]
"""
    words = "is the id of another rule for the same calls"
    assert faults(tmp_path, text) == [
        f"cp.yaml:7: policy.tools.0.rules.0.id: 'b' {words}",
        f"cp.yaml:9: policy.tools.0.rules.2.id: 'c' {words}",
    ]


@pytest.mark.parametrize(
    ("shadows", "agree", "references"), [("", 1, 0), (SHADOWS, 2, 1), (SHADOWS.replace("twin", "reference"), 3, 2)]
)
def test_more_must_agree_than_there_are(tmp_path: Path, shadows: str, agree: int, references: int) -> None:
    (fault,) = faults(tmp_path, f"policy:\n  agree: {agree}\n{shadows}")
    assert fault == (
        f"cp.yaml:3: policy.agree: {agree} references must countersign, and primary has {references} "
        "(twins never vote): none of its calls could ever be verified"
    )


def test_every_primary_needs_as_many(tmp_path: Path) -> None:
    text = SHADOWS + "policy:\n  agree: 1\nroutes:\n- {model: q, primary: {base_url: http://q/v1}}\n"
    (fault,) = faults(tmp_path, text)
    assert fault.startswith("cp.yaml:6: policy.agree: 1 references must countersign, and routes.0.primary has 0 ")
    assert read(tmp_path, text.replace("agree: 1", "agree: 0")).voters == {"routes.0.primary": 0, "primary": 1}


# -- what is allowed and cannot be meant


def test_globs_that_one_before_them_takes_are_told() -> None:
    found = policy(tools=[{"match": "get_*"}, {"match": "get-weather"}, {"match": "send"}, {"match": "GetW*"}])
    assert list(found.warnings(1)) == [
        "tools[1] ('get-weather') never applies: tools[0] ('get_*') takes all it could",
        "tools[3] ('GetW*') never applies: tools[0] ('get_*') takes all it could",
    ]


def test_what_has_no_effect_without_references_is_told() -> None:
    found = policy(
        default={"on": {"unverified": "refuse"}}, tools=[{"match": "send", "on": {"mismatch": "substitute"}}]
    )
    assert len(list(found.warnings(0))) == 3
    assert list(found.warnings(1)) == []


# -- which one it is


SAME = {"agree": 1, "default": {"on": {"mismatch": "hold", "match": "release"}}, "headers": ["A", "b"]}
REWRITTEN = [
    {"headers": ["B", "a", "b"], "default": {"on": {"match": "release", "mismatch": "hold"}}, "agree": 1},
    SAME | {"tools": [], "sets": {}, "refusal": "message", "status_wait": "20s"},
    SAME | {"default": {"on": {"mismatch": "hold", "match": "release"}, "verify_timeout": None}},
]
OTHERS: list[dict[str, Any]] = [
    {},
    SAME,
    SAME | {"agree": 0},
    SAME | {"headers": ["a"]},
    SAME | {"refusal": "error"},
    SAME | {"hold_keepalive": 5},
    SAME | {"status_wait": 5},
    SAME | {"unverifiable_paths": "release"},
    SAME | {"sets": {"a": {"inline": ["x"]}}},
    SAME | {"sets": {"a": {"inline": ["y"]}}},
    SAME | {"sets": {"b": {"inline": ["y"]}}},
    SAME | {"default": {"on": {"mismatch": "refuse", "match": "release"}}},
    SAME | {"default": {"approve": "true"}},
    SAME | {"default": {"approve": "false"}},
    SAME | {"default": {"verify_timeout": 3}},
    SAME | {"default": {"approval_timeout": 3}},
    SAME | {"default": {"risk": "high"}},
    SAME | {"default": {"compare": {"ignore": ["/a"]}}},
    SAME | {"default": {"compare": {"unordered": ["/a"]}}},
    SAME | {"default": {"compare": {"casefold": ["/a"]}}},
    SAME | {"default": {"compare": {"tolerance": "0.1"}}},
    SAME | {"default": {"repeat": {}}},
    SAME | {"default": {"repeat": {"window": 3}}},
    SAME | {"default": {"repeat": {"key": ["/a"]}}},
    SAME | {"default": {"rules": [{"id": "a", "cel": "true"}]}},
    SAME | {"default": {"rules": [{"id": "b", "cel": "true"}]}},
    SAME | {"default": {"rules": [{"id": "a", "cel": "args.n < 1"}]}},
    SAME | {"default": {"rules": [{"id": "a", "cel": "true", "message": "no"}]}},
    SAME | {"tools": [{"match": "a"}]},
    SAME | {"tools": [{"match": "b"}]},
    SAME | {"tools": [{"match": "a"}, {"match": "b"}]},
    SAME | {"tools": [{"match": "b"}, {"match": "a"}]},
]


def test_the_version_tells_policies_apart() -> None:
    versions = {policy(**terms).version for terms in OTHERS}
    assert len(versions) == len(OTHERS)
    assert all(len(version) == 16 for version in versions)


@pytest.mark.parametrize("terms", REWRITTEN)
def test_the_version_is_the_same_however_a_policy_is_written(terms: dict[str, Any]) -> None:
    assert policy(**terms).version == policy(**SAME).version


def test_a_policy_equals_itself_as_it_was_read_again(tmp_path: Path) -> None:
    text = "policy: {default: {on: {mismatch: hold}}, tools: [{match: a, rules: [{id: a, cel: 'true'}]}]}\n"
    assert read(tmp_path, text).policy == read(tmp_path, text).policy
    assert read(tmp_path, text).policy != read(tmp_path, text.replace("hold", "refuse")).policy


# -- what is said about it


def sections() -> Iterator[type[BaseModel]]:
    for found in vars(policies).values():
        if isinstance(found, type) and issubclass(found, Section) and found is not Section:
            yield found


@pytest.mark.parametrize("section", list(sections()), ids=lambda section: section.__name__)
def test_every_key_says_what_it_is(section: type[BaseModel]) -> None:
    for name, field in section.model_fields.items():
        assert field.description, name


def test_the_json_schema_can_be_made() -> None:
    text = json.dumps(Settings.model_json_schema())
    for words in ("release, refuse, substitute or hold", "a glob, without regard to case"):
        assert words in text


def test_no_two_rules_of_the_configuration_are_compiled_in_vain() -> None:
    """Each rule of the default is compiled once, whatever the number of tools."""
    found = policy(
        default={"rules": [{"id": "a", "cel": "true"}]}, tools=[{"match": name} for name in ("a", "b", "c")]
    ).compiled(1)
    rules = [found.of(name).rules[0] for name in ("a", "b", "c", "d")]
    assert all(a is b for a, b in itertools.pairwise(rules))
