"""`reticent simulate` as a table and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from reticent.accounting.studies.pools.choose import Choice
from reticent.accounting.studies.pools.files import Pool
from reticent.accounting.studies.pools.question import Question
from reticent.accounting.studies.pools.replicates import Replicated
from reticent.accounting.studies.pools.results import Row
from reticent.plugin.cli.common import fail

__all__ = ["choice_tables", "table", "write_csv"]


_COLUMNS = ("n", "σ", "β", "accuracy", "lift %", "proxy", "win", "gap", "t", "fallback", "charge", "queries")
_NARROW = {"n", "σ", "β", "accuracy", "lift %", "t", "charge", "queries"}
_WIDE = 112


def table(
    made: Sequence[Row], played: Sequence[Replicated] | None, question: Question, pool: Pool, width: int
) -> RenderableType:
    """One line a cell; on a console of less than 112 columns without proxy reward, win rate, gap and fallbacks."""
    shown = [width >= _WIDE or name in _NARROW for name in _COLUMNS]
    draws = "n distinct answers" if question.distinct else "n answers with replacement"
    title = (
        f"{len(pool)} prompts, {draws}; charges at α = {question.alpha:.4g}, Δ = {question.sensitivity:g}; "
        f"queries of ε = {question.budget.epsilon:g}, δ = {question.budget.delta:g}"
    )
    found = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    found.add_column("rule", no_wrap=True)
    names = [name for name, is_shown in zip(_COLUMNS, shown, strict=True) if is_shown]
    for name in [*names, *(["played"] if played else [])]:
        found.add_column(name, justify="right", no_wrap=True)
    last = ""
    for place, row in enumerate(made):
        if last and row.rule != last:
            found.add_section()
        last = row.rule
        check = [_check(row, played[place])] if played else []
        cells = [cell for cell, is_shown in zip(_cells(row), shown, strict=True) if is_shown]
        found.add_row(row.rule, *cells, *check)
    return found


def _cells(row: Row) -> tuple[str, ...]:
    lift = "–" if row.lift is None else f"{row.lift + 0.0:.1f} ± {row.lift_error or 0.0:.1f}"
    return (
        str(row.candidates),
        _number(row.noise_scale),
        _number(row.regularization),
        f"{row.accuracy:.3f} ± {row.standard_error:.3f}",
        lift.replace("-0.0 ", "0.0 "),
        f"{row.proxy_reward:.3f}",
        f"{row.win_rate:.3f}",
        f"{row.hacking_gap:+.3f}",
        _number(row.halting_time),
        "" if row.fallback_rate is None else f"{row.fallback_rate:.3f}",
        "not private" if row.charge is None else _number(row.charge),
        "" if row.queries is None else f"{row.queries:,.0f}",
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _check(row: Row, check: Replicated) -> str:
    """The played accuracy, and by how many of its standard errors it differs."""
    error = check.accuracy_error
    apart = (check.accuracy - row.accuracy) / error if error > 0.0 else 0.0
    return f"{check.accuracy:.3f} ({apart:+.1f})"


def choice_tables(chosen: Choice) -> list[RenderableType]:
    """The chosen parameters, what they do on the prompts they were not chosen on, and the cost of the choice."""
    row = chosen.report
    named = [f"n = {row.candidates}", f"σ = {row.noise_scale:g}"]
    if row.regularization is not None:
        named.append(f"β = {row.regularization:g}")
    bon = "" if chosen.bon is None else f", the best bon of the grid's {chosen.bon:.3f} without privacy"
    lines = [
        f"Chosen for {chosen.wanted:,.0f} queries: {row.rule}, {', '.join(named)} "
        f"({chosen.fitting} of {chosen.considered} private combinations answer as many).",
        f"On the other half: accuracy {row.accuracy:.3f} ± {row.standard_error:.3f}, lift {_lift(row)}, "
        f"charge {_number(row.charge)}; a base sample's accuracy {chosen.base:.3f}{bon}.",
        f"Cost of the choice: the half it was chosen on flattered it by {chosen.flattery:+.3f}; the other half's own "
        f"best ({chosen.best.rule}, n = {chosen.best.candidates}) would gain {chosen.regret:.3f} ± "
        f"{chosen.regret_error:.3f}.",
        "The choice itself reads rewards and is not charged: see docs/simulate.md.",
    ]
    return [Text("\n".join(lines))]


def _lift(row: Row) -> str:
    return "–" if row.lift is None else f"{row.lift:.1f} ± {row.lift_error or 0.0:.1f} %"


def write_csv(made: Sequence[Row], path: Path) -> None:
    """The rows, one column a field; empty for what a rule has not."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Row)])
            writer.writeheader()
            writer.writerows(row.to_dict() for row in made)
    except OSError as error:
        raise fail(f"--csv: {path} cannot be written: {error.strerror}", 2) from None
