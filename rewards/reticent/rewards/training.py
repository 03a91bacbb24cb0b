"""Training of a certified head: the regularised Bradley-Terry loss, minimised to a declared gradient tolerance.

F(w) = (1/N) Σ log(1 + exp(-w·d_i)) + (μ/2)‖w‖², d_i = φ⁺_i - φ⁻_i shortened to norm G at most.

Shortening long differences (`pair_norm`) is worth a look: Δ is proportional to G, while w hardly changes as long as
most differences are shorter. What a charge buys depends on the spread of w·φ over candidates divided by the movement
2Gk/(μN), in which s does not occur: s only has to be large enough that the sigmoid does not saturate. A larger μ gives
a larger quotient up to the point where w is the mean difference, and costs accuracy; `tradeoff.py` shows both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .encoders.base import Encoder, FeatureMatrix
from .errors import TrainingFailed
from .feature_cache import encode_pairs_cached
from .head import LinearHead, SensitivityCertificate, new_identifier
from .pairs import PreferencePairs
from .private_training import NoiseName, calibrated, released_weights
from .sensitivity import HeadFacts, movement_rounded_up

__all__ = [
    "DEFAULT_TOLERANCE",
    "PrivacyWish",
    "TrainedWeights",
    "encode_pairs",
    "gradient_norm_rounded_up",
    "loss_gradient",
    "loss_hessian",
    "losses_slope",
    "minimise_loss",
    "pair_differences",
    "require_contrast",
    "train_head",
    "train_linear_head",
]

DEFAULT_TOLERANCE = 1e-9
"""τ. Newton's method ends near 1e-15; the rest is for rounding in training and serving."""

_MAX_STEPS = 100
_LARGEST_TAU_SHARE = 0.01


@dataclass(frozen=True)
class PrivacyWish:
    """What a private head is to satisfy: (ε, δ)-DP by Gaussian noise, or pure ε-DP by Laplace noise (δ is not read)."""

    epsilon: float
    delta: float = 1e-6
    noise: NoiseName = "gaussian"


@dataclass(frozen=True)
class TrainedWeights:
    """A computed minimiser.

    Attributes:
        weights: w, shape (d,).
        gradient_norm: an upper bound on ‖∇F(w)‖, rounding of its own computation included. It depends on the data:
            it is compared with the declared tolerance and never enters a sensitivity.
        steps: Newton steps taken.
    """

    weights: NDArray[np.float64]
    gradient_norm: float
    steps: int


def pair_differences(positive: FeatureMatrix, negative: FeatureMatrix, pair_norm: float = 2.0) -> NDArray[np.float64]:
    """d_i = φ⁺_i - φ⁻_i, each shortened to L2 norm `pair_norm` at most; a rule that reads one pair only.

    Raises:
        TrainingFailed: shapes differ, no rows, a row that is not finite or is longer than 1.
    """
    p, m = np.asarray(positive, dtype=np.float64), np.asarray(negative, dtype=np.float64)
    if p.shape != m.shape or p.ndim != 2 or not p.size:
        raise TrainingFailed(f"features must be two matrices of one shape, with rows: {p.shape}, {m.shape}")
    for rows in (p, m):
        if not float(np.max(np.sum(rows * rows, axis=1))) <= 1.0:
            raise TrainingFailed("a row of features is not finite or is longer than 1")
    if not 0 < pair_norm <= 2:
        raise TrainingFailed(f"pair_norm must lie in (0, 2]: {pair_norm}")
    d = p - m
    norms = np.sqrt(np.sum(d * d, axis=1))
    # The last factor keeps rounding below G.
    factors = np.where(norms > pair_norm * (1 - 1e-12), pair_norm / np.maximum(norms, 1e-300) * (1 - 1e-12), 1.0)
    return np.asarray(d * factors[:, None], dtype=np.float64)


def train_head(
    positive: FeatureMatrix,
    negative: FeatureMatrix,
    regularization: float,
    *,
    pair_norm: float = 2.0,
    gradient_tolerance: float = DEFAULT_TOLERANCE,
    pairs_per_person: int = 1,
) -> TrainedWeights:
    """Minimise F by Newton's method with step halving, in float64.

    Args:
        positive, negative: features of preferred and other answers, shape (N, d), rows of norm at most 1.
        regularization: μ > 0.
        pair_norm: G in (0, 2].
        gradient_tolerance: τ, declared. The gradient reached must be at most τ/2; the other half covers rounding
            when the head is used (`LinearHead.rounding_is_covered`).
        pairs_per_person: k, read only to judge whether τ matters.

    Raises:
        TrainingFailed: bad features, μ not positive, a τ that matters (2τ/μ above 1 % of 2Gk/(μN)), or the tolerance
            was not reached.
    """
    if not (math.isfinite(regularization) and regularization > 0):
        raise TrainingFailed(f"regularization must be positive: {regularization}")
    d = pair_differences(positive, negative, pair_norm)
    if gradient_tolerance > _LARGEST_TAU_SHARE * pair_norm * pairs_per_person / len(d):
        raise TrainingFailed(
            f"gradient_tolerance {gradient_tolerance} would be more than 1 % of the sensitivity's other term: "
            f"at most {_LARGEST_TAU_SHARE * pair_norm * pairs_per_person / len(d):.3g} here"
        )
    return minimise_loss(d, regularization, gradient_tolerance)


def minimise_loss(d: NDArray[np.float64], regularization: float, gradient_tolerance: float) -> TrainedWeights:
    """The minimiser of F for differences d, shape (N, d), to a gradient of τ/2 at most, with its bound.

    Raises:
        TrainingFailed: not reached in 100 steps.
    """
    w = np.zeros(d.shape[1])
    for step in range(_MAX_STEPS + 1):
        bound = gradient_norm_rounded_up(d, w, regularization)
        if bound <= gradient_tolerance / 2:
            return TrainedWeights(w, bound, step)
        w = w + _newton_step(d, w, regularization)
    raise TrainingFailed(f"gradient norm {bound:.3g} after {_MAX_STEPS} steps, wanted {gradient_tolerance / 2:.3g}")


def train_linear_head(
    pairs: PreferencePairs,
    encoder: Encoder,
    regularization: float,
    scale: float,
    *,
    reward_max: float = 1.0,
    pair_norm: float = 2.0,
    gradient_tolerance: float = DEFAULT_TOLERANCE,
    features: tuple[FeatureMatrix, FeatureMatrix] | None = None,
    privacy: PrivacyWish | None = None,
) -> LinearHead:
    """Train a head with its certificate, and with `privacy` a differentially private one.

    Args:
        pairs: the preference data; its `pairs_per_person` is k.
        encoder: frozen, not fitted on this data.
        regularization, scale, reward_max, pair_norm, gradient_tolerance: μ, s, R, G, τ. All are declared; choosing
            them by looking at accuracy on the same data is a leak that the certificate does not count.
        features: what `encode_pairs(pairs, encoder)` gave, where the caller has it already.
        privacy: ε, δ and the kind of noise of a private head (`private_training.py`). Every call is a release of its
            own, to be paid for.

    Raises:
        TrainingFailed: as `train_head`, `require_contrast`.
    """
    positive, negative = encode_pairs(pairs, encoder) if features is None else features
    facts = HeadFacts(
        pairs=len(pairs.rows),
        pairs_per_person=pairs.pairs_per_person,
        regularization=regularization,
        pair_norm=pair_norm,
        gradient_tolerance=gradient_tolerance,
        scale=scale,
        reward_max=reward_max,
    )
    if len(positive) != facts.pairs:
        raise TrainingFailed(f"{len(positive)} rows of features for {facts.pairs} pairs")
    if not math.isfinite(movement_rounded_up(facts)):
        raise TrainingFailed("the sensitivity is not finite")
    require_contrast(pairs, positive, negative)
    private = None
    if privacy is not None:
        private = calibrated(facts, positive.shape[1], privacy.noise, privacy.epsilon, privacy.delta)
    trained = train_head(
        positive,
        negative,
        regularization,
        pair_norm=pair_norm,
        # A private head gives half of its share of τ to the lattice that its weights are rounded to.
        gradient_tolerance=gradient_tolerance if private is None else gradient_tolerance / 2,
        pairs_per_person=facts.pairs_per_person,
    )
    weights = tuple(float(x) for x in trained.weights)
    return LinearHead(
        weights=weights if private is None else released_weights(trained.weights, private),
        encoder=encoder.name,
        encoder_revision=encoder.revision,
        certificate=SensitivityCertificate.of(facts, pairs.sha256 if private is None else None),
        identifier=new_identifier(),
        private=private,
    )


def require_contrast(pairs: PreferencePairs, positive: FeatureMatrix, negative: FeatureMatrix) -> None:
    """Refuse pairs from which nothing but one text can be learnt.

    Raises:
        TrainingFailed: all pairs prefer one text over one other, or the features differ in no pair.
    """
    rows = pairs.rows
    if len(rows) > 1 and len({row.chosen for row in rows}) == len({row.rejected for row in rows}) == 1:
        raise TrainingFailed(f"one class only: all {len(rows)} pairs prefer one and the same text over one other")
    if np.array_equal(positive, negative):
        raise TrainingFailed("one class only: the encoder sees no difference between chosen and rejected in any pair")


def encode_pairs(pairs: PreferencePairs, encoder: Encoder) -> tuple[FeatureMatrix, FeatureMatrix]:
    """Features of the preferred and of the other answers, each of shape (N, d).

    One row of the data is encoded at a time: the rows of a larger batch depend on each other in the last bits, and a
    replaced pair would then move all of them, which the sensitivity does not count.
    """
    return encode_pairs_cached(pairs, encoder, None)


def _newton_step(d: NDArray[np.float64], w: NDArray[np.float64], mu: float) -> NDArray[np.float64]:
    p = losses_slope(d @ w)
    gradient = loss_gradient(d, p, w, mu)
    step = -np.linalg.solve(loss_hessian(d, p, mu), gradient)
    slope = float(gradient @ step)
    start = _objective(d, w, mu)
    t = 1.0
    # Near the minimum the decrease drowns in rounding; a full step is right there.
    while t > 1e-6 and _objective(d, w + t * step, mu) > start + 1e-4 * t * slope + 1e-13:
        t /= 2
    return np.asarray(t * step, dtype=np.float64)


def losses_slope(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """σ(-z): the size of a pair's gradient in units of its difference, where z = w·d.

    The absolute error is a few units in the last place of 1; nothing overflows.
    """
    return np.asarray(0.5 * (1.0 - np.tanh(z / 2)), dtype=np.float64)


def loss_gradient(
    d: NDArray[np.float64], p: NDArray[np.float64], w: NDArray[np.float64], mu: float
) -> NDArray[np.float64]:
    """∇F(w), given the slopes p = `losses_slope(d @ w)`."""
    return np.asarray(mu * w - d.T @ p / len(d), dtype=np.float64)


def loss_hessian(d: NDArray[np.float64], p: NDArray[np.float64], mu: float) -> NDArray[np.float64]:
    """∇²F(w), given the slopes p."""
    return np.asarray((d.T * (p * (1 - p))) @ d / len(d) + mu * np.eye(d.shape[1]), dtype=np.float64)


def _objective(d: NDArray[np.float64], w: NDArray[np.float64], mu: float) -> float:
    loss = np.mean(np.logaddexp(0.0, -(d @ w)))
    return float(loss) + mu / 2 * float(w @ w)


def gradient_norm_rounded_up(d: NDArray[np.float64], w: NDArray[np.float64], mu: float) -> float:
    """An upper bound on ‖∇F(w)‖ for the exact F, computed in float64.

    Sums over the N pairs are exact up to one rounding (`math.fsum`), so what errs is each term: z_i = w·d_i by at
    most (d + 1)·u·‖w‖G, σ by a quarter of that and 4u, each product by u; in all below
    ((d + 8)(1 + ‖w‖) + 16)·u·G ≤ 2((d + 8)(1 + ‖w‖) + 16)·u for every term's norm, hence for their mean's.
    """
    n, dimension = d.shape
    p = losses_slope(d @ w)
    columns = [math.fsum((p * d[:, j]).tolist()) / n for j in range(dimension)]
    gradient = [mu * float(wj) - c for wj, c in zip(w, columns, strict=True)]
    norm_w = math.sqrt(math.fsum(float(x) * float(x) for x in w))
    rounding: float = 2 * ((dimension + 8) * (1 + norm_w) + 16) * 2.0**-53 + 4 * mu * norm_w * 2.0**-53
    return math.sqrt(math.fsum(g * g for g in gradient)) * (1 + 1e-12) + rounding
