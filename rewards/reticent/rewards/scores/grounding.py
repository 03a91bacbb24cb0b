"""How well an answer rests on its evidence: a logistic combination of the lexical grounded measures.

The measures (`encoders/grounded.py`) read question, evidence and answer, nothing else. The coefficients were fitted on
a development set of the embedded task that neither trains a head nor calibrates a certificate; refit them with
`fit_grounding` for another task. They are made for short answers from short passages and know words, not meaning:
what such a score is worth elsewhere, calibration has to show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reticent.rewards.bounds import sigmoid
from reticent.rewards.encoders.grounded import (
    LEXICAL_CONSTANTS,
    SubjectView,
    evidence_sentences,
    measures,
    standardised,
)
from reticent.rewards.text import VERSION

from .base import Need, ScoreInputs
from .fitting import fit_logistic

__all__ = ["Grounding", "fit_grounding", "grounded_row"]

DEFAULT_INTERCEPT = -0.63
# fmt: off
DEFAULT_COEFFICIENTS: tuple[float, ...] = (
    0.84, 0.42, -0.63, 0.66, 0.61, 0.56, 0.48, 0.1, -0.08, 0.6, 0.08,
    0.15, -0.45, 0.65, -0.95, -0.95, -0.39, 0.23, -0.29, 0.12, 0.38,
)
# fmt: on


def grounded_row(inputs: ScoreInputs) -> list[float]:
    """The standardised lexical measures of one answer, as the score combines them."""
    view = SubjectView.of(inputs.question, evidence_sentences(inputs.evidence))
    return standardised(measures(view, inputs.answer), LEXICAL_CONSTANTS)


@dataclass(frozen=True)
class Grounding:
    """sigmoid(intercept + Σ coefficient_i · measure_i). Without evidence, or for an empty answer, the score is 0.

    Reads question, evidence and answer; costs no pass.

    Raises:
        ValueError: another number of coefficients than of measures, or one that is not finite.
    """

    intercept: float = DEFAULT_INTERCEPT
    coefficients: tuple[float, ...] = DEFAULT_COEFFICIENTS

    def __post_init__(self) -> None:
        if len(self.coefficients) != len(LEXICAL_CONSTANTS):
            raise ValueError(f"grounding has {len(LEXICAL_CONSTANTS)} coefficients, not {len(self.coefficients)}")
        if not all(math.isfinite(number) for number in (self.intercept, *self.coefficients)):
            raise ValueError("coefficients must be finite")

    @property
    def name(self) -> str:
        return "grounding"

    @property
    def depends_on_rewards(self) -> bool:
        return False

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset()

    @property
    def constants(self) -> Mapping[str, object]:
        return {
            "text": VERSION,
            "map": [list(pair) for pair in LEXICAL_CONSTANTS],
            "intercept": self.intercept,
            "coefficients": list(self.coefficients),
        }

    def compute(self, inputs: ScoreInputs) -> float:
        if not inputs.answer.strip() or not any(text.strip() for text in inputs.evidence):
            return 0.0
        terms = (c * x for c, x in zip(self.coefficients, grounded_row(inputs), strict=True))
        return sigmoid(math.fsum([self.intercept, *terms]))


def fit_grounding(inputs: Sequence[ScoreInputs], right: Sequence[bool], ridge: float = 1e-2) -> Grounding:
    """Fit the coefficients on a development split; the arguments as of `fit_blend`.

    Raises:
        ValueError: as `fit_logistic`.
    """
    intercept, coefficients = fit_logistic([grounded_row(each) for each in inputs], right, ridge)
    return Grounding(intercept, coefficients)
