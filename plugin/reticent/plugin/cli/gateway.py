"""`reticent gateway`: the same service in front of a vLLM that is already running."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from reticent.plugin.cli.common import load_or_exit, say
from reticent.plugin.cli.worker import enter_worker
from reticent.plugin.gateway import create_gateway
from reticent.plugin.logs import configure_logging
from reticent.plugin.settings import ConfigurationError

__all__ = ["gateway"]


def gateway(config: Annotated[Path, typer.Option(help="The reticent configuration file.")]) -> None:
    """Serve in front of the upstreams named in the configuration (`model.upstreams`)."""
    settings = load_or_exit(config)
    configure_logging()
    with contextlib.ExitStack() as stack:
        enter_worker(stack, settings)
        try:
            app = create_gateway(settings)
        except (ConfigurationError, ValueError) as error:
            say(str(error))
            raise typer.Exit(78) from None
        say(f"serving on http://{settings.server.host}:{settings.server.port}")
        uvicorn.run(
            app,
            host=settings.server.host,
            port=settings.server.port,
            http="httptools",
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=60,
        )
