"""What the subcommands share: loading a configuration or ending with a message, and starting child processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from reticent.plugin.settings import Settings

__all__ = ["LedgerLocation", "fail", "load_or_exit", "say", "stop"]

_TERM_SECONDS = 100.0
"""More than vLLM waits for its requests (--shutdown-timeout) and the surface for its own after that."""

LedgerLocation = Annotated[
    str,
    typer.Argument(
        metavar="LOCATION",
        envvar="RETICENT_LEDGER_LOCATION",
        help="The ledger's file, or postgresql://user@host/database. Its password is better kept in a password file "
        "(~/.pgpass) or in PGPASSWORD than in a command that others can read.",
    ),
]


def say(message: str) -> None:
    """A line of progress, on standard error."""
    sys.stderr.write(f"reticent: {message}\n")
    sys.stderr.flush()


def fail(message: str, code: int = 1) -> typer.Exit:
    """Say what is wrong; raise the result."""
    say(message)
    return typer.Exit(code)


def load_or_exit(path: Path) -> Settings:
    """The settings, or an end with a message."""
    # Here, because pydantic takes longer to import than some commands that read no settings take to run.
    from reticent.plugin.settings import ConfigurationError, load_settings

    try:
        return load_settings(path)
    except ConfigurationError as error:
        raise fail(str(error), 78) from None


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a child, which leads a process group of its own, to end; kill that group when it does not."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + _TERM_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
    finally:
        # Also when a second Ctrl-C ends the wait: the group is in a session of its own, where no terminal reaches it.
        # What the child started and did not end (vLLM's engine process) is in its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
