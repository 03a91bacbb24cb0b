"""Many trainings on nearly the same pairs: steps with the Hessian of the first, gradients of the changed data.

Every result is held to the same tolerance as `training.train_head`, by the same bound on its gradient, so it is as much
a training of the head as that is; only its road there is shorter.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, eigh

from .training import gradient_norm_rounded_up, loss_gradient, loss_hessian, losses_slope, minimise_loss

__all__ = ["Retrainer"]

Matrix = NDArray[np.float64]

_MAX_STEPS = 40


class Retrainer:
    """The minimiser for `differences`, and those for changed differences.

    Args:
        differences: d_i, shape (N, d), each of norm at most G.
        regularization: μ.
        gradient_tolerance: τ; results reach τ/2.

    Raises:
        TrainingFailed: as `minimise_loss`, here and in `retrain`.
    """

    def __init__(self, differences: Matrix, regularization: float, gradient_tolerance: float) -> None:
        self.differences = differences
        self._mu = regularization
        self._tolerance = gradient_tolerance
        self.weights = minimise_loss(differences, regularization, gradient_tolerance).weights
        self._factor = cho_factor(self._hessian(differences, self.weights))

    def retrain(self, differences: Matrix) -> Matrix:
        """The minimiser for other differences, from this one's weights."""
        w = self.weights
        for _ in range(_MAX_STEPS):
            gradient = self._gradient(differences, w)
            if (
                float(np.linalg.norm(gradient)) <= self._tolerance / 4
                and gradient_norm_rounded_up(differences, w, self._mu) <= self._tolerance / 2
            ):
                return w
            w = w - cho_solve(self._factor, gradient)
        # Where one pair changes the Hessian much (few pairs, small μ) these steps go nowhere, or away.
        return minimise_loss(differences, self._mu, self._tolerance).weights

    def solve(self, gradients: Matrix) -> Matrix:
        """H⁻¹ g for every row g."""
        return np.asarray(cho_solve(self._factor, gradients.T).T, dtype=np.float64)

    def weakest(self, index: int) -> Matrix:
        """Unit eigenvector of the Hessian's eigenvalue number `index`, counted from the least."""
        return np.asarray(self._eigenvectors[:, index], dtype=np.float64)

    @cached_property
    def _eigenvectors(self) -> Matrix:
        last = min(7, len(self.weights) - 1)
        _, vectors = eigh(self._hessian(self.differences, self.weights), subset_by_index=[0, last])
        return np.asarray(vectors, dtype=np.float64)

    def _gradient(self, d: Matrix, w: Matrix) -> Matrix:
        return loss_gradient(d, losses_slope(d @ w), w, self._mu)

    def _hessian(self, d: Matrix, w: Matrix) -> Matrix:
        return loss_hessian(d, losses_slope(d @ w), self._mu)
