"""Published and designed numbers of the charges (charges.json names where each comes from)."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from reticent.accounting.charges.bounded_range import renyi_divergence
from reticent.accounting.charges.gaussian import calibrated_scale, delta_of, discrete_calibrated_scale
from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.filter import best_order, overhead_dp, spendable

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("charges.json").read_text())


@pytest.mark.parametrize("epsilon", ["8", "4", "2", "1", "0.5"])
def test_gaussian_calibration_gives_the_designed_scales(epsilon: str) -> None:
    golden = GOLDEN["gaussian_calibration"]
    eps, delta, tolerance = float(epsilon), golden["delta"], golden["tolerance"]
    assert calibrated_scale(eps, delta) == pytest.approx(golden["continuous"][epsilon], abs=tolerance)
    assert discrete_calibrated_scale(eps, delta) == pytest.approx(golden["discrete"][epsilon], abs=tolerance)


def test_the_published_composition_has_the_true_deltas_of_the_counterexample() -> None:
    golden = GOLDEN["true_delta_of_the_published_composition"]
    sigma, sensitivity = golden["threshold_noise"], golden["sensitivity"]
    claimed_epsilon = sensitivity * math.sqrt(2 * math.log(1.25 / golden["claimed"])) / sigma
    for queries, true in enumerate(golden["true"], start=1):
        delta = delta_of(queries * claimed_epsilon, math.sqrt(queries) * sensitivity, sigma)
        assert delta == pytest.approx(true, abs=golden["tolerance"])


def test_the_forgotten_fallback_has_its_numbers() -> None:
    golden = GOLDEN["forgotten_fallback"]
    mechanism, threshold = PrivITP(*golden["parameters"]), golden["threshold"]
    fallback = mechanism.sampling_charge(threshold, 16, fallback=True)
    dearest = max(mechanism.sampling_charge(threshold, t, fallback=False) for t in range(1, 17))
    assert fallback == pytest.approx(golden["fallback"], abs=golden["tolerance"])
    assert dearest == pytest.approx(golden["dearest_acceptance"], abs=golden["tolerance"])


@pytest.mark.parametrize("scale", ["0.512", "2.56"])
def test_a_budget_answers_the_designed_number_of_privbon_queries(scale: str) -> None:
    golden = GOLDEN["privbon_queries"]
    mechanism = PrivBoN(1.0, golden["sensitivity"], golden["candidates"], float(scale))
    rho = mechanism.bounded_range() ** 2 / 8
    order = best_order(golden["epsilon"], golden["delta"], rho, 0.0)
    budget = spendable(golden["epsilon"], golden["delta"], order, "dp")
    answered = budget // mechanism.charge_rounded_up(order)
    assert answered == pytest.approx(golden["queries"][scale], rel=golden["relative_tolerance"])


def test_published_privbon_epsilon() -> None:
    golden = GOLDEN["privbon_published"]
    assert PrivBoN(1.0, 1.0, 2, golden["noise_scale"]).published_epsilon() == golden["epsilon"]


def test_many_cheap_queries_cost_forty_times_less_than_basic_composition() -> None:
    golden = GOLDEN["many_cheap_queries"]
    k, width, delta = golden["queries"], golden["bounded_range"], golden["delta"]
    assert k * width == golden["basic"]
    cheapest = min(k * renyi_divergence(a, width) + overhead_dp(a, delta) for a in map(float, range(2, 40)))
    assert cheapest == pytest.approx(golden["filter"], abs=golden["tolerance"])
