"""Bounds on rewards: range, monotony, slope, broken values, JSON."""

from __future__ import annotations

import json
import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reticent.rewards.bounds import ClipBound, SigmoidBound, bound_from_dict

finite = st.floats(-1e6, 1e6, allow_nan=False)
clips = st.builds(
    lambda low, width, top: ClipBound(low, low + width, top), finite, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)
)
sigmoids = st.builds(SigmoidBound, finite, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
bounds = clips | sigmoids


@given(bounds, st.floats(allow_nan=True, allow_infinity=True))
def test_every_reward_lies_in_its_range(bound: ClipBound | SigmoidBound, raw: float) -> None:
    assert 0.0 <= bound.apply(raw) <= bound.reward_max


@given(bounds, st.sampled_from([math.nan, math.inf, -math.inf]))
def test_nan_and_infinities_become_zero(bound: ClipBound | SigmoidBound, raw: float) -> None:
    assert bound.apply(raw) == 0.0


@given(bounds, finite, finite)
def test_bounds_are_monotone_and_no_steeper_than_they_say(bound: ClipBound | SigmoidBound, a: float, b: float) -> None:
    low, high = sorted((a, b))
    rise = bound.apply(high) - bound.apply(low)
    rounding = 1e-9 * bound.reward_max + bound.lipschitz * 1e-9
    assert rise >= -1e-15 * bound.reward_max
    assert rise <= bound.lipschitz * (high - low) + rounding


@given(bounds)
def test_a_bound_survives_json(bound: ClipBound | SigmoidBound) -> None:
    assert bound_from_dict(json.loads(json.dumps(bound.to_dict()))) == bound


@given(st.floats(-50, 50), st.floats(-5, 5), st.floats(0.1, 10))
def test_the_sigmoid_agrees_with_its_definition(raw: float, center: float, scale: float) -> None:
    slow = 3 / (1 + mpmath.exp(-(mpmath.mpf(raw) - center) / scale))
    assert SigmoidBound(center, scale, 3.0).apply(raw) == pytest.approx(float(slow), rel=1e-12, abs=1e-300)


def test_clip_agrees_with_values_computed_by_hand() -> None:
    bound = ClipBound(-2.0, 6.0, 4.0)
    assert [bound.apply(x) for x in (-3.0, -2.0, 0.0, 6.0, 9.0)] == [0.0, 0.0, 1.0, 4.0, 4.0]


def test_far_values_of_the_sigmoid_do_not_overflow() -> None:
    bound = SigmoidBound(0.0, 1e-3)
    assert (bound.apply(1e308), bound.apply(-1e308)) == (1.0, 0.0)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"kind": "tanh"},
        {"kind": "clip", "low": 0.0},
        {"kind": "clip", "low": 1.0, "high": 0.0},
        {"kind": "clip", "low": 0.0, "high": 1.0, "extra": 1},
        {"kind": "clip", "low": "0", "high": 1.0},
        {"kind": "clip", "low": math.nan, "high": 1.0},
        {"kind": "sigmoid", "center": 0.0, "scale": 0.0},
        {"kind": "sigmoid", "center": 0.0, "scale": True},
        {"kind": "sigmoid", "center": 0.0, "scale": 1.0, "reward_max": -1.0},
    ],
)
def test_a_bad_bound_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        bound_from_dict(value)
