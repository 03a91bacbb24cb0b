"""Laws that every rule keeps: monotone, vectorised, safe at the limits, registered, refused where it must not be."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from reticent.accounting.calibration import Claim
from reticent.accounting.calibration.kinds import RELEASE_KINDS, SERVING_RULES
from reticent.accounting.certificates import judge
from reticent.accounting.certificates.bounds import (
    COUNT_ERROR,
    LARGEST_ACCEPTANCE,
    LOSS_NONLOSS,
    SMALLEST_INDEX,
    Bounds,
    Sums,
    Transfer,
    select,
)
from reticent.accounting.certificates.eprocess import log_acceptance_evidence, log_risk_evidence
from reticent.accounting.certificates.rules import RULES, EProcess, FedSrcC, RuleNotForServingError, serving_rule
from reticent.accounting.certificates.verdict import judge_sums

CLAIM = Claim(0.3, 0.05, 0.045, 0.005)
GOLDEN = Path(__file__).parent.parent / "golden" / "eprocess_verdicts.json"
EVERY = [(name, release) for name in sorted(RULES) for release in sorted(RELEASE_KINDS)]

every_rule = pytest.mark.parametrize(("name", "release"), EVERY)


def example(release: str, N: int = 20_000, m: int = 20, sigma: float = 4.0, releases: int = 6) -> Sums:
    score = np.arange(m) / m
    A = np.rint(N * (1 - score) * 0.9)
    Z = np.rint(A * (0.35 - 0.3 * score))
    variance = releases * sigma**2 * np.arange(m, 0, -1.0)
    return Sums(release, Z, A if release == COUNT_ERROR else A - Z, variance, N, sigma**2 if sigma else 1.0)


def test_plans_may_name_exactly_the_rules_that_serve_with_the_releases_that_they_read() -> None:
    assert {name: rule.releases for name, rule in RULES.items() if rule.serves} == dict(SERVING_RULES)
    assert all(rule.name == name for name, rule in RULES.items())


@pytest.mark.parametrize("name", sorted(RULES))
def test_failure_probabilities_add_up_to_the_claims(name: str) -> None:
    parts = RULES[name].failure_probabilities(CLAIM)
    assert math.fsum(parts.values()) == pytest.approx(CLAIM.alpha_risk + CLAIM.alpha_acceptance, abs=1e-15)


def test_the_papers_budgets_come_out_of_the_default_claim() -> None:
    parts = FedSrcC().failure_probabilities(CLAIM)
    assert parts == {"alpha_sampling": pytest.approx(0.025), "alpha_noise": pytest.approx(0.025)}


def test_a_rule_for_studies_only_is_refused_for_serving() -> None:
    class Sketch(FedSrcC):
        name = "sketch"
        serves = False

    class OneKind(FedSrcC):
        name = "one_kind"
        releases = frozenset({LOSS_NONLOSS})

    rules = {"sketch": Sketch(), "one_kind": OneKind()}
    for name, release in (("sketch", LOSS_NONLOSS), ("one_kind", COUNT_ERROR), ("unknown", LOSS_NONLOSS)):
        with pytest.raises(RuleNotForServingError) as caught:
            serving_rule(name, release, rules)
        assert (caught.value.name, caught.value.release) == (name, release)
    assert serving_rule("one_kind", LOSS_NONLOSS, rules).name == "one_kind"


@every_rule
@settings(max_examples=25, deadline=None)
@given(
    N=st.integers(1, 10**9),
    accepted=st.floats(0.0, 1.0),
    risk=st.floats(0.0, 1.0),
    variance=st.floats(0.0, 1e7),
    growth=st.floats(1.0, 100.0),
    eta=st.floats(0.0, 0.05),
)
def test_more_noise_or_more_transfer_never_certifies_more(
    name: str, release: str, N: int, accepted: float, risk: float, variance: float, growth: float, eta: float
) -> None:
    falling = np.linspace(1.0, 0.1, 5)
    A = np.rint(N * accepted * falling)
    Z = np.rint(A * risk)
    V = variance * np.arange(5, 0, -1.0)
    quiet = Sums(release, Z, A if release == COUNT_ERROR else A - Z, V, N)
    rule, reference = RULES[name], RULES[name].bounds(CLAIM, quiet, Transfer(eta, eta))
    louder = replace_variance(quiet, growth * V)
    for other in (
        rule.bounds(CLAIM, louder, Transfer(eta, eta)),
        rule.bounds(CLAIM, quiet, Transfer(2 * eta, 2 * eta)),
    ):
        assert not np.any(other.certified & ~reference.certified)
        assert np.all(other.contrast_upper >= reference.contrast_upper - 1e-9)
        assert np.all(other.acceptance_lower <= reference.acceptance_lower + 1e-9)


def replace_variance(sums: Sums, variance: NDArray[np.floating]) -> Sums:
    return Sums(sums.release, sums.loss, sums.other, variance, sums.events, sums.least_variance)


@every_rule
def test_a_batch_of_trials_and_rounds_is_judged_as_each_one_alone(name: str, release: str) -> None:
    parts = [[example(release, N=N, releases=k, sigma=s) for N, k in ((3000, 2), (20_000, 9))] for s in (1.0, 3.0, 9.0)]
    sums = Sums(
        release,
        np.array([[p.loss for p in row] for row in parts]),
        np.array([[p.other for p in row] for row in parts]),
        np.array([[p.variance for p in row] for row in parts]),
        np.array([[[3000.0], [20_000.0]]]),
    )
    eta = np.array([[[0.01], [0.0]]])
    batch = RULES[name].bounds(CLAIM, sums, Transfer(eta, eta))
    assert np.array_equal(RULES[name].certified(CLAIM, sums, Transfer(eta, eta)), batch.certified)
    assert batch.certified.shape == batch.contrast_upper.shape == batch.acceptance_lower.shape == (3, 2, 20)
    for i, row in enumerate(parts):
        for k, part in enumerate(row):
            alone_sums = Sums(release, part.loss, part.other, part.variance, part.events)
            alone = RULES[name].bounds(CLAIM, alone_sums, Transfer(eta[0, k, 0], eta[0, k, 0]))
            # The e-process's root finding stops when all of a batch have converged, so the last digits may differ.
            np.testing.assert_allclose(alone.contrast_upper, batch.contrast_upper[i, k], atol=1e-11)
            np.testing.assert_allclose(alone.acceptance_lower, batch.acceptance_lower[i, k], atol=1e-11)
            assert np.array_equal(alone.certified, batch.certified[i, k])


@every_rule
def test_nothing_is_known_before_the_first_record(name: str, release: str) -> None:
    zeros = np.zeros(3)
    bounds = RULES[name].bounds(CLAIM, Sums(release, zeros, zeros, zeros, 0))
    assert np.all(bounds.contrast_upper == 0.7)
    assert np.all(bounds.acceptance_lower == 0.0)
    assert not bounds.certified.any()


@every_rule
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("N", "m", "sigma", "releases"), [(10**9, 1000, 15.0, 10**4), (10**9, 1000, 0.0, 1), (1, 1, 1e4, 1)]
)
def test_the_largest_calibrations_stay_finite_and_within_range(
    name: str, release: str, N: int, m: int, sigma: float, releases: int
) -> None:
    bounds = RULES[name].bounds(CLAIM, example(release, N, m, sigma, releases), Transfer(0.001, 0.001))
    assert np.all((bounds.contrast_upper >= -0.3) & (bounds.contrast_upper <= 0.7))
    assert np.all((bounds.acceptance_lower >= 0.0) & (bounds.acceptance_lower <= 1.0))
    if N > 1:
        truth = (example(release, N, m, sigma, releases).contrast(0.3)) / N
        assert np.all(bounds.contrast_upper >= truth)
        assert np.all(bounds.contrast_upper <= truth + (0.002 if sigma == 0.0 else 0.05))
        assert bounds.certified.any()


@every_rule
def test_a_certified_threshold_has_its_bounds_on_the_right_side(name: str, release: str) -> None:
    bounds = RULES[name].bounds(CLAIM, example(release))
    assert bounds.certified.any()
    assert not bounds.certified.all()
    assert np.array_equal(bounds.certified, (bounds.contrast_upper <= 0.0) & (bounds.acceptance_lower >= 0.05))


@pytest.mark.parametrize("release", sorted(RELEASE_KINDS))
def test_the_crossing_line_certifies_whatever_the_range_only_rule_does(release: str) -> None:
    for N in (500, 4096, 5000, 20_000):
        sums = example(release, N)
        line, plain = (RULES[name].bounds(CLAIM, sums) for name in ("crossing_line", "fed_src_c"))
        assert np.all(line.contrast_upper <= plain.contrast_upper + 1e-14)
        assert np.all(line.acceptance_lower >= plain.acceptance_lower - 1e-14)


def test_the_paper_selects_the_largest_lower_bound_and_the_e_process_the_first_threshold() -> None:
    mask = np.array([[False, True, True, True], [False, False, False, False], [True, True, False, False]])
    low = np.array([[0.9, 0.2, 0.5, 0.5], [0.9, 0.9, 0.9, 0.9], [0.1, 0.1, 0.7, 0.7]])
    bounds = Bounds(np.where(mask, -0.1, 0.1), low, mask)
    assert select(LARGEST_ACCEPTANCE, bounds).tolist() == [2, -1, 0]
    assert select(SMALLEST_INDEX, bounds).tolist() == [1, -1, 0]
    assert {name for name, rule in RULES.items() if rule.selection == SMALLEST_INDEX} == {"eprocess"}


def test_without_noise_both_releases_give_the_e_process_the_same_evidence() -> None:
    one_hot, counts = (example(release, sigma=0.0) for release in (LOSS_NONLOSS, COUNT_ERROR))
    a, b = (log_risk_evidence(s.loss, s.other, s.variance, s.events, -0.01, 0.3, s.release) for s in (one_hot, counts))
    np.testing.assert_allclose(a, b, atol=1e-9)
    a, b = (log_acceptance_evidence(s.loss, s.other, s.variance, s.events, 0.06, s.release) for s in (one_hot, counts))
    np.testing.assert_allclose(a, b, atol=1e-9)


def test_the_e_process_takes_from_counts_exactly_what_their_noise_multiplies() -> None:
    """The mean of exp over Gaussian noise of variance V on Z̃ and on Ã, by quadrature, is what it was without noise."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    V, Z, A, N = 0.7, 3.0, 11.0, 40.0
    z, a = np.meshgrid(Z + math.sqrt(V) * nodes, A + math.sqrt(V) * nodes, indexing="ij")
    risk = np.exp(log_risk_evidence(z, a, np.array(V), N, -0.02, 0.3, COUNT_ERROR))
    clean = float(np.exp(log_risk_evidence(np.array(Z), np.array(A), np.array(0.0), N, -0.02, 0.3, COUNT_ERROR)))
    assert float(weights @ risk @ weights) == pytest.approx(clean, rel=1e-9)
    floor = np.exp(log_acceptance_evidence(z, a, np.array(V), N, 0.06, COUNT_ERROR))
    clean = float(np.exp(log_acceptance_evidence(np.array(Z), np.array(A), np.array(0.0), N, 0.06, COUNT_ERROR)))
    assert float(weights @ floor @ weights) == pytest.approx(clean, rel=1e-9)


def test_the_e_process_has_its_former_numbers() -> None:
    for item in json.loads(GOLDEN.read_text())["verdicts"]:
        claim = Claim(*item["claim"])
        again = asdict(judge(claim, *item["arguments"], **item["transfers"]))
        for name, value in item["verdict"].items():
            found = list(again[name]) if isinstance(again[name], tuple) else again[name]
            if isinstance(value, list) and value and isinstance(value[0], float):
                # exp and log1p may differ in the last place between machines; on one machine these are equal
                size = max(1.0, 1e-3 * again["events"]) if name.startswith("log_") else 1.0
                np.testing.assert_allclose(found, value, rtol=1e-9, atol=1e-9 * size)
            else:
                assert found == value, name


def test_a_verdict_says_which_sums_it_cannot_judge() -> None:
    good, rule = example(LOSS_NONLOSS), EProcess()
    thresholds = tuple(np.linspace(0.0, 0.95, 20))
    assert judge_sums(rule, CLAIM, thresholds, good, Transfer()).chosen is not None
    bad = [
        (Sums(LOSS_NONLOSS, good.loss[:3], good.other, good.variance, 5), Transfer()),
        (Sums(LOSS_NONLOSS, good.loss * math.nan, good.other, good.variance, 5), Transfer()),
        (Sums(LOSS_NONLOSS, good.loss, good.other, -good.variance, 5), Transfer()),
        (Sums(LOSS_NONLOSS, good.loss, good.other, good.variance, -1), Transfer()),
        (good, Transfer(-0.1, 0.0)),
        (good, Transfer(0.0, math.inf)),
    ]
    for sums, transfer in bad:
        with pytest.raises(ValueError, match=r"suffix sums|negative"):
            judge_sums(rule, CLAIM, thresholds, sums, transfer)
    with pytest.raises(ValueError, match="must be one of"):
        Sums("counts", good.loss, good.other, good.variance, 5)
    with pytest.raises(ValueError, match="least_variance"):
        Sums(LOSS_NONLOSS, good.loss, good.other, good.variance, 5, 0.0)
