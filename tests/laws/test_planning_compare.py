"""Rewards of answers and the comparison of rules."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from reticent.accounting.planning.compare import Comparison, Grid, compare, default_grid
from reticent.accounting.planning.laws import BetaLaw, PointLaw
from reticent.accounting.planning.pools import PoolLaw, load_pool
from reticent.accounting.planning.queries import Budget
from reticent.accounting.planning.selected import base_reward, best_of_n_reward, privbon_rewards

BUDGET = Budget(50.0, 0.01)


@pytest.fixture
def pool(tmp_path: Path) -> PoolLaw:
    path = tmp_path / "pool.jsonl"
    rows = ['{"responses": [{"proxy_reward": 0.0}, {"proxy_reward": 1.0}]}', '{"responses": [{"proxy_reward": 0.25}]}']
    path.write_text("\n".join(rows), encoding="utf-8")
    return load_pool(path, 1.0)


def exact_softmax_reward(n: int, sigma: float) -> float:
    """PrivBoN's mean reward where each of n rewards is 0 or 1 with equal chance, by listing every case."""
    total = 0.0
    for rewards in itertools.product((0.0, 1.0), repeat=n):
        weights = [math.exp(reward / sigma) for reward in rewards]
        total += sum(w * r for w, r in zip(weights, rewards, strict=True)) / sum(weights)
    return total / float(2**n)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 5.0])
def test_the_reward_of_privbon_is_the_enumerated_one(pool: PoolLaw, sigma: float) -> None:
    ((mean, error),) = privbon_rewards(pool, 3, [sigma], draws=20000)
    exact = 0.5 * (exact_softmax_reward(3, sigma) + 0.25)
    assert abs(mean - exact) < 4.0 * error + 1e-9
    if sigma != 0.5:
        return
    ((other, _),) = privbon_rewards(pool, 3, [2.0 * sigma], draws=20000)
    assert abs(other - exact) > 8.0 * error  # the twin: twice the noise


def test_gaussian_noise_selects_as_its_law_says(pool: PoolLaw) -> None:
    sigma = 0.7
    ((mean, error),) = privbon_rewards(pool, 2, [sigma], gaussian=True, draws=40000)
    # Of two rewards 0 and 1 the larger wins with probability Φ(1/(σ√2)).
    wins = 0.5 * (1.0 + math.erf(1.0 / (2.0 * sigma)))
    assert abs(mean - 0.5 * (0.25 + 0.5 * wins + 0.25)) < 4.0 * error


def test_base_and_best_rewards_are_the_enumerated_ones(pool: PoolLaw) -> None:
    assert base_reward(pool) == pytest.approx(0.375)
    mean, error = best_of_n_reward(pool, 3, draws=20000)
    assert abs(mean - 0.5 * (7 / 8 + 0.25)) < 4.0 * error


def test_where_all_rewards_are_equal_every_rule_gives_that_reward() -> None:
    law = PointLaw(0.4, 1.0)
    found = compare(1.0, 0.1, 4, law, BUDGET, grid=Grid((0.5,), (0.5,), (0.5,), (0.1,), (0.0,)), draws=64)
    assert [point.reward for point in found.points] == pytest.approx([0.4, 0.4])
    assert found.base_reward == pytest.approx(0.4)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    grid = Grid((0.16, 0.24, 0.32, 0.36, 0.48, 0.64), (0.256, 0.512), (0.256,), (0.05,), (0.0, 3.84))
    return compare(1.0, 0.05, 16, BetaLaw(2.0, 2.0, 1.0), BUDGET, grid=grid, draws=2048)


def test_the_frontier_is_that_of_pairwise_comparison(comparison: Comparison) -> None:
    for point in comparison.points:
        beaten = [
            other.rule
            for other in comparison.points
            if other is not point and other.charge <= point.charge and other.reward >= point.reward
        ]
        assert point.frontier is not bool(beaten)
        assert point.rule_frontier is (point.rule not in beaten)


def test_privbon_costs_several_times_less_than_the_papers_split_at_equal_reward(comparison: Comparison) -> None:
    papers = {"threshold_noise": 0.256, "reward_noise": 0.256, "regularization": 0.05, "truncation": 3.84}
    (split,) = (point for point in comparison.points if dict(point.parameters) == papers)
    assert split.reward == pytest.approx(0.616, abs=0.003)
    assert split.times_privbon is not None
    assert 3.0 < split.times_privbon < 7.0
    (better,) = (
        point
        for point in comparison.points
        if dict(point.parameters) == {**papers, "threshold_noise": 0.512, "truncation": 0.0}
    )
    assert better.times_privbon is not None
    assert better.times_privbon < 0.7 * split.times_privbon


def test_more_noise_is_cheaper_and_worth_less(comparison: Comparison) -> None:
    bon = sorted((dict(p.parameters)["noise_scale"], p) for p in comparison.points if p.rule == "privbon")
    for (_, less), (_, more) in itertools.pairwise(bon):
        assert more.charge < less.charge
        assert more.queries > less.queries
        assert more.reward < less.reward


def test_the_default_grid_scales_with_the_rewards() -> None:
    one, five = default_grid(1.0, 16), default_grid(5.0, 16)
    assert np.allclose(np.array(five.privbon_scales), 5.0 * np.array(one.privbon_scales))
    assert np.allclose(np.array(five.reward_noises), 5.0 * np.array(one.reward_noises))
    assert five.truncations == one.truncations
