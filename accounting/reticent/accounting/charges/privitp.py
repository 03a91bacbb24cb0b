"""PrivITP: a private threshold (phase 1), then private rejection sampling (phase 2), lazily.

Paper: Bhattad and Ray Chowdhury, "Privacy Without Regret", Algorithm 2 and Theorem 4.1, with the three corrections of
privacy.md, section 4: the threshold is clamped, the fallback is charged, phase 1 is charged by its Rényi divergence.
Phase 2 is charged by "ville", below, or by "renyi": `renyi_rounds.py` has the claim and its proof, `round_table.py` the
choice of the pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from reticent.accounting.charges.acceptance import AcceptanceLaw
from reticent.accounting.charges.bounded_range import require_order
from reticent.accounting.charges.clamped_gaussian import clamped_renyi_charge
from reticent.accounting.charges.gaussian import renyi_charge
from reticent.accounting.charges.round_costs import RoundCosts, worst_over
from reticent.accounting.charges.round_table import RoundTable, build_round_table
from reticent.accounting.charges.rounding import RELATIVE_MARGIN, charge_rounded_up
from reticent.accounting.errors import (
    InvalidQuantityError,
    require_finite,
    require_integer,
    require_non_negative,
    require_positive,
)
from reticent.accounting.units import to_nano_rounded_up

__all__ = ["PhaseTwoAccounting", "PrivITP", "RoundCosts", "default_truncation"]

PhaseTwoAccounting = Literal["ville", "renyi"]
"""How phase 2 is charged. "ville": by the realised worst-case loss. "renyi": by a pair fitted to the ledger's order."""

_LAW_ERROR = 1e-12  # relative error of A and B as computed, and as drawn
_EPS = 2.0**-52
_WIDEST = 1000.0
_TABLES = 64


def default_truncation(candidates: int) -> float:
    """L = sqrt(2 log(n/δ_trunc)), δ_trunc = n^(-1/2), that is sqrt(3 log n); n ≥ 1. Source: privacy.md, symbols."""
    return math.sqrt(3.0 * math.log(require_integer("candidates", candidates, 1)))


@dataclass(frozen=True)
class PrivITP:
    """The mechanism and its parameters.

    Args:
        reward_max: R > 0.
        sensitivity: Δ with 0 < Δ ≤ R, that of the rewards as drawn: `RewardLattice.sensitivity`.
        candidates: n ≥ 1, in each phase.
        regularization: β > 0 (the regret theorem asks for β ≥ 2σ_X).
        threshold_noise: σ_X > 0, phase 1, reward units.
        reward_noise: σ_Z > 0, phase 2, reward units, at least (R + β)/1000.
        truncation: L ≥ 0, at most 1000; `default_truncation(n)` is the paper's.
        granule: g of the rewards' lattice, at most σ_X: phase 1 is then charged as the clamped threshold that it is. 0
            is the clamped continuous Gaussian, for studies. None, the default, charges the threshold as if it were
            released unclamped, which is always enough.

    What the caller must guarantee
    ------------------------------
    * Rewards are integers of a `RewardLattice`; both phases' candidates do not depend on D, and phase 2's are fresh.
    * Phase 1 rounds λ* down to an integer, adds `noise.discrete_gaussian` at a scale of at least σ_X, and nothing else
      of phase 1 is released. (Rounding down keeps the sensitivity, since that is an integer number of granules.)
    * λ̃ leaves phase 1 only clamped (`clamp`): it is not shown, kept, logged or used otherwise.
    * Phase 2 draws each acceptance by `AcceptanceLaw` and `noise.bernoulli_rarer`. Rewards of candidates after the
      first acceptance are not used, and time does not tell them.

    Errors: `InvalidQuantityError`. Source: privacy.md, section 3.
    """

    reward_max: float
    sensitivity: float
    candidates: int
    regularization: float
    threshold_noise: float
    reward_noise: float
    truncation: float
    granule: float | None = None

    def __post_init__(self) -> None:
        R = require_positive("reward_max", self.reward_max)
        if require_positive("sensitivity", self.sensitivity) > R:
            raise InvalidQuantityError("sensitivity", self.sensitivity, f"at most reward_max ({R!r})")
        require_integer("candidates", self.candidates, 1)
        beta = require_positive("regularization", self.regularization)
        require_positive("threshold_noise", self.threshold_noise)
        sigma_Z = require_positive("reward_noise", self.reward_noise)
        if R + beta > _WIDEST * sigma_Z:
            raise InvalidQuantityError("reward_noise", sigma_Z, f"at least {(R + beta) / _WIDEST:g}")
        if require_non_negative("truncation", self.truncation) > _WIDEST:
            raise InvalidQuantityError("truncation", self.truncation, f"at most {_WIDEST:g}")
        if self.granule is not None and require_non_negative("granule", self.granule) > self.threshold_noise:
            raise InvalidQuantityError("granule", self.granule, f"at most threshold_noise ({self.threshold_noise!r})")

    # Phase 1

    def normalizer(self, rewards_units: Sequence[int], beta_units: Fraction) -> Fraction:
        """λ* with (1/n) Σ relu((r_i - λ)/β) = 1, exact, in granules. Private: never to be released without noise.

        With S_k the sum of the k largest rewards, Σ relu(r_i - λ) is the largest of S_k - kλ over k, so
        λ* = max over k of (S_k - nβ)/k; the maximum is at the k with r_{k+1} ≤ λ_k ≤ r_k, the paper's rule. λ* lies in
        [-β, R - β] and moves by at most Δ when every reward moves by at most Δ.

        Args: `rewards_units` n integers, `beta_units` β > 0 in granules. Source: privacy.md, section 3.
        """
        if len(rewards_units) != self.candidates:
            raise InvalidQuantityError("rewards_units", f"{len(rewards_units)} rewards", f"{self.candidates} rewards")
        rewards = [_reward(reward) for reward in rewards_units]
        if beta_units <= 0:
            raise InvalidQuantityError("beta_units", beta_units, "above 0")
        mass = self.candidates * Fraction(beta_units)
        total, best = 0, None
        for k, reward in enumerate(sorted(rewards, reverse=True), start=1):
            total += reward
            level = (total - mass) / k
            if best is None or level > best:
                best = level
        if best is None:
            raise InvalidQuantityError("rewards_units", "no rewards", "at least one reward")
        return best

    def clamp(self, noisy_threshold: float) -> float:
        """λ = clip(λ̃, -β, R - β): post-processing of the release, and what phase 2 uses. NaN is refused."""
        noisy = float(noisy_threshold)
        if math.isnan(noisy):
            raise InvalidQuantityError("noisy_threshold", "not a number", "a number")
        return min(max(noisy, -self.regularization), self.reward_max - self.regularization)

    def threshold_charge(self, order: float) -> float:
        """Charge of phase 1 at order α, nats: αΔ²/(2σ_X²), or less with a `granule`. It depends on no reward."""
        if self.granule is None:
            return renyi_charge(order, self.sensitivity, self.threshold_noise)
        return clamped_renyi_charge(order, self.sensitivity, self.threshold_noise, self.reward_max, self.granule)

    def threshold_charge_rounded_up(self, order: float) -> int:
        """`threshold_charge` with a relative margin of 1e-9, rounded up to an integer of 1e-9 nat."""
        return charge_rounded_up(self.threshold_charge(order))

    # Phase 2, given the clamped threshold λ

    def acceptance_law(self, threshold: float) -> AcceptanceLaw:
        """Law of an acceptance given λ in [-β, R - β]."""
        return AcceptanceLaw(
            self.regularization, self.reward_noise, self.reward_max, self.truncation, require_finite("λ", threshold)
        )

    def round_costs(
        self, threshold: float, accounting: PhaseTwoAccounting = "ville", order: float | None = None
    ) -> RoundCosts:
        """Costs of a rejection and an acceptance given λ.

        "ville": κ = log A(R-Δ)/A(R) and acc = log B(Δ)/B(0). A and B are log-concave in q, so the ends are the worst.
        "renyi": the certified pair of λ's cell in `round_table(order)`, or "ville"'s where the table says so.

        In all that follows, `order` α is the ledger's; "renyi" needs it and "ville" does not look at it.
        """
        if accounting == "renyi":
            table = self.round_table(order)
            pair = table.pair(self.acceptance_law(threshold).threshold)
            if pair is not None:
                return RoundCosts(*pair, self.candidates, table.slack)
        elif accounting != "ville":
            raise _unknown(accounting)
        law = self.acceptance_law(threshold)
        R, Delta = self.reward_max, self.sensitivity
        reject, accept = law.log_reject(R), law.log_accept(0.0)
        # Both numerators' arguments err by rounding R - Δ; that is one of the errors that the slack pays for.
        rejection = law.log_reject(max(0.0, R - Delta)) - reject
        acceptance = law.log_accept(min(R, Delta)) - accept
        # Each of D's and D''s probabilities errs in the computation of the cost and in the draw itself.
        slack = 4.0 * (_LAW_ERROR + 4.0 * _EPS * max(-reject, -accept))
        # Both differences are at least 0; rounding may say -1e-16.
        return RoundCosts(max(0.0, rejection), max(0.0, acceptance), self.candidates, slack)

    def round_table(self, order: float | None) -> RoundTable:
        """The "renyi" pairs of every λ at order α > 1. Built at first use, for all n and σ_X; then kept."""
        if order is None:
            raise InvalidQuantityError("order", order, 'a number above 1 with "renyi"')
        return _table(
            self.reward_max,
            self.sensitivity,
            self.regularization,
            self.reward_noise,
            self.truncation,
            require_order(order),
        )

    def rejection_cost(self, threshold: float) -> float:
        """κ(λ), nats: the most that one rejection loses. It falls in λ."""
        return self.round_costs(threshold).rejection

    def acceptance_cost(self, threshold: float) -> float:
        """acc(λ), nats: the most that one acceptance loses. It rises in λ."""
        return self.round_costs(threshold).acceptance

    def sampling_charge(
        self,
        threshold: float,
        halting_time: int,
        fallback: bool,
        accounting: PhaseTwoAccounting = "ville",
        order: float | None = None,
    ) -> float:
        """Charge of phase 2 given λ and the outcome, nats: (t-1)r + s, or n r for a fallback (t is then ignored)."""
        return self.round_costs(threshold, accounting, order).charge(halting_time, fallback)

    def sampling_charge_rounded_up(
        self,
        threshold: float,
        halting_time: int,
        fallback: bool,
        accounting: PhaseTwoAccounting = "ville",
        order: float | None = None,
    ) -> int:
        """`sampling_charge` with margins for floating error, as an integer of 1e-9 nat."""
        costs = self.round_costs(threshold, accounting, order)
        return costs.rounded_up(costs.charge(halting_time, fallback))

    def worst_sampling_charge(
        self, threshold: float, accounting: PhaseTwoAccounting = "ville", order: float | None = None
    ) -> float:
        """Worst case of phase 2 given λ, nats: (n-1)r + max(r, s)."""
        return self.round_costs(threshold, accounting, order).worst()

    def worst_sampling_charge_rounded_up(
        self, threshold: float, accounting: PhaseTwoAccounting = "ville", order: float | None = None
    ) -> int:
        """`worst_sampling_charge` with margins: at least every `sampling_charge_rounded_up` at this λ."""
        costs = self.round_costs(threshold, accounting, order)
        return costs.rounded_up(costs.worst())

    def worst_sampling_charge_supremum(
        self, accounting: PhaseTwoAccounting = "ville", order: float | None = None
    ) -> float:
        """Upper bound of `worst_sampling_charge` over all λ in [-β, R - β], nats. Certified.

        "ville": within 1 %. Over a cell [l, u] the worst case is at most (n-1)κ(l) + max(κ(l), acc(u)), because κ falls
        and acc rises. "renyi": the largest over the cells of the table, where the pair is constant (or that bound).
        """
        return self._supremum(accounting, order)[0]

    def worst_sampling_charge_supremum_rounded_up(
        self, accounting: PhaseTwoAccounting = "ville", order: float | None = None
    ) -> int:
        """The supremum as an integer of 1e-9 nat: at least `worst_sampling_charge_rounded_up` at every λ."""
        bound, slack = self._supremum(accounting, order)
        return to_nano_rounded_up(bound * (1.0 + 2.0 * RELATIVE_MARGIN) + 2.0 * self.candidates * slack)

    def _supremum(self, accounting: PhaseTwoAccounting, order: float | None) -> tuple[float, float]:
        """(certified supremum of the worst case, largest slack a round)."""
        if accounting == "ville":
            return _ville_supremum(self)
        if accounting != "renyi":
            raise _unknown(accounting)
        table = self.round_table(order)
        ends = (-self.regularization, self.reward_max - self.regularization)
        return table.worst(self.candidates), max(table.slack, *(self.round_costs(end).slack for end in ends))


def _reward(reward: object) -> int:
    if isinstance(reward, bool) or not isinstance(reward, int) or reward < 0:
        # The value is private: it stays out of the message.
        raise InvalidQuantityError("rewards_units", "something else", "integers of at least 0")
    return reward


@lru_cache(maxsize=_TABLES)
def _table(R: float, Delta: float, beta: float, sigma_Z: float, L: float, order: float) -> RoundTable:
    return build_round_table(
        reward_max=R,
        sensitivity=Delta,
        regularization=beta,
        reward_noise=sigma_Z,
        truncation=L,
        order=order,
        law_error=_LAW_ERROR,
    )


@lru_cache(maxsize=256)
def _ville_supremum(mechanism: PrivITP) -> tuple[float, float]:
    low, high = -mechanism.regularization, mechanism.reward_max - mechanism.regularization
    return worst_over(mechanism.round_costs, low, high)


def _unknown(accounting: object) -> InvalidQuantityError:
    return InvalidQuantityError("accounting", accounting, 'one of "ville" and "renyi"')
