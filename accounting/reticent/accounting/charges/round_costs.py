"""What phase 2 of PrivITP costs, round by round: a pair (r, s), whatever it comes from."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from reticent.accounting.charges.rounding import charge_rounded_up
from reticent.accounting.errors import InvalidQuantityError, require_integer, require_non_negative

__all__ = ["RoundCosts", "worst_over"]

_SUPREMUM_GAP = 0.01
_SUPREMUM_CELLS = 2000


@dataclass(frozen=True)
class RoundCosts:
    """What one rejection and one acceptance cost, given the released threshold.

    Args:
        rejection: r ≥ 0, nats ("ville": κ; "renyi": from a `RoundTable`).
        acceptance: s ≥ 0, nats ("ville": acc; "renyi": from a `RoundTable`).
        candidates: n, the most rounds.
        slack: nats a round that cover the rounding of the acceptance law; part of the `rounded_up` amounts only.

    Every method of charging phase 2 is such a pair: accepted at t costs (t-1)r + s, a fallback n r, and the worst case
    is (n-1)r + max(r, s) (privacy.md, section 5).
    """

    rejection: float
    acceptance: float
    candidates: int
    slack: float = 0.0

    def __post_init__(self) -> None:
        require_non_negative("rejection", self.rejection)
        require_non_negative("acceptance", self.acceptance)
        require_non_negative("slack", self.slack)
        require_integer("candidates", self.candidates, 1)

    def accepted(self, halting_time: int) -> float:
        """(t-1)r + s, nats, for an acceptance in round t, 1 ≤ t ≤ n."""
        require_integer("halting_time", halting_time, 1, self.candidates)
        return (halting_time - 1) * self.rejection + self.acceptance

    def fallback(self) -> float:
        """n r, nats: no candidate was accepted."""
        return self.candidates * self.rejection

    def charge(self, halting_time: int, fallback: bool) -> float:
        """Of one outcome, nats: `accepted`, or `fallback` for a fallback (t is then ignored)."""
        return self.fallback() if fallback else self.accepted(halting_time)

    def worst(self) -> float:
        """(n-1)r + max(r, s), nats."""
        return max(self.accepted(self.candidates), self.fallback())

    def expected(self, acceptance_probability: float) -> float:
        """(1 - (1-p)^n) ((1-p)/p · r + s), nats: the mean charge if every round accepts with probability p, 0 < p ≤ 1.

        A rejection in round k happens with probability (1-p)^k, and a fallback pays n of them.
        """
        p = float(acceptance_probability)
        if not 0.0 < p <= 1.0:
            raise InvalidQuantityError("acceptance_probability", acceptance_probability, "above 0 and at most 1")
        some = 1.0 if p == 1.0 else -math.expm1(self.candidates * math.log1p(-p))
        return some * ((1.0 - p) / p * self.rejection + self.acceptance)

    def rounded_up(self, nats: float) -> int:
        """`nats` (one of the amounts above) with margins for rounding, in 1e-9 nat. Monotone in `nats`."""
        return charge_rounded_up(nats, self.candidates * self.slack)


def worst_over(costs_at: Callable[[float], RoundCosts], low: float, high: float) -> tuple[float, float]:
    """(certified supremum of the worst case over λ in [low, high], largest slack a round), nats.

    Where r falls in λ and s rises, the worst case over a cell [l, u] is at most (n-1)r(l) + max(r(l), s(u)). The cell
    of largest bound is bisected until the bound is within 1 % of a value that is reached. If it does not come to that,
    the bound still holds and is only wider.
    """

    def bound(left: RoundCosts, right: RoundCosts) -> float:
        return (left.candidates - 1) * left.rejection + max(left.rejection, right.acceptance)

    left, right = costs_at(low), costs_at(high)
    # -log A(R) is largest at the lowest λ and -log B(0) at the highest, so the ends' slacks bound all.
    slack = max(left.slack, right.slack)
    reached = max(left.worst(), right.worst())
    cells = [(-bound(left, right), low, high, left, right)]
    for _ in range(_SUPREMUM_CELLS):
        if -cells[0][0] <= reached * (1.0 + _SUPREMUM_GAP):
            break
        _, start, end, left, right = heapq.heappop(cells)
        middle = 0.5 * (start + end)
        costs = costs_at(middle)
        reached = max(reached, costs.worst())
        heapq.heappush(cells, (-bound(left, costs), start, middle, left, costs))
        heapq.heappush(cells, (-bound(costs, right), middle, end, costs, right))
    return -cells[0][0], slack
