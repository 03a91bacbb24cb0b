"""The engine that runs all trials of a simulated calibration at once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reticent.accounting.calibration.aggregate import mixture_transfer
from reticent.accounting.calibration.kinds import COUNT_ERROR, LOSS_NONLOSS
from reticent.accounting.studies.certificates.engine import noise_table, simulate
from reticent.accounting.studies.certificates.populations import Population, fitted_cell, null_population
from reticent.accounting.studies.certificates.streams import Past, Request, Stream, adversarial, alternating, even

CELL = fitted_cell("halueval")


def test_without_noise_the_sums_are_counts_with_the_means_of_the_law() -> None:
    for release in (LOSS_NONLOSS, COUNT_ERROR):
        sums = simulate(CELL, Stream(even(3, 1000, 5), 0.0, release), 400, 1).sums()
        accepted, loss = sums.accepted, sums.loss
        assert np.all(loss == np.rint(loss))
        assert np.all(accepted >= loss)
        assert np.all(np.diff(accepted, axis=2) <= 0)
        n = np.array([1000, 2000, 3000])[:, None]
        spread = 5 * np.sqrt(0.25 * n / 400)
        assert np.all(np.abs(accepted.mean(axis=0) - n * CELL.accepted()) < spread)
        assert np.all(np.abs(loss.mean(axis=0) - n * CELL.accepted_loss()) < spread)


def test_sums_follow_the_same_law_as_records_drawn_one_by_one() -> None:
    rng = np.random.default_rng(4)
    flat = CELL.cells[2].ravel()
    slow = np.empty((2000, 2))
    for trial in range(2000):
        bins, losses = np.divmod(rng.choice(flat.size, size=60, p=flat), 2)
        slow[trial] = ((bins >= 15) & (losses == 1)).sum(), ((bins >= 15) & (losses == 0)).sum()
    fast = simulate(CELL.site(2), Stream(even(1, 60, 1), 0.0), 2000, 5)
    pairs = np.stack([fast.loss[:, 0, 14], fast.other[:, 0, 14]], axis=1)
    assert np.allclose(pairs.mean(axis=0), slow.mean(axis=0), atol=0.35)
    assert np.allclose(np.cov(pairs.T), np.cov(slow.T), atol=1.2)


@pytest.mark.parametrize("discrete", [True, False])
def test_noise_has_the_stated_variance_in_every_suffix(discrete: bool) -> None:
    stream = Stream(even(2, 2, 2), 3.0, COUNT_ERROR, discrete)
    tr = simulate(null_population(0.5), stream, 6000, 2)
    clean = simulate(null_population(0.5), Stream(even(2, 2, 2), 0.0, COUNT_ERROR, discrete), 6000, 3)
    V = tr.sums().variance
    assert np.allclose(V[0, 1], 4 * 9.0 * np.arange(20, 0, -1))
    for noised, exact in ((tr.loss, clean.loss), (tr.other, clean.other)):
        ratio = (noised[:, 1].var(axis=0) - exact[:, 1].var(axis=0)) / V[0, 1]
        assert np.all(np.abs(ratio - 1.0) < 0.12)
    if discrete:
        assert np.all(tr.loss == np.rint(tr.loss))


def test_the_noise_table_is_the_law_of_a_sum_of_discrete_gaussians() -> None:
    support, cumulative = noise_table(0.7, 2)
    weights = {k: math.exp(-k * k / (2 * 0.49)) for k in range(-12, 13)}
    total = sum(weights.values())
    at_one = sum(weights[a] * weights.get(1 - a, 0.0) for a in weights) / total**2
    index = int(np.searchsorted(support, 1.0))
    assert cumulative[index] - cumulative[index - 1] == pytest.approx(at_one, rel=1e-12)
    assert cumulative[-1] == pytest.approx(1.0, abs=1e-12)


def test_fractional_losses_are_summed_or_rounded_by_a_coin() -> None:
    population = null_population(0.4, fractional=True)
    summed = simulate(population, Stream(even(1, 400, 2), 0.0, COUNT_ERROR, discrete=False), 1500, 1).loss[:, 0, 0]
    rounded = simulate(population, Stream(even(1, 400, 2), 0.0, COUNT_ERROR, discrete=True), 1500, 1).loss[:, 0, 0]
    assert np.any(summed != np.rint(summed))
    assert np.all(rounded == np.rint(rounded))
    assert summed.mean() == pytest.approx(rounded.mean(), abs=1.5)
    assert summed.var() < 0.8 * rounded.var()


def test_a_site_that_drops_out_adds_neither_records_nor_noise() -> None:
    tr = simulate(CELL, Stream(even(20, 500, 5), 2.0, dropout=0.4), 300, 6)
    assert set(np.unique(np.diff(tr.by_site, axis=1))) == {0, 100}
    released = (np.diff(tr.by_site, axis=1, prepend=0) > 0).sum(axis=2).cumsum(axis=1)
    assert np.allclose(tr.noise, 4.0 * released)
    assert released[:, -1].mean() == pytest.approx(60, abs=1.5)


def test_what_a_round_asks_for_does_not_depend_on_its_own_records() -> None:
    """Two populations that differ in everything get the same first request, and later ones from noised sums alone."""
    seen: list[Past] = []

    def watching(past: Past) -> Request:
        seen.append(past)
        return adversarial(past)

    stream = Stream(even(3, 400, 2), 2.0, policy=watching)
    runs = [simulate(null_population(r, spread=0.05), stream, 50, 1, target_risk=0.3) for r in (0.1, 0.9)]
    assert np.array_equal(runs[0].by_site[:, 0], runs[1].by_site[:, 0])
    assert not np.array_equal(runs[0].by_site, runs[1].by_site)
    assert [past.round_number for past in seen] == [0, 1, 2] * 2
    for run, pasts in zip(runs, (seen[:3], seen[3:]), strict=True):
        for past in pasts[1:]:
            before = past.round_number - 1
            sums = run.loss[:, before] - 0.3 * (run.loss[:, before] + run.other[:, before])
            assert np.allclose(past.contrast, sums)


def test_sums_of_single_sites_add_up_to_the_whole() -> None:
    tr = simulate(CELL, Stream(even(4, 100, 5), 1.5), 20, 8, keep_sites=True)
    parts = [tr.site_sums(k) for k in range(5)]
    whole = tr.sums()
    for name in ("loss", "other", "variance", "events"):
        assert np.allclose(sum(getattr(part, name) for part in parts), getattr(whole, name))
    with pytest.raises(ValueError, match="not kept"):
        simulate(CELL, Stream(even(1, 100, 5), 1.5), 2, 8).site_sums(0)


def test_transfer_is_that_of_the_aggregate() -> None:
    tr = simulate(null_population(0.2), Stream(alternating(4, 300, 0.8), 1.0, dropout=0.5), 30, 9)
    eta = tr.transfer(np.array([0.5, 0.5]), 0.01).contrast
    for trial in range(30):
        for number in range(4):
            want = mixture_transfer((0.5, 0.5), tr.by_site[trial, number].tolist(), (0.01, 0.01))
            assert eta[trial, number, 0] == pytest.approx(want, abs=1e-12)


def test_a_seed_gives_the_same_transcripts_and_another_seed_others() -> None:
    stream = Stream(even(2, 100, 5), 1.5, policy=adversarial)
    one, same, other = (simulate(CELL, stream, 10, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.loss, same.loss)
    assert not np.array_equal(one.loss, other.loss)


def test_plans_for_other_sites_and_no_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="5 sites"):
        simulate(CELL, Stream(even(2, 100, 2), 1.0), 10, 1)
    with pytest.raises(ValueError, match="one trial"):
        simulate(CELL, Stream(even(2, 100, 5), 1.0), 0, 1)
    with pytest.raises(ValueError, match="do not fit"):
        Population("x", np.full((1, 2, 2), 0.25), np.array([0.0]), np.ones(1))
