"""The table that helps to choose μ and s: accuracy on held-out prompts against Δ and what a charge buys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .encoders.base import FeatureMatrix
from .sensitivity import HeadFacts, movement_rounded_up, sensitivity_rounded_up
from .training import DEFAULT_TOLERANCE, train_head

__all__ = ["TradeoffRow", "tradeoff"]


@dataclass(frozen=True)
class TradeoffRow:
    """One choice of μ and s.

    Attributes:
        regularization, scale: μ, s.
        heldout_accuracy: share of held-out pairs in which the preferred answer gets the larger w·φ (ties count half).
        sensitivity: Δ, rounded up.
        separation: mean of w·φ⁺ - w·φ⁻ over held-out pairs, divided by the movement 2Gk/(μN) + 2τ/μ. At σ = cΔ a
            selection sees this many Δ between good and bad, whatever s is (while the sigmoid is near its middle).
        reward_gap: mean of r⁺ - r⁻ over held-out pairs, divided by Δ: the same after the sigmoid.
    """

    regularization: float
    scale: float
    heldout_accuracy: float
    sensitivity: float
    separation: float
    reward_gap: float


def tradeoff(
    training: tuple[FeatureMatrix, FeatureMatrix],
    heldout: tuple[FeatureMatrix, FeatureMatrix],
    regularizations: Sequence[float],
    scales: Sequence[float],
    *,
    pairs_per_person: int = 1,
    pair_norm: float = 2.0,
    gradient_tolerance: float = DEFAULT_TOLERANCE,
    reward_max: float = 1.0,
) -> Iterable[TradeoffRow]:
    """Train at every μ and yield a row for every s.

    Args:
        training, heldout: (positive, negative) features, with no prompt on both sides (`split_by_prompt`).

    The rows are computed from the data and are not private: they are for whoever may see the data.

    Raises:
        TrainingFailed: as `train_head`.
    """
    for mu in regularizations:
        trained = train_head(
            *training,
            mu,
            pair_norm=pair_norm,
            gradient_tolerance=gradient_tolerance,
            pairs_per_person=pairs_per_person,
        )
        positive, negative = (rows @ trained.weights for rows in heldout)
        accuracy = float(np.mean((positive > negative) + 0.5 * (positive == negative)))
        for s in scales:
            facts = HeadFacts(len(training[0]), pairs_per_person, mu, pair_norm, gradient_tolerance, s, reward_max)
            delta = sensitivity_rounded_up(facts)
            rewards = [reward_max / (1 + np.exp(-np.clip(z / s, -700, 700))) for z in (positive, negative)]
            yield TradeoffRow(
                regularization=mu,
                scale=s,
                heldout_accuracy=accuracy,
                sensitivity=delta,
                separation=float(np.mean(positive - negative)) / movement_rounded_up(facts),
                reward_gap=float(np.mean(rewards[0] - rewards[1])) / delta,
            )
