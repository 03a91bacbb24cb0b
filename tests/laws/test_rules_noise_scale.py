"""Noise of the two kinds of release, exact and as the paper's zCDP has it, and the bin matrix."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from reticent.accounting.calibration.bin_matrix import BinMatrix
from reticent.accounting.calibration.kinds import COUNT_ERROR, LOSS_NONLOSS
from reticent.accounting.calibration.noise_scale import (
    discrete_pair_delta_of,
    release_delta,
    release_scale,
    zcdp_scale,
)
from reticent.accounting.errors import InvalidQuantityError

DELTA = 1e-6


def slow_delta(epsilon: float, sigma: float, moved: int) -> mp.mpf:
    """Σ max(0, p - e^ε p') over a grid of outcomes, of which the first `moved` integers move by 1."""
    reach = math.ceil(9 * sigma) + 2
    mass = [mp.exp(-(mp.mpf(x) ** 2) / (2 * mp.mpf(sigma) ** 2)) for x in range(-reach - 1, reach + 2)]
    total = mp.fsum(mass)
    p, q = [w / total for w in mass[1:]], [w / total for w in mass[:-1]]
    factor = mp.exp(mp.mpf(epsilon))
    if moved == 1:
        return mp.fsum(max(mp.mpf(0), a - factor * b) for a, b in zip(p, q, strict=True))
    return mp.fsum(
        max(mp.mpf(0), a * c - factor * b * d) for a, b in zip(p, q, strict=True) for c, d in zip(p, q, strict=True)
    )


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.5, 0.6), (1.0, 1.0), (2.0, 1.7), (4.0, 0.9), (0.0, 2.0)])
def test_the_delta_of_a_pair_agrees_with_the_sum_over_all_outcomes(epsilon: float, sigma: float) -> None:
    exact = discrete_pair_delta_of(epsilon, sigma)
    assert exact == pytest.approx(float(slow_delta(epsilon, sigma, 2)), rel=1e-10)
    assert exact >= float(slow_delta(epsilon, sigma, 1))  # a record of loss 0 moves one integer


@pytest.mark.parametrize(
    ("epsilon", "paper", "one_hot"),
    [(8, 1.05, 0.659), (4, 1.98, 1.170), (2, 3.85, 2.247), (1, 7.57, 4.231), (0.5, 15.0, 8.053)],
)
def test_scales_are_those_of_the_design(epsilon: float, paper: float, one_hot: float) -> None:
    assert release_scale(COUNT_ERROR, epsilon, DELTA, method="zcdp") == pytest.approx(paper, rel=5e-3)
    assert release_scale(LOSS_NONLOSS, epsilon, DELTA) == pytest.approx(one_hot, abs=6e-4)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_the_zcdp_scale_solves_the_papers_equation(epsilon: float) -> None:
    rho = 1 / mp.mpf(zcdp_scale(epsilon, DELTA)) ** 2
    assert float(rho + 2 * mp.sqrt(rho * mp.log(1 / mp.mpf(DELTA)))) == pytest.approx(epsilon, rel=1e-11)
    assert float(rho + 2 * mp.sqrt(rho * mp.log(1 / mp.mpf(DELTA)))) <= epsilon


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("release", [LOSS_NONLOSS, COUNT_ERROR])
@pytest.mark.parametrize("noise", ["discrete", "continuous"])
def test_every_scale_keeps_its_delta_and_a_smaller_one_does_not(release: str, epsilon: float, noise: str) -> None:
    exact = release_scale(release, epsilon, DELTA, noise=noise)  # type: ignore[arg-type]
    zcdp = release_scale(release, epsilon, DELTA, method="zcdp", noise=noise)  # type: ignore[arg-type]
    assert release_delta(release, epsilon, exact, noise) <= DELTA  # type: ignore[arg-type]
    assert release_delta(release, epsilon, zcdp, noise) <= DELTA  # type: ignore[arg-type]
    assert release_delta(release, epsilon, 0.99 * exact, noise) > DELTA  # type: ignore[arg-type]
    assert exact < zcdp  # the paper's conversion asks for more noise


def test_one_hot_releases_need_less_noise() -> None:
    for epsilon in (1.0, 4.0):
        assert release_scale(LOSS_NONLOSS, epsilon, DELTA) < 0.75 * release_scale(COUNT_ERROR, epsilon, DELTA)


def test_values_outside_the_range_are_refused() -> None:
    with pytest.raises(InvalidQuantityError):
        zcdp_scale(0.0, DELTA)
    with pytest.raises(InvalidQuantityError):
        zcdp_scale(1.0, 1.0)
    with pytest.raises(InvalidQuantityError):
        discrete_pair_delta_of(1.0, 0.01)
    with pytest.raises(ValueError, match="must be one of"):
        release_scale("counts", 1.0, DELTA)


@pytest.mark.parametrize("m", [1, 2, 5, 20, 40])
def test_a_bin_matrix_restores_the_suffix_sums_with_columns_of_norm_at_most_one(m: int) -> None:
    for matrix in (BinMatrix.optimal(m), BinMatrix.plain(m)):
        assert np.all((matrix.release**2).sum(axis=0) <= 1.0)
        np.testing.assert_allclose(matrix.suffix @ matrix.release, np.triu(np.ones((m, m))), atol=1e-11)
        np.testing.assert_allclose((matrix.suffix**2).sum(axis=1), matrix.suffix_variance)
    np.testing.assert_allclose(BinMatrix.plain(m).suffix_variance, np.arange(m, 0, -1.0))
    assert BinMatrix.optimal(m).suffix_variance.max() <= m * (1 + 1e-9)


def test_the_best_bin_matrix_has_the_suffix_variance_of_the_design_at_every_threshold() -> None:
    variance = BinMatrix.optimal(20).suffix_variance
    np.testing.assert_allclose(variance, 3.13, atol=0.006)
