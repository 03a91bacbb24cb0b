"""`reticent rewards pairs`: a pairs file from a pool of answers that are known to be right or wrong."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from reticent.plugin.cli.rewards_inputs import mistakes_end_it
from reticent.rewards.pair_sources import pairs_of_pool

__all__ = ["pairs"]


class PersonOption(StrEnum):
    """Who is taken to have given a pair."""

    none = "none"
    prompt = "prompt"


def pairs(
    pool: Annotated[Path, typer.Argument(metavar="POOL", help="JSON lines, plain or gzipped.")],
    out: Annotated[Path, typer.Option(help="The pairs file to write, gzipped JSON lines.")],
    per_prompt: Annotated[int, typer.Option(min=1, help="Most pairs of one prompt, drawn at random.")] = 4,
    person: Annotated[
        PersonOption, typer.Option(help="prompt: all pairs of a prompt are one person's. none: each is its own.")
    ] = PersonOption.none,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
) -> None:
    """Prefer right answers over wrong ones: pairs from lines {"prompt", "responses": [{"text", "is_correct"}]}."""
    from reticent.plugin.embedded.records import write_pairs

    with mistakes_end_it(str(pool)):
        made = pairs_of_pool(pool, per_prompt, seed, person.value)
    with mistakes_end_it(str(out)):
        count = write_pairs(out, made)
    typer.echo(f"{count} pairs of {len({pair.subject.prompt for pair in made})} prompts in {out}")
