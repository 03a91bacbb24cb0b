"""Rewards as integers.

Noise that is added to floats is not the noise of the theorem: the low bits of a sum betray the number below it.
So every reward becomes an integer number of granules g = R·2^-bits before anything private happens, and all noise is
integer noise (`reticent.accounting.noise`). Rounding moves two neighbouring rewards apart by less than one granule, and
the sensitivity that charges use counts that granule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from reticent.accounting.errors import InvalidQuantityError, require_finite, require_integer, require_positive
from reticent.accounting.units import float_rounded_up

__all__ = ["RewardLattice"]

_BITS_MIN, _BITS_MAX = 8, 40


@dataclass(frozen=True, init=False)
class RewardLattice:
    """The integer grid of rewards.

    Args:
        reward_max: R > 0; rewards live in [0, R].
        sensitivity: Δ with 0 < Δ ≤ R, the most that one person's data can move one reward.
        bits: the grid has 2^bits steps, 8 to 40.

    What the caller must guarantee
    ------------------------------
    R, Δ and `bits` are configuration: they do not depend on D. Δ holds for the number that is given to `quantise`, or
    for any number from which that one comes by a map that moves no two numbers further apart.

    Errors: `InvalidQuantityError`. Source: privacy.md, section 1.
    """

    reward_max: float
    sensitivity_declared: float
    bits: int = 30

    def __init__(self, reward_max: float, sensitivity: float, bits: int = 30) -> None:
        R = require_positive("reward_max", reward_max)
        declared = require_positive("sensitivity", sensitivity)
        if declared > R:
            raise InvalidQuantityError("sensitivity", sensitivity, f"at most reward_max ({R!r})")
        object.__setattr__(self, "reward_max", R)
        object.__setattr__(self, "sensitivity_declared", declared)
        object.__setattr__(self, "bits", require_integer("bits", bits, _BITS_MIN, _BITS_MAX))

    @property
    def units_max(self) -> int:
        """2^bits: the integer of the reward R."""
        return 1 << self.bits

    @cached_property
    def granule(self) -> Fraction:
        """g = R·2^-bits, exact, in reward units."""
        return Fraction(self.reward_max) / self.units_max

    def quantise(self, reward: float) -> int:
        """Integer of a reward, 0 to 2^bits: NaN and ±inf become 0, then clip to [0, R], then round down.

        The rule does not look at D, so it is part of the query and costs nothing (privacy.md, section 1).
        """
        number = float(reward)
        if not math.isfinite(number) or number <= 0.0:
            return 0
        if number >= self.reward_max:
            return self.units_max
        return math.floor(Fraction(number) / self.granule)

    @cached_property
    def sensitivity_units(self) -> int:
        """Most that one person's data can move one quantised reward: min(⌊Δ/g⌋ + 1, 2^bits) granules."""
        return min(math.floor(Fraction(self.sensitivity_declared) / self.granule) + 1, self.units_max)

    @cached_property
    def sensitivity(self) -> float:
        """Δ of the quantised rewards in reward units, rounded up: the Δ that every charge must use."""
        return float_rounded_up(self.sensitivity_units * self.granule)

    def to_units(self, x: float) -> Fraction:
        """`x` (reward units: a scale, β, a reward) in granules, exact."""
        return Fraction(require_finite("x", x)) / self.granule

    def from_units(self, units: int | Fraction) -> float:
        """Granules in reward units, the nearest float. Only for numbers already released, or for a public formula."""
        return float(units * self.granule)
