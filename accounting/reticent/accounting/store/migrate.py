"""Numbered migrations for SQLite: ``migrations/NNNN_name.sql``, applied in order, each once, and never edited.

``PRAGMA user_version`` holds the number of the last one. Each is applied in a transaction of its own together with
that number, and looks again after it got the lock, so that several processes can start at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import apsw

from reticent.accounting.ledger_errors import LedgerDamaged, LedgerMissing, NotALedger, SchemaTooNew

__all__ = ["APPLICATION_ID", "Migration", "check_schema", "load_migrations", "migrate"]

APPLICATION_ID = int.from_bytes(b"RTL1", "big")


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    script: str


@cache
def load_migrations() -> tuple[Migration, ...]:
    """The migrations of this version, 1, 2, 3, ...; ``LedgerDamaged`` if a number is missing or double."""
    found = []
    for file in (files("reticent.accounting.store") / "migrations").iterdir():
        number, _, rest = file.name.partition("_")
        if rest.endswith(".sql"):
            found.append(Migration(int(number), file.name, file.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    if not found or [m.number for m in found] != list(range(1, len(found) + 1)):
        raise LedgerDamaged(f"migrations are not numbered from 1 without gaps: {[m.name for m in found]}")
    return tuple(found)


def _pragma(connection: apsw.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").get)


def migrate(connection: apsw.Connection, *, create: bool) -> None:
    """Bring the file to this version's schema, or refuse: too new, another program's, or empty without ``create``."""
    migrations = load_migrations()
    while True:
        version = _pragma(connection, "user_version")
        if version > len(migrations):
            raise SchemaTooNew(version, len(migrations))
        if version == 0:
            _refuse_unless_empty(connection, create=create)
        elif _pragma(connection, "application_id") != APPLICATION_ID:
            raise NotALedger("the file is a database of another program")
        if version == len(migrations):
            return
        _apply(connection, migrations[version])


def _refuse_unless_empty(connection: apsw.Connection, *, create: bool) -> None:
    if connection.execute("SELECT count(*) FROM sqlite_schema").get:
        # Another process may have migrated it between the two reads.
        if _pragma(connection, "user_version") > 0:
            return
        raise NotALedger("the file is a database of another program")
    if not create:
        raise LedgerMissing("the file is empty; a new ledger is made only on request")


def _apply(connection: apsw.Connection, migration: Migration) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _pragma(connection, "user_version") == migration.number - 1:
            connection.execute(migration.script)
            connection.execute(f"PRAGMA user_version = {migration.number}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _schema(connection: apsw.Connection) -> set[tuple[str, str, str]]:
    rows = connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
    return {(str(kind), str(name), str(sql)) for kind, name, sql in rows}


@cache
def _expected_schema() -> frozenset[tuple[str, str, str]]:
    model = apsw.Connection(":memory:")
    try:
        for migration in load_migrations():
            model.execute(migration.script)
        return frozenset(_schema(model))
    finally:
        model.close()


def check_schema(connection: apsw.Connection) -> None:
    """``LedgerDamaged`` if a table, index or trigger is missing, changed or added: a backstop may be gone."""
    differing = _schema(connection) ^ _expected_schema()
    if differing:
        raise LedgerDamaged(f"not as the migrations made it: {', '.join(sorted({name for _, name, _ in differing}))}")
