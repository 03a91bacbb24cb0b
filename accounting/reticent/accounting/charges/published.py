"""PrivITP's accounting as published. UNSOUND: for reproduction and studies only, never for serving.

Paper: Bhattad and Ray Chowdhury, "Privacy Without Regret", Theorem 4.1, Proposition 4.5, Algorithm 3, Table 6.
What is wrong with it (privacy.md, section 4):

1. ε1 = Δ sqrt(2 ln(1.25/δ))/σ_X holds only for ε1 < 1. Table 6 has δ = 0.01 and Δ = 1; at σ_X = 0.128, ε1 is 24.3 and
   the true δ of one phase 1 at that ε is 0.747, not 0.01.
2. Proposition 4.5 claims one δ for a whole stream, though every phase 1 spends δ again, and treats ε1 as a bound of the
   realised loss, which it is not. Exact counterexample at σ_X = 0.128, σ_Z = 1000 (phase 2 then tells next to
   nothing): claimed δ 0.01, true δ 0.747, 0.850, 0.904 after one, two, three queries.
3. Theorem 4.1 has no cost of a fallback. Its loss is up to nκ, which exceeds the claimed worst case (n-1)κ + acc
   when λ < -σ_Z L (β = 0.5, σ_Z = 0.128, R = Δ = 1, n = 16, L = 1: 33.54 against 32.53).
4. λ̃ unclamped leaves M = (R + σ_Z L - λ̃)/β, and so the algorithm, undefined for λ̃ > R + σ_Z L. Here λ is clamped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reticent.accounting.charges.bounded_range import require_delta
from reticent.accounting.charges.gaussian import delta_of
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.errors import require_integer, require_non_negative, require_positive

__all__ = ["PublishedAccounting", "published_threshold_epsilon", "true_delta_of_published_thresholds"]


def published_threshold_epsilon(delta: float, sensitivity: float, threshold_noise: float) -> float:
    """ε1 = Δ sqrt(2 ln(1.25/δ))/σ_X, nats, as the paper uses it at every size (Theorem 4.1). Not a bound above 1."""
    value = require_delta(delta)
    a = require_positive("sensitivity", sensitivity) / require_positive("threshold_noise", threshold_noise)
    return a * math.sqrt(2.0 * math.log(1.25 / value))


def true_delta_of_published_thresholds(delta: float, queries: int, sensitivity: float, threshold_noise: float) -> float:
    """The true δ of `queries` phase 1 releases at the ε that the paper claims for them, queries · ε1.

    k Gaussian releases are one of sensitivity sqrt(k) Δ, so this is exact: Φ(b/2 - kε1/b) - e^{kε1} Φ(-b/2 - kε1/b),
    b = sqrt(k) Δ/σ_X, attained by thresholds that all move by Δ the same way. The paper claims `delta`.
    """
    count = require_integer("queries", queries, 1)
    epsilon = count * published_threshold_epsilon(delta, sensitivity, threshold_noise)
    return delta_of(epsilon, math.sqrt(count) * sensitivity, threshold_noise)


@dataclass(frozen=True)
class PublishedAccounting:
    """The published cost of each query: ε_τ = ε1 + ε2post(t), summed until the next worst case might not fit.

    Args:
        mechanism: the parameters of PrivITP.
        delta: δ, claimed once for the whole stream.

    All costs are in nats, given the clamped threshold λ. UNSOUND, see the head of this module.
    """

    mechanism: PrivITP
    delta: float

    def __post_init__(self) -> None:
        self.threshold_epsilon()

    def threshold_epsilon(self) -> float:
        """ε1, phase 1 (Theorem 4.1)."""
        return published_threshold_epsilon(self.delta, self.mechanism.sensitivity, self.mechanism.threshold_noise)

    def ex_post(self, threshold: float, halting_time: int) -> float:
        """ε1 + ε2post(t) = ε1 + (t-1)κ + acc: an acceptance in round t, 1 ≤ t ≤ n (Theorem 4.1)."""
        costs = self.mechanism.round_costs(threshold)
        require_integer("halting_time", halting_time, 1, self.mechanism.candidates)
        return self.threshold_epsilon() + (halting_time - 1) * costs.rejection + costs.acceptance

    def worst_case(self, threshold: float) -> float:
        """ε_max = ε1 + ε2post(n) (Algorithm 3, line 2), which forgets the fallback."""
        return self.ex_post(threshold, self.mechanism.candidates)

    def fallback(self, threshold: float) -> float:
        """ε1 + nκ, what a fallback loses. The paper is silent here; a study that counts queries needs a number.

        With it the expected queries of privacy.md, section 5, column "paper's FSRC", come out (37.3 against 37,
        229.8 against 230, 1,149 against 1,149); with ε2post(n) for a fallback they are 31.9, 217, 1,087.
        """
        return self.threshold_epsilon() + self.mechanism.round_costs(threshold).fallback()

    def starts(self, spent: float, epsilon_total: float, worst_case: float) -> bool:
        """Algorithm 3, line 4: whether another query starts, spent + ε_max < ε_total."""
        total, worst = require_positive("epsilon_total", epsilon_total), require_positive("worst_case", worst_case)
        return require_non_negative("spent", spent) + worst < total
