"""Seeded simulations of every rule at the null: the true risk is exactly the target at every threshold.

A violation is any bound that misses at any threshold and round: d̄ below the true contrast 0, or a̲ above the true
acceptance. The twin ignores the noise. numpy draws records and noise here: nothing is released.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from reticent.accounting.calibration import Claim
from reticent.accounting.calibration.aggregate import mixture_transfer
from reticent.accounting.calibration.bin_matrix import BinMatrix
from reticent.accounting.calibration.kinds import COUNT_ERROR, LOSS_NONLOSS
from reticent.accounting.calibration.noise_scale import release_scale
from reticent.accounting.certificates.bounds import Sums, Transfer
from reticent.accounting.certificates.rules import RULES

pytestmark = pytest.mark.simulation

Array = NDArray[np.float64]
M, ROUNDS, TRIALS, EPSILON, DELTA = 20, 40, 400, 0.5, 1e-6
ALLOWED = 0.045
TRUE_ACCEPTANCE = np.arange(M, 0, -1) / (M + 1)


@lru_cache(maxsize=4)
def calibration(release: str, r: float, plain: bool = True) -> tuple[Sums, Transfer]:
    """Two clients of risk r - .09 and r + .09, weights one half; which of them dominates changes from round to round.

    Shapes (TRIALS, ROUNDS, M). Without `plain`, the optimal bin matrix.
    """
    rng = np.random.default_rng([int(1000 * r), release == COUNT_ERROR, plain])
    sigma = release_scale(release, EPSILON, DELTA, noise="continuous")
    matrix = BinMatrix.plain(M) if plain else BinMatrix.optimal(M)
    cells = np.full(M + 1, 1.0 / (M + 1))
    by_client = np.array([(180, 20) if t % 2 == 0 else (20, 180) for t in range(ROUNDS)])
    sums = np.zeros((2, TRIALS, ROUNDS, M))
    for client, risk in enumerate((r - 0.09, r + 0.09)):
        for t in range(ROUNDS):
            counts = rng.multinomial(by_client[t, client], cells, size=TRIALS)
            loss = rng.binomial(counts, risk).astype(np.float64)
            other = counts.astype(np.float64) if release == COUNT_ERROR else counts - loss
            for part, values in enumerate((loss, other)):
                noised = values[:, 1:] @ matrix.release.T + rng.normal(0.0, sigma, (TRIALS, M))
                sums[part, :, t] += noised @ matrix.suffix.T
    sums = np.cumsum(sums, axis=2)
    totals = np.cumsum(by_client, axis=0)
    variance = 2.0 * sigma**2 * np.arange(1, ROUNDS + 1)[:, None] * matrix.suffix_variance
    eta = np.array([[mixture_transfer((0.5, 0.5), row, (0.0, 0.0))] for row in totals.tolist()])
    events = totals.sum(axis=1, keepdims=True)
    return Sums(release, sums[0], sums[1], variance, events, sigma**2), Transfer(eta, eta)


def violations(name: str, r: float, sums: Sums, transfer: Transfer) -> float:
    claim = Claim(r, 0.05, 0.045, 0.005)
    bounds = RULES[name].bounds(claim, sums, transfer)
    missed = (bounds.contrast_upper < 0.0) | (bounds.acceptance_lower > TRUE_ACCEPTANCE)
    assert not np.any(bounds.certified & ~(bounds.contrast_upper <= 0.0))
    return float(missed.any(axis=(1, 2)).mean())


def without_noise(sums: Sums) -> Sums:
    return Sums(sums.release, sums.loss, sums.other, 0.0 * sums.variance, sums.events, sums.least_variance)


@pytest.mark.parametrize("r", [0.1, 0.3])
@pytest.mark.parametrize("release", [LOSS_NONLOSS, COUNT_ERROR])
@pytest.mark.parametrize("name", sorted(RULES))
def test_no_bound_misses_more_often_than_allowed_and_the_twin_that_ignores_noise_does(
    name: str, release: str, r: float
) -> None:
    sums, transfer = calibration(release, r)
    assert violations(name, r, sums, transfer) <= ALLOWED
    assert violations(name, r, without_noise(sums), transfer) > ALLOWED


@pytest.mark.parametrize("name", sorted(RULES))
def test_bounds_hold_under_a_bin_matrix_and_fail_when_its_noise_is_ignored(name: str) -> None:
    sums, transfer = calibration(LOSS_NONLOSS, 0.3, plain=False)
    assert violations(name, 0.3, sums, transfer) <= ALLOWED
    assert violations(name, 0.3, without_noise(sums), transfer) > ALLOWED
