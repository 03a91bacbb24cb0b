"""PrivITP's acceptance law against mpmath and quadrature."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.special import ndtr

from reticent.accounting.charges.acceptance import AcceptanceLaw, log_mean_cdf
from reticent.accounting.errors import InvalidQuantityError


def slow_log_mean_cdf(low: float, high: float) -> mpf:
    def psi(x: mpf) -> mpf:
        return x * mp.erfc(-x / mp.sqrt(2)) / 2 + mp.npdf(x)

    with mp.workdps(800):  # ψ(y) - ψ(x) cancels hundreds of digits for large positive x
        x, y = mpf(low), mpf(high)
        return mp.log((psi(y) - psi(x)) / (y - x))


def intervals() -> list[tuple[float, float]]:
    rng = random.Random(3)
    chosen = [(-40.0, 40.0), (-40.0, -39.5), (39.0, 40.0), (-12.0, -11.5), (-12.6, -12.0), (-1e-12, 1e-12), (-0.3, 0.2)]
    while len(chosen) < 70:
        low = rng.uniform(-40, 40)
        high = min(low + 10 ** rng.uniform(-12, 2), 40.0)
        if high > low:
            chosen.append((low, high))
    return chosen


@pytest.mark.parametrize(("low", "high"), intervals())
def test_the_mean_of_the_normal_law_is_right_to_twelve_digits(low: float, high: float) -> None:
    fast, exact = mpf(log_mean_cdf(low, high)), slow_log_mean_cdf(low, high)
    assert abs(mp.expm1(fast - exact)) < 1e-12


def law_of(threshold: float, noise: float = 0.2) -> AcceptanceLaw:
    return AcceptanceLaw(0.05, noise, 1.0, 2.0, threshold)


@pytest.mark.parametrize("threshold", [-0.05, 0.3, 0.95])
@pytest.mark.parametrize("q", [0.0, 0.4, 1.0])
def test_acceptance_is_the_average_over_a_uniform_threshold(threshold: float, q: float) -> None:
    law = law_of(threshold)
    nodes = threshold + (law.ceiling - threshold) * (np.arange(20000) + 0.5) / 20000
    slow = float(ndtr((q - nodes) / 0.2).mean())
    assert math.exp(law.log_accept(q)) == pytest.approx(slow, rel=1e-7)
    assert math.exp(law.log_reject(q)) == pytest.approx(1 - slow, rel=1e-7)


@pytest.mark.simulation
def test_acceptance_is_what_noisy_weights_and_a_coin_give() -> None:
    """Lemma C.1: reward + Gaussian, weight relu((r̃ - λ)/β), coin min(w/M, 1). The twin forgets the reward's noise."""
    rng = np.random.default_rng(5)
    beta, noise, R, L, threshold, q, draws = 0.05, 0.2, 1.0, 2.0, 0.4, 0.3, 400_000
    M = (R + noise * L - threshold) / beta
    coin = rng.uniform(size=draws)

    def frequency(gauss: np.ndarray) -> float:
        return float((coin < np.minimum(np.maximum(q + gauss - threshold, 0) / beta / M, 1)).mean())

    p = math.exp(AcceptanceLaw(beta, noise, R, L, threshold).log_accept(q))
    allowed = 5 * math.sqrt(p * (1 - p) / draws)
    assert abs(frequency(noise * rng.normal(size=draws)) - p) < allowed
    assert abs(frequency(np.zeros(draws)) - p) > allowed


@settings(deadline=None)
@given(st.floats(-0.05, 0.95), st.floats(0.0, 1.0), st.floats(0.02, 5.0))
def test_acceptance_and_rejection_sum_to_one_and_are_monotone(threshold: float, q: float, noise: float) -> None:
    law = law_of(threshold, noise)
    assert math.exp(law.log_accept(q)) + math.exp(law.log_reject(q)) == pytest.approx(1.0, abs=1e-12)
    assert law.log_accept(q) <= law.log_accept(min(1.0, q + 0.1)) + 1e-12
    assert law.log_reject(q) >= law.log_reject(min(1.0, q + 0.1)) - 1e-12


def test_tiny_probabilities_stay_finite() -> None:
    law = AcceptanceLaw(0.05, 0.01, 1.0, 3.0, 0.95)
    assert -6000 < law.log_accept(0.0) < -4000
    assert math.isfinite(law.log_reject(1.0))


def test_a_threshold_that_was_not_clamped_is_refused_without_being_shown() -> None:
    for bad in (-0.0500001, 0.9500001, math.nan):
        with pytest.raises(InvalidQuantityError) as caught:
            law_of(bad)
        assert "0.9500001" not in str(caught.value)
    with pytest.raises(InvalidQuantityError):
        law_of(0.0).log_accept(1.1)
