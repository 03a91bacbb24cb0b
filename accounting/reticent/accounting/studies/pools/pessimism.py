"""ITP and PrivITP on a pool.

Phase 2's candidates are draws with replacement from the pool, so that everything after λ is closed: with p the mean
acceptance probability, an answer is accepted with probability 1 - (1-p)^n, and then has the law of the pool weighted by
acceptance; the fallback is one more draw. λ* has no closed law: it is computed on sampled sets of n candidates
(`blocks`). Phase 1's Gaussian and the clamp are integrated as in `planning.outcomes`, on a grid of λ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.planning.laws import Floats
from reticent.accounting.planning.outcomes import acceptance_probabilities, even_thresholds, occupancy, psi
from reticent.accounting.studies.pools.blocks import Blocks, interpolation
from reticent.accounting.studies.pools.groups import COLUMNS, Groups
from reticent.accounting.studies.pools.round_charges import RoundCharges

__all__ = ["CHARGE", "CHARGE_SQUARE", "FALLBACK", "HALTING", "MEASURES", "Smoothing", "itp", "privitp"]

HALTING, FALLBACK, CHARGE, CHARGE_SQUARE = range(COLUMNS, COLUMNS + 4)
MEASURES = COLUMNS + 4
"""The answer's columns, then: candidates looked at in phase 2, 1 for a fallback, the charge, and its square."""

_NODES_PER_NOISE = 12.0
_LEAST_NODES, _MOST_NODES = 65, 1025
_NARROW = 1e-3


def itp(groups: Groups, blocks: Blocks, candidates: int, regularization: float) -> Floats:
    """(batches, measures) of ITP: a candidate is accepted with probability relu(r - λ*)/(R - λ*), R = 1."""
    levels = blocks.normalizers(candidates, regularization)
    mass = groups.mass[:, None] * np.column_stack([np.ones(len(groups.values)), groups.means])
    above = _tail(mass)
    above_times = _tail(mass * groups.values[:, None])
    first = np.searchsorted(groups.values, levels, "right")
    gain = (above_times[first] - levels[..., None] * above[first]) / (1.0 - levels[..., None])
    found: Floats = _after(gain[..., 0], gain[..., 1:], groups.base, candidates).mean(axis=1)
    return found


def _tail(rows: Floats) -> Floats:
    """(K + 1, …) sums of the rows from each on."""
    sums = np.zeros((len(rows) + 1, *rows.shape[1:]))
    sums[:-1] = np.cumsum(rows[::-1], axis=0)[::-1]
    return sums


def _after(accept: Floats, gain: Floats, base: Floats, candidates: int, charges: RoundCharges | None = None) -> Floats:
    """(…, measures) given the acceptance probability p (…) of a round and E[acceptance · column] (…, 4)."""
    n = candidates
    p = np.clip(accept, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        accepted = -np.expm1(n * np.log1p(-p))
    looked_at = np.divide(accepted, p, out=np.full(p.shape, float(n)), where=p > 1e-300)
    found = np.empty((*p.shape, MEASURES))
    found[..., :COLUMNS] = looked_at[..., None] * gain + (1.0 - accepted)[..., None] * base
    found[..., HALTING] = looked_at
    found[..., FALLBACK] = 1.0 - accepted
    found[..., CHARGE:] = 0.0
    if charges is not None:
        found[..., CHARGE], found[..., CHARGE_SQUARE] = _charge_moments(p, accepted, looked_at, n, charges)
    return found


def _charge_moments(
    p: Floats, accepted: Floats, looked_at: Floats, n: int, charges: RoundCharges
) -> tuple[Floats, Floats]:
    """Mean and mean square of fixed + N r + A s: N rejections, A = 1 for an acceptance.

    With q = 1 - p: E N = Σ q^k, E N² = Σ (2k-1) q^k over k from 1 to n, E NA = E N - n q^n.
    """
    q, missed = 1.0 - p, 1.0 - accepted
    rejections = q * looked_at
    with np.errstate(divide="ignore", invalid="ignore"):
        weighted = q * (accepted / p - n * missed) / p
    # Σ k q^k cancels where p is tiny; there it is nearly n(n+1)/2.
    weighted = np.where(n * p < 1e-5, 0.5 * n * (n + 1.0), weighted)
    r, s = charges.rejection, charges.acceptance
    mean = r * rejections + s * accepted
    square = r * r * (2.0 * weighted - rejections) + 2.0 * r * s * (rejections - n * missed) + s * s * accepted
    return charges.fixed + mean, charges.fixed * (charges.fixed + 2.0 * mean) + square


@dataclass(frozen=True, eq=False)
class Smoothing:
    """Phase 1's noise and clamp for one (σ_X, σ_Z, β), whatever n: the grid of λ, and means over the noise.

    Attributes:
        grid: (G,) λ from -β to R - β.
        kernel: (G, G); `kernel @ f` is the mean of f(clip(λ* + N(0, σ_X²))) for λ* at each node, f linear in between.
    """

    grid: Floats
    kernel: Floats

    @classmethod
    def of(cls, mechanism: PrivITP) -> Smoothing:
        """For that mechanism, and all that differ from it in n, L and Δ only."""
        least = min(mechanism.threshold_noise, mechanism.reward_noise)
        wanted = math.ceil(_NODES_PER_NOISE * mechanism.reward_max / least) + 1
        grid = even_thresholds(mechanism, min(max(wanted, _LEAST_NODES), _MOST_NODES))
        kernel = np.stack([occupancy(grid[k : k + 1], grid, mechanism.threshold_noise) for k in range(len(grid))])
        return cls(grid, kernel)


def privitp(
    groups: Groups,
    blocks: Blocks,
    mechanisms: list[PrivITP],
    smoothing: Smoothing,
    charges: list[RoundCharges],
) -> list[Floats]:
    """(batches, measures) of PrivITP for mechanisms that differ in n and L only, with their charges on the grid."""
    mass = groups.mass
    weighted = (mass[:, None] * np.column_stack([np.ones(len(mass)), groups.means])).T
    sigma = mechanisms[0].reward_noise
    over = weighted @ psi((groups.values[:, None] - smoothing.grid) / sigma)
    found = []
    for mechanism, charge in zip(mechanisms, charges, strict=True):
        ceiling = mechanism.reward_max + sigma * mechanism.truncation
        width = (ceiling - smoothing.grid) / sigma
        if width[-1] > _NARROW:
            # As in `acceptance_probabilities`; the sum over the answers is taken first.
            under = psi((groups.values - ceiling) / sigma)
            rates = (over - (weighted @ under)[:, None]) / width
        else:
            rates = weighted @ acceptance_probabilities(mechanism, groups.values, smoothing.grid)
        after = _after(rates[0], rates[1:].T, groups.base, mechanism.candidates, charge)
        levels = blocks.normalizers(mechanism.candidates, mechanism.regularization)
        found.append(interpolation(levels, smoothing.grid) @ (smoothing.kernel @ after))
    return found
