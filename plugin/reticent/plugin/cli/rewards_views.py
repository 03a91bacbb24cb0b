"""`reticent rewards train` as tables, text and a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.lattice import RewardLattice
from reticent.accounting.planning.accountings import privbon_cost
from reticent.accounting.planning.queries import Budget, answered
from reticent.accounting.units import to_nats
from reticent.plugin.cli.common import fail
from reticent.plugin.cli.plan_views import number
from reticent.rewards.head import LinearHead
from reticent.rewards.tradeoff import TradeoffRow

__all__ = ["Serving", "draw_tradeoff", "head_text", "privacy_document", "tradeoff_table"]

_COLOURS = ("#1f5fa8", "#d9822b", "#2f8f5b", "#8a4fa0", "#b03a2e", "#8a8a8a")


@dataclass(frozen=True)
class Serving:
    """How a head would be used: PrivBoN's σ and n, and the budget (ε, δ)."""

    noise_scale: float
    candidates: int
    epsilon: float
    delta: float

    def queries(self, reward_max: float, sensitivity: float) -> float:
        """Queries that the budget answers, as `reticent plan` counts them, at the best order."""
        lattice = RewardLattice(reward_max, sensitivity)
        mechanism = PrivBoN(reward_max, lattice.sensitivity, self.candidates, self.noise_scale)
        cost = privbon_cost(mechanism, Budget(self.epsilon, self.delta), None)
        return answered(cost.spendable, cost.law).mean


def tradeoff_table(
    rows: Sequence[TradeoffRow], queries: Sequence[float], chosen: TradeoffRow, serving: Serving
) -> Table:
    """μ, s, accuracy, Δ, and what a budget answers; the head's own row is marked."""
    title = f"Accuracy against Δ (σ = {serving.noise_scale:g}, n = {serving.candidates}; not private)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    private = chosen.private_accuracy is not None
    for name in ("μ", "s", "accuracy", "Δ", "gap / Δ", "accuracy at σ", "queries", *(["private"] if private else [])):
        table.add_column(name, justify="right", no_wrap=True)
    previous = rows[0].regularization
    for row, count in zip(rows, queries, strict=True):
        if row.regularization != previous:
            table.add_section()
            previous = row.regularization
        cells = [
            f"{row.regularization:g}",
            f"{row.scale:g}",
            f"{row.heldout_accuracy:.3f}",
            f"{row.sensitivity:.3g}",
            f"{row.reward_gap:.3g}",
            "" if row.selection_accuracy is None else f"{row.selection_accuracy:.3f}",
            number(count),
        ]
        if private:
            cells.append(f"{row.private_accuracy:.3f}")
        table.add_row("*" if row == chosen else "", *cells)
    return table


def head_text(head: LinearHead, row: TradeoffRow, queries: float, serving: Serving, out: Path) -> str:
    """The head in a few lines."""
    facts = head.certificate.facts
    lines = [
        f"head {out}: {head.encoder}, {head.dimension} weights, N = {facts.pairs:,} pairs, k = "
        f"{facts.pairs_per_person}, μ = {facts.regularization:g}, s = {facts.scale:g}, G = {facts.pair_norm:g}, "
        f"R = {facts.reward_max:g}",
        f"Δ = {head.sensitivity:.4g} ({head.certificate.formula}); held-out accuracy {row.heldout_accuracy:.3f}",
    ]
    if head.private is None:
        lines.append(
            f"PrivBoN at σ = {serving.noise_scale:g}, n = {serving.candidates} answers {number(queries)} queries of "
            f"ε = {serving.epsilon:g}, δ = {serving.delta:g}"
        )
    else:
        p = head.private
        promise = f"({p.epsilon:g}, {p.delta:g})-DP" if p.delta else f"{p.epsilon:g}-DP"
        lines.append(
            f"private: {promise} by discrete {p.noise.capitalize()} noise of deviation {p.noise_deviation:.3g} on each "
            f"weight; expected held-out accuracy {row.private_accuracy:.3f}. Serving costs nothing more"
        )
    return "\n".join(lines)


def privacy_document(head: LinearHead) -> dict[str, Any] | None:
    """The privacy claim of a private head for `--json`: parameters, what is protected, what a ledger is charged."""
    private, facts = head.private, head.certificate.facts
    if private is None:
        return None
    orders = sorted({2.0, 4.0, 8.0, 16.0, 32.0, *([private.order] if private.order else [])})
    return {
        **asdict(private),
        "mechanism": "output perturbation, integer noise on a lattice",
        "noise_deviation": private.noise_deviation,
        "protects": f"all pairs of one person (at most {facts.pairs_per_person}), replaced by others; N is public",
        "charge_by_order": {f"{order:g}": to_nats(private.charge(facts, order)) for order in orders},
        "serving_charge": 0.0,
    }


def draw_tradeoff(rows: Sequence[TradeoffRow], chosen: TradeoffRow, path: Path) -> None:
    """Accuracy against Δ, a line for each s; with privacy also what a private head is expected to reach."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.subplots()
    scales = sorted({row.scale for row in rows})
    for place, scale in enumerate(scales):
        line = [row for row in rows if row.scale == scale]
        colour = _COLOURS[place % len(_COLOURS)]
        deltas = [row.sensitivity for row in line]
        axes.plot(deltas, [row.heldout_accuracy for row in line], "o-", color=colour, label=f"s = {scale:g}")
        for row in line:
            axes.annotate(
                f"μ {row.regularization:g}",
                (row.sensitivity, row.heldout_accuracy),
                textcoords="offset points",
                xytext=(4, 5),
                fontsize=7,
            )
        if row.private_accuracy is not None:
            values = [math.nan if r.private_accuracy is None else r.private_accuracy for r in line]
            axes.plot(deltas, values, "s--", color=colour, alpha=0.7, label=f"private, s = {scale:g}")
    axes.plot([chosen.sensitivity], [chosen.heldout_accuracy], "*", color="black", markersize=14, label="the head")
    axes.axhline(0.5, color="#8a8a8a", linestyle=":", label="chance")
    axes.set_xscale("log")
    axes.set_xlabel("sensitivity Δ")
    axes.set_ylabel("held-out pair accuracy")
    axes.legend(fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise fail(f"--plot: {path} cannot be written: {error.strerror}", 2) from None
