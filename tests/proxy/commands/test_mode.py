"""`counterproof mode` against proxies that run as processes of their own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.rig import free_port
from proxy.demo.served import ProxyProcess
from proxy.tokenfile import default_path, read
from tests.proxy.commandline import Run
from tests.secrets import secret

pytestmark = pytest.mark.slow

READS, TURNS, WRONG = (secret(name, "ct") for name in ("reads", "turns", "wrong"))


def served(folder: Path, **control: Any) -> ProxyProcess:
    return ProxyProcess(
        {
            "primary": {"base_url": "http://127.0.0.1:9/v1"},
            "ledger": {"path": str(folder / "ledger.db")},
            "listen": {"port": free_port()},
            "control": {"port": free_port()} | control,
        },
        folder,
    )


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy without tokens."""
    with served(tmp_path_factory.mktemp("local")) as process:
        yield process


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy with a token that reads, and one that reads and turns."""
    tokens = [
        {"name": "reader", "token": READS, "scopes": ["read"]},
        {"name": "ann", "token": TURNS, "scopes": ["read", "mode"]},
    ]
    with served(tmp_path_factory.mktemp("guarded"), tokens=tokens) as process:
        yield process


def port_of(process: ProxyProcess) -> int:
    return int(process.control_url.rpartition(":")[2])


def test_the_switch_is_shown_turned_and_turned_back(run: Run, local: ProxyProcess) -> None:
    at = ("--control", local.control_url)
    assert run("mode", *at) == (0, "mode observe (configured: observe)\n", "")
    code, out, err = run("mode", "block", *at, "--for", "30m", "--reason", "an [incident]")
    assert (code, err) == (0, "")
    assert out.startswith("mode block (configured: observe)\n")
    for word in ("all", "block", "local", "an [incident]"):
        assert word in out
    assert local.metric("counterproof_mode", mode="block") == 1
    assert run("mode", "--clear", *at)[1] == "mode observe (configured: observe)\n"
    assert run("mode", "--clear", *at)[0] == 0


def test_for_a_model_and_a_tool_as_json(run: Run, local: ProxyProcess) -> None:
    at = ("--control", local.control_url, "--json")
    run("mode", "block", *at, "--tool", "run_command")
    code, out, err = run("mode", "off", *at, "--model", "qwen", "--tool", "runCommand", "--for", "2h")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert json.loads(run("mode", *at)[1]) == shown
    assert (shown["mode"], shown["configured"]) == ("observe", "observe")
    found = [(s["mode"], s["model"], s["tool"], s["until"] is None, s["who"]) for s in shown["settings"]]
    assert found == [
        ("block", None, "run_command", True, "local"),
        ("off", "qwen", "runCommand", False, "local"),
    ]
    run("mode", "--clear", *at, "--tool", "run-command")
    assert json.loads(run("mode", "--clear", *at, "--model", "qwen", "--tool", "run_command")[1])["settings"] == []


def test_the_port_is_found_by_the_configuration(run: Run, local: ProxyProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("mode", "--config", str(local.config))[0] == 0
    monkeypatch.setenv("COUNTERPROOF_CONFIG", str(local.config))
    assert run("mode")[0] == 0
    monkeypatch.delenv("COUNTERPROOF_CONFIG")
    monkeypatch.setenv("COUNTERPROOF_CONTROL__PORT", str(port_of(local)))
    assert run("mode")[0] == 0


def test_no_proxy_runs(run: Run) -> None:
    code, out, err = run("mode", "block", "--control", "http://127.0.0.1:9")
    assert (code, out) == (1, "")
    assert err == "counterproof: http://127.0.0.1:9: no proxy answers there (ConnectError)\n"


@pytest.mark.parametrize("how", ["option", "environment"])
def test_with_configured_tokens_one_is_given(
    run: Run, guarded: ProxyProcess, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    at = ("--control", guarded.control_url)
    if how == "environment":
        monkeypatch.setenv("COUNTERPROOF_TOKEN", TURNS)
    given = ("--token", TURNS) if how == "option" else ()
    shown = json.loads(run("mode", "block", *at, *given, "--json")[1])
    assert [setting["who"] for setting in shown["settings"]] == ["ann"]
    assert run("mode", "--clear", *at, *given)[0] == 0


def test_who_may_not_is_told(run: Run, guarded: ProxyProcess) -> None:
    url = guarded.control_url
    at = ("--control", url)
    for command in (("mode",), ("mode", "off")):
        code, out, err = run(*command, *at)
        assert (code, out) == (1, "")
        told = "a token is needed: --token, COUNTERPROOF_TOKEN, or the file that this user's proxy keeps here"
        assert err == f"counterproof: {url}: {told}\n"
        code, out, err = run(*command, *at, "--token", WRONG)
        assert (code, out, err) == (1, "", f"counterproof: {url}: this token is not known there\n")
    assert run("mode", *at, "--token", READS)[0] == 0
    code, out, err = run("mode", "off", *at, "--token", READS)
    assert (code, out, err) == (1, "", f"counterproof: {url}: this needs a token with the scope mode\n")
    assert guarded.metric("counterproof_mode", mode="observe") == 1


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("block", "--for", "0s"), "for: Input should be greater than 0"),
        (("block", "--for", "soon"), "for: a duration like 500ms, 10s, 5m, 2h or 30d was expected"),
        (("block", "--for", "31d"), "expiry: lies ahead, by 30 days at most"),
        (("block", "--reason", ""), "reason: is one line of 1 to 500 printable characters"),
        (("block", "--reason", "a\x1b[2J"), "reason: is one line of 1 to 500 printable characters"),
        (("block", "--reason", "\udc80"), "reason: "),
        (("block", "--tool", "*"), "tool: names no tool"),
        (("--clear", "--for", "5m"), "what is taken away has no expiry"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_line(
    run: Run, local: ProxyProcess, args: tuple[str, ...], told: str
) -> None:
    code, out, err = run("mode", *args, "--control", local.control_url)
    assert (code, out) == (1, "")
    assert err.startswith(f"counterproof: {local.control_url}: {told}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("block", "--clear"), "give either a mode or --clear"),
        (("--for", "5m"), "--for: for which mode? off, observe, block, or --clear"),
        (("--tool", "t"), "--tool: for which mode? off, observe, block, or --clear"),
        (("--control", "127.0.0.1:8081"), "--control: a URL like http://host:8000/v1 was expected"),
        (("--token", f"ct {WRONG}"), "--token: a key is printable ASCII"),
    ],
)
def test_a_fault_of_the_command_line_asks_nobody(run: Run, args: tuple[str, ...], told: str) -> None:
    code, out, err = run("mode", *args)
    assert (code, out) == (2, "")
    assert err.startswith(f"counterproof: command line: {told}")
    assert WRONG not in err


def test_another_word_is_no_mode(run: Run) -> None:
    code, out, err = run("mode", "blocked")
    assert (code, out) == (2, "")
    assert "'blocked' is not one of 'off', 'observe', 'block'" in err


def test_no_token_is_in_a_log_a_metric_or_an_audit(run: Run, local: ProxyProcess, guarded: ProxyProcess) -> None:
    made = read(default_path(port_of(local)))
    assert made
    run("mode", "block", "--control", local.control_url, "--for", "10ms")
    run("mode", "off", "--control", guarded.control_url, "--token", READS)
    run("mode", "off", "--control", guarded.control_url, "--token", TURNS)
    run("mode", "--clear", "--control", guarded.control_url, "--token", TURNS)
    for process in (local, guarded):
        kept = [path for path in process.log.parent.iterdir() if path != process.config]
        assert process.log in kept
        told = process.metrics().encode() + b"".join(path.read_bytes() for path in kept)
        for token in (made, READS, TURNS, WRONG):
            assert token.encode() not in told


def test_the_file_goes_with_its_proxy(tmp_path: Path) -> None:
    with served(tmp_path) as process:
        path = default_path(port_of(process))
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()
