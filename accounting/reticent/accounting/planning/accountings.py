"""The ways to account for a rule's queries, with what one query costs under each at the nodes of an outcome law."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, get_args

import numpy as np

from reticent.accounting.charges import per_query_delta
from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privbon_gaussian import PrivBoNGaussian
from reticent.accounting.charges.privitp import PhaseTwoAccounting, PrivITP
from reticent.accounting.charges.published import PublishedAccounting
from reticent.accounting.filter import best_order
from reticent.accounting.planning.laws import Floats
from reticent.accounting.planning.outcomes import OutcomeLaw
from reticent.accounting.planning.queries import Budget, ChargeLaw, constant_charge, numerically_best_order

__all__ = [
    "ACCOUNTINGS",
    "Accounting",
    "QueryCost",
    "common_order",
    "outcome_cost",
    "outcome_means",
    "privbon_cost",
    "privitp_cost",
    "privitp_costs",
    "privitp_order",
    "round_costs",
]


@dataclass(frozen=True)
class Accounting:
    """A way to account: `what` in words, and whether the guarantee that it states is true."""

    what: str
    sound: bool


ACCOUNTINGS: Final[Mapping[str, Accounting]] = {
    "published_worst": Accounting("the paper's worst case for every query", False),
    "published_fsrc": Accounting("the paper's realised costs, one δ claimed for all phases 1", False),
    "per_query_delta": Accounting("realised costs, an equal share of δ for every phase 1", True),
    "ville": Accounting("realised costs in the filter of order α", True),
    "renyi": Accounting("Rényi costs of every round in the filter of order α", True),
    "privbon": Accounting("the selection's Rényi charge in the filter of order α", True),
}
"""Every accounting by its name in `queries`. The unsound ones are for comparison with the paper."""

_VANISHING = 1e-9  # a charge per unit of α so small that the worst case does not matter


@dataclass(frozen=True, eq=False)
class QueryCost:
    """What one query costs under one accounting at one order.

    Attributes:
        order: α, or None where the accounting has none.
        spendable: what of the budget charges may use, nats.
        fixed: the part paid for every outcome (PrivITP: phase 1), nats.
        outcomes: expected charge of each outcome, phase 1 included; None for PrivBoN, whose charge is one number.
            n + 1 numbers: accepted in round 1 … n, then the fallback.
        law: the law of the charge.
    """

    order: float | None
    spendable: float
    fixed: float
    outcomes: Floats | None
    law: ChargeLaw


def common_order(budget: Budget) -> float:
    """The best α when every charge is proportional to α: that of PrivBoN, and nearly that of PrivITP's "renyi".

    It does not depend on the rule, so that one ledger, which has one order, suits several rules.
    """
    start = best_order(budget.epsilon, budget.delta, 1.0, 0.0)
    return numerically_best_order(budget, start, lambda order: (order * _VANISHING, order * _VANISHING))


def privbon_cost(mechanism: PrivBoN | PrivBoNGaussian, budget: Budget, order: float | None = None) -> QueryCost:
    """The charge of PrivBoN, which is the same for every outcome, at `order` or at the best one."""
    if order is None:
        order = common_order(budget)
        # One candidate costs nothing at any order.
        if mechanism.charge(order) > 0.0:
            order = numerically_best_order(budget, order, lambda a: (mechanism.charge(a), mechanism.charge(a)))
    charge = mechanism.charge(order)
    return QueryCost(order, budget.spendable(order), charge, None, constant_charge(charge))


def privitp_costs(
    mechanism: PrivITP, outcome: OutcomeLaw, budget: Budget, order: float | None = None
) -> dict[str, QueryCost]:
    """Every accounting that applies to PrivITP, by name; those with an order at `order`, or each at its best one."""
    kappa, acc = round_costs(mechanism, outcome, "ville", None)
    worst = mechanism.worst_sampling_charge_supremum()
    published = PublishedAccounting(mechanism, budget.delta).threshold_epsilon()
    fsrc = outcome_cost(outcome, kappa, acc, published, published + worst, budget.epsilon, None)
    costs = {
        "published_worst": replace(fsrc, outcomes=None, law=constant_charge(fsrc.law.worst)),
        "published_fsrc": fsrc,
        "per_query_delta": _per_query_delta_cost(mechanism, outcome, budget, fsrc),
    }
    for name in get_args(PhaseTwoAccounting):
        alpha = privitp_order(mechanism, outcome, budget, name) if order is None else order
        costs[name] = privitp_cost(mechanism, outcome, budget, name, alpha)
    return costs


def _per_query_delta_cost(mechanism: PrivITP, outcome: OutcomeLaw, budget: Budget, realised: QueryCost) -> QueryCost:
    """The realised costs of phase 2 with δ/K for each phase 1, as probabilistic DP (which implies DP).

    K, agreed in advance, is hardly ever reached.
    K is what the budget answers on average and three standard deviations of that more: ε1 grows with log K only.
    """
    sampling = realised.law.shifted(-realised.fixed)
    parameters = (mechanism.sensitivity, mechanism.threshold_noise)
    expected = per_query_delta.affordable_queries(
        budget.epsilon, budget.delta, *parameters, sampling.mean, sampling.worst
    )
    spread = math.sqrt(max(sampling.mean_square - sampling.mean**2, 0.0)) / (realised.law.mean or 1.0)
    agreed = expected + math.ceil(3.0 * spread * math.sqrt(expected)) + 2
    fixed = per_query_delta.threshold_epsilon(budget.delta, agreed, *parameters)
    law = sampling.shifted(fixed)
    return QueryCost(None, budget.epsilon, fixed, outcome_means(outcome, law.values), law)


def privitp_order(mechanism: PrivITP, outcome: OutcomeLaw, budget: Budget, accounting: PhaseTwoAccounting) -> float:
    """The order that answers most queries under `accounting` ("ville": the closed form, then refined)."""
    if accounting == "ville":
        rejection, acceptance = round_costs(mechanism, outcome, "ville", None)
        rho = mechanism.threshold_charge(2.0) / 2.0
        start = best_order(budget.epsilon, budget.delta, rho, outcome.mean_cost(rejection, acceptance)[0])
    else:
        start = common_order(budget)

    def law_at(order: float) -> tuple[float, float]:
        cost = privitp_cost(mechanism, outcome, budget, accounting, order)
        return cost.law.mean, cost.law.worst

    return numerically_best_order(budget, start, law_at)


def privitp_cost(
    mechanism: PrivITP, outcome: OutcomeLaw, budget: Budget, accounting: PhaseTwoAccounting, order: float
) -> QueryCost:
    """One PrivITP query under "ville" or "renyi" at `order`, admitted by the certified worst case over every λ."""
    rejection, acceptance = round_costs(mechanism, outcome, accounting, order)
    fixed = mechanism.threshold_charge(order)
    worst = fixed + mechanism.worst_sampling_charge_supremum(accounting, order)
    return outcome_cost(outcome, rejection, acceptance, fixed, worst, budget.spendable(order), order)


def outcome_cost(
    outcome: OutcomeLaw,
    rejection: Floats,
    acceptance: Floats,
    fixed: float,
    worst: float,
    spendable: float,
    order: float | None,
) -> QueryCost:
    """The cost of one query from the costs of its rounds at the nodes."""
    table = fixed + outcome.cost_table(rejection, acceptance)
    _, error = outcome.mean_cost(rejection, acceptance)
    law = ChargeLaw(table, outcome.joint, worst, error)
    return QueryCost(order, spendable, fixed, outcome_means(outcome, table), law)


def outcome_means(outcome: OutcomeLaw, table: Floats) -> Floats:
    """(n + 1,) mean of a table (n + 1, G) given each outcome; NaN for an outcome of probability 0."""
    likely = outcome.halting
    sums = (table * outcome.joint).sum(axis=1)
    means: Floats = np.divide(sums, likely, out=np.full(len(likely), np.nan), where=likely > 0.0)
    return means


def round_costs(
    mechanism: PrivITP, outcome: OutcomeLaw, accounting: PhaseTwoAccounting, order: float | None
) -> tuple[Floats, Floats]:
    """(G,) costs of a rejection and of an acceptance at the nodes."""
    costs = [mechanism.round_costs(float(level), accounting, order) for level in outcome.thresholds]
    return np.array([c.rejection for c in costs]), np.array([c.acceptance for c in costs])
