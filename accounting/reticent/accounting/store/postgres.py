"""The store for many replicas: one PostgreSQL database (15 or newer), any number of writing processes.

Every process writes through one connection, many callers' operations in one transaction (group commit). A writing
transaction first locks the row that holds the journal's head: so the journal has one order, nothing comes between
a check and its debit, and no two writers can wait for each other. Reads have connections of their own.

Durability: a call returns after the COMMIT did, with ``fsync`` and ``synchronous_commit`` on (other servers are
refused). With standbys it is as durable as ``synchronous_standby_names`` makes it. A standby that was promoted without
the last commits is noticed by every process that saw one of them, and refused.

Time is the server's: replicas whose own clocks differ would otherwise forfeit each other's leases early.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

import psycopg

from reticent.accounting.audit import Report
from reticent.accounting.audit_postgres import verify
from reticent.accounting.journal import JournalHead
from reticent.accounting.ledger_errors import LedgerDamaged, LedgerUnavailable
from reticent.accounting.store import checks
from reticent.accounting.store.base import OperationLedger, wall_clock_us
from reticent.accounting.store.postgres_connect import Address, Connection, connection_lost, store_errors
from reticent.accounting.store.postgres_rows import Known, PostgresReads, PostgresRows
from reticent.accounting.store.postgres_schema import SCHEMA, prepare_schema
from reticent.accounting.store.readers import IdleReaders

__all__ = ["PostgresLedger"]

_READ_SECONDS: Final = 60  # of one statement that reads
_STALLED_SECONDS: Final = 10  # after which the server ends a writer that holds the head and does nothing
_PAUSE_SECONDS: Final = 0.05


class PostgresLedger(OperationLedger):
    """``ledger.Ledger`` in the schema ``reticent`` of a PostgreSQL database.

    ``url`` is ``postgresql://user:password@host:port/database`` with libpq's parameters; the password may come from a
    password file or ``PGPASSWORD`` instead. ``create=True`` makes the ledger in an empty database; it is off by
    default, because a mistyped name would otherwise give everybody a fresh budget. ``busy_seconds`` is how long a
    write waits for other replicas, ``connect_seconds`` how long a call tries to reach a server that went away, before
    ``LedgerUnavailable``. ``clock_us`` replaces the server's clock, for tests.
    Do not carry it over a ``fork``: open another one in the child.
    """

    _rows: ClassVar[type[PostgresRows]] = PostgresRows

    def __init__(
        self,
        url: str,
        *,
        create: bool = False,
        busy_seconds: float = 30.0,
        connect_seconds: float = 10.0,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self._server_clock = _ServerClock()
        super().__init__(self._server_clock if clock_us is None else clock_us)
        self._address = Address(url)
        busy_ms = checks.number_in("busy_seconds", busy_seconds, 0.0, 3600.0) * 1000
        self._patience = {"lock_timeout": f"{busy_ms:.0f}"}
        self._connect_seconds = checks.number_in("connect_seconds", connect_seconds, 0.0, 3600.0)
        self._write_lock = threading.Lock()
        self._writer: Connection | None = None
        self._readers: IdleReaders[Connection] = IdleReaders()
        self._seen: JournalHead | None = None
        self._known: Known = {}
        with store_errors(self._address):
            prepare_schema(lambda: self._address.session(SCHEMA, self._patience), create=create)
            self._writer = self._connect_writer()
        try:
            self._begin_journal()
        except BaseException:
            self.close()
            raise

    # Writing

    @contextmanager
    def _writing(self) -> Iterator[PostgresRows]:
        with self._write_lock, store_errors(self._address):
            self._refuse_unusable()
            rows = self._begin()
            try:
                yield rows
                last = rows.head() if rows.last is None else JournalHead(rows.last.seq, rows.last.hash)
                self._commit(last)
            except BaseException:
                self._roll_back()
                raise
            self._seen = last

    def _begin(self) -> PostgresRows:
        """A transaction that holds the head; on a new connection if the last one broke. Nothing was written yet."""
        give_up = time.monotonic() + self._connect_seconds
        while True:
            try:
                if self._writer is None:
                    self._writer = self._connect_writer()
                rows = self._rows(self._writer, self._known)
            except psycopg.OperationalError as error:
                if self._writer is not None and not connection_lost(self._writer, error):
                    self._roll_back()  # the server answered: it waited too long for the head, for one
                    raise
                self._drop_writer()
                if time.monotonic() > give_up:
                    raise
                time.sleep(_PAUSE_SECONDS)
            except BaseException:
                self._roll_back()
                raise
            else:
                self._server_clock.set(rows.now_us)
                return rows

    def _connect_writer(self) -> Connection:
        settings = {
            **self._patience,
            # Only the head is waited for. A commit that is cancelled while it waits for a standby would count as done.
            "statement_timeout": "0",
            "idle_in_transaction_session_timeout": f"{_STALLED_SECONDS * 1000}",
        }
        connection = self._address.session(SCHEMA, settings)
        try:
            self._refuse_another_history(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_another_history(self, connection: Connection) -> None:
        """A server that came back without an entry that this process saw committed has lost charges."""
        if self._seen is None or self._seen.seq == 0:
            return
        if _entry_hash(connection, self._seen.seq) != self._seen.hash:
            text = f"the journal no longer has entry {self._seen.seq} as it was committed"
            raise LedgerDamaged(text)

    def _commit(self, last: JournalHead) -> None:
        """COMMIT; on return everything up to `last` is durable. After a lost connection, look whether it is.

        Also where nothing was written: a refusal may rest on what another commit left, whose outcome its caller did
        not learn, and must be as durable as that.
        """
        try:
            self._finish()
        except psycopg.Error as error:
            if self._writer is not None and error.sqlstate is not None and not connection_lost(self._writer, error):
                raise  # the server's answer: it was rolled back
            self._drop_writer()
            if last.seq > 0:
                self._look_up(last)

    def _finish(self) -> None:
        """COMMIT on the writer. The lock on the head is in the log, so this waits for the disk and for standbys."""
        writer = self._writer
        if writer is None:
            raise LedgerUnavailable("the connection is closed", "nothing_written")
        warnings: list[str] = []

        def listen(notice: psycopg.errors.Diagnostic) -> None:
            if notice.severity_nonlocalized == "WARNING":
                warnings.append(str(notice.message_primary))

        writer.add_notice_handler(listen)
        try:
            writer.execute("COMMIT")
        finally:
            writer.remove_notice_handler(listen)
        if warnings:
            text = f"unknown outcome: committed, perhaps not on a standby: {warnings[0]}"
            raise LedgerUnavailable(text, "unknown")

    def _look_up(self, last: JournalHead) -> None:
        """Return if the transaction that ended with `last` was committed, and raise if not, or if nobody can tell.

        Its own session held the head, so when a new one gets hold of it the old one has ended, either way. The new
        transaction is committed: then what it saw has reached the disk and the standbys.
        """
        try:
            self._begin()
            found = None if self._writer is None else _entry_hash(self._writer, last.seq)
            self._finish()
        except (psycopg.Error, LedgerUnavailable):
            text = "unknown outcome: the connection was lost during a commit"
            raise LedgerUnavailable(text, "unknown") from None
        finally:
            self._roll_back()
        if found != last.hash:
            text = "the connection was lost before the commit; nothing was written"
            raise LedgerUnavailable(text, "nothing_written")

    def _roll_back(self) -> None:
        """Leave no transaction behind: by ROLLBACK where that works, else without the connection."""
        writer = self._writer
        if writer is None:
            return
        try:
            if not writer.closed:
                writer.execute("ROLLBACK")
        except BaseException as error:
            self._drop_writer()
            if not isinstance(error, psycopg.Error):
                raise
        if writer.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self._drop_writer()

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    # Reading

    @contextmanager
    def _reading(self) -> Iterator[PostgresReads]:
        with store_errors(self._address):
            connection = self._begin_reading()
            try:
                yield PostgresReads(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
            self._readers.give_back(connection)

    def _begin_reading(self) -> Connection:
        give_up = time.monotonic() + self._connect_seconds
        while True:
            connection = self._readers.take()
            try:
                if connection is None:
                    connection = self._address.session(SCHEMA, {"statement_timeout": f"{_READ_SECONDS * 1000}"})
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            except psycopg.OperationalError:
                if connection is not None:
                    connection.close()
                elif time.monotonic() > give_up:
                    raise
                else:
                    time.sleep(_PAUSE_SECONDS)
            else:
                return connection

    def verify(self, anchor: JournalHead | None = None) -> Report:
        """The independent auditor's report on this database: see ``audit.verify``."""
        self._refuse_unusable()
        return verify(self._address.url, anchor=None if anchor is None else (anchor.seq, anchor.hash))

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # the connections are the parent's
        with self._write_lock:
            self._closed = True
            self._readers.close()
            self._drop_writer()


class _ServerClock:
    """The server's clock as it was when the head was last held, and how long ago that is."""

    def __init__(self) -> None:
        self.set(wall_clock_us())

    def set(self, now_us: int) -> None:
        self._last = (now_us, time.monotonic_ns())

    def __call__(self) -> int:
        then_us, then_ns = self._last
        return then_us + (time.monotonic_ns() - then_ns) // 1000


def _entry_hash(connection: Connection, seq: int) -> str | None:
    rows = connection.execute("SELECT hash FROM journal WHERE seq = %s", (seq,)).fetchall()
    return str(rows[0][0]) if rows else None
