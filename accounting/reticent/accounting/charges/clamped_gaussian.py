"""PrivITP phase 1 at a discount: the noisy threshold is used only clamped to an interval that holds all thresholds.

Phase 1 releases clip(λ* + noise, -β, R-β) with λ* in that interval, and nothing else. Clamping is post-processing, so
less is lost than αΔ²/(2σ²). With all lengths in units of σ, the interval moved to [0, w], and two thresholds t and
t + δ, the (α-1)-th exponential moment of the loss of the clamped Gaussians is
    M(t) = Φ(-t-δ)^α Φ(-t)^{1-α} + Φ(t+δ-w)^α Φ(t-w)^{1-α} + e^{α(α-1)δ²/2} (Φ(w-t-αδ) - Φ(-t-αδ))
(two atoms and the middle), and the divergence is log M/(α-1).

Why the supremum is certified
-----------------------------
* |difference| = Δ is worst. The clamped law has a likelihood ratio that rises with its mean, so for m > m' both
  ∂M/∂m = α E_p[(p/q)^{α-1} · score] ≥ 0 and ∂M/∂m' = (1-α) E_q[(p/q)^α · score] ≤ 0: covariances of two rising
  functions. Reflection covers m < m'.
* Over t in [0, w-δ], M rises, then falls. M'(t) = G_0(t) - G_1(t) with, f(x) = x^α and B its Bregman divergence,
      G_0 = φ(t) B(φ(t+δ)/φ(t), Φ(-t-δ)/Φ(-t)),   G_1 = φ(w-t) B(φ(w-t-δ)/φ(w-t), Φ(t+δ-w)/Φ(t-w)).
  With u = w-t-δ, m Mills' ratio Φ(-x)/φ(x), b(x) = 1 - α x^{α-1} + (α-1) x^α,
      G_0 = φ(t) e^{-α(tδ + δ²/2)} b(m(t+δ)/m(t)),   G_1 = φ(u+δ) e^{α(uδ + δ²/2)} b(m(u)/m(u+δ)).
  log m is convex, so the first argument of b (below 1) rises in t and the second (above 1) rises in t too; b falls
  below 1 and rises above. The factors in front contribute -t - αδ - u + (α-1)δ = -w to (log G_0/G_1)'. So G_0/G_1 falls
  strictly and M' changes sign once: the supremum is at the root, which is bracketed.
* What is drawn is the *discrete* Gaussian on a lattice, from ⌊λ*⌋. Let s = σ/g ≥ 1 be its scale in granules and F its
  distribution function. For every integer x, the density f obeys f(x) ≤ e^{1/(8s²)} ∫ f over [x-½, x+½] (average
  f(x+v) and f(x-v)), and Φ(z/s)/N ≤ F(z) by comparing the sum with the integral, N < 1 + 4e^{-2π²s²}. Hence the
  discrete moment is at most N^{α-1} e^{α/(8s²)} times the continuous one with cuts at half-integers, but for the atoms'
  denominators, which are half a granule further out: a factor (Φ(y)/Φ(y - 1/(2s)))^{α-1} ≤ e^{(α-1)h(w+5/s)/(2s)},
  h = φ/(1-Φ). Widening the interval by two granules on either side undoes post-processing, so it only raises M, and
  then it holds every threshold and cut, whatever the clamp's own rounding.
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy.special import erfcx, log_ndtr

from reticent.accounting.charges.bounded_range import require_order
from reticent.accounting.charges.gaussian import renyi_charge
from reticent.accounting.charges.rounding import charge_rounded_up
from reticent.accounting.errors import InvalidQuantityError, require_non_negative, require_positive

__all__ = ["clamped_renyi_charge", "clamped_renyi_charge_rounded_up"]

_EPS = 2.0**-52
_BISECTIONS = 60
_SQRT_HALF = math.sqrt(0.5)
_LOG_SQRT_HALF_PI = 0.5 * math.log(0.5 * math.pi)
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_RATIO_ERROR = 1e-6
# Where floats carry the proof; elsewhere no discount is claimed.
_ORDERS = (1.001, 1e5)
_WIDEST = 1e3
_LEAST_SHIFT = 1e-6
_STEEPEST = 1e5


def _log_cdf(x: float) -> float:
    return float(log_ndtr(x))


def _log_mills(x: float) -> float:
    """log of (1 - Φ(x))/φ(x), x ≥ 0."""
    return _LOG_SQRT_HALF_PI + math.log(float(erfcx(x * _SQRT_HALF)))


def _log_b(order: float, log_x: float) -> float:
    """log b(x), b(x) = 1 - α x^{α-1} + (α-1) x^α ≥ 0, given log x ≠ 0; no difference of nearly equal numbers."""
    a, y = order, log_x
    if abs(a * y) < 1e-3:
        series = 0.5 + (2.0 * a - 1.0) * y / 6.0 + (3.0 * a * a - 3.0 * a + 1.0) * y * y / 24.0
        return math.log(a * (a - 1.0) * y * y * series)
    if y < 0.0:
        return math.log((a - 1.0) * math.expm1(a * y) - a * math.expm1((a - 1.0) * y))
    return a * y + math.log(math.expm1(-a * y) - a * math.expm1(-y))


def _log_pull_ratio(order: float, delta: float, width: float, t: float) -> float:
    """log G_0/G_1 at t, to 1e-6 in the range that `clamped_renyi_charge` allows."""
    u = max(0.0, width - t - delta)
    near = -0.5 * t * t - order * delta * (t + 0.5 * delta) + _log_b(order, _log_mills(t + delta) - _log_mills(t))
    far = order * delta * (u + 0.5 * delta) - 0.5 * (u + delta) ** 2
    return near - far - _log_b(order, _log_mills(u) - _log_mills(u + delta))


def _log_mass(low: float, high: float) -> float:
    """log(Φ(high) - Φ(low)) for low ≤ 0, low < high; where the two are nearly equal an upper bound of it."""
    top = _log_cdf(high)
    share = -math.expm1(_log_cdf(low) - top)
    if share > 1e-6:
        return top + math.log(share)
    return math.log(high - low) - 0.5 * min(high, 0.0) ** 2 - _LOG_SQRT_2PI


def _divergence(order: float, delta: float, width: float, t: float) -> float:
    """log M(t)/(α-1) with its rounding error added, nats.

    An exponent errs by some 2^-52 of its parts, the middle's mass by some of its larger end; each by its share of M.
    """
    a = order
    exponents, errors = [], []
    for over, under in ((_log_cdf(-t - delta), _log_cdf(-t)), (_log_cdf(t + delta - width), _log_cdf(t - width))):
        exponents.append(a * over - (a - 1.0) * under)
        errors.append(a * (abs(over) + abs(under) + width + 1.0))
    low, high = -t - a * delta, width - t - a * delta
    lift, mass = 0.5 * a * (a - 1.0) * delta * delta, _log_mass(low, high)
    exponents.append(lift + mass)
    larger = math.exp(min(_log_cdf(high) - mass, 30.0))
    errors.append(lift + abs(mass) + (1.0 + a * delta + width) ** 2 * larger)
    top = max(exponents)
    shares = [math.exp(e - top) for e in exponents]
    total = math.fsum(shares)
    rounding = 32.0 * _EPS * (math.fsum(s * e for s, e in zip(shares, errors, strict=True)) / total + 1.0)
    return (top + math.log(total) + rounding) / (a - 1.0)


def _supremum(order: float, delta: float, width: float) -> float:
    """Upper bound of log M/(α-1) over t in [0, w-δ], nats.

    With the ratio's logarithm known to η, the true root lies within η/w of the bracket, and there M' is at most
    (e^η - 1) G_0; G_0 ≤ φ(t) b ≤ 0.4 everywhere and M ≥ 1. So M(t_1) is short by 0.4 (t_2 - t_1 + 2η²/w) at most.
    """
    low, high = 0.0, width - delta
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if _log_pull_ratio(order, delta, width, middle) > 0.0:
            low = middle
        else:
            high = middle
    short = 0.4 * (high - low + 2.0 * _RATIO_ERROR**2 / width)
    return _divergence(order, delta, width, low) + short / (order - 1.0)


@lru_cache(maxsize=256)
def clamped_renyi_charge(
    order: float, sensitivity: float, scale: float, reward_max: float, granule: float = 0.0
) -> float:
    """Charge at order α of a threshold released only clamped, nats; an upper bound, never above αΔ²/(2σ²).

    Args:
        order: α > 1.
        sensitivity: Δ, 0 < Δ ≤ R: the most that λ* moves (`RewardLattice.sensitivity`).
        scale: σ > 0 of the noise (`threshold_noise`).
        reward_max: R > 0, the length of the interval [-β, R-β] that holds λ* and to which λ̃ is clamped.
        granule: g, 0 < g ≤ σ: the charge of ⌊λ*⌋ + discrete Gaussian on the lattice of g, clamped. 0: the continuous
            Gaussian.

    What the caller must guarantee
    ------------------------------
    λ* lies in the interval, and λ̃ leaves the release only clamped: it is not shown, kept, logged or used unclamped.

    No discount is claimed for orders outside 1.001 to 1e5, R/σ above 1,000, Δ/σ or Δ/R below 1e-6, or αΔ/σ above 1e5.
    Time: some 0.2 ms, then cached.

    Errors: `InvalidQuantityError`. Source: privacy.md, section 5, last paragraph; proof above.
    """
    alpha = require_order(order)
    Delta, sigma = require_positive("sensitivity", sensitivity), require_positive("scale", scale)
    R, g = require_positive("reward_max", reward_max), require_non_negative("granule", granule)
    if Delta > R:
        raise InvalidQuantityError("sensitivity", sensitivity, f"at most reward_max ({R!r})")
    if g > sigma:
        raise InvalidQuantityError("granule", granule, f"at most the scale ({sigma!r})")
    full = renyi_charge(alpha, Delta, sigma)
    fine = g / sigma
    width, delta = R / sigma + 4.0 * fine, Delta / sigma
    allowed = _ORDERS[0] <= alpha <= _ORDERS[1] and width <= _WIDEST and alpha * delta <= _STEEPEST
    if not allowed or min(delta, delta / width) < _LEAST_SHIFT:
        return full
    return min(full, _supremum(alpha, delta, width) + _lattice_cost(alpha, width, fine))


def _lattice_cost(order: float, width: float, fine: float) -> float:
    """log N + α/(8s²(α-1)) + h(w + 1/s)/(2s), s = 1/`fine`: what the discrete law may lose beyond the continuous."""
    if fine == 0.0:
        return 0.0
    hazard = math.exp(-_log_mills(width + fine))
    # Below fine = 0.1 it is less than e^-1900, which the rounding terms cover.
    poisson = math.log1p(4.0 * math.exp(-2.0 * (math.pi / fine) ** 2)) if fine > 0.1 else 0.0
    return poisson + order * fine * fine / (8.0 * (order - 1.0)) + 0.5 * fine * hazard


def clamped_renyi_charge_rounded_up(
    order: float, sensitivity: float, scale: float, reward_max: float, granule: float = 0.0
) -> int:
    """`clamped_renyi_charge` with a relative margin of 1e-9, rounded up to an integer of 1e-9 nat."""
    return charge_rounded_up(clamped_renyi_charge(order, sensitivity, scale, reward_max, granule))
