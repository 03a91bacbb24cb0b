"""Gaussian noise, continuous and discrete: charges, exact (ε, δ), and exact calibration.

The usual σ = Δ sqrt(2 ln(1.25/δ))/ε holds only for ε < 1, and the paper "Privacy Without Regret" uses it far outside
(privacy.md, section 4). Everything here is exact up to the margins that the names state.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, ndtr, ndtri

from reticent.accounting.charges.bounded_range import require_delta, require_order
from reticent.accounting.charges.rounding import charge_rounded_up
from reticent.accounting.errors import CalibrationError, InvalidQuantityError, require_non_negative, require_positive

__all__ = [
    "LEAST_DISCRETE_SCALE",
    "calibrated_scale",
    "delta_of",
    "discrete_calibrated_scale",
    "discrete_delta_of",
    "epsilon_of",
    "probabilistic_epsilon",
    "renyi_charge",
    "renyi_charge_rounded_up",
    "scan_scales",
]

LEAST_DISCRETE_SCALE = 0.05
"""The smallest scale of discrete noise, in units of its lattice, whose δ is computed."""

_RELATIVE_MARGIN = 1e-9
_DELTA_MARGIN = 1e-9
_LOG_MU_RANGE = (-18.0, 9.0)
_COARSE_STEP = 1e-2
_SMALL_SHIFT = 0.1
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_ROOT_HALF = math.sqrt(0.5)
_PHI_AT_0 = 1.0 / math.sqrt(2.0 * math.pi)


def renyi_charge(order: float, sensitivity: float, scale: float) -> float:
    """αΔ²/(2σ²), nats: order-α Rényi divergence of N(0, σ²) shifted by Δ, and a bound for the discrete Gaussian.

    For the discrete Gaussian Δ and σ are in granules and Δ is an integer. Source: privacy.md, section 5.
    """
    alpha = require_order(order)
    mu = require_non_negative("sensitivity", sensitivity) / require_positive("scale", scale)
    return 0.5 * alpha * mu * mu


def renyi_charge_rounded_up(order: float, sensitivity: float, scale: float) -> int:
    """`renyi_charge` with a relative margin of 1e-9, rounded up to an integer of 1e-9 nat."""
    return charge_rounded_up(renyi_charge(order, sensitivity, scale))


def delta_of(epsilon: float, sensitivity: float, scale: float) -> float:
    """δ(ε) = Φ(a/2 - ε/a) - e^ε Φ(-a/2 - ε/a), a = Δ/σ: the exact δ of the Gaussian mechanism (ε ≥ 0).

    Written with Mills' ratio m where that avoids a difference of large numbers: φ(u)(m(u) - m(u + a)), u = ε/a - a/2,
    and for small a as φ(u) ∫ (1 - v m(v)) dv over [u, u + a]. Relative error below 1e-12 down to δ = 1e-300.
    Source: privacy.md, section 4.
    """
    eps = require_non_negative("epsilon", epsilon)
    a = require_positive("sensitivity", sensitivity) / require_positive("scale", scale)
    u = eps / a - 0.5 * a
    if u < -1.0:
        return float(ndtr(-u) - math.exp(eps + float(log_ndtr(-u - a))))
    if a < _SMALL_SHIFT:
        v = u + 0.5 * a * (1.0 + _NODES)
        return 0.5 * a * math.exp(-0.5 * u * u) * float(_WEIGHTS @ (_PHI_AT_0 - 0.5 * v * erfcx(v * _ROOT_HALF)))
    mills = float(erfcx(u * _ROOT_HALF)) - float(erfcx((u + a) * _ROOT_HALF))
    return 0.5 * math.exp(-0.5 * u * u) * mills


def probabilistic_epsilon(delta: float, sensitivity: float, scale: float) -> float:
    """ε = a²/2 + a z_{1-δ}, a = Δ/σ: the privacy loss exceeds ε with probability δ; at least 0.

    Source: privacy.md, section 4.
    """
    a = require_positive("sensitivity", sensitivity) / require_positive("scale", scale)
    return max(0.0, 0.5 * a * a - a * float(ndtri(require_delta(delta))))


def epsilon_of(delta: float, sensitivity: float, scale: float) -> float:
    """Least ε ≥ 0 at which the Gaussian mechanism is (ε, δ)-DP, nats, up to a relative 1e-9 and rounded up.

    The root of δ(ε) = δ (`delta_of`), which lies between 0 and `probabilistic_epsilon`. For reports: charges of a data
    set add at one order α, these do not. Errors: `InvalidQuantityError`, `CalibrationError`. Source: privacy.md,
    section 4.
    """
    d, Delta = require_delta(delta), require_positive("sensitivity", sensitivity)
    if delta_of(0.0, Delta, scale) <= d * (1.0 - _DELTA_MARGIN):
        return 0.0
    high = probabilistic_epsilon(d, Delta, scale) * (1.0 + _RELATIVE_MARGIN)
    searched = f"epsilons from 0 to {high:g}"
    if not delta_of(high, Delta, scale) <= d:
        raise CalibrationError(high, d, searched)
    root = float(brentq(lambda e: delta_of(e, Delta, scale) - d, 0.0, high, xtol=1e-300, rtol=1e-13))
    epsilon = root * (1.0 + _RELATIVE_MARGIN)
    if not delta_of(epsilon, Delta, scale) <= d:
        raise CalibrationError(epsilon, d, searched)
    return epsilon


def calibrated_scale(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Smallest σ, up to a relative 1e-9 and rounded up, at which the continuous Gaussian is (ε, δ)-DP.

    σ = Δ/μ, μ the root of Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) = δ. Errors: `InvalidQuantityError`, `CalibrationError`.
    Source: certificate.md, "The e-process rule".
    """
    eps, d = require_positive("epsilon", epsilon), require_delta(delta)
    Delta = require_positive("sensitivity", sensitivity)

    def excess(log_mu: float) -> float:
        return delta_of(eps, 1.0, math.exp(-log_mu)) - d

    low, high = _LOG_MU_RANGE
    searched = f"scales from {math.exp(-high):g} to {math.exp(-low):g} sensitivities"
    if not excess(low) < 0.0 < excess(high):
        raise CalibrationError(eps, d, searched)
    root = float(brentq(excess, low, high, xtol=1e-13, rtol=1e-13))
    scale = math.exp(-root) * (1.0 + 1e-9)
    if not delta_of(eps, 1.0, scale) <= d:
        raise CalibrationError(eps, d, searched)
    return Delta * scale


def discrete_delta_of(epsilon: float, scale: float) -> float:
    """δ(ε) of the discrete Gaussian on the integers under a shift of 1: Σ over x of max(0, p(x) - e^ε p(x-1)).

    p(x) is proportional to exp(-x²/(2σ²)), σ = `scale` ≥ 0.05. Terms are positive exactly for x < 1/2 - εσ²; each is
    p(x)(1 - exp(ε + (x - 1/2)/σ²)), so nothing cancels, and the sums are correctly rounded. Relative error below 1e-12.
    Source: certificate.md, "The e-process rule".
    """
    eps, sigma = require_non_negative("epsilon", epsilon), require_positive("scale", scale)
    if sigma < LEAST_DISCRETE_SCALE:
        raise InvalidQuantityError("scale", scale, f"at least {LEAST_DISCRETE_SCALE}")
    variance = sigma * sigma
    first = math.ceil(0.5 - eps * variance) - 1
    reach = math.ceil(40.0 * sigma) + 1
    if first < -reach:
        # Beyond 40 σ: bounded by the Gaussian tail, which is below 1e-300; said as that, not as 0.
        return 1e-300
    below = [
        math.exp(-0.5 * x * x / variance) * -math.expm1(eps + (x - 0.5) / variance)
        for x in range(first, -reach - 1, -1)
    ]
    normaliser = math.fsum(math.exp(-0.5 * x * x / variance) for x in range(-reach, reach + 1))
    return math.fsum(below) / normaliser


def discrete_calibrated_scale(epsilon: float, delta: float, step: float = 1e-4) -> float:
    """A scale σ on the grid of `step` at which the discrete Gaussian with shift 1 is (ε, δ)-DP, nearly the least.

    Found by `scan_scales` from above the continuous scale. The scale returned has been tested by the exact sum with a
    relative margin of 1e-9 in δ; nothing is claimed of other scales. Errors as `calibrated_scale`.
    """
    eps, d = require_positive("epsilon", epsilon), require_delta(delta)
    width = require_positive("step", step)

    def holds(scale: float) -> bool:
        return discrete_delta_of(eps, scale) * (1.0 + _DELTA_MARGIN) <= d

    top = 1.1 * calibrated_scale(eps, d) + 0.5
    found = scan_scales(holds, top, width) if holds(top) else None
    if found is None:
        raise CalibrationError(eps, d, f"scales up to {top:g}")
    return found


def scan_scales(holds: Callable[[float], bool], top: float, step: float) -> float | None:
    """A scale of discrete noise on the grid of `step`, at most `top`, that `holds`; None if the scan finds none.

    Which scales hold is not monotone in σ: with a shift of 1 at ε = 8, δ = 1e-6 there is a pocket [.559, .580] of
    admissible scales below .6593. The scan comes down from `top` in hundredths to the first scale that fails, then goes
    up from there by `step` to the first that holds, so it stays above such pockets.
    """
    scale = top
    while scale - _COARSE_STEP >= LEAST_DISCRETE_SCALE and holds(scale):
        scale -= _COARSE_STEP
    index = max(math.floor(scale / step), math.ceil(LEAST_DISCRETE_SCALE / step))
    while index * step <= top:
        if holds(index * step):
            return index * step
        index += 1
    return None
