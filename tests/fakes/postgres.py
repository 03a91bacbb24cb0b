"""A real PostgreSQL server of the tests' own, as the drills start one, and what else only tests do to a ledger."""

from __future__ import annotations

import psycopg

from reticent.accounting.drills.temporary_postgres import OLDEST, PostgresServer, find_binaries, running_server

__all__ = ["OLDEST", "PostgresServer", "edit", "empty_ledger", "find_binaries", "running_server"]


def edit(url: str, *statements: str) -> None:
    """Change a ledger as somebody could who owns the database: no trigger fires, no reference is looked at."""
    with psycopg.connect(url) as connection:
        connection.execute("SET search_path = reticent; SET session_replication_role = replica")
        for statement in statements:
            connection.execute(statement.encode())


def empty_ledger(url: str) -> None:
    """Take all rows out of a ledger's tables. Far quicker than a new database, or truncated tables."""
    tables = ("claims", "reservations", "scopes", "datasets", "journal")
    edit(url, *(f"DELETE FROM {table}" for table in tables), f"UPDATE journal_head SET seq = 0, hash = '{'0' * 64}'")
