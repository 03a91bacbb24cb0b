"""`reticent scores auc`: what a column of a CSV file tells about right and wrong answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from reticent.plugin.cli.common import fail
from reticent.plugin.cli.scores_table import TableMismatch, read_table
from reticent.rewards.scores import auc as area
from reticent.rewards.scores import auc_error

__all__ = ["auc"]


def auc(
    table: Annotated[Path, typer.Argument(metavar="FILE.csv")],
    score: Annotated[list[str], typer.Option(help="Column of a score; larger means more likely right. Repeatable.")],
    label: Annotated[str, typer.Option(help="Column of the verdict, 0 or 1.")] = "right",
    wrong_is_one: Annotated[bool, typer.Option(help="The label says wrong, not right.")] = False,
    group: Annotated[str | None, typer.Option(help="Column of groups for the standard error.")] = None,
    split: Annotated[str | None, typer.Option(help="Only rows whose column `split` says this.")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Area under the curve of each score: probability that a right answer scores above a wrong one.

    The standard error is a bootstrap over groups (over rows without them). Rows without the score are left out, and
    counted.
    """
    wanted = [*score, label, *([group] if group else []), *(["split"] if split else [])]
    try:
        rows = [row for row in read_table(table, wanted) if split is None or row["split"] == split]
        report = [_of(rows, name, label, wrong_is_one, group) for name in score]
    except (TableMismatch, ValueError) as error:
        raise fail(str(error)) from None
    if as_json:
        typer.echo(json.dumps(report, indent=1))
        return
    for one in report:
        left = f", {one['without']} without it left out" if one["without"] else ""
        typer.echo(f"{one['score']}: AUC {one['auc']:.3f} ± {one['error']:.3f} ({one['answers']} answers{left})")


def _of(rows: list[dict[str, str]], name: str, label: str, wrong_is_one: bool, group: str | None) -> dict[str, Any]:
    kept = [row for row in rows if row[name] != ""]
    verdicts = []
    for row in kept:
        if row[label] not in ("0", "1"):
            raise ValueError(f"column {label} must hold 0 or 1, not {row[label]!r}")
        verdicts.append((row[label] == "1") != wrong_is_one)
    try:
        values = [float(row[name]) for row in kept]
    except ValueError:
        raise ValueError(f"column {name} must hold numbers") from None
    groups = [row[group] for row in kept] if group else list(range(len(kept)))
    return {
        "score": name,
        "auc": area(values, verdicts),
        "error": auc_error(values, verdicts, groups),
        "answers": len(kept),
        "without": len(rows) - len(kept),
    }
