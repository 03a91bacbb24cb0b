"""Rényi charges of phase 2: certified pairs recomputed from the condition itself with mpmath at 50 digits or more, and
from the whole output law of phase 2."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from reticent.accounting.charges.acceptance import AcceptanceLaw
from reticent.accounting.charges.privitp import PrivITP, RoundCosts
from reticent.accounting.charges.renyi_rounds import (
    Points,
    acceptance_for,
    cover,
    curve,
    least_rejection,
    log_acceptance,
    slack_per_round,
)
from reticent.accounting.charges.round_table import RoundTable
from reticent.accounting.errors import InvalidQuantityError

CONFIGURATIONS: dict[str, tuple[PrivITP, float]] = {
    "embedded": (PrivITP(1.0, 0.000981, 8, 0.2, 0.1, 0.2, 0.0), 6.0),
    "design": (PrivITP(1.0, 0.05, 16, 0.05, 0.256, 0.256, 3.84), 1.377),
    "wide": (PrivITP(1.0, 0.01, 16, 0.05, 1.28, 1.28, 3.84), 1.377),
    "range": (PrivITP(1.0, 1.0, 16, 0.05, 1.28, 1.28, 3.84), 1.5),
    "dear": (PrivITP(2.0, 0.3, 3, 0.3, 0.2, 0.2, 1.0), 3.0),
    "high order": (PrivITP(1.0, 0.01, 3, 0.1, 0.2, 0.5, 0.5), 1000.0),
    "low order": (PrivITP(1.0, 0.2, 3, 0.5, 0.5, 0.5, 0.0), 1.01),
}
NAMES = list(CONFIGURATIONS)


@lru_cache
def table(name: str) -> RoundTable:
    mechanism, order = CONFIGURATIONS[name]
    return mechanism.round_table(order)


def cells(name: str, count: int) -> list[int]:
    last = table(name).guess.size - 1
    return sorted({round(i * last / (count - 1)) for i in range(count)})


# The slow twin: the condition itself.


def slow_acceptance(m: PrivITP, threshold: float, q: mpf) -> tuple[mpf, mpf]:
    """(B(q), A(q)) from ψ(x) = xΦ(x) + φ(x)."""
    noise = mpf(m.reward_noise)
    ceiling = mpf(m.reward_max) + noise * mpf(m.truncation)

    def psi(x: mpf) -> mpf:
        return x * mp.erfc(-x / mp.sqrt(2)) / 2 + mp.npdf(x)

    low, high = (q - ceiling) / noise, (q - mpf(threshold)) / noise
    return (psi(high) - psi(low)) / (high - low), (psi(-low) - psi(-high)) / (high - low)


def slow_factors(m: PrivITP, order: float, threshold: float, rewards: list[float]) -> list[tuple[mpf, mpf]]:
    """(p^α p'^{1-α}, (1-p)^α (1-p')^{1-α}) for rewards q and both of their clipped neighbours."""
    R, Delta, alpha = mpf(m.reward_max), mpf(m.sensitivity), mpf(order)
    found = []
    for q in map(mpf, rewards):
        p, not_p = slow_acceptance(m, threshold, q)
        for other in (max(q - Delta, mpf(0)), min(q + Delta, R)):
            p_, not_p_ = slow_acceptance(m, threshold, other)
            found.append((p**alpha * p_ ** (1 - alpha), not_p**alpha * not_p_ ** (1 - alpha)))
    return found


def worst_rewards(m: PrivITP, order: float, threshold: float, rejection: float) -> list[float]:
    """Rewards at which the condition is tightest: where to look, found in double precision."""
    q = np.linspace(0.0, m.reward_max - m.sensitivity, 2000)
    found = curve(q, np.array([threshold]), sensitivity=m.sensitivity, ceiling=ceiling(m), noise=m.reward_noise)
    worst = float(
        q[int(np.argmax(acceptance_for(Points(*(part.T for part in found)), np.full(q.size, rejection), order)))]
    )
    return [worst, worst + m.sensitivity]


def largest(factors: list[tuple[mpf, mpf]], order: float, r: float, s: float) -> mpf:
    """The supremum of F over the given pairs."""
    a = mpf(order) - 1
    x, y = mp.exp(-a * mpf(s)), mp.exp(-a * mpf(r))
    return max(u * x + v * y for u, v in factors)


@pytest.mark.parametrize("name", NAMES)
def test_every_certified_pair_satisfies_the_condition_and_one_percent_less_for_an_acceptance_does_not(
    name: str,
) -> None:
    mechanism, order = CONFIGURATIONS[name]
    tab = table(name)
    spread = [mechanism.reward_max * i / 16 for i in range(17)]
    with mp.workdps(60):
        for k in cells(name, 3):
            r, s = float(tab.rejection[k]), float(tab.acceptance[k])
            worst = worst_of_less = mpf(0)
            for threshold in (float(tab.edges[k]), float(tab.edges[k + 1])):
                rewards = worst_rewards(mechanism, order, threshold, r)
                factors = slow_factors(mechanism, order, threshold, spread + rewards)
                worst = max(worst, largest(factors, order, r + tab.slack, s + tab.slack))
                worst_of_less = max(worst_of_less, largest(factors, order, r, 0.99 * s))
            assert worst <= 1
            assert worst_of_less > 1


@pytest.mark.parametrize("name", NAMES)
def test_the_condition_holds_on_a_fine_grid_of_rewards_in_every_cell(name: str) -> None:
    """Double precision, so with a tolerance; the grid is not the certificate's."""
    mechanism, order = CONFIGURATIONS[name]
    tab = table(name)
    rng = np.random.default_rng(3)
    thresholds = tab.edges[:-1] + rng.uniform(size=tab.guess.size) * np.diff(tab.edges)
    q = np.linspace(0.0, mechanism.reward_max - mechanism.sensitivity, 1237)
    chosen = rng.choice(tab.guess.size, 60, replace=False)
    points = curve(
        q,
        thresholds[chosen],
        sensitivity=mechanism.sensitivity,
        ceiling=ceiling(mechanism),
        noise=mechanism.reward_noise,
    )
    needed = acceptance_for(points, tab.rejection[chosen] + tab.slack, order)
    assert (needed <= tab.acceptance[chosen] + tab.slack).all()
    assert (acceptance_for(points, 0.9 * tab.rejection[chosen], order) > 0.9 * tab.acceptance[chosen]).all()


def ceiling(m: PrivITP) -> float:
    return m.reward_max + m.reward_noise * m.truncation


# The whole of phase 2.


def moment(m: PrivITP, costs: RoundCosts, order: float, rounds: list[tuple[float, float]]) -> float:
    """E_D exp((α-1)(loss - charge)) over the outcomes of phase 2, rounds given as (p, p')."""
    a = order - 1.0
    total, alive, alive_other = 0.0, 1.0, 1.0
    for t, (p, q) in enumerate(rounds, start=1):
        accepted, other = alive * p, alive_other * q
        total += accepted * math.exp(a * (math.log(accepted / other) - costs.accepted(t)))
        alive, alive_other = alive * (1.0 - p), alive_other * (1.0 - q)
    return total + alive * math.exp(a * (math.log(alive / alive_other) - costs.fallback()))


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("name", ["design", "range", "dear", "low order"])
def test_the_charge_bounds_the_moment_of_the_whole_phase_over_all_reward_sequences(name: str, n: int) -> None:
    given_mechanism, order = CONFIGURATIONS[name]
    m = PrivITP(**{**vars(given_mechanism), "candidates": n})
    worst_of_less = 0.0
    for threshold in np.linspace(-m.regularization, m.reward_max - m.regularization, 7):
        law = m.acceptance_law(float(threshold))
        costs = m.round_costs(float(threshold), "renyi", order)
        less = RoundCosts(0.97 * costs.rejection, 0.97 * costs.acceptance, n)
        pairs = []
        for x in np.linspace(0.0, m.reward_max - m.sensitivity, 6):
            u, v = math.exp(law.log_accept(float(x))), math.exp(law.log_accept(float(x) + m.sensitivity))
            pairs += [(u, v), (v, u)]
        sequences = [list(rounds) for rounds in itertools.product(pairs, repeat=n)]
        assert max(moment(m, costs, order, rounds) for rounds in sequences) <= 1.0 + 1e-9
        worst_of_less = max(worst_of_less, *(moment(m, less, order, rounds) for rounds in sequences))
    assert worst_of_less > 1.0 + 1e-9


# The certificate of one cell, over many parameters.

shapes = st.tuples(
    st.floats(0.001, 1.0),  # Δ
    st.floats(0.02, 1.0),  # β
    st.floats(0.08, 3.0),  # σ_Z
    st.floats(0.0, 4.0),  # L
    st.sampled_from([1.01, 1.3, 2.0, 6.0, 50.0, 1000.0]),  # α
    st.floats(0.0, 1.0),  # where λ lies
    st.floats(0.0, 0.03),  # how wide its cell is, in σ_Z
    st.floats(0.0, 1.0),  # how much r exceeds the least
)


@settings(deadline=None, max_examples=150)
@given(shapes, st.integers(0, 2**32 - 1))
def test_what_a_cell_certifies_holds_at_every_threshold_and_reward_of_it(
    shape: tuple[float, float, float, float, float, float, float, float], seed: int
) -> None:
    Delta, beta, sigma, L, alpha, place, width, share = shape
    T = 1.0 + sigma * L
    low = -beta + place * (1.0 - width * sigma)
    high = min(low + width * sigma, 1.0 - beta)
    span = max(1.0 - Delta, 1e-3 * sigma)
    steps = math.ceil(span / (0.05 * sigma)) + 1
    nodes = np.arange(-1.0, steps + 2) * span / steps
    points = cover(nodes, np.array([low]), np.array([high]), sensitivity=Delta, ceiling=T, noise=sigma)
    least = least_rejection(points, alpha)
    kappa = AcceptanceLaw(beta, sigma, 1.0, L, low)
    most = kappa.log_reject(1.0 - Delta) - kappa.log_reject(1.0)
    if not np.isfinite(least[0]):
        return
    r = least + share * most
    s = acceptance_for(points, r, alpha)
    if not np.isfinite(s[0]):
        return
    rng = np.random.default_rng(seed)
    thresholds = np.append(rng.uniform(low, high, 8), [low, high])
    q = np.append(rng.uniform(0.0, 1.0 - Delta, 50), [0.0, 1.0 - Delta])
    inside = curve(q, thresholds, sensitivity=Delta, ceiling=T, noise=sigma)
    slack = slack_per_round(alpha, 1e-12 + 2e-15 * float(max(-inside.u.min(), -inside.not_v.min())))
    needed = acceptance_for(inside, np.full(thresholds.size, r[0] + slack), alpha)
    assert (needed <= s[0] + slack).all()


def test_a_cover_without_its_outer_vertices_is_not_enough() -> None:
    """The twin: the curve's own nodes, few of them, at one end of a wide cell."""
    nodes = np.linspace(0.0, 0.95, 4)
    few = curve(nodes, np.array([0.5]), sensitivity=0.05, ceiling=1.2, noise=0.2)
    r = np.array([0.01])
    between = curve(np.linspace(0.0, 0.95, 100), np.array([0.45]), sensitivity=0.05, ceiling=1.2, noise=0.2)
    assert acceptance_for(between, r, 3.0)[0] > 1.0001 * acceptance_for(few, r, 3.0)[0]


@settings(deadline=None)
@given(shapes)
def test_villes_pair_is_admissible(shape: tuple[float, float, float, float, float, float, float, float]) -> None:
    Delta, beta, sigma, L, alpha, place, _, _ = shape
    m = PrivITP(1.0, Delta, 3, beta, 1.0, sigma, L)
    costs = m.round_costs(m.clamp(place - beta))
    points = curve(
        np.linspace(0.0, 1.0 - Delta, 60), np.array([place - beta]), sensitivity=Delta, ceiling=ceiling(m), noise=sigma
    )
    slack = 2e-12 * (2.0 + 1.0 / (alpha - 1.0))
    with np.errstate(invalid="ignore"):
        needed = acceptance_for(points, np.array([costs.rejection + slack]), alpha)[0]
    assert needed <= costs.acceptance * (1.0 + 1e-9) + 10.0 * slack


# The choice.


@pytest.mark.parametrize("name", NAMES)
def test_the_expected_charge_and_the_worst_case_are_never_above_villes(name: str) -> None:
    mechanism, order = CONFIGURATIONS[name]
    tab = table(name)
    for k in cells(name, 40):
        for threshold in (float(tab.edges[k]), float(tab.edges[k + 1])):
            renyi, ville = mechanism.round_costs(threshold, "renyi", order), mechanism.round_costs(threshold)
            pairs = {
                (float(tab.rejection[j]), float(tab.acceptance[j]))
                for j in (k - 1, k, k + 1)
                if 0 <= j < tab.guess.size
            }
            assert (renyi.rejection, renyi.acceptance) in pairs or tab.is_ville[k]
            guess = float(tab.guess[k])
            here = RoundCosts(float(tab.rejection[k]), float(tab.acceptance[k]), mechanism.candidates)
            assert tab.is_ville[k] or here.expected(guess) <= ville.expected(guess)
            assert renyi.worst() <= 1.005 * ville.worst()


@pytest.mark.parametrize("name", ["embedded", "design", "wide", "range", "dear"])
def test_the_table_loses_less_than_one_percent_to_the_best_pair(name: str) -> None:
    """The best pair by a scan of r on the curve at the cell's middle, without certificate."""
    mechanism, order = CONFIGURATIONS[name]
    tab = table(name)
    lost = []
    q = np.linspace(0.0, mechanism.reward_max - mechanism.sensitivity, 400)
    for k in cells(name, 9):
        threshold = np.array([0.5 * (tab.edges[k] + tab.edges[k + 1])])
        points = curve(
            q, threshold, sensitivity=mechanism.sensitivity, ceiling=ceiling(mechanism), noise=mechanism.reward_noise
        )
        odds = (1.0 - tab.guess[k]) / tab.guess[k]
        least, most = float(least_rejection(points, order)[0]), mechanism.rejection_cost(float(threshold[0]))
        r = least + np.exp(np.linspace(-14.0, 0.0, 600)) * (most - least)
        many = Points(*(np.repeat(part, r.size, axis=0) for part in points))
        best = float((odds * r + acceptance_for(many, r, order)).min())
        lost.append((odds * tab.rejection[k] + tab.acceptance[k]) / best - 1.0)
    assert max(lost) < 0.01
    assert min(lost) > -0.01


def test_a_larger_sensitivity_and_a_higher_order_cost_more() -> None:
    def costs(sensitivity: float, order: float) -> list[float]:
        m = PrivITP(1.0, sensitivity, 8, 0.2, 0.1, 0.3, 1.0)
        return [m.round_costs(x, "renyi", order).expected(0.2) for x in (-0.2, 0.1, 0.4, 0.8)]

    base = costs(0.1, 3.0)
    assert all(more > less for more, less in zip(costs(0.2, 3.0), base, strict=True))
    assert all(more > less for more, less in zip(costs(0.1, 6.0), base, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_no_outcome_is_charged_more_than_the_supremum(name: str) -> None:
    mechanism, order = CONFIGURATIONS[name]
    supremum = mechanism.worst_sampling_charge_supremum_rounded_up("renyi", order)
    reached = 0
    for threshold in table(name).edges.tolist():
        worst = mechanism.worst_sampling_charge_rounded_up(threshold, "renyi", order)
        previous = 0
        for t in (1, mechanism.candidates):
            charge = mechanism.sampling_charge_rounded_up(threshold, t, False, "renyi", order)
            assert previous <= charge <= worst
            previous = charge
        assert mechanism.sampling_charge_rounded_up(threshold, 1, True, "renyi", order) <= worst <= supremum
        reached = max(reached, worst)
    assert supremum <= 1.001 * reached + 1000


def test_the_expected_charge_is_the_sum_over_the_outcomes() -> None:
    costs, p = RoundCosts(0.3, 0.5, 5), 0.17
    slow = sum((1 - p) ** (t - 1) * p * costs.accepted(t) for t in range(1, 6)) + (1 - p) ** 5 * costs.fallback()
    assert costs.expected(p) == pytest.approx(slow, rel=1e-14)
    assert costs.expected(1.0) == costs.acceptance
    with pytest.raises(InvalidQuantityError):
        costs.expected(0.0)


# Edges.


def test_where_nothing_can_be_certified_ville_is_charged() -> None:
    m = PrivITP(1.0, 1.0, 8, 0.05, 0.1, 0.002, 1.0)
    tab = m.round_table(3.0)
    assert tab.is_ville.mean() > 0.9
    assert np.isfinite(tab.rejection).all()
    assert np.isfinite(tab.acceptance).all()
    for k in np.flatnonzero(tab.is_ville)[::200]:
        threshold = float(0.5 * (tab.edges[k] + tab.edges[k + 1]))
        assert m.round_costs(threshold, "renyi", 3.0) == m.round_costs(threshold, "ville")
    assert m.worst_sampling_charge_supremum("renyi", 3.0) >= max(
        m.worst_sampling_charge(x) for x in np.linspace(-0.05, 0.95, 50).tolist()
    )


def test_the_cells_cover_the_range_of_the_threshold() -> None:
    for name in NAMES:
        mechanism, _ = CONFIGURATIONS[name]
        edges = table(name).edges
        assert edges[0] == -mechanism.regularization
        assert edges[-1] == mechanism.reward_max - mechanism.regularization
        assert (np.diff(edges) > 0.0).all()


def test_one_table_serves_every_number_of_candidates() -> None:
    m, order = CONFIGURATIONS["embedded"]
    other = PrivITP(**{**vars(m), "candidates": 16, "threshold_noise": 0.7})
    assert other.round_table(order) is m.round_table(order)


def test_an_order_is_needed_and_an_unknown_accounting_refused() -> None:
    m, _ = CONFIGURATIONS["embedded"]
    for order in (None, 1.0, math.nan, math.inf):
        with pytest.raises(InvalidQuantityError):
            m.round_costs(0.0, "renyi", order)
    with pytest.raises(InvalidQuantityError):
        m.round_costs(0.0, "other")  # type: ignore[arg-type]
    with pytest.raises(InvalidQuantityError):
        m.worst_sampling_charge_supremum("other")  # type: ignore[arg-type]
    with pytest.raises(InvalidQuantityError):
        m.round_costs(0.9, "renyi", 6.0)  # λ was not clamped


# The law for arrays.


@pytest.mark.parametrize(
    ("threshold", "noise", "L"), [(-0.2, 0.2, 0.0), (0.9, 0.03, 1.0), (0.3, 5.0, 0.0), (0.5, 1.0, 4.0)]
)
def test_the_law_for_arrays_is_right_to_twelve_digits(threshold: float, noise: float, L: float) -> None:
    m = PrivITP(1.0, 0.1, 3, 0.2 if threshold < 0 else 0.1, 1.0, noise, L)
    q = np.linspace(-0.05, 1.05, 7)
    accept, reject = log_acceptance(q, np.array(threshold), ceiling(m), noise)
    with mp.workdps(600 if noise < 0.1 else 100):
        for x, b, a in zip(q.tolist(), accept.tolist(), reject.tolist(), strict=True):
            slow_b, slow_a = slow_acceptance(m, threshold, mpf(x))
            allowed = 1e-12 + 1e-15 * max(-a, -b)
            assert abs(mp.expm1(mpf(b) - mp.log(slow_b))) < allowed
            assert abs(mp.expm1(mpf(a) - mp.log(slow_a))) < allowed
