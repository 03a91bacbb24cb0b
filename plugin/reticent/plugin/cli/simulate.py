"""`reticent simulate`: what rules and parameters do on a pool of scored answers, before anything goes live."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from reticent.accounting.errors import AccountingError
from reticent.accounting.studies.pools.choose import Choice, choose
from reticent.accounting.studies.pools.files import Pool
from reticent.accounting.studies.pools.question import Question
from reticent.accounting.studies.pools.replicates import Replicated, replicate
from reticent.accounting.studies.pools.results import Row, rows
from reticent.accounting.studies.pools.run import CheckpointError, evaluate
from reticent.plugin.cli.common import say
from reticent.plugin.cli.plan_inputs import bad_input, budget_of
from reticent.plugin.cli.simulate_inputs import (
    bound_of,
    default_candidates,
    numbers_of,
    pool_of,
    whole_numbers_of,
    words_of,
)
from reticent.plugin.cli.simulate_plots import draw, require_plotting
from reticent.plugin.cli.simulate_views import choice_tables, table, write_csv

__all__ = ["simulate"]


class DrawsOption(StrEnum):
    """How n candidates come out of the pool."""

    distinct = "distinct"
    bootstrap = "bootstrap"


def simulate(
    pool: Annotated[Path, typer.Argument(metavar="POOL", help="JSON lines, also gzipped.")],
    bound: Annotated[
        str | None, typer.Option(help="clip:LOW,HIGH or sigmoid:CENTER,SCALE: raw rewards to [0, 1]. Required.")
    ] = None,
    rules: Annotated[
        str, typer.Option(help="Of base, bon, privbon, privbon_gaussian, itp, privitp.")
    ] = "base,bon,privbon,itp,privitp",
    candidates: Annotated[str | None, typer.Option(help="n, as 1,4,16 [default: 1,2,4,… up to 64].")] = None,
    noise_scale: Annotated[
        str, typer.Option(help="σ of the private rules, as .1,.5, where rewards lie in [0, 1].")
    ] = "0.25",
    regularization: Annotated[str, typer.Option(help="β of itp and privitp, as .05,.2.")] = "0.1",
    draws: Annotated[
        DrawsOption, typer.Option(help="n different answers of a prompt, or n with replacement, as in the paper.")
    ] = DrawsOption.distinct,
    sensitivity: Annotated[float, typer.Option(help="Δ, most that one person's data move a bounded reward.")] = 1.0,
    threshold_share: Annotated[float, typer.Option(help="σ_X/σ of privitp; σ_Z is the rest.")] = 0.5,
    truncation: Annotated[float | None, typer.Option(help="L of privitp [default: sqrt(3 log n)].")] = None,
    epsilon: Annotated[float, typer.Option(help="ε of the data set's budget, nats.")] = 50.0,
    delta: Annotated[float, typer.Option(help="δ of the data set's budget.")] = 1e-6,
    order: Annotated[float | None, typer.Option(help="α of the ledger [default: the best].")] = None,
    certified_charges: Annotated[
        bool, typer.Option("--certified-charges", help="privitp by the server's table (a second for each n, σ, β).")
    ] = False,
    choosing: Annotated[
        bool, typer.Option("--choose", help="Choose n, σ, β on half of the prompts, and report on the other half.")
    ] = False,
    queries: Annotated[float, typer.Option(help="With --choose: queries that the budget must answer.")] = 10.0,
    monte_carlo: Annotated[
        int | None, typer.Option(min=2, metavar="M", help="Also play every rule M times a prompt, as a check (slow).")
    ] = None,
    reward_field: Annotated[str, typer.Option(help="The pool's key of the proxy reward.")] = "proxy_reward",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Draw into this folder, as PNG and SVG.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Save what is done to this file, and continue from it if it is there.")
    ] = None,
    sampled_sets: Annotated[int, typer.Option(help="Sets of candidates a prompt, for what is sampled.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
) -> None:
    """Accuracy, proxy reward, win rate, halting time and charge of selection rules on a pool of scored answers.

    The true reward is `gold` where a response has one, else `is_correct`. Nothing is served, spent or charged.
    """
    if figures is not None:
        require_plotting(figures)
    distinct = draws is DrawsOption.distinct
    try:
        answers = pool_of(pool, bound_of(bound), reward_field)
        question = Question(
            candidates=whole_numbers_of("--candidates", candidates)
            if candidates
            else default_candidates(answers, distinct=distinct),
            rules=words_of(rules),
            noise_scales=numbers_of("--noise-scale", noise_scale),
            regularizations=numbers_of("--regularization", regularization),
            distinct=distinct,
            sensitivity=sensitivity,
            truncation=truncation,
            threshold_share=threshold_share,
            budget=budget_of(epsilon, delta, order),
            order=order,
            certified=certified_charges,
            draws=sampled_sets,
            seed=seed,
        )
        with _progress() as told:
            found = evaluate(answers, question, progress=told, checkpoint=checkpoint)
        chosen = choose(found, queries, seed=seed) if choosing else None
    except (AccountingError, CheckpointError) as error:
        raise bad_input(str(error)) from None
    if answers.not_finite:
        say(f"{answers.not_finite} proxy rewards were NaN or infinite and count as 0, as when serving")
    made = rows(found)
    played = replicate(answers, question, monte_carlo, seed=seed) if monte_carlo else None
    if csv is not None:
        write_csv(made, csv)
    if figures is not None:
        draw(made, question, figures)
    if as_json:
        document = _document(answers, bound or "", question, made, played, chosen)
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    console = Console()
    console.print(table(made, played, question, answers, console.width))
    if chosen is not None:
        for part in choice_tables(chosen):
            console.print(part)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where that is a terminal."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("prompts", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _document(
    pool: Pool,
    bound: str,
    question: Question,
    made: list[Row],
    played: list[Replicated] | None,
    chosen: Choice | None,
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "pool": {
            "name": pool.name,
            "prompts": len(pool),
            "fewest_answers": pool.fewest,
            "most_answers": pool.most,
            "unscored": pool.unscored,
            "not_finite": pool.not_finite,
            "share_at_bounds": pool.bounded,
        },
        "bound": bound,
        "settings": question.to_dict(),
        "rows": [row.to_dict() for row in made],
    }
    if played is not None:
        for row, check in zip(document["rows"], played, strict=True):
            row["monte_carlo"] = dict(vars(check))
    if chosen is not None:
        document["choice"] = chosen.to_dict()
    return document
