"""How the auditor reads a SQLite ledger: read-only, in one snapshot, as it stands in the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import apsw

from reticent.accounting.audit_errors import UnreadableLedger

__all__ = ["SqliteSource", "read_sqlite"]

_SCHEMAS: Final = (1, 2)
_TABLES: Final = {
    "datasets": "SELECT * FROM datasets",
    "scopes": "SELECT * FROM scopes",
    "reservations": "SELECT * FROM reservations",
    "claims": "SELECT claim_id, request_digest, reservation_id, answer IS NOT NULL AS answered, expires_us FROM claims",
}
# What schema 1 did not have, as the journal of such a ledger says it.
_SINCE_2: Final[dict[str, dict[str, Any]]] = {"scopes": {"unprotected": 0}, "reservations": {"claim": None}}


class SqliteSource:
    """``audit.Source`` over a read-only connection that is in a transaction."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._version = connection.execute("PRAGMA user_version").get

    def problems(self) -> Iterator[tuple[str, str]]:
        if self._version not in _SCHEMAS:
            yield "file", f"schema {self._version} is not one this auditor knows"
        if self._connection.execute("PRAGMA application_id").get != int.from_bytes(b"RTL1", "big"):
            yield "file", "the application id is not a ledger's"
        for (problem,) in self._connection.execute("PRAGMA integrity_check(20)"):
            if problem != "ok":
                yield "file", str(problem)
        for table, rowid, parent, _ in self._connection.execute("PRAGMA foreign_key_check"):
            yield str(table), f"row {rowid} refers to nothing in {parent}"

    def journal(self) -> Iterator[tuple[int, int, str, str, str, str]]:
        sql = "SELECT seq, time_us, kind, payload, previous, hash FROM journal ORDER BY seq"
        yield from cast(Iterator[tuple[int, int, str, str, str, str]], self._connection.execute(sql))

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        if self._version == 1 and table == "claims":
            return
        added = _SINCE_2.get(table, {}) if self._version == 1 else {}
        cursor = self._connection.execute(_TABLES[table])
        columns: list[str] | None = None
        for row in cursor:
            columns = columns or [column[0] for column in cursor.description]
            yield dict(zip(columns, row, strict=True)) | added


@contextmanager
def read_sqlite(path: Path) -> Iterator[SqliteSource]:
    """The ledger at ``path``; ``UnreadableLedger`` where SQLite cannot open or read it, also later, in the block."""
    # Read-only, and without SQLITE_OPEN_CREATE: an audit never makes a file.
    try:
        connection = apsw.Connection(str(path.absolute()), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error as error:
        raise UnreadableLedger(f"cannot be opened: {error}") from error
    try:
        connection.set_busy_timeout(30_000)
        connection.execute("BEGIN")
        yield SqliteSource(connection)
    except (apsw.Error, UnicodeError) as error:
        raise UnreadableLedger(f"cannot be read: {error}") from error
    finally:
        connection.close()
