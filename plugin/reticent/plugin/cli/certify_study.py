"""`reticent certify study`: how often a rule certifies a synthetic cell, after how many events, and whether rightly."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from reticent.accounting.errors import AccountingError
from reticent.accounting.studies.certificates.conformal import OneShot, one_shot
from reticent.accounting.studies.certificates.populations import fitted_cell
from reticent.accounting.studies.certificates.study import Result, Study, run
from reticent.plugin.cli.common import fail

__all__ = ["certify_study"]

_ONE_SHOT = "one_shot_conformal"
_ONE_SHOT_RECORDS = 1000
_ONE_SHOT_MISCOVERAGE = 0.1


class CellOption(StrEnum):
    """The fitted cells."""

    c1 = "c1"
    halueval = "halueval"


class ScheduleOption(StrEnum):
    """When the rule looks."""

    paper = "paper"
    own = "own"
    dev = "dev"
    long = "long"


class ReleaseOption(StrEnum):
    """What sites release."""

    paper = "paper"
    plain = "plain"


def certify_study(
    cell: Annotated[
        CellOption,
        typer.Option(help="c1 (RAGTruth QA) or halueval (HaluEval QA): synthetic, fitted to published figures."),
    ],
    target: Annotated[float, typer.Option(help="r*, the risk to certify.")],
    epsilon: Annotated[float, typer.Option(help="ε of one slot at δ = 1e-6; inf for no noise.")],
    rule: Annotated[
        str,
        typer.Option(
            help="A rule (eprocess, fed_src_c, fed_src_va, ratio, normal_mixture, crossing_line), a comparator "
            "(central_ltt, federated_non_private, local_only, private_fixed_time, schedule_conditioned, "
            "anytime_valid_crc, yu_liu, csa, capital_heuristic, one_shot_conformal), or CONTROL:RULE, broken on "
            "purpose (noise_ignored, variance_halved, shift_ignored, after_stopping, naive)."
        ),
    ] = "eprocess",
    schedule: Annotated[
        ScheduleOption,
        typer.Option(
            help="paper: 30 rounds of 1000; own: geometric, no data needed; dev: from a development split; "
            "long: 400 rounds of 1000."
        ),
    ] = ScheduleOption.own,
    release: Annotated[
        ReleaseOption | None,
        typer.Option(
            help="paper: counts and errors, continuous noise of the zCDP scale; plain: loss and non-loss, discrete "
            "noise of the exact scale [default: the rule's own]."
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Simulated calibrations.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulation.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate calibrations of a synthetic cell, and say how often a rule certifies, when, and whether rightly.

    Every schedule but long ends at 30,000 events. Acceptance and risk are the true ones of the chosen threshold.
    Violations are trials in which any bound at any threshold and look was wrong. Nothing is released.
    """
    if rule == _ONE_SHOT:
        found = one_shot(fitted_cell(cell.value), _ONE_SHOT_RECORDS, _ONE_SHOT_MISCOVERAGE, trials, seed)
        _show_one_shot(cell.value, found, trials, seed, as_json)
        return
    study = Study(
        cell.value, rule, target, epsilon, trials, seed, schedule.value, None if release is None else release.value
    )
    try:
        result = run(study)
    except (AccountingError, ValueError) as error:
        raise fail(str(error), 2) from None
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2, allow_nan=False))
    else:
        Console().print(_table(result))


def _table(result: Result) -> Table:
    s = result.study
    epsilon = "∞" if math.isinf(s.epsilon) else f"{s.epsilon:g}"
    title = f"{s.cell}, {s.rule}, r* = {s.target_risk:g}, ε = {epsilon}, {s.schedule} schedule, {s.trials} trials"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("", justify="right")
    rows = (
        ("fired", f"{result.fired:g}"),
        ("median events", _shown(result.median_events, ",.0f")),
        ("acceptance", _shown(result.acceptance, ".3f")),
        ("risk", _shown(result.risk, ".3f")),
        ("violations", f"{result.violations:g}"),
        ("false certifications", f"{result.false_certifications:g}"),
        ("release", f"{result.release}, σ = {result.noise_scale:.4g}"),
        ("looks at most", f"{result.looks}"),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def _show_one_shot(cell: str, found: OneShot, trials: int, seed: int, as_json: bool) -> None:
    document = {
        "cell": cell,
        "rule": _ONE_SHOT,
        "trials": trials,
        "seed": seed,
        "records_per_site": _ONE_SHOT_RECORDS,
        "declared_coverage": 1.0 - _ONE_SHOT_MISCOVERAGE,
        "expected_coverage_of_like_sites": found.chosen.coverage,
        "coverage": found.coverage,
        "set_size": found.size,
        "trials_below_declared": found.trials_below,
    }
    if as_json:
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    typer.echo("Prediction sets, without privacy: their coverage is not a selective risk, and no target is certified.")
    table = Table(title=f"{cell}, one-shot federated conformal prediction", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in document.items():
        table.add_row(name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
    Console().print(table)


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
