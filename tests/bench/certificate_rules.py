"""Time of one update of all thresholds, for every rule, side by side in one run.

    python tests/bench/certificate_rules.py [--repeats N] [--json]

"certified" is the decision at every threshold, "bounds" adds d̄ and a̲. Rules take turns, so that a busy machine slows
all of them alike; the smallest and the median of the repeats are shown, and the ratio to Fed-SRC-C. Not a test.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict

import numpy as np

from reticent.accounting.calibration import Claim
from reticent.accounting.certificates.bounds import LOSS_NONLOSS, Sums
from reticent.accounting.certificates.rules import RULES

CLAIM = Claim(target_risk=0.3, min_acceptance=0.05, alpha_risk=0.045, alpha_acceptance=0.005)
CALLS = 20
TARGETS = {20: 100.0, 1000: 2000.0}
"""Microseconds that an update may take, by number of thresholds."""


def sums(m: int) -> Sums:
    """20 000 events in six releases of σ = 4, a score that helps."""
    score = np.arange(m) / m
    accepted = np.rint(20_000 * (1 - 0.95 * score))
    loss = np.rint(accepted * (0.35 - 0.3 * score))
    return Sums(LOSS_NONLOSS, loss, accepted - loss, 96.0 * np.arange(m, 0, -1.0), 20_000, 16.0)


def measure(m: int, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds a call: rule, then what is asked of it, then one value a repeat."""
    example = sums(m)
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in RULES}
    for _ in range(repeats):
        for name, rule in RULES.items():
            for asked, call in (("certified", rule.certified), ("bounds", rule.bounds)):
                start = time.perf_counter()
                for _ in range(CALLS):
                    call(CLAIM, example)
                found[name][asked].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: dict(values) for name, values in found.items()}


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description="time of one update of all thresholds, rule by rule")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for m, target in TARGETS.items():
        found = measure(m, options.repeats)
        base = {asked: statistics.median(found["fed_src_c"][asked]) for asked in ("certified", "bounds")}
        for name, values in found.items():
            for asked, times in values.items():
                median = statistics.median(times)
                rows.append(
                    {
                        "m": m,
                        "rule": name,
                        "asked": asked,
                        "least_us": round(min(times), 1),
                        "median_us": round(median, 1),
                        "ratio_to_fed_src_c": round(median / base[asked], 2),
                        "target_us": target,
                    }
                )
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'m':>5} {'rule':<15} {'asked':<10} {'least µs':>9} {'median µs':>10} {'ratio':>6} {'target µs':>10}")
    for row in rows:
        print(
            f"{row['m']:>5} {row['rule']:<15} {row['asked']:<10} {row['least_us']:>9} {row['median_us']:>10} "
            f"{row['ratio_to_fed_src_c']:>6} {row['target_us']:>10}"
        )


if __name__ == "__main__":
    main()
