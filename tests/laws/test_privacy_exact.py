"""The privacy claims on cases small enough for brute force: output laws computed here, charges from the product.

"Admissible" is E under D of exp((α-1)(L - c)) ≤ 1; what it promises is checked on its own: the hockey-stick divergence
at the claimed (ε, δ), and the loss tail and the hockey-stick divergence of whole streams that stop at their budget,
against the best adaptive adversary. Every claim has a twin that breaks it.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from scipy.special import ndtr

from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privitp import PhaseTwoAccounting, PrivITP
from reticent.accounting.filter import Guarantee, overhead_dp, overhead_ville, spendable
from reticent.accounting.lattice import RewardLattice
from tests.fakes.exact import (
    Array,
    Step,
    adjacent_pairs,
    gaussian_step,
    hockey_stick,
    mean_acceptance,
    moment,
    rejection_law,
    rejection_step,
    softmax_law,
    threshold_law,
    worst_rejection_moment,
    worst_repeated,
    worst_stream,
)

NANO = 1e-9
ORDERS = (1.3, 2.0, 6.0, 25.0)
DELTAS = (0.1, 1e-3, 1e-8)

# PrivBoN

BON = [(1.0, 0.5), (1.0, 0.256), (0.25, 0.1), (0.05, 0.05), (0.7, 2.0)]
"""(Δ, σ) at R = 1, on a lattice of 256 steps, so that the granule in the sensitivity counts too."""


def bon(sensitivity: float, scale: float, n: int) -> tuple[PrivBoN, Array, Array]:
    """The mechanism, and the log laws under D and D' of all adjacent reward vectors on a grid with the corners."""
    lattice = RewardLattice(1.0, sensitivity, bits=8)
    R, D = lattice.units_max, lattice.sensitivity_units
    levels = sorted({0, D, R - D, R, R // 2, min(R, R // 2 + D)} | ({2 * D, R - 2 * D} if 2 * D <= R else set()))
    mechanism = PrivBoN(1.0, lattice.sensitivity, n, scale)
    one, other = adjacent_pairs(levels, D, n)
    units = scale * R
    return mechanism, softmax_law(one, units), softmax_law(other, units)


def bon_steps(mechanism: PrivBoN, log_p: Array, log_q: Array, order: float, count: int = 6) -> list[Step]:
    """The pairs with the largest divergences of several kinds."""
    charge = mechanism.charge_rounded_up(order) * NANO
    width = mechanism.bounded_range()
    loss, p = log_p - log_q, np.exp(log_p)
    keep: set[int] = set()
    for a in (0.5, order - 1.0, 3.0 * order):
        keep |= set(np.argsort((p * np.exp(np.minimum(a * loss, 600.0))).sum(axis=1))[-count:].tolist())
    for share in (0.0, 0.15, 0.3, 0.45, 0.6, 0.8):
        gain = (p * -np.expm1(np.minimum(0.0, share * width - loss))).sum(axis=1)
        keep |= set(np.argsort(gain)[-count:].tolist())
    return [Step(log_p[i], log_q[i], np.full(log_p.shape[1], charge), charge) for i in sorted(keep)]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(("sensitivity", "scale"), BON)
def test_one_best_of_n_answer_keeps_its_claim_for_every_adjacent_pair(sensitivity: float, scale: float, n: int) -> None:
    mechanism, log_p, log_q = bon(sensitivity, scale, n)
    loss, p = log_p - log_q, np.exp(log_p)
    assert float(loss.max()) <= mechanism.tight_epsilon() * (1 + 1e-9) + 1e-12
    for order in ORDERS:
        charge = mechanism.charge_rounded_up(order) * NANO
        moments = (p * np.exp((order - 1.0) * (loss - charge))).sum(axis=1)
        assert float(moments.max()) <= 1.0
        for delta in DELTAS:
            epsilon = charge + overhead_dp(order, delta)
            gain = (p * -np.expm1(np.minimum(0.0, epsilon - loss))).sum(axis=1)
            assert float(gain.max()) <= delta


def claimed(charge: float, count: int, order: float, delta: float, guarantee: Guarantee) -> tuple[float, float]:
    """ε that admits `count` such charges and hardly more, and what may be spent of it, both in nats."""
    overhead = overhead_dp(order, delta) if guarantee == "dp" else overhead_ville(order, delta)
    epsilon = (count * charge + overhead) * (1 + 1e-9) + 1e-9
    return epsilon, spendable(epsilon, delta, order, guarantee) * NANO


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    ("sensitivity", "scale", "n", "order"),
    [(1.0, 0.5, 2, 2.0), (1.0, 2.0, 4, 6.0), (0.25, 0.1, 3, 3.0), (0.05, 0.05, 2, 20.0)],
)
def test_several_best_of_n_answers_keep_their_claim_against_an_adaptive_adversary(
    sensitivity: float, scale: float, n: int, order: float, count: int
) -> None:
    mechanism, log_p, log_q = bon(sensitivity, scale, n)
    steps = bon_steps(mechanism, log_p, log_q, order)
    charge = steps[0].worst
    for delta in (0.05, 1e-3, 1e-6):
        epsilon, budget = claimed(charge, count, order, delta, "dp")
        assert count * charge <= budget < (count + 1) * charge  # the filter stops there
        assert worst_repeated(steps, epsilon, count, "hockey-stick") <= delta
        epsilon, _ = claimed(charge, count, order, delta, "probabilistic")
        assert worst_repeated(steps, epsilon, count, "tail") <= delta


def test_best_of_n_answers_without_the_overhead_or_at_half_the_charge_break_their_claim() -> None:
    order, delta, count = 3.0, 0.05, 2
    mechanism, log_p, log_q = bon(0.25, 0.1, 3)
    steps = bon_steps(mechanism, log_p, log_q, order)
    charge = steps[0].worst
    # The claim is nearly tight here, so each twin has little to hide behind.
    assert worst_repeated(steps, claimed(charge, count, order, delta, "dp")[0], count, "hockey-stick") > 0.9 * delta
    assert worst_repeated(steps, count * charge, count, "hockey-stick") > 1.5 * delta
    assert worst_repeated(steps, count * charge, count, "tail") > 1.5 * delta
    half, _ = claimed(0.5 * charge, count, order, delta, "dp")
    assert worst_repeated(steps, half, count, "hockey-stick") > 1.5 * delta
    assert max(moment(replace(step, charge=0.9 * step.charge), order) for step in steps) > 1.5


# PrivITP, phase 2

ITP = [
    PrivITP(1.0, 1.0, 4, 0.5, 0.128, 0.128, 1.0),
    PrivITP(1.0, 1.0, 3, 0.05, 0.5, 0.5, 2.0),
    PrivITP(1.0, 0.05, 4, 0.05, 0.256, 0.256, 3.84),
    PrivITP(1.0, 0.25, 16, 0.3, 0.3, 0.2, 0.0),
    PrivITP(2.0, 0.5, 2, 1.0, 0.4, 0.8, 1.0),
]
METHODS: tuple[PhaseTwoAccounting, ...] = get_args(PhaseTwoAccounting)


def charges(m: PrivITP, threshold: float, method: PhaseTwoAccounting = "ville", order: float = 2.0) -> list[float]:
    """What the product takes for an acceptance in round 1, …, n, and for a fallback, nats."""
    costs = m.round_costs(threshold) if method == "ville" else m.round_costs(threshold, method, order)
    nats = [*(costs.accepted(t) for t in range(1, m.candidates + 1)), costs.fallback()]
    return [costs.rounded_up(x) * NANO for x in nats]


def levels_of(m: PrivITP, steps: int = 24) -> list[float]:
    R, D = m.reward_max, m.sensitivity
    grid = {R * k / steps for k in range(steps + 1)} | {D, R - D, 2 * D, R - 2 * D}
    grid |= {x + D for x in grid}
    return sorted(x for x in grid if 0.0 <= x <= R)


def thresholds_of(m: PrivITP, count: int = 5) -> list[float]:
    return [m.clamp(-m.regularization + m.reward_max * k / (count - 1)) for k in range(count)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("m", ITP)
def test_phase_two_is_admissible_at_every_threshold_for_every_adjacent_pair(
    m: PrivITP, order: float, method: PhaseTwoAccounting
) -> None:
    levels = levels_of(m)
    for threshold in thresholds_of(m):
        cost = charges(m, threshold, method, order)
        assert worst_rejection_moment(m, threshold, order, cost, levels, m.sensitivity) <= 1.0


def test_renyi_pairs_waste_little_so_that_smaller_ones_are_not_admissible() -> None:
    for m in ITP:
        for order, threshold in itertools.product((2.0, 6.0), thresholds_of(m, 3)):
            costs = m.round_costs(threshold, "renyi", order)
            one = replace(m, candidates=1)
            paid = [0.98 * costs.acceptance, 0.98 * costs.rejection]
            found = worst_rejection_moment(one, threshold, order, paid, levels_of(m, 200), m.sensitivity)
            if costs != m.round_costs(threshold):
                assert found > 1.0


def log_factor(m: PrivITP, threshold: float, order: float, pair: tuple[float, float], rewards: Array) -> float:
    """Largest log of p^α p'^{1-α} e^{-(α-1)s} + (1-p)^α (1-p')^{1-α} e^{-(α-1)r} over pairs that are Δ apart."""
    a, (r, s) = order - 1.0, pair
    moved = np.minimum(rewards + m.sensitivity, m.reward_max)
    accept, accept_moved = (np.log(mean_acceptance(m, threshold, q)) for q in (rewards, moved))
    reject, reject_moved = (np.log(mean_acceptance(m, threshold, q, -1.0)) for q in (rewards, moved))
    both = [
        np.logaddexp(order * u - a * v - a * s, order * nu - a * nv - a * r)
        for u, nu, v, nv in (
            (accept, reject, accept_moved, reject_moved),
            (accept_moved, reject_moved, accept, reject),
        )
    ]
    return float(max(x.max() for x in both))


@pytest.mark.simulation
def test_no_threshold_reward_or_order_is_found_at_which_a_renyi_pair_is_too_small() -> None:
    """Random configurations and orders, thresholds at and between the edges of the table, a dense scan of rewards."""
    rng = random.Random(17)
    tight = 0
    for _ in range(24):
        share = rng.choice((1.0, 0.5, 10 ** rng.uniform(-3, 0)))
        sigma, L = 10 ** rng.uniform(-1.1, 0.7), rng.choice((0.0, rng.uniform(0.0, 4.0)))
        m = PrivITP(1.0, share, 4, 10 ** rng.uniform(-2, 0), 1.0, sigma, L)
        order = 1.0 + 10 ** rng.uniform(-1.5, 2.0)
        rewards = np.linspace(0.0, 1.0 - share, 200 if share < 1.0 else 1)
        edges = m.round_table(order).edges.tolist()
        k = rng.randrange(len(edges) - 1)
        for threshold in (edges[k], math.nextafter(edges[k + 1], -9.0), rng.uniform(*edges[k : k + 2]), edges[0]):
            costs = m.round_costs(threshold, "renyi", order)
            pair = costs.rejection + costs.slack, costs.acceptance + costs.slack
            assert log_factor(m, threshold, order, pair, rewards) <= 2e-12 * order
            smaller = 0.97 * pair[0], 0.97 * pair[1]
            tight += log_factor(m, threshold, order, smaller, rewards) > 2e-12 * order
    assert tight > 24  # the twin


def test_the_backward_search_finds_what_all_pairs_give() -> None:
    m, order, threshold = ITP[0], 3.0, -0.2
    levels, n = [0.0, 0.4, 1.0], 2
    m = replace(m, candidates=n)
    cost = [0.5 * c for c in charges(m, threshold)]
    moves = list(itertools.product(levels, levels))
    found = max(
        moment(rejection_step(m, threshold, [a for a, _ in pairs], [b for _, b in pairs], cost), order)
        for pairs in itertools.product(moves, repeat=n)
    )
    assert worst_rejection_moment(m, threshold, order, cost, levels, 1.0) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 4, 16])
def test_without_the_fallback_charge_phase_two_is_not_admissible_and_its_claim_is_false(n: int) -> None:
    """The published accounting knows no cost of a fallback; here it is charged like an acceptance in the last round."""
    m = PrivITP(1.0, 1.0, n, 0.5, 0.128, 0.128, 1.0)
    threshold, order = -0.5, 12.0
    cost = charges(m, threshold)
    unpaid = [*cost[:-1], cost[-2]]
    assert worst_rejection_moment(m, threshold, order, cost, [0.0, 1.0], 1.0) <= 1.0
    assert worst_rejection_moment(m, threshold, order, unpaid, [0.0, 1.0], 1.0) > 1.5
    # As a pure claim: the largest charge without the fallback is exceeded, and with it is not.
    one, other = rejection_law(m, threshold, [0.0] * n), rejection_law(m, threshold, [1.0] * n)
    assert hockey_stick(one, other, max(unpaid)) > 1e-3
    assert hockey_stick(one, other, max(cost)) == 0.0


# PrivITP, both phases

JOINT = [
    PrivITP(1.0, 1.0, 2, 0.5, 0.5, 0.3, 1.0),
    PrivITP(1.0, 0.2, 3, 0.1, 0.25, 0.25, 2.0),
    PrivITP(1.0, 1.0, 2, 0.5, 0.128, 0.128, 1.0),
]


def corner_pairs(m: PrivITP) -> list[tuple[list[float], list[float]]]:
    R, D = m.reward_max, m.sensitivity
    moves = sorted({(0.0, D), (D, 0.0), (R, R - D), (R - D, R), (0.0, 0.0), (R, R)})
    return [([a for a, _ in c], [b for _, b in c]) for c in itertools.product(moves, repeat=m.candidates)]


def joint_delta(
    m: PrivITP, method: PhaseTwoAccounting, order: float, delta: float, *, nodes: int = 40, paid: float = 1.0
) -> float:
    """Largest Σ max(0, p - e^{c + u} q) over outcomes (λ, t), λ* shifted by Δ either way, worst rewards at every λ."""
    R, D, beta = m.reward_max, m.sensitivity, m.regularization
    phase_one = paid * m.threshold_charge_rounded_up(order) * NANO
    overhead = overhead_dp(order, delta)
    pairs, worst = corner_pairs(m), 0.0
    laws: dict[float, list[tuple[Array, Array]]] = {}
    for start in sorted({0.0, 0.5 * (R - D), R - D}):
        for one, other in ((start, start + D), (start + D, start)):
            points, log_p, log_q = threshold_law(m, one - beta, other - beta, nodes)
            total = 0.0
            for x, lp, lq in zip(points.tolist(), log_p.tolist(), log_q.tolist(), strict=True):
                if x not in laws:
                    cache = {v: rejection_table(m, x, v) for v in {0.0, D, R, R - D}}
                    laws[x] = [(from_table(cache, a), from_table(cache, b)) for a, b in pairs]
                epsilon = phase_one + np.array(charges(m, x, method, order)) + overhead
                total += max(float(claim_gap(lp + p, lq + q, epsilon)) for p, q in laws[x])
            worst = max(worst, total)
    return worst


def rejection_table(m: PrivITP, threshold: float, q: float) -> tuple[float, float]:
    accept, reject = rejection_law(replace(m, candidates=1), threshold, [q])
    return float(accept), float(reject)


def from_table(table: dict[float, tuple[float, float]], rewards: list[float]) -> Array:
    law, alive = [], 0.0
    for q in rewards:
        law.append(alive + table[q][0])
        alive += table[q][1]
    return np.array([*law, alive])


def claim_gap(log_p: Array, log_q: Array, epsilon: Array) -> float:
    return float((np.exp(log_p) * -np.expm1(np.minimum(0.0, epsilon - (log_p - log_q)))).sum())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("order", [2.0, 6.0])
@pytest.mark.parametrize("m", JOINT)
def test_a_threshold_and_an_answer_together_keep_what_they_are_charged(
    m: PrivITP, order: float, method: PhaseTwoAccounting
) -> None:
    for delta in (0.05, 1e-4):
        assert joint_delta(m, method, order, delta) <= delta


def test_a_threshold_that_is_not_charged_breaks_the_joint_claim() -> None:
    for m in JOINT:
        assert joint_delta(m, "ville", 6.0, 1e-4, paid=0.0) > 10 * 1e-4


CLASSICAL_EPSILON = math.sqrt(2 * math.log(1.25 / 0.01)) / 0.128


@pytest.mark.parametrize(("count", "true"), [(1, 0.747), (2, 0.850), (3, 0.904)])
def test_the_classical_threshold_charge_is_false_where_the_paper_uses_it(count: int, true: float) -> None:
    """σ = 0.256, half of it in phase 1, Δ = 1: ε1 = sqrt(2 ln(1.25/δ))/σ_X at a claimed δ of 0.01."""
    total = count * CLASSICAL_EPSILON

    def reached(end: str) -> float:
        step = gaussian_step(1.0, 0.128, CLASSICAL_EPSILON, end)  # type: ignore[arg-type]
        return worst_stream([step], total, total, count, "hockey-stick", bound=end, cells=(4000, count))  # type: ignore[arg-type]

    assert reached("lower") == pytest.approx(true, abs=0.004)
    assert reached("upper") == pytest.approx(true, abs=0.004)
    assert reached("lower") > 70 * 0.01


def test_the_classical_threshold_charge_is_false_for_the_clamped_threshold_too() -> None:
    m = JOINT[2]
    _, log_p, log_q = threshold_law(m, -0.5, 0.5, 400)
    assert hockey_stick(log_p, log_q, CLASSICAL_EPSILON) > 0.5
    assert float(np.exp(log_p).sum()) == pytest.approx(1.0, abs=1e-9)
    assert float(np.exp(log_p[0])) == pytest.approx(0.5)
    assert ndtr(-1.0 / 0.128) == pytest.approx(math.exp(log_p[-1]), rel=1e-9)


# Streams through the filter: the best adversary, who mixes thresholds, answers and best-of-n


def stream_steps(order: float, method: PhaseTwoAccounting) -> list[Step]:
    m = PrivITP(1.0, 1.0, 2, 0.5, 2.5, 2.5, 1.0)
    steps = [gaussian_step(1.0, m.threshold_noise, m.threshold_charge_rounded_up(order) * NANO)]
    for threshold in thresholds_of(m, 3):
        cost = charges(m, threshold, method, order)
        for one, other in corner_pairs(m):
            if one != other:
                steps.append(rejection_step(m, threshold, one, other, cost))
    mechanism, log_p, log_q = bon(1.0, 4.0, 3)
    return steps + bon_steps(mechanism, log_p, log_q, order, count=2)


STREAM = (6.0, 1e-3, 2.5)
"""α, δ, ε"""
CELLS = (800, 250)


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_that_stops_at_its_budget_keeps_its_claim_against_the_best_adversary(
    method: PhaseTwoAccounting,
) -> None:
    order, delta, epsilon = STREAM
    steps = stream_steps(order, method)
    tail = spendable(epsilon, delta, order, "probabilistic") * NANO
    assert worst_stream(steps, tail, epsilon, 5, "tail", cells=CELLS) <= delta
    dp = spendable(epsilon, delta, order, "dp") * NANO
    assert worst_stream(steps, dp, epsilon, 5, "hockey-stick", cells=CELLS) <= delta


def test_a_stream_that_spends_its_whole_budget_without_the_overhead_breaks_its_claim() -> None:
    order, delta, epsilon = STREAM
    steps = stream_steps(order, "ville")
    assert worst_stream(steps, epsilon, epsilon, 5, "tail", bound="lower") > 5 * delta
    assert worst_stream(steps, epsilon, epsilon, 5, "hockey-stick", bound="lower") > 1.5 * delta
