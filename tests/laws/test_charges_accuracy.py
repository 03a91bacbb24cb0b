"""How exact the acceptance law is against mpmath at 50 digits and more, and how charges move with their parameters."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from reticent.accounting.charges.acceptance import AcceptanceLaw, log_mean_cdf
from reticent.accounting.charges.privitp import PhaseTwoAccounting, PrivITP

CLAIMED = 1e-12
DIGITS = 70  # 50 are left: ψ(y) - ψ(x) cancels at most 15 digits, ψ(-40) another four


def psi(x: mpf) -> mpf:
    return x * mp.erfc(-x / mp.sqrt(2)) / 2 + mp.npdf(x)


def relative_error(low: float, high: float) -> float:
    """Of the mean of Φ over [low, high], the exponential of what the product computes."""
    with mp.workdps(DIGITS):
        x, y = mpf(low), mpf(high)
        exact = (psi(y) - psi(x)) / (y - x)
        return abs(float(mp.exp(mpf(log_mean_cdf(low, high))) / exact - 1))


def float32_error(low: float, high: float) -> float:
    """The twin: the closed form without the logarithms, in single precision."""
    import numpy as np
    from scipy.special import ndtr

    x, y = np.float32(low), np.float32(high)

    def plain(v: np.float32) -> float:
        return float(np.float32(v * np.float32(ndtr(v))) + np.float32(np.exp(-v * v / 2) / np.sqrt(2 * np.pi)))

    with mp.workdps(DIGITS):
        exact = (psi(mpf(high)) - psi(mpf(low))) / (mpf(high) - mpf(low))
        return abs(float(mpf(plain(y) - plain(x)) / (mpf(high) - mpf(low)) / exact - 1))


ends = st.floats(-40.0, 40.0)
log_widths = st.floats(-12.0, 2.0)


@settings(deadline=None, max_examples=400)
@given(ends, log_widths)
def test_the_mean_is_right_to_twelve_digits_from_any_lower_end(low: float, log_width: float) -> None:
    high = low + 10.0**log_width
    assume(high > low)
    assert relative_error(low, high) < CLAIMED


@settings(deadline=None, max_examples=400)
@given(ends, log_widths)
def test_the_mean_is_right_to_twelve_digits_below_any_upper_end(high: float, log_width: float) -> None:
    low = high - 10.0**log_width
    assume(high > low)
    assert relative_error(low, high) < CLAIMED


SEAMS = (-12.5, -12.0, -11.5, -0.5, -1e-12, 0.0, 1e-300, 1e-12, 0.5, 11.5, 12.0, 12.5)


@pytest.mark.parametrize("low", [-40.0, *SEAMS, 39.5])
def test_the_seams_between_formulas_do_not_show(low: float) -> None:
    for width in (1e-12, 1e-6, 0.1, 0.49999999, 0.5, 0.50000001, 1.0, 11.5, 12.0, 24.0, 40.0, 100.0):
        for a, b in ((low, low + width), (-low - width, -low)):
            if a < b and min(abs(a), abs(b)) <= 40.0:
                assert relative_error(a, b) < CLAIMED


def test_single_precision_without_logarithms_is_not_good_enough() -> None:
    assert max(float32_error(x, x + 1e-4) for x in (-9.0, -5.0, -3.0)) > 0.01


def random_intervals(seed: int, count: int) -> list[tuple[float, float]]:
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        anchor, width = rng.uniform(-40.0, 40.0), 10.0 ** rng.uniform(-12.0, 2.0)
        found.append((anchor, anchor + width) if rng.random() < 0.5 else (anchor - width, anchor))
    return [(a, b) for a, b in found if b > a]


@pytest.mark.simulation
def test_twelve_digits_at_twenty_thousand_random_intervals() -> None:
    assert max(relative_error(a, b) for a, b in random_intervals(1, 20_000)) < CLAIMED


@settings(deadline=None, max_examples=150)
@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.03, 4.0), st.floats(0.0, 5.0), st.floats(0.01, 2.0))
def test_acceptance_and_rejection_are_right_to_twelve_digits(
    place: float, q: float, noise: float, L: float, beta: float
) -> None:
    law = AcceptanceLaw(beta, noise, 1.0, L, min(max(place - beta, -beta), 1.0 - beta))
    # The rounding of the ends themselves counts as a shift of q: they are taken as the product takes them.
    low, high = (q - law.ceiling) / noise, (q - law.threshold) / noise
    assume(high > low)
    with mp.workdps(DIGITS):
        exact = (psi(mpf(high)) - psi(mpf(low))) / (mpf(high) - mpf(low))
        assert abs(float(mp.exp(mpf(law.log_accept(q))) / exact - 1)) < CLAIMED
    with mp.workdps(DIGITS):
        exact = (psi(-mpf(low)) - psi(-mpf(high))) / (mpf(high) - mpf(low))
        assert abs(float(mp.exp(mpf(law.log_reject(q))) / exact - 1)) < CLAIMED


# Laws of the charges

METHODS: tuple[PhaseTwoAccounting, ...] = get_args(PhaseTwoAccounting)
mechanisms = st.builds(
    lambda share, n, beta, sigma_X, sigma_Z, L: PrivITP(1.0, share, n, beta, sigma_X, sigma_Z, L),
    st.floats(0.001, 1.0),
    st.integers(1, 32),
    st.floats(0.01, 2.0),
    st.floats(0.05, 4.0),
    st.floats(0.02, 4.0),
    st.floats(0.0, 6.0),
)
places = st.floats(0.0, 1.0)
factors = st.floats(1.001, 3.0)


def at(m: PrivITP, place: float) -> float:
    return m.clamp(place - m.regularization)


def no_more(smaller: float, larger: float) -> bool:
    return smaller <= larger * (1 + 1e-9) + 1e-11


@settings(deadline=None)
@given(mechanisms, places, factors)
def test_no_charge_falls_when_the_sensitivity_rises(m: PrivITP, place: float, factor: float) -> None:
    less = replace(m, sensitivity=m.sensitivity / factor)
    threshold = at(m, place)
    assert no_more(less.threshold_charge(7.0), m.threshold_charge(7.0))
    assert no_more(less.rejection_cost(threshold), m.rejection_cost(threshold))
    assert no_more(less.acceptance_cost(threshold), m.acceptance_cost(threshold))
    assert no_more(less.worst_sampling_charge_supremum(), 1.01 * m.worst_sampling_charge_supremum())


@settings(deadline=None)
@given(mechanisms, places, factors)
def test_no_charge_rises_when_the_noise_rises(m: PrivITP, place: float, factor: float) -> None:
    threshold = at(m, place)
    calmer = replace(m, threshold_noise=m.threshold_noise * factor)
    assert no_more(calmer.threshold_charge(7.0), m.threshold_charge(7.0))
    noisier = replace(m, reward_noise=m.reward_noise * factor)
    assert no_more(noisier.rejection_cost(threshold), m.rejection_cost(threshold))
    assert no_more(noisier.acceptance_cost(threshold), m.acceptance_cost(threshold))


def test_more_noise_below_the_same_ceiling_is_not_always_cheaper() -> None:
    """The law above needs L kept: with T = R + σ_Z L kept instead, a rejection may get dearer."""
    m = PrivITP(1.0, 1.0, 1, 0.5, 1.0, 1.0, 3.0)
    same_ceiling = replace(m, reward_noise=2.0, truncation=1.5)
    assert same_ceiling.rejection_cost(0.5) > 1.03 * m.rejection_cost(0.5)


@pytest.mark.parametrize("accounting", METHODS)
@pytest.mark.parametrize("place", [0.0, 0.31, 0.77, 1.0])
def test_under_every_accounting_charges_rise_with_the_halting_time_up_to_the_supremum(
    accounting: PhaseTwoAccounting, place: float
) -> None:
    for m in (PrivITP(1.0, 0.05, 16, 0.05, 0.256, 0.256, 3.84), PrivITP(1.0, 1.0, 3, 0.5, 0.3, 0.3, 1.0)):
        threshold, n = at(m, place), m.candidates
        accepted = [m.sampling_charge_rounded_up(threshold, t, False, accounting, 8.0) for t in range(1, n + 1)]
        fallback = m.sampling_charge_rounded_up(threshold, n, True, accounting, 8.0)
        worst = m.worst_sampling_charge_rounded_up(threshold, accounting, 8.0)
        assert accepted == sorted(accepted)
        assert max(*accepted, fallback) == worst
        assert worst <= m.worst_sampling_charge_supremum_rounded_up(accounting, 8.0)
        assert 0.0 < m.sampling_charge(threshold, 1, False, accounting, 8.0) * 1e9 <= accepted[0]


@settings(deadline=None)
@given(mechanisms, places)
def test_charges_rise_with_the_halting_time_and_the_worst_case_dominates_them(m: PrivITP, place: float) -> None:
    threshold, n = at(m, place), m.candidates
    accepted = [m.sampling_charge_rounded_up(threshold, t, fallback=False) for t in range(1, n + 1)]
    fallback = m.sampling_charge_rounded_up(threshold, n, fallback=True)
    worst = m.worst_sampling_charge_rounded_up(threshold)
    assert accepted == sorted(accepted)
    assert max(*accepted, fallback) <= worst <= m.worst_sampling_charge_supremum_rounded_up()


@settings(deadline=None)
@given(mechanisms, places, places)
def test_the_supremum_over_thresholds_dominates_every_threshold(m: PrivITP, first: float, second: float) -> None:
    supremum = m.worst_sampling_charge_supremum()
    for place in (first, second, 0.0, 1.0):
        assert no_more(m.worst_sampling_charge(at(m, place)), supremum)


def test_the_threshold_in_the_middle_is_not_the_supremum() -> None:
    m = PrivITP(1.0, 1.0, 3, 0.5, 0.3, 0.3, 0.5)
    assert m.worst_sampling_charge(at(m, 0.5)) < 0.9 * m.worst_sampling_charge_supremum()
