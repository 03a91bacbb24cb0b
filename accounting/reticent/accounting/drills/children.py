"""Child processes of a drill, and the lines that are passed to and fro."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TextIO

__all__ = ["hear", "start_python", "tell"]


def start_python(arguments: Sequence[str], said: TextIO) -> subprocess.Popen[str]:
    """Run Python with these arguments and this process's import path; its standard error goes to ``said``.

    What it is to do is told to its standard input: a ledger's location may hold a password, and arguments are there
    for everybody to read. It is in a session of its own, so that a Ctrl-C is for the drill, which then stops it.
    """
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )


def tell(process: subprocess.Popen[str], line: str) -> None:
    """Write a line to a child; one that has ended is noticed by the next `hear`."""
    if process.stdin is not None:
        try:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        except BrokenPipeError:
            return


def hear(process: subprocess.Popen[str]) -> str:
    """The child's next line, or nothing if it has ended."""
    return process.stdout.readline() if process.stdout is not None else ""
