"""The stitched ratio (paper, appendix L): bounds of accepted loss and of acceptance, and their quotient.

    U^Z = [(Z̃ + H_2(N; α_s) + G_2(V^Z; α_n))/N] and L^A = [(Ã - H_2(N; α_s) - G_2(V^A; α_n))/N], clipped to [0, 1],
    U = min(1, (U^Z + η)/(L^A - η)) where L^A > η, else 1.

It bounds the risk itself, whatever the target (theorem 7). For the decision it is written as a contrast,
d̄ = U^Z + η - r* max(0, L^A - η), at most 1 - r*: where a̲ = L^A - η > 0, U ≤ r* exactly when d̄ ≤ 0, and d̄ bounds
the contrast because d = z - r*a. It pays two sampling and two noise widths. Unfilled slots are in `Transfer.contrast`,
which is right for the contrast; `risk_upper` takes what they hide of the loss apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.boundaries import gaussian_width, hoeffding_width, rounding
from reticent.accounting.certificates.bounds import NO_TRANSFER, Bounds, Sums, Transfer
from reticent.accounting.certificates.rules.common import WidthRule, level

__all__ = ["Ratio"]

Array = NDArray[np.float64]


class Ratio(WidthRule):
    """The paper's earlier rule."""

    name = "ratio"

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        r = claim.target_risk
        loss, accepted = _parts(claim, sums)
        a_low = np.clip(accepted - transfer.acceptance, 0.0, 1.0)
        d_bar = np.clip(loss + transfer.contrast - r * a_low + 2.0**-48, -r, 1.0 - r)
        return Bounds(d_bar, a_low, np.asarray((d_bar <= 0.0) & (a_low >= claim.min_acceptance), dtype=np.bool_))

    def risk_upper(
        self, claim: Claim, sums: Sums, *, loss_transfer: ArrayLike = 0.0, acceptance_transfer: ArrayLike = 0.0
    ) -> Array:
        """U, upper bounds of the risk of accepted answers, (..., m), in [0, 1]; 1 where nothing is known.

        Args:
            loss_transfer: η, and the largest fraction of unfilled slots.
            acceptance_transfer: η.
        """
        loss, accepted = _parts(claim, sums)
        below = accepted - np.asarray(acceptance_transfer, dtype=np.float64)
        quotient = (loss + np.asarray(loss_transfer, dtype=np.float64)) / np.where(below > 0.0, below, 1.0)
        return np.where(below > 0.0, np.minimum(1.0, quotient * (1.0 + 2.0**-48)), 1.0)


def _parts(claim: Claim, sums: Sums) -> tuple[Array, Array]:
    """U^Z and L^A, rounded outwards."""
    N, v0 = sums.events, sums.least_variance
    noise = level(2, sums.size, claim.alpha_noise)
    H = hoeffding_width(N, level(2, sums.size, claim.alpha_sampling))
    G_Z = gaussian_width(sums.variance, v0, noise)
    G_A = gaussian_width(sums.accepted_variance, v0, noise)
    count, known = np.maximum(N, 1.0), N > 0.0
    sizes = (sums.loss, sums.other, N, H)
    loss = np.clip((sums.loss + H + G_Z + rounding(*sizes, G_Z)) / count, 0.0, 1.0)
    accepted = np.clip((sums.accepted - H - G_A - rounding(*sizes, G_A)) / count, 0.0, 1.0)
    return np.where(known, loss, 1.0), np.where(known, accepted, 0.0)
