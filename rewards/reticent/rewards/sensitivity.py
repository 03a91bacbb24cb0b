"""How far one person's data can move a reward: the sensitivity of a certified head.

| symbol | API name | meaning |
|---|---|---|
| R | `reward_max` | rewards lie in [0, R] |
| s | `scale` | r = R·sigmoid(w·φ/s) |
| N | `pairs` | number of preference pairs, public |
| k | `pairs_per_person` | most pairs that one person gave |
| μ | `regularization` | coefficient of the ridge term |
| G | `pair_norm` | bound on ‖φ⁺ - φ⁻‖, enforced in training; at most 2 |
| τ | `gradient_tolerance` | declared bound on ‖∇F(w)‖ of every computed w, plus what rounding adds |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from reticent.accounting.errors import InvalidQuantityError
from reticent.accounting.units import float_rounded_up

__all__ = ["FORMULA", "HeadFacts", "movement_rounded_up", "sensitivity_rounded_up"]

FORMULA = "min(R, R/(4 s) * (2 G k/(mu N) + 2 tau/mu))"
"""The bound in words that a certificate carries; with G = 2 it is that of `rewards.md`."""


@dataclass(frozen=True)
class HeadFacts:
    """The public numbers on which the sensitivity of a head depends (see the module's table).

    None of them may be a function of the preference data beyond N itself, which is public. In particular τ is the
    tolerance that training *declares* and enforces, not the gradient norm that it happened to reach: the bound must
    hold between two trainings, and only a declared number bounds both.

    Raises:
        ValueError: a number that is not finite or is out of range.
    """

    pairs: int
    pairs_per_person: int
    regularization: float
    pair_norm: float
    gradient_tolerance: float
    scale: float
    reward_max: float

    def __post_init__(self) -> None:
        for name, count in (("pairs", self.pairs), ("pairs_per_person", self.pairs_per_person)):
            if type(count) is not int or count < 1:
                raise ValueError(f"{name} must be a positive integer: {count!r}")
        if self.pairs_per_person > self.pairs:
            raise ValueError(f"one person cannot give {self.pairs_per_person} of {self.pairs} pairs")
        for name in ("regularization", "pair_norm", "gradient_tolerance", "scale", "reward_max"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
                raise ValueError(f"{name} must be positive and finite: {value!r}")
        if self.pair_norm > 2:
            raise ValueError(f"pair_norm above 2 is never needed, features have norm at most 1: {self.pair_norm}")


def movement_rounded_up(facts: HeadFacts) -> float:
    """Most that ‖w‖ moves when one person's pairs are replaced: 2Gk/(μN) + 2τ/μ, rounded up.

    Claim. Let D and D' have N pairs each and differ in at most k of them. Let
    F(w) = (1/N) Σ log(1 + exp(-w·d_i)) + (μ/2)‖w‖² with ‖d_i‖ ≤ G, and let w, w' be computed from D, D' with
    ‖∇F_D(w)‖ ≤ τ and ‖∇F_D'(w')‖ ≤ τ. Then ‖w - w'‖ ≤ 2Gk/(μN) + 2τ/μ.

    Proof. One summand has the gradient -σ(-w·d)·d, of norm at most G. F is μ-strongly convex, so for all u, v:
    μ‖u - v‖ ≤ ‖∇F(u) - ∇F(v)‖. Let ŵ, ŵ' be the exact minimisers. ∇F_D'(ŵ) = ∇F_D'(ŵ) - ∇F_D(ŵ) is 1/N times at
    most k differences of two gradients, so of norm at most 2Gk/N, and μ‖ŵ - ŵ'‖ ≤ ‖∇F_D'(ŵ)‖ as ∇F_D'(ŵ') = 0. The
    same inequality with u = w, v = ŵ gives ‖w - ŵ‖ ≤ τ/μ, and so for w'. Add the three.

    Adjacency is replacement with N public, as in Bhattad & Ray Chowdhury's "differ in one person's data". Leaving
    pairs out while 1/N stays as it was moves ŵ by at most half of the first term (replace them by nothing: one
    gradient each instead of a difference), so the claim covers that too.

    Returns:
        The bound, not below its exact value; infinity where no float is that large.
    """
    mu = Fraction(facts.regularization)
    exact = (
        2 * Fraction(facts.pair_norm) * facts.pairs_per_person / facts.pairs + 2 * Fraction(facts.gradient_tolerance)
    ) / mu
    try:
        return float_rounded_up(exact)
    except InvalidQuantityError:
        return math.inf


def sensitivity_rounded_up(facts: HeadFacts) -> float:
    """Δ = min(R, R/(4s) · (2Gk/(μN) + 2τ/μ)), rounded up: most that one person's data moves any one reward.

    Proof. r = R·sigmoid(w·φ/s) with ‖φ‖ ≤ 1. The sigmoid's slope is at most 1/4, so |r - r'| ≤ R/(4s) · |(w - w')·φ|
    ≤ R/(4s) · ‖w - w'‖; `movement_rounded_up` bounds the last factor. And r, r' both lie in [0, R].

    The caller must guarantee what the proof uses: features of norm at most 1 from an encoder that does not depend on
    D, pair differences of norm at most G, and τ declared before training (`HeadFacts`).

    Returns:
        Δ in (0, R], not below its exact value. Source: `rewards.md`, "The certified head".
    """
    mu, s, R = Fraction(facts.regularization), Fraction(facts.scale), Fraction(facts.reward_max)
    movement = 2 * Fraction(facts.pair_norm) * facts.pairs_per_person / facts.pairs + 2 * Fraction(
        facts.gradient_tolerance
    )
    exact = R / (4 * s) * movement / mu
    return float(facts.reward_max) if exact >= R else min(float_rounded_up(exact), float(facts.reward_max))
