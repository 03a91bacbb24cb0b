"""PrivITP's ex-post accounting made sound without a Rényi filter: K queries agreed in advance, δ/K for each phase 1.

Each phase 1 is paid with an ε1 that holds but for δ/K, each phase 2 with its realised "ville" cost, fallbacks included
("ville" costs are pure ex-post bounds: the loss of an outcome never exceeds its cost). The K exceptions together have
probability δ. So if the sum of all costs surely stays within ε, the stream is

* (ε, δ)-probabilistically DP with ε1 = a²/2 + a z, a = Δ/σ_X, Φ(-z) = δ/K: a union bound over the K thresholds;
* (ε, δ)-DP with the smaller ε1 at which the Gaussian mechanism's exact δ is δ/K. (For a given pair of data sets, an
  (ε1, δ')-DP release is computed from one whose loss is at most ε1 but for an event of probability δ'; adding that one
  to the outcome makes the argument above exact, and forgetting it again is post-processing.)

For comparison (privacy.md, section 5, column "sound, per-query δ", which is the first): it costs about as much as the
unsound published accounting, and far more than the filter of this package.
"""

from __future__ import annotations

from reticent.accounting.charges.gaussian import epsilon_of, probabilistic_epsilon
from reticent.accounting.errors import (
    InvalidQuantityError,
    require_integer,
    require_non_negative,
    require_positive,
)
from reticent.accounting.filter import Guarantee

__all__ = ["affordable_queries", "threshold_epsilon"]

_MOST_QUERIES = 1 << 40


def threshold_epsilon(
    delta: float, queries: int, sensitivity: float, threshold_noise: float, guarantee: Guarantee = "probabilistic"
) -> float:
    """ε1 of one phase 1 at δ/K, nats, K = `queries` ≥ 1 agreed in advance.

    Args: `delta` δ of the whole stream, `sensitivity` Δ, `threshold_noise` σ_X, and the guarantee of the stream.
    """
    share = float(delta) / require_integer("queries", queries, 1)
    if guarantee == "probabilistic":
        return probabilistic_epsilon(share, sensitivity, threshold_noise)
    if guarantee == "dp":
        return epsilon_of(share, sensitivity, threshold_noise)
    raise InvalidQuantityError("guarantee", guarantee, '"dp" or "probabilistic"')


def affordable_queries(
    epsilon: float,
    delta: float,
    sensitivity: float,
    threshold_noise: float,
    mean_sampling_cost: float,
    reserve: float = 0.0,
    guarantee: Guarantee = "probabilistic",
) -> int:
    """Largest K with K (ε1(δ/K) + ē) ≤ ε - reserve: about how many queries a budget answers when K is chosen best.

    Args:
        epsilon, delta: the budget of the stream.
        mean_sampling_cost: ē ≥ 0, nats, the mean "ville" cost of phase 2, fallbacks included.
        reserve: nats that are left at the end because a further query's worst case does not fit.

    K ε1(δ/K) rises with K. A planning number: the costs themselves, not their mean, must be summed and stopped.
    """
    budget = require_positive("epsilon", epsilon) - require_non_negative("reserve", reserve)
    mean = require_non_negative("mean_sampling_cost", mean_sampling_cost)

    def fits(count: int) -> bool:
        each = threshold_epsilon(delta, count, sensitivity, threshold_noise, guarantee) + mean
        return count * each <= budget

    if not fits(1):
        return 0
    most = 1
    while most < _MOST_QUERIES and fits(2 * most):
        most *= 2
    low, high = most, 2 * most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
