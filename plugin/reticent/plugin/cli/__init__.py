"""The `reticent` command, one subcommand a file. A command's file is imported when the command is used."""

from __future__ import annotations

import typer

from reticent.plugin import __version__
from reticent.plugin.cli.lazy import lazy_group

__all__ = ["app", "main"]

_HERE = "reticent.plugin.cli"
_COMMANDS = {
    "serve": f"{_HERE}.serve:serve",
    "gateway": f"{_HERE}.gateway:gateway",
    "doctor": f"{_HERE}.doctor:doctor",
    "plan": f"{_HERE}.plan:plan",
    "simulate": f"{_HERE}.simulate:simulate",
    "ledger": f"{_HERE}.ledger:app",
    "tenants": f"{_HERE}.tenants:app",
    "embedded": f"{_HERE}.embedded:app",
    "calibrate": f"{_HERE}.calibrate:app",
    "certify": f"{_HERE}.certify:app",
    "scores": f"{_HERE}.scores:app",
    "rewards": f"{_HERE}.rewards:app",
}
_SETTINGS = {"serve": {"context_settings": {"allow_extra_args": True, "ignore_unknown_options": True}}}

app = typer.Typer(
    cls=lazy_group(_COMMANDS, _SETTINGS),
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Private, budgeted, certified answers.",
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(f"reticent {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command."""
    app()
