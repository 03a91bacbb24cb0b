"""Probability of the answer's tokens under the base model (fed-src, Table 8, "token probability")."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from reticent.rewards.errors import ScoreInputMissing

from .base import Need, ScoreInputs

__all__ = ["TokenProbability"]


@dataclass(frozen=True)
class TokenProbability:
    """exp of the mean log-probability: the geometric mean of the tokens' probabilities.

    An answer without tokens, or whose mean is NaN or -inf, scores 0. Costs no pass beyond sampling with logprobs.
    """

    @property
    def name(self) -> str:
        return "token_probability"

    @property
    def depends_on_rewards(self) -> bool:
        return False

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"log_probabilities"})

    @property
    def constants(self) -> Mapping[str, object]:
        return {"end_token": "left out"}

    def compute(self, inputs: ScoreInputs) -> float:
        mean = inputs.mean_log_probability
        if mean is None:
            raise ScoreInputMissing(self.name, "the mean log-probability of the answer's tokens")
        # Servers round: a mean a hair above 0 is 0. NaN compares false and scores 0.
        return math.exp(min(mean, 0.0)) if mean > -math.inf else 0.0
