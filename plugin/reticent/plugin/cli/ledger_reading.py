"""Reading a ledger's journal as an auditor does: from the store itself, changing nothing, whichever kind it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reticent.accounting.audit_sqlite import UnreadableFileError, read_sqlite
from reticent.accounting.store.locate import is_postgres

__all__ = ["RawEntry", "Unreadable", "read_journal"]

RawEntry = tuple[int, int, str, str, str, str]
"""seq, time_us, kind, payload, previous and hash, as the journal's format has them."""


class Unreadable(Exception):  # noqa: N818  -- states what happened
    """The journal cannot be read; says why, without a password."""


def read_journal(location: str) -> Iterator[RawEntry]:
    """Every entry, by seq, in one snapshot.

    Raises:
        Unreadable: the file or database cannot be read.
        LedgerError: the location is none, or a PostgreSQL ledger is named and the extra `postgres` is not installed.
    """
    if is_postgres(location):
        from reticent.accounting.audit_postgres import UnreadableDatabase, read_postgres

        try:
            with read_postgres(location) as database:
                yield from database.journal()
        except UnreadableDatabase as error:
            raise Unreadable(f"the database {error}") from None
    else:
        try:
            with read_sqlite(Path(location)) as file:
                yield from file.journal()
        except UnreadableFileError as error:
            raise Unreadable(f"{location} {error}") from None
