"""No credential is in any log, metric, ledger, audit or error of the whole run, and a search that would find one."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from proxy.audit import SELF, AuditFile, Kind
from proxy.ledger import Ledger, LedgerReader
from tests.searching import ROOT, Run, passed, search, watched
from tests.secrets import Credential, Search, credential
from tests.watching import Watch

HERE = Path(__file__)
# What these tests leave, each of another kind, is known to be there: where one has run and its kinds were not searched,
# the search does not reach what it should.
SURE = {
    "tests/proxy/control/test_access.py::test_no_token_is_in_any_answer_log_or_file": {"error", "ledger", "audit"},
    "tests/proxy/control/test_access.py::test_a_route_that_breaks_says_nothing_of_why": {"error", "log"},
    "tests/proxy/control/test_mode.py::test_without_the_token_of_the_file_nobody_turns_it": {"error", "made", "ledger"},
    "tests/proxy/test_cli.py::test_secrets_are_in_no_message": {"error", "configuration"},
    "tests/proxy/test_limits.py::test_clients_need_a_key_of_the_proxy_and_it_goes_no_further": {
        "error",
        "given",
        "ledger",
    },
    "tests/proxy/commands/test_mode.py::test_the_file_goes_with_its_proxy": {"log", "ledger", "audit", "made"},
}


@pytest.fixture
def run(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return search(tmp_path_factory.getbasetemp(), watched(pytestconfig))


# `make test` calls pytest twice, and chooses one of these two in each.


@pytest.mark.last
def test_no_credential_is_in_anything_that_this_run_has_left(run: Run, pytestconfig: pytest.Config) -> None:
    check(run, passed(pytestconfig))


@pytest.mark.last
@pytest.mark.slow
def test_no_credential_is_in_anything_that_the_long_tests_have_left(run: Run, pytestconfig: pytest.Config) -> None:
    check(run, passed(pytestconfig))


def check(run: Run, tests: set[str]) -> None:
    faults = sorted(run.faults)
    for test in SURE.keys() & tests:
        faults += [f"{test}: its {kind} was not searched" for kind in sorted(SURE[test] - run.kinds_of(test))]
    if not run.started <= run.watched:
        faults.append("a proxy in a process of its own was not watched")
    if run.watched and not any(one.kind == "metric" for one in run.seen):
        faults.append("no metrics were searched")
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.mark.parametrize("test", SURE)
def test_what_is_sure_to_be_searched_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_a_search_that_does_not_reach_what_is_sure_fails(planted: "Planted") -> None:
    test = next(iter(SURE))
    with pytest.raises(pytest.fail.Exception, match=f"{test.rpartition('::')[2]}: its error was not searched"):
        check(Run(planted.root), {test})
    planted.watch.see("started", str(os.getpid()))
    with pytest.raises(pytest.fail.Exception, match="no metrics were searched"):
        check(planted.searched(), set())


def test_a_process_that_is_not_watched_is_noticed(planted: "Planted") -> None:
    check(Run(planted.root), set())
    planted.watch.see("started", str(os.getpid() + 1))
    planted.watch.see("metric", "x")
    with pytest.raises(pytest.fail.Exception, match="was not watched"):
        check(planted.searched(), set())


# -- the search finds what is there


ONE = credential("planted", "sk")
DISGUISES: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "without its ends": lambda text: text[3:-3],
    "in JSON": lambda text: json.dumps({"a": f"b {text} c"}),
    "escaped for JSON": lambda text: "".join(f"\\u{ord(letter):04x}" for letter in text),
    "percent-encoded": lambda text: "x?" + "".join(f"%{ord(letter):02X}" for letter in text),
    "in base64": lambda text: base64.b64encode(text.encode()).decode(),
    "in base64, one byte on": lambda text: base64.b64encode(b"k" + text.encode() + b"z").decode(),
    "in base64, two bytes on": lambda text: base64.urlsafe_b64encode(b"\xffk" + text.encode()).decode(),
    "of basic authentication": lambda text: "Basic " + base64.b64encode(f"user:{text}".encode()).decode(),
    "in hexadecimal": lambda text: text.encode().hex(),
    "its SHA-256": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "its SHA-256, in capitals": lambda text: hashlib.sha256(text.encode()).hexdigest().upper(),
    "its SHA-256, in base64": lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_credential_is_found_in_every_disguise(disguise: str) -> None:
    said = DISGUISES[disguise](ONE.text).encode()
    assert {found.name for found in Search([ONE, credential("other", "ct")]).within(b"before " + said)} == {"planted"}


@pytest.mark.parametrize("text", ["two words/ü%", 'a "quoted" \\ one', "päss wörd: long enough"])
def test_one_of_odd_characters_is_found_in_every_disguise(text: str) -> None:
    search = Search([Credential("odd", text, text)])
    for said in (text, quote(text, safe=""), json.dumps(text), repr(text), base64.b64encode(text.encode()).decode()):
        assert search.within(said.encode()), said


def test_others_are_not_found() -> None:
    other = credential("other", "sk").text
    said = "".join(disguised(other) for disguised in DISGUISES.values()).encode()
    assert Search([ONE]).within(said + hashlib.sha256(b"something else").hexdigest().encode()) == set()
    assert Search([]).within(said) == set()


class Planted:
    """A run's folder, in which something is planted."""

    def __init__(self, root: Path) -> None:
        self.root, self.watch = root, Watch()
        self.watch.folder = root / "watched"
        self.watch.folder.mkdir()

    def searched(self) -> Run:
        return search(self.root, [self.root / "watched"], [ONE])

    def found(self) -> list[str]:
        return sorted(self.searched().faults)


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Planted]:
    yield Planted(tmp_path)
    shutil.rmtree(tmp_path)  # the run itself is searched, too


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("kind", ["log", "metric", "error"])
def test_what_a_proxy_says_is_searched(planted: Planted, kind: str, disguise: str) -> None:
    planted.watch.see(kind, "nothing")  # type: ignore[arg-type]
    assert planted.found() == []
    planted.watch.see(kind, f"a line with {DISGUISES[disguise](ONE.text)} in it")  # type: ignore[arg-type]
    (fault,) = planted.found()
    assert f"test_what_a_proxy_says_is_searched[{kind}-{disguise}]: what was said ({kind}) holds" in fault
    assert "the credential 'planted'" in fault
    assert ONE.core not in fault


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("name", ["proxy.log", "audit.jsonl", "some.yaml", "no-ending"])
def test_files_are_searched(planted: Planted, name: str, disguise: str) -> None:
    (planted.root / "deep").mkdir()
    (planted.root / "deep" / name).write_text("first\n" + DISGUISES[disguise](ONE.text))
    (fault,) = planted.found()
    assert fault.startswith(f"deep/{name}: a file (")


@pytest.mark.parametrize("before", range(0, 4096, 97))
def test_a_ledgers_rows_are_searched_though_a_value_lies_in_several_pages(planted: Planted, before: int) -> None:
    ledger = Ledger(planted.root / "ledger.db")
    ledger.exchange({"id": "cp-1", "began_at": 1.0, "model": "m", "conversation": "", "x": "y" * 8000 + "z" * before})
    record = {"id": "cp-2", "began_at": 1.0, "model": "m", "conversation": "", "x": "y" * (4000 + before) + ONE.text}
    ledger.exchange(record)
    ledger.close()
    (fault,) = planted.found()
    assert fault == "ledger.db: a file (ledger) holds the credential 'planted' as it is"


def kept(path: Path) -> bool:
    with LedgerReader(path) as reader:
        return reader.exchange("cp-1") is not None


def test_a_ledger_that_is_open_is_searched_with_what_lies_beside_it(planted: Planted) -> None:
    ledger = Ledger(planted.root / "ledger.db")
    try:
        ledger.exchange({"id": "cp-1", "began_at": 1.0, "model": "m", "conversation": "", "x": ONE.text})
        deadline = time.monotonic() + 20
        while not kept(planted.root / "ledger.db"):  # it writes behind
            assert time.monotonic() < deadline
            time.sleep(0.01)
        named = [fault.partition(":")[0] for fault in planted.found()]
    finally:
        ledger.close()
    assert "ledger.db-wal" in named  # where it stands as long as the database is open
    assert "ledger.db" in named  # and as one of its rows


def test_an_audit_is_searched_and_its_key_stands_in_its_own_file_only(planted: Planted) -> None:
    audit = AuditFile(planted.root / "audit.jsonl", {})
    audit.submit(Kind.POLICY, SELF, {"event": "x", "version": ONE.text}).result(10)
    audit.close()
    (fault,) = planted.found()
    assert fault.startswith("audit.jsonl: a file (audit)")
    key = (planted.root / "audit.jsonl.key").read_text().strip()
    planted.watch.see("log", f"key={key}")
    (_, fault) = planted.found()
    assert 'holds the credential "an audit\'s key" as it is' in fault


def test_a_token_that_a_proxy_made_may_stand_in_its_own_file_only(planted: Planted) -> None:
    made = "x" * 43
    planted.watch.see("made", made)
    token = planted.root / "token"
    token.write_text(made + "\n")
    token.chmod(0o600)
    assert planted.found() == []
    token.chmod(0o644)
    assert len(planted.found()) == 1
    token.unlink()
    planted.watch.see("error", f"{made} is not known")
    assert len(planted.found()) == 1


def test_what_cannot_be_kept_at_once_is_kept_later(planted: Planted) -> None:
    folder = planted.watch.folder
    planted.watch.folder = planted.root / "none"
    planted.watch.see("log", ONE.text)
    planted.watch.folder = folder
    assert planted.found() == []
    planted.watch.flush()
    assert len(planted.found()) == 1


def test_a_credential_may_stand_in_what_is_read_as_a_configuration_and_nowhere_else(planted: Planted) -> None:
    for name in ("a.yaml", "b.yaml"):
        (planted.root / name).write_text(ONE.text)
    planted.watch.see("configuration", str(planted.root / "a.yaml"))
    (fault,) = planted.found()
    assert fault.startswith("b.yaml: ")


def test_a_file_larger_than_one_piece_is_searched_where_two_meet(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.searching._PIECE", 1000)
    for before in range(940, 1001, 7):
        (planted.root / "large").write_text("x" * before + ONE.text + "x" * 2000)
        assert len(planted.found()) == 1, before


def test_a_log_that_lies_elsewhere_is_searched(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    planted = Planted(tmp_path / "run")
    (tmp_path / "engine.log").write_text(ONE.text)
    assert planted.found() == []
    planted.watch.see("file", str(tmp_path / "engine.log"))
    (fault,) = planted.found()
    assert fault.startswith("engine.log: a file (log)")


@pytest.mark.parametrize(("given", "faults"), [(ONE.text, 0), (f"Bearer {ONE.text}", 0), ("Bearer", 0), ("short", 1)])
def test_what_a_proxy_is_given_is_handed_out_by_one_place(planted: Planted, given: str, faults: int) -> None:
    planted.watch.see("given", given)
    assert len(planted.found()) == faults


# -- tests get theirs from one place


LITERAL = re.compile(
    r"""\b(?:sk|ct)-\w | \b[Bb]earer\ (?!realm)[\w-]{5,} | \b(?:api_?key|apiKey|password)["']?\s*[:=]\s*["']\w
    | (?:x-api-key|--token|COUNTERPROOF_TOKEN)["']?\s*[,:=]\s*b?["']\w""",
    re.VERBOSE,
)
SHOWN = [
    "'sk-x'",
    '"Bearer nobody"',
    'api_key="none"',
    '{"api_key": "x"}',
    'apiKey: "x"',
    '"--token", "x"',
    '"x-api-key", b"x"',
]


@pytest.mark.parametrize("line", SHOWN)
def test_a_literal_is_noticed(line: str) -> None:
    assert LITERAL.search(line)


def test_no_test_writes_a_credential_of_its_own() -> None:
    """Those that `tests.secrets.secret` hands out are searched for; nobody would search for another."""
    sources = [path for ending in ("py", "mjs") for path in (ROOT / "tests").rglob(f"*.{ending}")]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources
        if path not in {HERE, HERE.with_name("secrets.py")}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LITERAL.search(line)
    ]
    assert len(sources) > 100
    assert found == []


# -- and the whole of it, as a run of its own


RUN = """
import asyncio
from pathlib import Path

import pytest
import structlog
from prometheus_client import Counter

from proxy import http
from proxy.demo.rig import free_port
from proxy.demo.served import ProxyProcess
from proxy.errors import StartError
from tests.proxy.control.serving import on
from tests.proxy.serving import proxy
from tests.secrets import secret
from tests.standin import StandIn

KEY = secret("{name}")


def test_log():
    structlog.get_logger().info("here", it=KEY)


def test_taken_log():
    with structlog.testing.capture_logs():
        structlog.get_logger().info("here", it=KEY)


def test_metric(tmp_path):
    async def scene(port):
        Counter("here", "", ["it"], registry=port.service.metrics.registry).labels(KEY).inc()
    on(tmp_path, scene)


def test_message():
    StartError(KEY)


def test_answer(tmp_path, monkeypatch):
    async def main():
        async with StandIn() as engine, proxy(tmp_path, engine, client_keys=[{{"name": "a", "key": KEY}}]) as door:
            async with door.session.get(door.root + "/v1/models") as response:
                assert response.status == 401
    monkeypatch.setattr(http.Refusal, "body", KEY.encode())
    asyncio.run(main())


def test_control_answer(tmp_path, monkeypatch):
    async def scene(port):
        assert (await port.ask("GET", "/admin/mode")).status_code == 401
    monkeypatch.setattr(http.Refusal, "body", KEY.encode())
    on(tmp_path, scene)


def test_file(tmp_path):
    (tmp_path / "left.db-wal").write_text(KEY)


@pytest.fixture(scope="session")
def process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("process")
    settings = {{
        "primary": {{"base_url": "http://127.0.0.1:9/v1"}}, "ledger": {{"path": str(folder / f"{{KEY}}.db")}},
        "listen": {{"port": free_port()}}, "control": {{"port": free_port()}},
    }}
    with ProxyProcess(settings, folder) as one:
        yield one


def test_process(process):
    pass


def test_unknown(tmp_path):
    async def main():
        async with StandIn() as engine, proxy(tmp_path, engine) as door:
            await door.chat({{}}, headers={{"authorization": "Bearer nobody-knows-this"}})
    asyncio.run(main())
"""
EXPECTED = {
    "test_log: what was said (log)",
    "test_taken_log: what was said (log)",
    "test_metric: what was said (metric)",
    "test_message: what was said (error)",
    "test_answer: what was said (error)",
    "test_control_answer: what was said (error)",
    "test_file0/left.db-wal: a file (ledger)",
    "process0/proxy.log: a file (log)",
    "test_unknown: a proxy was given a credential",
}


@pytest.mark.slow
def test_a_run_that_leaks_fails_and_names_each_place(tmp_path: Path) -> None:
    (tmp_path / "test_leaks.py").write_text(RUN.format(name="leaked"))
    options = ["-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    tests = [f"{HERE}::test_no_credential_is_in_anything_that_this_run_has_left", str(tmp_path / "test_leaks.py")]
    command = [sys.executable, "-m", "pytest", *options, "-k", "leaks or this_run", "--basetemp", str(tmp_path / "run")]
    done = subprocess.run([*command, *tests], capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ)
    shutil.rmtree(tmp_path)  # the run around this one is searched, too
    assert "1 failed, 9 passed" in done.stdout, done.stdout + done.stderr
    for place in EXPECTED:
        assert place in done.stdout, place
    for line in done.stdout.splitlines():
        if line.startswith("process0/"):
            assert "holds the credential 'leaked' as it is" in line
    assert credential("leaked", "sk").core not in done.stdout.partition("FAILURES")[2]
