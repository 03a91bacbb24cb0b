"""The tables that help to choose μ and s: accuracy on held-out prompts against Δ, what a charge buys, and what privacy
takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from .encoders.base import FeatureMatrix
from .private_training import noise_deviation
from .sensitivity import HeadFacts, movement_rounded_up, sensitivity_rounded_up
from .training import DEFAULT_TOLERANCE, PrivacyWish, train_head

__all__ = ["TradeoffRow", "cross_validated", "tradeoff"]

Vector = NDArray[np.float64]


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
        selection_accuracy: share of held-out pairs in which PrivBoN over the two answers is expected to choose the
            preferred one, sigmoid((r⁺ - r⁻)/σ), or None where no σ was given.
        private_accuracy: the expected accuracy over the noise of a private head (normal noise of the same deviation),
            or None where no privacy was asked for.
    """

    regularization: float
    scale: float
    heldout_accuracy: float
    sensitivity: float
    separation: float
    reward_gap: float
    selection_accuracy: float | None = None
    private_accuracy: float | None = None


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
        facts = HeadFacts(len(training[0]), pairs_per_person, mu, pair_norm, gradient_tolerance, 1.0, reward_max)
        weights = _trained(*training, facts)
        positive, negative = (rows @ weights for rows in heldout)
        yield from (_row(positive, negative, replace(facts, scale=s)) for s in scales)


def cross_validated(
    features: tuple[FeatureMatrix, FeatureMatrix],
    folds: Sequence[int],
    regularizations: Sequence[float],
    scales: Sequence[float],
    *,
    pairs_per_person: int = 1,
    pair_norm: float = 2.0,
    gradient_tolerance: float = DEFAULT_TOLERANCE,
    reward_max: float = 1.0,
    privacy: PrivacyWish | None = None,
    noise_scale: float | None = None,
) -> Iterator[TradeoffRow]:
    """Rows for a head trained on all pairs: Δ is that of all N, accuracy that of heads trained without the pair's fold.

    Args:
        features: (positive, negative) features of all pairs.
        folds: the fold of each pair, no prompt in two (`folds_by_prompt`).
        privacy: also the accuracy that a private head is expected to have.
        noise_scale: σ of PrivBoN, for `selection_accuracy`.

    Not private, as `tradeoff`.

    Raises:
        TrainingFailed: as `train_head`, `calibrated`.
    """
    positive, negative = features
    dealt = np.asarray(folds)
    lengths = np.sqrt(np.sum((positive - negative) ** 2, axis=1))
    for mu in regularizations:
        facts = HeadFacts(len(positive), pairs_per_person, mu, pair_norm, gradient_tolerance, 1.0, reward_max)
        z = np.zeros((2, len(positive)))
        for fold in np.unique(dealt):
            apart = dealt == fold
            weights = _trained(positive[~apart], negative[~apart], facts)
            z[0, apart], z[1, apart] = positive[apart] @ weights, negative[apart] @ weights
        expected = None
        if privacy is not None:
            deviation = noise_deviation(facts, positive.shape[1], privacy.noise, privacy.epsilon, privacy.delta)
            # A pair without a difference is a tie, and stays one.
            expected = float(np.mean(ndtr((z[0] - z[1]) / np.maximum(deviation * lengths, 1e-300))))
        for s in scales:
            row = _row(z[0], z[1], replace(facts, scale=s), noise_scale)
            yield replace(row, private_accuracy=expected)


def _trained(positive: FeatureMatrix, negative: FeatureMatrix, facts: HeadFacts) -> Vector:
    return train_head(
        positive,
        negative,
        facts.regularization,
        pair_norm=facts.pair_norm,
        gradient_tolerance=facts.gradient_tolerance,
        pairs_per_person=facts.pairs_per_person,
    ).weights


def _row(positive: Vector, negative: Vector, facts: HeadFacts, noise_scale: float | None = None) -> TradeoffRow:
    """The row of w·φ⁺, w·φ⁻ over held-out pairs."""
    delta = sensitivity_rounded_up(facts)
    rewards = [facts.reward_max / (1 + np.exp(-np.clip(z / facts.scale, -700, 700))) for z in (positive, negative)]
    chosen = None
    if noise_scale is not None:
        chosen = float(np.mean(expit((rewards[0] - rewards[1]) / noise_scale)))
    return TradeoffRow(
        regularization=facts.regularization,
        scale=facts.scale,
        heldout_accuracy=float(np.mean((positive > negative) + 0.5 * (positive == negative))),
        sensitivity=delta,
        separation=float(np.mean(positive - negative)) / movement_rounded_up(facts),
        reward_gap=float(np.mean(rewards[0] - rewards[1])) / delta,
        selection_accuracy=chosen,
    )
