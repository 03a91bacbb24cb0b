"""Expected reward of the answer against its charge: PrivBoN over σ, PrivITP over (σ_X, σ_Z, β, L), at one order.

A data set has one order, so all points share it, and their charges lie on one axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privitp import PrivITP, default_truncation
from reticent.accounting.planning.accountings import QueryCost, common_order, privbon_cost, privitp_cost
from reticent.accounting.planning.laws import RewardLaw
from reticent.accounting.planning.outcomes import outcome_law
from reticent.accounting.planning.queries import Budget, answered
from reticent.accounting.planning.selected import base_reward, best_of_n_reward, privbon_rewards

__all__ = ["Comparison", "Grid", "Point", "compare", "default_grid"]

_PRIVBON_SCALES = tuple(0.02 * 2.0 ** (0.5 * k) for k in range(15))
_THRESHOLD_NOISES = (0.128, 0.256, 0.512, 1.28)
_REWARD_NOISES = (0.032, 0.064, 0.128, 0.256, 0.512, 1.28)
_REGULARIZATIONS = (0.05, 0.25)


@dataclass(frozen=True)
class Grid:
    """The parameters to compare, in reward units (truncation: in σ_Z): every combination of the last four."""

    privbon_scales: tuple[float, ...]
    threshold_noises: tuple[float, ...]
    reward_noises: tuple[float, ...]
    regularizations: tuple[float, ...]
    truncations: tuple[float, ...]


def default_grid(reward_max: float, candidates: int) -> Grid:
    """σ from R/50 to 2.56 R; σ_X, σ_Z from R/8 and R/31 to 1.28 R; β of R/20 and R/4; L of 0 and the paper's."""

    def scaled(numbers: Iterable[float]) -> tuple[float, ...]:
        return tuple(number * reward_max for number in numbers)

    return Grid(
        scaled(_PRIVBON_SCALES),
        scaled(_THRESHOLD_NOISES),
        scaled(_REWARD_NOISES),
        scaled(_REGULARIZATIONS),
        (0.0, default_truncation(candidates)),
    )


@dataclass(frozen=True)
class Point:
    """A rule with its parameters: what its answer is worth and costs.

    Attributes:
        parameters: by API name.
        reward, reward_error: expected reward of the answer, standard error.
        charge, charge_error: mean charge of a query, nats, standard error.
        queries: what the budget answers.
        times_privbon: charge over that of PrivBoN with the same expected reward; None for PrivBoN, and where no PrivBoN
            of the grid reaches that reward.
        rule_frontier: whether no other point of its rule has at least its reward for no larger a charge.
        frontier: the same among all points.
    """

    rule: str
    parameters: tuple[tuple[str, float], ...]
    reward: float
    reward_error: float
    charge: float
    charge_error: float
    queries: float
    times_privbon: float | None = None
    rule_frontier: bool = False
    frontier: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        queries = self.queries if math.isfinite(self.queries) else None
        return {**asdict(self), "parameters": dict(self.parameters), "queries": queries}


@dataclass(frozen=True)
class Comparison:
    """All points, cheapest first, at one order.

    Attributes:
        order, budget, rewards: α, the budget, and how the reward law is named.
        base_reward, best_reward: of one base sample, and of the best of n without privacy with its standard error.
    """

    order: float
    budget: Budget
    rewards: str
    base_reward: float
    best_reward: tuple[float, float]
    points: tuple[Point, ...]

    @property
    def frontier(self) -> tuple[Point, ...]:
        """The points that no other one beats in both, cheapest first."""
        return tuple(point for point in self.points if point.frontier)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "order": self.order,
            "budget": asdict(self.budget),
            "rewards": self.rewards,
            "base_reward": self.base_reward,
            "best_of_n_reward": {"mean": self.best_reward[0], "standard_error": self.best_reward[1]},
            "frontier": [point.to_dict() for point in self.frontier],
            "points": [point.to_dict() for point in self.points],
        }


def compare(
    reward_max: float,
    sensitivity: float,
    candidates: int,
    law: RewardLaw,
    budget: Budget,
    *,
    grid: Grid | None = None,
    order: float | None = None,
    draws: int = 2048,
    seed: int = 0,
) -> Comparison:
    """Every point of `grid` (by default `default_grid`), with the same simulated rewards.

    Args:
        order: α; by default `common_order` of the budget.
        draws: simulations a point for PrivITP, eight times as many for PrivBoN.

    Errors: those of the mechanisms and the filter.
    """
    grid = grid or default_grid(reward_max, candidates)
    alpha = common_order(budget) if order is None else order
    points: list[Point] = []
    scales = grid.privbon_scales
    for scale, reward in zip(scales, privbon_rewards(law, candidates, scales, draws=8 * draws, seed=seed), strict=True):
        mechanism = PrivBoN(reward_max, sensitivity, candidates, scale)
        points.append(_point("privbon", (("noise_scale", scale),), reward, privbon_cost(mechanism, budget, alpha)))
    curve = sorted((point.reward, point.charge) for point in points)
    names = ("threshold_noise", "reward_noise", "regularization", "truncation")
    combinations = itertools.product(grid.threshold_noises, grid.reward_noises, grid.regularizations, grid.truncations)
    for sigma_X, sigma_Z, beta, L in combinations:
        itp = PrivITP(reward_max, sensitivity, candidates, beta, sigma_X, sigma_Z, L, granule=0.0)
        outcome = outcome_law(itp, law, draws=draws, seed=seed)
        cost = privitp_cost(itp, outcome, budget, "renyi", alpha)
        parameters = tuple(zip(names, (sigma_X, sigma_Z, beta, L), strict=True))
        points.append(_point("privitp", parameters, outcome.mean_reward(), cost, curve))
    best = best_of_n_reward(law, candidates, draws=8 * draws, seed=seed)
    return Comparison(alpha, budget, law.text, base_reward(law), best, _with_frontiers(points))


def _point(
    rule: str,
    parameters: tuple[tuple[str, float], ...],
    reward: tuple[float, float],
    cost: QueryCost,
    curve: Sequence[tuple[float, float]] = (),
) -> Point:
    charge = cost.law.mean
    return Point(
        rule,
        parameters,
        *reward,
        charge,
        cost.law.mean_error,
        answered(cost.spendable, cost.law).mean,
        _times(charge, reward[0], curve),
    )


def _times(charge: float, reward: float, curve: Sequence[tuple[float, float]]) -> float | None:
    """`charge` over the charge of the curve (rewards ascending) at that reward, by logarithms between its points."""
    if not curve or not curve[0][0] <= reward <= curve[-1][0]:
        return None
    rewards, charges = np.array(curve).T
    return charge / float(np.exp(np.interp(reward, rewards, np.log(charges))))


def _with_frontiers(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points, cheapest first, with the two marks set."""
    marked: list[Point] = []
    best: dict[str, float] = {}
    for point in sorted(points, key=lambda p: (p.charge, -p.reward)):
        own = point.reward > best.get(point.rule, -math.inf)
        common = point.reward > max(best.values(), default=-math.inf)
        marked.append(replace(point, rule_frontier=own, frontier=common))
        best[point.rule] = max(best.get(point.rule, -math.inf), point.reward)
    return tuple(marked)
