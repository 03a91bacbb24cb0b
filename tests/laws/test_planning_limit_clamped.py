"""The limit of accountants that see the threshold clamped: phase 1's pair, one query, and what "renyi" reaches."""

import math

import numpy as np
import pytest
from mpmath import mp, mpf

from reticent.accounting.charges.clamped_gaussian import clamped_renyi_charge
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.filter import Guarantee
from reticent.accounting.planning.accountings import privitp_cost, privitp_order
from reticent.accounting.planning.laws import BetaLaw, PointLaw
from reticent.accounting.planning.limit import composition_limit
from reticent.accounting.planning.outcomes import acceptance_probabilities, normalizers, occupancy, outcome_law
from reticent.accounting.planning.queries import Budget, answered
from reticent.accounting.planning.worst_queries import worst_query, worst_round
from reticent.accounting.planning.worst_thresholds import Atoms, binned, clamped_losses

Floats = np.ndarray


def mechanism(sensitivity: float, sigma: float, n: int = 16, truncation: float = 3.84) -> PrivITP:
    return PrivITP(1.0, sensitivity, n, 0.05, sigma / 2, sigma / 2, truncation, granule=0.0)


def grid(nodes: int = 129) -> Floats:
    return np.linspace(-0.05, 0.95, nodes)


def moment(atoms: list[Atoms], s: float) -> float:
    return math.fsum(float(mass @ np.exp(s * losses)) for losses, mass in atoms)


def quadrature_moment(order: float, own: float, moved: float, sigma: float) -> float:
    """E exp((α-1) L) of two clamped Gaussians on [-0.05, 0.95]: the atoms, and the middle by quadrature."""
    with mp.workdps(30):
        a, low, high = mpf(order), mpf(-1) / 20, mpf(19) / 20
        total = mpf(0)
        for p, q in (
            (mp.ncdf((low - own) / sigma), mp.ncdf((low - moved) / sigma)),
            (mp.ncdf((own - high) / sigma), mp.ncdf((moved - high) / sigma)),
        ):
            total += p**a * q ** (1 - a)
        cuts = [low + (high - low) * i / 8 for i in range(9)]
        total += mp.quad(lambda x: mp.npdf(x, own, sigma) ** a * mp.npdf(x, moved, sigma) ** (1 - a), cuts)
        return float(total)


@pytest.mark.parametrize(("sensitivity", "sigma"), [(1.0, 1.28), (0.3, 0.1), (0.05, 0.256), (0.01, 1.28)])
@pytest.mark.parametrize("level", [-0.05, 0.1, 0.6, 0.95])
def test_the_clamped_threshold_s_moments_are_those_by_quadrature(
    sensitivity: float, sigma: float, level: float
) -> None:
    parameters, s = mechanism(sensitivity, 2.0 * sigma), 0.7
    atoms = clamped_losses(parameters, (np.array([level]), np.ones(1)), grid(), np.ones(129), s)
    assert moment(atoms, 0.0) == pytest.approx(1.0, abs=1e-12)
    assert moment(atoms, -1.0) == pytest.approx(1.0, abs=1e-11 if sigma > 0.2 else 1e-9)
    moved = [min(max(level + sign * sensitivity, -0.05), 0.95) for sign in (-1, 1)]
    largest = max(quadrature_moment(1.0 + s, level, m, sigma) for m in moved)
    assert moment(atoms, s) == pytest.approx(largest, rel=1e-11)
    charge = clamped_renyi_charge(1.0 + s, sensitivity, sigma, 1.0)
    assert math.log(largest) / s <= charge * (1 + 1e-12)


@pytest.mark.parametrize("sigma", [0.1, 1.28])
def test_the_clamped_threshold_looks_as_under_the_reward_law(sigma: float) -> None:
    parameters = mechanism(0.2, 2.0 * sigma)
    drawn = normalizers(parameters, BetaLaw(2.0, 2.0, 1.0), 0, 4096, np.random.default_rng(3))
    atoms = clamped_losses(parameters, binned(drawn), grid(), np.ones(129), 0.5)
    found = np.array([mass.sum() for _, mass in atoms])
    expected = occupancy(drawn, grid(), sigma)
    # λ is taken at points that are not the nodes: single nodes differ, means of what changes over some nodes do not.
    bumps = np.exp(-0.5 * ((grid()[:, None] - np.linspace(-0.1, 1.0, 23)) / 0.05) ** 2)
    assert found @ bumps == pytest.approx(expected @ bumps, abs=1e-5)
    assert np.abs((found + 0.001) @ bumps - expected @ bumps).max() > 1e-3


def test_every_threshold_moves_the_way_that_loses_more() -> None:
    """A low λ* has no room below and a high one none above; one direction for both, the twin, loses less."""
    parameters, s, ones = mechanism(0.5, 1.0), 0.5, np.ones(129)
    levels = np.array([0.0, 0.9])
    both = moment(clamped_losses(parameters, (levels, np.full(2, 0.5)), grid(), ones, s), s)
    up, down = (
        [quadrature_moment(1.5, x, float(np.clip(x + m, -0.05, 0.95)), 0.5) for x in levels] for m in (0.5, -0.5)
    )
    assert both == pytest.approx(0.5 * (up[0] + down[1]), rel=1e-10)
    assert both - 1.0 > 1.3 * (0.5 * max(sum(up), sum(down)) - 1.0)


def brute_force(parameters: PrivITP, reward: float, tilt: float, cells: int = 500) -> tuple[Floats, Floats]:
    """Losses and probabilities of all outcomes of one query with every reward `reward`: λ in cells, then two rounds.

    Nothing is interpolated: phase 2's pair is sought anew at the middle of every cell. λ* moves up or down as a whole.
    """
    n, Delta, sigma = parameters.candidates, parameters.sensitivity, parameters.threshold_noise
    assert n == 2
    edges = np.linspace(-0.05, 0.95, cells + 1)
    λ = np.concatenate([edges[:1], 0.5 * (edges[1:] + edges[:-1]), edges[-1:]])
    own = reward - parameters.regularization
    q = np.linspace(0.0, 1.0, 65)
    tables = [acceptance_probabilities(parameters, np.clip(q + x, 0.0, 1.0), λ) for x in (0.0, -Delta, Delta)]
    logs = np.log(np.stack([np.stack([t, 1.0 - t]) for t in tables]))  # (3, 2, Q, λ)
    (mean,) = acceptance_probabilities(parameters, np.array([reward]), λ)
    second: list[list[tuple[float, float]]] = []
    for i in range(len(λ)):
        one = worst_round(np.exp(logs[0, :, :, i]), logs[0, :, :, i] - logs[1:, :, :, i], tilt, float(mean[i]), n)
        rejected, accepted = (list(zip(*x, strict=True)) for x in (one.rejection, one.acceptance))
        ends = [*accepted, *rejected]
        second.append([*accepted, *((a + b, p * r) for a, p in rejected for b, r in ends)])
    loss2, p2 = np.array(second).transpose(2, 0, 1)
    best: tuple[float, Floats, Floats] = (-1.0, loss2, p2)
    for sign in (-1.0, 1.0):
        p1, q1 = (released(m, sigma, edges) for m in (own, min(max(own + sign * Delta, -0.05), 0.95)))
        losses, probabilities = np.log(p1 / q1)[:, None] + loss2, p1[:, None] * p2
        value = float((probabilities * np.exp(tilt * losses)).sum())
        best = max(best, (value, losses.ravel(), probabilities.ravel()), key=lambda found: found[0])
    return best[1], best[2]


def released(level: float, sigma: float, edges: Floats) -> Floats:
    """Probability of the lower end, of every cell, and of the upper end, for λ* = `level`."""
    below = np.array([0.5 * math.erfc((level - x) / (sigma * math.sqrt(2.0))) for x in edges])
    above = 0.5 * math.erfc((edges[-1] - level) / (sigma * math.sqrt(2.0)))
    return np.array([below[0], *np.diff(below), above])


@pytest.mark.parametrize(("sensitivity", "sigma", "reward"), [(0.2, 0.8, 0.7), (1.0, 2.56, 0.6), (0.05, 1.0, 0.3)])
def test_one_clamped_query_has_the_delta_of_brute_force(sensitivity: float, sigma: float, reward: float) -> None:
    parameters, tilt = mechanism(sensitivity, sigma, n=2, truncation=1.0), 0.4
    losses, probabilities = brute_force(parameters, reward, tilt)
    assert math.fsum(probabilities) == pytest.approx(1.0, abs=1e-9)
    law = PointLaw(reward, 1.0)
    query, unclamped = (worst_query(parameters, law, tilt, clamped=c) for c in (True, False))
    spread = math.sqrt(float(probabilities @ losses**2))
    loss = query.loss(max(spread / 2000.0, query.least_step))
    assert loss.mean(0.0) == pytest.approx(float(probabilities @ losses), rel=1e-3)
    for epsilon in (0.0, 0.5 * spread, spread):
        exact = float((probabilities * np.maximum(-np.expm1(epsilon - losses), 0.0)).sum())
        bracket = loss.trade_off(epsilon, 1, at=exact)
        assert bracket.high == pytest.approx(exact, rel=2e-3)
        assert bracket.low <= exact * (1 + 1e-4)
    moment = math.log(float((probabilities * np.exp(tilt * losses)).sum()))
    assert loss.log_moment == pytest.approx(moment, rel=1e-3)
    # The twin: with the threshold unclamped brute force notices.
    assert unclamped.loss(loss.step).log_moment > 1.03 * moment


LAW = BetaLaw(2.0, 2.0, 1.0)


def share_of_the_limit(parameters: PrivITP, guarantee: Guarantee) -> tuple[float, int, int]:
    """What "renyi" answers with phase 1 charged clamped, over the limit; and the limit."""
    budget, outcome = Budget(50.0, 0.01, guarantee), outcome_law(parameters, LAW)
    cost = privitp_cost(parameters, outcome, budget, "renyi", privitp_order(parameters, outcome, budget, "renyi"))
    assert cost.order is not None
    clamped = clamped_renyi_charge(cost.order, parameters.sensitivity, parameters.threshold_noise, 1.0)
    assert cost.fixed == pytest.approx(clamped, rel=1e-12)
    limit = composition_limit(parameters, LAW, 50.0, 0.01, guarantee)
    return answered(cost.spendable, cost.law).mean / limit.queries_high, limit.queries_low, limit.queries_high


def test_clamped_limits_lie_above_the_unclamped() -> None:
    wide = composition_limit(mechanism(1.0, 2.56), LAW, 50.0, 0.01)
    assert (wide.queries_low, wide.queries_high) == (64, 64)  # unclamped: 45
    narrow = composition_limit(mechanism(0.05, 0.512), LAW, 50.0, 0.01)
    assert (narrow.queries_low, narrow.queries_high) == (841, 842)  # unclamped: 834 to 835


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("sensitivity", "sigma", "guarantee", "low", "high", "share"),
    [
        (1.0, 2.56, "dp", 64, 64, 0.718),
        (1.0, 2.56, "probabilistic", 63, 63, 0.693),
        (0.05, 0.512, "dp", 841, 842, 0.880),
        (0.05, 0.512, "probabilistic", 823, 824, 0.852),
        (0.05, 2.56, "dp", 19_773, 19_784, 0.899),
        (0.05, 2.56, "probabilistic", 19_346, 19_367, 0.871),
        (0.01, 2.56, "dp", 496_034, 497_202, 0.897),
        (0.01, 2.56, "probabilistic", 484_451, 486_727, 0.869),
    ],
)
def test_renyi_with_the_clamped_charge_stays_below_the_clamped_limit(
    sensitivity: float, sigma: float, guarantee: Guarantee, low: int, high: int, share: float
) -> None:
    found, *bracket = share_of_the_limit(mechanism(sensitivity, sigma), guarantee)
    assert bracket == pytest.approx([low, high], rel=2e-5)
    assert found == pytest.approx(share, abs=2e-3)
    assert found < 1.0


@pytest.mark.simulation
def test_renyi_with_the_clamped_charge_passes_the_unclamped_limit() -> None:
    """The twin: the two must not be compared."""
    parameters = mechanism(1.0, 2.56)
    found, _, high = share_of_the_limit(parameters, "dp")
    assert found * high > 1.01 * composition_limit(parameters, LAW, 50.0, 0.01, clamped=False).queries_high


@pytest.mark.simulation
def test_seeds_and_small_deltas_change_clamped_limits_as_they_should() -> None:
    parameters = mechanism(0.05, 2.56)
    found = [composition_limit(parameters, LAW, 50.0, 0.01, seed=seed).queries_low for seed in (0, 1)]
    assert abs(found[0] - found[1]) <= 1e-3 * found[0]
    strict = composition_limit(parameters, LAW, 50.0, 1e-6)
    assert strict.queries_high < 0.7 * found[0]
