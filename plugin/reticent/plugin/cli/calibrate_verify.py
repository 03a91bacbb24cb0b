"""`reticent calibrate issue` and `reticent calibrate verify`: from the transcript to the certificate, and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from reticent.accounting.calibration.documents import InvalidDocumentError, read_file, read_object
from reticent.accounting.calibration.events import RoundClosed
from reticent.accounting.calibration.transcript import TRANSCRIPT_FORMAT, Notice, Transcript
from reticent.accounting.certificates.certificate import CERTIFICATE_FORMAT, Certificate, judge_transcript
from reticent.accounting.certificates.certificate import issue as issue_certificate
from reticent.accounting.certificates.errors import NotCertified
from reticent.accounting.fingerprint import canonical_json
from reticent.plugin.cli.calibrate_inputs import messages
from reticent.plugin.cli.common import fail

__all__ = ["issue", "verify"]

PlanDigest = Annotated[
    str | None, typer.Option(help="The digest that was registered; another plan is refused (recommended).")
]


def issue(
    transcript: Annotated[Path, typer.Argument(help="transcript.json.")],
    out: Annotated[Path, typer.Option(help="Where the certificate goes; replaced as a whole.")],
    days: Annotated[float, typer.Option(min=0.001, help="Valid so many days after the last release.")] = 90.0,
    unique_items: Annotated[int | None, typer.Option(min=1, help="Distinct items among the events, if known.")] = None,
    plan_digest: PlanDigest = None,
) -> None:
    """Issue the certificate of a transcript. Exit 1 when it certifies nothing: the server then abstains."""
    with messages():
        found = Transcript.load(transcript)
        _same_plan(found, plan_digest)
        try:
            certificate = issue_certificate(found, datetime.now(UTC), timedelta(days=days), unique_items=unique_items)
        except NotCertified as error:
            raise fail(str(error)) from None
        certificate.save(out)
    typer.echo(f"threshold {certificate.threshold!r}, expires {certificate.expires_at.isoformat()}")


def verify(
    file: Annotated[Path, typer.Argument(help="A transcript or a certificate.")],
    plan_digest: PlanDigest = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay every entry and recompute the verdict; exit 1 when anything differs.

    Everything that decides is compared exactly. Bounds in a certificate from another machine may differ in the last
    places (its exp and log1p may); `exact` says whether they agree bit for bit.
    """
    with messages(invalid=1):
        report = _verified(read_file(file, "file"), plan_digest)
    for line in [json.dumps(report)] if as_json else _lines(report):
        typer.echo(line)


def _verified(value: object, plan_digest: str | None) -> dict[str, Any]:
    kind = read_object(value, "file").get("format")
    report: dict[str, Any] = {"format": kind}
    stored = None
    if kind == CERTIFICATE_FORMAT:
        certificate = Certificate.from_json(value)
        transcript, stored, again = certificate.transcript, certificate.verdict, certificate.to_json()
        report |= {"issued_at": certificate.issued_at.isoformat(), "expires_at": certificate.expires_at.isoformat()}
    elif kind == TRANSCRIPT_FORMAT:
        transcript = Transcript.from_json(value)
        again = transcript.to_json()
    else:
        raise InvalidDocumentError("file.format", "is neither a transcript's nor a certificate's")
    if canonical_json(value) != canonical_json(again):
        raise InvalidDocumentError("file", "is not what its own content gives")
    _same_plan(transcript, plan_digest)
    verdict = judge_transcript(transcript)
    closed = [n.event for n in transcript.log if isinstance(n, Notice) and isinstance(n.event, RoundClosed)]
    return report | {
        "verified": True,
        "exact": stored in (None, verdict),
        "plan_digest": transcript.plan.digest,
        "transcript_head": transcript.head,
        "releases": len(transcript.entries),
        "events": transcript.aggregate().events,
        "dropouts": {str(event.round_number): list(event.dropped) for event in closed if event.dropped},
        "certified": len(verdict.certified),
        "threshold": verdict.threshold,
    }


def _same_plan(transcript: Transcript, digest: str | None) -> None:
    if digest is not None and transcript.plan.digest != digest:
        raise InvalidDocumentError("plan", f"its digest is {transcript.plan.digest}, not the registered one")


def _lines(report: dict[str, Any]) -> list[str]:
    ending = "bit for bit" if report["exact"] else "up to the last places of the bounds"
    threshold = report["threshold"]
    return [
        f"verified {ending}: {report['releases']} releases, {report['events']} events",
        f"plan {report['plan_digest']}",
        f"dropouts {report['dropouts'] or 'none'}",
        "no threshold is certified" if threshold is None else f"certified threshold {threshold!r}",
    ]
