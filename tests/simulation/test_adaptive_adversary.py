"""An adversary who sees everything that could be called public, against the real filter.

After every answer it knows the noisy threshold (even before the clamp), the halting time, which candidate was chosen,
the charge and what is left; so it knows its privacy loss exactly. It picks the next question as it likes, which means
rule, parameters and any adjacent pair of reward vectors, and stops when it has won. The claim is that the loss exceeds
ε with probability at most δ.

Streams run twice: through the real selection rules with the operating system's noise, and, for many more streams,
through seeded tables of the same laws; both are compared.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pytest
from scipy.stats import beta, chi2

from reticent.accounting.charges.privitp import PhaseTwoAccounting
from reticent.accounting.charges.privitp import PrivITP as Mechanism
from reticent.accounting.filter import PrivacyFilter, overhead_ville
from reticent.accounting.lattice import RewardLattice
from reticent.plugin.selection.base import Selection
from reticent.plugin.selection.privbon import PrivBoN
from reticent.plugin.selection.privitp import PrivITP
from tests.fakes.build import run
from tests.fakes.exact import Array, Step, best_adversary, moment, rejection_law, softmax_law
from tests.fakes.session import FakeSession

pytestmark = pytest.mark.simulation

ORDER, DELTA, EPSILON = 3.0, 0.05, 2.2
LATTICE = RewardLattice(1.0, 1.0, bits=8)
R = LATTICE.units_max
N = 2
MODULE = "reticent.plugin.selection.privitp"


@dataclass(frozen=True)
class Move:
    """A question: a rule and rewards in granules under D and under D' (phase 1 and phase 2 for PrivITP).

    Outcomes stand in one table: log P_D, log P_D', the rule's own charge in 1e-9 nat.
    """

    rule: PrivBoN | PrivITP
    one: tuple[int, ...]
    other: tuple[int, ...]
    log_p: Array
    log_q: Array
    charge: np.ndarray
    offset: int = 0
    """PrivITP: the noisy threshold of the first row of the table, in granules."""
    ordered: Array = field(init=False)
    above: Array = field(init=False)

    def __post_init__(self) -> None:
        rank = np.argsort(self.loss)
        tail = np.cumsum(np.exp(self.log_p[rank])[::-1])[::-1]
        object.__setattr__(self, "ordered", self.loss[rank])
        object.__setattr__(self, "above", np.append(tail, 0.0))

    @property
    def loss(self) -> Array:
        return self.log_p - self.log_q

    def tail(self, gap: Array) -> Array:
        """P_D(loss > gap)."""
        return np.asarray(self.above[np.searchsorted(self.ordered, gap, side="right")])

    def taste(self) -> float:
        """Mean loss growth, log E exp((α-1)L)/(α-1), per mean charge; may exceed 1, since charges vary."""
        grown = float(np.exp(self.log_p + (ORDER - 1) * self.loss).sum())
        return math.log(grown) / ((ORDER - 1) * 1e-9 * float(np.exp(self.log_p) @ self.charge))

    def step(self) -> Step:
        """What the planner sees."""
        return Step(self.log_p, self.log_q, self.charge * 1e-9, self.rule.worst_case * 1e-9)


def bon_move(rule: PrivBoN, scale: float, one: tuple[int, ...], other: tuple[int, ...]) -> Move:
    laws = [softmax_law(np.array(r, dtype=np.float64), scale * R) for r in (one, other)]
    return Move(rule, one, other, laws[0], laws[1], np.full(len(one), rule.worst_case))


@lru_cache
def _phase_two(m: Mechanism, threshold: int, rewards: tuple[int, ...]) -> Array:
    return rejection_law(m, threshold / R, [q / R for q in rewards])


def itp_move(
    rule: PrivITP, m: Mechanism, accounting: PhaseTwoAccounting, one: tuple[int, ...], other: tuple[int, ...]
) -> Move:
    """Table over (noisy threshold, round of acceptance or fallback), the threshold in granules out to 9 σ_X."""
    sigma = m.threshold_noise * R
    beta_units = LATTICE.to_units(m.regularization)
    centre, shifted = (math.floor(m.normalizer(list(r[:N]), beta_units)) for r in (one, other))
    reach = math.ceil(9 * sigma) + abs(centre - shifted)
    x = np.arange(centre - reach, centre + reach + 1)
    total = math.log(math.fsum(np.exp(-(((x - centre) / sigma) ** 2) / 2).tolist()))
    logs = [-(((x - c) / sigma) ** 2) / 2 - total for c in (centre, shifted)]
    clamped = np.clip(x, round(-m.regularization * R), round((1 - m.regularization) * R))
    inner = [np.stack([_phase_two(m, int(c), r[N:]) for c in clamped]) for r in (one, other)]
    cost = {
        int(c): [
            *(m.sampling_charge_rounded_up(c / R, t, False, accounting, ORDER) for t in range(1, N + 1)),
            m.sampling_charge_rounded_up(c / R, N, True, accounting, ORDER),
        ]
        for c in set(clamped.tolist())
    }
    charge = m.threshold_charge_rounded_up(ORDER) + np.array([cost[int(c)] for c in clamped])
    log_p, log_q = ((law[:, None] + phase).ravel() for law, phase in zip(logs, inner, strict=True))
    return Move(rule, one, other, log_p, log_q, charge.ravel(), int(x[0]))


@lru_cache
def moves() -> tuple[Move, ...]:
    """Two PrivBoN and two PrivITP, each with the pairs of rewards at the corners of what Δ = R allows."""
    found: list[Move] = []
    corners = [(0, 0), (0, R), (R, 0), (R, R)]
    for scale in (2.0, 4.0):
        bon = PrivBoN(LATTICE, candidates=N, noise_scale=scale, order=ORDER)
        for one, other in itertools.product(corners, corners):
            if one < other or one > other:
                found.append(bon_move(bon, scale, one, other))
    settings: list[tuple[float, float, PhaseTwoAccounting]] = [(4.0, 1.0, "ville"), (3.0, 0.0, "renyi")]
    for sigma, L, accounting in settings:
        m = Mechanism(1.0, LATTICE.sensitivity, N, 0.5, sigma, sigma, L)
        itp = PrivITP(LATTICE, m, chunk=N, order=ORDER, accounting=accounting)
        for a, b in ((0, R), (R, 0), (R // 4, R)):
            for c, d in ((0, R), (R, 0)):
                found.append(itp_move(itp, m, accounting, (a, a, c, c), (b, b, d, d)))
    return tuple(found)


# What the adversary does: for each stream (loss, what may still be spent, which moves fit) the index of a move.
Policy = Callable[[Array, Array, np.ndarray], np.ndarray]


def greedy(menu: Sequence[Move], budget: int) -> Policy:
    """The move most likely to win at once; where none can, the dearest of those that waste least of their charge."""
    taste = np.array([move.taste() for move in menu])
    taste = 1e-9 * (taste + 0.1 * np.array([move.rule.worst_case for move in menu]) * 1e-9)

    def choose(loss: Array, left: Array, fits: np.ndarray) -> np.ndarray:
        score = np.stack([move.tail(EPSILON - loss) for move in menu], axis=1) + taste
        return np.asarray(np.where(fits, score, -1.0).argmax(axis=1))

    return choose


def planned(menu: Sequence[Move], budget: int) -> Policy:
    """The choices of the best adversary, found by dynamic programming over (loss, budget left)."""
    plan = best_adversary(
        [move.step() for move in menu], budget * 1e-9, EPSILON, 8, "tail", bound="lower", cells=(300, 80)
    )
    otherwise = greedy(menu, budget)

    def choose(loss: Array, left: Array, fits: np.ndarray) -> np.ndarray:
        choice = plan.at(loss, left)
        usable = (choice >= 0) & fits[np.arange(loss.size), choice]
        return np.asarray(np.where(usable, choice, otherwise(loss, left, fits)))

    return choose


@dataclass
class Streams:
    """What many streams came to."""

    loss: Array
    spent: np.ndarray
    asked: int = 0

    @property
    def exceeded(self) -> int:
        return int((self.loss > EPSILON).sum())


Draw = Callable[[Move, int], np.ndarray]


def play(
    adversary: Callable[[Sequence[Move], int], Policy], draw: Draw, count: int, budget: int, menu: Sequence[Move]
) -> Streams:
    """`count` streams to their end. A stream stops when its loss exceeds ε or when nothing fits into `budget`."""
    policy = adversary(menu, budget)
    loss, spent = np.zeros(count), np.zeros(count, dtype=np.int64)
    worst = np.array([move.rule.worst_case for move in menu])
    streams = Streams(loss, spent)
    while True:
        fits = (spent[:, None] + worst <= budget) & (loss <= EPSILON)[:, None]
        choice = policy(loss, (budget - spent) * 1e-9, fits)
        choice[~fits.any(axis=1)] = -1
        if (choice < 0).all():
            return streams
        for k in np.unique(choice[choice >= 0]):
            rows = np.flatnonzero(choice == k)
            outcome = draw(menu[k], rows.size)
            loss[rows] += menu[k].loss[outcome]
            spent[rows] += menu[k].charge[outcome]
            streams.asked += rows.size


def table_draw(seed: int) -> Draw:
    rng = np.random.default_rng(seed)

    def draw(move: Move, count: int) -> np.ndarray:
        edges = np.cumsum(np.exp(move.log_p))
        return np.minimum(np.searchsorted(edges, rng.random(count) * edges[-1], side="right"), edges.size - 1)

    return draw


@pytest.fixture
def rule_draw(monkeypatch: pytest.MonkeyPatch) -> Draw:
    """Draws through the rule itself; the released noisy threshold is overheard."""
    from reticent.accounting.noise import discrete_gaussian

    overheard: list[int] = []

    def listening(scale: object) -> int:
        overheard.append(discrete_gaussian(scale))  # type: ignore[arg-type]
        return overheard[-1]

    monkeypatch.setattr(f"{MODULE}.discrete_gaussian", listening)

    def row(move: Move, selection: Selection) -> int:
        if isinstance(move.rule, PrivBoN):
            found = int(selection.chosen.text)
        else:
            m = move.rule._mechanism
            centre = math.floor(m.normalizer(list(move.one[:N]), LATTICE.to_units(m.regularization)))
            place = N if selection.fallback else (selection.halting_time or 0) - 1
            found = (centre + overheard[-1] - move.offset) * (N + 1) + place
        assert selection.charge == move.charge[found]
        return found

    def draw(move: Move, count: int) -> np.ndarray:
        async def many() -> list[int]:
            found = []
            for _ in range(count):
                session = FakeSession(LATTICE, lambda i: move.one[i] / R if i < len(move.one) else 0.0)
                found.append(row(move, await move.rule.select(session)))
            return found

        return np.array(run(many()))

    return draw


BUDGET = PrivacyFilter(EPSILON, DELTA, ORDER, "probabilistic")
WITHOUT_OVERHEAD = int(EPSILON * 1e9)


def at_most(wins: int, count: int, alarm: float) -> float:
    """Clopper-Pearson: an upper bound of the probability that holds with confidence 1 - `alarm`."""
    return float(beta.isf(alarm, wins + 1, count - wins))


def at_least(wins: int, count: int, alarm: float) -> float:
    """Clopper-Pearson: a lower bound of the probability that holds with confidence 1 - `alarm`."""
    return float(beta.ppf(alarm, wins, count - wins + 1)) if wins else 0.0


@pytest.mark.parametrize("adversary", [greedy, planned])
def test_no_adaptive_adversary_beats_the_filter_and_both_beat_a_budget_without_overhead(
    adversary: Callable[[Sequence[Move], int], Policy],
) -> None:
    count = 20_000
    kept = play(adversary, table_draw(7), count, BUDGET.spendable_nano, moves())
    assert int(kept.spent.max()) <= BUDGET.spendable_nano
    assert at_most(kept.exceeded, count, 1e-3) <= DELTA
    # The twin: all of ε is spent, u is not paid.
    broken = play(adversary, table_draw(7), count, WITHOUT_OVERHEAD, moves())
    assert at_least(broken.exceeded, count, 1e-3) > DELTA


def test_streams_through_the_real_rules_keep_the_claim_and_break_it_without_overhead(rule_draw: Draw) -> None:
    count = 2000
    kept = play(planned, rule_draw, count, BUDGET.spendable_nano, moves())
    assert at_least(kept.exceeded, count, 1e-9) <= DELTA
    broken = play(planned, rule_draw, count, WITHOUT_OVERHEAD, moves())
    assert at_least(broken.exceeded, count, 1e-9) > DELTA


def test_the_tables_are_the_laws_of_the_real_rules(rule_draw: Draw) -> None:
    draws = 2000
    for move in moves():
        assert moment(move.step(), ORDER) <= 1.0
    for move in moves()[:: max(1, len(moves()) // 6)]:
        seen = Counter(rule_draw(move, draws).tolist())
        counts = np.array([seen[i] for i in range(move.log_p.size)])
        p = np.exp(move.log_p)
        # Rows in groups of equal mass, by threshold and outcome.
        group = np.arange(p.size) if isinstance(move.rule, PrivBoN) else itp_groups(p)
        expected = draws * np.bincount(group, weights=p / p.sum())
        observed = np.bincount(group, weights=counts)
        assert expected.min() > 20
        statistic = float(((observed - expected) ** 2 / expected).sum())
        assert statistic < float(chi2.isf(1e-12, expected.size - 1))
        # A twin table of the other data set is told apart.
        twin = draws * np.bincount(group, weights=np.exp(move.log_q) / np.exp(move.log_q).sum())
        assert float(((observed - twin) ** 2 / twin).sum()) > statistic


def itp_groups(p: Array) -> np.ndarray:
    """Five groups of thresholds times the outcomes."""
    by_threshold = p.reshape(-1, N + 1).sum(axis=1)
    cut = np.minimum((np.cumsum(by_threshold) * 5).astype(int), 4)
    return np.asarray((cut[:, None] * (N + 1) + np.arange(N + 1)).ravel())


# The published accounting


@lru_cache
def published_move() -> tuple[Move, float]:
    """PrivITP at σ = 0.256 in equal parts; ε1 = sqrt(2 ln(1.25/δ))/σ_X, one δ for all, a fallback like t = n."""
    m = Mechanism(1.0, LATTICE.sensitivity, N, 0.5, 0.128, 0.128, 1.0)
    rule = PrivITP(LATTICE, m, chunk=N, order=ORDER, accounting="ville")
    move = itp_move(rule, m, "ville", (0, 0, 0, 0), (R, R, R, R))
    first = math.sqrt(2 * math.log(1.25 / DELTA)) * LATTICE.sensitivity / m.threshold_noise
    charge = move.charge.reshape(-1, N + 1) - m.threshold_charge_rounded_up(ORDER)
    charge[:, -1] = charge[:, -2]
    paid = np.ceil(1e9 * first) + charge
    object.__setattr__(move, "charge", paid.ravel().astype(np.int64))
    return move, float(paid.max()) * 1e-9


@pytest.mark.parametrize("count", [1, 3])
def test_the_published_accounting_fails_against_the_simplest_adversary(count: int) -> None:
    """It asks the same question until its budget is spent: one δ is claimed for all of it."""
    move, worst = published_move()
    epsilon, streams = count * worst, 20_000
    draw = table_draw(9)
    loss, spent = np.zeros(streams), np.zeros(streams)
    for _ in range(count):
        outcome = draw(move, streams)
        loss += move.loss[outcome]
        spent += move.charge[outcome] * 1e-9
    assert float(spent.max()) <= epsilon * (1 + 1e-9)
    exceeded = int((loss > epsilon).sum())
    assert at_least(exceeded, streams, 1e-9) > 6 * DELTA


def test_the_overhead_is_what_the_two_budgets_differ_by() -> None:
    assert (WITHOUT_OVERHEAD - BUDGET.spendable_nano) * 1e-9 == pytest.approx(overhead_ville(ORDER, DELTA), abs=1e-8)
