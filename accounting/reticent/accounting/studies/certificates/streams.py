"""What a simulated calibration asks for in each round, from what the server has seen: never from the records.

A policy sees the noised sums and the public counts of all trials, and answers with slots and a noise scale for each
trial: everything that the paper's Assumption 1 (predictable clients, batches, scales and releases) allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.kinds import LOSS_NONLOSS, ReleaseKind

__all__ = [
    "Past",
    "Policy",
    "Request",
    "Stream",
    "adaptive_scale",
    "adversarial",
    "alternating",
    "even",
    "largest_deficit",
    "planned",
    "uneven_batches",
]

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Past:
    """What the server has seen before a round.

    Attributes:
        round_number: of the coming round, from 0.
        contrast: noised contrast sums D̃ so far, (trials, m).
        by_site: N_k so far, (trials, K).
        planned: slots that the plan foresees for the coming round, (K,).
        weights: declared, (K,).
        noise_scale: σ, the least that the plan admits.
        coins: a uniform variable for each trial, external to the records.
    """

    round_number: int
    contrast: Array
    by_site: Counts
    planned: Counts
    weights: Array
    noise_scale: float
    coins: Array


@dataclass(frozen=True)
class Request:
    """Slots asked of each site, (trials, K), 0 where a site releases nothing, and σ for each trial, (trials,)."""

    slots: Counts
    scales: Array


Policy = Callable[[Past], Request]


@dataclass(frozen=True)
class Stream:
    """A calibration as it is planned.

    Attributes:
        slots: planned slots, (rounds, K).
        noise_scale: σ of each cell of a release; the least one where a policy changes it. 0 for no noise.
        release: which two histograms are released.
        discrete: discrete Gaussian, with fractional losses rounded by a coin; else continuous Gaussian on the exact
            sums.
        policy: what is asked for, from what has been seen.
        dropout: probability that a site that is asked does not release, decided before its records are seen.
    """

    slots: Counts
    noise_scale: float
    release: ReleaseKind = LOSS_NONLOSS
    discrete: bool = True
    policy: Policy | None = None
    dropout: float = 0.0

    @property
    def rounds(self) -> int:
        """Number of looks."""
        return len(self.slots)


def planned(past: Past) -> Request:
    """What the plan says."""
    trials = len(past.coins)
    return Request(np.tile(past.planned, (trials, 1)), np.full(trials, past.noise_scale))


def largest_deficit(past: Past) -> Request:
    """The whole round goes to the site that lacks most of its declared share (paper, appendix O.3)."""
    batch = int(past.planned.sum())
    total = past.by_site.sum(axis=1, keepdims=True) + batch
    lacking = past.weights * total - past.by_site
    return _whole_round(past, lacking.argmax(axis=1), np.full(len(past.coins), batch))


def adversarial(past: Past) -> Request:
    """An operator who wants a certificate. Site 0 is thought the best, site 1 the worst.

    While the noised contrast looks good somewhere, it asks site 0 for small batches with twice the noise, up to a
    hundredth above its share; otherwise it restores the shares with large batches.
    """
    total = past.by_site.sum(axis=1)
    hopeful = _hopeful(past)
    share = past.by_site[:, 0] / np.maximum(total, 1)
    batch = np.where(hopeful, past.planned.sum() // 4 + 1, past.planned.sum())
    lacking = past.weights * (total + batch)[:, None] - past.by_site
    site = np.where(hopeful & (share <= past.weights[0] + 0.01), 0, lacking.argmax(axis=1))
    request = _whole_round(past, site, batch)
    return Request(request.slots, np.where(hopeful, 2.0, 1.0) * past.noise_scale)


def adaptive_scale(past: Past) -> Request:
    """What the plan says, with three times the noise while the noised contrast looks good somewhere."""
    request = planned(past)
    return Request(request.slots, np.where(_hopeful(past), 3.0, 1.0) * past.noise_scale)


def uneven_batches(past: Past) -> Request:
    """Between a tenth and twice what is planned, by a coin; the less, the better the noised contrast looks."""
    fraction = 0.1 + 1.9 * past.coins * np.where(_hopeful(past), 0.3, 1.0)
    slots = np.ceil(fraction[:, None] * past.planned).astype(np.int64)
    return Request(slots, np.full(len(past.coins), past.noise_scale))


def even(rounds: int, batch: int, sites: int) -> Counts:
    """Every site, every round, the same number of slots; `batch` in all (rounded up to a multiple of the sites)."""
    return np.full((rounds, sites), -(-batch // sites), dtype=np.int64)


def alternating(rounds: int, batch: int, share: float, growth: float = 1.0) -> Counts:
    """Two sites: one has `share` of odd rounds, the other of even ones. Even in all after every second round.

    The batch of each pair of rounds is `growth` times that of the pair before.
    """
    rows = []
    for pair in range((rounds + 1) // 2):
        size = round(batch * growth**pair)
        major = round(size * share)
        rows += [(major, size - major), (size - major, major)]
    return np.array(rows[:rounds], dtype=np.int64)


def _hopeful(past: Past) -> NDArray[np.bool_]:
    """Whether some threshold's noised contrast lies well below 0, in units of sqrt(N)."""
    root = np.sqrt(np.maximum(past.by_site.sum(axis=1), 1.0))
    return np.asarray((past.contrast / root[:, None]).min(axis=1) < -1.0)


def _whole_round(past: Past, site: NDArray[np.int64], batch: NDArray[np.int64]) -> Request:
    slots = np.zeros(past.by_site.shape, dtype=np.int64)
    slots[np.arange(len(site)), site] = batch
    return Request(slots, np.full(len(site), past.noise_scale))
