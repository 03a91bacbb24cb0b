"""An auditor from outside: OpenDP and Google's dp-accounting on the mechanisms that they cover too.

`dp-accounting` pins versions that the serving environment does not have, so this runs in an environment of its own
(`make audit`) and is left out elsewhere.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

pytest.importorskip("dp_accounting", reason="runs in the audit environment: make audit")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import dp_accounting
    from dp_accounting import rdp
    from dp_accounting.pld import privacy_loss_distribution as pld

import opendp.prelude as dp

from reticent.accounting.charges.gaussian import (
    calibrated_scale,
    delta_of,
    discrete_calibrated_scale,
    discrete_delta_of,
    renyi_charge,
)
from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.filter import overhead_dp
from tests.fakes.exact import Array, hockey_stick, rejection_law, softmax_law

dp.enable_features("contrib")

ORDERS = [1.5, 2.0, 5.0, 20.0, 100.0]
STEP = 1e-4


def delta_bracket(make: Any, epsilon: float, times: int = 1) -> tuple[float, float]:
    """(optimistic, pessimistic) δ at ε of a privacy loss distribution, composed `times` times."""
    found = []
    for pessimistic in (False, True):
        distribution = make(pessimistic)
        if times > 1:
            distribution = distribution.self_compose(times)
        found.append(float(distribution.get_delta_for_epsilon(epsilon)))
    return found[0], found[1]


# Gaussian noise


@pytest.mark.parametrize("scale", [0.128, 0.5, 2.0])
@pytest.mark.parametrize("share", [0.25, 1.0, 1.5])
def test_the_exact_gaussian_delta_is_that_of_the_privacy_loss_distribution(scale: float, share: float) -> None:
    epsilon = share * (0.5 / scale**2 + 1.0 / scale)

    def make(pessimistic: bool) -> Any:
        return pld.from_gaussian_mechanism(
            scale,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=1e-3 if scale < 0.2 else STEP,
            use_connect_dots=False,
            log_mass_truncation_bound=-80,
        )

    low, high = delta_bracket(make, epsilon)
    assert low * (1 - 1e-9) - 1e-15 <= delta_of(epsilon, 1.0, scale) <= high * (1 + 1e-9) + 1e-15
    assert high - low <= 1e-2 * high
    # Twin: noise 1 % larger has another δ.
    assert not low <= delta_of(epsilon, 1.0, 1.02 * scale) <= high


def test_the_classical_epsilon_is_refuted_from_outside_too() -> None:
    epsilon = math.sqrt(2 * math.log(1.25 / 0.01)) / 0.128
    for times, true in ((1, 0.747), (2, 0.850), (3, 0.904)):
        low, high = delta_bracket(
            lambda p: pld.from_gaussian_mechanism(
                0.128, pessimistic_estimate=p, value_discretization_interval=1e-2, use_connect_dots=False
            ),
            times * epsilon,
            times,
        )
        assert low == pytest.approx(true, abs=0.003)
        assert high == pytest.approx(true, abs=0.003)


@pytest.mark.parametrize("scale", [0.6593, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_exact_discrete_gaussian_delta_is_that_of_the_privacy_loss_distribution(
    scale: float, epsilon: float
) -> None:
    low, high = delta_bracket(
        lambda p: pld.from_discrete_gaussian_mechanism(
            scale, pessimistic_estimate=p, value_discretization_interval=STEP, truncation_bound=math.ceil(14 * scale)
        ),
        epsilon,
    )
    assert low * (1 - 1e-9) - 1e-15 <= discrete_delta_of(epsilon, scale) <= high * (1 + 1e-9) + 1e-15
    assert high - low <= 1e-2 * high + 1e-15


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_calibrated_scales_are_enough_for_the_outside_accountant_and_not_generous(epsilon: float) -> None:
    def reached(scale: float) -> float:
        # Connecting the dots is pessimistic and errs to second order in the step.
        distribution = pld.from_gaussian_mechanism(scale, value_discretization_interval=1e-3)
        return float(distribution.get_delta_for_epsilon(epsilon))

    scale = calibrated_scale(epsilon, 1e-6)
    assert reached(scale) <= 1e-6 * (1 + 1e-3)
    assert reached(0.99 * scale) > 1e-6 * (1 + 1e-3)
    discrete = pld.from_discrete_gaussian_mechanism(discrete_calibrated_scale(epsilon, 1e-6))
    assert discrete.get_delta_for_epsilon(epsilon) <= 1e-6 * (1 + 1e-2)


def outside_rdp(event: Any, count: int = 1) -> list[float]:
    accountant = rdp.RdpAccountant(orders=ORDERS)
    accountant.compose(event, count)
    return [float(x) for x in accountant._rdp]


@pytest.mark.parametrize("scale", [0.3, 2.5, 40.0])
def test_gaussian_charges_are_the_outside_renyi_divergences_and_add_up_as_there(scale: float) -> None:
    for count in (1, 7):
        for order, value in zip(ORDERS, outside_rdp(dp_accounting.GaussianDpEvent(scale), count), strict=True):
            assert count * renyi_charge(order, 1.0, scale) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("scale", [0.3, 2.5, 40.0])
def test_gaussian_charges_are_opendps_zero_concentrated_divergence(scale: float) -> None:
    rho = dp.m.make_gaussian(dp.atom_domain(T="i64"), dp.absolute_distance(T="i64"), scale=scale).map(3)
    for order in ORDERS:
        assert renyi_charge(order, 3.0, scale) == pytest.approx(order * rho, rel=1e-9)


# The filter's overhead


@pytest.mark.parametrize("delta", [0.01, 1e-6])
@pytest.mark.parametrize("spent", [0.2, 3.0])
def test_the_dp_overhead_is_the_outside_conversion_at_one_order(delta: float, spent: float) -> None:
    for order in ORDERS:
        outside, _ = rdp.compute_epsilon([order], [spent], delta)
        if overhead_dp(order, delta) > 0.0:
            assert spent + overhead_dp(order, delta) == pytest.approx(outside, rel=1e-9)
        assert spent + overhead_dp(order, delta) >= outside - 1e-9


@pytest.mark.parametrize("delta", [0.01, 1e-6])
@pytest.mark.parametrize("rho", [0.01, 0.5, 4.0])
def test_the_best_order_gives_opendps_conversion_of_zero_concentrated_dp(rho: float, delta: float) -> None:
    scale = math.sqrt(0.5 / rho)
    gaussian = dp.m.make_gaussian(dp.atom_domain(T="f64", nan=False), dp.absolute_distance(T="f64"), scale=scale)
    outside = dp.c.make_zCDP_to_approxDP(gaussian).map(1.0).epsilon(delta=delta)

    def ours(log_order: float) -> float:
        order = 1.0 + math.exp(log_order)
        return order * rho + overhead_dp(order, delta)

    best = minimize_scalar(ours, bounds=(-8.0, 10.0), method="bounded", options={"xatol": 1e-10})
    assert float(best.fun) == pytest.approx(outside, rel=1e-5)


# PrivBoN


@pytest.mark.parametrize("scale", [0.05, 0.5, 3.0])
def test_best_of_n_charges_are_at_most_opendps_and_near_it_for_small_loss(scale: float) -> None:
    units = 2**30
    mechanism = PrivBoN(1.0, 0.05, 16, scale)
    noisy_max = dp.m.make_noisy_max(
        dp.vector_domain(dp.atom_domain(T="i64")),
        dp.linf_distance(T="i64"),
        dp.zero_concentrated_divergence(),
        scale=scale * units,
    )
    rho = noisy_max.map(math.ceil(0.05 * units))
    assert rho == pytest.approx(mechanism.bounded_range() ** 2 / 8, rel=1e-6)
    outside = outside_rdp(dp_accounting.ZCDpEvent(rho))
    for order, value in zip(ORDERS, outside, strict=True):
        assert value == pytest.approx(order * rho, rel=1e-9)
        assert mechanism.charge(order) <= value * (1 + 1e-6)
        if order * mechanism.bounded_range() < 0.2:
            assert mechanism.charge(order) >= 0.99 * order * rho


def test_best_of_n_pure_epsilon_is_opendps() -> None:
    noisy_max = dp.m.make_noisy_max(
        dp.vector_domain(dp.atom_domain(T="i64")), dp.linf_distance(T="i64"), dp.max_divergence(), scale=64.0
    )
    assert noisy_max.map(16) == pytest.approx(PrivBoN(1.0, 1 / 16, 8, 1 / 4).published_epsilon(), rel=1e-9)


def loss_distribution(log_p: Array, log_q: Array, pessimistic: bool) -> Any:
    """`from_two_probability_mass_functions` takes D' first: its "upper" is the law in whose tail δ is measured."""
    return pld.from_two_probability_mass_functions(
        dict(enumerate(log_q.tolist())),
        dict(enumerate(log_p.tolist())),
        pessimistic_estimate=pessimistic,
        value_discretization_interval=STEP,
        symmetric=False,
    )


def outside_delta(log_p: Array, log_q: Array, epsilon: float, times: int) -> tuple[float, float]:
    return delta_bracket(lambda pessimistic: loss_distribution(log_p, log_q, pessimistic), epsilon, times)


BON = [
    (PrivBoN(1.0, 1.0, 2, 0.5), [0.0, 1.0], [1.0, 0.0]),
    (PrivBoN(1.0, 0.25, 3, 0.1), [0.75, 1.0, 0.0], [1.0, 0.75, 0.25]),
    (PrivBoN(1.0, 0.05, 4, 0.05), [1.0, 0.95, 0.95, 0.95], [0.95, 1.0, 1.0, 1.0]),
]


@pytest.mark.parametrize(("mechanism", "one", "other"), BON)
def test_best_of_n_claims_hold_for_the_outside_accountant_composed_too(
    mechanism: PrivBoN, one: list[float], other: list[float]
) -> None:
    log_p, log_q = (softmax_law(np.array(r), mechanism.noise_scale) for r in (one, other))
    for epsilon in (0.0, 0.3, 0.8 * mechanism.tight_epsilon()):
        low, high = outside_delta(log_p, log_q, epsilon, 1)
        assert low - 1e-12 <= hockey_stick(log_p, log_q, epsilon) <= high + 1e-12
    assert outside_delta(log_p, log_q, mechanism.tight_epsilon() + STEP, 1)[1] <= 1e-12
    for order in (2.0, 6.0):
        for delta in (0.05, 1e-4):
            for times in (1, 3, 10):
                epsilon = times * mechanism.charge(order) + overhead_dp(order, delta)
                assert outside_delta(log_p, log_q, epsilon, times)[1] <= delta
    # Twin: a tenth of the charge and no overhead.
    assert outside_delta(log_p, log_q, mechanism.charge(6.0), 10)[0] > 0.05


# PrivITP


def test_rejection_claims_hold_for_the_outside_accountant_and_without_the_fallback_charge_do_not() -> None:
    m = PrivITP(1.0, 1.0, 2, 0.5, 0.128, 0.128, 1.0)
    log_p, log_q = rejection_law(m, -0.5, [0.0, 0.0]), rejection_law(m, -0.5, [1.0, 1.0])
    without = m.sampling_charge(-0.5, 2, fallback=False)
    low, high = outside_delta(log_p, log_q, without, 1)
    assert low - 1e-12 <= hockey_stick(log_p, log_q, without) <= high + 1e-12
    assert low > 0.3
    worst = m.worst_sampling_charge(-0.5)
    assert outside_delta(log_p, log_q, worst + STEP, 1)[1] <= 1e-9
    for delta in (0.05, 1e-4):
        costs = m.round_costs(-0.5, "renyi", 4.0)
        claimed = 3 * costs.worst() + overhead_dp(4.0, delta)
        assert outside_delta(log_p, log_q, claimed, 3)[1] <= delta
