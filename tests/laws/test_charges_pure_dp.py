"""Rényi divergence of a pure ε-DP step against randomised response, which is the worst one."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from reticent.accounting.charges.pure_dp import renyi_divergence
from reticent.accounting.errors import InvalidQuantityError


def randomised_response(order: float, epsilon: float) -> mpf:
    with mp.workdps(60):
        a, e = mpf(order), mpf(epsilon)
        q = 1 / (1 + mp.exp(e))
        p = q * mp.exp(e)
        return mp.log(p**a * q ** (1 - a) + q**a * p ** (1 - a)) / (a - 1)


@pytest.mark.parametrize("order", [1.0001, 1.5, 2.0, 10.0, 100.0, 1e4])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1, 1.0, 3.6, 7.8125, 50.0, 700.0])
def test_the_value_is_that_of_randomised_response_rounded_up(order: float, epsilon: float) -> None:
    exact = randomised_response(order, epsilon)
    value = mpf(renyi_divergence(order, epsilon))
    assert exact * (1 - mpf(10) ** -30) <= value <= exact * (1 + mpf(10) ** -13)


@settings(deadline=None)
@given(st.integers(2, 6), st.floats(0.01, 6.0), st.floats(1.01, 50.0), st.integers(0, 2**32))
def test_no_law_with_losses_within_epsilon_diverges_more(size: int, epsilon: float, order: float, seed: int) -> None:
    # Weights of D' and losses with the right mean, by rescaling one law against another within e^±ε.
    rng = random.Random(seed)
    q = [rng.random() + 1e-9 for _ in range(size)]
    raised = [rng.random() < 0.5 for _ in range(size)]
    up = math.fsum(x for x, r in zip(q, raised, strict=True) if r)
    total = math.fsum(q)
    if not 0 < up < total:
        return
    q = [x / total for x in q]
    up /= total
    # Raise by e^s, lower by e^-t, both at most ε, mass kept.
    s = epsilon * rng.random()
    low = (1 - up * math.exp(s)) / (1 - up)
    if not low >= math.exp(-epsilon):
        return
    moment = up * math.exp(order * s) + (1 - up) * low**order
    assert math.log(moment) / (order - 1) <= renyi_divergence(order, epsilon) * (1 + 1e-9) + 1e-12


@settings(deadline=None)
@given(st.floats(1.0001, 1e4), st.floats(1e-9, 200.0), st.floats(1.0, 2.0))
def test_it_stays_below_both_caps_and_grows(order: float, epsilon: float, factor: float) -> None:
    value = renyi_divergence(order, epsilon)
    assert 0.0 < value <= epsilon
    assert value <= 0.5 * order * epsilon * epsilon * (1 + 1e-12)
    assert renyi_divergence(order, epsilon * factor) >= value * (1 - 1e-12)
    assert renyi_divergence(order * factor, epsilon) >= value * (1 - 1e-12)


def test_nothing_costs_nothing_and_nonsense_is_refused() -> None:
    assert renyi_divergence(2.0, 0.0) == 0.0
    for order, epsilon in [(1.0, 1.0), (math.nan, 1.0), (2.0, -1.0), (2.0, math.inf)]:
        with pytest.raises(InvalidQuantityError):
            renyi_divergence(order, epsilon)
