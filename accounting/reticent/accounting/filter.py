"""The privacy filter: why charges add, and how much of a budget may be spent.

Claim. Fix one order α > 1 for a data set. Let every step i of the interaction carry a charge c_i that is a function of
the past and of the step's own outcome, such that for all adjacent D, D', whatever the past,
    E under D of exp((α-1)(log P_D(outcome)/P_D'(outcome) - c_i)) ≤ 1.                              (admissible)
Then exp((α-1) Σ(L_i - c_i)) is a nonnegative supermartingale under D, however adaptively steps are chosen and
interleaved. If surely Σ c_i ≤ ε - u at all times, the whole stream, stopped anywhere, is
* (ε, δ)-probabilistically DP (the total loss exceeds ε with probability at most δ at any time) with
  u = log(1/δ)/(α-1), by Ville's inequality;
* (ε, δ)-DP with the smaller u = (log(1/δ) - log α)/(α-1) + log(1 - 1/α), since Σ c_i ≤ ε - u makes the stream's
  order-α Rényi divergence at most ε - u.
So u is paid once, when the budget is opened, and charges add. Source: privacy.md, section 5.

What the caller must guarantee
------------------------------
* One order α for a data set, for ever: charges at different orders do not add.
* Every charge is admissible (`reticent.accounting.charges`), and how it depends on the outcome is fixed before the
  step. A step whose outcome is not yet known is held at its worst case.
* A step starts only if its worst case fits: Σ settled + Σ held + worst ≤ spendable, decided in one transaction.
* Nothing that depends on D leaves except through charged steps.
* δ is that of the whole stream; several budgets over the same data set add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from reticent.accounting.charges.bounded_range import require_delta, require_order
from reticent.accounting.errors import (
    BudgetTooSmallError,
    InvalidQuantityError,
    require_integer,
    require_non_negative,
    require_positive,
)
from reticent.accounting.units import to_nano_rounded_down

__all__ = ["Guarantee", "PrivacyFilter", "best_order", "overhead_dp", "overhead_ville", "spendable"]

Guarantee = Literal["dp", "probabilistic"]
"""What the stream satisfies: (ε, δ)-DP, or (ε, δ)-probabilistic DP, which implies it and costs a larger overhead."""

_RELATIVE_MARGIN = 1e-12


def _log_inverse(delta: float) -> float:
    return -math.log(require_delta(delta))


def overhead_ville(order: float, delta: float) -> float:
    """u = log(1/δ)/(α-1), nats: what a budget pays once for (ε, δ)-probabilistic DP."""
    return _log_inverse(delta) / (require_order(order) - 1.0)


def overhead_dp(order: float, delta: float) -> float:
    """u = (log(1/δ) - log α)/(α-1) + log(1 - 1/α), nats, at least 0: what a budget pays once for (ε, δ)-DP.

    Never above `overhead_ville`. (For δ near 1 the formula is negative; a budget does not grow by that.)
    """
    alpha = require_order(order)
    return max(0.0, (_log_inverse(delta) - math.log(alpha)) / (alpha - 1.0) + math.log1p(-1.0 / alpha))


def spendable(epsilon: float, delta: float, order: float, guarantee: Guarantee) -> int:
    """What may be spent of a budget (ε, δ) at order α: ε - u, rounded down to an integer of 1e-9 nat.

    Errors: `BudgetTooSmallError` if ε does not exceed u, `InvalidQuantityError` for arguments out of range.
    """
    eps = require_positive("epsilon", epsilon)
    if guarantee == "dp":
        overhead = overhead_dp(order, delta)
    elif guarantee == "probabilistic":
        overhead = overhead_ville(order, delta)
    else:
        raise InvalidQuantityError("guarantee", guarantee, '"dp" or "probabilistic"')
    left = eps * (1.0 - _RELATIVE_MARGIN) - overhead * (1.0 + _RELATIVE_MARGIN)
    nano = to_nano_rounded_down(left) if left > 0.0 else 0
    if nano <= 0:
        raise BudgetTooSmallError(eps, overhead, float(order), float(delta))
    return nano


def best_order(epsilon: float, delta: float, rho_per_query: float, mean_sampling_cost: float) -> float:
    """α that answers most queries: 1 + (l/ε)(1 + sqrt(1 + ε(ρ + ē)/(ρ l))), l = log(1/δ).

    It maximises (ε - l/(α-1))/(αρ + ē), the number of queries under the probabilistic guarantee.

    Args:
        epsilon, delta: the budget.
        rho_per_query: ρ > 0, the part of a query's charge that grows like αρ (PrivITP phase 1: Δ²/(2σ_X²); PrivBoN: the
            same with σ).
        mean_sampling_cost: ē ≥ 0, nats, the mean of the part that does not grow with α ("ville": phase 2).

    Source: privacy.md, section 5.
    """
    eps, log_inverse = require_positive("epsilon", epsilon), _log_inverse(delta)
    rho = require_positive("rho_per_query", rho_per_query)
    mean = require_non_negative("mean_sampling_cost", mean_sampling_cost)
    return 1.0 + (log_inverse / eps) * (1.0 + math.sqrt(1.0 + eps * (rho + mean) / (rho * log_inverse)))


@dataclass(frozen=True)
class PrivacyFilter:
    """One budget: the claim above with its numbers. A value; the ledger keeps the balances.

    Args: ε > 0 nats, 0 < δ < 1, α > 1, and which guarantee. Construction fails with `BudgetTooSmallError` where nothing
    could be spent.
    """

    epsilon: float
    delta: float
    order: float
    guarantee: Guarantee = "dp"

    def __post_init__(self) -> None:
        spendable(self.epsilon, self.delta, self.order, self.guarantee)

    @property
    def overhead(self) -> float:
        """u, nats."""
        if self.guarantee == "dp":
            return overhead_dp(self.order, self.delta)
        return overhead_ville(self.order, self.delta)

    @property
    def spendable_nano(self) -> int:
        """ε - u, rounded down to an integer of 1e-9 nat."""
        return spendable(self.epsilon, self.delta, self.order, self.guarantee)

    def admits(self, committed_nano: int, worst_case_nano: int) -> bool:
        """Whether a step with this worst case may start when `committed_nano` is settled or held already."""
        for name, value in (("committed_nano", committed_nano), ("worst_case_nano", worst_case_nano)):
            require_integer(name, value, 0)
        return committed_nano + worst_case_nano <= self.spendable_nano
