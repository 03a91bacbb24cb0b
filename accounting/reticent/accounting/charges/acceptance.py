"""The law of PrivITP's acceptance, in log space.

Candidate with reward q is accepted with probability B(q) = E Φ((q - θ)/σ_Z), θ uniform on [λ, T], T = R + σ_Z L.
(Paper "Privacy Without Regret", Lemma C.1: the Gaussian of the reward and the uniform of the coin integrate out.)
Privacy losses are logarithms of ratios of B and of A = 1 - B, so both are needed with small *relative* error however
small they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from scipy.special import erfcx, log_ndtr

from reticent.accounting.errors import (
    InvalidQuantityError,
    require_finite,
    require_non_negative,
    require_positive,
)

__all__ = ["AcceptanceLaw", "log_mean_cdf"]

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF_PI = math.sqrt(0.5 * math.pi)
_ASYMPTOTIC_FROM = 12.0
_NARROW = 0.5
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_LOG_WEIGHTS = np.log(0.5 * _WEIGHTS)
# (-1)^k (2k+1)!! for 1 - 3/t² + 15/t⁴ - …; beyond t = 12 the thirteenth term is below 1e-16.
_SERIES: Final = tuple((-1.0) ** k * math.prod(range(1, 2 * k + 2, 2)) for k in range(13))


def _log_psi_negative(t: float) -> float:
    """log ψ(-t) for t ≥ 0, ψ(x) = xΦ(x) + φ(x): log φ(t) + log(1 - t m(t)), m Mills' ratio."""
    log_phi = -0.5 * t * t - _LOG_SQRT_2PI
    if t <= _ASYMPTOTIC_FROM:
        return log_phi + math.log1p(-t * _SQRT_HALF_PI * float(erfcx(t * _SQRT_HALF)))
    y = 1.0 / (t * t)
    total = 0.0
    for coefficient in reversed(_SERIES):
        total = total * y + coefficient
    return log_phi + math.log(y * total)


def log_mean_cdf(low: float, high: float) -> float:
    """log of the mean of Φ over [low, high], low ≤ high: log of (ψ(high) - ψ(low))/(high - low).

    Relative error of the mean below 1e-12 for |low|, |high| ≤ 40; beyond, it grows like 2^-52 x².
    Narrow intervals by 20-point Gauss-Legendre, intervals above 0 through the complement, the rest by the closed form.
    Source: privacy.md, section 3.
    """
    width = high - low
    if not (math.isfinite(width) and width >= 0.0):
        raise InvalidQuantityError("low, high", (low, high), "finite, with low ≤ high")
    if low >= 0.0 and high > 0.0:
        return math.log1p(-math.exp(log_mean_cdf(-high, -low)))
    if width <= _NARROW:
        return _log_mean_narrow(low, width)
    if high > 0.0:
        # ψ(y) = y + ψ(-y): the sum stays well away from 0 because the interval is wide.
        difference = high + math.exp(_log_psi_negative(high)) - math.exp(_log_psi_negative(-low))
        return math.log(difference / width)
    top = _log_psi_negative(-high)
    return top + math.log1p(-math.exp(_log_psi_negative(-low) - top)) - math.log(width)


def _log_mean_narrow(low: float, width: float) -> float:
    values = log_ndtr(low + 0.5 * width * (1.0 + _NODES)) + _LOG_WEIGHTS
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))


@dataclass(frozen=True)
class AcceptanceLaw:
    """Acceptance probability given the released, clamped threshold λ.

    Args:
        reward_max: R > 0.
        regularization: β > 0.
        reward_noise: σ_Z > 0.
        truncation: L ≥ 0.
        threshold: λ in [-β, R - β]; the clamp keeps M = (R + σ_Z L - λ)/β above 0.

    Errors: `InvalidQuantityError`. Source: privacy.md, section 3.
    """

    regularization: float
    reward_noise: float
    reward_max: float
    truncation: float
    threshold: float

    def __post_init__(self) -> None:
        R = require_positive("reward_max", self.reward_max)
        beta = require_positive("regularization", self.regularization)
        require_positive("reward_noise", self.reward_noise)
        require_non_negative("truncation", self.truncation)
        if not -beta <= require_finite("threshold", self.threshold) <= R - beta:
            # The value is released noise, but still kept out of the message: see privacy.md, section 7.
            raise InvalidQuantityError("threshold", "a number outside it", f"within [{-beta:g}, {R - beta:g}]")

    @cached_property
    def ceiling(self) -> float:
        """T = R + σ_Z L, at which an acceptance is sure."""
        return self.reward_max + self.reward_noise * self.truncation

    def _ends(self, q: float) -> tuple[float, float]:
        if not 0.0 <= q <= self.reward_max:
            raise InvalidQuantityError("reward", "a number outside it", f"within [0, {self.reward_max:g}]")
        return (q - self.ceiling) / self.reward_noise, (q - self.threshold) / self.reward_noise

    def log_accept(self, q: float) -> float:
        """log B(q) for a reward q in [0, R]."""
        low, high = self._ends(q)
        return log_mean_cdf(low, high)

    def log_reject(self, q: float) -> float:
        """log A(q) = log(1 - B(q)) for a reward q in [0, R]."""
        low, high = self._ends(q)
        return log_mean_cdf(-high, -low)
