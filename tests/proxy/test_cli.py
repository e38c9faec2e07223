"""What a user types and what comes back: one clear line for each fault, exit code 2, nothing half-started."""

import json
import socket
import threading
from pathlib import Path

import pytest

from proxy.ledger import Ledger
from tests.proxy.commandline import Run
from tests.secrets import secret

PRIMARY = "primary: {base_url: http://127.0.0.1:9/v1}\n"

FAULTS = {
    "an unknown key": (
        PRIMARY + "mirror:\n  othr: 0.5\n",
        "c.yaml:3: mirror.othr: unknown key; did you mean 'other'?",
    ),
    "an unknown section": (PRIMARY + "shadow: []\n", "c.yaml:2: shadow: unknown key; did you mean 'shadows'?"),
    "a URL without a scheme": ("primary: {base_url: vllm:8000/v1}\n", "c.yaml:1: primary.base_url: "),
    "a URL with a bad port": ("primary: {base_url: http://vllm:99999/v1}\n", "c.yaml:1: primary.base_url: not a URL"),
    "an unset variable": (
        "primary:\n  base_url: http://h/v1\n  api_key: ${COUNTERPROOF_NOT_SET_ANYWHERE}\n",
        "c.yaml:3: primary.api_key: the environment variable COUNTERPROOF_NOT_SET_ANYWHERE is not set",
    ),
    "two shadows of one name": (
        PRIMARY + "shadows:\n  - {name: a, base_url: http://x/v1}\n  - {name: a, base_url: http://y/v1}\n",
        "c.yaml:4: shadows.1.name: 'a' is the name of another shadow already",
    ),
    "a shadow that is the primary": (
        PRIMARY + "shadows:\n  - {name: a, base_url: http://localhost:9/v1/}\n",
        "c.yaml:3: shadows.0.base_url: is the primary itself",
    ),
    "one port for both": (PRIMARY + "listen: {port: 7000}\ncontrol: {port: 7000}\n", "c.yaml:3: control.port: "),
    "no YAML": ("primary: {base_url: [\n", "c.yaml:2: not YAML"),
    "a list": ("- primary\n", "c.yaml: a mapping was expected"),
    "nothing": ("", "c.yaml: is empty"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_fault_in_the_file_is_one_line_with_its_place(run: Run, tmp_path: Path, name: str, command: str) -> None:
    text, expected = FAULTS[name]
    (tmp_path / "c.yaml").write_text(text)
    code, out, err = run(command, "--config", "c.yaml")
    assert code == 2
    assert out == ""
    assert err.startswith(f"counterproof: {expected}")
    assert err.count("\n") == 1
    assert not (tmp_path / "counterproof.db").exists()


def test_every_fault_has_a_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("primary: {base_url: x}\nmirror: {other: 3, nope: 1}\n")
    code, _out, err = run("serve", "-c", "c.yaml")
    assert code == 2
    assert err.count("\n") == 3


def test_an_unreadable_file(run: Run, tmp_path: Path) -> None:
    assert run("serve", "--config", "none.yaml")[::2] == (
        2,
        "counterproof: none.yaml: cannot be read: No such file or directory\n",
    )
    (tmp_path / "folder.yaml").mkdir()
    code, _out, err = run("serve", "--config", "folder.yaml")
    assert (code, err) == (2, "counterproof: folder.yaml: cannot be read: Is a directory\n")
    (tmp_path / "latin.yaml").write_bytes(b"primary: {base_url: http://h/v1, model: caf\xe9}")
    code, _out, err = run("serve", "--config", "latin.yaml")
    assert (code, err) == (2, "counterproof: latin.yaml: is not UTF-8 text\n")


def test_nothing_configured_says_what_is_needed(run: Run) -> None:
    assert run("serve")[::2] == (2, "counterproof: primary: is missing: give a file with it, or --primary URL\n")


def test_a_shadow_without_a_name(run: Run) -> None:
    code, _out, err = run("serve", "--primary", "http://h/v1", "--shadow", "http://r/v1")
    assert code == 2
    assert (
        err == "counterproof: command line: --shadow http://r/v1: NAME=URL was expected, like ref=http://host:8000/v1\n"
    )


@pytest.mark.parametrize("option", ["--port", "--control-port"])
def test_a_port_in_use_starts_nothing(run: Run, tmp_path: Path, option: str) -> None:
    other = "--control-port" if option == "--port" else "--port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, err = run("serve", "--primary", "http://127.0.0.1:9/v1", option, port, other, "0")
    assert code == 2
    assert out == ""
    key = "listen.port" if option == "--port" else "control.port"
    assert err == f"counterproof: {key}: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert not (tmp_path / "counterproof.db").exists()
    assert {thread.name for thread in threading.enumerate()}.isdisjoint({"ledger"})


def test_a_ledger_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "l.db").write_bytes(b"this is no database, and long enough to be told from one" * 100)
    serve = ("serve", "--primary", "http://127.0.0.1:9/v1", "--port", "0", "--control-port", "0")
    code, _out, err = run(*serve, "--ledger", "l.db")
    assert code == 2
    assert err.startswith("counterproof: ledger.path: l.db: cannot be opened as a ledger: ")
    code, _out, err = run(*serve, "--ledger", "no/such/folder/l.db")
    assert code == 2
    assert err.startswith("counterproof: ledger.path: no/such/folder/l.db: ")


def test_a_token_file_that_cannot_be_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COUNTERPROOF_CONTROL__TOKEN_FILE", "file/token")
    code, out, err = run("serve", "--primary", "http://127.0.0.1:9/v1", "--port", "0", "--control-port", "0")
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("counterproof: control.token_file: file/token: cannot be written: ")
    assert {thread.name for thread in threading.enumerate()}.isdisjoint({"ledger"})


def test_check_says_that_an_engine_is_away(run: Run) -> None:
    code, out, _err = run(
        "check", "--primary", "http://127.0.0.1:9/v1", "--shadow", "r=http://127.0.0.1:8/v1", "--json"
    )
    assert code == 1
    primary, shadow = json.loads(out)
    assert (primary["name"], primary["fit"], primary["capabilities"]) == ("primary", False, None)
    assert (shadow["name"], shadow["fit"]) == ("r", False)
    assert "127.0.0.1:8" in shadow["error"]


POLICY = """shadows: [{name: r, base_url: 'http://127.0.0.1:8/v1'}]
policy:
  sets: {interfaces: {file: interfaces.txt}}
  tools:
    - {match: get*}
    - {match: get_weather}
    - {match: run, rules: [{id: known, cel: 'in_set(args.interface, "interfaces")'}]}
"""


@pytest.mark.parametrize("as_json", [False, True])
def test_check_says_what_of_a_policy_cannot_be_meant(run: Run, tmp_path: Path, as_json: bool) -> None:  # noqa: FBT001
    (tmp_path / "c.yaml").write_text(PRIMARY + POLICY)
    (tmp_path / "interfaces.txt").write_text("eth0\n")
    code, out, err = run("check", "--config", "c.yaml", *(["--json"] if as_json else []))
    assert code == 1  # the engines are away
    words = "policy: tools[1] ('get_weather') never applies: tools[0] ('get*') takes all it could"
    assert words in err.splitlines()
    if as_json:
        assert [engine["name"] for engine in json.loads(out)] == ["primary", "r"]


def test_check_says_what_has_no_effect_without_references(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(PRIMARY + "policy: {default: {on: {unverified: refuse}}}\n")
    _code, _out, err = run("check", "--config", "c.yaml")
    assert "policy: default ('*'): unverified: refuse has no effect, agree is 0" in err.splitlines()


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_set_that_cannot_be_read_is_a_fault(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "c.yaml").write_text(PRIMARY + "listen: {port: 0}\ncontrol: {port: 0}\n" + POLICY)
    code, out, err = run(command, "--config", "c.yaml")
    assert code == 2
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("counterproof: policy.sets.interfaces: it cannot be read: FileNotFoundError")
    assert {thread.name for thread in threading.enumerate()}.isdisjoint({"ledger"})


def test_exchanges_without_a_ledger(run: Run) -> None:
    code, _out, err = run("exchanges")
    assert code == 2
    assert err.startswith("counterproof: counterproof.db: there is no ledger")


def test_exchanges_of_an_empty_ledger(run: Run, tmp_path: Path) -> None:
    Ledger(tmp_path / "counterproof.db").close()
    assert run("exchanges")[:2] == (0, "Nothing was found that fits.\n")
    assert run("exchanges", "--json")[:2] == (0, "[]\n")
    code, _out, err = run("exchanges", "cp-1")
    assert code == 1
    assert err == "counterproof: counterproof.db: no exchange, or more than one, begins with 'cp-1'\n"
    assert run("exchanges", "--since", "yesterday")[0] == 2


def test_exchanges_reads_the_ledger_that_the_environment_names(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger(tmp_path / "other.db").close()
    monkeypatch.setenv("COUNTERPROOF_LEDGER__PATH", "other.db")
    assert run("exchanges", "--json")[:2] == (0, "[]\n")


def test_secrets_are_in_no_message(run: Run, tmp_path: Path) -> None:
    keys = [secret("primary"), secret("in-a-url"), secret("other")]
    (tmp_path / "c.yaml").write_text(
        f"primary: {{base_url: http://h/v1, api_key: {keys[0]}, nope: 1}}\n"
        f"shadows: [{{name: UPPER, base_url: 'http://user:{keys[1]}@r/v1', api_key: {keys[2]}}}]\n"
    )
    code, out, err = run("serve", "-c", "c.yaml")
    assert code == 2
    assert not [key for key in keys if key in out + err]


def test_version_and_help(run: Run) -> None:
    assert run("--version")[:2] == (0, "counterproof 0.1.0\n")
    code, out, _err = run("--help")
    assert code == 0
    for command in ("serve", "check", "exchanges", "mode", "demo"):
        assert command in out
