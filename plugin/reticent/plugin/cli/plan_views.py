"""`reticent plan` as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from reticent.accounting.planning.accountings import ACCOUNTINGS
from reticent.accounting.planning.compare import Comparison, Point
from reticent.accounting.planning.limit import Limit
from reticent.accounting.planning.report import AccountingPlan, Plan, shown_outcomes

__all__ = ["comparison_tables", "number", "parameters_text", "plan_tables", "short"]

_SYMBOLS = {
    "reward_max": "R",
    "sensitivity": "Δ",
    "candidates": "n",
    "noise_scale": "σ",
    "threshold_noise": "σ_X",
    "reward_noise": "σ_Z",
    "regularization": "β",
    "truncation": "L",
    "granule": "g",
}
_UNSOUND = "red"


def number(value: float | None, error: float = 0.0) -> str:
    """Four significant digits (whole numbers from 1,000 on), ± the standard error where it shows in them."""
    if value is None or not math.isfinite(value):
        return "–"
    digits = 3 if value == 0.0 else 3 - math.floor(math.log10(abs(value)))
    if digits <= 0:
        text = f"{value:,.0f}"
        return f"{text} ± {error:,.0f}" if error >= 0.5 else text
    text = f"{value:.{min(digits, 12)}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".") or "0"
    return f"{text} ± {error:.1g}" if error >= 0.5 * 10.0**-digits else text


def short(value: float) -> str:
    """Two or three significant digits in at most seven characters; a dash for what does not happen."""
    if not math.isfinite(value):
        return "–"
    if 0.0 < abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:.3g}"


def parameters_text(parameters: Sequence[tuple[str, float]]) -> str:
    """`σ = 0.5, n = 16`."""
    return ", ".join(f"{_SYMBOLS[name]} = {value:.6g}" for name, value in parameters)


def plan_tables(plan: Plan) -> list[RenderableType]:
    """The mechanism and the answer's worth; the cost of one query; the queries of the budget; the limit."""
    return [_heading(plan), _cost_table(plan), _queries_table(plan), *_limit_text(plan)]


def _heading(plan: Plan) -> Text:
    parameters = [(name, getattr(plan.mechanism, name)) for name in plan.mechanism.__dataclass_fields__]
    budget = plan.budget
    promise = "differential privacy" if budget.guarantee == "dp" else "probabilistic differential privacy"
    lines = [
        f"{plan.rule}: {parameters_text(parameters)}",
        f"budget: ε = {budget.epsilon:g}, δ = {budget.delta:g}, {promise}",
        f"rewards {plan.law.text} ({plan.law.prompts:,} prompt{'s' if plan.law.prompts > 1 else ''}): the answer's is "
        f"{number(*plan.reward)} on average, a base sample's {number(plan.base_reward)}, "
        f"the best of n's {number(*plan.best_reward)}",
    ]
    return Text("\n".join(lines))


def _cost_table(plan: Plan) -> RenderableType:
    outcome = plan.outcome
    if outcome is None:
        return Text(f"Every answer costs {number(plan.accountings[0].cost.law.mean)} nats.\n")
    title = "What one query costs, nats"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("accounting", no_wrap=True)
    rows = shown_outcomes(outcome.candidates)
    names = ["fallback" if row == outcome.candidates else f"t = {row + 1}" for row in rows]
    for name in ("phase 1", *names, "mean", "worst"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row("probability", "", *(short(float(outcome.halting[row])) for row in rows), "", "")
    table.add_section()
    for a in plan.accountings:
        charges = [math.nan if a.cost.outcomes is None else float(a.cost.outcomes[row]) for row in rows]
        cells = map(short, (a.cost.fixed, *charges, a.cost.law.mean, a.cost.law.worst))
        table.add_row(a.name, *cells, style=None if a.sound else _UNSOUND)
    return table


def _limit_text(plan: Plan) -> list[RenderableType]:
    if plan.limit is None:
        return []
    best = plan.accountings[-1].name

    def share(limit: Limit) -> str:
        found = plan.share_of(limit)
        return f"{best} ÷ limit: {'–' if found is None else f'{found:.3f}'}"

    low, high = plan.limit.queries_low, plan.limit.queries_high
    seen = "the clamped threshold and the halting time" if plan.rule == "privitp" else "this bounded range"
    text = f"No accountant of {seen} answers more than {high:,} queries (worst pair found: {low:,} to {high:,})."
    lines: list[RenderableType] = [Text(f"{text} {share(plan.limit)}")]
    if (wide := plan.unclamped_limit) is not None:
        text = f"One that does not use the clamp answers at most {wide.queries_high:,}."
        lines.append(Text(f"{text} {share(wide)} (above 1 where the clamp gains more)"))
    return lines


def _queries_table(plan: Plan) -> Table:
    table = Table(title="What the budget answers", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("accounting", no_wrap=True)
    for name in ("α", "spendable", "queries"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what it is")
    for accounting in plan.accountings:
        table.add_row(*_queries_row(accounting), style=None if accounting.sound else _UNSOUND)
    return table


def _queries_row(accounting: AccountingPlan) -> tuple[str, ...]:
    cost = accounting.cost
    order = "" if cost.order is None else f"{cost.order:.4g}"
    count = accounting.answered
    queries = "without end" if math.isinf(count.mean) else number(count.mean, count.error)
    what = ACCOUNTINGS[accounting.name].what
    return (
        accounting.name,
        order,
        short(cost.spendable),
        queries,
        what if accounting.sound else f"UNSOUND: {what}",
    )


def comparison_tables(found: Comparison) -> list[RenderableType]:
    """The frontier of each rule, and what was compared."""
    title = f"Each rule's Pareto frontier at order α = {found.order:.4g} (* also the common one)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in ("", "rule"):
        table.add_column(name, no_wrap=True)
    for name in ("reward", "charge", "queries", "× PrivBoN"):
        table.add_column(name, justify="right", no_wrap=True)
    for point in found.points:
        if point.rule_frontier:
            table.add_row(*_point_row(point))
    rest = (
        f"{len(found.points)} combinations. A base sample's reward is {number(found.base_reward)}, "
        f"the best of n's without privacy {number(*found.best_reward)}. "
        f"Standard error of a reward: {max(point.reward_error for point in found.points):.1g} or less."
    )
    times = sorted(point.times_privbon for point in found.points if point.times_privbon is not None)
    if times:
        rest += (
            f" At equal reward PrivITP costs {short(times[0])} to {short(times[-1])} times what PrivBoN costs "
            f"(median {short(times[len(times) // 2])}, {len(times)} combinations)."
        )
    return [table, Text(rest)]


def _point_row(point: Point) -> tuple[str, ...]:
    return (
        "*" if point.frontier else "",
        f"{point.rule} " + " ".join(f"{_SYMBOLS[name]} {value:.3g}" for name, value in point.parameters),
        f"{point.reward:.4f}",
        short(point.charge),
        "without end" if math.isinf(point.queries) else number(point.queries),
        "" if point.times_privbon is None else short(point.times_privbon),
    )
