"""The PostgreSQL store keeps the contract of every store, and what only it promises: its schema, server and errors."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from reticent.accounting import ledger_errors as errors
from reticent.accounting.journal import JournalHead
from reticent.accounting.ledger import ClaimRequest, Ledger, dataset_scope
from reticent.accounting.store import SqliteLedger, locate
from tests.contracts.test_ledger_contract import Clock, LedgerContract, clock

psycopg = pytest.importorskip("psycopg")

from reticent.accounting.store import postgres_rows  # noqa: E402
from reticent.accounting.store.postgres import PostgresLedger  # noqa: E402
from reticent.accounting.store.postgres_rows import PostgresRows  # noqa: E402
from tests.fakes.postgres import edit  # noqa: E402

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer

__all__ = ["clock"]  # the contract's fixture

ROOT = dataset_scope("d")


@pytest.fixture(scope="module")
def opened_once(one_postgres_database: str) -> Iterator[PostgresLedger]:
    """Opening takes a tenth of a second, most of it for the schema check: too much for each of a hundred tests."""
    ledger = PostgresLedger(one_postgres_database, create=True)
    yield ledger
    ledger.close()


class TestPostgresLedger(LedgerContract):
    @pytest.fixture
    def ledger(self, opened_once: PostgresLedger, emptied_postgres_url: str, clock: Clock) -> PostgresLedger:
        opened_once._now_us = clock
        opened_once._begin_journal()
        return opened_once


def opened(url: str, **options: Any) -> PostgresLedger:
    ledger = PostgresLedger(url, create=True, **options)
    ledger.open_dataset("d", 2.0, "dp")
    ledger.open_scope(ROOT, epsilon=1.0, delta=0.01, overhead=0, granted=100)
    return ledger


@pytest.fixture
def made(emptied_postgres_url: str) -> Iterator[PostgresLedger]:
    ledger = opened(emptied_postgres_url)
    yield ledger
    ledger.close()


def as_protocol(ledger: PostgresLedger) -> Ledger:
    """For the type checker."""
    return ledger


def run(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        connection.execute("SET search_path = reticent")
        cursor = connection.execute(query)
        return list(cursor.fetchall()) if cursor.description else []


# Making and opening


def test_a_ledger_is_made_only_on_request(postgres_url: str) -> None:
    with pytest.raises(errors.LedgerMissing):
        PostgresLedger(postgres_url)
    assert run(postgres_url, "SELECT to_regnamespace('reticent')") == [(None,)]
    PostgresLedger(postgres_url, create=True).close()
    assert run(postgres_url, "SELECT version_num FROM alembic_version") == [("0001",)]
    ledger = PostgresLedger(postgres_url)  # from head to head
    assert (ledger.head().seq, ledger.verify().ok) == (1, True)
    ledger.close()


def test_another_programs_schema_is_refused(postgres_url: str) -> None:
    run(postgres_url, "CREATE SCHEMA reticent CREATE TABLE things (i int)")
    for create in (False, True):
        with pytest.raises(errors.NotALedger):
            PostgresLedger(postgres_url, create=create)
    run(postgres_url, "DROP TABLE reticent.things")
    PostgresLedger(postgres_url, create=True).close()


def test_a_second_start_finds_the_ledger_as_it_was(made: PostgresLedger, emptied_postgres_url: str) -> None:
    reserved = made.reserve("r", ROOT, 10, lease_seconds=60, owner="o")
    again = opened(emptied_postgres_url)
    assert (again.head(), again.list_scopes()) == (made.head(), made.list_scopes())
    assert again.open_reservations() == (reserved,)
    again.close()


def test_4_processes_may_make_the_same_ledger_at_once(postgres_url: str) -> None:
    script = (
        "import sys\nfrom reticent.accounting.store.postgres import PostgresLedger\n"
        "sys.stdin.readline()\n"
        "ledger = PostgresLedger(sys.argv[1], create=True)\n"
        "print(ledger.open_dataset('demo', 2.5, 'dp').existed)\n"
        "ledger.close()\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, postgres_url]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(4)
    ]
    answers = [process.communicate("go\n", timeout=60)[0].strip() for process in children]
    assert sorted(answers) == ["False", "True", "True", "True"]
    ledger = PostgresLedger(postgres_url)
    assert (ledger.head().seq, ledger.verify().ok) == (2, True)
    ledger.close()


# Schema


def test_both_stores_have_the_same_columns(made: PostgresLedger, emptied_postgres_url: str, tmp_path: Path) -> None:
    kinds = {"bigint": "INTEGER", "smallint": "INTEGER", "text": "TEXT", "double precision": "REAL", "bytea": "BLOB"}
    rows = run(
        emptied_postgres_url,
        "SELECT table_name, column_name, data_type, is_nullable = 'NO' FROM information_schema.columns"
        " WHERE table_schema = 'reticent' AND table_name NOT IN ('alembic_version', 'journal_head')",
    )
    here = {(table, column, kinds[kind], bool(not_null)) for table, column, kind, not_null in rows}
    SqliteLedger(tmp_path / "ledger.db", create=True).close()
    connection = apsw.Connection(str(tmp_path / "ledger.db"))
    there = set()
    for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        for _, column, kind, not_null, _, key in connection.execute(f"PRAGMA table_info({table})").fetchall():
            there.add((table, column, kind, bool(not_null or key)))
    assert here == there


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal SET kind = 'x'",
        "DELETE FROM journal",
        "TRUNCATE journal CASCADE",
        "INSERT INTO journal SELECT * FROM journal WHERE seq = 1",
        "INSERT INTO journal SELECT seq + 9, time_us, kind, payload, hash, hash FROM journal WHERE seq = 1",
        "INSERT INTO journal SELECT seq + 5, time_us, kind, payload, previous, hash FROM journal WHERE seq = 1",
        "UPDATE journal_head SET hash = repeat('0', 64)",
        "UPDATE journal_head SET seq = seq - 1",
        "DELETE FROM journal_head",
        "TRUNCATE journal_head",
        "INSERT INTO journal_head (seq, hash) VALUES (0, '')",
        "UPDATE datasets SET renyi_order = '3.0'",
        "DELETE FROM datasets",
        "DELETE FROM scopes",
        "UPDATE scopes SET granted = granted - 1",
        "UPDATE scopes SET spent = spent - 1",
        "UPDATE scopes SET reserved = granted",
        "UPDATE scopes SET reserved = -1",
        "UPDATE scopes SET delta = 0.5",
        "UPDATE scopes SET delta = 'NaN'",
        "UPDATE scopes SET dataset_id = 'x'",
        "UPDATE scopes SET reserved = 9223372036854775807",
        "UPDATE reservations SET charge = 1 WHERE state = 'settled'",
        "UPDATE reservations SET worst_case = worst_case - 1",
        "UPDATE reservations SET state = 'released' WHERE state = 'open'",
        "DELETE FROM reservations",
    ],
)
def test_the_schema_is_a_backstop(made: PostgresLedger, emptied_postgres_url: str, statement: str) -> None:
    for name in ("open", "settled"):
        made.reserve(name, ROOT, 10, lease_seconds=60, owner="o")
    made.settle("settled", 5)
    assert made.head().seq == 6
    with pytest.raises((psycopg.IntegrityError, psycopg.errors.NumericValueOutOfRange)):
        run(emptied_postgres_url, statement)
    assert made.verify().ok


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE scopes DISABLE TRIGGER scopes_are_never_deleted",
        "DROP TRIGGER journal_grows_at_its_end ON journal",
        "ALTER TABLE scopes DROP CONSTRAINT scopes_never_overspent",
        "ALTER TABLE reservations DROP CONSTRAINT reservations_scope",
        "DROP INDEX open_reservations",
        "ALTER TABLE claims ADD COLUMN note text",
        "ALTER TABLE scopes ALTER COLUMN spent DROP NOT NULL",
        "ALTER TABLE journal ENABLE ROW LEVEL SECURITY",
        "CREATE RULE none AS ON INSERT TO reservations DO INSTEAD NOTHING",
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "UPDATE alembic_version SET version_num = 'abc'",
        "DELETE FROM alembic_version",
    ],
)
def test_a_changed_schema_is_refused(emptied_postgres_url: str, postgres_server: PostgresServer, change: str) -> None:
    PostgresLedger(emptied_postgres_url, create=True).close()
    url = postgres_server.new_database(like=emptied_postgres_url)
    try:
        run(url, change)
        with pytest.raises(errors.LedgerDamaged):
            PostgresLedger(url)
    finally:
        postgres_server.drop_database(url)


def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    opened(postgres_url).close()
    run(postgres_url, "UPDATE alembic_version SET version_num = '0007'")
    with pytest.raises(errors.SchemaTooNew) as caught:
        PostgresLedger(postgres_url)
    assert (caught.value.found, caught.value.known) == (7, 1)


# Server and connections


def test_a_server_that_does_not_wait_for_its_disk_is_refused(postgres_url: str) -> None:
    opened(postgres_url).close()
    name = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    run(postgres_url, f"ALTER DATABASE {name} SET synchronous_commit = off")
    with pytest.raises(errors.LedgerUnavailable, match="synchronous_commit is off"):
        PostgresLedger(postgres_url)


def test_a_write_waits_for_another_replica_only_so_long(emptied_postgres_url: str) -> None:
    ledger = opened(emptied_postgres_url, busy_seconds=0.1)
    with psycopg.connect(emptied_postgres_url) as other:
        other.execute("SELECT * FROM reticent.journal_head FOR UPDATE")
        with pytest.raises(errors.LedgerUnavailable, match="LockNotAvailable") as caught:
            ledger.reserve("r", ROOT, 10, lease_seconds=60, owner="o")
        assert caught.value.outcome == "nothing_written"
        assert ledger.statement(ROOT).reserved == 0
    assert ledger.reserve("r", ROOT, 10, lease_seconds=60, owner="o").worst_case == 10
    ledger.close()


def backend(ledger: PostgresLedger) -> int:
    assert ledger._writer is not None
    return int(ledger._writer.info.backend_pid)


def test_an_ended_connection_is_replaced(made: PostgresLedger, emptied_postgres_url: str) -> None:
    made.statement(ROOT)
    run(emptied_postgres_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    assert made.statement(ROOT).granted == 100
    assert made.reserve("r", ROOT, 10, lease_seconds=60, owner="o").worst_case == 10


def test_a_commit_whose_answer_was_lost_is_looked_up(made: PostgresLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = made._writer
    assert writer is not None
    execute = writer.execute

    def lose(query: Any, *rest: Any) -> Any:
        done = execute(query, *rest)
        if query == "COMMIT":
            writer.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return done

    monkeypatch.setattr(writer, "execute", lose)
    assert made.reserve("r", ROOT, 10, lease_seconds=60, owner="o") == made.reservation("r")
    assert made.settle("r", 3).charge == 3


def test_a_commit_that_never_arrived_wrote_nothing(
    made: PostgresLedger, emptied_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = made._writer
    assert writer is not None
    execute = writer.execute

    def end_first(query: Any, *rest: Any) -> Any:
        if query == "COMMIT":
            run(emptied_postgres_url, f"SELECT pg_terminate_backend({backend(made)}, 5000)")
        return execute(query, *rest)

    monkeypatch.setattr(writer, "execute", end_first)
    with pytest.raises(errors.LedgerUnavailable, match="nothing was written") as caught:
        made.reserve("r", ROOT, 10, lease_seconds=60, owner="o")
    assert caught.value.outcome == "nothing_written"
    with pytest.raises(errors.UnknownReservation):
        made.reservation("r")
    assert made.reserve("r", ROOT, 10, lease_seconds=60, owner="o").worst_case == 10


def test_a_connection_lost_before_the_commit_wrote_nothing_and_psycopg_says_nothing_beside(
    made: PostgresLedger, emptied_postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = PostgresRows.write

    def end_first(rows: PostgresRows, changes: Any) -> None:
        run(emptied_postgres_url, f"SELECT pg_terminate_backend({backend(made)}, 5000)")
        write(rows, changes)

    monkeypatch.setattr(PostgresRows, "write", end_first)
    with pytest.raises(errors.LedgerUnavailable) as caught:
        made.reserve("r", ROOT, 10, lease_seconds=60, owner="o")
    assert caught.value.outcome == "nothing_written"
    assert [record for record in caplog.records if record.name.startswith("psycopg")] == []
    monkeypatch.undo()
    assert made.reserve("r", ROOT, 10, lease_seconds=60, owner="o").state == "open"


def test_the_twin_that_uses_psycopgs_pipeline_as_it_is_logs_a_warning(
    made: PostgresLedger, emptied_postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = made._writer
    assert writer is not None
    ended = backend(made)

    def ask() -> None:
        with writer.pipeline():
            run(emptied_postgres_url, f"SELECT pg_terminate_backend({ended}, 5000)")
            writer.execute("SELECT 1").fetchall()

    with pytest.raises(psycopg.OperationalError):
        ask()
    assert any("error ignored terminating" in record.message for record in caplog.records)


@pytest.fixture
def looked_up(made: PostgresLedger, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[JournalHead]]:
    """From its call on the connection ends whenever a transaction is committed; what is then looked up."""

    def begin() -> list[JournalHead]:
        found: list[JournalHead] = []
        look_up = made._look_up

        def remember(last: JournalHead) -> None:
            found.append(last)
            look_up(last)

        monkeypatch.setattr(made, "_look_up", remember)
        writer = made._writer
        assert writer is not None
        execute = writer.execute

        def lose(query: Any, *rest: Any) -> Any:
            if query == "COMMIT":
                writer.close()
            return execute(query, *rest)

        monkeypatch.setattr(writer, "execute", lose)
        return found

    return begin


def test_a_refusal_is_as_durable_as_what_it_rests_on(
    made: PostgresLedger, looked_up: Callable[[], list[JournalHead]]
) -> None:
    """Where the connection ends while a refusal is committed, what was read is looked up like what was written."""
    made.reserve("r", ROOT, 10, lease_seconds=60, owner="o")
    made.settle("r", 3)
    found = looked_up()
    with pytest.raises(errors.AlreadySettled):
        made.settle("r", 3)
    assert found == [made.head()]


def test_a_recorded_answer_is_as_durable_as_the_settlement_that_paid_for_it(
    made: PostgresLedger, looked_up: Callable[[], list[JournalHead]]
) -> None:
    """It may be another replica's, visible before it has reached the standbys: a snapshot alone does not do."""
    made.reserve("r", ROOT, 10, lease_seconds=60, owner="o", claim=ClaimRequest("key", "0" * 64, 60.0))
    made.settle("r", 3, answer=b"paid")
    found = looked_up()
    assert made.recorded("key", "0" * 64) == b"paid"
    assert found == [made.head()]


def test_a_server_that_lost_commits_is_refused(made: PostgresLedger, emptied_postgres_url: str) -> None:
    """As a standby would be that was promoted without the last of them."""
    made.reserve("r", ROOT, 10, lease_seconds=60, owner="o")
    last = made.head()
    edit(
        emptied_postgres_url,
        f"DELETE FROM journal WHERE seq = {last.seq}",
        "DELETE FROM reservations",
        "UPDATE scopes SET reserved = 0, open = 0",
        "UPDATE journal_head SET (seq, hash) = (SELECT seq, hash FROM journal ORDER BY seq DESC LIMIT 1)",
    )
    run(emptied_postgres_url, f"SELECT pg_terminate_backend({backend(made)}, 5000)")
    with pytest.raises(errors.LedgerDamaged, match=f"entry {last.seq}"):
        made.reserve("s", ROOT, 10, lease_seconds=60, owner="o")
    report = made.verify(last)
    assert [finding.where for finding in report.findings] == ["journal"]
    assert locate.verify_ledger(emptied_postgres_url).ok


def test_a_ledger_is_not_carried_over_a_fork(made: PostgresLedger) -> None:
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            made.reserve("r", ROOT, 10, lease_seconds=60, owner="o")
        except errors.LedgerUnavailable:
            made.close()
            outcome = 0
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert made.reserve("r", ROOT, 10, lease_seconds=60, owner="o").worst_case == 10


def test_the_clock_is_the_servers(made: PostgresLedger, emptied_postgres_url: str) -> None:
    before = run(emptied_postgres_url, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[0][0]
    reserved = made.reserve("r", ROOT, 10, lease_seconds=60, owner="o")
    after = run(emptied_postgres_url, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[0][0]
    assert before <= reserved.reserved_us <= after


def test_a_closed_ledger_is_unavailable(made: PostgresLedger) -> None:
    made.close()
    made.close()
    for call in (made.head, made.verify, lambda: made.settle("r", 1)):
        with pytest.raises(errors.LedgerUnavailable):
            call()


def test_a_writer_without_the_heads_lock_is_caught(made: PostgresLedger, emptied_postgres_url: str) -> None:
    """The twin: both read the same head and the same balance, and both would spend it."""
    together = threading.Barrier(2)

    class Unlocked(PostgresRows):
        QUEUE = "SELECT 1"
        LOCK_HEAD = PostgresRows.LOCK_HEAD.replace(" FOR UPDATE", "")

        def write(self, changes: Any) -> None:
            together.wait(timeout=10)
            super().write(changes)

    outcomes: list[str] = []

    def spend(k: int) -> None:
        ledger = PostgresLedger(emptied_postgres_url)
        ledger._rows = Unlocked  # type: ignore[misc]
        try:
            outcomes.append(ledger.reserve(f"r{k}", ROOT, 70, lease_seconds=60, owner="o").state)
        except errors.LedgerUnavailable as error:
            outcomes.append(str(error).partition(":")[0])
        finally:
            ledger.close()

    threads = [threading.Thread(target=spend, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["UniqueViolation", "open"]
    assert made.statement(ROOT).reserved == 70
    assert made.verify().ok


def test_a_settlement_whose_reservation_was_made_elsewhere_reads_its_scopes(
    made: PostgresLedger, emptied_postgres_url: str
) -> None:
    other = PostgresLedger(emptied_postgres_url)
    other.reserve("r", ROOT, 10, lease_seconds=60, owner="o")
    assert "r" in other._known
    assert "r" not in made._known
    assert made.settle("r", 4).charge == 4
    assert other.statement(ROOT).spent == 4
    other.close()


def test_what_is_known_of_reservations_is_bounded(made: PostgresLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_rows, "_MOST_KNOWN", 3)
    for k in range(5):
        made.reserve(f"r{k}", ROOT, 1, lease_seconds=60, owner="o")
    assert list(made._known) == ["r2", "r3", "r4"]
    assert made.settle("r0", 1).charge == 1
