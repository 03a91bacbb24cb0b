"""All trials of a simulated calibration at once: multinomial bins for each round and site, noise, suffix sums.

numpy's seeded generator draws both records and noise: nothing is released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.kinds import LOSS_NONLOSS, ReleaseKind
from reticent.accounting.certificates.bounds import Sums, Transfer, suffix_sums
from reticent.accounting.studies.certificates.populations import Population
from reticent.accounting.studies.certificates.streams import Past, Request, Stream, planned

__all__ = ["Transcripts", "discrete_noise", "noise_table", "simulate"]

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

# A pmf beyond 12 standard deviations weighs less than 1e-31.
_REACH = 12.0


@dataclass(frozen=True)
class Transcripts:
    """What the server has after each round, for all trials. Axes: trials T, rounds R, sites K, thresholds m.

    Attributes:
        release: which two sums were released.
        loss, other: noised suffix sums Z̃ and F̃ or Ã, (T, R, m).
        noise: Σσ² over the releases that arrived, (T, R).
        by_site: N_k, (T, R, K).
        least_variance: v0 = σ² of the plan; 1 without noise.
        site_loss, site_other, site_noise: the same by site, (T, R, K, m) and (T, R, K), where they were asked for.
    """

    release: ReleaseKind
    loss: Array
    other: Array
    noise: Array
    by_site: Counts
    least_variance: float
    site_loss: Array | None = None
    site_other: Array | None = None
    site_noise: Array | None = None

    @property
    def events(self) -> Array:
        """N, (T, R)."""
        return np.asarray(self.by_site.sum(axis=2), dtype=np.float64)

    def sums(self, trials: slice = slice(None)) -> Sums:
        """The sums of some trials, at every round."""
        cells = np.arange(self.loss.shape[2], 0, -1.0)
        return Sums(
            self.release,
            self.loss[trials],
            self.other[trials],
            self.noise[trials, :, None] * cells,
            self.events[trials, :, None],
            self.least_variance,
        )

    def site_sums(self, site: int, trials: slice = slice(None)) -> Sums:
        """The sums of one site, at every round.

        Raises:
            ValueError: they were not kept.
        """
        if self.site_loss is None or self.site_other is None or self.site_noise is None:
            raise ValueError("the sums of single sites were not kept")
        cells = np.arange(self.loss.shape[2], 0, -1.0)
        return Sums(
            self.release,
            self.site_loss[trials, :, site],
            self.site_other[trials, :, site],
            self.site_noise[trials, :, site, None] * cells,
            self.by_site[trials, :, site, None].astype(np.float64),
            self.least_variance,
        )

    def transfer(self, weights: Array, drift: float = 0.0, trials: slice = slice(None)) -> Transfer:
        """η_t = ½ Σ|w_k - w̄_k,t| + drift (paper, equation 8), 1 + drift before the first record."""
        by_site = self.by_site[trials]
        total = by_site.sum(axis=2)
        realised = by_site / np.maximum(total, 1)[:, :, None]
        distance = np.where(total > 0, 0.5 * np.abs(weights - realised).sum(axis=2), 1.0)
        eta = (distance + drift)[:, :, None]
        # Shares of a half are not hit exactly in floating point; what is below a rounding error is no mismatch.
        eta = np.where(eta < 1e-12, 0.0, eta)
        return Transfer(eta, eta)


def simulate(
    population: Population,
    stream: Stream,
    trials: int,
    seed: int,
    *,
    target_risk: float = 0.5,
    keep_sites: bool = False,
) -> Transcripts:
    """Run all trials of a stream.

    Args:
        target_risk: r*, for the contrast that a policy sees.
        keep_sites: also keep every site's own sums.

    Raises:
        ValueError: no trials, or a plan for another number of sites.
    """
    if trials < 1 or stream.slots.ndim != 2 or stream.slots.shape[1] != population.sites:
        raise ValueError(f"needs at least one trial, and slots for {population.sites} sites")
    run = _Run(population, stream, trials, np.random.default_rng(seed), target_risk, keep_sites)
    for number in range(stream.rounds):
        run.play(number)
    return run.transcripts()


class _Run:
    def __init__(
        self, population: Population, stream: Stream, trials: int, rng: np.random.Generator, r: float, keep: bool
    ) -> None:
        self.population, self.stream, self.trials, self.rng, self.r = population, stream, trials, rng, r
        R, K, m = stream.rounds, population.sites, population.size
        self.totals = np.zeros((trials, 2, m + 1))
        self.loss, self.other = np.zeros((trials, R, m)), np.zeros((trials, R, m))
        self.noise, self.by_site = np.zeros((trials, R)), np.zeros((trials, R, K), dtype=np.int64)
        self.kept = [np.zeros((trials, R, K, m)), np.zeros((trials, R, K, m)), np.zeros((trials, R, K))] if keep else []
        self.site_totals = np.zeros((trials, K, 2, m + 1))
        self.laws = _laws(population, stream)

    def play(self, number: int) -> None:
        request = self._dropped(self._asked(number))
        before = number - 1 if number else 0
        by_site = self.by_site[:, before] if number else np.zeros_like(self.by_site[:, 0])
        noise = self.noise[:, before] if number else np.zeros(self.trials)
        if self.kept:
            self._add_by_site(number, request)
        else:
            for site in range(self.population.sites):
                self.totals += self._histogram(site, request.slots[:, site])
            self.totals += self._noise((request.slots > 0).sum(axis=1), request.scales)
        self.by_site[:, number] = by_site + request.slots
        self.noise[:, number] = noise + (request.slots > 0).sum(axis=1) * request.scales**2
        suffix = suffix_sums(self.totals)
        self.loss[:, number], self.other[:, number] = suffix[:, 0], suffix[:, 1]

    def transcripts(self) -> Transcripts:
        sigma = self.stream.noise_scale
        least = sigma * sigma if sigma > 0 else 1.0
        return Transcripts(self.stream.release, self.loss, self.other, self.noise, self.by_site, least, *self.kept)

    def _asked(self, number: int) -> Request:
        at = max(number - 1, 0)
        policy = self.stream.policy or planned
        contrast = self._contrast(at) if number else np.zeros((self.trials, self.population.size))
        seen = self.by_site[:, at] if number else np.zeros_like(self.by_site[:, 0])
        coins = self.rng.random(self.trials)
        return policy(
            Past(
                number,
                contrast,
                seen,
                self.stream.slots[number],
                self.population.weights,
                self.stream.noise_scale,
                coins,
            )
        )

    def _contrast(self, at: int) -> Array:
        Z, other = self.loss[:, at], self.other[:, at]
        return Z - self.r * (Z + other if self.stream.release == LOSS_NONLOSS else other)

    def _dropped(self, request: Request) -> Request:
        if self.stream.dropout == 0.0:
            return request
        stays = self.rng.random(request.slots.shape) >= self.stream.dropout
        return Request(np.where(stays, request.slots, 0), request.scales)

    def _histogram(self, site: int, slots: Counts) -> Array:
        """Exact histograms of one site's round, (T, 2, m+1)."""
        law, values = self.laws
        bins, kinds = law.shape[1:]
        drawn = self.rng.multinomial(slots, law[site].ravel()).reshape(self.trials, bins, kinds).astype(np.float64)
        loss = drawn @ values
        count = drawn.sum(axis=2)
        return np.stack([loss, count - loss if self.stream.release == LOSS_NONLOSS else count], axis=1)

    def _noise(self, releases: Counts, scales: Array) -> Array:
        """The noise of a round's releases together, (T, 2, m+1)."""
        shape = (self.trials, 2, self.population.size + 1)
        if self.stream.noise_scale == 0.0:
            return np.zeros(shape)
        if not self.stream.discrete:
            return np.asarray(self.rng.normal(size=shape) * np.sqrt(releases * scales**2)[:, None, None])
        noise = np.zeros(shape)
        for count, scale in sorted({(int(c), float(s)) for c, s in zip(releases, scales, strict=True) if c}):
            rows = (releases == count) & (scales == scale)
            noise[rows] = discrete_noise(scale, count, (int(rows.sum()), *shape[1:]), self.rng)
        return noise

    def _add_by_site(self, number: int, request: Request) -> None:
        for site in range(self.population.sites):
            slots = request.slots[:, site]
            self.site_totals[:, site] += self._histogram(site, slots)
            self.site_totals[:, site] += self._noise((slots > 0).astype(np.int64), request.scales)
        suffix = suffix_sums(self.site_totals)
        self.kept[0][:, number], self.kept[1][:, number] = suffix[:, :, 0], suffix[:, :, 1]
        before = self.kept[2][:, number - 1] if number else 0.0
        self.kept[2][:, number] = before + (request.slots > 0) * request.scales[:, None] ** 2
        self.totals = self.site_totals.sum(axis=1)


def _laws(population: Population, stream: Stream) -> tuple[Array, Array]:
    """Cells and loss values as released: a coin with probability ℓ makes a binary loss of a fractional one."""
    if not stream.discrete:
        return population.cells, population.loss_values
    loss = population.cells @ population.loss_values
    return np.stack([population.cells.sum(axis=2) - loss, loss], axis=2), np.array([0.0, 1.0])


@lru_cache(maxsize=64)
def noise_table(scale: float, count: int = 1) -> tuple[Array, Array]:
    """Support and cumulative probabilities of a sum of `count` independent discrete Gaussians."""
    reach = math.ceil(_REACH * scale) + 2
    mass: Array = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2.0 * scale * scale))
    mass /= mass.sum()
    total = mass
    for _ in range(count - 1):
        total = np.asarray(np.convolve(total, mass), dtype=np.float64)
    half = len(total) // 2
    return np.arange(-half, half + 1.0, dtype=np.float64), np.cumsum(total, dtype=np.float64)


def discrete_noise(scale: float, count: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Independent sums of `count` discrete Gaussians each."""
    support, cumulative = noise_table(scale, count)
    return np.asarray(support[np.searchsorted(cumulative, rng.random(shape)).clip(max=len(support) - 1)])
