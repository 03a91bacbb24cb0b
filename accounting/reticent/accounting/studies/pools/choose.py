"""Parameters chosen on one half of the prompts, for a budget, and judged on the other half.

The best of many cells looks better on the prompts that it was chosen on than it is. So only the other half's figures
are claimed, with two costs of the choice: by how much the development half flattered the chosen cell, and what the
best cell of the other half, known only afterwards, would have gained.

What the caller must guarantee: the choice reads rewards and is not charged. Rewards of a model that was trained on D
belong into it only where the pool is D's own or the choice is kept from those against whom D is protected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.errors import AccountingError, require_positive
from reticent.accounting.planning.outcomes import standard_error
from reticent.accounting.studies.pools.groups import TRUE
from reticent.accounting.studies.pools.question import RULES
from reticent.accounting.studies.pools.results import Row, rows
from reticent.accounting.studies.pools.run import Evaluation

__all__ = ["Choice", "NothingFitsError", "choose", "halves"]


class NothingFitsError(AccountingError, ValueError):
    """No private cell answers `wanted` queries with the budget; the one that answers most answers `most`."""

    def __init__(self, wanted: float, most: float) -> None:
        self.wanted = wanted
        self.most = most
        super().__init__(
            f"no private rule of the grid answers {wanted:,.0f} queries with this budget; the most is {most:,.0f}: "
            "more noise, a smaller Δ or a larger budget is needed"
        )


@dataclass(frozen=True)
class Choice:
    """Attributes:
    development, report: the chosen cell's row on the half it was chosen on, and on the other one.
    fitting, considered: private cells that answer enough queries, and all private cells; PrivBoN's n = 1 is
        none of them.
    flattery: development accuracy minus the accuracy on the other half, of the chosen cell.
    regret, regret_error: accuracy on the other half of its own best fitting cell minus the chosen cell's, with the
        error of that difference over prompts.
    best: that best cell's row.
    base: the accuracy of base samples on the other half.
    bon: the best accuracy on the other half of best-of-n without privacy; None where it was not asked for.
    """

    wanted: float
    development: Row
    report: Row
    fitting: int
    considered: int
    flattery: float
    regret: float
    regret_error: float
    best: Row
    base: float
    bon: float | None

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "wanted_queries": self.wanted,
            "development": self.development.to_dict(),
            "report": self.report.to_dict(),
            "fitting": self.fitting,
            "considered": self.considered,
            "flattery": self.flattery,
            "regret": self.regret,
            "regret_error": self.regret_error,
            "best_afterwards": self.best.to_dict(),
            "base_accuracy": self.base,
            "best_of_n_accuracy": self.bon,
        }


def halves(prompts: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(development, report) places, at random by `seed`; at least two prompts each."""
    require_positive("prompts - 3", float(prompts - 3))
    order = np.random.default_rng([seed, 2]).permutation(prompts)
    return np.sort(order[: prompts // 2]), np.sort(order[prompts // 2 :])


def choose(found: Evaluation, wanted: float, *, seed: int = 0) -> Choice:
    """The private cell of the highest development accuracy among those that answer `wanted` > 0 queries.

    Of equally accurate cells the cheaper is chosen. What a query costs and how many fit is judged on the development
    half as well. Errors: `NothingFitsError`.
    """
    require_positive("queries", wanted)
    development, report = halves(len(found.prompts), seed)
    ours, theirs = rows(found, development), rows(found, report)
    # PrivBoN with one candidate is a base sample: it costs nothing and is no choice.
    private = [k for k, row in enumerate(ours) if RULES[row.rule].noisy and row.charge]
    fitting = [k for k in private if (ours[k].queries or 0.0) >= wanted]
    if not fitting:
        raise NothingFitsError(wanted, max((ours[k].queries or 0.0 for k in private), default=0.0))
    chosen = _best(ours, fitting)
    best = _best(theirs, fitting)
    difference = found.prompts[report, best, TRUE] - found.prompts[report, chosen, TRUE]
    bon = [row.accuracy for row in theirs if row.rule == "bon"]
    return Choice(
        wanted=wanted,
        development=ours[chosen],
        report=theirs[chosen],
        fitting=len(fitting),
        considered=len(private),
        flattery=ours[chosen].accuracy - theirs[chosen].accuracy,
        regret=float(difference.mean()),
        regret_error=standard_error(difference),
        best=theirs[best],
        base=float(found.base[report, TRUE].mean()),
        bon=max(bon) if bon else None,
    )


def _best(table: Sequence[Row], places: list[int]) -> int:
    return max(places, key=lambda k: (table[k].accuracy, -(table[k].charge or 0.0)))
