"""Privacy-loss distributions and the composition limit, against closed forms, enumeration and the design's figures."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.optimize import brentq
from scipy.special import ndtr

from reticent.accounting.charges.gaussian import calibrated_scale, delta_of, probabilistic_epsilon
from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.errors import InvalidQuantityError
from reticent.accounting.planning.laws import BetaLaw, PointLaw
from reticent.accounting.planning.limit import composition_limit, largest_count, softmax_loss
from reticent.accounting.planning.outcomes import acceptance_probabilities
from reticent.accounting.planning.privacy_loss import PrivacyLoss
from reticent.accounting.planning.worst_queries import QueryLoss, Round, worst_query, worst_round

Atoms = list[tuple[float, float]]


def gaussian(a: float, step: float, tilt: float, stretch: float = 1.0) -> PrivacyLoss:
    """N(0, 1) shifted by a, its exact masses of cells rounded as atoms are; `stretch` 1 is right."""
    first, last = (math.floor(stretch * (sign * 12.0 * a + 0.5 * a * a) / step) for sign in (-1, 1))
    edges = step * np.arange(first, last + 1)
    z = (edges / stretch - 0.5 * a * a) / a

    def cells(x: np.ndarray) -> np.ndarray:
        return np.where(x[:-1] > 0.0, -np.diff(ndtr(-x)), np.diff(ndtr(x)))

    p, q = cells(z), cells(z + a)
    up = np.clip((p - np.exp(edges[:-1]) * q) / -math.expm1(-step), 0.0, p)
    if stretch != 1.0:  # no pair of distributions any more: halves will do
        up = 0.5 * p
    masses = (np.append(p - up, 0.0) + np.append(0.0, up)) * np.exp(tilt * edges)
    return PrivacyLoss.from_tilted(step, first, masses, tilt, step * step)


def enumerated(atoms: Atoms, copies: int, epsilon: float) -> tuple[float, float]:
    """δ of (ε, δ)-DP and P(ΣL > ε), by all sequences."""
    dp, tail = [], []
    for sequence in itertools.product(atoms, repeat=copies):
        loss = math.fsum(x for x, _ in sequence)
        probability = math.prod(p for _, p in sequence)
        if loss > epsilon:
            dp.append(probability * -math.expm1(epsilon - loss))
            tail.append(probability)
    return math.fsum(dp), math.fsum(tail)


@pytest.mark.parametrize("delta", [1e-2, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("copies", [10, 1000])
def test_gaussians_add_up_to_one_gaussian(delta: float, copies: int) -> None:
    a = 2.0 / math.sqrt(copies)
    epsilon = float(brentq(lambda e: delta_of(e, 2.0, 1.0) - delta, 0.0, 30.0, xtol=1e-13))
    loss = gaussian(a, 5e-5 if copies == 1000 else 2e-4, tilt=0.5 * (epsilon / 2.0 - 1.0))
    bracket = loss.trade_off(epsilon, copies, at=delta)
    assert bracket.low <= delta <= bracket.high
    assert bracket.high - bracket.low <= 0.02 * delta
    assert bracket.high <= delta * (1 + 1e-3)
    tail = loss.trade_off(probabilistic_epsilon(delta, 2.0, 1.0), copies, "probabilistic", at=delta)
    assert tail.low <= delta <= tail.high <= 1.02 * delta


def shrunk_count(stretch: float) -> tuple[int, int, int]:
    """(low, high, closed form) of the number of Gaussians with a = 0.1 within (10, 1e-6)."""
    epsilon, delta, a = 10.0, 1e-6, 0.1
    right = math.floor((1.0 / calibrated_scale(epsilon, delta) / a) ** 2)
    limit = largest_count(gaussian(a, 1e-4, 1.0, stretch), epsilon, delta)
    return limit.queries_low, limit.queries_high, right


def test_the_count_of_gaussians_is_that_of_the_closed_form() -> None:
    low, high, right = shrunk_count(1.0)
    assert low <= right <= high <= low + 1


def test_losses_one_percent_too_small_are_caught_by_the_closed_form() -> None:
    low, _, right = shrunk_count(0.99)
    assert low > right


@pytest.mark.parametrize(("copies", "delta_about"), [(30, 1e-2), (1000, 1e-5), (20_000, 1e-10)])
def test_randomised_response_adds_up_to_the_binomial(copies: int, delta_about: float) -> None:
    x = 0.05
    with mp.workdps(60):
        p = 1 / (1 + mp.exp(-mpf(x)))
        center, width = copies * x * math.tanh(x / 2), 2 * x * math.sqrt(copies) / 2
        epsilon = max(0.1, center + width * math.sqrt(-2 * math.log(delta_about)))
        exact, term = mpf(0), (1 - p) ** copies
        for j in range(copies + 1):
            total = mpf(x) * (2 * j - copies)
            if total > epsilon:
                exact += term * (1 - mp.exp(mpf(epsilon) - total))
            term *= mpf(copies - j) / (j + 1) * p / (1 - p)
        loss = PrivacyLoss.two_atoms(x, 2 * x, float(p), tilt=max(0.1, epsilon / (copies * x * x) - 0.5))
        bracket = loss.trade_off(epsilon, copies)
        assert bracket.low <= exact <= bracket.high
        assert bracket.high - bracket.low <= 1e-6 * exact
        # A copy that is rounded: the same within its bracket.
        probability = float(p)
        atoms = np.array([x, -x]), np.array([probability, 1.0 - probability])
        coarse = PrivacyLoss.from_atoms(*atoms, 3.7e-5, loss.tilt).trade_off(epsilon, copies, at=float(exact))
        assert coarse.low <= exact <= coarse.high


def test_two_different_losses_add_up_as_by_hand() -> None:
    step = 0.125
    first = {-0.25: 0.3, 0.0: 0.1, 0.5: 0.6}
    second = {-0.5: 0.45, 0.125: 0.35, 1.0: 0.2}
    made = [PrivacyLoss.from_atoms(np.array(list(x)), np.array(list(x.values())), step, 0.7) for x in (first, second)]
    both = made[0].composed(made[1])
    law = dict.fromkeys(np.round(both.losses, 9), 0.0)
    for (a, p), (b, q) in itertools.product(first.items(), second.items()):
        law[round(a + b, 9)] += p * q
    untilted = both.masses * np.exp(both.log_moment - both.tilt * both.losses)
    assert untilted == pytest.approx(np.array(list(law.values())), abs=1e-15)
    assert both.mean(0.0) == pytest.approx(made[0].mean(0.0) + made[1].mean(0.0), rel=1e-13)
    assert both.variance(0.0) == pytest.approx(made[0].variance(0.0) + made[1].variance(0.0), rel=1e-13)
    with pytest.raises(InvalidQuantityError):
        made[0].composed(PrivacyLoss.from_atoms(np.zeros(1), np.ones(1), 0.25, 0.7))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(-1.0, 1.0), st.floats(0.01, 1.0)), min_size=2, max_size=4),
    st.integers(1, 4),
    st.floats(0.0, 1.5),
    st.floats(0.0, 2.0),
    st.sampled_from([0.003, 0.05]),
    st.sampled_from([1, 4]),
)
def test_the_bracket_holds_the_enumerated_answer(
    raw: Atoms, copies: int, epsilon: float, tilt: float, step: float, factor: int
) -> None:
    total = sum(p for _, p in raw)
    atoms = [(x, p / total) for x, p in raw]
    losses, probabilities = np.array([x for x, _ in atoms]), np.array([p for _, p in atoms])
    loss = PrivacyLoss.from_atoms(losses, probabilities, step, tilt).coarsened(factor)
    for guarantee, exact in zip(("dp", "probabilistic"), enumerated(atoms, copies, epsilon), strict=True):
        bracket = loss.trade_off(epsilon, copies, guarantee, at=1e-3)  # type: ignore[arg-type]
        assert bracket.low <= exact * (1 + 1e-12) + 1e-15
        assert exact <= bracket.high * (1 + 1e-12) + 1e-15


def test_rounding_down_only_would_leave_the_bracket() -> None:
    """The twin of the bracket: losses rounded down to the grid, without the upper neighbour, claim too little."""
    atoms = [(0.99, 0.6), (-0.61, 0.4)]
    exact, _ = enumerated(atoms, 4, 1.0)
    rounded = [(math.floor(x / 0.25) * 0.25, p) for x, p in atoms]
    wrong = PrivacyLoss.from_atoms(np.array([x for x, _ in rounded]), np.array([p for _, p in rounded]), 0.25, 0.5)
    right = PrivacyLoss.from_atoms(np.array([x for x, _ in atoms]), np.array([p for _, p in atoms]), 0.25, 0.5)
    assert wrong.trade_off(1.0, 4).high < exact <= right.trade_off(1.0, 4).high


def test_a_query_s_loss_is_that_of_all_its_outcomes() -> None:
    """Two thresholds, three rounds, two rewards: the transform against enumeration."""
    step, n = 0.0625, 3
    threshold, present = [-0.25, 0.5], [[0.3, 0.2], [0.1, 0.4]]
    rounds = [
        Round((np.array([0.125, -0.25]), np.array([0.4, 0.25])), (np.array([-0.5, 0.75]), np.array([0.2, 0.15]))),
        Round((np.array([0.0625, 0.5]), np.array([0.1, 0.3])), (np.array([0.25, -0.125]), np.array([0.5, 0.1]))),
    ]
    atoms: Atoms = []
    for (i, first), (j, one) in itertools.product(enumerate(threshold), enumerate(rounds)):
        rejected, accepted = (list(zip(*x, strict=True)) for x in (one.rejection, one.acceptance))
        for t in range(n + 1):
            ends = accepted if t < n else [(0.0, 1.0)]
            for *before, (loss, p) in itertools.product(*[rejected] * t, ends):
                total = first + sum(x for x, _ in before) + loss
                atoms.append((total, present[i][j] * math.prod(q for _, q in before) * p))
    released = [(np.array(threshold), weights) for weights in np.array(present).T]
    query = QueryLoss(n, [released], [rounds], 0.4)
    law = query.loss(step)
    for s in (0.0, 0.4, 1.5):
        weights = np.array([p * math.exp(s * x) for x, p in atoms])
        assert law.mean(s) == pytest.approx(float(weights @ [x for x, _ in atoms]) / float(weights.sum()), rel=1e-10)
    assert law.log_moment == pytest.approx(math.log(sum(p * math.exp(0.4 * x) for x, p in atoms)), rel=1e-10)
    for epsilon in (0.0, 0.3, 1.0):
        exact, _ = enumerated(atoms, 1, epsilon)
        assert law.trade_off(epsilon, 1).high == pytest.approx(exact, rel=1e-9)


MECHANISM = PrivITP(1.0, 0.05, 16, 0.05, 0.256, 0.256, 3.84)


@pytest.mark.parametrize("clamped", [True, False])
@pytest.mark.parametrize("sensitivity", [0.05, 0.2])
def test_the_worst_query_looks_like_the_reward_law_and_is_a_pair_of_distributions(
    sensitivity: float, clamped: bool
) -> None:
    mechanism = PrivITP(1.0, sensitivity, 16, 0.05, 0.256, 0.256, 3.84)
    law = BetaLaw(2.0, 2.0, 1.0)
    query = worst_query(mechanism, law, 0.3, clamped=clamped)
    values, weights = law.nodes(0)
    thresholds = np.linspace(-0.05, 0.95, len(query.rounds[0]))
    expected = weights @ acceptance_probabilities(mechanism, values, thresholds)
    accepted = np.array([one.acceptance[1].sum() for one in query.rounds[0]])
    rejected = np.array([one.rejection[1].sum() for one in query.rounds[0]])
    assert accepted == pytest.approx(expected, rel=1e-9)
    assert accepted + rejected == pytest.approx(np.ones(len(thresholds)), rel=1e-9)
    loss = query.loss(1e-3)
    for tilt in (0.0, -1.0):  # P and Q have mass 1; rounding keeps both
        masses = loss.masses * np.exp(loss.log_moment + (tilt - loss.tilt) * loss.losses)
        assert float(masses.sum()) == pytest.approx(1.0, abs=1e-8)


def test_a_population_of_equal_prompts_is_one_prompt() -> None:
    class Many(BetaLaw):
        @property
        def prompts(self) -> int:
            return 20

    one, many = (worst_query(MECHANISM, law(2.0, 2.0, 1.0), 0.3) for law in (BetaLaw, Many))
    assert len(many.rounds) == len(many.thresholds) == 8
    total = math.fsum(float(mass.sum()) for group in many.thresholds for _, mass in group)
    assert total == pytest.approx(1.0, rel=1e-9)
    assert many.loss(1e-3).log_moment == pytest.approx(one.loss(1e-3).log_moment, rel=2e-3)


def test_no_mixture_of_two_rewards_tried_at_random_loses_more() -> None:
    rng, n, s, Delta = np.random.default_rng(5), 8, 0.3, 0.05
    law = MECHANISM.acceptance_law(0.6)
    q = np.linspace(0.0, 1.0, 65)

    def logs(values: list[float]) -> np.ndarray:
        return np.array([[law.log_accept(x), law.log_reject(x)] for x in values]).T

    own = logs(list(q))
    losses = own - np.stack([logs([min(max(x + sign * Delta, 0.0), 1.0) for x in q]) for sign in (-1, 1)])

    def moment(rejection: tuple[np.ndarray, np.ndarray], acceptance: tuple[np.ndarray, np.ndarray]) -> float:
        u, v = (float(p @ np.exp(s * x)) for x, p in (rejection, acceptance))
        return v * sum(u**i for i in range(n)) + u**n

    p = np.exp(own)
    mean = float(p[0, 30])
    found = worst_round(p, losses, s, mean, n)
    best = moment(found.rejection, found.acceptance)
    assert found.moment(s, n) == pytest.approx(best, rel=1e-13)
    tried = []
    for _ in range(4000):
        pair = np.array([rng.integers(0, 31), rng.integers(31, 65)])
        way = rng.integers(0, 2, 2)
        upper = (mean - p[0, pair[0]]) / (p[0, pair[1]] - p[0, pair[0]])
        mix = np.array([1.0 - upper, upper])
        tried.append(moment((losses[way, 1, pair], mix * p[1, pair]), (losses[way, 0, pair], mix * p[0, pair])))
    assert max(tried) <= best * (1 + 1e-13)
    assert max(tried) - 1.0 >= 0.9 * (best - 1.0)  # the search came close, so the comparison means something


def test_the_softmax_limit_is_the_worst_over_offsets() -> None:
    mechanism = PrivBoN(1.0, 0.05, 16, 0.512)
    limit = composition_limit(mechanism, None, 50.0, 0.01)
    assert limit.queries_low == limit.queries_high == 6758  # the design's figure
    spread = mechanism.bounded_range()
    for share in (0.3, 0.45, 0.5, 0.55, 0.7):
        high = share * spread
        p = math.expm1(high - spread) / math.expm1(-spread)
        other = largest_count(PrivacyLoss.two_atoms(high, spread, p, 0.28), 50.0, 0.01)
        assert other.queries_low >= limit.queries_high
    assert softmax_loss(mechanism, 0.3).mean(-1.0) < 0.0 < softmax_loss(mechanism, 0.3).mean(0.0)


def test_unclamped_limits_of_privitp_are_those_of_the_design() -> None:
    law = BetaLaw(2.0, 2.0, 1.0)
    wide = composition_limit(PrivITP(1.0, 1.0, 16, 0.05, 1.28, 1.28, 3.84), law, 50.0, 0.01, clamped=False)
    assert (wide.queries_low, wide.queries_high) == (45, 45)  # 45.9 if δ is interpolated; the design rounds to 46
    narrow = composition_limit(MECHANISM, law, 50.0, 0.01, clamped=False)
    assert (narrow.queries_low, narrow.queries_high) == (834, 835)  # the design: 836, by a weaker pair


@pytest.mark.simulation
def test_a_smaller_delta_and_the_probabilistic_guarantee_allow_less() -> None:
    law = BetaLaw(2.0, 2.0, 1.0)
    narrow, strict = (composition_limit(MECHANISM, law, 50.0, delta, clamped=False) for delta in (1e-2, 1e-6))
    assert strict.queries_high < narrow.queries_low
    tail = composition_limit(MECHANISM, law, 50.0, 0.01, "probabilistic", clamped=False)
    assert tail.queries_high <= narrow.queries_low


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("sensitivity", "design", "bracket"), [(0.05, 18_107, (18_057, 18_066)), (0.01, 453_290, (452_847, 453_868))]
)
def test_unclamped_limits_of_small_sensitivities_are_those_of_the_design(
    sensitivity: float, design: int, bracket: tuple[int, int]
) -> None:
    mechanism, law = PrivITP(1.0, sensitivity, 16, 0.05, 1.28, 1.28, 3.84), BetaLaw(2.0, 2.0, 1.0)
    found = [composition_limit(mechanism, law, 50.0, 0.01, seed=seed, clamped=False) for seed in (0, 1)]
    # Whole numbers out of floats: another machine's may differ in the last place or two.
    assert (found[0].queries_low, found[0].queries_high) == pytest.approx(bracket, rel=2e-5)
    for limit in found:
        assert abs(limit.queries_low - design) <= 0.004 * design
        assert limit.queries_high <= limit.queries_low * 1.003
    assert abs(found[0].queries_low - found[1].queries_low) <= 5e-4 * design


@pytest.mark.simulation
def test_the_wide_softmax_limit_and_small_deltas() -> None:
    mechanism = PrivBoN(1.0, 0.05, 16, 2.56)
    counts = [composition_limit(mechanism, None, 50.0, delta) for delta in (1e-2, 1e-6, 1e-10)]
    assert abs(counts[0].queries_low - 168_856) <= 20
    for delta, limit in zip((1e-2, 1e-6, 1e-10), counts, strict=True):
        assert limit.queries_high - limit.queries_low <= 1
        # 168,852 small bounded losses are Gaussian to a part in a thousand.
        mu = 1.0 / calibrated_scale(50.0, delta)
        assert limit.queries_low == pytest.approx((mu / (0.05 / 2.56)) ** 2, rel=2e-3)


def test_nonsense_is_refused_and_a_spent_budget_answers_nothing() -> None:
    law = PointLaw(0.5, 1.0)
    with pytest.raises(InvalidQuantityError):
        composition_limit(MECHANISM, None, 50.0, 0.01)
    with pytest.raises(InvalidQuantityError):
        composition_limit(PrivBoN(1.0, 0.05, 1, 1.0), None, 50.0, 0.01)
    for epsilon, delta in ((0.0, 0.01), (math.nan, 0.01), (1.0, 0.0), (1.0, 1.0), (1.0, math.nan)):
        with pytest.raises(InvalidQuantityError):
            composition_limit(MECHANISM, law, epsilon, delta)
    dear = composition_limit(PrivITP(1.0, 1.0, 2, 0.05, 0.1, 0.1, 1.0), law, 1.0, 0.01)
    assert dear.queries_low == dear.queries_high == 0
    loss = PrivacyLoss.from_atoms(np.array([0.1, -0.1]), np.array([0.5, 0.5]), 0.01)
    for epsilon, copies, guarantee in ((-1.0, 1, "dp"), (1.0, 0, "dp"), (1.0, 1, "pure")):
        with pytest.raises(InvalidQuantityError):
            loss.trade_off(epsilon, copies, guarantee)  # type: ignore[arg-type]
    for bad in (np.array([math.inf]), np.array([])):
        with pytest.raises(InvalidQuantityError):
            PrivacyLoss.from_atoms(bad, np.ones(len(bad)), 0.01)
    with pytest.raises(InvalidQuantityError):
        PrivacyLoss.two_atoms(0.1, 0.2, 1.0)
