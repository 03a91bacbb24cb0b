"""PrivBoN: the chosen answer is the argmax of reward + Gumbel(σ), a draw from softmax(reward/σ).

Paper: Bhattad and Ray Chowdhury, "Privacy Without Regret", Algorithm 1 and Theorem 3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reticent.accounting.charges.bounded_range import renyi_divergence
from reticent.accounting.charges.rounding import charge_rounded_up
from reticent.accounting.errors import InvalidQuantityError, require_integer, require_positive

__all__ = ["PrivBoN"]


@dataclass(frozen=True)
class PrivBoN:
    """The mechanism and its parameters.

    Args:
        reward_max: R > 0.
        sensitivity: Δ with 0 < Δ ≤ R, that of the rewards as drawn: `RewardLattice.sensitivity`.
        candidates: n ≥ 1.
        noise_scale: σ > 0, reward units.

    The charge depends on α, Δ and σ, and through its cap `tight_epsilon` on R and n, all public. It depends on no
    reward, on no candidate and not on the outcome.

    What the caller must guarantee
    ------------------------------
    Rewards clipped to [0, R] by a rule that does not look at D, an exact softmax draw (`noise.noisy_argmax`) at a scale
    of at least σ, candidates that do not depend on D, and only the index released.
    """

    reward_max: float
    sensitivity: float
    candidates: int
    noise_scale: float

    def __post_init__(self) -> None:
        require_positive("reward_max", self.reward_max)
        require_positive("noise_scale", self.noise_scale)
        if require_positive("sensitivity", self.sensitivity) > self.reward_max:
            raise InvalidQuantityError("sensitivity", self.sensitivity, f"at most reward_max ({self.reward_max!r})")
        require_integer("candidates", self.candidates, 1)

    def published_epsilon(self) -> float:
        """ε = 2Δ/σ of the paper (Theorem 3.1), pure differential privacy. For reproduction; true but not tight."""
        return 2.0 * self.sensitivity / self.noise_scale

    def bounded_range(self) -> float:
        """ε = 2Δ/σ: all losses of one adjacent pair lie in an interval of this length."""
        return 2.0 * self.sensitivity / self.noise_scale

    def tight_epsilon(self) -> float:
        """Smallest ε of pure differential privacy for rewards in [0, R] and n candidates, nats.

        ε = x + log((1 + w e^x)/(e^x + w)), x = Δ/σ, w = (n-1) e^{(R-Δ)/σ}: one candidate falls from Δ to 0
        while all others rise from R - Δ to R. Source: privacy.md, section 2.
        """
        if self.candidates == 1:
            return 0.0
        x = self.sensitivity / self.noise_scale
        log_w = math.log(self.candidates - 1) + (self.reward_max - self.sensitivity) / self.noise_scale
        # e^ε = 1 + s (e^{2x} - 1) with s = w/(e^x + w): no difference of large numbers, exact for small x.
        log_share = -_softplus(x - log_w)
        if 2.0 * x < 600.0:
            return math.log1p(math.exp(log_share) * math.expm1(2.0 * x))
        return _softplus(2.0 * x + log_share)

    def charge(self, order: float) -> float:
        """Charge at order α, nats: the Rényi divergence of a 2Δ/σ-bounded-range mechanism, or the tight ε if smaller.

        Source: privacy.md, sections 2 and 5.
        """
        return min(renyi_divergence(order, self.bounded_range()), self.tight_epsilon())

    def charge_rounded_up(self, order: float) -> int:
        """`charge` with a relative margin of 1e-9, rounded up to an integer of 1e-9 nat."""
        return charge_rounded_up(self.charge(order))


def _softplus(x: float) -> float:
    """log(1 + e^x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
