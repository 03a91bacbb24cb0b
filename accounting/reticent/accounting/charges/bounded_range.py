"""Rényi divergence of a bounded-range mechanism.

A mechanism is ε-bounded-range when, for every adjacent pair, all its privacy losses lie in one interval [t - ε, t].
The exponential mechanism is, with ε = 2Δ/σ for a softmax at scale σ.
"""

from __future__ import annotations

import math

from reticent.accounting.errors import InvalidQuantityError, require_non_negative

__all__ = ["renyi_divergence", "require_delta", "require_order", "worst_offset", "zcdp_cap"]

_EPS = 2.0**-52
_SERIES_BELOW = 0.5


def require_order(order: float) -> float:
    """`order` as a float if it is a finite number above 1, `InvalidQuantityError` otherwise."""
    alpha = float(order)
    if not (math.isfinite(alpha) and alpha > 1.0):
        raise InvalidQuantityError("order", order, "finite and above 1")
    return alpha


def require_delta(delta: float) -> float:
    """`delta` as a float if it lies between 0 and 1, both excluded, `InvalidQuantityError` otherwise."""
    value = float(delta)
    if not 0.0 < value < 1.0:
        raise InvalidQuantityError("delta", delta, "between 0 and 1, both excluded")
    return value


def _log_sinhc(x: float) -> float:
    """log(sinh(x/2)/(x/2)) for x ≥ 0: x²/24 - x⁴/2880 + … near 0.

    Below `_SERIES_BELOW` the relative error is a few 2^-52. From there on it is the absolute one that is some
    2^-52 (1 + x), since the terms cancel.
    """
    if x < _SERIES_BELOW:
        y = x * x
        tail = 1 / 9676800 - y * (1 / 479001600 - y * (691 / 15692092416000 - y * (1 / 1046139494400)))
        return y * (1 / 24 - y * (1 / 2880 - y * (1 / 181440 - y * tail)))
    return 0.5 * x - math.log(x) + math.log1p(-math.exp(-x))


def worst_offset(order: float, bounded_range: float) -> float:
    """t* = ε/2 + k(αε) - k((α-1)ε), k(x) = log(sinh(x/2)/(x/2)): the offset in [0, ε] at which the loss is worst."""
    alpha, epsilon = require_order(order), require_non_negative("bounded_range", bounded_range)
    return 0.5 * epsilon + _log_sinhc(alpha * epsilon) - _log_sinhc((alpha - 1.0) * epsilon)


def zcdp_cap(order: float, bounded_range: float) -> float:
    """α ε²/8, an upper bound of the divergence at every order (privacy.md, section 2)."""
    return require_order(order) * require_non_negative("bounded_range", bounded_range) ** 2 / 8.0


def renyi_divergence(order: float, bounded_range: float) -> float:
    """Upper bound of the order-α Rényi divergence of an ε-bounded-range mechanism, nats; exact up to rounding.

    With losses in [t - ε, t] and E_D exp(-L) = 1, the worst law has two points, and the bound is
        sup over t in [0, ε] of log(p_t e^{(α-1)t} + (1 - p_t) e^{(α-1)(t-ε)}) / (α - 1), p_t = (e^ε - e^t)/(e^ε - 1).
    The derivative vanishes at e^t = ((α-1)/α) (e^{αε} - 1)/(e^{(α-1)ε} - 1). Put in, everything cancels to
        (α k(αε) - (α-1) k((α-1)ε) - k(ε)) / (α - 1), k(x) = log(sinh(x/2)/(x/2)),
    which needs no search and loses nothing for small ε. The rounding error is added, then the smallest of
    that, αε²/8 and ε is returned.

    Args:
        order: α > 1.
        bounded_range: ε ≥ 0, nats.

    Errors: `InvalidQuantityError`. Source: privacy.md, section 2; the closed form is derived here.
    """
    alpha, epsilon = require_order(order), require_non_negative("bounded_range", bounded_range)
    if epsilon == 0.0:
        return 0.0
    a = alpha - 1.0
    terms = (alpha * _log_sinhc(alpha * epsilon), a * _log_sinhc(a * epsilon), _log_sinhc(epsilon))
    # α - 1 rounds when α is close to 1: its error moves each term by a relative 2^-53 α/(α-1) at most.
    # k errs by some 2^-52 (1 + x) where it is not taken from its series, and α times that is more than 2^-52 α k.
    cancelling = alpha if alpha * epsilon >= _SERIES_BELOW else 0.0
    rounding = 16.0 * _EPS * (sum(terms) + epsilon + cancelling) / min(a, 1.0)
    supremum = (terms[0] - terms[1] - terms[2] + rounding) / a
    return min(supremum, zcdp_cap(alpha, epsilon) * (1.0 + 4.0 * _EPS), epsilon)
