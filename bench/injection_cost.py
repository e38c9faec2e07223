"""What asking for token ids and logprobs costs an engine: tokens per second and time to first token.

    python -m bench.injection_cost [--base-url http://…/v1] [--rounds 15] [--write]

Without an address it starts the rig's primary (bf16, FP8 KV cache where the CPU can) on one core. The variants take
turns within each round, in an order that rotates, so that a machine that drifts drifts for all of them; each is
compared with the plain request of its own round. Streams of 64 tokens, greedy, ignore_eos, the prompt cached.
"""

import argparse
import asyncio
import datetime as dt
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import httpx2

from bench import stats
from proxy.demo.rig import MODEL_NAME, PRIMARY_ARGS, Engine, free_port, prepare

TOKENS = 64
RESULT = Path(__file__).parent / "results" / "injection-cost.md"
_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ids": {"return_token_ids": True},
    "ids, k = 2": _IDS | {"logprobs": True, "top_logprobs": 2},
    "ids, k = 5": _IDS | {"logprobs": True, "top_logprobs": 5},
}
_MESSAGES = [{"role": "user", "content": "Tell me a long story about a lighthouse keeper. " * 8}]


def once(client: httpx2.Client, base_url: str, fields: dict[str, Any]) -> tuple[float, float]:
    """One streamed request: (time to first token in seconds, tokens per second after it)."""
    body = {"model": MODEL_NAME, "messages": _MESSAGES, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    began = time.perf_counter()
    first = 0.0
    events = 0
    with client.stream("POST", f"{base_url}/chat/completions", json=body | {"stream": True} | fields) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                events += 1
                if events == 2:  # the first event only names the role
                    first = time.perf_counter() - began
    return first, (TOKENS - 1) / (time.perf_counter() - began - first)


def measure(base_url: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """`rounds` pairs of figures per variant, after one warm-up round."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in VARIANTS}
    order = list(VARIANTS)
    with httpx2.Client(timeout=300, trust_env=False) as client:
        for number in range(rounds + 1):
            for name in order:
                figures = once(client, base_url, VARIANTS[name])
                if number:
                    found[name].append(figures)
            order = order[1:] + order[:1]
            print(f"round {number} of {rounds}", flush=True)
    return found


def table(found: dict[str, list[tuple[float, float]]]) -> str:
    """The figures as a Markdown table."""
    plain = found["plain"]
    rows = []
    for name, figures in found.items():
        first, speed = (stats.paired([f[i] for f in figures], [p[i] for p in plain]) for i in (0, 1))
        rows.append(
            [
                name,
                f"{statistics.median(f[1] for f in figures):.1f}",
                str(stats.interval(speed)),
                f"{1000 * statistics.median(f[0] for f in figures):.0f}",
                str(stats.interval(first)),
            ]
        )
    heads = [
        "request",
        "tokens / s (median)",
        "ratio to plain, same round",
        "first token, ms (median)",
        "ratio to plain",
    ]
    return stats.table(heads, rows)


def main() -> None:
    """Runs the bench; `--write` keeps the result beside the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="an engine that is up; default: the rig's primary is started")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    if options.base_url:
        found = measure(options.base_url, options.rounds)
    else:
        engine = Engine.start(prepare(print), name="bench", port=free_port(), core=0, args=PRIMARY_ARGS)
        try:
            asyncio.run(engine.wait_ready(300))
            found = measure(engine.base_url, options.rounds)
        finally:
            engine.stop()
    result = table(found)
    print(result)
    if options.write:
        RESULT.parent.mkdir(exist_ok=True)
        about = (
            f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, `python -m bench.injection_cost --rounds {options.rounds} --write`, "
            f"vLLM 0.32 on one CPU core ({platform.machine()}), SmolLM2-135M, `{' '.join(PRIMARY_ARGS)}`. "
            f"{options.rounds} rounds of {TOKENS} streamed tokens, variants taking turns; ratios are paired within a "
            "round, with a 95 % bootstrap interval of the median."
        )
        RESULT.write_text(f"# What injection costs the engine\n\n{about}\n\n{result}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
