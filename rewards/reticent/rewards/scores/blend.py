"""A logistic combination of other scores with declared coefficients.

The coefficients are fitted on a development split that no calibration uses and that does not depend on D
(`fit_blend`), and then stand in the configuration and its fingerprint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reticent.rewards.bounds import sigmoid

from .base import Need, Score, ScoreInputs, score_facts
from .fitting import fit_logistic

__all__ = ["Blend", "fit_blend"]


@dataclass(frozen=True)
class Blend:
    """sigmoid(intercept + Σ coefficient_i · score_i).

    Args:
        parts: the scores with their coefficients, at least one, names distinct.
        intercept: the constant.

    Raises:
        ValueError: no parts, a repeated name, or a number that is not finite.
    """

    parts: tuple[tuple[Score, float], ...]
    intercept: float

    def __post_init__(self) -> None:
        names = [score.name for score, _ in self.parts]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a blend needs distinct scores: {names}")
        if not all(math.isfinite(number) for number in (self.intercept, *(c for _, c in self.parts))):
            raise ValueError("coefficients must be finite")

    @property
    def name(self) -> str:
        return "blend"

    @property
    def depends_on_rewards(self) -> bool:
        return any(score.depends_on_rewards for score, _ in self.parts)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset[Need]().union(*(score.needs for score, _ in self.parts))

    @property
    def constants(self) -> Mapping[str, object]:
        return {
            "intercept": self.intercept,
            "parts": [{"score": score_facts(score), "coefficient": c} for score, c in self.parts],
        }

    def compute(self, inputs: ScoreInputs) -> float:
        return sigmoid(math.fsum([self.intercept, *(c * score.compute(inputs) for score, c in self.parts)]))


def fit_blend(
    scores: Sequence[Score], inputs: Sequence[ScoreInputs], right: Sequence[bool], ridge: float = 1e-3
) -> Blend:
    """Fit a blend by logistic regression on a development split.

    Args:
        scores: the parts.
        inputs, right: the answers of the split, and whether each is right.
        ridge: μ > 0 of the penalty (μ/2)‖coefficients‖²; the intercept is free.

    Coefficients are rounded to four digits after the point, so that a configuration can state them.

    Raises:
        ValueError: as `fit_logistic`.
    """
    rows = [[score.compute(each) for score in scores] for each in inputs]
    intercept, coefficients = fit_logistic(rows, right, ridge)
    return Blend(tuple(zip(scores, coefficients, strict=True)), intercept)
