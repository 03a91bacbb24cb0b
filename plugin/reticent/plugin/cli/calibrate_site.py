"""`reticent calibrate site`: a site that answers the rounds of a calibration server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.site import CalibrationSite
from reticent.accounting.calibration.site_errors import TooFewRecords
from reticent.accounting.calibration.site_records import FieldNames, read_records
from reticent.accounting.calibration.site_state import SiteState
from reticent.plugin.calibration.client import CalibrationClient, ServerProblem
from reticent.plugin.cli.calibrate_inputs import PlanOption, messages, read_key
from reticent.plugin.cli.common import fail, say

__all__ = ["site"]


def site(
    plan: PlanOption,
    name: Annotated[str, typer.Option(help="This site's name in the plan.")],
    records: Annotated[Path, typer.Option(help="Labelled records: FILE.jsonl or FILE.csv with score and loss.")],
    server: Annotated[str, typer.Option(help="The calibration server, https://HOST[:PORT].")],
    key_file: Annotated[Path, typer.Option(help="File with this site's key, mode 600.")],
    state: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps what was released [default: NAME.reticent-site beside the records]."),
    ] = None,
    record_cap: Annotated[
        float | None, typer.Option(help="Largest sum of Δ²/σ² of a record [default: one release of this plan].")
    ] = None,
    person_cap: Annotated[
        float | None, typer.Option(help="The same of a person; c records in one release count c² times.")
    ] = None,
    score_field: Annotated[str, typer.Option(help="Key or column of the score.")] = "score",
    loss_field: Annotated[str, typer.Option(help="Key or column of the loss.")] = "loss",
    id_field: Annotated[str, typer.Option(help="Key or column of the record's id.")] = "id",
    person_field: Annotated[str, typer.Option(help="Key or column of the person.")] = "person",
    poll_seconds: Annotated[float, typer.Option(min=0.05, help="How often to ask which round is open.")] = 2.0,
    patience_seconds: Annotated[
        float, typer.Option(min=0.0, help="How long to go on trying while the server cannot be reached.")
    ] = 600.0,
    ca_file: Annotated[
        Path | None,
        typer.Option(help="PEM of who vouches for the server's certificate [default: the public authorities]."),
    ] = None,
    allow_plain_http: Annotated[
        bool, typer.Option("--allow-plain-http", help="Also over http:// to another machine, which shows the key.")
    ] = False,
) -> None:
    """Answer every round that the plan asks of this site with one noised histogram, until the server has finished.

    Records and labels stay here. Start it again after a crash: what was released is sent again as it was.
    """
    folder = state or records.parent / f"{name}.reticent-site"
    fields = FieldNames(score_field, loss_field, id_field, person_field)
    with messages():
        frozen = Plan.load(plan)
        key = read_key(key_file)
        labelled = read_records(records, fields)
        with (
            SiteState(folder, name) as held,
            CalibrationClient(
                server,
                key,
                frozen,
                allow_plain=allow_plain_http,
                ca_file=ca_file,
                patience=patience_seconds,
            ) as client,
        ):
            here = CalibrationSite(frozen, name, labelled, held, record_cap=record_cap, person_cap=person_cap)
            try:
                client.check_plan()
                missed = _answer_all(client, here, frozen.recruitment.is_fixed, poll_seconds)
            except ServerProblem as error:
                raise fail(str(error)) from None
            loss = here.accountant.largest_person_loss
            say(f"{len(here.used)} records used under this plan; largest sum of Δ²/σ² of a person: {loss:.4g}")
    if missed:
        raise fail(f"rounds without a release of this site: {', '.join(map(str, sorted(missed)))}")


def _answer_all(client: CalibrationClient, here: CalibrationSite, is_fixed: bool, poll_seconds: float) -> set[int]:
    """Answer until the server has finished; the rounds that this site had to leave out."""
    missed: set[int] = set()
    while (now := client.standing()).state != "finished":
        if now.slots and not now.answered and now.round_number not in missed:
            try:
                data = here.answer(now.round_number, now.slots, None if is_fixed else client.transcript())
                client.submit(data)
                say(f"round {now.round_number}: released {now.slots} slots")
                continue
            except TooFewRecords as error:
                say(f"round {now.round_number}: {error}")
                missed.add(now.round_number)
            except ServerProblem as error:
                if error.code != "late":
                    raise
                say(f"round {now.round_number}: {error}")
                missed.add(now.round_number)
        time.sleep(poll_seconds)
    say(f"the server has finished: {now.reason}")
    return missed
