"""Two-sided intervals for a mean, valid at every sample size.

* `clopper_pearson`: binary losses; coverage at least the level for a binomial count.
* `hoeffding_bentkus`: independent losses in [0, 1] with any laws, for the mean of their means. For each mean μ the
  probability of a sample mean as small as x̄ is at most min(exp(-n kl(x̄, μ)), e P(Bin(n, μ) ≤ ⌈n x̄⌉)) (Hoeffding 1963,
  theorem 1; Bentkus 2004), and both are monotone, so inverting the smaller one keeps the level.

The number of accepted records may be random: given which records are accepted, their losses are independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import bdtr, betaincinv

__all__ = ["Interval", "clopper_pearson", "hoeffding_bentkus", "mean_interval"]


@dataclass(frozen=True)
class Interval:
    """A mean and an interval for it.

    Attributes:
        mean: of the sample; None when it is empty.
        low, high: the interval, within [0, 1].
        method: "clopper-pearson" or "hoeffding-bentkus".
    """

    mean: float | None
    low: float
    high: float
    method: str


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Exact interval for a binomial probability; (0, 1) without trials.

    Raises:
        ValueError: not 0 ≤ successes ≤ trials, or a level outside (0, 1).
    """
    if not 0 <= successes <= trials or not 0.0 < level < 1.0:
        raise ValueError(f"needs 0 <= successes <= trials and 0 < level < 1, got {successes}, {trials}, {level!r}")
    tail = 0.5 * (1.0 - level)
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, tail))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1.0 - tail))
    return low, high


def hoeffding_bentkus(mean: float, count: int, level: float = 0.95) -> tuple[float, float]:
    """Interval for the mean of `count` independent values in [0, 1] whose sample mean is `mean`; (0, 1) without any.

    Raises:
        ValueError: a mean outside [0, 1], a negative count, or a level outside (0, 1).
    """
    if not 0.0 <= mean <= 1.0 or count < 0 or not 0.0 < level < 1.0:
        raise ValueError(f"needs a mean in [0, 1], count >= 0 and 0 < level < 1, got {mean!r}, {count}, {level!r}")
    if count == 0:
        return 0.0, 1.0
    tail = 0.5 * (1.0 - level)
    # The lower end is 1 minus the upper end of the mirrored values.
    return 1.0 - _upper(1.0 - mean, count, tail), _upper(mean, count, tail)


def mean_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Interval for the mean of a sample in [0, 1]: Clopper-Pearson when all values are 0 or 1."""
    sample = np.asarray(values, dtype=np.float64)
    total, count = math.fsum(sample), len(sample)
    mean = min(1.0, total / count) if count else None
    if np.all((sample == 0.0) | (sample == 1.0)):
        return Interval(mean, *clopper_pearson(round(total), count, level), "clopper-pearson")
    return Interval(mean, *hoeffding_bentkus(mean or 0.0, count, level), "hoeffding-bentkus")


def _upper(mean: float, count: int, tail: float) -> float:
    """Least μ ≥ mean at which a sample mean this small has probability at most `tail`, rounded up."""
    ceiling = math.ceil(count * mean)

    def log_bound(mu: float) -> float:
        # Far below any level the exact value does not matter, only its sign: kept finite for the root finder.
        bentkus = 1.0 + math.log(max(float(bdtr(ceiling, count, mu)), 1e-300))
        return min(-count * _kl(mean, mu), bentkus)

    target, top = math.log(tail), 1.0 - 1e-12
    if mean >= top or log_bound(top) > target:
        return 1.0
    root = float(brentq(lambda mu: log_bound(mu) - target, mean, top, xtol=1e-12))
    return min(1.0, root + 2e-12)


def _kl(x: float, mu: float) -> float:
    first = x * math.log(x / mu) if x > 0.0 else 0.0
    second = (1.0 - x) * math.log((1.0 - x) / (1.0 - mu)) if x < 1.0 else 0.0
    return first + second
