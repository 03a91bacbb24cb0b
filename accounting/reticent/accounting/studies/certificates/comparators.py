"""Published methods to compare with. None of them may serve; each says what it needs in order to hold.

Where the paper that is compared with (SRC, arXiv 2608.07913) names a method without a formula, the method's own
publication is followed as far as we know it, and the docstring says where that ends. Every method gets the same failure
budget, α_D + α_A, and the same acceptance floor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.bounds import NO_TRANSFER, SMALLEST_INDEX, Bounds, Selection, Sums, Transfer
from reticent.accounting.studies.certificates.comparator_base import (
    Comparator,
    Native,
    bounds_from_risk,
    bounds_from_widths,
    clopper_pearson_lower,
    hoeffding_bentkus,
)

__all__ = [
    "COMPARATORS",
    "AnytimeValidCRC",
    "CapitalHeuristic",
    "CentralLTT",
    "ConformalSelectiveActing",
    "FederatedNonPrivate",
    "LocalOnly",
    "PrivateFixedTime",
    "ScheduleConditioned",
    "YuLiu",
]

Array = NDArray[np.float64]

_BETS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
_CAPITAL_BETS = (*_BETS, 1.0)
_MIXTURE_PEAK = 2000.0


class CentralLTT(Comparator):
    """Conformal risk control / Learn then Test on pooled raw records: an oracle for access, not a private method.

    Native assumptions: all records in one place, exact, independent draws of the deployment mixture; one look at a
    number of records fixed beforehand. Given how many were accepted, their losses are independent with mean R_j, so
    p_j is the Hoeffding-Bentkus p-value of R_j > r*, and Bonferroni over the m thresholds is the test of the family.
    The floor is Clopper and Pearson's. CRC itself controls the mean of a monotone loss over calibration sets, which is
    not a statement of this kind; LTT is its version with high probability.
    Source: Angelopoulos et al. 2024 (CRC); Angelopoulos et al. 2025 (LTT), selective classification.
    """

    name = "central_ltt"
    native = Native("exact", "final", iid=True)

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        m = sums.size
        risk = hoeffding_bentkus(sums.loss, sums.accepted, claim.alpha_risk / m)
        floor = clopper_pearson_lower(sums.accepted, sums.events, claim.alpha_acceptance / m)
        return bounds_from_risk(claim, risk, floor)


class LocalOnly(CentralLTT):
    """Every site calibrates alone, with its own records and the whole failure budget, for its own law.

    Native assumptions: as `CentralLTT`, of one site. It says nothing of the mixture. The study applies it to each site
    and reports means over sites, plain and weighted. Source: SRC, appendix D.3.
    """

    name = "local_only"


class FederatedNonPrivate(Comparator):
    """Exact aggregated histograms, one look: what federation costs without privacy.

    Native assumptions: no noise; independent records whose number at every site is fixed beforehand (sites may
    differ); the mixture transfer η. Hoeffding for the contrast (range 1) and for the count, Bonferroni over m. SRC
    (appendix D.3) gives no formula.
    """

    name = "federated_non_private"
    native = Native("exact", "final", iid=False)

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        h_risk, h_floor = (
            np.sqrt(0.5 * sums.events * math.log(sums.size / alpha))
            for alpha in (claim.alpha_risk, claim.alpha_acceptance)
        )
        return bounds_from_widths(claim, sums, transfer, h_risk, h_floor)


class PrivateFixedTime(Comparator):
    """Gaussian-private histograms with a bound for the last registered round only.

    Native assumptions: the stream's (independence, realised variances), continuous Gaussian noise, and one look at a
    time fixed beforehand: no optional stopping. Hoeffding's width plus a quantile of the normal law, with the budgets
    and families of Fed-SRC-C. Source: SRC, appendix D.3 and O.4, without a formula.
    """

    name = "private_fixed_time"
    native = Native("noised", "final", iid=False)

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        level = 0.25 * (claim.alpha_risk + claim.alpha_acceptance) / sums.size
        h, z = np.sqrt(0.5 * sums.events * math.log(1.0 / level)), -float(ndtri(level))
        g_risk = z * np.sqrt(sums.contrast_variance(claim.target_risk))
        g_floor = z * np.sqrt(sums.accepted_variance)
        return bounds_from_widths(claim, sums, transfer, h + g_risk, h + g_floor)


class ScheduleConditioned(Comparator):
    """Round-indexed Hoeffding and Gaussian widths, stitched over rounds: α π_t is spent at round t, Σ π_t = 1.

    Native assumptions: the whole schedule of sites, batches and noise is fixed before the first record, or at least
    independent of all outcomes, so that one may condition on it. Recruitment that follows the transcript breaks that,
    and the union over rounds then covers a number of events that was not fixed. Rounds run along the axis before the
    thresholds. Source: SRC, appendix D.3, in words.
    """

    name = "schedule_conditioned"
    native = Native("noised", "every", iid=False)

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., R, m)."""
        rounds = sums.loss.shape[-2] if sums.loss.ndim > 1 else 1
        spent = 6.0 / (math.pi**2 * np.arange(1.0, rounds + 1.0)[:, None] ** 2)
        level = np.log(4.0 * sums.size / ((claim.alpha_risk + claim.alpha_acceptance) * spent))
        h = np.sqrt(0.5 * sums.events * level)
        g_risk = np.sqrt(2.0 * sums.contrast_variance(claim.target_risk) * level)
        g_floor = np.sqrt(2.0 * sums.accepted_variance * level)
        return bounds_from_widths(claim, sums, transfer, h + g_risk, h + g_floor)


class AnytimeValidCRC(Comparator):
    """Conformal risk control that holds at every size of a growing calibration set.

    Native assumptions: exact records, independent draws of one law, a loss that is monotone in the threshold (both ℓA_j
    and A_j are). The theorem of Hultberg, Zachariah and Ribeiro (2026) corrects the threshold by terms whose constants
    we do not have; here a time-uniform sub-Gaussian bound with a normal mixture (Howard et al. 2021) plays their part,
    u(v) = sqrt((v + ρ)(2 log(1/α) + log(1 + v/ρ))), v = n/4, on each of the two means, and the risk is their ratio.
    """

    name = "anytime_valid_crc"
    native = Native("exact", "every", iid=True)

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        n, alpha = sums.events, (claim.alpha_risk + claim.alpha_acceptance) / (2.0 * sums.size)
        v, rho = 0.25 * n, 0.25 * _MIXTURE_PEAK / (2.0 * math.log(1.0 / alpha))
        width = np.sqrt((v + rho) * (2.0 * math.log(1.0 / alpha) + np.log1p(v / rho)))
        count = np.maximum(n, 1.0)
        z_high = np.clip((sums.loss + width) / count, 0.0, 1.0)
        a_low = np.clip((sums.accepted - width) / count, 0.0, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            risk = np.where(a_low > 0.0, np.minimum(1.0, z_high / a_low), 1.0)
        return bounds_from_risk(claim, risk, a_low)


class YuLiu(Comparator):
    """The risk itself as a ratio, by an empirical-Bernstein bound, with Clopper and Pearson's bound of the acceptance.

    Native assumptions: exact records, independent draws of the deployment law, in a split of fixed size used once. The
    accepted losses are then independent given their number, and Maurer and Pontil's bound applies to their mean:
    R̂ + sqrt(2 v̂ x/n) + 7x/(3(n - 1)), x = log(2m/α_D). v̂ is that of binary losses, which is never smaller.
    Source: Yu and Liu 2026, after its abstract; the utility bound, and their constants, are left out.
    """

    name = "yu_liu"
    native = Native("exact", "final", iid=True)

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        m, x = sums.size, math.log(2.0 * sums.size / claim.alpha_risk)
        n = np.maximum(sums.accepted, 2.0)
        mean = np.clip(sums.loss / n, 0.0, 1.0)
        variance = mean * (1.0 - mean) * n / (n - 1.0)
        risk = np.minimum(1.0, mean + np.sqrt(2.0 * variance * x / n) + 7.0 * x / (3.0 * (n - 1.0)))
        risk = np.where(sums.accepted >= 2.0, risk, 1.0)
        floor = clopper_pearson_lower(sums.accepted, sums.events, claim.alpha_acceptance / m)
        return bounds_from_risk(claim, risk, floor)


class ConformalSelectiveActing(Comparator):
    """Betting on the gated excess loss: for each threshold a Ville e-process, Bonferroni over the grid.

    Native assumptions: exact records, one by one, each with the same sign of its conditional mean contrast (one
    deployment's stream); bets fixed beforehand. E_j(δ) = Σ_κ w ∏(1 - κ(A(ℓ - r*) - δ)); with counts alone a
    fractional loss is taken as that fraction of a loss and the rest of a non-loss, which never enlarges E.
    Certified when E_j(0) ≥ m/α_D and the same for the acceptance; the largest acceptance certified is deployed.
    Source: Khosravi and Huo 2026, after its abstract; their predictable bets are replaced by a fixed mixture.
    """

    name = "csa"
    native = Native("exact", "every", iid=True)
    selection: Selection = SMALLEST_INDEX

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        m, r = sums.size, claim.target_risk
        Z, F = sums.loss, sums.nonloss
        rest = sums.events - sums.accepted
        # Outcomes of the contrast and of -A, each moved to [0, 1] and with its own null mean.
        d_bar = _betting_upper(((Z, 1.0), (F, 0.0), (rest, r)), claim.alpha_risk / m) - r
        a_low = 1.0 - _betting_upper(((Z + F, 0.0), (rest, 1.0)), claim.alpha_acceptance / m)
        d_bar, a_low = np.clip(d_bar, -r, 1.0 - r), np.clip(a_low, 0.0, 1.0)
        return Bounds(d_bar, a_low, (d_bar <= 0.0) & (a_low >= claim.min_acceptance))


class CapitalHeuristic(Comparator):
    """The paper's private betting capital: not proved valid, and not valid in general.

    Each round bets a fraction κ against x_t, the round's contrast D̃ per record, cut to [-1, 1]; capital ∏(1 - κ x_t),
    certified once it reaches |κ grid|·m/α_D. Cutting moves the mean of what carries Gaussian noise, so the capital is
    no supermartingale (SRC, appendix G and table 5, which also takes 400 rounds). SRC's level is |κ grid|/α; m is ours,
    for the thresholds. SRC speaks of a privacy charge in each round without defining it, and abstains at ε ≤ 4; there
    is none here, and it fires. It bounds nothing numerically: d̄ is 0 where certified and 1 - r* elsewhere. The floor is
    Fed-SRC-C's with fixed time. Rounds run along the axis before the thresholds.
    """

    name = "capital_heuristic"
    native = Native("noised", "every", iid=False, proved=False)

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., R, m)."""
        floor = PrivateFixedTime().bounds(claim, sums, transfer).acceptance_lower
        D = np.diff(sums.contrast(claim.target_risk), axis=-2, prepend=0.0)
        n = np.diff(np.broadcast_to(sums.events, sums.loss.shape), axis=-2, prepend=0.0)
        x = np.clip(D / np.maximum(n, 1.0) + transfer.contrast, -1.0, 1.0)
        level = math.log(len(_CAPITAL_BETS) * sums.size / claim.alpha_risk)
        with np.errstate(divide="ignore"):
            best = np.max([np.cumsum(np.log1p(-bet * x), axis=-2) for bet in _CAPITAL_BETS], axis=0)
        certified = (best >= level) & (floor >= claim.min_acceptance)
        return Bounds(np.where(best >= level, 0.0, 1.0 - claim.target_risk), floor, certified)


def _betting_upper(outcomes: tuple[tuple[Array, float], ...], alpha: float) -> Array:
    """Smallest mean μ that bets against large means reject at level α: an upper bound, at every time.

    `outcomes`: pairs of a count and a value in [0, 1]. The wealth Σ_κ w ∏(1 + κ(μ - y)) grows with μ.
    """
    needed = math.log(len(_BETS) / alpha)
    low = np.zeros(np.broadcast_shapes(*(count.shape for count, _ in outcomes)))
    high = np.ones_like(low)
    for _ in range(30):
        middle = 0.5 * (low + high)
        wealth = [sum(count * np.log1p(bet * (middle - y)) for count, y in outcomes) for bet in _BETS]
        rejected = np.logaddexp.reduce(wealth, axis=0) >= needed
        low, high = np.where(rejected, low, middle), np.where(rejected, middle, high)
    return high


COMPARATORS: Mapping[str, Comparator] = MappingProxyType(
    {
        method.name: method
        for method in (
            CentralLTT(),
            FederatedNonPrivate(),
            LocalOnly(),
            PrivateFixedTime(),
            ScheduleConditioned(),
            AnytimeValidCRC(),
            YuLiu(),
            ConformalSelectiveActing(),
            CapitalHeuristic(),
        )
    }
)
"""By name. One-shot federated conformal prediction stands in `conformal`: it makes prediction sets, not bounds."""
