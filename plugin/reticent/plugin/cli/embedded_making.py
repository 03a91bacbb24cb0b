"""`reticent embedded reward-head | development | certificate`: how the shipped head and certificate were made."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import openai
import typer

from reticent.accounting.certificates import NotCertified
from reticent.accounting.store.sqlite import SqliteLedger
from reticent.plugin.cli.common import fail, load_or_exit, say
from reticent.plugin.cli.serve import running_vllm
from reticent.plugin.embedded.calibration import Respondent, calibrate
from reticent.plugin.embedded.engine import engine_arguments, set_engine_environment
from reticent.plugin.embedded.making import calibration_config, development_report, lines_of, make_head, make_plan
from reticent.plugin.embedded.state import State
from reticent.plugin.settings import load_settings
from reticent.plugin.tenants import hash_key, new_key

__all__ = ["certificate", "development", "reward_head"]


def reward_head(prepared: State, folder: Path) -> None:
    """Draw preference pairs (or take those in the folder), train the head, write it and its report."""
    report = make_head(prepared.model, prepared.folder, folder)
    typer.echo("\n".join(lines_of(report)))
    say("the new head has a name of its own, so the installed certificate does not fit it: make certificate")


def development(prepared: State, folder: Path) -> None:
    """Accuracy, and the scores' AUC and risk, on the development split."""
    typer.echo(
        "\n".join(lines_of(development_report(prepared.model, prepared.folder, load_or_exit(folder / "reticent.yaml"))))
    )


def certificate(prepared: State, folder: Path, target_risk: float) -> None:
    """Calibrate through a running server and write `certificate.json`; exit 1 if nothing was certified."""
    settings = load_or_exit(folder / "reticent.yaml")
    plan = make_plan(prepared.model, prepared.folder, settings, target_risk)
    looks = ", ".join(str(look) for look in plan.schedule.looks())
    say(f"plan {plan.digest[:16]}: risk at most {target_risk:g}, ε = {plan.epsilon:g}, looks after {looks} events")
    key, here = new_key(), prepared.folder / "calibration"
    config = calibration_config(folder / "reticent.yaml", here, hash_key(key))
    ledger = here / "ledger.db"
    for stale in here.glob("ledger.db*"):
        stale.unlink()
    SqliteLedger(ledger, create=True).close()
    os.environ["RETICENT_LEDGER__PATH"] = str(ledger.resolve())
    os.environ.pop("RETICENT_TENANTS_FILE", None)
    set_engine_environment()
    calibrating = load_settings(config)
    base_url = f"{calibrating.server.local_url}/v1"
    with running_vllm(str(prepared.model), engine_arguments(), config, calibrating, here / "vllm.log"):
        respondent = Respondent(base_url, key, calibrating.model.name, plan.fingerprint.digest)
        try:
            issued = asyncio.run(calibrate(plan, respondent, say))
        except NotCertified as error:
            raise fail(f"not certified: {error}") from None
        except (openai.OpenAIError, RuntimeError) as error:
            raise fail(f"the calibration stopped: {error}") from None
    issued.save(folder / "certificate.json")
    say(f"its answers cost {respondent.charged:.3f} nats of the preference data's budget (a ledger of its own)")
    typer.echo("\n".join(lines_of(issued.declaration())))
