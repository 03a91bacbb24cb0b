"""The table of a simulation: one row a cell, means over the prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.planning.laws import Floats
from reticent.accounting.planning.outcomes import standard_error
from reticent.accounting.planning.queries import answered, constant_charge
from reticent.accounting.studies.pools.groups import PROXY, PROXY_WIN, TRUE, WIN
from reticent.accounting.studies.pools.noisy_best import MOST_ANSWERS_EXACT
from reticent.accounting.studies.pools.pessimism import CHARGE, CHARGE_SQUARE, FALLBACK, HALTING
from reticent.accounting.studies.pools.question import RULES, Cell
from reticent.accounting.studies.pools.run import Evaluation

__all__ = ["Row", "rows"]


@dataclass(frozen=True)
class Row:
    """What one rule with its parameters does, per prompt on average.

    Attributes:
        accuracy, standard_error: true reward of the answer; the error is that over prompts.
        lift, lift_error: 100 (accuracy/base accuracy - 1), per cent, with its error over prompts (by linearisation);
            None where no base answer is right.
        proxy_reward, proxy_error: bounded proxy reward of the answer.
        win_rate, proxy_win_rate: chance to beat a base sample by true or by proxy reward, ties counting a half.
        hacking_gap: proxy_reward - accuracy, both on [0, 1].
        halting_time: candidates looked at in phase 2 (n for a fallback); None for rules without one.
        fallback_rate: how often phase 2 accepts none.
        charge: mean charge of a query, nats at the ledger's order; None for a rule that no charge bounds.
        worst_charge: most that one query may cost, nats.
        queries: what the budget answers; None for a rule without a charge, or where nothing is charged.
        method: "exact" or "sampled" (what of it: `blocks`, `pessimism`).
        sampling_error: standard error of `accuracy` from the sampled part, 0 if exact.
    """

    rule: str
    candidates: int
    noise_scale: float | None
    regularization: float | None
    accuracy: float
    standard_error: float
    lift: float | None
    lift_error: float | None
    proxy_reward: float
    proxy_error: float
    win_rate: float
    proxy_win_rate: float
    hacking_gap: float
    halting_time: float | None
    fallback_rate: float | None
    charge: float | None
    worst_charge: float | None
    queries: float | None
    method: str
    sampling_error: float

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def rows(found: Evaluation, prompts: NDArray[np.int64] | Sequence[int] | None = None) -> list[Row]:
    """The rows over all prompts, or over those with the given places."""
    chosen = np.arange(len(found.prompts)) if prompts is None else np.asarray(prompts)
    return [_row(found, place, cell, chosen) for place, cell in enumerate(found.question.cells)]


def _row(found: Evaluation, place: int, cell: Cell, chosen: NDArray[np.int64]) -> Row:
    values = found.prompts[chosen, place]
    base = found.base[chosen, TRUE]
    mean = values.mean(axis=0)
    sampled = _is_sampled(found, cell)
    lift, lift_error = _lift(values[:, TRUE], base)
    pessimist = RULES[cell.rule].regularized
    charge, worst, queries = _cost(found, place, cell, mean)
    return Row(
        rule=cell.rule,
        candidates=cell.candidates,
        noise_scale=cell.noise_scale,
        regularization=cell.regularization,
        accuracy=float(mean[TRUE]),
        standard_error=standard_error(values[:, TRUE]),
        lift=lift,
        lift_error=lift_error,
        proxy_reward=float(mean[PROXY]),
        proxy_error=standard_error(values[:, PROXY]),
        win_rate=float(mean[WIN]),
        proxy_win_rate=float(mean[PROXY_WIN]),
        hacking_gap=float(mean[PROXY] - mean[TRUE]),
        halting_time=float(mean[HALTING]) if pessimist else None,
        fallback_rate=float(mean[FALLBACK]) if pessimist else None,
        charge=charge,
        worst_charge=worst,
        queries=queries,
        method="sampled" if sampled else "exact",
        sampling_error=standard_error(found.batches[:, place, TRUE]) if sampled else 0.0,
    )


def _is_sampled(found: Evaluation, cell: Cell) -> bool:
    rule = RULES[cell.rule]
    if rule.regularized:
        return True
    return rule.noisy and found.question.distinct and found.largest_prompt > MOST_ANSWERS_EXACT


def _lift(accuracies: Floats, base: Floats) -> tuple[float | None, float | None]:
    level = float(base.mean())
    if level <= 0.0:
        return None, None
    ratio = float(accuracies.mean()) / level
    return 100.0 * (ratio - 1.0), 100.0 * standard_error(accuracies - ratio * base) / level


def _cost(found: Evaluation, place: int, cell: Cell, mean: Floats) -> tuple[float | None, float | None, float | None]:
    """(mean charge, worst charge, queries)."""
    if cell.rule == "base":
        return 0.0, 0.0, None
    if not RULES[cell.rule].private:
        return None, None, None
    charge, worst = float(mean[CHARGE]), float(found.worst[place])
    room = found.question.budget.spendable(found.question.alpha)
    if cell.rule != "privitp":
        count = answered(room, constant_charge(worst)).mean
        return charge, worst, count if math.isfinite(count) else None
    # Wald's identity and the overshoot of a long walk, as in `planning.queries`.
    count = (room - worst + float(mean[CHARGE_SQUARE]) / (2.0 * charge)) / charge if room >= worst else 0.0
    return charge, worst, count
