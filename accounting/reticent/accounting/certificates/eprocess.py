"""The e-process rule: certify a threshold when two supermartingales both exceed their levels.

Source: the project's design note on certificates; the statement it answers is "Private Anytime Selective-Risk
Certification for Federated Retrieval-Augmented Generation: Guarantees and Empirical Limits" (sections 3 and 4, with the
one-hot release of accepted loss and accepted non-loss in place of counts and errors).

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
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reticent.accounting.calibration.claim import Claim

__all__ = [
    "ACCEPTANCE_BETS",
    "RISK_BETS",
    "Verdict",
    "acceptance_lower",
    "certified_mask",
    "contrast_upper",
    "judge",
    "log_acceptance_evidence",
    "log_risk_evidence",
    "rounding_margin",
]

Array = NDArray[np.float64]

# The bets are part of the rule's meaning: a transcript judged under the name "eprocess" is always judged with these.
RISK_BETS: tuple[float, ...] = tuple(accumulate([0.005] + [1.6] * 13, lambda x, y: x * y))
ACCEPTANCE_BETS: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)

_NEWTON_STEPS = 60


@dataclass(frozen=True)
class Verdict:
    """The rule's answer at one time. Indices of thresholds start at 0; tuples have one entry for each threshold.

    Attributes:
        certified: indices of the certified thresholds, increasing.
        chosen: the smallest of them (acceptance falls with the threshold), or None.
        threshold: the threshold at `chosen`, or None.
        contrast_upper: d̄, upper bounds of E A(ℓ - r*) under the deployment mixture, in [-r*, 1-r*]; certified implies
            ≤ 0.
        acceptance_lower: a̲, lower bounds of the acceptance under the deployment mixture, in [0, 1].
        log_risk_evidence, log_acceptance_evidence: log E at the null, compared with `log_risk_required` and
            `log_acceptance_required` (the log of m/α).
        events: N, slots released.
    """

    certified: tuple[int, ...]
    chosen: int | None
    threshold: float | None
    contrast_upper: tuple[float, ...]
    acceptance_lower: tuple[float, ...]
    log_risk_evidence: tuple[float, ...]
    log_acceptance_evidence: tuple[float, ...]
    log_risk_required: float
    log_acceptance_required: float
    events: int


def log_risk_evidence(
    accepted_loss: ArrayLike,
    accepted_nonloss: ArrayLike,
    noise_variance: ArrayLike,
    events: ArrayLike,
    contrast: ArrayLike,
    target_risk: float,
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
    lines, slopes = _risk_lines(accepted_loss, accepted_nonloss, noise_variance, events, target_risk)
    return _logsumexp(lines + slopes * np.asarray(contrast, dtype=np.float64))


def log_acceptance_evidence(
    accepted_loss: ArrayLike,
    accepted_nonloss: ArrayLike,
    noise_variance: ArrayLike,
    events: ArrayLike,
    floor: ArrayLike,
) -> Array:
    """log E^A_j(a'): evidence, at each threshold, against a mean acceptance of a' or less.

    Both noised sums enter, so the noise has variance 2V. Non-increasing in `floor` (a' ≥ 0). Arguments otherwise as
    `log_risk_evidence`.
    """
    lines = _acceptance_lines(accepted_loss, accepted_nonloss, noise_variance)
    bets = _column(tuple(math.expm1(s) for s in ACCEPTANCE_BETS), lines.ndim)
    count = np.asarray(events, dtype=np.float64)
    return _logsumexp(lines - count * np.log1p(np.asarray(floor, dtype=np.float64) * bets))


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
) -> Array:
    """The contrast δ at which log E_j(δ) = log(1/α): an upper bound of the mean contrast over the slots that arrived.

    Spends exactly `alpha` on each threshold, over all times; the caller divides by the number of thresholds and adds
    η for the deployment mixture. Rounded up. At most 1 - r*, which is also the answer when nothing has been learnt.
    """
    lines, slopes = _risk_lines(accepted_loss, accepted_nonloss, noise_variance, events, target_risk)
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
) -> Array:
    """The floor a' at which log E^A_j(a') = log(1/α): a lower bound of the mean acceptance over the slots that arrived.

    Spends exactly `alpha` on each threshold, over all times; the caller subtracts η. Rounded down, within [0, 1].
    """
    lines = _acceptance_lines(accepted_loss, accepted_nonloss, noise_variance)
    bets = _column(ACCEPTANCE_BETS, lines.ndim)
    growth = _column(tuple(math.expm1(s) for s in ACCEPTANCE_BETS), lines.ndim)
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
    risk = log_risk_evidence(Z, F, V, events, -np.asarray(contrast_transfer, dtype=np.float64), claim.target_risk)
    acceptance = log_acceptance_evidence(Z, F, V, events, floor)
    risk_ok = risk >= math.log(m / claim.alpha_risk) + margin
    floor_ok = acceptance >= math.log(m / claim.alpha_acceptance) + margin
    return np.asarray(risk_ok & floor_ok & (floor <= 1.0), dtype=np.bool_)


def judge(
    claim: Claim,
    thresholds: Sequence[float],
    accepted_loss: Sequence[float],
    accepted_nonloss: Sequence[float],
    noise_variance: Sequence[float],
    events: int,
    *,
    contrast_transfer: float = 0.0,
    acceptance_transfer: float = 0.0,
) -> Verdict:
    """The verdict at one time. All bounds hold together, at every time and threshold, with probability 1 - α_D - α_A.

    Raises:
        ValueError: lengths that differ, no threshold, negative events, variance or transfer, or a value that is not
            finite.
    """
    m = len(thresholds)
    _check_sums(m, (accepted_loss, accepted_nonloss, noise_variance), events, (contrast_transfer, acceptance_transfer))
    Z, F, V = (np.asarray(x, dtype=np.float64) for x in (accepted_loss, accepted_nonloss, noise_variance))
    mask = certified_mask(
        claim, Z, F, V, events, contrast_transfer=contrast_transfer, acceptance_transfer=acceptance_transfer
    )
    r, a_min = claim.target_risk, claim.min_acceptance
    d_bar = contrast_upper(Z, F, V, events, target_risk=r, alpha=claim.alpha_risk / m) + contrast_transfer
    a_low = acceptance_lower(Z, F, V, events, alpha=claim.alpha_acceptance / m) - acceptance_transfer
    # A certified threshold has log E at d̄ = 0 and at a̲ = a_min above what is required, so both are bounds; the two ways
    # of computing the same thing may differ by rounding, and the reader should see them agree.
    d_bar = np.where(mask, np.minimum(d_bar, 0.0), d_bar)
    a_low = np.where(mask, np.maximum(a_low, a_min), a_low)
    certified = tuple(int(j) for j in np.flatnonzero(mask))
    chosen = certified[0] if certified else None
    return Verdict(
        certified=certified,
        chosen=chosen,
        threshold=None if chosen is None else float(thresholds[chosen]),
        contrast_upper=_floats(np.clip(d_bar, -r, 1.0 - r)),
        acceptance_lower=_floats(np.clip(a_low, 0.0, 1.0)),
        log_risk_evidence=_floats(log_risk_evidence(Z, F, V, events, -contrast_transfer, r)),
        log_acceptance_evidence=_floats(log_acceptance_evidence(Z, F, V, events, a_min + acceptance_transfer)),
        log_risk_required=math.log(m / claim.alpha_risk),
        log_acceptance_required=math.log(m / claim.alpha_acceptance),
        events=events,
    )


def _risk_lines(Z: ArrayLike, F: ArrayLike, V: ArrayLike, N: ArrayLike, r: float) -> tuple[Array, Array]:
    """Constant term and slope in δ of each bet's exponent, bets along the first axis."""
    b = tuple(-math.log1p(r * math.expm1(-bet)) for bet in RISK_BETS)
    loss = tuple(x - bet for x, bet in zip(b, RISK_BETS, strict=True))
    noise = tuple(0.5 * (x * x + y * y) for x, y in zip(b, loss, strict=True))
    gain = tuple(math.expm1(x) / r for x in b)
    Z, F, V, N = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (Z, F, V, N)))
    rank = Z.ndim + 1
    lines = _column(loss, rank) * Z + _column(b, rank) * F - _column(noise, rank) * V - math.log(len(RISK_BETS))
    return lines, _column(gain, rank) * N


def _acceptance_lines(Z: ArrayLike, F: ArrayLike, V: ArrayLike) -> Array:
    A = np.asarray(Z, dtype=np.float64) + np.asarray(F, dtype=np.float64)
    rank = A.ndim + 1
    noise = _column(tuple(s * s for s in ACCEPTANCE_BETS), rank)  # ½ s² · 2V
    lines = _column(ACCEPTANCE_BETS, rank) * A - noise * np.asarray(V, dtype=np.float64)
    return np.asarray(lines - math.log(len(ACCEPTANCE_BETS)), dtype=np.float64)


def _column(values: Sequence[float], rank: int) -> Array:
    return np.asarray(values, dtype=np.float64).reshape((len(values),) + (1,) * (rank - 1))


def _ordered_sum(terms: Array) -> Array:
    """Sum over the first axis in index order; numpy's own order depends on the machine."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return np.asarray(total, dtype=np.float64)


def _logsumexp(terms: Array) -> Array:
    top = terms.max(axis=0)
    return np.asarray(top + np.log(_ordered_sum(np.exp(terms - top))), dtype=np.float64)


def _floats(values: Array) -> tuple[float, ...]:
    return tuple(float(value) + 0.0 for value in values)  # + 0.0 turns -0.0 into 0.0


def _check_sums(m: int, sums: Sequence[Sequence[float]], events: int, transfers: Sequence[float]) -> None:
    if m == 0:
        raise ValueError("a verdict needs at least one threshold")
    for values in sums:
        if len(values) != m:
            raise ValueError(f"expected {m} suffix sums, one for each threshold, got {len(values)}")
        if not all(math.isfinite(value) for value in values):
            raise ValueError("suffix sums and variances must be finite")
    if events < 0 or any(value < 0 for value in sums[2]):
        raise ValueError("events and noise variances cannot be negative")
    if not all(0.0 <= value < math.inf for value in transfers):
        raise ValueError(f"transfers must be finite and not negative, got {tuple(transfers)}")
