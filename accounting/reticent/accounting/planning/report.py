"""A plan: what one query costs and how many a budget answers, under every accounting that applies to the rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privbon_gaussian import PrivBoNGaussian
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.errors import InvalidQuantityError
from reticent.accounting.planning.accountings import (
    ACCOUNTINGS,
    QueryCost,
    privbon_cost,
    privitp_costs,
)
from reticent.accounting.planning.laws import Floats, RewardLaw
from reticent.accounting.planning.limit import Limit, composition_limit
from reticent.accounting.planning.outcomes import OutcomeLaw, outcome_law
from reticent.accounting.planning.queries import Answered, Budget, answered
from reticent.accounting.planning.selected import base_reward, best_of_n_reward, privbon_rewards

__all__ = ["AccountingPlan", "Plan", "plan_privbon", "plan_privitp", "shown_outcomes"]


@dataclass(frozen=True, eq=False)
class AccountingPlan:
    """One accounting's part of a plan. `name` is a key of `ACCOUNTINGS`, which says what it is."""

    name: str
    cost: QueryCost
    answered: Answered

    @property
    def sound(self) -> bool:
        """Whether the stated guarantee is true of the whole stream."""
        return ACCOUNTINGS[self.name].sound

    def to_dict(self) -> dict[str, Any]:
        """For `--json`; amounts in nats, an outcome that never happens has none."""
        law = self.cost.law
        return {
            "sound": self.sound,
            "what": ACCOUNTINGS[self.name].what,
            "order": self.cost.order,
            "spendable": self.cost.spendable,
            "threshold_charge": None if self.name == "privbon" else self.cost.fixed,
            "mean_charge": law.mean,
            "mean_charge_error": law.mean_error,
            "worst_charge": law.worst,
            "charge_by_outcome": None if self.cost.outcomes is None else _by_outcome(self.cost.outcomes),
            "queries": _finite(self.answered.mean),
            "queries_error": self.answered.error,
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """What `reticent plan` says.

    Attributes:
        mechanism, law, budget: what was planned for.
        accountings: the sound ones last, each better than the one before as a rule.
        outcome: PrivITP's outcome law; None for PrivBoN.
        reward: expected reward of the answer, with its standard error.
        base_reward, best_reward: of one base sample, and of the best of n without privacy.
        limit: the composition limit, where it was asked for; of PrivITP the clamped one.
        unclamped_limit: of PrivITP the limit of accountants that see λ̃ unclamped, which the clamp may pass.
    """

    mechanism: PrivITP | PrivBoN | PrivBoNGaussian
    law: RewardLaw
    budget: Budget
    accountings: tuple[AccountingPlan, ...]
    outcome: OutcomeLaw | None
    reward: tuple[float, float]
    base_reward: float
    best_reward: tuple[float, float]
    limit: Limit | None = None
    unclamped_limit: Limit | None = None

    def share_of(self, limit: Limit | None) -> float | None:
        """What the last accounting answers, over a limit's upper end. None without a limit."""
        if limit is None or not limit.queries_high:
            return None
        return self.accountings[-1].answered.mean / limit.queries_high

    def with_limit(self, *, seed: int = 0) -> Plan:
        """The plan with the composition limit, which takes a while. Not for Gaussian PrivBoN.

        Errors: `InvalidQuantityError` where the limit is not known.
        """
        if isinstance(self.mechanism, PrivBoNGaussian):
            raise InvalidQuantityError("limit", "gaussian noise", "asked of PrivITP, or of PrivBoN with Gumbel noise")
        budget = self.budget
        question = (self.mechanism, self.law, budget.epsilon, budget.delta, budget.guarantee)
        unclamped = composition_limit(*question, seed=seed, clamped=False) if self.rule == "privitp" else None
        return replace(self, limit=composition_limit(*question, seed=seed), unclamped_limit=unclamped)

    def _share(self, limit: Limit | None) -> dict[str, Any] | None:
        return None if limit is None else {**asdict(limit), "ratio": self.share_of(limit)}

    @property
    def rule(self) -> str:
        """`privitp` or `privbon`."""
        return "privitp" if isinstance(self.mechanism, PrivITP) else "privbon"

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        parameters = {name: getattr(self.mechanism, name) for name in self.mechanism.__dataclass_fields__}
        return {
            "rule": self.rule,
            "parameters": parameters,
            "budget": asdict(self.budget),
            "rewards": {"law": self.law.text, "prompts": self.law.prompts},
            "answer_reward": {"mean": self.reward[0], "standard_error": self.reward[1]},
            "base_reward": self.base_reward,
            "best_of_n_reward": {"mean": self.best_reward[0], "standard_error": self.best_reward[1]},
            "outcome_probability": None if self.outcome is None else _by_outcome(self.outcome.halting),
            "queries": {a.name: _finite(a.answered.mean) for a in self.accountings},
            "limit": self._share(self.limit),
            "unclamped_limit": self._share(self.unclamped_limit),
            "accountings": {a.name: a.to_dict() for a in self.accountings},
        }


def _finite(value: float) -> float | None:
    """JSON has neither infinity nor NaN: None for a query that is answered without end, or for what does not happen."""
    return value if math.isfinite(value) else None


def shown_outcomes(n: int) -> list[int]:
    """The outcomes that tables show, as rows of an outcome law: t = 1, 2, 4, n and the fallback."""
    return [*sorted({t - 1 for t in (1, 2, 4, n) if t <= n}), n]


def _by_outcome(values: Floats) -> dict[str, float | None]:
    """Those of (n + 1,) `values` that tables show, by the outcome's name."""
    n = len(values) - 1
    names = {row: "fallback" if row == n else f"accepted_{row + 1}" for row in shown_outcomes(n)}
    return {name: _finite(float(values[row])) for row, name in names.items()}


def plan_privbon(
    mechanism: PrivBoN | PrivBoNGaussian,
    law: RewardLaw,
    budget: Budget,
    *,
    order: float | None = None,
    draws: int = 16384,
    seed: int = 0,
) -> Plan:
    """Plan for PrivBoN at `order`, or at the best one."""
    n, gaussian = mechanism.candidates, isinstance(mechanism, PrivBoNGaussian)
    cost = privbon_cost(mechanism, budget, order)
    (reward,) = privbon_rewards(law, n, [mechanism.noise_scale], draws=draws, seed=seed, gaussian=gaussian)
    best = best_of_n_reward(law, n, draws=draws, seed=seed)
    return Plan(mechanism, law, budget, _accountings({"privbon": cost}, seed), None, reward, base_reward(law), best)


def plan_privitp(
    mechanism: PrivITP,
    law: RewardLaw,
    budget: Budget,
    *,
    order: float | None = None,
    draws: int = 16384,
    seed: int = 0,
) -> Plan:
    """Plan for PrivITP under every accounting, those with an order at `order`, or each at its own best one."""
    outcome = outcome_law(mechanism, law, draws=draws, seed=seed)
    costs = privitp_costs(mechanism, outcome, budget, order)
    accountings = _accountings(costs, seed)
    best = best_of_n_reward(law, mechanism.candidates, draws=draws, seed=seed)
    return Plan(mechanism, law, budget, accountings, outcome, outcome.mean_reward(), base_reward(law), best)


def _accountings(costs: Mapping[str, QueryCost], seed: int) -> tuple[AccountingPlan, ...]:
    return tuple(
        AccountingPlan(name, cost, answered(cost.spendable, cost.law, seed=seed)) for name, cost in costs.items()
    )
