"""The chosen answer's reward with Gaussian noise: the one score that depends on D, and is charged for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from reticent.rewards.errors import ScoreInputMissing

from .base import Need, ScoreInputs, within_unit

__all__ = ["NoisyReward"]


@dataclass(frozen=True)
class NoisyReward:
    """S = clip(r + N(0, σ_g²), 0, R)/R, r the reward of the chosen answer (privacy.md, section 5).

    Args:
        noise_scale: σ_g > 0, in reward units.

    The noise is drawn where the reward is, on the integer lattice, by the server (`ScoreInputs.noisy_reward`), never
    here. Every answer pays αΔ²/(2σ_g²) on top of its selection, whether it is accepted or not; a gate whose rules do
    not charge exactly that refuses this score.

    Raises:
        ValueError: σ_g not positive and finite.
    """

    noise_scale: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_scale) and self.noise_scale > 0):
            raise ValueError(f"noise_scale must be positive: {self.noise_scale}")

    @property
    def name(self) -> str:
        return "noisy_reward"

    @property
    def depends_on_rewards(self) -> bool:
        return True

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"noisy_reward"})

    @property
    def constants(self) -> Mapping[str, object]:
        return {"noise_scale": self.noise_scale}

    def compute(self, inputs: ScoreInputs) -> float:
        if inputs.noisy_reward is None:
            raise ScoreInputMissing(self.name, "the answer's reward with its charged noise")
        return within_unit(inputs.noisy_reward)
