"""Ridge logistic regression, for coefficients that a development split fixes before calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["fit_logistic"]

_STEPS = 50
_LARGEST_STEP = 5.0


def fit_logistic(
    rows: Sequence[Sequence[float]], right: Sequence[bool], ridge: float
) -> tuple[float, tuple[float, ...]]:
    """Minimise the mean logistic loss plus (ridge/2)‖coefficients‖²; the intercept is (all but) free.

    Args:
        rows: one row of finite numbers an answer.
        right: whether each answer is right.
        ridge: positive.

    Returns:
        (intercept, coefficients), rounded to four digits after the point, so that a configuration can state them.

    Raises:
        ValueError: lengths differ, one class only, or `ridge` not positive.
    """
    if len(rows) != len(right) or len(set(right)) != 2:
        raise ValueError("a fit needs one verdict an answer, and both right and wrong ones")
    if not (math.isfinite(ridge) and ridge > 0):
        raise ValueError(f"ridge must be positive: {ridge}")
    x = np.array([[1.0, *row] for row in rows])
    y = np.array(right, dtype=np.float64)
    penalty = ridge * np.eye(x.shape[1])
    penalty[0, 0] = 1e-9
    w = np.zeros(x.shape[1])
    for _ in range(_STEPS):
        p = 0.5 * (1.0 + np.tanh(x @ w / 2))
        gradient = x.T @ (p - y) / len(y) + penalty @ w
        hessian = (x.T * (p * (1 - p))) @ x / len(y) + penalty
        step = np.linalg.solve(hessian, gradient)
        # Newton's step, shortened where the start is far off.
        w = w - step * min(1.0, _LARGEST_STEP / max(float(np.max(np.abs(step))), 1e-12))
    intercept, *coefficients = (round(float(c), 4) for c in w)
    return intercept, tuple(coefficients)
