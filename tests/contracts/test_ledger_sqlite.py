"""What only the SQLite store promises: its file, its schema, its processes."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import apsw
import pytest

from reticent.accounting import ledger_errors as errors
from reticent.accounting.audit import verify
from reticent.accounting.ledger import ClaimRequest, Ledger, dataset_scope
from reticent.accounting.store import SqliteLedger, migrate
from reticent.accounting.store.work import UnitOfWork


def opened(path: Path) -> SqliteLedger:
    ledger = SqliteLedger(path, create=True)
    ledger.open_dataset("d", 2.0, "dp")
    ledger.open_scope(dataset_scope("d"), epsilon=1.0, delta=0.01, overhead=0, granted=100)
    return ledger


def as_protocol(ledger: SqliteLedger) -> Ledger:
    """For the type checker."""
    return ledger


def test_its_files_are_for_their_owner_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        ledger = opened(tmp_path / "ledger.db")
        files = sorted(tmp_path.iterdir())
        assert [f.name for f in files] == ["ledger.db", "ledger.db-shm", "ledger.db-wal"]
        assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
        ledger.close()
        (tmp_path / "ledger.db").chmod(0o644)
        SqliteLedger(tmp_path / "ledger.db").close()
        assert stat.S_IMODE((tmp_path / "ledger.db").stat().st_mode) == 0o600
    finally:
        os.umask(old)


def test_a_ledger_is_made_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with pytest.raises(errors.LedgerMissing):
        SqliteLedger(path)
    assert not path.exists()
    path.touch()
    with pytest.raises(errors.LedgerMissing):
        SqliteLedger(path)
    with pytest.raises(errors.LedgerUnavailable):
        SqliteLedger(tmp_path / "no" / "folder.db", create=True)


def test_a_second_start_finds_the_ledger_as_it_was(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger.db")
    made = ledger.reserve("r", dataset_scope("d"), 10, lease_seconds=60, owner="o")
    before = (ledger.head(), ledger.list_scopes())
    ledger.close()
    again = opened(tmp_path / "ledger.db")
    assert (again.head(), again.list_scopes(), again.open_reservations()) == (*before, (made,))
    again.close()


def test_two_ledgers_never_share_a_chain(tmp_path: Path) -> None:
    heads = []
    for name in ("a.db", "b.db"):
        ledger = SqliteLedger(tmp_path / name, create=True, clock_us=lambda: 1)
        heads.append(ledger.head())
        ledger.close()
    assert heads[0] != heads[1]


def test_commits_are_synchronous_and_foreign_keys_hold(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger.db")
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    assert {name: ledger._writer.execute(f"PRAGMA {name}").get for name in wanted} == wanted
    ledger.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal SET kind = 'x'",
        "DELETE FROM journal",
        "INSERT OR REPLACE INTO journal SELECT * FROM journal WHERE seq = 1",
        "INSERT INTO journal SELECT seq + 9, time_us, kind, payload, hash, hash FROM journal LIMIT 1",
        "UPDATE datasets SET renyi_order = '3.0'",
        "DELETE FROM datasets",
        "DELETE FROM scopes",
        "UPDATE scopes SET granted = granted - 1",
        "UPDATE scopes SET spent = spent - 1",
        "UPDATE scopes SET reserved = granted",
        "UPDATE scopes SET reserved = -1",
        "UPDATE scopes SET spent = 1.5",
        "UPDATE scopes SET delta = 0.5",
        "UPDATE scopes SET dataset_id = 'x'",
        "UPDATE reservations SET charge = 1 WHERE state = 'settled'",
        "UPDATE reservations SET worst_case = worst_case - 1",
        "UPDATE reservations SET state = 'released' WHERE state = 'open'",
        "DELETE FROM reservations",
        "UPDATE reservations SET claim = NULL WHERE reservation_id = 'open'",
        "UPDATE scopes SET unprotected = settled + 1",
        "UPDATE scopes SET unprotected = unprotected - 1",
        "UPDATE claims SET answer = 'not bytes' WHERE reservation_id = 'open'",
        "UPDATE claims SET answer = x'00' WHERE reservation_id = 'open'",
        "UPDATE claims SET answer = x'00' WHERE reservation_id = 'settled'",
        "UPDATE claims SET expires_us = expires_us + 1",
        "UPDATE claims SET request_digest = claim_id",
        "UPDATE claims SET reservation_id = 'open'",
        "INSERT INTO claims SELECT reservation_id, request_digest, 'nobody', NULL, 0 FROM claims LIMIT 1",
        "DELETE FROM claims WHERE reservation_id = 'open'",
    ],
)
def test_the_schema_is_a_backstop(tmp_path: Path, statement: str) -> None:
    ledger = opened(tmp_path / "ledger.db")
    for name in ("open", "settled"):
        claim = ClaimRequest(name, "d" * 64, 60.0)
        ledger.reserve(name, dataset_scope("d"), 10, lease_seconds=60, owner="o", claim=claim)
    ledger.settle("settled", 5, unprotected=True, answer=b"answer")
    with pytest.raises(apsw.ConstraintError):
        ledger._writer.execute(statement)
    assert ledger.verify().ok
    ledger.close()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "ledger.db").close()
    connection = apsw.Connection(str(tmp_path / "ledger.db"))
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(errors.SchemaTooNew) as caught:
        SqliteLedger(tmp_path / "ledger.db", create=True)
    assert (caught.value.found, caught.value.known) == (999, len(migrate.load_migrations()))


def version_1(path: Path, modern: Path) -> None:
    """The ledger at `modern`, which uses nothing new, as the first version of this package would have left it."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(migrate.load_migrations()[0].script)
    connection.execute("PRAGMA user_version = 1")
    connection.execute("ATTACH ? AS modern", (str(modern),))
    for table in ("journal", "datasets", "scopes", "reservations"):
        columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
        connection.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM modern.{table} ORDER BY rowid")
    connection.close()


def test_a_ledger_of_the_first_version_is_audited_migrated_and_goes_on(tmp_path: Path) -> None:
    modern = opened(tmp_path / "modern.db")
    for name in ("open", "settled", "forfeited"):
        modern.reserve(name, dataset_scope("d"), 10, lease_seconds=60, owner="o")
    modern.settle("settled", 4)
    modern.forfeit("forfeited", reason="x")
    before = (modern.head(), modern.list_scopes(), modern.open_reservations())
    modern.close()
    version_1(tmp_path / "old.db", tmp_path / "modern.db")
    old = verify(tmp_path / "old.db")
    assert (old.ok, old.seq, old.reservations) == (True, before[0].seq, 3)

    ledger = SqliteLedger(tmp_path / "old.db")
    assert (ledger.head(), ledger.list_scopes(), ledger.open_reservations()) == before
    assert ledger.verify(anchor=before[0]) == old
    ledger.settle("open", 1, unprotected=True)
    assert [s.unprotected for s in ledger.list_scopes()] == [1]
    assert ledger.verify(anchor=before[0]).ok
    ledger.close()


def test_an_audit_of_the_first_version_still_finds_what_is_wrong(tmp_path: Path) -> None:
    opened(tmp_path / "modern.db").close()
    version_1(tmp_path / "old.db", tmp_path / "modern.db")
    connection = apsw.Connection(str(tmp_path / "old.db"))
    connection.execute("UPDATE scopes SET granted = granted + 1")
    connection.close()
    assert [finding.where for finding in verify(tmp_path / "old.db").findings] == ["scopes dataset:d"]


def test_an_erased_answer_is_overwritten_in_the_file(tmp_path: Path) -> None:
    secret = b"what the patient asked " * 200
    ledger = opened(tmp_path / "ledger.db")
    ledger.reserve(
        "r", dataset_scope("d"), 10, lease_seconds=60, owner="o", claim=ClaimRequest("key of a client", "d" * 64, 60.0)
    )
    ledger.settle("r", 1, answer=secret)
    assert ledger.erase_expired_claims(2**62) == 1
    ledger.close()  # the last connection copies the log into the file and removes it
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    assert secret[:40] not in content
    assert b"key of a client" not in content


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    for k, script in enumerate(("CREATE TABLE t (x)", "CREATE TABLE t (x); PRAGMA user_version = 1")):
        path = tmp_path / f"{k}.db"
        connection = apsw.Connection(str(path))
        connection.execute(script)
        connection.close()
        with pytest.raises(errors.NotALedger):
            SqliteLedger(path, create=True)
        connection = apsw.Connection(str(path))
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("t",)]
        connection.close()
    (tmp_path / "text").write_text("hello " * 1000)
    with pytest.raises(errors.LedgerUnavailable):
        SqliteLedger(tmp_path / "text", create=True)
    assert (tmp_path / "text").read_text() == "hello " * 1000


@pytest.mark.parametrize(
    "statement", ["DROP TRIGGER journal_is_never_updated", "DROP INDEX open_reservations", "CREATE TABLE x (y)"]
)
def test_a_schema_without_its_backstops_is_refused(tmp_path: Path, statement: str) -> None:
    opened(tmp_path / "ledger.db").close()
    connection = apsw.Connection(str(tmp_path / "ledger.db"))
    connection.execute(statement)
    connection.close()
    with pytest.raises(errors.LedgerDamaged):
        SqliteLedger(tmp_path / "ledger.db")


@pytest.mark.parametrize("version", ["3.53.9", "3.40.1", "2.99"])
def test_an_old_sqlite_is_refused(tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    with pytest.raises(errors.UnsupportedSqlite):
        SqliteLedger(tmp_path / "ledger.db", create=True)
    assert not (tmp_path / "ledger.db").exists()


def test_a_lock_held_for_too_long_is_unavailable_and_nothing_is_written(tmp_path: Path) -> None:
    opened(tmp_path / "ledger.db").close()
    ledger = SqliteLedger(tmp_path / "ledger.db", busy_seconds=0.05)
    other = apsw.Connection(str(tmp_path / "ledger.db"))
    other.execute("BEGIN IMMEDIATE")
    head = ledger.head()
    with pytest.raises(errors.LedgerUnavailable):
        ledger.reserve("r", dataset_scope("d"), 10, lease_seconds=60, owner="o")
    assert ledger.statement(dataset_scope("d")).reserved == 0
    other.execute("ROLLBACK")
    other.close()
    assert ledger.head() == head
    assert ledger.reserve("r", dataset_scope("d"), 10, lease_seconds=60, owner="o").state == "open"
    ledger.close()


def test_a_closed_ledger_is_unavailable(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger.db")
    ledger.head()
    ledger.close()
    ledger.close()
    for call in (ledger.head, ledger.verify, lambda: ledger.forfeit("r", reason="x")):
        with pytest.raises(errors.LedgerUnavailable):
            call()
    assert [f.name for f in tmp_path.iterdir()] == ["ledger.db"]


def test_it_is_not_carried_over_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(tmp_path / "ledger.db")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for call in (ledger.head, lambda: ledger.forfeit("r", reason="x")):
        with pytest.raises(errors.LedgerUnavailable):
            call()
    monkeypatch.undo()
    ledger.close()


def test_an_error_in_the_middle_of_a_write_undoes_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(tmp_path / "ledger.db")
    before = (ledger.head(), ledger.list_scopes())

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(UnitOfWork, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.reserve("r", dataset_scope("d"), 10, lease_seconds=60, owner="o")
    assert (ledger.head(), ledger.list_scopes(), ledger.open_reservations()) == (*before, ())
    assert ledger.reserve("r", dataset_scope("d"), 10, lease_seconds=60, owner="o").state == "open"
    ledger.close()


def test_a_full_disk_is_unavailable_and_nothing_is_written(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger.db")
    before = (ledger.head(), ledger.list_scopes())
    pages = ledger._writer.execute("PRAGMA page_count").get
    ledger._writer.execute(f"PRAGMA max_page_count = {pages}").fetchall()

    def fill_up() -> None:
        nonlocal before
        for k in range(1000):
            ledger.open_scope(f"tenant:d/{'t' * 50}{k}", epsilon=1.0, delta=0.01, overhead=0, granted=1)
            before = (ledger.head(), ledger.list_scopes())

    with pytest.raises(errors.LedgerUnavailable):
        fill_up()
    assert (ledger.head(), ledger.list_scopes()) == before
    assert ledger.verify().ok
    ledger.close()


def test_a_ledger_is_audited_while_it_is_open_and_from_a_copy(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger.db")
    head = ledger.head()
    ledger.reserve("r", dataset_scope("d"), 10, lease_seconds=60, owner="o")
    report = ledger.verify(anchor=head)
    assert (report.ok, report.open_reservations, report.seq) == (True, 1, head.seq + 1)
    ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "copy.db")
    copy = SqliteLedger(tmp_path / "copy.db")
    assert copy.verify() == report
    copy.close()
