"""`reticent rewards`: certified reward heads, from preference pairs to a head file and an audit of its sensitivity."""

from __future__ import annotations

import typer

from reticent.plugin.cli.rewards_audit import audit
from reticent.plugin.cli.rewards_pairs import pairs
from reticent.plugin.cli.rewards_serve import serve
from reticent.plugin.cli.rewards_train import train

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Reward heads with a certified sensitivity: make pairs, train, audit.")
app.command("train")(train)
app.command("audit")(audit)
app.command("pairs")(pairs)
app.command("serve")(serve)
