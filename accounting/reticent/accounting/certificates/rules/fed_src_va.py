"""Fed-SRC-VA: variance adaptive. A stitched Freedman width at an upper bound of the accepted mass (equations 23-26).

D² ≤ A, so the predictable variation of the contrast is at most the expected accepted mass, which is at most

    q̄ = min(N, max(0, Ã + H_3(N; α_s) + G_3(V^A; α_n))),
    d̄ = min(1-r*, (D̃ + F_3(q̄; α_s) + G_3(V^D; α_n))/N + η),   a̲ = max(0, (Ã - H_3(N; α_s) - G_3(V^A; α_n))/N - η).

Three families share each budget: the contrast and the two sides of the acceptance (lemmas 12 and 13). Valid with
probability 1 - α_s - α_n (theorem 1); for other releases and noises as `fed_src_c` says.
"""

from __future__ import annotations

import numpy as np

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.boundaries import freedman_width, gaussian_width, hoeffding_width, rounding
from reticent.accounting.certificates.bounds import NO_TRANSFER, Bounds, Sums, Transfer
from reticent.accounting.certificates.rules.common import WidthRule, bounds_of, level

__all__ = ["FedSrcVA"]


class FedSrcVA(WidthRule):
    """The paper's variance-adaptive rule."""

    name = "fed_src_va"

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        r, v0, N, A = claim.target_risk, sums.least_variance, sums.events, sums.accepted
        sampling = level(3, sums.size, claim.alpha_sampling)
        noise = level(3, sums.size, claim.alpha_noise)
        H = hoeffding_width(N, sampling)
        G_A = gaussian_width(sums.accepted_variance, v0, noise)
        q = np.minimum(N, np.maximum(0.0, A + H + G_A + rounding(sums.loss, sums.other, H, G_A)))
        F = freedman_width(q, sampling)
        G_D = gaussian_width(sums.contrast_variance(r), v0, noise)
        return bounds_of(claim, sums, transfer, sums.contrast(r), F + G_D, H + G_A)
