"""Synthetic populations and the streams that ask them for records."""

from __future__ import annotations

import numpy as np
import pytest

from reticent.accounting.calibration import Claim
from reticent.accounting.studies.certificates.populations import (
    CELLS,
    Population,
    binary_losses,
    fitted_cell,
    fractional_losses,
    null_population,
    with_drift,
)
from reticent.accounting.studies.certificates.schedules import HORIZON, schedule_slots
from reticent.accounting.studies.certificates.streams import (
    Past,
    adaptive_scale,
    adversarial,
    alternating,
    even,
    largest_deficit,
    planned,
    uneven_batches,
)


@pytest.mark.parametrize("name", CELLS)
def test_a_fitted_cell_has_equal_bins_under_the_declared_mixture_and_sites_that_differ(name: str) -> None:
    cell = fitted_cell(name)
    assert (cell.sites, cell.size) == (5, 20)
    assert np.allclose(cell.accepted(), np.arange(20, 0, -1) / 21)
    by_site = cell.cells @ cell.loss_values
    assert np.ptp(by_site.sum(axis=1)) > 0.1
    base = float(cell.weights @ by_site.sum(axis=1))
    assert base == pytest.approx({"c1": 0.41, "halueval": 0.5}[name], abs=1e-3)


def test_suffix_means_agree_with_a_loop_over_bins_and_losses() -> None:
    rng = np.random.default_rng(3)
    cells = rng.dirichlet(np.ones(5 * 3), size=2).reshape(2, 5, 3)
    population = Population("x", cells, np.array([0.0, 0.3, 1.0]), np.array([0.25, 0.75]))
    for j in range(1, 5):
        z = a = 0.0
        for site, weight in enumerate((0.25, 0.75)):
            for b in range(j, 5):
                for value, p in zip((0.0, 0.3, 1.0), cells[site, b], strict=True):
                    z, a = z + weight * value * p, a + weight * p
        assert population.accepted_loss()[j - 1] == pytest.approx(z)
        assert population.accepted()[j - 1] == pytest.approx(a)
        assert population.contrast(0.2)[j - 1] == pytest.approx(z - 0.2 * a)
        assert population.risk()[j - 1] == pytest.approx(z / a)


@pytest.mark.parametrize("fractional", [False, True])
@pytest.mark.parametrize("sites", [1, 2, 3, 5])
def test_the_null_population_has_the_target_risk_at_every_threshold(sites: int, fractional: bool) -> None:
    population = null_population(0.3, spread=0.1, sites=sites, fractional=fractional)
    assert np.allclose(population.risk(), 0.3)
    assert np.abs(population.contrast(0.3)).max() < 1e-12


def test_fractional_losses_keep_the_mean_and_lower_the_variance() -> None:
    bins, risks = np.full((1, 3), 1 / 3), np.array([[0.1, 0.5, 0.8]])
    one, other = (make("x", bins, risks, [1.0]) for make in (binary_losses, fractional_losses))
    assert np.allclose(one.accepted_loss(), other.accepted_loss())
    squares = [float((p.cells @ p.loss_values**2).sum()) for p in (one, other)]
    assert squares[1] < squares[0]


def test_drift_moves_the_law_by_no_more_than_is_declared_and_the_risk_up() -> None:
    population = fitted_cell("c1")
    moved = with_drift(population, 0.02)
    distance = 0.5 * np.abs(moved.cells - population.cells).sum(axis=(1, 2))
    assert np.all(distance <= 0.02)
    assert np.all(moved.risk() > population.risk())
    assert np.allclose(moved.accepted(), population.accepted())


def test_drawn_records_follow_the_declared_mixture() -> None:
    cell = fitted_cell("halueval")
    records, thresholds = cell.draw_records(40_000, 5)
    scores, losses = np.array(records).T
    for j in (0, 9, 17):
        accepted = scores >= thresholds[j]
        assert accepted.mean() == pytest.approx(float(cell.accepted()[j]), abs=0.012)
        assert losses[accepted].mean() == pytest.approx(float(cell.risk()[j]), abs=0.02)


@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.5, -0.5]])
def test_weights_that_are_no_probabilities_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        binary_losses("x", np.full((2, 3), 1 / 3), np.full((2, 3), 0.5), weights)


def test_an_unknown_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="c1, halueval"):
        fitted_cell("c2")


@pytest.mark.parametrize("name", ["paper", "own", "dev"])
def test_every_schedule_ends_at_the_horizon_and_keeps_sites_even(name: str) -> None:
    slots = schedule_slots(name, Claim(0.2, 0.05, 0.045, 0.005), fitted_cell("halueval"), 1.17, 1)
    assert slots.sum() == HORIZON
    assert np.all(slots > 0)
    assert np.all(slots == slots[:, :1])
    if name != "paper":
        looks = np.cumsum(slots.sum(axis=1))
        assert np.all(looks[1:-1] / looks[:-2] == pytest.approx(1.4, rel=0.02))


def _past(contrast: float, by_site: list[int], coin: float = 0.5) -> Past:
    return Past(
        4,
        np.full((1, 20), contrast),
        np.array([by_site]),
        np.array([100, 100]),
        np.array([0.5, 0.5]),
        2.0,
        np.array([coin]),
    )


def test_policies_ask_for_what_they_say() -> None:
    assert planned(_past(0.0, [10, 10])).slots.tolist() == [[100, 100]]
    assert largest_deficit(_past(0.0, [300, 100])).slots.tolist() == [[0, 200]]
    hopeful = adversarial(_past(-500.0, [100, 100]))
    assert hopeful.slots.tolist() == [[51, 0]]
    assert hopeful.scales.tolist() == [4.0]
    assert adversarial(_past(500.0, [300, 100])).slots.tolist() == [[0, 200]]
    assert adaptive_scale(_past(-500.0, [100, 100])).scales.tolist() == [6.0]
    assert adaptive_scale(_past(500.0, [100, 100])).scales.tolist() == [2.0]
    small, large = (uneven_batches(_past(c, [100, 100], 0.9)).slots.sum() for c in (-500.0, 500.0))
    assert small < large


def test_slots_of_moving_and_even_plans_add_up() -> None:
    slots = alternating(6, 500, 0.9)
    assert np.all(slots.reshape(3, 2, 2).sum(axis=1) == 500)
    assert slots.max() == 450
    assert even(3, 10, 4).tolist() == [[3] * 4] * 3
