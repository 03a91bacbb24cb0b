"""The e-process rule: certify a threshold when two supermartingales both exceed their levels.

Source: the project's design note on certificates; the statement it answers is "Private Anytime Selective-Risk
Certification for Federated Retrieval-Augmented Generation: Guarantees and Empirical Limits" (sections 3 and 4, with the
one-hot release of accepted loss and accepted non-loss in place of counts and errors).

With a "count_error" release the argument `accepted_nonloss` takes Ã: -λZ̃ + bÃ replaces (b-λ)Z̃ + bF̃, which is the same
of the records; the noise that is taken away is then ½(λ² + b²)V, and ½s²V instead of s²V in the acceptance.

For a bet λ > 0 put b = -log1p(r* expm1(-λ)) and g = expm1(b)/r*. A record with score and loss has Z = ℓA and F = (1-ℓ)A
at threshold j, where A says whether it is accepted. exp(b - λℓ) is convex in ℓ, so given the past

    E exp((b-λ)Z + bF)  ≤  1 - a + (a-z)e^b + z e^(b-λ)  =  1 - g(z - r*a)  ≤  exp(-g d),      d = z - r*a,

hence exp(Σ[(b-λ)Z + bF] + g Σd) is a supermartingale. Independent σ²-sub-Gaussian noise on Z and F multiplies its
mean by at most exp(½((λ-b)² + b²)σ²) a cell, which is taken away again. A mixture over fixed λ is a supermartingale
too, and stays below m/α for ever with probability at least 1 - α/m (Ville). The acceptance floor is the same with
exp(sA).

What the caller must guarantee
------------------------------
* The site, the number of slots, the noise scale and the decision to release are fixed before the records are seen.
* The noise of every cell is independent, centred and σ²-sub-Gaussian: `noise_variance` is the sum of σ² over the
  cells in the suffix. (The discrete Gaussian with parameter σ² is; its true variance is a little smaller, σ² is the
  one to use.)
* `transfer` bounds, at every time, how far the mean of a slot under the declared deployment mixture can lie from the
  mean over the slots that arrived.

Everything is computed in log space. Arrays are (..., m): leading axes are independent trials. Sums over bets run in a
fixed order, element by element, so that two machines differ by the rounding of exp and log1p only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.calibration.kinds import LOSS_NONLOSS, ReleaseKind

__all__ = [
    "ACCEPTANCE_BETS",
    "RISK_BETS",
    "acceptance_lower",
    "certified_mask",
    "contrast_upper",
    "log_acceptance_evidence",
    "log_risk_evidence",
    "rounding_margin",
]

Array = NDArray[np.float64]

# The bets are part of the rule's meaning: a transcript judged under the name "eprocess" is always judged with these.
RISK_BETS: tuple[float, ...] = tuple(accumulate([0.005] + [1.6] * 13, lambda x, y: x * y))
ACCEPTANCE_BETS: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)

_LOG_RISK_BETS = math.log(len(RISK_BETS))
_LOG_ACCEPTANCE_BETS = math.log(len(ACCEPTANCE_BETS))
_NEWTON_STEPS = 60


def log_risk_evidence(
    accepted_loss: ArrayLike,
    accepted_nonloss: ArrayLike,
    noise_variance: ArrayLike,
    events: ArrayLike,
    contrast: ArrayLike,
    target_risk: float,
    release: ReleaseKind = LOSS_NONLOSS,
) -> Array:
    """log E_j(δ): evidence, at each threshold, against a mean contrast of δ or more.

    Args:
        accepted_loss, accepted_nonloss: noised suffix sums Z̃ and F̃, never clipped.
        noise_variance: V, of each of the two sums.
        events: N ≥ 0.
        contrast: δ, the mean of A(ℓ - r*) over the slots under the hypothesis; usually -η.
        target_risk: r*.

    Returns:
        The logarithm of an e-process for Σd ≥ Nδ, non-decreasing in δ. Plain floating point: see `rounding_margin`.
    """
    lines, slopes = _risk_lines(accepted_loss, accepted_nonloss, noise_variance, events, target_risk, release)
    return _logsumexp(lines + slopes * np.asarray(contrast, dtype=np.float64))


def log_acceptance_evidence(
    accepted_loss: ArrayLike,
    accepted_nonloss: ArrayLike,
    noise_variance: ArrayLike,
    events: ArrayLike,
    floor: ArrayLike,
    release: ReleaseKind = LOSS_NONLOSS,
) -> Array:
    """log E^A_j(a'): evidence, at each threshold, against a mean acceptance of a' or less.

    Both noised sums enter, so the noise has variance 2V. Non-increasing in `floor` (a' ≥ 0). Arguments otherwise as
    `log_risk_evidence`.
    """
    lines, growth = _acceptance_lines(accepted_loss, accepted_nonloss, noise_variance, release)
    count = np.asarray(events, dtype=np.float64)
    return _logsumexp(lines - count * np.log1p(np.asarray(floor, dtype=np.float64) * growth))


def rounding_margin(
    accepted_loss: ArrayLike, accepted_nonloss: ArrayLike, noise_variance: ArrayLike, events: ArrayLike
) -> Array:
    """Upper bound of the rounding error of both log evidences (|δ|, a' ≤ 2), added to what is required of them.

    A term is a sum of a few products whose coefficients are below λ_max = 2.26, λ_max²/2 and g ≤ e^{λ_max}; each is
    right to a few units in the last place, 2^-53, and 2^-48 covers 32 of them. The part 1e-9 does not depend on the
    size: it keeps every decision at least that far from an exact tie. Machines whose exp and log1p differ in the last
    place can still disagree when an evidence lies within that last place of the edge; a certificate then fails to load.
    """
    size = np.abs(np.asarray(accepted_loss, dtype=np.float64)) + np.abs(np.asarray(accepted_nonloss, dtype=np.float64))
    size = 2.3 * size + 6.0 * np.asarray(noise_variance, dtype=np.float64) + 20.0 * np.asarray(events, dtype=np.float64)
    return np.asarray(1e-9 + 2.0**-48 * size, dtype=np.float64)


def contrast_upper(
    accepted_loss: ArrayLike,
    accepted_nonloss: ArrayLike,
    noise_variance: ArrayLike,
    events: ArrayLike,
    *,
    target_risk: float,
    alpha: float,
    release: ReleaseKind = LOSS_NONLOSS,
) -> Array:
    """The contrast δ at which log E_j(δ) = log(1/α): an upper bound of the mean contrast over the slots that arrived.

    Spends exactly `alpha` on each threshold, over all times; the caller divides by the number of thresholds and adds
    η for the deployment mixture. Rounded up. At most 1 - r*, which is also the answer when nothing has been learnt.
    """
    lines, slopes = _risk_lines(accepted_loss, accepted_nonloss, noise_variance, events, target_risk, release)
    margin = rounding_margin(accepted_loss, accepted_nonloss, noise_variance, events)
    target = math.log(1.0 / alpha) + margin
    vacuous = 1.0 - target_risk
    known = slopes[0] > 0.0
    slopes = np.where(slopes > 0.0, slopes, 1.0)
    # log E is convex and increasing in δ. The root for the best single bet lies above the root of the mixture, and
    # Newton's steps from above never pass it, so whatever is returned errs upwards.
    root = np.asarray(((target - lines) / slopes).min(axis=0))
    for _ in range(_NEWTON_STEPS):
        values = lines + slopes * root
        top = values.max(axis=0)
        weights = np.exp(values - top)
        total = _ordered_sum(weights)
        excess = top + np.log(total) - target
        if not np.any(excess > 0.25 * margin):
            break
        root = root - np.maximum(excess, 0.0) * total / _ordered_sum(weights * slopes)
    return np.asarray(np.where(known, np.minimum(root, vacuous), vacuous), dtype=np.float64)


def acceptance_lower(
    accepted_loss: ArrayLike,
    accepted_nonloss: ArrayLike,
    noise_variance: ArrayLike,
    events: ArrayLike,
    *,
    alpha: float,
    release: ReleaseKind = LOSS_NONLOSS,
) -> Array:
    """The floor a' at which log E^A_j(a') = log(1/α): a lower bound of the mean acceptance over the slots that arrived.

    Spends exactly `alpha` on each threshold, over all times; the caller subtracts η. Rounded down, within [0, 1].
    """
    lines, growth = _acceptance_lines(accepted_loss, accepted_nonloss, noise_variance, release)
    bets = _acceptance_coefficients(release, lines.ndim)[0]
    count = np.maximum(np.asarray(events, dtype=np.float64), 1.0)
    margin = rounding_margin(accepted_loss, accepted_nonloss, noise_variance, events)
    target = math.log(1.0 / alpha) + margin
    # Convex and decreasing in a': start at the best single bet, below the root, and take Newton's steps from below.
    start = np.expm1(np.minimum((lines - target) / count, bets)) / growth
    root = np.clip(start.max(axis=0), 0.0, 1.0)
    for _ in range(_NEWTON_STEPS):
        factors = 1.0 + root * growth
        values = lines - count * np.log1p(root * growth)
        top = values.max(axis=0)
        weights = np.exp(values - top)
        total = _ordered_sum(weights)
        excess = top + np.log(total) - target
        if not np.any((excess > 0.25 * margin) & (root < 1.0)):
            break
        step = np.maximum(excess, 0.0) * total / (count * _ordered_sum(weights * growth / factors))
        root = np.minimum(root + step, 1.0)
    reached = (_logsumexp(lines) >= target) & (np.asarray(events) > 0)
    return np.asarray(np.where(reached, root, 0.0), dtype=np.float64)


def certified_mask(
    claim: Claim,
    accepted_loss: ArrayLike,
    accepted_nonloss: ArrayLike,
    noise_variance: ArrayLike,
    events: ArrayLike,
    *,
    contrast_transfer: ArrayLike = 0.0,
    acceptance_transfer: ArrayLike = 0.0,
    release: ReleaseKind = LOSS_NONLOSS,
) -> NDArray[np.bool_]:
    """Which thresholds are certified, shape (..., m); the union over the m thresholds of the last axis is taken here.

    Args:
        contrast_transfer, acceptance_transfer: how far the mean contrast and the mean acceptance over the slots can lie
            from the deployment mixture's (η, and for the contrast what unfilled slots add).
    """
    Z, F, V = np.asarray(accepted_loss), np.asarray(accepted_nonloss), np.asarray(noise_variance)
    m = Z.shape[-1]
    margin = rounding_margin(Z, F, V, events)
    floor = claim.min_acceptance + np.asarray(acceptance_transfer, dtype=np.float64)
    risk = log_risk_evidence(
        Z, F, V, events, -np.asarray(contrast_transfer, dtype=np.float64), claim.target_risk, release
    )
    acceptance = log_acceptance_evidence(Z, F, V, events, floor, release)
    risk_ok = risk >= math.log(m / claim.alpha_risk) + margin
    floor_ok = acceptance >= math.log(m / claim.alpha_acceptance) + margin
    return np.asarray(risk_ok & floor_ok & (floor <= 1.0), dtype=np.bool_)


@lru_cache(maxsize=256)
def _risk_coefficients(r: float, release: ReleaseKind, rank: int) -> tuple[Array, Array, Array, Array]:
    """Coefficients of Z̃, of the other sum, of V and of N in each bet's exponent, as columns."""
    b = tuple(-math.log1p(r * math.expm1(-bet)) for bet in RISK_BETS)
    # (b-λ)Z̃ + bF̃, or the same as -λZ̃ + bÃ when counts were released: the noise is that of the two sums released.
    loss = tuple(x - bet if release == LOSS_NONLOSS else -bet for x, bet in zip(b, RISK_BETS, strict=True))
    noise = tuple(0.5 * (x * x + y * y) for x, y in zip(b, loss, strict=True))
    gain = tuple(math.expm1(x) / r for x in b)
    return _column(loss, rank), _column(b, rank), _column(noise, rank), _column(gain, rank)


@lru_cache(maxsize=64)
def _acceptance_coefficients(release: ReleaseKind, rank: int) -> tuple[Array, Array, Array]:
    """s, its coefficient of V (½ s² · 2V for two sums, ½ s² V for one) and expm1(s), as columns."""
    half = 1.0 if release == LOSS_NONLOSS else 0.5
    noise = tuple(half * s * s for s in ACCEPTANCE_BETS)
    growth = tuple(math.expm1(s) for s in ACCEPTANCE_BETS)
    return _column(ACCEPTANCE_BETS, rank), _column(noise, rank), _column(growth, rank)


def _risk_lines(
    Z: ArrayLike, other: ArrayLike, V: ArrayLike, N: ArrayLike, r: float, release: ReleaseKind
) -> tuple[Array, Array]:
    """Constant term and slope in δ of each bet's exponent, bets along the first axis."""
    Z, other, V, N = (np.asarray(x, dtype=np.float64) for x in (Z, other, V, N))
    rank = max(Z.ndim, other.ndim, V.ndim, N.ndim) + 1
    loss, accepted, noise, gain = _risk_coefficients(r, release, rank)
    lines = loss * Z + accepted * other - noise * V - _LOG_RISK_BETS
    return lines, np.asarray(gain * N, dtype=np.float64)


def _acceptance_lines(Z: ArrayLike, other: ArrayLike, V: ArrayLike, release: ReleaseKind) -> tuple[Array, Array]:
    """Each bet's exponent without its N term, and expm1 of the bets; bets along the first axis."""
    A, V = np.asarray(other, dtype=np.float64), np.asarray(V, dtype=np.float64)
    if release == LOSS_NONLOSS:
        A = np.asarray(Z, dtype=np.float64) + A
    bets, noise, growth = _acceptance_coefficients(release, max(A.ndim, V.ndim) + 1)
    return np.asarray(bets * A - noise * V - _LOG_ACCEPTANCE_BETS, dtype=np.float64), growth


def _column(values: Sequence[float], rank: int) -> Array:
    column = np.asarray(values, dtype=np.float64).reshape((len(values),) + (1,) * (rank - 1))
    column.flags.writeable = False
    return column


def _ordered_sum(terms: Array) -> Array:
    """Sum over the first axis in index order, as a running sum has it; that of numpy's sum depends on the machine."""
    return np.asarray(np.add.accumulate(terms, axis=0)[-1], dtype=np.float64)


def _logsumexp(terms: Array) -> Array:
    top = terms.max(axis=0)
    return np.asarray(top + np.log(_ordered_sum(np.exp(terms - top))), dtype=np.float64)
