"""What the samplers draw, against exact laws: PrivBoN's choice at moderate and extreme gaps, the coins of PrivITP down
to 1e-15 and far below, the discrete Gaussian.

The operating system's generator has no seed. So every test of frequencies raises a false alarm at most once in 1e9
runs (nominally 1e-12: Pearson's law is not exact so far out), and what can be read exactly is read exactly: a coin's
probability is found by feeding it bits, not by tossing it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from unittest.mock import patch

import numpy as np
import pytest
from mpmath import mp, mpf
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_noisy_top_k
from opendp.measures import zero_concentrated_divergence
from opendp.metrics import linf_distance
from scipy.stats import chi2

from reticent.accounting import noise
from reticent.accounting.charges.acceptance import AcceptanceLaw
from reticent.accounting.charges.privitp import PrivITP as Mechanism
from reticent.accounting.lattice import RewardLattice
from reticent.plugin.selection.privitp import PrivITP

pytestmark = pytest.mark.simulation

NOMINAL = 1e-12
LEAST_EXPECTED = 40.0


def rejected(counts: Sequence[int], law: Sequence[float]) -> bool:
    """Pearson's test at `NOMINAL`; cells expected less than `LEAST_EXPECTED` times are put together."""
    total = sum(counts)
    cells: list[tuple[float, int]] = []
    rare, seen = 0.0, 0
    for p, c in sorted(zip(law, counts, strict=True)):
        if total * p < LEAST_EXPECTED or 0.0 < total * rare < LEAST_EXPECTED:
            rare, seen = rare + p, seen + c
        else:
            cells.append((p, c))
    if rare > 0.0:
        cells.append((rare, seen))
    if len(cells) < 2:
        raise AssertionError("nothing to compare")
    statistic = sum((c - total * p) ** 2 / (total * p) for p, c in cells)
    return statistic > float(chi2.isf(NOMINAL, len(cells) - 1))


def softmax(scores: Sequence[float], scale: float) -> list[float]:
    weights = [math.exp((s - max(scores)) / scale) for s in scores]
    return [w / sum(weights) for w in weights]


def numpy_gumbel(scores: Sequence[int], scale: float, draws: int, kind: type, seed: int = 1) -> list[int]:
    """The twin: textbook Gumbel noise of numpy in a float type."""
    rng = np.random.default_rng(seed)
    uniform = rng.random((draws, len(scores)), dtype=np.float32 if kind is np.float32 else np.float64).astype(kind)
    with np.errstate(divide="ignore"):
        gumbel = -np.log(-np.log(uniform))
    values = np.asarray(scores, dtype=kind) + kind(scale) * gumbel
    return np.bincount(values.argmax(axis=1), minlength=len(scores)).tolist()


# PrivBoN


def counts_of(scores: Sequence[int], scale: float, draws: int) -> list[int]:
    seen = Counter(noise.noisy_argmax(scores, scale) for _ in range(draws))
    return [seen[i] for i in range(len(scores))]


@pytest.mark.parametrize("gaps", [(0, 1, 2, 3), (0, 0, 4, 4), (0, 4), (0, 2, 2, 2, 2, 2, 2, 8)])
def test_choices_follow_softmax_at_moderate_gaps(gaps: tuple[int, ...]) -> None:
    unit = 2**26
    counts = counts_of([g * unit for g in gaps], float(unit), 15_000)
    assert not rejected(counts, softmax(gaps, 1.0))
    assert rejected(counts, softmax(gaps, 1.5 if max(gaps) < 6 else 1.3))


def test_many_candidates_far_below_the_best_win_as_often_as_they_should() -> None:
    """300 candidates 6σ below: one of them wins in 43 % of the draws."""
    scores, draws = [6 * 2**20] + [0] * 300, 3000
    wins = sum(noise.noisy_argmax(scores, float(2**20)) == 0 for _ in range(draws))
    p, wrong = softmax(scores, 2**20)[0], softmax(scores, 0.9 * 2**20)[0]
    assert not rejected([wins, draws - wins], [p, 1 - p])
    assert rejected([wins, draws - wins], [wrong, 1 - wrong])


@pytest.mark.parametrize(
    ("offset", "kind"),
    [(2**30, np.float32), (2**40, np.float32), (2**61, np.float64)],
)
def test_scores_far_from_zero_keep_their_law_where_floats_lose_it(offset: int, kind: type) -> None:
    """Differences of single granules under a large reward: what the lattice holds and a float sum rounds away."""
    scores, scale = [offset + x for x in (0, 2, 4, 7)], 3.0
    law = softmax([0, 2, 4, 7], 3.0)
    assert not rejected(counts_of(scores, scale, 8000), law)
    assert rejected(numpy_gumbel(scores, scale, 8000, kind), law)


def ranking_counts(scores: list[int], scale: float, draws: int) -> tuple[int, list[int]]:
    """How often the first won, and who came second, from OpenDP's ranking of the same noisy scores."""
    top = make_noisy_top_k(
        vector_domain(atom_domain(T="i64")),
        linf_distance(T="i64"),
        zero_concentrated_divergence(),
        k=2,
        scale=scale,
    )
    rankings = [top(scores) for _ in range(draws)]
    second = Counter(r[1] for r in rankings if r[0] == 0)
    return sum(r[0] == 0 for r in rankings), [second[i] for i in range(1, len(scores))]


def test_sixty_scales_below_the_best_the_others_still_follow_softmax() -> None:
    """A probability of e^-60 is never seen. Conditioned on who comes first it is: second place is a softmax draw."""
    unit = 2**34
    scores = [61 * unit, 0, unit, unit // 2]
    first, second = ranking_counts(scores, float(unit), 8000)
    assert first == 8000
    assert not rejected(second, softmax([0, 1, 0.5], 1.0))
    assert rejected(second, softmax([0, 1, 0.5], 1.4))
    # In granules of a reward near the top of what fits: the twin in double precision sees equal scores.
    scores = [2**61, 2**60, 2**60 + 100, 2**60 + 50]
    first, second = ranking_counts(scores, 100.0, 8000)
    assert first == 8000
    assert not rejected(second, softmax([0, 100, 50], 100.0))
    assert rejected(numpy_gumbel(scores[1:], 100.0, 8000, np.float64), softmax([0, 100, 50], 100.0))


@pytest.mark.parametrize(("kind", "bits", "reach"), [(np.float32, 24, 20.0), (np.float64, 53, 41.0)])
def test_textbook_gumbel_gives_sixty_scales_below_the_best_no_chance_at_all(
    kind: type, bits: int, reach: float
) -> None:
    """All that numpy's uniform can be lies in [2^-bits, 1 - 2^-bits]; so its Gumbel noise has two ends."""
    least, largest = (kind(u) for u in (2.0**-bits, 1.0 - 2.0**-bits))
    with np.errstate(all="ignore"):
        span = float(-np.log(-np.log(largest)) + np.log(-np.log(least)))
    assert span < reach < 60.0
    # The loss of the candidate is then infinite, where the charge is finite.
    assert mp.exp(-60) > 0


# The coins of PrivITP


class _Bits:
    """Stands for the generator: gives out the binary digits of a fixed number, most significant first."""

    def __init__(self, number: int, length: int) -> None:
        self._number, self._left = number, length

    def __call__(self, bits: int) -> int:
        if bits > self._left:
            return 0
        self._left -= bits
        return (self._number >> self._left) & ((1 << bits) - 1)


def probability_of(coin: Callable[[], bool], length: int) -> tuple[mpf, bool]:
    """The exact probability of a coin that compares its random bits with a number, and the side of small numbers.

    The bits, read as one binary fraction U, decide monotonically; bisection finds the fraction at which they turn.
    Returns (P(U below the turn), outcome there).
    """

    def outcome(number: int) -> bool:
        with patch("secrets.randbits", _Bits(number, length)):
            return coin()

    below = outcome(0)
    low, high = 0, 1 << length  # outcome(low) is `below`; at `high` it is the other
    while high - low > 1:
        middle = (low + high) // 2
        if outcome(middle) == below:
            low = middle
        else:
            high = middle
    with mp.workdps(400):
        return mpf(high) / mpf(2) ** length, below


def exact_accept(law: AcceptanceLaw, q: float, sign: int) -> mpf:
    """B(q) (sign 1) or A(q) (sign -1) at the law's own floats, by ψ in 100 digits."""
    x, y = mpf(q) - mpf(law.ceiling), mpf(q) - mpf(law.threshold)
    x, y = x / mpf(law.reward_noise), y / mpf(law.reward_noise)
    if sign < 0:
        x, y = -y, -x

    def psi(v: mpf) -> mpf:
        return v * mp.erfc(-v / mp.sqrt(2)) / 2 + mp.npdf(v)

    return (psi(y) - psi(x)) / (y - x)


COINS = [
    # σ_Z, L, λ, q: B near 1/2, 1e-3, 1e-8, 1e-15, 1e-80; A near 1e-3, 1e-15.
    (0.3, 1.0, 0.2, 0.8),
    (0.25, 2.0, 0.5, 0.0),
    (0.1, 2.0, 0.6, 0.1),
    (0.1, 2.0, 0.8, 0.05),
    (0.05, 3.0, 0.95, 0.0),
    (0.1, 0.0, -0.05, 1.0),
    (0.02, 0.0, 0.95, 1.0),
]


def float32_coin(p: float) -> float:
    """Probability that a float32 uniform (24 bits) lies below p."""
    return math.ceil(float(np.float32(p)) * 2**24) / 2**24


@pytest.mark.parametrize(("sigma", "L", "threshold", "q"), COINS)
def test_the_coin_of_an_acceptance_has_exactly_the_probability_it_should(
    sigma: float, L: float, threshold: float, q: float
) -> None:
    """Through the selection rule itself: reward → granules → log B, log A → bits."""
    lattice = RewardLattice(1.0, 0.05, bits=40)
    rule = PrivITP(lattice, Mechanism(1.0, lattice.sensitivity, 4, 0.05, 0.3, sigma, L), chunk=4, order=8.0)
    law = AcceptanceLaw(0.05, sigma, 1.0, L, threshold)
    units = lattice.quantise(q)
    at = lattice.from_units(units)
    with mp.workdps(100):
        accept, reject = exact_accept(law, at, 1), exact_accept(law, at, -1)
        rare = min(accept, reject)
        length = 128 + math.ceil(-float(mp.log(rare, 2)))
        drawn, below = probability_of(lambda: rule._accepts(law, units), length)
        assert below is (accept <= reject)
        assert abs(float(drawn / rare - 1)) < 2e-12
        # The likelier side's probability is one minus it, exact to the last bit.
        twin = float32_coin(float(rare))
        assert twin == 0.0 or abs(float(mpf(twin) / rare - 1)) > 2e-12


def test_a_coin_of_1e_15_and_its_complement_are_told_apart_from_float32_and_from_the_likelier_side() -> None:
    for exponent in (-3, -8, -15, -40, -300):
        log_p = exponent * math.log(10)
        log_1mp = math.log1p(-math.exp(log_p))
        for toss in (
            lambda s=log_p, f=log_1mp: noise.bernoulli_rarer(s, f),
            lambda s=log_p, f=log_1mp: not noise.bernoulli_rarer(f, s),
        ):
            drawn, below = probability_of(toss, 128 + math.ceil(-exponent * 3.33))
            assert below
            with mp.workdps(60):
                assert abs(float(drawn / mp.exp(mpf(log_p)) - 1)) < 1e-12
    p = 1e-15
    assert abs(float32_coin(p) / p - 1) > 1e6
    # Twin: the likelier side drawn. Its failure has probability 0 below 2^-53 and few digits above.
    likelier, _ = probability_of(lambda: noise.bernoulli_log(math.log1p(-p)), 192)
    assert abs(float((1 - likelier) / mpf(p) - 1)) > 1e-4
    sure, _ = probability_of(lambda: noise.bernoulli_log(math.log1p(-1e-20)), 192)
    assert sure == 1


def test_coins_fall_as_the_bits_say() -> None:
    draws = 20_000
    for p in (0.5, 0.03, 0.97):
        heads = sum(noise.bernoulli_rarer(math.log(p), math.log1p(-p)) for _ in range(draws))
        assert not rejected([heads, draws - heads], [p, 1 - p])
        assert rejected([heads, draws - heads], [0.6 * p, 1 - 0.6 * p])


# The discrete Gaussian


def gaussian_pmf(scale: float) -> dict[int, float]:
    reach = math.ceil(12 * scale) + 2
    weights = {x: math.exp(-x * x / (2 * scale * scale)) for x in range(-reach, reach + 1)}
    total = math.fsum(weights.values())
    return {x: w / total for x, w in weights.items()}


@pytest.mark.parametrize("scale", [0.4, 0.8, 3.3, 21.0])
def test_the_discrete_gaussian_has_its_mass_function(scale: float) -> None:
    draws = 15_000
    pmf = gaussian_pmf(scale)
    seen = Counter(noise.discrete_gaussian(scale) for _ in range(draws))
    assert set(seen) <= set(pmf)
    counts = [seen[x] for x in pmf]
    assert not rejected(counts, list(pmf.values()))
    wrong = gaussian_pmf(1.2 * scale)
    assert rejected(counts, [wrong.get(x, 0.0) for x in pmf])


def test_large_scales_keep_their_law_and_their_lowest_bits() -> None:
    """σ = 0.128 R on a lattice of 2^40. The twin, numpy's normal in float32 and rounded, has a grid of its own."""
    scale, draws = 0.128 * 2**40, 15_000
    values = np.array([noise.discrete_gaussian(scale) for _ in range(draws)], dtype=np.int64)
    edges = np.array([-1.6, -1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0, 1.6])
    from scipy.special import ndtr

    def cells(x: np.ndarray) -> list[int]:
        return np.bincount(np.searchsorted(edges, x / scale), minlength=10).tolist()

    below = ndtr(edges)
    law = np.diff(np.concatenate([[0.0], below, [1.0]])).tolist()
    assert not rejected(cells(values), law)
    assert rejected(cells(np.asarray(values * 1.2)), law)

    def low_bits(x: np.ndarray) -> list[int]:
        return np.bincount(x % 64, minlength=64).tolist()

    assert not rejected(low_bits(values), [1 / 64] * 64)
    rng = np.random.default_rng(3)
    twin = np.rint(rng.standard_normal(draws, dtype=np.float32) * np.float32(scale)).astype(np.int64)
    assert rejected(low_bits(twin), [1 / 64] * 64)
