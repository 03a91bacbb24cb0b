"""What the comparators share: how a method is described, and bounds that several of them use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, xlog1py, xlogy

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.bounds import Bounds, Sums, Transfer
from reticent.accounting.certificates.rules.common import BaseRule, decided

__all__ = [
    "Comparator",
    "Native",
    "bounds_from_risk",
    "bounds_from_widths",
    "clopper_pearson_lower",
    "hoeffding_bentkus",
]

Array = NDArray[np.float64]

_BISECTIONS = 50


@dataclass(frozen=True)
class Native:
    """What a method needs in order to hold.

    Attributes:
        reads: "exact" sums of raw records, or "noised" ones.
        looks: "every" round, or the "final" one only.
        iid: the records must be independent draws of one law; else sites may differ, and their numbers be fixed.
        proved: whether the method has a proof under these assumptions.
    """

    reads: Literal["exact", "noised"]
    looks: Literal["every", "final"]
    iid: bool
    proved: bool = True


class Comparator(BaseRule):
    """A published method that reads sums as a rule does. Never in the registry of rules, and `serves` is False.

    Its failure probabilities, α_D and α_A, are those under its native assumptions.
    """

    name: str
    native: Native
    serves = False


def bounds_from_widths(
    claim: Claim, sums: Sums, transfer: Transfer, contrast_width: Array, acceptance_width: Array
) -> Bounds:
    """d̄ = (D̃ + width)/N + η and a̲ = (Ã - width)/N - η, as published: not rounded outwards as a serving rule's are."""
    count = np.maximum(sums.events, 1.0)
    d_bar = (sums.contrast(claim.target_risk) + contrast_width) / count + transfer.contrast
    a_low = (sums.accepted - acceptance_width) / count - transfer.acceptance
    return decided(claim, sums.events, d_bar, a_low)


def bounds_from_risk(claim: Claim, risk_upper: Array, acceptance_lower: Array) -> Bounds:
    """Bounds of the contrast from U ≥ z/a and a̲: d = a(R - r*) is at most a̲(U - r*) where U ≤ r*, else 1·(U - r*)."""
    r = claim.target_risk
    excess = risk_upper - r
    d_bar = np.where(excess > 0.0, np.minimum(excess, 1.0 - r), acceptance_lower * excess)
    certified = (risk_upper <= r) & (acceptance_lower >= claim.min_acceptance)
    return Bounds(np.asarray(d_bar), np.asarray(acceptance_lower, dtype=np.float64), certified)


def clopper_pearson_lower(successes: Array, trials: Array, alpha: float) -> Array:
    """Exact lower bound of a binomial probability, at level α. Counts are rounded down and clipped to what can be."""
    n = np.maximum(np.asarray(trials, dtype=np.float64), 1.0)
    k = np.clip(np.floor(successes), 0.0, n)
    return np.asarray(np.where(k > 0.0, betaincinv(np.maximum(k, 1.0), n - k + 1.0, alpha), 0.0))


def hoeffding_bentkus(losses: Array, count: Array, alpha: float) -> Array:
    """Upper bound of the mean of n independent losses in [0, 1] whose sum is `losses`, at level α.

    Inverts p = min(exp(-n KL(R̂ ∧ R, R)), e·P(Bin(n, R) ≤ ⌈nR̂⌉)) (Angelopoulos et al., Learn then Test, 2025). Counts
    are rounded down and sums clipped to what they can be. 1 where n = 0.
    """
    n = np.floor(np.maximum(np.asarray(count, dtype=np.float64), 0.0))
    total = np.clip(losses, 0.0, n)
    safe = np.maximum(n, 1.0)
    k = np.minimum(np.ceil(total), safe)
    bentkus = np.where(k < safe, betaincinv(k + 1.0, np.maximum(safe - k, 1e-300), 1.0 - min(alpha / math.e, 1.0)), 1.0)
    return np.asarray(np.where(n > 0.0, np.minimum(bentkus, _hoeffding_upper(total / safe, safe, alpha)), 1.0))


def _hoeffding_upper(mean: Array, n: Array, alpha: float) -> Array:
    """Largest R with n KL(R̂, R) ≤ log(1/α), from above, by bisection."""
    needed = math.log(1.0 / alpha) / n
    low, high = np.array(mean, dtype=np.float64), np.ones_like(mean)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        with np.errstate(divide="ignore", invalid="ignore"):
            known = xlogy(mean, mean) + xlog1py(1.0 - mean, -mean)
            distance = known - xlogy(mean, middle) - xlog1py(1.0 - mean, -middle)
        within = np.nan_to_num(distance, nan=np.inf) <= needed
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    return high
