import hashlib
import math
import os
from pathlib import Path
from typing import Any

import pytest

from proxy.configfile import load
from proxy.errors import ConfigError
from proxy.inject import Level
from proxy.settings import Settings
from tests.secrets import secret

PRIMARY = "primary: {base_url: http://vllm:8000/v1}\n"
SECRET = secret("very-secret")
KEY, OTHER = secret("agents"), secret("others")


def read(tmp_path: Path, text: str | bytes, env: dict[str, str] | None = None, **overrides: Any) -> Settings:
    file = tmp_path / "cp.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(file, overrides, env or {})


def faults(tmp_path: Path, text: str | bytes, env: dict[str, str] | None = None, **overrides: Any) -> list[str]:
    """The lines of the error, the file's folder taken off."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, env, **overrides)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return [problem.replace(f"{tmp_path}{os.sep}", "") for problem in caught.value.problems]


# -- what is read


def test_the_least_that_is_needed(tmp_path: Path) -> None:
    settings = read(tmp_path, PRIMARY)
    assert settings.primary.base_url == "http://vllm:8000/v1"
    assert settings.primary.level is Level.FULL
    assert settings.shadows == ()
    assert (settings.mirror.tool_calls, settings.mirror.other, settings.mirror.max_queue) == (1.0, 0.05, 1000)
    assert (settings.mirror.max_queue_bytes, settings.mirror.max_body_bytes) == (268_435_456, 8_388_608)
    assert (settings.listen.host, settings.listen.port) == ("127.0.0.1", 8080)
    assert (settings.control.host, settings.control.port) == ("127.0.0.1", 8081)
    assert (settings.ledger.path, settings.ledger.content) == (Path("counterproof.db"), "redacted")


def test_a_whole_file(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        """
primary:
  base_url: http://vllm:8000/v1/
  api_key: ${PRIMARY_KEY}
  logprobs: ids
  connect_timeout: 500ms
  read_timeout: 2h
shadows:
  - {name: bf16-triton, base_url: http://ref:8000/v1, model: qwen-bf16, role: reference, max_concurrency: 2}
  - {name: same-again, base_url: "http://${TWIN}:${PORT}/v1", role: twin, timeout: 1.5m}
mirror: {tool_calls: 0.5, other: 0, max_queue: 7, max_queue_bytes: 1GiB, max_body_bytes: 1000}
conversation: {header: x-session-id}
ledger: {path: null, content: full}
listen: {host: "::1", port: 9000}
""",
        {"PRIMARY_KEY": SECRET, "TWIN": "twin", "PORT": "8001"},
    )
    assert settings.primary.base_url == "http://vllm:8000/v1"
    assert settings.primary.level is Level.IDS
    assert (settings.primary.connect_timeout, settings.primary.read_timeout) == (0.5, 7200.0)
    assert settings.primary.api_key is not None
    assert settings.primary.api_key.get_secret_value() == SECRET
    first, second = settings.shadows
    assert (first.name, first.model, first.max_concurrency, first.timeout) == ("bf16-triton", "qwen-bf16", 2, 120.0)
    assert (second.base_url, second.role, second.timeout) == ("http://twin:8001/v1", "twin", 90.0)
    assert settings.mirror.limits().max_queue_bytes == 1_073_741_824
    assert settings.mirror.limits().max_body_bytes == 1000
    assert settings.conversation.header == "x-session-id"
    assert settings.ledger.path is None
    assert (settings.listen.host, settings.listen.port) == ("::1", 9000)


def test_without_a_file_the_command_line_suffices() -> None:
    shadows = [{"name": "ref", "base_url": "http://ref:8000"}]
    settings = load(None, {"primary": {"base_url": "http://vllm:8000"}, "shadows": shadows}, {})
    assert settings.shadows[0].name == "ref"
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {})
    assert str(caught.value) == "primary: is missing: give a file with it, or --primary URL"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("10s", 10),
        ("5m", 300),
        ("2h", 7200),
        ("30d", 2_592_000),
        ("7", 7),
        ("1.5 s", 1.5),
        ("0.25", 0.25),
    ],
)
def test_durations(tmp_path: Path, text: str, seconds: float) -> None:
    assert read(tmp_path, f"primary: {{base_url: 'http://h', read_timeout: {text}}}").primary.read_timeout == seconds


# -- which wins


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(tmp_path: Path) -> None:
    text = PRIMARY + "mirror: {other: 0.1, tool_calls: 0.1, max_queue: 7}\n"
    env = {"COUNTERPROOF_MIRROR__OTHER": "0.2", "COUNTERPROOF_MIRROR__TOOL_CALLS": "0.2"}
    settings = read(tmp_path, text, env, mirror={"other": 0.3})
    assert (settings.mirror.other, settings.mirror.tool_calls, settings.mirror.max_queue) == (0.3, 0.2, 7)


def test_every_kind_of_value_can_come_from_the_environment() -> None:
    settings = load(
        None,
        {},
        {
            "COUNTERPROOF_PRIMARY__BASE_URL": "http://vllm:8000",
            "COUNTERPROOF_PRIMARY__API_KEY": "1234",
            "COUNTERPROOF_PRIMARY__CONNECT_TIMEOUT": "3s",
            "COUNTERPROOF_SHADOWS": '[{"name": "ref", "base_url": "http://ref"}]',
            "COUNTERPROOF_MIRROR": '{"other": 1}',
            "COUNTERPROOF_MIRROR__MAX_QUEUE_BYTES": "1MiB",
            "COUNTERPROOF_LISTEN__PORT": "9000",
            "COUNTERPROOF_LEDGER__PATH": "elsewhere.db",
        },
    )
    assert settings.primary.api_key is not None
    assert settings.primary.api_key.get_secret_value() == "1234"
    assert settings.primary.connect_timeout == 3.0
    assert settings.shadows[0].name == "ref"
    assert (settings.mirror.other, settings.mirror.max_queue_bytes) == (1.0, 1_048_576)
    assert settings.listen.port == 9000
    assert settings.ledger.path == Path("elsewhere.db")


def test_the_process_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPROOF_LISTEN__PORT", "9001")
    file = tmp_path / "cp.yaml"
    file.write_text(PRIMARY)
    assert load(file).listen.port == 9001


def test_what_kubernetes_puts_beside_a_service_of_that_name_does_no_harm(tmp_path: Path) -> None:
    env = {
        "COUNTERPROOF_PORT": "tcp://10.0.0.1:8080",
        "COUNTERPROOF_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "COUNTERPROOF_PORT_8080_TCP_ADDR": "10.0.0.1",
        "COUNTERPROOF_PORT_8080_TCP_PORT": "8080",
        "COUNTERPROOF_PORT_8080_TCP_PROTO": "tcp",
        "COUNTERPROOF_SERVICE_HOST": "10.0.0.1",
        "COUNTERPROOF_SERVICE_PORT": "8080",
        "COUNTERPROOF_SERVICE_PORT_HTTP": "8080",
    }
    assert read(tmp_path, PRIMARY, env) == read(tmp_path, PRIMARY)


def test_no_ledger_can_be_said_in_the_environment(tmp_path: Path) -> None:
    assert read(tmp_path, PRIMARY, {"COUNTERPROOF_LEDGER__PATH": "null"}).ledger.path is None


# -- faults of the values, with line, key and near-miss


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mirorr: {}\n", ["cp.yaml:2: mirorr: unknown key; did you mean 'mirror'?"]),
        ("mirror:\n\n  othr: 1\n", ["cp.yaml:4: mirror.othr: unknown key; did you mean 'other'?"]),
        (
            "conversation: {zzz: 1}\n",
            ["cp.yaml:2: conversation.zzz: unknown key; known are header"],
        ),
        (
            "shadows:\n  - name: a\n    base_url: http://x\n    modle: q\n",
            ["cp.yaml:5: shadows.0.modle: unknown key; did you mean 'model'?"],
        ),
        ("mirror: {other: 2}\n", ["cp.yaml:2: mirror.other: Input should be less than or equal to 1"]),
        (
            "log: {level: loud}\n",
            ["cp.yaml:2: log.level: Input should be 'debug', 'info', 'warning' or 'error'"],
        ),
        (
            "shadows:\n  - name: a\n",
            ["cp.yaml:3: shadows.0.base_url: is missing"],
        ),
        ("mirror:\n", ["cp.yaml:2: mirror: Input should be a valid dictionary or instance of MirrorSettings"]),
        ("control: {port: 8080}\n", ["cp.yaml:2: control.port: 8080 is the data port already"]),
        (
            "shadows:\n- {name: none, base_url: http://x}\n",
            ["cp.yaml:3: shadows.0.name: 'none' has a meaning of its own; choose another name"],
        ),
        (
            "shadows:\n- name: a\n  base_url: http://x\n- name: b\n  base_url: http://y\n- name: a\n  base_url: http://z\n",
            ["cp.yaml:7: shadows.2.name: 'a' is the name of another shadow already"],
        ),
        (
            "shadows: [{name: a, base_url: http://x, timeout: soon}]\n",
            [
                "cp.yaml:2: shadows.0.timeout: a duration like 500ms, 10s, 5m, 2h or 30d was expected",
            ],
        ),
        (
            "shadows: [{name: a, base_url: http://x, timeout: 0s}]\n",
            ["cp.yaml:2: shadows.0.timeout: Input should be greater than 0"],
        ),
    ],
)  # fmt: skip
def test_a_fault_names_its_line_its_key_and_a_near_miss(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert faults(tmp_path, PRIMARY + text) == expected


def test_all_faults_are_said_at_once(tmp_path: Path) -> None:
    text = "primary:\n  base_url: ftp://h\n  modle: x\nmirror:\n  other: 7\nlisten: {port: 70000}\n"
    assert sorted(faults(tmp_path, text)) == [
        "cp.yaml:2: primary.base_url: a URL like http://host:8000/v1 was expected",
        "cp.yaml:3: primary.modle: unknown key; did you mean 'model'?",
        "cp.yaml:5: mirror.other: Input should be less than or equal to 1",
        "cp.yaml:6: listen.port: Input should be less than or equal to 65535",
    ]


def test_a_missing_primary(tmp_path: Path) -> None:
    assert faults(tmp_path, "mirror: {other: 1}\n") == [
        "cp.yaml: primary: is missing: give a file with it, or --primary URL"
    ]
    assert faults(tmp_path, "\nprimary:\n  model: x\n") == ["cp.yaml:2: primary.base_url: is missing"]


NO_URL = "not a URL: a host and a port from 1 to 65535 were expected"
UNREACHABLE = "nothing can be reached there: a host's name or address was expected, a port from 1 to 65535"


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("h:8000", "a URL like http://host:8000/v1 was expected"),
        ("", "a URL like http://host:8000/v1 was expected"),
        ("http://", "a URL like http://host:8000/v1 was expected"),
        ("ftp://h", "a URL like http://host:8000/v1 was expected"),
        ("http://h:99999", NO_URL),
        ("http://h:abc", NO_URL),
        ("http://[x", NO_URL),
        ("http://bü cher", "a URL has neither spaces nor line ends"),
        ("http://ü..b", NO_URL),
        ("http://h:0/v1", UNREACHABLE),
        ("http://h%zz/v1", UNREACHABLE),
        ("http://h%41/v1", UNREACHABLE),
        ("http://a..b:80/v1", UNREACHABLE),
        ("http://.h", UNREACHABLE),
        ("http://h\\x/v1", UNREACHABLE),
        (f"http://{'a' * 64}/v1", UNREACHABLE),
        (f"http://{'a.' * 127}/v1", UNREACHABLE),
        ("http://[::1:x]/v1", NO_URL),
        ("http://user:pass@h", "credentials do not belong in the URL; use api_key"),
        ("http://user@h", "credentials do not belong in the URL; use api_key"),
        ("http://h/v1?x=1", "a base URL has no query and no fragment"),
        ("http://h/#x", "a base URL has no query and no fragment"),
    ],
)
def test_bad_urls(tmp_path: Path, url: str, fault: str) -> None:
    assert faults(tmp_path, f"primary: {{base_url: '{url}'}}\n") == [f"cp.yaml:1: primary.base_url: {fault}"]


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("http://bücher:80/v1", "http://xn--bcher-kva/v1"),
        ("https://bücher.example/ü/v1/", "https://xn--bcher-kva.example/%C3%BC/v1"),
        ("http://my_host-1.internal.:8000/v1", "http://my_host-1.internal.:8000/v1"),
        ("http://[fe80::1%eth0]:8000/v1", "http://[fe80::1%eth0]:8000/v1"),
        ("http://10.0.0.1/a%20b/v1", "http://10.0.0.1/a%20b/v1"),
    ],
)
def test_a_host_by_any_name_that_can_be_asked_for(tmp_path: Path, url: str, taken: str) -> None:
    assert read(tmp_path, f"primary: {{base_url: '{url}'}}\n").primary.base_url == taken


@pytest.mark.parametrize(
    "key",
    ["primary.connect_timeout", "primary.read_timeout", "listen.read_timeout", "listen.shutdown_timeout"],
)
@pytest.mark.parametrize("value", [".inf", ".nan", "1e999"])
def test_a_time_without_an_end(tmp_path: Path, key: str, value: str) -> None:
    section, _, name = key.partition(".")
    given = {"primary": {"base_url": "http://h"}} | {section: {"base_url": "http://h"} if section == "primary" else {}}
    given[section][name] = "VALUE"
    text = "".join(f"{part}: {{{', '.join(f'{k}: {v!r}' for k, v in of.items())}}}\n" for part, of in given.items())
    (fault,) = faults(tmp_path, text.replace("'VALUE'", value))
    assert fault.partition(f"{key}: ")[2] in {
        "Input should be a finite number",
        "Input should be greater than 0",
        "a duration like 500ms, 10s, 5m, 2h or 30d was expected",
    }


def test_what_is_kept_without_an_end(tmp_path: Path) -> None:
    assert read(tmp_path, PRIMARY + "ledger: {keep: .inf}\n").ledger.keep == math.inf


@pytest.mark.parametrize(
    ("limit", "least"), [("max_body_bytes: 0", 1), ("max_head_bytes: 0", 1024), ("max_head_bytes: 1KB", 1024)]
)
def test_a_limit_that_would_refuse_every_request(tmp_path: Path, limit: str, least: int) -> None:
    assert faults(tmp_path, PRIMARY + f"listen: {{{limit}}}\n") == [
        f"cp.yaml:2: listen.{limit.partition(':')[0]}: Input should be greater than or equal to {least}"
    ]


def test_the_names_that_metrics_tell_apart_first(tmp_path: Path) -> None:
    text = """
primary: {base_url: http://h, model: mine}
routes:
  - {model: "qwen*", primary: {base_url: http://a, model: qwen-3}}
  - {model: llama, primary: {base_url: http://b}}
  - {model: "[ab]", primary: {base_url: http://c}}
policy: {tools: [{match: wire_money}, {match: "delete_*"}, {match: "a?"}, {match: ping}]}
"""
    settings = read(tmp_path, text)
    assert settings.named_tools == ["wire_money", "ping"]
    assert sorted(settings.named_models) == ["llama", "mine", "qwen-3"]


@pytest.mark.parametrize("url", [" http://h:8000", "http://h h:8000", "http://h:8000/v1 "])
def test_white_space_in_a_url(tmp_path: Path, url: str) -> None:
    try:
        settings = read(tmp_path, f"primary: {{base_url: '{url}'}}\n")
    except ConfigError:
        return
    assert settings.primary.base_url in {"http://h:8000", "http://h:8000/v1"}  # taking it away is as good


@pytest.mark.parametrize(
    ("primary", "shadow"),
    [
        ("http://localhost:8000/v1", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000", "http://[::1]:8000/v1"),
        ("http://h:8000/v1", "http://h:8000/v1/"),
        ("http://h:8000", "http://h:8000/v1"),
        ("http://H/v1", "http://h:80/v1"),
        ("https://h/v1", "https://h:443"),
    ],
)
def test_a_shadow_that_is_the_primary_itself(tmp_path: Path, primary: str, shadow: str) -> None:
    text = f"primary: {{base_url: '{primary}'}}\nshadows:\n  - name: a\n    base_url: '{shadow}'\n"
    assert faults(tmp_path, text) == [
        "cp.yaml:4: shadows.0.base_url: is the primary itself; an engine cannot give a second opinion on itself"
    ]


@pytest.mark.parametrize(
    ("primary", "shadow"),
    [
        ("base_url: http://h:8000", "base_url: http://h:8001"),
        ("base_url: http://h:8000", "base_url: http://g:8000"),
        ("base_url: http://h:8000/a", "base_url: http://h:8000/b"),
        ("base_url: http://h:8000, model: a", "base_url: http://h:8000, model: b"),
    ],
)
def test_another_place_or_another_model_is_another_engine(tmp_path: Path, primary: str, shadow: str) -> None:
    assert read(tmp_path, f"primary: {{{primary}}}\nshadows: [{{name: a, {shadow}}}]\n").shadows[0].name == "a"


# -- faults of the environment and of the command line


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (
            {"COUNTERPROOF_MIROR__OTHER": "1"},
            "environment: COUNTERPROOF_MIROR__OTHER: there is no section 'miror'; did you mean 'mirror'?",
        ),
        (
            {"COUNTERPROOF_MIRROR__OTHR": "1"},
            "environment: COUNTERPROOF_MIRROR__OTHR: mirror.othr: unknown key; did you mean 'other'?",
        ),
        (
            {"COUNTERPROOF_MIRROR__OTHER": "2"},
            "environment: COUNTERPROOF_MIRROR__OTHER: mirror.other: Input should be less than or equal to 1",
        ),
        (
            {"COUNTERPROOF_MIRROR": "{bad"},
            'environment: error parsing value for field "mirror" from source "EnvSettingsSource"',
        ),
    ],
)
def test_faults_of_the_environment(tmp_path: Path, env: dict[str, str], expected: str) -> None:
    assert faults(tmp_path, PRIMARY, env) == [expected]


def test_faults_of_the_command_line(tmp_path: Path) -> None:
    assert faults(tmp_path, PRIMARY + "mirror: {other: 1}\n", mirror={"other": 3}) == [
        "command line: mirror.other: Input should be less than or equal to 1"
    ]


def test_a_fault_inside_a_list_of_the_environment_is_not_the_file_s(tmp_path: Path) -> None:
    text = PRIMARY + "shadows:\n  - {name: good, base_url: http://x}\n"
    (fault,) = faults(tmp_path, text, {"COUNTERPROOF_SHADOWS": '[{"name": "BAD", "base_url": "http://x"}]'})
    assert fault.startswith("environment: COUNTERPROOF_SHADOWS")


# -- faults of the file


def test_a_key_that_stands_twice(tmp_path: Path) -> None:
    text = PRIMARY + "mirror:\n  other: 1\n  tool_calls: 1\n  other: 0\nmirror: {}\n"
    assert sorted(faults(tmp_path, text)) == [
        "cp.yaml:5: mirror.other: stands here a second time",
        "cp.yaml:6: mirror: stands here a second time",
    ]


def test_variables_that_are_not_set(tmp_path: Path) -> None:
    text = "primary:\n  base_url: http://${HOST}:${PORT}\n"
    text += "shadows:\n  - name: a\n    base_url: http://x\n    api_key: ${KEY}\n"
    assert faults(tmp_path, text, {"PORT": "80"}) == [
        "cp.yaml:2: primary.base_url: the environment variable HOST is not set",
        "cp.yaml:6: shadows.0.api_key: the environment variable KEY is not set",
    ]


def test_a_variable_s_value_is_taken_as_it_is(tmp_path: Path) -> None:
    text = "primary:\n  base_url: http://h\n  model: ${A}\n"
    env = {"A": "${B}: [x] # y", "B": "no"}
    assert read(tmp_path, text, env).primary.model == "${B}: [x] # y"
    assert read(tmp_path, "primary: {base_url: http://h, model: $A}\n", env).primary.model == "$A"


def test_the_contract_s_example_of_a_variable(tmp_path: Path) -> None:
    text = "primary: {base_url: http://vllm:8000/v1, api_key: ${PRIMARY_KEY}, logprobs: auto}\n"
    assert read(tmp_path, text, {"PRIMARY_KEY": SECRET}).primary.api_key is not None


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing yet\n", "---\n", "null\n"])
def test_an_empty_file(tmp_path: Path, text: str) -> None:
    assert faults(tmp_path, text) == [
        "cp.yaml: is empty; the least that is needed is primary: {base_url: http://host:8000/v1}"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"- a\n", "cp.yaml: a mapping was expected (primary: \u2026, shadows: \u2026)"),
        (b"hello\n", "cp.yaml: a mapping was expected (primary: \u2026, shadows: \u2026)"),
        (b"primary: \xff\n", "cp.yaml: is not UTF-8 text"),
        (b"a: 1\nprimary: {base_url: [\n", "cp.yaml:3: not YAML: expected the node content, but found '<stream end>'"),
        (b"primary:\n\tbase_url: x\n", "cp.yaml:2: not YAML: found character '\\t' that cannot start any token"),
        (b"a: 1\n---\nb: 2\n", "cp.yaml:2: not YAML: but found another document"),
        (b"primary: *p\n", "cp.yaml:1: not YAML: found undefined alias 'p'"),
        (b"primary: \x00\n", "cp.yaml: not YAML: unreadable"),
        (b"a: 1\n? [b]\n: c\n", "cp.yaml:2: not YAML: found unhashable key"),
        (
            b"a: !!python/object:os.system x\n",
            (
                "cp.yaml:1: not YAML: could not determine a constructor for the tag "
                "'tag:yaml.org,2002:python/object:os.system'"
            ),
        ),
    ],
)  # fmt: skip
def test_a_file_that_is_no_configuration(tmp_path: Path, text: bytes, expected: str) -> None:
    assert faults(tmp_path, text) == [expected]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.yaml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError) as caught:
            load(path, {}, {})
        assert str(caught.value) == f"{path}: cannot be read: {why}"


@pytest.mark.parametrize(
    "text",
    [
        PRIMARY + "1: 2\n",
        PRIMARY + "yes: 2\n",
        PRIMARY + "log: {level: 2001-99-99}\n",
        PRIMARY + "listen: {port: !!int x}\n",
        "primary: &p {base_url: *p}\n",
    ],
    ids=["key 1", "key yes", "date", "int", "recursive"],
)
def test_yaml_that_python_stumbles_over_is_a_fault_with_a_line(tmp_path: Path, text: str) -> None:
    assert all(fault.startswith("cp.yaml") for fault in faults(tmp_path, text))


# -- secrets


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    text = (
        "primary:\n  base_url: http://h\n  api_key: ${KEY}\nshadows:\n  - {name: a, base_url: http://x, api_key: %s}\n"
    )
    settings = read(tmp_path, text % SECRET, {"KEY": SECRET})
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings)
    assert SECRET not in settings.model_dump_json()
    assert SECRET not in repr(settings.primary)
    assert settings.shadows[0].endpoint().name == "a"


@pytest.mark.parametrize(
    "text",
    [
        "primary:\n  base_url: http://h\n  api_key: [${KEY}]\n",
        "primary:\n  base_url: http://h\n  api_key: {a: ${KEY}}\n".replace("{a: ${KEY}}", '{a: "${KEY}"}'),
        "primary:\n  base_url: http://h\n  api_key: ${KEY}\n  typo: 1\n",
        "primary:\n  base_url: http://user:${KEY}@h\n",
        "primary:\n  base_url: http://h/?key=${KEY}\n",
        "primary:\n  base_url: ${KEY}\n",
        "primary: ${KEY}\n",
        "primary:\n  base_url: http://h\n  logprobs: ${KEY}\n",
    ],
)
def test_secrets_are_not_in_errors(tmp_path: Path, text: str) -> None:
    text = text.replace("[${KEY}]", '["${KEY}"]')
    assert SECRET not in "\n".join(faults(tmp_path, text, {"KEY": SECRET}))


def test_secrets_of_the_environment_are_not_in_errors(tmp_path: Path) -> None:
    env = {"COUNTERPROOF_PRIMARY": '{"api_key": "' + SECRET, "COUNTERPROOF_PRIMARY__API_KEY": SECRET}
    assert SECRET not in "\n".join(faults(tmp_path, PRIMARY, env))
    bad = {"COUNTERPROOF_PRIMARY__API_KEY": SECRET, "COUNTERPROOF_MIRROR__OTHER": "x"}
    assert SECRET not in "\n".join(faults(tmp_path, PRIMARY, bad))


@pytest.mark.parametrize(
    "text",
    [
        "primary:\n  base_url: http://h\n  connect_timeout: ${KEY}\n",
        "primary:\n  base_url: http://user:${KEY}\n",
        "primary:\n  base_url: http://user:${KEY}/x@h\n",
    ],
)
def test_secrets_in_the_wrong_place_are_not_in_errors(tmp_path: Path, text: str) -> None:
    assert SECRET not in "\n".join(faults(tmp_path, text, {"KEY": SECRET}))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3"])
def test_the_primarys_key_is_not_lent_to_everybody(tmp_path: Path, host: str) -> None:
    text = f"primary: {{base_url: http://h/v1, api_key: {SECRET}}}\nlisten: {{host: '{host}'}}\n"
    (fault,) = faults(tmp_path, text)
    assert fault.startswith("cp.yaml:2: listen.host: with primary.api_key an exposed data port would lend that key")


@pytest.mark.parametrize("key", ["sk\\n", "cl\u00e9", "", "two words"])
def test_a_key_that_cannot_stand_in_a_header_is_refused(tmp_path: Path, key: str) -> None:
    (fault,) = faults(tmp_path, f'primary: {{base_url: http://h/v1, api_key: "{key}"}}\n')
    assert fault.startswith("cp.yaml:1: primary.api_key: a key is printable ASCII")


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3"])
def test_with_keys_of_the_clients_own_the_data_port_may_be_exposed(tmp_path: Path, host: str) -> None:
    text = f"primary: {{base_url: http://h/v1, api_key: {SECRET}}}\nlisten: {{host: '{host}'}}\n"
    settings = read(tmp_path, text + f"client_keys: [{{name: agents, key: {KEY}}}]\n")
    assert settings.client_keys[0].digest == hashlib.sha256(KEY.encode()).digest()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("client_keys:\n  - {name: a, key: short}\n", "cp.yaml:3: client_keys.0: a key has at least 16 characters"),
        ("client_keys:\n  - {name: a}\n", "cp.yaml:3: client_keys.0: give either key or sha256"),
        ("client_keys:\n  - {name: a, sha256: abc}\n", "cp.yaml:3: client_keys.0.sha256: "),
        (
            f"client_keys:\n  - {{name: a, key: {KEY}}}\n  - {{name: a, key: {OTHER}}}\n",
            "cp.yaml:4: client_keys.1.name: 'a' is the name of another key already",
        ),
        (
            f"client_keys:\n  - {{name: a, key: {KEY}}}\n  - {{name: b, key: {KEY}}}\n",
            "cp.yaml:4: client_keys.1: is the same key as another one",
        ),
        ("paths: {deny: [sleep]}\n", "cp.yaml:2: paths.deny: 'sleep': a path begins with /"),
        ("paths: {allow: ['/']}\n", "cp.yaml:2: paths.allow: '/': a path begins with / and names something"),
        ("listen: {max_in_flight: 0}\n", "cp.yaml:2: listen.max_in_flight: "),
        ("listen: {read_timeout: never}\n", "cp.yaml:2: listen.read_timeout: a duration like"),
        ("ledger: {keep: 30 days}\n", "cp.yaml:2: ledger.keep: a duration like"),
        ("routes: [{model: 'q*'}]\n", "cp.yaml:2: routes.0.primary: is missing"),
        (
            "routes:\n  - model: q\n    primary: {base_url: http://q/v1, timeout: 1}\n",
            "cp.yaml:4: routes.0.primary.timeout: unknown key; did you mean",
        ),
        (
            "routes: [{model: q, primary: {base_url: http://q},\n  shadows: [&s {name: s, base_url: http://t}, *s]}]\n",
            "cp.yaml:3: routes.0.shadows.1.name: 's' is the name of another shadow already",
        ),
        (
            "routes:\n  - model: q\n    primary: {base_url: http://q/v1}\n    shadows: [{name: s, base_url: http://q}]\n",
            "cp.yaml:5: routes.0.shadows.0.base_url: is the primary itself",
        ),
        (
            f"routes:\n  - {{model: q, primary: {{base_url: http://q, api_key: {KEY}}}}}\nlisten: {{host: 0.0.0.0}}\n",
            "cp.yaml:4: listen.host: with routes.0.primary.api_key an exposed data port would lend that key",
        ),
    ],
)
def test_faults_of_routes_keys_paths_and_limits_are_named(tmp_path: Path, text: str, fault: str) -> None:
    (found,) = faults(tmp_path, PRIMARY + text)
    assert found.startswith(fault), found


def test_routes_are_read_in_their_order(tmp_path: Path) -> None:
    text = (
        PRIMARY
        + "routes: [{model: 'q*', primary: {base_url: http://q}}, {model: '*', primary: {base_url: http://r}}]\n"
    )
    first, second = read(tmp_path, text).routes
    assert first.takes("qwen")
    assert not first.takes("Qwen")
    assert second.takes("anything/at:all")


def test_aliases_of_aliases_end(tmp_path: Path) -> None:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 8)]
    path = tmp_path / "c.yaml"
    path.write_text("l0: &l0 [1]\n" + "\n".join(levels) + "\nprimary: {base_url: http://h/v1}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="more than 100000 values"):
        load(path)
