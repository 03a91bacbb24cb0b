"""The table of Rényi charges of PrivITP's phase 2: one certified pair (r, s) for each cell of λ.

A pair holds for every λ of its cell, so that looking one up costs a binary search. The table depends on R, Δ, β, σ_Z, L
and the order α, not on n or σ_X. Building one takes about a second (`PrivITP.round_table` keeps it).

Choice of (r, s). With acceptance probability p in each of at most n rounds the expected charge is
    (1 - (1-p)^n) ((1-p)/p · r + s),
so the best pair does not depend on n. p is guessed from λ and public numbers alone: p̄ is the mean of B_λ over rewards
spread evenly on [0, R]. Measured on Beta(2,2), Beta(1,3), Beta(5,1), Beta(5,5) in five settings, its mean charge is at
most 1.34 times that of the best of ten guesses, in 15 of 20 cases at most 1.07 times. p̄ = 1/M, right where there is no
noise, costs up to 3.2 times as much, p̄ = B_λ(R/2) up to 20 times. The guess changes what is charged on average, never
whether the charge is enough.

A pair that could not be certified, or expects more under the guess than "ville", is replaced by "ville"'s.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.charges.bounded_range import require_order
from reticent.accounting.charges.renyi_rounds import (
    Points,
    acceptance_for,
    cover,
    curve,
    least_rejection,
    log_acceptance,
    slack_per_round,
)

__all__ = ["RoundLaw", "RoundTable", "build_round_table", "cheapest_excess"]

Array = NDArray[np.float64]

_CELL: Final = 1.0 / 256.0  # of the smaller of σ_Z and T - λ
_STEP: Final = 1.0 / 40.0  # of σ_Z
_MOST_CELLS, _LEAST_CELLS = 2048, 64
_DEEP_STEP: Final = 0.7  # of σ_Z over the depth below λ in σ_Z
_MOST_STEPS, _LEAST_STEPS = 800, 4
_BLOCK = 16
_SEARCH_EVERY = 8
_SEARCH_POINTS = 200
_SEARCH_ITERATIONS = 48
_LEAST_SHARE = 1e-9  # of the range of r, where its search begins
_LEAST_GUESS = 1e-9
_GUESS_NODES = 32
_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)
_EPS = 2.0**-52


@dataclass(frozen=True, eq=False)
class RoundTable:
    """Charges of a rejection and of an acceptance, constant on cells of λ.

    Args:
        edges: K + 1 thresholds, rising from -β to R - β; cell k is [edges[k], edges[k+1]].
        rejection: r of each cell, nats.
        acceptance: s of each cell, nats.
        is_ville: cells whose pair is "ville"'s (its upper bound over the cell); at a λ there, take κ(λ) and acc(λ).
        guess: p̄ of each cell, the acceptance probability that the pair was chosen for.
        slack: nats a round that cover rounding: belongs on top of r and of s.
    """

    edges: Array
    rejection: Array
    acceptance: Array
    is_ville: NDArray[np.bool_]
    guess: Array
    slack: float

    @cached_property
    def _lookup(self) -> tuple[list[float], list[tuple[float, float] | None]]:
        pairs = zip(self.rejection.tolist(), self.acceptance.tolist(), self.is_ville.tolist(), strict=True)
        return self.edges[1:-1].tolist(), [None if ville else (r, s) for r, s, ville in pairs]

    def pair(self, threshold: float) -> tuple[float, float] | None:
        """(r, s) at λ in [-β, R - β], nats; None where "ville" is to be used."""
        inner, pairs = self._lookup
        return pairs[bisect.bisect_right(inner, threshold)]

    def worst(self, candidates: int) -> float:
        """Largest (n-1)r + max(r, s) over all λ, nats, n = `candidates`."""
        worst = (candidates - 1) * self.rejection + np.maximum(self.rejection, self.acceptance)
        return float(worst.max())


def build_round_table(
    *,
    reward_max: float,
    sensitivity: float,
    regularization: float,
    reward_noise: float,
    truncation: float,
    order: float,
    law_error: float,
) -> RoundTable:
    """The table of a configuration at order α. Arguments as `PrivITP`'s, which checks them.

    `law_error`: relative error of A and B as computed, apart from 2^-52 times the size of their logarithms.
    """
    require_order(order)
    R, Delta, sigma_Z = reward_max, sensitivity, reward_noise
    law = RoundLaw(R, Delta, regularization, sigma_Z, R + sigma_Z * truncation)
    edges = law.edges()
    low, high = edges[:-1], edges[1:]
    middle = 0.5 * (low + high)
    guess = np.maximum(law.mean_acceptance(middle), _LEAST_GUESS)
    odds = (1.0 - guess) / guess
    kappa, acc = law.ville(edges)

    wanted = _searched(law, edges, odds, kappa, order)
    rejection, acceptance = np.empty_like(low), np.empty_like(low)
    for start in range(0, low.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        nodes = law.nodes(float(high[block][-1]))
        points = cover(nodes, low[block], high[block], sensitivity=Delta, ceiling=law.ceiling, noise=sigma_Z)
        least = least_rejection(points, order)
        rejection[block] = least + wanted[block]
        acceptance[block] = acceptance_for(points, rejection[block], order)

    # κ falls and acc rises in λ: "ville" expects no less than this in the cell, and charges at most κ(l) and acc(h).
    is_ville = ~(np.isfinite(acceptance) & (odds * rejection + acceptance <= odds * kappa[1:] + acc[:-1]))
    return RoundTable(
        edges=edges,
        rejection=np.where(is_ville, kappa[:-1], rejection),
        acceptance=np.where(is_ville, acc[1:], acceptance),
        is_ville=is_ville,
        guess=guess,
        slack=slack_per_round(order, law_error + 4.0 * _EPS * law.largest_logarithm()),
    )


@dataclass(frozen=True)
class RoundLaw:
    """The acceptance law for arrays of λ, and the grids on which it is looked at."""

    reward_max: float
    sensitivity: float
    regularization: float
    noise: float
    ceiling: float

    def mean_acceptance(self, threshold: Array) -> Array:
        """Mean of B over rewards spread evenly on [0, R], by a midpoint rule."""
        q = self.reward_max * (np.arange(_GUESS_NODES) + 0.5) / _GUESS_NODES
        accept = log_acceptance(q[None, :], threshold[:, None], self.ceiling, self.noise)[0]
        return np.asarray(np.exp(accept).mean(axis=1))

    def edges(self) -> Array:
        """Cells of λ as wide as a fixed share of min(σ_Z, T - λ): even in t/σ_Z - 1, or log t/σ_Z below, t = T - λ."""
        low, high = -self.regularization, self.reward_max - self.regularization

        def stretched(t: float) -> float:
            x = t / self.noise
            return x - 1.0 if x >= 1.0 else math.log(x)

        top, bottom = stretched(self.ceiling - low), stretched(self.ceiling - high)
        cells = min(_MOST_CELLS, max(_LEAST_CELLS, math.ceil((top - bottom) / _CELL)))
        g = np.linspace(top, bottom, cells + 1)
        inner = self.ceiling - self.noise * np.where(g >= 0.0, 1.0 + g, np.exp(np.minimum(g, 0.0)))
        inner = inner[(inner > low) & (inner < high)]
        return np.unique(np.concatenate([[low], inner, [high]]))

    def nodes(self, threshold: float) -> Array:
        """Rewards that cover [0, R - Δ], with one more on either side for the chords, closer far below λ."""
        # With Δ = R only the pair (0, R) is left; a little more than that is covered.
        span = max(self.reward_max - self.sensitivity, 1e-3 * self.noise) * (1.0 + 4.0 * _EPS)
        x = np.linspace(0.0, span, 1000)
        depth = np.maximum(threshold - x, 0.0) / self.noise
        density = np.maximum(1.0 / _STEP, (1.0 + depth) / _DEEP_STEP) / self.noise
        count = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(x))])
        steps = min(_MOST_STEPS, max(_LEAST_STEPS, math.ceil(count[-1])))
        inner = np.interp(np.linspace(0.0, count[-1], steps + 1), count, x)
        return np.concatenate([[2.0 * inner[0] - inner[1]], inner, [2.0 * inner[-1] - inner[-2]]])

    def ville(self, threshold: Array) -> tuple[Array, Array]:
        """κ and acc."""
        R, Delta = self.reward_max, self.sensitivity

        def law(q: float) -> tuple[Array, Array]:
            return log_acceptance(np.asarray(q), threshold, self.ceiling, self.noise)

        kappa = law(max(0.0, R - Delta))[1] - law(R)[1]
        acc = law(min(R, Delta))[0] - law(0.0)[0]
        return np.maximum(kappa, 0.0), np.maximum(acc, 0.0)

    def largest_logarithm(self) -> float:
        """Largest of -log B(0) and -log A(R) over λ."""
        ends = np.array([-self.regularization, self.reward_max - self.regularization])
        accept = log_acceptance(np.asarray(0.0), ends, self.ceiling, self.noise)[0]
        reject = log_acceptance(np.asarray(self.reward_max), ends, self.ceiling, self.noise)[1]
        return float(max(-accept.min(), -reject.min()))


def _searched(law: RoundLaw, edges: Array, odds: Array, kappa: Array, order: float) -> Array:
    """By how much r should exceed the least r, for each cell: a golden-section search on some edges, interpolated.

    Uses the curve's own points, uncertified: it only proposes r, and s is then certified for it.
    """
    places = np.unique(np.append(np.arange(0, edges.size, _SEARCH_EVERY), edges.size - 1))
    weight = odds[np.minimum(places, odds.size - 1)]
    with np.errstate(all="ignore"):
        span = max(law.reward_max - law.sensitivity, 0.0)
        points = curve(
            np.linspace(0.0, span, _SEARCH_POINTS),
            edges[places],
            sensitivity=law.sensitivity,
            ceiling=law.ceiling,
            noise=law.noise,
        )
        best = cheapest_excess(points, weight, kappa[places], order, _SEARCH_ITERATIONS)[1]
    middle = 0.5 * (edges[:-1] + edges[1:])
    return np.asarray(np.exp(np.interp(middle, edges[places], best)))


def cheapest_excess(points: Points, odds: Array, kappa: Array, order: float, iterations: int) -> tuple[Array, Array]:
    """For each row of `points` (the least r, log of by how much r should exceed it), by a golden-section search.

    What is least at that r is the expected cost odds·r + s, s the least for it; r up to κ (`kappa`) is looked at.
    """
    with np.errstate(all="ignore"):
        least = least_rejection(points, order)
        most = np.maximum(kappa - least, 0.0) + 1e-300

        def expected(x: Array) -> Array:
            r = least + np.exp(x)
            return np.asarray(odds * r + acceptance_for(points, r, order))

        left, right = np.log(most * _LEAST_SHARE + 1e-300), np.log(most)
        one, two = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
        at_one, at_two = expected(one), expected(two)
        for _ in range(iterations):
            keep_left = at_one < at_two
            left, right = np.where(keep_left, left, one), np.where(keep_left, two, right)
            inside = np.where(keep_left, right - _GOLDEN * (right - left), left + _GOLDEN * (right - left))
            at_inside = expected(inside)
            one, two = np.where(keep_left, inside, two), np.where(keep_left, one, inside)
            at_one, at_two = np.where(keep_left, at_inside, at_two), np.where(keep_left, at_one, at_inside)
        return least, 0.5 * (left + right)
