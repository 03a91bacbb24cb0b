"""Phase 1 of the worst pair of `planning.worst_queries`: what is lost to each λ when λ* is D's and D' has it moved.

D's λ* has the law that it has under the rewards' law. It has to: the density of the clamped λ between the ends is that
law convolved with a Gaussian, and it determines that law. What is left to choose is how D' differs.

* Unclamped, λ̃ = λ* + N(0, σ_X²) is seen. D' has λ* moved by Δ, always up or always down, even out of [-β, R-β].
* Clamped, λ = clip(λ̃, -β, R-β) is seen: an atom at each end and the Gaussian between. D' has λ* moved by Δ, or to the
  end of the interval if that is nearer, up or down by λ*, whichever makes E e^{sL} of the query larger. Such pairs
  exist: n rewards that all equal λ* + β, moved and clipped to [0, R].

Source: privacy.md, section 5.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from reticent.accounting.charges.privitp import PrivITP

__all__ = ["FARTHEST", "Atoms", "binned", "clamped_losses", "unclamped_losses"]

Floats = NDArray[np.float64]
Atoms = tuple[Floats, Floats]
"""Values (m,), of losses in nats, and their probabilities (m,)."""

FARTHEST = 10.0
"""Noise beyond this many σ_X, of probability 2e-23, is left out."""

_BINS = 512
_EVEN_NODES = 513
_GAUSS_NODES = 256
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


def binned(levels: Floats) -> Atoms:
    """Simulated λ* (m,) as at most 512 values with probabilities."""
    bins = np.linspace(float(levels.min()), float(levels.max()) + 1e-12, _BINS + 1)
    counts, _ = np.histogram(levels, bins)
    sums, _ = np.histogram(levels, bins, weights=levels)
    return sums[counts > 0] / counts[counts > 0], counts[counts > 0] / len(levels)


def unclamped_losses(mechanism: PrivITP, levels: Atoms, grid: Floats, sign: float) -> list[Atoms]:
    """For each of the G nodes of λ: losses of λ̃ with probabilities that include that of λ.

    Args:
        mechanism: as it is.
        levels: λ* and its probabilities.
        grid: (G,) equally spaced nodes over [-β, R-β]; a λ between two is moved to one of them at random.
        sign: 1 or -1: λ* of D' is that of D plus `sign`·Δ.
    """
    shift = mechanism.sensitivity / mechanism.threshold_noise
    z = np.linspace(-FARTHEST, FARTHEST, _EVEN_NODES)
    losses, density = -sign * shift * z + 0.5 * shift * shift, np.exp(-0.5 * z * z)
    centres, mass = levels
    below, share = _places(centres + mechanism.threshold_noise * z[:, None], grid)
    rows, size = np.arange(len(z))[:, None] * len(grid), len(z) * len(grid)
    weights = np.bincount((rows + below).ravel(), (mass * (1.0 - share)).ravel(), size)
    weights += np.bincount((rows + below + 1).ravel(), (mass * share).ravel(), size)
    table = weights.reshape(len(z), len(grid)) * (density / density.sum())[:, None]
    return [(losses, column) for column in table.T]


def clamped_losses(mechanism: PrivITP, levels: Atoms, grid: Floats, worth: Floats, s: float) -> list[Atoms]:
    """As `unclamped_losses` for clip(λ̃, -β, R-β), each λ* moved in the direction of the larger E e^{sL}.

    Args:
        mechanism, levels, grid: as there.
        worth: (G,) the moment E e^{sL} of phase 2 at the nodes.
        s: the exponent, above 0.
    """
    low, high = float(grid[0]), float(grid[-1])
    centres, mass = np.clip(levels[0], low, high), levels[1]
    moved = [np.clip(centres + sign * mechanism.sensitivity, low, high) for sign in (-1.0, 1.0)]
    seen, probabilities = _released(centres, mechanism.threshold_noise, low, high)
    below, share = _places(seen, grid)
    either = np.stack([_losses(seen, centres, m, mechanism.threshold_noise, low, high) for m in moved])
    value = (1.0 - share) * worth[below] + share * worth[below + 1]
    direction = (np.exp(s * either) * (probabilities * value)).sum(axis=2).argmax(axis=0)
    losses = np.where(direction[:, None] == 1, either[1], either[0])
    joint = mass[:, None] * probabilities
    at = np.concatenate([below.ravel(), below.ravel() + 1])
    weights = np.concatenate([(joint * (1.0 - share)).ravel(), (joint * share).ravel()])
    order = np.argsort(at, kind="stable")
    order = order[weights[order] > 0.0]
    cuts = np.searchsorted(at[order], np.arange(1, len(grid)))
    both = np.concatenate([losses.ravel(), losses.ravel()])
    return [(both[part], weights[part]) for part in np.split(order, cuts)]


def _released(centres: Floats, sigma: float, low: float, high: float) -> tuple[Floats, Floats]:
    """(B, M) values of λ and their probabilities given λ*: the ends first and last, Gauss's nodes between them."""
    nodes, weights = np.polynomial.legendre.leggauss(_GAUSS_NODES)
    bottom, top = (low - centres) / sigma, (high - centres) / sigma
    left, right = np.maximum(bottom, -FARTHEST), np.minimum(top, FARTHEST)
    half = 0.5 * (right - left)[:, None]
    z = left[:, None] + half * (1.0 + nodes)
    middle = half * weights * np.exp(-0.5 * z * z - _LOG_SQRT_2PI)
    ends = [np.where(x > -FARTHEST, np.exp(log_ndtr(x)), 0.0)[:, None] for x in (bottom, -top)]
    between = np.clip(centres[:, None] + sigma * z, low, high)
    edges = [np.full((len(centres), 1), edge) for edge in (low, high)]
    return np.hstack([edges[0], between, edges[1]]), np.hstack([ends[0], middle, ends[1]])


def _losses(seen: Floats, own: Floats, moved: Floats, sigma: float, low: float, high: float) -> Floats:
    """(B, M) log of λ's density for λ* = `own` over that for `moved`; of the probabilities at the first and last λ."""
    a, b = own[:, None], moved[:, None]
    losses: Floats = (a - b) * (2.0 * seen - a - b) / (2.0 * sigma * sigma)
    losses[:, 0] = log_ndtr((low - own) / sigma) - log_ndtr((low - moved) / sigma)
    losses[:, -1] = log_ndtr((own - high) / sigma) - log_ndtr((moved - high) / sigma)
    # An end that is out of reach has probability 0; its loss may be huge.
    losses[:, 0] = np.where((low - own) / sigma > -FARTHEST, losses[:, 0], 0.0)
    losses[:, -1] = np.where((own - high) / sigma > -FARTHEST, losses[:, -1], 0.0)
    return losses


def _places(values: Floats, grid: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Index of the node below clip(value, first node, last node), at most G - 2, and the share of the node above."""
    width = float(grid[1] - grid[0])
    place = np.clip((values - grid[0]) / width, 0.0, len(grid) - 1.0)
    below = np.minimum(place.astype(np.int64), len(grid) - 2)
    return below, place - below
