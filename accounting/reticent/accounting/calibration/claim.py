"""The statement that a certificate makes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Claim"]


@dataclass(frozen=True)
class Claim:
    """What a certificate states, and with which failure probabilities.

    Args:
        target_risk: r* in (0, 1): expected declared loss of accepted answers.
        min_acceptance: a_min in (0, 1): least fraction of answers accepted.
        alpha_risk: α_D, probability that any threshold, at any time, is falsely said to meet the target.
        alpha_acceptance: α_A, the same for the floor. α_D + α_A < 1.

    Raises:
        ValueError: a value outside its range.
    """

    target_risk: float
    min_acceptance: float
    alpha_risk: float
    alpha_acceptance: float

    def __post_init__(self) -> None:
        for name in ("target_risk", "min_acceptance", "alpha_risk", "alpha_acceptance"):
            value = getattr(self, name)
            if not 0.0 < value < 1.0:
                raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}")
        if self.alpha_risk + self.alpha_acceptance >= 1.0:
            raise ValueError(
                f"alpha_risk + alpha_acceptance must be below 1, got {self.alpha_risk!r} + {self.alpha_acceptance!r}"
            )

    @property
    def alpha_sampling(self) -> float:
        """α_s, half of α_D + α_A: the budget of the sampling event in rules that split by source (paper, theorem 1)."""
        return 0.5 * (self.alpha_risk + self.alpha_acceptance)

    @property
    def alpha_noise(self) -> float:
        """α_n, the other half: the budget of the noise event."""
        return 0.5 * (self.alpha_risk + self.alpha_acceptance)
