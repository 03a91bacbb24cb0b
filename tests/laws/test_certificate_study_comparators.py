"""Comparators and controls of the certificate studies: formulas against slow twins, and that none of them serves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from reticent.accounting.calibration import Claim
from reticent.accounting.calibration.kinds import COUNT_ERROR, LOSS_NONLOSS, SERVING_RULES
from reticent.accounting.certificates.bounds import Sums, Transfer
from reticent.accounting.certificates.rules import RULES, RuleNotForServingError, serving_rule
from reticent.accounting.studies.certificates.comparator_base import clopper_pearson_lower, hoeffding_bentkus
from reticent.accounting.studies.certificates.comparators import COMPARATORS
from reticent.accounting.studies.certificates.conformal import (
    expected_coverage,
    one_shot,
    quantile_of_quantiles,
)
from reticent.accounting.studies.certificates.controls import CONTROLS, native_of, resolve
from reticent.accounting.studies.certificates.populations import fitted_cell

CLAIM = Claim(0.2, 0.05, 0.045, 0.005)
M = 3


def sums(loss: list[float], accepted: list[float], events: float, variance: float = 0.0) -> Sums:
    Z, A = np.array(loss), np.array(accepted)
    return Sums(LOSS_NONLOSS, Z, A - Z, np.full(len(loss), variance), events)


PLAIN = sums([60.0, 20.0, 3.0], [800.0, 400.0, 90.0], 1000.0)


def test_no_comparator_and_no_control_can_serve() -> None:
    names = {*COMPARATORS, *(f"{control}:eprocess" for control in CONTROLS), "noise_ignored:fed_src_c"}
    assert names.isdisjoint(RULES)
    assert names.isdisjoint(SERVING_RULES)
    for name in names:
        with pytest.raises(RuleNotForServingError):
            serving_rule(name, LOSS_NONLOSS)
    assert not any(method.serves for method in COMPARATORS.values())
    assert not resolve("noise_ignored:eprocess").serves
    for method in COMPARATORS.values():
        with pytest.raises(RuleNotForServingError, match="studies only"):
            serving_rule(method.name, LOSS_NONLOSS, {method.name: method})


def test_every_comparator_says_what_it_needs() -> None:
    for method in COMPARATORS.values():
        text = type(method).__doc__ or ""
        assert "Native assumptions" in text or "not proved valid" in text
        assert method.native.reads in ("exact", "noised")
    assert not COMPARATORS["capital_heuristic"].native.proved


@pytest.mark.parametrize(("k", "n"), [(0, 10), (1, 10), (37, 200), (200, 200)])
def test_the_lower_binomial_bound_is_clopper_and_pearsons(k: int, n: int) -> None:
    low = float(clopper_pearson_lower(np.array(float(k)), np.array(float(n)), 0.01))
    if k == 0:
        assert low == 0.0
    else:
        assert binom.sf(k - 1, n, low) == pytest.approx(0.01, rel=1e-6)


@pytest.mark.parametrize(("total", "n"), [(0.0, 30), (3.0, 90), (3.4, 90), (60.0, 800), (90.0, 90), (0.0, 0)])
def test_the_risk_bound_inverts_the_hoeffding_bentkus_p_value(total: float, n: int) -> None:
    alpha = 0.045 / 20
    upper = float(hoeffding_bentkus(np.array(total), np.array(float(n)), alpha))

    def p_value(risk: float) -> float:
        mean = min(total / n, risk)
        distance = 0.0
        if mean > 0:
            distance += mean * math.log(mean / risk)
        if mean < 1:
            distance += (1 - mean) * math.log((1 - mean) / (1 - risk))
        return min(math.exp(-n * distance), math.e * float(binom.cdf(math.ceil(total), n, risk)))

    if n == 0 or total == n:
        assert upper == 1.0
    else:
        assert p_value(upper) == pytest.approx(alpha, rel=1e-6)


def test_the_central_rule_certifies_what_its_p_values_reject() -> None:
    found = COMPARATORS["central_ltt"].bounds(CLAIM, PLAIN)
    for j in range(M):
        Z, A = PLAIN.loss[j], PLAIN.accepted[j]
        rejects = math.e * binom.cdf(Z, A, 0.2) <= 0.045 / M or (
            Z / A < 0.2
            and math.exp(-A * (Z / A * math.log(Z / A / 0.2) + (1 - Z / A) * math.log((1 - Z / A) / 0.8))) <= 0.045 / M
        )
        assert bool(found.certified[j]) == (rejects and bool(found.acceptance_lower[j] >= 0.05))
    assert found.certified.tolist() == [True, True, True]


def test_fixed_time_rules_have_hoeffding_and_normal_widths() -> None:
    noised = Sums(COUNT_ERROR, PLAIN.loss, PLAIN.accepted, np.array([30.0, 20.0, 10.0]), 1000.0)
    eta = Transfer(0.01, 0.01)
    found = COMPARATORS["private_fixed_time"].bounds(CLAIM, noised, eta)
    for j, V in enumerate((30.0, 20.0, 10.0)):
        h = math.sqrt(1000 / 2 * math.log(2 * M / 0.025))
        z = float(norm.isf(0.025 / (2 * M)))
        d = (PLAIN.loss[j] - 0.2 * PLAIN.accepted[j] + h + z * math.sqrt(1.04 * V)) / 1000 + 0.01
        assert found.contrast_upper[j] == pytest.approx(d)
        a = (PLAIN.accepted[j] - h - z * math.sqrt(V)) / 1000 - 0.01
        assert found.acceptance_lower[j] == pytest.approx(max(a, 0.0))
    exact = COMPARATORS["federated_non_private"].bounds(CLAIM, PLAIN, eta)
    assert np.all(exact.contrast_upper < found.contrast_upper)


def test_stitching_over_rounds_spends_no_more_than_the_budget() -> None:
    """At round t the level is that of the fixed-time rule with α π_t, Σ π_t = 1."""
    rounds = 4
    Z, F, V = (np.tile(x, (rounds, 1)) for x in (PLAIN.loss, PLAIN.other, PLAIN.variance))
    many = Sums(LOSS_NONLOSS, Z, F, V, 1000.0)
    found = COMPARATORS["schedule_conditioned"].bounds(CLAIM, many)
    weights = [6 / (math.pi**2 * t**2) for t in range(1, 100_000)]
    assert sum(weights) == pytest.approx(1.0, abs=1e-4)
    for t in range(rounds):
        h = math.sqrt(500 * math.log(2 * M / (0.025 * weights[t])))
        assert found.contrast_upper[t, 1] == pytest.approx((20 - 0.2 * 400 + h) / 1000)


def test_the_empirical_bernstein_bound_is_that_of_the_records() -> None:
    losses = np.array([1.0] * 20 + [0.0] * 380)
    x = math.log(2 * M / 0.045)
    risk = losses.mean() + math.sqrt(2 * losses.var(ddof=1) * x / 400) + 7 * x / (3 * 399)
    found = COMPARATORS["yu_liu"].bounds(CLAIM, PLAIN)
    assert bool(found.certified[1]) == (risk <= 0.2)
    assert found.contrast_upper[1] == pytest.approx(found.acceptance_lower[1] * (risk - 0.2))


def test_the_betting_bound_is_where_the_product_over_records_reaches_its_level() -> None:
    found = COMPARATORS["csa"].bounds(CLAIM, PLAIN)
    contrasts = np.array([0.8] * 20 + [-0.2] * 380 + [0.0] * 600)
    delta = float(found.contrast_upper[1])
    wealth = np.mean([np.prod(1 - k * (contrasts - delta)) for k in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)])
    assert wealth == pytest.approx(M / 0.045, rel=1e-4)
    accepts = np.array([1.0] * 400 + [0.0] * 600)
    low = float(found.acceptance_lower[1])
    wealth = np.mean([np.prod(1 + k * (accepts - low)) for k in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)])
    assert wealth == pytest.approx(M / 0.005, rel=1e-4)


def test_the_anytime_bound_is_the_root_of_the_normal_mixture() -> None:
    """At the width u the mixture sqrt(ρ/(v+ρ)) exp(u²/(2(v+ρ))) equals 1/α."""
    found = COMPARATORS["anytime_valid_crc"].bounds(CLAIM, PLAIN)
    alpha = 0.05 / (2 * M)
    width = 800.0 - 1000.0 * float(found.acceptance_lower[0])
    v, rho = 250.0, 500.0 / (2 * math.log(1 / alpha))
    assert math.sqrt(rho / (v + rho)) * math.exp(width**2 / (2 * (v + rho))) == pytest.approx(1 / alpha, rel=1e-9)


def test_capital_compounds_round_by_round() -> None:
    rng = np.random.default_rng(1)
    Z, F = np.cumsum(rng.normal(8, 1, (600, M)), axis=0), np.cumsum(rng.normal(80, 2, (600, M)), axis=0)
    N = 100.0 * np.arange(1, 601)[:, None]
    found = COMPARATORS["capital_heuristic"].bounds(CLAIM, Sums(LOSS_NONLOSS, Z, F, np.full((600, M), 0.0), N))
    capital = np.ones((7, M))
    D = 0.8 * Z - 0.2 * F
    for t in range(600):
        x = np.clip((D[t] - (D[t - 1] if t else 0.0)) / 100.0, -1.0, 1.0)
        capital *= 1 - np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0])[:, None] * x
        wins = capital.max(axis=0) >= 7 * M / 0.045
        assert np.array_equal(found.contrast_upper[t] == 0.0, wins)
    assert found.contrast_upper[-1].max() == 0.0


def test_the_quantile_of_quantiles_covers_as_computed() -> None:
    assert expected_coverage(1, 19, 18, 1) == pytest.approx(18 / 20, abs=1e-6)
    rng = np.random.default_rng(2)
    draws = np.sort(np.sort(rng.random((20_000, 5, 30)), axis=2)[:, :, 26], axis=1)[:, 2]
    assert expected_coverage(5, 30, 27, 3) == pytest.approx(draws.mean(), abs=3e-3)
    chosen = quantile_of_quantiles(5, 30, 0.1)
    pairs = [expected_coverage(5, 30, i, k) for i in range(1, 31) for k in range(1, 6)]
    assert chosen.coverage == pytest.approx(min(c for c in pairs if c >= 0.9))
    with pytest.raises(ValueError, match="cannot reach"):
        quantile_of_quantiles(1, 5, 0.1)


def test_one_shot_prediction_covers_on_average_where_sites_are_alike() -> None:
    alike = fitted_cell("c1").site(2)
    found = one_shot(alike, 200, 0.1, 400, 1)
    assert found.coverage == pytest.approx(found.chosen.coverage, abs=0.006)
    assert found.chosen.coverage >= 0.9
    assert 0.2 < found.trials_below < 0.8  # it promises a mean, not a probability


def test_a_control_changes_one_thing() -> None:
    noised = Sums(LOSS_NONLOSS, PLAIN.loss, PLAIN.other, np.array([30.0, 20.0, 10.0]), 1000.0)
    eta = Transfer(0.01, 0.01)
    rule = RULES["eprocess"]
    clean = Sums(LOSS_NONLOSS, PLAIN.loss, PLAIN.other, np.zeros(3), 1000.0)
    half = Sums(LOSS_NONLOSS, PLAIN.loss, PLAIN.other, np.array([15.0, 10.0, 5.0]), 1000.0)
    for name, read, transfer in (
        ("noise_ignored:eprocess", clean, eta),
        ("variance_halved:eprocess", half, eta),
        ("shift_ignored:eprocess", noised, Transfer()),
    ):
        found, want = resolve(name).bounds(CLAIM, noised, eta), rule.bounds(CLAIM, read, transfer)
        assert np.array_equal(found.contrast_upper, want.contrast_upper)
        assert np.array_equal(resolve(name).certified(CLAIM, noised, eta), want.certified)
    stopped = resolve("after_stopping:central_ltt")
    assert native_of(stopped).looks == "every"
    assert native_of(stopped).reads == "exact"
    assert native_of(resolve("naive:csa")).reads == "noised"


@pytest.mark.parametrize(
    "name", ["", "nothing", "noise_ignored:nothing", "nothing:eprocess", "after_stopping:eprocess", "naive:fed_src_c"]
)
def test_names_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError):
        resolve(name)
