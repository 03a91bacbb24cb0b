"""Simulated calibrations on frozen records, item by item: which records were drawn, and how often each was used.

Two streams:

* `WITH_REPLACEMENT`, the paper's: each site is a frozen population, and a slot is a uniform draw from it. The law of
  the stream is known exactly, so every bound can be checked against the truth. A record is used many times.
* `ONCE`, what a deployment has: every record of a site is used once, in a random order. The certificate then speaks of
  the law that the records were drawn from; the truth is not known, and only held-out records can contradict it.

numpy's seeded generator draws records and noise: nothing is released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.kinds import LOSS_NONLOSS, ReleaseKind
from reticent.accounting.calibration.noise_scale import SENSITIVITY
from reticent.accounting.calibration.plan import share
from reticent.accounting.certificates.bounds import suffix_sums
from reticent.accounting.studies.certificates.engine import Transcripts, discrete_noise
from reticent.accounting.studies.certificates.populations import Population

__all__ = ["ONCE", "WITH_REPLACEMENT", "Items", "Run", "epsilon_of_uses", "run_items", "slots_of_looks"]

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

WITH_REPLACEMENT = "with_replacement"
ONCE = "once"


@dataclass(frozen=True)
class Items:
    """The frozen calibration records.

    Attributes:
        bins: 0..m, (n,).
        loss: in [0, 1], (n,).
        site: 0..K-1, (n,); every site has at least one record.
        weights: w_k, the declared mixture, (K,).
        thresholds: m.
    """

    bins: Counts
    loss: Array
    site: Counts
    weights: Array
    thresholds: int

    @property
    def sites(self) -> int:
        """K."""
        return len(self.weights)

    def truth(self, weights: Array | None = None) -> tuple[Array, Array]:
        """Accepted loss z_j and acceptance a_j of the frozen populations under a mixture (the declared one), (m,)."""
        w = self.weights if weights is None else weights
        sizes = np.bincount(self.site, minlength=self.sites)
        each = w[self.site] / sizes[self.site]
        loss = np.bincount(self.bins, weights=each * self.loss, minlength=self.thresholds + 1)
        count = np.bincount(self.bins, weights=each, minlength=self.thresholds + 1)
        return suffix_sums(loss.astype(np.float64)), suffix_sums(count.astype(np.float64))

    def population(self, name: str) -> Population:
        """The frozen sites as laws of bin and binary loss; a fractional loss is what its coin makes of it."""
        K, size = self.sites, self.thresholds + 1
        place = self.site * size + self.bins
        kinds = [np.bincount(place, weights=part, minlength=K * size) for part in (1.0 - self.loss, self.loss)]
        cells = np.stack(kinds, axis=1).reshape(K, size, 2)
        sizes = cells.sum(axis=(1, 2), keepdims=True)
        return Population(name, cells / sizes, np.array([0.0, 1.0]), self.weights)


@dataclass(frozen=True)
class Run:
    """Transcripts of all trials, and the uses of every item.

    Attributes:
        transcripts: what the server has after each round.
        uses: times that each item entered each release, (T, R, n).
    """

    transcripts: Transcripts
    uses: NDArray[np.int32]


def slots_of_looks(looks: tuple[int, ...], weights: Array) -> Counts:
    """Slots of every round and site, (R, K): running totals are shares of the look, rounded up, as in a plan."""
    totals = np.array([[share(look, float(w)) for w in weights] for look in (0, *looks)], dtype=np.int64)
    return np.asarray(np.diff(totals, axis=0), dtype=np.int64)


def run_items(
    items: Items, slots: Counts, noise_scale: float, release: ReleaseKind, stream: str, trials: int, seed: int
) -> Run:
    """Run all trials.

    Args:
        slots: asked of each site in each round, (R, K).
        noise_scale: σ of the discrete Gaussian on each cell; 0 for none.
        stream: `WITH_REPLACEMENT` or `ONCE`.

    Raises:
        ValueError: an unknown stream, no trials, or more slots than a site has records when each is used once.
    """
    sizes = np.bincount(items.site, minlength=items.sites)
    if stream not in (WITH_REPLACEMENT, ONCE) or trials < 1:
        raise ValueError(f"needs a stream and at least one trial, got {stream!r} and {trials}")
    if stream == ONCE and np.any(slots.sum(axis=0) > sizes):
        raise ValueError("a site is asked for more records than it has")
    rng = np.random.default_rng([seed, 2])
    R, n, m = len(slots), len(items.loss), items.thresholds
    uses = np.zeros((trials, R, n), dtype=np.int32)
    loss, other = np.zeros((trials, R, m)), np.zeros((trials, R, m))
    totals = np.zeros((trials, 2, m + 1))
    onehot = np.zeros((n, m + 1))
    onehot[np.arange(n), items.bins] = 1.0
    orders = _orders(items, trials, rng) if stream == ONCE else None
    for number in range(R):
        drawn = (
            _taken(orders, items, slots, number) if orders is not None else _drawn(items, slots[number], trials, rng)
        )
        uses[:, number] = drawn
        totals += _histograms(items, drawn, onehot, release, rng)
        totals += _noise(totals.shape, noise_scale, int((slots[number] > 0).sum()), rng)
        loss[:, number], other[:, number] = suffix_sums(totals[:, 0]), suffix_sums(totals[:, 1])
    by_site = np.broadcast_to(slots.cumsum(axis=0), (trials, *slots.shape)).copy()
    noise = np.broadcast_to((slots > 0).sum(axis=1).cumsum() * noise_scale**2, (trials, R)).copy()
    least = noise_scale**2 if noise_scale > 0.0 else 1.0
    return Run(Transcripts(release, loss, other, noise, by_site, least), uses)


def epsilon_of_uses(uses: NDArray[np.integer[Any]], release: ReleaseKind, noise_scale: float, delta: float) -> float:
    """ε at δ of one item (or group) that entered the releases `uses` times each, (R,) or (R, K) by site.

    Every use is charged. c uses in one release move it by up to cΔ, so ρ = Σ c²Δ²/(2σ²) of zCDP, and
    ε = ρ + 2 sqrt(ρ ln(1/δ)) (paper, equations 32 and 33). For the draws that happened; that they were random is not
    used. Infinite without noise.
    """
    total = float((np.asarray(uses, dtype=np.float64) ** 2).sum())
    if total == 0.0:
        return 0.0
    if noise_scale == 0.0:
        return math.inf
    rho = total * SENSITIVITY[release] ** 2 / (2.0 * noise_scale**2)
    return rho + 2.0 * math.sqrt(rho * -math.log(delta))


def _orders(items: Items, trials: int, rng: np.random.Generator) -> list[Counts]:
    """A random order of each site's records for every trial."""
    members = [np.flatnonzero(items.site == k) for k in range(items.sites)]
    return [rng.permuted(np.tile(rows, (trials, 1)), axis=1) for rows in members]


def _taken(orders: list[Counts], items: Items, slots: Counts, number: int) -> Counts:
    trials = len(orders[0])
    drawn = np.zeros((trials, len(items.loss)), dtype=np.int64)
    for k, order in enumerate(orders):
        start = int(slots[:number, k].sum())
        chosen = order[:, start : start + int(slots[number, k])]
        np.put_along_axis(drawn, chosen, 1, axis=1)
    return drawn


def _drawn(items: Items, asked: Counts, trials: int, rng: np.random.Generator) -> Counts:
    drawn = np.zeros((trials, len(items.loss)), dtype=np.int64)
    for k in range(items.sites):
        rows = np.flatnonzero(items.site == k)
        drawn[:, rows] = rng.multinomial(int(asked[k]), np.full(len(rows), 1.0 / len(rows)), size=trials)
    return drawn


def _histograms(items: Items, drawn: Counts, onehot: Array, release: ReleaseKind, rng: np.random.Generator) -> Array:
    """(T, 2, m+1). A fractional loss is rounded by a coin at every use."""
    binary = bool(np.all((items.loss == 0.0) | (items.loss == 1.0)))
    hits = drawn * items.loss if binary else rng.binomial(drawn, items.loss).astype(np.float64)
    loss, count = hits @ onehot, drawn @ onehot
    return np.stack([loss, count - loss if release == LOSS_NONLOSS else count], axis=1)


def _noise(shape: tuple[int, ...], scale: float, releases: int, rng: np.random.Generator) -> Array:
    if scale == 0.0 or releases == 0:
        return np.zeros(shape)
    return discrete_noise(scale, releases, shape, rng)
