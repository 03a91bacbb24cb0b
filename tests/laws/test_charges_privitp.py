"""PrivITP's charges against its exact output law, and the sensitivity of its threshold."""

import itertools
import math
import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from reticent.accounting.charges.privitp import PrivITP, RoundCosts, default_truncation
from reticent.accounting.errors import InvalidQuantityError


def mechanism(
    R: float = 1.0,
    sensitivity: float = 1.0,
    n: int = 3,
    beta: float = 0.5,
    reward_noise: float = 0.4,
    L: float = 1.0,
) -> PrivITP:
    return PrivITP(R, sensitivity, n, beta, 0.3, reward_noise, L)


def accept(m: PrivITP, threshold: float, q: float) -> float:
    """B(q) by midpoint quadrature: independent of the closed form."""
    top = m.reward_max + m.reward_noise * m.truncation
    nodes = threshold + (top - threshold) * (np.arange(4000) + 0.5) / 4000
    return float(ndtr((q - nodes) / m.reward_noise).mean())


def outcome_law(m: PrivITP, threshold: float, rewards: Sequence[float], scale: float = 1.0) -> list[float]:
    """Probabilities of accepting in round 1, …, n, and of the fallback."""
    noisy = PrivITP(
        m.reward_max,
        m.sensitivity,
        m.candidates,
        m.regularization,
        m.threshold_noise,
        m.reward_noise * scale,
        m.truncation / scale,
    )
    probabilities, alive = [], 1.0
    for q in rewards:
        p = accept(noisy, threshold, q)
        probabilities.append(alive * p)
        alive *= 1.0 - p
    return [*probabilities, alive]


def adjacent_rewards(m: PrivITP, seed: int, draws: int) -> list[tuple[list[float], list[float]]]:
    R, D, n = m.reward_max, m.sensitivity, m.candidates
    ends = [(0.0, min(R, D)), (min(R, D), 0.0), (R, R - D), (R - D, R)]
    pairs = [([a for a, _ in c], [b for _, b in c]) for c in itertools.product(ends, repeat=n)]
    rng = random.Random(seed)
    for _ in range(draws):
        one = [rng.uniform(0, R) for _ in range(n)]
        pairs.append((one, [min(R, max(0.0, q + rng.choice((-D, 0, D)))) for q in one]))
    return pairs


def charges(m: PrivITP, threshold: float) -> list[float]:
    n = m.candidates
    return [
        *(m.sampling_charge(threshold, t, fallback=False) for t in range(1, n + 1)),
        m.sampling_charge(threshold, n, fallback=True),
    ]


def worst_excess(m: PrivITP, threshold: float, scale: float = 1.0, draws: int = 30) -> float:
    """Largest loss minus charge over outcomes and adjacent pairs."""
    cost, worst = charges(m, threshold), -math.inf
    for one, other in adjacent_rewards(m, 7, draws):
        p, q = outcome_law(m, threshold, one, scale), outcome_law(m, threshold, other, scale)
        worst = max(worst, *(math.log(a / b) - c for a, b, c in zip(p, q, cost, strict=True)))
    return worst


CASES = [
    (mechanism(), -0.5),
    (mechanism(), 0.5),
    (mechanism(sensitivity=0.2, n=2, beta=0.05), 0.3),
    (mechanism(R=2.0, sensitivity=0.5, n=2, L=0.0), 1.2),
    (mechanism(n=1, reward_noise=0.3), 0.0),
]


@pytest.mark.parametrize(("m", "threshold"), CASES)
def test_no_outcome_loses_more_than_its_charge_and_one_loses_all_of_it(m: PrivITP, threshold: float) -> None:
    worst = worst_excess(m, threshold)
    assert abs(worst) < 1e-6  # the quadrature's error


def test_every_outcome_reaches_its_charge() -> None:
    m, threshold = mechanism(n=3), 0.1
    R, D = m.reward_max, m.sensitivity
    cost = charges(m, threshold)
    for t in range(1, m.candidates + 1):
        one = [R - D] * (t - 1) + [D] + [0.0] * (m.candidates - t)
        other = [R] * (t - 1) + [0.0] + [0.0] * (m.candidates - t)
        p, q = outcome_law(m, threshold, one), outcome_law(m, threshold, other)
        assert math.log(p[t - 1] / q[t - 1]) == pytest.approx(cost[t - 1], abs=1e-6)


def test_half_the_reward_noise_beats_the_charge() -> None:
    m = mechanism()
    assert worst_excess(m, 0.2, scale=0.5, draws=0) > 0.5


def test_without_the_fallback_charge_a_fallback_loses_more_than_any_charge() -> None:
    m = PrivITP(1.0, 1.0, 16, 0.5, 0.128, 0.128, 1.0)
    threshold = -0.5
    one, other = [0.0] * 16, [1.0] * 16
    p, q = outcome_law(m, threshold, one), outcome_law(m, threshold, other)
    loss = math.log(p[-1] / q[-1])
    without = max(m.sampling_charge(threshold, t, fallback=False) for t in range(1, 17))
    assert loss == pytest.approx(33.54, abs=0.01)
    assert without == pytest.approx(32.53, abs=0.01)
    assert without < loss <= m.sampling_charge(threshold, 16, fallback=True) + 1e-4
    assert loss <= m.worst_sampling_charge(threshold) + 1e-4


mechanisms = st.builds(
    lambda share, n, beta, noise, L: PrivITP(1.0, share, n, beta, 0.3, noise, L),
    st.floats(0.001, 1.0),
    st.integers(1, 32),
    st.floats(0.01, 2.0),
    st.floats(0.02, 4.0),
    st.floats(0.0, 6.0),
)


@settings(deadline=None)
@given(mechanisms, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_rejection_gets_cheaper_and_an_acceptance_dearer_as_the_threshold_rises(
    m: PrivITP, first: float, second: float
) -> None:
    low, high = (m.clamp(x - m.regularization) for x in sorted((first, second)))
    assert m.rejection_cost(low) >= m.rejection_cost(high) - 1e-9 * m.rejection_cost(low) - 1e-11
    assert m.acceptance_cost(low) <= m.acceptance_cost(high) * (1 + 1e-9) + 1e-11


@settings(deadline=None)
@given(mechanisms, st.floats(-10.0, 10.0), st.data())
def test_every_charge_is_at_most_the_worst_case_and_that_at_most_the_supremum(
    m: PrivITP, noisy: float, data: st.DataObject
) -> None:
    threshold = m.clamp(noisy)
    t = data.draw(st.integers(1, m.candidates))
    worst = m.worst_sampling_charge_rounded_up(threshold)
    assert m.sampling_charge_rounded_up(threshold, t, fallback=False) <= worst
    assert m.sampling_charge_rounded_up(threshold, t, fallback=True) <= worst
    assert worst <= m.worst_sampling_charge_supremum_rounded_up()
    assert m.sampling_charge(threshold, t, fallback=False) * 1e9 <= worst


@pytest.mark.parametrize("L", [0.0, 1.0, 3.84])
@pytest.mark.parametrize(("sensitivity", "noise"), [(1.0, 0.128), (0.05, 0.256), (0.01, 1.28)])
def test_the_certified_supremum_is_within_one_percent(sensitivity: float, noise: float, L: float) -> None:
    m = PrivITP(1.0, sensitivity, 16, 0.05, noise, noise, L)
    grid = [m.clamp(float(x)) for x in np.linspace(-0.05, 0.95, 301)]
    reached = max(m.worst_sampling_charge(x) for x in grid)
    assert reached <= m.worst_sampling_charge_supremum() <= 1.011 * reached


# Phase 1

rewards = st.lists(st.integers(0, 1024), min_size=1, max_size=8)
betas = st.fractions(min_value=Fraction(1, 100), max_value=3000, max_denominator=1000)


def normalizer(values: list[int], beta: Fraction) -> Fraction:
    return mechanism(n=len(values)).normalizer(values, beta)


def slow_normalizer(values: list[int], beta: Fraction) -> Fraction:
    """The paper's sort-down rule: the k with r_{k+1} ≤ λ_k ≤ r_k."""
    down = sorted(values, reverse=True)
    for k in range(1, len(down) + 1):
        level = (sum(down[:k]) - len(down) * beta) / k
        if level <= down[k - 1] and (k == len(down) or down[k] <= level):
            return level
    raise AssertionError("no k")


@settings(deadline=None)
@given(rewards, betas)
def test_the_threshold_solves_its_equation_exactly(values: list[int], beta: Fraction) -> None:
    level = normalizer(values, beta)
    assert sum(max(r - level, Fraction(0)) for r in values) == len(values) * beta
    assert -beta <= level <= 1024 - beta
    assert level == slow_normalizer(values, beta)


@settings(deadline=None)
@given(rewards, betas, st.integers(0, 300), st.data())
def test_the_threshold_moves_by_at_most_the_sensitivity(
    values: list[int], beta: Fraction, sensitivity: int, data: st.DataObject
) -> None:
    moves = data.draw(st.lists(st.integers(-sensitivity, sensitivity), min_size=len(values), max_size=len(values)))
    moved = [min(1024, max(0, r + d)) for r, d in zip(values, moves, strict=True)]
    one, other = normalizer(values, beta), normalizer(moved, beta)
    assert abs(one - other) <= sensitivity
    assert abs(math.floor(one) - math.floor(other)) <= sensitivity  # what is released is rounded down


def test_a_sensitivity_30_percent_too_small_does_not_cover_the_threshold() -> None:
    beta, sensitivity = Fraction(301, 10), 100
    values = [500, 30, 0, 7]
    moved = normalizer([r + sensitivity for r in values], beta) - normalizer(values, beta)
    assert moved == sensitivity
    assert moved > 0.7 * sensitivity


def test_the_clamp_never_moves_away_from_the_threshold() -> None:
    m = mechanism(beta=0.5)
    assert m.clamp(-3.0) == -0.5
    assert m.clamp(math.inf) == 0.5
    assert m.clamp(0.25) == 0.25
    with pytest.raises(InvalidQuantityError):
        m.clamp(math.nan)


def test_the_default_truncation_is_the_papers() -> None:
    assert default_truncation(16) == pytest.approx(math.sqrt(2 * math.log(16 / 16**-0.5)))
    assert default_truncation(1) == 0.0


def test_the_threshold_charge_is_the_gaussian_one() -> None:
    m = mechanism(sensitivity=0.1)
    assert m.threshold_charge(7.0) == pytest.approx(7.0 * 0.01 / (2 * 0.09))
    assert m.threshold_charge_rounded_up(7.0) >= m.threshold_charge(7.0) * 1e9


def test_bad_parameters_and_impossible_outcomes_are_refused() -> None:
    good = (1.0, 0.5, 4, 0.1, 0.3, 0.3, 1.0)
    for place, bad in [(0, -1.0), (1, 1.5), (2, 0), (3, 0.0), (4, 0.0), (5, 1e-4), (6, -0.1), (6, math.nan)]:
        arguments = list(good)
        arguments[place] = bad
        with pytest.raises(InvalidQuantityError):
            PrivITP(*arguments)  # type: ignore[arg-type]
    m = PrivITP(*good)
    for t in (0, 5):
        with pytest.raises(InvalidQuantityError):
            m.sampling_charge(0.0, t, fallback=False)
    with pytest.raises(InvalidQuantityError):
        m.sampling_charge(5.0, 1, fallback=False)
    with pytest.raises(InvalidQuantityError):
        m.normalizer([1, 2], Fraction(1))
    with pytest.raises(InvalidQuantityError):
        RoundCosts(-0.1, 0.1, 3)
