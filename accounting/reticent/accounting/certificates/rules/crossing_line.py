"""The crossing-line patch of Fed-SRC-C: the same event, with the lines themselves instead of their highest values.

The paper names no such patch; this is ours. For record epoch r put u = 2^r, x = log(2m/(α_s π_r)) and λ = sqrt(8x/u).
The paper's proof (lemma 10) shows that exp(λM_n - λ²n/8) ever reaches e^x with probability at most α_s π_r/(2m), and
then uses only that M_n < sqrt(ux/2) for the n ≤ u of that epoch. The same event says more: at *every* n

    M_n < x/λ + λn/8 = sqrt(xu/8) (1 + n/u),

a line that meets the paper's boundary at n = u and lies below it before. All lines hold together (the union over epochs
is already paid), so M_n lies below the lowest of them. The noise is the same (lemma 11) with u = v0 2^r,
x = log(2m/(α_n π_r)) and λ = sqrt(2x/u): the line is sqrt(xu/2)(1 + v/u). Replacing H_2 and G_2 by the lowest lines

    H(n) = min over r of sqrt(x_r u_r/8)(1 + n/u_r),   G(v) = min over r of sqrt(x_r u_r/2)(1 + v/u_r),   G(0) = 0,

keeps theorem 1 with the same α_s + α_n. Just above a power of two the width is 0.71 of the paper's or less, at one it
is the same: the bounds are never wider than those of Fed-SRC-C. ∎
"""

from __future__ import annotations

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.boundaries import gaussian_line, hoeffding_line
from reticent.accounting.certificates.bounds import NO_TRANSFER, Bounds, Sums, Transfer
from reticent.accounting.certificates.rules.common import WidthRule, bounds_of, level

__all__ = ["CrossingLine"]


class CrossingLine(WidthRule):
    """Fed-SRC-C with crossing lines."""

    name = "crossing_line"

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        r, v0 = claim.target_risk, sums.least_variance
        noise = level(2, sums.size, claim.alpha_noise)
        H = hoeffding_line(sums.events, level(2, sums.size, claim.alpha_sampling))
        G_D = gaussian_line(sums.contrast_variance(r), v0, noise)
        G_A = gaussian_line(sums.accepted_variance, v0, noise)
        return bounds_of(claim, sums, transfer, sums.contrast(r), H + G_D, H + G_A)
