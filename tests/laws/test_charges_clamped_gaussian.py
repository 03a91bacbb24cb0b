"""The clamped threshold's charge against the divergence itself: by quadrature and by sums, over all pairs."""

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from reticent.accounting.charges.clamped_gaussian import clamped_renyi_charge, clamped_renyi_charge_rounded_up
from reticent.accounting.charges.gaussian import renyi_charge
from reticent.accounting.errors import InvalidQuantityError
from reticent.accounting.filter import best_order

Array = npt.NDArray[np.float64]
GRANULE = 2.0**-30


def slow_divergence(order: float, one: mpf, other: mpf, width: mpf) -> mpf:
    """Order-α divergence of N(one, 1) from N(other, 1), both clamped to [0, width], from the definition."""
    a = mpf(order)

    def cdf(x: mpf) -> mpf:
        return mp.erfc(-x / mp.sqrt(2)) / 2

    def middle(x: mpf) -> mpf:
        return mp.npdf(x - one) ** a * mp.npdf(x - other) ** (1 - a)

    atoms = cdf(-one) ** a * cdf(-other) ** (1 - a) + cdf(one - width) ** a * cdf(other - width) ** (1 - a)
    peak = min(max(a * one + (1 - a) * other, mpf(0)), width)
    cuts = sorted({mpf(0), width, *[min(max(peak + k, mpf(0)), width) for k in (-4, -2, -1, 0, 1, 2, 4)]})
    return mp.log(atoms + mp.quad(middle, cuts)) / (a - 1)


CONFIGURATIONS = [
    (order, sensitivity, scale)
    for scale, sensitivity in itertools.product((0.128, 0.256, 0.512, 1.28), (1.0, 0.05, 0.01))
    for order in (1.409, 3.0, 25.0)
]


@pytest.mark.parametrize(("order", "sensitivity", "scale"), CONFIGURATIONS[::4])
def test_no_pair_of_thresholds_beats_the_charge_and_one_reaches_it(
    order: float, sensitivity: float, scale: float
) -> None:
    with mp.workdps(20):
        width, delta = 1 / mpf(scale), mpf(sensitivity) / mpf(scale)
        charge = mpf(clamped_renyi_charge(order, sensitivity, scale, 1.0))
        best = mpf(0)
        for step in range(5):
            t = (width - delta) * step / 4
            value = slow_divergence(order, t + delta, t, width)
            mirrored = slow_divergence(order, width - t - delta, width - t, width)
            assert abs(value - mirrored) <= mpf(10) ** -10 * (value + 1)
            best = max(best, value)
            if sensitivity == 1.0:
                break
        assert best <= charge * (1 + mpf(10) ** -12)
        assert charge <= renyi_charge(order, sensitivity, scale)


def grid_divergence(order: float, one: Array, other: Array, width: float) -> Array:
    """The closed form on arrays, in plain floats: for moderate numbers."""
    from scipy.special import log_ndtr, ndtr

    a, d = order, one - other
    centre = one + (a - 1) * d
    below = np.exp(a * log_ndtr(-one) + (1 - a) * log_ndtr(-other))
    above = np.exp(a * log_ndtr(one - width) + (1 - a) * log_ndtr(other - width))
    # The mass between the cuts, taken in the tail where nothing cancels.
    far = np.maximum(centre, width - centre)
    middle = np.exp(0.5 * a * (a - 1) * d * d) * (ndtr(width - far) - ndtr(-far))
    return np.asarray(np.log(below + above + middle) / (a - 1))


@settings(deadline=None, max_examples=150)
@given(st.floats(1.05, 20.0), st.floats(0.02, 6.0), st.floats(0.02, 1.0))
def test_the_charge_is_the_supremum_over_all_thresholds_and_all_smaller_differences(
    order: float, width: float, share: float
) -> None:
    delta = share * width
    charge = clamped_renyi_charge(order, share, 1.0 / width, 1.0)
    if order * delta > 12.0:
        return  # plain floats do not carry the twin there
    one = np.linspace(0.0, width, 121)[:, None]
    moves = np.linspace(-delta, delta, 41)[None, :]
    other = np.clip(one + moves, 0.0, width)
    assert float(grid_divergence(order, one, other, width).max()) <= charge * (1 + 1e-9) + 1e-12
    start = np.linspace(0.0, width - delta, 4001)
    along = grid_divergence(order, start + delta, start, width)
    assert float(along.max()) >= charge * (1 - 1e-5) - 2e-12 / (width * (order - 1.0))
    if charge * (order - 1.0) < 1e-3:
        return  # rounding would show as steps
    # It rises, then falls: what the certificate rests on.
    steps = np.sign(np.round(np.diff(along) / max(1e-300, charge), 11))
    assert np.all(np.diff(steps[steps != 0]) <= 0)


@pytest.mark.parametrize(("order", "share", "width"), [(50.0, 0.02, 8.0), (4.0, 0.3, 12.0), (200.0, 0.1, 3.0)])
def test_the_charge_is_tight_where_plain_floats_fail(order: float, share: float, width: float) -> None:
    with mp.workdps(20):
        w, d = mpf(width), mpf(share * width)
        values = [slow_divergence(order, (w - d) * k / 6 + d, (w - d) * k / 6, w) for k in range(7)]
        charge = mpf(clamped_renyi_charge(order, share, 1.0 / width, 1.0))
        assert max(values) <= charge <= max(values) * (1 + mpf(2) / 100)


# What is drawn: a discrete Gaussian on a lattice


def discrete_worst(order: float, units: int, shift: int, scale: float, cut: float) -> float:
    """Largest divergence of ⌊λ*⌋ + discrete Gaussian clamped to [cut, cut + units], all thresholds, all shifts ≤ Δ."""
    reach = math.ceil(16 * scale) + units + 3
    points = np.arange(-reach, reach + units + 1)
    low, high = math.floor(cut), math.ceil(cut + units)
    middle = points[(points > low) & (points < high)]

    def log_law(mean: int) -> Array:
        log_pmf = -0.5 * ((points - mean) / scale) ** 2
        log_pmf -= np.logaddexp.reduce(log_pmf)
        atoms = [np.logaddexp.reduce(log_pmf[points <= low]), np.logaddexp.reduce(log_pmf[points >= high])]
        return np.concatenate([atoms, log_pmf[np.isin(points, middle)]])

    means = range(math.floor(cut), math.floor(cut + units) + 1)
    laws = {mean: log_law(mean) for mean in means}
    worst = 0.0
    for one, other in itertools.product(means, means):
        if abs(one - other) <= shift:
            terms = order * laws[one] + (1 - order) * laws[other]
            worst = max(worst, float(np.logaddexp.reduce(terms)) / (order - 1))
    return worst


@pytest.mark.parametrize("cut", [0.0, -3.0, -1.37, -0.5])
@pytest.mark.parametrize(("units", "shift", "scale"), [(24, 24, 6.0), (24, 3, 6.0), (40, 4, 50.0), (30, 2, 5.0)])
@pytest.mark.parametrize("order", [1.3, 4.0, 20.0])
def test_the_lattice_charge_covers_the_discrete_law(
    order: float, units: int, shift: int, scale: float, cut: float
) -> None:
    charge = clamped_renyi_charge(order, shift / units, scale / units, 1.0, granule=1.0 / units)
    worst = discrete_worst(order, units, shift, scale, cut)
    assert worst <= charge * (1 + 1e-12)
    assert worst > 0.5 * charge


def test_a_coarse_lattice_may_lose_more_than_the_continuous_charge_and_weak_noise_does() -> None:
    continuous = clamped_renyi_charge(4.0, 3 / 24, 6.0 / 24, 1.0)
    assert discrete_worst(4.0, 24, 3, 6.0, -0.5) > continuous
    for units, shift, scale in [(24, 24, 6.0), (24, 3, 6.0), (40, 4, 50.0)]:
        charge = clamped_renyi_charge(4.0, shift / units, scale / units, 1.0, granule=1.0 / units)
        assert discrete_worst(4.0, units, shift, 0.7 * scale, 0.0) > charge


@pytest.mark.parametrize(("order", "sensitivity", "scale"), CONFIGURATIONS)
def test_the_products_lattice_costs_less_than_a_hundred_thousandth(
    order: float, sensitivity: float, scale: float
) -> None:
    continuous = clamped_renyi_charge(order, sensitivity, scale, 1.0)
    lattice = clamped_renyi_charge(order, sensitivity, scale, 1.0, GRANULE)
    assert continuous <= lattice <= continuous * (1 + 2e-5)
    assert lattice <= renyi_charge(order, sensitivity, scale)


# What it gains


@pytest.mark.parametrize(
    ("sensitivity", "scale", "low", "high"),
    [(1.0, 1.28, 0.75, 0.77), (0.05, 1.28, 0.80, 0.801), (0.01, 1.28, 0.80, 0.801), (0.05, 0.512, 0.93, 0.94)],
)
def test_the_share_of_the_full_charge_is_the_designed_one(
    sensitivity: float, scale: float, low: float, high: float
) -> None:
    order = best_order(50.0, 0.01, sensitivity**2 / (2 * scale**2), 0.0)
    share = clamped_renyi_charge(order, sensitivity, scale, 1.0, GRANULE) / renyi_charge(order, sensitivity, scale)
    assert low <= share <= high


@settings(deadline=None, max_examples=150)
@given(st.floats(1.001, 1e3), st.floats(1e-4, 1.0), st.floats(0.01, 10.0), st.floats(1.0, 2.0))
def test_the_charge_grows_with_order_and_sensitivity_falls_with_noise_and_never_exceeds_the_full_one(
    order: float, sensitivity: float, scale: float, factor: float
) -> None:
    value = clamped_renyi_charge(order, sensitivity, scale, 1.0, GRANULE)
    assert 0.0 < value <= renyi_charge(order, sensitivity, scale)
    slack = 1e-6 * value + 1e-9
    assert clamped_renyi_charge(order * factor, sensitivity, scale, 1.0, GRANULE) >= value - slack
    assert clamped_renyi_charge(order, sensitivity / factor, scale, 1.0, GRANULE) <= value + slack
    assert clamped_renyi_charge(order, sensitivity, scale * factor, 1.0, GRANULE) <= value + slack
    assert clamped_renyi_charge(order, sensitivity, scale, 1.0 * factor, GRANULE) >= value - slack


def test_only_ratios_count() -> None:
    one = clamped_renyi_charge(3.0, 0.05, 0.512, 1.0, GRANULE)
    assert clamped_renyi_charge(3.0, 0.35, 3.584, 7.0, 7 * GRANULE) == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize(
    ("order", "sensitivity", "scale"),
    [(1.0005, 0.5, 0.5), (1e6, 0.5, 0.5), (2.0, 0.5, 1e-4), (2.0, 1e-7, 0.5), (1e5, 1.0, 0.5), (2.0, 1.0, 1e7)],
)
def test_outside_the_proved_range_no_discount_is_claimed(order: float, sensitivity: float, scale: float) -> None:
    value = clamped_renyi_charge(order, sensitivity, scale, 1.0)
    assert value == renyi_charge(order, sensitivity, scale)


def test_rounded_charges_are_never_below_the_charge_and_nonsense_is_refused() -> None:
    assert clamped_renyi_charge_rounded_up(2.0, 0.05, 1.28, 1.0, GRANULE) >= 1e9 * clamped_renyi_charge(
        2.0, 0.05, 1.28, 1.0, GRANULE
    )
    for bad in [
        (1.0, 0.5, 1.0, 1.0),
        (2.0, 1.5, 1.0, 1.0),
        (2.0, 0.0, 1.0, 1.0),
        (2.0, 0.5, 0.0, 1.0),
        (2.0, 0.5, math.nan, 1.0),
        (2.0, 0.5, 1.0, math.inf),
        (2.0, 0.5, 0.1, 1.0, 0.2),
        (2.0, 0.5, 1.0, 1.0, -1.0),
    ]:
        with pytest.raises(InvalidQuantityError):
            clamped_renyi_charge(*bad)
