"""`reticent calibrate`: calibration with real sites, from the frozen plan to the certificate."""

from __future__ import annotations

from typing import Annotated

import typer

from reticent.plugin.cli.calibrate_plan import plan
from reticent.plugin.cli.calibrate_serve import serve
from reticent.plugin.cli.calibrate_site import site
from reticent.plugin.cli.calibrate_subgroups import subgroups
from reticent.plugin.cli.calibrate_verify import issue, verify
from reticent.plugin.tenants import hash_key, new_key

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Calibration with real sites: plan, site, serve, issue, verify.")
app.command("plan")(plan)
app.command("subgroups")(subgroups)
app.command("site")(site)
app.command("serve")(serve)
app.command("issue")(issue)
app.command("verify")(verify)


@app.command("key")
def key(name: Annotated[str, typer.Argument(help="The site's name in the plan.")]) -> None:
    """Print a line for the server's keys file and, once, the site's key (only its hash goes to the server)."""
    fresh = new_key()
    typer.echo(f"{name}: {hash_key(fresh)}")
    typer.echo(f"# key of {name}, shown this once: {fresh}")
