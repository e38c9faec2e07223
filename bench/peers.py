"""The peers: nginx as Debian packages it, vllm-router and LiteLLM from PyPI in environments of their own.

Environments are built once into the cache folder ($COUNTERPROOF_CACHE, else the user's). A peer that is missing or
does not start is `Unavailable`, with the reason.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.procs import Unavailable, process
from proxy.demo.building import cache_dir, clean_environment
from proxy.demo.rig import free_port

VLLM_ROUTER = "vllm-router==0.1.17"
LITELLM = "litellm[proxy]==1.106.12"

_NGINX = """
daemon off;
{user}
worker_processes 1;
worker_rlimit_nofile 16384;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 8000; }}
http {{
    access_log off;
    tcp_nodelay on;
    client_max_body_size 64m;
    client_body_buffer_size 1m;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 10000000;
    upstream engine {{
        server 127.0.0.1:{upstream};
        keepalive 512;
        keepalive_requests 10000000;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""

_LITELLM = """
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: http://127.0.0.1:{upstream}/v1
      api_key: sk-bench
litellm_settings:
  telemetry: false
general_settings:
  dangerously_permit_weak_or_unset_master_key: true  # on loopback: without keys it has the least to do
"""

Started = tuple[int, subprocess.Popen[bytes]]
"""A port that will answer, and the process behind it."""


@contextlib.contextmanager
def nginx(upstream: int, folder: Path, core: int) -> Iterator[Started]:
    """One worker, no buffering of answers, kept connections to the upstream."""
    program = shutil.which("nginx", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
    if program is None:
        raise Unavailable("not installed (Debian: nginx-light)")
    port, config = free_port(), folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""  # else its worker may not write into the temporary folder
    config.write_text(_NGINX.format(folder=folder, upstream=upstream, port=port, user=user), encoding="utf-8")
    command: list[str | Path] = [program, "-e", folder / "nginx.log", "-p", folder, "-c", config]
    with process(command, core=core, log=folder / "nginx.out") as one:
        yield port, one


@contextlib.contextmanager
def vllm_router(upstream: int, folder: Path, core: int) -> Iterator[Started]:
    """The router of the vLLM project with one worker URL."""
    port = free_port()
    command: list[str | Path] = [_environment(VLLM_ROUTER) / "vllm-router", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", f"http://127.0.0.1:{upstream}", "--policy", "round_robin", "--log-level", "error"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    with process(command, core=core, log=folder / "vllm-router.log", env=clean_environment()) as one:
        yield port, one


@contextlib.contextmanager
def litellm(upstream: int, folder: Path, core: int, model: str) -> Iterator[Started]:
    """LiteLLM's proxy with one worker, no database, no keys."""
    port, config = free_port(), folder / "litellm.yaml"
    config.write_text(_LITELLM.format(model=model, upstream=upstream), encoding="utf-8")
    command: list[str | Path] = [
        _environment(LITELLM) / "litellm",
        "--config",
        config,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    env = clean_environment() | {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"}
    with process([*command, "--telemetry", "False"], core=core, log=folder / "litellm.log", env=env) as one:
        yield port, one


def _environment(requirement: str) -> Path:
    """The folder of a peer's commands; installs it the first time."""
    name = requirement.replace("==", "-").replace("[proxy]", "")
    folder = cache_dir() / f"bench-{name}"
    stamp = folder / "installed"
    if stamp.exists():
        return folder / "bin"
    print(f"installing {requirement} into the cache folder (once) ...", flush=True)
    make: list[str | Path] = [sys.executable, "-m", "venv", "--clear", folder]
    install: list[str | Path] = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-input",
        requirement,
    ]
    for command in (make, install):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, env=clean_environment())
        except subprocess.CalledProcessError as error:
            said = [line for line in error.stderr.splitlines() if line.startswith("ERROR")] or ["it failed"]
            raise Unavailable(f"{requirement} could not be installed: {said[-1][:160]}") from error
        except OSError as error:
            raise Unavailable(f"{requirement} could not be installed: {error.strerror}") from error
    stamp.touch()
    return folder / "bin"
