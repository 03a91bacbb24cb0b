"""A calibration site as a Flower ClientApp.

The SuperNode's own configuration names the site, its copy of the plan, its records and its state; the server's message
says only which round is open and what it asks. What leaves is a release, made once and stored before it is sent
(`reticent.accounting.calibration.site`).

Node configuration: `site`, `plan`, `records`, `state`; optional `record-cap`, `person-cap`.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.site import CalibrationSite
from reticent.accounting.calibration.site_errors import SiteError
from reticent.accounting.calibration.site_records import read_records
from reticent.accounting.calibration.site_state import SiteState
from reticent.accounting.calibration.transcript import Transcript
from reticent.accounting.fingerprint import parse_json

__all__ = ["app"]

app = ClientApp()


@app.query("who")
def who(message: Message, context: Context) -> Message:
    """Which site this node is, and which plan it has."""
    plan = _plan(context)
    return _reply(message, {"site": str(context.node_config["site"]), "plan_digest": plan.digest})


@app.query("release")
def release(message: Message, context: Context) -> Message:
    """The release for the round that the message names, or why there is none."""
    asked = message.content["request"]
    assert isinstance(asked, ConfigRecord)
    plan = _plan(context)
    if asked["plan_digest"] != plan.digest:
        return _reply(message, {"refused": "wrong_plan"})
    text = str(asked.get("transcript", ""))
    try:
        with SiteState(Path(str(context.node_config["state"])), str(context.node_config["site"])) as state:
            site = CalibrationSite(
                plan,
                str(context.node_config["site"]),
                read_records(Path(str(context.node_config["records"]))),
                state,
                record_cap=_cap(context, "record-cap"),
                person_cap=_cap(context, "person-cap"),
            )
            transcript = Transcript.from_json(parse_json(text)) if text else None
            data = site.answer(int(str(asked["round"])), int(str(asked["slots"])), transcript)
    except SiteError as error:
        return _reply(message, {"refused": type(error).__name__})
    return _reply(message, {"release": data.decode("ascii")})


def _plan(context: Context) -> Plan:
    return Plan.load(str(context.node_config["plan"]))


def _cap(context: Context, name: str) -> float | None:
    value = context.node_config.get(name)
    return None if value is None else float(value)


def _reply(message: Message, content: dict[str, str]) -> Message:
    return Message(RecordDict({"reply": ConfigRecord({**content})}), reply_to=message)
