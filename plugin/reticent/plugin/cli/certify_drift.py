"""`reticent certify drift`: has deployment moved further from calibration than the plan declares?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from reticent.accounting.calibration.documents import read_file, read_object
from reticent.accounting.calibration.site_records import FieldNames, read_records
from reticent.accounting.calibration.transcript import TRANSCRIPT_FORMAT, Transcript
from reticent.accounting.certificates import Certificate
from reticent.accounting.certificates.drift import DriftAudit, audit_drift
from reticent.accounting.certificates.drift_cells import (
    CellCounts,
    NotComparable,
    counts_of_records,
    counts_of_transcript,
    require_comparable,
)
from reticent.plugin.cli.calibrate_inputs import messages
from reticent.plugin.cli.common import fail

__all__ = ["certify_drift", "drift_document"]

_UNCONFIRMED = 1


def certify_drift(
    calibration: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="A certificate or a transcript.")],
    records: Annotated[
        list[str] | None,
        typer.Option(help="SITE=FILE, once a site: labelled records (JSON lines or CSV) of its deployment."),
    ] = None,
    released: Annotated[
        Path | None,
        typer.Option(help="Instead: a transcript or certificate of the deployment, by a plan of the same grid."),
    ] = None,
    alpha: Annotated[float, typer.Option(help="α_γ, failure probability of all upper bounds together.")] = 0.05,
    at_threshold: Annotated[
        bool, typer.Option("--at-threshold", help="Only what the certified threshold can see: needs fewer records.")
    ] = False,
    score_field: Annotated[str, typer.Option(help="Key or column of the score.")] = "score",
    loss_field: Annotated[str, typer.Option(help="Key or column of the loss.")] = "loss",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Bound every site's drift from an independent labelled sample of its deployment, and compare it with γ.

    The sample is drawn from all answers, accepted or not, and labelled by the declared loss. What is printed of raw
    records is not private; with --released it is. Exit 0 when every site is confirmed, 1 otherwise.
    """
    if bool(records) == (released is not None):
        raise fail("give --records SITE=FILE or --released FILE, and not both", 2)
    with messages():
        transcript, threshold = _transcript(calibration)
        fields = FieldNames(score_field, loss_field)
        samples = _released(transcript, released) if released else _records(transcript, records or [], fields)
        if at_threshold and threshold is None:
            raise NotComparable("threshold", "the transcript certifies none")
        audit = audit_drift(transcript, samples, alpha, threshold=threshold if at_threshold else None)
    if as_json:
        typer.echo(json.dumps(drift_document(audit, is_private=released is not None)))
    else:
        _print(audit)
    if audit.unconfirmed:
        raise typer.Exit(_UNCONFIRMED)


def drift_document(audit: DriftAudit, *, is_private: bool) -> dict[str, Any]:
    """The audit as JSON values."""
    return {
        "alpha": audit.alpha,
        "threshold": audit.threshold,
        "cells": audit.cells,
        "sites": [
            {
                "site": site.site,
                "declared": site.declared,
                "upper": site.upper,
                "lower": site.lower,
                "distance": site.distance,
                "calibration_slots": site.calibration_slots,
                "deployment_slots": site.deployment_slots,
                "verdict": site.verdict,
            }
            for site in audit.sites
        ],
        "exceeding": list(audit.exceeding),
        "unconfirmed": list(audit.unconfirmed),
        "declared_transfer": audit.declared_transfer,
        "audited_transfer": audit.audited_transfer,
        "private": is_private,
    }


def _transcript(path: Path) -> tuple[Transcript, float | None]:
    """The transcript in a file, and the threshold that its certificate names."""
    value = read_file(path, "file")
    if read_object(value, "file").get("format") == TRANSCRIPT_FORMAT:
        return Transcript.from_json(value), None
    certificate = Certificate.from_json(value)
    return certificate.transcript, certificate.threshold


def _released(calibration: Transcript, path: Path) -> dict[str, CellCounts]:
    deployment, _ = _transcript(path)
    require_comparable(calibration.plan, deployment.plan)
    if deployment.plan.digest == calibration.plan.digest:
        raise NotComparable(
            "plan", "this is the calibration itself; its deployment needs a plan and records of its own"
        )
    return counts_of_transcript(deployment)


def _records(transcript: Transcript, pairs: list[str], fields: FieldNames) -> dict[str, CellCounts]:
    found: dict[str, CellCounts] = {}
    for pair in pairs:
        site, separator, file = pair.partition("=")
        if not separator or not file or site in found:
            raise ValueError(f"--records takes SITE=FILE, once a site, not {pair!r}")
        transcript.plan.site_index(site)
        labelled = read_records(Path(file), fields)
        found[site] = counts_of_records(transcript.plan, ((r.score, r.loss) for r in labelled))
    return found


def _print(audit: DriftAudit) -> None:
    table = Table("site", "records", "declared γ", "drift at most", "at least", "verdict")
    for site in audit.sites:
        slots = f"{site.calibration_slots} / {site.deployment_slots}"
        numbers = (f"{x:.4f}" for x in (site.declared, site.upper, site.lower))
        table.add_row(site.site, slots, *numbers, _WORDS[site.verdict])
    where = "all cells" if audit.threshold is None else f"the three cells at threshold {audit.threshold:g}"
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"α = {audit.alpha:g}, {where}; η declared {audit.declared_transfer:.4f}, ", end="")
    console.print(f"with the audited bounds {audit.audited_transfer:.4f}")


_WORDS = {"within": "confirmed", "exceeds": "exceeds the declared", "open": "not confirmed"}
