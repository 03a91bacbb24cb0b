"""The exact draws. The operating system's generator has no seed: false alarms are set to 1e-6 a test, and the sizes are
such that a scale 30 % wrong is found with near certainty."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.stats import chi2

from reticent.accounting import noise
from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.errors import InvalidQuantityError

FALSE_ALARM = 1e-6
UNIT = 2**29


def softmax(scores: list[float], scale: float) -> list[float]:
    weights = [math.exp((s - max(scores)) / scale) for s in scores]
    return [w / sum(weights) for w in weights]


def rejected(counts: list[int], law: list[float]) -> bool:
    total = sum(counts)
    statistic = sum((c - total * p) ** 2 / (total * p) for c, p in zip(counts, law, strict=True))
    return statistic > float(chi2.ppf(1 - FALSE_ALARM, len(law) - 1))


def argmax_counts(scores: list[int], scale: float, draws: int) -> list[int]:
    seen = Counter(noise.noisy_argmax(scores, scale) for _ in range(draws))
    return [seen[i] for i in range(len(scores))]


def test_the_noisy_argmax_follows_softmax_and_not_its_neighbours() -> None:
    scores = [0, UNIT, 2 * UNIT]
    counts = argmax_counts(scores, float(UNIT), 10_000)
    law = softmax([0, 1, 2], 1.0)
    assert not rejected(counts, law)
    # Twins: 30 % more or less noise, the minimum instead of the maximum, and permute-and-flip.
    assert rejected(counts, softmax([0, 1, 2], 1.3))
    assert rejected(counts, softmax([0, 1, 2], 0.7))
    assert rejected(counts, law[::-1])
    a, b = math.exp(-2), math.exp(-1)
    first, second = a * (1 / 3 + (1 - b) / 6), b * (1 / 3 + (1 - a) / 6)
    assert rejected(counts, [first, second, 1 - first - second])


def test_the_measurement_has_the_charge_of_the_exponential_mechanism() -> None:
    scale, shift = float(UNIT), UNIT // 8
    rho = noise._noisy_max(scale).map(shift)  # type: ignore[attr-defined]
    assert rho == pytest.approx(PrivBoN(8.0, 1 / 8, 4, 1.0).bounded_range() ** 2 / 8, rel=1e-9)


def test_equal_scores_win_equally_often() -> None:
    counts = argmax_counts([7, 7, 7, 7], 0.5, 4000)
    assert not rejected(counts, [0.25] * 4)
    assert rejected([4000, 0, 0, 0], [0.25] * 4)


def test_extreme_gaps_and_single_candidates_are_drawn_without_error() -> None:
    scale = UNIT / 60
    assert all(noise.noisy_argmax([0, UNIT], scale) == 1 for _ in range(200))
    assert all(noise.noisy_argmax([0, 2**61, -(2**61)], 1.0) == 1 for _ in range(20))
    assert noise.noisy_argmax([5], 1.0) == 0
    assert noise.noisy_argmax([0, 3], Fraction(1, 1000)) == 1


def test_a_fractional_scale_is_rounded_up() -> None:
    third = Fraction(1, 3)
    assert Fraction(noise._scale(third)) >= third
    assert Fraction(noise._scale(Fraction(2, 3))) >= Fraction(2, 3)


def test_the_discrete_gaussian_has_its_law_and_moments() -> None:
    scale, draws = 2.0, 8000
    values = [noise.discrete_gaussian(scale) for _ in range(draws)]
    weights = {x: math.exp(-x * x / 8) for x in range(-40, 41)}
    total = sum(weights.values())
    inner = list(range(-5, 6))

    def bins(law: dict[int, float]) -> list[float]:
        return [
            sum(p for x, p in law.items() if x < -5),
            *(law[x] for x in inner),
            sum(p for x, p in law.items() if x > 5),
        ]

    seen = Counter(values)
    counts = [sum(c for x, c in seen.items() if x < -5), *(seen[x] for x in inner)]
    counts.append(draws - sum(counts))
    assert not rejected(counts, bins({x: w / total for x, w in weights.items()}))
    weak = {x: math.exp(-x * x / (8 * 0.49)) for x in range(-40, 41)}
    assert rejected(counts, bins({x: w / sum(weak.values()) for x, w in weak.items()}))

    assert abs(sum(values) / draws) < 5 * scale / math.sqrt(draws)
    spread = sum(v * v for v in values) / draws / scale**2
    slack = 5 * math.sqrt(2 / draws)
    assert abs(spread - 1) < slack
    assert abs(spread - 0.49) > slack


def test_large_gaussian_scales_have_no_coarse_grid() -> None:
    values = [noise.discrete_gaussian(Fraction(128, 1000) * 2**30) for _ in range(200)]
    assert len(set(values)) == len(values)
    assert {v % 2 for v in values} == {0, 1}


def gaussian_law(scale: float, reach: int) -> list[float]:
    """Probabilities of x < -reach, -reach, …, reach and x > reach: the slow twin, by summation."""
    far = math.ceil(12 * scale) + reach
    weights = [math.exp(-x * x / (2 * scale * scale)) for x in range(-far, far + 1)]
    total, middle = math.fsum(weights), weights[far - reach : far + reach + 1]
    tail = math.fsum(weights[: far - reach])
    return [w / total for w in (tail, *middle, tail)]


def cell(value: int, reach: int) -> int:
    return min(max(value, -reach - 1), reach + 1) + reach + 1


@pytest.mark.parametrize(("scale", "reach"), [(0.6593, 2), (2.2467, 5), (8.0525, 15)])
def test_many_draws_at_once_have_the_law_of_the_discrete_gaussian(scale: float, reach: int) -> None:
    draws = [value for _ in range(200) for value in noise.discrete_gaussians(scale, 100)]
    seen = Counter(cell(value, reach) for value in draws)
    counts = [seen[i] for i in range(2 * reach + 3)]
    assert not rejected(counts, gaussian_law(scale, reach))
    # Twins: 15 % less noise, and the continuous Gaussian rounded to integers.
    assert rejected(counts, gaussian_law(0.85 * scale, reach))
    if scale < 1.0:
        phi = [0.5 * math.erfc(-x / (scale * math.sqrt(2))) for x in [i - 0.5 for i in range(-reach, reach + 2)]]
        ends = [0.0, *phi, 1.0]
        assert rejected(counts, [high - low for low, high in itertools.pairwise(ends)])


def test_draws_made_at_once_are_independent_of_each_other_and_of_their_place() -> None:
    scale, reach = 1.1701, 1
    law = gaussian_law(scale, reach)
    joint = [p * q for p in law for q in law]
    vectors = [noise.discrete_gaussians(scale, 42) for _ in range(700)]

    def pairs(left: int, right: int) -> list[int]:
        seen = Counter((cell(v[left], reach), cell(v[right], reach)) for v in vectors)
        return [seen[i, j] for i in range(len(law)) for j in range(len(law))]

    for left, right in ((0, 1), (0, 41), (20, 21)):
        assert not rejected(pairs(left, right), joint)
    assert rejected(pairs(7, 7), joint)  # The twin: one draw in both places.
    neighbours = Counter((cell(a, reach), cell(b, reach)) for v in vectors for a, b in itertools.pairwise(v[::2]))
    counts = [neighbours[i, j] for i in range(len(law)) for j in range(len(law))]
    assert not rejected(counts, joint)


def test_draws_made_at_once_cost_what_single_draws_cost() -> None:
    """OpenDP's own map, from the length of a shift to ρ of zero-concentrated differential privacy: d²/(2σ²)."""
    for scale in (0.6593, 2.2467, 1000.0):
        for shift in (1, 3):
            rho = noise._gaussians(scale).map(shift)  # type: ignore[attr-defined]
            assert rho == noise._gaussian(scale).map(shift)  # type: ignore[attr-defined]
            assert rho == pytest.approx(shift**2 / (2 * scale**2), rel=1e-12)
            assert rho >= shift**2 / (2 * scale**2) * (1 - 1e-15)


def test_many_draws_take_the_same_scales_as_one_and_any_number() -> None:
    assert noise.discrete_gaussians(2.0, 0) == ()
    assert len(noise.discrete_gaussians(Fraction(1, 3), 2002)) == 2002
    large = noise.discrete_gaussians(Fraction(128, 1000) * 2**30, 200)
    assert len(set(large)) == len(large)
    assert {value % 2 for value in large} == {0, 1}
    for scale in (0.0, -1.0, math.nan, math.inf, 2.0**56):
        with pytest.raises(InvalidQuantityError):
            noise.discrete_gaussians(scale, 3)
    for count in (-1, 2.0, True):
        with pytest.raises(InvalidQuantityError):
            noise.discrete_gaussians(1.0, count)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.floats(0.0, 1.0), st.lists(st.integers(0, 2**64 - 1), min_size=18, max_size=18))
def test_a_coin_compares_its_bits_with_the_exact_probability(probability: float, bits: list[int]) -> None:
    with patch("secrets.randbits", side_effect=bits):
        outcome = noise.bernoulli(probability)
    uniform = sum(Fraction(b, 2 ** (64 * (i + 1))) for i, b in enumerate(bits))
    assert outcome == (uniform < Fraction(probability))


@settings(deadline=None)
@given(st.floats(-2e4, 0.0))
def test_a_coin_of_tiny_probability_halves_and_flips_exactly(log_probability: float) -> None:
    with patch("secrets.randbits", return_value=0) as bits, patch.object(noise, "bernoulli", return_value=True) as coin:
        assert noise.bernoulli_log(log_probability)
    halvings = sum(call.args[0] for call in bits.call_args_list)
    (mantissa,) = coin.call_args.args
    with mp.workdps(40):
        drawn = mp.log(mpf(mantissa)) - halvings * mp.log(2)
        assert abs(drawn - mpf(log_probability)) < 1e-15 * (4 + abs(log_probability))
    assert 0.4999 < mantissa <= 1.0


def test_coins_fall_as_often_as_they_should() -> None:
    draws = 20_000
    tosses: list[Callable[[], bool]] = [
        lambda: noise.bernoulli(0.3),
        lambda: noise.bernoulli_log(math.log(0.3)),
        lambda: noise.bernoulli_rarer(math.log(0.3), math.log(0.7)),
        lambda: not noise.bernoulli_rarer(math.log(0.7), math.log(0.3)),
    ]
    for toss in tosses:
        heads = sum(toss() for _ in range(draws))
        assert not rejected([heads, draws - heads], [0.3, 0.7])
        assert rejected([heads, draws - heads], [0.39, 0.61])
    assert not any(noise.bernoulli_log(-690.0) for _ in range(1000))
    assert not any(noise.bernoulli(0.0) for _ in range(100))
    assert all(noise.bernoulli(1.0) and noise.bernoulli_log(0.0) for _ in range(100))


def test_a_sure_looking_event_keeps_its_tiny_chance_of_failure() -> None:
    # log(1 - 1e-20) is 0 in floats: drawn from the likelier side, failure would be impossible.
    with patch.object(noise, "bernoulli_log", return_value=True) as coin:
        assert noise.bernoulli_rarer(-1e-20, math.log(1e-20)) is False
    coin.assert_called_once_with(math.log(1e-20))


def test_indices_are_uniform() -> None:
    counts = Counter(noise.uniform_index(5) for _ in range(5000))
    assert not rejected([counts[i] for i in range(5)], [0.2] * 5)


def test_bad_arguments_are_refused_and_scores_are_not_repeated() -> None:
    calls: list[Callable[[], object]] = [
        lambda: noise.noisy_argmax([], 1.0),
        lambda: noise.noisy_argmax([1, 2], 0.0),
        lambda: noise.noisy_argmax([1, 2], math.nan),
        lambda: noise.discrete_gaussian(-1.0),
        lambda: noise.discrete_gaussian(math.inf),
        lambda: noise.bernoulli(1.0000001),
        lambda: noise.bernoulli(math.nan),
        lambda: noise.bernoulli_log(1e-9),
        lambda: noise.bernoulli_log(-math.inf),
        lambda: noise.bernoulli_rarer(math.log(0.5), math.log(0.4)),
        lambda: noise.uniform_index(0),
    ]
    for call in calls:
        with pytest.raises(InvalidQuantityError):
            call()
    with pytest.raises(InvalidQuantityError) as caught:
        noise.noisy_argmax([1, 2**62 + 12345], 1.0)
    assert "12345" not in str(caught.value)
    with pytest.raises(InvalidQuantityError) as caught:
        noise.noisy_argmax([0.123456], 1.0)  # type: ignore[list-item]
    assert "123456" not in str(caught.value)
