"""`reticent rewards serve`: the reward worker as a process of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from reticent.plugin.cli.common import fail, load_or_exit
from reticent.plugin.rewards_source import read_secret, worker_model
from reticent.plugin.settings import ConfigurationError

__all__ = ["serve"]


def serve(config: Annotated[Path, typer.Option(help="The reticent configuration file.")]) -> None:
    """Serve the configured reward model (`rewards.head` or `rewards.model`) where `rewards.socket` or `.host` says."""
    from reticent.rewards import worker
    from reticent.rewards.profile import ModelProfile
    from reticent.rewards.protocol import SECRET_VARIABLE

    rewards = load_or_exit(config).rewards
    if rewards.managed:
        raise fail("rewards.managed is true: the server starts its own worker there. Set it to false", 78)
    try:
        model, secret = worker_model(rewards), read_secret(rewards.secret_file)
    except ConfigurationError as error:
        raise fail(str(error), 78) from None
    arguments = ["--threads", str(rewards.threads)]
    if isinstance(model, ModelProfile):
        arguments += ["--profile", model.to_json()]
    else:
        arguments += ["--head", str(model)]
    if rewards.host is not None:
        arguments += ["--host", rewards.host, "--port", str(rewards.port)]
    else:
        arguments += ["--socket", str(rewards.socket)]
    os.environ[SECRET_VARIABLE] = secret
    # Nothing is ever looked up or fetched from a hub.
    os.environ["HF_HUB_OFFLINE"] = "1"
    raise typer.Exit(worker.main(arguments))
