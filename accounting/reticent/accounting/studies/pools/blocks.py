"""Random sets of n candidates of one prompt, in independent batches whose spread tells the sampling error.

`distinct`: n different answers. A batch cuts random orders of all N answers into blocks of n, so that one order uses
no answer twice; at n = 1 and n = N nothing is left to chance. With replacement: n independent draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.planning.laws import Floats
from reticent.accounting.studies.pools.groups import Groups

__all__ = ["BATCHES", "Blocks", "interpolation"]

BATCHES = 8
_MOST_BLOCKS = 128
_MOST_CHEAP = 16_384  # candidates of a batch that an order gives without another one
_ELEMENTS = 65_536

Indices = NDArray[np.int32]


class Blocks:
    """Candidates of one prompt.

    Args:
        groups: the prompt.
        candidates: every n that will be asked for.
        distinct: whether the n candidates are different answers.
        draws: sets of candidates for each n, over all batches; fewer where n is large, more where they cost nothing.
        rng: seeded. Different n share their randomness.
    """

    def __init__(
        self, groups: Groups, candidates: Sequence[int], *, distinct: bool, draws: int, rng: np.random.Generator
    ) -> None:
        self._groups = groups
        self._draws = draws
        self._distinct = distinct
        self._kept: dict[int, Floats] = {}
        if distinct:
            count = max(self._orders(n) for n in candidates)
            order = rng.random((BATCHES, count, groups.size)).argsort(axis=-1)
        else:
            count = max(self._wanted(n) for n in candidates)
            order = rng.integers(0, groups.size, (BATCHES, count, max(candidates)))
        self._members: Indices = groups.member[order]

    def _wanted(self, n: int) -> int:
        """Sets in a batch."""
        return max(1, math.ceil(min(self._draws, _ELEMENTS / n) / BATCHES))

    def _orders(self, n: int) -> int:
        return math.ceil(self._wanted(n) / max(1, self._groups.size // n))

    def members(self, candidates: int) -> Indices:
        """(batches, m, n) groups of the candidates of m sets."""
        n = candidates
        if not self._distinct:
            return self._members[:, : self._wanted(n), :n]
        whole = self._groups.size // n
        found = self._members[:, : self._orders(n), : whole * n].reshape(BATCHES, -1, n)
        return found[:, : max(_MOST_BLOCKS, _MOST_CHEAP // n)]

    def normalizers(self, candidates: int, regularization: float) -> Floats:
        """(batches, m) λ* of each set: max over k of (S_k - nβ)/k, S_k the sum of the k largest of n rewards."""
        n = candidates
        if n not in self._kept:
            rising = np.sort(self.members(n), axis=-1)
            self._kept[n] = np.cumsum(self._groups.values[rising[..., ::-1]], axis=-1)
        sums = self._kept[n]
        levels: Floats = ((sums - n * regularization) * (1.0 / np.arange(1, n + 1))).max(axis=-1)
        return levels


def interpolation(levels: Floats, grid: Floats) -> Floats:
    """(batches, G) mean weights with which values at the equally spaced `grid` are interpolated at `levels`, cubically.

    The error is at most 3/128 of the grid's step to the fourth, times the fourth derivative.
    """
    batches, count = len(levels), len(grid)
    place = (levels - grid[0]) / (grid[1] - grid[0])
    left = np.clip(np.floor(place).astype(np.int64), 1, count - 3)
    x = place - left
    cubic = (
        -x * (x - 1.0) * (x - 2.0) / 6.0,
        (x + 1.0) * (x - 1.0) * (x - 2.0) / 2.0,
        -(x + 1.0) * x * (x - 2.0) / 2.0,
        (x + 1.0) * x * (x - 1.0) / 6.0,
    )
    row = np.arange(batches)[:, None] * count
    weights = np.zeros(batches * count)
    for offset, share in zip((-1, 0, 1, 2), cubic, strict=True):
        weights += np.bincount((row + left + offset).ravel(), share.ravel(), minlength=batches * count)
    found: Floats = weights.reshape(batches, count) / levels.shape[1]
    return found
