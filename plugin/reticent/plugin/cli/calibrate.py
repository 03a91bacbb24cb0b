"""`reticent calibrate`: calibration with real sites, from the frozen plan to the certificate."""

from __future__ import annotations

from typing import Annotated

import typer

from reticent.plugin.cli.lazy import lazy_group

__all__ = ["app"]

_HERE = "reticent.plugin.cli"
_COMMANDS = {
    "facts": f"{_HERE}.calibrate_facts:facts",
    "plan": f"{_HERE}.calibrate_plan:plan",
    "subgroups": f"{_HERE}.calibrate_subgroups:subgroups",
    "site": f"{_HERE}.calibrate_site:site",
    "serve": f"{_HERE}.calibrate_serve:serve",
    "issue": f"{_HERE}.calibrate_verify:issue",
    "verify": f"{_HERE}.calibrate_verify:verify",
}

app = typer.Typer(
    cls=lazy_group(_COMMANDS),
    no_args_is_help=True,
    help="Calibration with real sites: facts, plan, site, serve, issue, verify.",
)


@app.callback()
def _group() -> None:
    """With a callback, typer sees a group also where this file alone is used, with one command registered."""


@app.command("key")
def key(name: Annotated[str, typer.Argument(help="The site's name in the plan.")]) -> None:
    """Print a line for the server's keys file and, once, the site's key (only its hash goes to the server)."""
    from reticent.plugin.tenants import hash_key, new_key

    fresh = new_key()
    typer.echo(f"{name}: {hash_key(fresh)}")
    typer.echo(f"# key of {name}, shown this once: {fresh}")
