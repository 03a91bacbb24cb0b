"""Rényi charges of PrivITP's phase 2: which pairs (r, s) may be charged for a rejection and an acceptance.

Claim. Let λ be released, α > 1 the ledger's order, r, s ≥ 0 fixed after λ, and
    F(p, p') = p^α p'^{1-α} e^{-(α-1)s} + (1-p)^α (1-p')^{1-α} e^{-(α-1)r} ≤ 1     (*)
for all p = B(q), p' = B(q'), q and q' in [0, R], |q - q'| ≤ Δ. Then c = (t-1)r + s for an acceptance in round t and
c = n r for a fallback is an admissible charge: E_D exp((α-1)(log P_D/P_D' - c)) ≤ 1, which is what the filter asks for.

Proof. Condition on the candidates, which do not depend on D, so that q_i, q_i' are fixed, |q_i - q_i'| ≤ Δ. Let V_i be
the expectation under D of exp((α-1)(loss - charge of rounds i, …)) given that rounds 1, …, i-1 rejected. V_{n+1} = 1:
the fallback's sample loses nothing more and costs nothing more. Round i accepts with probability p and factor
(p/p')^{α-1} e^{-(α-1)s}, or rejects with factor ((1-p)/(1-p'))^{α-1} e^{-(α-1)r} V_{i+1}. So V_i ≤ F(p, p') ≤ 1 by
induction from i = n down to V_1. (Candidates may depend on earlier rounds: the bound holds in each round by itself.)

"ville"'s (κ, acc) satisfies (*): p^α p'^{1-α} e^{-(α-1)acc} ≤ p and (1-p)^α (1-p')^{1-α} e^{-(α-1)κ} ≤ 1-p. The pairs
that satisfy (*) form a convex set, since F is linear in e^{-(α-1)s} and e^{-(α-1)r}.

The supremum, certified
-----------------------
F is jointly convex in (p, p'), because x^α y^{1-α} is on x, y > 0. So (*) need be tested only at the vertices of
polygons that together hold all pairs. Convexity in p' alone leaves |q - q'| = Δ, or q' clipped to an end; there p' is
constant and p runs from such a pair to p', where F ≤ 1. So one curve matters, and its mirror image (v, u):
(u, v) = (B(x), B(x + Δ)), x in [0, R - Δ].

B is the distribution function of θ + N(0, σ_Z²), θ uniform on [λ, T]. Its density b is log-concave, so
dv/du = b(x + Δ)/b(x) falls and v is concave in u. Between two nodes the curve lies above its chord and below the
extensions of both neighbouring chords: in a triangle with one vertex off the curve, second order in the step.

A cell [l, h] of λ is covered too. B_λ = w B_h + (1-w) mean of Φ((q-θ)/σ_Z) over θ in [λ, h], with w = (T-h)/(T-λ) at
least w0 = (T-h)/(T-l). The pair (Φ(y/σ_Z), Φ((y+Δ)/σ_Z)), y in [x_i - h, x_{i+1} - l], lies on a concave curve, in the
triangle of its chord and its end tangents. So every pair of the cell is a mixture of vertices of B_h's triangles and of
points w0·(vertex of B_h's triangle) + (1-w0)·(vertex of Φ's triangle). Those are the points that `cover` returns.

Every coordinate is kept as log p and log(1-p), both with small relative error: nothing cancels or underflows. A pair
of which p, 1-p, p', 1-p' err by relative η changes F by a factor e^{(2α-1)η} at most. (2α-1)η/(α-1) more on r and on s
pays for that: `slack_per_round`.

Source: privacy.md, section 5; the certificate is derived here.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr

from reticent.accounting.charges.bounded_range import require_order

__all__ = [
    "Points",
    "acceptance_for",
    "cover",
    "curve",
    "least_rejection",
    "log_acceptance",
    "slack_per_round",
]

Array = NDArray[np.float64]

_EPS: Final = 2.0**-52
_LOG_SQRT_2PI: Final = 0.5 * float(np.log(2.0 * np.pi))
_NARROW = 0.5
_ASYMPTOTIC_FROM = 12.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_LOG_WEIGHTS = np.log(0.5 * _WEIGHTS)
_SERIES: Final = tuple((-1.0) ** k * float(np.prod(np.arange(1.0, 2 * k + 2, 2))) for k in range(13))
_VERTEX_ERRORS = 256.0
"""A vertex errs by at most so many times the law's error (see `cover`)."""


class Points(NamedTuple):
    """Pairs (u, v) of acceptance probabilities, u ≤ v, as logarithms of u, 1 - u, v, 1 - v. Arrays of one shape."""

    u: Array
    not_u: Array
    v: Array
    not_v: Array

    def flat(self) -> Points:
        """The same points with all axes but the first made one."""
        return Points(*(part.reshape(part.shape[0], -1) for part in self))


def _log_psi_negative(t: Array) -> Array:
    """log ψ(-t), t ≥ 0, as in `acceptance.py`, for arrays."""
    near = np.minimum(t, _ASYMPTOTIC_FROM)
    tail = np.log1p(-near * np.sqrt(0.5 * np.pi) * erfcx(near * np.sqrt(0.5)))
    far = t > _ASYMPTOTIC_FROM
    if far.any():
        y = 1.0 / np.square(t[far])
        total = np.zeros_like(y)
        for coefficient in reversed(_SERIES):
            total = total * y + coefficient
        tail[far] = np.log(y * total)
    return np.asarray(-0.5 * t * t - _LOG_SQRT_2PI + tail)


def _log_mean_cdf(low: Array, high: Array) -> Array:
    """log of the mean of Φ over [low, high], low + high ≤ 0, low < high; the error of `acceptance.log_mean_cdf`."""
    width = high - low
    edge, deep = _log_psi_negative(np.abs(high)), _log_psi_negative(-low)
    positive = high > 0.0
    with np.errstate(divide="ignore"):
        above = np.log(np.where(positive, high + np.exp(edge) - np.exp(deep), 1.0) / width)
        below = edge + np.log1p(-np.exp(np.where(positive, -1.0, deep - edge))) - np.log(width)
    result: Array = np.where(positive, above, below)
    narrow = width <= _NARROW
    if narrow.any():
        values = log_ndtr(low[narrow, None] + 0.5 * width[narrow, None] * (1.0 + _NODES)) + _LOG_WEIGHTS
        top = values.max(axis=1, keepdims=True)
        result[narrow] = top[:, 0] + np.log(np.exp(values - top).sum(axis=1))
    return result


def log_acceptance(q: Array, threshold: Array, ceiling: float, noise: float) -> tuple[Array, Array]:
    """(log B(q), log A(q)) for arrays that broadcast; q any real number, threshold < ceiling = R + σ_Z L.

    The rarer of the two is computed and the other is its complement, so that both logarithms have small relative error.
    """
    low, high = np.broadcast_arrays((q - ceiling) / noise, (q - threshold) / noise)
    flip = low + high > 0.0
    rarer = _log_mean_cdf(np.where(flip, -high, low), np.where(flip, -low, high))
    likelier = np.log1p(-np.exp(rarer))
    return np.where(flip, likelier, rarer), np.where(flip, rarer, likelier)


def _log_normal(z: Array) -> tuple[Array, Array]:
    """(log Φ(z), log Φ(-z)), both with small relative error."""
    rarer = log_ndtr(-np.abs(z))
    likelier = np.log1p(-np.exp(rarer))
    return np.where(z > 0.0, likelier, rarer), np.where(z > 0.0, rarer, likelier)


def _pairs(q: Array, sensitivity: float, threshold: Array, ceiling: float, noise: float) -> Points:
    u, not_u = log_acceptance(q, threshold, ceiling, noise)
    v, not_v = log_acceptance(q + sensitivity, threshold, ceiling, noise)
    return Points(u, not_u, v, not_v)


def curve(q: Array, threshold: Array, *, sensitivity: float, ceiling: float, noise: float) -> Points:
    """The adjacent pairs (B(q), B(q + Δ)), one row a threshold, one column a reward."""
    return _pairs(q[None, :], sensitivity, np.asarray(threshold)[:, None], ceiling, noise)


def _apex(left: Points, right: Points, slopes: tuple[Array, Array, Array, Array]) -> Points:
    """Vertex over the middle c of the chord from `left` to `right`, on the higher of two lines above the curve.

    `slopes`: elasticities of v in u at left and right, then those of 1 - v in 1 - u; each line passes through its end.
    A line that leaves (0, 1) gives NaN or -inf, which no (r, s) admits.
    """
    forward, not_forward = 0.5 * np.expm1(right.u - left.u), 0.5 * np.expm1(right.not_u - left.not_u)
    back, not_back = 0.5 * np.expm1(left.u - right.u), 0.5 * np.expm1(left.not_u - right.not_u)
    v = np.maximum(left.v + np.log1p(slopes[0] * forward), right.v + np.log1p(slopes[1] * back))
    not_v = np.minimum(left.not_v + np.log1p(slopes[2] * not_forward), right.not_v + np.log1p(slopes[3] * not_back))
    return Points(left.u + np.log1p(forward), left.not_u + np.log1p(not_forward), v, not_v)


def _chord_slopes(nodes: Points) -> tuple[Array, Array, Array, Array]:
    """Elasticities, at both ends of every inner cell, of the chords of the cells before and after it."""

    def ratio(v: Array, u: Array, start: slice, end: slice) -> Array:
        return np.asarray(np.expm1(v[:, end] - v[:, start]) / np.expm1(u[:, end] - u[:, start]))

    left, before, right, after = slice(1, -2), slice(0, -3), slice(2, -1), slice(3, None)
    return (
        ratio(nodes.v, nodes.u, left, before),
        ratio(nodes.v, nodes.u, right, after),
        ratio(nodes.not_v, nodes.not_u, left, before),
        ratio(nodes.not_v, nodes.not_u, right, after),
    )


def _normal_triangle(low: Array, high: Array, sensitivity: float, noise: float) -> list[Points]:
    """Three points whose triangle holds (Φ(y/σ), Φ((y + Δ)/σ)) for all y in [low, high]."""
    ends = []
    for y in (low, high):
        ends.append(Points(*_log_normal(y / noise), *_log_normal((y + sensitivity) / noise)))
    left, right = ends

    def slope(y: Array, u: Array, v: Array) -> Array:
        return np.asarray(np.exp(-sensitivity * (2.0 * y + sensitivity) / (2.0 * noise * noise) + u - v))

    slopes = (
        slope(low, left.u, left.v),
        slope(high, right.u, right.v),
        slope(low, left.not_u, left.not_v),
        slope(high, right.not_u, right.not_v),
    )
    return [left, right, _apex(left, right, slopes)]


def _mix(first: Points, second: Points, share: Array) -> Points:
    """(1 - share)·first + share·second."""
    return Points(*(a + np.log1p(share * np.expm1(b - a)) for a, b in zip(first, second, strict=True)))


def cover(nodes: Array, low: Array, high: Array, *, sensitivity: float, ceiling: float, noise: float) -> Points:
    """Points whose convex hulls hold every (B_λ(x), B_λ(x + Δ)), one row a cell [low, high] of λ.

    Args:
        nodes: rewards x_{-1} < x_0 < … < x_N < x_{N+1}; the pairs with x in [x_0, x_N] are covered.
        low, high: ends of each cell of λ, high < `ceiling`.
        sensitivity, ceiling, noise: Δ, T, σ_Z.

    Relative errors of u, 1-u, v, 1-v: with η the law's, a chord's elasticity errs by about 2η/step and is multiplied by
    half a step, so that a vertex errs by some multiple of η. It is below 256 where steps are at most 1 (of the log of
    the rarer probability), neighbouring steps differ at most fourfold, those of v are at most eight times those of u,
    and the vertex has not run into v = 1. Elsewhere the vertex is made NaN, and no pair is admitted.
    """
    with np.errstate(all="ignore"):
        at = curve(nodes, high, sensitivity=sensitivity, ceiling=ceiling, noise=noise)
        left = Points(*(part[:, 1:-2] for part in at))
        right = Points(*(part[:, 2:-1] for part in at))
        top = _apex(left, right, _chord_slopes(at))
        sound = _well_conditioned(at) & (top.not_v >= right.not_v - 1.0)
        top = top._replace(v=np.where(sound, top.v, np.nan))
        share = ((high - low) / (ceiling - low))[:, None]
        base = [left, right, top]
        normal = _normal_triangle(
            nodes[None, 1:-2] - high[:, None], nodes[None, 2:-1] - low[:, None], sensitivity, noise
        )
        mixed = [_mix(one, other, share) for one in base for other in normal]
        everything = [*base, *mixed]
        return Points(*(np.stack(parts, axis=-1) for parts in zip(*everything, strict=True))).flat()


def _well_conditioned(at: Points) -> Any:
    """Where steps are at most 1, neighbouring ones differ at most fourfold, and those of v are at most 8 times u's."""

    def steps(p: Array, not_p: Array) -> Array:
        return np.asarray(np.maximum(np.abs(np.diff(p, axis=1)), np.abs(np.diff(not_p, axis=1))))

    u, v = steps(at.u, at.not_u), steps(at.v, at.not_v)
    good = np.full(u[:, 1:-1].shape, True)
    for step in (u, v):
        before, inside, after = step[:, :-2], step[:, 1:-1], step[:, 2:]
        good &= (inside <= 4.0 * before) & (inside <= 4.0 * after) & (inside <= 1.0)
    for place in (slice(0, -2), slice(1, -1), slice(2, None)):
        good &= v[:, place] <= 8.0 * u[:, place]
    return good


def _mirrored(points: Points) -> tuple[Points, Points]:
    return points, Points(points.v, points.not_v, points.u, points.not_u)


def least_rejection(points: Points, order: float) -> Array:
    """For each row, the least r ≥ 0 above which some s satisfies (*) at all its points, nats. inf where none does."""
    a = require_order(order) - 1.0
    with np.errstate(all="ignore"):
        needed = [p.not_u / a + (p.not_u - p.not_v) for p in _mirrored(points)]
        worst = np.maximum(needed[0].max(axis=1), needed[1].max(axis=1))
    return np.asarray(np.where(np.isnan(worst), np.inf, np.maximum(worst, 0.0)))


def acceptance_for(points: Points, rejection: Array, order: float) -> Array:
    """For each row, the least s ≥ 0 with which (r, s) satisfies (*) at all its points and at their mirror images, nats.

    s = (log p - log D)/(α-1) + log p/p', D = 1 - (1-p)^α (1-p')^{1-α} e^{-(α-1)r}, D rounded down. Convex and falling
    in r; inf where D ≤ 0 or a point is NaN.
    """
    alpha = require_order(order)
    a = alpha - 1.0
    r = np.asarray(rejection)[:, None]
    worst = np.zeros(r.shape[0])
    with np.errstate(all="ignore"):
        for p in _mirrored(points):
            gain = p.not_u - p.not_v
            exponent = p.not_u + a * (gain - r)
            rounding = 8.0 * _EPS * (np.abs(p.not_u) + a * (np.abs(p.not_u) + np.abs(p.not_v) + r))
            room = -np.expm1(exponent + rounding)
            s = (p.u - np.log(room)) / a + (p.u - p.v)
            s = np.where(room > 0.0, s, np.inf).max(axis=1)
            worst = np.maximum(worst, s)
    return np.where(np.isnan(worst), np.inf, worst)


def slack_per_round(order: float, law_error: float) -> float:
    """Nats more on r and on s that pay for rounding: (2α-1)/(α-1) times the relative errors of the probabilities.

    `law_error`: relative error of A and B as computed. As drawn they err by as much again, vertices by 256 times that.
    """
    alpha = require_order(order)
    return (2.0 + 1.0 / (alpha - 1.0)) * (2.0 + _VERTEX_ERRORS) * law_error
