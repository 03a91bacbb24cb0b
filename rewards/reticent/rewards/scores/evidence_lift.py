"""Normalised evidence lift (Akter, Shihab & Sharma, "Private Anytime Selective-Risk Certification for Federated
Retrieval-Augmented Generation", eq. 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from reticent.rewards.errors import ScoreInputMissing

from .base import Need, ScoreInputs

__all__ = ["EvidenceLift"]


@dataclass(frozen=True)
class EvidenceLift:
    """S_B = (1/(L·B)) Σ_r clip(log p(y_r | evidence) - log p(y_r | no evidence), 0, B).

    Args:
        clip: B > 0, nats.

    A ratio that is NaN counts 0, +inf counts B; an answer without tokens scores 0. The pass with the evidence comes
    free from sampling, the one without is teacher-forced.

    Raises:
        ValueError: B not positive and finite.
    """

    clip: float = 5.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ValueError(f"clip must be positive: {self.clip}")

    @property
    def name(self) -> str:
        return "evidence_lift"

    @property
    def depends_on_rewards(self) -> bool:
        return False

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"log_probabilities", "teacher_forced"})

    @property
    def constants(self) -> Mapping[str, object]:
        return {"clip": self.clip, "end_token": "left out"}

    def compute(self, inputs: ScoreInputs) -> float:
        ratios = inputs.lift_log_ratios
        if ratios is None:
            raise ScoreInputMissing(self.name, "the log-ratios with and without evidence")
        if not ratios:
            return 0.0
        clipped = (0.0 if math.isnan(ratio) else min(max(ratio, 0.0), self.clip) for ratio in ratios)
        return min(math.fsum(clipped) / (len(ratios) * self.clip), 1.0)
