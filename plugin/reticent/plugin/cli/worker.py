"""The reward worker as a child of the command that needs it."""

from __future__ import annotations

import contextlib

from reticent.plugin.cli.common import fail, say
from reticent.plugin.rewards_source import read_secret, worker_model
from reticent.plugin.settings import ConfigurationError, Settings
from reticent.rewards.errors import WorkerError
from reticent.rewards.process import WorkerProcess
from reticent.rewards.supervisor import Supervisor

__all__ = ["enter_worker"]


def enter_worker(stack: contextlib.ExitStack, settings: Settings) -> WorkerProcess | None:
    """Start the configured worker until `stack` closes, again whenever it ends.

    None where the operator runs it (`rewards.managed: false`).
    """
    rewards = settings.rewards
    if not rewards.managed or rewards.socket is None:
        return None
    say("starting the reward worker")
    try:
        secret = read_secret(rewards.secret_file)
        model = worker_model(rewards)
        process = WorkerProcess(model, rewards.socket, threads=rewards.threads, secret=secret, progress=say)
        worker = stack.enter_context(process)
    except ConfigurationError as error:
        raise fail(str(error), 78) from None
    except WorkerError as error:
        raise fail(f"the reward worker did not start: {error}") from None
    stack.enter_context(Supervisor(worker, say))
    return worker
