"""The e-process rule as one of the rules. Its mathematics and proof stand in `certificates/eprocess.py`.

The decision is read off two log evidences, not off the bounds: d̄ and a̲ solve for the values at which the evidences
would reach their levels, which is slower and answers the same (the evidences are monotone).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.bounds import (
    NO_TRANSFER,
    SMALLEST_INDEX,
    Bounds,
    Selection,
    Sums,
    Transfer,
)
from reticent.accounting.certificates.eprocess import acceptance_lower, certified_mask, contrast_upper
from reticent.accounting.certificates.rules.common import BaseRule

__all__ = ["EProcess"]


class EProcess(BaseRule):
    """Two e-processes, for the contrast and for the acceptance floor."""

    name = "eprocess"
    selection: Selection = SMALLEST_INDEX

    def certified(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> NDArray[np.bool_]:
        """Certified thresholds, (..., m)."""
        return certified_mask(
            claim,
            sums.loss,
            sums.other,
            sums.variance,
            sums.events,
            contrast_transfer=transfer.contrast,
            acceptance_transfer=transfer.acceptance,
            release=sums.release,
        )

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        Z, other, V, N, m = sums.loss, sums.other, sums.variance, sums.events, sums.size
        r, a_min, kind = claim.target_risk, claim.min_acceptance, sums.release
        mask = self.certified(claim, sums, transfer)
        d_bar = contrast_upper(Z, other, V, N, target_risk=r, alpha=claim.alpha_risk / m, release=kind)
        a_low = acceptance_lower(Z, other, V, N, alpha=claim.alpha_acceptance / m, release=kind)
        d_bar, a_low = d_bar + transfer.contrast, a_low - transfer.acceptance
        # A certified threshold has log E at d̄ = 0 and at a̲ = a_min above what is required, so both are bounds; the two
        # ways of computing the same thing may differ by rounding, and the reader should see them agree.
        d_bar = np.where(mask, np.minimum(d_bar, 0.0), d_bar)
        a_low = np.where(mask, np.maximum(a_low, a_min), a_low)
        return Bounds(np.clip(d_bar, -r, 1.0 - r), np.clip(a_low, 0.0, 1.0), mask)
