"""The table of `docs/queries.md`: python -m reticent.accounting.planning.page > docs/queries.md"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.planning.laws import BetaLaw
from reticent.accounting.planning.queries import Budget
from reticent.accounting.planning.report import plan_privbon, plan_privitp

__all__ = ["main", "page"]

_SENSITIVITIES = (1.0, 0.05, 0.01)
_SCALES = (0.256, 0.512, 1.024, 2.56)
_DELTAS = (0.01, 1e-6)
_EPSILON, _CANDIDATES, _REGULARIZATION, _TRUNCATION = 50.0, 16, 0.05, 3.84

_HEAD = f"""# How many queries a budget answers

Made by `python -m reticent.accounting.planning.page > docs/queries.md`; do not edit by hand.

A budget of ε = {_EPSILON:g} nats for the data set, as (ε, δ)-differential privacy (`guarantee: dp`). R = 1,
n = {_CANDIDATES}, β = {_REGULARIZATION}, L = {_TRUNCATION}, rewards Beta(2, 2). PrivITP's noise is split as in the
paper, σ_X = σ_Z = σ/2; PrivBoN's Gumbel noise has the scale σ. Every number is the expected count, one query after
another, until the next one's worst case over all thresholds does not fit (0.0: not even the first fits); each at its
own best order α.

"ville" charges PrivITP's realised worst-case losses, "renyi" the Rényi costs of its rounds. Compare rules at equal
reward, not at equal σ: the reward columns show what the answer is worth (a base sample: 0.5).
Your own numbers: `reticent plan`, and `reticent plan --compare`.
"""


def page() -> str:
    """The whole page in Markdown. Takes about a minute."""
    return "\n".join([_HEAD, *_table(), ""])


def _table() -> Iterator[str]:
    columns = [f"{name}, δ = {_plain(delta)}" for delta in _DELTAS for name in ("ville", "renyi", "PrivBoN")]
    yield "| " + " | ".join(["Δ", "σ", *columns, "reward PrivITP", "reward PrivBoN"]) + " |"
    yield "|" + "---:|" * (4 + len(columns))
    law = BetaLaw(2.0, 2.0, 1.0, "beta:2,2")
    for Delta in _SENSITIVITIES:
        for sigma in _SCALES:
            itp = PrivITP(1.0, Delta, _CANDIDATES, _REGULARIZATION, sigma / 2, sigma / 2, _TRUNCATION, granule=0.0)
            bon = PrivBoN(1.0, Delta, _CANDIDATES, sigma)
            counts, rewards = [], [0.0, 0.0]
            for delta in _DELTAS:
                budget = Budget(_EPSILON, delta)
                plans = (plan_privitp(itp, law, budget), plan_privbon(bon, law, budget))
                found = {a.name: a.answered.mean for plan in plans for a in plan.accountings}
                counts += [_count(found[name]) for name in ("ville", "renyi", "privbon")]
                rewards = [plan.reward[0] for plan in plans]
            yield "| " + " | ".join([f"{Delta:g}", f"{sigma:g}", *counts, *(f"{r:.3f}" for r in rewards)]) + " |"


def _plain(delta: float) -> str:
    return f"{delta:.0e}".replace("e-0", "e-") if delta < 1e-3 else f"{delta:g}"


def _count(value: float) -> str:
    return f"{value:.1f}" if value < 100.0 else f"{value:,.0f}"


def main() -> None:
    """Print the page."""
    sys.stdout.write(page())


if __name__ == "__main__":
    main()
