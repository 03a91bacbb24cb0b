"""Reading a ledger's journal as an auditor does: from the store itself, changing nothing, whichever kind it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reticent.accounting.audit_errors import UnreadableLedger
from reticent.accounting.audit_sqlite import read_sqlite
from reticent.accounting.store.locate import is_postgres

__all__ = ["RawEntry", "read_journal"]

RawEntry = tuple[int, int, str, str, str, str]
"""seq, time_us, kind, payload, previous and hash, as the journal's format has them."""


def read_journal(location: str) -> Iterator[RawEntry]:
    """Every entry, by seq, in one snapshot.

    Raises:
        UnreadableLedger: the file or database cannot be read.
        LedgerError: the location is none, or a PostgreSQL ledger is named and the extra `postgres` is not installed.
    """
    try:
        if is_postgres(location):
            from reticent.accounting.audit_postgres import read_postgres

            with read_postgres(location) as database:
                yield from database.journal()
        else:
            with read_sqlite(Path(location)) as file:
                yield from file.journal()
    except UnreadableLedger as error:
        where = "the database" if is_postgres(location) else location
        raise UnreadableLedger(f"{where} {error}") from None
