"""PrivBoN's charges against its output law, computed by brute force."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.accounting.charges.bounded_range import worst_offset
from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.errors import InvalidQuantityError

ORDERS = (1.1, 2.0, 8.0, 60.0)


def law(rewards: np.ndarray, scale: float) -> np.ndarray:
    """log probabilities of softmax(rewards / scale)."""
    z = rewards / scale
    return np.asarray(z - z.max() - math.log(float(np.exp(z - z.max()).sum())))


def adjacent_pairs(mechanism: PrivBoN, rng: random.Random, draws: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """All corner pairs (each reward at an end, each moved by 0 or ±Δ), and random pairs."""
    R, D, n = mechanism.reward_max, mechanism.sensitivity, mechanism.candidates
    values = [(0.0, D), (D, 0.0), (R, R - D), (R - D, R), (0.0, 0.0), (R, R)]
    pairs = [(np.array([a for a, _ in c]), np.array([b for _, b in c])) for c in itertools.product(values, repeat=n)]
    for _ in range(draws):
        r = np.array([rng.uniform(0, R) for _ in range(n)])
        pairs.append((r, np.clip(r + np.array([rng.choice((-D, 0.0, D)) for _ in range(n)]), 0.0, R)))
    return pairs


def losses(mechanism: PrivBoN, scale: float, seed: int = 1, draws: int = 300) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = random.Random(seed)
    laws = ((law(a, scale), law(b, scale)) for a, b in adjacent_pairs(mechanism, rng, draws))
    return [(p, p - q) for p, q in laws]


def renyi(log_p: np.ndarray, loss: np.ndarray, order: float) -> float:
    terms = log_p + (order - 1.0) * loss
    top = float(terms.max())
    return (top + math.log(float(np.exp(terms - top).sum()))) / (order - 1.0)


MECHANISMS = [
    PrivBoN(1.0, 1.0, 2, 0.5),
    PrivBoN(1.0, 1.0, 4, 0.256),
    PrivBoN(1.0, 0.05, 3, 0.05),
    PrivBoN(2.0, 0.3, 4, 1.7),
    PrivBoN(1.0, 0.7, 3, 0.2),
]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_adjacent_pair_beats_the_tight_epsilon_and_one_reaches_it(mechanism: PrivBoN) -> None:
    worst = max(float(loss.max()) for _, loss in losses(mechanism, mechanism.noise_scale))
    assert worst <= mechanism.tight_epsilon() * (1 + 1e-12) + 1e-12
    assert worst >= mechanism.tight_epsilon() * (1 - 1e-9)
    assert mechanism.tight_epsilon() <= mechanism.published_epsilon() * (1 + 1e-12)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_all_losses_of_a_pair_lie_in_the_bounded_range(mechanism: PrivBoN) -> None:
    for _, loss in losses(mechanism, mechanism.noise_scale):
        assert float(loss.max() - loss.min()) <= mechanism.bounded_range() * (1 + 1e-12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_adjacent_pair_beats_the_charge(mechanism: PrivBoN, order: float) -> None:
    charge = mechanism.charge(order)
    for log_p, loss in losses(mechanism, mechanism.noise_scale):
        assert renyi(log_p, loss, order) <= charge * (1 + 1e-9) + 1e-13


def test_half_the_noise_beats_the_charge_and_the_tight_epsilon() -> None:
    mechanism = MECHANISMS[3]
    weak = losses(mechanism, 0.5 * mechanism.noise_scale)
    assert max(float(loss.max()) for _, loss in weak) > mechanism.tight_epsilon()
    for order in ORDERS:
        assert max(renyi(p, loss, order) for p, loss in weak) > mechanism.charge(order)


@pytest.mark.parametrize("order", ORDERS)
def test_a_pair_reaches_the_charge_so_that_one_30_percent_smaller_fails(order: float) -> None:
    # Two candidates, one rises and one falls by Δ: losses t and t - 2Δ/σ, with t set by the gap of the two rewards.
    mechanism = PrivBoN(20.0, 1.0, 2, 1.0)
    t, width = worst_offset(order, 2.0), 2.0
    p = (math.exp(width) - math.exp(t)) / math.expm1(width)
    gap = math.log(p / (1 - p))
    low = 2.0 if gap > 0 else 2.0 - gap
    after = np.array([low + gap, low])  # D: p goes to the candidate that rose
    before = after + np.array([-1.0, 1.0])
    log_p = law(after, 1.0)
    reached = renyi(log_p, log_p - law(before, 1.0), order)
    assert reached <= mechanism.charge(order) * (1 + 1e-9)
    assert reached >= mechanism.charge(order) * (1 - 1e-6)
    assert reached > 0.7 * mechanism.charge(order)


@settings(deadline=None)
@given(st.floats(0.01, 1.0), st.integers(2, 64), st.floats(1e-3, 10.0), st.floats(1.01, 2.0))
def test_charges_fall_with_noise_and_grow_with_sensitivity(
    sensitivity: float, candidates: int, scale: float, factor: float
) -> None:
    base = PrivBoN(1.0, sensitivity, candidates, scale)
    noisier = PrivBoN(1.0, sensitivity, candidates, scale * factor)
    calmer = PrivBoN(1.0, sensitivity / factor, candidates, scale)
    for order in (1.5, 20.0):
        assert noisier.charge(order) <= base.charge(order) * (1 + 1e-9)
        assert calmer.charge(order) <= base.charge(order) * (1 + 1e-9)
    assert base.tight_epsilon() <= PrivBoN(1.0, sensitivity, candidates + 1, scale).tight_epsilon() * (1 + 1e-12)


def test_with_the_whole_range_and_two_candidates_the_tight_epsilon_is_half_the_published() -> None:
    for scale in (0.01, 0.5, 3.0, 1e3):
        mechanism = PrivBoN(1.0, 1.0, 2, scale)
        assert mechanism.tight_epsilon() == pytest.approx(mechanism.published_epsilon() / 2, rel=1e-12)


def test_very_little_noise_gives_a_finite_dear_charge() -> None:
    mechanism = PrivBoN(1.0, 1.0, 16, 1e-4)
    assert mechanism.tight_epsilon() == pytest.approx(1e4 + math.log(15), rel=1e-9)
    assert math.isfinite(mechanism.charge(2.0))


def test_one_candidate_costs_nothing() -> None:
    assert PrivBoN(1.0, 1.0, 1, 0.1).charge(2.0) == 0.0
    assert PrivBoN(1.0, 1.0, 1, 0.1).charge_rounded_up(2.0) == 0


def test_parameters_outside_their_range_are_refused() -> None:
    for bad in [
        (0.0, 1.0, 2, 1.0),
        (1.0, 1.1, 2, 1.0),
        (1.0, 1.0, 0, 1.0),
        (1.0, 1.0, 2, 0.0),
        (1.0, 1.0, 2, math.nan),
    ]:
        with pytest.raises(InvalidQuantityError):
            PrivBoN(*bad)
