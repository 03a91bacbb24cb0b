"""PrivBoN with Gaussian noise: equation 26 and the charges against the output law, by sums and in high precision."""

import itertools
import math
import random
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.special import log_ndtr

from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privbon_gaussian import PrivBoNGaussian
from reticent.accounting.charges.pure_dp import renyi_divergence
from reticent.accounting.errors import InvalidQuantityError

Array = npt.NDArray[np.float64]
ORDERS = (1.1, 2.0, 8.0, 60.0)


def slow_log_win(gap: mpf, rivals: int) -> mpf:
    """log E Φ(Z - a)^m by the trapezoid rule in 40 digits around the mode, with steps far below its width."""
    step = mpf(1) / (8 * math.ceil(math.sqrt(rivals + 1)))
    grid = np.linspace(-12.0, max(0.0, float(gap)) + 15.0, 40_001)
    mode = mpf(float(grid[np.argmax(-0.5 * grid**2 + rivals * log_ndtr(grid - float(gap)))]))
    reach = int(11 / step)
    return mp.log(
        step
        * mp.fsum(
            mp.npdf(mode + k * step) * (mp.erfc(-(mode + k * step - gap) / mp.sqrt(2)) / 2) ** rivals
            for k in range(-reach, reach + 1)
        )
    )


def slow_epsilon(m: PrivBoNGaussian) -> mpf:
    with mp.workdps(40):
        R, D, s = mpf(m.reward_max), mpf(m.sensitivity), mpf(m.noise_scale)
        return slow_log_win((R - 2 * D) / s, m.candidates - 1) - slow_log_win(R / s, m.candidates - 1)


@pytest.mark.parametrize(
    "m",
    [
        PrivBoNGaussian(1.0, 1.0, 2, 0.256),
        PrivBoNGaussian(1.0, 1e-4, 2, 0.1),
        PrivBoNGaussian(1.0, 0.05, 16, 0.0634),
        PrivBoNGaussian(3.0, 0.7, 16, 40.0),
        PrivBoNGaussian(1.0, 1e-7, 64, 0.512),
        PrivBoNGaussian(1.0, 0.3, 16, 0.005),
        PrivBoNGaussian(1.0, 0.3, 100, 0.034),
    ],
)
def test_equation_26_agrees_with_itself_in_high_precision(m: PrivBoNGaussian) -> None:
    assert abs(mpf(m.published_epsilon()) / slow_epsilon(m) - 1) < 1e-12


@pytest.mark.parametrize("candidates", [2, 3, 16, 4096])
@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 1e3, 1e8])
def test_extreme_noise_scales_have_finite_ordered_figures(scale: float, candidates: int) -> None:
    m = PrivBoNGaussian(1.0, 0.3, candidates, scale)
    # For large σ: 2Δ/σ E max of n normal variables (2, 3: 1/√π, 3/(2√π)). For small σ: the tail of one difference.
    assert 0.0 < m.published_epsilon() <= m.bounded_range() <= 2.0 * m.published_epsilon() * (1 + 1e-12)
    assert math.isfinite(m.charge(2.0))
    if scale >= 1e3 and candidates <= 3:
        mean_maximum = {2: 1.0, 3: 1.5}[candidates] / math.sqrt(math.pi)
        assert m.published_epsilon() == pytest.approx(0.6 / scale * mean_maximum, rel=3 / scale)
    if scale == 1e-4 and candidates == 2:
        assert m.published_epsilon() == pytest.approx((1.0 - 0.4**2) / (4 * scale**2), rel=1e-5)


# The output law, real noise


@lru_cache(maxsize=100_000)
def log_law(rewards: tuple[float, ...], scale: float) -> tuple[float, ...]:
    """log of each candidate's chance, by the trapezoid rule over the winner's noisy reward."""
    r = np.array(rewards) / scale
    y = np.arange(r.min() - 12.0, r.max() + 12.0, 0.05)
    cdf = log_ndtr(y[:, None] - r)
    log_density = -0.5 * (y[:, None] - r) ** 2 - 0.5 * math.log(2 * math.pi)
    terms = log_density + cdf.sum(axis=1, keepdims=True) - cdf
    top = terms.max(axis=0)
    return tuple((top + np.log(np.exp(terms - top).sum(axis=0) * 0.05)).tolist())


def adjacent_pairs(m: PrivBoNGaussian, draws: int) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    """All corner pairs and random ones."""
    R, D, n = m.reward_max, m.sensitivity, m.candidates
    rng = random.Random(2)
    moves = sorted({(0.0, D), (D, 0.0), (R, R - D), (R - D, R), (0.0, 0.0), (R, R)})
    pairs = [(tuple(a for a, _ in c), tuple(b for _, b in c)) for c in itertools.product(moves, repeat=n)]
    for _ in range(draws):
        one = tuple(rng.choice((0.0, R, rng.uniform(0, R))) for _ in range(n))
        pairs.append((one, tuple(min(R, max(0.0, x + rng.choice((-D, D, rng.uniform(-D, D))))) for x in one)))
    return pairs


def losses(m: PrivBoNGaussian, scale: float) -> list[tuple[Array, Array]]:
    found = []
    for one, other in adjacent_pairs(m, 200):
        p, q = np.array(log_law(one, scale)), np.array(log_law(other, scale))
        found.append((p, p - q))
    return found


def renyi(log_p: Array, loss: Array, order: float) -> float:
    terms = log_p + (order - 1.0) * loss
    top = float(terms.max())
    return (top + math.log(float(np.exp(terms - top).sum()))) / (order - 1.0)


MECHANISMS = [
    PrivBoNGaussian(1.0, 1.0, 2, 0.5),
    PrivBoNGaussian(1.0, 1.0, 3, 0.5),
    PrivBoNGaussian(1.0, 0.05, 3, 0.2),
    PrivBoNGaussian(2.0, 0.3, 4, 1.7),
    PrivBoNGaussian(1.0, 0.7, 3, 0.3),
    PrivBoNGaussian(1.0, 0.1, 2, 3.0),
]


def test_the_chances_sum_to_one() -> None:
    for rewards in [(0.0, 1.0, 1.0), (0.3, 0.3, 0.9)]:
        assert math.fsum(map(math.exp, log_law(rewards, 0.2))) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("m", MECHANISMS)
def test_no_adjacent_pair_beats_equation_26_and_one_reaches_it(m: PrivBoNGaussian) -> None:
    worst = max(float(loss.max()) for _, loss in losses(m, m.noise_scale))
    assert worst <= m.published_epsilon() * (1 + 1e-10)
    assert worst >= m.published_epsilon() * (1 - 1e-10)


@pytest.mark.parametrize("m", MECHANISMS)
def test_the_losses_of_a_pair_lie_in_the_bounded_range(m: PrivBoNGaussian) -> None:
    widest = max(float(loss.max() - loss.min()) for _, loss in losses(m, m.noise_scale))
    assert widest <= m.bounded_range() * (1 + 1e-10)
    assert widest >= 0.6 * m.bounded_range()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("m", MECHANISMS)
def test_no_adjacent_pair_beats_the_charge(m: PrivBoNGaussian, order: float) -> None:
    charge = m.charge(order)
    reached = max(renyi(p, loss, order) for p, loss in losses(m, m.noise_scale))
    assert reached <= charge * (1 + 1e-9)
    assert charge <= m.published_epsilon()


def test_half_the_noise_beats_the_charge_and_the_pure_epsilon() -> None:
    for m in MECHANISMS[:5]:
        weak = losses(m, 0.5 * m.noise_scale)
        assert max(float(loss.max()) for _, loss in weak) > m.published_epsilon()
        for order in ORDERS:
            assert max(renyi(p, loss, order) for p, loss in weak) > m.charge(order)


def test_with_two_candidates_and_the_whole_range_the_charge_is_reached() -> None:
    m = MECHANISMS[0]
    for order in ORDERS:
        reached = max(renyi(p, loss, order) for p, loss in losses(m, m.noise_scale))
        assert reached == pytest.approx(m.charge(order), rel=1e-9)


def test_the_bounded_range_makes_the_charge_of_a_small_sensitivity_nearly_four_times_less() -> None:
    m = PrivBoNGaussian(1.0, 0.01, 4096, 2.56)
    assert m.charge(2.0) < 0.35 * renyi_divergence(2.0, m.published_epsilon())


# What is drawn: integer rewards, discrete Gaussian noise, the lowest index on ties


def integer_log_law(rewards: tuple[int, ...], scale: float) -> Array:
    reach = math.ceil(14 * scale)
    noise = np.arange(-reach, reach + 1)
    pmf = np.exp(-0.5 * (noise / scale) ** 2)
    pmf /= pmf.sum()
    half = np.cumsum(pmf)
    cdf = np.where(noise < 0, half, 1.0 - np.concatenate([half[::-1][1:], [0.0]]))

    def distribution(z: npt.NDArray[np.int64]) -> Array:
        values: Array = cdf[np.clip(z + reach, 0, 2 * reach)] * (z >= -reach)
        return values

    chances = []
    for i, own in enumerate(rewards):
        product = pmf.copy()
        for k, rival in enumerate(rewards):
            if k != i:
                product = product * distribution(noise + own - rival - (1 if k < i else 0))
        chances.append(float(product.sum()))
    return np.asarray(np.log(np.array(chances)))


@pytest.mark.parametrize(("units", "shift", "scale", "n"), [(16, 16, 9.0, 2), (16, 16, 12.0, 3), (12, 3, 8.0, 3)])
def test_integer_noise_with_ties_stays_below_the_lattice_figures(units: int, shift: int, scale: float, n: int) -> None:
    m = PrivBoNGaussian(1.0, shift / units, n, scale / units, granule=1 / units)
    moves = [(a, b) for a in range(0, units + 1, 2) for b in range(units + 1) if abs(a - b) in (0, shift)]
    moves += [(units, units - shift), (units - shift, units)]
    rng = random.Random(4)
    pairs = list(itertools.product(moves, repeat=n))
    pairs = rng.sample(pairs, min(len(pairs), 600))
    worst_move = ((units, units - shift),) * (n - 1) + ((0, shift),)
    loss_worst, range_worst, renyi_worst = 0.0, 0.0, 0.0
    for pair in [*pairs, worst_move]:
        p = integer_log_law(tuple(a for a, _ in pair), scale)
        q = integer_log_law(tuple(b for _, b in pair), scale)
        for log_p, loss in ((p, p - q), (q, q - p)):
            loss_worst = max(loss_worst, float(loss.max()))
            range_worst = max(range_worst, float(loss.max() - loss.min()))
            renyi_worst = max(renyi_worst, renyi(log_p, loss, 5.0))
    assert loss_worst <= m.pure_epsilon()
    assert range_worst <= m.bounded_range()
    assert renyi_worst <= m.charge(5.0)
    # Ties favour the lowest index, so equation 26 for real noise is not enough on a coarse lattice.
    assert loss_worst > m.published_epsilon()


def test_a_fine_lattice_costs_next_to_nothing() -> None:
    m = PrivBoNGaussian(1.0, 0.05, 16, 0.512)
    drawn = replace(m, granule=2.0**-30)
    assert m.pure_epsilon() == m.published_epsilon()
    assert 0.0 < drawn.pure_epsilon() - m.pure_epsilon() < 1e-7
    assert 0.0 <= drawn.charge(2.0) - m.charge(2.0) < 1e-7


# Laws


@settings(deadline=None, max_examples=30)
@given(st.floats(0.01, 1.0), st.integers(2, 300), st.floats(1e-2, 10.0), st.floats(1.01, 2.0))
def test_figures_fall_with_noise_and_grow_with_sensitivity_and_candidates(
    sensitivity: float, candidates: int, scale: float, factor: float
) -> None:
    base = PrivBoNGaussian(1.0, sensitivity, candidates, scale)
    noisier = replace(base, noise_scale=scale * factor)
    calmer = replace(base, sensitivity=sensitivity / factor)
    fewer = replace(base, candidates=candidates - 1)
    for other in (noisier, calmer, fewer):
        assert other.pure_epsilon() <= base.pure_epsilon() * (1 + 1e-9)
        for order in (1.5, 20.0):
            assert other.charge(order) <= base.charge(order) * (1 + 1e-9)


@pytest.mark.parametrize("scale", [0.128, 0.512, 2.56])
def test_gumbel_noise_of_the_same_scale_is_cheaper(scale: float) -> None:
    for sensitivity, candidates in itertools.product((1.0, 0.05, 0.01), (2, 16, 4096)):
        gaussian = PrivBoNGaussian(1.0, sensitivity, candidates, scale)
        gumbel = PrivBoN(1.0, sensitivity, candidates, scale)
        assert gumbel.charge(2.0) < gaussian.charge(2.0)


def test_rounded_charges_are_never_below_the_charge() -> None:
    for m in MECHANISMS:
        assert m.charge_rounded_up(3.0) >= m.charge(3.0) * 1e9


def test_one_candidate_costs_nothing() -> None:
    m = PrivBoNGaussian(1.0, 1.0, 1, 0.1)
    assert (m.published_epsilon(), m.bounded_range(), m.charge(2.0), m.charge_rounded_up(2.0)) == (0.0, 0.0, 0.0, 0)


def test_parameters_outside_their_range_are_refused() -> None:
    for bad in [
        (0.0, 1.0, 2, 1.0),
        (1.0, 1.1, 2, 1.0),
        (1.0, 1.0, 0, 1.0),
        (1.0, 1.0, 1 << 20, 1.0),
        (1.0, 1.0, 2, 0.0),
        (1.0, 1.0, 2, math.nan),
        (1.0, 1.0, 2, 1e-5),
        (1.0, 1.0, 2, 1.0, 0.2),
        (1.0, 1.0, 2, 1.0, -0.1),
    ]:
        with pytest.raises(InvalidQuantityError):
            PrivBoNGaussian(*bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidQuantityError):
        MECHANISMS[0].charge(1.0)
