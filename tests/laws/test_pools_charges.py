"""The charge of a PrivITP query on a pool: moments against sums over outcomes, quick charges against the table's."""

from __future__ import annotations

import numpy as np
import pytest

from reticent.accounting.charges.privitp import PrivITP, default_truncation
from reticent.accounting.studies.pools.pessimism import CHARGE, CHARGE_SQUARE, FALLBACK, HALTING, Smoothing, _after
from reticent.accounting.studies.pools.round_charges import RoundCharges, certified_charges, quick_charges


@pytest.mark.parametrize("p", [0.0, 1e-9, 1e-4, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 2, 17])
def test_moments_of_the_charge_are_sums_over_every_outcome(n: int, p: float) -> None:
    r, s, fixed = 0.07, 0.4, 0.2
    outcomes = [(p * (1 - p) ** (t - 1), fixed + (t - 1) * r + s, t, 0) for t in range(1, n + 1)]
    outcomes.append(((1 - p) ** n, fixed + n * r, n, 1))
    charges = RoundCharges(np.array([r]), np.array([s]), fixed, 9.0)
    found = _after(np.array([p]), np.zeros((1, 4)), np.zeros(4), n, charges)[0]
    assert found[CHARGE] == pytest.approx(sum(w * c for w, c, _, _ in outcomes), rel=1e-6)
    assert found[CHARGE_SQUARE] == pytest.approx(sum(w * c * c for w, c, _, _ in outcomes), rel=1e-5)
    assert found[HALTING] == pytest.approx(sum(w * t for w, _, t, _ in outcomes), rel=1e-6)
    assert found[FALLBACK] == pytest.approx(outcomes[-1][0], abs=1e-12)


@pytest.mark.parametrize(
    ("n", "sigma", "beta", "delta", "L"),
    [
        (16, 0.512, 0.05, 0.05, None),
        (16, 2.56, 0.05, 0.01, 0.0),
        (1, 0.5, 0.1, 0.05, None),
        (16, 1.024, 0.05, 1.0, None),
    ],
)
@pytest.mark.parametrize("order", [3.0, 20.0])
def test_quick_charges_are_within_one_per_cent_of_the_certified_ones(
    n: int, sigma: float, beta: float, delta: float, L: float | None, order: float
) -> None:
    L = default_truncation(n) if L is None else L
    mechanism = PrivITP(1.0, delta, n, beta, 0.5 * sigma, 0.5 * sigma, L, granule=0.0)
    grid = Smoothing.of(mechanism).grid
    quick, certified = quick_charges(mechanism, grid, order), certified_charges(mechanism, grid, order)
    assert quick.fixed == certified.fixed
    assert quick.worst == pytest.approx(certified.worst, rel=0.015)
    for odds in (1.0, 10.0):
        means = [odds * charges.rejection + charges.acceptance for charges in (quick, certified)]
        assert means[0] == pytest.approx(means[1], rel=0.03)
        assert means[0].mean() == pytest.approx(means[1].mean(), rel=0.01)
