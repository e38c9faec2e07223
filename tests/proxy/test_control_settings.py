"""The `control:` section: tokens, what is exposed, and how a command finds the port."""

import hashlib
from pathlib import Path

import pytest

from proxy.configfile import control, load
from proxy.errors import ConfigError
from proxy.tokens import SCOPES, Token
from tests.secrets import secret

PRIMARY = "primary: {base_url: http://h/v1}\n"
TOKEN, OTHER = secret("ops", "ct"), secret("other", "ct")
ONE = f"tokens: [{{name: ops, token: {TOKEN}, scopes: [read, mode]}}]"
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()


def written(folder: Path, text: str) -> Path:
    path = folder / "cp.yaml"
    path.write_text(PRIMARY + text)
    return path


def test_without_anything_the_port_is_on_loopback_and_metrics_are_open(tmp_path: Path) -> None:
    found = load(written(tmp_path, ""), {}, {}).control
    assert (found.host, found.port, found.metrics, found.tokens, found.hosts) == ("127.0.0.1", 8081, "open", (), ())


@pytest.mark.parametrize("given", [f"token: {TOKEN}", f"sha256: {DIGEST}", f"sha256: {DIGEST.upper()}"])
def test_a_token_is_known_by_its_hash(tmp_path: Path, given: str) -> None:
    text = f"control: {{tokens: [{{name: ops, {given}, scopes: [read, mode]}}]}}\n"
    found = load(written(tmp_path, text), {}, {}).control.tokens[0]
    assert found.value() == Token("ops", bytes.fromhex(DIGEST), frozenset({"read", "mode"}))
    assert TOKEN not in repr(found) + repr(found.value())


def test_all_scopes_can_be_given(tmp_path: Path) -> None:
    text = f"control: {{tokens: [{{name: ops, sha256: {DIGEST}, scopes: [{', '.join(SCOPES)}]}}]}}\n"
    assert load(written(tmp_path, text), {}, {}).control.tokens[0].scopes == SCOPES


def test_tokens_can_come_from_the_environment(tmp_path: Path) -> None:
    environ = {"COUNTERPROOF_CONTROL__TOKENS": f'[{{"name": "ops", "sha256": "{DIGEST}", "scopes": ["read"]}}]'}
    assert load(written(tmp_path, ""), {}, environ).control.tokens[0].name == "ops"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_tokens(tmp_path: Path, host: str) -> None:
    assert load(written(tmp_path, f"control: {{host: '{host}'}}\n"), {}, {}).control.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "cp.example", ""])
def test_an_exposed_port_needs_tokens(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, f"control: {{host: '{host}'}}\n"), {}, {})
    assert "cp.yaml:2: control.host: is loopback only without control.tokens" in str(caught.value)
    if host:
        assert load(written(tmp_path, f"control: {{host: '{host}', {ONE}}}\n"), {}, {}).control.host == host


def test_what_the_port_is_called_by(tmp_path: Path) -> None:
    text = "control: {hosts: [cp.example, CP-1.internal, 10.0.0.5, 'fd00::1', localhost]}\n"
    assert load(written(tmp_path, text), {}, {}).control.hosts[0] == "cp.example"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{tokens: [{name: a, token: short, scopes: [read]}]}", "2: control.tokens.0: a token has at least 16 char"),
        ("{tokens: [{name: a, scopes: [read]}]}", "2: control.tokens.0: give either token or sha256"),
        (
            f"{{tokens: [{{name: a, token: {TOKEN}, sha256: {DIGEST}, scopes: [read]}}]}}",
            "2: control.tokens.0: give either token or sha256",
        ),
        (f"{{tokens: [{{name: a, token: 'ct {TOKEN}', scopes: [read]}}]}}", "2: control.tokens.0.token: a key is "),
        ("{tokens: [{name: a, sha256: abc, scopes: [read]}]}", "2: control.tokens.0.sha256: "),
        (f"{{tokens: [{{name: a, token: {TOKEN}}}]}}", "2: control.tokens.0.scopes: is missing"),
        (f"{{tokens: [{{name: a, token: {TOKEN}, scopes: []}}]}}", "2: control.tokens.0.scopes: "),
        (
            f"{{tokens: [{{name: a, token: {TOKEN}, scopes: [write]}}]}}",
            "2: control.tokens.0.scopes.0: Input should be 'read', 'metrics', 'mode', 'approve' or 'policy'",
        ),
        (f"{{tokens: [{{name: a b, token: {TOKEN}, scopes: [read]}}]}}", "2: control.tokens.0.name: "),
        (
            f"\n  {ONE[:-1]},\n  {{name: ops, token: {OTHER}, scopes: [mode]}}]",
            "4: control.tokens.1.name: 'ops' is the name of another token already",
        ),
        (
            f"\n  {ONE[:-1]},\n  {{name: b, token: {TOKEN}, scopes: [mode]}}]",
            "4: control.tokens.1: is the same token as another one",
        ),
        (
            f"{{{ONE}}}\nclient_keys: [{{name: agents, key: {TOKEN}}}]",
            "2: control.tokens.0: is the key of a client as well",
        ),
        ("{hosts: ['http://cp.example']}", "2: control.hosts.0: "),
        ("{hosts: ['cp.example:8081']}", "2: control.hosts.0: "),
        ("{hosts: ['*']}", "2: control.hosts.0: "),
        ("{hosts: ['']}", "2: control.hosts.0: "),
        ("{metrics: closed}", "2: control.metrics: Input should be 'open' or 'token'"),
        ("{tokenfile: x}", "2: control.tokenfile: unknown key; did you mean 'token_file'?"),
    ],
)
def test_a_fault_names_its_place_and_no_token(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, f"control: {text}\n"), {}, {})
    assert f"cp.yaml:{fault}" in str(caught.value)
    assert "0123456789abc" not in str(caught.value)


# -- where a command looks for the port


def test_a_command_finds_the_port_by_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "control: {port: 9100, token_file: t}\n")
    found = control(path, {"COUNTERPROOF_CONTROL__PORT": "9200"})
    assert (found.port, found.token_file) == (9200, Path("t"))


def test_without_a_file_by_the_environment_alone() -> None:
    assert control(None, {"COUNTERPROOF_CONTROL__PORT": "9200"}).port == 9200
    assert control(None, {}).port == 8081


def test_a_fault_of_the_environment_is_one_of_that() -> None:
    with pytest.raises(ConfigError) as caught:
        control(None, {"COUNTERPROOF_CONTROL__PORT": "many"})
    assert str(caught.value).startswith(
        "environment: COUNTERPROOF_CONTROL__PORT: control.port: Input should be a valid"
    )
