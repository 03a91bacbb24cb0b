"""Gaussian charges and calibration against sums and mpmath."""

import math
from collections.abc import Callable
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from reticent.accounting.charges.gaussian import (
    calibrated_scale,
    delta_of,
    discrete_calibrated_scale,
    discrete_delta_of,
    epsilon_of,
    probabilistic_epsilon,
    renyi_charge,
    renyi_charge_rounded_up,
)
from reticent.accounting.errors import CalibrationError, InvalidQuantityError


def slow_delta(epsilon: float, mu: float) -> mpf:
    with mp.workdps(80):
        e, a = mpf(epsilon), mpf(mu)
        return mp.ncdf(a / 2 - e / a) - mp.exp(e) * mp.ncdf(-a / 2 - e / a)


def slow_discrete_delta(epsilon: float, scale: float) -> mpf:
    with mp.workdps(50):
        e, s = mp.exp(mpf(epsilon)), mpf(scale)
        reach = int(60 * scale) + 10

        def weight(x: int) -> mpf:
            return mp.exp(-(mpf(x) ** 2) / (2 * s * s))

        total = mp.fsum(weight(x) for x in range(-reach, reach + 1))
        return mp.fsum(max(mpf(0), weight(x) - e * weight(x - 1)) for x in range(-reach, reach + 1)) / total


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.5, 2.0, 8.0, 30.0])
@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 3.0, 7.8125])
def test_delta_agrees_with_its_definition_in_high_precision(epsilon: float, mu: float) -> None:
    exact = slow_delta(epsilon, mu)
    if exact > 1e-300:
        assert abs(mpf(delta_of(epsilon, mu, 1.0)) / exact - 1) < 1e-12


def exact_delta(epsilon: float, mu: float) -> mpf:
    """The definition with the digits that its cancellation eats, 50 of them left."""
    digits = 80 + int(max(0.0, (epsilon / mu - mu / 2) ** 2 / 4.6)) + int(max(0.0, -math.log10(mu)))
    with mp.workdps(digits):
        e, a = mpf(epsilon), mpf(mu)
        root = mp.sqrt(2)
        return (mp.erfc((e / a - a / 2) / root) - mp.exp(e) * mp.erfc((e / a + a / 2) / root)) / 2


@settings(deadline=None, max_examples=300)
@given(st.floats(-6.0, 2.0), st.floats(-6.0, 36.0))
def test_delta_is_right_to_twelve_digits_over_fourteen_decades(log_mu: float, z: float) -> None:
    """a = Δ/σ from 1e-6 to 100, ε up to 36 standard deviations above the mean loss: δ down to 1e-283."""
    mu = 10.0**log_mu
    epsilon = max(0.0, mu * mu / 2 + z * mu)
    exact = exact_delta(epsilon, mu)
    # ε/a - a/2 itself is a float: its rounding moves δ by 2^-52 (ε/a + a)².
    rounding = 1e-15 * (epsilon / mu + mu) ** 2
    assert abs(float(mpf(delta_of(epsilon, mu, 1.0)) / exact - 1)) < 1e-12 + rounding


@settings(deadline=None, max_examples=200)
@given(st.floats(-6.0, 2.0), st.floats(-280.0, -0.01))
def test_probabilistic_epsilon_is_right_to_fourteen_digits(log_mu: float, log_delta: float) -> None:
    mu, delta = 10.0**log_mu, 10.0**log_delta
    with mp.workdps(50):
        z = mp.findroot(
            lambda x: mp.log(mp.erfc(x / mp.sqrt(2)) / 2) - mp.log(mpf(delta)), mpf(-NormalDist().inv_cdf(delta))
        )
        exact = mpf(mu) ** 2 / 2 + mpf(mu) * z
    found = mpf(probabilistic_epsilon(delta, mu, 1.0))
    assert abs(found - max(exact, 0)) <= 1e-14 * (mpf(mu) ** 2 + abs(mu * z))


@settings(deadline=None, max_examples=100)
@given(st.floats(-4.0, 2.0), st.floats(-12.0, -0.1))
def test_the_epsilon_of_a_delta_holds_and_a_smaller_one_does_not(log_mu: float, log_delta: float) -> None:
    mu, delta = 10.0**log_mu, 10.0**log_delta
    epsilon = epsilon_of(delta, mu, 1.0)
    assert epsilon <= probabilistic_epsilon(delta, mu, 1.0) * (1 + 1e-8) or epsilon == 0.0
    if epsilon == 0.0:
        assert exact_delta(0.0, mu) <= delta
        return
    assert exact_delta(epsilon, mu) <= delta
    assert exact_delta(epsilon * (1 - 1e-8), mu) > delta * (1 - 1e-9)


@pytest.mark.parametrize(("delta", "mu"), [(0.747, 7.8125), (0.01 / 35, 0.1953125)])
def test_the_epsilon_of_a_delta_undoes_delta_of(delta: float, mu: float) -> None:
    assert delta_of(epsilon_of(delta, mu, 1.0), mu, 1.0) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("scale", [0.3, 0.559, 0.659, 1.3, 4.2])
def test_discrete_delta_agrees_with_the_plain_sum(epsilon: float, scale: float) -> None:
    exact = slow_discrete_delta(epsilon, scale)
    assert abs(mpf(discrete_delta_of(epsilon, scale)) - exact) <= exact * mpf(10) ** -11


@pytest.mark.parametrize("epsilon", [8.0, 2.0, 0.5])
def test_the_calibrated_scale_holds_and_a_smaller_one_does_not(epsilon: float) -> None:
    scale = calibrated_scale(epsilon, 1e-6)
    assert slow_delta(epsilon, 1 / scale) <= 1e-6
    assert slow_delta(epsilon, 1 / (scale * 0.9999)) > 1e-6
    assert calibrated_scale(epsilon, 1e-6, sensitivity=3.0) == pytest.approx(3 * scale)


@pytest.mark.parametrize("epsilon", [8.0, 4.0, 1.0])
def test_the_discrete_calibrated_scale_holds_exactly_and_the_one_below_does_not(epsilon: float) -> None:
    scale = discrete_calibrated_scale(epsilon, 1e-6)
    assert slow_discrete_delta(epsilon, scale) <= 1e-6
    assert slow_discrete_delta(epsilon, scale - 1e-4) > 1e-6


def test_thirty_percent_less_noise_breaks_the_calibration() -> None:
    assert slow_discrete_delta(2.0, 0.7 * discrete_calibrated_scale(2.0, 1e-6)) > 1e-5
    assert slow_delta(2.0, 1 / (0.7 * calibrated_scale(2.0, 1e-6))) > 1e-5


@settings(deadline=None)
@given(st.floats(1e-8, 0.5), st.floats(0.01, 10.0))
def test_probabilistic_epsilon_is_exceeded_with_probability_delta(delta: float, mu: float) -> None:
    epsilon = probabilistic_epsilon(delta, mu, 1.0)
    if epsilon > 0:
        # The loss is N(a²/2, a²): its upper tail at ε.
        tail = 0.5 * math.erfc((epsilon - mu * mu / 2) / mu / math.sqrt(2))
        assert tail == pytest.approx(delta, rel=1e-6)
        assert delta_of(epsilon, mu, 1.0) <= delta


@settings(deadline=None)
@given(st.floats(1.01, 200.0), st.integers(1, 6), st.floats(0.4, 8.0))
def test_the_discrete_gaussian_never_beats_its_charge(order: float, shift: int, scale: float) -> None:
    reach = int(12 * scale + order * shift) + 5
    v = 2 * scale * scale
    points = range(-reach - int(order * shift), reach + int(order * shift))
    terms = [-(order * x * x + (1 - order) * (x - shift) ** 2) / v for x in points]
    top = max(terms)
    total = math.log(math.fsum(math.exp(t - top) for t in terms)) + top
    normaliser = math.log(math.fsum(math.exp(-x * x / v) for x in range(-reach, reach)))
    divergence = (total - normaliser) / (order - 1)
    charge = renyi_charge(order, shift, scale)
    assert divergence <= charge * (1 + 1e-9) + 1e-12
    if scale > 2.0:
        assert divergence > 0.7 * charge  # 30 % less would not do


def test_rounded_charges_are_never_below_the_charge() -> None:
    for order, scale in [(2.0, 0.128), (17.3, 3.0), (100.0, 1e5)]:
        assert renyi_charge_rounded_up(order, 1.0, scale) >= renyi_charge(order, 1.0, scale) * 1e9


def test_bad_arguments_are_refused_and_hopeless_calibrations_say_so() -> None:
    calls: list[Callable[[], object]] = [
        lambda: calibrated_scale(1.0, 0.0),
        lambda: calibrated_scale(0.0, 1e-6),
        lambda: delta_of(-1.0, 1.0, 1.0),
        lambda: renyi_charge(1.0, 1.0, 1.0),
        lambda: discrete_delta_of(1.0, 0.01),
        lambda: probabilistic_epsilon(1.0, 1.0, 1.0),
        lambda: epsilon_of(0.0, 1.0, 1.0),
        lambda: epsilon_of(0.1, 0.0, 1.0),
        lambda: epsilon_of(0.1, 1.0, math.inf),
    ]
    for call in calls:
        with pytest.raises(InvalidQuantityError):
            call()
    with pytest.raises(CalibrationError) as caught:
        calibrated_scale(1e-9, 1e-12)
    assert caught.value.epsilon == 1e-9
