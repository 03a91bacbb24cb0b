"""The outcome law of PrivITP against a simulation of the whole mechanism, and its parts against slow twins."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.planning.laws import BetaLaw, Floats, PointLaw, RewardLaw
from reticent.accounting.planning.outcomes import (
    OutcomeLaw,
    acceptance_probabilities,
    normalizers,
    occupancy,
    outcome_law,
    threshold_grid,
)
from reticent.accounting.planning.pools import load_pool

MECHANISM = PrivITP(1.0, 0.5, 3, 0.3, 0.25, 0.3, 1.0)
LAW = BetaLaw(2.0, 3.0, 1.0)


def simulated(mechanism: PrivITP, law: RewardLaw, trials: int, seed: int) -> tuple[Floats, float, float]:
    """Halting law, mean answer reward and mean "ville" charge of phase 2, by running Algorithm 2 many times."""
    rng = np.random.default_rng(seed)
    n, R, beta = mechanism.candidates, mechanism.reward_max, mechanism.regularization
    sigma_X, sigma_Z = mechanism.threshold_noise, mechanism.reward_noise
    halting, total_reward, total_charge = np.zeros(n + 1), 0.0, 0.0
    for _ in range(trials):
        prompt = int(rng.integers(law.prompts))
        rewards = law.draw(prompt, rng, (n,))
        # Bisection of the defining equation, not the closed rule.
        low, high = -beta, R - beta
        for _ in range(50):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if np.maximum(rewards - middle, 0.0).sum() > n * beta else (low, middle)
        level = mechanism.clamp(0.5 * (low + high) + sigma_X * rng.standard_normal())
        width = R + sigma_Z * mechanism.truncation - level
        costs = mechanism.round_costs(level)
        answer, row = float(law.draw(prompt, rng, ())), n
        for t in range(n):
            q = float(law.draw(prompt, rng, ()))
            # The paper's own draw: noise on the reward, then accept against a uniform coin.
            if (q + sigma_Z * rng.standard_normal() - level) / width > rng.random():
                answer, row = q, t
                break
        halting[row] += 1.0
        total_reward += answer
        total_charge += costs.fallback() if row == n else costs.accepted(row + 1)
    return halting / trials, total_reward / trials, total_charge / trials


def ville_costs(mechanism: PrivITP, outcome: OutcomeLaw) -> tuple[Floats, Floats]:
    costs = [mechanism.round_costs(float(level)) for level in outcome.thresholds]
    return np.array([c.rejection for c in costs]), np.array([c.acceptance for c in costs])


def distance(mechanism: PrivITP, law: RewardLaw, planned: PrivITP, trials: int = 6000) -> float:
    """Largest gap between simulation of `mechanism` and plan for `planned`, in standard errors of the simulation."""
    halting, reward, charge = simulated(mechanism, law, trials, seed=3)
    outcome = outcome_law(planned, law, seed=1)
    rejection, acceptance = ville_costs(planned, outcome)
    table = outcome.cost_table(rejection, acceptance)
    mean = float((table * outcome.joint).sum())
    spread = math.sqrt(float((table**2 * outcome.joint).sum()) - mean**2)
    gaps = [
        np.abs(halting - outcome.halting).max() / 0.5,
        abs(reward - outcome.mean_reward()[0]) / 0.25,
        abs(charge - mean) / spread,
    ]
    return float(max(gaps)) * math.sqrt(trials)


def test_the_outcome_law_is_that_of_the_whole_mechanism() -> None:
    assert distance(MECHANISM, LAW, MECHANISM) < 4.0


def test_with_less_noise_the_outcome_law_is_another_one() -> None:
    assert distance(replace(MECHANISM, reward_noise=0.15), LAW, MECHANISM) > 8.0
    assert distance(replace(MECHANISM, threshold_noise=0.05), LAW, MECHANISM) > 8.0


def test_a_pools_outcome_law_is_that_of_the_whole_mechanism_on_its_prompts(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    lines = ['{"responses": [{"proxy_reward": 0.1}, {"proxy_reward": 0.2}]}', '{"responses": [{"proxy_reward": 0.9}]}']
    path.write_text("\n".join(lines), encoding="utf-8")
    pool = load_pool(path, 1.0)
    assert distance(MECHANISM, pool, MECHANISM) < 4.0


def test_the_joint_law_sums_to_one_and_agrees_with_the_batches() -> None:
    outcome = outcome_law(MECHANISM, LAW)
    n = outcome.candidates
    assert outcome.joint.sum() == pytest.approx(1.0, abs=1e-12)
    rounds = np.append(np.arange(n), n)
    assert outcome.rejections == pytest.approx(rounds @ outcome.joint, abs=1e-12)
    assert outcome.acceptances == pytest.approx(outcome.joint[:n].sum(axis=0), abs=1e-12)
    rejection, acceptance = ville_costs(MECHANISM, outcome)
    mean, error = outcome.mean_cost(rejection, acceptance)
    assert mean == pytest.approx(float((outcome.cost_table(rejection, acceptance) * outcome.joint).sum()), rel=1e-12)
    assert 0.0 < error < 0.01 * mean


def test_the_stated_standard_error_is_that_of_other_seeds() -> None:
    found = [outcome_law(MECHANISM, LAW, draws=512, seed=seed) for seed in range(40)]
    rejection, acceptance = ville_costs(MECHANISM, found[0])
    means = [outcome.mean_cost(rejection, acceptance) for outcome in found]
    observed = float(np.std([mean for mean, _ in means], ddof=1))
    stated = float(np.mean([error for _, error in means]))
    assert 0.6 * observed < stated < 1.6 * observed


@pytest.mark.parametrize("scale", [0.003, 0.05, 0.4, 3.0])
@pytest.mark.parametrize("level", [-0.3, 0.2001, 0.7])
def test_the_weights_give_the_mean_of_the_clamped_gaussian(scale: float, level: float) -> None:
    grid = np.linspace(-0.3, 0.7, 2001)
    weights = occupancy(np.array([level]), grid, scale)
    assert weights.sum() == pytest.approx(1.0, abs=1e-9)

    def f(x: float) -> float:
        return math.sin(3.0 * min(max(x, -0.3), 0.7))

    inside = quad(lambda x: f(x) * norm.pdf(x, level, scale), -0.3, 0.7, points=[level], limit=200)[0]
    ends = f(-0.3) * norm.cdf(-0.3, level, scale) + f(0.7) * norm.sf(0.7, level, scale)
    assert weights @ np.sin(3.0 * grid) == pytest.approx(inside + ends, abs=1e-6)


def test_simulated_normalizers_are_the_exact_ones() -> None:
    class Fixed(PointLaw):
        def draw(self, prompt: int, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
            return rng.integers(0, 1025, shape) / 1024.0

    law, rng = Fixed(0.0, 1.0), np.random.default_rng(5)
    drawn = law.draw(0, np.random.default_rng(5), (20, 3))
    fast = normalizers(MECHANISM, law, 0, 20, rng)
    for row, level in zip(drawn, fast, strict=True):
        units = [round(1024 * reward) for reward in row]
        exact = MECHANISM.normalizer(units, Fraction(MECHANISM.regularization) * 1024)
        assert level == pytest.approx(float(exact) / 1024.0, abs=1e-12)


@pytest.mark.parametrize("noise", [0.002, 0.1, 2.0])
@pytest.mark.parametrize("L", [0.0, 3.0])
def test_acceptance_probabilities_are_those_of_the_charges(noise: float, L: float) -> None:
    mechanism = replace(MECHANISM, reward_noise=noise, truncation=L)
    rewards, grid = np.linspace(0.0, 1.0, 5), threshold_grid(mechanism)[::40]
    fast = acceptance_probabilities(mechanism, rewards, grid)
    for column, level in enumerate(grid):
        law = mechanism.acceptance_law(float(level))
        for row, q in enumerate(rewards):
            assert fast[row, column] == pytest.approx(math.exp(law.log_accept(float(q))), abs=1e-10)


def test_a_finer_grid_changes_the_mean_cost_by_less_than_a_thousandth(monkeypatch: pytest.MonkeyPatch) -> None:
    means = []
    for nodes in (129, 1025):
        monkeypatch.setattr("reticent.accounting.planning.outcomes._LEAST_NODES", nodes)
        outcome = outcome_law(MECHANISM, LAW, draws=512)
        assert len(outcome.thresholds) == nodes
        means.append(outcome.mean_cost(*ville_costs(MECHANISM, outcome))[0])
    assert means[0] == pytest.approx(means[1], rel=1e-3)
