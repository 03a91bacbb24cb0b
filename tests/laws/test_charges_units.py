"""Units of charge and the reward lattice."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.accounting.errors import InvalidQuantityError
from reticent.accounting.lattice import RewardLattice
from reticent.accounting.units import (
    NANO_PER_NAT,
    float_rounded_up,
    to_nano_rounded_down,
    to_nano_rounded_up,
    to_nats,
)

nats = st.floats(min_value=0.0, max_value=1e6, allow_nan=False)


@settings(deadline=None)
@given(nats)
def test_nano_amounts_bracket_the_exact_number(value: float) -> None:
    exact = Fraction(value) * NANO_PER_NAT
    down, up = to_nano_rounded_down(value), to_nano_rounded_up(value)
    assert down <= exact <= up
    assert up - down == (0 if exact.denominator == 1 else 1)


def test_the_smallest_charge_costs_one_unit_and_zero_costs_none() -> None:
    assert to_nano_rounded_up(5e-324) == 1
    assert to_nano_rounded_up(0.0) == 0
    assert to_nano_rounded_down(0.9999e-9) == 0
    assert to_nats(1_500_000_000) == 1.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-300])
def test_an_amount_that_is_no_charge_is_refused(bad: float) -> None:
    for convert in (to_nano_rounded_up, to_nano_rounded_down):
        with pytest.raises(InvalidQuantityError):
            convert(bad)


@settings(deadline=None)
@given(st.fractions(min_value=0, max_value=10**9))
def test_a_fraction_becomes_the_least_float_above_it(value: Fraction) -> None:
    up = float_rounded_up(value)
    assert Fraction(up) >= value
    assert Fraction(math.nextafter(up, -math.inf)) < value


@st.composite
def lattices(draw: st.DrawFn) -> RewardLattice:
    R = draw(st.floats(min_value=1e-3, max_value=1e3))
    share = draw(st.floats(min_value=1e-12, max_value=1.0))
    return RewardLattice(R, max(R * share, 5e-324), draw(st.integers(8, 40)))


@settings(deadline=None)
@given(lattices(), st.floats(0.0, 1.0), st.floats(-1.0, 1.0))
def test_quantised_neighbours_differ_by_at_most_the_charged_sensitivity(
    lattice: RewardLattice, place: float, move: float
) -> None:
    r = lattice.reward_max * place
    # An exact neighbour within Δ, then the nearest float towards r.
    target = Fraction(r) + Fraction(lattice.sensitivity_declared) * Fraction(move)
    other = float(target)
    if abs(Fraction(other) - Fraction(r)) > Fraction(lattice.sensitivity_declared):
        other = math.nextafter(other, r)
    assert abs(lattice.quantise(r) - lattice.quantise(other)) <= lattice.sensitivity_units
    assert Fraction(lattice.sensitivity) >= lattice.sensitivity_units * lattice.granule
    assert lattice.sensitivity <= lattice.reward_max


@settings(deadline=None)
@given(lattices(), st.floats(allow_nan=True, allow_infinity=True))
def test_every_float_becomes_a_reward(lattice: RewardLattice, reward: float) -> None:
    unit = lattice.quantise(reward)
    assert 0 <= unit <= lattice.units_max
    if math.isfinite(reward):
        clipped = min(max(Fraction(reward), Fraction(0)), Fraction(lattice.reward_max))
        assert unit * lattice.granule <= clipped < (unit + 1) * lattice.granule
    else:
        assert unit == 0


def test_the_lattice_without_the_extra_granule_would_break_the_sensitivity() -> None:
    lattice = RewardLattice(1.0, 1.5 * 2**-8, bits=8)
    moved = lattice.quantise(2.25 * 2**-8) - lattice.quantise(0.75 * 2**-8)
    assert moved == 2 == lattice.sensitivity_units
    assert moved > Fraction(lattice.sensitivity_declared) / lattice.granule  # Δ itself does not cover it


@pytest.mark.parametrize("sensitivity", [0.0, -0.1, 1.0000001, math.nan, math.inf])
def test_a_sensitivity_outside_zero_to_the_range_is_refused(sensitivity: float) -> None:
    with pytest.raises(InvalidQuantityError):
        RewardLattice(1.0, sensitivity)


def test_assumption_free_sensitivity_is_the_whole_range() -> None:
    lattice = RewardLattice(0.7, 0.7)
    assert lattice.sensitivity_units == lattice.units_max == 2**30
    assert lattice.sensitivity == 0.7
    assert lattice.from_units(lattice.units_max) == 0.7
    assert lattice.to_units(0.7) == 2**30
