"""How many queries a budget answers: the formula against simulated runs of the real filter, and the best order."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privbon_gaussian import PrivBoNGaussian
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.filter import PrivacyFilter, best_order
from reticent.accounting.planning.accountings import (
    ACCOUNTINGS,
    common_order,
    privbon_cost,
    privitp_cost,
    privitp_costs,
    privitp_order,
)
from reticent.accounting.planning.laws import BetaLaw
from reticent.accounting.planning.outcomes import normalizers, outcome_law
from reticent.accounting.planning.queries import (
    Budget,
    ChargeLaw,
    answered,
    constant_charge,
    numerically_best_order,
)

LAW = BetaLaw(2.0, 2.0, 1.0)
MECHANISM = PrivITP(1.0, 0.2, 4, 0.2, 0.4, 0.4, 1.0)
BUDGET = Budget(20.0, 1e-3)


def run_filter(mechanism: PrivITP, order: float, budget: Budget, seed: int, noise: float = 1.0) -> int:
    """Queries that one run of the real filter answers: λ* from rewards, charges as the ledger rounds them."""
    rng = np.random.default_rng(seed)
    privacy = PrivacyFilter(budget.epsilon, budget.delta, order, budget.guarantee)
    first = mechanism.threshold_charge_rounded_up(order)
    worst = first + mechanism.worst_sampling_charge_supremum_rounded_up("renyi", order)
    spent, count = 0, 0
    while privacy.admits(spent, worst):
        level = float(normalizers(mechanism, LAW, 0, 1, rng)[0]) + noise * mechanism.threshold_noise * rng.normal()
        threshold = mechanism.clamp(level)
        law = mechanism.acceptance_law(threshold)
        t, fallback = mechanism.candidates, True
        for candidate in range(1, mechanism.candidates + 1):
            if rng.random() < math.exp(law.log_accept(float(rng.beta(2.0, 2.0)))):
                t, fallback = candidate, False
                break
        spent += first + mechanism.sampling_charge_rounded_up(threshold, t, fallback, "renyi", order)
        count += 1
    return count


def test_the_plan_agrees_with_runs_of_the_real_filter() -> None:
    order = 1.8
    outcome = outcome_law(MECHANISM, LAW)
    cost = privitp_cost(MECHANISM, outcome, BUDGET, "renyi", order)
    planned = answered(cost.spendable, cost.law)
    runs = np.array([run_filter(MECHANISM, order, BUDGET, seed) for seed in range(40)])
    error = math.hypot(float(runs.std(ddof=1)) / math.sqrt(len(runs)), planned.error)
    assert abs(float(runs.mean()) - planned.mean) < 4.0 * error
    # The twin: a plan for a fifth less sensitivity lies far outside.
    other = privitp_cost(replace(MECHANISM, sensitivity=0.16), outcome, BUDGET, "renyi", order)
    assert abs(float(runs.mean()) - answered(other.spendable, other.law).mean) > 8.0 * error


def walk(law: ChargeLaw, spendable: float, streams: int, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    counts = []
    for _ in range(streams):
        spent, count = 0.0, 0
        while spent + law.worst <= spendable:
            spent += float(rng.choice(law.values, p=law.probabilities))
            count += 1
        counts.append(count)
    return float(np.mean(counts)), float(np.std(counts, ddof=1)) / math.sqrt(streams)


@pytest.mark.parametrize("room", [0.0, 0.7, 5.0, 45.0])
def test_short_and_long_walks_have_the_simulated_length(room: float) -> None:
    law = ChargeLaw(np.array([0.1, 0.9, 3.0]), np.array([0.5, 0.3, 0.2]), worst=3.5)
    found = answered(3.5 + room, law)
    assert found.simulated is (room < 40.0 * law.mean)
    mean, error = walk(law, 3.5 + room, 2000, seed=8)
    assert abs(found.mean - mean) < 4.0 * math.hypot(error, found.error) + 1e-12
    if room == 45.0:
        # The twins: without the overshoot, and without the last worst case.
        assert abs(room / law.mean - mean) > 4.0 * error
        assert abs((3.5 + room) / law.mean - mean) > 8.0 * error


def test_nothing_is_answered_where_the_first_worst_case_does_not_fit() -> None:
    assert answered(0.99, constant_charge(1.0)).mean == 0.0
    assert answered(-1.0, constant_charge(1.0)).mean == 0.0


@pytest.mark.parametrize(
    ("spendable", "charge", "count"), [(1.0, 1.0, 1), (3.0, 1.0, 3), (0.3, 0.1, 3), (0.3, 0.11, 2)]
)
def test_a_constant_charge_is_counted_exactly(spendable: float, charge: float, count: int) -> None:
    assert answered(spendable, constant_charge(charge)).mean == count


def test_a_charge_of_nothing_is_answered_without_end() -> None:
    assert math.isinf(answered(1.0, constant_charge(0.0)).mean)
    cost = privbon_cost(PrivBoN(1.0, 1.0, 1, 0.5), BUDGET)
    assert math.isinf(answered(cost.spendable, cost.law).mean)


@pytest.mark.parametrize("guarantee", ["dp", "probabilistic"])
@pytest.mark.parametrize(("rho", "mean"), [(0.02, 0.7), (0.5, 0.01), (1e-4, 0.5)])
def test_the_best_order_is_that_of_a_dense_search(guarantee: str, rho: float, mean: float) -> None:
    budget = Budget(50.0, 0.01, "dp" if guarantee == "dp" else "probabilistic")

    def law_at(order: float) -> tuple[float, float]:
        return order * rho + mean, order * rho + 2.0 * mean

    def count(order: float) -> float:
        typical, worst = law_at(order)
        return (budget.spendable(order) - worst) / typical

    found = numerically_best_order(budget, best_order(50.0, 0.01, rho, mean), law_at)
    best = max(count(1.0 + excess) for excess in np.geomspace(1e-2, 1e3, 4000))
    assert count(found) >= best * (1.0 - 1e-3)


def test_the_closed_form_is_best_for_the_probabilistic_guarantee() -> None:
    budget = Budget(50.0, 0.01, "probabilistic")
    closed = best_order(50.0, 0.01, 0.02, 0.7)
    found = numerically_best_order(budget, 3.0 * closed, lambda order: (0.02 * order + 0.7, 1e-9))
    assert math.log((found - 1.0) / (closed - 1.0)) == pytest.approx(0.0, abs=0.1)


def test_the_common_order_is_that_of_charges_in_proportion_to_it() -> None:
    counts = {order: BUDGET.spendable(order) / order for order in np.linspace(1.05, 5.0, 2000)}
    best = max(counts.values())
    assert BUDGET.spendable(common_order(BUDGET)) / common_order(BUDGET) >= best * (1.0 - 1e-3)


def test_a_refined_order_answers_no_fewer_than_its_neighbours() -> None:
    outcome = outcome_law(MECHANISM, LAW, draws=1024)
    for accounting in ("ville", "renyi"):
        name = "ville" if accounting == "ville" else "renyi"
        order = privitp_order(MECHANISM, outcome, BUDGET, name)  # type: ignore[arg-type]

        def count(alpha: float, name: str = name) -> float:
            cost = privitp_cost(MECHANISM, outcome, BUDGET, name, alpha)  # type: ignore[arg-type]
            return answered(cost.spendable, cost.law).mean

        at = count(order)
        for factor in (0.7, 1.4):
            assert count(1.0 + (order - 1.0) * factor) <= at * 1.002


def test_every_accounting_is_named_and_renyi_is_the_best_sound_one() -> None:
    mechanism = PrivITP(1.0, 0.05, 16, 0.05, 0.256, 0.256, 3.84)
    costs = privitp_costs(mechanism, outcome_law(mechanism, LAW, draws=2048), Budget(50.0, 0.01))
    counts = {name: answered(cost.spendable, cost.law).mean for name, cost in costs.items()}
    assert list(costs) == ["published_worst", "published_fsrc", "per_query_delta", "ville", "renyi"]
    assert [name for name in costs if not ACCOUNTINGS[name].sound] == ["published_worst", "published_fsrc"]
    assert counts["published_worst"] < counts["per_query_delta"] < counts["ville"] < counts["renyi"]
    for cost in costs.values():
        assert cost.law.worst >= cost.law.values.max() * (1.0 - 1e-12)
        assert cost.law.worst >= cost.fixed


def test_the_paper_forgets_fallbacks_that_exceed_its_worst_case_and_the_plan_says_so() -> None:
    mechanism = PrivITP(1.0, 1.0, 16, 0.5, 0.128, 0.128, 1.0)
    costs = privitp_costs(mechanism, outcome_law(mechanism, LAW, draws=512), Budget(200.0, 0.01))
    assert not ACCOUNTINGS["published_fsrc"].sound
    assert costs["ville"].law.worst >= float(costs["ville"].law.values.max())


def test_gaussian_noise_costs_what_its_charge_says() -> None:
    mechanism = PrivBoNGaussian(1.0, 0.1, 4, 0.5)
    cost = privbon_cost(mechanism, BUDGET)
    assert cost.order is not None
    assert cost.law.mean == cost.law.worst == mechanism.charge(cost.order)
