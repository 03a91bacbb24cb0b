"""What rules share: the decision read off the bounds, and the step from a count-scale width to these."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.calibration.kinds import RELEASE_KINDS, ReleaseKind
from reticent.accounting.certificates.boundaries import rounding
from reticent.accounting.certificates.bounds import (
    LARGEST_ACCEPTANCE,
    NO_TRANSFER,
    Bounds,
    Selection,
    Sums,
    Transfer,
)

__all__ = ["BaseRule", "WidthRule", "bounds_of", "decided", "level"]

Array = NDArray[np.float64]


def level(families: int, thresholds: int, alpha: float) -> float:
    """log(c m/α)."""
    return math.log(families * thresholds / alpha)


def bounds_of(
    claim: Claim, sums: Sums, transfer: Transfer, contrast: Array, contrast_width: Array, acceptance_width: Array
) -> Bounds:
    """d̄ = min(1-r*, (D + width)/N + η) and a̲ = max(0, (Ã - width)/N - η); vacuous while N = 0.

    Args:
        contrast: D, the released contrast or something at least as large, in counts.
        contrast_width, acceptance_width: in counts.
    """
    N = sums.events
    count = np.maximum(N, 1.0)
    sizes = (sums.loss, sums.other, N)
    d_bar = (contrast + contrast_width + rounding(*sizes, contrast_width)) / count + transfer.contrast
    a_low = (sums.accepted - acceptance_width - rounding(*sizes, acceptance_width)) / count - transfer.acceptance
    return decided(claim, N, d_bar, a_low)


def decided(claim: Claim, events: Array, contrast_upper: Array, acceptance_lower: Array) -> Bounds:
    """Bounds cut to their range, vacuous while N = 0, and the decision that they give."""
    r, known = claim.target_risk, events > 0.0
    d_bar = np.where(known, np.clip(contrast_upper, -r, 1.0 - r), 1.0 - r)
    a_low = np.where(known, np.clip(acceptance_lower, 0.0, 1.0), 0.0)
    return Bounds(d_bar, a_low, np.asarray((d_bar <= 0.0) & (a_low >= claim.min_acceptance), dtype=np.bool_))


class BaseRule:
    """A rule whose decision is read off its bounds: of the contrast at α_D, and of the acceptance at α_A."""

    releases: frozenset[ReleaseKind] = RELEASE_KINDS
    selection: Selection = LARGEST_ACCEPTANCE
    serves: bool = True

    def failure_probabilities(self, claim: Claim) -> Mapping[str, float]:
        """α_D of the contrast bounds and α_A of the acceptance bounds."""
        return {"alpha_risk": claim.alpha_risk, "alpha_acceptance": claim.alpha_acceptance}

    def certified(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> NDArray[np.bool_]:
        """Certified thresholds, (..., m)."""
        return self.bounds(claim, sums, transfer).certified

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        raise NotImplementedError


class WidthRule(BaseRule):
    """A rule with a width for each source, and so with the paper's failure probabilities."""

    def failure_probabilities(self, claim: Claim) -> Mapping[str, float]:
        """α_s of the sampling event and α_n of the noise event (paper, theorem 1)."""
        return {"alpha_sampling": claim.alpha_sampling, "alpha_noise": claim.alpha_noise}
