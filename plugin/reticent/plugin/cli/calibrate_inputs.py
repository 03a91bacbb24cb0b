"""What the calibration commands share: the plan's option, reading key files, or ending with a message."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from reticent.accounting.errors import AccountingError
from reticent.plugin.cli.common import fail
from reticent.plugin.settings import ConfigurationError

__all__ = ["PlanOption", "messages", "read_key"]

PlanOption = Annotated[Path, typer.Option("--plan", help="The registered plan (JSON).")]
BAD_INPUT = 78


@contextmanager
def messages(invalid: int = BAD_INPUT) -> Iterator[None]:
    """Turn the errors that bad input causes into a message and an exit status.

    The status is 78 for a file that cannot be read or written, and `invalid` for what cannot be used.
    """
    try:
        yield
    except OSError as error:
        raise fail(f"{error.filename or 'a file'}: {error.strerror or error}", BAD_INPUT) from None
    except (AccountingError, ConfigurationError, ValueError) as error:
        raise fail(str(error), invalid) from None


def read_key(path: Path) -> str:
    """A site's key from its file, which only its owner may read.

    Raises:
        OSError: the file cannot be read.
        ConfigurationError: others can read it, or it holds no key.
    """
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigurationError(f"{path} must be readable by its owner only (chmod 600)")
    try:
        key = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: the key must be plain ASCII") from None
    if not key or len(key.split()) != 1:
        raise ConfigurationError(f"{path}: must hold the site's key and nothing else")
    return key
