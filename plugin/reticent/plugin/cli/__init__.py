"""The `reticent` command, one subcommand a file."""

from __future__ import annotations

import typer

from reticent.plugin import __version__
from reticent.plugin.cli import (
    calibrate,
    certify,
    doctor,
    embedded,
    gateway,
    ledger,
    plan,
    rewards,
    scores,
    serve,
    tenants,
)

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Private, budgeted, certified answers.",
)
app.command(
    "serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, help=serve.serve.__doc__
)(serve.serve)
app.command("gateway")(gateway.gateway)
app.command("doctor")(doctor.doctor)
app.command("plan")(plan.plan)
app.add_typer(ledger.app, name="ledger")
app.add_typer(tenants.app, name="tenants")
app.add_typer(embedded.app, name="embedded")
app.add_typer(calibrate.app, name="calibrate")
app.add_typer(certify.app, name="certify")
app.add_typer(scores.app, name="scores")
app.add_typer(rewards.app, name="rewards")


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(f"reticent {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command."""
    app()
