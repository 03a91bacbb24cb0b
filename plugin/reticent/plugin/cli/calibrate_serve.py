"""`reticent calibrate serve`: the server that opens rounds and keeps the transcript."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.rounds import Rounds
from reticent.accounting.certificates.certificate import certifies
from reticent.plugin.calibration.keys import load_site_keys
from reticent.plugin.calibration.server import create_calibration_app
from reticent.plugin.cli.calibrate_inputs import PlanOption, messages
from reticent.plugin.cli.common import say
from reticent.plugin.logs import configure_logging

__all__ = ["serve"]


def serve(
    plan: PlanOption,
    out: Annotated[
        Path, typer.Option(help="Folder for transcript.json and refusals.jsonl; a transcript is continued.")
    ],
    keys: Annotated[Path, typer.Option(help="YAML: each site's name and the SHA-256 of its key.")],
    round_seconds: Annotated[float, typer.Option(min=0.1, help="How long a round is open.")] = 3600.0,
    stop: Annotated[
        bool, typer.Option("--stop/--no-stop", help="End at the first certificate, or run all rounds.")
    ] = True,
    host: Annotated[str, typer.Option(help="Address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port.")] = 8700,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="PEM; needed for another address than this machine's.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM.")] = None,
) -> None:
    """Open rounds, accept noised releases of the plan's sites, keep the transcript. It sees no record.

    A site that has not released when its round closes has dropped out of it. `reticent calibrate issue` makes the
    certificate.
    """
    configure_logging()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with messages():
        if (tls_certificate is None) != (tls_key is None):
            raise ValueError("--tls-certificate and --tls-key go together")
        for file in (tls_certificate, tls_key):
            if file is not None:
                file.open("rb").close()
        frozen = Plan.load(plan)
        site_keys = load_site_keys(keys, frozen)
        rounds = Rounds(frozen, out, timedelta(seconds=round_seconds), certified=certifies if stop else None)
        with rounds:
            say(f"plan {frozen.digest}")
            scheme = "http" if tls_certificate is None else "https"
            say(f"serving on {scheme}://{host}:{port}")
            uvicorn.run(
                create_calibration_app(rounds, site_keys),
                host=host,
                port=port,
                http="httptools",
                ws="none",
                access_log=False,
                log_config=None,
                timeout_graceful_shutdown=10,
                ssl_certfile=tls_certificate,
                ssl_keyfile=tls_key,
            )
