"""The `audit:` section, and how many people may have to approve a call."""

from pathlib import Path
from typing import Any

import pytest

from proxy.configfile import load
from proxy.errors import ConfigError
from proxy.settings import Settings
from tests.secrets import secret

PRIMARY = "primary: {base_url: http://h/v1}\n"
TOKENS = f"""control:
  tokens:
    - {{name: anna, token: {secret("anna", "ct")}, scopes: [approve]}}
    - {{name: bo, token: {secret("bo", "ct")}, scopes: [read, approve]}}
    - {{name: reader, token: {secret("reader", "ct")}, scopes: [read]}}
"""


def settings(folder: Path, text: str, environ: dict[str, str] | None = None) -> Settings:
    path = folder / "cp.yaml"
    path.write_text(PRIMARY + text)
    return load(path, {}, environ or {})


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "audit.jsonl"),
        ("ledger: {path: kept/l.db}\n", "kept/audit.jsonl"),
        ("ledger: {path: null}\n", None),
        ("audit: {path: null}\n", None),
        ("audit: {path: auto}\n", "audit.jsonl"),
        ("ledger: {path: null}\naudit: {path: a.jsonl}\n", "a.jsonl"),
        ("audit: {path: a/b.jsonl}\n", "a/b.jsonl"),
    ],
)
def test_where_the_audit_lies(tmp_path: Path, text: str, path: str | None) -> None:
    assert settings(tmp_path, text).audit_path == (None if path is None else Path(path))


def test_the_environment_says_where(tmp_path: Path) -> None:
    assert settings(tmp_path, "", {"COUNTERPROOF_AUDIT__PATH": "x.jsonl"}).audit_path == Path("x.jsonl")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("audit: {pth: x}\n", "audit.pth: unknown key; did you mean 'path'?"),
        ("audit: {receipts: none}\n", "audit.receipts: Input should be 'high' or 'all'"),
    ],
)
def test_faults_of_the_section(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, text)
    assert caught.value.problems == (f"{tmp_path}/cp.yaml:2: {fault}",)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "policy:\n  tools:\n    - {match: run, approvers: 2}\n",
            "4: policy.tools.0.approvers: 2 different people must",
        ),
        (
            "policy:\n  default: {approvers: 2}\n",
            "3: policy.default.approvers: 2 different people must approve, and 1 may",
        ),
        (
            TOKENS + "policy: {default: {approvers: 3}}\n",
            "7: policy.default.approvers: 3 different people must approve, and 2",
        ),
        (
            "policy: {default: {approvers: 0}}\n",
            "2: policy.default.approvers: Input should be greater than or equal to 1",
        ),
        (
            "policy: {default: {approvers: 11}}\n",
            "2: policy.default.approvers: Input should be less than or equal to 10",
        ),
    ],
)
def test_more_must_approve_than_may(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, text)
    (line,) = caught.value.problems
    assert line.startswith(f"{tmp_path}/cp.yaml:{fault}"), line


def test_two_may_have_to_approve_where_two_may(tmp_path: Path) -> None:
    found = settings(tmp_path, TOKENS + "policy: {default: {approvers: 2}, tools: [{match: run, approvers: 1}]}\n")
    policy: Any = found.policy.compiled(0)
    assert (policy.of("run").approvers, policy.of("send").approvers) == (1, 2)
