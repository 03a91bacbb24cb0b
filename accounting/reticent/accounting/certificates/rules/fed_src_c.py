"""Fed-SRC-C: range only. One stitched Hoeffding width and one stitched noise width (paper, equations 19-22).

    d̄ = min(1-r*, (D̃ + H_2(N; α_s) + G_2(V^D; α_n))/N + η),   a̲ = max(0, (Ã - H_2(N; α_s) - G_2(V^A; α_n))/N - η).

Valid with probability 1 - α_s - α_n at all thresholds and times (theorem 1). The noise enters through its sub-Gaussian
variance only, so the discrete Gaussian and the "loss_nonloss" release (V^D = ((1-r*)² + r*²)V, V^A = 2V) are covered by
the same proof.
"""

from __future__ import annotations

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.boundaries import gaussian_width, hoeffding_width
from reticent.accounting.certificates.bounds import NO_TRANSFER, Bounds, Sums, Transfer
from reticent.accounting.certificates.rules.common import WidthRule, bounds_of, level

__all__ = ["FedSrcC"]


class FedSrcC(WidthRule):
    """The paper's range-only rule."""

    name = "fed_src_c"

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        r, v0 = claim.target_risk, sums.least_variance
        noise = level(2, sums.size, claim.alpha_noise)
        H = hoeffding_width(sums.events, level(2, sums.size, claim.alpha_sampling))
        G_D = gaussian_width(sums.contrast_variance(r), v0, noise)
        G_A = gaussian_width(sums.accepted_variance, v0, noise)
        return bounds_of(claim, sums, transfer, sums.contrast(r), H + G_D, H + G_A)
