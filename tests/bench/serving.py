"""Latency and throughput of the rules against raw vLLM, paired within one run of one server.

    python tests/bench/serving.py [--state DIR] [--repeats N]

Starts the embedded server with vLLM's raw completion route opened, asks for the same prompt through each rule and
through the raw route in turn, and prints medians and ratios. Not a test: these numbers depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.server.conftest import RunningServer, running_server

MODEL = "SmolLM2-135M-Instruct"
TOKENS = 48
TASK = "Write a long story about a lighthouse keeper, his dog and a storm."
RAW = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    f"<|im_start|>user\n{TASK}<|im_end|>\n<|im_start|>assistant\n"
)


def raw(server: RunningServer, n: int) -> tuple[float, float]:
    """Seconds and tokens of vLLM's own n."""
    body = {"model": MODEL, "prompt": RAW, "n": n, "max_tokens": TOKENS, "temperature": 0.5}
    start = time.perf_counter()
    answer = httpx.post(f"{server.base_url}/completions", json=body, timeout=300).raise_for_status().json()
    return time.perf_counter() - start, float(answer["usage"]["completion_tokens"])


def by_rule(server: RunningServer, rule: str, n: int) -> tuple[float, float]:
    """Seconds, and PrivITP's halting time (0 for other rules)."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": TASK}],
        "user": f"bench-{time.time_ns()}",
        "max_tokens": TOKENS,
        "reticent": {"rule": rule, "candidates": n},
    }
    headers = {"Authorization": f"Bearer {server.keys['demo-open']}"}
    start = time.perf_counter()
    answer = httpx.post(f"{server.base_url}/chat/completions", json=body, headers=headers, timeout=300)
    seconds = time.perf_counter() - start
    facts = answer.raise_for_status().json()["reticent"]
    if facts["selection"] != rule:
        raise SystemExit(f"{rule} gave {facts['selection']}: a budget of the demo tenant is spent")
    return seconds, float(facts["halting_time"] or 0)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), RETICENT_SERVER__OPEN_ROUTES='["/v1/completions"]') as server,
    ):
        ways: dict[str, Callable[[int], tuple[float, float]]] = {"raw": lambda n: raw(server, n)}
        for rule in ("bon", "privbon", "privitp"):
            ways[rule] = lambda n, rule=rule: by_rule(server, rule, n)  # type: ignore[misc]
        for repeat in range(arguments.repeats + 1):
            for n in (8, 16):
                for name, way in ways.items():
                    result = way(n)
                    if repeat > 0:  # the first round warms up
                        found[f"{name} n={n}"].append(result)
        metrics = httpx.get(f"{server.root}/metrics").text
    rows = []
    for name, results in found.items():
        seconds = [s for s, _ in results]
        baseline = [s for s, _ in found["raw " + name.split()[1]]]
        ratio = statistics.median(s / b for s, b in zip(seconds, baseline, strict=True))
        extra = statistics.mean(x for _, x in results)
        rows.append({"way": name, "median_s": statistics.median(seconds), "ratio_to_raw": ratio, "extra": extra})
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{'way':16} {'median s':>9} {'/ raw':>7}  {'raw: tokens; privitp: mean halting time':>12}")
    for row in rows:
        print(f"{row['way']:16} {row['median_s']:9.3f} {row['ratio_to_raw']:7.3f}  {row['extra']:12.2f}")
    for line in metrics.splitlines():
        if line.startswith(("reticent_phase_seconds_sum", "reticent_phase_seconds_count")):
            print(line)


if __name__ == "__main__":
    main()
