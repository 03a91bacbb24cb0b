"""How much noise a release needs: exactly, or as the paper's zCDP says.

One slot enters one release, and everything after it is post-processing, so the noise of one release is calibrated to
(ε, δ) whatever the number of sites and rounds. A record moves one cell of a "loss_nonloss" release (L2 sensitivity 1)
and one or two of a "count_error" release (√2; lemma 2 of the paper). Losses of served releases are binary: a fractional
one is first rounded by a coin, and (ε, δ) is convex in such mixtures.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from reticent.accounting.calibration.kinds import COUNT_ERROR, LOSS_NONLOSS, RELEASE_KINDS, ReleaseKind
from reticent.accounting.charges.bounded_range import require_delta
from reticent.accounting.charges.gaussian import (
    LEAST_DISCRETE_SCALE,
    calibrated_scale,
    delta_of,
    discrete_calibrated_scale,
    discrete_delta_of,
    scan_scales,
)
from reticent.accounting.errors import CalibrationError, InvalidQuantityError, require_non_negative, require_positive

__all__ = [
    "SENSITIVITY",
    "discrete_pair_calibrated_scale",
    "discrete_pair_delta_of",
    "release_delta",
    "release_scale",
    "zcdp_scale",
]

SENSITIVITY: dict[ReleaseKind, float] = {LOSS_NONLOSS: 1.0, COUNT_ERROR: math.sqrt(2.0)}
"""L2 sensitivity of one slot."""

_MARGIN = 1.0 + 1e-9


def zcdp_scale(epsilon: float, delta: float, sensitivity: float = math.sqrt(2.0)) -> float:
    """σ = Δ/sqrt(2ρ*), ρ* = (sqrt(ln(1/δ) + ε) - sqrt(ln(1/δ)))²: sufficient for (ε, δ), rounded up.

    At the paper's Δ = √2 it is 1/sqrt(ρ*). Holds for the continuous and for the discrete Gaussian (any ε > 0). Errors:
    `InvalidQuantityError`. Source: paper, equations 33 and 34.
    """
    eps = require_positive("epsilon", epsilon)
    L = -math.log(require_delta(delta))
    root = eps / (math.sqrt(L + eps) + math.sqrt(L))  # the difference of the roots, without cancellation
    return require_positive("sensitivity", sensitivity) / (math.sqrt(2.0) * root) * (1.0 + 1e-12)


def discrete_pair_delta_of(epsilon: float, scale: float) -> float:
    """δ(ε) of independent discrete Gaussians on two integers that both move by 1.

    The privacy loss at (x, y) is -(s-1)/σ² with s = x + y, so only the law of s matters: P(s) is proportional to
    exp(-s²/(4σ²)) θ(s mod 2), θ(0) = Σ exp(-k²/σ²), θ(1) = Σ exp(-(k+½)²/σ²). A record of loss 0 moves one integer;
    that is a post-processing of this, so its δ is no larger. Relative error below 1e-12; `scale` ≥ 0.05.
    """
    eps, sigma = require_non_negative("epsilon", epsilon), require_positive("scale", scale)
    if sigma < LEAST_DISCRETE_SCALE:
        raise InvalidQuantityError("scale", scale, f"at least {LEAST_DISCRETE_SCALE}")
    variance = sigma * sigma
    reach = math.ceil(60.0 * sigma) + 1
    first = math.ceil(1.0 - eps * variance) - 1  # largest s < 1 - εσ²
    if first < -reach:
        return 1e-300  # beyond 60 σ; the tail of the Gaussian is below that, and it is not 0
    k = np.arange(-reach, reach + 1.0)
    theta = [math.fsum(np.exp(-((k + half) ** 2) / variance)) for half in (0.0, 0.5)]
    weight = np.exp(-0.25 * k * k / variance) * np.where(k % 2 == 0.0, *theta)
    gain = -np.expm1(np.minimum(eps + (k - 1.0) / variance, 0.0))  # 0 where s ≥ 1 - εσ²
    return math.fsum(weight * gain) / math.fsum(weight)


def discrete_pair_calibrated_scale(epsilon: float, delta: float, step: float = 1e-4) -> float:
    """A scale on the grid of `step` at which the discrete pair is (ε, δ)-DP, nearly the least.

    As `discrete_calibrated_scale`: found by `scan_scales` from above the continuous scale, and tested by the exact sum.
    Errors: `CalibrationError`, `InvalidQuantityError`.
    """
    width = require_positive("step", step)

    def holds(scale: float) -> bool:
        return discrete_pair_delta_of(epsilon, scale) * _MARGIN <= delta

    top = 1.1 * calibrated_scale(epsilon, delta, SENSITIVITY[COUNT_ERROR]) + 0.5
    found = scan_scales(holds, top, width)
    if found is None:
        raise CalibrationError(epsilon, delta, f"scales up to {top:g}")
    return found


def release_delta(
    release: ReleaseKind, epsilon: float, scale: float, noise: Literal["discrete", "continuous"] = "discrete"
) -> float:
    """Exact δ(ε) of one slot in one release with noise of this scale on every cell."""
    _check_kind(release)
    if noise == "continuous":
        return delta_of(epsilon, SENSITIVITY[release], scale)
    return discrete_delta_of(epsilon, scale) if release == LOSS_NONLOSS else discrete_pair_delta_of(epsilon, scale)


def release_scale(
    release: ReleaseKind,
    epsilon: float,
    delta: float,
    *,
    method: Literal["exact", "zcdp"] = "exact",
    noise: Literal["discrete", "continuous"] = "discrete",
) -> float:
    """σ of the noise on every cell of a release.

    Args:
        method: "exact", the least scale (continuous: up to 1e-9; discrete: on a grid of 1e-4); "zcdp", the paper's.
        noise: "continuous" is for studies: in floating point it is not safe to release.

    Errors: `InvalidQuantityError`, `CalibrationError`, and `ValueError` for an unknown kind of release.
    """
    _check_kind(release)
    if method == "zcdp":
        return zcdp_scale(epsilon, delta, SENSITIVITY[release])
    if noise == "continuous":
        return calibrated_scale(epsilon, delta, SENSITIVITY[release])
    if release == LOSS_NONLOSS:
        return discrete_calibrated_scale(epsilon, delta)
    return discrete_pair_calibrated_scale(epsilon, delta)


def _check_kind(release: ReleaseKind) -> None:
    if release not in RELEASE_KINDS:
        raise ValueError(f"the release must be one of {sorted(RELEASE_KINDS)}, got {release!r}")
