"""The laws of the chosen answer on tiny pools, against every possible set of candidates."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr

from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.errors import InvalidQuantityError
from reticent.accounting.planning.laws import Floats
from reticent.accounting.studies.pools.blocks import Blocks, interpolation
from reticent.accounting.studies.pools.groups import PROXY, PROXY_WIN, TRUE, WIN, Groups, group
from reticent.accounting.studies.pools.noisy_best import bootstrap_best, distinct_best, sampled_best
from reticent.accounting.studies.pools.order_statistics import best_of_n_weights
from reticent.accounting.studies.pools.pessimism import FALLBACK, HALTING, MEASURES, Smoothing, itp, privitp
from reticent.accounting.studies.pools.round_charges import quick_charges

REWARDS = np.array([0.2, 0.9, 0.9, 0.0, 0.5, 0.2])
TRUTHS = np.array([1.0, 0.0, 1.0, 0.0, 0.25, 0.0])


def pool() -> Groups:
    return group(REWARDS, TRUTHS)


def candidate_sets(n: int, distinct: bool) -> list[tuple[int, ...]]:
    places = range(len(REWARDS))
    return list(itertools.combinations(places, n)) if distinct else list(itertools.product(places, repeat=n))


def test_a_groups_columns_are_means_over_its_answers() -> None:
    groups = pool()
    assert groups.values.tolist() == [0.0, 0.2, 0.5, 0.9]
    assert groups.counts.tolist() == [1, 2, 1, 2]
    assert groups.means[:, TRUE].tolist() == [0.0, 0.5, 0.25, 0.5]
    assert groups.means[:, PROXY].tolist() == groups.values.tolist()
    for k, members in enumerate([[3], [0, 5], [4], [1, 2]]):
        for column, values in ((WIN, TRUTHS), (PROXY_WIN, REWARDS)):
            wins = [np.mean((values[i] > values) + 0.5 * (values[i] == values)) for i in members]
            assert groups.means[k, column] == pytest.approx(np.mean(wins))
    assert groups.base[[WIN, PROXY_WIN]] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_best_of_n_is_the_mean_over_every_set_of_candidates(n: int, distinct: bool) -> None:
    if not distinct and n == 6:
        n = 5
    expected = np.zeros(2)
    sets = candidate_sets(n, distinct)
    for chosen in sets:
        best = [i for i in chosen if REWARDS[i] == max(REWARDS[j] for j in chosen)]
        expected += (np.mean(TRUTHS[best]), np.mean(REWARDS[best]))
    found = best_of_n_weights(pool(), n, distinct=distinct) @ pool().means
    assert found[[TRUE, PROXY]] == pytest.approx(expected / len(sets), rel=1e-10)


def noisy_choice(rewards: Floats, noise_scale: float, gaussian: bool) -> Floats:
    """Which of a few rewards has the largest noisy value."""
    if not gaussian:
        weights = np.exp(rewards / noise_scale)
        return np.asarray(weights / weights.sum())
    chances = []
    for i, reward in enumerate(rewards):
        others = np.delete(rewards, i)

        def density(s: float, reward: float = float(reward), others: Floats = others) -> float:
            own = math.exp(-0.5 * ((s - reward) / noise_scale) ** 2) / math.sqrt(2 * math.pi) / noise_scale
            return float(own * np.prod(ndtr((s - others) / noise_scale)))

        chances.append(quad(density, -8 * noise_scale, 1 + 8 * noise_scale, limit=200, epsabs=1e-11)[0])
    return np.array(chances)


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize("noise_scale", [0.05, 0.3, 2.0])
def test_privbon_is_the_mean_over_every_set_of_candidates(noise_scale: float, distinct: bool, gaussian: bool) -> None:
    sizes = [1, 2, 3] if not distinct or gaussian else [1, 2, 4, 6]
    law = distinct_best if distinct else bootstrap_best
    found = law(pool(), sizes, noise_scale, gaussian=gaussian)
    kept: dict[tuple[int, ...], Floats] = {}
    for n, row in zip(sizes, found, strict=True):
        expected = np.zeros(2)
        sets = candidate_sets(n, distinct)
        for chosen in sets:
            own = tuple(sorted(chosen))
            if own not in kept:
                kept[own] = noisy_choice(REWARDS[list(own)], noise_scale, gaussian)
            expected += (kept[own] @ TRUTHS[list(own)], kept[own] @ REWARDS[list(own)])
        assert row[[TRUE, PROXY]] == pytest.approx(expected / len(sets), abs=1e-6)


def test_privbon_with_little_noise_is_best_of_n_and_with_much_a_base_sample() -> None:
    groups = pool()
    best = best_of_n_weights(groups, 3, distinct=True) @ groups.means
    assert distinct_best(groups, [3], 0.002)[0] == pytest.approx(best, abs=1e-5)
    assert distinct_best(groups, [3], 1e4)[0] == pytest.approx(groups.base, abs=1e-4)


def test_sampled_privbon_agrees_with_the_recursion_and_a_wrong_scale_does_not() -> None:
    rng = np.random.default_rng(3)
    groups = group(rng.random(60), (rng.random(60) < 0.4).astype(float))
    blocks = Blocks(groups, [7], distinct=True, draws=4000, rng=rng)
    exact = distinct_best(groups, [7], 0.2)[0]
    for gaussian in (False, True):
        exact = distinct_best(groups, [7], 0.2, gaussian=gaussian)[0]
        drawn = sampled_best(groups, blocks.members(7), 0.2, rng, gaussian=gaussian)
        error = drawn.std(axis=0, ddof=1) / math.sqrt(len(drawn))
        assert np.all(np.abs(drawn.mean(axis=0) - exact) < 5 * error + 1e-6)
        wrong = sampled_best(groups, blocks.members(7), 0.7 * 0.2, rng, gaussian=gaussian)
        assert abs(wrong.mean(axis=0)[PROXY] - exact[PROXY]) > 5 * error[PROXY]


def test_more_candidates_than_answers_are_refused() -> None:
    with pytest.raises(InvalidQuantityError, match="candidates"):
        distinct_best(pool(), [7], 0.2)


def normalizer(rewards: Floats, beta: float) -> float:
    low, high = -beta, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.maximum(rewards - middle, 0).mean() > beta else (low, middle)
    return low


@pytest.mark.parametrize("distinct", [True, False])
def test_sampled_normalizers_are_those_of_the_definition(distinct: bool) -> None:
    groups = pool()
    blocks = Blocks(groups, [1, 3], distinct=distinct, draws=64, rng=np.random.default_rng(0))
    for n in (1, 3):
        members = blocks.members(n)
        found = blocks.normalizers(n, 0.3)
        assert found.shape == members.shape[:2]
        for batch, m in itertools.product(range(len(members)), range(3)):
            assert found[batch, m] == pytest.approx(normalizer(groups.values[members[batch, m]], 0.3), abs=1e-9)
        if distinct and n == 1:
            # Every order uses every answer once.
            orders = members[0, :, 0].reshape(-1, groups.size)
            assert np.array_equal(np.sort(orders, axis=1), np.tile(np.sort(groups.member), (len(orders), 1)))


def test_blocks_of_one_order_share_no_answer() -> None:
    groups = group(np.arange(10.0) / 10.0, np.zeros(10))
    members = Blocks(groups, [3], distinct=True, draws=24, rng=np.random.default_rng(1)).members(3)
    for first in range(0, members.shape[1], 3):
        flat = members[0, first : first + 3].ravel().tolist()
        assert len(set(flat)) == len(flat)


def test_interpolation_is_exact_for_cubics_and_its_weights_sum_to_one() -> None:
    grid = np.linspace(-0.1, 0.9, 65)
    levels = np.random.default_rng(0).uniform(-0.1, 0.9, (4, 9))
    weights = interpolation(levels, grid)
    assert weights.sum(axis=1) == pytest.approx(np.ones(4))
    assert weights @ grid**3 == pytest.approx((levels**3).mean(axis=1))


def sequence(accept: Floats, n: int) -> Floats:
    """True, proxy, halting, fallback: means given the acceptance probability of each answer, round after round."""
    going, found = 1.0, np.zeros(4)
    for t in range(1, n + 1):
        own = going * accept / len(accept)
        found += (own @ TRUTHS, own @ REWARDS, t * own.sum(), 0.0)
        going -= own.sum()
    return found + going * np.array([TRUTHS.mean(), REWARDS.mean(), n, 1.0])


@pytest.mark.parametrize("n", [1, 2, 6])
def test_itp_is_the_mean_over_every_first_set_and_every_round(n: int) -> None:
    beta = 0.15
    sets = candidate_sets(n, True)
    expected = np.zeros(4)
    for chosen in sets:
        level = normalizer(REWARDS[list(chosen)], beta)
        expected += sequence(np.maximum(REWARDS - level, 0.0) / (1.0 - level), n)
    blocks = Blocks(pool(), [n], distinct=True, draws=20_000, rng=np.random.default_rng(0))
    found = itp(pool(), blocks, n, beta)
    error = found.std(axis=0, ddof=1)[[TRUE, PROXY, HALTING, FALLBACK]] / math.sqrt(len(found))
    mean = found.mean(axis=0)[[TRUE, PROXY, HALTING, FALLBACK]]
    assert np.all(np.abs(mean - expected / len(sets)) <= 5 * error + 1e-8)
    if n != 2:
        assert mean == pytest.approx(expected / len(sets), abs=1e-8)  # nothing is left to chance


@pytest.mark.parametrize(("sigma_X", "sigma_Z", "L"), [(0.1, 0.2, 1.5), (0.4, 0.1, 0.0), (0.05, 0.05, 2.0)])
def test_privitp_is_the_integral_over_the_noisy_clamped_threshold(sigma_X: float, sigma_Z: float, L: float) -> None:
    n, beta = 6, 0.2
    mechanism = PrivITP(1.0, 0.1, n, beta, sigma_X, sigma_Z, L, granule=0.0)
    level = normalizer(REWARDS, beta)

    def at(noise: float) -> Floats:
        law = mechanism.acceptance_law(mechanism.clamp(level + sigma_X * noise))
        return sequence(np.array([math.exp(law.log_accept(float(q))) for q in REWARDS]), n)

    nodes = np.linspace(-8, 8, 4001)
    density = np.exp(-0.5 * nodes**2) * (nodes[1] - nodes[0]) / math.sqrt(2 * math.pi)
    expected = np.sum([w * at(x) for x, w in zip(nodes, density, strict=True) if w > 1e-12], axis=0)
    smoothing = Smoothing.of(mechanism)
    blocks = Blocks(pool(), [n], distinct=True, draws=8, rng=np.random.default_rng(0))
    (found,) = privitp(pool(), blocks, [mechanism], smoothing, [quick_charges(mechanism, smoothing.grid, 3.0)])
    assert found.shape == (8, MEASURES)
    assert found.mean(axis=0)[[TRUE, PROXY, HALTING, FALLBACK]] == pytest.approx(expected, abs=5e-4)
