"""PrivBoN with Gaussian instead of Gumbel noise: the chosen answer is the argmax of reward + N(0, σ²).

Paper: Bhattad and Ray Chowdhury, "Privacy Without Regret", Algorithm 1 with Appendix E, Lemma E.1, equation 26.
It is an option, not the default, since it costs more than Gumbel noise at equal σ, the more so the more candidates
there are: R = Δ = 1, σ = 0.256 gives 5.85 nats at n = 2, 15.5 at 16 and 29.0 at 4096, and Gumbel noise at most 7.81;
at R = 1, Δ = 0.05, n = 16, α = 2 the charge is 0.136 against 0.0095 nats at σ = 0.512.

Why the formula is right, for real and for integer noise
--------------------------------------------------------
Let candidate i win with probability P(a) = E Π_k F(Z + a_k), a_k = r_i - r_k. Noise with a log-concave law makes the
weights f(z - t) Π F(z + a_k) stochastically increasing in t and F(x + c)/F(x) falling in x, so that
log P(a + c·1) - log P(a) falls in every a_k. P itself rises in every a_k, and no a_k moves by more than 2Δ. So the
worst pair has candidate i rise from 0 to Δ while all others fall from R to R - Δ: equation 26.

The discrete Gaussian is log-concave too, and breaking ties for the lowest index only moves a_k by one granule for
k < i. So argmax of integer rewards + `noise.discrete_gaussian`, lowest index on ties, is drawn exactly, and its ε is
the same formula with sums. Sums are bounded here, not computed: with s = σ/g, Φ(z/s) ≤ F(z) ≤ Φ((z+1)/s) up to factors
of 1 ± e^{-19 s²}, and the noise itself lies, stochastically, between σX - g and σX + g. Together
    P_continuous(a - 2g) ≤ P_discrete(a) ≤ P_continuous(a + 2g),
so the integer mechanism's ε is at most log P_continuous at gap R - 2Δ - g over that at R + 2g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from reticent.accounting.charges import bounded_range, pure_dp
from reticent.accounting.charges.rounding import charge_rounded_up
from reticent.accounting.errors import (
    InvalidQuantityError,
    require_integer,
    require_non_negative,
    require_positive,
)

__all__ = ["PrivBoNGaussian"]

_WIDEST = 1e4
_MOST_CANDIDATES = 1 << 16
_LEAST_GRANULES = 8.0
_REACH = 9.5
_STEP = 0.6
_NARROW = 0.5
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_TIE_RATE = 1.0 / math.sqrt(math.pi)


def _hazard(x: np.ndarray) -> np.ndarray:
    """φ(x)/Φ(x)."""
    return np.asarray(np.exp(-0.5 * x * x - _LOG_SQRT_2PI - log_ndtr(x)))


def _log_win(gap: float, rivals: int) -> tuple[float, float]:
    """(l, -l') of l(a) = log E Φ(Z - a)^m at a = `gap`, Z standard normal, m = `rivals` ≥ 1.

    The integrand's logarithm is concave with a curvature between 1 and 1 + m. So ±9.5 around its mode leave out e^-45,
    and the trapezoid rule at steps of 0.6/sqrt(1 + m) errs by less than e^-50 (its integrand is entire).
    """
    highest = max(0.0, gap) + math.sqrt(2.0 * math.log1p(rivals)) + 1.0
    mode = brentq(lambda z: rivals * float(_hazard(np.asarray(z - gap))) - z, 0.0, highest)
    step = _STEP / math.sqrt(1.0 + rivals)
    count = math.ceil(_REACH / step)
    z = mode + step * np.arange(-count, count + 1)
    log_terms = -0.5 * z * z + rivals * log_ndtr(z - gap)
    top = float(log_terms.max())
    weights = np.exp(log_terms - top)
    total = float(weights.sum())
    slope = rivals * float((weights * _hazard(z - gap)).sum()) / total
    return top + math.log(total * step) - _LOG_SQRT_2PI, slope


@lru_cache(maxsize=512)
def _log_ratio(gap: float, width: float, rivals: int) -> float:
    """l(gap - width) - l(gap), to a relative 1e-11: by the derivative where `width` is small."""
    if width <= _NARROW:
        slopes = [_log_win(gap - 0.5 * width * (1.0 + float(node)), rivals)[1] for node in _NODES]
        return 0.5 * width * math.fsum(w * s for w, s in zip(_WEIGHTS.tolist(), slopes, strict=True))
    return _log_win(gap - width, rivals)[0] - _log_win(gap, rivals)[0]


@dataclass(frozen=True)
class PrivBoNGaussian:
    """The mechanism and its parameters.

    Args:
        reward_max: R > 0.
        sensitivity: Δ with 0 < Δ ≤ R, that of the rewards as drawn: `RewardLattice.sensitivity`.
        candidates: n from 1 to 65,536.
        noise_scale: σ, standard deviation of the noise, reward units, at least R/10,000.
        granule: g ≥ 0, reward units, at most σ/8. 0 is the paper's mechanism with real numbers, which no program
            draws; above 0 it is the integer mechanism of this module's head, on the lattice R·2^-bits = g.

    What the caller must guarantee
    ------------------------------
    Rewards clipped to [0, R] by a rule that does not look at D and rounded to the lattice (`RewardLattice`), one
    `noise.discrete_gaussian` at a scale of at least σ/g granules added to each, the lowest index among the largest
    sums, candidates that do not depend on D, and only the index released: no noisy reward, nor the largest of them.

    Errors: `InvalidQuantityError`.
    """

    reward_max: float
    sensitivity: float
    candidates: int
    noise_scale: float
    granule: float = 0.0

    def __post_init__(self) -> None:
        R = require_positive("reward_max", self.reward_max)
        if require_positive("sensitivity", self.sensitivity) > R:
            raise InvalidQuantityError("sensitivity", self.sensitivity, f"at most reward_max ({R!r})")
        require_integer("candidates", self.candidates, 1, _MOST_CANDIDATES)
        if _WIDEST * require_positive("noise_scale", self.noise_scale) < R:
            raise InvalidQuantityError("noise_scale", self.noise_scale, f"at least {R / _WIDEST:g}")
        if require_non_negative("granule", self.granule) * _LEAST_GRANULES > self.noise_scale:
            raise InvalidQuantityError("granule", self.granule, f"at most {self.noise_scale / _LEAST_GRANULES:g}")

    def published_epsilon(self) -> float:
        """Equation 26, pure differential privacy of the mechanism with real numbers (granule 0), nats. Tight.

        ε = log E Φ(Z - (R - 2Δ)/σ)^{n-1} - log E Φ(Z - R/σ)^{n-1}.
        """
        return self._epsilon(0.0)

    def pure_epsilon(self) -> float:
        """Pure differential privacy of the mechanism as drawn on the lattice, nats: above equation 26 by O(g/σ)."""
        return self._epsilon(self.granule)

    def _epsilon(self, granule: float) -> float:
        if self.candidates == 1:
            return 0.0
        gap = (self.reward_max + 2.0 * granule) / self.noise_scale
        width = (2.0 * self.sensitivity + 3.0 * granule) / self.noise_scale
        return _log_ratio(gap, width, self.candidates - 1)

    def bounded_range(self) -> float:
        """Length of an interval that holds all losses of one adjacent pair, nats; at most twice `pure_epsilon`.

        2Δ(s + 1/(√π σ)), s = d/da log E Φ(Z - a/σ)^{n-1} at a = R, sign reversed; plus 8gs for the lattice.

        Along the segment from D' to D, log P_i - log P_j grows at most at 2Δ times h_ij + h_ji + Σ_k max(h_ik, h_jk),
        h_ik = -∂ log P_i/∂r_k ≥ 0. Let i be the lower of the two rewards there: x + φ(x)/Φ(x) rises in x, so winning
        as j has the higher weights in y, hence h_jk ≤ h_ik and the rate is at most 2Δ(s_i + h_ji). By the module's
        argument s_i = Σ_k h_ik is at most s; h_ji, the pull of the lower on the higher reward, is largest when they are
        equal and no other candidate is near: 1/(√π σ). On the lattice each log P moves by at most 2g times s.
        """
        if self.candidates == 1:
            return 0.0
        sigma, rivals = self.noise_scale, self.candidates - 1
        slope = _log_win((self.reward_max + 2.0 * self.granule) / sigma, rivals)[1]
        width = (2.0 * self.sensitivity * (slope + _TIE_RATE) + 8.0 * self.granule * slope) / sigma
        return min(width, 2.0 * self.pure_epsilon())

    def charge(self, order: float) -> float:
        """Charge at order α, nats: the least of four proved bounds of the Rényi divergence.

        * ε, and the divergence of ε-DP (`pure_dp`);
        * that of the bounded range, which is up to four times less for small Δ/σ;
        * αnΔ²/(2σ²), what releasing all n noisy rewards would cost: the least for few candidates and small σ.
        """
        alpha = bounded_range.require_order(order)
        if self.candidates == 1:
            return 0.0
        vector = 0.5 * alpha * self.candidates * (self.sensitivity / self.noise_scale) ** 2
        return min(
            pure_dp.renyi_divergence(alpha, self.pure_epsilon()),
            bounded_range.renyi_divergence(alpha, self.bounded_range()),
            vector,
        )

    def charge_rounded_up(self, order: float) -> int:
        """`charge` with a relative margin of 1e-9, rounded up to an integer of 1e-9 nat."""
        return charge_rounded_up(self.charge(order))
