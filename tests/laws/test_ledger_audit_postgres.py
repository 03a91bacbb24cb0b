"""The auditor finds every altered row of a PostgreSQL ledger, and what its triggers would have refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from reticent.accounting.audit import Report, audit
from reticent.accounting.ledger import ClaimRequest, dataset_scope, tenant_scope, user_scope

psycopg = pytest.importorskip("psycopg")

from reticent.accounting.audit_postgres import PostgresSource, verify  # noqa: E402
from reticent.accounting.store.postgres import PostgresLedger  # noqa: E402
from tests.fakes.postgres import edit  # noqa: E402

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer

USER = user_scope("d", "a", "u")
KEYS = {"journal": "seq", "datasets": "dataset_id", "scopes": "scope_id", "reservations": "reservation_id"}


@pytest.fixture(scope="module")
def url(postgres_server: PostgresServer) -> Iterator[str]:
    """A ledger with a reservation in every state, without the checks that would refuse what the tests change."""
    made = postgres_server.new_database()
    ledger = PostgresLedger(made, create=True)
    ledger.open_dataset("d", 2.5, "dp")
    for scope in (dataset_scope("d"), tenant_scope("d", "a"), USER):
        ledger.open_scope(scope, epsilon=1.0, delta=1e-6, overhead=7, granted=1000)
    ledger.grant(USER, 10, reason="more", actor="officer")
    for name in ("settled", "released", "forfeited", "open"):
        claim = ClaimRequest(f"key-{name}", "d" * 64, 600.0)
        ledger.reserve(name, USER, 100, lease_seconds=60, owner="o", details={"sigma": 0.1}, claim=claim)
    ledger.raise_reservation("settled", 120)
    ledger.settle("settled", 30, answer=b"content", unprotected=True)
    ledger.release("released", owner="o", reason="worker is down")
    ledger.mark_scored("forfeited")
    ledger.forfeit("forfeited", reason="worker died")
    ledger.extend_lease("open", 120)
    assert ledger.verify().findings == ()
    ledger.close()
    found = query(
        made,
        "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype IN ('c', 'f') AND conrelid <> 0",
    )
    edit(made, *(f"ALTER TABLE {t} DROP CONSTRAINT {name}" for t, name in found if t in (*KEYS, "claims")))
    assert verify(made).ok
    yield made
    postgres_server.drop_database(made)


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        connection.execute("SET search_path = reticent")
        return list(connection.execute(statement).fetchall())


def another(column: str, value: object) -> str:
    """A literal of the same type that differs as little as possible."""
    if value is None:
        return "'x'" if column in ("parent", "claim") else "1"
    if isinstance(value, str):
        last = "0" if value[-1] != "0" else "1"
        return f"'{value[:-1]}{last}'"
    if isinstance(value, float):
        return repr(value * (1 + 2**-52))
    return str(-int(str(value)) if column == "seq" else int(str(value)) + 1)


def tampered(url: str, *statements: str, anchor: tuple[int, str] | None = None) -> Report:
    """The auditor's report on a ledger that somebody changed who owns it; the change is taken back."""
    with psycopg.connect(url) as connection:
        connection.execute("SET search_path = reticent; SET session_replication_role = replica")
        for statement in statements:
            assert connection.execute(statement.encode()).rowcount != 0, statement
        try:
            return audit(PostgresSource(connection), anchor=anchor)
        finally:
            connection.rollback()


@pytest.mark.parametrize("table", KEYS)
def test_a_change_of_any_value_of_any_row_is_found(url: str, table: str) -> None:
    names = f"SELECT attname FROM pg_attribute WHERE attnum > 0 AND attrelid = '{table}'::regclass ORDER BY attnum"
    columns = [row[0] for row in query(url, names)]
    key, missed = KEYS[table], []
    for row in query(url, f"SELECT * FROM {table}"):
        name = row[columns.index(key)]
        for column, value in zip(columns, row, strict=True):
            change = f"UPDATE {table} SET {column} = {another(column, value)} WHERE {key} = '{name}'"
            if tampered(url, change).ok:
                missed.append((name, column))
    assert missed == []


@pytest.mark.parametrize("table", KEYS)
def test_a_row_removed_or_added_is_found(url: str, table: str) -> None:
    key = KEYS[table]
    new = "-1" if table == "journal" else "'x'"
    for (name,) in query(url, f"SELECT {key} FROM {table}"):
        assert not tampered(url, f"DELETE FROM {table} WHERE {key} = '{name}'").ok
        copy = f"CREATE TEMPORARY TABLE kept AS SELECT * FROM {table} WHERE {key} = '{name}'"
        added = (copy, f"UPDATE kept SET {key} = {new}", f"INSERT INTO {table} SELECT * FROM kept")
        assert not tampered(url, *added).ok


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("ALTER TABLE scopes DISABLE TRIGGER scopes_are_never_deleted", "scopes"),
        ("UPDATE journal_head SET seq = seq - 1", "journal_head"),
        ("UPDATE alembic_version SET version_num = '9'", "schema"),
        ("UPDATE claims SET answer = 'x' WHERE reservation_id = 'forfeited'", "claims "),
    ],
)
def test_what_is_beside_the_journal_is_looked_at(url: str, change: str, where: str) -> None:
    findings = tampered(url, change).findings
    assert findings
    assert all(finding.where.startswith(where) for finding in findings)


def test_a_journal_that_lost_its_end_is_found_with_an_anchor(url: str) -> None:
    last = verify(url)
    changes = (
        f"DELETE FROM journal WHERE seq = {last.seq}",
        "UPDATE journal_head SET (seq, hash) = (SELECT seq, hash FROM journal ORDER BY seq DESC LIMIT 1)",
        "UPDATE reservations SET expires_us = (SELECT time_us FROM journal WHERE seq = opened_seq) + 60000000"
        " WHERE state = 'open'",
    )
    short = tampered(url, *changes)
    assert (short.ok, short.seq) == (True, last.seq - 1)
    anchored = tampered(url, *changes, anchor=(last.seq, last.hash))
    assert [finding.where for finding in anchored.findings] == ["journal"]
    assert verify(url, anchor=(last.seq, last.hash)).ok


def test_a_database_that_cannot_be_read_is_a_finding(url: str, postgres_server: PostgresServer) -> None:
    empty = postgres_server.new_database()
    for bad in (empty, postgres_server.url("missing"), "postgresql://host:port/x"):
        report = verify(bad)
        assert [finding.where for finding in report.findings] == ["database"]
        assert report.seq == 0
    postgres_server.drop_database(empty)
