"""`reticent tenants`: keys for the configuration."""

from __future__ import annotations

from typing import Annotated

import typer
import yaml

from reticent.plugin.tenants import hash_key, new_key

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Tenants and their keys.")


@app.callback()
def _group() -> None:
    """Tenants and their keys."""


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="The tenant's id.")],
    epsilon: Annotated[float, typer.Option(help="Lifetime ε of the tenant.")],
    user_epsilon: Annotated[float, typer.Option(help="Lifetime ε of each of its users.")],
    delta: Annotated[float, typer.Option(help="δ of both.")] = 1e-6,
) -> None:
    """Print a section for `tenants:` and, once, the tenant's key (only its hash goes into the configuration)."""
    key = new_key()
    section = {
        "id": name,
        "key_sha256": [hash_key(key)],
        "budget": {"epsilon": epsilon, "delta": delta},
        "user_budget": {"epsilon": user_epsilon, "delta": delta},
    }
    typer.echo(yaml.safe_dump([section], sort_keys=False))
    typer.echo(f"# key of {name}, shown this once: {key}")
