"""How many queries a budget answers.

The filter starts a query only if its worst case W still fits: after charges c_1, …, c_k the next one starts while
c_1 + … + c_k ≤ B - W, B what the budget may spend. So the number answered, one query at a time, is the number of steps
in which a random walk with steps c first exceeds B - W, and its expectation is
    E N = (B - W + E overshoot)/E c                                     (Wald's identity, exact)
        ≈ (B - W + E c²/(2 E c))/E c                                    (the overshoot of a long walk).
Short walks are simulated instead. Queries that run at the same time hold a W each, so a busy server stops earlier, by
fewer than as many queries as it had open.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize_scalar

from reticent.accounting.filter import Guarantee, overhead_dp, overhead_ville
from reticent.accounting.planning.laws import Floats

__all__ = ["Answered", "Budget", "ChargeLaw", "answered", "constant_charge", "numerically_best_order"]

_LONG_WALK = 40.0
_STREAMS = 20_000
_ORDER_FACTOR = 40.0
_ORDER_TOLERANCE = 0.03
_LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class Budget:
    """A lifetime guarantee (ε, δ) of one data set, and which one (`filter.Guarantee`)."""

    epsilon: float
    delta: float
    guarantee: Guarantee = "dp"

    def spendable(self, order: float) -> float:
        """ε - u at that order, nats; negative where the overhead exceeds the budget."""
        overhead = overhead_dp if self.guarantee == "dp" else overhead_ville
        return self.epsilon - overhead(order, self.delta)


@dataclass(frozen=True, eq=False)
class ChargeLaw:
    """The law of one query's charge.

    Attributes:
        values, probabilities: the possible charges, nats (any shape, the same), and how likely each is.
        worst: W, what must be free before a query starts; at least every value.
        mean_error: standard error of the mean charge, from the simulated part of the law.
    """

    values: Floats
    probabilities: Floats
    worst: float
    mean_error: float = 0.0

    @property
    def mean(self) -> float:
        return float((self.values * self.probabilities).sum())

    @property
    def mean_square(self) -> float:
        return float((self.values * self.values * self.probabilities).sum())

    def shifted(self, nats: float) -> ChargeLaw:
        """The law of the charge and `nats` more."""
        return replace(self, values=self.values + nats, worst=self.worst + nats)

    def sampler(self, rng: np.random.Generator) -> Callable[[int], Floats]:
        """A function that draws that many charges."""
        values = self.values.ravel()
        ladder = np.cumsum(self.probabilities.ravel())
        ladder /= ladder[-1]

        def draw(count: int) -> Floats:
            return values[np.searchsorted(ladder, rng.random(count), side="right")]

        return draw


def constant_charge(nats: float) -> ChargeLaw:
    """The law of a charge that is the same for every outcome."""
    return ChargeLaw(np.array([nats]), np.ones(1), nats)


@dataclass(frozen=True)
class Answered:
    """Expected number of queries and its standard error; `simulated` says how it was found."""

    mean: float
    error: float
    simulated: bool


def answered(spendable: float, law: ChargeLaw, *, seed: int = 0) -> Answered:
    """Expected number of queries that `spendable` nats answer, asked one after another until one does not fit.

    By the formula above where the walk has 40 steps or more, by 20,000 simulated runs of the filter where it has fewer.
    """
    room, mean = spendable - law.worst, law.mean
    if room < 0.0:
        return Answered(0.0, 0.0, False)
    if mean <= 0.0:
        return Answered(math.inf, 0.0, False)
    if float(np.ptp(law.values)) == 0.0:
        # The tolerance is that of adding up; `room/mean` is often a whole number up to rounding.
        return Answered(float(math.floor(room / mean * (1.0 + 1e-12))) + 1.0, 0.0, False)
    share = law.mean_error / mean
    if room >= _LONG_WALK * mean:
        count = (room + law.mean_square / (2.0 * mean)) / mean
        return Answered(count, count * share, False)
    draw = law.sampler(np.random.default_rng(seed))
    counts, spent = np.zeros(_STREAMS), np.zeros(_STREAMS)
    going = np.arange(_STREAMS)
    while len(going):
        spent[going] += draw(len(going))
        counts[going] += 1.0
        going = going[spent[going] <= room]
    simulation = float(counts.std(ddof=1)) / math.sqrt(_STREAMS)
    return Answered(float(counts.mean()), math.hypot(simulation, float(counts.mean()) * share), True)


def numerically_best_order(
    budget: Budget, start: float, law_at: Callable[[float], tuple[float, float]], *, evaluations: int = 6
) -> float:
    """The order α that answers most queries, within a few hundredths of α - 1 (the optimum is flat).

    Between the orders tried, the mean charge and the worst case are taken as linear in α, which they nearly are; the
    best order of that model is tried next, until it stands still. So a charge that is dear to tabulate is tabulated a
    few times only.

    Args:
        start: α > 1, the first order tried, such as `filter.best_order` gives.
        law_at: for an order, the mean charge and the worst case, nats, both above 0. (ε - u - W)/mean is maximised.
        evaluations: most calls of `law_at`.
    """
    tried: dict[float, tuple[float, float]] = {}

    def answers(order: float, mean: float, worst: float) -> float:
        room = budget.spendable(order) - worst
        return room / mean if room > 0.0 else room

    def fewer(log_excess: float) -> float:
        order = 1.0 + math.exp(log_excess)
        return -answers(order, *_by_line(order, tried))

    order = start
    for _ in range(evaluations):
        tried[order] = law_at(order)
        centre, reach = math.log(start - 1.0), math.log(_ORDER_FACTOR)
        found = minimize_scalar(fewer, bounds=(centre - reach, centre + reach), method="bounded")
        order = 1.0 + math.exp(float(found.x))
        if any(abs(math.log((order - 1.0) / (known - 1.0))) < _ORDER_TOLERANCE for known in tried):
            if len(tried) > 1:
                break
            # One order alone tells nothing of how the charge grows: a line through 0 may lead back to it.
            order = 1.0 + 2.0 * (start - 1.0)
    return max(tried, key=lambda known: answers(known, *tried[known]))


def _by_line(order: float, tried: dict[float, tuple[float, float]]) -> tuple[float, float]:
    """Mean and worst at an order, on the line through the two tried orders around it (or at that end), or through 0."""
    known = sorted(tried)
    if len(known) == 1:
        mean, worst = tried[known[0]]
        return mean * order / known[0], worst * order / known[0]
    right = min(max(sum(k < order for k in known), 1), len(known) - 1)
    below, above = known[right - 1], known[right]
    share = (order - below) / (above - below)
    mean, worst = (low + (high - low) * share for low, high in zip(tried[below], tried[above], strict=True))
    # A line may cross 0 far outside; a charge does not.
    return max(mean, _LEAST_SHARE * tried[below][0]), max(worst, _LEAST_SHARE * tried[below][1])
