"""The sensitivity of a certified head: the formula, and retraining on changed data, with a twin that must fail."""

from __future__ import annotations

from dataclasses import astuple, replace

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from reticent.rewards.errors import TrainingFailed
from reticent.rewards.sensitivity import HeadFacts, movement_rounded_up, sensitivity_rounded_up
from reticent.rewards.training import pair_differences, train_head

Matrix = NDArray[np.float64]

DESIGN = HeadFacts(5000, 1, 0.01, 2.0, 1e-12, 1.0, 1.0)
"""The example of the design: Δ ≤ 0.02."""

facts = st.builds(
    HeadFacts,
    pairs=st.integers(50, 10**6),
    pairs_per_person=st.integers(1, 50),
    regularization=st.floats(1e-6, 10),
    pair_norm=st.floats(0.01, 2),
    gradient_tolerance=st.floats(1e-15, 1e-6),
    scale=st.floats(1e-3, 1e3),
    reward_max=st.floats(1e-3, 1e3),
)


def test_the_example_of_the_design_comes_out() -> None:
    assert sensitivity_rounded_up(DESIGN) == pytest.approx(0.02, rel=1e-8)
    assert sensitivity_rounded_up(DESIGN) >= 0.02


@given(facts)
def test_sensitivity_agrees_with_mpmath_and_never_lies_below(f: HeadFacts) -> None:
    with mpmath.workdps(60):
        n, k, mu, g, tau, s, r = (mpmath.mpf(value) for value in astuple(f))
        movement = 2 * g * k / (mu * n) + 2 * tau / mu
        slow = min(r, r / (4 * s) * movement)
        assert mpmath.mpf(movement_rounded_up(f)) >= movement
        assert mpmath.mpf(sensitivity_rounded_up(f)) >= slow
        assert sensitivity_rounded_up(f) == pytest.approx(float(slow), rel=1e-14)


@given(facts)
def test_sensitivity_never_exceeds_the_range(f: HeadFacts) -> None:
    assert 0 < sensitivity_rounded_up(f) <= f.reward_max


@pytest.mark.parametrize(
    "change",
    [
        {"pairs": 0},
        {"pairs": True},
        {"pairs": 2.0},
        {"pairs_per_person": 6000},
        {"regularization": 0.0},
        {"scale": float("nan")},
        {"pair_norm": 2.1},
        {"gradient_tolerance": 0.0},
        {"reward_max": float("inf")},
    ],
)
def test_facts_out_of_range_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        replace(DESIGN, **change)  # type: ignore[arg-type]


# --- retraining ---------------------------------------------------------------------------------------------------

N, D, MU, SCALE, G = 40, 5, 0.05, 0.5, 1.2


def _unit(rows: Matrix) -> Matrix:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True) * (1 - 1e-9), dtype=np.float64)


def _data(rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    truth = np.ones(D) / np.sqrt(D)
    a, b = _unit(rng.normal(size=(N, D))), _unit(rng.normal(size=(N, D)))
    better = (a @ truth > b @ truth)[:, None]
    return np.where(better, a, b), np.where(better, b, a)


def _rewards(w: Matrix, candidates: Matrix) -> Matrix:
    return np.asarray(1 / (1 + np.exp(-(candidates @ w) / SCALE)), dtype=np.float64)


def _largest_movement(replacements: int, pair_norm: float) -> float:
    """Largest movement of any reward over random, adversarial and left-out single pairs.

    The adversarial pair points along the current weights, against them, or along a candidate, with the longest
    difference that there is; candidates are random and along the direction in which the weights moved.
    """
    rng = np.random.default_rng(20)
    positive, negative = _data(rng)
    w = train_head(positive, negative, MU, pair_norm=pair_norm).weights
    candidates = _unit(rng.normal(size=(200, D)))
    largest = 0.0
    for trial in range(replacements):
        i = trial % N
        p, m = positive.copy(), negative.copy()
        match trial % 4:
            case 0:
                p[i], m[i] = _unit(rng.normal(size=(2, D)))
            case 1:
                p[i] = _unit(-w[None])[0]
                m[i] = -p[i]
            case 2:
                d = positive[i] - negative[i]
                p[i] = _unit(-d[None])[0]
                m[i] = -p[i]
            case _:
                m[i] = p[i]  # no difference: the pair is as good as left out, with 1/N as it was
        moved = train_head(p, m, MU, pair_norm=pair_norm).weights
        probes = np.concatenate([candidates, _unit((moved - w)[None]), _unit((w - moved)[None])])
        largest = max(largest, float(np.max(np.abs(_rewards(moved, probes) - _rewards(w, probes)))))
    return largest


def _bound(pair_norm: float) -> float:
    return sensitivity_rounded_up(HeadFacts(N, 1, MU, pair_norm, 1e-9, SCALE, 1.0))


@pytest.mark.parametrize("pair_norm", [2.0, G])
def test_no_replaced_pair_moves_a_reward_beyond_the_sensitivity(pair_norm: float) -> None:
    assert _largest_movement(200, pair_norm) <= _bound(pair_norm)


def test_a_bound_ten_times_too_small_is_caught() -> None:
    assert _largest_movement(200, 2.0) > _bound(2.0) / 10


def test_replacing_two_pairs_of_a_person_stays_within_twice_the_bound() -> None:
    rng = np.random.default_rng(3)
    positive, negative = _data(rng)
    w = train_head(positive, negative, MU).weights
    for trial in range(40):
        p, m = positive.copy(), negative.copy()
        rows = [trial % N, (trial + 1) % N]
        p[rows] = _unit(-w[None])
        m[rows] = -p[rows]
        moved = train_head(p, m, MU).weights
        assert np.linalg.norm(moved - w) <= movement_rounded_up(HeadFacts(N, 2, MU, 2.0, 1e-9, SCALE, 1.0))


# --- training -----------------------------------------------------------------------------------------------------


def test_the_minimiser_agrees_with_a_slow_gradient_descent() -> None:
    positive, negative = _data(np.random.default_rng(1))
    fast = train_head(positive, negative, MU).weights
    d, w = positive - negative, np.zeros(D)
    for _ in range(20_000):
        w -= 0.5 * (-(d * (1 / (1 + np.exp(d @ w)))[:, None]).mean(axis=0) + MU * w)
    assert fast == pytest.approx(w, abs=1e-9)


def test_the_reported_gradient_norm_bounds_the_exact_one() -> None:
    positive, negative = _data(np.random.default_rng(2))
    trained = train_head(positive, negative, MU)
    d = pair_differences(positive, negative)
    with mpmath.workdps(50):
        w = [mpmath.mpf(float(x)) for x in trained.weights]
        gradient = [MU * x for x in w]
        for row in d:
            z = mpmath.fsum(mpmath.mpf(float(a)) * b for a, b in zip(row, w, strict=True))
            p = 1 / (1 + mpmath.exp(z))
            gradient = [g - p * mpmath.mpf(float(a)) / N for g, a in zip(gradient, row, strict=True)]
        exact = mpmath.sqrt(mpmath.fsum(g * g for g in gradient))
        assert exact <= mpmath.mpf(trained.gradient_norm)
    assert trained.gradient_norm < 1e-12


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 1.0, 100.0])
def test_training_reaches_its_tolerance_on_separable_and_contradicting_data(mu: float) -> None:
    positive, negative = _data(np.random.default_rng(4))
    assert train_head(positive, negative, mu).gradient_norm <= 5e-10
    both = np.concatenate([positive, negative]), np.concatenate([negative, positive])
    assert np.linalg.norm(train_head(*both, mu).weights) < 1e-6


def test_differences_never_exceed_their_norm() -> None:
    positive, negative = _data(np.random.default_rng(5))
    assert np.max(np.linalg.norm(pair_differences(positive, negative, 0.3), axis=1)) <= 0.3


def test_a_tolerance_that_matters_is_refused() -> None:
    positive, negative = _data(np.random.default_rng(6))
    with pytest.raises(TrainingFailed, match="1 %"):
        train_head(positive, negative, MU, gradient_tolerance=1e-2)


def test_features_outside_the_unit_ball_are_refused() -> None:
    positive, negative = _data(np.random.default_rng(7))
    for broken in (positive * 1.1, np.where(positive == positive[0, 0], np.nan, positive)):
        with pytest.raises(TrainingFailed, match="longer than 1"):
            train_head(broken, negative, MU)
    with pytest.raises(TrainingFailed, match="one shape"):
        train_head(positive, negative[:, :-1], MU)
    with pytest.raises(TrainingFailed):
        train_head(positive, negative, 0.0)
