"""Rényi divergence of a step that is ε-differentially private and of which nothing else is known."""

from __future__ import annotations

import math

from reticent.accounting.charges.bounded_range import require_order
from reticent.accounting.errors import require_non_negative

__all__ = ["renyi_divergence"]

_EPS = 2.0**-52


def renyi_divergence(order: float, epsilon: float) -> float:
    """Upper bound of the order-α Rényi divergence of an ε-DP step, nats: never above ε, never above αε²/2.

    All losses lie in [-ε, ε] and E_D exp(-L) = 1; x^α is convex, so the worst law sits on the two ends (randomised
    response: p = e^ε/(1 + e^ε) against 1 - p), whose divergence is
        log(cosh((α - ½)ε) / cosh(½ε)) / (α - 1) = log(cosh u + tanh(½ε) sinh u) / (α - 1), u = (α - 1)ε.
    The second form loses nothing for small ε or α near 1. It is the best possible: randomised response reaches it.
    For ε much below 1/α it is αε²/2, for ε much above it tends to ε - log(1 + e^-ε)·α/(α-1).

    Args: `order` α > 1; `epsilon` ε ≥ 0, nats. Errors: `InvalidQuantityError`. Source: privacy.md, section 5 (the row
    "pure ε-DP step" charges ε); the sharper value is derived here.
    """
    alpha, eps = require_order(order), require_non_negative("epsilon", epsilon)
    u = (alpha - 1.0) * eps
    tilt = math.tanh(0.5 * eps)
    if u < 300.0:
        moment = 2.0 * math.sinh(0.5 * u) ** 2 + tilt * math.sinh(u)
        log_moment = math.log1p(moment)
    else:  # cosh u and sinh u are ½e^u up to e^-600
        log_moment = u + math.log1p(tilt) - math.log(2.0)
    divergence = log_moment / (alpha - 1.0) * (1.0 + 16.0 * _EPS)
    return min(divergence, 0.5 * alpha * eps * eps * (1.0 + 4.0 * _EPS), eps)
