"""`reticent calibrate plan`: write the frozen plan, before the first record."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.calibration.documents import read_file, read_object
from reticent.accounting.calibration.noise_scale import release_scale
from reticent.accounting.calibration.plan import Plan, Schedule, Site
from reticent.accounting.calibration.recruitment import Recruitment
from reticent.accounting.calibration.schedule import Design, expected_first_look, first_look
from reticent.accounting.calibration.site_records import read_records
from reticent.accounting.fingerprint import Fingerprint
from reticent.plugin.cli.calibrate_inputs import messages
from reticent.plugin.cli.common import say

__all__ = ["plan"]

_TRIALS, _SEED = 200, 1


class Controller(StrEnum):
    """Who is asked in a round."""

    fixed = "fixed"
    largest_deficit = "largest_deficit"


def plan(
    out: Annotated[Path, typer.Option(help="Where the plan goes; must not exist yet.")],
    target_risk: Annotated[float, typer.Option(help="r*, the mean loss of accepted answers that is to be certified.")],
    site: Annotated[list[str], typer.Option(help="NAME:WEIGHT[:DRIFT], once a site; a weight may be a fraction, 1/3.")],
    epsilon: Annotated[float, typer.Option(help="ε of one record in one release.")],
    fingerprint: Annotated[Path, typer.Option(help="The configuration's facts, a JSON object.")],
    loss: Annotated[str, typer.Option(help="Name of the declared loss.")],
    score: Annotated[str, typer.Option(help="Name of the score.")],
    delta: Annotated[float, typer.Option(help="δ of one record in one release.")] = 1e-6,
    thresholds: Annotated[
        str | None, typer.Option(help="Increasing, separated by commas [default: quantiles of --development].")
    ] = None,
    grid: Annotated[int, typer.Option(min=1, max=1000, help="How many quantiles.")] = 20,
    development: Annotated[
        Path | None,
        typer.Option(help="Labelled records (JSON lines or CSV) that no site uses: places thresholds and first look."),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--first-look", min=1, help="Records in all at the first look [default: computed].")
    ] = None,
    growth: Annotated[float, typer.Option(help="Each later look has so many times the records.")] = 1.4,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds planned.")] = 5,
    min_acceptance: Annotated[float, typer.Option(help="a_min.")] = 0.05,
    alpha_risk: Annotated[float, typer.Option(help="α_D.")] = 0.045,
    alpha_acceptance: Annotated[float, typer.Option(help="α_A.")] = 0.005,
    max_unfilled: Annotated[float, typer.Option(help="Largest share of a release's slots without a record.")] = 0.0,
    controller: Annotated[Controller, typer.Option(help="Which sites a round asks.")] = Controller.fixed,
    sites_per_round: Annotated[
        int, typer.Option(min=0, help="For largest_deficit: sites asked a round at most; 0: all that lack something.")
    ] = 0,
    rule: Annotated[str, typer.Option(help="The rule that judges.")] = "eprocess",
    release: Annotated[str, typer.Option(help="Kind of release: loss_nonloss or count_error.")] = "loss_nonloss",
) -> None:
    """Write a plan, and print its digest: register it before anybody looks at a record.

    The development records must be others than those that calibrate.
    """
    with messages():
        if out.exists():
            raise ValueError(f"{out} exists; a plan is written once")
        facts = Fingerprint(read_object(read_file(fingerprint, "fingerprint"), "fingerprint"))
        sites = tuple(_site(text) for text in site)
        claim = Claim(target_risk, min_acceptance, alpha_risk, alpha_acceptance)
        records = [(r.score, r.loss) for r in read_records(development)] if development else []
        lines = _numbers(thresholds) if thresholds is not None else _quantiles(records, grid)
        scale = release_scale(release, epsilon, delta)
        transfer = (1.0 - target_risk) * max_unfilled
        design = Design(claim, lines, scale, len(sites), contrast_transfer=transfer)
        frozen = Plan(
            target_risk=target_risk,
            thresholds=lines,
            sites=sites,
            epsilon=epsilon,
            delta=delta,
            noise_scale=scale,
            schedule=Schedule(first or _first_look(design, records), growth, rounds),
            loss=loss,
            score=score,
            fingerprint=facts,
            min_acceptance=min_acceptance,
            alpha_risk=alpha_risk,
            alpha_acceptance=alpha_acceptance,
            max_unfilled=max_unfilled,
            rule=rule,
            release=release,
            recruitment=Recruitment(controller.value, sites_per_round),
        )
        frozen.save(out)
    say(f"records in all at each look: {', '.join(str(n) for n in frozen.schedule.looks())}")
    typer.echo(frozen.digest)


def _site(text: str) -> Site:
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise ValueError(f"a site is given as NAME:WEIGHT[:DRIFT], not {text!r}")
    return Site(parts[0], *(_number(part) for part in parts[1:]))


def _number(text: str) -> float:
    try:
        return float(Fraction(text.strip()))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{text!r} is not a number") from None


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(_number(part) for part in text.split(","))


def _quantiles(records: Sequence[tuple[float, float]], grid: int) -> tuple[float, ...]:
    """`grid` scores that cut the development records into parts of about equal size; equal ones stand once."""
    if not records:
        raise ValueError("give --thresholds, or --development records to take them from")
    scores = sorted(score for score, _ in records)
    return tuple(sorted({scores[len(scores) * step // (grid + 1)] for step in range(1, grid + 1)}))


def _first_look(design: Design, records: Sequence[tuple[float, float]]) -> int:
    if records:
        return expected_first_look(records, design, _TRIALS, _SEED)
    return first_look(design.claim, len(design.thresholds), design.noise_scale, design.sites)
