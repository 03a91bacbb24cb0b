"""`reticent certify paper`: the paper's tables, recomputed beside the published figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from reticent.accounting.errors import AccountingError
from reticent.accounting.studies.certificates.paper import PAPER_TABLES, PaperTable
from reticent.accounting.studies.certificates.paper_tables import recompute
from reticent.plugin.cli.common import fail

__all__ = ["certify_paper"]

_EXIT_USAGE = 2
_PLACES = (Path("shared/data/certificate"), Path("../shared/data/certificate"))
_SETTINGS = frozenset({"label", "epsilon", "items", "partition", "sites", "route", "level", "control"})


def certify_paper(
    table: Annotated[int, typer.Option(help=f"One of {', '.join(str(n) for n in PAPER_TABLES)}.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with FRANK and RAGTruth [default: shared/data/certificate, here or one level up]."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="The paper has 200.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of populations, splits and simulations.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recompute one table of the paper: on laws fitted to its figures, and on real records where they are at hand."""
    folder = data if data is not None else next((place for place in _PLACES if place.is_dir()), None)
    try:
        made = recompute(table, trials=trials, seed=seed, data=folder)
    except (AccountingError, ValueError, OSError) as error:
        raise fail(str(error), _EXIT_USAGE) from None
    if as_json:
        typer.echo(json.dumps(made.to_dict(), indent=2, allow_nan=False))
        return
    console = Console()
    console.print(_shown(made))
    for note in made.notes:
        console.print(f"* {note}", markup=False)


def _shown(made: PaperTable) -> Table:
    names = list(dict.fromkeys(name for block in made.blocks for name in _names(block.published)))
    names += [
        name
        for name in dict.fromkeys(n for block in made.blocks for f in block.computed for n in f.values)
        if name not in names
    ]
    table = Table(title=f"Table {made.number}. {made.title} (computed: {made.trials} trials)")
    for name in ("", "from", "rule", *names):
        table.add_column(name.replace("_", " "))
    for block in made.blocks:
        table.add_row(block.label, "published", "", *(_text(block.published.get(name)) for name in names))
        for found in block.computed:
            table.add_row("", found.population, found.rule, *(_text(found.values.get(name)) for name in names))
        table.add_section()
    return table


def _names(row: Mapping[str, Any]) -> list[str]:
    return [name for name in row if name not in _SETTINGS]


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " to ".join(_text(item) for item in value)
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000.0 else f"{value:.3g}"
