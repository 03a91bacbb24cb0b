"""Admissibility of every charge, the supermartingale of an adaptive stream, and the overheads."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from reticent.accounting.charges.gaussian import delta_of, renyi_charge
from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.errors import BudgetTooSmallError, InvalidQuantityError
from reticent.accounting.filter import PrivacyFilter, best_order, overhead_dp, overhead_ville, spendable

# A step: for each outcome (log P_D, log P_D', charge).
Step = list[tuple[float, float, float]]


def moment(step: Step, order: float, shrink: float = 1.0) -> float:
    """E under D of exp((α-1)(L - c)), the admissibility of one step."""
    return math.fsum(math.exp(p + (order - 1) * (p - q - shrink * c)) for p, q, c in step)


def softmax_step(one: Sequence[float], other: Sequence[float], mechanism: PrivBoN, order: float) -> Step:
    def logs(rewards: Sequence[float]) -> list[float]:
        z = [r / mechanism.noise_scale for r in rewards]
        total = math.log(math.fsum(math.exp(v) for v in z))
        return [v - total for v in z]

    return [(p, q, mechanism.charge(order)) for p, q in zip(logs(one), logs(other), strict=True)]


def discrete_gaussian_step(shift: int, scale: float, order: float) -> Step:
    reach = int(14 * scale) + int(order * shift) + 3
    total = math.log(math.fsum(math.exp(-x * x / (2 * scale * scale)) for x in range(-reach, reach + 1)))
    charge = renyi_charge(order, shift, scale)
    return [
        (-(x * x) / (2 * scale * scale) - total, -((x - shift) ** 2) / (2 * scale * scale) - total, charge)
        for x in range(-reach, reach + 1)
    ]


def rejection_step(one: Sequence[float], other: Sequence[float], m: PrivITP, threshold: float) -> Step:
    law, n = m.acceptance_law(threshold), m.candidates
    step, p, q = [], 0.0, 0.0
    for t in range(1, n + 1):
        a, b = one[t - 1], other[t - 1]
        step.append((p + law.log_accept(a), q + law.log_accept(b), m.sampling_charge(threshold, t, fallback=False)))
        p, q = p + law.log_reject(a), q + law.log_reject(b)
    return [*step, (p, q, m.sampling_charge(threshold, n, fallback=True))]


BON = PrivBoN(8.0, 1.0, 2, 1.0)
ITP = PrivITP(1.0, 1.0, 3, 0.5, 0.3, 0.4, 1.0)


def worst_gap(order: float) -> float:
    """The gap of two rewards at which a softmax reaches the bounded-range divergence (see test_charges_privbon)."""

    def negative(gap: float) -> float:
        return -moment(softmax_step([4 + gap, 4.0], [3 + gap, 5.0], BON, order), order)

    return float(minimize_scalar(negative, bounds=(-2.9, 2.9), method="bounded").x)


STEPS: dict[str, Callable[[float], Step]] = {
    "privbon": lambda order: softmax_step([4 + worst_gap(order), 4.0], [3 + worst_gap(order), 5.0], BON, order),
    "phase 1": lambda order: discrete_gaussian_step(2, 3.0, order),
    # For two losses to reach their charges together: all rounds reject at the worst pair.
    "phase 2, fallback": lambda order: rejection_step([0.0] * 3, [1.0] * 3, ITP, -0.5),
    "phase 2, acceptance": lambda order: rejection_step([1.0] * 3, [0.0] * 3, ITP, 0.5),
}


@pytest.mark.parametrize("order", [1.2, 3.0, 15.0])
@pytest.mark.parametrize("name", STEPS)
def test_every_charge_is_admissible(name: str, order: float) -> None:
    assert moment(STEPS[name](order), order) <= 1 + 1e-9


@pytest.mark.parametrize("name", STEPS)
def test_a_charge_30_percent_too_small_is_not_admissible(name: str) -> None:
    order = 15.0 if name.startswith("phase 2") else 3.0
    assert moment(STEPS[name](order), order, shrink=0.7) > 1 + 1e-3


def adaptive_stream(order: float, shrink: float) -> float:
    """E exp((α-1) Σ(L - c)) when the outcome of a first PrivBoN decides what is asked next, all worst cases."""
    first = STEPS["privbon"](order)
    follow_ups = [STEPS["phase 2, fallback"](order), STEPS["phase 1"](order)]
    total = 0.0
    for (p, q, c), second in zip(first, follow_ups, strict=True):
        for p2, q2, c2 in second:
            loss = p + p2 - q - q2
            total += math.exp(p + p2 + (order - 1) * (loss - shrink * (c + c2)))
    return total


@pytest.mark.parametrize("order", [1.5, 4.0, 15.0])
def test_an_adaptive_stream_is_a_supermartingale(order: float) -> None:
    assert adaptive_stream(order, 1.0) <= 1 + 1e-9


def test_an_adaptive_stream_with_small_charges_is_not() -> None:
    assert adaptive_stream(4.0, 0.7) > 1.01


@pytest.mark.simulation
def test_a_stream_that_stops_at_its_budget_keeps_its_guarantee_and_one_undercharged_does_not() -> None:
    """Gaussian phase 1 steps until the budget is spent: the loss is N(kμ²/2, kμ²), and δ is known exactly."""
    rng = np.random.default_rng(11)
    order, delta, mu, epsilon = 6.0, 0.05, 0.2, 3.0
    budget = spendable(epsilon, delta, order, "probabilistic") / 1e9
    trials = 20_000

    def exceeded(charge: float) -> float:
        steps = int(budget / charge)
        losses = mu * mu / 2 + mu * rng.normal(size=(trials, steps))
        return float((losses.cumsum(axis=1).max(axis=1) > epsilon).mean())

    allowed = delta + 5 * math.sqrt(delta / trials)
    assert exceeded(renyi_charge(order, mu, 1.0)) <= allowed
    assert exceeded(renyi_charge(order, mu, 1.0) / 4) > allowed


orders, deltas = st.floats(1.001, 1e4), st.floats(1e-12, 0.9)


@settings(deadline=None)
@given(orders, deltas)
def test_the_dp_overhead_is_never_the_larger_one(order: float, delta: float) -> None:
    assert 0.0 <= overhead_dp(order, delta) <= overhead_ville(order, delta)


@settings(deadline=None)
@given(st.floats(1.1, 200.0), st.floats(1e-8, 0.1), st.floats(0.0, 5.0))
def test_the_dp_overhead_covers_the_exact_delta_of_a_gaussian(order: float, delta: float, spent: float) -> None:
    if spent > 1e-3:
        mu = math.sqrt(2 * spent / order)  # a Gaussian that uses exactly what was spent
        assert delta_of(spent + overhead_dp(order, delta), mu, 1.0) <= delta * (1 + 1e-9)


@settings(deadline=None)
@given(st.floats(0.1, 100.0), st.floats(1e-10, 0.1), st.floats(1e-6, 1.0), st.floats(0.0, 10.0))
def test_the_best_order_answers_most_queries(epsilon: float, delta: float, rho: float, mean: float) -> None:
    def queries(order: float) -> float:
        return (epsilon - overhead_ville(order, delta)) / (order * rho + mean)

    best = best_order(epsilon, delta, rho, mean)
    for factor in (0.8, 0.95, 1.05, 1.3):
        assert queries(1 + (best - 1) * factor) <= queries(best) * (1 + 1e-9)


@settings(deadline=None)
@given(st.floats(1.0, 100.0), st.floats(1e-10, 0.1))
def test_what_may_be_spent_and_the_overhead_never_exceed_the_budget(epsilon: float, delta: float) -> None:
    order = 1.0 + 2.0 * math.log(1 / delta) / epsilon + 0.1
    for guarantee, overhead in (("dp", overhead_dp), ("probabilistic", overhead_ville)):
        nano = spendable(epsilon, delta, order, guarantee)  # type: ignore[arg-type]
        assert 0 < nano <= (epsilon - overhead(order, delta)) * 1e9


def test_a_budget_below_its_overhead_is_refused_with_the_numbers() -> None:
    with pytest.raises(BudgetTooSmallError) as caught:
        spendable(1.0, 1e-6, 2.0, "probabilistic")
    assert caught.value.epsilon == 1.0
    assert caught.value.overhead == pytest.approx(math.log(1e6))
    with pytest.raises(BudgetTooSmallError):
        PrivacyFilter(1.0, 1e-6, 2.0)


def test_a_filter_admits_up_to_its_budget_and_no_nano_more() -> None:
    budget = PrivacyFilter(10.0, 1e-6, 20.0, "dp")
    left = budget.spendable_nano
    assert budget.overhead == overhead_dp(20.0, 1e-6)
    assert budget.admits(left - 5, 5)
    assert not budget.admits(left - 5, 6)
    with pytest.raises(InvalidQuantityError):
        budget.admits(0, -1)
    with pytest.raises(InvalidQuantityError):
        spendable(1.0, 1e-6, 20.0, "pure")  # type: ignore[arg-type]
