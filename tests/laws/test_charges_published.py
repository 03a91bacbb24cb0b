"""The published accounting and what is wrong with it; the sound variant that pays δ/K for each of K queries."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from reticent.accounting.charges.gaussian import delta_of
from reticent.accounting.charges.per_query_delta import affordable_queries, threshold_epsilon
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.charges.published import (
    PublishedAccounting,
    published_threshold_epsilon,
    true_delta_of_published_thresholds,
)
from reticent.accounting.errors import InvalidQuantityError

BARE = PrivITP(1.0, 1.0, 16, 0.5, 0.128, 0.128, 1.0)
TELLTALE = PrivITP(1.0, 1.0, 16, 0.05, 0.128, 1000.0, 3.84)


def test_the_costs_are_those_of_theorem_4_1() -> None:
    published = PublishedAccounting(BARE, 0.01)
    kappa, acc = BARE.rejection_cost(0.3), BARE.acceptance_cost(0.3)
    first = math.sqrt(2 * math.log(125.0)) / 0.128
    assert published.threshold_epsilon() == pytest.approx(first, rel=1e-14)
    for t in (1, 2, 16):
        assert published.ex_post(0.3, t) == pytest.approx(first + (t - 1) * kappa + acc, rel=1e-14)
    assert published.worst_case(0.3) == published.ex_post(0.3, 16)
    assert published.fallback(0.3) == pytest.approx(first + 16 * kappa, rel=1e-14)


def test_the_published_worst_case_forgets_the_fallback() -> None:
    published = PublishedAccounting(BARE, 0.01)
    first = published.threshold_epsilon()
    assert published.fallback(-0.5) - first == pytest.approx(33.54, abs=0.006)
    assert published.worst_case(-0.5) - first == pytest.approx(32.53, abs=0.006)
    assert published.worst_case(-0.5) < BARE.worst_sampling_charge(-0.5) + first


@pytest.mark.parametrize(("queries", "true"), [(1, 0.747), (2, 0.850), (3, 0.904)])
def test_the_counterexample_has_the_stated_true_deltas(queries: int, true: float) -> None:
    assert true_delta_of_published_thresholds(0.01, queries, 1.0, 0.128) == pytest.approx(true, abs=6e-4)
    with mp.workdps(60):
        epsilon = queries * mp.sqrt(2 * mp.log(125)) / mpf("0.128")
        b = mp.sqrt(queries) / mpf("0.128")
        exact = mp.ncdf(b / 2 - epsilon / b) - mp.exp(epsilon) * mp.ncdf(-b / 2 - epsilon / b)
    assert true_delta_of_published_thresholds(0.01, queries, 1.0, 0.128) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize(("queries", "true"), [(1, 0.747), (2, 0.850), (3, 0.904)])
def test_a_simulated_stream_exceeds_the_published_sum_as_often_as_the_counterexample_says(
    queries: int, true: float
) -> None:
    """Thresholds that all move by Δ, σ_Z = 1000: E max(0, 1 - e^{claimed - loss}) over 200,000 streams."""
    published = PublishedAccounting(TELLTALE, 0.01)
    a = TELLTALE.sensitivity / TELLTALE.threshold_noise
    rng = np.random.default_rng(7)
    loss = (0.5 * a * a + a * rng.standard_normal((200_000, queries))).sum(axis=1)
    # Phase 2 costs next to nothing, whatever its outcome; the dearest is granted here.
    granted = queries * max(published.worst_case(0.5), published.fallback(0.5))
    assert granted < queries * (published.threshold_epsilon() + 0.03)
    reached = float(np.maximum(0.0, -np.expm1(np.minimum(granted - loss, 0.0))).mean())
    assert reached == pytest.approx(true, abs=0.005)
    # The sound cost with δ/K each, in the same simulation, keeps its δ.
    paid = queries * threshold_epsilon(0.01, queries, 1.0, 0.128)
    assert float((loss > paid).mean()) <= 0.01 * 1.1


def test_the_classical_epsilon_is_a_bound_where_it_is_small() -> None:
    for scale in (6.0, 20.0, 100.0):
        epsilon = published_threshold_epsilon(0.01, 1.0, scale)
        assert epsilon < 1.0
        assert delta_of(epsilon, 1.0, scale) <= 0.01


def test_a_query_starts_while_the_worst_case_fits_strictly() -> None:
    published = PublishedAccounting(BARE, 0.01)
    assert published.starts(1.0, 3.0, 1.5)
    assert not published.starts(1.5, 3.0, 1.5)


# Per-query δ


@pytest.mark.parametrize("guarantee", ["probabilistic", "dp"])
@pytest.mark.parametrize("queries", [1, 7, 1000])
def test_a_share_of_delta_pays_each_threshold(queries: int, guarantee: str) -> None:
    epsilon = threshold_epsilon(0.01, queries, 0.05, 0.256, guarantee)  # type: ignore[arg-type]
    a = 0.05 / 0.256
    if guarantee == "probabilistic":
        tail = 0.5 * math.erfc((epsilon / a - a / 2) / math.sqrt(2))
    else:
        tail = delta_of(epsilon, 0.05, 0.256)
    assert tail == pytest.approx(0.01 / queries, rel=1e-6)


@pytest.mark.parametrize(
    ("sensitivity", "scale", "mean_cost", "expected"),
    [(0.05, 0.512, 0.700, 35), (0.05, 2.56, 0.0952, 200), (0.01, 2.56, 0.01924, 947)],
)
def test_the_designed_numbers_of_queries_come_out(
    sensitivity: float, scale: float, mean_cost: float, expected: int
) -> None:
    """Mean "ville" costs by simulation at the settings of privacy.md's table (σ_X = σ/2)."""
    found = affordable_queries(50.0, 0.01, sensitivity, 0.5 * scale, mean_cost)
    assert found == pytest.approx(expected, rel=0.01)
    assert affordable_queries(50.0, 0.01, sensitivity, 0.5 * scale, mean_cost, guarantee="dp") >= found


@settings(deadline=None, max_examples=60)
@given(st.floats(1.0, 200.0), st.floats(0.0, 2.0), st.floats(0.01, 1.0), st.floats(0.0, 0.9))
def test_the_number_of_queries_is_the_largest_that_fits(
    epsilon: float, mean_cost: float, sensitivity: float, reserved: float
) -> None:
    reserve = reserved * epsilon
    found = affordable_queries(epsilon, 0.01, sensitivity, 0.5, mean_cost, reserve)

    def cost(count: int) -> float:
        return count * (threshold_epsilon(0.01, count, sensitivity, 0.5) + mean_cost)

    if found:
        assert cost(found) <= epsilon - reserve
    assert cost(found + 1) > epsilon - reserve


def test_nonsense_is_refused() -> None:
    for call in (
        lambda: PublishedAccounting(BARE, 0.0),
        lambda: published_threshold_epsilon(1.0, 1.0, 1.0),
        lambda: true_delta_of_published_thresholds(0.01, 0, 1.0, 1.0),
        lambda: PublishedAccounting(BARE, 0.01).ex_post(0.3, 17),
        lambda: threshold_epsilon(0.01, 0, 1.0, 1.0),
        lambda: threshold_epsilon(0.01, 1, 1.0, 1.0, "none"),  # type: ignore[arg-type]
        lambda: affordable_queries(-1.0, 0.01, 1.0, 1.0, 0.0),
    ):
        with pytest.raises(InvalidQuantityError):
            call()
