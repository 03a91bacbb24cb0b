"""Time-uniform widths: how far a sum can lie from its mean, for ever, with a failure probability given as a level.

Each width takes `level` = log(c m/α): the failure probability α is shared by c one-sided families over m thresholds
(paper, section 4.2). The epochs r = 0, 1, 2, … share it further with the weights π_r = 6/(π²(r+1)²) (equation 48).
Counts and variances are non-negative floats; ⌈log2⌉ is taken from the binary exponent, so it is exact at powers of two.
Nothing here overflows or cancels for N to 1e9 and variances to 1e18.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

__all__ = [
    "epoch",
    "freedman_width",
    "gaussian_line",
    "gaussian_width",
    "hoeffding_line",
    "hoeffding_width",
    "log_epoch_cost",
    "mixture_width",
    "rounding",
]

Array = NDArray[np.float64]

_LOG_FIRST = math.log(math.pi**2 / 6.0)
_LINES_BACK = np.arange(4.0)
_LOG_2 = math.log(2.0)
_LOG_2PI = math.log(2.0 * math.pi)
_NEWTON_STEPS = 3


def epoch(value: ArrayLike) -> Array:
    """⌈log2 max(x, 1)⌉."""
    fraction, exponent = np.frexp(np.maximum(np.asarray(value, dtype=np.float64), 1.0))
    return np.asarray(exponent - (fraction == 0.5), dtype=np.float64)


def log_epoch_cost(index: Array) -> Array:
    """log(1/π_r) = log(π²/6) + 2 log(r + 1) (paper, equation 48)."""
    return np.asarray(_LOG_FIRST + 2.0 * np.log1p(index), dtype=np.float64)


def hoeffding_width(events: ArrayLike, level: float) -> Array:
    """H_c(n; α) = sqrt(2^⌈log2 n⌉/2 · log(c m/(α π_r))) in counts (paper, equation 19). Increments of range one."""
    r = epoch(events)
    return np.asarray(np.sqrt(0.5 * np.exp2(r) * (level + log_epoch_cost(r))), dtype=np.float64)


def gaussian_width(variance: ArrayLike, least_variance: float, level: float) -> Array:
    """G_c(v; α) = sqrt(2 u_r log(c m/(α π_r))), u_r = v0 2^r, r = max(0, ⌈log2(v/v0)⌉); 0 at v = 0 (equation 20)."""
    v = np.asarray(variance, dtype=np.float64)
    r = epoch(v / least_variance)
    width = np.sqrt(2.0 * least_variance * np.exp2(r) * (level + log_epoch_cost(r)))
    return np.asarray(np.where(v > 0.0, width, 0.0), dtype=np.float64)


def freedman_width(quadratic_variation: ArrayLike, level: float) -> Array:
    """F_3(q; α) = max over 0 ≤ r ≤ R = ⌈log2 max(q, 1)⌉ of sqrt(2^(r+1) x_r) + ⅔ x_r (paper, equation 24).

    Both terms increase with r, so the maximum is the term at R.
    """
    r = epoch(quadratic_variation)
    x = level + log_epoch_cost(r)
    return np.asarray(np.sqrt(2.0 * np.exp2(r) * x) + (2.0 / 3.0) * x, dtype=np.float64)


def hoeffding_line(events: ArrayLike, level: float) -> Array:
    """min over r of sqrt(x_r u_r/8)(1 + n/u_r), u_r = 2^r: the lines whose values at n = u_r are H_c. See the rule."""
    return _lowest_line(np.asarray(events, dtype=np.float64), 1.0, 0.125, level)


def gaussian_line(variance: ArrayLike, least_variance: float, level: float) -> Array:
    """min over r of sqrt(x_r u_r/2)(1 + v/u_r), u_r = v0 2^r, and 0 at v = 0: the lines under G_c. See the rule."""
    v = np.asarray(variance, dtype=np.float64)
    return np.asarray(np.where(v > 0.0, _lowest_line(v, least_variance, 0.5, level), 0.0), dtype=np.float64)


def mixture_width(variance: ArrayLike, scale: ArrayLike, level: float) -> Array:
    """S(v) with ∫ over λ > 0 of 2φ(λ; 0, 1/τ) exp(λS - ½λ²v) = 1/α', rounded up; τ = `scale`, α' = exp(-level).

    The integral is 2 sqrt(τ/(v+τ)) exp(½y²) Φ(y) at S = y sqrt(v+τ). So y solves ½y² + log Φ(y) = c, where
    c = level + ½ log(1 + v/τ) - log 2. The left side is convex and increasing for y ≥ 0 and Φ ≥ ½, so
    y = sqrt(2(c + log 2)) lies above the root, and Newton's steps from there stay above it.
    """
    v, tau = np.asarray(variance, dtype=np.float64), np.asarray(scale, dtype=np.float64)
    target = level + 0.5 * np.log1p(v / tau) - _LOG_2
    y = np.sqrt(2.0 * (target + _LOG_2))
    for _ in range(_NEWTON_STEPS):
        log_cdf = log_ndtr(y)
        mills = np.exp(-0.5 * (y * y + _LOG_2PI) - log_cdf)
        y = y - np.maximum(0.5 * y * y + log_cdf - target, 0.0) / (y + mills)
    return np.asarray(y * np.sqrt(v + tau) * (1.0 + 2.0**-45), dtype=np.float64)


def rounding(*sizes: Array) -> Array:
    """Upper bound of the rounding error of a sum of terms of these sizes, each right to a few units in the last place.

    2^-48 of their sum covers 32 such units. Bounds are moved outwards by it.
    """
    total = np.zeros(())
    for size in sizes:
        total = total + np.abs(size)
    return np.asarray(2.0**-48 * total, dtype=np.float64)


def _lowest_line(value: Array, unit: float, factor: float, level: float) -> Array:
    # Lines of later epochs than the value's own lie above its line there; those of much earlier ones are too steep. Any
    # choice is valid, because all lines hold together.
    back = _LINES_BACK.reshape((4,) + (1,) * value.ndim)
    r = np.maximum(epoch(value / unit) - back, 0.0)
    u = unit * np.exp2(r)
    lines = np.sqrt(factor * u * (level + log_epoch_cost(r))) * (1.0 + value / u)
    return np.asarray(lines.min(axis=0), dtype=np.float64)
