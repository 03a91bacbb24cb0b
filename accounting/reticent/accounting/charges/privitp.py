"""PrivITP: a private threshold (phase 1), then private rejection sampling (phase 2), lazily.

Paper: Bhattad and Ray Chowdhury, "Privacy Without Regret", Algorithm 2 and Theorem 4.1, with the three corrections of
privacy.md, section 4: the threshold is clamped, the fallback is charged, phase 1 is charged by its Rényi divergence.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from reticent.accounting.charges.acceptance import AcceptanceLaw
from reticent.accounting.charges.gaussian import renyi_charge, renyi_charge_rounded_up
from reticent.accounting.errors import (
    InvalidQuantityError,
    require_finite,
    require_integer,
    require_non_negative,
    require_positive,
)
from reticent.accounting.units import to_nano_rounded_up

__all__ = ["PhaseTwoAccounting", "PrivITP", "RoundCosts", "default_truncation"]

PhaseTwoAccounting = Literal["ville"]
"""How phase 2 is charged. "ville": by the realised worst-case loss."""

_RELATIVE_MARGIN = 1e-9
_LAW_ERROR = 1e-12  # relative error of A and B as computed, and as drawn
_EPS = 2.0**-52
_SUPREMUM_GAP = 0.01
_SUPREMUM_CELLS = 2000
_WIDEST = 1000.0


def default_truncation(candidates: int) -> float:
    """L = sqrt(2 log(n/δ_trunc)), δ_trunc = n^(-1/2), that is sqrt(3 log n); n ≥ 1. Source: privacy.md, symbols."""
    return math.sqrt(3.0 * math.log(require_integer("candidates", candidates, 1)))


@dataclass(frozen=True)
class RoundCosts:
    """What one rejection and one acceptance cost, given the released threshold.

    Args:
        rejection: r ≥ 0, nats ("ville": κ).
        acceptance: s ≥ 0, nats ("ville": acc).
        candidates: n, the most rounds.
        slack: nats a round that cover the rounding of the acceptance law; part of the `rounded_up` amounts only.

    Every method of charging phase 2 is such a pair: accepted at t costs (t-1)r + s, a fallback n r, and the worst case
    is (n-1)r + max(r, s) (privacy.md, section 5).
    """

    rejection: float
    acceptance: float
    candidates: int
    slack: float = 0.0

    def __post_init__(self) -> None:
        require_non_negative("rejection", self.rejection)
        require_non_negative("acceptance", self.acceptance)
        require_non_negative("slack", self.slack)
        require_integer("candidates", self.candidates, 1)

    def accepted(self, halting_time: int) -> float:
        """(t-1)r + s, nats, for an acceptance in round t, 1 ≤ t ≤ n."""
        require_integer("halting_time", halting_time, 1, self.candidates)
        return (halting_time - 1) * self.rejection + self.acceptance

    def fallback(self) -> float:
        """n r, nats: no candidate was accepted."""
        return self.candidates * self.rejection

    def worst(self) -> float:
        """(n-1)r + max(r, s), nats."""
        return max(self.accepted(self.candidates), self.fallback())

    def rounded_up(self, nats: float) -> int:
        """`nats` (one of the amounts above) with margins for rounding, in 1e-9 nat. Monotone in `nats`."""
        return to_nano_rounded_up(nats * (1.0 + _RELATIVE_MARGIN) + self.candidates * self.slack)


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

    What the caller must guarantee
    ------------------------------
    * Rewards are integers of a `RewardLattice`; both phases' candidates do not depend on D, and phase 2's are fresh.
    * Phase 1 rounds λ* down to an integer, adds `noise.discrete_gaussian` at a scale of at least σ_X, and nothing else
      of phase 1 is released. (Rounding down keeps the sensitivity, since that is an integer number of granules.)
    * Phase 2 uses λ only clamped (`clamp`) and draws each acceptance by `AcceptanceLaw` and `noise.bernoulli_rarer`.
      Rewards of candidates after the first acceptance are not used, and time does not tell them.

    Errors: `InvalidQuantityError`. Source: privacy.md, section 3.
    """

    reward_max: float
    sensitivity: float
    candidates: int
    regularization: float
    threshold_noise: float
    reward_noise: float
    truncation: float

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
        """Charge of phase 1 at order α, nats: αΔ²/(2σ_X²). It depends on no reward."""
        return renyi_charge(order, self.sensitivity, self.threshold_noise)

    def threshold_charge_rounded_up(self, order: float) -> int:
        """`threshold_charge` with a relative margin of 1e-9, rounded up to an integer of 1e-9 nat."""
        return renyi_charge_rounded_up(order, self.sensitivity, self.threshold_noise)

    # Phase 2, given the clamped threshold λ

    def acceptance_law(self, threshold: float) -> AcceptanceLaw:
        """Law of an acceptance given λ in [-β, R - β]."""
        return AcceptanceLaw(
            self.regularization, self.reward_noise, self.reward_max, self.truncation, require_finite("λ", threshold)
        )

    def round_costs(self, threshold: float, accounting: PhaseTwoAccounting = "ville") -> RoundCosts:
        """Costs of a rejection and an acceptance given λ.

        "ville": κ = log A(R-Δ)/A(R) and acc = log B(Δ)/B(0). A and B are log-concave in q, so the ends are the worst.
        """
        if accounting != "ville":
            raise InvalidQuantityError("accounting", accounting, 'the word "ville"')
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

    def rejection_cost(self, threshold: float) -> float:
        """κ(λ), nats: the most that one rejection loses. It falls in λ."""
        return self.round_costs(threshold).rejection

    def acceptance_cost(self, threshold: float) -> float:
        """acc(λ), nats: the most that one acceptance loses. It rises in λ."""
        return self.round_costs(threshold).acceptance

    def sampling_charge(self, threshold: float, halting_time: int, fallback: bool) -> float:
        """Charge of phase 2 given λ and the outcome, nats: (t-1)κ + acc, or nκ for a fallback (t is then ignored)."""
        costs = self.round_costs(threshold)
        return costs.fallback() if fallback else costs.accepted(halting_time)

    def sampling_charge_rounded_up(self, threshold: float, halting_time: int, fallback: bool) -> int:
        """`sampling_charge` with margins for floating error, as an integer of 1e-9 nat."""
        costs = self.round_costs(threshold)
        return costs.rounded_up(costs.fallback() if fallback else costs.accepted(halting_time))

    def worst_sampling_charge(self, threshold: float) -> float:
        """Worst case of phase 2 given λ, nats: (n-1)κ + max(κ, acc)."""
        return self.round_costs(threshold).worst()

    def worst_sampling_charge_rounded_up(self, threshold: float) -> int:
        """`worst_sampling_charge` with margins: at least every `sampling_charge_rounded_up` at this λ."""
        costs = self.round_costs(threshold)
        return costs.rounded_up(costs.worst())

    def worst_sampling_charge_supremum(self) -> float:
        """Upper bound of `worst_sampling_charge` over all λ in [-β, R - β], within 1 %, nats. Certified by cells.

        Over a cell [l, u] the worst case is at most (n-1)κ(l) + max(κ(l), acc(u)), because κ falls and acc rises.
        """
        return _supremum(self)[0]

    def worst_sampling_charge_supremum_rounded_up(self) -> int:
        """The supremum as an integer of 1e-9 nat: at least `worst_sampling_charge_rounded_up` at every λ."""
        bound, slack = _supremum(self)
        return to_nano_rounded_up(bound * (1.0 + 2.0 * _RELATIVE_MARGIN) + 2.0 * self.candidates * slack)


def _reward(reward: object) -> int:
    if isinstance(reward, bool) or not isinstance(reward, int) or reward < 0:
        # The value is private: it stays out of the message.
        raise InvalidQuantityError("rewards_units", "something else", "integers of at least 0")
    return reward


@lru_cache(maxsize=256)
def _supremum(mechanism: PrivITP) -> tuple[float, float]:
    """(certified supremum of the worst case over λ, largest slack a round), by bisecting the cell of largest bound."""
    n = mechanism.candidates
    low, high = -mechanism.regularization, mechanism.reward_max - mechanism.regularization

    def bound(left: RoundCosts, right: RoundCosts) -> float:
        return (n - 1) * left.rejection + max(left.rejection, right.acceptance)

    left, right = mechanism.round_costs(low), mechanism.round_costs(high)
    # -log A(R) is largest at λ = -β and -log B(0) at λ = R - β, so the ends' slacks bound all.
    slack = max(left.slack, right.slack)
    reached = max(left.worst(), right.worst())
    cells = [(-bound(left, right), low, high, left, right)]
    for _ in range(_SUPREMUM_CELLS):
        upper = -cells[0][0]
        if upper <= reached * (1.0 + _SUPREMUM_GAP):
            return upper, slack
        _, start, end, left, right = heapq.heappop(cells)
        middle = 0.5 * (start + end)
        costs = mechanism.round_costs(middle)
        reached = max(reached, costs.worst())
        heapq.heappush(cells, (-bound(left, costs), start, middle, left, costs))
        heapq.heappush(cells, (-bound(costs, right), middle, end, costs, right))
    return -cells[0][0], slack  # still certified, only wider than 1 %
