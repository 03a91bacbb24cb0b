"""One prompt's answers, put together by reward: every rule here treats answers of equal reward alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.planning.laws import Floats

__all__ = ["COLUMNS", "PROXY", "PROXY_WIN", "TRUE", "WIN", "Groups", "group"]

TRUE, PROXY, WIN, PROXY_WIN = range(4)
COLUMNS = 4
"""What is asked of the chosen answer: its true reward, its proxy reward, whether it beats a base sample by either."""


@dataclass(frozen=True, eq=False)
class Groups:
    """K groups of N answers.

    Attributes:
        values: (K,) rewards in [0, R], rising.
        counts: (K,) answers with that reward.
        means: (K, 4) means of the columns over the group's answers.
        member: (N,) the group of each answer.
    """

    values: Floats
    counts: Floats
    means: Floats
    member: NDArray[np.int32]

    @property
    def size(self) -> int:
        """N."""
        return len(self.member)

    @property
    def mass(self) -> Floats:
        """(K,) share of each group."""
        share: Floats = self.counts / self.size
        return share

    @property
    def base(self) -> Floats:
        """(4,) the columns for one answer drawn evenly: a base sample."""
        mean: Floats = self.mass @ self.means
        return mean


def group(rewards: Floats, truths: Floats) -> Groups:
    """The groups of a prompt's answers: `rewards` in [0, R], `truths` in [0, 1], both (N,), N ≥ 1."""
    values, member, counts = np.unique(rewards, return_inverse=True, return_counts=True)
    means = np.empty((len(values), COLUMNS))
    means[:, TRUE] = np.bincount(member, truths) / counts
    means[:, PROXY] = values
    means[:, WIN] = np.bincount(member, _wins(truths, truths)) / counts
    means[:, PROXY_WIN] = _wins(values, rewards)
    return Groups(values, counts.astype(np.float64), means, member.astype(np.int32))


def _wins(values: Floats, base: Floats) -> Floats:
    """Chance that each value beats one drawn evenly from `base`, ties counting a half."""
    rising = np.sort(base)
    places = np.searchsorted(rising, values, "left") + np.searchsorted(rising, values, "right")
    share: Floats = places / (2.0 * len(base))
    return share
