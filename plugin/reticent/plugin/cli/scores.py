"""`reticent scores`: scores of many answers, fits on a development split, and what a score is worth."""

from __future__ import annotations

import typer

from reticent.plugin.cli.scores_auc import auc
from reticent.plugin.cli.scores_fit import fit
from reticent.plugin.cli.scores_run import draw, run

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Scores for the gate: run, draw, fit, auc.")
app.command("run")(run)
app.command("draw")(draw)
app.command("fit")(fit)
app.command("auc")(auc)
