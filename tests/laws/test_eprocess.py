"""Laws of the e-process rule: slow twins in mpmath, exact expectations over all outcomes, and inverses."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.accounting.calibration import Claim
from reticent.accounting.certificates import judge
from reticent.accounting.certificates.eprocess import (
    ACCEPTANCE_BETS,
    RISK_BETS,
    acceptance_lower,
    certified_mask,
    contrast_upper,
    log_acceptance_evidence,
    log_risk_evidence,
    rounding_margin,
)

mp.mp.dps = 40
CLAIM = Claim(target_risk=0.2, min_acceptance=0.05, alpha_risk=0.045, alpha_acceptance=0.005)


def slow_bet(bet: float, r: float) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """λ, b and g from their definitions: e^-b = 1 - r + r e^-λ, g = (1 - e^-λ) e^b."""
    lam = mp.mpf(bet)
    b = -mp.log(1 - mp.mpf(r) + mp.mpf(r) * mp.exp(-lam))
    return lam, b, (1 - mp.exp(-lam)) * mp.exp(b)


def slow_risk(Z: float, F: float, V: float, N: float, delta: float, r: float) -> mp.mpf:
    total = mp.mpf(0)
    for bet in RISK_BETS:
        lam, b, g = slow_bet(bet, r)
        total += mp.exp((b - lam) * Z + b * F - ((lam - b) ** 2 + b**2) * V / 2 + g * N * mp.mpf(delta))
    return mp.log(total / len(RISK_BETS))


def slow_acceptance(Z: float, F: float, V: float, N: float, floor: float) -> mp.mpf:
    total = mp.mpf(0)
    for bet in ACCEPTANCE_BETS:
        s = mp.mpf(bet)
        total += mp.exp(s * (Z + F) - s**2 * V) / (1 + mp.mpf(floor) * (mp.exp(s) - 1)) ** N
    return mp.log(total / len(ACCEPTANCE_BETS))


def discrete_gaussian_pmf(sigma: float) -> dict[int, mp.mpf]:
    reach = math.ceil(12 * sigma) + 2
    weights = {x: mp.exp(-(mp.mpf(x) ** 2) / (2 * mp.mpf(sigma) ** 2)) for x in range(-reach, reach + 1)}
    total = mp.fsum(weights.values())
    return {x: w / total for x, w in weights.items()}


CASES = [
    (30.0, 400.0, 120.0, 1000, 0.2),
    (-7.0, 3.0, 50.0, 12, 0.1),
    (0.0, 0.0, 0.0, 0, 0.3),
    (9_000.0, 91_000.0, 5_000.0, 200_000, 0.1),
    (1.9e8, 7.1e8, 4e6, 10**9, 0.3),
]


def test_the_bets_are_those_of_the_design() -> None:
    assert [round(0.005 * 1.6**i, 12) for i in range(14)] == [round(bet, 12) for bet in RISK_BETS]
    assert ACCEPTANCE_BETS == (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)


@pytest.mark.parametrize(("Z", "F", "V", "N", "r"), CASES)
def test_evidence_equals_its_slow_twin_within_the_rounding_margin(
    Z: float, F: float, V: float, N: int, r: float
) -> None:
    margin = float(rounding_margin(Z, F, V, N))
    assert margin <= 1e-9 + 1e-13 * (N + abs(Z) + abs(F) + V)
    for delta in (-0.05, -0.001, 0.0, 0.03):
        assert abs(float(log_risk_evidence(Z, F, V, N, delta, r) - slow_risk(Z, F, V, N, delta, r))) <= margin
    for floor in (0.0, 0.05, 0.07, 0.9):
        assert abs(float(log_acceptance_evidence(Z, F, V, N, floor) - slow_acceptance(Z, F, V, N, floor))) <= margin


@pytest.mark.parametrize(("Z", "F", "V", "N", "r"), [case for case in CASES if case[3] > 0])
def test_numeric_bounds_invert_the_evidence_and_err_on_the_safe_side(
    Z: float, F: float, V: float, N: int, r: float
) -> None:
    alpha = 0.045 / 20
    d_bar = float(contrast_upper(Z, F, V, N, target_risk=r, alpha=alpha))
    slack = 1e-7
    if d_bar < 1 - r:
        assert slow_risk(Z, F, V, N, d_bar, r) >= mp.log(1 / mp.mpf(alpha))
        assert slow_risk(Z, F, V, N, d_bar - slack, r) < mp.log(1 / mp.mpf(alpha))
    else:
        assert slow_risk(Z, F, V, N, 1 - r - slack, r) < mp.log(1 / mp.mpf(alpha))
    floor = float(acceptance_lower(Z, F, V, N, alpha=alpha))
    if floor > 0:
        assert slow_acceptance(Z, F, V, N, floor) >= mp.log(1 / mp.mpf(alpha))
    assert slow_acceptance(Z, F, V, N, floor + slack) < mp.log(1 / mp.mpf(alpha))


def test_nothing_learnt_gives_the_vacuous_bounds() -> None:
    verdict = judge(CLAIM, (0.1, 0.5), (0, 0), (0, 0), (0.0, 0.0), 0, contrast_transfer=1.0, acceptance_transfer=1.0)
    assert verdict.certified == ()
    assert verdict.chosen is None
    assert verdict.threshold is None
    assert verdict.contrast_upper == (0.8, 0.8)
    assert verdict.acceptance_lower == (0.0, 0.0)


@pytest.mark.parametrize("r", [0.05, 0.1, 0.3, 0.8])
@pytest.mark.parametrize("a", [0.0, 0.03, 0.4, 1.0])
@pytest.mark.parametrize("risk", [0.0, 0.1, 0.31, 1.0])
def test_one_step_is_a_supermartingale_for_every_law_of_a_record(r: float, a: float, risk: float) -> None:
    """Exact, over all outcomes: not accepted, or accepted with loss 0, ¼ or 1 in three mixtures of the same mean."""
    a_, risk_ = mp.mpf(a), mp.mpf(risk)
    laws: list[dict[float, mp.mpf]] = [{1.0: risk_, 0.0: 1 - risk_}, {risk: mp.mpf(1)}]
    if risk <= 0.25:
        laws.append({0.25: 4 * risk_, 0.0: 1 - 4 * risk_})
    d = a_ * (risk_ - mp.mpf(r))
    for bet in RISK_BETS:
        lam, b, g = slow_bet(bet, r)
        for law in laws:
            mean = 1 - a_ + a_ * mp.fsum(p * mp.exp((b - lam) * ell + b * (1 - ell)) for ell, p in law.items())
            assert mean <= mp.exp(-g * d) + mp.mpf(10) ** -30
            if d >= 0:
                assert mean <= 1 + mp.mpf(10) ** -30


def test_a_factor_for_accepted_nonloss_one_percent_too_large_is_not_a_supermartingale() -> None:
    r = 0.2
    for bet in RISK_BETS:
        lam, b, _ = slow_bet(bet, r)
        b *= mp.mpf("1.01")
        assert (1 - mp.mpf(r)) * mp.exp(b) + mp.mpf(r) * mp.exp(b - lam) > 1


@pytest.mark.parametrize("sigma", [0.35, 0.66, 2.247])
def test_the_noise_term_covers_the_discrete_gaussian_exactly(sigma: float) -> None:
    """Sum over the whole mass: E exp((b-λ)X + bY) ≤ exp(½((λ-b)² + b²)σ²), and the same for the acceptance floor."""
    pmf = discrete_gaussian_pmf(sigma)
    tiny = 1 + mp.mpf(10) ** -25

    def moment(t: mp.mpf) -> mp.mpf:
        return mp.fsum(p * mp.exp(t * x) for x, p in pmf.items())

    variance = mp.mpf(sigma) ** 2
    for bet in RISK_BETS:
        lam, b, _ = slow_bet(bet, 0.2)
        assert moment(b - lam) * moment(b) <= mp.exp(((lam - b) ** 2 + b**2) * variance / 2) * tiny
    for s in map(mp.mpf, ACCEPTANCE_BETS):
        assert moment(s) ** 2 <= mp.exp(s**2 / 2 * 2 * variance) * tiny
        if (
            sigma > 0.6
        ):  # below that the discrete Gaussian varies much less than σ²; above, V in place of 2V is too little
            assert moment(s) ** 2 > mp.exp(s**2 / 2 * variance)


@pytest.mark.parametrize("with_noise", [False, True])
def test_the_expected_evidence_is_at_most_one_for_any_predictable_choice_of_clients(with_noise: bool) -> None:
    """Three records from two clients of opposite sign; the second client depends on the first record. Exact."""
    r, sigma = 0.3, 0.5
    clients = {"good": (0.9, 0.05), "bad": (0.4, 0.95)}  # acceptance, risk
    noise = {x: p for x, p in discrete_gaussian_pmf(sigma).items() if abs(x) <= 5} if with_noise else {0: mp.mpf(1)}
    V = sigma**2 if with_noise else 0.0
    outcomes = ((0, 0), (1, 0), (0, 1))  # (Z, F)

    def probability(client: str, outcome: tuple[int, int]) -> float:
        a, risk = clients[client]
        return {(0, 0): 1 - a, (1, 0): a * risk, (0, 1): a * (1 - risk)}[outcome]

    risk_mean = acceptance_mean = mp.mpf(0)
    for path in itertools.product(outcomes, repeat=3):
        order = ("good", "bad" if path[0] == (0, 1) else "good", "bad")
        weight = math.prod(probability(c, o) for c, o in zip(order, path, strict=True))
        total_d = sum(clients[c][0] * (clients[c][1] - r) for c in order)
        mean_a = sum(clients[c][0] for c in order) / 3
        Z, F = sum(o[0] for o in path), sum(o[1] for o in path)
        for (x, p), (y, q) in itertools.product(noise.items(), repeat=2):
            risk_log = float(log_risk_evidence(Z + x, F + y, V, 3, total_d / 3, r))
            acceptance_log = float(log_acceptance_evidence(Z + x, F + y, V, 3, mean_a))
            risk_mean += weight * p * q * mp.exp(risk_log)
            acceptance_mean += weight * p * q * mp.exp(acceptance_log)
    assert 0.5 < risk_mean <= 1 + 1e-12
    assert 0.5 < acceptance_mean <= 1 + 1e-12


@given(
    Z=st.integers(-500, 20_000),
    F=st.integers(-500, 20_000),
    V=st.floats(0, 1e5),
    N=st.integers(1, 10**6),
    r=st.floats(0.01, 0.9),
    low=st.floats(-1, 1),
    step=st.floats(0, 1),
)
@settings(max_examples=150, deadline=None)
def test_risk_evidence_grows_and_acceptance_evidence_falls_with_the_hypothesis(
    Z: int, F: int, V: float, N: int, r: float, low: float, step: float
) -> None:
    tiny = 4 * float(rounding_margin(Z, F, V, N))
    assert log_risk_evidence(Z, F, V, N, low + step, r) >= log_risk_evidence(Z, F, V, N, low, r) - tiny
    floor = abs(low)
    assert log_acceptance_evidence(Z, F, V, N, floor + step) <= log_acceptance_evidence(Z, F, V, N, floor) + tiny


@given(
    Z=st.integers(-50, 400),
    F=st.integers(-50, 4000),
    V=st.floats(0, 2000),
    N=st.integers(1, 6000),
    eta=st.floats(0, 1.2),
    r=st.sampled_from([0.1, 0.2, 0.3]),
)
@settings(max_examples=300, deadline=None)
def test_decisions_and_bounds_agree(Z: int, F: int, V: float, N: int, eta: float, r: float) -> None:
    claim = Claim(r, 0.05, 0.045, 0.005)
    verdict = judge(claim, (0.5,), (Z,), (F,), (V,), N, contrast_transfer=eta, acceptance_transfer=eta)
    risk_ok, floor_ok = verdict.contrast_upper[0] <= 0, verdict.acceptance_lower[0] >= 0.05
    assert bool(verdict.certified) == (risk_ok and floor_ok)
    assert -r <= verdict.contrast_upper[0] <= 1 - r
    assert 0 <= verdict.acceptance_lower[0] <= 1


def test_the_smallest_certified_threshold_is_chosen() -> None:
    Z, F, V = (400, 60, 15, 1), (1000, 900, 700, 10), (160.0, 120.0, 80.0, 40.0)
    verdict = judge(CLAIM, (0.2, 0.4, 0.6, 0.8), Z, F, V, 2000)
    assert verdict.certified == (1, 2)
    assert verdict.chosen == 1
    assert verdict.threshold == 0.4
    assert verdict.contrast_upper[1] <= 0 < verdict.contrast_upper[0]
    assert verdict.acceptance_lower[1] > verdict.acceptance_lower[2] >= 0.05 > verdict.acceptance_lower[3]


def test_a_larger_transfer_never_helps() -> None:
    Z, F, V = (60,), (900,), (120.0,)
    bounds = [judge(CLAIM, (0.4,), Z, F, V, 2000, contrast_transfer=x, acceptance_transfer=x) for x in (0, 0.01, 0.1)]
    assert [bool(b.certified) for b in bounds] == [True, True, False]
    assert bounds[0].contrast_upper < bounds[1].contrast_upper < bounds[2].contrast_upper
    assert bounds[0].acceptance_lower > bounds[1].acceptance_lower > bounds[2].acceptance_lower


def test_a_thousand_thresholds_and_a_thousand_million_events_do_not_overflow() -> None:
    m, N = 1000, 10**9
    accepted = np.linspace(N, 0.01 * N, m)
    risk = np.linspace(0.4, 0.02, m)
    V = 30 * 65.0 * np.arange(m, 0, -1)
    verdict = judge(
        CLAIM, tuple(np.linspace(0, 1, m)), tuple(accepted * risk), tuple(accepted * (1 - risk)), tuple(V), N
    )
    values = (verdict.contrast_upper, verdict.acceptance_lower, verdict.log_risk_evidence)
    assert all(math.isfinite(x) for row in values for x in row)
    assert verdict.chosen is not None
    true_contrast = accepted / N * (risk - 0.2)
    assert np.all(np.asarray(verdict.contrast_upper) >= np.clip(true_contrast, -0.2, 0.8))
    assert np.all(np.asarray(verdict.acceptance_lower) <= accepted / N)
    assert np.max(np.asarray(verdict.acceptance_lower) - accepted / N) > -1e-2
    assert abs(risk[verdict.chosen] - 0.2) < 0.01


def test_trials_along_leading_axes_are_judged_as_if_alone() -> None:
    rng = np.random.default_rng(5)
    N = np.array([[500], [4000], [9000]])
    Z, F = rng.binomial(N, [0.08, 0.02, 0.01]), rng.binomial(N, [0.5, 0.3, 0.1])
    V = np.array([300.0, 200.0, 100.0])
    together = certified_mask(CLAIM, Z, F, V, N, contrast_transfer=0.001, acceptance_transfer=0.002)
    alone = [
        certified_mask(CLAIM, Z[i], F[i], V, int(N[i, 0]), contrast_transfer=0.001, acceptance_transfer=0.002)
        for i in range(3)
    ]
    assert np.array_equal(together, np.stack(alone))
    assert together.any()
    assert not together.all()


@pytest.mark.parametrize(
    "bad",
    [
        {"thresholds": ()},
        {"accepted_loss": (1.0,)},
        {"accepted_nonloss": (math.nan, 1.0)},
        {"noise_variance": (-1.0, 1.0)},
        {"events": -1},
        {"contrast_transfer": -0.1},
        {"acceptance_transfer": math.inf},
    ],
)
def test_malformed_sums_are_refused(bad: dict[str, object]) -> None:
    good: dict[str, object] = {
        "thresholds": (0.1, 0.2),
        "accepted_loss": (1.0, 1.0),
        "accepted_nonloss": (1.0, 1.0),
        "noise_variance": (1.0, 1.0),
        "events": 10,
    }
    judge(CLAIM, **good)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        judge(CLAIM, **{**good, **bad})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values", [(0.0, 0.05, 0.04, 0.01), (0.2, 1.0, 0.04, 0.01), (0.2, 0.05, 0.6, 0.5), (math.nan, 0.05, 0.04, 0.01)]
)
def test_claims_outside_their_ranges_are_refused(values: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError):
        Claim(*values)
