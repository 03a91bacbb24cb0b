"""`reticent plan`: what a query costs and how many a budget answers, before anything is spent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from reticent.accounting.errors import AccountingError
from reticent.accounting.planning.compare import compare
from reticent.accounting.planning.laws import RewardLaw, parse_law
from reticent.accounting.planning.report import plan_privbon, plan_privitp
from reticent.plugin.cli.plan_inputs import Given, Question, bad_input, bounds_of, from_configuration, grid_of, settle
from reticent.plugin.cli.plan_plots import draw_comparison, draw_plan, require_plotting
from reticent.plugin.cli.plan_views import comparison_tables, plan_tables

__all__ = ["plan"]


class RuleOption(StrEnum):
    """The private rules."""

    privbon = "privbon"
    privitp = "privitp"


class NoiseOption(StrEnum):
    """PrivBoN's noise."""

    gumbel = "gumbel"
    gaussian = "gaussian"


class GuaranteeOption(StrEnum):
    """What a budget promises."""

    dp = "dp"
    probabilistic = "probabilistic"


def plan(
    rule: Annotated[RuleOption | None, typer.Option(help="Selection rule [default: privbon].")] = None,
    reward_max: Annotated[float | None, typer.Option(help="R, rewards lie in [0, R] [default: 1].")] = None,
    sensitivity: Annotated[float | None, typer.Option(help="Δ, most that one person's data move a reward.")] = None,
    noise_scale: Annotated[float | None, typer.Option(help="σ; for privitp it is split, σ_X = σ_Z = σ/2.")] = None,
    threshold_noise: Annotated[float | None, typer.Option(help="σ_X, privitp's phase 1.")] = None,
    reward_noise: Annotated[float | None, typer.Option(help="σ_Z, privitp's phase 2.")] = None,
    noise: Annotated[NoiseOption, typer.Option(help="PrivBoN's noise.")] = NoiseOption.gumbel,
    regularization: Annotated[float | None, typer.Option(help="β of privitp.")] = None,
    truncation: Annotated[float | None, typer.Option(help="L of privitp [default: sqrt(3 log n)].")] = None,
    candidates: Annotated[int | None, typer.Option(help="n, candidates a phase [default: 8].")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of the data set's budget, nats.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ of the data set's budget [default: 1e-6].")] = None,
    guarantee: Annotated[GuaranteeOption | None, typer.Option(help="What is promised [default: dp].")] = None,
    order: Annotated[
        float | None, typer.Option(help="α of the ledger [default: the best for each accounting].")
    ] = None,
    rewards: Annotated[
        str, typer.Option(help="Reward law: beta:a,b, uniform, point:v, or a pool file (JSON lines, also gzipped).")
    ] = "uniform",
    reward_bounds: Annotated[
        str | None, typer.Option(help="LOW,HIGH: raw rewards of the pool that become 0 and R.")
    ] = None,
    reward_field: Annotated[str, typer.Option(help="The pool's key of the reward.")] = "proxy_reward",
    config: Annotated[
        Path | None, typer.Option(help="Take what is not given here from a server's configuration.")
    ] = None,
    comparison: Annotated[
        bool,
        typer.Option(
            "--compare", help="Both rules over a grid of parameters; a parameter that is given is held fixed."
        ),
    ] = False,
    limit: Annotated[
        bool, typer.Option("--limit", help="Also the most that any accountant could answer (takes a while).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw to this .png or .svg file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulated rewards.")] = 0,
) -> None:
    """Say what one query costs, by outcome, and how many queries a budget answers under each accounting.

    Nothing is spent, and no server is needed. Amounts are nats of privacy loss at the ledger's order.
    """
    given = Given(
        rule=rule.value if rule else None,
        reward_max=reward_max,
        sensitivity=sensitivity,
        noise_scale=noise_scale,
        threshold_noise=threshold_noise,
        reward_noise=reward_noise,
        regularization=regularization,
        truncation=truncation,
        candidates=candidates,
        epsilon=epsilon,
        delta=delta,
        guarantee=guarantee.value if guarantee else None,
        order=order,
    )
    if plot is not None:
        require_plotting(plot)
    if comparison and limit:
        raise bad_input("--limit is of one rule; leave out --compare")
    try:
        question = settle(from_configuration(config, given) if config else given)
        bounds = bounds_of(reward_bounds)
        law = parse_law(rewards, question.reward_max, bounds, reward_field=reward_field, seed=seed)
        shown: Shown = (
            _compared(question, given, law, seed) if comparison else _planned(question, law, noise, limit, seed)
        )
    except AccountingError as error:
        raise bad_input(str(error)) from None
    if as_json:
        typer.echo(json.dumps(shown.document, indent=2, allow_nan=False))
    else:
        for table in shown.tables:
            Console().print(table)
    if plot is not None:
        shown.draw(plot)


@dataclass(frozen=True)
class Shown:
    """A result in its three forms."""

    document: dict[str, Any]
    tables: Sequence[RenderableType]
    draw: Callable[[Path], None]


def _compared(question: Question, given: Given, law: RewardLaw, seed: int) -> Shown:
    found = compare(
        question.reward_max,
        question.sensitivity,
        question.candidates,
        law,
        question.budget,
        grid=grid_of(question, given),
        order=question.order,
        seed=seed,
    )
    return Shown(found.to_dict(), comparison_tables(found), lambda path: draw_comparison(found, path))


def _planned(question: Question, law: RewardLaw, noise: NoiseOption, limit: bool, seed: int) -> Shown:
    if question.rule == "privbon":
        mechanism = question.privbon(gaussian=noise is NoiseOption.gaussian)
        found = plan_privbon(mechanism, law, question.budget, order=question.order, seed=seed)
    elif noise is NoiseOption.gaussian:
        raise bad_input("--noise is of privbon; privitp's noise is Gaussian anyway")
    else:
        found = plan_privitp(question.privitp(), law, question.budget, order=question.order, seed=seed)
    if limit:
        found = found.with_limit(seed=seed)
    return Shown(found.to_dict(), plan_tables(found), lambda path: draw_plan(found, path))
