"""Rényi divergence of bounded-range mechanisms against the definition in high precision."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from reticent.accounting.charges.bounded_range import renyi_divergence, worst_offset, zcdp_cap
from reticent.accounting.errors import InvalidQuantityError


def at_offset(order: float, epsilon: float, t: mpf) -> mpf:
    """The two-point divergence at offset t, as privacy.md section 2 states it."""
    a, e = mpf(order) - 1, mpf(epsilon)
    p = (mp.exp(e) - mp.exp(t)) / mp.expm1(e)
    return mp.log(p * mp.exp(a * t) + (1 - p) * mp.exp(a * (t - e))) / a


@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 10.0, 100.0, 1e4])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1, 0.4, 0.6, 2.0, 7.8125, 50.0])
def test_the_closed_form_bounds_the_supremum_over_offsets_and_is_close(order: float, epsilon: float) -> None:
    with mp.workdps(60):
        e = mpf(epsilon)
        a = mpf(order) - 1
        best_t = mp.log(a / mpf(order) * mp.expm1(mpf(order) * e) / mp.expm1(a * e))
        best = at_offset(order, epsilon, best_t)
        for step in range(41):  # the optimum is one: no offset on a grid does better
            assert at_offset(order, epsilon, e * step / 40) <= best * (1 + mpf(10) ** -40)
        bound = mpf(renyi_divergence(order, epsilon))
        assert abs(worst_offset(order, epsilon) - best_t) <= 1e-12 * e + 1e-15
        assert best <= bound <= best * (1 + mpf(10) ** -7)


@pytest.mark.parametrize("order", [5e3, 1e5, 1e6, 1e8])
@pytest.mark.parametrize("place", [0.45, 0.5 * (1 - 1e-9), 0.5 * (1 + 1e-9), 0.55, 1.0, 3.0])
def test_no_rounding_takes_the_bound_below_the_divergence_where_the_series_ends(order: float, place: float) -> None:
    # At αε just above 0.5 one term is the closed form's and the other the series', each times α.
    epsilon = place / order
    with mp.workdps(60):
        e, a = mpf(epsilon), mpf(order) - 1
        best = at_offset(order, epsilon, mp.log(a / mpf(order) * mp.expm1(mpf(order) * e) / mp.expm1(a * e)))
        assert best <= mpf(renyi_divergence(order, epsilon)) * (1 + mpf(10) ** -14)


@settings(deadline=None)
@given(st.floats(1.0001, 1e4), st.floats(1e-6, 50.0))
def test_the_divergence_is_below_both_caps(order: float, epsilon: float) -> None:
    value = renyi_divergence(order, epsilon)
    assert 0.0 < value <= epsilon
    assert value <= zcdp_cap(order, epsilon) * (1 + 1e-12)


@settings(deadline=None)
@given(st.floats(1.01, 1e3), st.floats(1e-4, 20.0), st.floats(1.001, 2.0))
def test_the_divergence_grows_with_order_and_range(order: float, epsilon: float, factor: float) -> None:
    value = renyi_divergence(order, epsilon)
    assert renyi_divergence(order * factor, epsilon) >= value * (1 - 1e-9)
    assert renyi_divergence(order, epsilon * factor) >= value * (1 - 1e-9)


def test_no_range_costs_nothing_and_nonsense_is_refused() -> None:
    assert renyi_divergence(2.0, 0.0) == 0.0
    for order, epsilon in [(1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (2.0, -1.0), (2.0, math.nan)]:
        with pytest.raises(InvalidQuantityError):
            renyi_divergence(order, epsilon)
