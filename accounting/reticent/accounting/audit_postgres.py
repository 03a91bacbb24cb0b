"""How the auditor reads a PostgreSQL ledger: read-only, in one snapshot, from the tables themselves, not by index.

Needs psycopg (extra `postgres`). Uses nothing of the ledger or its stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import psycopg

from reticent.accounting.audit import Finding, Report, audit
from reticent.accounting.audit_errors import UnreadableLedger

__all__ = ["PostgresSource", "read_postgres", "verify"]

_SCHEMA: Final = "reticent"
_VERSIONS: Final = ("0001",)
_AT_ONCE: Final = 2000
_TABLES: Final = {
    "datasets": "SELECT dataset_id, renyi_order, guarantee, opened_seq FROM datasets",
    "scopes": "SELECT scope_id, kind, parent, dataset_id, epsilon, delta, overhead, granted, spent, reserved, open,"
    " settled, released, forfeited, unprotected, opened_seq FROM scopes",
    "reservations": "SELECT reservation_id, scope_id, worst_case, state, scored, charge, owner, expires_us, opened_seq,"
    " closed_seq, claim FROM reservations",
    "claims": "SELECT claim_id, request_digest, reservation_id, (answer IS NOT NULL)::int AS answered, expires_us"
    " FROM claims",
}
_JOURNAL: Final = "SELECT seq, time_us, kind, payload, previous, hash FROM journal ORDER BY seq"
_SETTINGS: Final = {
    "search_path": f"{_SCHEMA}, pg_temp",
    # What an index does not show could be there all the same.
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_bitmapscan": "off",
    "statement_timeout": "0",
}


class PostgresSource:
    """`audit.Source` over a connection that is in a snapshot."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    def problems(self) -> Iterator[tuple[str, str]]:
        versions = [row[0] for row in self._connection.execute("SELECT version_num FROM alembic_version")]
        if len(versions) != 1 or versions[0] not in _VERSIONS:
            yield "schema", f"version {versions} is not one this auditor knows"
        heads = self._connection.execute("SELECT seq, hash FROM journal_head").fetchall()
        last = self._connection.execute("SELECT seq, hash FROM journal ORDER BY seq DESC LIMIT 1").fetchall()
        if heads != (last or [(0, "0" * 64)]):
            yield "journal_head", f"is {heads}, the last entry {last}"
        off = "SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE tgenabled <> 'O' AND tgrelid IN"
        tables = "(SELECT oid FROM pg_class WHERE relnamespace = %s::regnamespace)"
        for table, trigger in self._connection.execute(f"{off} {tables}", (_SCHEMA,)):
            yield table, f"trigger {trigger} is not as it was made"

    def journal(self) -> Iterator[tuple[int, int, str, str, str, str]]:
        with self._connection.cursor("journal") as cursor:
            cursor.itersize = _AT_ONCE
            yield from cast(Iterator[tuple[int, int, str, str, str, str]], cursor.execute(_JOURNAL))

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        with self._connection.cursor(table) as cursor:
            cursor.itersize = _AT_ONCE
            cursor.execute(_TABLES[table])
            columns = [column.name for column in cursor.description or ()]
            for row in cursor:
                yield dict(zip(columns, row, strict=True))


@contextmanager
def read_postgres(url: str) -> Iterator[PostgresSource]:
    """The ledger at `url`; `UnreadableLedger` where it cannot be reached or read, also later, in the block."""
    try:
        connection = psycopg.connect(url, application_name="reticent-audit")
    except psycopg.ProgrammingError:
        raise UnreadableLedger("the URL is not one of PostgreSQL") from None  # what psycopg says quotes from it
    except psycopg.Error as error:
        raise UnreadableLedger(f"cannot be reached: {_without_password(url, str(error))}") from None
    try:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        for name, value in _SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, true)", (name, value))
        yield PostgresSource(connection)
    except psycopg.Error as error:
        said = error.diag.message_primary or str(error)
        raise UnreadableLedger(f"cannot be read: {type(error).__name__}: {said}") from None
    finally:
        connection.close()


def verify(url: str, *, anchor: tuple[int, str] | None = None) -> Report:
    """Audit the ledger in the database at `url`. Errors while reading are findings; nothing is written.

    `anchor` as for `audit.audit`.
    """
    try:
        with read_postgres(url) as source:
            return audit(source, anchor=anchor)
    except UnreadableLedger as error:
        unread = (Finding("database", str(error)),)
        return Report(seq=0, hash="0" * 64, datasets=0, scopes=0, reservations=0, open_reservations=0, findings=unread)


def _without_password(url: str, text: str) -> str:
    secret = str(psycopg.conninfo.conninfo_to_dict(url).get("password") or "")
    return text.replace(secret, "***") if secret else text
