"""`reticent certify`: studies of certificates. Nothing is spent, and no server is needed."""

from __future__ import annotations

import typer

from reticent.plugin.cli import certify_drift, certify_file, certify_paper, certify_study

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, help="Studies of certificates: synthetic cells, real scores, the paper's tables."
)
app.command("study")(certify_study.certify_study)
app.command("file")(certify_file.certify_file)
app.command("paper")(certify_paper.certify_paper)
app.command("drift")(certify_drift.certify_drift)
