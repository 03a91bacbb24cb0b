"""`reticent plan --plot`: the only place that draws. matplotlib comes with the extra `studies` and is imported late."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from reticent.accounting.charges.privbon_gaussian import PrivBoNGaussian
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.planning.accountings import privbon_cost
from reticent.accounting.planning.compare import Comparison
from reticent.accounting.planning.outcomes import OutcomeLaw
from reticent.accounting.planning.queries import answered
from reticent.accounting.planning.report import Plan
from reticent.accounting.planning.selected import privbon_rewards
from reticent.plugin.cli.common import fail

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_comparison", "draw_plan", "require_plotting"]

_BLUE, _ORANGE, _GREY, _RED = "#1f5fa8", "#d9822b", "#8a8a8a", "#b03a2e"
_LINES = {
    "published_fsrc": (_RED, "--"),
    "per_query_delta": (_GREY, "-"),
    "ville": (_ORANGE, "-"),
    "renyi": (_BLUE, "-"),
}
_FORMATS = (".png", ".svg")


def require_plotting(path: Path) -> None:
    """End with a message where `path` cannot be drawn, before any work is done."""
    if path.suffix.lower() not in _FORMATS:
        raise fail(f"--plot must name a .png or .svg file, not {path}", 2)
    if not path.parent.is_dir():
        raise fail(f"--plot: there is no folder {path.parent}", 2)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise fail("--plot needs matplotlib: pip install 'reticent[studies]'", 2) from None


def draw_plan(plan: Plan, path: Path) -> None:
    """PrivITP: queries under each accounting, and the charge by outcome. PrivBoN: reward and queries by noise scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    if plan.outcome is None:
        _draw_scales(plan, left, right)
    else:
        _draw_queries(plan, left)
        _draw_outcomes(plan, plan.outcome, right)
    _save(figure, path)


def _draw_queries(plan: Plan, axes: Axes) -> None:
    shown = [a for a in plan.accountings if math.isfinite(a.answered.mean)]
    counts = [a.answered.mean for a in shown]
    bars = axes.barh(
        [a.name for a in shown],
        counts,
        color=[_BLUE if a.sound else "white" for a in shown],
        edgecolor=[_BLUE if a.sound else _RED for a in shown],
        hatch=["" if a.sound else "///" for a in shown],
    )
    axes.bar_label(bars, [f"{c:,.0f}" if c >= 100 else f"{c:.3g}" for c in counts], padding=3)
    axes.invert_yaxis()
    if counts and max(counts) > 20.0 * max(min(counts), 1e-9):
        axes.set_xscale("log")
        axes.set_xlim(0.5 * max(min(counts), 0.1), 5.0 * max(counts))
    else:
        axes.margins(x=0.2)
    budget = plan.budget
    axes.set_xlabel(f"queries answered, ε = {budget.epsilon:g}, δ = {budget.delta:g}")
    axes.set_title("hatched: not sound" if any(not a.sound for a in shown) else "queries of the budget", fontsize=10)


def _draw_outcomes(plan: Plan, outcome: OutcomeLaw, axes: Axes) -> None:
    n = outcome.candidates
    places = np.append(np.arange(1, n + 1), n + 1 + max(1, n // 8))  # the fallback stands apart
    chance = axes.twinx()
    chance.bar(places, outcome.halting, color="#dddddd", width=0.9)
    chance.set_ylabel("probability (bars)", color=_GREY)
    axes.set_zorder(chance.get_zorder() + 1)
    axes.patch.set_visible(False)
    for accounting in plan.accountings:
        if accounting.cost.outcomes is None:
            continue
        colour, style = _LINES[accounting.name]
        axes.plot(places[:n], accounting.cost.outcomes[:n], style, marker=".", color=colour, label=accounting.name)
        axes.plot(places[n:], accounting.cost.outcomes[n:], marker="D", color=colour)
    axes.set_yscale("log")
    _plain(axes, "y")
    rounds = sorted({1, *(round(n * share / 4) for share in (1, 2, 3, 4))} - {0})
    axes.set_xticks([*rounds, places[n]], [*map(str, rounds), "fallback"])
    axes.set_xlabel("accepted in round t")
    axes.set_ylabel("expected charge of the query, nats")
    axes.legend(fontsize=8, loc="best")


def _plain(axes: Axes, which: Literal["x", "y"]) -> None:
    """Numbers without powers of ten on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = sorted(axes.get_xlim() if which == "x" else axes.get_ylim())
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1e3 * low else (1.0,), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _draw_scales(plan: Plan, left: Axes, right: Axes) -> None:
    mechanism = plan.mechanism
    if isinstance(mechanism, PrivITP):
        return
    scales = [float(factor) * mechanism.noise_scale for factor in np.geomspace(0.25, 4.0, 17)]
    gaussian = isinstance(mechanism, PrivBoNGaussian)
    rewards = privbon_rewards(plan.law, mechanism.candidates, scales, gaussian=gaussian)
    order = plan.accountings[0].cost.order
    costs = [privbon_cost(replace(mechanism, noise_scale=scale), plan.budget, order) for scale in scales]
    counts = [answered(cost.spendable, cost.law).mean for cost in costs]
    left.semilogx(scales, [reward for reward, _ in rewards], color=_BLUE)
    left.plot([mechanism.noise_scale], [plan.reward[0]], "o", color=_ORANGE, label="this plan")
    left.axhline(plan.best_reward[0], color=_GREY, linestyle="--", label="best of n, not private")
    left.axhline(plan.base_reward, color=_GREY, linestyle=":", label="base sample")
    left.set_ylabel("expected reward of the answer")
    right.loglog(scales, counts, color=_BLUE)
    right.plot([mechanism.noise_scale], [plan.accountings[0].answered.mean], "o", color=_ORANGE, label="this plan")
    right.set_ylabel(f"queries answered, ε = {plan.budget.epsilon:g}, δ = {plan.budget.delta:g}")
    for axes in (left, right):
        axes.set_xlabel("noise scale σ")
        axes.legend(fontsize=8)
        _plain(axes, "x")


def draw_comparison(found: Comparison, path: Path) -> None:
    """Reward against charge: every combination, and the frontier."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.subplots()
    for rule, name, colour, marker in (("privitp", "PrivITP", _ORANGE, "o"), ("privbon", "PrivBoN", _BLUE, "s")):
        points = [point for point in found.points if point.rule == rule and point.charge > 0.0]
        axes.errorbar(
            [p.charge for p in points],
            [p.reward for p in points],
            yerr=[p.reward_error for p in points],
            fmt=marker,
            markersize=4,
            color=colour,
            alpha=0.7,
            label=name,
        )
    frontier = [point for point in found.frontier if point.charge > 0.0]
    axes.step([p.charge for p in frontier], [p.reward for p in frontier], where="post", color="black", label="frontier")
    axes.axhline(found.base_reward, color=_GREY, linestyle=":", label="base sample")
    axes.axhline(found.best_reward[0], color=_GREY, linestyle="--", label="best of n, not private")
    axes.set_xscale("log")
    _plain(axes, "x")
    axes.set_xlabel(f"mean charge of a query, nats at order α = {found.order:.3g}")
    axes.set_ylabel("expected reward of the answer")
    axes.legend(fontsize=8, loc="lower right")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise fail(f"--plot: {path} cannot be written: {error.strerror}", 2) from None
