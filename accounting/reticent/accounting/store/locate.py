"""One way to name a ledger: a path is a SQLite file, `postgresql://...` a PostgreSQL database."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Final

from reticent.accounting import audit
from reticent.accounting.audit import Report
from reticent.accounting.journal import JournalHead
from reticent.accounting.ledger import Ledger
from reticent.accounting.ledger_errors import InvalidArgument, LedgerUnavailable
from reticent.accounting.store.sqlite import SqliteLedger

__all__ = ["is_postgres", "open_ledger", "verify_ledger"]

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_POSTGRES: Final = ("postgresql", "postgres")
_NEEDED: Final = ("psycopg", "sqlalchemy", "alembic")


def is_postgres(location: str | Path) -> bool:
    """Whether it names a PostgreSQL database. `InvalidArgument` for a URL of something else."""
    scheme = _SCHEME.match(location) if isinstance(location, str) else None
    if scheme is None:
        return False
    if scheme[1] not in _POSTGRES:
        raise InvalidArgument("location", f"the path of a file, or postgresql://...; not {scheme[1]}://")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        text = f"a PostgreSQL ledger needs {', '.join(missing)}: install the extra, pip install 'reticent[postgres]'"
        raise LedgerUnavailable(text, "nothing_written")
    return True


def open_ledger(location: str | Path, *, create: bool = False) -> Ledger:
    """Open the ledger, or with `create` make it where there is none: see `SqliteLedger` and `PostgresLedger`.

    `LedgerUnavailable` where a PostgreSQL ledger is named and the extra `postgres` is not installed.
    """
    if is_postgres(location):
        from reticent.accounting.store.postgres import PostgresLedger

        return PostgresLedger(str(location), create=create)
    return SqliteLedger(location, create=create)


def verify_ledger(location: str | Path, anchor: JournalHead | None = None) -> Report:
    """The independent auditor's report: see `audit.verify`. The ledger need not be one that can be opened."""
    pinned = None if anchor is None else (anchor.seq, anchor.hash)
    if is_postgres(location):
        from reticent.accounting import audit_postgres

        return audit_postgres.verify(str(location), anchor=pinned)
    return audit.verify(location, anchor=pinned)
