"""`reticent calibrate subgroups`: from one plan to a family of plans, one a subgroup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.subgroups import subgroup_plans
from reticent.plugin.cli.calibrate_inputs import PlanOption, messages
from reticent.plugin.cli.common import say

__all__ = ["subgroups"]


def subgroups(
    plan: PlanOption,
    name: Annotated[list[str], typer.Option(help="A subgroup's name, once each.")],
    out: Annotated[Path, typer.Option(help="Folder for NAME.plan.json; none of them may exist yet.")],
    overlap: Annotated[
        int, typer.Option(min=1, help="Most subgroups that one record can belong to; 1: they are disjoint.")
    ] = 1,
) -> None:
    """Write one plan a subgroup, with α (and with an overlap also ε and δ) split, and print name and digest of each.

    Each plan is calibrated by itself, with its own records, server and certificate; all of them go into
    `gate.certificates`, and the tenants' `policy.subgroups` says whose requests belong to which.
    """
    with messages():
        family = subgroup_plans(Plan.load(plan), name, overlap=overlap)
        files = [out / f"{member.subgroup.name}.plan.json" for member in family if member.subgroup is not None]
        if standing := [str(file) for file in files if file.exists()]:
            raise ValueError(f"{standing[0]} exists; a plan is written once")
        out.mkdir(parents=True, exist_ok=True)
        for file, member in zip(files, family, strict=True):
            member.save(file)
    say(
        f"α of each: {family[0].alpha_risk:g} + {family[0].alpha_acceptance:g}; ε of one release: {family[0].epsilon:g}"
    )
    for file, member in zip(files, family, strict=True):
        typer.echo(f"{file.name} {member.digest}")
