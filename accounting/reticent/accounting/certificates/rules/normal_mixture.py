"""The joint normal mixture: sampling and noise in one supermartingale, mixed over its slope.

The paper does not define it; this is ours. Fix a threshold, and let M_t be the sum of (conditional mean - D) over the
records so far *minus* the noise in D̃, so that M = Nd_{Q̄} - D̃. Given the past, a record's increment is centred and
lies in an interval of length one, so by Hoeffding's lemma it is ¼-sub-Gaussian; the noise of a release is sub-Gaussian
with the variance that it adds to V^D. For every λ

    L_t(λ) = exp(λM_t - ½λ²v_t),   v_t = N_t/4 + V^D_t,

is therefore a supermartingale that starts at 1; v_t is fixed before the records and the noise of the round are drawn. A
mixture of supermartingales with a fixed law is one. With λ half-normal of scale τ^-½ it is

    ∫ over λ > 0 of 2φ(λ; 0, 1/τ) L(λ) = 2 sqrt(τ/(v+τ)) exp(½y²) Φ(y),   y = M/sqrt(v+τ),

and by Ville it stays below m/α_D for ever with probability at least 1 - α_D/m. It increases with M, so M < S(v; α_D/m),
the root of the equation, at all times; a union over the m thresholds spends α_D. The same with A, on the lower side and
with v = N/4 + V^A, spends α_A. With `transfer` as for the other rules

    d̄ = min(1-r*, (D̃ + S(N/4 + V^D; α_D/m))/N + η),   a̲ = max(0, (Ã - S(N/4 + V^A; α_A/m))/N - η). ∎

One width for both sources, sqrt(a + b) instead of sqrt(a) + sqrt(b), and no stitching. τ affects power only and is
fixed by the plan: it makes S smallest near v* = 250 + 5mκv0, where κ is V^D/V (V^A/V for the acceptance): a thousand
records and ten releases at the middle threshold.
"""

from __future__ import annotations

import math

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.boundaries import mixture_width
from reticent.accounting.certificates.bounds import (
    NO_TRANSFER,
    Bounds,
    Sums,
    Transfer,
    acceptance_factor,
    contrast_factor,
)
from reticent.accounting.certificates.rules.common import BaseRule, bounds_of, level

__all__ = ["NormalMixture"]

_RECORDS = 1000
_RELEASES = 10


class NormalMixture(BaseRule):
    """One normal mixture over records and noise together."""

    name = "normal_mixture"

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        r, quarter = claim.target_risk, 0.25 * sums.events
        risk, floor = (level(1, sums.size, alpha) for alpha in (claim.alpha_risk, claim.alpha_acceptance))
        unit = 0.5 * _RELEASES * sums.size * sums.least_variance
        tau_D = _scale(unit * contrast_factor(sums.release, r), risk)
        tau_A = _scale(unit * acceptance_factor(sums.release), floor)
        S_D = mixture_width(quarter + sums.contrast_variance(r), tau_D, risk)
        S_A = mixture_width(quarter + sums.accepted_variance, tau_A, floor)
        return bounds_of(claim, sums, transfer, sums.contrast(r), S_D, S_A)


def _scale(noise: float, level_: float) -> float:
    """τ that makes the two-sided width nearly least at v*; close to the best for the one-sided one."""
    reference = 0.25 * _RECORDS + noise
    return reference / (2.0 * level_ + math.log1p(2.0 * level_))
