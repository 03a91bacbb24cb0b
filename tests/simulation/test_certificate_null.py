"""Seeded simulations of the e-process rule: how often it certifies what is false, and whether what is true.

The populations are synthetic. numpy draws the records and the noise here, from seeded streams: nothing is released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from reticent.accounting.calibration import Claim
from reticent.accounting.calibration.aggregate import mixture_transfer
from reticent.accounting.certificates.eprocess import certified_mask, contrast_upper
from reticent.accounting.charges.gaussian import discrete_calibrated_scale

pytestmark = pytest.mark.simulation

Array = NDArray[np.float64]
M = 20
DELTA = 1e-6


@dataclass(frozen=True)
class Population:
    """Two clients: probability of each bin 0..m, and risk in it."""

    bins: Array  # (2, m+1)
    risks: Array  # (2, m+1)

    def cells(self) -> Array:
        return np.concatenate([self.bins * self.risks, self.bins * (1 - self.risks)], axis=1)

    def contrast(self, weights: Array, r: float) -> Array:
        per_bin = weights @ (self.bins * (self.risks - r))
        return np.asarray(np.cumsum(per_bin[:0:-1])[::-1], dtype=np.float64)


def discrete_gaussian(rng: np.random.Generator, sigma: float, size: tuple[int, ...]) -> Array:
    reach = math.ceil(10 * sigma) + 2
    support = np.arange(-reach, reach + 1)
    mass = np.exp(-(support**2) / (2 * sigma**2))
    uniform = rng.random(size)
    drawn = support[np.searchsorted(np.cumsum(mass / mass.sum()), uniform).clip(max=2 * reach)]
    return np.asarray(drawn, dtype=np.float64)


def simulate(
    population: Population, slots: NDArray[np.int64], sigma: float, trials: int, seed: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Suffix sums (trials, rounds, m) of Z̃ and F̃; V (rounds, m); N and η (rounds, 1), equal declared weights.

    slots: (rounds, 2), what each client releases in each round.
    """
    rng = np.random.default_rng(seed)
    counts = np.zeros((trials, len(slots), 2 * (M + 1)))
    for client, cells in enumerate(population.cells()):
        for number, n in enumerate(slots[:, client]):
            counts[:, number] += rng.multinomial(n, cells, size=trials)
            if sigma > 0:
                counts[:, number] += discrete_gaussian(rng, sigma, (trials, 2 * (M + 1)))
    counts = np.cumsum(counts, axis=1)
    Z = np.cumsum(counts[:, :, M:0:-1], axis=2)[:, :, ::-1]
    F = np.cumsum(counts[:, :, : M + 1 : -1], axis=2)[:, :, ::-1]
    releases = 2 * np.arange(1, len(slots) + 1)[:, None]
    V = releases * sigma**2 * np.arange(M, 0, -1)[None, :]
    by_client = np.cumsum(slots, axis=0)
    eta = np.array([[mixture_transfer((0.5, 0.5), row, (0.0, 0.0))] for row in by_client.tolist()])
    return Z, F, V, by_client.sum(axis=1, keepdims=True).astype(np.float64), eta


def alternating(rounds: int, size: int, share: float) -> NDArray[np.int64]:
    """The mixture moves: one client dominates in odd rounds, the other in even ones; after two rounds it is even."""
    major = round(size * share)
    rows = [(major, size - major), (size - major, major)] * (rounds // 2)
    return np.array(rows, dtype=np.int64)


def null_population(r: float, spread: float) -> Population:
    """Risk exactly r at every threshold for equal weights, r - spread at one client and r + spread at the other."""
    bins = np.full((2, M + 1), 1 / (M + 1))
    return Population(bins, np.stack([np.full(M + 1, r - spread), np.full(M + 1, r + spread)]))


def fired(claim: Claim, Z: Array, F: Array, V: Array, N: Array, eta: Array) -> int:
    """Trials in which some threshold is certified at some round."""
    mask = certified_mask(claim, Z, F, V, N, contrast_transfer=eta, acceptance_transfer=eta)
    return int(mask.any(axis=(1, 2)).sum())


def most_failures(trials: int, rate: float) -> int:
    """A seeded run is one draw: allow what a true rate of `rate` exceeds once in a thousand."""
    return int(binom.ppf(0.999, trials, rate))


@pytest.mark.parametrize(("r", "epsilon", "seed"), [(0.2, 1.0, 11), (0.3, 4.0, 12), (0.1, 1.0, 13), (0.1, 0.5, 14)])
def test_a_risk_exactly_at_the_target_is_rarely_certified(r: float, epsilon: float, seed: int) -> None:
    trials, sigma = 300, discrete_calibrated_scale(epsilon, DELTA)
    Z, F, V, N, eta = simulate(null_population(r, 0.09), alternating(30, 500, 0.9), sigma, trials, seed)
    claim = Claim(r, 0.05, 0.045, 0.005)
    assert fired(claim, Z, F, V, N, eta) <= most_failures(trials, claim.alpha_risk)
    if epsilon <= 1.0:
        assert fired(claim, Z, F, 0 * V, N, eta) > 0.3 * trials  # the twin that ignores the noise


def test_a_mixture_that_is_not_the_declared_one_is_rarely_certified_unless_the_transfer_is_ignored() -> None:
    trials, r, sigma = 300, 0.2, discrete_calibrated_scale(1.0, DELTA)
    slots = np.array([[450, 50]] * 20, dtype=np.int64)  # mostly the good client; declared is one half each
    Z, F, V, N, eta = simulate(null_population(r, 0.09), slots, sigma, trials, 15)
    claim = Claim(r, 0.05, 0.045, 0.005)
    assert fired(claim, Z, F, V, N, eta) <= most_failures(trials, claim.alpha_risk)
    assert fired(claim, Z, F, V, N, 0 * eta) > 0.3 * trials


def test_the_contrast_bound_holds_at_every_threshold_and_round_at_once() -> None:
    """Clients of opposite contrasts that move; the target is the realised mixture, so no transfer is added."""
    trials, r, sigma = 300, 0.3, discrete_calibrated_scale(1.0, DELTA)
    rng = np.random.default_rng(21)
    population = Population(rng.dirichlet(np.ones(M + 1), size=2), rng.random((2, M + 1)))
    slots = alternating(30, 300, 0.8)
    Z, F, V, N, _ = simulate(population, slots, sigma, trials, 22)
    realised = np.cumsum(slots, axis=0) / N
    truth = np.stack([population.contrast(weights, r) for weights in realised])

    def violated(variance: Array, alpha: float) -> int:
        d_bar = contrast_upper(Z, F, variance, N, target_risk=r, alpha=alpha / M)
        return int((d_bar < truth).any(axis=(1, 2)).sum())

    assert violated(V, 0.045) <= most_failures(trials, 0.045)
    assert violated(0 * V, 0.045) > 0.3 * trials


def halueval_like() -> Population:
    """Risk falls from .75 to .03 as the score grows; both clients alike. Not fitted to any published figure."""
    score = (np.arange(M + 1) + 0.5) / (M + 1)
    risk = 0.03 + 0.72 * (1 - score) ** 2
    return Population(np.full((2, M + 1), 1 / (M + 1)), np.stack([risk, risk]))


def test_a_good_score_is_certified_soon_with_the_risk_below_the_target() -> None:
    trials, r = 200, 0.2
    claim = Claim(r, 0.05, 0.045, 0.005)
    population = halueval_like()
    contrast = population.contrast(np.array([0.5, 0.5]), r)
    assert np.argmax(contrast <= 0) > 2  # the three lowest thresholds are not good: there is something to get wrong
    totals = 500 * 1.4 ** np.arange(12)
    slots = np.diff(np.concatenate([[0.0], totals]) / 2).round().astype(np.int64)[:, None].repeat(2, axis=1)
    medians = []
    for epsilon, seed in ((8.0, 31), (2.0, 32), (1.0, 33), (0.5, 34)):
        sigma = discrete_calibrated_scale(epsilon, DELTA)
        Z, F, V, N, eta = simulate(population, slots, sigma, trials, seed)
        mask = certified_mask(claim, Z, F, V, N, contrast_transfer=eta, acceptance_transfer=eta)
        assert mask.any(axis=(1, 2)).all()
        first = mask.any(axis=2).argmax(axis=1)
        chosen = mask[np.arange(trials), first].argmax(axis=1)
        assert int((contrast[chosen] > 0).sum()) <= most_failures(trials, claim.alpha_risk)
        medians.append(float(np.median(N[first, 0])))
    assert medians == sorted(medians)
    assert medians[0] <= 700
    assert medians[2] <= 4000
    assert medians[3] <= 7500


def test_no_certificate_comes_from_noise_alone() -> None:
    """Half of the answers are wrong at every threshold: nothing is certified in any trial."""
    population = Population(np.full((2, M + 1), 1 / (M + 1)), np.full((2, M + 1), 0.5))
    Z, F, V, N, eta = simulate(population, alternating(20, 400, 0.5), discrete_calibrated_scale(0.5, DELTA), 300, 41)
    claim = Claim(0.3, 0.05, 0.045, 0.005)
    assert not certified_mask(claim, Z, F, V, N, contrast_transfer=eta, acceptance_transfer=eta).any()
